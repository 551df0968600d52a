/* Finds misaligned dimensions and their cost. verdict.c decides whether repair
 * pays. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arguments.h"
#include "inspect/inspect_internal.h"

static void count_dims(const gac_model *model, gac_inspection *x)
{
    for (int32_t i = 0; i < x->n_dims; i++) {
        bool chosen = gac_model_dim(model, i)->compressed;
        bool misaligned = !x->advice[i].aligned;
        x->n_misaligned += misaligned;
        x->n_chosen += chosen;
        x->n_chosen_misaligned += chosen && misaligned;
    }
    for (int32_t i = 0; i < gac_model_n_ops(model); i++) {
        const gac_op *op = gac_model_op(model, i);
        for (int32_t t = 0; t < op->n_terms; t++)
            x->seen_by[op->terms[t].dim] |= 1u << op->terms[t].axis;
    }
}

static int by_size(const void *a, const void *b)
{
    const gac_size_count *x = a, *y = b;
    return x->size < y->size ? -1 : x->size > y->size;
}

/* Counts the dimensions of a role by size. */
static gac_status summarise_role(const gac_model *model, gac_inspection *x, gac_role role,
                                 gac_error *err)
{
    gac_role_sizes *r = &x->roles[role];
    r->sizes = calloc((size_t)x->n_dims + 1, sizeof *r->sizes);
    if (!r->sizes)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < x->n_dims; i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (d->role != role)
            continue;
        r->sizes[r->n_dims++] = (gac_size_count){ d->size, 1, x->advice[i].aligned };
        r->n_misaligned += !x->advice[i].aligned;
    }
    qsort(r->sizes, (size_t)r->n_dims, sizeof *r->sizes, by_size);
    for (int32_t i = 0; i < r->n_dims; i++) {
        gac_size_count *last = r->n_sizes ? &r->sizes[r->n_sizes - 1] : NULL;
        if (last && last->size == r->sizes[i].size) {
            last->count++;
            last->aligned &= r->sizes[i].aligned;
        } else {
            r->sizes[r->n_sizes++] = r->sizes[i];
        }
    }
    return GAC_OK;
}

static void look_at_files(const gac_checkpoint *c, gac_file_offsets *files)
{
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c); i++) {
        const gac_tensor *t = gac_checkpoint_tensor(c, i);
        int bytes = gac_dtype_bits(t->dtype) / 8;
        files->n_off_element += bytes > 1 && t->offset % (uint64_t)bytes != 0;
        files->n_off_8 += t->offset % 8 != 0;
        files->n_off_64 += t->offset % 64 != 0;
    }
    for (int32_t i = 0; i < gac_checkpoint_n_files(c); i++)
        files->n_files_off_4096 += gac_checkpoint_data_start(c, i) % 4096 != 0;
}

/* Chooses the suggested size for dimensions whose exactness is at most limit,
 * and the present size for the others. Dimensions that move together have the
 * same exactness. */
static void choose_sizes(const gac_model *model, const gac_inspection *x, gac_exactness limit,
                         int64_t *sizes)
{
    for (int32_t i = 0; i < x->n_dims; i++) {
        const gac_dim *d = gac_model_dim(model, i);
        sizes[i] = d->exactness <= limit ? x->advice[i].suggest : d->size;
    }
}

static void time_phase(const gac_model *model, const gac_target *target, const gac_phase *p,
                       const int64_t *exact, const int64_t *rescaled, gac_phase_times *t)
{
    snprintf(t->label, sizeof t->label, "%s:%lld%s%lld", p->decode ? "decode" : "prefill",
             (long long)p->batch, p->decode ? "@" : "x", (long long)p->length);
    t->rest_ms = gac_plan_rest_ms(model, target, p);
    t->now_ms = gac_plan_time_ms(model, target, p, NULL, NULL);
    t->exact_ms = gac_plan_time_ms(model, target, p, exact, NULL);
    t->rescaled_ms = gac_plan_time_ms(model, target, p, rescaled, NULL);
    t->exact_ratio = t->now_ms != 0 ? t->exact_ms / t->now_ms : 1;
    t->rescaled_ratio = t->now_ms != 0 ? t->rescaled_ms / t->now_ms : 1;
}

