#include "plan_args.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static gac_status take_percent(cli *c, const char *option, double *out)
{
    char q[80];
    char *end;
    *out = strtod(optarg, &end);
    if (end == optarg || *end || !isfinite(*out) || *out < 0)
        return gac_error_set(&c->error, GAC_USAGE, "%s: \"%s\" is not a number of at least 0",
                             option, gac_quote(q, sizeof q, optarg));
    return GAC_OK;
}

/* NAME=SIZE; the name is cut off in place. */
static gac_status take_rule(cli *c, plan_args *a)
{
    char q[120];
    char *equals = strrchr(optarg, '=');
    if (!equals || equals == optarg)
        return gac_error_set(&c->error, GAC_USAGE, "--set: \"%s\" is not NAME=SIZE",
                             gac_quote(q, sizeof q, optarg));
    if (a->options.n_rules == MAX_RULES)
        return gac_error_set(&c->error, GAC_USAGE, "--set: at most %d", MAX_RULES);
    *equals = 0;
    gac_plan_rule *rule = &a->rules[a->options.n_rules++];
    rule->pattern = optarg;
    return cli_number(c, "--set", equals + 1, 1, &rule->size);
}

/* 12.5ms or 0.4x */
static gac_status take_target(cli *c, plan_args *a)
{
    char q[80];
    char *end;
    double value = strtod(optarg, &end);
    bool ratio = strcmp(end, "x") == 0;
    if (end == optarg || !isfinite(value) || value <= 0 || (!ratio && strcmp(end, "ms") != 0))
        return gac_error_set(&c->error, GAC_USAGE,
                             "--time-target: \"%s\" is not a time as 12.5ms or 0.4x",
                             gac_quote(q, sizeof q, optarg));
    if (ratio)
        a->time_ratio = value;
    else
        a->options.max_time_ms = value;
    return GAC_OK;
}

static gac_status take_strategy(cli *c, plan_args *a)
{
    char q[80];
    a->options.solve = strcmp(optarg, "solve") == 0;
    if (a->options.solve || gac_strategy_parse(optarg, &a->options.strategy))
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE,
                         "--strategy: \"%s\" is not one of minimal, optimal, predefined, tradeoff, "
                         "solve",
                         gac_quote(q, sizeof q, optarg));
}

gac_status plan_args_allow(cli *c, const char *text, bool *rescaled)
{
    char q[80];
    *rescaled = strcmp(text, "rescaled") == 0;
    if (*rescaled)
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE, "--allow: \"%s\"; the only value is rescaled",
                         gac_quote(q, sizeof q, text));
}

gac_status plan_args_take(cli *c, plan_args *a, int letter)
{
    a->given = a->given || letter != 'A';
    switch (letter) {
    case 'g':
        a->gpu = optarg;
        return GAC_OK;
    case 'c':
        a->contract_file = optarg;
        return GAC_OK;
    case 'd':
        a->dtype = optarg;
        return GAC_OK;
    case 'w':
        a->workload_text = optarg;
        return GAC_OK;
    case 't':
        return cli_number(c, "--tp", optarg, 1, &a->options.target.n_gpus);
    case 'Q':
        return cli_number(c, "--quant-group", optarg, 1, &a->options.target.quant_group);
    case 's':
        return take_strategy(c, a);
    case 'm':
        a->overhead_given = true;
        return take_percent(c, "--max-overhead", &a->options.max_overhead_pct);
    case 'T':
        return take_target(c, a);
    case 'L':
        return take_percent(c, "--time-limit", &a->options.time_limit_s);
    case 'S':
        return take_rule(c, a);
    case 'U':
        a->options.uniform = true;
        return GAC_OK;
    default:
        return plan_args_allow(c, optarg, &a->options.allow_rescaled);
    }
}

