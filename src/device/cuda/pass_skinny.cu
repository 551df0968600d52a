/* Up to 16 rows times weights: as fast as the weights come out of memory.
 *
 * A tile is 8 rows of weights, or fewer where blocks then end more evenly. The
 * warps of a block divide its k among them in steps of 32 numbers, so that the
 * four lanes t of group g read 64 bytes in a row of weight row g, 16 each,
 * straight into registers. These eight numbers are taken for the four words
 * that two m16n8k16 products want of lane (g, t): which k they stand for does
 * not matter as long as x is read the same way. x is the other operand, its
 * rows 8 to 15 zero where there are none.
 *
 * Loads of the next chunk are in flight while one is multiplied, also from one
 * tile to the next, and the first ones are issued before the kernel waits for
 * the one before it. Blocks are as many as fit the multiprocessors, and go from
 * tile to tile; so x is brought to shared memory, and normed, once a block. */
#include "pass_common.cuh"

namespace
{

constexpr int N_THREADS = 256, N_WARPS = N_THREADS / 32;
constexpr int TILE = 8;  /* rows of weights, at most */
constexpr int STEP = 32; /* numbers of k */
constexpr int BLOCKS_PER_UNIT = 2;
constexpr int MAX_X_BYTES = 96 << 10; /* of x in shared memory */
constexpr int MAX_FLOAT_WIDTH = 8192; /* of F32 rows that are normed here */
constexpr int MAX_FLOAT_ROWS = 2;

struct weights {
    const void *w;     /* (n, ld) */
    const float *bias; /* (n) or NULL */
    int64_t ld;
    int k, x_start;
};

struct segment {
    weights part[2]; /* gate and up, or one */
    int n, y_start;
    int end_tile; /* tiles before it, and its own */
};

struct params {
    segment segments[GAC_SKINNY_MAX_SEGMENTS];
    const void *x;     /* (m, x_ld), F32 or half */
    const float *norm; /* (n_norm) or NULL */
    void *y;           /* (m, y_ld) */
    int64_t x_ld, y_ld;
    int m, width, n_norm;
    int pitch; /* of x in shared memory, numbers */
    int n_tiles, n_segments;
    int tile_rows;
    int warps_per_tile; /* 1, 2, 4 or 8 */
    float eps;
    bool from_float;
    gac_skinny_mode mode;
};

template <typename T_, int M_TILES_, bool GATED_> struct config {
    using T = T_;
    static constexpr int M_TILES = M_TILES_; /* groups of 8 rows of x */
    static constexpr bool GATED = GATED_;    /* two rows of weights for one of y */
    static constexpr int N_PARTS = GATED ? 2 : 1;
    static constexpr int CHUNK = 8 / N_PARTS;                 /* steps whose loads go together */
    static constexpr int SUMS = N_PARTS * M_TILES * 8 * TILE; /* of one warp */
};

/* Where a lane reads: its row of weights, from its own numbers on. */
template <class C> struct cursor {
    const typename C::T *w[C::N_PARTS];
    int k[C::N_PARTS], x_start[C::N_PARTS];
    int step, end; /* of this warp */
};

template <class C> using chunk = uint4[C::N_PARTS][C::CHUNK];

/* Weights are read once and stay out of the L1 cache. */
__device__ __forceinline__ uint4 load_weights(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

__device__ __forceinline__ int find_segment(const params &p, int tile)
{
    int s = 0;
    while (tile >= p.segments[s].end_tile)
        s++;
    return s;
}

__device__ __forceinline__ int first_tile(const params &p, int s)
{
    return s ? p.segments[s - 1].end_tile : 0;
}

template <class C>
__device__ __forceinline__ void locate(const params &p, int tile, int part, cursor<C> &at)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    at.step = at.end = 0;
    if (tile >= p.n_tiles)
        return;
    const int s = find_segment(p, tile);
    const segment &seg = p.segments[s];
    /* Lanes without a row read the one before them, at no cost. */
    int row = (tile - first_tile(p, s)) * p.tile_rows + min(g, p.tile_rows - 1);
    row = row < seg.n ? row : seg.n - 1;
    int k_most = 0;
#pragma unroll
    for (int i = 0; i < C::N_PARTS; i++) {
        at.w[i] = (const typename C::T *)seg.part[i].w + row * seg.part[i].ld + 8 * t;
        at.k[i] = seg.part[i].k;
        at.x_start[i] = seg.part[i].x_start;
        k_most = k_most > at.k[i] ? k_most : at.k[i];
    }
    const int n_steps = (k_most + STEP - 1) / STEP;
    const int each = (n_steps + p.warps_per_tile - 1) / p.warps_per_tile;
    at.step = part * each;
    at.end = at.step + each < n_steps ? at.step + each : n_steps;
}

template <class C> __device__ __forceinline__ void load(chunk<C> &to, const cursor<C> &at)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int u = 0; u < C::CHUNK; u++)
#pragma unroll
        for (int i = 0; i < C::N_PARTS; i++) {
            const int k = (at.step + u) * STEP;
            to[i][u] = uint4{ 0, 0, 0, 0 };
            if (at.step + u < at.end && k + 8 * t < at.k[i])
                to[i][u] = load_weights(at.w[i] + k);
        }
}

