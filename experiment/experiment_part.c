/* Reads operator calls from the "parts" of a specification. Equal calls share
 * one job. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <string.h>

static bool size_at(gac_reader *r, const json_t *part, const char *key, exp_lookup lookup,
                    void *context, int64_t *out)
{
    double value;
    if (!exp_value(r, part, key, lookup, context, &value))
        return false;
    if (!(value >= 1 && value <= EXP_MAX_VALUE && value == floor(value))) {
        gac_reader_enter(r, ".%s", key);
        return exp_fault(r, "must be a whole number from 1 to %.0f, not %g", EXP_MAX_VALUE, value);
    }
    *out = (int64_t)value;
    return true;
}

static bool optional_size(gac_reader *r, const json_t *part, const char *key, exp_lookup lookup,
                          void *context, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    return !json_object_get(part, key) || size_at(r, part, key, lookup, context, out);
}

static bool flag_at(gac_reader *r, const json_t *part, const char *key, bool *out)
{
    const json_t *value = json_object_get(part, key);
    *out = json_is_true(value);
    if (!value || json_is_boolean(value))
        return true;
    gac_reader_enter(r, ".%s", key);
    return exp_fault(r, "must be true or false");
}

static gac_sdpa_path native_path(const char *name)
{
    if (strcmp(name, "math") == 0)
        return GAC_SDPA_MATH;
    if (strcmp(name, "flash") == 0)
        return GAC_SDPA_FLASH;
    return strcmp(name, "padded") == 0 ? GAC_SDPA_PADDED : GAC_SDPA_LIBRARY;
}

static bool read_sdpa(gac_reader *r, const json_t *part, const char *path, exp_lookup lookup,
                      void *context, gac_sdpa_call *out)
{
    gac_sdpa_shape *s = &out->shape;
    int64_t scale_of;
    if (!exp_keys(r, part,
                  "op times for batch q_heads kv_heads n_q n_kv head v_head causal scale_of "
                  "stored") ||
        !size_at(r, part, "batch", lookup, context, &s->batch) ||
        !size_at(r, part, "q_heads", lookup, context, &s->n_q_heads) ||
        !optional_size(r, part, "kv_heads", lookup, context, s->n_q_heads, &s->n_kv_heads) ||
        !size_at(r, part, "n_q", lookup, context, &s->n_q) ||
        !optional_size(r, part, "n_kv", lookup, context, s->n_q, &s->n_kv) ||
        !size_at(r, part, "head", lookup, context, &s->qk_head) ||
        !optional_size(r, part, "v_head", lookup, context, s->qk_head, &s->v_head) ||
        !optional_size(r, part, "scale_of", lookup, context, 0, &scale_of) ||
        !optional_size(r, part, "stored", lookup, context, 0, &out->stored_head) ||
        !flag_at(r, part, "causal", &s->causal))
        return false;
    if (s->n_q_heads % s->n_kv_heads != 0)
        return exp_fault(r, "q_heads must be a multiple of kv_heads");
    out->path = native_path(path);
    if (strcmp(path, "padded") == 0) {
        int64_t widest = s->qk_head > s->v_head ? s->qk_head : s->v_head;
        if (out->stored_head == 0 && !gac_round_up_i64(widest, 8, &out->stored_head))
            return exp_fault(r, "head is too large");
        if (out->stored_head < widest)
            return exp_fault(r, "stored must not be less than the head size");
    } else {
        out->stored_head = 0;
    }
    out->scale = scale_of ? 1 / sqrt((double)scale_of) : 0;
    return true;
}

static bool check_limits(gac_reader *r, const gac_task_spec *spec)
{
    int64_t total = 0;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++) {
        int64_t n = gac_task_operand_bytes(spec, (gac_operand)i);
        if (n < 0 || !gac_add_i64(total, n, &total) || total > EXP_MAX_JOB_BYTES)
            return exp_fault(r, "operands of more than %lld bytes, or invalid sizes",
                             (long long)EXP_MAX_JOB_BYTES);
    }
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    if (spec->kind == GAC_TASK_SDPA && spec->sdpa.path == GAC_SDPA_MATH &&
        4.0 * (double)s->batch * (double)s->n_q_heads * (double)s->n_q * (double)s->n_kv >
            (double)EXP_MAX_JOB_BYTES)
        return exp_fault(r, "the math path would need more than %lld bytes",
                         (long long)EXP_MAX_JOB_BYTES);
    if (gac_task_flops(spec) > EXP_MAX_JOB_FLOPS)
        return exp_fault(r, "a call of more than %g operations", EXP_MAX_JOB_FLOPS);
    return true;
}

bool exp_read_part(gac_reader *r, const json_t *part, const char *path, gac_dtype dtype,
                   exp_lookup lookup, void *context, gac_task_spec *out)
{
    const char *op, *layout;
    memset(out, 0, sizeof *out);
    out->dtype = dtype;
    if (!json_is_object(part))
        return exp_fault(r, "must be an object");
    if (!exp_text(r, part, "op", true, &op))
        return false;
    if (strcmp(op, "sdpa") == 0) {
        out->kind = GAC_TASK_SDPA;
        if (!read_sdpa(r, part, path, lookup, context, &out->sdpa))
            return false;
    } else if (strcmp(op, "gemm") == 0) {
        out->kind = GAC_TASK_GEMM;
        if (!exp_keys(r, part, "op times for m n k layout") ||
            !size_at(r, part, "m", lookup, context, &out->gemm.m) ||
            !size_at(r, part, "n", lookup, context, &out->gemm.n) ||
            !size_at(r, part, "k", lookup, context, &out->gemm.k) ||
            !exp_text(r, part, "layout", false, &layout))
            return false;
        if (layout && strcmp(layout, "linear") != 0 && strcmp(layout, "row") != 0)
            return exp_fault(r, "layout must be linear or row");
        out->gemm.row_major = layout && strcmp(layout, "row") == 0;
    } else if (strcmp(op, "pad") == 0) {
        out->kind = GAC_TASK_PAD;
        if (!exp_keys(r, part, "op times for rows from to") ||
            !size_at(r, part, "rows", lookup, context, &out->pad.n_rows) ||
            !size_at(r, part, "from", lookup, context, &out->pad.n_from) ||
            !size_at(r, part, "to", lookup, context, &out->pad.n_to))
            return false;
    } else {
        return exp_fault(r, "op must be sdpa, gemm or pad");
    }
    return check_limits(r, out);
}

static const char *job_key(exp_plan *plan, const gac_task_spec *spec, const char *path)
{
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    const gac_gemm_shape *g = &spec->gemm;
    switch (spec->kind) {
    case GAC_TASK_GEMM:
        return gac_arena_printf(&plan->arena, "gemm %s m=%lld n=%lld k=%lld",
                                g->row_major ? "row" : "linear", (long long)g->m, (long long)g->n,
                                (long long)g->k);
    case GAC_TASK_SDPA:
        return gac_arena_printf(
            &plan->arena,
            "sdpa %s b=%lld h=%lld/%lld q=%lld kv=%lld d=%lld/%lld%s stored=%lld scale=%.9g", path,
            (long long)s->batch, (long long)s->n_q_heads, (long long)s->n_kv_heads,
            (long long)s->n_q, (long long)s->n_kv, (long long)s->qk_head, (long long)s->v_head,
            s->causal ? " causal" : "", (long long)spec->sdpa.stored_head, spec->sdpa.scale);
    default:
        return gac_arena_printf(&plan->arena, "pad rows=%lld %lld->%lld",
                                (long long)spec->pad.n_rows, (long long)spec->pad.n_from,
                                (long long)spec->pad.n_to);
    }
}

int32_t exp_plan_job(exp_plan *plan, const gac_task_spec *spec, const char *path, gac_error *err)
{
    int32_t existing = -1;
    const char *key = job_key(plan, spec, path);
    if (!key ||
        !gac_grow((void **)&plan->jobs, plan->n_jobs, &plan->cap_jobs, sizeof *plan->jobs)) {
        gac_error_no_memory(err);
        return -1;
    }
    if (gac_namemap_add(&plan->by_key, key, plan->n_jobs, &existing, err) != GAC_OK)
        return -1;
    if (existing >= 0)
        return existing;
    plan->jobs[plan->n_jobs] = (exp_job){ .key = key,
                                          .path = spec->kind == GAC_TASK_SDPA ? path : "",
                                          .spec = *spec,
                                          .flops = gac_task_flops(spec),
                                          .bytes = gac_task_bytes(spec) };
    return plan->n_jobs++;
}
