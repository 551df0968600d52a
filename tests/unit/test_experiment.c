#include "experiment/experiment_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool lookup(void *context, const char *name, double *out)
{
    (void)context;
    *out = strcmp(name, "d") == 0 ? 107 : NAN;
    return strcmp(name, "d") == 0 || strcmp(name, "time.raw") == 0;
}

static double eval(const char *text)
{
    double value;
    char why[160];
    if (!exp_eval(text, lookup, NULL, &value, why, sizeof why))
        fail_msg("%s: %s", text, why);
    return value;
}

static void expressions_compute(void **state)
{
    (void)state;
    assert_true(eval("1 + 2 * 3") == 7);
    assert_true(eval("(1 + 2) * 3") == 9);
    assert_true(eval("10 - 4 - 3") == 3);
    assert_true(eval("d % 8") == 3);
    assert_true(eval("up(d, 8)") == 112);
    assert_true(eval("up(112, 8)") == 112);
    assert_true(eval("min(d, 9) + max(d, 200)") == 209);
    assert_true(eval("d % 8 != 0 && d <= 160") == 1);
    assert_true(eval("d == 96 || d == 107") == 1);
    assert_true(eval("!(d == 107)") == 0);
    assert_true(eval("-d + 1") == -106);
    assert_true(eval("8192 / 2048") == 4);
    assert_true(eval("d >= 107 && d < 108 && d > 106 && d <= 107") == 1);
}

static void what_is_not_measured_goes_through(void **state)
{
    (void)state;
    assert_true(isnan(eval("time.raw / 2")));
    assert_true(isnan(eval("time.raw > 1")));
    assert_true(isnan(eval("up(time.raw, 8)")));
    assert_true(eval("time.raw > 1 && d == 1") == 0);
    assert_true(eval("time.raw > 1 || d == 107") == 1);
    assert_true(isnan(eval("d % 0")));
    assert_true(isnan(eval("up(d, 0)")));
}

static void bad_expressions_are_refused(void **state)
{
    static const char *const bad[] = { "",      "1 +",   "(1",  "1)",      "e",         "d d",
                                       "up(1)", "1 = 1", "d.x", "up 1, 2", "time.else", "1 + * 2",
                                       "\"d\"", "d & 1", "1;2", "--",      "min(1,2,3)" };
    char deep[400];
    double value;
    char why[160];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (exp_eval(bad[i], lookup, NULL, &value, why, sizeof why))
            fail_msg("\"%s\" was taken", bad[i]);
    memset(deep, '(', sizeof deep);
    deep[sizeof deep - 1] = 0;
    assert_false(exp_eval(deep, lookup, NULL, &value, why, sizeof why));
    assert_non_null(strstr(why, "deep"));
}

#define HEAD "{'schema':'gac.experiment-spec/1','id':'X','title':'t','question':'q','why':'w',"
#define PART "{'op':'gemm','m':8,'n':8,'k':'k'}"
#define SWEEP \
    "'sweeps':[{'name':'s','over':{'k':[8,9,16]},'quick':'k < 16','parts':[" PART \
    "],'variants':[{'name':'v'}]}],"
#define CLAIM "'claims':[{'id':'c','says':'s','of':{'mean':'time'}}]"

