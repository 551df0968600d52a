/* The probe from end to end: measure, write the contract, hold it against
 * shapes it has not seen, then ask for kernel names, which may disturb. */
#include "probe/probe_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_DTYPES = 8, N_FLOOR = 8 };

/* What was found, dtype by dtype. */
typedef struct findings {
    probe *p;
    int n;
    probe_gemm gemm[MAX_DTYPES];
    probe_sdpa sdpa[MAX_DTYPES];
    bool has_sdpa[MAX_DTYPES];
} findings;

static bool is_half(gac_dtype dtype)
{
    return dtype == GAC_DTYPE_F16 || dtype == GAC_DTYPE_BF16;
}

/* Attention runs in 16 bits: the dtype that does it for the others. */
static const char *half_dtype(const findings *f)
{
    const char *name = NULL;
    for (int i = 0; i < f->n; i++)
        if (is_half(f->gemm[i].dtype) && (!name || f->gemm[i].dtype == GAC_DTYPE_BF16))
            name = gac_dtype_name(f->gemm[i].dtype);
    return name;
}

/* Medians of one task, repeated: the least and the largest. */
static gac_status repeat_task(probe *p, double *low, double *high)
{
    gac_task_spec gemm = probe_gemm_spec(p->options->dtypes[0], 16, 4096, 4096);
    gac_status status = GAC_OK;
    *low = INFINITY;
    *high = 0;
    for (int i = 0; i < N_FLOOR && status == GAC_OK; i++) {
        probe_point point;
        status = probe_measure(p, &gemm, &point);
        if (status != GAC_OK || point.outcome != PROBE_MEASURED)
            continue;
        *low = fmin(*low, point.time_us);
        *high = fmax(*high, point.time_us);
    }
    return status;
}

/* Copy bandwidth, and how far medians of one task lie apart when repeated. */
static gac_status measure_floor(probe *p, double *floor_us)
{
    gac_task_spec copy = { .kind = GAC_TASK_COPY, .dtype = GAC_DTYPE_U8 };
    double high = 0;
    probe_point point;
    copy.copy_bytes = (int64_t)512 << 20;
    probe_begin(p, "copy and noise floor", "", N_FLOOR + 1);
    gac_status status = probe_measure(p, &copy, &point);
    if (status == GAC_OK && point.outcome == PROBE_MEASURED)
        p->copy_bytes_per_s = 2 * (double)copy.copy_bytes / point.time_us * 1e6;
    if (status == GAC_OK)
        status = repeat_task(p, floor_us, &high);
    if (status == GAC_OK && high > 0)
        p->floor_pct = 100 * (high / *floor_us - 1);
    probe_finish(p);
    return status;
}

/* The same task again, at the end. */
static gac_status measure_drift(probe *p, double floor_us)
{
    double low, high;
    probe_begin(p, "drift", "", N_FLOOR);
    gac_status status = repeat_task(p, &low, &high);
    if (status == GAC_OK && isfinite(low) && isfinite(floor_us))
        p->drift_pct = 100 * (low / floor_us - 1);
    probe_finish(p);
    return status;
}

/* One dtype; GAC_CHECK when the GPU does not serve it. */
static gac_status probe_dtype(findings *f, gac_dtype dtype)
{
    probe *p = f->p;
    probe_gemm *g = &f->gemm[f->n];
    probe_sdpa *s = &f->sdpa[f->n];
    *g = (probe_gemm){ .dtype = dtype };
    *s = (probe_sdpa){ .dtype = dtype };
    f->has_sdpa[f->n] = is_half(dtype);
    f->n++;
    p->end_s = gac_now_s() + p->options->max_time_s;
    probe_grant_rest(p);
    gac_status status = probe_gemm_tiers(p, g);
    if (status == GAC_CHECK) {
        f->n--;
        probe_gemm_dispose(g);
        return status;
    }
    if (status == GAC_OK && is_half(dtype))
        status = probe_sdpa_tiers(p, s);
    if (status == GAC_OK && is_half(dtype))
        status = probe_sdpa_tables(p, s);
    if (status == GAC_OK)
        status = probe_gemm_cacheline(p, g);
    if (status == GAC_OK)
        status = probe_gemm_tables(p, g);
    return status == GAC_OK ? probe_gemm_near(p, g) : status;
}

