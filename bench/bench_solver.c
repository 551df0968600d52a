/* Makes instances of the multiple-choice knapsack, solves them and prints JSON.
 *
 *     bench_solver KIND N_CLASSES N_CHOICES RANGE SEED BUDGET_PCT [options]
 *
 * KIND is one of those in the table below. BUDGET_PCT is the place of the
 * budget between the cheapest and the dearest picks; llama's is 85 % of the
 * dense parameters whatever it says. Options: --runs N, --time-limit S,
 * --pareto, and --lp FILE, which writes the instance in CPLEX LP format. */
#include <gac/plan.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

typedef struct instance {
    int32_t n_classes, n_choices;
    int64_t range, budget;
    double budget_pct;
    gac_choice *choices; /* (n_classes, n_choices) */
    gac_choice_class *classes;
    uint64_t state;
} instance;

/* splitmix64 */
static uint64_t next_random(instance *in)
{
    uint64_t z = (in->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform over 1 to limit. */
static int64_t draw(instance *in, int64_t limit)
{
    return 1 + (int64_t)(next_random(in) % (uint64_t)limit);
}

static double uniform(instance *in)
{
    return (double)(next_random(in) >> 11) * 0x1p-53;
}

typedef void make_fn(instance *in, int32_t class_index, gac_choice *out);

static void make_random(instance *in, int32_t class_index, gac_choice *out)
{
    (void)class_index;
    for (int32_t j = 0; j < in->n_choices; j++) {
        out[j].cost = draw(in, in->range);
        out[j].value = -(double)draw(in, in->range);
    }
}

/* Values with all bits of a double. */
static void make_real(instance *in, int32_t class_index, gac_choice *out)
{
    (void)class_index;
    for (int32_t j = 0; j < in->n_choices; j++) {
        out[j].cost = draw(in, in->range);
        out[j].value = -uniform(in);
    }
}

static void make_weak(instance *in, int32_t class_index, gac_choice *out)
{
    int64_t spread = in->range / 10 + 1;
    (void)class_index;
    for (int32_t j = 0; j < in->n_choices; j++) {
        out[j].cost = draw(in, in->range);
        out[j].value = -(double)(out[j].cost + draw(in, 2 * spread) - spread);
    }
}

static void make_weak_real(instance *in, int32_t class_index, gac_choice *out)
{
    (void)class_index;
    for (int32_t j = 0; j < in->n_choices; j++) {
        out[j].cost = draw(in, in->range);
        out[j].value = -((double)out[j].cost + (uniform(in) - 0.5) * 0.2 * (double)in->range);
    }
}

/* Nothing, or something with a fixed bonus. */
static void make_strong(instance *in, int32_t class_index, gac_choice *out)
{
    (void)class_index;
    out[0] = (gac_choice){ 0, 0 };
    for (int32_t j = 1; j < in->n_choices; j++) {
        out[j].cost = draw(in, in->range);
        out[j].value = -(double)(out[j].cost + in->range / 10);
    }
}

/* Running sums of strongly correlated items, as in Pisinger's tests. */
static void make_strong_sums(instance *in, int32_t class_index, gac_choice *out)
{
    (void)class_index;
    out[0] = (gac_choice){ 0, 0 };
    for (int32_t j = 1; j < in->n_choices; j++) {
        int64_t cost = draw(in, in->range);
        out[j].cost = out[j - 1].cost + cost;
        out[j].value = out[j - 1].value - (double)(cost + in->range / 10);
    }
}

static void make_subset_sum(instance *in, int32_t class_index, gac_choice *out)
{
    (void)class_index;
    for (int32_t j = 0; j < in->n_choices; j++) {
        out[j].cost = draw(in, in->range);
        out[j].value = -(double)out[j].cost;
    }
}

/* Even costs and an odd budget: the bound cannot be met, but the common
 * divisor shows it. */
static void make_even_sums(instance *in, int32_t class_index, gac_choice *out)
{
    make_subset_sum(in, class_index, out);
    for (int32_t j = 0; j < in->n_choices; j++) {
        out[j].cost *= 2;
        out[j].value *= 2;
    }
}

/* Even costs but for one class, which pays for being odd. */
static void make_one_odd(instance *in, int32_t class_index, gac_choice *out)
{
    make_even_sums(in, class_index, out);
    if (class_index == 0) {
        out[0].cost += 1;
        out[0].value += (double)in->range;
    }
}

static void copy_first(instance *in, int32_t class_index, gac_choice *out, make_fn *make)
{
    if (class_index == 0)
        make(in, 0, out);
    else
        memcpy(out, in->choices, (size_t)in->n_choices * sizeof *out);
}

static void make_equal(instance *in, int32_t class_index, gac_choice *out)
{
    copy_first(in, class_index, out, make_random);
}

static void make_equal_weak(instance *in, int32_t class_index, gac_choice *out)
{
    copy_first(in, class_index, out, make_weak);
}

static void make_equal_strong(instance *in, int32_t class_index, gac_choice *out)
{
    copy_first(in, class_index, out, make_strong);
}

static void make_equal_real(instance *in, int32_t class_index, gac_choice *out)
{
    copy_first(in, class_index, out, make_weak_real);
}

static void make_equal_sums(instance *in, int32_t class_index, gac_choice *out)
{
    copy_first(in, class_index, out, make_subset_sum);
}

/* Few kinds of layers, each many times. */
static void make_few_kinds(instance *in, int32_t class_index, gac_choice *out)
{
    if (class_index < 7)
        make_weak_real(in, class_index, out);
    else
        memcpy(out, in->choices + (class_index % 7) * in->n_choices,
               (size_t)in->n_choices * sizeof *out);
}

/* Llama-3-8B, matrix by matrix: n_choices ranks in steps of 16 around 85 % of
 * the parameters; the loss is what a decaying spectrum leaves out. */
static void make_llama(instance *in, int32_t class_index, gac_choice *out)
{
    static const int64_t shapes[7][2] = { { 4096, 4096 }, { 1024, 4096 },  { 1024, 4096 },
                                          { 4096, 4096 }, { 14336, 4096 }, { 14336, 4096 },
                                          { 4096, 14336 } };
    int64_t rows = shapes[class_index % 7][0], columns = shapes[class_index % 7][1];
    int64_t full = rows < columns ? rows : columns;
    int64_t wanted = rows * columns * 85 / 100 / (rows + columns);
    int64_t low = wanted / 16 * 16 - 16 * (in->n_choices / 2 - 1);
    double power = 0.3 + 0.9 * uniform(in), scale = exp(2 * uniform(in));
    double tail = 0;
    for (int64_t r = full; r > low; r--) {
        double sigma = scale * pow((double)r, -power) * (1 + 0.1 * uniform(in));
        for (int32_t j = 0; j < in->n_choices; j++)
            if (low + 16 * j == r)
                out[j] = (gac_choice){ r * (rows + columns), tail };
        tail += sigma * sigma;
    }
    out[0] = (gac_choice){ low * (rows + columns), tail };
    in->budget += rows * columns;
}

static const struct {
    const char *name;
    make_fn *make;
} kinds[] = { { "random", make_random },
              { "real", make_real },
              { "weak", make_weak },
              { "weak_real", make_weak_real },
              { "strong", make_strong },
              { "strong_sums", make_strong_sums },
              { "subset_sum", make_subset_sum },
              { "even_sums", make_even_sums },
              { "one_odd", make_one_odd },
              { "equal", make_equal },
              { "equal_weak", make_equal_weak },
              { "equal_strong", make_equal_strong },
              { "equal_real", make_equal_real },
              { "equal_sums", make_equal_sums },
              { "few_kinds", make_few_kinds },
              { "llama", make_llama } };

static void set_budget(instance *in)
{
    int64_t least = 0, most = 0;
    for (int32_t i = 0; i < in->n_classes; i++) {
        const gac_choice *c = in->classes[i].choices;
        int64_t low = c[0].cost, high = c[0].cost;
        for (int32_t j = 1; j < in->n_choices; j++) {
            low = c[j].cost < low ? c[j].cost : low;
            high = c[j].cost > high ? c[j].cost : high;
        }
        least += low;
        most += high;
    }
    in->budget = (least + (int64_t)((double)(most - least) * in->budget_pct / 100)) | 1;
}

static bool make_instance(instance *in, const char *kind)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(kinds[k].name, kind) != 0)
            continue;
        for (int32_t i = 0; i < in->n_classes; i++) {
            gac_choice *choices = in->choices + (size_t)i * (size_t)in->n_choices;
            kinds[k].make(in, i, choices);
            in->classes[i] = (gac_choice_class){ choices, in->n_choices };
        }
        if (in->budget == 0)
            set_budget(in);
        else
            in->budget = in->budget / 100 * 85;
        return true;
    }
    return false;
}

