#include "cli.h"
#include "contract_diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *about_json(const gac_contract *contract)
{
    json_t *dtypes = json_array(), *sources = json_array();
    for (size_t i = 0; i < contract->n_dtypes; i++)
        json_array_append_new(dtypes, json_string(gac_dtype_name(contract->dtypes[i])));
    for (size_t i = 0; i < contract->n_sources; i++)
        json_array_append_new(sources, json_string(contract->sources[i]));
    return json_pack("{s:s, s:s, s:s, s:b, s:o, s:o}", "name", contract->name, "gpu", contract->gpu,
                     "arch", contract->arch, "provisional", contract->provisional, "dtypes", dtypes,
                     "sources", sources);
}

/* Returns the origin of a contract's figures. */
static const char *origin(const gac_contract *contract)
{
    if (!gac_contract_has_times(contract, contract->dtypes[0]))
        return "assumed, no times";
    return contract->provisional ? "provisional" : "measured";
}

static gac_status list(cli *c)
{
    gac_status status = GAC_OK;
    json_t *result = gac_json_result("gac.contracts/1", c->argc, c->argv);
    json_t *rows = json_array();
    if (!c->json)
        printf("%-10s %-33s %-8s %-16s %s\n", "name", "GPU", "arch", "dtypes", "figures");
    for (int i = 0; i < gac_contract_n_bundled() && status == GAC_OK; i++) {
        gac_contract *contract;
        char dtypes[64] = "";
        status = gac_contract_load_bundled(gac_contract_bundled_name(i), &contract, &c->error);
        if (status != GAC_OK)
            break;
        json_array_append_new(rows, about_json(contract));
        for (size_t d = 0; d < contract->n_dtypes; d++)
            snprintf(dtypes + strlen(dtypes), sizeof dtypes - strlen(dtypes), "%s%s", d ? "," : "",
                     gac_dtype_name(contract->dtypes[d]));
        if (!c->json)
            printf("%-10s %-33s %-8s %-16s %s\n", contract->name, contract->gpu, contract->arch,
                   dtypes, origin(contract));
        gac_contract_free(contract);
    }
    json_object_set_new(result, "contracts", rows);
    if (status == GAC_OK && c->json)
        status = cli_print_result(c, result);
    json_decref(result);
    return status;
}

/* Writes "× 2.31", or a dash if no time is known. */
static const char *times(char out[16], double penalty)
{
    if (isnan(penalty))
        snprintf(out, 16, "-");
    else
        snprintf(out, 16, "%.2f", penalty);
    return out;
}

/* Prints how one axis judges a size of each tier, with many rows and with one. */
static void print_axis(const gac_contract *contract, gac_dtype dtype, gac_op_axis axis,
                       const char *label, int64_t around, bool verbose)
{
    static const int64_t residues[] = { 0, 16, 8, 4, 2, 1 };
    gac_judgement many, one, last = { .tier = -1 };
    char runs_as[24], slower[2][16];
    for (size_t i = 0; i < sizeof residues / sizeof *residues; i++) {
        int64_t size = around + residues[i];
        if (gac_contract_judge(contract, axis, dtype, size, 4096, 4096, &many, NULL) != GAC_OK ||
            gac_contract_judge(contract, axis, dtype, size, 1, 4096, &one, NULL) != GAC_OK ||
            (many.tier == last.tier && many.multiple == last.multiple))
            continue;
        if (!verbose && many.aligned &&
            many.multiple > gac_contract_multiple(contract, axis, dtype))
            continue; /* one aligned tier is enough */
        last = many;
        snprintf(runs_as, sizeof runs_as, "as %s", gac_dtype_name(many.runs_as));
        printf("  %-15s %8lld  %-10s %8s %9s   %-16s %s\n", label, (long long)many.multiple,
               !many.served   ? runs_as
               : many.aligned ? "aligned"
                              : "",
               times(slower[0], many.penalty),
               axis == GAC_OP_SDPA_HEAD ? "" : times(slower[1], one.penalty),
               cli_or_dash(many.family), many.basis);
        if (verbose)
            printf("  %-26s %s; one token %s\n", "", cli_or_dash(many.kernel),
                   cli_or_dash(one.kernel));
        label = "";
    }
}

