/* Times calls in PyTorch. The user's python3 runs the bundled script, which
 * gets requests and gives answers as JSON. The answers are parsed as untrusted
 * text. */
#include <gac/timing.h>

#include "base/arguments.h"
#include "base/spawn.h"
#include "timing/bundled_script.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_OUTPUT_BYTES ((size_t)256 << 20)
#define MAX_KERNELS 256
#define TIMEOUT_S 3600.0

/* A file in memory. It disappears when this process ends, however it ends.
 * Until then, other processes of the user can open it by path. */
typedef struct unnamed {
    int fd; /* -1: none */
    char path[64];
} unnamed;

struct gac_pytorch {
    unnamed script, request;
    gac_child *process;
};

/* Python adds the script's folder to its module path. The name contains a
 * folder that does not exist, so that python finds no modules there. */
static gac_status write_unnamed(unnamed *file, const char *text, size_t n_bytes, gac_error *err)
{
    file->fd = memfd_create("gac/pytorch_stack", MFD_CLOEXEC);
    if (file->fd < 0)
        return gac_error_set(err, GAC_FAILED, "PyTorch: cannot make a file: %s", strerror(errno));
    snprintf(file->path, sizeof file->path, "/proc/%ld/fd/%d", (long)getpid(), file->fd);
    while (n_bytes > 0) {
        ssize_t put = write(file->fd, text, n_bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return gac_error_set(err, GAC_FAILED, "PyTorch: cannot write a file: %s",
                                 strerror(errno));
        text += put;
        n_bytes -= (size_t)put;
    }
    return GAC_OK;
}

static void close_unnamed(unnamed *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

gac_status gac_pytorch_start(gac_pytorch **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, out);
    const char *named = getenv("GAC_PYTHON");
    const char *python = named && named[0] ? named : "python3";
    gac_error local = GAC_ERROR_INIT;
    gac_pytorch *pytorch = malloc(sizeof *pytorch);
    if (!pytorch)
        return gac_error_no_memory(err);
    *pytorch = (gac_pytorch){ .script.fd = -1, .request.fd = -1 };
    gac_status status = write_unnamed(&pytorch->script, gac_bundled_script[0].text,
                                      gac_bundled_script[0].n_bytes, err);
    if (status == GAC_OK) {
        char *argv[] = { (char *)(uintptr_t)python, (char *)"-B", pytorch->script.path, NULL };
        status = gac_child_start(argv, &pytorch->process, &local);
        if (status != GAC_OK)
            gac_error_set(err, status, "PyTorch: %s", local.text);
    }
    if (status == GAC_OK)
        *out = pytorch;
    else
        gac_pytorch_end(pytorch);
    return status;
}

void gac_pytorch_end(gac_pytorch *pytorch)
{
    if (!pytorch)
        return;
    gac_child_end(pytorch->process);
    close_unnamed(&pytorch->script);
    close_unnamed(&pytorch->request);
    free(pytorch);
}

json_t *gac_pytorch_call_json(const gac_task_spec *spec, const char *path)
{
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    const gac_gemm_shape *g = &spec->gemm;
    const gac_pad_shape *p = &spec->pad;
    if (spec->kind == GAC_TASK_GEMM)
        return json_pack("{s:s, s:I, s:I, s:I, s:b}", "op", "gemm", "m", (json_int_t)g->m, "n",
                         (json_int_t)g->n, "k", (json_int_t)g->k, "row_major", g->row_major);
    if (spec->kind == GAC_TASK_PAD)
        return json_pack("{s:s, s:I, s:I, s:I}", "op", "pad", "rows", (json_int_t)p->n_rows, "from",
                         (json_int_t)p->n_from, "to", (json_int_t)p->n_to);
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f}", "op", "sdpa",
                     "path", path, "batch", (json_int_t)s->batch, "q_heads",
                     (json_int_t)s->n_q_heads, "kv_heads", (json_int_t)s->n_kv_heads, "n_q",
                     (json_int_t)s->n_q, "n_kv", (json_int_t)s->n_kv, "qk_head",
                     (json_int_t)s->qk_head, "v_head", (json_int_t)s->v_head, "causal", s->causal,
                     "scale", spec->sdpa.scale);
}

static json_t *make_request(const gac_pytorch_question *question, const gac_pytorch_call *calls,
                            int n_calls)
{
    static const gac_timing_rules usual = GAC_TIMING_RULES_INIT;
    const gac_timing_rules *r = question->rules ? question->rules : &usual;
    json_t *jobs = json_array();
    for (int i = 0; i < n_calls; i++)
        json_array_append_new(jobs, gac_pytorch_call_json(&calls[i].spec, calls[i].path));
    json_t *checks = question->checks ? json_incref(question->checks) : json_array();
    return json_pack("{s:s, s:s, s:{s:f, s:f, s:i, s:i, s:f, s:f, s:f, s:f}, s:b, s:o, s:o}",
                     "device", question->device ? question->device : "cuda:0", "dtype",
                     gac_dtype_name(question->dtype), "rules", "warmup_us", r->warmup_us,
                     "sample_us", r->sample_us, "min_samples", r->min_samples, "max_samples",
                     r->max_samples, "max_noise", r->max_noise, "max_time_us", r->max_time_us,
                     "settle_us", r->settle_us, "graph_below_us",
                     isfinite(r->graph_below_us) ? r->graph_below_us : 1e18, "names",
                     question->names, "jobs", jobs, "checks", checks);
}

