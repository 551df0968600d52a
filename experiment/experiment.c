#include "experiment/experiment_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPEC_SCHEMA "gac.experiment-spec/1"
#define PUBLISHED_SCHEMA "gac.published/1"
#define MAX_SPEC_BYTES ((size_t)1 << 20)

const char *gac_stack_name(gac_stack stack)
{
    return stack == GAC_STACK_NATIVE ? "native" : "pytorch";
}

const char *gac_stack_title(gac_stack stack)
{
    return stack == GAC_STACK_NATIVE ? "native" : "PyTorch";
}

const exp_bundled *exp_find_bundled(const char *name)
{
    for (int i = 0; i < gac_n_bundled_experiments; i++)
        if (strcmp(gac_bundled_experiments[i].name, name) == 0)
            return &gac_bundled_experiments[i];
    return NULL;
}

/* Returns the length of the ID if a bundled file is a specification, otherwise 0. */
static size_t is_spec(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash && strcmp(slash, "/spec.json") == 0 ? (size_t)(slash - name) : 0;
}

int gac_experiment_n_bundled(void)
{
    int n = 0;
    for (int i = 0; i < gac_n_bundled_experiments; i++)
        n += is_spec(gac_bundled_experiments[i].name) > 0;
    return n;
}

gac_status gac_experiment_load_index(int index, gac_experiment **out, gac_error *err)
{
    for (int i = 0; i < gac_n_bundled_experiments; i++) {
        const exp_bundled *spec = &gac_bundled_experiments[i];
        char name[64];
        size_t n = is_spec(spec->name);
        if (n == 0 || index-- > 0)
            continue;
        snprintf(name, sizeof name, "%.*s/published.json", (int)n, spec->name);
        const exp_bundled *published = exp_find_bundled(name);
        return gac_experiment_parse(spec->text, spec->n_bytes, spec->name,
                                    published ? published->text : NULL,
                                    published ? published->n_bytes : 0, out, err);
    }
    return gac_error_set(err, GAC_USAGE, "there is no experiment with that number");
}

gac_status gac_experiment_load_bundled(const char *id, gac_experiment **out, gac_error *err)
{
    char known[256] = "", q[80];
    size_t used = 0;
    for (int i = 0, at = 0; i < gac_n_bundled_experiments; i++) {
        const char *name = gac_bundled_experiments[i].name;
        size_t n = is_spec(name);
        if (n == 0)
            continue;
        if (strlen(id) == n && strncasecmp(id, name, n) == 0)
            return gac_experiment_load_index(at, out, err);
        int k = snprintf(known + used, sizeof known - used, "%s%.*s", at ? ", " : "", (int)n, name);
        used += k > 0 && used + (size_t)k < sizeof known ? (size_t)k : 0;
        at++;
    }
    return gac_error_set(err, GAC_USAGE, "no experiment \"%s\"; there are %s",
                         gac_quote(q, sizeof q, id), known);
}

/* Reads a file beside another one. *out is NULL if it does not exist. */
static gac_status load_beside(const char *path, const char *name, char **out, size_t *n_bytes,
                              gac_error *err)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    char *other = malloc(n + strlen(name) + 1);
    gac_file *file;
    if (!other)
        return gac_error_no_memory(err);
    memcpy(other, path, n);
    memcpy(other + n, name, strlen(name) + 1);
    *out = NULL;
    gac_status status = GAC_OK;
    if (gac_file_open(other, &file, NULL) == GAC_OK) {
        status = gac_file_slurp(file, MAX_SPEC_BYTES, out, n_bytes, err);
        gac_file_close(file);
    }
    free(other);
    return status;
}

gac_status gac_experiment_load(const char *path, gac_experiment **out, gac_error *err)
{
    gac_file *file;
    char *text = NULL, *published = NULL;
    size_t n_text = 0, n_published = 0;
    gac_status status = gac_file_open(path, &file, err);
    if (status != GAC_OK)
        return status;
    status = gac_file_slurp(file, MAX_SPEC_BYTES, &text, &n_text, err);
    gac_file_close(file);
    if (status == GAC_OK)
        status = load_beside(path, "published.json", &published, &n_published, err);
    if (status == GAC_OK)
        status = gac_experiment_parse(text, n_text, path, published, n_published, out, err);
    free(text);
    free(published);
    return status;
}

