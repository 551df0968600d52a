/* Decides whether repair pays. */
#include "inspect/inspect_internal.h"

const char *gac_verdict_name(gac_verdict verdict)
{
    static const char *const names[] = { "pays",   "pays-rescaled", "aligned",  "refused",
                                         "slower", "small",         "no-times", "not-judged" };
    return (unsigned)verdict < GAC_VERDICT_COUNT ? names[verdict] : "unknown";
}

static double whole_ratio(const gac_inspection *x, bool rescaled)
{
    double now = 0, then = 0;
    for (int i = 0; i < x->workload.n_phases; i++) {
        const gac_phase_times *t = &x->phases[i];
        double weight = x->workload.phases[i].weight;
        now += weight * t->now_ms;
        then += weight * (rescaled ? t->rescaled_ms : t->exact_ms);
    }
    return now > 0 ? then / now : 1;
}

static bool any_phase_gains(const gac_inspection *x, bool rescaled)
{
    for (int i = 0; i < x->workload.n_phases; i++) {
        const gac_phase_times *t = &x->phases[i];
        if ((rescaled ? t->rescaled_ms : t->exact_ms) < GAC_WORTH_IT * t->now_ms)
            return true;
    }
    return false;
}

static bool all_refused(const gac_model *model, const gac_inspection *x)
{
    for (int32_t i = 0; i < x->n_dims; i++)
        if (!x->advice[i].aligned && gac_model_dim(model, i)->exactness != GAC_REFUSED)
            return false;
    return true;
}

void gac_inspect_decide(const gac_model *model, gac_inspection *x)
{
    x->exact_ratio = whole_ratio(x, false);
    x->rescaled_ratio = whole_ratio(x, true);
    x->rescaled_gains = x->rescaled_ratio < GAC_WORTH_IT * x->exact_ratio;
    if (x->understood_pct < GAC_LEAST_UNDERSTOOD_PCT)
        x->verdict = GAC_VERDICT_NOT_JUDGED;
    else if (x->n_misaligned == 0)
        x->verdict = GAC_VERDICT_ALIGNED;
    else if (all_refused(model, x))
        x->verdict = GAC_VERDICT_REFUSED;
    else if (!gac_contract_has_times(x->target.contract, x->target.dtype))
        x->verdict = GAC_VERDICT_NO_TIMES;
    else if (any_phase_gains(x, false) && x->exact_ratio < 1)
        x->verdict = GAC_VERDICT_PAYS;
    else if (any_phase_gains(x, true) && x->rescaled_ratio < 1)
        x->verdict = GAC_VERDICT_PAYS_RESCALED;
    else
        x->verdict = x->exact_ratio > 1 ? GAC_VERDICT_SLOWER : GAC_VERDICT_SMALL;
}
