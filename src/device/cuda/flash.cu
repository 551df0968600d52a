/* Fused attention for any head size.
 *
 * A block owns a tile of query rows and loops over tiles of keys, as in FlashAttention-2:
 * scores stay in registers, the softmax is online, and the products use mma.sync m16n8k16
 * with operands loaded by ldmatrix. cp.async copies the next tile of K and V while the
 * current one is multiplied.
 *
 * Head sizes are padded to a template size D, in shared memory only. Rows there are D
 * elements and 16 spare bytes apart. That is an odd number of 16-byte units, so the eight
 * rows of an ldmatrix use different banks.
 *
 * If all rows are 16-byte aligned, they are copied 16 bytes at a time (WIDE). Other rows
 * are copied in the aligned 16-byte chunks that contain them. Such a row arrives up to 14
 * bytes too far right, inside its spare bytes, and the warp that copied it shifts it
 * back. Nothing outside the tensor is read.
 *
 * With few rows (decode), the warps of a block share one tile of 16 rows and divide the
 * keys. The query heads of one kv head become rows of the same tile. Keys are also
 * divided among blocks, and a second kernel combines their partial results.
 *
 * Heads above 256 use another kernel (flash_wide.cuh). It handles up to 256 columns of v
 * per launch and loads q and K in chunks of columns. It is slower than the unfused path
 * (GAC_SDPA_MATH) at every measured head size above 256 (notes/large-heads). Its
 * only advantage is that it needs no memory for the scores. */
#include "flash_kernel.cuh"
#include "flash_wide.cuh"

#include <climits>
#include <cmath>

namespace
{

constexpr int MAX_SPLITS = 128, COMBINE_WARPS = 4;

/* Combines the partial results of the splits, one block per row. The warps divide the
 * splits to overlap their loads. */
template <typename T>
__global__ void __launch_bounds__(32 * COMBINE_WARPS)
    gac_flash_combine_kernel(const __grid_constant__ params p)
{
    /* A barrier separates the writes from the reads. */
    __shared__ float weights[MAX_SPLITS], parts[COMBINE_WARPS][256];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t row = blockIdx.x;
    float top = -INFINITY, sum = 0, x[256 / 32] = {};
    for (int i = lane; i < p.n_splits; i += 32)
        top = fmaxf(top, p.stats[i * p.n_all_rows + row].x);
#pragma unroll
    for (int i = 16; i; i /= 2)
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, i));
    for (int i = lane; i < p.n_splits; i += 32) {
        const float2 stats = p.stats[i * p.n_all_rows + row];
        const float weight = top == -INFINITY ? 0.0f : exp2_fast(stats.x - top);
        sum += weight * stats.y;
        if (warp == 0)
            weights[i] = weight;
    }
#pragma unroll
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, i);
    __syncthreads();
#pragma unroll 4
    for (int i = warp; i < p.n_splits; i += COMBINE_WARPS) {
        const float *from = p.part + (i * p.n_all_rows + row) * p.v_head;
#pragma unroll
        for (int n = 0; n < 256 / 32; n++)
            if (lane + 32 * n < p.v_head)
                x[n] += weights[i] * from[lane + 32 * n];
    }
#pragma unroll
    for (int n = 0; n < 256 / 32; n++)
        parts[warp][lane + 32 * n] = x[n];
    __syncthreads();
    const float scale = sum == 0 ? 0.0f : 1.0f / sum;
    const int64_t head = row / p.n_q; /* index over batch * n_q_heads */
    char *to = p.out + head / p.n_q_heads * p.out_bytes.batch +
               head % p.n_q_heads * p.out_bytes.head + row % p.n_q * p.out_bytes.row;
    for (int c = threadIdx.x; c < p.v_head; c += 32 * COMBINE_WARPS) {
        float y = 0;
#pragma unroll
        for (int i = 0; i < COMBINE_WARPS; i++)
            y += parts[i][c];
        *(unsigned short *)(to + 2 * c) = (unsigned short)pack<T>(y * scale, 0.0f);
    }
}

/* Launch parameters that depend on the shape only. */
struct choice {
    int d;    /* template size, or ABOVE */
    bool few; /* at most FEW_ROWS rows: warps share the rows and divide the keys */
    int n_pack, n_rows, n_row_tiles, n_splits, tiles_per_split;
    int64_t n_blocks; /* blocks of one split */
    int v_cols;       /* columns of v and out per launch */
};

