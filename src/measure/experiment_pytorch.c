/* The pytorch lens: jobs and checks go to the bundled script as JSON, run with
 * the user's own python3, and its results are read like any untrusted text. */
#include "measure/experiment_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_OUTPUT_BYTES ((size_t)256 << 20)
#define TIMEOUT_S 3600.0

/* A file without a name: however we end, nothing is left of it. Other programs
 * of the same user open it by path, as long as we live. */
typedef struct unnamed {
    int fd; /* -1: none */
    char path[64];
} unnamed;

/* The script, and what it shall do next. */
typedef struct gac_pytorch_server {
    unnamed script, request;
    exp_server *process; /* NULL: runs once, for one request */
} workplace;

static json_t *job_request(const exp_job *job)
{
    const gac_sdpa_shape *s = &job->spec.sdpa.shape;
    const gac_gemm_shape *g = &job->spec.gemm;
    const gac_pad_shape *p = &job->spec.pad;
    if (job->spec.kind == GAC_TASK_GEMM)
        return json_pack("{s:s, s:I, s:I, s:I, s:b}", "op", "gemm", "m", (json_int_t)g->m, "n",
                         (json_int_t)g->n, "k", (json_int_t)g->k, "row_major", g->row_major);
    if (job->spec.kind == GAC_TASK_PAD)
        return json_pack("{s:s, s:I, s:I, s:I}", "op", "pad", "rows", (json_int_t)p->n_rows, "from",
                         (json_int_t)p->n_from, "to", (json_int_t)p->n_to);
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f}", "op", "sdpa",
                     "path", job->path, "batch", (json_int_t)s->batch, "q_heads",
                     (json_int_t)s->n_q_heads, "kv_heads", (json_int_t)s->n_kv_heads, "n_q",
                     (json_int_t)s->n_q, "n_kv", (json_int_t)s->n_kv, "qk_head",
                     (json_int_t)s->qk_head, "v_head", (json_int_t)s->v_head, "causal", s->causal,
                     "scale", job->spec.sdpa.scale);
}

static json_t *make_request(const exp_plan *plan, const exp_check *checks, int n_checks, bool names,
                            const gac_experiment_options *options)
{
    const gac_timing_rules *r = options->rules;
    json_t *jobs = json_array(), *list = json_array();
    for (int32_t i = 0; i < plan->n_jobs; i++)
        json_array_append_new(jobs, job_request(&plan->jobs[i]));
    for (int i = 0; i < n_checks; i++) {
        exp_job job = { .spec = checks[i].spec, .path = checks[i].path };
        json_t *one = job_request(&job);
        json_object_set_new(one, "stored", json_integer(checks[i].stored));
        json_object_set_new(one, "n_in_launch", json_integer(checks[i].n_in_launch));
        json_array_append_new(list, one);
    }
    return json_pack("{s:s, s:s, s:{s:f, s:f, s:i, s:i, s:f, s:f, s:f, s:f}, s:b, s:o, s:o}",
                     "device", options->device ? options->device : "cuda:0", "dtype",
                     gac_dtype_name(plan->dtype), "rules", "warmup_us", r->warmup_us, "sample_us",
                     r->sample_us, "min_samples", r->min_samples, "max_samples", r->max_samples,
                     "max_noise", r->max_noise, "max_time_us", r->max_time_us, "settle_us",
                     r->settle_us, "graph_below_us",
                     isfinite(r->graph_below_us) ? r->graph_below_us : 1e18, "names", names, "jobs",
                     jobs, "checks", list);
}

/* The name has a folder that is not there, from which python then takes no
 * modules. */