/* Numbers k to k + 7 of row r of x. */
template <class C>
__device__ __forceinline__ uint4 read_x(const params &p, const typename C::T *xs, int r, int k)
{
    if (r >= p.m)
        return uint4{ 0, 0, 0, 0 };
    return *(const uint4 *)(xs + r * p.pitch + k);
}

template <class C>
__device__ __forceinline__ void multiply(const params &p, const typename C::T *xs,
                                         const chunk<C> &w, const cursor<C> &at,
                                         float (&sums)[C::N_PARTS][4])
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int u = 0; u < C::CHUNK; u++)
#pragma unroll
        for (int i = 0; i < C::N_PARTS; i++) {
            const int k = (at.step + u) * STEP + 8 * t;
            uint4 low = { 0, 0, 0, 0 }, high = { 0, 0, 0, 0 };
            if (at.step + u < at.end && k < at.k[i]) {
                low = read_x<C>(p, xs, g, at.x_start[i] + k);
                if (C::M_TILES > 1)
                    high = read_x<C>(p, xs, g + 8, at.x_start[i] + k);
            }
            mma_16816<typename C::T>(sums[i], low.x, high.x, low.y, high.y, w[i][u].x, w[i][u].y);
            mma_16816<typename C::T>(sums[i], low.z, high.z, low.w, high.w, w[i][u].z, w[i][u].w);
        }
}

/* x to shared memory, as half. */
template <typename T> __device__ void stage_half(const params &p, T *xs)
{
    const int n = p.width / 8;
    for (int r = 0; r < p.m; r++) {
        const uint4 *from = (const uint4 *)((const T *)p.x + r * p.x_ld);
        for (int c = threadIdx.x; c < n; c += N_THREADS)
            ((uint4 *)(xs + r * p.pitch))[c] = __ldcg(from + c);
    }
}

/* F32 x to shared memory, normed, as half. A thread puts aside what it reads,
 * in raw (m, width), and alone takes it up again. norm (width) lies in shared
 * memory; spare is (m, N_WARPS). */
