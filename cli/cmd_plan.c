#include "front_plot.h"
#include "plan_args.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct plan_command {
    plan_args args;
    const char *out, *data;
    bool pareto, force;
} plan_command;

static const plan_command initial = { .args = PLAN_ARGS_INIT };

#define AT(member) .at = offsetof(plan_command, member)
static const opt options[] = {
    { "output", 'o', "FILE", "where to write the plan", OPT_TEXT, AT(out) },
    { "sizes", 0, NULL, "", OPT_GROUP, AT(args), .group = plan_args_options },
    { "allow", 0, NULL, "", OPT_GROUP, AT(args), .group = plan_args_allow },
    { "pareto", 0, NULL, "all plans that no other plan beats in both time and bytes", OPT_FLAG,
      AT(pareto) },
    { "data", 0, "FILE", "all points of --pareto, as columns for gnuplot", OPT_TEXT, AT(data) },
    { "force", 0, NULL, "replace FILE", OPT_FLAG, AT(force) },
    { 0 }
};

/* Explains why a plan changes nothing. */
static const char *no_change(const gac_plan_options *by)
{
    if (!by->solve)
        return "no change: every size that can grow is one that the strategy asks for";
    if (by->max_time_ms > 0)
        return "no change: the time is within the target as it is";
    return "no change pays: none gains more than the margin within the limit";
}

static json_t *plan_result(cli *c, const plan_command *o, const gac_model *model,
                           const gac_plan *plan)
{
    json_t *result = gac_json_result("gac.plan/1", c->argc, c->argv);
    json_t *body = gac_plan_to_json(plan, model);
    json_object_set_new(result, "contract", json_string(gac_contract_name(o->args.contract)));
    json_object_set_new(result, "workload", json_string(o->args.target.workload));
    json_object_set_new(result, "understood_pct", json_real(gac_model_understood_pct(model)));
    json_object_set_new(
        body, "objective_unit",
        json_string(o->args.options.solve && o->args.options.max_time_ms > 0 ? "bytes" : "ms"));
    if (plan->n_changed == 0)
        json_object_set_new(body, "note", json_string(no_change(&o->args.options)));
    json_object_update(result, body);
    json_decref(body);
    return result;
}

/* Writes the plan with one line per dimension, so that people can read and
 * compare it. */
static gac_status write_plan(cli *c, const plan_command *o, json_t *result)
{
    gac_new_file *file;
    char *head = NULL;
    json_t *dims = json_incref(json_object_get(result, "dims"));
    json_object_del(result, "dims"); /* dims come last */
    json_object_set_new(result, "dims", json_array());
    gac_status status =
        gac_json_text(result, JSON_INDENT(1) | JSON_REAL_PRECISION(12), &head, NULL, &c->error);
    json_object_set_new(result, "dims", dims);
    if (status == GAC_OK)
        status = cli_new_file(c, o->out, o->force, &file);
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
    return cli_finish_file(c, file, status);
}

/* Prints the margin and the limit of solve, and whether its answer is proved. */
static void print_proof(const plan_command *o, const gac_plan *plan)
{
    bool least_bytes = o->args.options.max_time_ms > 0;
    printf("margin     %.3g %%, %s: a smaller gain counts as none\n", plan->margin_pct,
           plan->margin_stated ? "the contract's stated error"
                               : "assumed, since the contract states no error");
    if (!least_bytes && plan->limit_pct < o->args.options.max_overhead_pct)
        printf("limit      %.3f %% more bytes; with up to %g %% more, the fastest plan found takes "
               "%.3f ms, a gain below the margin\n",
               plan->limit_pct, o->args.options.max_overhead_pct, plan->best_ms);
    colour shade = plan->optimal ? COLOUR_GOOD : COLOUR_WARN;
    printf("solve      %s%s%s: objective %.6g, bound %.6g %s\n", colour_on(stdout, shade),
           plan->optimal ? "proved optimal" : "not proved optimal", colour_off(stdout, shade),
           plan->objective, plan->bound, least_bytes ? "bytes" : "ms");
}

static gac_status print_plan(cli *c, const plan_command *o, const gac_model *model,
                             const gac_plan *plan)
{
    gac_status status = GAC_OK;
    if (plan->n_changed > 0)
        status = cli_print_changes(model, plan->sizes, &c->error);
    else
        printf("  %s\n", no_change(&o->args.options));
    char understood[32];
    printf("\nbytes      %+.3f %%\n", plan->overhead_pct);
    printf("understood %s of the parameters outside the vocabulary\n",
           cli_understood(understood, gac_model_understood_pct(model)));
    if (isnan(plan->now_ms)) {
        printf("times      not measured\n");
        return status;
    }
    printf("predicted  %.3f ms now, %.3f ms planned (×%.2f), %s on %s\n", plan->now_ms,
           plan->planned_ms, plan->now_ms > 0 ? plan->planned_ms / plan->now_ms : 1,
           o->args.target.workload, gac_contract_name(o->args.contract));
    if (o->args.options.solve)
        print_proof(o, plan);
    return status;
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
    bool written = o->out && status == GAC_OK;
    if (status == GAC_OK && c->json) {
        status = cli_print_result(c, result);
    } else if (status == GAC_OK) {
        status = print_plan(c, o, model, &plan);
        if (o->out)
            printf("written    %s\n", o->out);
    }
    if (status != GAC_OK && written)
        cli_report_failed(c, o->out, status);
    json_decref(result);
    gac_plan_dispose(&plan);
    return status;
}