static void print_cacheline(const gac_contract_cacheline *lines)
{
    if (!lines || lines->n_costs == 0)
        return;
    printf("  k that does not fill cache lines (multiples of %lld):", (long long)lines->multiple);
    for (size_t i = 0; i < lines->n_costs; i++)
        printf("%s of %lld × %.3f", i ? "," : "", (long long)lines->costs[i].multiple,
               lines->costs[i].factor);
    printf("\n");
}

static void print_errors(const gac_contract_errors *gemm, const gac_contract_errors *sdpa)
{
    if (gemm)
        printf("  error of predictions: GEMM median %.1f %%, 95th percentile %.1f %%",
               gemm->median_pct, gemm->p95_pct);
    if (gemm && sdpa)
        printf("; attention %.1f %%, %.1f %%", sdpa->median_pct, sdpa->p95_pct);
    if (gemm)
        printf("\n");
}

static void print_regret(const gac_contract_regret *r, const char *where)
{
    if (r && !isnan(r->regret_mean_pct))
        printf(
            "    at %s: 95th percentile %.1f %%, at most %.1f %% of %lld groups; %.1f %% of %lld "
            "pairs right\n",
            where, r->regret_p95_pct, r->regret_max_pct, (long long)r->n_groups, r->right_pct,
            (long long)r->n_over_5_pct);
}

/* Prints how well the contract chooses among candidates. */
static void print_ranking(const gac_contract_ranking *ranking, bool verbose)
{
    const gac_contract_regret *random = ranking->random_widths, *common = ranking->common_widths;
    if (!random || isnan(random->regret_mean_pct))
        return;
    printf("  the chosen candidate is slower than the best by %.2f %%", random->regret_mean_pct);
    if (common && !isnan(common->regret_mean_pct))
        printf(" (at common widths %.2f %%)", common->regret_mean_pct);
    printf(" on average\n");
    if (verbose) {
        print_regret(random, "random widths");
        print_regret(common, "common widths");
    }
}

/* Prints the errors that the contract states for its predictions in dtype. */
static void print_accuracy(const gac_contract *contract, gac_dtype dtype, bool verbose)
{
    const gac_contract_accuracy *a = contract->accuracy;
    char rough[1024];
    if (!a)
        return;
    print_errors(a->gemm[dtype], a->sdpa[dtype]);
    if (a->ranking[dtype])
        print_ranking(a->ranking[dtype], verbose);
    const gac_contract_model_errors *m = a->model[dtype];
    if (m && verbose)
        printf("  the %lld shapes of a model, before they were measured: median %.1f %%, 95th "
               "percentile %.1f %%\n",
               (long long)m->n_points, m->median_pct, m->p95_pct);
    if (gac_contract_is_rough(contract, dtype, rough, sizeof rough))
        printf("  note: %s\n", rough);
}

static void print_dtype(const gac_contract *contract, gac_dtype dtype, bool verbose)
{
    const gac_contract_sdpa *sdpa = contract->sdpa[dtype];
    bool is_same = sdpa->same_as != GAC_DTYPE_COUNT;
    printf("\n%-17s %8s  %-10s %8s %9s   %-16s %s\n", gac_dtype_name(dtype), "multiple", "",
           "4096 tok", "1 tok", "kernels", "basis");
    print_axis(contract, dtype, GAC_OP_GEMM_N, "GEMM n", 4096, verbose);
    print_axis(contract, dtype, GAC_OP_GEMM_K, "GEMM k", 4096, verbose);
    if (is_same)
        printf("  attention runs in %s\n", gac_dtype_name(sdpa->same_as));
    else
        print_axis(contract, dtype, GAC_OP_SDPA_HEAD, "attention head", 96, verbose);
    print_cacheline(contract->gemm[dtype]->k_cacheline);
    if (!gac_contract_has_times(contract, dtype))
        printf("  times: not measured\n");
    print_accuracy(contract, dtype, verbose);
}