/* Parses a specification in which ' stands for ". */
static gac_status parse(const char *text, const char *published, gac_experiment **out,
                        gac_error *err)
{
    char *spec = strdup(text), *figures = published ? strdup(published) : NULL;
    for (char *p = spec; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    for (char *p = figures; p && *p; p++)
        *p = *p == '\'' ? '"' : *p;
    gac_status status = gac_experiment_parse(spec, strlen(spec), "x.json", figures,
                                             figures ? strlen(figures) : 0, out, err);
    free(spec);
    free(figures);
    return status;
}

static void refused(const char *text, const char *message)
{
    gac_experiment *e = NULL;
    gac_error err = GAC_ERROR_INIT;
    gac_status status = parse(text, NULL, &e, &err);
    if (status != GAC_BAD_INPUT || !strstr(err.text, message))
        fail_msg("%s\n  gave %d: %s\n  not: %s", text, (int)status, err.text, message);
}

static void bad_specifications_are_named(void **state)
{
    (void)state;
    refused("", "bad JSON");
    refused("[]", "$: must be an object");
    refused("{}", "$.schema: must be a string");
    refused("{'schema':'gac.plan/1'}", "$.schema: must be gac.experiment-spec/1");
    refused(HEAD SWEEP CLAIM ",'frob':1}", "$: unknown key \"frob\"");
    refused(HEAD "'id2':1," SWEEP CLAIM "}", "unknown key");
    refused(
        "{'schema':'gac.experiment-spec/1','id':'../x','title':'t','question':'q','why':'w'," SWEEP
            CLAIM "}",
        "$.id: must be 1 to 32 letters");
    refused(HEAD CLAIM "}", "$.sweeps: must be an array");
    refused(HEAD "'sweeps':[]," CLAIM "}", "$.sweeps: must be an array of 1");
    refused(HEAD "'dtype':'F64'," SWEEP CLAIM "}", "must be F16 or BF16");
    refused(HEAD SWEEP "'claims':[]}", "$.claims: must be an array of 1");
    refused(HEAD SWEEP "'claims':[{'id':'c','says':'s','of':{'mean':'tim'}}]}",
            "$.claims[0]: no such name at \"tim\"");
    refused(HEAD SWEEP "'claims':[{'id':'c','says':'s','of':{'mean':'time.w'}}]}", "no such name");
    refused(HEAD SWEEP "'claims':[{'id':'c','says':'s','of':{'mean':'time','where':'k %'}}]}",
            "$.claims[0]: expected a number");
    refused(HEAD SWEEP "'claims':[{'id':'c','says':'s','of':{'mean':'time','max':'time'}}]}",
            "two aggregates");
    refused(HEAD SWEEP "'claims':[{'id':'c','says':'s','of':{}}]}", "needs one of mean");
    refused(HEAD SWEEP "'claims':[{'id':'c','says':'s','of':{'mean':'time','sweep':'z'}}]}",
            "$.claims[0]: there is no sweep \"z\"");
    refused(HEAD SWEEP "'claims':[{'id':'c','says':'s','published':'p','of':{'mean':'time'}}]}",
            "no number \"p\"");
    refused(HEAD SWEEP
            "'checks':[{'id':'c','says':'s','sizes':[[8,4]],'part':{},'native':['auto']}]," CLAIM
            "}",
            "$.checks[0]: must be from 8");
}

#define VARIED(over, part, rest) \
    HEAD "'sweeps':[{'name':'s','over':{" over "},'parts':[" part "],'variants':[" rest \
         "]}]," CLAIM "}"
#define V "{'name':'v'}"

static void bad_sweeps_are_named(void **state)
{
    (void)state;
    refused(VARIED("", PART, V), "$.sweeps[0].over: must be an object of 1");
    refused(VARIED("'k':[]", PART, V), "$.sweeps[0].over.k: must not be empty");
    refused(VARIED("'k':['a']", PART, V), "$.sweeps[0].over.k[0]: must be a number");
    refused(VARIED("'k':{'from':9,'to':8}", PART, V), "$.sweeps[0].over.k: must be from 9");
    refused(VARIED("'k':{'from':1,'to':8,'step':0}", PART, V), "must be from 1");
    refused(VARIED("'k':{'from':1,'to':30000}", PART, V), "more than 20000 values");
    refused(VARIED("'k':{'from':1,'to':200},'j':{'from':1,'to':200}", PART, V),
            "more than 20000 cases");
    refused(VARIED("'a':{'from':1,'to':2000},'k':{'from':1,'to':2000}", PART, V),
            "more than 200000 combinations");
    refused(VARIED("'time':[1]", PART, V), "variables must be lower-case and not reserved");
    refused(VARIED("'K':[1]", PART, V), "variables must be lower-case and not reserved");
    refused(VARIED("'k':[8]", PART, ""), "$.sweeps[0].variants: must be an array of 1");
    refused(VARIED("'k':[8]", PART, V "," V), "$.sweeps[0].variants[1]: a second variant");
    refused(VARIED("'k':[8]", PART, "{'name':'v','native':'cudnn'}"),
            "$.sweeps[0].variants[0].native: must be auto, library");
    refused(VARIED("'k':[8]", PART, "{'name':'v','pytorch':'library'}"),
            "$.sweeps[0].variants[0].pytorch: must be auto, flash");
    refused(VARIED("'k':[8]", PART, "{'name':'v','set':{'k':'z'}}"), ".set.k: no such name");
    refused(VARIED("'k':[8]", "{'op':'conv'}", V), "parts[0]: op must be sdpa, gemm or pad");
    refused(VARIED("'k':[8]", "{'op':'gemm','m':8,'n':8}", V), "parts[0].k: must be a number");
    refused(VARIED("'k':[8]", "{'op':'gemm','m':8,'n':8,'k':'k/3'}", V), ".k: must be a whole");
    refused(VARIED("'k':[8]", "{'op':'gemm','m':8,'n':8,'k':'k-8'}", V), ".k: must be a whole");
    refused(VARIED("'k':[8]", "{'op':'gemm','m':8,'n':8,'k':'1/(k-8)'}", V), ".k: has no value");
    refused(VARIED("'k':[8]", "{'op':'gemm','m':8,'n':8,'k':8,'x':1}", V), "unknown key \"x\"");
    refused(VARIED("'k':[8]", "{'op':'gemm','m':100000,'n':1000000,'k':8}", V),
            "operands of more than");
    refused(VARIED("'k':[8]", "{'op':'gemm','m':65536,'n':65536,'k':65536000}", V),
            "operands of more than");
    refused(VARIED("'k':[8]", "{'op':'gemm','m':32768,'n':32768,'k':32768,'times':0}", V),
            "times must be");
    refused(
        VARIED("'k':[8]", "{'op':'sdpa','batch':1,'q_heads':8,'kv_heads':3,'n_q':8,'head':'k'}", V),
        "q_heads must be a multiple");
    refused(VARIED("'k':[8]", "{'op':'sdpa','batch':1,'q_heads':64,'n_q':262144,'head':64}",
                   "{'name':'v','native':'math'}"),
            "the math path would need");
    refused(VARIED("'k':[8]", "{'op':'sdpa','batch':8,'q_heads':32,'n_q':2000000,'head':8}", V),
            "a call of more than 1e+16 operations");
    refused(HEAD "'sweeps':[{'name':'s','rows':{'names':['k'],'values':[[1,2]]},'parts':[" PART
                 "],'variants':[" V "]}]," CLAIM "}",
            "$.sweeps[0].rows.values[0]: must be an array of 1 numbers");
    refused(HEAD "'sweeps':[{'name':'s','over':{'k':[8]},'where':'k > 9','parts':[" PART
                 "],'variants':[" V "]}]," CLAIM "}",
            "no case is left");
}

static gac_experiment *load(const char *text, const char *published)
{
    gac_experiment *e = NULL;
    gac_error err = GAC_ERROR_INIT;
    if (parse(text, published, &e, &err) != GAC_OK)
        fail_msg("%s", err.text);
    return e;
}

static void equal_calls_are_measured_once(void **state)
{
    exp_plan plan;
    (void)state;
    gac_experiment *e =
        load(HEAD "'sweeps':[{'name':'s','over':{'k':[8,9,16]},'variants':["
                  "{'name':'falls','parts':[" PART "]},"
                  "{'name':'up','set':{'k':'up(k,8)'},'parts':[" PART "]},"
                  "{'name':'many','parts':[{'op':'gemm','for':{'name':'i','values':[1,2]},"
                  "'m':8,'n':8,'k':'i * k','times':3}]},"
                  "{'name':'never','native':null,'parts':[" PART "]}]}],"
                  "'claims':[{'id':'c','says':'s','of':{'mean':'time.falls'}}]}",
             NULL);
    assert_int_equal(exp_plan_build(e, GAC_STACK_NATIVE, false, &plan, NULL), GAC_OK);
    assert_int_equal(plan.n_cases, 3);
    assert_int_equal(plan.n_cells, 12);
    assert_int_equal(plan.n_jobs, 5); /* k = 8, 9, 16, 18, 32 */
    assert_int_equal(exp_find_cell(&plan, 1, "many")->n_uses, 2);
    assert_int_equal(exp_find_cell(&plan, 1, "never")->n_uses, 0);
    assert_null(exp_find_cell(&plan, 1, "nobody"));
    assert_string_equal(plan.cases[1].label, "k=9");
    for (int i = 0; i < plan.n_jobs; i++) {
        plan.jobs[i].state = EXP_MEASURED;
        plan.jobs[i].time_us = (double)plan.jobs[i].spec.gemm.k;
    }
    assert_true(exp_cell_time_us(&plan, exp_find_cell(&plan, 1, "up")) == 16);
    assert_true(exp_cell_time_us(&plan, exp_find_cell(&plan, 1, "many")) == 3 * 9 + 3 * 18);
    assert_true(isnan(exp_cell_time_us(&plan, exp_find_cell(&plan, 1, "never"))));
    /* A part counts as often as it runs: (8, k) and (8, 2 k), three times each. */
    exp_scope scope = { .plan = &plan, .at = 1 };
    double rate = 0;
    assert_true(exp_scope_lookup(&scope, "tflops.many", &rate));
    assert_true(fabs(rate - 3 * 2 * 64 * (9 + 18) / 81.0 * 1e-6) < 1e-15);
    assert_true(exp_scope_lookup(&scope, "gbps.many", &rate));
    assert_true(fabs(rate - 3 * 2 * (16 * (9 + 18) + 2 * 64) / 81.0 * 1e-3) < 1e-12);
    exp_plan_dispose(&plan);
    gac_experiment_free(e);
}

static double noise; /* of all times in claims_over */
static bool quick;   /* claims_over plans a quick run, without k = 16 */

/* Judges claims over k = 8, 9, 16, whose times are k, 100 k and k microseconds. */
static json_t *claims_over(const char *claims, const char *published, int failed)
{
    char text[2000];
    exp_plan plan;
    json_t *out = NULL;
    gac_error err = GAC_ERROR_INIT;
    snprintf(text, sizeof text, "%s'claims':[%s]}", HEAD SWEEP, claims);
    gac_experiment *e = load(text, published);
    assert_int_equal(exp_plan_build(e, GAC_STACK_NATIVE, quick, &plan, NULL), GAC_OK);
    for (int i = 0; i < plan.n_jobs; i++) {
        exp_job *job = &plan.jobs[i];
        double k = (double)job->spec.gemm.k;
        job->state = EXP_MEASURED;
        job->time_us = k == 9 ? 900 : k;
        job->noise = noise;
        snprintf(job->families, sizeof job->families, k == 9 ? "cutlass-align1" : "nvjet");
    }
    if (failed >= 0) {
        plan.jobs[failed].state = EXP_FAILED;
        snprintf(plan.jobs[failed].reason, sizeof plan.jobs[failed].reason, "it broke");
    }
    if (exp_claims(e, &plan, &out, &err) != GAC_OK)
        fail_msg("%s", err.text);
    exp_plan_dispose(&plan);
    gac_experiment_free(e);
    return out;
}

static double ours(const json_t *claims, size_t i)
{
    return json_number_value(json_object_get(json_array_get(claims, i), "ours"));
}

static const char *field(const json_t *claims, size_t i, const char *key)
{
    return json_string_value(json_object_get(json_array_get(claims, i), key));
}

#define AGGREGATE(how, of) "{'id':'c','says':'s','of':{'" how "':'" of "'}},"

static void aggregates_compute(void **state)
{
    (void)state;
    json_t *claims = claims_over(
        AGGREGATE("mean", "time") AGGREGATE("median", "time") AGGREGATE("min", "time") AGGREGATE(
            "max", "time") AGGREGATE("sum", "time") AGGREGATE("share", "time > 10")
            AGGREGATE("share", "served") AGGREGATE("share", "ran_cutlass_align1")
                AGGREGATE("max", "tflops") AGGREGATE("max", "gbps") AGGREGATE(
                    "sum",
                    "k * (k % 8 == 0)") "{'id':'c','says':'s','as':'percent','of':{'mean':'time','"
                                        "where':"
                                        "'k == 9'},'over':{'mean':'time','where':'k % 8 == 0'}}",
        NULL, -1);
    double wanted[] = { 924.0 / 3, 16,  8,       900,         924,
                        2.0 / 3,   1,   1.0 / 3, 128.0 / 1e6, 2.0 * (64 + 64 + 64) / 8 * 1e-3,
                        24,        7400 };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (fabs(ours(claims, i) - wanted[i]) > 1e-9 * wanted[i])
            fail_msg("aggregate %zu is %.12g, not %.12g", i, ours(claims, i), wanted[i]);
    assert_string_equal(field(claims, 0, "verdict"), "unpublished");
    const char *reason = field(claims, 11, "reason");
    assert_non_null(strstr(reason, "numerator ran cutlass-align1 in 1 case"));
    assert_non_null(strstr(reason, "denominator ran nvjet in 2 cases"));
    assert_non_null(strstr(reason, "not the same kernels"));
    json_decref(claims);
}

#define FIGURES "{'schema':'gac.published/1','source':'s','values':{'p':{'value':75,'from':'a'}}}"

static void claims_are_held_against_what_was_published(void **state)
{
    (void)state;
    const char *claim = "{'id':'c','says':'s','published':'p','of':{'mean':'time','where':'k == "
                        "9'},'over':{'mean':'time','where':'k != 9'}}";
    json_t *claims = claims_over(claim, FIGURES, -1);
    assert_string_equal(field(claims, 0, "verdict"), "reproduced"); /* 900 over 12 */
    assert_string_equal(field(claims, 0, "published_from"), "a");
    json_decref(claims);
    claims = claims_over(claim, FIGURES, 2);
    assert_string_equal(field(claims, 0, "verdict"), "not measured");
    assert_non_null(strstr(field(claims, 0, "reason"), "k=16, v: it broke"));
    assert_true(json_is_null(json_object_get(json_array_get(claims, 0), "ours")));
    json_decref(claims);
    claims = claims_over("{'id':'c','says':'s','published':'p','of':{'sum':'k'}},"
                         "{'id':'c','says':'s','published':'p','of':{'sum':'k','where':'served'}}",
                         FIGURES, -1);
    assert_string_equal(field(claims, 0, "verdict"), "arithmetic");
    assert_string_equal(field(claims, 1, "verdict"), "weaker");
    json_decref(claims);
    claims = claims_over("{'id':'c','says':'s','of':{'mean':'time','where':'k == 1'}}", NULL, -1);
    assert_string_equal(field(claims, 0, "verdict"), "not measured");
    assert_non_null(strstr(field(claims, 0, "reason"), "no case was selected"));
    json_decref(claims);
    claims = claims_over("{'id':'c','says':'s','lens':'pytorch','of':{'mean':'time'}}", NULL, -1);
    assert_int_equal(json_array_size(claims), 0);
    json_decref(claims);
}

/* A call that was not measured is not selected, and does not count as declined. */
static void failed_calls_count_for_nothing(void **state)
{
    (void)state;
    json_t *claims = claims_over(
        "{'id':'c','says':'s','of':{'sum':'k','where':'time < 1000'}}," /* without k = 9 */
        "{'id':'c','says':'s','of':{'share':'served'}}",
        NULL, 1);
    assert_true(ours(claims, 0) == 24);
    assert_string_equal(field(claims, 1, "verdict"), "not measured");
    json_decref(claims);
}

/* Both sides of a quotient contribute to its noise. */
static void noise_adds_up(void **state)
{
    (void)state;
    noise = 0.01;
    json_t *claims = claims_over("{'id':'c','says':'s','of':{'mean':'time','where':'k == 9'},"
                                 "'over':{'mean':'time','where':'k != 9'}}",
                                 NULL, -1);
    noise = 0;
    const json_t *both = json_object_get(json_array_get(claims, 0), "noise");
    assert_true(fabs(json_number_value(both) - 0.01 * sqrt(2)) < 1e-12);
    json_decref(claims);
}

/* A mean of fewer cases is an estimate. A maximum of fewer cases is not judged,
 * on either side. */
static void quick_runs_lack_cases(void **state)
{
    (void)state;
    quick = true;
    json_t *claims =
        claims_over("{'id':'c','says':'s','published':'p','of':{'mean':'time','where':'k == 9'},"
                    "'over':{'mean':'time','where':'k != 9'}},"
                    "{'id':'c','says':'s','published':'p','of':{'mean':'time','where':'k == 9'},"
                    "'over':{'max':'time','where':'k != 9'}},"
                    "{'id':'c','says':'s','published':'p','of':{'max':'time','where':'k != 9'},"
                    "'over':{'mean':'time','where':'k == 9'}}",
                    FIGURES, -1);
    quick = false;
    assert_string_equal(field(claims, 0, "verdict"), "stronger"); /* 900 over 8 */
    assert_string_equal(field(claims, 1, "verdict"), "not measured");
    assert_string_equal(field(claims, 2, "verdict"), "not measured");
    json_decref(claims);
}

/* All 45 cases are faster, but noise could change those with similar times. */
static void near_times_leave_a_share_ambiguous(void **state)
{
    static const char all[] = "{'schema':'gac.published/1','source':'s','values':{'p':{'value':1,"
                              "'from':'a'}}}";
    static const struct {
        double limit_us, noise;
        const char *verdict;
    } rows[] = { { 1000, 0.03, "reproduced" },
                 { 950, 0.03, "ambiguous" },
                 { 950, 0.01, "reproduced" },
                 { 890, 0.01, "ambiguous" },
                 { 890, 0, "weaker" } };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char claim[200];
        snprintf(claim, sizeof claim,
                 "{'id':'c','says':'s','as':'share','published':'p','of':{'share':'time < %g'}}",
                 rows[i].limit_us);
        noise = rows[i].noise;
        json_t *claims = claims_over(claim, all, -1);
        noise = 0;
        assert_string_equal(field(claims, 0, "verdict"), rows[i].verdict);
        json_decref(claims);
    }
}

