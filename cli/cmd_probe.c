#include "plan_args.h"

#include <gac/device.h>
#include <gac/probe.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DTYPES = 8, MAX_RUNTIME_BYTES = 1 << 20 };

typedef struct probe_command {
    const char *out, *device, *raw, *runtime, *model, *workload, *base, *attention;
    gac_probe_pytorch pytorch;
    bool force;
    int allow_rescaled;
    gac_dtype dtypes[MAX_DTYPES];
    gac_probe_options options;
} probe_command;

static const probe_command initial = { .device = "cuda",
                                       .workload = GAC_DEFAULT_WORKLOAD,
                                       .attention = "auto",
                                       .options = GAC_PROBE_OPTIONS_INIT };

/* Reads --dtype. member is the whole probe_command. */
static gac_status take_dtypes(void *member, const char *list, gac_error *err)
{
    probe_command *o = member;
    char name[32], q[80];
    o->options.n_dtypes = 0;
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        size_t n = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 31, at);
        gac_dtype dtype;
        if (!gac_dtype_parse(name, &dtype))
            return gac_error_set(err, GAC_USAGE, "\"%s\" is not a list of dtypes, such as F16,BF16",
                                 gac_quote(q, sizeof q, list));
        if (o->options.n_dtypes == MAX_DTYPES)
            return gac_error_set(err, GAC_USAGE, "at most %d", MAX_DTYPES);
        for (int i = 0; i < o->options.n_dtypes; i++)
            if (o->dtypes[i] == dtype)
                return gac_error_set(err, GAC_USAGE, "%s is there twice", name);
        o->dtypes[o->options.n_dtypes++] = dtype;
    }
    return GAC_OK;
}

#define AT(member) .at = offsetof(probe_command, member)
static const opt table[] = {
    { "output", 'o', "FILE", "where to write the contract", OPT_TEXT, AT(out) },
    { "name", 0, "NAME", "the contract's name (default: from the GPU's)", OPT_TEXT,
      AT(options.name) },
    { "device", 0, "cuda[:N]", "which GPU (default cuda)", OPT_TEXT, AT(device) },
    { "dtype", 0, "D,...", "dtypes to measure: F16 (default), BF16, F8_E4M3, ...", OPT_CALL,
      .at = 0, .take = take_dtypes },
    { "attention", 0, "A",
      "who serves attention that cuDNN declines: pytorch (what users of PyTorch get; needs python3 "
      "with torch), own (gac's kernel), or auto (default: pytorch where it is there)",
      OPT_TEXT, AT(attention) },
    { "quick", 0, NULL, "coarse tables: a first look in seconds", OPT_FLAG, AT(options.quick) },
    { "max-time", 0, "S", "seconds per dtype (default 255); tables get coarser to keep it",
      OPT_REAL, AT(options.max_time_s), .above = true },
    { "seed", 0, "S", "seed of the held-out shapes (default 1)", OPT_INT, AT(options.seed) },
    { "raw", 0, "FILE", "also write every point with all its samples", OPT_TEXT, AT(raw) },
    { "runtime", 0, "FILE",
      "time that a runtime adds per layer, from tools/contract/measure_runtime.py", OPT_TEXT,
      AT(runtime) },
    { "model", 0, "DIR",
      "measure exactly the operator shapes of that model at every size gac plan --strategy solve "
      "considers, and add them to a contract",
      OPT_TEXT, AT(model) },
    { "workload", 0, "W", "workload of that model (default " GAC_DEFAULT_WORKLOAD ")", OPT_TEXT,
      AT(workload) },
    { "allow", 0, "rescaled",
      "also measure the sizes that gac plan considers with --allow rescaled", OPT_CHOICE,
      AT(allow_rescaled), .choices = cli_rescaled },
    { "contract", 0, "BASE",
      "name or file of the contract to add to, of this GPU (default: the bundled one, else a fresh "
      "probe)",
      OPT_TEXT, AT(base) },
    { "force", 0, NULL, "replace existing files", OPT_FLAG, AT(force) },
    { 0 }
};

/* Returns whether text has 1 to 64 visible characters. */
static bool is_name(const char *text)
{
    size_t n = strlen(text);
    for (const char *at = text; *at; at++)
        if (*at <= ' ' || *at > '~')
            return false;
    return n >= 1 && n <= 64;
}