static gac_status probe_dtypes(findings *f)
{
    probe *p = f->p;
    gac_status status = GAC_OK;
    for (int i = 0; i < p->options->n_dtypes && status == GAC_OK; i++) {
        gac_dtype dtype = p->options->dtypes[i];
        status = probe_dtype(f, dtype);
        if (status != GAC_CHECK)
            continue;
        probe_note(p, "%s: not served by this GPU", gac_dtype_name(dtype));
        gac_log_write(p->options->log, 0, "%s: not served by this GPU", gac_dtype_name(dtype));
        status = GAC_OK;
    }
    if (status == GAC_OK && f->n == 0)
        status = gac_error_set(p->err, GAC_NO_RESOURCE, "this GPU serves none of the dtypes");
    if (status == GAC_OK && !half_dtype(f))
        status = gac_error_set(p->err, GAC_NO_RESOURCE, "this GPU serves neither F16 nor BF16");
    return status;
}

static int by_shape(const void *a, const void *b)
{
    const gac_gemm_shape *x = *(const gac_gemm_shape *const *)a;
    const gac_gemm_shape *y = *(const gac_gemm_shape *const *)b;
    if (x->m != y->m)
        return x->m < y->m ? -1 : 1;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->k < y->k ? -1 : x->k > y->k;
}

/* Shapes measured more than once appear with their shortest median. */
static gac_status points_json(const findings *f, json_t *points)
{
    for (int d = 0; d < f->n; d++) {
        const probe_gemm *g = &f->gemm[d];
        const gac_gemm_shape **order = calloc(g->n_exact + 1, sizeof *order);
        if (!order)
            return gac_error_no_memory(f->p->err);
        for (size_t i = 0; i < g->n_exact; i++)
            order[i] = &g->exact[i];
        qsort(order, g->n_exact, sizeof *order, by_shape);
        for (size_t i = 0; i < g->n_exact;) {
            const gac_gemm_shape *s = order[i];
            double time_us = INFINITY;
            for (; i < g->n_exact && by_shape(&s, &order[i]) == 0; i++)
                time_us = fmin(time_us, g->exact_us[order[i] - g->exact]);
            json_array_append_new(
                points, json_pack("{s:I, s:I, s:I, s:s, s:o}", "m", (json_int_t)s->m, "n",
                                  (json_int_t)s->n, "k", (json_int_t)s->k, "dtype",
                                  gac_dtype_name(g->dtype), "time_us", probe_number(time_us)));
        }
        free(order);
    }
    return GAC_OK;
}

/* "NVIDIA H200" is h200. */
static void default_name(char *out, size_t size, const char *gpu)
{
    size_t n = 0;
    if (strncmp(gpu, "NVIDIA ", 7) == 0)
        gpu += 7;
    for (; *gpu && n + 1 < size; gpu++)
        if (isalnum((unsigned char)*gpu))
            out[n++] = (char)tolower((unsigned char)*gpu);
        else if (n > 0 && out[n - 1] != '-')
            out[n++] = '-';
    while (n > 0 && out[n - 1] == '-')
        n--;
    out[n] = 0;
    if (n == 0)
        snprintf(out, size, "gpu");
}

static json_t *stack_json(const probe *p)
{
    const gac_device_info *info = gac_device_describe(p->device);
    const char *const entries[][2] = { { "driver", info->driver }, { "cuda", info->runtime },
                                       { "cublas", info->blas },   { "cudnn", info->dnn },
                                       { "gac", GAC_VERSION },     { "attention", p->stack } };
    json_t *stack = json_object();
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (entries[i][1][0])
            json_object_set_new(stack, entries[i][0], json_string(entries[i][1]));
    return stack;
}

/* Which measured dtype speaks for those that were not. */
static json_t *stand_ins_json(const findings *f)
{
    static const struct {
        gac_dtype dtype;
        const char *reason;
    } others[] = {
        { GAC_DTYPE_F16, "same width, same kernels' alignment rules; not measured" },
        { GAC_DTYPE_BF16, "same width, same kernels' alignment rules; not measured" },
        { GAC_DTYPE_F32, "F32 checkpoints are loaded as 16 bit for inference" },
        { GAC_DTYPE_F64, "F64 checkpoints are loaded as 16 bit for inference" },
    };
    json_t *all = json_object();
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bool measured = false;
        for (int d = 0; d < f->n; d++)
            measured = measured || f->gemm[d].dtype == others[i].dtype;
        if (!measured)
            json_object_set_new(
                all, gac_dtype_name(others[i].dtype),
                json_pack("{s:s, s:s}", "dtype", half_dtype(f), "reason", others[i].reason));
    }
    return all;
}

static void today(char *out, size_t size)
{
    time_t now = time(NULL);
    struct tm utc;
    strftime(out, size, "%Y-%m-%d", gmtime_r(&now, &utc));
}

