#include "cli.h"
#include "experiment_text.h"

#include "experiment/experiment.h"
#include <errno.h>
#include <gac/device.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RESULT_BYTES ((size_t)64 << 20)
#define PAGE "report.html"
#define PAGE_OF_ALL "gac-experiments.html"

typedef struct request {
    int stacks; /* a bit for each gac_stack */
    bool list, quick, counters, force;
    bool all; /* of all experiments there is a page, with and without a folder */
    const char *out, *spec, *device, *one_case, *judge;
} request;

enum { NATIVE = 1 << GAC_STACK_NATIVE, PYTORCH = 1 << GAC_STACK_PYTORCH };

static const request initial = { .stacks = NATIVE };

static const opt_choice stacks[] = { { "native", NATIVE, false },
                                     { "pytorch", PYTORCH, false },
                                     { "both", NATIVE | PYTORCH, false },
                                     { 0 } };

static bool uses(const request *r, int stack)
{
    return r->stacks >> stack & 1;
}

#define AT(member) .at = offsetof(request, member)
static const opt options[] = {
    { "stack", 0, "STACK",
      "what runs the operators: native (our plug-in, the default), pytorch (what its users see; "
      "runs python3, or the "
      "GAC_PYTHON of the environment) or both",
      OPT_CHOICE, AT(stacks), .choices = stacks, .old = "lens" },
    { "output", 'o', "PATH",
      "write the JSON result to a file, or, if PATH ends in /, one file ID.STACK.json per "
      "experiment and stack and a page of them all, " PAGE,
      OPT_TEXT, AT(out) },
    { "force", 0, NULL, "replace existing files", OPT_FLAG, AT(force) },
    { "quick", 0, NULL, "fewer cases and samples, for a first look", OPT_FLAG, AT(quick) },
    { "counters", 0, NULL, "hardware counters through ncu, where an experiment asks for them",
      OPT_FLAG, AT(counters) },
    { "spec", 0, "FILE", "run a specification of your own; published.json is read beside it",
      OPT_TEXT, AT(spec) },
    { "judge", 0, "FILE", "judge a result again, from its recorded calls; nothing is measured",
      OPT_TEXT, AT(judge) },
    { "device", 0, "D", "which GPU: cuda or cuda:N", OPT_TEXT, AT(device) },
    { "one-case", 0, "CASE", "run one call for ncu", OPT_TEXT, AT(one_case), .hidden = true },
    { "list", 0, NULL, "list the experiments", OPT_FLAG, AT(list) },
    { 0 }
};

static gac_status list_experiments(cli *c)
{
    json_t *result = gac_json_result("gac.experiments/1", c->argc, c->argv), *rows = json_array();
    gac_status status = GAC_OK;
    for (int i = 0; i < gac_experiment_n_bundled() && status == GAC_OK; i++) {
        gac_experiment *e;
        int64_t n_cases = 0, n_calls = 0;
        status = gac_experiment_load_index(i, &e, &c->error);
        if (status != GAC_OK)
            break;
        status = gac_experiment_count(e, GAC_STACK_NATIVE, false, &n_cases, &n_calls, &c->error);
        json_array_append_new(rows, json_pack("{s:s, s:s, s:I, s:I}", "id", gac_experiment_id(e),
                                              "title", gac_experiment_title(e), "n_cases",
                                              (json_int_t)n_cases, "n_calls", (json_int_t)n_calls));
        if (!c->json && status == GAC_OK)
            printf("%-10s %5lld cases  %s\n", gac_experiment_id(e), (long long)n_cases,
                   gac_experiment_title(e));
        gac_experiment_free(e);
    }
    json_object_set_new(result, "experiments", rows);
    if (c->json && status == GAC_OK)
        status = cli_print_result(c, result);
    json_decref(result);
    return status;
}

/* Loads the requested experiments. out has room for all that exist. */
static gac_status load_experiments(cli *c, const request *r, int n_ids, const char **ids,
                                   gac_experiment **out, int *n)
{
    *n = 0;
    if (r->spec) {
        if (n_ids > 0)
            return gac_error_set(&c->error, GAC_USAGE, "--spec and IDs exclude each other");
        gac_status status = gac_experiment_load(r->spec, &out[0], &c->error);
        *n = status == GAC_OK;
        return status;
    }
    if (n_ids == 0)
        return gac_error_set(
            &c->error, GAC_USAGE,
            "experiment takes IDs, all, or --spec FILE; see gac experiment --list");
    bool all = n_ids == 1 && strcmp(ids[0], "all") == 0;
    int wanted = all ? gac_experiment_n_bundled() : n_ids;
    for (int i = 0; i < wanted; i++) {
        gac_status status = all ? gac_experiment_load_index(i, &out[i], &c->error)
                                : gac_experiment_load_bundled(ids[i], &out[i], &c->error);
        if (status != GAC_OK)
            return status;
        ++*n;
    }
    return GAC_OK;
}

