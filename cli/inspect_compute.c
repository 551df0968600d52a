#include "inspect.h"

#include <stdlib.h>
#include <string.h>

/* Less than this is within what predictions can tell. */
#define WORTH_IT 0.97

double inspect_pct(int32_t part, int32_t whole)
{
    return whole ? 100.0 * part / whole : 0;
}

static void count_dims(inspection *x)
{
    int32_t n_chosen = 0, n_chosen_misaligned = 0;
    x->n_dims_all = gac_model_n_dims(x->model);
    x->n_misaligned_all = 0;
    for (int32_t i = 0; i < x->n_dims_all; i++) {
        bool chosen = gac_model_dim(x->model, i)->compressed;
        bool misaligned = !x->advice[i].aligned;
        x->n_misaligned_all += misaligned;
        n_chosen += chosen;
        n_chosen_misaligned += chosen && misaligned;
    }
    x->summary_is_compressed = n_chosen > 0;
    x->n_dims = n_chosen ? n_chosen : x->n_dims_all;
    x->n_misaligned = n_chosen ? n_chosen_misaligned : x->n_misaligned_all;
}

static int by_size(const void *a, const void *b)
{
    const size_bin *x = a, *y = b;
    return x->size < y->size ? -1 : x->size > y->size;
}

/* Sorts a bin per dimension and merges those of one size. */
static gac_status summarise_role(cli *c, inspection *x, gac_role role)
{
    role_summary *r = &x->roles[role];
    r->bins = calloc((size_t)x->n_dims_all + 1, sizeof *r->bins);
    if (!r->bins)
        return gac_error_no_memory(&c->error);
    for (int32_t i = 0; i < x->n_dims_all; i++) {
        const gac_dim *d = gac_model_dim(x->model, i);
        if (d->role != role)
            continue;
        r->bins[r->n_dims++] = (size_bin){ d->size, 1, x->advice[i].aligned };
        r->n_misaligned += !x->advice[i].aligned;
    }
    qsort(r->bins, (size_t)r->n_dims, sizeof *r->bins, by_size);
    for (int32_t i = 0; i < r->n_dims; i++) {
        size_bin *last = r->n_bins ? &r->bins[r->n_bins - 1] : NULL;
        if (last && last->size == r->bins[i].size) {
            last->count++;
            last->aligned &= r->bins[i].aligned;
        } else {
            r->bins[r->n_bins++] = r->bins[i];
        }
    }
    return GAC_OK;
}

static void look_at_files(inspection *x)
{
    const gac_checkpoint *c = x->checkpoint;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c); i++) {
        const gac_tensor *t = gac_checkpoint_tensor(c, i);
        int bytes = gac_dtype_bits(t->dtype) / 8;
        x->files.n_off_element += bytes > 1 && t->offset % (uint64_t)bytes != 0;
        x->files.n_off_8 += t->offset % 8 != 0;
        x->files.n_off_64 += t->offset % 64 != 0;
    }
    for (int32_t i = 0; i < gac_checkpoint_n_files(c); i++)
        x->files.n_files_off_4096 += gac_checkpoint_data_start(c, i) % 4096 != 0;
}

/* The suggested size where zeros are at most this inexact. Dimensions that
 * move together share their exactness. */
static void choose_sizes(const inspection *x, gac_exactness limit, int64_t *sizes)
{
    for (int32_t i = 0; i < x->n_dims_all; i++) {
        const gac_dim *d = gac_model_dim(x->model, i);
        sizes[i] = d->exactness <= limit ? x->advice[i].suggest : d->size;
    }
}

static gac_status predict(cli *c, inspection *x)
{
    int64_t *exact = calloc((size_t)x->n_dims_all + 1, sizeof *exact);
    int64_t *rescaled = calloc((size_t)x->n_dims_all + 1, sizeof *rescaled);
    gac_status status = exact && rescaled ? GAC_OK : gac_error_no_memory(&c->error);
    if (status == GAC_OK) {
        choose_sizes(x, GAC_EXACT, exact);
        choose_sizes(x, GAC_RESCALED, rescaled);
        status = gac_plan_overhead_pct(x->model, exact, &x->overhead_pct, &c->error);
    }
    for (int i = 0; i < x->workload.n_phases && status == GAC_OK; i++) {
        const gac_phase *p = &x->workload.phases[i];
        phase_times *t = &x->phases[i];
        snprintf(t->label, sizeof t->label, "%s:%lld%s%lld", p->decode ? "decode" : "prefill",
                 (long long)p->batch, p->decode ? "@" : "x", (long long)p->length);
        t->rest_ms = gac_plan_rest_ms(x->model, &x->target, p);
        t->now_ms = gac_plan_time_ms(x->model, &x->target, p, NULL, NULL);
        t->exact_ms = gac_plan_time_ms(x->model, &x->target, p, exact, NULL);
        t->rescaled_ms = gac_plan_time_ms(x->model, &x->target, p, rescaled, NULL);
    }
    free(exact);
    free(rescaled);
    return status;
}

