/* flash_wide: the attention kernel for heads above 256.
 *
 * It is slower than the unfused path (GAC_SDPA_MATH) at every measured head size above 256
 * (notes/large-heads). Its only advantage is that it needs no memory for the scores.
 *
 * A launch handles at most 256 columns of v and out. So the scores are computed again for
 * each part of v. q and K pass through shared memory in chunks of 128 columns. q is
 * loaded again for every tile of keys, so that shared memory does not grow with the head.
 * The next chunk is copied while the current one is multiplied. V is copied while the
 * first chunk of its tile is multiplied. */
#ifndef GAC_FLASH_WIDE_CUH
#define GAC_FLASH_WIDE_CUH

#include "flash_kernel.cuh"

namespace
{

constexpr int WIDE_KEYS = 64; /* keys per tile */

template <typename T, int N_WARPS, bool SHARE, bool WIDE> struct wide_config {
    using O = config<T, 256, 1, N_WARPS, WIDE_KEYS, SHARE, WIDE>; /* shape of V and out */
    using C = config<T, 128, 1, N_WARPS, WIDE_KEYS, SHARE, WIDE>; /* shape of a chunk of q and K */
    static constexpr int Q_ROWS = C::N_ROWS / N_WARPS;            /* rows of q that a warp copies */
    static constexpr int CHUNK_BYTES = C::Q_BYTES + C::TILE_BYTES;
    static constexpr int SMEM_BYTES = 2 * CHUNK_BYTES + O::TILE_BYTES; /* q, K, q, K, V */
    /* Scratch of store_shared_rows and store_rows. */
    static constexpr int STORE_BYTES = SHARE ? N_WARPS * 16 * (8 + 4 * (O::D + 8)) : O::Q_BYTES;
    static_assert(SMEM_BYTES <= 163 * 1024 && STORE_BYTES <= SMEM_BYTES, "shared memory");
};

/* One warp's share of a chunk: rows of q and of tile j of K. */
struct chunk {
    block_work at;  /* q and k point at the chunk's first column */
    int n_cols;     /* at most 128 */
    int key;        /* first key of the warp's rows */
    uint32_t q, kv; /* shared memory: the q tile and the warp's rows of K */
};

template <class W>
__device__ __forceinline__ chunk find_chunk(uint32_t to, const params &p, const block_work &w,
                                            int j, int col, int warp)
{
    using C = typename W::C;
    chunk c = { w, min(C::D, p.qk_head - col), j * C::N_KEYS + warp * C::COPY_ROWS, to,
                to + C::Q_BYTES + warp * C::COPY_ROWS * C::PITCH };
    c.at.q += 2 * (int64_t)col;
    c.at.k += c.key * p.k_bytes.row + 2 * (int64_t)col;
    return c;
}

/* Returns p with the width of the chunk as head size, for the functions of flash_kernel. */
__device__ __forceinline__ params with_chunk_width(params p, const chunk &c)
{
    p.qk_head = c.n_cols;
    return p;
}

template <class W>
__device__ __forceinline__ void copy_chunk(const params &p, const chunk &c, int warp, int lane)
{
    using C = typename W::C;
    copy_q<C>(c.q, with_chunk_width(p, c), c.at, warp * W::Q_ROWS, lane);
    copy_rows<C, C::COPY_ROWS>(c.kv, c.at.k, p.k_bytes.row, p.k_span, p.n_kv - c.key, c.n_cols,
                               lane);
}

/* Zeroes the columns from n_cols to the next multiple of 16, which the product reads and
 * an earlier chunk may have filled. Each warp clears only rows that it copied. */
template <class C, int ROWS>
__device__ __forceinline__ void clear_end(uint32_t rows, int n_cols, int lane)
{
    if (lane < ROWS)
#pragma unroll 1
        for (int i = n_cols; i % 16; i++)
            store_shared(rows + lane * C::PITCH + 2 * i, (unsigned short)0);
}

/* Aligns the rows of copy_chunk and clears their end. The copies must have arrived. */
template <class W>
__device__ __forceinline__ void receive_chunk(const params &p, const chunk &c, int warp, int lane)
{
    using C = typename W::C;
    if constexpr (!C::WIDE) {
        receive_q<C>(c.q, with_chunk_width(p, c), c.at, warp * W::Q_ROWS, lane);
        align_rows<C, C::COPY_ROWS>(c.kv, low_bits(c.at.k), (uint32_t)p.k_bytes.row, lane);
    }
    if (c.n_cols % 16) {
        __syncwarp();
        clear_end<C, W::Q_ROWS>(c.q + warp * W::Q_ROWS * C::PITCH, c.n_cols, lane);
        clear_end<C, C::COPY_ROWS>(c.kv, c.n_cols, lane);
    }
}

/* Starts to copy this warp's rows of tile j of V. */
template <class O>
__device__ __forceinline__ void copy_v(uint32_t to, const params &p, const block_work &w, int j,
                                       int warp, int lane)
{
    const int key = j * O::N_KEYS + warp * O::COPY_ROWS;
    copy_rows<O, O::COPY_ROWS>(to + warp * O::COPY_ROWS * O::PITCH, w.v + key * p.v_bytes.row,
                               p.v_bytes.row, p.v_span, p.n_kv - key, p.v_head, lane);
}

template <class O>
__device__ __forceinline__ void receive_v(uint32_t at, const params &p, const block_work &w,
                                          int warp, int lane)
{
    if constexpr (!O::WIDE) { /* every tile has the same shifts, as in receive_kv */
        const int key = warp * O::COPY_ROWS;
        align_rows<O, O::COPY_ROWS>(at + key * O::PITCH,
                                    low_bits(w.v) + key * (uint32_t)p.v_bytes.row,
                                    (uint32_t)p.v_bytes.row, lane);
    }
}

/* s (16, WARP_KEYS) += q k^T over one chunk. q and k are this lane's ldmatrix addresses. */
template <class C>
__device__ __forceinline__ void add_qk(scores_t<C> &s, uint32_t q, uint32_t k, int n_cols)
{
    using T = typename C::T;
#pragma unroll
    for (int step = 0; step < C::D / 16; step++) {
        if (16 * step >= n_cols)
            break;
        uint32_t a[4];
        ldmatrix(a, q + 32 * step);
#pragma unroll
        for (int n = 0; n < C::WARP_KEYS / 16; n++) {
            uint32_t b[4]; /* as in multiply_qk */
            ldmatrix(b, k + n * 16 * C::PITCH + 32 * step);
            mma<T>(s[0][2 * n], a, b[0], b[1]);
            mma<T>(s[0][2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* multiply_pv for n_cols columns, in steps of 64. A branch at every 16 columns would
 * prevent overlap of loads and products. */
template <class C>
__device__ __forceinline__ void multiply_pv_cols(scores_t<C> &s, sums_t<C> &o,
                                                 const per_row_t<C> &top, per_row_t<C> &sum,
                                                 uint32_t v, float scale_log2, int n_cols)
{
    using T = typename C::T;
    constexpr int AT_ONCE = 64;
    float offset[2];
#pragma unroll
    for (int half = 0; half < 2; half++) /* a row that has seen no key: exp2(-inf) = 0 */
        offset[half] = top[0][half] == -INFINITY ? 0.0f : top[0][half] * scale_log2;
#pragma unroll
    for (int step = 0; step < C::WARP_KEYS / 16; step++) {
        uint32_t a[4]; /* probabilities of 16 keys, as the left operand of an mma */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *e = &s[0][2 * step + i / 2][2 * (i % 2)];
            e[0] = exp2_fast(fmaf(e[0], scale_log2, -offset[i % 2]));
            e[1] = exp2_fast(fmaf(e[1], scale_log2, -offset[i % 2]));
            sum[0][i % 2] += e[0] + e[1];
            a[i] = pack<T>(e[0], e[1]);
        }
#pragma unroll
        for (int first = 0; first < C::D; first += AT_ONCE) {
            if (first >= n_cols)
                break;
#pragma unroll
            for (int n = first / 16; n < (first + AT_ONCE) / 16; n++) {
                uint32_t b[4]; /* as in multiply_pv */
                ldmatrix_trans(b, v + step * 16 * C::PITCH + 32 * n);
                mma<T>(o[0][2 * n], a, b[0], b[1]);
                mma<T>(o[0][2 * n + 1], a, b[2], b[3]);
            }
        }
    }
}

/* Access to shared memory between barriers:
 *
 * - Each warp copies, aligns and clears its own rows of q, K and V. It uses __syncwarp
 *   before lanes read or overwrite what other lanes wrote.
 * - The barrier before the loop and the barrier that ends a chunk: all warps read a row
 *   only after the barrier that follows its copy. A chunk is overwritten only after the
 *   barrier that follows its last read. V is copied with the first chunk of its tile, so
 *   the same barrier protects it.
 * - The barrier that ends a tile: V is read before it and overwritten after it.
 * - After the loop no copy is in flight and no warp reads tiles. store_rows and
 *   store_shared_rows use all of shared memory as scratch, as in gac_flash_kernel. */
template <class W>
__global__ void __launch_bounds__(W::O::N_THREADS, W::O::MIN_BLOCKS)
    gac_flash_wide_kernel(const __grid_constant__ params p)
{
    using C = typename W::C;
    using O = typename W::O;
    extern __shared__ __align__(16) char smem[];
    const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0);
    const block_work w = find_work(p, O::N_ROWS);
    const int warp_row = O::SHARE ? 0 : warp * O::WARP_ROWS;
    const int warp_key = O::SHARE ? warp * O::WARP_KEYS : 0;
    const int row = w.row + warp_row; /* if not below n_rows, this warp only copies */
    const int last_row = min(w.row + O::N_ROWS, p.n_rows) - 1;
    const int j_begin = w.split * p.tiles_per_split;
    const int j_end =
        min(j_begin + p.tiles_per_split, (visible_keys(p, last_row) + O::N_KEYS - 1) / O::N_KEYS);

    /* This lane's ldmatrix addresses, as in gac_flash_kernel. */
    const uint32_t chunks = smem_address(smem), v_tile = chunks + 2 * W::CHUNK_BYTES;
    const uint32_t q_lane = chunks + (warp_row + lane % 16) * C::PITCH + lane / 16 * 16;
    const uint32_t k_lane =
        chunks + C::Q_BYTES + (warp_key + lane / 16 * 8 + lane % 8) * C::PITCH + lane / 8 % 2 * 16;
    const uint32_t v_lane = v_tile + (warp_key + lane % 16) * O::PITCH + lane / 16 * 16;

    float o[1][O::D / 8][4] = {};
    float top[1][2] = { { -INFINITY, -INFINITY } }, sum[1][2] = {};
    if (j_begin < j_end) {
        const chunk first = find_chunk<W>(chunks, p, w, j_begin, 0, warp);
        copy_chunk<W>(p, first, warp, lane);
        copies_commit();
        copies_wait();
        receive_chunk<W>(p, first, warp, lane);
        __syncthreads();
    }
    uint32_t here = 0; /* offset of the chunk to multiply */
#pragma unroll 1
    for (int j = j_begin; j < j_end; j++) {
        float s[1][O::WARP_KEYS / 8][4] = {};
#pragma unroll 1
        for (int col = 0; col < p.qk_head; col += C::D) {
            const uint32_t there = W::CHUNK_BYTES - here;
            const bool is_last = col + C::D >= p.qk_head;
            const bool go = !is_last || j + 1 < j_end;
            const chunk next = find_chunk<W>(chunks + there, p, w, is_last ? j + 1 : j,
                                             is_last ? 0 : col + C::D, warp);
            if (go)
                copy_chunk<W>(p, next, warp, lane);
            if (col == 0)
                copy_v<O>(v_tile, p, w, j, warp, lane);
            copies_commit();
            if (row < p.n_rows)
                add_qk<C>(s, q_lane + here, k_lane + here, p.qk_head - col);
            copies_wait();
            if (go)
                receive_chunk<W>(p, next, warp, lane);
            if (col == 0)
                receive_v<O>(v_tile, p, w, warp, lane);
            __syncthreads();
            here = there;
        }
        if (row < p.n_rows) {
            if (p.negate)
                change_scores<O>(s, [](float x) { return -x; });
            if ((j + 1) * O::N_KEYS > visible_keys(p, w.row)) /* keys that every row sees */
                mask_scores<O>(s, p, row, j * O::N_KEYS + warp_key, lane);
            raise_top<O>(s, o, top, sum, p.scale_log2);
            multiply_pv_cols<O>(s, o, top, sum, v_lane, p.scale_log2, p.v_head);
        }
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[0][half] += __shfl_xor_sync(ALL_LANES, sum[0][half], 1);
        sum[0][half] += __shfl_xor_sync(ALL_LANES, sum[0][half], 2);
    }
    if constexpr (O::SHARE)
        store_shared_rows<O>(p, w, o, top, sum, smem, warp, lane);
    else if (p.n_splits > 1)
        store_partial<O>(p, w, o, top, sum, row, lane);
    else
        store_rows<O>(p, w, o, sum, smem + warp_row * O::PITCH, row, lane);
}

} /* namespace */

#endif