/* The calls of a result: k = 8, 9, 16 took k, 100 k and k microseconds. */
static json_t *recorded(const gac_experiment *e)
{
    exp_plan plan;
    json_t *calls = json_array();
    assert_int_equal(exp_plan_build(e, GAC_STACK_NATIVE, false, &plan, NULL), GAC_OK);
    for (int i = 0; i < plan.n_jobs; i++) {
        double k = (double)plan.jobs[i].spec.gemm.k, us = k == 9 ? 900 : k;
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:f, s:f, s:f, s:[f]}}", "call",
                                               plan.jobs[i].key, "state", "measured", "timing",
                                               "median_us", us, "spread_us", us / 100, "noise",
                                               0.01, "samples_us", us));
    }
    exp_plan_dispose(&plan);
    return json_pack("{s:s, s:s, s:s, s:o}", "schema", "gac.experiment/1", "id", "X", "stack",
                     "native", "calls", calls);
}

/* The object of a result that has a figure: a claim, or the cell of the first case. */
static json_t *figures_of(const json_t *result, const char *list, size_t claim)
{
    json_t *all = json_object_get(result, list);
    if (strcmp(list, "claims") == 0)
        return json_array_get(all, claim);
    return json_object_get(json_object_get(json_array_get(all, 0), "variants"), "v");
}