/* Finds errors in the options before anything is measured. */
static gac_status check_options(cli *c, const probe_command *o)
{
    const char *wrong = NULL;
    gac_workload workload;
    if (!o->out)
        wrong = "probe needs -o FILE; see gac probe --help";
    else if (!o->model && (cli_given(c, "workload") || o->base || o->allow_rescaled))
        wrong = "--workload, --allow and --contract go with --model";
    else if (o->model && o->options.n_dtypes > 1)
        wrong = "--model takes one dtype: probe once for each, from one file to the next";
    else if (strcmp(o->attention, "auto") != 0 && strcmp(o->attention, "pytorch") != 0 &&
             strcmp(o->attention, "own") != 0)
        wrong = "--attention takes auto, pytorch or own";
    else if (o->raw && strcmp(o->raw, o->out) == 0)
        wrong = "-o and --raw name the same file";
    else if (o->options.name && !is_name(o->options.name))
        wrong = "--name takes 1 to 64 letters, digits and signs, without spaces";
    if (wrong)
        return gac_error_set(&c->error, GAC_USAGE, "%s", wrong);
    return gac_workload_parse(o->workload, &workload, &c->error);
}

static gac_status write_file(cli *c, const char *path, bool force, const json_t *value)
{
    char *text = gac_probe_text(value);
    gac_status status =
        text ? cli_write_file(c, path, force, text) : gac_error_no_memory(&c->error);
    free(text);
    return status;
}

static gac_status load_runtime(cli *c, const char *path, json_t **out)
{
    char q[200];
    gac_file *file = NULL;
    gac_status status = gac_file_open(path, &file, &c->error);
    if (status == GAC_OK)
        status = gac_json_load(file, MAX_RUNTIME_BYTES, out, &c->error);
    gac_file_close(file);
    if (status == GAC_OK && !json_is_object(*out))
        status = gac_error_set(&c->error, GAC_BAD_INPUT, "%s: must be a JSON object",
                               gac_quote(q, sizeof q, path));
    if (status == GAC_OK)
        json_object_del(
            *out,
            "runs"); /* the contract does not repeat the runs that the runtime was fitted to */
    return status;
}

/* Returns the bundled contract of the GPU, or NULL. */
static gac_contract *bundled_of(const char *gpu)
{
    for (int i = 0; i < gac_contract_n_bundled(); i++) {
        gac_contract *contract = NULL;
        if (gac_contract_load_bundled(gac_contract_bundled_name(i), &contract, NULL) == GAC_OK &&
            strcmp(gac_contract_gpu(contract), gpu) == 0)
            return contract;
        gac_contract_free(contract);
    }
    return NULL;
}

/* Finds the contract that a model's points are added to. Without one, the GPU
 * is probed first. */
static gac_status find_base(cli *c, const probe_command *o, gac_device *device, gac_contract **out)
{
    if (o->base)
        return cli_contract_named(c, o->base, out);
    *out = bundled_of(gac_device_describe(device)->name);
    if (*out)
        return GAC_OK;
    gac_log_write(&c->log, 0, "no bundled contract of %s: probing it first",
                  gac_device_describe(device)->name);
    json_t *fresh = NULL;
    gac_status status = gac_probe_run(device, &o->options, &fresh, NULL, &c->error);
    char *text = status == GAC_OK ? gac_probe_text(fresh) : NULL;
    json_decref(fresh);
    if (status == GAC_OK)
        status = text ? gac_contract_parse(text, strlen(text), "the fresh probe", out, &c->error)
                      : gac_error_no_memory(&c->error);
    free(text);
    return status;
}

/* Checks that the contract is for this GPU. */
static gac_status check_base(cli *c, const probe_command *o, gac_device *device,
                             const gac_contract *base)
{
    char q[80];
    const char *gpu = gac_device_describe(device)->name;
    if (strcmp(gac_contract_gpu(base), gpu) == 0)
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE, "--contract: %s is of %s, and this is %s", o->base,
                         gac_quote(q, sizeof q, gac_contract_gpu(base)), gpu);
}

static gac_status list_shapes(cli *c, const probe_command *o, const gac_model *model,
                              const gac_contract *base, gac_dtype *dtype, gac_plan_shapes *out)
{
    gac_dtype wanted;
    gac_workload workload;
    gac_plan_options options = { .workload = &workload, .solve = true };
    options.allow_rescaled = o->allow_rescaled;
    options.target = (gac_target){ .contract = base, .n_gpus = 1 };
    options.max_overhead_pct = GAC_DEFAULT_OVERHEAD_PCT;
    const char *name = o->options.n_dtypes > 0 ? gac_dtype_name(o->dtypes[0]) : NULL;
    gac_status status = gac_workload_parse(o->workload, &workload, &c->error);
    if (status == GAC_OK)
        status = cli_dtype(c, name, model, base, &wanted, dtype);
    options.target.dtype = status == GAC_OK ? *dtype : GAC_DTYPE_F16;
    return status == GAC_OK ? gac_plan_list_shapes(model, &options, out, &c->error) : status;
}

