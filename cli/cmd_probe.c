#include "plan_args.h"

#include <gac/device.h>
#include <gac/probe.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct probe_command {
    const char *out, *device, *raw, *runtime, *model, *workload, *base, *attention;
    gac_probe_pytorch pytorch;
    bool force;
    int allow_rescaled;
    gac_dtype dtypes[GAC_PROBE_MAX_DTYPES];
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
        if (o->options.n_dtypes == GAC_PROBE_MAX_DTYPES)
            return gac_error_set(err, GAC_USAGE, "at most %d", GAC_PROBE_MAX_DTYPES);
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
    { "max-time", 0, "S",
      "seconds per dtype for tiers and tables (default 255); tables get coarser to stay within it",
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

static gac_status write_contract(cli *c, const probe_command *o, const gac_contract *contract)
{
    char *text = NULL;
    size_t n_bytes;
    gac_status status = gac_contract_write(contract, &text, &n_bytes, &c->error);
    if (status == GAC_OK)
        status = cli_write_file(c, o->out, o->force, text);
    free(text);
    return status;
}

#define RAW_DIGITS JSON_REAL_PRECISION(6)

/* Writes a JSON array with each entry on a line. */
static gac_status print_entries(FILE *to, const json_t *list, gac_error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        char *line = NULL;
        gac_status status = gac_json_text(json_array_get(list, i), RAW_DIGITS, &line, NULL, err);
        if (status != GAC_OK)
            return status;
        fprintf(to, "%s\n  %s", i > 0 ? "," : "", line);
        free(line);
    }
    return GAC_OK;
}

/* Each member of a raw result is on a line of its own, and so is each measured point. */
static gac_status print_raw(FILE *to, const json_t *raw, gac_error *err)
{
    const char *key, *before = "{";
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)raw, key, value) {
        char *text = NULL;
        gac_status status = GAC_OK;
        fprintf(to, "%s\n \"%s\": ", before, key);
        before = ",";
        if (json_is_array(value)) {
            fputc('[', to);
            status = print_entries(to, value, err);
            fputs("\n ]", to);
        } else {
            status = gac_json_text(value, JSON_ENCODE_ANY | RAW_DIGITS, &text, NULL, err);
            fputs(text ? text : "", to);
        }
        free(text);
        if (status != GAC_OK)
            return status;
    }
    fputs("\n}\n", to);
    return GAC_OK;
}

static gac_status write_raw(cli *c, const probe_command *o, const json_t *raw)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *to = open_memstream(&text, &n_bytes);
    if (!raw || !to)
        return gac_error_no_memory(&c->error);
    gac_status status = print_raw(to, raw, &c->error);
    if (fclose(to) != 0 && status == GAC_OK)
        status = gac_error_no_memory(&c->error);
    if (status == GAC_OK)
        status = cli_write_file(c, o->raw, o->force, text);
    free(text);
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
    return gac_probe_run(device, &o->options, out, NULL, &c->error);
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
                              const gac_model *model, gac_contract **contract, json_t **raw)
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