/* Judges a copy of the record that has value as a figure, and takes value. The copy must be
 * accepted with this very value, or refused. */
static void judge_figure(const gac_experiment *e, const json_t *record, const char *list,
                         size_t claim, const char *key, json_t *value, bool accepted)
{
    gac_error err = GAC_ERROR_INIT;
    json_t *copy = json_deep_copy(record);
    json_object_set(figures_of(copy, list, claim), key, value);
    gac_status status = gac_experiment_judge(e, copy, &err);
    if (status != (accepted ? GAC_OK : GAC_BAD_INPUT))
        fail_msg("%s of %s: status %d: %s", key, list, (int)status, err.text);
    if (accepted)
        assert_true(json_equal(json_object_get(figures_of(copy, list, claim), key), value));
    else
        assert_non_null(strstr(err.text, "does not follow from the calls"));
    json_decref(copy);
    json_decref(value);
}

/* A record has rounded figures. Larger differences, and a number instead of null or null
 * instead of a number, do not follow from its calls. */
static void figures_on_record_follow_from_the_calls(void **state)
{
    static const char *const figures[][2] = { { "claims", "ours" },
                                              { "claims", "noise" },
                                              { "claims", "published" },
                                              { "cases", "time_us" },
                                              { "cases", "spread_us" } };
    gac_error err = GAC_ERROR_INIT;
    (void)state;
    gac_experiment *e = load(HEAD SWEEP "'claims':[{'id':'c','says':'s','published':'p','of':{"
                                        "'mean':'time'}},{'id':'d','says':'s','of':{'mean':"
                                        "'time'}}]}",
                             FIGURES);
    json_t *record = recorded(e);
    if (gac_experiment_judge(e, record, &err) != GAC_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        const char *list = figures[i][0], *key = figures[i][1];
        const json_t *figure = json_object_get(figures_of(record, list, 0), key);
        assert_true(json_is_number(figure));
        double value = json_number_value(figure), unit = 1e-6 * fmax(1, fabs(value));
        judge_figure(e, record, list, 0, key, json_real(value + 0.5 * unit), true);
        judge_figure(e, record, list, 0, key, json_real(value - 0.5 * unit), true);
        judge_figure(e, record, list, 0, key, json_real(value + 2 * unit), false);
        judge_figure(e, record, list, 0, key, json_real(value - 2 * unit), false);
        judge_figure(e, record, list, 0, key, json_null(), false);
    }
    judge_figure(e, record, "claims", 1, "published", json_real(75), false);
    judge_figure(e, record, "claims", 1, "ours", json_real(1), false);
    json_decref(record);
    gac_experiment_free(e);
}