static gac_status write_unnamed(unnamed *file, const char *text, size_t n_bytes, gac_error *err)
{
    file->fd = memfd_create("gac/pytorch_lens", MFD_CLOEXEC);
    if (file->fd < 0)
        return gac_error_set(err, GAC_FAILED, "pytorch lens: cannot make a file: %s",
                             strerror(errno));
    snprintf(file->path, sizeof file->path, "/proc/%ld/fd/%d", (long)getpid(), file->fd);
    while (n_bytes > 0) {
        ssize_t put = write(file->fd, text, n_bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return gac_error_set(err, GAC_FAILED, "pytorch lens: cannot write a file: %s",
                                 strerror(errno));
        text += put;
        n_bytes -= (size_t)put;
    }
    return GAC_OK;
}

static void forget(unnamed *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

static gac_status set_up(workplace *w, gac_error *err)
{
    const exp_bundled *script = exp_find_bundled("pytorch_lens.py");
    *w = (workplace){ .script.fd = -1, .request.fd = -1 };
    return script ? write_unnamed(&w->script, script->text, script->n_bytes, err)
                  : gac_error_no_memory(err);
}

static void clean_up(workplace *w)
{
    exp_server_end(w->process);
    w->process = NULL;
    forget(&w->script);
    forget(&w->request);
}

static gac_status bad_answer(const char *what, int index, gac_error *err)
{
    return gac_error_set(err, GAC_FAILED, "pytorch lens: answer: %s[%d] makes no sense", what,
                         index);
}

/* A number of a list, or -1. */
static int integer_at(const json_t *list, size_t index)
{
    const json_t *item = json_array_get(list, index);
    return json_is_integer(item) ? (int)json_integer_value(item) : -1;
}

static gac_status take_timing(exp_job *job, const json_t *answer, int index, gac_error *err)
{
    const json_t *samples = json_object_get(answer, "samples_us");
    gac_timing *t = calloc(1, sizeof *t);
    if (!t)
        return gac_error_no_memory(err);
    t->temperature_c_max = -1;
    t->clock_mhz_min = integer_at(json_object_get(answer, "clock_mhz"), 0);
    t->clock_mhz_max = integer_at(json_object_get(answer, "clock_mhz"), 1);
    t->n_unsettled = (int)json_integer_value(json_object_get(answer, "n_unsettled"));
    t->n_calls = (int)json_integer_value(json_object_get(answer, "n_calls"));
    t->graph = json_is_true(json_object_get(answer, "graph"));
    t->steady = json_is_true(json_object_get(answer, "steady"));
    size_t n = json_array_size(samples);
    bool ok = n >= 1 && n <= GAC_MAX_SAMPLES;
    for (size_t i = 0; i < n && ok; i++) {
        double value = json_number_value(json_array_get(samples, i));
        ok = value > 0 && isfinite(value);
        t->samples_us[t->n_samples++] = value;
    }
    if (ok) {
        gac_timing_summarise(t);
        job->state = EXP_MEASURED;
        job->time_us = t->median_us;
        job->spread_us = t->spread_us;
        job->noise = t->noise;
        job->n_samples = t->n_samples;
        job->timing = gac_timing_json(t, true);
    }
    free(t);
    return ok ? GAC_OK : bad_answer("jobs", index, err);
}

/* What served an attention call, from what it launched. */
static const char *backend_of(const exp_job *job)
{
    static const char *const names[][2] = { { "cudnn", "cudnn" },
                                            { "fa2", "flash" },
                                            { "fa3", "flash" },
                                            { "mem-efficient", "efficient" } };
    if (job->spec.kind != GAC_TASK_SDPA || !job->families[0])
        return job->path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(job->families, names[i][0]))
            return names[i][1];
    return "math";
}

static gac_status take_job(exp_job *job, const json_t *answer, int index, gac_error *err)
{
    const char *state = json_string_value(json_object_get(answer, "state"));
    const char *reason = json_string_value(json_object_get(answer, "reason"));
    if (reason)
        gac_quote(job->reason, sizeof job->reason, reason);
    if (!state)
        return bad_answer("jobs", index, err);
    if (strcmp(state, "measured") != 0) {
        job->state = strcmp(state, "declined") == 0 ? EXP_DECLINED : EXP_FAILED;
        return GAC_OK;
    }
    gac_status status = take_timing(job, answer, index, err);
    if (status != GAC_OK)
        return status;
    json_t *kernels = json_array();
    const json_t *list = json_object_get(answer, "kernels");
    for (size_t i = 0; i < json_array_size(list) && i < 256; i++) {
        char name[256];
        const json_t *kernel = json_array_get(list, i);
        const char *text = json_string_value(json_object_get(kernel, "name"));
        json_array_append_new(
            kernels, json_pack("{s:s, s:f}", "name", gac_quote(name, sizeof name, text ? text : ""),
                               "time_us", json_number_value(json_object_get(kernel, "time_us"))));
    }
    exp_note_kernels(job, kernels);
    snprintf(job->served, sizeof job->served, "%s", backend_of(job));
    return GAC_OK;
}

static gac_status take_answer(exp_plan *plan, const exp_check *checks, int n_checks,
                              const json_t *answer, json_t *out, gac_error *err)
{
    const json_t *jobs = json_object_get(answer, "jobs");
    const json_t *list = json_object_get(answer, "checks");
    gac_status status = GAC_OK;
    if (json_array_size(jobs) != (size_t)plan->n_jobs || json_array_size(list) != (size_t)n_checks)
        return gac_error_set(err, GAC_FAILED, "pytorch lens: answer: not as many results as calls");
    for (int32_t i = 0; i < plan->n_jobs && status == GAC_OK; i++)
        status = take_job(&plan->jobs[i], json_array_get(jobs, (size_t)i), i, err);
    for (int i = 0; i < n_checks && status == GAC_OK; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        const json_t *relative = json_object_get(one, "relative");
        const json_t *forgotten = json_object_get(one, "forgotten");
        const char *reason = json_string_value(json_object_get(one, "reason"));
        char q[300];
        gac_quote(q, sizeof q, reason ? reason : "not compared");
        /* Compared and no number: infinitely far off. */
        bool ran = json_is_number(relative) || json_is_null(relative);
        json_array_append_new(
            out, exp_check_json(&checks[i],
                                json_is_number(relative) ? json_number_value(relative) : INFINITY,
                                json_is_number(forgotten) ? json_number_value(forgotten) : NAN,
                                gac_measure_tolerance(&checks[i].spec), ran ? NULL : q));
    }
    return status;
}

static const char *python(void)
{
    const char *named = getenv("GAC_PYTHON");
    return named && named[0] ? named : "python3";
}

/* Starts the script to be asked more than once. */
static gac_status keep_running(workplace *w, gac_error *err)
{
    char *argv[] = { (char *)(uintptr_t)python(), (char *)"-B", w->script.path, NULL };
    gac_error local = GAC_ERROR_INIT;
    gac_status status = exp_server_start(argv, &w->process, &local);
    return status == GAC_OK ? GAC_OK : gac_error_set(err, status, "pytorch lens: %s", local.text);
}

/* Gives the script a request; *out is what it answers. */
static gac_status ask(workplace *w, const json_t *request, gac_progress *progress, const char *what,
                      json_t **out, gac_error *err)
{
    char line[sizeof w->request.path + 1];
    gac_error local = GAC_ERROR_INIT;
    exp_output output;
    char *text = NULL;
    size_t n_bytes;
    gac_status status = gac_json_text(request, JSON_COMPACT, &text, &n_bytes, err);
    forget(&w->request);
    if (status == GAC_OK)
        status = write_unnamed(&w->request, text, n_bytes, err);
    free(text);
    if (status != GAC_OK)
        return status;
    char *argv[] = { (char *)(uintptr_t)python(), (char *)"-B", w->script.path, w->request.path,
                     NULL };
    snprintf(line, sizeof line, "%s\n", w->request.path);
    status = w->process
                 ? exp_server_ask(w->process, line, TIMEOUT_S, MAX_OUTPUT_BYTES, progress, what,
                                  &output, &local)
                 : exp_spawn(argv, TIMEOUT_S, MAX_OUTPUT_BYTES, progress, what, &output, &local);
    if (status != GAC_OK)
        return gac_error_set(err, status, "pytorch lens: %s", local.text);
    if (output.exit_code != 0)
        status = gac_error_set(err, output.exit_code == 4 ? GAC_NO_RESOURCE : GAC_FAILED,
                               "pytorch lens: %s",
                               output.last_line[0] ? output.last_line : "the script failed");
    else if (output.n_bytes == 0)
        status = gac_error_set(err, GAC_FAILED, "pytorch lens: the script ended without an answer");
    else
        status = gac_json_parse(output.text, output.n_bytes, "pytorch lens", out, err);
    free(output.text);
    return status;
}

/* The kernel of a job that ran longest. */
static const char *longest_kernel(const exp_job *job)
{
    const char *name = "";
    double most_us = 0;
    size_t i;
    json_t *kernel;
    json_array_foreach(job->kernels, i, kernel) {
        double time_us = json_number_value(json_object_get(kernel, "time_us"));
        if (time_us > most_us) {
            most_us = time_us;
            name = json_string_value(json_object_get(kernel, "name"));
        }
    }
    return name;
}

void gac_pytorch_end(gac_pytorch *how)
{
    if (how->server)
        clean_up(how->server);
    free(how->server);
    how->server = NULL;
}

static gac_status start_server(gac_pytorch *how, gac_error *err)
{
    if (how->server)
        return GAC_OK;
    how->server = calloc(1, sizeof *how->server);
    gac_status status = how->server ? set_up(how->server, err) : gac_error_no_memory(err);
    return status == GAC_OK ? keep_running(how->server, err) : status;
}

gac_status gac_pytorch_serve(void *context, const gac_task_spec *specs, int n, bool names,
                             gac_probe_served *out, char stack[96], gac_error *err)
{
    gac_timing_rules rules = GAC_TIMING_RULES_SWEEP_INIT;
    gac_pytorch *how = context;
    gac_experiment_options options = { .rules = &rules, .device = how->device };
    exp_job *jobs = calloc((size_t)n + 1, sizeof *jobs);
    exp_plan plan = { .dtype = n > 0 ? specs[0].dtype : GAC_DTYPE_F16, .jobs = jobs, .n_jobs = n };
    json_t *answer = NULL, *none = json_array();
    if (how->quick)
        rules.settle_us = 0;
    for (int i = 0; jobs && i < n; i++)
        jobs[i] = (exp_job){ .spec = specs[i], .path = "auto" };
    json_t *request = jobs ? make_request(&plan, NULL, 0, names, &options) : NULL;
    gac_status status = start_server(how, err);
    if (status == GAC_OK)
        status = ask(how->server, request, how->progress, "attention by PyTorch", &answer, err);
    if (status == GAC_OK)
        status = take_answer(&plan, NULL, 0, answer, none, err);
    const json_t *machine = json_object_get(answer, "machine");
    const char *torch = json_string_value(json_object_get(machine, "torch"));
    snprintf(stack, 96, "torch %s", torch ? torch : "of unknown version");
    for (int i = 0; jobs && i < n; i++) {
        out[i].time_us = jobs[i].state == EXP_MEASURED ? jobs[i].time_us : NAN;
        snprintf(out[i].kernel, sizeof out[i].kernel, "%s", longest_kernel(&jobs[i]));
        json_decref(jobs[i].timing);
        json_decref(jobs[i].kernels);
    }
    if (status != GAC_OK)
        gac_pytorch_end(how);
    json_decref(none);
    json_decref(answer);
    json_decref(request);
    free(jobs);
    return status;
}

gac_status exp_run_pytorch(const gac_experiment *experiment, exp_plan *plan,
                           const gac_experiment_options *options, json_t **checks, json_t **machine,
                           gac_error *err)
{
    workplace w = { .script.fd = -1, .request.fd = -1 };
    exp_check *list = NULL;
    int n_checks = 0;
    json_t *answer = NULL, *out = json_array();
    gac_status status = exp_read_checks(experiment, GAC_LENS_PYTORCH, &list, &n_checks, err);
    json_t *request = status == GAC_OK ? make_request(plan, list, n_checks, true, options) : NULL;
    if (status == GAC_OK)
        status = set_up(&w, err);
    if (status == GAC_OK)
        status = ask(&w, request, options->progress, plan->what, &answer, err);
    if (status == GAC_OK)
        status = take_answer(plan, list, n_checks, answer, out, err);
    if (status == GAC_OK) {
        *machine = json_incref(json_object_get(answer, "machine"));
        *checks = json_incref(out);
    }
    clean_up(&w);
    json_decref(out);
    json_decref(answer);
    json_decref(request);
    free(list);
    return status;
}
