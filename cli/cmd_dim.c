#include "dim.h"

#include <math.h>
#include <string.h>

static const dim_options initial = { .max_overhead_pct = GAC_DEFAULT_OVERHEAD_PCT,
                                     .dtype = GAC_DTYPE_F16 };

#define AT(member) .at = offsetof(dim_options, member)
static const opt options[] = {
    { "strategy", 0, "S",
      "how the size is chosen: minimal (next multiple of 8; the default), multiple-16, predefined "
      "(32 64 96 112 128 160 "
      "192 224 256, then multiples of 16) or tradeoff (first of 8, 16, 32 under --max-overhead)",
      OPT_CHOICE, AT(strategy), .choices = cli_strategies },
    { "max-overhead", 0, "PCT", "limit of tradeoff in percent (default 10)", OPT_REAL,
      AT(max_overhead_pct) },
    { "keep", 0, "SHARE", "share of the parameters of a matrix to keep, above 0 and at most 1",
      OPT_REAL, AT(keep), .max = 1, .above = true },
    { "gpu", 0, "NAME",
      "also say what the size costs on that GPU (gac contract list; for a matrix the default "
      "is " CLI_DEFAULT_GPU ")",
      OPT_TEXT, AT(gpu) },
    { "contract", 0, "FILE", "the same with a contract of your own", OPT_TEXT, AT(contract) },
    { "dtype", 0, "D", "dtype of the operators: F16 (default), BF16, F8_E4M3, ...", OPT_CALL,
      AT(dtype), .take = cli_take_dtype },
    { 0 }
};

/* Judges the size in prefill and decode calls with a square weight, as in a
 * model of about 8 billion parameters. */
static const struct {
    const char *label;
    gac_op_axis axis;
    int64_t n_rows;
} places[] = {
    { "GEMM n, 2048 tokens", GAC_OP_GEMM_N, 2048 }, { "GEMM k, 2048 tokens", GAC_OP_GEMM_K, 2048 },
    { "GEMM n, 1 token", GAC_OP_GEMM_N, 1 },        { "GEMM k, 1 token", GAC_OP_GEMM_K, 1 },
    { "attention head", GAC_OP_SDPA_HEAD, 0 },
};

enum { OTHER_AXIS = 4096, N_PLACES = sizeof places / sizeof *places };

static json_t *place_json(int place, const gac_judgement *j)
{
    return json_pack("{s:s, s:I, s:b, s:b, s:s, s:i, s:o, s:s?, s:s?, s:s}", "seen",
                     gac_op_axis_name(places[place].axis), "n_rows",
                     (json_int_t)places[place].n_rows, "aligned", j->aligned, "served", j->served,
                     "runs_as", gac_dtype_name(j->runs_as), "tier", j->tier, "penalty",
                     cli_number_or_null(j->penalty), "kernel", j->kernel, "family", j->family,
                     "basis", j->basis);
}

gac_status dim_contract(cli *c, const dim_options *o, gac_contract **contract, gac_dtype *dtype)
{
    char q[40];
    gac_status status = cli_contract(c, o->gpu, o->contract, contract);
    if (status == GAC_OK && !gac_contract_dtype(*contract, o->dtype, dtype))
        status = gac_error_set(&c->error, GAC_USAGE, "contract %s says nothing of %s",
                               gac_quote(q, sizeof q, gac_contract_name(*contract)),
                               gac_dtype_name(o->dtype));
    return status;
}

static gac_status judge_all(cli *c, const dim_options *o, int64_t repaired, json_t *result,
                            gac_judgement before[N_PLACES], gac_judgement after[N_PLACES],
                            gac_contract **contract)
{
    gac_dtype dtype;
    gac_status status = dim_contract(c, o, contract, &dtype);
    json_t *list = json_array();
    for (int i = 0; i < N_PLACES && status == GAC_OK; i++) {
        status = gac_contract_judge(*contract, places[i].axis, dtype, o->size, places[i].n_rows,
                                    OTHER_AXIS, &before[i], &c->error);
        if (status == GAC_OK)
            status = gac_contract_judge(*contract, places[i].axis, dtype, repaired,
                                        places[i].n_rows, OTHER_AXIS, &after[i], &c->error);
        if (status == GAC_OK)
            json_array_append_new(list, place_json(i, &before[i]));
    }
    if (status == GAC_OK) {
        json_object_set_new(result, "contract", json_string(gac_contract_name(*contract)));
        json_object_set_new(result, "places", json_incref(list));
    }
    json_decref(list);
    return status;
}