static void families_by_their_share(void **state)
{
    exp_job job = { .key = "" };
    (void)state;
    exp_note_kernels(&job, json_pack("[{s:s,s:f},{s:s,s:f},{s:s,s:f}]", "name", "nvjet_a",
                                     "time_us", 10.0, "name", "void softmax_kernel", "time_us",
                                     88.0, "name", "gac_pad_kernel", "time_us", 2.0));
    assert_string_equal(job.families, "softmax + nvjet");
    json_decref(job.kernels);
}

static void all_twelve_are_bundled(void **state)
{
    static const char *const ids[] = { "S1",        "S2",  "G3",  "G4", "P1",  "HET1",
                                       "PaLU-dist", "C21", "C23", "C4", "RAP", "direct-45" };
    (void)state;
    assert_int_equal(gac_experiment_n_bundled(), 12);
    for (size_t i = 0; i < 12; i++) {
        gac_experiment *e = NULL;
        gac_error err = GAC_ERROR_INIT;
        int64_t n_cases = 0, n_calls = 0, n_quick = 0;
        if (gac_experiment_load_bundled(ids[i], &e, &err) != GAC_OK)
            fail_msg("%s", err.text);
        assert_string_equal(gac_experiment_id(e), ids[i]);
        assert_int_equal(gac_experiment_count(e, GAC_STACK_PYTORCH, true, &n_quick, &n_calls, NULL),
                         GAC_OK);
        assert_int_equal(gac_experiment_count(e, GAC_STACK_NATIVE, false, &n_cases, &n_calls, NULL),
                         GAC_OK);
        assert_true(n_quick >= 1 && n_quick <= n_cases && n_calls >= 1);
        gac_experiment_free(e);
    }
    gac_experiment *e = NULL;
    gac_error err = GAC_ERROR_INIT;
    assert_int_equal(gac_experiment_load_bundled("S3", &e, &err), GAC_USAGE);
    assert_non_null(strstr(err.text, "PaLU-dist"));
}

