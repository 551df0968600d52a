/* Plans that solve makes, held against every combination of sizes, priced
 * together by the functions that price any model. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

#include <gac/plan.h>

#include "plan/plan_internal.h"
#include "plan_checks.h"

/* The contract of the tests with a stated error, negative for none, and with the
 * rates of each tier multiplied by up to spread either way. */
static json_t *make_rates(double error_pct, double spread)
{
    static const char *const keys[] = { "flops_per_s", "bytes_per_s", "edge_bytes_per_s" };
    static const char *const places[] = { "n", "k" };
    json_t *root = json_load_file("tests/data/contracts/by_rates.json", 0, NULL);
    assert_non_null(root);
    if (error_pct >= 0)
        json_object_set_new(root, "accuracy",
                            json_pack("{s:{s:{s:f}}, s:{s:{s:f}}}", "gemm", "F16", "median_pct",
                                      error_pct, "sdpa", "F16", "median_pct", error_pct));
    const json_t *gemm = json_object_get(json_object_get(root, "gemm"), "F16");
    for (int p = 0; p < 2 && spread > 1; p++) {
        json_t *tiers = json_object_get(gemm, places[p]), *tier;
        size_t i;
        json_array_foreach(tiers, i, tier)
            for (int k = 0; k < 3; k++) {
                double rate = json_number_value(json_object_get(tier, keys[k]));
                double factor = pow(spread, (double)below(2001) / 1000 - 1);
                if (rate > 0)
                    json_object_set_new(tier, keys[k], json_real(rate * factor));
            }
    }
    return root;
}

static void take_rates(planned *p)
{
    char *text = json_dumps(p->rates, 0);
    gac_contract_free(p->contract);
    assert_ok(gac_contract_parse(text, strlen(text), "rates.json", &p->contract, err));
    p->options.target.contract = p->contract;
    free(text);
}

/* States that a shape takes factor times what is predicted. */
static void add_point(planned *p, gac_gemm_shape c, double factor)
{
    double us = gac_contract_gemm_us(p->contract, GAC_DTYPE_F16, c.m, c.n, c.k);
    json_array_append_new(json_object_get(p->rates, "points"),
                          json_pack("{s:I, s:I, s:I, s:s, s:f}", "m", (json_int_t)c.m, "n",
                                    (json_int_t)c.n, "k", (json_int_t)c.k, "dtype", "F16",
                                    "time_us", us * factor));
}

/* One in some of the shapes that a plan depends on takes up to a fifth more or less. */
static void roughen(planned *p, int64_t one_in)
{
    gac_plan_shapes shapes;
    assert_ok(gac_plan_list_shapes(p->m.model, &p->options, &shapes, err));
    for (size_t i = 0; i < shapes.n_gemm; i++)
        if (below(one_in) == 0)
            add_point(p, shapes.gemm[i], 0.8 + (double)below(400) / 1000);
    gac_plan_shapes_dispose(&shapes);
    take_rates(p);
}

/* Writes a model and opens it, with no contract and the default workload. */
static void open_shape(planned *p, const small_llama *shape)
{
    static int count;
    char name[24];
    snprintf(name, sizeof name, "m%d", count++);
    small_llama_outline(name, shape);
    p->m = small_open(name);
    p->n_dims = gac_model_n_dims(p->m.model);
    assert_true(p->n_dims <= N_DIMS);
    assert_ok(gac_workload_parse(GAC_DEFAULT_WORKLOAD, &p->workload, err));
    p->options = (gac_plan_options){ .target = { NULL, GAC_DTYPE_F16, 1, 0 },
                                     .workload = &p->workload,
                                     .solve = true,
                                     .max_overhead_pct = 10 };
}

/* Takes the rates. */
static planned *open_model(const small_llama *shape, json_t *rates, const char *work)
{
    planned *p = calloc(1, sizeof *p);
    assert_non_null(p);
    open_shape(p, shape);
    p->rates = rates;
    assert_ok(gac_workload_parse(work, &p->workload, err));
    take_rates(p);
    double error_pct = GAC_DEFAULT_MARGIN_PCT;
    gac_contract_median_error(p->contract, GAC_DTYPE_F16, GAC_OP_GEMM_N, &error_pct);
    p->margin = error_pct / 100;
    return p;
}

static void planned_free(planned *p)
{
    small_close(&p->m);
    gac_contract_free(p->contract);
    json_decref(p->rates);
    free(p);
}