static gac_status probe_model(cli *c, const probe_command *o, gac_device *device,
                              const gac_model *model, json_t **contract, json_t **raw)
{
    gac_contract *base = NULL;
    gac_plan_shapes shapes = { 0 };
    gac_gemm_shape *gemm = NULL;
    gac_dtype dtype = GAC_DTYPE_F16;
    gac_probe_options options = o->options;
    probe_command fresh = *o;
    if (fresh.options.n_dtypes == 0) {
        fresh.dtypes[0] = GAC_DTYPE_F16;
        fresh.options.n_dtypes = 1;
    }
    fresh.options.dtypes = fresh.dtypes;
    gac_status status = find_base(c, &fresh, device, &base);
    if (status == GAC_OK)
        status = check_base(c, o, device, base);
    if (status == GAC_OK)
        status = list_shapes(c, o, model, base, &dtype, &shapes);
    if (status == GAC_OK && !(gemm = calloc(shapes.n_gemm + 1, sizeof *gemm)))
        status = gac_error_no_memory(&c->error);
    for (size_t i = 0; i < shapes.n_gemm && status == GAC_OK; i++)
        gemm[i] =
            (gac_gemm_shape){ .m = shapes.gemm[i].m, .n = shapes.gemm[i].n, .k = shapes.gemm[i].k };
    options.dtypes = &dtype;
    options.n_dtypes = 1;
    if (status == GAC_OK)
        status = gac_probe_shapes(device, &options, base, gemm, shapes.n_gemm, shapes.sdpa,
                                  shapes.n_sdpa, contract, raw, &c->error);
    free(gemm);
    gac_plan_shapes_dispose(&shapes);
    gac_contract_free(base);
    return status;
}

/* Uses PyTorch as fallback if it answers. Logs a note if it does not and
 * --attention is auto. */
static gac_status choose_attention(cli *c, probe_command *o)
{
    if (strcmp(o->attention, "own") == 0)
        return GAC_OK;
    gac_task_spec spec = { .kind = GAC_TASK_SDPA, .dtype = GAC_DTYPE_F16 };
    spec.sdpa.shape = (gac_sdpa_shape){ 1, 1, 1, 64, 64, 107, 107, false };
    gac_probe_served served;
    char stack[96];
    gac_error why = GAC_ERROR_INIT;
    o->pytorch = (gac_probe_pytorch){ .device = strchr(o->device, ':') ? o->device : NULL,
                                      .quick = o->options.quick };
    gac_status status = gac_probe_ask_pytorch(&o->pytorch, &spec, 1, false, &served, stack, &why);
    if (status == GAC_OK) {
        o->options.fallback = gac_probe_ask_pytorch;
        o->options.fallback_context = &o->pytorch;
        return GAC_OK;
    }
    if (strcmp(o->attention, "pytorch") == 0)
        return gac_error_set(&c->error, status, "%s", why.text);
    gac_log_write(&c->log, 0, "attention that cuDNN declines is served by gac's own kernel: %s",
                  why.text);
    return GAC_OK;
}

static gac_status measure(cli *c, probe_command *o, gac_device *device, json_t **contract,
                          json_t **raw)
{
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    gac_status status;
    if (o->model) {
        status = cli_open_model(c, o->model, &checkpoint, &model);
        if (status == GAC_OK)
            status = probe_model(c, o, device, model, contract, o->raw ? raw : NULL);
        gac_model_free(model);
        gac_checkpoint_close(checkpoint);
        return status;
    }
    if (o->options.n_dtypes == 0)
        o->dtypes[o->options.n_dtypes++] = GAC_DTYPE_F16;
    return gac_probe_run(device, &o->options, contract, o->raw ? raw : NULL, &c->error);
}

static void print_ranking(const char *dtype, const json_t *row, const char *where)
{
    const json_t *right = json_object_get(row, "right_pct");
    if (!right)
        return;
    printf("  %-8s ranking    %.1f %% of %lld pairs over 5 %% apart in the right order", dtype,
           json_number_value(right),
           (long long)json_integer_value(json_object_get(row, "n_over_5_pct")));
    printf(", %s\n", where);
}

static void print_accuracy(const json_t *part, const char *what)
{
    const char *dtype;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)part, dtype, value) {
        double median_pct = json_number_value(json_object_get(value, "median_pct"));
        double p95_pct = json_number_value(json_object_get(value, "p95_pct"));
        printf(
            "  %-8s %-10s %lld held-out shapes: median error %.1f %%, 95th percentile %.1f %%%s\n",
            dtype, what, (long long)json_integer_value(json_object_get(value, "n_points")),
            median_pct, p95_pct,
            median_pct > GAC_ROUGH_MEDIAN_PCT || p95_pct > GAC_ROUGH_P95_PCT
                ? ": rough, give it more time"
                : "");
    }
}

/* Prints how well the contract predicted a model's shapes, and how well a
 * second measurement agrees. */