static bool check_published(const gac_experiment *e, gac_error *err)
{
    gac_reader r = GAC_READER_INIT("published.json", err);
    const char *text;
    json_t *times, *values = json_object_get(e->published, "values");
    double ms;
    if (!e->published)
        return true;
    if (!exp_keys(&r, e->published, "schema id source setup note values times_ms") ||
        !exp_text(&r, e->published, "schema", true, &text))
        return false;
    if (strcmp(text, PUBLISHED_SCHEMA) != 0)
        return gac_reader_fault_at(&r, "schema", "must be " PUBLISHED_SCHEMA);
    if (!exp_text(&r, e->published, "source", true, &text) ||
        !exp_text(&r, e->published, "setup", false, &text) ||
        !exp_text(&r, e->published, "note", false, &text) ||
        !exp_list(&r, e->published, "times_ms", 0, 200, &times))
        return false;
    if (values && !json_is_object(values))
        return gac_reader_fault_at(&r, "values", "must be an object");
    for (size_t i = 0; i < json_array_size(times); i++) {
        const json_t *one = json_array_get(times, i);
        size_t before = gac_reader_enter(&r, ".times_ms[%zu]", i);
        if (!exp_keys(&r, one, "sweep variant lens where ms") ||
            !gac_reader_number(&r, one, "ms", 1e-6, 1e9, &ms) ||
            !exp_text(&r, one, "where", false, &text))
            return false;
        gac_reader_leave(&r, before);
    }
    return true;
}

static bool check_header(gac_experiment *e, gac_error *err)
{
    gac_reader r = GAC_READER_INIT(e->source, err);
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const char *schema, *text;
    e->tolerance = 0.15;
    if (!exp_keys(&r, e->spec,
                  "schema id title question why dtype tolerance effort notes sweeps claims checks "
                  "counters") ||
        !exp_text(&r, e->spec, "schema", true, &schema))
        return false;
    if (strcmp(schema, SPEC_SCHEMA) != 0)
        return gac_reader_fault_at(&r, "schema", "must be " SPEC_SCHEMA);
    if (!exp_text(&r, e->spec, "id", true, &e->id) ||
        !exp_text(&r, e->spec, "title", true, &e->title) ||
        !exp_text(&r, e->spec, "question", true, &text) ||
        !exp_text(&r, e->spec, "why", true, &text) ||
        !exp_text(&r, e->spec, "effort", false, &text))
        return false;
    /* The ID becomes part of a file name. */
    if (strlen(e->id) > 32 || strspn(e->id, allowed) != strlen(e->id))
        return gac_reader_fault_at(&r, "id", "must be 1 to 32 letters, digits, - and _");
    if (text && strcmp(text, "sweep") != 0 && strcmp(text, "report") != 0)
        return gac_reader_fault_at(&r, "effort", "must be sweep or report");
    json_t *counters;
    if (!exp_list(&r, e->spec, "counters", 0, 8, &counters))
        return false;
    for (size_t i = 0; i < json_array_size(counters); i++) {
        const json_t *one = json_array_get(counters, i);
        size_t before = gac_reader_enter(&r, ".counters[%zu]", i);
        if (!exp_keys(&r, one, "sweep where") || !exp_text(&r, one, "sweep", true, &text) ||
            !exp_text(&r, one, "where", false, &text))
            return false;
        gac_reader_leave(&r, before);
    }
    return !json_object_get(e->spec, "tolerance") ||
           gac_reader_number(&r, e->spec, "tolerance", 0, 10, &e->tolerance);
}

/* Reads everything that a run would read, so that a bad specification fails
 * before anything is measured. */
static gac_status check_whole(const gac_experiment *e, gac_error *err)
{
    gac_status status = GAC_OK;
    for (int stack = 0; stack < GAC_STACK_COUNT && status == GAC_OK; stack++) {
        exp_plan plan;
        exp_check *checks = NULL;
        int n_checks;
        status = exp_plan_build(e, (gac_stack)stack, false, &plan, err);
        if (status == GAC_OK)
            status = exp_claims_check(e, &plan, err);
        if (status == GAC_OK)
            status = exp_read_checks(e, (gac_stack)stack, &checks, &n_checks, err);
        free(checks);
        exp_plan_dispose(&plan);
    }
    return status;
}

gac_status gac_experiment_parse(const char *text, size_t n_bytes, const char *source,
                                const char *published, size_t n_published, gac_experiment **out,
                                gac_error *err)
{
    gac_error local = GAC_ERROR_INIT;
    gac_experiment *e = calloc(1, sizeof *e);
    if (!e || !(e->source = strdup(source))) {
        free(e);
        return gac_error_no_memory(err);
    }
    gac_status status = gac_json_parse(text, n_bytes, source, &e->spec, &local);
    if (status == GAC_OK && published)
        status = gac_json_parse(published, n_published, "published.json", &e->published, &local);
    if (status == GAC_OK && (!check_header(e, &local) || !check_published(e, &local)))
        status = local.status;
    if (status == GAC_OK)
        status = check_whole(e, &local);
    if (status == GAC_OK) {
        *out = e;
        return GAC_OK;
    }
    gac_experiment_free(e);
    return gac_error_set(err, status, "%s", local.text);
}

void gac_experiment_free(gac_experiment *experiment)
{
    if (!experiment)
        return;
    json_decref(experiment->spec);
    json_decref(experiment->published);
    free(experiment->source);
    free(experiment);
}