/* What all combinations of some candidates have at best. */
typedef struct best_of {
    double ms;  /* least time within limit_pct */
    double pct; /* least growth within limit_ms */
} best_of;

/* Tries every combination; false where there are more than max. */
static bool try_all(const planned *p, const plan_groups *groups, int64_t max, double limit_pct,
                    double limit_ms, best_of *out)
{
    int64_t n = 1, sizes[N_DIMS];
    *out = (best_of){ INFINITY, INFINITY };
    for (int32_t i = 0; i < groups->n_groups && n <= max; i++)
        n *= groups->groups[i].n_sizes;
    if (n > max)
        return false;
    for (int64_t c = 0; c < n; c++) {
        int64_t rest = c;
        for (int32_t i = 0; i < groups->n_groups; i++) {
            const plan_group *g = &groups->groups[i];
            gac_plan_set_group(g, g->sizes[rest % g->n_sizes], sizes);
            rest /= g->n_sizes;
        }
        double ms = ms_of(p, sizes), pct = pct_of(p, sizes);
        if (pct <= limit_pct + 1e-9)
            out->ms = fmin(out->ms, ms);
        if (ms <= limit_ms)
            out->pct = fmin(out->pct, pct);
    }
    return true;
}

typedef struct tally {
    int n_plans, n_optimal, n_apart, n_tried, n_unmoved, n_reached, n_fronts;
} tally;

/* The proof holds over every combination of the sizes that pay. */
static void check_proof(const planned *p, const gac_plan *plan, int64_t max, tally *t)
{
    plan_problem problem;
    best_of best;
    assert_ok(gac_problem_create(p->m.model, &p->options, 0, &problem, err));
    if (try_all(p, &problem.groups, max, plan->limit_pct, INFINITY, &best)) {
        t->n_tried++;
        if (plan->bound > best.ms + ROUNDING)
            fail_msg("bound %.12g, but a combination has %.12g ms", plan->bound, best.ms);
        if (plan->optimal && plan->planned_ms > best.ms + ROUNDING)
            fail_msg("%.12g ms is called optimal, but a combination has %.12g ms", plan->planned_ms,
                     best.ms);
    }
    gac_problem_dispose(&problem);
}

/* Least bytes within a time, over the same combinations. */
static void check_target(planned *p, double now_ms, int64_t max, tally *t)
{
    gac_plan plan;
    plan_problem problem;
    best_of best;
    p->options.max_time_ms = now_ms * (0.4 + (double)below(700) / 1000);
    double limit_ms = p->options.max_time_ms * (1 + ROUNDING) + 1e-6;
    gac_status status = gac_plan_create(p->m.model, &p->options, &plan, NULL);
    assert_true(status == GAC_OK || status == GAC_CHECK);
    assert_ok(gac_problem_create(p->m.model, &p->options, 0, &problem, err));
    bool tried = try_all(p, &problem.groups, max, 0, p->options.max_time_ms, &best);
    if (status == GAC_OK) {
        double bytes = (double)gac_checkpoint_size_bytes(p->m.checkpoint);
        t->n_reached++;
        assert_true(plan.planned_ms <= limit_ms);
        assert_true(plan.bound <= plan.objective);
        assert_true(!plan.optimal || plan.bound == plan.objective);
        assert_true(fabs(plan.objective - plan.overhead_pct * bytes / 100) < 0.5);
        if (tried && (plan.bound > best.pct * bytes / 100 + 0.5 ||
                      (plan.optimal && plan.overhead_pct > best.pct + 1e-9)))
            fail_msg("%+.6f %%, bound %.12g bytes; a combination has %+.6f %%", plan.overhead_pct,
                     plan.bound, best.pct);
        gac_plan_dispose(&plan);
    } else if (tried && problem.joint) {
        assert_true(isinf(best.pct));
    }
    gac_problem_dispose(&problem);
    p->options.max_time_ms = 0;
}

/* The same where no groups are priced together: what is proved then is less, and
 * never wrong. */