constexpr int FEW_ROWS = 16, MANY_ROWS = 128;
constexpr int MOST_COLS = 256; /* columns that one block accumulates */
constexpr int ABOVE = INT_MAX; /* any head size above MOST_COLS: flash_wide.cuh */

/* Returns the keys per tile: as many as registers (up to 160) and 163 KiB of shared
 * memory, the limit of sm_80, allow. */
constexpr int keys_per_tile(int d)
{
    return d <= 128   ? 64
           : d <= 160 ? 32
           : d <= 192 ? 64
           : d <= 224 ? 48
           : d <= 256 ? 32
                      : WIDE_KEYS;
}

template <typename T, int D, bool WIDE>
using many_config = config<T, D, D <= 160 ? 2 : 1, D <= 160 ? 4 : 8, keys_per_tile(D), false, WIDE>;
template <typename T, int D, bool WIDE> using few_config = config<T, D, 1, 4, 64, true, WIDE>;
template <typename T, bool WIDE> using many_above = wide_config<T, 8, false, WIDE>;
template <typename T, bool WIDE> using few_above = wide_config<T, 4, true, WIDE>;

/* Returns whether the size of (batch, heads, rows, head) in bytes fits an int64_t. */
bool is_countable(int64_t batch, int64_t n_heads, int64_t n_rows, int64_t head)
{
    int64_t n = 0;
    return gac_mul_i64(batch, n_heads, &n) && gac_mul_i64(n, n_rows, &n) &&
           gac_mul_i64(n, head, &n) && gac_mul_i64(n, 2, &n);
}

gac_status check_shape(const gac_sdpa_shape *s, gac_error *err)
{
    const int64_t most = (int64_t)1 << 30;
    if (s->batch < 1 || s->n_q_heads < 1 || s->n_kv_heads < 1 || s->n_q < 1 || s->n_kv < 1 ||
        s->batch > most || s->n_q_heads > most || s->n_q > most || s->n_kv > most ||
        s->n_q * s->n_q_heads > most)
        return gac_error_set(err, GAC_USAGE, "attention sizes out of range");
    if (s->n_q_heads % s->n_kv_heads)
        return gac_error_set(err, GAC_USAGE, "%lld query heads do not share %lld kv heads evenly",
                             (long long)s->n_q_heads, (long long)s->n_kv_heads);
    const int64_t larger = s->qk_head > s->v_head ? s->qk_head : s->v_head;
    if (s->qk_head < 1 || s->v_head < 1 || larger > most)
        return gac_error_set(err, GAC_USAGE, "head sizes %lld and %lld are out of range",
                             (long long)s->qk_head, (long long)s->v_head);
    if (!is_countable(s->batch, s->n_q_heads, s->n_q, larger) ||
        !is_countable(s->batch, s->n_kv_heads, s->n_kv, larger))
        return gac_error_set(err, GAC_USAGE, "attention operands too large for any device");
    return GAC_OK;
}

/* Divides v_head into equal parts of at most MOST_COLS columns. All parts but the last
 * are multiples of 16, which keeps them 16-byte aligned. */
int choose_v_cols(int v_head)
{
    if (v_head <= MOST_COLS)
        return v_head;
    const int n = (v_head + MOST_COLS - 1) / MOST_COLS;
    return ((v_head + n - 1) / n + 15) / 16 * 16;
}