static void counters_are_read_from_csv(void **state)
{
    static const char csv[] =
        "==PROF== Connected to process 1\n"
        "\"ID\",\"Process ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n"
        "\"0\",\"1\",\"fill\",\"dram__bytes_read.sum\",\"byte\",\"5\"\n"
        "\"1\",\"1\",\"gemm<a, \"\"b\"\">\",\"dram__bytes_read.sum\",\"byte\",\"1,234,567\"\n"
        "\"1\",\"1\",\"gemm<a, \"\"b\"\">\",\"sm__x.sum\",\"\",\"n/a\"\n"
        "\"1\",\"1\",\"gemm<a, \"\"b\"\">\",\"l1tex__y.ratio\",\"\",\"2.5\"\n"
        "\"1\",\"1\",\"gemm<a, "
        "\"\"b\"\">\",\"smsp__sass_inst_executed_op_global_ld.sum\",\"\",\"100\"\n"
        "\"1\",\"1\",\"gemm<a, "
        "\"\"b\"\">\",\"smsp__sass_data_bytes_mem_global_op_ld.sum\",\"\",\"6400\"\n"
        "\"2\",\"1\"\n";
    (void)state;
    json_t *launches = exp_counters_parse(csv, 1);
    assert_non_null(launches);
    assert_int_equal(json_array_size(launches), 1);
    json_t *one = json_array_get(launches, 0), *metrics = json_object_get(one, "metrics");
    assert_string_equal(json_string_value(json_object_get(one, "kernel")), "gemm<a, \"b\">");
    assert_true(json_number_value(json_object_get(metrics, "dram__bytes_read.sum")) == 1234567);
    assert_true(json_number_value(json_object_get(metrics, "l1tex__y.ratio")) == 2.5);
    assert_null(json_object_get(metrics, "sm__x.sum"));
    json_t *derived = json_object_get(one, "derived");
    assert_true(json_number_value(json_object_get(derived, "load_bytes_per_lane")) == 2);
    assert_null(json_object_get(derived, "tensor_use_pct"));
    json_decref(launches);
    assert_null(exp_counters_parse("==ERROR== no permission\n", 1));
    assert_null(exp_counters_parse("", 1));
}