static gac_status write_data(cli *c, const plan_command *o, const gac_front *front, double bytes)
{
    char line[160];
    gac_new_file *file;
    gac_status status = cli_new_file(c, o->data, o->force, &file);
    if (status != GAC_OK)
        return status;
    int n = snprintf(line, sizeof line, "# extra_bytes overhead_pct time_ms\n");
    status = gac_new_file_write(file, line, (size_t)n, &c->error);
    for (int64_t i = 0; i < front->n_points && status == GAC_OK; i++) {
        n = snprintf(line, sizeof line, "%lld %.9g %.9g\n", (long long)front->points[i].cost,
                     100.0 * (double)front->points[i].cost / bytes, front->points[i].value);
        status = gac_new_file_write(file, line, (size_t)n, &c->error);
    }
    return cli_finish_file(c, file, status);
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
    json_object_set_new(result, "workload", json_string(o->args.target.workload));
    json_object_set_new(result, "complete", json_boolean(front->complete));
    json_object_set_new(result, "n_unproved", json_integer(front->n_unproved));
    json_object_set_new(result, "points", points);
    gac_status status = cli_print_result(c, result);
    json_decref(result);
    return status;
}

/* Returns the distance of point i from the point before it, if the whole front
 * spans 1 in bytes and 1 in time. */
static double front_step(const gac_front *front, int64_t i)
{
    const gac_front_point *all = front->points, *last = &all[front->n_points - 1];
    if (i == 0)
        return 0;
    return hypot((double)(all[i].cost - all[i - 1].cost) / (double)(last->cost - all[0].cost),
                 (all[i - 1].value - all[i].value) / (all[0].value - last->value));
}

/* Prints all points, or MAX_LINES of them: both ends, and points at equal steps
 * along the front, so that both its steep and its flat parts are shown. */
static void print_front(const plan_command *o, const gac_front *front, double bytes)
{
    enum { MAX_LINES = 40 };
    double length = 0, walked = 0;
    int n_lines = 0;
    for (int64_t i = 0; i < front->n_points; i++)
        length += front_step(front, i);
    printf("%16s %12s %14s\n", "extra bytes", "growth %", "time ms");
    for (int64_t i = 0; i < front->n_points; i++) {
        walked += front_step(front, i);
        bool due = n_lines < MAX_LINES - 1 && walked >= length * n_lines / (MAX_LINES - 1);
        if (front->n_points > MAX_LINES && !due && i + 1 < front->n_points)
            continue;
        printf("%16lld %12.4f %14.4f\n", (long long)front->points[i].cost,
               100.0 * (double)front->points[i].cost / bytes, front->points[i].value);
        n_lines++;
    }
    printf("%lld points, %s; %s on %s\n", (long long)front->n_points,
           front->complete ? "the whole front" : "optima at budgets spread evenly",
           o->args.target.workload, gac_contract_name(o->args.contract));
    if (n_lines < front->n_points && o->data)
        printf("%d of them are shown; all are in %s\n", n_lines, o->data);
    else if (n_lines < front->n_points)
        printf("%d of them are shown; --data FILE, --format csv or --json gives all\n", n_lines);
    front_plot(front, bytes);
}

static gac_status make_front(cli *c, plan_command *o, const gac_model *model)
{
    gac_front front;
    double bytes = (double)gac_checkpoint_size_bytes(gac_model_checkpoint(model));
    gac_status status = gac_plan_front(model, &o->args.options, &front, &c->error);
    if (status != GAC_OK)
        return status;
    if (o->data)
        status = write_data(c, o, &front, bytes);
    if (status == GAC_OK && c->json)
        status = print_front_json(c, o, &front, bytes);
    else if (status == GAC_OK)
        print_front(o, &front, bytes);
    gac_front_dispose(&front);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    plan_command *o = filled;
    (void)n;
    if ((o->pareto && o->out) || (o->data && !o->pareto))
        return gac_error_set(&c->error, GAC_USAGE, "-o is for a plan, --data is for --pareto");
    static const char *const of_one[] = { "strategy", "max-overhead", "time-target" };
    for (size_t i = 0; o->pareto && i < sizeof of_one / sizeof *of_one; i++)
        if (cli_given(c, of_one[i]))
            return gac_error_set(&c->error, GAC_USAGE,
                                 "--%s chooses one plan; --pareto shows the plans that solve finds "
                                 "for every limit",
                                 of_one[i]);
    gac_status status = cli_open_model(c, arguments[0], &checkpoint, &model);
    if (status == GAC_OK)
        status = plan_args_finish(c, &o->args, model);
    if (status == GAC_OK)
        status = o->pareto ? make_front(c, o, model) : make_plan(c, o, model);
    plan_args_dispose(&o->args);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    return status;
}

const command cmd_plan = {
    .name = "plan",
    .summary = "choose a size for every dimension",
    .usage = "DIR [-o plan.json] [options]\nDIR --pareto [--data FILE]",
    .about = "Chooses a size for every dimension that can grow, and writes a plan that gac repair "
             "applies. The plan is JSON: read it, edit it, commit it.",
    .example = "./llama-svd --strategy solve --max-overhead 2 -o plan.json",
    COMMAND_RUNS(1, 1, "one directory"),
};
