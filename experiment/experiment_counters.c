/* Reads hardware counters through NVIDIA's profiler. It profiles a second
 * process that makes only one call. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CALLS 16
#define MAX_CSV_BYTES ((size_t)16 << 20)
#define TIMEOUT_S 120.0

#define TENSOR_USE "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
#define SECTORS "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
#define LOADS "smsp__sass_inst_executed_op_global_ld.sum"
#define LOADED "smsp__sass_data_bytes_mem_global_op_ld.sum"

/* They show the use of Tensor Cores, how well loads fill sectors, how wide
 * loads are, and how many bytes move. */
static const char *const metrics[] = {
    "gpu__time_duration.sum",
    TENSOR_USE,
    "sm__inst_executed_pipe_tensor.sum",
    "sm__inst_executed_pipe_tensor_op_hmma.sum",
    "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "sm__ops_path_tensor_src_fp16_dst_fp32.sum",
    SECTORS,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "smsp__inst_executed_op_global_ld.sum",
    "smsp__inst_executed_op_ldgsts.sum",
    LOADS,
    "smsp__sass_inst_executed_op_ldgsts.sum",
    LOADED,
    "lts__t_sectors_op_read.sum",
    "lts__t_bytes.sum",
    "dram__bytes_read.sum",
};
enum { N_METRICS = sizeof metrics / sizeof *metrics };

static json_t *unavailable(const char *reason)
{
    return json_pack("{s:b, s:s}", "available", 0, "reason", reason);
}

/* Returns the next field of a CSV line without its quotes, or NULL. It changes
 * the line. */
static char *next_field(char **at)
{
    char *from = *at, *to;
    if (!from)
        return NULL;
    if (*from != '"') {
        char *comma = strchr(from, ',');
        *at = comma ? comma + 1 : NULL;
        if (comma)
            *comma = 0;
        return from;
    }
    char *read = ++from;
    for (to = from; *read && !(*read == '"' && read[1] != '"'); read++) {
        if (*read == '"')
            read++;
        *to++ = *read;
    }
    if (*read)
        read++;
    *at = *read == ',' ? read + 1 : NULL;
    *to = 0;
    return from;
}

enum { COLUMN_ID, COLUMN_KERNEL, COLUMN_METRIC, COLUMN_VALUE, N_COLUMNS };

/* Reads one row. Rows are sorted by launch ID. */
static void take_row(char *line, const int *columns, json_t *launches)
{
    char *fields[N_COLUMNS] = { NULL }, *at = line, *field;
    for (int i = 0; (field = next_field(&at)) != NULL; i++)
        for (int c = 0; c < N_COLUMNS; c++)
            if (columns[c] == i)
                fields[c] = field;
    for (int c = 0; c < N_COLUMNS; c++)
        if (!fields[c])
            return;
    char number[64], kernel[200], metric[120], *end;
    size_t n = 0;
    for (const char *p = fields[COLUMN_VALUE]; *p && n + 1 < sizeof number; p++)
        if (*p != ',') /* thousands separator */
            number[n++] = *p;
    number[n] = 0;
    double value = strtod(number, &end);
    json_t *last = json_array_get(launches, json_array_size(launches) - 1);
    const char *id = json_string_value(json_object_get(last, "id"));
    if (!last || !id || strcmp(id, fields[COLUMN_ID]) != 0) {
        char quoted[40];
        last =
            json_pack("{s:s, s:s, s:{}}", "id", gac_quote(quoted, sizeof quoted, fields[COLUMN_ID]),
                      "kernel", gac_quote(kernel, sizeof kernel, fields[COLUMN_KERNEL]), "metrics");
        json_array_append_new(launches, last);
    }
    if (last && end != number && *end == 0 && isfinite(value))
        json_object_set_new(json_object_get(last, "metrics"),
                            gac_quote(metric, sizeof metric, fields[COLUMN_METRIC]),
                            json_real(value));
}

/* Adds the figures that claims use. A kernel that copies by TMA or past the
 * registers has no load width. */
static void derive(json_t *launch)
{
    json_t *all = json_object_get(launch, "metrics"), *derived = json_object();
    const json_t *use = json_object_get(all, TENSOR_USE), *ratio = json_object_get(all, SECTORS);
    double n_loads = json_number_value(json_object_get(all, LOADS));
    double n_bytes = json_number_value(json_object_get(all, LOADED));
    if (use)
        json_object_set_new(derived, "tensor_use_pct", json_real(json_number_value(use)));
    if (json_number_value(ratio) > 0)
        json_object_set_new(derived, "sectors_per_request", json_real(json_number_value(ratio)));
    if (json_object_get(all, LOADS))
        json_object_set_new(derived, "n_register_loads", json_real(n_loads));
    if (n_loads > 0 && n_bytes > 0)
        json_object_set_new(derived, "load_bytes_per_lane", json_real(n_bytes / n_loads / 32));
    json_object_set_new(launch, "derived", derived);
}

json_t *exp_counters_parse(const char *csv, int n_kernels)
{
    static const char *const names[N_COLUMNS] = { "ID", "Kernel Name", "Metric Name",
                                                  "Metric Value" };
    int columns[N_COLUMNS] = { -1, -1, -1, -1 };
    bool in_table = false;
    json_t *launches = json_array();
    char *text = strdup(csv), *rest = text, *line;
    while (text && (line = strsep(&rest, "\n")) != NULL) {
        line[strcspn(line, "\r")] = 0;
        if (line[0] != '"')
            continue;
        if (in_table) {
            take_row(line, columns, launches);
            continue;
        }
        char *at = line, *field;
        for (int i = 0; (field = next_field(&at)) != NULL; i++)
            for (int c = 0; c < N_COLUMNS; c++)
                if (strcmp(field, names[c]) == 0)
                    columns[c] = i;
        in_table = columns[COLUMN_ID] >= 0 && columns[COLUMN_VALUE] >= 0;
    }
    free(text);
    while (json_array_size(launches) > (size_t)(n_kernels > 0 ? n_kernels : 0))
        json_array_remove(launches, 0);
    if (json_array_size(launches) == 0) {
        json_decref(launches);
        return NULL;
    }
    size_t i;
    json_t *launch;
    json_array_foreach(launches, i, launch)
        derive(launch);
    return launches;
}