static json_t *dtypes_json(const findings *f, json_t *gemm, json_t *sdpa)
{
    json_t *dtypes = json_array();
    for (int d = 0; d < f->n; d++) {
        const probe_gemm *g = &f->gemm[d];
        const char *name = gac_dtype_name(g->dtype), *half = half_dtype(f);
        bool whole = probe_n_served(&g->place[0].found) == g->place[0].found.n_tiers &&
                     probe_n_served(&g->place[1].found) == g->place[1].found.n_tiers;
        json_array_append_new(dtypes, json_string(name));
        json_object_set_new(gemm, name, probe_gemm_json(g, whole ? NULL : half));
        json_object_set_new(sdpa, name,
                            f->has_sdpa[d] ? probe_sdpa_json(&f->sdpa[d])
                                           : json_pack("{s:s}", "same_as", half));
    }
    return dtypes;
}

static gac_status contract_json(const findings *f, json_t *accuracy, json_t **out)
{
    const probe *p = f->p;
    const gac_device_info *info = gac_device_describe(p->device);
    char name[96];
    json_t *gemm = json_object(), *sdpa = json_object(), *points = json_array();
    default_name(name, sizeof name, info->name);
    json_t *dtypes = dtypes_json(f, gemm, sdpa);
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:s, s:b, s:o, s:O, s:o, s:o}", "schema", "gac.contract/2",
                  "name", p->options->name ? p->options->name : name, "gpu", info->name, "arch",
                  info->arch[0] ? info->arch : "unknown", "provisional", 0, "stack", stack_json(p),
                  "sources", p->sources, "dtypes", dtypes, "stands_for", stand_ins_json(f));
    gac_status status = json ? points_json(f, points) : gac_error_no_memory(p->err);
    json_t *noise = probe_noise_json(p);
    json_object_del(noise, "phase_seconds"); /* raw points have them */
    json_object_set_new(json, "noise", noise);
    json_object_set(json, "accuracy", accuracy);
    if (p->options->runtime)
        json_object_set_new(json, "runtime", json_deep_copy(p->options->runtime));
    json_object_set_new(json, "gemm", gemm);
    json_object_set_new(json, "sdpa", sdpa);
    json_object_set_new(json, "points", points);
    if (status != GAC_OK) {
        json_decref(json);
        return status;
    }
    *out = json;
    return GAC_OK;
}

#define MEASURED "the measured contract"

/* Parses what would be written, so that nothing is that cannot be read. */
static gac_status read_back(const json_t *json, const char *label, gac_contract **out,
                            gac_error *err)
{
    char *text = gac_probe_text(json);
    if (!text)
        return gac_error_no_memory(err);
    gac_status status = gac_contract_parse(text, strlen(text), label, out, err);
    free(text);
    return status;
}

/* Points that the tables predict this well would only make the contract larger. */
#define REDUNDANT 0.03

static gac_status drop_redundant_points(findings *f)
{
    json_t *draft = NULL, *accuracy = json_object();
    gac_contract *contract = NULL;
    gac_status status = contract_json(f, accuracy, &draft);
    if (status == GAC_OK) {
        json_object_set_new(draft, "points", json_array());
        status = read_back(draft, MEASURED, &contract, f->p->err);
    }
    for (int d = 0; d < f->n && status == GAC_OK; d++) {
        probe_gemm *g = &f->gemm[d];
        size_t kept = 0;
        for (size_t i = 0; i < g->n_exact; i++) {
            gac_gemm_shape s = g->exact[i];
            double table_us = gac_contract_gemm_us(contract, g->dtype, s.m, s.n, s.k);
            if (fabs(table_us / g->exact_us[i] - 1) < REDUNDANT)
                continue;
            g->exact[kept] = s;
            g->exact_us[kept++] = g->exact_us[i];
        }
        g->n_exact = kept;
    }
    gac_contract_free(contract);
    json_decref(draft);
    json_decref(accuracy);
    return status;
}

static gac_status measure_accuracy(findings *f, json_t *accuracy)
{
    json_t *draft = NULL;
    gac_contract *contract = NULL;
    char text[120];
    gac_status status = contract_json(f, accuracy, &draft);
    if (status == GAC_OK)
        status = read_back(draft, MEASURED, &contract, f->p->err);
    for (int d = 0; d < f->n && status == GAC_OK; d++)
        status = probe_accuracy(f->p, contract, &f->gemm[d], f->has_sdpa[d] ? &f->sdpa[d] : NULL,
                                accuracy);
    snprintf(text, sizeof text,
             "shapes drawn at random (seed %llu), in no table and among no points",
             (unsigned long long)f->p->options->seed);
    json_object_set_new(accuracy, "held_out", json_string(text));
    gac_contract_free(contract);
    json_decref(draft);
    return status;
}