const char *gac_experiment_id(const gac_experiment *experiment)
{
    return experiment->id;
}

const char *gac_experiment_title(const gac_experiment *experiment)
{
    return experiment->title;
}

gac_status gac_experiment_count(const gac_experiment *experiment, gac_stack stack, bool quick,
                                int64_t *n_cases, int64_t *n_calls, gac_error *err)
{
    exp_plan plan;
    gac_status status = exp_plan_build(experiment, stack, quick, &plan, err);
    if (status == GAC_OK) {
        *n_cases = plan.n_cases;
        *n_calls = plan.n_jobs;
    }
    exp_plan_dispose(&plan);
    return status;
}

/* Builds the result of a measured plan. It takes ownership of checks and machine. */
static gac_status make_result(const gac_experiment *e, const exp_plan *plan,
                              const gac_experiment_options *options, json_t *checks,
                              json_t *machine, json_t **out, gac_error *err)
{
    json_t *claims = NULL;
    gac_status status = exp_claims(e, plan, &claims, err);
    if (status != GAC_OK) {
        json_decref(checks);
        json_decref(machine);
        return status;
    }
    bool all_hold = true;
    for (size_t i = 0; i < json_array_size(checks); i++)
        all_hold = all_hold && json_is_true(json_object_get(json_array_get(checks, i), "holds"));
    json_t *summary = exp_summarise(claims);
    *out = json_pack(
        "{s:s, s:s, s:s, s:O, s:O, s:b, s:s, s:o, s:o, s:b, s:O*, s:O*, s:O*, s:o, s:o, s:o, "
        "s:o, s:o*}",
        "id", e->id, "title", e->title, "stack", gac_stack_name(plan->stack), "question",
        json_object_get(e->spec, "question"), "why", json_object_get(e->spec, "why"), "quick",
        options->quick, "dtype", gac_dtype_name(plan->dtype), "device_facts", machine, "summary",
        summary, "checks_hold", all_hold, "notes", json_object_get(e->spec, "notes"),
        "published_source", json_object_get(e->published, "source"), "published_setup",
        json_object_get(e->published, "setup"), "claims", claims, "checks", checks, "cases",
        exp_cases_json(e, plan), "calls", exp_jobs_json(plan), "counters",
        exp_counters(e, plan, options));
    return *out ? GAC_OK : gac_error_no_memory(err);
}

gac_status gac_experiment_run(const gac_experiment *experiment, gac_stack stack, gac_device *device,
                              const gac_experiment_options *options, struct json_t **out,
                              gac_error *err)
{
    static const gac_timing_rules report = GAC_TIMING_RULES_INIT;
    gac_timing_rules sweep = GAC_TIMING_RULES_SWEEP_INIT;
    const char *effort = json_string_value(json_object_get(experiment->spec, "effort"));
    gac_experiment_options with = *options;
    json_t *checks = NULL, *machine = NULL;
    exp_plan plan;
    sweep.settle_us = with.quick ? 0 : report.settle_us;
    if (!with.rules)
        with.rules = with.quick || (effort && strcmp(effort, "sweep") == 0) ? &sweep : &report;
    gac_status status = exp_plan_build(experiment, stack, with.quick, &plan, err);
    if (status == GAC_OK && stack == GAC_STACK_NATIVE) {
        status = exp_run_native(&plan, device, &with, err);
        if (status == GAC_OK)
            status = exp_checks_native(experiment, device, &checks, err);
        if (status == GAC_OK && !(machine = gac_timing_machine(device)))
            status = gac_error_no_memory(err);
    } else if (status == GAC_OK) {
        status = exp_run_pytorch(experiment, &plan, &with, &checks, &machine, err);
    }
    if (status == GAC_OK)
        status = make_result(experiment, &plan, &with, checks, machine, out, err);
    else
        json_decref(checks);
    exp_plan_dispose(&plan);
    return status;
}

gac_status gac_experiment_run_call(const gac_experiment *experiment, gac_device *device,
                                   const char *call, gac_error *err)
{
    char q[120];
    exp_plan plan;
    gac_task *task = NULL;
    gac_status status = exp_plan_build(experiment, GAC_STACK_NATIVE, false, &plan, err);
    int32_t at = status == GAC_OK ? gac_namemap_find(&plan.by_key, call) : -1;
    if (status == GAC_OK && at < 0)
        status = gac_error_set(err, GAC_USAGE, "%s has no call \"%s\"", experiment->id,
                               gac_quote(q, sizeof q, call));
    if (status == GAC_OK) {
        plan.jobs[at].spec.n_sets = 1;
        status = exp_open_native(device, &plan.jobs[at], &task, err);
    }
    for (int i = 0; i < 2 && status == GAC_OK; i++)
        status = gac_task_run(task, err);
    gac_task_free(task);
    exp_plan_dispose(&plan);
    return status;
}
