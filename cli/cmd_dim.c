#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: gac dim SIZE [options]\n"
    "\n"
    "One size in, the repaired size out.\n"
    "\n"
    "  --strategy S        minimal (next multiple of 8; the default), optimal (of 16),\n"
    "                      predefined (32 64 96 112 128 160 192 224 256, then of 16) or\n"
    "                      tradeoff (first of 8, 16, 32 under --max-overhead)\n"
    "  --max-overhead PCT  limit of tradeoff in percent (default 10)\n"
    "  --gpu NAME          also say what the size costs on that GPU (gac contract list)\n"
    "  --contract FILE     likewise, by a contract of your own\n"
    "  --dtype D           F16 (default), BF16, F8_E4M3, ...\n"
    "  --json, -q, -v, --help\n"
    "\n"
    "example: gac dim 107 --gpu h200\n";

typedef struct dim_options {
    gac_strategy strategy;
    double max_overhead_pct;
    const char *gpu, *contract;
    gac_dtype dtype;
    int64_t size;
} dim_options;

static gac_status take_option(cli *c, dim_options *o, int letter)
{
    char q[80];
    char *end;
    gac_quote(q, sizeof q, optarg);
    switch (letter) {
    case 's':
        if (!gac_strategy_parse(optarg, &o->strategy))
            return gac_error_set(
                &c->error, GAC_USAGE,
                "--strategy: \"%s\" is not one of minimal, optimal, predefined, tradeoff", q);
        break;
    case 'm':
        o->max_overhead_pct = strtod(optarg, &end);
        if (end == optarg || *end || !isfinite(o->max_overhead_pct) || o->max_overhead_pct < 0)
            return gac_error_set(&c->error, GAC_USAGE, "--max-overhead: \"%s\" is not a percentage",
                                 q);
        break;
    case 'g':
        o->gpu = optarg;
        break;
    case 'c':
        o->contract = optarg;
        break;
    default:
        if (!gac_dtype_parse(optarg, &o->dtype))
            return gac_error_set(&c->error, GAC_USAGE,
                                 "--dtype: \"%s\" is not a dtype, such as F16, BF16, F8_E4M3", q);
    }
    return GAC_OK;
}

static gac_status parse(cli *c, int argc, char **argv, dim_options *o, bool *done)
{
    static const struct option options[] = { { "strategy", required_argument, NULL, 's' },
                                             { "max-overhead", required_argument, NULL, 'm' },
                                             { "gpu", required_argument, NULL, 'g' },
                                             { "contract", required_argument, NULL, 'c' },
                                             { "dtype", required_argument, NULL, 'd' },
                                             CLI_COMMON_OPTIONS };
    int letter;
    while ((letter = cli_next_option(c, &cmd_dim, argc, argv, options, done)) != -1) {
        gac_status status = letter == '?' ? c->error.status : take_option(c, o, letter);
        if (status != GAC_OK || *done)
            return status;
    }
    if (argc - optind != 1)
        return gac_error_set(&c->error, GAC_USAGE, "dim takes one size; see gac dim --help");
    return cli_number(c, "SIZE", argv[optind], 1, &o->size);
}

/* A prefill and a decode call of a square weight: what the size meets in a
 * model of about 8 billion parameters. */
static const struct {
    const char *label;
    gac_op_axis seen;
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
                     gac_op_axis_name(places[place].seen), "n_rows",
                     (json_int_t)places[place].n_rows, "aligned", j->aligned, "served", j->served,
                     "runs_as", gac_dtype_name(j->runs_as), "tier", j->tier, "penalty",
                     cli_number_or_null(j->penalty), "kernel", j->kernel, "family", j->family,
                     "basis", j->basis);
}

static gac_status judge_all(cli *c, const dim_options *o, int64_t repaired, json_t *result,
                            gac_judgement before[N_PLACES], gac_judgement after[N_PLACES],
                            gac_contract **contract)
{
    char q[40];
    gac_dtype dtype;
    gac_status status = cli_contract(c, o->gpu, o->contract, contract);
    if (status == GAC_OK && !gac_contract_dtype(*contract, o->dtype, &dtype))
        status = gac_error_set(&c->error, GAC_USAGE, "contract %s says nothing of %s",
                               gac_quote(q, sizeof q, gac_contract_name(*contract)),
                               gac_dtype_name(o->dtype));
    json_t *list = json_array();
    for (int i = 0; i < N_PLACES && status == GAC_OK; i++) {
        status = gac_contract_judge(*contract, places[i].seen, dtype, o->size, places[i].n_rows,
                                    OTHER_AXIS, &before[i], &c->error);
        if (status == GAC_OK)
            status = gac_contract_judge(*contract, places[i].seen, dtype, repaired,
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
    char slower[16] = "-";
    if (!isnan(j->penalty))
        snprintf(slower, sizeof slower, "%.2f", j->penalty);
    printf("  %-20s  %-10lld %-9s × %-7s %-16s %s", label, (long long)size,
           j->aligned ? "yes" : "no", slower, cli_or_dash(j->family), j->basis);
    if (!j->served)
        printf(", not served: runs as %s", gac_dtype_name(j->runs_as));
    printf("\n");
}

static void print_places(const dim_options *o, int64_t repaired, const gac_contract *contract,
                         const gac_judgement before[N_PLACES], const gac_judgement after[N_PLACES])
{
    printf("\non %s (%s), %s, other axis %d:\n", gac_contract_name(contract),
           gac_contract_gpu(contract), gac_dtype_name(o->dtype), OTHER_AXIS);
    printf("  %-20s  %-10s %-9s %-9s %-16s %s\n", "seen as", "size", "aligned", "slower by",
           "kernel", "basis");
    for (int i = 0; i < N_PLACES; i++) {
        print_place(places[i].label, o->size, &before[i]);
        if (repaired != o->size)
            print_place("", repaired, &after[i]);
    }
}

static gac_status run(cli *c, int argc, char **argv)
{
    bool done = false;
    dim_options o = { .max_overhead_pct = GAC_DEFAULT_OVERHEAD_PCT, .dtype = GAC_DTYPE_F16 };
    gac_contract *contract = NULL;
    gac_judgement before[N_PLACES], after[N_PLACES];
    int64_t repaired = 0;
    gac_status status = parse(c, argc, argv, &o, &done);
    if (status != GAC_OK || done)
        return status;
    status = gac_strategy_apply(o.strategy, o.size, o.max_overhead_pct, &repaired, &c->error);
    if (status != GAC_OK)
        return status;
    json_t *result = gac_json_result("gac.dim/1", c->argc, c->argv);
    json_t *body = json_pack("{s:I, s:I, s:s, s:f}", "from", (json_int_t)o.size, "to",
                             (json_int_t)repaired, "strategy", gac_strategy_name(o.strategy),
                             "overhead_pct", 100.0 * (double)(repaired - o.size) / (double)o.size);
    json_object_update(result, body);
    json_decref(body);
    bool judged = o.gpu || o.contract;
    if (judged)
        status = judge_all(c, &o, repaired, result, before, after, &contract);
    if (status == GAC_OK && c->json) {
        status = gac_json_print(stdout, result, &c->error);
    } else if (status == GAC_OK) {
        printf("%lld\n", (long long)repaired);
        if (judged)
            print_places(&o, repaired, contract, before, after);
    }
    json_decref(result);
    gac_contract_free(contract);
    return status;
}

const command cmd_dim = { "dim", "one size in, the repaired size out", help, run };
