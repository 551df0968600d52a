/* Checks that attention with padded heads computes the same function. Heads of
 * size d are stored in wider rows and run with the softmax scale of d. Their
 * output is compared with heads of size d on the CPU. A launch has heads of one
 * size, or of several sizes together. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CHECKS 64
#define MAX_CHECK_FLOPS 1e10 /* limit of the CPU reference */
#define SEED 20260107

typedef struct sizes {
    double d, stored;
} sizes;

static bool sizes_lookup(void *context, const char *name, double *out)
{
    const sizes *s = context;
    bool d = strcmp(name, "d") == 0;
    *out = d ? s->d : s->stored;
    return d || strcmp(name, "stored") == 0;
}

static bool read_check(gac_reader *r, const json_t *json, const json_t *pair, const char *path,
                       gac_dtype dtype, exp_check *out)
{
    sizes s;
    if (!json_is_array(pair) || json_array_size(pair) != 2)
        return exp_fault(r, "sizes must be pairs [d, stored]");
    if (!gac_reader_to_number(r, json_array_get(pair, 0), 1, 4096, &s.d) ||
        !gac_reader_to_number(r, json_array_get(pair, 1), s.d, 4096, &s.stored))
        return false;
    if (s.d != floor(s.d) || s.stored != floor(s.stored))
        return exp_fault(r, "sizes must be whole numbers");
    size_t before = gac_reader_enter(r, ".part");
    if (!exp_read_part(r, json_object_get(json, "part"), "auto", dtype, sizes_lookup, &s,
                       &out->spec))
        return false;
    if (out->spec.kind != GAC_TASK_SDPA || gac_task_flops(&out->spec) > MAX_CHECK_FLOPS ||
        out->spec.sdpa.shape.qk_head != (int64_t)s.d || out->spec.sdpa.shape.v_head != (int64_t)s.d)
        return exp_fault(r, "must be an sdpa with heads of d and at most %g operations",
                         MAX_CHECK_FLOPS);
    gac_reader_leave(r, before);
    out->spec.n_sets = 1;
    out->stored = (int64_t)s.stored;
    out->path = path;
    return exp_text(r, json, "id", true, &out->id) && exp_text(r, json, "says", true, &out->says);
}

static bool read_list(gac_reader *r, const json_t *json, gac_stack stack, gac_dtype dtype,
                      exp_check *out, int *n)
{
    static const char *const known[GAC_STACK_COUNT] = { " auto library math flash padded ",
                                                        " auto flash efficient cudnn math " };
    json_t *pairs, *paths, *together = json_object_get(json, "together");
    if (!exp_keys(r, json, "id says sizes part native pytorch together") ||
        !exp_list(r, json, "sizes", 1, 32, &pairs) ||
        !exp_list(r, json, gac_stack_name(stack), 0, 8, &paths))
        return false;
    if (together && (!json_is_boolean(together) || json_array_size(pairs) < 2))
        return exp_fault(r, "together must be true or false, with two sizes or more");
    int n_sizes = json_is_true(together) ? (int)json_array_size(pairs) : 1;
    for (size_t p = 0; p < json_array_size(paths); p++) {
        char word[24];
        const char *path = json_string_value(json_array_get(paths, p));
        snprintf(word, sizeof word, " %s ", path ? path : "");
        if (!path || !exp_is_name(path) || !strstr(known[stack], word))
            return exp_fault(r, "%s: must list%s", gac_stack_name(stack), known[stack]);
        if (n_sizes > 1 && strcmp(path, "padded") == 0)
            return exp_fault(r, "padded makes rows of one size wider, not several together");
        for (size_t i = 0; i < json_array_size(pairs); i++) {
            if (*n == MAX_CHECKS)
                return exp_fault(r, "more than %d checks", MAX_CHECKS);
            if (!read_check(r, json, json_array_get(pairs, i), path, dtype, &out[*n]))
                return false;
            if (n_sizes > 1 && out[*n].stored != out[*n - (int)i].stored)
                return exp_fault(r, "sizes together must be stored alike");
            out[*n].n_sizes = n_sizes;
            out[*n].n_in_launch = n_sizes == 1 ? 1 : i == 0 ? n_sizes : 0;
            ++*n;
        }
    }
    return true;
}

