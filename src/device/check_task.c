#include "device/check_task.h"

#include "base/arguments.h"
#include "device/task_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xFF /* NaN in every float format, -1 in integers */

/* The same spec on the device under test and on the CPU reference. */
typedef struct pair {
    gac_task *tested, *reference;
    gac_device *cpu;
} pair;

/* Bounds on the relative difference between a correct device and the reference. Let u be
 * the rounding error of a format: 2^-11 in F16, 2^-8 in BF16. Two correct GEMMs can round
 * the same nearly exact sum to different neighbours, 2 u apart. That happens in few
 * elements. A split-k kernel that adds partial sums in the output format loses one more
 * u.
 * - F16: 1e-3, which is 2 u.
 * - BF16, and E4M3 whose output is BF16: 4e-3, which is u. Such roundings are rare. A
 *   wrong term in a sum of k is still caught: it changes the result by k^(-1/2), 1.6e-2
 *   at k = 4096.
 * - F32: 2e-3. TF32 keeps 10 bits of each factor, truncated or rounded. Truncating both
 *   costs 7e-4 on average and at most 2e-3 per product.
 * - I8: 0. Integer sums are exact in I32.
 * - SDPA rounds its weights to the format between the two products: F16 2e-3, BF16 1e-2.
 *   The MATH path also rounds the scores, so its bound is twice that.
 * - PAD and COPY move bits: 0. */
double gac_task_tolerance(const gac_task_spec *spec)
{
    const bool half = spec->dtype == GAC_DTYPE_F16;
    if (spec->kind == GAC_TASK_SDPA)
        return (half ? 2e-3 : 1e-2) * (spec->sdpa.path == GAC_SDPA_MATH ? 2 : 1);
    if (spec->kind != GAC_TASK_GEMM || spec->dtype == GAC_DTYPE_I8)
        return 0;
    return half ? 1e-3 : spec->dtype == GAC_DTYPE_F32 ? 2e-3 : 4e-3;
}

/* Writes the same data to both tasks: random inputs, and poison for the output. */
static gac_status prepare(const pair *tasks, const gac_task_spec *spec, gac_operand operand,
                          uint64_t seed, gac_error *err)
{
    int64_t n_bytes = gac_task_operand_bytes(spec, operand);
    if (n_bytes == 0)
        return GAC_OK;
    void *data = malloc((size_t)n_bytes);
    if (!data)
        return gac_error_no_memory(err);
    if (operand == GAC_OPERAND_OUT)
        memset(data, POISON, (size_t)n_bytes);
    else
        gac_task_fill(spec, operand, seed, data);
    gac_status status = gac_task_write(tasks->tested, operand, data, (size_t)n_bytes, err);
    if (status == GAC_OK)
        status = gac_task_write(tasks->reference, operand, data, (size_t)n_bytes, err);
    free(data);
    return status;
}

static bool is_poison(const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != POISON)
            return false;
    }
    return true;
}

/* The difference is infinite if an element is NaN or still poison while the reference
 * element is a number. */
static void compare(const unsigned char *tested, const unsigned char *reference, gac_dtype dtype,
                    int64_t n, gac_difference *out)
{
    size_t element = (size_t)gac_dtype_bits(dtype) / 8;
    double difference2 = 0, norm2 = 0;
    memset(out, 0, sizeof *out);
    out->n_elements = n;
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)i * element;
        if (memcmp(tested + at, reference + at, element) == 0 && !is_poison(tested + at, element)) {
            double value = gac_dtype_load(reference, dtype, i);
            norm2 += value * value;
            continue;
        }
        double value = gac_dtype_load(reference, dtype, i);
        double distance = fabs(gac_dtype_load(tested, dtype, i) - value);
        if (isnan(distance) ||
            (is_poison(tested + at, element) && !is_poison(reference + at, element)))
            distance = INFINITY;
        difference2 += distance * distance;
        norm2 += value * value;
        out->largest = fmax(out->largest, distance);
    }
    out->relative = difference2 > 0 ? sqrt(difference2 / norm2) : 0;
}

static gac_status run_both(const pair *tasks, const gac_task_spec *spec, gac_difference *out,
                           gac_error *err)
{
    size_t n_bytes = (size_t)gac_task_operand_bytes(spec, GAC_OPERAND_OUT);
    gac_dtype dtype = gac_task_operand_dtype(spec, GAC_OPERAND_OUT);
    unsigned char *tested = malloc(n_bytes), *reference = malloc(n_bytes);
    gac_status status = tested && reference ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = gac_task_run(tasks->tested, err);
    if (status == GAC_OK)
        status = gac_task_run(tasks->reference, err);
    if (status == GAC_OK)
        status = gac_task_read(tasks->tested, GAC_OPERAND_OUT, tested, n_bytes, err);
    if (status == GAC_OK)
        status = gac_task_read(tasks->reference, GAC_OPERAND_OUT, reference, n_bytes, err);
    if (status == GAC_OK)
        compare(tested, reference, dtype, (int64_t)n_bytes / (gac_dtype_bits(dtype) / 8), out);
    free(reference);
    free(tested);
    return status;
}

gac_status gac_task_check(gac_device *device, const gac_task_spec *spec, uint64_t seed,
                          gac_difference *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, device, spec, out);
    pair tasks = { NULL, NULL, NULL };
    gac_task_spec single = *spec;
    single.n_sets = 1;
    gac_status status = gac_device_open("cpu", &tasks.cpu, err);
    if (status == GAC_OK)
        status = gac_task_create(device, &single, &tasks.tested, err);
    if (status == GAC_OK)
        status = gac_task_create(tasks.cpu, &single, &tasks.reference, err);
    for (int i = 0; status == GAC_OK && i < GAC_OPERAND_COUNT; i++)
        status = prepare(&tasks, &single, (gac_operand)i, seed, err);
    if (status == GAC_OK)
        status = run_both(&tasks, &single, out, err);
    gac_task_free(tasks.reference);
    gac_task_free(tasks.tested);
    gac_device_close(tasks.cpu);
    return status;
}