static void check_apart(const planned *p, double now_ms, int64_t max, tally *t)
{
    plan_problem problem;
    best_of best;
    int64_t sizes[N_DIMS];
    plan_answer a = { .sizes = sizes };
    double bytes = (double)gac_checkpoint_size_bytes(p->m.checkpoint);
    double limit_ms = now_ms * (0.4 + (double)below(700) / 1000);
    assert_ok(gac_problem_create(p->m.model, &p->options, 1, &problem, err));
    if (!problem.joint &&
        try_all(p, &problem.groups, max, p->options.max_overhead_pct, limit_ms, &best)) {
        t->n_apart++;
        assert_ok(gac_problem_least_ms(&problem, gac_problem_limit(&problem), &a, err));
        assert_true(a.bytes <= (double)gac_problem_limit(&problem));
        assert_true(a.bound <= best.ms + ROUNDING && a.ms >= best.ms - ROUNDING);
        assert_true(!a.proved || a.ms <= best.ms + ROUNDING);
        if (gac_problem_least_bytes(&problem, limit_ms, &a, NULL) == GAC_OK) {
            assert_true(a.ms <= limit_ms * (1 + ROUNDING) + 1e-6);
            assert_true(a.bound <= best.pct * bytes / 100 + 0.5);
            assert_true(!a.proved || 100 * a.bytes / bytes <= best.pct + 1e-9);
        }
    }
    gac_problem_dispose(&problem);
}

/* Every point of a front is the best of its growth. */
static void check_front(const planned *p, int64_t max, tally *t)
{
    gac_front front;
    plan_problem problem;
    best_of best;
    double bytes = (double)gac_checkpoint_size_bytes(p->m.checkpoint);
    assert_ok(gac_plan_front(p->m.model, &p->options, &front, err));
    assert_ok(gac_problem_create(p->m.model, &p->options, 0, &problem, err));
    assert_true(front.n_points > 0);
    for (int64_t i = 0; i < front.n_points; i += 1 + front.n_points / 4) {
        double pct = 100 * (double)front.points[i].cost / bytes;
        if (!try_all(p, &problem.groups, max, pct, INFINITY, &best))
            break;
        t->n_fronts++;
        assert_true(front.points[i].value >= best.ms - ROUNDING);
        assert_true(!front.complete || front.points[i].value <= best.ms + ROUNDING);
    }
    gac_problem_dispose(&problem);
    gac_front_dispose(&front);
}

static planned *draw(int round)
{
    static const char *const works[] = { "prefill:1x512", "decode:1@512", "prefill:4x256*2",
                                         "prefill:1x2048,decode:16@1024*3" };
    static const double errors[] = { -1, 0, 0.5, 2, 4, 15 };
    small_llama shape = SMALL_LLAMA_INIT;
    random_state = (uint64_t)(7000 + round);
    double error_pct = errors[below(6)];
    const char *work = works[below(4)];
    shape.n_layers = 1 + (int)below(2);
    shape.hidden = 64 << below(3);
    shape.width = 60 + below(900);
    shape.width_step = below(3) ? below(40) : 0;
    shape.rank = below(3) ? 20 + below(180) : -1;
    shape.rank_step = below(2) ? below(9) : 0;
    planned *p = open_model(&shape, make_rates(error_pct, 1 + (double)below(3)), work);
    p->options.max_overhead_pct = (double)below(below(2) ? 1200 : 12000) / 1000;
    p->options.uniform = below(4) == 0;
    p->options.target.n_gpus = below(5) ? 1 : 2;
    p->options.allow_rescaled = below(5) == 0;
    if (below(3))
        roughen(p, 3);
    return p;
}

/* Ranks of four layers that one width joins: too many combinations for one class. */
static planned *draw_joined(int round)
{
    static gac_plan_rule rule = { "*.self_attn.*rank", 0 };
    random_state = (uint64_t)(90 + round);
    int64_t rank = 33 + 2 * below(40);
    small_llama shape = { 4, 64, 4, 4, 16, 101 + 2 * below(150), 80, rank, 0, 0, 0 };
    planned *p = open_model(&shape, make_rates(round % 4, 1.5), "prefill:1x512");
    rule.size = (rank + 7) / 8 * 8;
    p->options.rules = &rule;
    p->options.n_rules = 1;
    p->options.uniform = true;
    p->options.max_overhead_pct = 1 + (double)below(10000) / 1000;
    roughen(p, 16);
    return p;
}

