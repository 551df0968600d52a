/* Claims. A claim is an aggregate over selected cases, or the quotient of two,
 * and is compared with the published figure. The reason names the kernels of
 * both sides. */
#include "base/order_statistics.h"
#include "experiment/experiment_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FAMILY_COUNTS 8

static const char *const aggregates[] = { "mean", "median", "min", "max", "sum", "share", NULL };

/* Kernel families, and in how many cases each ran. */
typedef struct family_counts {
    int n;
    struct {
        char families[128];
        int n_cases;
    } entry[MAX_FAMILY_COUNTS];
} family_counts;

/* One side of a claim: the numerator or the denominator. */
typedef struct side {
    const char *how, *of, *sweep, *where;
    double value, noise;
    int n_cases, n_left_out;     /* n_left_out: by a quick run */
    int n_may_join, n_may_leave; /* for a share: cases that noise could add or remove */
    family_counts ran[EXP_MAX_VARIANTS];
    const char *variants[EXP_MAX_VARIANTS]; /* the variants that of and where mention */
    int n_variants;
    const exp_cell *cells[2]; /* the first cells that it reads */
    int n_cells;              /* how many cells it reads */
    const char *extreme;      /* label of the case with the least or greatest value, or NULL */
    const char *declined;     /* why a library declined some case, or NULL */
    char missing[400];        /* why there is no value */
} side;

static bool read_side(gac_reader *r, const json_t *json, side *out)
{
    memset(out, 0, sizeof *out);
    if (!exp_keys(r, json, "mean median min max sum share sweep where"))
        return false;
    for (int i = 0; aggregates[i]; i++) {
        const char *text = NULL;
        if (!exp_text(r, json, aggregates[i], false, &text))
            return false;
        if (text && out->of)
            return exp_fault(r, "has two aggregates");
        if (text) {
            out->how = aggregates[i];
            out->of = text;
        }
    }
    if (!out->of)
        return exp_fault(r, "needs one of mean, median, min, max, sum, share");
    return exp_text(r, json, "sweep", false, &out->sweep) &&
           exp_text(r, json, "where", false, &out->where);
}

static void count_families(family_counts *t, const char *families)
{
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->entry[i].families, families) == 0) {
            t->entry[i].n_cases++;
            return;
        }
    }
    if (t->n == MAX_FAMILY_COUNTS)
        return;
    snprintf(t->entry[t->n].families, sizeof t->entry[0].families, "%s", families);
    t->entry[t->n++].n_cases = 1;
}

/* Joins the families of a cell's jobs, each once. */
static void cell_families(const exp_plan *plan, const exp_cell *cell, char *out, size_t size)
{
    out[0] = 0;
    for (int32_t i = 0; i < cell->n_uses; i++) {
        const char *more = plan->jobs[plan->uses[cell->first_use + i].job].families;
        size_t n = strlen(out);
        if (more[0] && !strstr(out, more))
            snprintf(out + n, size - n, "%s%s", n ? " + " : "", more);
    }
}

/* Finds the variants whose measurements an expression reads. */
static void find_mentions(const exp_plan *plan, int32_t at, const char *text, side *s)
{
    const exp_sweep *sweep = &plan->sweeps[plan->cases[at].sweep];
    for (const char *p = text; *p;) {
        size_t n = 0;
        while (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == '.')
            n++;
        char token[64];
        if (n == 0 || n >= sizeof token) {
            p += n ? n : 1;
            continue;
        }
        memcpy(token, p, n);
        token[n] = 0;
        p += n;
        char *dot = strchr(token, '.');
        if (dot)
            *dot = 0;
        bool metric = !strcmp(token, "time") || !strcmp(token, "tflops") ||
                      !strcmp(token, "gbps") || !strcmp(token, "served") ||
                      !strncmp(token, "ran_", 4);
        for (int v = 0; metric && v < sweep->n_variants; v++) {
            if (dot ? strcmp(sweep->variants[v], dot + 1) != 0 : v > 0)
                continue;
            bool known = false;
            for (int k = 0; k < s->n_variants; k++)
                known = known || strcmp(s->variants[k], sweep->variants[v]) == 0;
            if (!known && s->n_variants < EXP_MAX_VARIANTS)
                s->variants[s->n_variants++] = sweep->variants[v];
        }
    }
}