template <typename T>
__device__ void stage_float(const params &p, T *xs, float *raw, const float *norm, float *spare)
{
    const int n = p.width / 4;
    for (int r = 0; r < p.m; r++) {
        const float4 *from = (const float4 *)((const float *)p.x + r * p.x_ld);
        float4 *aside = (float4 *)(raw + r * p.width);
        float sum = 0, scale = 1;
        for (int c = threadIdx.x; c < n; c += N_THREADS) {
            const float4 v = __ldcg(from + c);
            aside[c] = v;
            sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
        if (p.norm) {
            sum = block_sum(sum, spare + r * N_WARPS);
            scale = rsqrtf(sum / (float)p.n_norm + p.eps);
        }
        for (int c = threadIdx.x; c < n; c += N_THREADS) {
            const float4 v = aside[c];
            const float4 w = p.norm ? ((const float4 *)norm)[c] : float4{ 1, 1, 1, 1 };
            ((uint2 *)(xs + r * p.pitch))[c] =
                uint2{ pack_pair<T>(v.x * scale * w.x, v.y * scale * w.y),
                       pack_pair<T>(v.z * scale * w.z, v.w * scale * w.w) };
        }
    }
}

template <class C>
__device__ __forceinline__ void store(const params &p, const segment &seg, int row, int column,
                                      const float (&y)[C::N_PARTS])
{
    using T = typename C::T;
    const int64_t at = row * p.y_ld + seg.y_start + column;
    float v = y[0] + (seg.part[0].bias ? seg.part[0].bias[column] : 0.0f);
    if constexpr (C::GATED) {
        const float up = y[1] + (seg.part[1].bias ? seg.part[1].bias[column] : 0.0f);
        ((T *)p.y)[at] = from_float<T>(silu(v) * up);
    } else if (p.mode == GAC_SKINNY_SET) {
        ((T *)p.y)[at] = from_float<T>(v);
    } else if (p.mode == GAC_SKINNY_ADD) {
        atomicAdd((float *)p.y + at, v); /* nobody else adds to it: it is only not waited for */
    } else {
        ((float *)p.y)[at] = v;
    }
}

/* Adds up what the warps have of the block's tiles; sums is (N_WARPS, N_PARTS,
 * M_TILES 8, TILE). */
template <class C>
__device__ __forceinline__ void finish_tiles(const params &p, int tile0, const float *sums)
{
    const int tiles = N_WARPS / p.warps_per_tile;
    for (int i = threadIdx.x; i < tiles * p.m * TILE; i += N_THREADS) {
        const int column = i % TILE, row = i / TILE % p.m, slot = i / TILE / p.m;
        const int tile = tile0 + slot;
        if (tile >= p.n_tiles)
            return;
        const int s = find_segment(p, tile);
        const segment &seg = p.segments[s];
        const int c = (tile - first_tile(p, s)) * p.tile_rows + column;
        if (column >= p.tile_rows || c >= seg.n)
            continue;
        float y[C::N_PARTS];
#pragma unroll
        for (int q = 0; q < C::N_PARTS; q++) {
            y[q] = 0;
            for (int w = 0; w < p.warps_per_tile; w++)
                y[q] += sums[(slot * p.warps_per_tile + w) * C::SUMS +
                             (q * C::M_TILES * 8 + row) * TILE + column];
        }
        store<C>(p, seg, row, c, y);
    }
}

template <class C>
__global__ void __launch_bounds__(N_THREADS, BLOCKS_PER_UNIT)
    gac_skinny_kernel(const __grid_constant__ params p)
{
    using T = typename C::T;
    extern __shared__ __align__(16) char memory[];
    float *sums = (float *)memory;               /* (2, N_WARPS, SUMS) */
    float *spare = sums + 2 * N_WARPS * C::SUMS; /* (MAX_FLOAT_ROWS, N_WARPS) */
    T *xs = (T *)(spare + MAX_FLOAT_ROWS * N_WARPS);
    float *norm = (float *)(xs + p.m * p.pitch); /* (width), then raw (m, width) */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int tiles = N_WARPS / p.warps_per_tile, stride = (int)gridDim.x * tiles;
    const int part = warp % p.warps_per_tile;
    int tile0 = (int)blockIdx.x * tiles, tile = tile0 + warp / p.warps_per_tile;

    cursor<C> at;
    chunk<C> now, next;
    let_next_start();
    locate<C>(p, tile, part, at);
    load<C>(now, at);
    if (p.from_float && p.norm)
        for (int c = threadIdx.x; c < p.width; c += N_THREADS)
            norm[c] = c < p.n_norm ? p.norm[c] : 0.0f;
    wait_for_previous();
    __syncthreads();
    if (p.from_float)
        stage_float<T>(p, xs, norm + p.width, norm, spare);
    else
        stage_half<T>(p, xs);
    __syncthreads();
    for (int turn = 0; tile0 < p.n_tiles; tile0 += stride, turn ^= 1) {
        float c[C::N_PARTS][4] = {};
        bool last;
        do {
            cursor<C> then = at;
            then.step += C::CHUNK;
            last = then.step >= at.end;
            if (last) {
                tile += stride;
                locate<C>(p, tile, part, then);
            }
            load<C>(next, then);
            multiply<C>(p, xs, now, at, c);
            at = then;
#pragma unroll
            for (int i = 0; i < C::N_PARTS; i++)
#pragma unroll
                for (int u = 0; u < C::CHUNK; u++)
                    now[i][u] = next[i][u];
        } while (!last);
        float *mine = sums + (turn * N_WARPS + warp) * C::SUMS;
#pragma unroll
        for (int i = 0; i < C::N_PARTS; i++)
#pragma unroll
            for (int h = 0; h < C::M_TILES; h++)
                *(float2 *)(mine + ((i * C::M_TILES + h) * 8 + g) * TILE + 2 * t) =
                    float2{ c[i][2 * h], c[i][2 * h + 1] };
        /* One barrier is enough: these sums are written again two turns later. */
        __syncthreads();
        finish_tiles<C>(p, tile0, sums + turn * N_WARPS * C::SUMS);
    }
}

/* Tiles of tile_rows rows. */
int count_tiles(const params &p, int tile_rows)
{
    int n = 0;
    for (int s = 0; s < p.n_segments; s++)
        n += (p.segments[s].n + tile_rows - 1) / tile_rows;
    return n;
}

/* Divides the segments into tiles, as low as they can be without a turn more of
 * the blocks: these take one tile after another, and the one with the most rows
 * is waited for. tiles: that a block takes at once. */
void divide_rows(params &p, int n_blocks, int tiles)
{
    const int each = n_blocks * tiles;
    const int most = (count_tiles(p, TILE) + each - 1) / each * each;
    p.tile_rows = TILE;
    while (p.tile_rows > 1 && count_tiles(p, p.tile_rows - 1) <= most)
        p.tile_rows--;
    p.n_tiles = 0;
    for (int s = 0; s < p.n_segments; s++) {
        p.n_tiles += (p.segments[s].n + p.tile_rows - 1) / p.tile_rows;
        p.segments[s].end_tile = p.n_tiles;
    }
}

template <class C> cudaError_t launch(params &p, bool overlap, cudaStream_t stream)
{
    int device = 0, n_units = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&n_units, cudaDevAttrMultiProcessorCount, device);
    if (code != cudaSuccess)
        return code;
    size_t n_bytes = (2 * N_WARPS * C::SUMS + MAX_FLOAT_ROWS * N_WARPS) * sizeof(float) +
                     (size_t)p.m * p.pitch * 2;
    if (p.from_float)
        n_bytes += (size_t)(p.m + 1) * p.width * sizeof(float);
    const int tiles = N_WARPS / p.warps_per_tile;
    int n_blocks = (count_tiles(p, TILE) + tiles - 1) / tiles;
    n_blocks = min(n_blocks, n_units * BLOCKS_PER_UNIT);
    divide_rows(p, n_blocks, tiles);
    return launch_kernel(gac_skinny_kernel<C>, dim3((unsigned)n_blocks), N_THREADS, n_bytes,
                         overlap, stream, p);
}

