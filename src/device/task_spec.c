#include "device/task_spec.h"

#include "base/splitmix.h"

#include <math.h>

#define MAX_SIZE ((int64_t)1 << 31)
#define MAX_BYTES ((int64_t)1 << 40)
#define MAX_SETS 65536
#define MAX_SIZES 8

/* The sizes of a spec with their names, for error messages. */
typedef struct size_list {
    int n;
    struct {
        const char *name;
        int64_t value, max;
    } at[MAX_SIZES];
} size_list;

static void list(size_list *sizes, const char *name, int64_t value, int64_t max)
{
    sizes->at[sizes->n].name = name;
    sizes->at[sizes->n].value = value;
    sizes->at[sizes->n++].max = max;
}

static void list_sizes(const gac_task_spec *spec, size_list *sizes)
{
    const gac_sdpa_shape *sdpa = &spec->sdpa.shape;
    sizes->n = 0;
    switch (spec->kind) {
    case GAC_TASK_GEMM:
        list(sizes, "m", spec->gemm.m, MAX_SIZE);
        list(sizes, "n", spec->gemm.n, MAX_SIZE);
        list(sizes, "k", spec->gemm.k, MAX_SIZE);
        break;
    case GAC_TASK_SDPA:
        list(sizes, "batch", sdpa->batch, MAX_SIZE);
        list(sizes, "n_q_heads", sdpa->n_q_heads, MAX_SIZE);
        list(sizes, "n_kv_heads", sdpa->n_kv_heads, MAX_SIZE);
        list(sizes, "n_q", sdpa->n_q, MAX_SIZE);
        list(sizes, "n_kv", sdpa->n_kv, MAX_SIZE);
        list(sizes, "qk_head", sdpa->qk_head, MAX_SIZE);
        list(sizes, "v_head", sdpa->v_head, MAX_SIZE);
        if (spec->sdpa.path == GAC_SDPA_PADDED)
            list(sizes, "stored_head", spec->sdpa.stored_head, MAX_SIZE);
        break;
    case GAC_TASK_PAD:
        list(sizes, "n_rows", spec->pad.n_rows, MAX_SIZE);
        list(sizes, "n_from", spec->pad.n_from, MAX_SIZE);
        list(sizes, "n_to", spec->pad.n_to, MAX_SIZE);
        break;
    case GAC_TASK_COPY:
        list(sizes, "copy_bytes", spec->copy_bytes, MAX_BYTES);
        break;
    case GAC_TASK_KIND_COUNT:
        break;
    }
}

static bool dtype_fits(gac_task_kind kind, gac_dtype dtype)
{
    int bits = gac_dtype_bits(dtype);
    switch (kind) {
    case GAC_TASK_GEMM:
        return dtype == GAC_DTYPE_F16 || dtype == GAC_DTYPE_BF16 || dtype == GAC_DTYPE_F32 ||
               dtype == GAC_DTYPE_F8_E4M3 || dtype == GAC_DTYPE_I8;
    case GAC_TASK_SDPA:
        return dtype == GAC_DTYPE_F16 || dtype == GAC_DTYPE_BF16;
    case GAC_TASK_PAD:
        return bits == 8 || bits == 16 || bits == 32;
    case GAC_TASK_COPY:
        return true;
    case GAC_TASK_KIND_COUNT:
        break;
    }
    return false;
}

gac_dtype gac_task_operand_dtype(const gac_task_spec *spec, gac_operand operand)
{
    if (spec->kind == GAC_TASK_COPY)
        return GAC_DTYPE_U8;
    if (spec->kind == GAC_TASK_GEMM && operand == GAC_OPERAND_OUT) {
        if (spec->dtype == GAC_DTYPE_F8_E4M3)
            return GAC_DTYPE_BF16;
        if (spec->dtype == GAC_DTYPE_I8)
            return GAC_DTYPE_I32;
    }
    return spec->dtype;
}

/* Returns the product of n sizes: 0 if n is 0, -1 if it exceeds MAX_BYTES. */
static int64_t product(const int64_t *sizes, int n)
{
    int64_t result = n > 0 ? 1 : 0;
    for (int i = 0; i < n; i++) {
        if (!gac_mul_i64(result, sizes[i], &result) || result > MAX_BYTES)
            return -1;
    }
    return result;
}

