/* flash_kernel: the attention kernel for heads up to 256. flash.cu describes the
 * algorithm. */
#ifndef GAC_FLASH_KERNEL_CUH
#define GAC_FLASH_KERNEL_CUH

#include "flash_tile.cuh"

#include <cmath>

namespace
{

/* The operands and the position of a block. */
struct block_work {
    const char *q;   /* (n_pack, n_q, qk_head) */
    const char *k;   /* (n_kv, qk_head) */
    const char *v;   /* (n_kv, v_head) */
    int batch, head; /* first query head of the pack */
    int row;         /* first row of the tile */
    int split;
};

/* Reads the block index with volatile asm, so that a second call computes everything
 * again. A block calls it again before it stores its results: this frees the registers
 * during the main loop. */
__device__ __forceinline__ block_work find_work(const params &p, int rows_per_tile)
{
    block_work w;
    unsigned block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const int n_packs = p.n_q_heads / p.n_pack;
    const int index = (int)(block / (unsigned)p.n_row_tiles);
    int tile = (int)(block % (unsigned)p.n_row_tiles);
    if (p.causal) /* the longest rows start first, so that short ones fill the end */
        tile = p.n_row_tiles - 1 - tile;
    w.batch = index / n_packs;
    w.head = index % n_packs * p.n_pack;
    w.row = tile * rows_per_tile;
    w.split = blockIdx.y;
    const int kv_head = w.head / p.group;
    w.q = p.q + w.batch * p.q_bytes.batch + w.head * p.q_bytes.head;
    w.k = p.k + w.batch * p.k_bytes.batch + kv_head * p.k_bytes.head;
    w.v = p.v + w.batch * p.v_bytes.batch + kv_head * p.v_bytes.head;
    return w;
}

/* Returns the end of the keys that row r sees. */
__device__ __forceinline__ int visible_keys(const params &p, int r)
{
    return p.causal ? max(0, p.n_kv + (r / p.n_pack + 1 - p.n_q)) : p.n_kv;
}

/* Returns the first key that a row sees. n_seen is the end of its keys. */
__device__ __forceinline__ int first_key(const params &p, int n_seen)
{
    return n_seen > p.window ? n_seen - p.window : 0;
}

/* Data of the block that the loop over keys reads once per tile. It is kept in shared
 * memory to save registers. */
struct block_info {
    const char *k, *v; /* as in block_work */
    int row;           /* first row of the tile */
    int all_begin;     /* every row of the tile sees the keys all_begin */
    int n_all_seen;    /* to n_all_seen - 1 */
    int j_end;         /* end of its tiles of keys */
};

/* Returns the index of row r of the pack in (batch, n_q_heads, n_q). */
__device__ __forceinline__ int64_t flat_row(const params &p, const block_work &w, int r)
{
    return ((int64_t)w.batch * p.n_q_heads + w.head + r % p.n_pack) * p.n_q + r / p.n_pack;
}

__device__ __forceinline__ char *out_row(const params &p, const block_work &w, int r)
{
    return p.out + w.batch * p.out_bytes.batch + (w.head + r % p.n_pack) * p.out_bytes.head +
           (int64_t)(r / p.n_pack) * p.out_bytes.row;
}

/* Zeroes the columns after the head in n_rows rows. No copy writes them. */
template <class C> __device__ __forceinline__ void clear_tail(char *rows, int n_rows, int head)
{
#pragma unroll 1
    for (int r = threadIdx.x; r < n_rows; r += C::N_THREADS)
#pragma unroll 1
        for (int c = head / 8; c <= C::D / 8; c++)
            *(uint4 *)(rows + r * C::PITCH + 16 * c) = make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ const char *q_row(const params &p, const block_work &w, int r)
{
    return w.q + r % p.n_pack * p.q_bytes.head + r / p.n_pack * p.q_bytes.row;
}

/* Starts to copy this warp's rows of the q tile, from first on. */
template <class C>
__device__ __forceinline__ void copy_q(uint32_t to, const params &p, const block_work &w, int first,
                                       int lane)
{
    constexpr int ROWS = C::N_ROWS / C::N_WARPS;
    const int row = w.row + first;
    to += first * C::PITCH;
    if (p.n_pack == 1) {
        copy_rows<C, ROWS>(to, w.q + row * p.q_bytes.row, p.q_bytes.row, p.q_span, p.n_rows - row,
                           p.qk_head, lane);
        return;
    }
#pragma unroll 1
    for (int k = 0; k < ROWS; k++)
        copy_rows<C, 1>(to + k * C::PITCH, q_row(p, w, min(row + k, p.n_rows - 1)), 0, p.q_span,
                        p.n_rows - row - k, p.qk_head, lane);
}

__device__ __forceinline__ uint32_t low_bits(const char *p)
{
    return (uint32_t)(uintptr_t)p;
}

template <class C>
__device__ __forceinline__ void receive_q(uint32_t at, const params &p, const block_work &w,
                                          int first, int lane)
{
    constexpr int ROWS = C::N_ROWS / C::N_WARPS;
    const int row = w.row + first;
    at += first * C::PITCH;
    if (p.n_pack == 1) {
        align_rows<C, ROWS>(at, low_bits(w.q + row * p.q_bytes.row), (uint32_t)p.q_bytes.row, lane);
        return;
    }
#pragma unroll 1
    for (int k = 0; k < ROWS; k++)
        align_rows<C, 1>(at + k * C::PITCH, low_bits(q_row(p, w, min(row + k, p.n_rows - 1))), 0,
                         lane);
}

/* Starts to copy this warp's rows of tile j of K and V. */
template <class C>
__device__ __forceinline__ void copy_kv(uint32_t to, const params &p, const volatile block_info &w,
                                        int j, int warp, int lane)
{
    const int key = j * C::N_KEYS + warp * C::COPY_ROWS;
    to += warp * C::COPY_ROWS * C::PITCH;
    copy_rows<C, C::COPY_ROWS>(to, w.k + key * p.k_bytes.row, p.k_bytes.row, p.k_span, p.n_kv - key,
                               p.qk_head, lane);
    copy_rows<C, C::COPY_ROWS>(to + C::TILE_BYTES, w.v + key * p.v_bytes.row, p.v_bytes.row,
                               p.v_span, p.n_kv - key, p.v_head, lane);
    copies_commit();
}

/* Waits for the copies of copy_kv and aligns their rows. */
template <class C>
__device__ __forceinline__ void receive_kv(uint32_t at, const params &p,
                                           const volatile block_info &w, int warp, int lane)
{
    copies_wait();
    if constexpr (!C::WIDE) { /* every tile has the same shifts, as N_KEYS is a multiple of 8 */
        const int key = warp * C::COPY_ROWS;
        at += key * C::PITCH;
        align_rows<C, C::COPY_ROWS>(at, low_bits(w.k) + key * (uint32_t)p.k_bytes.row,
                                    (uint32_t)p.k_bytes.row, lane);
        align_rows<C, C::COPY_ROWS>(at + C::TILE_BYTES,
                                    low_bits(w.v) + key * (uint32_t)p.v_bytes.row,
                                    (uint32_t)p.v_bytes.row, lane);
    }
}

template <class C>
__device__ __forceinline__ void load_q_fragments(uint32_t (&a)[C::M_TILES][4], uint32_t q, int step)
{
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
        ldmatrix(a[m], q + m * 16 * C::PITCH + 32 * step);
}

/* s (WARP_ROWS, WARP_KEYS) = q k^T. q and k are this lane's ldmatrix addresses. kept
 * holds the fragments of q if C::KEEP_Q. */
template <class C, int N>
__device__ __forceinline__ void multiply_qk(scores_t<C> &s, uint32_t q, uint32_t k,
                                            const uint32_t (&kept)[N][C::M_TILES][4])
{
    using T = typename C::T;
#pragma unroll
    for (int step = 0; step < C::D / 16; step++) {
        uint32_t a[C::M_TILES][4];
        if constexpr (!C::KEEP_Q)
            load_q_fragments<C>(a, q, step);
        else
#pragma unroll
            for (int i = 0; i < 4 * C::M_TILES; i++)
                a[i / 4][i % 4] = kept[step][i / 4][i % 4];
#pragma unroll
        for (int n = 0; n < C::WARP_KEYS / 16; n++) {
            uint32_t b[4]; /* keys 0-7 and 8-15, with columns 0-7 and 8-15 each */
            ldmatrix(b, k + n * 16 * C::PITCH + 32 * step);
#pragma unroll
            for (int m = 0; m < C::M_TILES; m++) {
                if (step == 0) {
                    mma<T>(s[m][2 * n], a[m], b[0], b[1], 0, 0, 0, 0);
                    mma<T>(s[m][2 * n + 1], a[m], b[2], b[3], 0, 0, 0, 0);
                } else {
                    mma<T>(s[m][2 * n], a[m], b[0], b[1]);
                    mma<T>(s[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }
}

/* Replaces each score x by f(x). */
template <class C, class F> __device__ __forceinline__ void change_scores(scores_t<C> &s, F f)
{
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
        for (int n = 0; n < C::WARP_KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][n][i] = f(s[m][n][i]);
}

/* Sets the scores of masked keys to -inf. row and key are the first of this warp. */
template <class C>
__device__ __forceinline__ void mask_scores(scores_t<C> &s, const params &p, int row, int key,
                                            int lane)
{
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int end = visible_keys(p, row + 16 * m + 8 * half + lane / 4);
            const int n_seen = end - key - lane % 4 * 2;
            const int n_before = first_key(p, end) - key - lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < C::WARP_KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (8 * n + i >= n_seen || 8 * n + i < n_before)
                        s[m][n][2 * half + i] = -INFINITY;
        }
}

/* Updates the running maxima, top, with those of the tile. If a row's maximum grew by
 * more than LAZY_LOG2, all accumulated sums of the warp are rescaled. */
template <class C>
__device__ __forceinline__ void raise_top(const scores_t<C> &s, sums_t<C> &o, per_row_t<C> &top,
                                          per_row_t<C> &sum, float scale_log2)
{
    float tile_top[C::M_TILES][2];
    bool outgrown = false;
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float t = fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
            for (int n = 1; n < C::WARP_KEYS / 8; n++)
                t = fmaxf(t, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            t = fmaxf(t, __shfl_xor_sync(ALL_LANES, t, 1));
            t = fmaxf(t, __shfl_xor_sync(ALL_LANES, t, 2));
            tile_top[m][half] = t;
            outgrown |= (t - top[m][half]) * scale_log2 > LAZY_LOG2; /* false for -inf - -inf */
        }
    if (!__any_sync(ALL_LANES, outgrown))
        return;
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float t = fmaxf(top[m][half], tile_top[m][half]);
            const float shrink = t == -INFINITY ? 1.0f : exp2_fast((top[m][half] - t) * scale_log2);
            top[m][half] = t;
            sum[m][half] *= shrink;
#pragma unroll
            for (int n = 0; n < C::D / 8; n++) {
                o[m][n][2 * half] *= shrink;
                o[m][n][2 * half + 1] *= shrink;
            }
        }
}

/* o (WARP_ROWS, D) += exp2(s - top) v, and sum += the exponentials. v is this lane's
 * ldmatrix address. */
template <class C>
__device__ __forceinline__ void multiply_pv(scores_t<C> &s, sums_t<C> &o, const per_row_t<C> &top,
                                            per_row_t<C> &sum, uint32_t v, float scale_log2)
{
    using T = typename C::T;
    float offset[C::M_TILES][2];
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) /* a row that has seen no key: exp2(-inf) = 0 */
            offset[m][half] = top[m][half] == -INFINITY ? 0.0f : top[m][half] * scale_log2;
#pragma unroll
    for (int step = 0; step < C::WARP_KEYS / 16; step++) {
        uint32_t a[C::M_TILES][4]; /* probabilities of 16 keys, as the left operand of an mma */
#pragma unroll
        for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float *e = &s[m][2 * step + i / 2][2 * (i % 2)];
                e[0] = exp2_fast(fmaf(e[0], scale_log2, -offset[m][i % 2]));
                e[1] = exp2_fast(fmaf(e[1], scale_log2, -offset[m][i % 2]));
                sum[m][i % 2] += e[0] + e[1];
                a[m][i] = pack<T>(e[0], e[1]);
            }
#pragma unroll
        for (int n = 0; n < C::D / 16; n++) {
            uint32_t b[4]; /* columns 0-7 and 8-15, with keys 0-7 and 8-15 each */
            ldmatrix_trans(b, v + step * 16 * C::PITCH + 32 * n);
#pragma unroll
            for (int m = 0; m < C::M_TILES; m++) {
                mma<T>(o[m][2 * n], a[m], b[0], b[1]);
                mma<T>(o[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Writes a warp's sums to the workspace, for gac_flash_combine_kernel. */
template <class C>
__device__ __forceinline__ void store_partial(const params &p, const block_work &w,
                                              const sums_t<C> &o, const per_row_t<C> &top,
                                              const per_row_t<C> &sum, int row, int lane)
{
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row + 16 * m + 8 * half + lane / 4;
            if (r >= p.n_rows)
                continue;
            const int64_t at = w.split * p.n_all_rows + flat_row(p, w, r);
            if (lane % 4 == 0)
                p.stats[at] = make_float2(top[m][half] * p.scale_log2, sum[m][half]);
#pragma unroll
            for (int n = 0; n < C::D / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int c = 8 * n + lane % 4 * 2 + i;
                    if (c < p.v_head)
                        p.part[at * p.v_head + c] = o[m][n][2 * half + i];
                }
        }
}

/* Normalises a warp's sums and writes them to out. They pass through the warp's own rows
 * of the q tile, so that stores are contiguous. */
template <class C>
__device__ __forceinline__ void store_rows(const params &p, const block_work &w, const sums_t<C> &o,
                                           const per_row_t<C> &sum, char *rows, int row, int lane)
{
    __syncwarp();
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float scale = sum[m][half] == 0 ? 0.0f : __fdividef(1.0f, sum[m][half]);
            uint32_t *to = (uint32_t *)(rows + (16 * m + 8 * half + lane / 4) * C::PITCH);
#pragma unroll
            for (int n = 0; n < C::D / 8; n++)
                to[4 * n + lane % 4] =
                    pack<typename C::T>(o[m][n][2 * half] * scale, o[m][n][2 * half + 1] * scale);
        }
    __syncwarp();
    const int n_rows = min(C::WARP_ROWS, p.n_rows - row);
#pragma unroll 1
    for (int k = 0; k < n_rows; k++) {
        const char *from = rows + k * C::PITCH;
        char *to = out_row(p, w, row + k);
        if (p.wide_out) {
            if (lane < p.v_head / 8)
                *(uint4 *)(to + 16 * lane) = *(const uint4 *)(from + 16 * lane);
            continue;
        }
        constexpr int N_STEPS = (C::D + 31) / 32;
        unsigned short e[N_STEPS];
#pragma unroll
        for (int i = 0; i < N_STEPS; i++)
            if (lane + 32 * i < p.v_head) /* the rest of the row belongs to another warp */
                e[i] = *(const unsigned short *)(from + 2 * (lane + 32 * i));
#pragma unroll
        for (int i = 0; i < N_STEPS; i++)
            if (lane + 32 * i < p.v_head)
                *(unsigned short *)(to + 2 * (lane + 32 * i)) = e[i];
    }
}

/* SHARE: combines the results of the warps and writes them. scratch is shared memory that
 * is no longer read. */
template <class C>
__device__ __forceinline__ void
store_shared_rows(const params &p, const block_work &w, const sums_t<C> &o, const per_row_t<C> &top,
                  const per_row_t<C> &sum, char *scratch, int warp, int lane)
{
    constexpr int N = C::N_WARPS, WIDTH = C::D + 8;
    static_assert(C::M_TILES == 1, "rows of one tile");
    static_assert(N * 16 * (8 + 4 * WIDTH) <= 4 * C::TILE_BYTES, "scratch");
    float2 *stats = (float2 *)scratch;             /* (N, 16) */
    float *part = (float *)(scratch + N * 16 * 8); /* (N, 16, WIDTH) */
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = warp * 16 + 8 * half + lane / 4;
        if (lane % 4 == 0)
            stats[at] = make_float2(top[0][half] * p.scale_log2, sum[0][half]);
#pragma unroll
        for (int n = 0; n < C::D / 8; n++)
            *(float2 *)&part[at * WIDTH + 8 * n + lane % 4 * 2] =
                make_float2(o[0][n][2 * half], o[0][n][2 * half + 1]);
    }
    __syncthreads();
    for (int k = warp; k < min(16, p.n_rows - w.row); k += N) {
        float all_top = -INFINITY, all_sum = 0, weight[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            all_top = fmaxf(all_top, stats[i * 16 + k].x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            weight[i] = all_top == -INFINITY ? 0.0f : exp2_fast(stats[i * 16 + k].x - all_top);
            all_sum += weight[i] * stats[i * 16 + k].y;
        }
        const float scale = p.n_splits > 1 ? 1.0f : all_sum == 0 ? 0.0f : 1.0f / all_sum;
        const int64_t at = w.split * p.n_all_rows + flat_row(p, w, w.row + k);
        if (p.n_splits > 1 && lane == 0)
            p.stats[at] = make_float2(all_top, all_sum);
        char *to = out_row(p, w, w.row + k);
        for (int c = lane; c < p.v_head; c += 32) {
            float x = 0;
#pragma unroll
            for (int i = 0; i < N; i++)
                x += weight[i] * part[(i * 16 + k) * WIDTH + c];
            if (p.n_splits > 1)
                p.part[at * p.v_head + c] = x;
            else
                *(unsigned short *)(to + 2 * c) =
                    (unsigned short)pack<typename C::T>(x * scale, 0.0f);
        }
    }
}

/* Access to shared memory between barriers:
 *
 * - Before the first barrier of start_block: thread 0 writes info, which is only read
 *   afterwards. All threads clear the columns after the heads.
 * - Between the first and the second barrier: each warp copies and aligns its own rows of
 *   q, K and V. It uses __syncwarp before lanes read what other lanes wrote. Afterwards
 *   all warps read all rows.
 * - In an iteration of the loop: all warps read the pair of tiles at here. Each warp
 *   writes and aligns its own rows of the pair at there. Other warps read these rows only
 *   before the barrier that ended the previous iteration and after the barrier that ends
 *   this one. With SHARE a warp multiplies only rows that it copied itself, so a
 *   __syncwarp suffices.
 * - After the loop: store_rows uses a warp's rows of q as scratch, which no other warp
 *   reads. store_shared_rows has its own barriers, before it overwrites the tiles and
 *   before it reads what other warps wrote. */

/* Fills info and loads q and the first tile of K and V. */
template <class C>
__device__ __forceinline__ void start_block(char *smem, const params &p, const block_work &w,
                                            volatile block_info &info, int j_begin, int j_end,
                                            int warp, int lane)
{
    constexpr int Q_ROWS = C::N_ROWS / C::N_WARPS;
    const uint32_t q = smem_address(smem), tiles = q + C::Q_BYTES;
    if (threadIdx.x == 0) {
        info.k = w.k;
        info.v = w.v;
        info.row = w.row;
        info.all_begin = first_key(p, visible_keys(p, min(w.row + C::N_ROWS, p.n_rows) - 1));
        info.n_all_seen = visible_keys(p, w.row);
        info.j_end = j_end;
    }
    clear_tail<C>(smem, C::N_ROWS, p.qk_head);
#pragma unroll 1
    for (int i = 0; i < 4; i++)
        clear_tail<C>(smem + C::Q_BYTES + i * C::TILE_BYTES, C::N_KEYS,
                      i % 2 ? p.v_head : p.qk_head);
    __syncthreads();
    copy_q<C>(q, p, w, warp * Q_ROWS, lane);
    copy_kv<C>(tiles, p, info, j_begin, warp, lane);
    receive_kv<C>(tiles, p, info, warp, lane);
    if constexpr (!C::WIDE)
        receive_q<C>(q, p, w, warp * Q_ROWS, lane);
    __syncthreads();
}

template <class C>
__global__ void __launch_bounds__(C::N_THREADS, C::MIN_BLOCKS)
    gac_flash_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(16) char smem[];
    __shared__ volatile block_info info;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0);
    const block_work w = find_work(p, C::N_ROWS);
    const int warp_row = C::SHARE ? 0 : warp * C::WARP_ROWS;
    const int warp_key = C::SHARE ? warp * C::WARP_KEYS : 0;
    const int last_row = min(w.row + C::N_ROWS, p.n_rows) - 1;
    const int j_begin =
        max(w.split * p.tiles_per_split, first_key(p, visible_keys(p, w.row)) / C::N_KEYS);
    const int j_end = min((w.split + 1) * p.tiles_per_split,
                          (visible_keys(p, last_row) + C::N_KEYS - 1) / C::N_KEYS);

    /* This lane's ldmatrix addresses. q and V: row lane % 16, 8-column half lane / 16. K:
     * two groups of 8 keys with two 8-column halves each. */
    const uint32_t tiles = smem_address(smem) + C::Q_BYTES;
    const uint32_t q = smem_address(smem) + (warp_row + lane % 16) * C::PITCH + lane / 16 * 16;
    const uint32_t k_lane =
        tiles + (warp_key + lane / 16 * 8 + lane % 8) * C::PITCH + lane / 8 % 2 * 16;
    const uint32_t v_lane =
        tiles + C::TILE_BYTES + (warp_key + lane % 16) * C::PITCH + lane / 16 * 16;

    float o[C::M_TILES][C::D / 8][4] = {};
    float top[C::M_TILES][2], sum[C::M_TILES][2] = {};
    uint32_t kept[C::KEEP_Q ? C::D / 16 : 1][C::M_TILES][4];
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
        top[m][0] = top[m][1] = -INFINITY;

    if (j_begin < j_end) {
        start_block<C>(smem, p, w, info, j_begin, j_end, warp, lane);
        if constexpr (C::KEEP_Q)
#pragma unroll
            for (int step = 0; step < C::D / 16; step++)
                load_q_fragments<C>(kept[step], q, step);
    }
    uint32_t here = 0; /* offset of the tiles to multiply */
#pragma unroll 1
    for (int j = j_begin, go = j_begin < j_end; go; j++) {
        const uint32_t there = 2 * C::TILE_BYTES - here;
        go = j + 1 < info.j_end;
        if (go)
            copy_kv<C>(tiles + there, p, info, j + 1, warp, lane);
        const int row = info.row + warp_row;
        if (row < p.n_rows) { /* other warps only copy */
            float s[C::M_TILES][C::WARP_KEYS / 8][4];
            multiply_qk<C>(s, q, k_lane + here, kept);
            if (p.negate)
                change_scores<C>(s, [](float x) { return -x; });
            if (p.cap > 0)
                change_scores<C>(s, [&p](float x) { return p.cap * tanh_fast(p.to_cap * x); });
            if ((j + 1) * C::N_KEYS > info.n_all_seen || j * C::N_KEYS < info.all_begin)
                mask_scores<C>(s, p, row, j * C::N_KEYS + warp_key, lane);
            raise_top<C>(s, o, top, sum, p.scale_log2);
            multiply_pv<C>(s, o, top, sum, v_lane + here, p.scale_log2);
        }
        if (go)
            receive_kv<C>(tiles + there, p, info, warp, lane);
        if constexpr (C::SHARE)
            __syncwarp();
        else
            __syncthreads();
        here = there;
    }
#pragma unroll
    for (int m = 0; m < C::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[m][half] += __shfl_xor_sync(ALL_LANES, sum[m][half], 1);
            sum[m][half] += __shfl_xor_sync(ALL_LANES, sum[m][half], 2);
        }
    const block_work end = find_work(p, C::N_ROWS);
    const int end_lane = threadIdx.x % 32, end_warp = threadIdx.x / 32;
    const int end_row = end_warp * C::WARP_ROWS;
    if constexpr (C::SHARE)
        store_shared_rows<C>(p, end, o, top, sum, smem + C::Q_BYTES, end_warp, end_lane);
    else if (p.n_splits > 1)
        store_partial<C>(p, end, o, top, sum, end.row + end_row, end_lane);
    else
        store_rows<C>(p, end, o, sum, smem + end_row * C::PITCH, end.row + end_row, end_lane);
}

} /* namespace */

#endif
