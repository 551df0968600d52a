/* The probe from end to end: measure, make the contract, compare it with shapes it has not
 * seen, then ask for kernel names, since asking may disturb measurements. */
#include "probe/probe_internal.h"

#include "base/arguments.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FLOOR "copy and noise floor" /* a phase */

/* What was found in one dtype, and the rules that follow. */
typedef struct found_dtype {
    gac_dtype dtype;
    probe_gemm gemm;
    probe_sdpa sdpa;
    bool has_sdpa;
    probe_gemm_rules gemm_rules;
    probe_sdpa_rules sdpa_rules;
    probe_judged judged;
} found_dtype;

typedef struct findings {
    probe *p;
    int n;
    found_dtype of[GAC_PROBE_MAX_DTYPES];
} findings;

static bool is_half(gac_dtype dtype)
{
    return dtype == GAC_DTYPE_F16 || dtype == GAC_DTYPE_BF16;
}

/* The dtype of 16 bits that runs attention for the others; GAC_DTYPE_COUNT: none. */
static gac_dtype half_dtype(const findings *f)
{
    gac_dtype half = GAC_DTYPE_COUNT;
    for (int i = 0; i < f->n; i++)
        if (is_half(f->of[i].dtype) && half != GAC_DTYPE_BF16)
            half = f->of[i].dtype;
    return half;
}

/* Measures one task again and again. Gives the least and the largest median. */
static gac_status repeat_task(probe *p, const char *phase, double *low, double *high)
{
    enum { N_REPEATS = 8 };
    gac_task_spec gemm = probe_gemm_spec(p->options->dtypes[0], 16, 4096, 4096);
    gac_status status = GAC_OK;
    *low = INFINITY;
    *high = 0;
    probe_begin(p, phase, "", N_REPEATS);
    for (int i = 0; i < N_REPEATS && status == GAC_OK; i++) {
        probe_point point;
        status = probe_measure(p, &gemm, &point);
        if (status == GAC_OK && point.outcome == PROBE_MEASURED) {
            *low = fmin(*low, point.time_us);
            *high = fmax(*high, point.time_us);
        }
    }
    probe_finish(p);
    return status;
}

static gac_status measure_copy(probe *p)
{
    gac_task_spec copy = { .kind = GAC_TASK_COPY, .dtype = GAC_DTYPE_U8 };
    probe_point point;
    copy.copy_bytes = (int64_t)512 << 20;
    probe_begin(p, FLOOR, "", 1);
    gac_status status = probe_measure(p, &copy, &point);
    probe_finish(p);
    if (status == GAC_OK && point.outcome == PROBE_MEASURED)
        p->noise.copy_bytes_per_s =
            gac_four_digits(2 * (double)copy.copy_bytes / point.time_us * 1e6);
    return status;
}

/* Measures one dtype. GAC_CHECK when the GPU does not serve it. */
static gac_status probe_dtype(probe *p, gac_dtype dtype, found_dtype *out)
{
    out->dtype = out->gemm.dtype = out->sdpa.dtype = dtype;
    out->has_sdpa = is_half(dtype);
    p->end_s = gac_now_s() + p->options->max_time_s;
    probe_grant_rest(p);
    gac_status status = probe_gemm_tiers(p, &out->gemm);
    if (status == GAC_OK && out->has_sdpa)
        status = probe_sdpa_tiers(p, &out->sdpa);
    if (status == GAC_OK && out->has_sdpa)
        status = probe_sdpa_tables(p, &out->sdpa);
    if (status == GAC_OK)
        status = probe_gemm_cacheline(p, &out->gemm);
    return status == GAC_OK ? probe_gemm_tables(p, &out->gemm) : status;
}