static gac_status write_json(cli *c, const char *path, bool force, const json_t *value)
{
    return cli_write_json(c, path, force, value, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
}

static bool is_folder(const char *path)
{
    return path && path[0] && path[strlen(path) - 1] == '/';
}

/* Creates the folder of results unless it exists. */
static gac_status make_folder(cli *c, const char *path, bool *made)
{
    char q[200];
    *made = mkdir(path, 0777) == 0;
    if (*made || errno == EEXIST)
        return GAC_OK;
    return gac_error_set(&c->error, GAC_FAILED, "%s: %s", gac_quote(q, sizeof q, path),
                         strerror(errno));
}

/* Writes the path of one result in the folder. */
static gac_status name_file(cli *c, const request *r, const gac_experiment *e, int stack,
                            char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s%s.%s.json", r->out, gac_experiment_id(e),
                     gac_stack_name((gac_stack)stack));
    return n < PATH_MAX ? GAC_OK : gac_error_set(&c->error, GAC_USAGE, "-o: the path is too long");
}

static gac_status name_page(cli *c, const request *r, char path[PATH_MAX])
{
    if (!is_folder(r->out)) {
        strcpy(path, PAGE_OF_ALL);
        return GAC_OK;
    }
    return snprintf(path, PATH_MAX, "%s" PAGE, r->out) < PATH_MAX
               ? GAC_OK
               : gac_error_set(&c->error, GAC_USAGE, "-o: the path is too long");
}

/* Checks that the page and all results can be written to the folder. */
static gac_status check_files(cli *c, const request *r, gac_experiment **list, int n)
{
    char path[PATH_MAX];
    gac_status status = name_page(c, r, path);
    if (status == GAC_OK)
        status = cli_check_target(c, path, r->force);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(gac_experiment_id(list[i]), gac_experiment_id(list[j])) == 0)
                return gac_error_set(&c->error, GAC_USAGE, "%s is there twice, for one file",
                                     gac_experiment_id(list[i]));
    for (int i = 0; i < n; i++)
        for (int stack = 0; stack < GAC_STACK_COUNT && status == GAC_OK; stack++) {
            if (uses(r, stack))
                status = name_file(c, r, list[i], stack, path);
            if (uses(r, stack) && status == GAC_OK)
                status = cli_check_target(c, path, r->force);
        }
    return status;
}

/* Fails before anything is measured if the output cannot be written. A folder
 * made for this check is removed again. */
static gac_status check_output(cli *c, const request *r, gac_experiment **list, int n)
{
    char q[200];
    bool made = false;
    struct stat s;
    if (!is_folder(r->out) && stat(r->out, &s) == 0 && S_ISDIR(s.st_mode))
        return gac_error_set(&c->error, GAC_FAILED,
                             "%s: is a directory; end the path with / to write a file per result",
                             gac_quote(q, sizeof q, r->out));
    if (!is_folder(r->out))
        return cli_check_target(c, r->out, r->force);
    gac_status status = make_folder(c, r->out, &made);
    if (status == GAC_OK)
        status = check_files(c, r, list, n);
    if (made)
        rmdir(r->out);
    return status;
}

static gac_status keep(cli *c, const request *r, const gac_experiment *e, gac_stack stack,
                       const json_t *result)
{
    char path[PATH_MAX];
    bool made = false;
    gac_status status = name_file(c, r, e, (int)stack, path);
    if (status == GAC_OK)
        status = make_folder(c, r->out, &made);
    if (status == GAC_OK)
        status = write_json(c, path, r->force, result);
    if (status != GAC_OK && made)
        rmdir(r->out); /* fails if it has a file */
    return status;
}

/* Runs one experiment on one stack and shows or keeps the result. */
static gac_status run_one(cli *c, const request *r, const gac_experiment *e, gac_stack stack,
                          gac_device *device, json_t *results)
{
    char program[PATH_MAX] = "";
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    gac_experiment_options by = { .quick = r->quick,
                                  .counters = r->counters,
                                  .device = r->device,
                                  .program = n > 0 ? program : NULL,
                                  .spec_path = r->spec,
                                  .progress = c->progress };
    json_t *found = NULL, *result = gac_json_result("gac.experiment/1", c->argc, c->argv);
    gac_log_write(&c->log, 1, "%s, %s stack", gac_experiment_id(e), gac_stack_name(stack));
    gac_status status = result ? gac_experiment_run(e, stack, device, &by, &found, &c->error)
                               : gac_error_no_memory(&c->error);
    if (status == GAC_OK) {
        json_object_update(result, found);
        json_array_append(results, result);
        if (is_folder(r->out))
            status = keep(c, r, e, stack, result);
        if (!c->json)
            experiment_print(stdout, result, c->log.level > 0);
        fflush(stdout);
    }
    json_decref(found);
    json_decref(result);
    return status;
}

