/* Summarises the claims of an experiment. */
#include "experiment/experiment_internal.h"

#include <string.h>

/* Chooses the experiment's verdict from the number of claims with each verdict. */
static const char *choose_word(const int n[EXP_VERDICT_COUNT])
{
    static const exp_verdict by_rank[] = { EXP_STRONGER,  EXP_WEAKER,       EXP_REPRODUCED,
                                           EXP_AMBIGUOUS, EXP_NOT_MEASURED, EXP_UNPUBLISHED };
    if (n[EXP_CONTRADICTED])
        return exp_verdict_name(EXP_CONTRADICTED);
    if (n[EXP_STRONGER] && n[EXP_WEAKER])
        return "mixed";
    for (size_t i = 0; i < sizeof by_rank / sizeof *by_rank; i++)
        if (n[by_rank[i]])
            return exp_verdict_name(by_rank[i]);
    return exp_verdict_name(n[EXP_ARITHMETIC] ? EXP_ARITHMETIC : EXP_UNPUBLISHED);
}

json_t *exp_summarise(const json_t *claims)
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
    int n_measured = (int)json_array_size(claims) - n[EXP_NOT_MEASURED] - n[EXP_ARITHMETIC];
    return json_pack("{s:s, s:o, s:i}", "verdict", choose_word(n), "claims", counts, "measured",
                     n_measured);
}