gac_status exp_read_checks(const gac_experiment *experiment, gac_stack stack, exp_check **out,
                           int *n, gac_error *err)
{
    gac_reader r = GAC_READER_INIT(experiment->source, err);
    const char *dtype = json_string_value(json_object_get(experiment->spec, "dtype"));
    json_t *list;
    *n = 0;
    *out = NULL;
    if (!exp_list(&r, experiment->spec, "checks", 0, MAX_CHECKS, &list))
        return r.status;
    exp_check *checks = calloc(MAX_CHECKS, sizeof *checks);
    if (!checks)
        return gac_error_no_memory(err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t before = gac_reader_enter(&r, ".checks[%zu]", i);
        if (!read_list(&r, json_array_get(list, i), stack,
                       dtype && strcmp(dtype, "BF16") == 0 ? GAC_DTYPE_BF16 : GAC_DTYPE_F16, checks,
                       n)) {
            free(checks);
            return r.status;
        }
        gac_reader_leave(&r, before);
    }
    *out = checks;
    return GAC_OK;
}

json_t *exp_check_json(const exp_check *check, double relative, double wrong_scale,
                       double tolerance, const char *failure)
{
    bool ran = !failure && !isnan(relative);
    bool holds = ran && relative <= tolerance;
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:i, s:b, s:b, s:b, s:f}", "id", check->id, "says", check->says,
        "path", check->path, "head", (json_int_t)check->spec.sdpa.shape.qk_head, "stored",
        (json_int_t)check->stored, "n_sizes_in_launch", check->n_sizes, "scale_folded_into_q",
        check->n_sizes > 1, "ran", ran, "holds", holds, "tolerance", tolerance);
    if (ran)
        json_object_set_new(json, "relative",
                            isfinite(relative) ? json_real(relative) : json_string("infinite"));
    if (isfinite(wrong_scale))
        json_object_set_new(json, "relative_with_forgotten_scale", json_real(wrong_scale));
    if (failure)
        json_object_set_new(json, "reason", json_string(failure));
    return json;
}

/* The heads of one check within the heads of a launch. */
typedef struct head_block {
    int64_t batch, n_heads, n_rows; /* the check's heads; n_rows per head */
    int64_t first, n_all;           /* first head of the check, and number of heads in the launch */
} head_block;

static int64_t row_in_launch(const head_block *p, int64_t row)
{
    int64_t head = row / p->n_rows;
    return ((head / p->n_heads * p->n_all) + p->first + head % p->n_heads) * p->n_rows +
           row % p->n_rows;
}

/* Copies rows of n_from elements, multiplied by factor, into rows of n_to
 * elements. The rest of each row is zero already. */
static void widen(const unsigned char *from, unsigned char *to, gac_dtype dtype,
                  const head_block *p, int64_t n_from, int64_t n_to, double factor)
{
    size_t element = (size_t)gac_dtype_bits(dtype) / 8;
    for (int64_t row = 0; row < p->batch * p->n_heads * p->n_rows; row++) {
        int64_t r = row_in_launch(p, row);
        for (int64_t i = 0; i < n_from && factor != 1; i++)
            gac_dtype_store(to, dtype, r * n_to + i,
                            factor * gac_dtype_load(from, dtype, row * n_from + i));
        if (factor == 1)
            memcpy(to + (size_t)(r * n_to) * element, from + (size_t)(row * n_from) * element,
                   (size_t)n_from * element);
    }
}

/* Returns the relative difference of the first n columns. It is infinite if a
 * pad column is not zero. */