static void note_case(const exp_plan *plan, int32_t at, side *s, bool has_value)
{
    const char *reason;
    find_mentions(plan, at, s->of, s);
    find_mentions(plan, at, s->where ? s->where : "", s);
    for (int v = 0; v < s->n_variants; v++) {
        const exp_cell *cell = exp_find_cell(plan, at, s->variants[v]);
        if (!cell)
            continue;
        if (s->n_cells < 2)
            s->cells[s->n_cells] = cell;
        s->n_cells++;
        char families[128];
        cell_families(plan, cell, families, sizeof families);
        s->noise = fmax(s->noise, exp_cell_noise(plan, cell));
        if (families[0])
            count_families(&s->ran[v], families);
        exp_state state = exp_cell_state(plan, cell, &reason);
        if (!has_value && state != EXP_MEASURED && !s->missing[0])
            snprintf(s->missing, sizeof s->missing, "%s, %s: %s", plan->cases[at].label,
                     s->variants[v], reason);
        for (int32_t i = 0; i < cell->n_uses && !s->declined; i++) {
            const exp_job *job = &plan->jobs[plan->uses[cell->first_use + i].job];
            if (job->reason[0])
                s->declined = job->reason;
        }
    }
}

/* Returns whether noise in one of its times could change a condition on a case. */
static bool in_doubt(const exp_plan *plan, int32_t at, const side *s, bool holds)
{
    const exp_cell *cells[EXP_MAX_VARIANTS];
    double noise = 0, value;
    char why[160];
    for (int v = 0; v < s->n_variants; v++) {
        cells[v] = exp_find_cell(plan, at, s->variants[v]);
        noise = cells[v] ? hypot(noise, exp_cell_noise(plan, cells[v])) : noise;
    }
    const double factors[] = { 1 + EXP_NOISE_FACTOR * noise, 1 / (1 + EXP_NOISE_FACTOR * noise) };
    for (int i = 0; i < 2 * s->n_variants; i++) {
        exp_scope scope = { plan, at, cells[i / 2], factors[i % 2] };
        if (cells[i / 2] && exp_eval(s->of, exp_scope_lookup, &scope, &value, why, sizeof why) &&
            (value != 0) != holds)
            return true;
    }
    return false;
}

static double aggregate(const char *how, double *values, int n)
{
    double sum = 0;
    int n_true = 0;
    qsort(values, (size_t)n, sizeof *values, gac_by_value);
    for (int i = 0; i < n; i++) {
        sum += values[i];
        n_true += values[i] != 0;
    }
    if (strcmp(how, "mean") == 0)
        return sum / n;
    if (strcmp(how, "median") == 0)
        return (values[(n - 1) / 2] + values[n / 2]) / 2;
    if (strcmp(how, "min") == 0)
        return values[0];
    if (strcmp(how, "max") == 0)
        return values[n - 1];
    return strcmp(how, "sum") == 0 ? sum : (double)n_true / n;
}

static bool has_sweep(const exp_plan *plan, const char *name)
{
    for (int i = 0; i < plan->n_sweeps; i++)
        if (strcmp(plan->sweeps[i].name, name) == 0)
            return true;
    return false;
}

/* Computes the value of a side, or explains in missing why there is none.
 * names_alone: only check the names, for which one case of each sweep suffices. */
static bool compute_side(gac_reader *r, const exp_plan *plan, bool names_alone, side *s)
{
    char why[160];
    if (s->sweep && !has_sweep(plan, s->sweep))
        return exp_fault(r, "there is no sweep \"%s\"", s->sweep);
    double *values = calloc((size_t)plan->n_cases, sizeof *values), extreme = NAN;
    bool ok = true, least = strcmp(s->how, "min") == 0, most = strcmp(s->how, "max") == 0;
    if (!values)
        return gac_reader_no_memory(r);
    for (int32_t i = 0; i < plan->n_cases && ok; i++) {
        exp_scope scope = { .plan = plan, .at = i };
        double value;
        if (names_alone && i > 0 && plan->cases[i].sweep == plan->cases[i - 1].sweep)
            continue;
        int selected = exp_selected(plan, i, s->sweep, s->where, why, sizeof why);
        if (selected == 0)
            continue;
        ok = selected == 1 && exp_eval(s->of, exp_scope_lookup, &scope, &value, why, sizeof why);
        if (!ok)
            break;
        note_case(plan, i, s, isfinite(value));
        if (!isfinite(value) && !s->missing[0])
            snprintf(s->missing, sizeof s->missing, "%s: has no value", plan->cases[i].label);
        if (isfinite(value) && strcmp(s->how, "share") == 0 && in_doubt(plan, i, s, value != 0))
            ++*(value != 0 ? &s->n_may_leave : &s->n_may_join);
        if ((least && !(value >= extreme)) || (most && !(value <= extreme))) {
            s->extreme = plan->cases[i].label;
            extreme = value;
        }
        values[s->n_cases++] = value;
    }
    if (!ok)
        exp_fault(r, "%s", why);
    if (ok && s->n_cases == 0)
        snprintf(s->missing, sizeof s->missing, "no case was selected");
    s->value = ok && !s->missing[0] ? aggregate(s->how, values, s->n_cases) : NAN;
    free(values);
    return ok;
}

