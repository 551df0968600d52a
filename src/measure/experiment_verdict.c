/* Verdicts: pure functions of two numbers and what may be called different. */
#include "measure/experiment_internal.h"

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

/* The verdict on exactly this value; both are logarithms. */
static exp_verdict judge_logs(double theirs, double ours, double near, double none)
{
    /* The tolerance itself counts as within it, whatever rounding did. */
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
    double theirs = log(published), mine = log(ours), error = log1p(EXP_NOISES * noise);
    double none = log1p(no_effect), near = log1p(tolerance);
    /* Both ends may be on far sides of what was published: between them it counts too. */
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
    /* That no difference shows is no doubt about there being none. */
    bool found = fabs(log(ours)) > log1p(no_effect);
    return found && !pair->told_apart && verdict != EXP_NOT_MEASURED ? EXP_AMBIGUOUS : verdict;
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

/* The one word: contradicted if anything is, else stronger or weaker if all
 * that differs differs that way, else mixed. */
json_t *exp_summary(const json_t *claims)
{
    int n[EXP_VERDICT_COUNT] = { 0 };
    json_t *counts = json_object();
    for (size_t i = 0; i < json_array_size(claims); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(claims, i), "verdict"));
        for (int v = 0; v < EXP_VERDICT_COUNT; v++)
            n[v] += name && strcmp(name, exp_verdict_name((exp_verdict)v)) == 0;
    }
    for (int v = 0; v < EXP_VERDICT_COUNT; v++)
        if (n[v])
            json_object_set_new(counts, exp_verdict_name((exp_verdict)v), json_integer(n[v]));
    exp_verdict word = EXP_UNPUBLISHED;
    if (n[EXP_REPRODUCED])
        word = EXP_REPRODUCED;
    bool mixed = n[EXP_STRONGER] && n[EXP_WEAKER];
    if (n[EXP_STRONGER] && !n[EXP_WEAKER])
        word = EXP_STRONGER;
    if (n[EXP_WEAKER] && !n[EXP_STRONGER])
        word = EXP_WEAKER;
    if (n[EXP_CONTRADICTED]) {
        word = EXP_CONTRADICTED;
        mixed = n[EXP_REPRODUCED] || n[EXP_STRONGER] || n[EXP_WEAKER];
    }
    if (word == EXP_UNPUBLISHED && n[EXP_AMBIGUOUS] && !mixed)
        word = EXP_AMBIGUOUS;
    if (word == EXP_UNPUBLISHED && !mixed && n[EXP_NOT_MEASURED])
        word = EXP_NOT_MEASURED;
    else if (word == EXP_UNPUBLISHED && !mixed && n[EXP_ARITHMETIC] && !n[EXP_UNPUBLISHED])
        word = EXP_ARITHMETIC;
    int n_measured = (int)json_array_size(claims) - n[EXP_NOT_MEASURED] - n[EXP_ARITHMETIC];
    return json_pack("{s:s, s:o, s:i}", "verdict", mixed ? "mixed" : exp_verdict_name(word),
                     "claims", counts, "measured", n_measured);
}
