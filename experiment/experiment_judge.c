/* Judges the claims of a result again, from the calls on record. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <string.h>

#define ROUNDED 1e-6 /* results are written with nine digits */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Returns whether no text has control characters. The texts will be printed. */
static bool is_plain(json_t *value)
{
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    bool plain = true;
    size_t i;
    json_t *item;
    for (; *text && plain; text++)
        plain = (unsigned char)*text >= 0x20 && *text != 0x7f;
    json_array_foreach(value, i, item) {
        plain = plain && is_plain(item);
    }
    for (void *at = json_object_iter(value); at && plain; at = json_object_iter_next(value, at)) {
        json_t *key = json_string(json_object_iter_key(at));
        plain = is_plain(key) && is_plain(json_object_iter_value(at));
        json_decref(key);
    }
    return plain;
}

/* Restores a job from its call on record. */
static bool restore_job(const json_t *call, exp_job *job)
{
    const json_t *timing = json_object_get(call, "timing");
    const char *state = text_of(call, "state");
    job->state = EXP_PENDING;
    for (int i = EXP_MEASURED; i <= EXP_FAILED; i++)
        if (strcmp(state, exp_state_name((exp_state)i)) == 0)
            job->state = (exp_state)i;
    bool measured = job->state == EXP_MEASURED;
    snprintf(job->served, sizeof job->served, "%s", text_of(call, "served_by"));
    snprintf(job->reason, sizeof job->reason, "%s",
             text_of(call, measured ? "declined" : "reason"));
    if (!measured)
        return job->state != EXP_PENDING;
    job->time_us = json_number_value(json_object_get(timing, "median_us"));
    job->spread_us = json_number_value(json_object_get(timing, "spread_us"));
    job->noise = json_number_value(json_object_get(timing, "noise"));
    job->n_samples = (int)json_array_size(json_object_get(timing, "samples_us"));
    job->timing = json_incref(json_object_get(call, "timing"));
    exp_note_kernels(job, json_deep_copy(json_object_get(call, "kernels")));
    return job->time_us > 0 && job->noise >= 0;
}

/* Restores the plan's jobs from the calls on record, and sorts the calls into
 * the plan's order, which the cases refer to. */
static gac_status restore_plan(json_t *result, exp_plan *plan, gac_error *err)
{
    const json_t *calls = json_object_get(result, "calls");
    json_t *ordered = json_array(), *by_job = json_object();
    gac_status status = GAC_OK;
    char q[120];
    for (size_t i = 0; i < json_array_size(calls) && status == GAC_OK; i++) {
        json_t *call = json_array_get(calls, i);
        int32_t at = gac_namemap_find(&plan->by_key, text_of(call, "call"));
        if (at >= 0 && (plan->jobs[at].state != EXP_PENDING || !restore_job(call, &plan->jobs[at])))
            status = gac_error_set(err, GAC_BAD_INPUT, "calls[%zu] makes no sense", i);
        else if (at >= 0)
            json_object_set(by_job, plan->jobs[at].key, call);
    }
    for (int32_t i = 0; i < plan->n_jobs && status == GAC_OK; i++) {
        if (plan->jobs[i].state == EXP_PENDING)
            status = gac_error_set(err, GAC_BAD_INPUT,
                                   "has no call \"%s\", which the specification needs",
                                   gac_quote(q, sizeof q, plan->jobs[i].key));
        json_array_append(ordered, json_object_get(by_job, plan->jobs[i].key));
    }
    if (status == GAC_OK)
        json_object_set(result, "calls", ordered);
    json_decref(ordered);
    json_decref(by_job);
    return status;
}

static bool same(const json_t *a, const json_t *b, const char *key)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    if (!json_is_number(x) || !json_is_number(y))
        return !json_is_number(x) && !json_is_number(y);
    double p = json_number_value(x), q = json_number_value(y);
    return fabs(p - q) <= ROUNDED * fmax(1, fabs(q));
}

/* Copies the figures (a list that ends with NULL) from record, because a record
 * has rounded numbers. False if a figure differs by more than rounding. */