/* Counts the cases of a side that a quick run left out. */
static void count_left_out(const exp_plan *whole, side *s)
{
    char why[160];
    int n = 0;
    for (int32_t i = 0; i < whole->n_cases; i++)
        n += exp_selected(whole, i, s->sweep, s->where, why, sizeof why) == 1;
    s->n_left_out = n > s->n_cases ? n - s->n_cases : 0;
}

static size_t append(char *out, size_t size, size_t n, const char *text)
{
    int k = n < size ? snprintf(out + n, size - n, "%s", text) : 0;
    return n + (k > 0 ? (size_t)k : 0);
}

/* Writes "NAME ran nvjet in 3 cases, cutlass-align2 in 1". */
static size_t say_ran(char *out, size_t size, size_t n, const char *name, const family_counts *t)
{
    char text[200];
    snprintf(text, sizeof text, "%s%s ran ", n ? "; " : "", name);
    n = append(out, size, n, text);
    for (int i = 0; i < t->n && i < 3; i++) {
        snprintf(text, sizeof text, "%s%s in %d case%s", i ? ", " : "", t->entry[i].families,
                 t->entry[i].n_cases, t->entry[i].n_cases == 1 ? "" : "s");
        n = append(out, size, n, text);
    }
    return append(out, size, n,
                  t->n == 0  ? "no case whose kernels are known"
                  : t->n > 3 ? ", …"
                             : "");
}

static bool same_families(const family_counts *a, const family_counts *b)
{
    return a->n == 1 && b->n == 1 && strcmp(a->entry[0].families, b->entry[0].families) == 0;
}

/* Explains the figure by the kernels that ran. */
static void explain(const side *of, const side *over, char *out, size_t size)
{
    char text[400];
    size_t n = 0;
    out[0] = 0;
    if (of->missing[0] || (over && over->missing[0])) {
        append(out, size, 0, of->missing[0] ? of->missing : over->missing);
        return;
    }
    if (of->n_variants == 0 && (!over || over->n_variants == 0)) {
        append(out, size, 0, "computed from the sizes of the specification alone");
        return;
    }
    const family_counts *first = &of->ran[0], *second = NULL;
    if (of->extreme) {
        snprintf(text, sizeof text, "%s at %s", strcmp(of->how, "min") == 0 ? "least" : "most",
                 of->extreme);
        n = append(out, size, n, text);
    }
    if (over) {
        n = say_ran(out, size, n, "numerator", first);
        second = &over->ran[0];
        n = say_ran(out, size, n, "denominator", second);
    } else {
        for (int v = 0; v < of->n_variants; v++)
            n = say_ran(out, size, n, of->variants[v], &of->ran[v]);
        second = of->n_variants == 2 ? &of->ran[1] : NULL;
    }
    if (second && first->n && second->n)
        n = append(out, size, n,
                   same_families(first, second) ? "; the same kernels on both sides"
                                                : "; not the same kernels");
    const char *declined = of->declined ? of->declined : over ? over->declined : NULL;
    if (declined) {
        snprintf(text, sizeof text, "; %s", declined);
        append(out, size, n, text);
    }
}

typedef struct claim {
    const char *id, *says, *as, *key, *stack, *from;
    double tolerance, published; /* NaN: not published */
    side of, over;
    bool has_over;
} claim;

static bool read_published(gac_reader *r, const gac_experiment *experiment, claim *c)
{
    const json_t *value = json_object_get(json_object_get(experiment->published, "values"), c->key);
    const json_t *number = json_object_get(value, "value");
    char q[80];
    if (!json_is_number(number))
        return exp_fault(r, "published: there is no number \"%s\" among the published values",
                         gac_quote(q, sizeof q, c->key));
    c->published = json_number_value(number);
    return exp_text(r, value, "from", true, &c->from);
}