template <typename T> cudaError_t launch_type(params &p, bool overlap, cudaStream_t stream)
{
    const bool gated = p.mode == GAC_SKINNY_GATED;
    if (p.m <= 8)
        return gated ? launch<config<T, 1, true>>(p, overlap, stream)
                     : launch<config<T, 1, false>>(p, overlap, stream);
    return gated ? launch<config<T, 2, true>>(p, overlap, stream)
                 : launch<config<T, 2, false>>(p, overlap, stream);
}

/* Rows of x are 64 bytes, mod 128, apart: the two rows that eight lanes read
 * at once lie in different banks. */
int x_pitch(int64_t width)
{
    return (int)((width + 31) / 64 * 64 + 32);
}

weights make_weights(const gac_skinny_weights &w)
{
    return weights{ w.weight, w.bias, w.ld, (int)w.k, (int)w.x_start };
}

/* Fills in the segments; false for what makes no sense. */
bool make_segments(const gac_skinny_args *a, params &p)
{
    int64_t k_most = 0;
    const int n_parts = a->mode == GAC_SKINNY_GATED ? 2 : 1;
    for (int s = 0; s < a->n_segments; s++) {
        const gac_skinny_segment &from = a->segments[s];
        const gac_skinny_weights *parts[2] = { &from.gate, &from.up };
        if (from.n < 1 || from.n > 1 << 24)
            return false;
        for (int i = 0; i < n_parts; i++) {
            const gac_skinny_weights &w = *parts[i];
            if (w.k < 8 || w.k % 8 || w.ld % 8 || w.ld < w.k || w.x_start % 8 ||
                w.x_start + w.k > a->width || (uintptr_t)w.weight % 16)
                return false;
            p.segments[s].part[i] = make_weights(w);
            k_most = k_most > w.k ? k_most : w.k;
        }
        p.segments[s].n = (int)from.n;
        p.segments[s].y_start = (int)from.y_start;
    }
    /* As few warps to a tile as keep to one chunk of loads each. */
    const int64_t chunk_k = STEP * 8 / n_parts;
    p.warps_per_tile = 1;
    while (p.warps_per_tile < N_WARPS && p.warps_per_tile * chunk_k < k_most)
        p.warps_per_tile *= 2;
    p.n_segments = a->n_segments;
    return true;
}

} /* namespace */