/* Sends a request to the script. *out is its answer. */
static gac_status ask(gac_pytorch *pytorch, const json_t *request,
                      const gac_pytorch_question *question, json_t **out, gac_error *err)
{
    char line[sizeof pytorch->request.path + 1];
    gac_error local = GAC_ERROR_INIT;
    gac_child_output output;
    char *text = NULL;
    size_t n_bytes;
    gac_status status = gac_json_text(request, JSON_COMPACT, &text, &n_bytes, err);
    close_unnamed(&pytorch->request);
    if (status == GAC_OK)
        status = write_unnamed(&pytorch->request, text, n_bytes, err);
    free(text);
    if (status != GAC_OK)
        return status;
    snprintf(line, sizeof line, "%s\n", pytorch->request.path);
    status = gac_child_ask(pytorch->process, line, TIMEOUT_S, MAX_OUTPUT_BYTES, question->progress,
                           question->what, &output, &local);
    if (status != GAC_OK)
        return gac_error_set(err, status, "PyTorch: %s", local.text);
    if (output.exit_code != 0)
        status =
            gac_error_set(err, output.exit_code == 4 ? GAC_NO_RESOURCE : GAC_FAILED, "PyTorch: %s",
                          output.last_line[0] ? output.last_line : "the script failed");
    else if (output.n_bytes == 0)
        status = gac_error_set(err, GAC_FAILED, "PyTorch: the script ended without an answer");
    else
        status = gac_json_parse(output.text, output.n_bytes, "PyTorch", out, err);
    free(output.text);
    return status;
}

/* Returns an integer of a list, or -1. */
static int integer_at(const json_t *list, size_t index)
{
    const json_t *item = json_array_get(list, index);
    return json_is_integer(item) ? (int)json_integer_value(item) : -1;
}

static bool take_timing(const json_t *answer, gac_timing *out)
{
    const json_t *samples = json_object_get(answer, "samples_us");
    size_t n = json_array_size(samples);
    out->temperature_c_max = -1;
    out->clock_mhz_min = integer_at(json_object_get(answer, "clock_mhz"), 0);
    out->clock_mhz_max = integer_at(json_object_get(answer, "clock_mhz"), 1);
    out->n_unsettled = (int)json_integer_value(json_object_get(answer, "n_unsettled"));
    out->n_calls = (int)json_integer_value(json_object_get(answer, "n_calls"));
    out->graph = json_is_true(json_object_get(answer, "graph"));
    out->steady = json_is_true(json_object_get(answer, "steady"));
    if (n < 1 || n > GAC_MAX_SAMPLES)
        return false;
    for (size_t i = 0; i < n; i++) {
        double value = json_number_value(json_array_get(samples, i));
        if (!(value > 0) || !isfinite(value))
            return false;
        out->samples_us[out->n_samples++] = value;
    }
    gac_timing_summarise(out);
    return true;
}

static json_t *take_kernels(const json_t *answer)
{
    json_t *kernels = json_array();
    const json_t *list = json_object_get(answer, "kernels");
    for (size_t i = 0; i < json_array_size(list) && i < MAX_KERNELS; i++) {
        char name[256];
        const json_t *kernel = json_array_get(list, i);
        const char *text = json_string_value(json_object_get(kernel, "name"));
        json_array_append_new(
            kernels, json_pack("{s:s, s:f}", "name", gac_quote(name, sizeof name, text ? text : ""),
                               "time_us", json_number_value(json_object_get(kernel, "time_us"))));
    }
    return kernels;
}

static bool take_call(const json_t *answer, gac_pytorch_call *out)
{
    const char *state = json_string_value(json_object_get(answer, "state"));
    const char *reason = json_string_value(json_object_get(answer, "reason"));
    if (reason)
        gac_quote(out->reason, sizeof out->reason, reason);
    if (!state)
        return false;
    if (strcmp(state, "measured") != 0) {
        out->state = strcmp(state, "declined") == 0 ? GAC_PYTORCH_DECLINED : GAC_PYTORCH_FAILED;
        return true;
    }
    out->state = GAC_PYTORCH_MEASURED;
    if (!take_timing(answer, &out->timing))
        return false;
    out->kernels = take_kernels(answer);
    return true;
}

gac_status gac_pytorch_time(gac_pytorch *pytorch, const gac_pytorch_question *question,
                            gac_pytorch_call *calls, int n_calls, struct json_t **answer,
                            gac_error *err)
{
    GAC_REFUSE_NULL(err, pytorch, question);
    GAC_REFUSE(err, n_calls < 0 || (n_calls > 0 && !calls), "there are no calls");
    json_t *request = make_request(question, calls, n_calls), *whole = NULL;
    gac_status status = ask(pytorch, request, question, &whole, err);
    const json_t *jobs = json_object_get(whole, "jobs");
    if (status == GAC_OK && json_array_size(jobs) != (size_t)n_calls)
        status = gac_error_set(err, GAC_FAILED, "PyTorch: answer: not as many results as calls");
    for (int i = 0; i < n_calls && status == GAC_OK; i++)
        if (!take_call(json_array_get(jobs, (size_t)i), &calls[i]))
            status = gac_error_set(err, GAC_FAILED, "PyTorch: answer: jobs[%d] makes no sense", i);
    json_decref(request);
    if (status == GAC_OK && answer)
        *answer = whole;
    else
        json_decref(whole);
    return status;
}

void gac_pytorch_calls_free(gac_pytorch_call *calls, int n_calls)
{
    for (int i = 0; calls && i < n_calls; i++)
        json_decref(calls[i].kernels);
    free(calls);
}
