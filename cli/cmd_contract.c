#include "cli.h"
#include "contract_measured.h"

#include <string.h>

static gac_status list(cli *c)
{
    gac_status status = GAC_OK;
    json_t *result = gac_json_result("gac.contracts/1", c->argc, c->argv);
    json_t *rows = json_array();
    if (!c->json)
        printf("%-10s %-24s %-8s %-12s %s\n", "name", "GPU", "arch", "dtypes", "figures");
    for (int i = 0; i < gac_contract_n_bundled() && status == GAC_OK; i++) {
        gac_contract *contract;
        status = gac_contract_load_bundled(gac_contract_bundled_name(i), &contract, &c->error);
        if (status != GAC_OK)
            break;
        const json_t *about = gac_contract_about(contract);
        json_t *row = json_object();
        static const char *const keys[] = { "name",        "gpu",    "arch",
                                            "provisional", "dtypes", "sources" };
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            json_object_set(row, keys[k], json_object_get(about, keys[k]));
        json_array_append_new(rows, row);
        if (!c->json) {
            char dtypes[64] = "";
            size_t j;
            json_t *dtype;
            json_array_foreach(json_object_get(about, "dtypes"), j, dtype)
                snprintf(dtypes + strlen(dtypes), sizeof dtypes - strlen(dtypes), "%s%s",
                         j ? "," : "", json_string_value(dtype));
            const char *arch = json_string_value(json_object_get(about, "arch"));
            printf("%-10s %-24s %-8s %-12s %s\n", gac_contract_name(contract),
                   gac_contract_gpu(contract), arch ? arch : "", dtypes,
                   json_is_true(json_object_get(about, "provisional")) ? "provisional"
                                                                       : "measured");
        }
        gac_contract_free(contract);
    }
    json_object_set_new(result, "contracts", rows);
    if (status == GAC_OK && c->json)
        status = gac_json_print(stdout, result, &c->error);
    json_decref(result);
    return status;
}

/* Representative sizes of each residue, judged at one place. *instead becomes the
 * dtype that runs where none of the kernels asked for does. */
static void print_place(const gac_contract *contract, gac_dtype dtype, gac_op_axis axis,
                        const char *label, int64_t n_rows, int64_t around, gac_dtype *instead)
{
    gac_judgement j, last = { .tier = -1 };
    char served[24];
    static const int64_t residues[] = { 0, 16, 8, 4, 2, 1 };
    for (size_t i = 0; i < sizeof residues / sizeof *residues; i++) {
        int64_t size = around + residues[i];
        if (gac_contract_judge(contract, axis, dtype, size, n_rows, 4096, &j, NULL) != GAC_OK ||
            (j.tier == last.tier && j.multiple == last.multiple))
            continue;
        last = j;
        if (!j.served)
            *instead = j.runs_as;
        snprintf(served, sizeof served, "as %s", gac_dtype_name(j.runs_as));
        printf("  %-22s multiple of %-4lld %-6lld %-8s × %-6.2f %-16s %-10s %s\n", label,
               (long long)j.multiple, (long long)size,
               !j.served   ? served
               : j.aligned ? "aligned"
                           : "",
               j.penalty, cli_or_dash(j.family), j.basis, cli_or_dash(j.kernel));
        label = "";
    }
}

static double number_at(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

/* Whether the contract prices a k that is not a whole number of cache lines. */
static bool has_line_costs(const json_t *whole, gac_dtype dtype)
{
    const json_t *gemm = json_object_get(json_object_get(whole, "gemm"), gac_dtype_name(dtype));
    return json_object_get(gemm, "lines") || json_object_get(gemm, "dense_part");
}

/* Prints what an aligned k costs that is not a whole number of cache lines, over
 * a whole number of them. The time is taken to grow with k. */
static void print_lines(const gac_contract *contract, gac_dtype dtype)
{
    enum { TOKENS = 256, N = 4096, K = 4224 }; /* whole lines, and no exact point */
    static const int parts[] = { 64, 32, 16, 8 };
    double whole_us = gac_contract_gemm_us(contract, dtype, TOKENS, N, K);
    const char *label = "GEMM k, 256 tokens";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int64_t k = K + parts[i];
        double factor =
            gac_contract_gemm_us(contract, dtype, TOKENS, N, k) / whole_us * K / (double)k;
        gac_judgement j;
        if (gac_contract_judge(contract, GAC_OP_GEMM_K, dtype, k, TOKENS, N, &j, NULL) != GAC_OK ||
            !j.aligned || factor < 1.015)
            continue;
        printf("  %-22s multiple of %-4d %-6lld aligned  × %-6.2f %s\n", label, parts[i],
               (long long)k, factor, "than in whole lines of 128 bytes");
        label = "";
    }
}