static void print_place(const char *label, int64_t size, const gac_judgement *j)
{
    colour shade = j->aligned ? COLOUR_GOOD : COLOUR_WARN;
    char slower[16] = "-";
    if (!isnan(j->penalty))
        snprintf(slower, sizeof slower, "%.2f", j->penalty);
    printf("  %-20s  %-10lld %s%-9s%s × %-7s %-16s %s", label, (long long)size,
           colour_on(stdout, shade), j->aligned ? "yes" : "no", colour_off(stdout, shade), slower,
           cli_or_dash(j->family), j->basis);
    if (!j->served)
        printf(", not served: runs as %s", gac_dtype_name(j->runs_as));
    printf("\n");
}

static void print_places(const dim_options *o, int64_t repaired, const gac_contract *contract,
                         const gac_judgement before[N_PLACES], const gac_judgement after[N_PLACES])
{
    printf("\non %s (%s), %s, other axis %d:\n", gac_contract_name(contract),
           gac_contract_gpu(contract), gac_dtype_name(o->dtype), OTHER_AXIS);
    printf("  %-20s  %-10s %-9s %-9s %-16s %s\n", "seen as", "size", "aligned", "slower", "kernel",
           "basis");
    for (int i = 0; i < N_PLACES; i++) {
        print_place(places[i].label, o->size, &before[i]);
        if (repaired != o->size)
            print_place("", repaired, &after[i]);
    }
}

static gac_status one_size(cli *c, const dim_options *o)
{
    gac_contract *contract = NULL;
    gac_judgement before[N_PLACES], after[N_PLACES];
    int64_t repaired = 0;
    gac_status status =
        gac_strategy_apply(o->strategy, o->size, o->max_overhead_pct, &repaired, &c->error);
    if (status != GAC_OK)
        return status;
    json_t *result = gac_json_result("gac.dim/1", c->argc, c->argv);
    json_t *body =
        json_pack("{s:I, s:I, s:s, s:f}", "from", (json_int_t)o->size, "to", (json_int_t)repaired,
                  "strategy", gac_strategy_name(o->strategy), "overhead_pct",
                  100.0 * (double)(repaired - o->size) / (double)o->size);
    json_object_update(result, body);
    json_decref(body);
    bool judged = o->gpu || o->contract;
    if (judged)
        status = judge_all(c, o, repaired, result, before, after, &contract);
    if (status == GAC_OK && c->json) {
        status = cli_print_result(c, result);
    } else if (status == GAC_OK) {
        printf("%lld\n", (long long)repaired);
        if (judged)
            print_places(o, repaired, contract, before, after);
    }
    json_decref(result);
    gac_contract_free(contract);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    dim_options *o = filled;
    bool of_matrix = strchr(arguments[0], 'x') != NULL && strcspn(arguments[0], "x") > 0;
    (void)n;
    if (of_matrix && strspn(arguments[0], "0123456789x") == strlen(arguments[0])) {
        const char *why = !cli_given(c, "keep") ? "a matrix needs --keep SHARE, as --keep 0.8"
                          : cli_given(c, "strategy") || cli_given(c, "max-overhead")
                              ? "--strategy and --max-overhead are for one size, not for a matrix"
                              : NULL;
        return why ? gac_error_set(&c->error, GAC_USAGE, "%s", why)
                   : dim_matrix(c, o, arguments[0]);
    }
    if (cli_given(c, "keep"))
        return gac_error_set(&c->error, GAC_USAGE, "--keep needs a matrix OUTxIN, as 4096x14336");
    gac_status status = cli_number(c, "SIZE", arguments[0], 1, &o->size);
    return status == GAC_OK ? one_size(c, o) : status;
}

const command cmd_dim = {
    .name = "dim",
    .summary = "one size or matrix: the size that fits, and what it costs",
    .usage = "SIZE [options]\nOUTxIN --keep SHARE [options]",
    .about = "One size in, the repaired size out. For a matrix with OUT rows and IN columns and a "
             "share of its parameters to keep: the rank that keeps it, the ranks around it, what "
             "they cost, and which one to take.",
    .example = "4096x14336 --keep 0.8 --gpu a100",
    COMMAND_RUNS(1, 1, "one size or matrix"),
};