/* Joins the metrics that the profiler knows for this card, and lists the others
 * in unknown. If the profiler does not list its metrics, it is asked for all. */
static void choose_metrics(char *out, size_t size, json_t *unknown)
{
    char *argv[] = { (char *)"ncu", (char *)"--query-metrics", NULL };
    gac_child_output output = { 0 };
    bool asked = gac_spawn(argv, TIMEOUT_S, MAX_CSV_BYTES, NULL, NULL, &output, NULL) == GAC_OK &&
                 output.exit_code == 0 && strstr(output.text, "__");
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < N_METRICS; i++) {
        char base[120];
        snprintf(base, sizeof base, "%.*s ", (int)strcspn(metrics[i], "."), metrics[i]);
        if (asked && !strstr(output.text, base)) {
            json_array_append_new(unknown, json_string(metrics[i]));
            continue;
        }
        int k = snprintf(out + n, size - n, "%s%s", n ? "," : "", metrics[i]);
        n += k > 0 ? (size_t)k : 0;
    }
    free(output.text);
}

/* Profiles one call. Returns NULL with the reason in why. */
static json_t *profile(const gac_experiment *experiment, const exp_job *job, const char *list,
                       const gac_experiment_options *options, char *why, size_t size)
{
    const char *from = options->spec_path ? "--spec" : experiment->id;
    char *argv[20];
    int n = 0;
    const char *const fixed[] = {
        "ncu", "--clock-control", "none",       "--csv", "--print-units", "base", "--metrics",
        list,  options->program,  "experiment", from
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        argv[n++] = (char *)fixed[i];
    if (options->spec_path)
        argv[n++] = (char *)options->spec_path;
    argv[n++] = (char *)"--one-case";
    argv[n++] = (char *)job->key;
    argv[n++] = (char *)"--device";
    argv[n++] = (char *)(options->device ? options->device : "cuda");
    argv[n] = NULL;
    gac_child_output output = { 0 };
    gac_error local = GAC_ERROR_INIT;
    json_t *kernels = NULL;
    if (gac_spawn(argv, TIMEOUT_S, MAX_CSV_BYTES, NULL, NULL, &output, &local) != GAC_OK) {
        snprintf(why, size, "%s", local.text);
        return NULL;
    }
    if (json_array_size(job->kernels) > 0)
        kernels = exp_counters_parse(output.text, (int)json_array_size(job->kernels));
    if (!kernels) {
        /* The profiler prints its errors to stdout, before any table. */
        const char *said = strstr(output.text, "==ERROR==");
        char line[200], q[200];
        snprintf(line, sizeof line, "%.*s", said ? (int)strcspn(said, "\n") : 0, said ? said : "");
        snprintf(why, size, "ncu gave no counters (exit %d): %s", output.exit_code,
                 said                  ? gac_quote(q, sizeof q, line)
                 : output.last_line[0] ? output.last_line
                                       : "it did not say why");
    }
    free(output.text);
    return kernels;
}

/* Returns whether one of the selections includes the case. */
static bool is_wanted(const json_t *wanted, const exp_plan *plan, int32_t at)
{
    char why[160];
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        const json_t *one = json_array_get(wanted, i);
        if (exp_selected(plan, at, json_string_value(json_object_get(one, "sweep")),
                         json_string_value(json_object_get(one, "where")), why, sizeof why) == 1)
            return true;
    }
    return false;
}

json_t *exp_counters(const gac_experiment *experiment, const exp_plan *plan,
                     const gac_experiment_options *options)
{
    const json_t *wanted = json_object_get(experiment->spec, "counters");
    char list[N_METRICS * 80], why[400] = "";
    if (!wanted)
        return NULL;
    if (plan->stack != GAC_STACK_NATIVE)
        return unavailable("counters are taken under the native stack");
    if (!options->counters || !options->program)
        return unavailable("not requested (--counters)");
    json_t *calls = json_array(), *unknown = json_array();
    choose_metrics(list, sizeof list, unknown);
    int n_calls = 0;
    gac_progress_start(options->progress, "reading counters", "calls", MAX_CALLS);
    for (int32_t i = 0; i < plan->n_cases && n_calls < MAX_CALLS && !why[0]; i++) {
        const exp_cell *cell = exp_find_cell(plan, i, NULL);
        if (!cell || cell->n_uses == 0 || !is_wanted(wanted, plan, i))
            continue;
        const exp_job *job = &plan->jobs[plan->uses[cell->first_use].job];
        json_t *kernels = profile(experiment, job, list, options, why, sizeof why);
        gac_progress_step(options->progress, (uint64_t)++n_calls);
        if (kernels)
            json_array_append_new(calls, json_pack("{s:s, s:s, s:o}", "case", plan->cases[i].label,
                                                   "call", job->key, "kernels", kernels));
    }
    gac_progress_finish(options->progress);
    if (json_array_size(calls) == 0) {
        json_decref(calls);
        json_decref(unknown);
        return unavailable(why[0] ? why : "no case was selected for counters");
    }
    json_t *out =
        json_pack("{s:b, s:o, s:o}", "available", 1, "calls", calls, "unknown_metrics", unknown);
    if (why[0])
        json_object_set_new(out, "stopped", json_string(why));
    return out;
}