static gac_status predict(const gac_model *model, gac_inspection *x, gac_error *err)
{
    int64_t *exact = calloc((size_t)x->n_dims + 1, sizeof *exact);
    int64_t *rescaled = calloc((size_t)x->n_dims + 1, sizeof *rescaled);
    gac_status status = exact && rescaled ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK) {
        choose_sizes(model, x, GAC_EXACT, exact);
        choose_sizes(model, x, GAC_RESCALED, rescaled);
        status = gac_plan_overhead_pct(model, exact, &x->overhead_pct, err);
    }
    for (int i = 0; i < x->workload.n_phases && status == GAC_OK; i++)
        time_phase(model, &x->target, &x->workload.phases[i], exact, rescaled, &x->phases[i]);
    free(exact);
    free(rescaled);
    return status;
}

/* Turns the options into a target that the contract serves. */
static gac_status take_options(const gac_model *model, const gac_contract *contract,
                               const gac_inspect_options *o, gac_inspection *x, gac_error *err)
{
    x->target = (gac_target){ contract, GAC_DTYPE_COUNT, o->n_gpus, o->quant_group };
    x->wanted = o->dtype == GAC_DTYPE_COUNT ? gac_model_dtype(model) : o->dtype;
    if ((int)x->wanted < 0 || x->wanted >= GAC_DTYPE_COUNT)
        return gac_error_set(err, GAC_USAGE, "gac_inspect: %d is no dtype", (int)x->wanted);
    if (!gac_contract_dtype(contract, x->wanted, &x->target.dtype))
        return gac_error_set(err, GAC_USAGE, "contract %s says nothing of %s",
                             gac_contract_name(contract), gac_dtype_name(x->wanted));
    if (!o->workload)
        return gac_workload_parse(GAC_DEFAULT_WORKLOAD, &x->workload, err);
    x->workload = *o->workload;
    return GAC_OK;
}

/* Finds a width of experts whose rows are no multiple of 16 bytes, and that can be padded.
 * transformers 5 computes all experts by torch's grouped_mm, which refuses such rows. */
static int64_t find_stuck_width(const gac_model *model, gac_dtype dtype)
{
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (d->role == GAC_ROLE_EXPERT_WIDTH && d->exactness == GAC_EXACT &&
            d->size * gac_dtype_bits(dtype) % 128 != 0)
            return d->size;
    }
    return 0;
}

static gac_status judge(const gac_model *model, gac_inspection *x, gac_error *err)
{
    x->understood_pct = gac_model_understood_pct(model);
    x->stuck_width = find_stuck_width(model, x->wanted);
    x->n_dims = gac_model_n_dims(model);
    x->advice = calloc((size_t)x->n_dims + 1, sizeof *x->advice);
    x->seen_by = calloc((size_t)x->n_dims + 1, sizeof *x->seen_by);
    if (!x->advice || !x->seen_by)
        return gac_error_no_memory(err);
    gac_status status = gac_plan_advise(model, &x->target, &x->workload, x->advice, err);
    if (status != GAC_OK)
        return status;
    if (!gac_contract_is_rough(x->target.contract, x->target.dtype, x->rough, sizeof x->rough))
        x->rough[0] = 0;
    count_dims(model, x);
    look_at_files(gac_model_checkpoint(model), &x->files);
    for (int r = 0; r < GAC_ROLE_COUNT && status == GAC_OK; r++)
        status = summarise_role(model, x, (gac_role)r, err);
    if (status == GAC_OK)
        status = predict(model, x, err);
    if (status == GAC_OK)
        gac_inspect_decide(model, x);
    return status;
}

gac_status gac_inspect(const gac_model *model, const gac_contract *contract,
                       const gac_inspect_options *options, gac_inspection **out, gac_error *err)
{
    static const gac_inspect_options usual = GAC_INSPECT_OPTIONS_INIT;
    GAC_REFUSE_NULL(err, model, contract, out);
    gac_inspection *x = calloc(1, sizeof *x);
    if (!x)
        return gac_error_no_memory(err);
    gac_status status = take_options(model, contract, options ? options : &usual, x, err);
    if (status == GAC_OK)
        status = judge(model, x, err);
    if (status == GAC_OK)
        *out = x;
    else
        gac_inspection_free(x);
    return status;
}

void gac_inspection_free(gac_inspection *inspection)
{
    if (!inspection)
        return;
    for (int r = 0; r < GAC_ROLE_COUNT; r++)
        free(inspection->roles[r].sizes);
    free(inspection->advice);
    free(inspection->seen_by);
    free(inspection);
}
