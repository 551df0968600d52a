#include "plan_args.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reads 12.5ms or 0.4x. */
static gac_status take_target(void *member, const char *text, gac_error *err)
{
    plan_time_target *target = member;
    char q[80];
    char *end;
    double value = strtod(text, &end);
    bool ratio = strcmp(end, "x") == 0;
    if (end == text || !isfinite(value) || value <= 0 || (!ratio && strcmp(end, "ms") != 0))
        return gac_error_set(err, GAC_USAGE, "\"%s\" is not a time as 12.5ms or 0.4x",
                             gac_quote(q, sizeof q, text));
    *target = (plan_time_target){ ratio ? 0 : value, ratio ? value : 0 };
    return GAC_OK;
}

static const opt_choice strategies[] = { { "minimal", GAC_STRATEGY_MINIMAL, false },
                                         { "multiple-16", GAC_STRATEGY_MULTIPLE_16, false },
                                         { "optimal", GAC_STRATEGY_MULTIPLE_16, true },
                                         { "predefined", GAC_STRATEGY_PREDEFINED, false },
                                         { "tradeoff", GAC_STRATEGY_TRADEOFF, false },
                                         { "solve", GAC_STRATEGY_COUNT, false },
                                         { 0 } };

#define AT(member) .at = offsetof(plan_args, member)
const opt plan_args_options[] = {
    { "strategy", 0, "S",
      "how sizes are chosen: minimal (next multiple of 8; the default), multiple-16, predefined, "
      "tradeoff, or solve: the "
      "best by prediction, proved; a gain below the contract's stated error counts as none",
      OPT_CHOICE, AT(strategy), .choices = strategies },
    { "max-overhead", 0, "PCT",
      "limit of growth: in bytes for solve, of each size for tradeoff (default 10)", OPT_REAL,
      AT(options.max_overhead_pct) },
    { "time-target", 0, "T",
      "solve for least bytes with the workload within T: 12.5ms, or 0.4x of what it takes now",
      OPT_CALL, AT(time_target), .take = take_target },
    { "time-limit", 0, "S", "seconds the search may take (default: until proved)", OPT_REAL,
      AT(options.time_limit_s) },
    { "target", 0, NULL, "", OPT_GROUP, AT(target), .group = cli_target_options },
    { "set", 0, "NAME=SIZE", "a fixed size; * and ? match in NAME; may be repeated", OPT_LIST,
      AT(set) },
    { "uniform", 0, NULL, "one MLP width for all layers", OPT_FLAG, AT(options.uniform) },
    { 0 }
};

const opt plan_args_allow[] = { { "allow", 0, "rescaled",
                                  "also sizes that are the same up to rounding only", OPT_CHOICE,
                                  AT(allow_rescaled), .choices = cli_rescaled },
                                { 0 } };
#undef AT

/* Adds the rule NAME=SIZE. Its name is a copy. */
static gac_status add_rule(cli *c, plan_args *a, const char *text)
{
    char q[120];
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text)
        return gac_error_set(&c->error, GAC_USAGE, "--set: \"%s\" is not NAME=SIZE",
                             gac_quote(q, sizeof q, text));
    gac_plan_rule *rule = &a->rules[a->options.n_rules++];
    rule->pattern = strndup(text, (size_t)(equals - text));
    if (!rule->pattern)
        return gac_error_no_memory(&c->error);
    return cli_number(c, "--set", equals + 1, 1, &rule->size);
}

/* Refuses options that exclude each other. */
static gac_status check(cli *c, const plan_args *a)
{
    const char *why = NULL;
    bool overhead = cli_given(c, "max-overhead"), target = cli_given(c, "time-target");
    if (target && !a->options.solve)
        why = "--time-target needs --strategy solve";
    else if (overhead && target)
        why = "--time-target and --max-overhead exclude each other";
    else if (overhead && !a->options.solve && a->options.strategy != GAC_STRATEGY_TRADEOFF)
        why = "--max-overhead needs --strategy solve or tradeoff";
    return why ? gac_error_set(&c->error, GAC_USAGE, "%s", why) : GAC_OK;
}

gac_status plan_args_finish(cli *c, plan_args *a, const gac_model *model)
{
    gac_dtype wanted;
    char rough[1024];
    a->options.rules = a->rules;
    a->options.target.n_gpus = a->target.n_gpus;
    a->options.target.quant_group = a->target.quant_group;
    a->options.workload = &a->workload;
    a->options.solve = a->strategy == GAC_STRATEGY_COUNT;
    a->options.strategy = a->options.solve ? GAC_STRATEGY_MINIMAL : (gac_strategy)a->strategy;
    a->options.allow_rescaled = a->allow_rescaled;
    a->options.max_time_ms = a->time_target.ms;
    gac_status status = check(c, a);
    for (int i = 0; i < a->set.n && status == GAC_OK; i++)
        status = add_rule(c, a, a->set.items[i]);
    if (status == GAC_OK)
        status = gac_workload_parse(a->target.workload, &a->workload, &c->error);
    if (status == GAC_OK)
        status = cli_contract(c, a->target.gpu, a->target.contract, &a->contract);
    if (status == GAC_OK)
        status =
            cli_dtype(c, a->target.dtype, model, a->contract, &wanted, &a->options.target.dtype);
    a->options.target.contract = a->contract;
    if (status == GAC_OK &&
        gac_contract_is_rough(a->contract, a->options.target.dtype, rough, sizeof rough))
        gac_log_write(&c->log, 0, "note: %s", rough);
    if (status != GAC_OK || a->time_target.ratio == 0)
        return status;
    double now_ms = 0;
    for (int p = 0; p < a->workload.n_phases; p++)
        now_ms += a->workload.phases[p].weight *
                  gac_plan_time_ms(model, &a->options.target, &a->workload.phases[p], NULL, NULL);
    a->options.max_time_ms = a->time_target.ratio * now_ms;
    return GAC_OK;
}

void plan_args_dispose(plan_args *a)
{
    for (int i = 0; i < a->options.n_rules; i++)
        free((char *)a->rules[i].pattern);
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
    const char *name; /* name of one of them */
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

gac_status cli_print_changes(const gac_model *model, const int64_t *sizes, gac_error *err)
{
    enum { MAX_LINES = 40 };
    int32_t n = 0, kept = 0;
    change *list = calloc((size_t)gac_model_n_dims(model) + 1, sizeof *list);
    if (!list)
        return gac_error_no_memory(err);
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
    return GAC_OK;
}