static void programs_are_run_without_a_shell(void **state)
{
    gac_child_output out;
    gac_error err = GAC_ERROR_INIT;
    char *echo[] = { (char *)"echo", (char *)"$HOME;", NULL };
    char *none[] = { (char *)"/no/such/program", NULL };
    char *slow[] = { (char *)"sleep", (char *)"20", NULL };
    char *loud[] = { (char *)"yes", NULL };
    char *sad[] = { (char *)"sh", (char *)"-c", (char *)"echo why >&2; exit 4", NULL };
    (void)state;
    assert_int_equal(gac_spawn(echo, 10, 1000, NULL, NULL, &out, &err), GAC_OK);
    assert_string_equal(out.text, "$HOME;\n");
    assert_int_equal(out.exit_code, 0);
    free(out.text);
    assert_int_equal(gac_spawn(none, 10, 1000, NULL, NULL, &out, &err), GAC_NO_RESOURCE);
    assert_non_null(strstr(err.text, "No such file"));
    assert_int_equal(gac_spawn(slow, 0.2, 1000, NULL, NULL, &out, &err), GAC_FAILED);
    assert_non_null(strstr(err.text, "did not end in time"));
    assert_int_equal(gac_spawn(loud, 10, 1000, NULL, NULL, &out, &err), GAC_FAILED);
    assert_non_null(strstr(err.text, "wrote too much"));
    assert_int_equal(gac_spawn(sad, 10, 1000, NULL, NULL, &out, &err), GAC_OK);
    assert_int_equal(out.exit_code, 4);
    assert_string_equal(out.last_line, "why");
    free(out.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_compute),
        cmocka_unit_test(what_is_not_measured_goes_through),
        cmocka_unit_test(bad_expressions_are_refused),
        cmocka_unit_test(bad_specifications_are_named),
        cmocka_unit_test(bad_sweeps_are_named),
        cmocka_unit_test(equal_calls_are_measured_once),
        cmocka_unit_test(aggregates_compute),
        cmocka_unit_test(claims_are_held_against_what_was_published),
        cmocka_unit_test(failed_calls_count_for_nothing),
        cmocka_unit_test(noise_adds_up),
        cmocka_unit_test(quick_runs_lack_cases),
        cmocka_unit_test(near_times_leave_a_share_ambiguous),
        cmocka_unit_test(figures_on_record_follow_from_the_calls),
        cmocka_unit_test(families_by_their_share),
        cmocka_unit_test(all_twelve_are_bundled),
        cmocka_unit_test(counters_are_read_from_csv),
        cmocka_unit_test(programs_are_run_without_a_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
