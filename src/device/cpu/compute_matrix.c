/* Weights on the CPU. They are checked once for values that are not finite, and then read
 * from the mapped file. */
#include "device/cpu/compute_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_ITEM ((int64_t)1 << 19) /* numbers that one work item checks */

typedef struct scan {
    const gac_cpu_kernels *kernels;
    const gac_host_tensor *tensor;
    int64_t n;
    atomic_int_least64_t found; /* index of the first number that is not finite, or n */
} scan;

static void scan_item(void *data, int64_t item, int thread)
{
    scan *job = data;
    int64_t first = item * SCAN_ITEM;
    int64_t n = job->n - first < SCAN_ITEM ? job->n - first : SCAN_ITEM;
    const char *bytes = job->tensor->data;
    (void)thread;
    int64_t index = job->kernels->find_bad(bytes + first * (gac_dtype_bits(job->tensor->dtype) / 8),
                                           job->tensor->dtype, n);
    int64_t least = atomic_load(&job->found);
    while (index >= 0 && first + index < least &&
           !atomic_compare_exchange_weak(&job->found, &least, first + index))
        ;
}

static gac_status check_tensor(gac_cpu_compute *compute, const gac_host_tensor *tensor,
                               int64_t *bytes, gac_error *err)
{
    char quoted[256];
    scan job = { compute->kernels, tensor, 0, 0 };
    const char *name = gac_quote(quoted, sizeof quoted, tensor->name ? tensor->name : "a tensor");
    if (tensor->dtype != GAC_DTYPE_F32 && tensor->dtype != GAC_DTYPE_F16 &&
        tensor->dtype != GAC_DTYPE_BF16)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: weights of %s; F32, F16 and BF16 can be used",
                             name, gac_dtype_name(tensor->dtype));
    int64_t size = gac_dtype_bits(tensor->dtype) / 8, more;
    if (tensor->n_rows < 1 || tensor->n_cols < 1 || tensor->n_rows > INT32_MAX ||
        tensor->n_cols > INT32_MAX || !gac_mul_i64(tensor->n_rows, tensor->n_cols, &job.n) ||
        !gac_mul_i64(job.n, size, &more) || !gac_add_i64(*bytes, more, bytes))
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %lld x %lld weights", name,
                             (long long)tensor->n_rows, (long long)tensor->n_cols);
    atomic_store(&job.found, job.n);
    gac_pool_run(compute->pool, (job.n + SCAN_ITEM - 1) / SCAN_ITEM, scan_item, &job);
    int64_t found = atomic_load(&job.found);
    if (found < job.n)
        return gac_error_set(
            err, GAC_BAD_INPUT, "%s: the weight at row %lld, column %lld is not finite", name,
            (long long)(found / tensor->n_cols), (long long)(found % tensor->n_cols));
    return GAC_OK;
}

/* Copies a bias of n numbers to *out. *out is NULL if there is no bias. */
static gac_status take_bias(gac_cpu_compute *compute, const gac_host_tensor *bias, int64_t n,
                            int64_t *bytes, float **out, gac_error *err)
{
    if (!bias->data)
        return GAC_OK;
    gac_status status = check_tensor(compute, bias, bytes, err);
    if (status != GAC_OK)
        return status;
    if (bias->n_rows * bias->n_cols != n)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %lld biases for %lld outputs",
                             bias->name ? bias->name : "a bias",
                             (long long)(bias->n_rows * bias->n_cols), (long long)n);
    *out = malloc((size_t)n * sizeof **out);
    if (!*out)
        return gac_error_no_memory(err);
    compute->kernels->to_float(bias->data, bias->dtype, n, *out);
    return GAC_OK;
}