static void check_round(planned *p, int round, int64_t max, tally *t)
{
    gac_plan plan;
    gac_status status = gac_plan_create(p->m.model, &p->options, &plan, NULL);
    assert_true(status == GAC_OK || status == GAC_CHECK);
    if (status == GAC_OK) {
        t->n_plans++;
        t->n_optimal += plan.optimal;
        t->n_unmoved += plan.n_changed == 0;
        check_promises(p, &plan);
        check_proof(p, &plan, max, t);
        check_apart(p, plan.now_ms, max, t);
        check_target(p, plan.now_ms, max, t);
        if (round % 8 == 0)
            check_front(p, max, t);
        gac_plan_dispose(&plan);
    }
    planned_free(p);
}

static void tell(const tally *t)
{
    print_message("%d plans, %d optimal, %d priced apart, %d tried in full, %d without a change, "
                  "%d targets reached, %d points of fronts\n",
                  t->n_plans, t->n_optimal, t->n_apart, t->n_tried, t->n_unmoved, t->n_reached,
                  t->n_fronts);
}

static void random_plans_hold(void **state)
{
    (void)state;
    tally t = { 0 };
    for (int round = 0; round < 300; round++)
        check_round(draw(round), round, 300, &t);
    tell(&t);
    assert_true(t.n_plans > 200 && t.n_tried > 100 && t.n_apart > 40);
    assert_true(t.n_optimal > t.n_plans / 2 && t.n_unmoved < t.n_plans / 2);
    assert_true(t.n_reached > 60 && t.n_fronts > 10);
}

static void joined_plans_hold(void **state)
{
    (void)state;
    tally t = { 0 };
    for (int round = 0; round < 4; round++)
        check_round(draw_joined(round), round, 1 << 14, &t);
    tell(&t);
    assert_true(t.n_plans >= 3 && t.n_apart > 0 && t.n_tried > 0);
}

/* An MLP of one aligned width whose GEMMs would take factor times as long with 8
 * more. */
static planned *open_wide(double error_pct, double factor)
{
    small_llama shape = { 1, 512, 4, 4, 128, 4096, 80, -1, 0, 0, 0 };
    planned *p = open_model(&shape, make_rates(error_pct, 1), "prefill:1x4096");
    add_point(p, (gac_gemm_shape){ 4096, 4096 + 8, 512, false }, factor);
    add_point(p, (gac_gemm_shape){ 4096, 512, 4096 + 8, false }, factor);
    take_rates(p);
    return p;
}

/* An aligned size moves for more than the stated error, and never for less. */
static void aligned_sizes_stay_for_less(void **state)
{
    (void)state;
    static const struct {
        double error_pct, factor;
        bool moves;
    } cases[] = { { 0, 0.99, true }, { 4, 0.99, false },  { 4, 0.97, false }, { 4, 0.5, true },
                  { -1, 0.5, true }, { -1, 0.92, false }, { 60, 0.5, false } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gac_plan plan;
        planned *p = open_wide(cases[i].error_pct, cases[i].factor);
        assert_ok(gac_plan_create(p->m.model, &p->options, &plan, err));
        if ((plan.n_changed > 0) != cases[i].moves)
            fail_msg("error %g, factor %g: %d changes", cases[i].error_pct, cases[i].factor,
                     plan.n_changed);
        assert_true(plan.optimal && plan.bound == plan.planned_ms);
        assert_int_equal(plan.margin_stated, cases[i].error_pct >= 0);
        /* A target that only gains below the margin would reach is not reached. */
        p->options.max_time_ms = plan.now_ms * (1 - 1e-4);
        gac_plan_dispose(&plan);
        gac_status status = gac_plan_create(p->m.model, &p->options, &plan, NULL);
        assert_int_equal(status, cases[i].moves ? GAC_OK : GAC_CHECK);
        gac_plan_dispose(&plan);
        planned_free(p);
    }
}

/* One plan, and what is proved with and without pricing groups together. */
static void check_limit(const planned *p)
{
    gac_plan plan;
    best_of best;
    int64_t sizes[N_DIMS];
    plan_answer a = { .sizes = sizes };
    assert_ok(gac_plan_create(p->m.model, &p->options, &plan, err));
    assert_true(plan.optimal && plan.overhead_pct <= p->options.max_overhead_pct);
    for (int apart = 0; apart < 2; apart++) {
        plan_problem problem;
        assert_ok(gac_problem_create(p->m.model, &p->options, apart, &problem, err));
        assert_int_equal(problem.joint, !apart);
        double limit_pct = apart ? p->options.max_overhead_pct : plan.limit_pct;
        assert_true(try_all(p, &problem.groups, 5000, limit_pct, INFINITY, &best));
        if (!apart)
            assert_true(plan.planned_ms <= best.ms + ROUNDING);
        assert_ok(gac_problem_least_ms(&problem, gac_problem_limit(&problem), &a, err));
        assert_true(!apart || a.bound <= best.ms + ROUNDING);
        gac_problem_dispose(&problem);
    }
    gac_plan_dispose(&plan);
}