extern "C" bool gac_skinny_takes(int64_t m, int64_t width)
{
    return m <= GAC_SKINNY_MAX_ROWS && m * (width + 64) * 2 <= MAX_X_BYTES;
}

extern "C" bool gac_skinny_takes_float(int64_t m, int64_t width)
{
    return m <= MAX_FLOAT_ROWS && width <= MAX_FLOAT_WIDTH;
}

extern "C" gac_status gac_skinny_launch(const gac_skinny_args *args, cudaStream_t stream,
                                        gac_error *err)
{
    params p = {};
    if (args->m < 1 || args->n_segments < 1 || args->n_segments > GAC_SKINNY_MAX_SEGMENTS ||
        args->width < 8 || args->width % 8 || !gac_skinny_takes(args->m, args->width) ||
        args->x_ld % 8 || (uintptr_t)args->x % 16 || !is_half_type(args->dtype) ||
        !make_segments(args, p) ||
        (args->from_float && !gac_skinny_takes_float(args->m, args->width)) ||
        (args->norm && !args->from_float))
        return gac_error_set(err, GAC_USAGE, "a product of few rows, of sizes that make no sense");
    p.x = args->x;
    p.norm = args->norm;
    p.y = args->y;
    p.x_ld = args->x_ld;
    p.y_ld = args->y_ld;
    p.m = (int)args->m;
    p.width = (int)args->width;
    p.n_norm = (int)args->n_norm;
    p.pitch = x_pitch(args->width);
    p.eps = (float)args->eps;
    p.from_float = args->from_float;
    p.mode = args->mode;
    cudaError_t code = args->dtype == GAC_DTYPE_F16
                           ? launch_type<__half>(p, args->overlap, stream)
                           : launch_type<__nv_bfloat16>(p, args->overlap, stream);
    return launch_status(code, "product of few rows", err);
}