/* Returns the number of elements of an operand. The caller has checked the range of every
 * size. */
static int64_t operand_elements(const gac_task_spec *spec, gac_operand operand)
{
    const gac_gemm_shape *gemm = &spec->gemm;
    const gac_sdpa_shape *sdpa = &spec->sdpa.shape;
    const bool is_q_side = operand == GAC_OPERAND_A || operand == GAC_OPERAND_OUT;
    const int64_t of_gemm[GAC_OPERAND_COUNT][2] = {
        { gemm->m, gemm->k }, { gemm->n, gemm->k }, { 0, 0 }, { gemm->m, gemm->n }
    };
    const int64_t of_sdpa[] = { sdpa->batch, is_q_side ? sdpa->n_q_heads : sdpa->n_kv_heads,
                                is_q_side ? sdpa->n_q : sdpa->n_kv,
                                operand == GAC_OPERAND_A || operand == GAC_OPERAND_B
                                    ? sdpa->qk_head
                                    : sdpa->v_head };
    const int64_t of_pad[] = { spec->pad.n_rows,
                               operand == GAC_OPERAND_A ? spec->pad.n_from : spec->pad.n_to };
    switch (spec->kind) {
    case GAC_TASK_GEMM:
        return product(of_gemm[operand], 2);
    case GAC_TASK_SDPA:
        return product(of_sdpa, 4);
    case GAC_TASK_PAD:
        return is_q_side ? product(of_pad, 2) : 0;
    case GAC_TASK_COPY:
        return is_q_side ? spec->copy_bytes : 0;
    case GAC_TASK_KIND_COUNT:
        break;
    }
    return -1;
}

int64_t gac_task_operand_bytes(const gac_task_spec *spec, gac_operand operand)
{
    size_list sizes;
    if ((int)spec->kind < 0 || spec->kind >= GAC_TASK_KIND_COUNT || (int)operand < 0 ||
        operand >= GAC_OPERAND_COUNT || !dtype_fits(spec->kind, spec->dtype))
        return -1;
    list_sizes(spec, &sizes);
    for (int i = 0; i < sizes.n; i++) {
        if (sizes.at[i].value < 1 || sizes.at[i].value > sizes.at[i].max)
            return -1;
    }
    int64_t n = operand_elements(spec, operand);
    int64_t element_bytes = gac_dtype_bits(gac_task_operand_dtype(spec, operand)) / 8;
    return n > MAX_BYTES / element_bytes ? -1 : n < 0 ? -1 : n * element_bytes;
}

double gac_task_flops(const gac_task_spec *spec)
{
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    const gac_gemm_shape *g = &spec->gemm;
    if (spec->kind == GAC_TASK_GEMM)
        return 2.0 * (double)g->m * (double)g->n * (double)g->k;
    if (spec->kind != GAC_TASK_SDPA)
        return 0;
    double pairs = (double)s->batch * (double)s->n_q_heads * (double)s->n_q * (double)s->n_kv;
    return (s->causal ? 1.0 : 2.0) * pairs * (double)(s->qk_head + s->v_head);
}

double gac_task_bytes(const gac_task_spec *spec)
{
    double total = 0;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++)
        total += (double)gac_task_operand_bytes(spec, (gac_operand)i);
    return total;
}

double gac_sdpa_scale(const gac_sdpa_call *call)
{
    return call->scale != 0 ? call->scale : 1 / sqrt((double)call->shape.qk_head);
}

