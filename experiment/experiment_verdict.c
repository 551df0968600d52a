/* Verdicts as pure functions of the published and the measured number. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <string.h>

const char *exp_verdict_name(exp_verdict verdict)
{
    static const char *const names[EXP_VERDICT_COUNT] = {
        [EXP_REPRODUCED] = "reproduced",   [EXP_STRONGER] = "stronger",
        [EXP_WEAKER] = "weaker",           [EXP_CONTRADICTED] = "contradicted",
        [EXP_AMBIGUOUS] = "ambiguous",     [EXP_NOT_MEASURED] = "not measured",
        [EXP_UNPUBLISHED] = "unpublished", [EXP_ARITHMETIC] = "arithmetic",
    };
    return verdict < EXP_VERDICT_COUNT ? names[verdict] : "not measured";
}

/* Judges one value without noise. theirs and ours are logarithms. */
static exp_verdict judge_logs(double theirs, double ours, double near, double none)
{
    /* A difference of exactly the tolerance is within it, in spite of rounding. */
    double room = 1e-12;
    if (fabs(theirs) < none - room)
        return fabs(ours) <= none + room ? EXP_REPRODUCED : EXP_CONTRADICTED;
    if (fabs(ours) <= none - room || (ours > 0) != (theirs > 0))
        return EXP_CONTRADICTED;
    if (fabs(ours - theirs) <= near + room)
        return EXP_REPRODUCED;
    return fabs(ours) > fabs(theirs) ? EXP_STRONGER : EXP_WEAKER;
}

exp_verdict exp_judge_ratio(double published, double ours, double tolerance, double noise,
                            double no_effect)
{
    if (!(published > 0) || !(ours > 0) || !isfinite(published) || !isfinite(ours))
        return EXP_NOT_MEASURED;
    double theirs = log(published), mine = log(ours), error = log1p(EXP_NOISE_FACTOR * noise);
    double none = log1p(no_effect), near = log1p(tolerance);
    /* The two ends may lie on opposite sides of the published value. Then the
     * published value itself is possible too. */
    const double all[] = { mine - error, mine + error,
                           fmin(fmax(theirs, mine - error), mine + error) };
    exp_verdict verdict = judge_logs(theirs, mine, near, none);
    for (int i = 0; i < 3; i++)
        if (judge_logs(theirs, all[i], near, none) != verdict)
            return EXP_AMBIGUOUS;
    return verdict;
}

exp_verdict exp_judge_pair(double published, double ours, double tolerance, double noise,
                           double no_effect, const exp_comparison *pair)
{
    exp_verdict verdict = exp_judge_ratio(published, ours, tolerance, noise, no_effect);
    const double by[] = { pair->clock_ratio, 1 / pair->clock_ratio };
    for (int i = 0; i < 2; i++)
        if (exp_judge_ratio(published, ours * by[i], tolerance, noise, no_effect) != verdict)
            return EXP_AMBIGUOUS;
    /* If the measured effect is below no_effect, samples that show no
     * difference agree with it. */
    bool found = fabs(log(ours)) > log1p(no_effect);
    return found && !pair->distinguishable && verdict != EXP_NOT_MEASURED ? EXP_AMBIGUOUS : verdict;
}

static exp_verdict judge_share(double published, double ours, double tolerance)
{
    if (fabs(ours - published) <= tolerance + 1e-12)
        return EXP_REPRODUCED;
    double theirs = published - 0.5, mine = ours - 0.5;
    if (theirs * mine <= 0)
        return EXP_CONTRADICTED;
    return fabs(mine) > fabs(theirs) ? EXP_STRONGER : EXP_WEAKER;
}

exp_verdict exp_judge_share(double published, double ours, double least, double most,
                            double tolerance)
{
    if (!(published >= 0 && published <= 1) || !(ours >= 0 && ours <= 1))
        return EXP_NOT_MEASURED;
    const double all[] = { least, most, fmin(fmax(published, least), most) };
    exp_verdict verdict = judge_share(published, ours, tolerance);
    for (int i = 0; i < 3; i++)
        if (judge_share(published, all[i], tolerance) != verdict)
            return EXP_AMBIGUOUS;
    return verdict;
}
