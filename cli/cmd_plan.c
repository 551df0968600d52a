#include "plan_args.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: gac plan DIR [-o plan.json] [options]\n"
    "       gac plan DIR --pareto [--data FILE]\n"
    "\n"
    "Chooses a size for every dimension that can grow, and writes a plan that gac repair\n"
    "applies. The plan is JSON: read it, edit it, commit it.\n"
    "\n"
    "  -o FILE              where to write the plan\n" PLAN_ARGS_HELP
    "  --pareto             all choices of time against memory that no other beats\n"
    "  --data FILE          the front as columns for gnuplot\n"
    "  --force              replace FILE\n"
    "  --json, -q, -v, --help\n"
    "\n"
    "example: gac plan ./llama-svd --strategy solve --max-overhead 2 -o plan.json\n";

typedef struct plan_command {
    plan_args args;
    const char *path, *out, *data;
    bool pareto, force;
} plan_command;

static gac_status parse(cli *c, int argc, char **argv, plan_command *o, bool *done)
{
    static const struct option options[] = { PLAN_ARGS_OPTIONS,
                                             { "output", required_argument, NULL, 'o' },
                                             { "pareto", no_argument, NULL, 'P' },
                                             { "data", required_argument, NULL, 'D' },
                                             { "force", no_argument, NULL, 'F' },
                                             CLI_COMMON_OPTIONS };
    int letter;
    while ((letter = cli_next_option(c, &cmd_plan, argc, argv, options, done)) != -1) {
        gac_status status = letter == '?' ? c->error.status : GAC_OK;
        if (letter == 'o')
            o->out = optarg;
        else if (letter == 'P')
            o->pareto = true;
        else if (letter == 'D')
            o->data = optarg;
        else if (letter == 'F')
            o->force = true;
        else if (letter != '?')
            status = plan_args_take(c, &o->args, letter);
        if (status != GAC_OK || *done)
            return status;
    }
    if (argc - optind != 1)
        return gac_error_set(&c->error, GAC_USAGE, "plan takes one directory; see gac plan --help");
    if ((o->pareto && o->out) || (o->data && !o->pareto))
        return gac_error_set(&c->error, GAC_USAGE, "-o is for a plan, --data is for --pareto");
    o->path = argv[optind];
    return GAC_OK;
}

/* Why a plan changes nothing. */
static const char *no_change(const gac_plan_options *options)
{
    if (!options->solve)
        return "no change: every size that can grow is one that the strategy asks for";
    if (options->max_time_ms > 0)
        return "no change: the time is within the target as it is";
    return "no change pays: none gains more than the margin within the limit";
}

static json_t *plan_result(cli *c, const plan_command *o, const gac_model *model,
                           const gac_plan *plan)
{
    json_t *result = gac_json_result("gac.plan/1", c->argc, c->argv);
    json_t *body = gac_plan_to_json(plan, model);
    json_object_set_new(result, "contract", json_string(gac_contract_name(o->args.contract)));
    json_object_set_new(result, "workload", json_string(o->args.workload_text));
    json_object_set_new(
        body, "objective_unit",
        json_string(o->args.options.solve && o->args.options.max_time_ms > 0 ? "bytes" : "ms"));
    if (plan->n_changed == 0)
        json_object_set_new(body, "note", json_string(no_change(&o->args.options)));
    json_object_update(result, body);
    json_decref(body);
    return result;
}

/* One line per dimension, so that a plan can be read and compared. */
static gac_status write_plan(cli *c, const plan_command *o, json_t *result)
{
    gac_new_file *file;
    char *head = NULL;
    json_t *dims = json_incref(json_object_get(result, "dims"));
    json_object_del(result, "dims"); /* they come last */
    json_object_set_new(result, "dims", json_array());
    gac_status status =
        gac_json_text(result, JSON_INDENT(1) | JSON_REAL_PRECISION(12), &head, NULL, &c->error);
    json_object_set_new(result, "dims", dims);
    if (status == GAC_OK)
        status = gac_new_file_create(o->out, o->force, &file, &c->error);
    if (status != GAC_OK) {
        free(head);
        return status;
    }
    char *end = strrchr(head, '[');
    status = gac_new_file_write(file, head, (size_t)(end + 1 - head), &c->error);
    for (size_t i = 0; i < json_array_size(dims) && status == GAC_OK; i++) {
        char *line = NULL;
        size_t n_bytes = 0;
        status = gac_json_text(json_array_get(dims, i), 0, &line, &n_bytes, &c->error);
        if (status == GAC_OK)
            status = gac_new_file_write(file, i ? ",\n  " : "\n  ", i ? 4 : 3, &c->error);
        if (status == GAC_OK)
            status = gac_new_file_write(file, line, n_bytes, &c->error);
        free(line);
    }
    if (status == GAC_OK)
        status = gac_new_file_write(file, "\n ]\n}\n", 6, &c->error);
    free(head);
    if (status != GAC_OK) {
        gac_new_file_discard(file);
        return status;
    }
    return gac_new_file_commit(file, &c->error);
}

/* What solve went by, and what is proved of its answer. */
static void print_proof(const plan_command *o, const gac_plan *plan)
{
    bool least_bytes = o->args.options.max_time_ms > 0;
    printf("margin     %.3g %%, %s: a smaller gain counts as none\n", plan->margin_pct,
           plan->margin_stated ? "the contract's stated error"
                               : "assumed, since the contract states no error");
    if (!least_bytes && plan->limit_pct < o->args.options.max_overhead_pct)
        printf("limit      %.3f %% more bytes: up to %g %% more, the best found is %.3f ms, which "
               "is within the margin\n",
               plan->limit_pct, o->args.options.max_overhead_pct, plan->best_ms);
    printf("solve      %s: objective %.6g, bound %.6g %s\n",
           plan->optimal ? "proved optimal" : "not proved optimal", plan->objective, plan->bound,
           least_bytes ? "bytes" : "ms");
}