static gac_status probe_dtypes(findings *f)
{
    probe *p = f->p;
    for (int i = 0; i < p->options->n_dtypes; i++) {
        gac_dtype dtype = p->options->dtypes[i];
        gac_status status = probe_dtype(p, dtype, &f->of[f->n]);
        if (status == GAC_CHECK) {
            probe_note(p, "%s: not served by this GPU", gac_dtype_name(dtype));
            gac_log_write(p->options->log, 0, "%s: not served by this GPU", gac_dtype_name(dtype));
            f->of[f->n] = (found_dtype){ .has_sdpa = false };
            continue;
        }
        f->n++;
        if (status != GAC_OK)
            return status;
    }
    if (f->n == 0)
        return gac_error_set(p->err, GAC_NO_RESOURCE, "this GPU serves none of the dtypes");
    if (half_dtype(f) == GAC_DTYPE_COUNT)
        return gac_error_set(p->err, GAC_NO_RESOURCE, "this GPU serves neither F16 nor BF16");
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

/* The versions that are known; out has room for six. */
static size_t fill_stack(const probe *p, gac_contract_text *out)
{
    const gac_device_info *info = gac_device_describe(p->device);
    const gac_contract_text all[] = { { "driver", info->driver }, { "cuda", info->runtime },
                                      { "cublas", info->blas },   { "cudnn", info->dnn },
                                      { "gac", GAC_VERSION },     { "attention", p->stack } };
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value[0])
            out[n++] = all[i];
    return n;
}

/* A measured dtype stands for each of four that was not measured. out has room for four. */
static void fill_stand_ins(const findings *f, gac_contract_stand_in *out, gac_contract *contract)
{
    static const gac_dtype others[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16, GAC_DTYPE_F32,
                                        GAC_DTYPE_F64 };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        out[i].dtype = half_dtype(f);
        out[i].reason = is_half(others[i])
                            ? "same width, same kernels' alignment rules; not measured"
                            : "such checkpoints are loaded as 16 bit for inference";
        if (!contract->gemm[others[i]])
            contract->stands_for[others[i]] = &out[i];
    }
}

/* Rules of all dtypes, into the contract. */
static void fill_rules(findings *f, gac_contract *contract)
{
    gac_dtype half = half_dtype(f);
    for (int i = 0; i < f->n; i++) {
        found_dtype *d = &f->of[i];
        d->gemm_rules = (probe_gemm_rules){ .gemm.n_n = 0 };
        probe_gemm_rules_fill(&d->gemm, half, &d->gemm_rules);
        if (d->has_sdpa)
            probe_sdpa_rules_fill(&d->sdpa, &d->sdpa_rules);
        else
            d->sdpa_rules.sdpa.same_as = half;
        contract->gemm[d->dtype] = &d->gemm_rules.gemm;
        contract->sdpa[d->dtype] = &d->sdpa_rules.sdpa;
    }
}

/* A contract of what was found so far; accuracy may be NULL. */
static gac_status make_contract(findings *f, const gac_contract_accuracy *accuracy,
                                gac_contract **out)
{
    probe *p = f->p;
    const gac_device_info *info = gac_device_describe(p->device);
    char name[96];
    gac_contract_text stack[6];
    gac_contract_stand_in stand_ins[4];
    gac_dtype dtypes[GAC_PROBE_MAX_DTYPES];
    default_name(name, sizeof name, info->name);
    gac_contract all = { .name = p->options->name ? p->options->name : name,
                         .gpu = info->name,
                         .arch = info->arch[0] ? info->arch : "unknown",
                         .n_stack = fill_stack(p, stack),
                         .stack = stack,
                         .n_sources = (size_t)p->n_sources,
                         .sources = p->sources,
                         .n_dtypes = (size_t)f->n,
                         .dtypes = dtypes,
                         .noise = &p->noise,
                         .accuracy = accuracy,
                         .runtime = p->options->runtime };
    for (int i = 0; i < f->n; i++)
        dtypes[i] = f->of[i].dtype;
    fill_rules(f, &all);
    fill_stand_ins(f, stand_ins, &all);
    probe_sum_up_noise(p);
    return gac_contract_copy(&all, "the measured contract", out, p->err);
}