static bool keep_digits(json_t *to, const json_t *record, const char *const *figures)
{
    for (; *figures; figures++) {
        if (!same(record, to, *figures))
            return false;
        if (json_object_get(to, *figures))
            json_object_set(to, *figures, json_object_get(record, *figures));
    }
    return true;
}

static const json_t *find_claim(const json_t *claims, const char *id, size_t *at)
{
    size_t i;
    json_t *claim;
    json_array_foreach(claims, i, claim) {
        *at = i;
        if (strcmp(text_of(claim, "id"), id) == 0)
            return claim;
    }
    return NULL;
}

/* Replaces the claims on record. The figures on record must follow from the calls. */
static gac_status take_claims(json_t *result, json_t *judged, gac_error *err)
{
    static const char *const figures[] = { "ours", "noise", "published", NULL };
    const json_t *claims = json_object_get(result, "claims");
    size_t i, at = 0;
    json_t *claim;
    json_array_foreach(judged, i, claim) {
        const json_t *old = find_claim(claims, text_of(claim, "id"), &at);
        if (old && !keep_digits(claim, old, figures))
            return gac_error_set(err, GAC_BAD_INPUT, "claims[%zu] does not follow from the calls",
                                 at);
    }
    json_object_set(result, "claims", judged);
    json_object_set_new(result, "summary", exp_summarise(judged));
    return GAC_OK;
}

/* Replaces the cases on record in the same way. The specification may have
 * other variants by now. */
static gac_status take_cases(json_t *result, json_t *cases, gac_error *err)
{
    static const char *const figures[] = { "time_us", "spread_us", NULL };
    const json_t *record = json_object_get(result, "cases");
    size_t i;
    json_t *one, *cell;
    const char *variant;
    json_array_foreach(cases, i, one) {
        const json_t *old = json_array_get(record, i);
        if (strcmp(text_of(old, "label"), text_of(one, "label")) != 0)
            continue;
        json_object_foreach(json_object_get(one, "variants"), variant, cell) {
            const json_t *before = json_object_get(json_object_get(old, "variants"), variant);
            if (before && !keep_digits(cell, before, figures))
                return gac_error_set(err, GAC_BAD_INPUT,
                                     "cases[%zu] does not follow from the calls", i);
        }
    }
    json_object_set(result, "cases", cases);
    return GAC_OK;
}

gac_status gac_experiment_judge(const gac_experiment *experiment, struct json_t *result,
                                gac_error *err)
{
    json_t *judged = NULL, *cases = NULL;
    /* Results of older versions say "lens" for "stack". */
    const char *key = json_object_get(result, "stack") ? "stack" : "lens";
    bool pytorch = strcmp(text_of(result, key), gac_stack_name(GAC_STACK_PYTORCH)) == 0;
    exp_plan plan;
    if (strcmp(text_of(result, "schema"), "gac.experiment/1") != 0 ||
        strcmp(text_of(result, "id"), experiment->id) != 0)
        return gac_error_set(err, GAC_BAD_INPUT, "is no result of %s", experiment->id);
    if (!is_plain(result))
        return gac_error_set(err, GAC_BAD_INPUT, "has text with control characters");
    gac_status status = exp_plan_build(experiment, pytorch ? GAC_STACK_PYTORCH : GAC_STACK_NATIVE,
                                       json_is_true(json_object_get(result, "quick")), &plan, err);
    if (status == GAC_OK)
        status = restore_plan(result, &plan, err);
    if (status == GAC_OK)
        status = exp_claims(experiment, &plan, &judged, err);
    if (status == GAC_OK)
        status = take_claims(result, judged, err);
    if (status == GAC_OK)
        status = take_cases(result, cases = exp_cases_json(experiment, &plan), err);
    if (status == GAC_OK && json_object_get(experiment->spec, "notes"))
        json_object_set(result, "notes", json_object_get(experiment->spec, "notes"));
    if (status == GAC_OK && json_object_get(experiment->published, "setup"))
        json_object_set(result, "published_setup", json_object_get(experiment->published, "setup"));
    json_decref(cases);
    json_decref(judged);
    exp_plan_dispose(&plan);
    return status;
}