gac_status choose(const gac_sdpa_shape *s, choice *c, gac_error *err)
{
    static const int many_sizes[] = { 32, 64, 80, 96, 112, 128, 160, 192, 224, 256, ABOVE };
    static const int few_sizes[] = { 64, 128, 256, ABOVE };
    const int head = (int)(s->qk_head > s->v_head ? s->qk_head : s->v_head);
    const int64_t group = s->n_q_heads / s->n_kv_heads;

    /* Packing reads K and V once per kv head. Long queries reuse them anyway. */
    c->n_pack = s->n_q < MANY_ROWS ? (int)group : 1;
    c->n_rows = (int)(s->n_q * c->n_pack);
    c->few = c->n_rows <= FEW_ROWS;
    const int *size = c->few ? few_sizes : many_sizes;
    while (*size < head)
        size++;
    /* ABOVE selects flash_wide.cuh, which is slower than the unfused path. Callers that have
     * memory for the scores should take GAC_SDPA_MATH. */
    c->d = *size;
    c->v_cols = choose_v_cols((int)s->v_head);
    const int rows = c->few ? FEW_ROWS : MANY_ROWS;
    c->n_row_tiles = (c->n_rows + rows - 1) / rows;
    c->n_blocks = s->batch * (s->n_q_heads / c->n_pack) * c->n_row_tiles;
    if (c->n_blocks > INT_MAX)
        return gac_error_set(err, GAC_USAGE, "attention sizes out of range");

    int device = 0, n_units = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&n_units, cudaDevAttrMultiProcessorCount, device);
    if (e != cudaSuccess)
        return gac_error_set(err, GAC_FAILED, "attention: %s", cudaGetErrorString(e));
    const int few_per_unit = c->d <= 64 ? 4 : c->d <= 128 ? 3 : c->d <= 256 ? 1 : 2;
    const int per_unit = c->few ? few_per_unit : c->d <= 160 ? 2 : 1;
    const int keys = c->few ? 64 : keys_per_tile(c->d);
    const int64_t n_tiles = (s->n_kv + keys - 1) / keys;
    int64_t n = (int64_t)n_units * per_unit / c->n_blocks;
    if (n > n_tiles / 2) /* a split of less than two tiles is mostly overhead */
        n = n_tiles / 2;
    if (n > MAX_SPLITS)
        n = MAX_SPLITS;
    if (n < 1)
        n = 1;
    c->tiles_per_split = (int)((n_tiles + n - 1) / n);
    c->n_splits = (int)((n_tiles + c->tiles_per_split - 1) / c->tiles_per_split);
    return GAC_OK;
}

size_t workspace_for(const gac_sdpa_shape *s, const choice *c)
{
    if (c->n_splits == 1)
        return 0;
    return (size_t)c->n_splits * (size_t)(s->batch * s->n_q_heads * s->n_q) *
           (sizeof(float2) + (size_t)c->v_cols * sizeof(float));
}

template <class K>
cudaError_t launch_kernel(K kernel, int n_threads, int smem_bytes, const params &p,
                          int64_t n_blocks, cudaStream_t stream)
{
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
    if (e != cudaSuccess)
        return e;
    const dim3 grid((unsigned)n_blocks, (unsigned)p.n_splits);
    kernel<<<grid, (unsigned)n_threads, (size_t)smem_bytes, stream>>>(p);
    return cudaGetLastError();
}

template <class C> cudaError_t launch(const params &p, int64_t n_blocks, cudaStream_t stream)
{
    return launch_kernel(gac_flash_kernel<C>, C::N_THREADS, C::SMEM_BYTES, p, n_blocks, stream);
}

template <class W> cudaError_t launch_above(const params &p, int64_t n_blocks, cudaStream_t stream)
{
    return launch_kernel(gac_flash_wide_kernel<W>, W::O::N_THREADS, W::SMEM_BYTES, p, n_blocks,
                         stream);
}

