/* Judges the claims of a result anew, from the calls it has on record. */
#include "measure/experiment_internal.h"

#include <math.h>
#include <string.h>

#define ROUNDED 1e-6 /* results are written with nine digits */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* No text in it has control characters: it is going to be printed. */
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

/* A job as it was when the call was written. */
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

static gac_status restore_plan(const json_t *result, exp_plan *plan, gac_error *err)
{
    const json_t *calls = json_object_get(result, "calls");
    char q[120];
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        int32_t at = gac_namemap_find(&plan->by_key, text_of(call, "call"));
        if (at >= 0 && (plan->jobs[at].state != EXP_PENDING || !restore_job(call, &plan->jobs[at])))
            return gac_error_set(err, GAC_BAD_INPUT, "calls[%zu] makes no sense", i);
    }
    for (int32_t i = 0; i < plan->n_jobs; i++)
        if (plan->jobs[i].state == EXP_PENDING)
            return gac_error_set(err, GAC_BAD_INPUT,
                                 "has no call \"%s\", which the specification needs",
                                 gac_quote(q, sizeof q, plan->jobs[i].key));
    return GAC_OK;
}

static bool same(const json_t *a, const json_t *b, const char *key)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    if (!json_is_number(x) || !json_is_number(y))
        return json_is_null(x) && json_is_null(y);
    double p = json_number_value(x), q = json_number_value(y);
    return fabs(p - q) <= ROUNDED * fmax(1, fabs(q));
}

/* Verdict and reason of a claim; its figures are what was written, or were not
 * of these calls. */
static gac_status take_claim(json_t *claims, const json_t *judged, gac_error *err)
{
    const char *id = text_of(judged, "id");
    char q[80];
    for (size_t i = 0; i < json_array_size(claims); i++) {
        json_t *claim = json_array_get(claims, i);
        if (strcmp(text_of(claim, "id"), id) != 0)
            continue;
        if (!same(claim, judged, "ours") || !same(claim, judged, "noise") ||
            !same(claim, judged, "published"))
            return gac_error_set(err, GAC_BAD_INPUT, "claims[%zu] does not follow from the calls",
                                 i);
        json_object_set(claim, "verdict", json_object_get(judged, "verdict"));
        json_object_set(claim, "reason", json_object_get(judged, "reason"));
        return GAC_OK;
    }
    return gac_error_set(err, GAC_BAD_INPUT, "has no claim \"%s\"", gac_quote(q, sizeof q, id));
}

gac_status gac_experiment_judge(const gac_experiment *experiment, struct json_t *result,
                                gac_error *err)
{
    json_t *judged = NULL, *claims = json_object_get(result, "claims");
    bool pytorch = strcmp(text_of(result, "lens"), gac_lens_name(GAC_LENS_PYTORCH)) == 0;
    exp_plan plan;
    if (strcmp(text_of(result, "schema"), "gac.experiment/1") != 0 ||
        strcmp(text_of(result, "id"), experiment->id) != 0)
        return gac_error_set(err, GAC_BAD_INPUT, "is no result of %s", experiment->id);
    if (!is_plain(result))
        return gac_error_set(err, GAC_BAD_INPUT, "has text with control characters");
    gac_status status = exp_plan_build(experiment, pytorch ? GAC_LENS_PYTORCH : GAC_LENS_NATIVE,
                                       json_is_true(json_object_get(result, "quick")), &plan, err);
    if (status == GAC_OK)
        status = restore_plan(result, &plan, err);
    if (status == GAC_OK)
        status = exp_claims(experiment, &plan, &judged, err);
    if (status == GAC_OK && json_array_size(judged) != json_array_size(claims))
        status = gac_error_set(err, GAC_BAD_INPUT, "has not as many claims as the specification");
    for (size_t i = 0; status == GAC_OK && i < json_array_size(judged); i++)
        status = take_claim(claims, json_array_get(judged, i), err);
    if (status == GAC_OK)
        json_object_set_new(result, "summary", exp_summary(claims));
    json_decref(judged);
    exp_plan_dispose(&plan);
    return status;
}