/* Prints the stack in lines that fit a screen. */
static void print_stack(const gac_contract *contract)
{
    enum { INDENT = 7, WIDTH = 96 };
    size_t column = INDENT;
    for (size_t i = 0; i < contract->n_stack; i++) {
        char q[80], r[80], item[200];
        snprintf(item, sizeof item, "%s %s%s", gac_quote(q, sizeof q, contract->stack[i].key),
                 gac_quote(r, sizeof r, contract->stack[i].value),
                 i + 1 < contract->n_stack ? "," : "");
        if (column + strlen(item) > WIDTH && i > 0) {
            printf("\n%*s", INDENT - 1, "");
            column = INDENT;
        }
        printf(" %s", item);
        column += strlen(item) + 1;
    }
    printf("%s\n", contract->n_stack ? "" : " not stated");
}

static void print_noise(const gac_contract_noise *n, bool verbose)
{
    printf(
        "\nnoise of %lld points: median %.2g %%, 95th percentile %.2g %%; clock %lld to %lld MHz\n",
        (long long)n->n_points, n->median_pct, n->p95_pct, (long long)n->clock_mhz_min,
        (long long)n->clock_mhz_max);
    if (verbose)
        printf("%lld samples discarded, %lld below the highest clock, %lld power limited; %.0f s\n",
               (long long)n->n_discarded, (long long)n->n_unsettled, (long long)n->n_power_limited,
               n->seconds);
}

static void print_contract(const gac_contract *contract, bool verbose)
{
    char q[600];
    printf("%s: %s, %s, %s\nstack:", contract->name, contract->gpu, contract->arch,
           origin(contract));
    print_stack(contract);
    if (contract->aliases && verbose) {
        printf("also called:");
        for (size_t i = 0; i < contract->n_aliases; i++)
            printf("%s %s", i ? "," : "", gac_quote(q, sizeof q, contract->aliases[i]));
        printf("\n");
    }
    printf("how many times as long a size takes as the next aligned one (other axis 4096):\n");
    for (size_t i = 0; i < contract->n_dtypes; i++)
        print_dtype(contract, contract->dtypes[i], verbose);
    if (contract->noise)
        print_noise(contract->noise, verbose);
    if (!verbose)
        return;
    printf("\n%zu exact GEMM points, %zu exact attention points\n", contract->n_points,
           contract->n_sdpa_points);
    if (contract->runtime)
        printf("runtime: %s, %.1f us per layer in prefill, %.1f in decode\n",
               gac_quote(q, sizeof q, contract->runtime->name), contract->runtime->layer_us,
               contract->runtime->decode_layer_us);
    printf("sources\n");
    for (size_t i = 0; i < contract->n_sources; i++)
        printf("  %s\n", gac_quote(q, sizeof q, contract->sources[i]));
}

static gac_status show(cli *c, const char *name)
{
    gac_contract *contract;
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = cli_contract_named(c, name, &contract);
    if (status != GAC_OK)
        return status;
    if (c->json)
        status = gac_contract_write(contract, &text, &n_bytes, &c->error);
    else
        print_contract(contract, c->log.level > 0);
    if (text && (c->format == CLI_FORMAT_MD || c->format == CLI_FORMAT_CSV)) {
        json_t *document = NULL;
        status = gac_json_parse(text, n_bytes, name, &document, &c->error);
        if (status == GAC_OK)
            status = cli_print_result(c, document);
        json_decref(document);
    } else if (text) {
        fputs(text, stdout);
    }
    free(text);
    gac_contract_free(contract);
    return status;
}