template <typename T, bool WIDE>
cudaError_t launch_size(const params &p, const choice &c, cudaStream_t stream)
{
    switch (c.few ? -c.d : c.d) {
    case -64:
        return launch<few_config<T, 64, WIDE>>(p, c.n_blocks, stream);
    case -128:
        return launch<few_config<T, 128, WIDE>>(p, c.n_blocks, stream);
    case -256:
        return launch<few_config<T, 256, WIDE>>(p, c.n_blocks, stream);
    case 32:
        return launch<many_config<T, 32, WIDE>>(p, c.n_blocks, stream);
    case 64:
        return launch<many_config<T, 64, WIDE>>(p, c.n_blocks, stream);
    case 80:
        return launch<many_config<T, 80, WIDE>>(p, c.n_blocks, stream);
    case 96:
        return launch<many_config<T, 96, WIDE>>(p, c.n_blocks, stream);
    case 112:
        return launch<many_config<T, 112, WIDE>>(p, c.n_blocks, stream);
    case 128:
        return launch<many_config<T, 128, WIDE>>(p, c.n_blocks, stream);
    case 160:
        return launch<many_config<T, 160, WIDE>>(p, c.n_blocks, stream);
    case 192:
        return launch<many_config<T, 192, WIDE>>(p, c.n_blocks, stream);
    case 224:
        return launch<many_config<T, 224, WIDE>>(p, c.n_blocks, stream);
    case 256:
        return launch<many_config<T, 256, WIDE>>(p, c.n_blocks, stream);
    case -ABOVE:
        return launch_above<few_above<T, WIDE>>(p, c.n_blocks, stream);
    case ABOVE:
        return launch_above<many_above<T, WIDE>>(p, c.n_blocks, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

template <typename T>
cudaError_t launch_cols(const params &p, const choice &c, bool wide, cudaStream_t stream)
{
    cudaError_t e = wide ? launch_size<T, true>(p, c, stream) : launch_size<T, false>(p, c, stream);
    if (e != cudaSuccess || p.n_splits == 1)
        return e;
    gac_flash_combine_kernel<T><<<(unsigned)p.n_all_rows, 32 * COMBINE_WARPS, 0, stream>>>(p);
    return cudaGetLastError();
}

/* Launches once per part of the columns of v. The parts use the workspace one after
 * another. */
template <typename T>
cudaError_t launch_type(const params &p, const choice &c, bool wide, cudaStream_t stream)
{
    cudaError_t e = cudaSuccess;
    for (int col = 0; e == cudaSuccess && col < p.v_head; col += c.v_cols) {
        params part = p;
        part.v += 2 * (int64_t)col;
        part.out += 2 * (int64_t)col;
        part.v_head = p.v_head - col < c.v_cols ? p.v_head - col : c.v_cols;
        part.wide_out = p.wide_out && part.v_head % 8 == 0;
        e = launch_cols<T>(part, c, wide, stream);
    }
    return e;
}

gac_flash_strides in_bytes(gac_flash_strides s)
{
    return gac_flash_strides{ 2 * s.batch, 2 * s.head, 2 * s.row };
}

/* Returns whether every row is 16-byte aligned. */
bool is_wide(const void *base, const gac_flash_strides *s)
{
    return (uintptr_t)base % 16 == 0 && s->batch % 8 == 0 && s->head % 8 == 0 && s->row % 8 == 0;
}

/* Returns the aligned address range of a tensor (batch, heads, rows, head). */
span find_span(const void *base, const gac_flash_strides &bytes, int64_t batch, int64_t n_heads,
               int64_t n_rows, int64_t head)
{
    const int64_t far[] = { (batch - 1) * bytes.batch, (n_heads - 1) * bytes.head,
                            (n_rows - 1) * bytes.row };
    int64_t low = 0, high = 2 * head;
    for (int64_t x : far)
        *(x < 0 ? &low : &high) += x;
    const uintptr_t at = (uintptr_t)base;
    return span{ (const char *)((at + (uintptr_t)low + 15) & ~(uintptr_t)15),
                 (const char *)((at + (uintptr_t)high) & ~(uintptr_t)15) };
}

params make_params(const gac_flash_args *a, const choice &c)
{
    const gac_sdpa_shape *s = &a->shape;
    const double scale = a->scale == 0 ? 1 / std::sqrt((double)s->qk_head) : a->scale;
    params p = {};
    p.q = (const char *)a->q;
    p.k = (const char *)a->k;
    p.v = (const char *)a->v;
    p.out = (char *)a->out;
    p.q_bytes = in_bytes(a->q_strides);
    p.k_bytes = in_bytes(a->k_strides);
    p.v_bytes = in_bytes(a->v_strides);
    p.out_bytes = in_bytes(a->out_strides);
    p.q_span = find_span(p.q, p.q_bytes, s->batch, s->n_q_heads, s->n_q, s->qk_head);
    p.k_span = find_span(p.k, p.k_bytes, s->batch, s->n_kv_heads, s->n_kv, s->qk_head);
    p.v_span = find_span(p.v, p.v_bytes, s->batch, s->n_kv_heads, s->n_kv, s->v_head);
    p.n_all_rows = s->batch * s->n_q_heads * s->n_q;
    p.stats = (float2 *)a->workspace;
    p.part = (float *)(p.stats + (int64_t)c.n_splits * p.n_all_rows);
    p.n_q_heads = (int)s->n_q_heads;
    p.n_q = (int)s->n_q;
    p.n_kv = (int)s->n_kv;
    p.qk_head = (int)s->qk_head;
    p.v_head = (int)s->v_head;
    p.group = (int)(s->n_q_heads / s->n_kv_heads);
    p.n_pack = c.n_pack;
    p.n_rows = c.n_rows;
    p.n_row_tiles = c.n_row_tiles;
    p.n_splits = c.n_splits;
    p.tiles_per_split = c.tiles_per_split;
    p.scale_log2 = std::fabs((float)scale) * LOG2_E;
    p.negate = scale < 0;
    if (a->softcap > 0) {
        p.cap = (float)(a->softcap / std::fabs(scale));
        p.to_cap = (float)(std::fabs(scale) / a->softcap);
    }
    p.window = a->window > 0 && a->window < INT_MAX ? (int)a->window : INT_MAX;
    p.causal = s->causal;
    p.wide_out = is_wide(a->out, &a->out_strides);
    return p;
}

} /* namespace */

extern "C" void gac_flash_set_contiguous(gac_flash_args *args)
{
    const gac_sdpa_shape *s = &args->shape;
    args->q_strides = { s->n_q_heads * s->n_q * s->qk_head, s->n_q * s->qk_head, s->qk_head };
    args->k_strides = { s->n_kv_heads * s->n_kv * s->qk_head, s->n_kv * s->qk_head, s->qk_head };
    args->v_strides = { s->n_kv_heads * s->n_kv * s->v_head, s->n_kv * s->v_head, s->v_head };
    args->out_strides = { s->n_q_heads * s->n_q * s->v_head, s->n_q * s->v_head, s->v_head };
}

extern "C" gac_status gac_flash_workspace_bytes(const gac_sdpa_shape *shape, size_t *n_bytes,
                                                gac_error *err)
{
    choice c;
    gac_status status = check_shape(shape, err);
    if (status == GAC_OK)
        status = choose(shape, &c, err);
    if (status == GAC_OK)
        *n_bytes = workspace_for(shape, &c);
    return status;
}

extern "C" gac_status gac_flash_launch(const gac_flash_args *args, cudaStream_t stream,
                                       gac_error *err)
{
    choice c;
    gac_status status = check_shape(&args->shape, err);
    if (status == GAC_OK)
        status = choose(&args->shape, &c, err);
    if (status != GAC_OK)
        return status;
    if ((args->window > 0 && !args->shape.causal) ||
        ((args->window > 0 || args->softcap > 0) && c.d == ABOVE))
        return gac_error_set(err, GAC_USAGE,
                             "a window wants causal attention, and with a bound on scores, too, "
                             "heads of at most %d",
                             MOST_COLS);
    if (((uintptr_t)args->q | (uintptr_t)args->k | (uintptr_t)args->v | (uintptr_t)args->out) % 2)
        return gac_error_set(err, GAC_USAGE, "attention operands are not aligned to elements");
    if (!args->workspace) {
        c.tiles_per_split = INT_MAX / 2;
        c.n_splits = 1;
    } else if (args->workspace_bytes < workspace_for(&args->shape, &c)) {
        return gac_error_set(err, GAC_USAGE, "attention wants %zu bytes of workspace, not %zu",
                             workspace_for(&args->shape, &c), args->workspace_bytes);
    }
    const params p = make_params(args, c);
    const bool wide = is_wide(args->q, &args->q_strides) && is_wide(args->k, &args->k_strides) &&
                      is_wide(args->v, &args->v_strides);
    cudaError_t e;
    if (args->dtype == GAC_DTYPE_F16)
        e = launch_type<__half>(p, c, wide, stream);
    else if (args->dtype == GAC_DTYPE_BF16)
        e = launch_type<__nv_bfloat16>(p, c, wide, stream);
    else
        return gac_error_set(err, GAC_USAGE, "attention takes F16 or BF16");
    if (e != cudaSuccess)
        return gac_error_set(err, GAC_FAILED, "attention: %s", cudaGetErrorString(e));
    return GAC_OK;
}