/* " prefill:1x2048 x0.31, decode:1@2048 x0.95", and the weighted whole. */
static double list_ratios(const inspection *x, bool rescaled, char *text, size_t size)
{
    double now = 0, then = 0;
    text[0] = 0;
    for (int i = 0; i < x->workload.n_phases; i++) {
        const phase_times *t = &x->phases[i];
        double after = rescaled ? t->rescaled_ms : t->exact_ms;
        double ratio = t->now_ms > 0 ? after / t->now_ms : 1;
        now += x->workload.phases[i].weight * t->now_ms;
        then += x->workload.phases[i].weight * after;
        snprintf(text + strlen(text), size - strlen(text), "%s %s \u00d7%.2f", i ? "," : "",
                 t->label, ratio);
    }
    return now > 0 ? then / now : 1;
}

static bool any_phase_gains(const inspection *x, bool rescaled)
{
    for (int i = 0; i < x->workload.n_phases; i++) {
        const phase_times *t = &x->phases[i];
        if ((rescaled ? t->rescaled_ms : t->exact_ms) < WORTH_IT * t->now_ms)
            return true;
    }
    return false;
}

static bool all_refused(const inspection *x)
{
    for (int32_t i = 0; i < x->n_dims_all; i++)
        if (!x->advice[i].aligned && gac_model_dim(x->model, i)->exactness != GAC_REFUSED)
            return false;
    return true;
}

static void advise(inspection *x)
{
    char exact[640], rescaled[640];
    char *out = x->advice_text;
    size_t size = sizeof x->advice_text;
    double whole = list_ratios(x, false, exact, sizeof exact);
    double whole_rescaled = list_ratios(x, true, rescaled, sizeof rescaled);
    if (x->n_misaligned_all == 0)
        snprintf(out, size, "no gain: every size is aligned");
    else if (all_refused(x))
        snprintf(out, size, "no gain: what is misaligned cannot be padded (refused)");
    else if (!gac_contract_has_times(x->contract, x->target.dtype))
        snprintf(out, size,
                 "repair aligns the sizes, %+.2f %% bytes; whether it pays is not "
                 "known: no times were measured",
                 x->overhead_pct);
    else if (any_phase_gains(x, false) && whole < 1)
        snprintf(out, size, "repair pays:%s; %+.2f %% bytes%s%s", exact, x->overhead_pct,
                 whole_rescaled < WORTH_IT * whole ? "; allowing rescaled sizes:" : "",
                 whole_rescaled < WORTH_IT * whole ? rescaled : "");
    else if (any_phase_gains(x, true) && whole_rescaled < 1)
        snprintf(out, size, "repair pays only with rescaled sizes allowed:%s", rescaled);
    else if (whole > 1)
        snprintf(out, size, "no gain: the aligned sizes are predicted to be slower (%s)",
                 exact + 1);
    else
        snprintf(out, size, "no gain: misaligned sizes cost less than %.0f %% here (%s)",
                 100 * (1 - WORTH_IT), exact + 1);
}

gac_status inspect_compute(cli *c, inspection *x)
{
    x->advice = calloc((size_t)gac_model_n_dims(x->model) + 1, sizeof *x->advice);
    if (!x->advice)
        return gac_error_no_memory(&c->error);
    gac_status status = gac_plan_advise(x->model, &x->target, &x->workload, x->advice, &c->error);
    if (status != GAC_OK)
        return status;
    if (!gac_contract_is_rough(x->contract, x->target.dtype, x->rough, sizeof x->rough))
        x->rough[0] = 0;
    count_dims(x);
    look_at_files(x);
    for (int r = 0; r < GAC_ROLE_COUNT && status == GAC_OK; r++)
        status = summarise_role(c, x, (gac_role)r);
    if (status == GAC_OK)
        status = predict(c, x);
    if (status == GAC_OK)
        advise(x);
    return status;
}

void inspect_dispose(inspection *x)
{
    for (int r = 0; r < GAC_ROLE_COUNT; r++)
        free(x->roles[r].bins);
    free(x->advice);
    gac_model_free(x->model);
    gac_checkpoint_close(x->checkpoint);
    gac_contract_free(x->contract);
}