/* A percentage that a contract may state; false for what is none. */
static bool percent_at(const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0 && *out <= 1e4;
}

/* Before the first row. */
static void print_accuracy_title(bool *begun)
{
    if (!*begun)
        printf("\nerror of predictions, at shapes measured and not used\n");
    *begun = true;
}

static void print_errors(json_t *list, const char *label, bool *begun)
{
    char q[80];
    const char *dtype;
    json_t *row;
    double middle, high;
    json_object_foreach(list, dtype, row) {
        if (!percent_at(row, "median_pct", &middle) || !percent_at(row, "p95_pct", &high))
            continue;
        bool rough = middle > GAC_ROUGH_MEDIAN_PCT || high > GAC_ROUGH_P95_PCT;
        print_accuracy_title(begun);
        printf("  %-9s %-9s median %4.1f %%, 95th percentile %4.1f %%%s\n",
               gac_quote(q, sizeof q, dtype), label, middle, high, rough ? ", rough" : "");
    }
}

static void print_ranking(const char *dtype, const json_t *row, const char *where, bool *begun)
{
    char q[80];
    double right, aligned, clear, margin, mean, high;
    const json_t *of = json_object_get(row, "clear"), *choice = json_object_get(row, "choice");
    if (!percent_at(row, "right_pct", &right))
        return;
    print_accuracy_title(begun);
    printf("  %-9s of two candidates over 5 %% apart the faster one%s: right in %.1f %%",
           gac_quote(q, sizeof q, dtype), where, right);
    if (percent_at(json_object_get(row, "aligned"), "right_pct", &aligned))
        printf(", %.1f %% of two aligned ones", aligned);
    if (percent_at(of, "right_pct", &clear) && percent_at(of, "margin_pct", &margin))
        printf(", %.1f %% where it is predicted to be %.0f %% faster", clear, margin);
    if (percent_at(choice, "mean_pct", &mean) && percent_at(choice, "p95_pct", &high))
        printf("; the one it calls the fastest of all takes %.1f %% longer than that (mean; 95th "
               "percentile %.1f %%)",
               mean, high);
    printf("\n");
}

/* Of the shapes of a model, which were then measured. */
static void print_model(const char *dtype, const json_t *row, bool *begun)
{
    char q[80];
    double middle, high, predicted, measured, n;
    const json_t *count = json_object_get(row, "n_points");
    n = json_number_value(count);
    if (!(n >= 1 && n <= 1e9) || !percent_at(row, "median_pct", &middle) ||
        !percent_at(row, "p95_pct", &high))
        return;
    print_accuracy_title(begun);
    printf("  %-9s the %.0f shapes of a model, before they were measured: median %.1f %%, 95th "
           "percentile %.1f %%",
           gac_quote(q, sizeof q, dtype), n, middle, high);
    if (percent_at(json_object_get(row, "predicted"), "right_pct", &predicted))
        printf("; of two candidates the faster one right in %.1f %%", predicted);
    if (percent_at(json_object_get(row, "measured"), "right_pct", &measured))
        printf(", measured in %.1f %%", measured);
    printf("\n");
}

/* What the contract says of its own predictions, where it was measured. */
static void print_accuracy(const json_t *accuracy)
{
    const char *dtype;
    json_t *row;
    bool begun = false;
    print_errors(json_object_get(accuracy, "gemm"), "GEMM", &begun);
    print_errors(json_object_get(accuracy, "sdpa"), "attention", &begun);
    json_object_foreach(json_object_get(accuracy, "ranking"), dtype, row) {
        print_ranking(dtype, json_object_get(row, "typical"),
                      ", at widths that many models have, measured again", &begun);
        print_ranking(dtype, row, json_object_get(row, "typical") ? ", at others" : "", &begun);
    }
    json_object_foreach(json_object_get(accuracy, "model"), dtype, row)
        print_model(dtype, row, &begun);
}