/* Writes a page of all results into their folder. */
static gac_status leave_page(cli *c, const request *r, const json_t *results)
{
    char path[PATH_MAX];
    gac_status status = name_page(c, r, path);
    if (status == GAC_OK)
        status = cli_leave_page(c, results, "GAC experiments", path, r->force);
    if (status != GAC_OK && r->out)
        cli_report_failed(c, r->out, status);
    else if (status == GAC_OK && !c->json)
        printf("page       %s\n", path);
    return status;
}

/* Writes a single result as it is, several as a list. */
static gac_status deliver(cli *c, const request *r, json_t *results)
{
    gac_status status = GAC_OK;
    bool one = json_array_size(results) == 1;
    if (json_array_size(results) == 0)
        return GAC_OK;
    json_t *whole = one ? json_incref(json_array_get(results, 0))
                        : gac_json_result("gac.experiments/1", c->argc, c->argv);
    if (!one)
        json_object_set(whole, "results", results);
    if (r->out && !is_folder(r->out))
        status = write_json(c, r->out, r->force, whole);
    if (status == GAC_OK && c->json)
        status = cli_print_result(c, whole);
    if (status == GAC_OK && (r->all || is_folder(r->out)))
        status = leave_page(c, r, results);
    json_decref(whole);
    return status;
}

/* Returns the first entry whose key has this text, or NULL. */
static const json_t *find_entry(const json_t *list, const char *key, const char *value)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_object_get(json_array_get(list, i), key));
        if (text && strcmp(text, value) == 0)
            return json_array_get(list, i);
    }
    return NULL;
}

/* Finds the worst problem of one result: a wrong output, an output that could
 * not be compared, or claims of which nothing was measured. */
static gac_status check_result(cli *c, const json_t *one)
{
    const json_t *checks = json_object_get(one, "checks"),
                 *summary = json_object_get(one, "summary");
    const char *id = json_string_value(json_object_get(one, "id"));
    const char *stack = experiment_stack_title(one);
    const json_t *lost = NULL;
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        if (json_is_false(json_object_get(check, "ran")))
            lost = check;
        else if (json_is_false(json_object_get(check, "holds")))
            return gac_error_set(&c->error, GAC_CHECK,
                                 "%s, %s stack: a check of outputs does not hold", id, stack);
    }
    if (lost)
        return gac_error_set(&c->error, GAC_NO_RESOURCE,
                             "%s, %s stack: a check of outputs could not run: %s", id, stack,
                             json_string_value(json_object_get(lost, "reason")));
    lost = find_entry(json_object_get(one, "claims"), "verdict", "not measured");
    const json_t *calls = json_object_get(one, "calls");
    gac_status status = find_entry(calls, "state", "throttled") ? GAC_FAILED : GAC_NO_RESOURCE;
    if (lost && ((json_is_null(json_object_get(lost, "ours")) &&
                  json_integer_value(json_object_get(summary, "measured")) == 0) ||
                 !find_entry(calls, "state", "measured")))
        return gac_error_set(&c->error, status, "%s, %s stack: nothing was measured: %s", id, stack,
                             json_string_value(json_object_get(lost, "reason")));
    return GAC_OK;
}

/* Reports the first problem of the results, but a wrong output before all others. */
static gac_status check_all(cli *c, const json_t *results)
{
    gac_status status = GAC_OK;
    for (size_t i = 0; i < json_array_size(results) && status != GAC_CHECK; i++) {
        gac_error before = c->error;
        gac_status one = check_result(c, json_array_get(results, i));
        if (status == GAC_OK || one == GAC_CHECK)
            status = one;
        else
            c->error = before;
    }
    return status;
}