static bool read_claim(gac_reader *r, const gac_experiment *experiment, const json_t *json,
                       claim *c)
{
    *c = (claim){ .as = "ratio", .tolerance = experiment->tolerance, .published = NAN };
    const char *as = NULL;
    if (!exp_keys(r, json, "id says as published lens tolerance of over") ||
        !exp_text(r, json, "id", true, &c->id) || !exp_text(r, json, "says", true, &c->says) ||
        !exp_text(r, json, "as", false, &as) || !exp_text(r, json, "published", false, &c->key) ||
        !exp_text(r, json, "lens", false, &c->stack))
        return false;
    c->as = as ? as : c->as;
    if (strcmp(c->as, "ratio") && strcmp(c->as, "percent") && strcmp(c->as, "share"))
        return exp_fault(r, "as must be ratio, percent or share");
    if (c->stack && strcmp(c->stack, "native") && strcmp(c->stack, "pytorch"))
        return exp_fault(r, "lens must be native or pytorch");
    const json_t *tolerance = json_object_get(json, "tolerance");
    if (tolerance && !gac_reader_to_number(r, tolerance, 0, 10, &c->tolerance))
        return false;
    if (c->key && !read_published(r, experiment, c))
        return false;
    size_t before = gac_reader_enter(r, ".of");
    if (!read_side(r, json_object_get(json, "of"), &c->of))
        return false;
    gac_reader_leave(r, before);
    c->has_over = json_object_get(json, "over") != NULL;
    gac_reader_enter(r, ".over");
    if (c->has_over && !read_side(r, json_object_get(json, "over"), &c->over))
        return false;
    gac_reader_leave(r, before);
    return true;
}

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* Finds the two calls of a claim that reads exactly two cells, each of a single
 * job. */
static bool find_pair(const exp_plan *plan, const claim *c, const exp_job *pair[2])
{
    const side *of = &c->of, *over = &c->over;
    if (of->n_cells + over->n_cells != 2 || strcmp(c->as, "share") == 0)
        return false;
    for (int i = 0; i < 2; i++) {
        const exp_cell *cell = i < of->n_cells ? of->cells[i] : over->cells[i - of->n_cells];
        if (cell->n_uses != 1)
            return false;
        pair[i] = &plan->jobs[plan->uses[cell->first_use].job];
        if (pair[i]->state != EXP_MEASURED || !pair[i]->timing)
            return false;
    }
    return true;
}

/* A mean or a median of fewer cases is an estimate. Other aggregates need every
 * case. */
static bool lacks_cases(const side *s)
{
    return s->n_left_out > 0 && strcmp(s->how, "mean") != 0 && strcmp(s->how, "median") != 0;
}

static exp_verdict choose_verdict(const claim *c, double ratio, double noise,
                                  const exp_comparison *pair)
{
    double published = strcmp(c->as, "percent") == 0 ? 1 + c->published / 100 : c->published;
    double least = ratio / (1 + EXP_NOISE_FACTOR * noise),
           most = ratio * (1 + EXP_NOISE_FACTOR * noise);
    if (!isfinite(ratio))
        return EXP_NOT_MEASURED;
    if (c->of.n_variants + c->over.n_variants == 0)
        return EXP_ARITHMETIC;
    if (isnan(c->published))
        return EXP_UNPUBLISHED;
    if (lacks_cases(&c->of) || (c->has_over && lacks_cases(&c->over)))
        return EXP_NOT_MEASURED;
    if (strcmp(c->as, "share") != 0)
        return exp_judge_pair(published, ratio, c->tolerance, noise, EXP_NO_EFFECT, pair);
    /* Noise changes a count by whole cases. */
    if (!c->has_over && strcmp(c->of.how, "share") == 0) {
        least = ratio - (noise > 0) * (double)c->of.n_may_leave / c->of.n_cases;
        most = ratio + (noise > 0) * (double)c->of.n_may_join / c->of.n_cases;
    }
    return exp_judge_share(published, ratio, least, fmin(most, 1), c->tolerance);
}

/* Writes "15 of 45 cases measured; " if a quick run left some out. */
static void say_left_out(const claim *c, char *out, size_t size)
{
    const side *of = &c->of, *over = &c->over;
    size_t n = 0;
    out[0] = 0;
    if (of->n_left_out + over->n_left_out == 0)
        return;
    n += (size_t)snprintf(out, size, "%d of %d cases measured", of->n_cases,
                          of->n_cases + of->n_left_out);
    if (c->has_over)
        n += (size_t)snprintf(out + n, size - n, " over %d of %d", over->n_cases,
                              over->n_cases + over->n_left_out);
    snprintf(out + n, size - n, "; ");
}