static void print_dtype(const gac_contract *contract, const json_t *whole, gac_dtype dtype)
{
    const char *name = gac_dtype_name(dtype);
    gac_dtype other = GAC_DTYPE_COUNT;
    printf("\n%s: what a size costs, against the next aligned one (other axis 4096)\n", name);
    printf("  %-22s %-16s %-6s %-8s %-8s %-16s %-10s %s\n", "seen as", "size", "at", "", "slower",
           "family", "basis", "kernel");
    print_place(contract, dtype, GAC_OP_GEMM_N, "GEMM n, 4096 tokens", 4096, 4096, &other);
    print_place(contract, dtype, GAC_OP_GEMM_K, "GEMM k, 4096 tokens", 4096, 4096, &other);
    if (has_line_costs(whole, dtype))
        print_lines(contract, dtype);
    print_place(contract, dtype, GAC_OP_GEMM_N, "GEMM n, 1 token", 1, 4096, &other);
    print_place(contract, dtype, GAC_OP_GEMM_K, "GEMM k, 1 token", 1, 4096, &other);
    print_place(contract, dtype, GAC_OP_SDPA_HEAD, "attention head", 0, 96, &other);
    if (other < GAC_DTYPE_COUNT)
        printf("  as %s: no kernel of %s takes such sizes, so the call runs in %s\n",
               gac_dtype_name(other), name, gac_dtype_name(other));
}

static void print_contract(const gac_contract *contract, const json_t *whole)
{
    char q[400], rough[1024];
    size_t i;
    json_t *item;
    const json_t *about = gac_contract_about(contract);
    const char *arch = json_string_value(json_object_get(about, "arch"));
    printf("%s: %s%s%s%s\n", gac_contract_name(contract), gac_contract_gpu(contract),
           arch ? ", " : "", arch ? arch : "",
           json_is_true(json_object_get(about, "provisional")) ? ", provisional" : "");
    json_array_foreach(json_object_get(about, "dtypes"), i, item) {
        gac_dtype dtype;
        if (!gac_dtype_parse(json_string_value(item), &dtype))
            continue;
        print_dtype(contract, whole, dtype);
        contract_print_steps(contract, whole, dtype);
        if (gac_contract_is_rough(contract, dtype, rough, sizeof rough))
            printf("  note: %s\n", rough);
    }
    print_accuracy(json_object_get(about, "accuracy"));
    contract_print_measured(about);
    printf("\nsources\n");
    json_array_foreach(json_object_get(about, "sources"), i, item)
        printf("  %s\n", gac_quote(q, sizeof q, json_string_value(item)));
}

static gac_status show(cli *c, const char *name)
{
    gac_contract *contract;
    json_t *json = NULL;
    gac_status status = cli_contract_named(c, name, &contract);
    if (status != GAC_OK)
        return status;
    status = gac_contract_json(contract, &json, &c->error);
    if (status == GAC_OK && c->json)
        status = gac_json_print(stdout, json, &c->error);
    else if (status == GAC_OK)
        print_contract(contract, json);
    json_decref(json);
    gac_contract_free(contract);
    return status;
}

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* falls_back is the dtype that runs where a tier is not served. */
static void print_tiers(const json_t *place, const char *key, const char *side,
                        const char *falls_back)
{
    size_t i;
    json_t *tier;
    json_array_foreach(json_object_get(place, key), i, tier) {
        const char *decode = text_at(tier, "decode_kernel");
        if (json_is_false(json_object_get(tier, "served"))) {
            printf("    %s multiple of %-4lld not served: runs as %s\n", side,
                   (long long)json_integer_value(json_object_get(tier, "multiple")), falls_back);
            continue;
        }
        printf("    %s multiple of %-4lld %-8s %-16s %s%s%s\n", side,
               (long long)json_integer_value(json_object_get(tier, "multiple")),
               json_is_true(json_object_get(tier, "aligned")) ? "aligned" : "",
               text_at(tier, "family"), text_at(tier, "kernel"), *decode ? "; decode " : "",
               decode);
    }
}

/* "BF16", "F16 in A, in B F8_E4M3", and where the rules are of another dtype. */
static void print_title(const json_t *compared)
{
    const char *a = text_at(compared, "dtype_a"), *b = text_at(compared, "dtype_b");
    const char *by_a = text_at(compared, "served_by_a"), *by_b = text_at(compared, "served_by_b");
    bool equal = strcmp(a, b) == 0;
    printf("\n%s%s%s", a, equal ? "" : " in A, in B ", equal ? "" : b);
    if (strcmp(a, by_a) != 0)
        printf("; in A %s stands for %s", by_a, a);
    if (strcmp(b, by_b) != 0)
        printf("; in B %s stands for %s", by_b, b);
    printf("\n");
}

static void print_points(const json_t *points, const char *key, const char *label)
{
    const json_t *of = json_object_get(points, key);
    double added = number_at(of, "added"), removed = number_at(of, "removed");
    double changed = number_at(of, "changed");
    if (added + removed + changed > 0)
        printf(
            "  exact points of %s: %.0f added, %.0f removed, %.0f changed by more than %.0f %%\n",
            label, added, removed, changed, number_at(points, "changed_over_pct"));
}

