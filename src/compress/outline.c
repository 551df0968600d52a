/* The table that a job ends with: the model as it was, with sizes of any kind, with those rounded
 * up, and with the sizes that were chosen. A choice that is not written is judged by a
 * checkpoint of zeros: its file is sparse, and it is opened and judged as any model is. */
#include "compress/compress_internal.h"

#include <math.h>
#include <stdlib.h>

static const char *const row_names[GAC_COMPRESS_ROW_COUNT] = { "dense", "unaligned", "rounded",
                                                               "result" };

const char *gac_compress_row_name(gac_compress_row_kind kind)
{
    return (unsigned)kind < GAC_COMPRESS_ROW_COUNT ? row_names[kind] : NULL;
}

static gac_target target_of(const compression *c)
{
    gac_target target = GAC_TARGET_INIT;
    target.contract = c->options->contract;
    target.dtype = c->dtype;
    return target;
}

/* Judges a model with sizes, one for each dimension; NULL: its own. */
static gac_status judge(const compression *c, const gac_model *model, const int64_t *sizes,
                        gac_compress_row *row)
{
    const gac_target target = target_of(c);
    const gac_workload *workload = c->options->workload;
    const gac_checkpoint *checkpoint = gac_model_checkpoint(model);
    const int32_t n = gac_model_n_dims(model);
    int32_t n_aligned = 0;
    double growth_pct = 0;
    gac_dim_advice *advice = calloc((size_t)n + 1, sizeof *advice);
    gac_status status = advice ? GAC_OK : gac_error_no_memory(c->err);
    if (status == GAC_OK && sizes)
        status = gac_plan_overhead_pct(model, sizes, &growth_pct, c->err);
    if (status == GAC_OK)
        status = gac_plan_advise(model, &target, workload, advice, c->err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++)
        n_aligned += advice[i].aligned || (sizes && sizes[i] == advice[i].suggest);
    free(advice);
    const double growth = 1 + growth_pct / 100; /* all weights have one dtype */
    row->n_params =
        llround(growth * (double)gac_checkpoint_n_params(checkpoint)) - compress_count_twice(model);
    row->size_bytes = llround(growth * (double)gac_checkpoint_size_bytes(checkpoint));
    row->aligned_pct = n ? 100.0 * n_aligned / n : 100;
    for (int i = 0; i < workload->n_phases; i++)
        row->phase_ms[i] = gac_contract_has_times(target.contract, target.dtype)
                               ? gac_plan_time_ms(model, &target, &workload->phases[i], sizes, NULL)
                               : NAN;
    return status;
}

/* Judges a model whose sizes are rounded up as gac repair does. */
static gac_status judge_rounded(const compression *c, const gac_model *model, gac_compress_row *row)
{
    gac_plan_options how = GAC_PLAN_OPTIONS_INIT;
    gac_plan plan = { 0 };
    how.target = target_of(c);
    how.workload = c->options->workload;
    gac_status status = gac_plan_create(model, &how, &plan, c->err);
    if (status == GAC_OK)
        status = judge(c, model, plan.sizes, row);
    gac_plan_dispose(&plan);
    return status;
}

/* Judges what the present choices make, and the same rounded where that is not NULL. */
static gac_status judge_choices(compression *c, gac_compress_row *row, gac_compress_row *rounded)
{
    gac_writer *writer = NULL;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    gac_status status = compress_write_sizes(c, &writer);
    if (status == GAC_OK)
        status = gac_checkpoint_open(gac_writer_directory(writer), NULL, &checkpoint, c->err);
    if (status == GAC_OK)
        status = gac_model_create(checkpoint, &model, c->err);
    if (status == GAC_OK)
        status = judge(c, model, NULL, row);
    if (status == GAC_OK && rounded)
        status = judge_rounded(c, model, rounded);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    gac_writer_discard(writer);
    return status;
}

gac_status compress_outline(compression *c, gac_compress_result *result)
{
    const bool any = c->options->align == GAC_ALIGN_NONE;
    gac_compress_row *rows = result->rows;
    if (!c->options->contract || !c->options->workload || c->dtype == GAC_DTYPE_COUNT)
        return GAC_OK;
    gac_status status = judge(c, c->model, NULL, &rows[GAC_COMPRESS_ROW_DENSE]);
    if (status == GAC_OK)
        status = judge_choices(c, &rows[GAC_COMPRESS_ROW_RESULT],
                               any ? &rows[GAC_COMPRESS_ROW_ROUNDED] : NULL);
    rows[GAC_COMPRESS_ROW_RESULT].loss = result->objective;
    if (status != GAC_OK || any) {
        rows[GAC_COMPRESS_ROW_ROUNDED].loss = result->objective;
        return status;
    }
    gac_compress_options options = *c->options;
    gac_error unused = GAC_ERROR_INIT;
    gac_compress_result with_any = { .params_before = result->params_before,
                                     .budget_params = result->budget_params };
    compression other = *c;
    options.align = GAC_ALIGN_NONE;
    other.options = &options;
    other.err = &unused;
    other.choices = calloc((size_t)c->n_layers + 1, sizeof *other.choices);
    status = other.choices ? compress_allocate(&other, &with_any) : gac_error_no_memory(c->err);
    if (status == GAC_USAGE) { /* no such sizes are fast enough: these rows are not there */
        free(other.choices);
        return GAC_OK;
    }
    if (status != GAC_OK && c->err)
        *c->err = unused;
    other.err = c->err;
    if (status == GAC_OK)
        status = judge_choices(&other, &rows[GAC_COMPRESS_ROW_UNALIGNED],
                               &rows[GAC_COMPRESS_ROW_ROUNDED]);
    rows[GAC_COMPRESS_ROW_UNALIGNED].loss = rows[GAC_COMPRESS_ROW_ROUNDED].loss =
        with_any.objective;
    free(other.choices);
    return status;
}