/* A rank and a width on one tensor: bytes of both grow by the product, which is
 * more than the limit where each alone would fit; and the fastest size of one may
 * depend on the other. */
static void rank_and_width_on_one_tensor(void **state)
{
    (void)state;
    small_llama shape = { 1, 512, 4, 4, 128, 4093, 80, 509, 0, 0, 0 };
    static const gac_plan_rule rule = { "*.self_attn.*rank", 512 };
    for (int odd = 0; odd < 2; odd++) {
        planned *p = open_model(&shape, make_rates(1, 1), "prefill:1x4096");
        int64_t sizes[N_DIMS];
        if (odd) {
            add_point(p, (gac_gemm_shape){ 4096, 4096, 509, false }, 0.02);
            add_point(p, (gac_gemm_shape){ 4096, 4093, 512, false }, 0.02);
            take_rates(p);
        }
        p->options.rules = &rule;
        p->options.n_rules = 1;
        for (int32_t i = 0; i < p->n_dims; i++) {
            const gac_dim *d = gac_model_dim(p->m.model, i);
            bool grows = d->role == GAC_ROLE_RANK || d->role == GAC_ROLE_MLP_WIDTH;
            sizes[i] = grows ? (d->size + 7) / 8 * 8 : d->size;
        }
        double whole_pct = pct_of(p, sizes);
        for (int i = 0; i <= 20; i++) {
            p->options.max_overhead_pct = whole_pct * (0.9 + 0.0050001 * i);
            check_limit(p);
        }
        planned_free(p);
    }
}

static void any_limit_is_a_limit(void **state)
{
    (void)state;
    static const double limits[] = { 0, 1e-300, 1e18, 1e300 };
    small_llama shape = { 1, 512, 4, 4, 128, 4093, 80, -1, 0, 0, 0 };
    planned *p = open_model(&shape, make_rates(1, 1), "prefill:1x4096");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        gac_plan plan;
        p->options.max_overhead_pct = limits[i];
        assert_ok(gac_plan_create(p->m.model, &p->options, &plan, err));
        assert_int_equal(plan.n_changed, i < 2 ? 0 : 1);
        gac_plan_dispose(&plan);
    }
    planned_free(p);
}

/* Parts of a byte are not there to be used. */
static void limits_round_down(void **state)
{
    (void)state;
    small_llama shape = SMALL_LLAMA_INIT;
    planned *p = open_model(&shape, make_rates(1, 1), "decode:1@64");
    double bytes = (double)gac_checkpoint_size_bytes(p->m.checkpoint);
    for (int i = 1; i < 20; i++) {
        plan_problem problem;
        p->options.max_overhead_pct = 0.37 * i;
        assert_ok(gac_problem_create(p->m.model, &p->options, 0, &problem, err));
        double limit = (double)gac_problem_limit(&problem);
        assert_true(limit <= bytes * p->options.max_overhead_pct / 100 && limit >= 1);
        gac_problem_dispose(&problem);
    }
    planned_free(p);
}

/* The bytes that solve counts for a group are those by which the checkpoint grows, heads
 * included. */
static void groups_grow_as_the_checkpoint_does(void **state)
{
    (void)state;
    small_llama shape = SMALL_LLAMA_INIT;
    shape.kept_head = 14;
    planned *p = open_model(&shape, make_rates(1, 1), "decode:1@64");
    plan_problem problem;
    int64_t sizes[N_DIMS];
    int n_heads = 0;
    p->options.allow_rescaled = true;
    assert_ok(gac_problem_create(p->m.model, &p->options, 0, &problem, err));
    for (int32_t i = 0; i < problem.groups.n_groups; i++) {
        const plan_group *group = &problem.groups.groups[i];
        const gac_dim *first = gac_model_dim(p->m.model, group->dims[0]);
        double before, after;
        for (int32_t d = 0; d < p->n_dims; d++)
            sizes[d] = gac_model_dim(p->m.model, d)->size;
        before = gac_problem_group_bytes(&problem, i, sizes);
        gac_plan_set_group(group, first->size + 8, sizes);
        assert_ok(gac_plan_growth_bytes(p->m.model, sizes, &after, err));
        assert_true(gac_problem_group_bytes(&problem, i, sizes) - before == after);
        n_heads += first->role == GAC_ROLE_QK_HEAD;
    }
    assert_true(n_heads > 0);
    gac_problem_dispose(&problem);
    planned_free(p);
}