static json_t *judge(const exp_plan *plan, const claim *c)
{
    char reason[1100], left_out[100];
    bool percent = strcmp(c->as, "percent") == 0;
    double ratio = c->has_over ? c->of.value / c->over.value : c->of.value;
    double noise = hypot(c->of.noise, c->over.noise);
    /* A claim over more than two calls is judged by its noise only. */
    exp_comparison comparison = { .distinguishable = true, .clock_ratio = 1 };
    const exp_job *pair[2];
    if (isfinite(ratio) && find_pair(plan, c, pair))
        exp_compare(pair[0], pair[1], ratio, &comparison);
    exp_verdict verdict = choose_verdict(c, ratio, noise, &comparison);
    exp_verdict without = choose_verdict(c, ratio, 0, &comparison);
    say_left_out(c, left_out, sizeof left_out);
    size_t n = append(reason, sizeof reason, 0, left_out);
    explain(&c->of, c->has_over ? &c->over : NULL, reason + n, 900);
    n = append(reason, sizeof reason, strlen(reason), comparison.note);
    if (verdict != without) {
        n = append(reason, sizeof reason, n, "; but for the noise ");
        append(reason, sizeof reason, n, exp_verdict_name(without));
    }
    json_t *quoted = number_or_null(c->published);
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:o, s:s?, s:o, s:f, s:f, s:i, s:i, s:s, s:s}", "id", c->id,
                  "says", c->says, "as", c->as, "published", quoted, "published_from", c->from,
                  "ours", number_or_null(percent ? (ratio - 1) * 100 : ratio), "noise", noise,
                  "tolerance", c->tolerance, "n_cases", c->of.n_cases, "n_cases_over",
                  c->over.n_cases, "verdict", exp_verdict_name(verdict), "reason", reason);
    if (left_out[0])
        json_object_set_new(json, "n_cases_left_out",
                            json_integer(c->of.n_left_out + c->over.n_left_out));
    return json;
}

/* Judges all claims. If out is NULL, it only checks names. whole is the plan of
 * the full run if plan is quick, otherwise NULL. */
static bool run_claims(gac_reader *r, const gac_experiment *experiment, const exp_plan *plan,
                       const exp_plan *whole, json_t *out)
{
    json_t *list;
    if (!exp_list(r, experiment->spec, "claims", 1, EXP_MAX_CLAIMS, &list))
        return false;
    claim *c = calloc(1, sizeof *c);
    bool ok = c != NULL || gac_reader_no_memory(r);
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        size_t before = gac_reader_enter(r, ".claims[%zu]", i);
        ok = read_claim(r, experiment, json_array_get(list, i), c);
        if (ok && c->stack && strcmp(c->stack, gac_stack_name(plan->stack)) != 0) {
            gac_reader_leave(r, before);
            continue;
        }
        ok = ok && compute_side(r, plan, !out, &c->of) &&
             (!c->has_over || compute_side(r, plan, !out, &c->over));
        if (ok && whole) {
            count_left_out(whole, &c->of);
            if (c->has_over)
                count_left_out(whole, &c->over);
        }
        if (ok && out && json_array_append_new(out, judge(plan, c)) != 0)
            ok = gac_reader_no_memory(r);
        if (ok)
            gac_reader_leave(r, before);
    }
    free(c);
    return ok;
}

/* Checks that the conditions on published times use names that the sweeps have. */
static bool check_times(gac_reader *r, const gac_experiment *experiment, const exp_plan *plan)
{
    const json_t *list = json_object_get(experiment->published, "times_ms");
    char why[160];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        size_t before = gac_reader_enter(r, ".times_ms[%zu]", i);
        for (int32_t at = 0; at < plan->n_cases; at++) {
            if (at > 0 && plan->cases[at].sweep == plan->cases[at - 1].sweep)
                continue;
            if (exp_selected(plan, at, json_string_value(json_object_get(one, "sweep")),
                             json_string_value(json_object_get(one, "where")), why, sizeof why) < 0)
                return exp_fault(r, "%s", why);
        }
        gac_reader_leave(r, before);
    }
    return true;
}

gac_status exp_claims_check(const gac_experiment *experiment, const exp_plan *plan, gac_error *err)
{
    gac_reader r = GAC_READER_INIT(experiment->source, err);
    gac_reader p = GAC_READER_INIT("published.json", err);
    if (!run_claims(&r, experiment, plan, NULL, NULL))
        return r.status;
    return check_times(&p, experiment, plan) ? GAC_OK : p.status;
}

gac_status exp_claims(const gac_experiment *experiment, const exp_plan *plan, json_t **out,
                      gac_error *err)
{
    gac_reader r = GAC_READER_INIT(experiment->source, err);
    exp_plan whole = { .stack = plan->stack };
    json_t *list = json_array();
    gac_status status = list ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK && plan->quick)
        status = exp_plan_build(experiment, plan->stack, false, &whole, err);
    if (status == GAC_OK && !run_claims(&r, experiment, plan, plan->quick ? &whole : NULL, list))
        status = r.status;
    exp_plan_dispose(&whole);
    if (status == GAC_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}