static gac_status ask_kernels(findings *f)
{
    gac_status status = GAC_OK;
    for (int d = 0; d < f->n && status == GAC_OK; d++) {
        status = probe_gemm_kernels(f->p, &f->gemm[d]);
        if (status == GAC_OK && f->has_sdpa[d])
            status = probe_sdpa_kernels(f->p, &f->sdpa[d]);
    }
    return status;
}

static void describe(probe *p)
{
    char day[16];
    const gac_device_info *info = gac_device_describe(p->device);
    today(day, sizeof day);
    probe_note(p, "measured by gac probe %s on %s, %s, seed %llu%s", GAC_VERSION, day, info->name,
               (unsigned long long)p->options->seed, p->options->quick ? ", quick" : "");
}

gac_status probe_contract_json(const gac_contract *contract, json_t **out, gac_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = gac_contract_write(contract, &text, &n_bytes, err);
    if (status == GAC_OK)
        status = gac_json_parse(text, n_bytes, contract->name, out, err);
    free(text);
    return status;
}

gac_status probe_check_runtime(const json_t *runtime, gac_error *err)
{
    gac_contract *host = NULL, *with = NULL;
    if (!runtime || gac_contract_n_bundled() == 0)
        return GAC_OK;
    gac_status status = gac_contract_load_bundled(gac_contract_bundled_name(0), &host, err);
    json_t *json = NULL;
    if (status == GAC_OK)
        status = probe_contract_json(host, &json, err);
    if (status == GAC_OK && json_object_set(json, "runtime", (json_t *)(uintptr_t)runtime) != 0)
        status = gac_error_no_memory(err);
    if (status == GAC_OK)
        status = read_back(json, "--runtime", &with, err);
    json_decref(json);
    gac_contract_free(host);
    gac_contract_free(with);
    return status;
}

/* Refuses now what a task would be refused for after minutes. */
static gac_status check_dtypes(gac_device *device, const gac_probe_options *options, gac_error *err)
{
    bool half = false;
    for (int i = 0; i < options->n_dtypes; i++) {
        gac_task *task = NULL;
        gac_error why = GAC_ERROR_INIT;
        gac_task_spec spec = probe_gemm_spec(options->dtypes[i], 16, 128, 128);
        gac_status status = gac_task_create(device, &spec, &task, &why);
        gac_task_free(task);
        if (status == GAC_USAGE)
            return gac_error_set(err, status, "%s", why.text);
    }
    for (int i = 0; i < options->n_dtypes; i++)
        half = half || is_half(options->dtypes[i]);
    if (options->n_dtypes < 1 || options->n_dtypes > MAX_DTYPES)
        return gac_error_set(err, GAC_USAGE, "a probe takes 1 to %d dtypes", MAX_DTYPES);
    if (!half)
        return gac_error_set(err, GAC_USAGE,
                             "attention, and sizes that %s declines, run in F16 or BF16: probe one "
                             "of these too",
                             gac_dtype_name(options->dtypes[0]));
    return GAC_OK;
}

gac_status gac_probe_run(gac_device *device, const gac_probe_options *options,
                         struct json_t **contract, struct json_t **raw, gac_error *err)
{
    probe p;
    gac_contract *check = NULL;
    json_t *accuracy = json_object(), *json = NULL;
    double floor_us = INFINITY;
    gac_status status = probe_start(&p, device, options, raw != NULL, err);
    if (status == GAC_OK)
        status = check_dtypes(device, options, err);
    if (status == GAC_OK)
        status = probe_check_runtime(options->runtime, err);
    findings *f = calloc(1, sizeof *f);
    if (!f || !accuracy)
        status = gac_error_no_memory(err);
    if (status == GAC_OK) {
        f->p = &p;
        describe(&p);
        status = measure_floor(&p, &floor_us);
    }
    if (status == GAC_OK)
        status = probe_dtypes(f);
    if (status == GAC_OK)
        status = drop_redundant_points(f);
    if (status == GAC_OK)
        status = measure_accuracy(f, accuracy);
    if (status == GAC_OK)
        status = measure_drift(&p, floor_us);
    if (status == GAC_OK)
        status = ask_kernels(f);
    if (status == GAC_OK)
        status = contract_json(f, accuracy, &json);
    if (status == GAC_OK)
        status = read_back(json, MEASURED, &check, err);
    if (status == GAC_OK) {
        *contract = json_incref(json);
        if (raw)
            *raw = probe_raw_json(&p);
    }
    for (int d = 0; f && d < f->n; d++) {
        probe_gemm_dispose(&f->gemm[d]);
        probe_sdpa_dispose(&f->sdpa[d]);
    }
    gac_contract_free(check);
    json_decref(json);
    json_decref(accuracy);
    free(f);
    probe_dispose(&p);
    return status;
}