static gac_status measure_accuracy(findings *f, gac_contract_accuracy *out, char text[120])
{
    gac_contract *contract = NULL;
    gac_status status = make_contract(f, NULL, &contract);
    for (int i = 0; i < f->n && status == GAC_OK; i++) {
        found_dtype *d = &f->of[i];
        const probe_sdpa *sdpa = d->has_sdpa ? &d->sdpa : NULL;
        status = probe_accuracy(f->p, contract, &d->gemm, sdpa, &d->judged);
        out->gemm[d->dtype] = &d->judged.gemm;
        out->sdpa[d->dtype] = sdpa ? &d->judged.sdpa : NULL;
        out->ranking[d->dtype] = &d->judged.ranking;
    }
    gac_contract_free(contract);
    snprintf(text, 120, "shapes drawn at random (seed %llu), in no table",
             (unsigned long long)f->p->options->seed);
    out->held_out = text;
    return status;
}

static gac_status ask_kernels(findings *f)
{
    gac_status status = GAC_OK;
    for (int i = 0; i < f->n && status == GAC_OK; i++) {
        status = probe_gemm_kernels(f->p, &f->of[i].gemm);
        if (status == GAC_OK && f->of[i].has_sdpa)
            status = probe_sdpa_kernels(f->p, &f->of[i].sdpa);
    }
    return status;
}

/* Refuses at once what a task would refuse after minutes. */
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
        half = half || is_half(options->dtypes[i]);
    }
    if (!half)
        return gac_error_set(err, GAC_USAGE,
                             "attention, and sizes that %s declines, run in F16 or BF16: probe one "
                             "of these too",
                             gac_dtype_name(options->dtypes[0]));
    return GAC_OK;
}

static gac_status measure_all(findings *f, gac_contract **out)
{
    probe *p = f->p;
    char held_out[120];
    gac_contract_accuracy accuracy = { .held_out = NULL };
    char day[16];
    double low_us, high_us, again_us;
    probe_note(p, "measured by gac probe %s on %s, %s, seed %llu%s", GAC_VERSION, probe_today(day),
               gac_device_describe(p->device)->name, (unsigned long long)p->options->seed,
               p->options->quick ? ", quick" : "");
    gac_status status = measure_copy(p);
    if (status == GAC_OK)
        status = repeat_task(p, FLOOR, &low_us, &high_us);
    if (status == GAC_OK && high_us > 0)
        p->noise.floor_pct = gac_four_digits(100 * (high_us / low_us - 1));
    if (status == GAC_OK)
        status = probe_dtypes(f);
    if (status == GAC_OK)
        status = measure_accuracy(f, &accuracy, held_out);
    if (status == GAC_OK)
        status = repeat_task(p, "drift", &again_us, &high_us);
    if (status == GAC_OK && isfinite(again_us) && isfinite(low_us))
        p->noise.drift_pct = gac_four_digits(100 * (again_us / low_us - 1));
    if (status == GAC_OK)
        status = ask_kernels(f);
    return status == GAC_OK ? make_contract(f, &accuracy, out) : status;
}

gac_status gac_probe_run(gac_device *device, const gac_probe_options *options,
                         gac_contract **contract, struct json_t **raw, gac_error *err)
{
    GAC_REFUSE_NULL(err, device, options, contract);
    probe p;
    gac_status status = probe_check_options(options, err);
    if (status == GAC_OK)
        status = check_dtypes(device, options, err);
    if (status != GAC_OK)
        return status;
    status = probe_start(&p, device, options, raw != NULL, err);
    findings *f = probe_alloc(&p, 1, sizeof *f);
    if (!f)
        status = gac_error_no_memory(err);
    if (status == GAC_OK) {
        f->p = &p;
        status = measure_all(f, contract);
    }
    if (status == GAC_OK && raw)
        *raw = probe_raw_json(&p);
    probe_dispose(&p);
    return status;
}