/* Over all the sizes that were compared; what differs from that is told by place. */
static void print_whole(const json_t *times)
{
    const json_t *gemm = json_object_get(times, "gemm"), *sdpa = json_object_get(times, "sdpa");
    printf("  times on the whole, B / A: GEMM ×%.2f, attention ×%.2f (medians of %.0f and %.0f "
           "shapes); changed is over %.0f %% from that\n",
           number_at(gemm, "b_over_a"), number_at(sdpa, "b_over_a"), number_at(gemm, "n_shapes"),
           number_at(sdpa, "n_shapes"), number_at(times, "changed_over_pct"));
}

static void print_compared(const json_t *compared)
{
    size_t i, j;
    json_t *place, *row;
    const json_t *max_head = json_object_get(compared, "max_head");
    const json_t *points = json_object_get(compared, "points");
    print_title(compared);
    print_whole(json_object_get(compared, "times"));
    json_array_foreach(json_object_get(compared, "places"), i, place) {
        bool changed = json_is_true(json_object_get(place, "tiers_changed"));
        printf("  %s: %s\n", text_at(place, "place"), changed ? "tiers changed" : "same tiers");
        if (changed) {
            print_tiers(place, "tiers_a", "A", text_at(compared, "falls_back_a"));
            print_tiers(place, "tiers_b", "B", text_at(compared, "falls_back_b"));
        }
        json_array_foreach(json_object_get(place, "touches"), j, row)
            printf("    %s\n", text_at(row, "text"));
        json_array_foreach(json_object_get(place, "times"), j, row)
            printf("    %s\n", text_at(row, "text"));
    }
    json_array_foreach(json_object_get(compared, "steps"), i, row)
        printf("  %s\n", text_at(row, "text"));
    if (number_at(max_head, "a") != number_at(max_head, "b"))
        printf("  largest head: %.0f then %.0f\n", number_at(max_head, "a"),
               number_at(max_head, "b"));
    print_points(points, "gemm", "GEMM");
    print_points(points, "sdpa", "attention");
    printf("  %-32s %12s %12s %8s\n", "aligned", "A us", "B us", "B / A");
    json_array_foreach(json_object_get(compared, "aligned"), i, row)
        printf("  %-32s %12.1f %12.1f %8.2f\n", text_at(row, "shape"), number_at(row, "a_us"),
               number_at(row, "b_us"), number_at(row, "b_over_a"));
}

static void print_only(const json_t *list, const char *side)
{
    size_t i;
    json_t *name;
    json_array_foreach(list, i, name)
        printf("  only in %s: %s\n", side, json_string_value(name));
}

/* "F16 stands for it in A (why)", or what else serves it there. */
static void print_stand_in(const json_t *row, const char *side, const char *key, const char *why)
{
    char q[256];
    const char *server = text_at(row, key), *reason = text_at(row, why);
    if (*reason)
        printf("%s stands for it in %s (%s)", server, side, gac_quote(q, sizeof q, reason));
    else
        printf("%s in %s", *server ? "its own rules" : "nothing", side);
}

static void print_stand_ins(const json_t *list)
{
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row) {
        printf("  %-10s ", text_at(row, "dtype"));
        print_stand_in(row, "A", "a", "reason_a");
        printf(", ");
        print_stand_in(row, "B", "b", "reason_b");
        printf("\n");
    }
}

/* What a runtime adds: a figure, a name, or none. */
static void print_entry(const json_t *value)
{
    if (json_is_string(value))
        printf("%s", json_string_value(value));
    else if (json_is_number(value))
        printf("%.6g", json_number_value(value));
    else
        printf("none");
}

static void print_runtime(const json_t *list)
{
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row) {
        printf("  runtime    %s: ", text_at(row, "key"));
        print_entry(json_object_get(row, "a"));
        printf(" -> ");
        print_entry(json_object_get(row, "b"));
        printf("\n");
    }
}

/* Which file, since two may have one name; a bundled one has only that. */
static void print_side(const json_t *diff, const char *side, const char *name, const char *path)
{
    if (*text_at(diff, path))
        printf("%s is %s (%s)", side, text_at(diff, path), text_at(diff, name));
    else
        printf("%s is %s", side, text_at(diff, name));
}