static gac_status run_all(cli *c, const request *r, gac_experiment **list, int n)
{
    gac_device *device = NULL;
    json_t *results = json_array();
    gac_status status = r->out ? check_output(c, r, list, n) : GAC_OK;
    if (status == GAC_OK && r->all && !is_folder(r->out))
        status = cli_check_target(c, PAGE_OF_ALL, r->force);
    if (status == GAC_OK && (uses(r, GAC_STACK_NATIVE) || r->one_case))
        status = cli_open_gpu(c, r->device ? r->device : "cuda", &device);
    if (status == GAC_OK && r->one_case) {
        status = gac_experiment_run_call(list[0], device, r->one_case, &c->error);
    } else {
        for (int i = 0; i < n && status == GAC_OK; i++)
            for (int stack = 0; stack < GAC_STACK_COUNT && status == GAC_OK; stack++)
                if (uses(r, stack))
                    status = run_one(c, r, list[i], (gac_stack)stack, device, results);
        /* Keep the results that were measured before a failure. */
        gac_error failure = c->error;
        gac_status delivered = deliver(c, r, results);
        if (status != GAC_OK)
            c->error = failure;
        else
            status = delivered;
        if (status == GAC_OK)
            status = check_all(c, results);
    }
    gac_device_close(device);
    json_decref(results);
    return status;
}

/* Judges the result in a file again. The experiment comes from --spec, or is a
 * bundled one. */
static gac_status judge_again(cli *c, const request *r)
{
    gac_error local = GAC_ERROR_INIT;
    gac_file *file = NULL;
    gac_experiment *e = NULL;
    json_t *result = NULL;
    char q[200];
    gac_status status = r->out ? cli_check_target(c, r->out, r->force) : GAC_OK;
    if (status == GAC_OK)
        status = gac_file_open(r->judge, &file, &c->error);
    if (status == GAC_OK)
        status = gac_json_load(file, MAX_RESULT_BYTES, &result, &c->error);
    gac_file_close(file);
    const char *id = json_string_value(json_object_get(result, "id"));
    if (status == GAC_OK && !id)
        status = gac_error_set(&c->error, GAC_BAD_INPUT,
                               json_object_get(result, "results")
                                   ? "%s: has several results, which -o FOLDER/ writes one by one"
                                   : "%s: is no result of an experiment",
                               gac_quote(q, sizeof q, r->judge));
    if (status == GAC_OK)
        status = r->spec ? gac_experiment_load(r->spec, &e, &c->error)
                         : gac_experiment_load_bundled(id, &e, &c->error);
    if (status == GAC_OK && gac_experiment_judge(e, result, &local) != GAC_OK)
        status = gac_error_set(&c->error, local.status, "%s: %s", gac_quote(q, sizeof q, r->judge),
                               local.text);
    if (status == GAC_OK && r->out)
        status = write_json(c, r->out, r->force, result);
    if (status == GAC_OK && c->json)
        status = cli_print_result(c, result);
    else if (status == GAC_OK)
        experiment_print(stdout, result, c->log.level > 0);
    gac_experiment_free(e);
    json_decref(result);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    request *r = filled;
    r->all = n == 1 && strcmp(arguments[0], "all") == 0;
    if (r->list)
        return n == 0 ? list_experiments(c)
                      : gac_error_set(&c->error, GAC_USAGE, "--list takes no IDs");
    if (r->judge)
        return n == 0 && !r->one_case && !r->quick && !r->counters
                   ? judge_again(c, r)
                   : gac_error_set(&c->error, GAC_USAGE,
                                   "--judge takes one file, and measures nothing");
    int n_loaded = 0, room = n + 1 + gac_experiment_n_bundled();
    gac_experiment **list = calloc((size_t)room, sizeof *list);
    if (!list)
        return gac_error_no_memory(&c->error);
    gac_status status = load_experiments(c, r, n, arguments, list, &n_loaded);
    if (status == GAC_OK)
        status = run_all(c, r, list, n_loaded);
    for (int i = 0; i < room; i++)
        gac_experiment_free(list[i]);
    free(list);
    return status;
}

const command cmd_experiment = {
    .name = "experiment",
    .summary = "run published experiments on this GPU",
    .usage = "ID... | all [options]\n--spec FILE [options]\n--judge RESULT [-o FILE]\n--list",
    .about =
        "Runs published experiments on this GPU, computes what they claimed, and says of each "
        "claim whether it is reproduced, stronger, weaker, contradicted or ambiguous here, and "
        "which kernels ran. Published A100 times stand beside ours; only ratios are judged. A run "
        "of "
        "all leaves a page of figures and tables: " PAGE_OF_ALL ", or in the folder of -o.",
    .example = "S1 P1 --stack both -o results/",
    .options = options,
    .most = -1,
    .takes = "IDs, all, or --spec FILE",
    .words = "all",
    .size = sizeof initial,
    .initial = &initial,
    .run = run,
};