static double number_at(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *text_at(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* Prints "8 aligned, 2, 1 not served". */
static void print_tiers(const json_t *tiers, const char *side)
{
    size_t i;
    json_t *tier;
    printf("    %s:", side);
    json_array_foreach(tiers, i, tier)
        printf("%s %.0f%s", i ? "," : "", number_at(tier, "multiple"),
               json_is_false(json_object_get(tier, "served"))   ? " not served"
               : json_is_true(json_object_get(tier, "aligned")) ? " aligned"
                                                                : "");
    printf("\n");
}

static void print_compared(const json_t *row)
{
    size_t i;
    json_t *item;
    printf("\n%s\n", text_at(row, "dtype"));
    json_array_foreach(json_object_get(row, "tiers"), i, item) {
        printf("  tiers of %s changed\n", text_at(item, "place"));
        print_tiers(json_object_get(item, "a"), "A");
        print_tiers(json_object_get(item, "b"), "B");
    }
    if (i == 0)
        printf("  same tiers\n");
    if (!json_object_get(row, "b_over_a")) {
        printf("  times: not measured in both\n");
        return;
    }
    printf("  times, B / A: × %.2f over %.0f shapes; %.0f slower and %.0f faster by more than "
           "%.1f %%\n",
           number_at(row, "b_over_a"), number_at(row, "n_shapes"), number_at(row, "n_slower"),
           number_at(row, "n_faster"), number_at(row, "noise_pct"));
    json_array_foreach(json_object_get(row, "worst"), i, item)
        printf("    %-28s %10.1f us %10.1f us  × %.2f\n", text_at(item, "shape"),
               number_at(item, "a_us"), number_at(item, "b_us"), number_at(item, "b_over_a"));
}

static gac_status diff(cli *c, const char *name_a, const char *name_b)
{
    gac_contract *a = NULL, *b = NULL;
    json_t *body = NULL, *row;
    size_t i;
    gac_status status = cli_contract_named(c, name_a, &a);
    if (status == GAC_OK)
        status = cli_contract_named(c, name_b, &b);
    if (status == GAC_OK && !(body = contract_diff(a, b)))
        status = gac_error_no_memory(&c->error);
    if (status == GAC_OK && c->json) {
        json_t *result = gac_json_result("gac.contract-diff/1", c->argc, c->argv);
        json_object_update(result, body);
        status = cli_print_result(c, result);
        json_decref(result);
    } else if (status == GAC_OK) {
        printf("A is %s (%s, %s)\n      ", a->name, a->gpu, origin(a));
        print_stack(a);
        printf("B is %s (%s, %s)\n      ", b->name, b->gpu, origin(b));
        print_stack(b);
        json_array_foreach(json_object_get(body, "compared"), i, row)
            print_compared(row);
        if (i == 0)
            printf("they have no dtype in common\n");
    }
    json_decref(body);
    gac_contract_free(a);
    gac_contract_free(b);
    return status;
}

static const opt options[] = { { 0 } }; /* only the options of every command */

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    const char *what = arguments[0];
    (void)filled;
    if (n == 3 && strcmp(what, "diff") == 0)
        return diff(c, arguments[1], arguments[2]);
    if (n == 1 && strcmp(what, "list") == 0)
        return list(c);
    if (n == 2 && strcmp(what, "show") == 0)
        return show(c, arguments[1]);
    return gac_error_set(&c->error, GAC_USAGE, "contract takes %s; see gac contract --help",
                         cmd_contract.takes);
}

const command cmd_contract = {
    .name = "contract",
    .summary = "show which sizes a GPU serves well",
    .usage = "list\nshow NAME|FILE\ndiff A B",
    .about =
        "What GPUs ask of sizes: the contracts that come with gac, what one of them says (-v: "
        "kernels, accuracy, noise and sources too), and what differs between two: tiers, times "
        "of common shapes, and the stack each was measured on. A name with a slash or a dot is "
        "a file.",
    .example = "show h200",
    .options = options,
    .least = 1,
    .most = 3,
    .takes = "list, show NAME or diff A B",
    .words = "list show diff",
    .run = run,
};
