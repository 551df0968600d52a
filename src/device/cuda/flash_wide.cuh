/* flash_wide: what a block of the attention kernel for heads above 256 does.
 *
 * It has 256 columns of out at most; the launcher calls it once for each such
 * part of v. The scores are sums over the whole head of q and K, which come
 * through shared memory in chunks of 128 columns: q too, anew for every tile of
 * keys, so that nothing here grows with the head. The next chunk is copied
 * while this one is multiplied, V while the first chunk of its tile is. */
#ifndef GAC_FLASH_WIDE_CUH
#define GAC_FLASH_WIDE_CUH

#include "flash_kernel.cuh"

namespace
{

constexpr int WIDE_KEYS = 64; /* per tile */

template <typename T, int N_WARPS, bool SHARE, bool WIDE> struct wide_config {
    using O = config<T, 256, 1, N_WARPS, WIDE_KEYS, SHARE, WIDE>; /* of V and out */
    using C = config<T, 128, 1, N_WARPS, WIDE_KEYS, SHARE, WIDE>; /* of a chunk of q and K */
    static constexpr int Q_ROWS = C::N_ROWS / N_WARPS;            /* that a warp copies */
    static constexpr int CHUNK_BYTES = C::Q_BYTES + C::TILE_BYTES;
    static constexpr int SMEM_BYTES = 2 * CHUNK_BYTES + O::TILE_BYTES; /* q, K, q, K, V */
    /* What store_shared_rows and store_rows write over. */
    static constexpr int STORE_BYTES = SHARE ? N_WARPS * 16 * (8 + 4 * (O::D + 8)) : O::Q_BYTES;
    static_assert(SMEM_BYTES <= 163 * 1024 && STORE_BYTES <= SMEM_BYTES, "shared memory");
};

/* Where one warp's share of a chunk lies: its rows of q, and of tile j of K. */
struct chunk {
    place at;       /* q and k begin with the chunk's first column */
    int n_cols;     /* up to 128 */
    int key;        /* first of the warp's rows of K */
    uint32_t q, kv; /* in shared memory: the q tile, the warp's rows of K */
};

template <class W>
__device__ __forceinline__ chunk find_chunk(uint32_t to, const params &p, const place &w, int j,
                                            int col, int warp)
{
    using C = typename W::C;
    chunk c = { w, min(C::D, p.qk_head - col), j * C::N_KEYS + warp * C::COPY_ROWS, to,
                to + C::Q_BYTES + warp * C::COPY_ROWS * C::PITCH };
    c.at.q += 2 * (int64_t)col;
    c.at.k += c.key * p.k_bytes.row + 2 * (int64_t)col;
    return c;
}

/* p as the functions of flash_kernel want it, which know no chunks. */
__device__ __forceinline__ params as_whole(params p, const chunk &c)
{
    p.qk_head = c.n_cols;
    return p;
}

template <class W>
__device__ __forceinline__ void copy_chunk(const params &p, const chunk &c, int warp, int lane)
{
    using C = typename W::C;
    copy_q<C>(c.q, as_whole(p, c), c.at, warp * W::Q_ROWS, lane);
    copy_rows<C, C::COPY_ROWS>(c.kv, c.at.k, p.k_bytes.row, p.k_span, p.n_kv - c.key, c.n_cols,
                               lane);
}

/* Zeros what the last step of a product reads past n_cols: what an earlier chunk
 * left there. Only rows that this warp copied. */
template <class C, int ROWS>
__device__ __forceinline__ void clear_end(uint32_t rows, int n_cols, int lane)
{
    if (lane < ROWS)
#pragma unroll 1
        for (int i = n_cols; i % 16; i++)
            store_shared(rows + lane * C::PITCH + 2 * i, (unsigned short)0);
}

/* Makes what copy_chunk brought, which must have arrived, fit to multiply. */
template <class W>
__device__ __forceinline__ void receive_chunk(const params &p, const chunk &c, int warp, int lane)
{
    using C = typename W::C;
    if constexpr (!C::WIDE) {
        receive_q<C>(c.q, as_whole(p, c), c.at, warp * W::Q_ROWS, lane);
        straighten_rows<C, C::COPY_ROWS>(c.kv, low_bits(c.at.k), (uint32_t)p.k_bytes.row, lane);
    }
    if (c.n_cols % 16) {
        __syncwarp();
        clear_end<C, W::Q_ROWS>(c.q + warp * W::Q_ROWS * C::PITCH, c.n_cols, lane);
        clear_end<C, C::COPY_ROWS>(c.kv, c.n_cols, lane);
    }
}

/* This warp's share of tile j of V. */
template <class O>
__device__ __forceinline__ void copy_v(uint32_t to, const params &p, const place &w, int j,
                                       int warp, int lane)
{
    const int key = j * O::N_KEYS + warp * O::COPY_ROWS;
    copy_rows<O, O::COPY_ROWS>(to + warp * O::COPY_ROWS * O::PITCH, w.v + key * p.v_bytes.row,
                               p.v_bytes.row, p.v_span, p.n_kv - key, p.v_head, lane);
}

template <class O>
__device__ __forceinline__ void receive_v(uint32_t at, const params &p, const place &w, int warp,
                                          int lane)
{
    if constexpr (!O::WIDE) { /* all tiles lie alike, as in receive_kv */
        const int key = warp * O::COPY_ROWS;
        straighten_rows<O, O::COPY_ROWS>(at + key * O::PITCH,
                                         low_bits(w.v) + key * (uint32_t)p.v_bytes.row,
                                         (uint32_t)p.v_bytes.row, lane);
    }
}

/* s (16, WARP_KEYS) += q k^T over a chunk. q and k are this lane's ldmatrix
 * addresses. */
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

/* multiply_pv, but for columns that are not there: in steps of 64, as a branch
 * at each 16 would keep loads and products apart. */
template <class C>
__device__ __forceinline__ void multiply_pv_cols(scores_t<C> &s, sums_t<C> &o,
                                                 const per_row_t<C> &top, per_row_t<C> &sum,
                                                 uint32_t v, float scale_log2, int n_cols)
{
    using T = typename C::T;
    constexpr int AT_ONCE = 64;
    float offset[2];
#pragma unroll
    for (int half = 0; half < 2; half++) /* a row that has seen nothing: exp2(-inf) = 0 */
        offset[half] = top[0][half] == -INFINITY ? 0.0f : top[0][half] * scale_log2;
#pragma unroll
    for (int step = 0; step < C::WARP_KEYS / 16; step++) {
        uint32_t a[4]; /* probabilities of 16 keys, as an mma reads its left side */
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

/* Who touches shared memory, between which barriers:
 *
 * - Each warp copies, straightens and clears its own rows of q, K and V, with
 *   __syncwarp where lanes read or write over what others of the warp wrote.
 * - The barrier before the loop and the one that ends a chunk: rows that a warp
 *   wrote are read by all only after it, and the chunk that was read before it
 *   is written over only after it. V was copied with the tile's first chunk, so
 *   that it too is read after such a barrier.
 * - The barrier that ends a tile: V is read before it and written over after.
 * - After the loop nothing is being copied and nobody reads tiles; store_rows
 *   and store_shared_rows take all of it as their scratch, as in
 *   gac_flash_kernel. */
template <class W>
__global__ void __launch_bounds__(W::O::N_THREADS, W::O::MIN_BLOCKS)
    gac_flash_wide_kernel(const __grid_constant__ params p)
{
    using C = typename W::C;
    using O = typename W::O;
    extern __shared__ __align__(16) char smem[];
    const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0);
    const place w = find_place(p, O::N_ROWS);
    const int warp_row = O::SHARE ? 0 : warp * O::WARP_ROWS;
    const int warp_key = O::SHARE ? warp * O::WARP_KEYS : 0;
    const int row = w.row + warp_row; /* not below n_rows: this warp only helps to copy */
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
    uint32_t here = 0; /* the chunk to multiply with */
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
                negate_scores<O>(s);
            if ((j + 1) * O::N_KEYS > visible_keys(p, w.row)) /* which each row sees */
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