static double compare(const unsigned char *wide, const unsigned char *narrow, gac_dtype dtype,
                      const head_block *p, int64_t n, int64_t n_wide)
{
    double difference2 = 0, norm2 = 0;
    for (int64_t row = 0; row < p->batch * p->n_heads * p->n_rows; row++) {
        int64_t r = row_in_launch(p, row);
        for (int64_t i = 0; i < n_wide; i++) {
            double got = gac_dtype_load(wide, dtype, r * n_wide + i);
            double wanted = i < n ? gac_dtype_load(narrow, dtype, row * n + i) : 0;
            if (isnan(got) || (i >= n && got != 0))
                return INFINITY;
            difference2 += (got - wanted) * (got - wanted);
            norm2 += wanted * wanted;
        }
    }
    return difference2 > 0 ? sqrt(difference2 / norm2) : 0;
}

/* Finds the heads of check number at in a launch of n checks, for one operand.
 * The checks differ only in head size. */
static head_block heads_of(const exp_check *check, int at, int n, gac_operand operand)
{
    const gac_sdpa_shape *s = &check->spec.sdpa.shape;
    bool of_q = operand == GAC_OPERAND_A || operand == GAC_OPERAND_OUT;
    int64_t n_heads = of_q ? s->n_q_heads : s->n_kv_heads;
    return (head_block){ s->batch, n_heads, of_q ? s->n_q : s->n_kv, at * n_heads, n * n_heads };
}

/* Writes the operands q, k and v of n checks to task, in rows of width
 * elements. fold: q is multiplied by the ratio of its own scale to the scale of
 * width. */
static gac_status write_operands(gac_task *task, const exp_check *checks, int n, int64_t width,
                                 bool fold, gac_error *err)
{
    gac_dtype dtype = checks->spec.dtype;
    size_t element = (size_t)gac_dtype_bits(dtype) / 8;
    gac_status status = GAC_OK;
    for (int operand = 0; operand < 3 && status == GAC_OK; operand++) {
        head_block p = heads_of(checks, 0, n, (gac_operand)operand);
        size_t n_wide = (size_t)(p.batch * p.n_all * p.n_rows * width) * element;
        unsigned char *wide = calloc(n_wide, 1), *narrow = malloc(n_wide);
        if (!narrow || !wide)
            status = gac_error_no_memory(err);
        for (int i = 0; i < n && status == GAC_OK; i++) {
            int64_t d = checks[i].spec.sdpa.shape.qk_head;
            p = heads_of(&checks[i], i, n, (gac_operand)operand);
            gac_task_fill(&checks[i].spec, (gac_operand)operand, SEED + (uint64_t)d, narrow);
            widen(narrow, wide, dtype, &p, d, width,
                  fold && operand == 0 ? sqrt((double)width / (double)d) : 1);
        }
        if (status == GAC_OK)
            status = gac_task_write(task, (gac_operand)operand, wide, n_wide, err);
        free(narrow);
        free(wide);
    }
    return status;
}

static gac_status run_and_read(gac_task *task, size_t n_bytes, unsigned char **out, gac_error *err)
{
    unsigned char *data = malloc(n_bytes);
    if (!data)
        return gac_error_no_memory(err);
    memset(data, 0xff, n_bytes);
    gac_status status = gac_task_write(task, GAC_OPERAND_OUT, data, n_bytes, err);
    if (status == GAC_OK)
        status = gac_task_run(task, err);
    if (status == GAC_OK)
        status = gac_task_read(task, GAC_OPERAND_OUT, data, n_bytes, err);
    if (status == GAC_OK)
        *out = data;
    else
        free(data);
    return status;
}

/* Runs the padded form of n checks in one launch on the device, and compares it
 * with the references. forget: use the softmax scale of the padded size, which
 * is wrong. */