static gac_status check_sdpa(const gac_sdpa_call *call, gac_error *err)
{
    const gac_sdpa_shape *shape = &call->shape;
    if ((int)call->path < 0 || call->path >= GAC_SDPA_PATH_COUNT)
        return gac_error_set(err, GAC_USAGE, "SDPA: there is no path %d", (int)call->path);
    if (shape->n_q_heads % shape->n_kv_heads != 0)
        return gac_error_set(err, GAC_USAGE,
                             "SDPA: %lld query heads cannot share %lld key-value heads equally",
                             (long long)shape->n_q_heads, (long long)shape->n_kv_heads);
    if (shape->causal && shape->n_q > shape->n_kv)
        return gac_error_set(err, GAC_USAGE,
                             "SDPA: causal with n_q %lld over n_kv %lld: queries that see no key",
                             (long long)shape->n_q, (long long)shape->n_kv);
    if (!isfinite(call->scale) || call->scale < 0)
        return gac_error_set(err, GAC_USAGE, "SDPA: scale %g is not a finite number from 0",
                             call->scale);
    if (call->path == GAC_SDPA_PADDED &&
        (call->stored_head < shape->qk_head || call->stored_head < shape->v_head))
        return gac_error_set(
            err, GAC_USAGE, "SDPA: stored_head %lld is below the heads, %lld, %lld",
            (long long)call->stored_head, (long long)shape->qk_head, (long long)shape->v_head);
    return GAC_OK;
}

/* The PADDED path copies its operands to wider rows. These copies must fit the same
 * limit. */
static bool operands_fit(const gac_task_spec *spec)
{
    gac_task_spec wide = *spec;
    if (spec->kind == GAC_TASK_SDPA && spec->sdpa.path == GAC_SDPA_PADDED)
        wide.sdpa.shape.qk_head = wide.sdpa.shape.v_head = spec->sdpa.stored_head;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++) {
        if (gac_task_operand_bytes(&wide, (gac_operand)i) < 0)
            return false;
    }
    return true;
}

gac_status gac_task_check_spec(const gac_task_spec *spec, gac_error *err)
{
    static const char *const kinds[] = { "GEMM", "SDPA", "PAD", "COPY" };
    size_list sizes;
    if ((int)spec->kind < 0 || spec->kind >= GAC_TASK_KIND_COUNT)
        return gac_error_set(err, GAC_USAGE, "there is no task kind %d", (int)spec->kind);
    const char *kind = kinds[spec->kind];
    if (!dtype_fits(spec->kind, spec->dtype))
        return gac_error_set(err, GAC_USAGE, "%s: not defined in %s", kind,
                             gac_dtype_name(spec->dtype));
    list_sizes(spec, &sizes);
    for (int i = 0; i < sizes.n; i++) {
        if (sizes.at[i].value < 1 || sizes.at[i].value > sizes.at[i].max)
            return gac_error_set(err, GAC_USAGE, "%s: %s is %lld, not from 1 to %lld", kind,
                                 sizes.at[i].name, (long long)sizes.at[i].value,
                                 (long long)sizes.at[i].max);
    }
    if (spec->n_sets < 0 || spec->n_sets > MAX_SETS)
        return gac_error_set(err, GAC_USAGE, "%s: n_sets is %d, not from 0 to %d", kind,
                             spec->n_sets, MAX_SETS);
    gac_status status = spec->kind == GAC_TASK_SDPA ? check_sdpa(&spec->sdpa, err) : GAC_OK;
    if (status != GAC_OK)
        return status;
    if (!operands_fit(spec))
        return gac_error_set(err, GAC_USAGE, "%s: an operand has more than 2^40 bytes", kind);
    return GAC_OK;
}

void gac_task_fill(const gac_task_spec *spec, gac_operand operand, uint64_t seed, void *data)
{
    gac_dtype dtype = gac_task_operand_dtype(spec, operand);
    uint64_t stream = gac_random_bits(seed, (uint64_t)operand);
    int64_t n = gac_task_operand_bytes(spec, operand) / (gac_dtype_bits(dtype) / 8);
    double scale = spec->kind == GAC_TASK_GEMM ? pow((double)spec->gemm.k, -0.25) : 1;
    const bool is_float = dtype == GAC_DTYPE_F16 || dtype == GAC_DTYPE_BF16 ||
                          dtype == GAC_DTYPE_F32 || dtype == GAC_DTYPE_F8_E4M3;
    const bool is_small = dtype == GAC_DTYPE_I8 && spec->kind == GAC_TASK_GEMM;
    for (int64_t i = 0; i < n; i++) {
        double value = is_float   ? scale * gac_random_normal(stream, (uint64_t)i)
                       : is_small ? 32 * gac_random_normal(stream, (uint64_t)i)
                                  : (double)(gac_random_bits(stream, (uint64_t)i) >> 32);
        gac_dtype_store(data, dtype, i, value);
    }
}