static gac_status measure(cli *c, probe_command *o, gac_device *device, gac_contract **contract,
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

static void print_ranking(const char *dtype, const gac_contract_regret *r, const char *where)
{
    if (r && !isnan(r->right_pct))
        printf("  %-8s ranking    %.1f %% of %lld pairs over 5 %% apart in the right order, %s\n",
               dtype, r->right_pct, (long long)r->n_over_5_pct, where);
}

static void print_errors(const char *dtype, const gac_contract_errors *e, const char *what)
{
    if (e)
        printf("  %-8s %-10s %lld held-out shapes: median error %.1f %%, 95th percentile %.1f "
               "%%%s\n",
               dtype, what, (long long)e->n_points, e->median_pct, e->p95_pct,
               e->median_pct > GAC_ROUGH_MEDIAN_PCT || e->p95_pct > GAC_ROUGH_P95_PCT
                   ? ": rough, give it more time"
                   : "");
}

static void print_accuracy(const gac_contract *contract)
{
    const gac_contract_accuracy *a = contract->accuracy;
    for (size_t i = 0; a && i < contract->n_dtypes; i++) {
        gac_dtype dtype = contract->dtypes[i];
        const char *name = gac_dtype_name(dtype);
        print_errors(name, a->gemm[dtype], "GEMM");
        print_errors(name, a->sdpa[dtype], "attention");
        if (!a->ranking[dtype])
            continue;
        print_ranking(name, a->ranking[dtype]->common_widths, "at widths of 2048, 4096, 8192");
        print_ranking(name, a->ranking[dtype]->random_widths, "at other widths");
    }
}

/* Prints how well the contract predicted a model's shapes, and how well a
 * second measurement agrees. */
static void print_model(const char *dtype, const gac_contract_model_errors *m)
{
    printf("  %-8s predicted before: median error %.1f %%, 95th percentile %.1f %%", dtype,
           m->median_pct, m->p95_pct);
    if (m->predicted && !isnan(m->predicted->right_pct))
        printf("; %.1f %% of %lld pairs of candidates over 5 %% apart in the right order",
               m->predicted->right_pct, (long long)m->predicted->n_over_5_pct);
    if (m->measured && !isnan(m->measured->right_pct))
        printf("; measured again, %.1f %% of %lld", m->measured->right_pct,
               (long long)m->measured->n_over_5_pct);
    printf("\n");
}

static void report_text(const probe_command *o, const gac_contract *contract)
{
    printf("%s: %s, %zu exact points; look with gac contract show\n", o->out, contract->gpu,
           contract->n_points);
    if (!o->model) {
        print_accuracy(contract);
        if (contract->noise)
            printf("  %.0f s, %lld samples discarded\n", contract->noise->seconds,
                   (long long)contract->noise->n_discarded);
        return;
    }
    printf("  %s\n", contract->sources[contract->n_sources - 1]);
    for (int i = 0; contract->accuracy && i < GAC_DTYPE_COUNT; i++)
        if (contract->accuracy->model[i])
            print_model(gac_dtype_name((gac_dtype)i), contract->accuracy->model[i]);
}

/* The members of the contract's file that are short, as they are there. */
static gac_status report_json(cli *c, const probe_command *o, const gac_contract *contract)
{
    static const char *const keys[] = { "name",    "gpu",      "arch", "stack",
                                        "sources", "accuracy", "noise" };
    char *text = NULL;
    size_t n_bytes = 0;
    json_t *file = NULL;
    gac_status status = gac_contract_write(contract, &text, &n_bytes, &c->error);
    if (status == GAC_OK)
        status = gac_json_parse(text, n_bytes, o->out, &file, &c->error);
    free(text);
    if (status != GAC_OK)
        return status;
    json_t *result = gac_json_result("gac.probe/1", c->argc, c->argv);
    json_object_set_new(result, "contract", json_string(o->out));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set(result, keys[i], json_object_get(file, keys[i]));
    status = cli_print_result(c, result);
    json_decref(result);
    json_decref(file);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    gac_device *device = NULL;
    gac_contract *contract = NULL;
    gac_runtime *runtime = NULL;
    json_t *raw = NULL;
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
        status = gac_contract_load_runtime(o->runtime, &runtime, &c->error);
    o->options.runtime = runtime;
    if (status == GAC_OK)
        status = cli_open_gpu(c, o->device, &device);
    if (status == GAC_OK)
        status = choose_attention(c, o);
    if (status == GAC_OK)
        status = measure(c, o, device, &contract, &raw);
    if (status == GAC_OK)
        status = write_contract(c, o, contract);
    if (status == GAC_OK && o->raw)
        status = write_raw(c, o, raw);
    if (status == GAC_OK && c->json)
        status = report_json(c, o, contract);
    else if (status == GAC_OK)
        report_text(o, contract);
    gac_probe_end_pytorch(&o->pytorch);
    gac_device_close(device);
    gac_contract_free(contract);
    gac_contract_free_runtime(runtime);
    json_decref(raw);
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