static int64_t gcd(int64_t a, int64_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* What values are multiplied by for the peer: 1 for integers, else the power of
 * two that brings the largest difference to 2^20. */
static double peer_scale(const instance *in, const int32_t *picks)
{
    bool integer = true;
    double most = 0;
    int exponent;
    for (int32_t i = 0; i < in->n_classes; i++)
        for (int32_t j = 0; j < in->n_choices; j++) {
            const gac_choice *c = in->classes[i].choices;
            integer = integer && c[j].value == rint(c[j].value);
            most = fmax(most, fabs(c[j].value - c[picks[i]].value));
        }
    frexp(most, &exponent);
    return integer ? 1 : ldexp(1, 20 - exponent);
}

/* CPLEX LP format. Costs are divided by their common divisor, the budget too
 * and rounded down; values are counted from those of picks, which makes their
 * objective 0 and a peer's relative tolerances as small as they can be. */
static void write_lp(const instance *in, const int32_t *picks, FILE *file)
{
    int64_t unit = 0;
    double scale = peer_scale(in, picks);
    for (int32_t i = 0; i < in->n_classes; i++)
        for (int32_t j = 0; j < in->n_choices; j++)
            unit = gcd(in->classes[i].choices[j].cost, unit);
    if (unit == 0)
        unit = 1;
    fprintf(file, "Minimize\n obj:");
    for (int32_t i = 0; i < in->n_classes; i++) {
        const gac_choice *c = in->classes[i].choices;
        for (int32_t j = 0; j < in->n_choices; j++)
            fprintf(file, " %+.17g x%d_%d\n", scale * (c[j].value - c[picks[i]].value), i, j);
    }
    fprintf(file, "Subject To\n budget:");
    for (int32_t i = 0; i < in->n_classes; i++)
        for (int32_t j = 0; j < in->n_choices; j++)
            fprintf(file, " + %lld x%d_%d\n", (long long)(in->classes[i].choices[j].cost / unit), i,
                    j);
    fprintf(file, " <= %lld\n", (long long)(in->budget / unit));
    for (int32_t i = 0; i < in->n_classes; i++) {
        fprintf(file, " class%d:", i);
        for (int32_t j = 0; j < in->n_choices; j++)
            fprintf(file, " + x%d_%d", i, j);
        fprintf(file, " = 1\n");
    }
    fprintf(file, "Binary\n");
    for (int32_t i = 0; i < in->n_classes; i++)
        for (int32_t j = 0; j < in->n_choices; j++)
            fprintf(file, " x%d_%d\n", i, j);
    fprintf(file, "End\n");
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Checks what the solver says against the picks themselves. */
static bool picks_hold(const instance *in, const int32_t *picks, const gac_solution *solution)
{
    int64_t cost = 0;
    long double value = 0, size = 0;
    for (int32_t i = 0; i < in->n_classes; i++) {
        const gac_choice *choice = &in->classes[i].choices[picks[i]];
        cost += choice->cost;
        value += choice->value;
        size += fabsl(choice->value);
    }
    return cost == solution->cost && cost <= in->budget &&
           fabsl(value - solution->value) <= 1e-14L * size && solution->bound <= solution->value;
}

static int solve(const instance *in, int n_runs, double time_limit_s, const char *lp_path,
                 json_t *result)
{
    gac_error err = GAC_ERROR_INIT;
    gac_solve_options options = { .time_limit_s = time_limit_s };
    gac_solution solution = { 0 };
    int32_t *picks = calloc((size_t)in->n_classes, sizeof *picks);
    json_t *samples = json_array();
    int code = picks == NULL ? 1 : 0;
    for (int k = 0; k < n_runs && code == 0; k++) {
        double start = seconds();
        if (gac_solve(in->classes, in->n_classes, in->budget, &options, picks, &solution, &err) !=
                GAC_OK ||
            !picks_hold(in, picks, &solution)) {
            fprintf(stderr, "bench_solver: %s\n", *err.text ? err.text : "the picks do not hold");
            code = 1;
        }
        json_array_append_new(samples, json_real(seconds() - start));
    }
    FILE *file = lp_path != NULL && code == 0 ? fopen(lp_path, "w") : NULL;
    if (file != NULL) {
        write_lp(in, picks, file);
        fclose(file);
    }
    json_object_set_new(result, "time_s", samples);
    json_object_set_new(result, "optimal", json_boolean(solution.optimal));
    json_object_set_new(result, "value", json_real(solution.value));
    json_object_set_new(result, "bound", json_real(solution.bound));
    json_object_set_new(result, "cost", json_integer(solution.cost));
    free(picks);
    return code;
}

static int trace_front(const instance *in, json_t *result)
{
    gac_error err = GAC_ERROR_INIT;
    gac_front front;
    double start = seconds();
    if (gac_pareto(in->classes, in->n_classes, NULL, &front, &err) != GAC_OK) {
        fprintf(stderr, "bench_solver: %s\n", err.text);
        return 1;
    }
    json_object_set_new(result, "pareto_s", json_real(seconds() - start));
    json_object_set_new(result, "pareto_points", json_integer(front.n_points));
    json_object_set_new(result, "pareto_complete", json_boolean(front.complete));
    gac_front_dispose(&front);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr, "usage: bench_solver KIND N_CLASSES N_CHOICES RANGE SEED BUDGET_PCT "
                        "[--runs N] [--time-limit S] [--pareto] [--lp FILE]\n");
        return 2;
    }
    instance in = { .n_classes = atoi(argv[2]),
                    .n_choices = atoi(argv[3]),
                    .range = atoll(argv[4]),
                    .state = (uint64_t)atoll(argv[5]),
                    .budget_pct = atof(argv[6]) };
    int n_runs = 1, code = 2;
    double time_limit_s = 0;
    bool pareto = false;
    const char *lp_path = NULL;
    for (int k = 7; k < argc; k++) {
        if (strcmp(argv[k], "--pareto") == 0)
            pareto = true;
        else if (strcmp(argv[k], "--runs") == 0 && k + 1 < argc)
            n_runs = atoi(argv[++k]);
        else if (strcmp(argv[k], "--time-limit") == 0 && k + 1 < argc)
            time_limit_s = atof(argv[++k]);
        else if (strcmp(argv[k], "--lp") == 0 && k + 1 < argc)
            lp_path = argv[++k];
    }
    if (in.n_classes < 1 || in.n_choices < 2 || in.range < 1)
        return code;
    in.choices = calloc((size_t)in.n_classes * (size_t)in.n_choices, sizeof *in.choices);
    in.classes = calloc((size_t)in.n_classes, sizeof *in.classes);
    json_t *result = json_object();
    if (in.choices != NULL && in.classes != NULL && make_instance(&in, argv[1])) {
        struct rusage use;
        code = solve(&in, n_runs, time_limit_s, lp_path, result);
        if (code == 0 && pareto)
            code = trace_front(&in, result);
        getrusage(RUSAGE_SELF, &use);
        json_object_set_new(result, "budget", json_integer(in.budget));
        json_object_set_new(result, "peak_kib", json_integer(use.ru_maxrss));
        json_dumpf(result, stdout, JSON_COMPACT);
        printf("\n");
    }
    json_decref(result);
    free(in.choices);
    free(in.classes);
    return code;
}
