#include "cli.h"

#include <string.h>

static const char help[] =
    "usage: gac contract list\n"
    "       gac contract show NAME|FILE\n"
    "\n"
    "What GPUs ask of sizes: the contracts that come with gac, and what one of them says.\n"
    "A name with a slash or a dot is a file.\n"
    "\n"
    "  --json, -q, -v, --help\n"
    "\n"
    "example: gac contract show h200\n";

static gac_status load(cli *c, const char *name, gac_contract **out)
{
    bool file = strchr(name, '/') || strchr(name, '.');
    return cli_contract(c, file ? NULL : name, file ? name : NULL, out);
}

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
        const json_t *text = gac_contract_json(contract);
        json_t *row = json_object();
        static const char *const keys[] = { "name",        "gpu",    "arch",
                                            "provisional", "dtypes", "sources" };
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            json_object_set(row, keys[k], json_object_get(text, keys[k]));
        json_array_append_new(rows, row);
        if (!c->json) {
            char dtypes[64] = "";
            size_t j;
            json_t *dtype;
            json_array_foreach(json_object_get(text, "dtypes"), j, dtype)
                snprintf(dtypes + strlen(dtypes), sizeof dtypes - strlen(dtypes), "%s%s",
                         j ? "," : "", json_string_value(dtype));
            const char *arch = json_string_value(json_object_get(text, "arch"));
            printf("%-10s %-24s %-8s %-12s %s\n", gac_contract_name(contract),
                   gac_contract_gpu(contract), arch ? arch : "", dtypes,
                   json_is_true(json_object_get(text, "provisional")) ? "provisional" : "measured");
        }
        gac_contract_free(contract);
    }
    json_object_set_new(result, "contracts", rows);
    if (status == GAC_OK && c->json)
        status = gac_json_print(stdout, result, &c->error);
    json_decref(result);
    return status;
}

/* Representative sizes of each residue, judged at one place. */
static void print_place(const gac_contract *contract, gac_dtype dtype, gac_seen seen,
                        const char *label, int64_t n_rows, int64_t around)
{
    int last_tier = -1;
    static const int64_t residues[] = { 0, 8, 4, 2, 1 };
    for (size_t i = 0; i < sizeof residues / sizeof *residues; i++) {
        gac_judgement j;
        if (gac_contract_judge(contract, seen, dtype, around + residues[i], n_rows, 4096, &j,
                               NULL) != GAC_OK ||
            j.tier == last_tier)
            continue;
        last_tier = j.tier;
        printf("  %-22s multiple of %-4lld %-8s × %-6.2f %-16s %-10s %s\n", label,
               (long long)j.multiple, j.aligned ? "aligned" : "", j.penalty, j.family, j.basis,
               j.kernel);
        label = "";
    }
}

static void print_contract(const gac_contract *contract)
{
    char q[400];
    size_t i;
    json_t *item;
    const json_t *text = gac_contract_json(contract);
    const char *arch = json_string_value(json_object_get(text, "arch"));
    printf("%s: %s%s%s%s\n", gac_contract_name(contract), gac_contract_gpu(contract),
           arch ? ", " : "", arch ? arch : "",
           json_is_true(json_object_get(text, "provisional")) ? ", provisional" : "");
    json_array_foreach(json_object_get(text, "dtypes"), i, item) {
        gac_dtype dtype;
        if (!gac_dtype_parse(json_string_value(item), &dtype))
            continue;
        printf("\n%s: what a size costs, against the next aligned one (other axis 4096)\n",
               gac_dtype_name(dtype));
        printf("  %-22s %-16s %-8s %-8s %-16s %-10s %s\n", "seen as", "size", "", "slower",
               "family", "basis", "kernel");
        print_place(contract, dtype, GAC_SEEN_GEMM_N, "GEMM n, 4096 tokens", 4096, 4096);
        print_place(contract, dtype, GAC_SEEN_GEMM_K, "GEMM k, 4096 tokens", 4096, 4096);
        print_place(contract, dtype, GAC_SEEN_GEMM_N, "GEMM n, 1 token", 1, 4096);
        print_place(contract, dtype, GAC_SEEN_GEMM_K, "GEMM k, 1 token", 1, 4096);
        print_place(contract, dtype, GAC_SEEN_SDPA_HEAD, "attention head", 0, 96);
    }
    printf("\nsources\n");
    json_array_foreach(json_object_get(text, "sources"), i, item)
        printf("  %s\n", gac_quote(q, sizeof q, json_string_value(item)));
}

static gac_status show(cli *c, const char *name)
{
    gac_contract *contract;
    gac_status status = load(c, name, &contract);
    if (status != GAC_OK)
        return status;
    if (c->json)
        status = gac_json_print(stdout, gac_contract_json(contract), &c->error);
    else
        print_contract(contract);
    gac_contract_free(contract);
    return status;
}

static gac_status run(cli *c, int argc, char **argv)
{
    static const struct option options[] = { CLI_COMMON_OPTIONS };
    bool done = false;
    if (cli_next_option(c, &cmd_contract, argc, argv, options, &done) != -1)
        return done ? GAC_OK : c->error.status;
    int n = argc - optind;
    if (n == 1 && strcmp(argv[optind], "list") == 0)
        return list(c);
    if (n == 2 && strcmp(argv[optind], "show") == 0)
        return show(c, argv[optind + 1]);
    return gac_error_set(&c->error, GAC_USAGE,
                         "contract takes list or show NAME; see gac contract --help");
}

const command cmd_contract = { "contract", "look at what GPUs ask of sizes", help, run };