static gac_status difference(gac_device *device, const exp_check *checks, int n, bool forget,
                             unsigned char *const *references, double *out, gac_error *err)
{
    exp_job job = { .spec = checks->spec, .path = checks->path };
    gac_sdpa_shape *shape = &job.spec.sdpa.shape;
    bool padded = strcmp(checks->path, "padded") == 0;
    double d = (double)shape->qk_head, s = (double)checks->stored;
    int64_t width = padded ? shape->qk_head : checks->stored;
    job.spec.sdpa.path = padded                               ? GAC_SDPA_PADDED
                         : strcmp(checks->path, "flash") == 0 ? GAC_SDPA_FLASH
                         : strcmp(checks->path, "math") == 0  ? GAC_SDPA_MATH
                                                              : GAC_SDPA_LIBRARY;
    job.spec.sdpa.stored_head = padded ? checks->stored : 0;
    shape->qk_head = shape->v_head = width;
    shape->n_q_heads *= n;
    shape->n_kv_heads *= n;
    job.spec.sdpa.scale = forget || n > 1 ? 1 / sqrt(s) : 1 / sqrt(d);
    size_t n_bytes = (size_t)gac_task_operand_bytes(&job.spec, GAC_OPERAND_OUT);
    gac_task *task = NULL;
    unsigned char *data = NULL;
    gac_status status = exp_open_native(device, &job, &task, err);
    if (status == GAC_OK)
        status = write_operands(task, checks, n, width, n > 1 && !forget, err);
    if (status == GAC_OK)
        status = run_and_read(task, n_bytes, &data, err);
    for (int i = 0; i < n && status == GAC_OK; i++) {
        head_block p = heads_of(&checks[i], i, n, GAC_OPERAND_OUT);
        out[i] = compare(data, references[i], checks->spec.dtype, &p,
                         checks[i].spec.sdpa.shape.v_head, width);
    }
    free(data);
    gac_task_free(task);
    return status;
}

/* Computes the heads of one check at their own size on the CPU. */
static gac_status compute_reference(gac_device *cpu, const exp_check *check, unsigned char **out,
                                    gac_error *err)
{
    gac_task *task = NULL;
    size_t n_bytes = (size_t)gac_task_operand_bytes(&check->spec, GAC_OPERAND_OUT);
    gac_status status = gac_task_create(cpu, &check->spec, &task, err);
    if (status == GAC_OK)
        status = write_operands(task, check, 1, check->spec.sdpa.shape.qk_head, false, err);
    if (status == GAC_OK)
        status = run_and_read(task, n_bytes, out, err);
    gac_task_free(task);
    return status;
}

/* Runs the checks of one launch. */
static gac_status run_launch(gac_device *cpu, gac_device *device, const exp_check *checks, int n,
                             json_t *list, gac_error *err)
{
    gac_error local = GAC_ERROR_INIT;
    double relative[MAX_CHECKS], forgotten[MAX_CHECKS];
    unsigned char *references[MAX_CHECKS] = { NULL };
    bool wider = false;
    gac_status status = GAC_OK;
    for (int i = 0; i < n; i++) {
        relative[i] = forgotten[i] = NAN;
        wider = wider || checks[i].stored != checks[i].spec.sdpa.shape.qk_head;
    }
    for (int i = 0; i < n && status == GAC_OK; i++)
        status = compute_reference(cpu, &checks[i], &references[i], &local);
    if (status == GAC_OK)
        status = difference(device, checks, n, false, references, relative, &local);
    if (status == GAC_OK && wider)
        status = difference(device, checks, n, true, references, forgotten, &local);
    bool kept = true;
    for (int i = 0; i < n; i++) {
        free(references[i]);
        json_t *json = exp_check_json(&checks[i], relative[i], forgotten[i],
                                      gac_task_tolerance(&checks[i].spec),
                                      status == GAC_OK ? NULL : local.text);
        kept = json_array_append_new(list, json) == 0 && kept;
    }
    return kept ? GAC_OK : gac_error_no_memory(err);
}

gac_status exp_checks_native(const gac_experiment *experiment, gac_device *device, json_t **out,
                             gac_error *err)
{
    exp_check *checks;
    int n;
    gac_device *cpu = NULL;
    json_t *list = json_array();
    if (!list)
        return gac_error_no_memory(err);
    gac_status status = exp_read_checks(experiment, GAC_STACK_NATIVE, &checks, &n, err);
    if (status == GAC_OK)
        status = gac_device_open("cpu", &cpu, err);
    for (int i = 0; i < n && status == GAC_OK; i += checks[i].n_in_launch)
        status = run_launch(cpu, device, &checks[i], checks[i].n_in_launch, list, err);
    gac_device_close(cpu);
    free(checks);
    if (status == GAC_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}