/* The margin is the larger error of the operators whose sizes may change. */
static void margins_look_at_attention(void **state)
{
    (void)state;
    for (int heads = 0; heads < 2; heads++) {
        small_llama shape = SMALL_LLAMA_INIT;
        gac_plan plan;
        json_t *rates = make_rates(1, 1);
        shape.kept_head = 14;
        json_object_set_new(json_object_get(json_object_get(rates, "accuracy"), "sdpa"), "F16",
                            json_pack("{s:f}", "median_pct", 9.0));
        planned *p = open_model(&shape, rates, "decode:1@64");
        p->options.allow_rescaled = heads;
        p->options.max_overhead_pct = 50;
        assert_ok(gac_plan_create(p->m.model, &p->options, &plan, err));
        assert_true(fabs(plan.margin_pct - (heads ? 9 : 1)) < 1e-9);
        gac_plan_dispose(&plan);
        planned_free(p);
    }
}

/* A target or workload left at zero is an error, or not a number; never a crash. */
static void empty_targets_are_refused(void **state)
{
    (void)state;
    const small_llama shape = SMALL_LLAMA_INIT;
    planned *p = open_model(&shape, make_rates(1, 1), "decode:1@64");
    const gac_phase *phase = &p->workload.phases[0];
    const gac_target none = { 0 }, no_gpus = { p->contract, GAC_DTYPE_F16, 0, 0 },
                     no_dtype = { p->contract, GAC_DTYPE_I8, 1, 0 };
    const gac_target *const targets[] = { &none, &no_gpus, &no_dtype };
    static gac_dim_advice advice[N_DIMS];
    gac_plan plan;
    gac_front front;
    gac_plan_shapes shapes;
    for (int i = 0; i < 3; i++) {
        assert_true(isnan(gac_plan_time_ms(p->m.model, targets[i], phase, NULL, NULL)));
        p->options.target = *targets[i];
        assert_fails(gac_plan_create(p->m.model, &p->options, &plan, err), GAC_USAGE, "");
        assert_fails(gac_plan_front(p->m.model, &p->options, &front, err), GAC_USAGE, "");
        assert_fails(gac_plan_list_shapes(p->m.model, &p->options, &shapes, err), GAC_USAGE, "");
        assert_fails(gac_plan_advise(p->m.model, targets[i], &p->workload, advice, err), GAC_USAGE,
                     "");
    }
    assert_true(isnan(gac_plan_rest_ms(p->m.model, &none, phase)));
    p->options.target = (gac_target){ p->contract, GAC_DTYPE_F16, 1, 0 };
    assert_true(isnan(gac_plan_time_ms(p->m.model, &p->options.target, NULL, NULL, NULL)));
    p->options.workload = NULL;
    assert_fails(gac_plan_create(p->m.model, &p->options, &plan, err), GAC_USAGE, "workload");
    assert_fails(gac_plan_advise(p->m.model, &p->options.target, NULL, advice, err), GAC_USAGE,
                 "workload");
    planned_free(p);
}

/* A model of about the shapes of real ones, in one or two layers. */
static small_llama draw_shape(void)
{
    static const int64_t heads[] = { 64, 72, 80, 100, 104, 107, 128 };
    small_llama s = SMALL_LLAMA_INIT;
    s.n_layers = 1 + (int)below(2);
    s.hidden = 512 << below(4);
    s.n_heads = 8;
    s.n_kv_heads = 1 << below(4);
    s.head = heads[below(7)];
    s.width = below(3) ? 500 + below(14500) : 8 * (60 + below(1800));
    s.width_step = below(2) ? below(40) : 0;
    s.rank = below(2) ? -1 : below(2) ? 100 + below(1900) : 8 * (16 + below(230));
    s.rank_step = below(2) ? below(9) : 0;
    s.vocab = 1000;
    return s;
}

