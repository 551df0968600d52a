/* op: operator calls, and the numbers they work on.
 *
 * Number formats (dtypes), the shapes of GEMM and attention calls, and the axes
 * through which an operator sees a size. No files, no times, no models.
 *
 * All functions may be called from any thread. */
#ifndef GAC_OP_H
#define GAC_OP_H

#include <gac/base.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Dtypes. */

typedef enum gac_dtype {
    GAC_DTYPE_BOOL,
    GAC_DTYPE_F4,
    GAC_DTYPE_F6_E2M3,
    GAC_DTYPE_F6_E3M2,
    GAC_DTYPE_U8,
    GAC_DTYPE_I8,
    GAC_DTYPE_F8_E5M2,
    GAC_DTYPE_F8_E4M3,
    GAC_DTYPE_F8_E8M0,
    GAC_DTYPE_F8_E4M3FNUZ,
    GAC_DTYPE_F8_E5M2FNUZ,
    GAC_DTYPE_I16,
    GAC_DTYPE_U16,
    GAC_DTYPE_F16,
    GAC_DTYPE_BF16,
    GAC_DTYPE_I32,
    GAC_DTYPE_U32,
    GAC_DTYPE_F32,
    GAC_DTYPE_C64,
    GAC_DTYPE_F64,
    GAC_DTYPE_I64,
    GAC_DTYPE_U64,
    GAC_DTYPE_COUNT
} gac_dtype;

const char *gac_dtype_name(gac_dtype dtype); /* as safetensors spells it */
int gac_dtype_bits(gac_dtype dtype);
bool gac_dtype_parse(const char *name, gac_dtype *out);

/* Loads or stores element index of an array. F32, F16, BF16 and F8_E4M3 are
 * read as numbers. No operator multiplies the other float formats: those of 8
 * bits are read as unsigned integers. Integers that do not fit wrap. A format
 * of fewer than 8 bits or of 64 bits loads as NaN and cannot be stored. */
double gac_dtype_load(const void *data, gac_dtype dtype, int64_t index);
void gac_dtype_store(void *data, gac_dtype dtype, int64_t index, double value);

/* Operators. */

/* The axes through which operators see a size. GEMM is y = x W^T: x is (m, k),
 * W is (n, k). */
typedef enum gac_op_axis {
    GAC_OP_GEMM_N,
    GAC_OP_GEMM_K,
    GAC_OP_SDPA_HEAD,
    GAC_OP_AXIS_COUNT
} gac_op_axis;

const char *gac_op_axis_name(gac_op_axis axis); /* "gemm_n", "gemm_k", "sdpa_head" */

/* One GEMM: y (m, n) = x (m, k) W^T, where W is (n, k) as a Linear layer stores
 * it. With row_major it is y = x B, where B is (k, n). All rows are contiguous.
 * F16 and BF16 give results of their own dtype. F32 is multiplied as TF32.
 * F8_E4M3 gives BF16, with unit scales. I8 gives I32. Sums have 32 bits or
 * more. */
typedef struct gac_gemm_shape {
    int64_t m, n, k;
    bool row_major;
} gac_gemm_shape;

/* One call of attention (scaled dot-product attention, SDPA). */
typedef struct gac_sdpa_shape {
    int64_t batch;
    int64_t n_q_heads, n_kv_heads;
    int64_t n_q,
        n_kv; /* rows of queries and of keys; equal in prefill, 1 and the context in decode */
    int64_t qk_head, v_head; /* per-head sizes */
    bool causal;
} gac_sdpa_shape;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