gac_status plan_args_finish(cli *c, plan_args *a, const gac_model *model)
{
    gac_dtype wanted;
    char rough[1024];
    a->options.rules = a->rules;
    a->options.workload = &a->workload;
    if ((a->options.max_time_ms > 0 || a->time_ratio > 0) && !a->options.solve)
        return gac_error_set(&c->error, GAC_USAGE, "--time-target needs --strategy solve");
    if (a->overhead_given && (a->options.max_time_ms > 0 || a->time_ratio > 0))
        return gac_error_set(&c->error, GAC_USAGE,
                             "--time-target and --max-overhead exclude each other");
    if (a->overhead_given && !a->options.solve && a->options.strategy != GAC_STRATEGY_TRADEOFF)
        return gac_error_set(&c->error, GAC_USAGE,
                             "--max-overhead needs --strategy solve or tradeoff");
    gac_status status = gac_workload_parse(a->workload_text, &a->workload, &c->error);
    if (status == GAC_OK)
        status = cli_contract(c, a->gpu, a->contract_file, &a->contract);
    if (status == GAC_OK)
        status = cli_dtype(c, a->dtype, model, a->contract, &wanted, &a->options.target.dtype);
    a->options.target.contract = a->contract;
    if (status == GAC_OK &&
        gac_contract_is_rough(a->contract, a->options.target.dtype, rough, sizeof rough))
        gac_log_write(&c->log, 0, "note: %s", rough);
    if (status != GAC_OK || a->time_ratio == 0)
        return status;
    double now_ms = 0;
    for (int p = 0; p < a->workload.n_phases; p++)
        now_ms += a->workload.phases[p].weight *
                  gac_plan_time_ms(model, &a->options.target, &a->workload.phases[p], NULL, NULL);
    a->options.max_time_ms = a->time_ratio * now_ms;
    return GAC_OK;
}

void plan_args_dispose(plan_args *a)
{
    gac_contract_free(a->contract);
}

gac_status cli_open_model(cli *c, const char *path, gac_checkpoint **checkpoint, gac_model **model)
{
    gac_checkpoint_options options = { .progress = c->progress, .log = &c->log };
    gac_status status = gac_checkpoint_open(path, &options, checkpoint, &c->error);
    return status == GAC_OK ? gac_model_create(*checkpoint, model, &c->error) : status;
}

json_t *cli_changes_json(const gac_model *model, const int64_t *sizes)
{
    json_t *dims = json_array();
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (sizes[i] != d->size)
            json_array_append_new(dims, json_pack("{s:s, s:I, s:I}", "name", d->name, "from",
                                                  (json_int_t)d->size, "to", (json_int_t)sizes[i]));
    }
    return dims;
}

typedef struct change {
    char pattern[128];
    const char *name; /* of one of them */
    int64_t from, to;
    int32_t count;
} change;

static int by_pattern(const void *a, const void *b)
{
    const change *x = a, *y = b;
    int order = strcmp(x->pattern, y->pattern);
    if (order)
        return order;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

void cli_print_changes(const gac_model *model, const int64_t *sizes)
{
    enum { MAX_LINES = 40 };
    int32_t n = 0, kept = 0;
    change *list = calloc((size_t)gac_model_n_dims(model) + 1, sizeof *list);
    if (!list)
        return;
    for (int32_t i = 0; i < gac_model_n_dims(model); i++) {
        const gac_dim *d = gac_model_dim(model, i);
        if (sizes[i] == d->size)
            continue;
        cli_pattern(list[n].pattern, sizeof list[n].pattern, d->name);
        list[n].name = d->name;
        list[n].from = d->size;
        list[n].to = sizes[i];
        list[n++].count = 1;
    }
    qsort(list, (size_t)n, sizeof *list, by_pattern);
    for (int32_t i = 0; i < n; i++)
        if (kept && by_pattern(&list[kept - 1], &list[i]) == 0)
            list[kept - 1].count++;
        else
            list[kept++] = list[i];
    printf("  %-44s %6s %10s %10s\n", "dimension", "count", "from", "to");
    for (int32_t i = 0; i < kept && i < MAX_LINES; i++)
        printf("  %-44s %6d %10lld %10lld\n", list[i].count == 1 ? list[i].name : list[i].pattern,
               list[i].count, (long long)list[i].from, (long long)list[i].to);
    if (kept > MAX_LINES)
        printf("  and %d more lines (--json lists every dimension)\n", kept - MAX_LINES);
    free(list);
}