static void draw_options(planned *p)
{
    static const double limits[] = { 0, 0.02, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30 };
    static const char *const works[] = { "prefill:1x2048,decode:1@2048",
                                         "decode:1@128",
                                         "prefill:1x128",
                                         "decode:64@1024",
                                         "prefill:8x512",
                                         "decode:16@128*3,prefill:1x512" };
    assert_ok(gac_workload_parse(works[below(6)], &p->workload, err));
    p->options.max_overhead_pct = limits[below(10)];
    p->options.allow_rescaled = below(3) == 0;
    p->options.uniform = below(6) == 0;
    p->options.target.n_gpus = below(6) ? 1 : 2;
}

/* Plans a model at the options as they are, and checks what is promised. */
static void check_plan(planned *p, tally *t)
{
    gac_plan plan;
    gac_status status = gac_plan_create(p->m.model, &p->options, &plan, NULL);
    assert_true(status == GAC_OK || status == GAC_CHECK);
    if (status != GAC_OK)
        return;
    p->margin = plan.margin_pct / 100;
    t->n_plans++;
    t->n_optimal += plan.optimal;
    t->n_unmoved += plan.n_changed == 0;
    check_promises(p, &plan);
    if (t->n_plans % 4 == 0)
        check_proof(p, &plan, 100, t);
    gac_plan_dispose(&plan);
}

/* Shapes of real models by contracts with tables and by one with rates, for every dtype
 * that they serve. */
static void real_shapes_hold(void **state)
{
    enum { N_MODELS = 1200 };
    static const gac_dtype dtypes[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16, GAC_DTYPE_F8_E4M3 };
    (void)state;
    tally t = { 0 };
    gac_contract *contracts[3] = { NULL };
    assert_ok(gac_contract_load("tests/data/contracts/small.json", &contracts[0], err));
    assert_ok(gac_contract_load_bundled("h200", &contracts[1], err));
    assert_ok(gac_contract_load_bundled("a100", &contracts[2], err));
    for (int round = 0; round < N_MODELS; round++) {
        random_state = (uint64_t)(40000 + round);
        int64_t at = below(3);
        small_llama shape = draw_shape();
        planned p = { 0 };
        open_shape(&p, &shape);
        p.options.target.contract = contracts[at];
        draw_options(&p);
        p.options.target.dtype = dtypes[at == 2 ? 0 : below(3)];
        check_plan(&p, &t);
        small_close(&p.m);
    }
    for (int i = 0; i < 3; i++)
        gac_contract_free(contracts[i]);
    tell(&t);
    assert_true(t.n_plans > 1000 && t.n_tried > 100);
    assert_true(t.n_optimal > t.n_plans / 2 && t.n_unmoved < t.n_plans / 2);
}

/* In F8 a width is aligned at multiples of 32. Where the limit has no room for these, the
 * next multiple of 8 is much faster than no change. */
static void sizes_that_are_not_aligned_pay(void **state)
{
    static const double limits[] = { 0.03, 0.1, 0.2, 1 };
    small_llama shape = { 2, 4096, 8, 1, 80, 7494, 1000, -1, 0, 0, 0 };
    (void)state;
    tally t = { 0 };
    planned p = { 0 };
    open_shape(&p, &shape);
    assert_ok(gac_contract_load("tests/data/contracts/small.json", &p.contract, err));
    assert_ok(gac_workload_parse("prefill:8x512", &p.workload, err));
    p.options.target = (gac_target){ p.contract, GAC_DTYPE_F8_E4M3, 1, 0 };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        p.options.max_overhead_pct = limits[i];
        check_plan(&p, &t);
    }
    assert_int_equal(t.n_plans, 4);
    assert_int_equal(t.n_unmoved, 0);
    gac_contract_free(p.contract);
    small_close(&p.m);
}

#define in_scratch(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scratch(random_plans_hold),
        in_scratch(joined_plans_hold),
        in_scratch(aligned_sizes_stay_for_less),
        in_scratch(rank_and_width_on_one_tensor),
        in_scratch(any_limit_is_a_limit),
        in_scratch(limits_round_down),
        in_scratch(margins_look_at_attention),
        in_scratch(groups_grow_as_the_checkpoint_does),
        in_scratch(empty_targets_are_refused),
        in_scratch(real_shapes_hold),
        in_scratch(sizes_that_are_not_aligned_pay),
    };
    return cmocka_run_group_tests_name("plan_solve", tests, NULL, NULL);
}