static void print_plan(const plan_command *o, const gac_model *model, const gac_plan *plan)
{
    const gac_plan_options *options = &o->args.options;
    if (plan->n_changed > 0)
        cli_print_changes(model, plan->sizes);
    else
        printf("  %s\n", no_change(options));
    printf("\nbytes      %+.3f %%\n", plan->overhead_pct);
    if (isnan(plan->now_ms)) {
        printf("times      not measured\n");
        return;
    }
    printf("predicted  %.3f ms now, %.3f ms planned (×%.2f), %s on %s\n", plan->now_ms,
           plan->planned_ms, plan->now_ms > 0 ? plan->planned_ms / plan->now_ms : 1,
           o->args.workload_text, gac_contract_name(o->args.contract));
    if (options->solve)
        print_proof(o, plan);
}

static gac_status make_plan(cli *c, plan_command *o, const gac_model *model)
{
    gac_plan plan;
    gac_status status = gac_plan_create(model, &o->args.options, &plan, &c->error);
    if (status != GAC_OK)
        return status;
    json_t *result = plan_result(c, o, model, &plan);
    if (o->out)
        status = write_plan(c, o, result);
    if (status == GAC_OK && c->json) {
        status = gac_json_print(stdout, result, &c->error);
    } else if (status == GAC_OK) {
        print_plan(o, model, &plan);
        if (o->out)
            printf("written    %s\n", o->out);
    }
    json_decref(result);
    gac_plan_dispose(&plan);
    return status;
}

static gac_status write_data(cli *c, const plan_command *o, const gac_front *front, double bytes)
{
    char line[160];
    gac_new_file *file;
    gac_status status = gac_new_file_create(o->data, o->force, &file, &c->error);
    if (status != GAC_OK)
        return status;
    int n = snprintf(line, sizeof line, "# extra_bytes overhead_pct time_ms\n");
    status = gac_new_file_write(file, line, (size_t)n, &c->error);
    for (int64_t i = 0; i < front->n_points && status == GAC_OK; i++) {
        n = snprintf(line, sizeof line, "%lld %.9g %.9g\n", (long long)front->points[i].cost,
                     100.0 * (double)front->points[i].cost / bytes, front->points[i].value);
        status = gac_new_file_write(file, line, (size_t)n, &c->error);
    }
    if (status != GAC_OK) {
        gac_new_file_discard(file);
        return status;
    }
    return gac_new_file_commit(file, &c->error);
}

static gac_status print_front_json(cli *c, const plan_command *o, const gac_front *front,
                                   double bytes)
{
    json_t *points = json_array();
    for (int64_t i = 0; i < front->n_points; i++)
        json_array_append_new(points, json_pack("{s:I, s:f, s:f}", "extra_bytes",
                                                (json_int_t)front->points[i].cost, "overhead_pct",
                                                100.0 * (double)front->points[i].cost / bytes,
                                                "time_ms", front->points[i].value));
    json_t *result = gac_json_result("gac.front/1", c->argc, c->argv);
    json_object_set_new(result, "contract", json_string(gac_contract_name(o->args.contract)));
    json_object_set_new(result, "workload", json_string(o->args.workload_text));
    json_object_set_new(result, "complete", json_boolean(front->complete));
    json_object_set_new(result, "n_unproved", json_integer(front->n_unproved));
    json_object_set_new(result, "points", points);
    gac_status status = gac_json_print(stdout, result, &c->error);
    json_decref(result);
    return status;
}

static gac_status make_front(cli *c, plan_command *o, const gac_model *model)
{
    enum { MAX_LINES = 40 };
    gac_front front;
    double bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(model));
    gac_status status = gac_plan_front(model, &o->args.options, &front, &c->error);
    if (status != GAC_OK)
        return status;
    if (o->data)
        status = write_data(c, o, &front, bytes);
    if (status == GAC_OK && c->json) {
        status = print_front_json(c, o, &front, bytes);
    } else if (status == GAC_OK) {
        int64_t step = (front.n_points + MAX_LINES - 1) / MAX_LINES;
        printf("%16s %12s %14s\n", "extra bytes", "growth %", "time ms");
        for (int64_t i = 0; i < front.n_points; i++)
            if (i % (step ? step : 1) == 0 || i + 1 == front.n_points)
                printf("%16lld %12.4f %14.4f\n", (long long)front.points[i].cost,
                       100.0 * (double)front.points[i].cost / bytes, front.points[i].value);
        printf("%lld points, %s; %s on %s\n", (long long)front.n_points,
               front.complete ? "the whole front" : "optima at budgets spread evenly",
               o->args.workload_text, gac_contract_name(o->args.contract));
    }
    gac_front_dispose(&front);
    return status;
}

static gac_status run(cli *c, int argc, char **argv)
{
    bool done = false;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    plan_command o = { .args = PLAN_ARGS_INIT };
    gac_status status = parse(c, argc, argv, &o, &done);
    if (status != GAC_OK || done)
        return status;
    status = cli_open_model(c, o.path, &checkpoint, &model);
    if (status == GAC_OK)
        status = plan_args_finish(c, &o.args, model);
    if (status == GAC_OK)
        status = o.pareto ? make_front(c, &o, model) : make_plan(c, &o, model);
    plan_args_dispose(&o.args);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    return status;
}

const command cmd_plan = { "plan", "choose a size for every dimension", help, run };