static void print_model(const char *dtype, const json_t *row)
{
    const json_t *predicted = json_object_get(row, "predicted");
    const json_t *measured = json_object_get(row, "measured");
    const json_t *said = json_object_get(predicted, "right_pct");
    const json_t *again = json_object_get(measured, "right_pct");
    printf("  %-8s predicted before: median error %.1f %%, 95th percentile %.1f %%", dtype,
           json_number_value(json_object_get(row, "median_pct")),
           json_number_value(json_object_get(row, "p95_pct")));
    if (said)
        printf("; %.1f %% of %lld pairs of candidates over 5 %% apart in the right order",
               json_number_value(said),
               (long long)json_integer_value(json_object_get(predicted, "n_over_5_pct")));
    if (again)
        printf("; measured again, %.1f %% of %lld", json_number_value(again),
               (long long)json_integer_value(json_object_get(measured, "n_over_5_pct")));
    printf("\n");
}

static gac_status report(cli *c, const probe_command *o, const json_t *contract)
{
    static const char *const keys[] = { "name",    "gpu",      "arch", "stack",
                                        "sources", "accuracy", "noise" };
    const json_t *accuracy = json_object_get(contract, "accuracy");
    const json_t *noise = json_object_get(contract, "noise");
    if (!c->json) {
        const char *dtype;
        json_t *value;
        printf("%s: %s, %zu exact points; look with gac contract show\n", o->out,
               json_string_value(json_object_get(contract, "gpu")),
               json_array_size(json_object_get(contract, "points")));
        if (o->model) {
            const json_t *sources = json_object_get(contract, "sources");
            const json_t *last = json_array_get(sources, json_array_size(sources) - 1);
            printf("  %s\n", json_string_value(last));
            gac_dtype known; /* the file may have other names, too */
            json_object_foreach(json_object_get(accuracy, "model"), dtype, value)
                if (gac_dtype_parse(dtype, &known))
                    print_model(dtype, value);
            return GAC_OK;
        }
        print_accuracy(json_object_get(accuracy, "gemm"), "GEMM");
        print_accuracy(json_object_get(accuracy, "sdpa"), "attention");
        json_object_foreach(json_object_get(accuracy, "ranking"), dtype, value) {
            print_ranking(dtype, json_object_get(value, "common_widths"),
                          "at widths of 2048, 4096, 8192");
            print_ranking(dtype, json_object_get(value, "random_widths"), "at other widths");
        }
        printf("  %.0f s, %lld samples discarded\n",
               json_number_value(json_object_get(noise, "seconds")),
               (long long)json_integer_value(json_object_get(noise, "n_discarded")));
        return GAC_OK;
    }
    json_t *result = gac_json_result("gac.probe/1", c->argc, c->argv);
    json_object_set_new(result, "contract", json_string(o->out));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set(result, keys[i], json_object_get(contract, keys[i]));
    gac_status status = gac_json_print(stdout, result, &c->error);
    json_decref(result);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    gac_device *device = NULL;
    json_t *contract = NULL, *raw = NULL, *runtime = NULL;
    probe_command *o = filled;
    (void)n;
    (void)arguments;
    gac_status status = check_options(c, o);
    if (status != GAC_OK)
        return status;
    o->options.dtypes = o->dtypes;
    o->options.progress = c->progress;
    o->options.log = &c->log;
    status = cli_check_target(c, o->out, o->force);
    if (status == GAC_OK && o->raw)
        status = cli_check_target(c, o->raw, o->force);
    if (status == GAC_OK && o->runtime)
        status = load_runtime(c, o->runtime, &runtime);
    o->options.runtime = runtime;
    if (status == GAC_OK)
        status = cli_open_gpu(c, o->device, &device);
    if (status == GAC_OK)
        status = choose_attention(c, o);
    if (status == GAC_OK)
        status = measure(c, o, device, &contract, &raw);
    if (status == GAC_OK)
        status = write_file(c, o->out, o->force, contract);
    if (status == GAC_OK && o->raw)
        status = write_file(c, o->raw, o->force, raw);
    if (status == GAC_OK)
        status = report(c, o, contract);
    gac_probe_end_pytorch(&o->pytorch);
    gac_device_close(device);
    json_decref(contract);
    json_decref(raw);
    json_decref(runtime);
    return status;
}

const command cmd_probe = {
    .name = "probe",
    .summary = "measure what this GPU asks of sizes",
    .usage =
        "-o contract.json [options]\n-o contract.json --model DIR [--workload W] [--contract BASE]",
    .about = "Measures what this GPU and its libraries ask of sizes, and writes a contract that "
             "every other command takes with --contract. Some five minutes per dtype.",
    .example = "-o my-gpu.json --dtype F16,BF16",
    .options = table,
    .takes = "-o FILE and no other arguments",
    .size = sizeof initial,
    .initial = &initial,
    .run = run,
};