static void print_diff(const json_t *diff)
{
    size_t i;
    json_t *row;
    print_side(diff, "A", "a", "path_a");
    printf(", ");
    print_side(diff, "B", "b", "path_b");
    printf(": %s\n", json_is_true(json_object_get(diff, "same"))
                         ? "nothing that sizes feel has changed"
                         : "they differ");
    json_array_foreach(json_object_get(diff, "stack"), i, row)
        printf("  %-10s %s -> %s\n", text_at(row, "key"),
               *text_at(row, "a") ? text_at(row, "a") : "none",
               *text_at(row, "b") ? text_at(row, "b") : "none");
    print_runtime(json_object_get(diff, "runtime"));
    print_only(json_object_get(diff, "dtypes_only_in_a"), "A");
    print_only(json_object_get(diff, "dtypes_only_in_b"), "B");
    print_stand_ins(json_object_get(diff, "stand_ins"));
    json_array_foreach(json_object_get(diff, "compared"), i, row)
        print_compared(row);
}

/* "F16" is F16 in both, "F16,F8_E4M3" one in A and the other in B. */
static gac_status take_dtypes(cli *c, const char *text, gac_dtype *in_a, gac_dtype *in_b)
{
    char first[32], q[80];
    const char *comma = text ? strchr(text, ',') : NULL;
    *in_a = *in_b = GAC_DTYPE_COUNT;
    if (!text)
        return GAC_OK;
    snprintf(first, sizeof first, "%.*s", comma ? (int)(comma - text) : 31, text);
    if (gac_dtype_parse(first, in_a) && gac_dtype_parse(comma ? comma + 1 : first, in_b))
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE,
                         "--dtype: \"%s\" is not a dtype, such as F16, or two, as F16,F8_E4M3",
                         gac_quote(q, sizeof q, text));
}

static void set_path(json_t *body, const char *key, const char *name)
{
    char q[512];
    json_object_set_new(
        body, key, cli_is_file(name) ? json_string(gac_quote(q, sizeof q, name)) : json_null());
}

static gac_status diff(cli *c, const char *name_a, const char *name_b, const char *dtypes)
{
    gac_contract *a = NULL, *b = NULL;
    gac_dtype in_a, in_b;
    json_t *body = NULL;
    gac_status status = take_dtypes(c, dtypes, &in_a, &in_b);
    if (status == GAC_OK)
        status = cli_contract_named(c, name_a, &a);
    if (status == GAC_OK)
        status = cli_contract_named(c, name_b, &b);
    if (status == GAC_OK)
        status = gac_contract_diff(a, in_a, b, in_b, &body, &c->error);
    if (status == GAC_OK) {
        set_path(body, "path_a", name_a);
        set_path(body, "path_b", name_b);
    }
    if (status == GAC_OK && c->json) {
        json_t *result = gac_json_result("gac.contract-diff/1", c->argc, c->argv);
        json_object_update(result, body);
        status = gac_json_print(stdout, result, &c->error);
        json_decref(result);
    } else if (status == GAC_OK) {
        print_diff(body);
    }
    json_decref(body);
    gac_contract_free(a);
    gac_contract_free(b);
    return status;
}

typedef struct contract_command {
    const char *dtypes;
} contract_command;

static const contract_command initial = { 0 };

static const opt options[] = {
    { "dtype", 0, "D[,D]", "for diff, only this dtype; or the first in A against the second in B",
      OPT_TEXT, .at = offsetof(contract_command, dtypes) },
    { 0 }
};

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    const contract_command *o = filled;
    const char *what = arguments[0];
    if (n == 3 && strcmp(what, "diff") == 0)
        return diff(c, arguments[1], arguments[2], o->dtypes);
    if (o->dtypes)
        return gac_error_set(&c->error, GAC_USAGE, "--dtype goes with contract diff");
    if (n == 1 && strcmp(what, "list") == 0)
        return list(c);
    if (n == 2 && strcmp(what, "show") == 0)
        return show(c, arguments[1]);
    return gac_error_set(&c->error, GAC_USAGE, "contract takes %s; see gac contract --help",
                         cmd_contract.takes);
}

const command cmd_contract = {
    .name = "contract",
    .summary = "look at what GPUs ask of sizes",
    .usage = "list\nshow NAME|FILE\ndiff A B [--dtype D[,D]]",
    .about = "What GPUs ask of sizes: the contracts that come with gac, what one of them says, and "
             "what differs between two: kernels, tiers, times, and which sizes feel it. A name "
             "with a slash or a dot is a file.",
    .example = "show h200",
    .options = options,
    .least = 1,
    .most = 3,
    .takes = "list, show NAME or diff A B",
    .words = "list show diff",
    .size = sizeof initial,
    .initial = &initial,
    .run = run,
};