/* Takes the parts and the first factor of a module with n_in inputs. */
static gac_status take_parts(gac_cpu_compute *compute, const gac_linear_module *from, int64_t n_in,
                             gac_matrix *matrix, gac_cpu_module *to, gac_error *err)
{
    int64_t n_out = 0;
    for (int i = 0; i < from->n_parts; i++) {
        const gac_linear_part *part = &from->parts[i];
        const gac_host_tensor *weight = &part->weight;
        gac_status status = check_tensor(compute, weight, &matrix->weight_bytes, err);
        if (status != GAC_OK)
            return status;
        if (part->start < 0 || part->start > n_in - weight->n_cols)
            return gac_error_set(err, GAC_BAD_INPUT, "%s: inputs %lld to %lld of %lld",
                                 weight->name ? weight->name : "a part", (long long)part->start,
                                 (long long)(part->start + weight->n_cols), (long long)n_in);
        to->parts[i] = (gac_cpu_part){ *weight, NULL, part->start };
        to->n_parts = i + 1;
        status = take_bias(compute, &part->bias, weight->n_rows, &matrix->weight_bytes,
                           &to->parts[i].bias, err);
        if (status != GAC_OK)
            return status;
        n_out += weight->n_rows;
    }
    if (n_out != from->out.n_slices * from->out.size)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: %lld outputs for %lld slices of %lld",
                             from->parts[0].weight.name ? from->parts[0].weight.name : "a module",
                             (long long)n_out, (long long)from->out.n_slices,
                             (long long)from->out.size);
    return GAC_OK;
}

static gac_status take_module(gac_cpu_compute *compute, const gac_linear_module *from,
                              gac_matrix *matrix, gac_cpu_module *to, gac_error *err)
{
    int64_t n_in = matrix->in.n_slices * matrix->in.size;
    to->out = from->out;
    to->parts = calloc((size_t)from->n_parts, sizeof *to->parts);
    if (!to->parts)
        return gac_error_no_memory(err);
    if (from->first.data) {
        gac_status status = check_tensor(compute, &from->first, &matrix->weight_bytes, err);
        if (status == GAC_OK && from->first.n_cols != n_in)
            status = gac_error_set(err, GAC_BAD_INPUT, "%s: %lld columns for %lld inputs",
                                   from->first.name ? from->first.name : "a factor",
                                   (long long)from->first.n_cols, (long long)n_in);
        if (status == GAC_OK)
            status = take_bias(compute, &from->first_bias, from->first.n_rows,
                               &matrix->weight_bytes, &to->first_bias, err);
        if (status != GAC_OK)
            return status;
        to->first = from->first;
        n_in = from->first.n_rows;
    }
    return take_parts(compute, from, n_in, matrix, to, err);
}

gac_status gac_cpu_matrix_create(void *state, gac_axis in, const gac_linear_module *modules,
                                 int n_modules, gac_matrix **out, gac_error *err)
{
    gac_cpu_compute *compute = state;
    gac_matrix *matrix = calloc(1, sizeof *matrix);
    if (!matrix)
        return gac_error_no_memory(err);
    matrix->in = in;
    matrix->modules = calloc((size_t)n_modules, sizeof *matrix->modules);
    gac_status status = matrix->modules ? GAC_OK : gac_error_no_memory(err);
    for (int i = 0; status == GAC_OK && i < n_modules; i++) {
        matrix->n_modules = i + 1;
        status = take_module(compute, &modules[i], matrix, &matrix->modules[i], err);
    }
    compute->memory.weight_bytes += matrix->weight_bytes;
    if (status != GAC_OK) {
        gac_cpu_matrix_free(state, matrix);
        return status;
    }
    *out = matrix;
    return GAC_OK;
}

void gac_cpu_matrix_free(void *state, gac_matrix *matrix)
{
    gac_cpu_compute *compute = state;
    if (!matrix)
        return;
    compute->memory.weight_bytes -= matrix->weight_bytes;
    for (int i = 0; i < matrix->n_modules; i++) {
        gac_cpu_module *module = &matrix->modules[i];
        for (int k = 0; k < module->n_parts; k++)
            free(module->parts[k].bias);
        free(module->parts);
        free(module->first_bias);
    }
    free(matrix->modules);
    free(matrix);
}
