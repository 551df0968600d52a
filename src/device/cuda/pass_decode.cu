/* Attention of one new token per sequence over its cache: from rows of q, k and v to rows
 * of the output in one launch.
 *
 * A block handles the query heads of one kv head (at most 8) and a share of the keys. It
 * reads the number of keys from device memory, so a recorded launch works for every
 * length. Each warp processes 16 keys at a time. Scores are m16n8k16 products whose k
 * operand goes from memory straight to registers. The softmax and the sum over values are
 * in F32. The block that finishes a kv head last combines the shares. */
#include "pass_heads.cuh"

#include <climits>
#include <cmath>

namespace
{

constexpr int N_WARPS = 4, N_THREADS = 32 * N_WARPS;
constexpr int ROWS = 8;                   /* most query heads per block */
constexpr int KEYS = 16;                  /* keys of a warp's tile */
constexpr int MIN_SHARE = N_WARPS * KEYS; /* fewest keys of a block's share */
constexpr int MAX_SPLITS = 64, WANTED_BLOCKS = 396;
constexpr float LOG2E = 1.4426950408889634f;

struct params {
    gac_heads_args a;
    void *out; /* (batch, out_ld) */
    int64_t out_ld;
    float *part;   /* (batch, n_q_heads, n_splits, part_ld): sums before normalisation */
    float2 *stats; /* (batch, n_q_heads, n_splits): maximum in log2, sum of exponentials */
    int *done;     /* (batch, n_kv_heads, n_groups): finished shares, zero between calls */
    int group;     /* query heads per kv head */
    int n_groups;  /* blocks that divide the query heads */
    int n_splits;
    int part_ld; /* v_stored rounded up to a multiple of 4 */
    float scale_log2;
    float cap_log2; /* softcap times log2(e), or 0 */
    int window;     /* keys that a token sees; INT_MAX: all */
};

template <typename T_, int D_, int G_, bool WIDE_> struct config {
    using T = T_;
    static constexpr int D = D_;        /* head size, rounded up */
    static constexpr int G = G_;        /* query heads, rounded up */
    static constexpr bool WIDE = WIDE_; /* rows of the cache are 16-byte aligned */
    static constexpr int N_STEPS = D / 32;
    static constexpr int V_LANES = D / 8; /* lanes that read one row of values */
    static constexpr int V_KEYS = 32 / V_LANES;
    static constexpr int N_V = KEYS / V_KEYS;
    static constexpr int PITCH = D + 8; /* numbers between rows of q in shared memory */
};

template <class C> struct shared {
    uint4 q[ROWS * C::PITCH / 8];    /* (ROWS, PITCH) half */
    float p[N_WARPS][KEYS][C::G];    /* probabilities of a tile */
    float rescale[N_WARPS][C::G];    /* factor for the sums of earlier tiles */
    float2 stats[N_WARPS][ROWS];     /* maximum and sum of exponentials */
    float sums[N_WARPS][C::G][C::D]; /* sums over values */
    float weights[C::G][MAX_SPLITS];
    float cosines[MAX_HEAD / 2], sines[MAX_HEAD / 2]; /* rotary table row of the new token */
    bool is_last;
};

/* A block's share of the keys that the new token sees: the last ones of n_keys. */
struct share {
    int begin, end; /* keys */
    int n_used;     /* splits that have keys */
    int n_keys;
};

__device__ __forceinline__ share find_share(const params &p)
{
    share s;
    s.n_keys = *p.a.n_past + 1;
    const int n_seen = s.n_keys < p.window ? s.n_keys : p.window;
    int each = (n_seen + p.n_splits - 1) / p.n_splits;
    each = each < MIN_SHARE ? MIN_SHARE : (each + KEYS - 1) / KEYS * KEYS;
    s.n_used = (n_seen + each - 1) / each;
    s.begin = s.n_keys - n_seen + (int)blockIdx.x * each;
    s.end = s.begin + each < s.n_keys ? s.begin + each : s.n_keys;
    return s;
}

/* Returns numbers i to i + 7 of a row of n numbers. */
template <class C>
__device__ __forceinline__ uint4 read_eight(const typename C::T *row, int i, int n)
{
    if (i >= n)
        return uint4{ 0, 0, 0, 0 };
    if constexpr (C::WIDE)
        return *(const uint4 *)(row + i);
    uint32_t words[4];
    const unsigned short *codes = (const unsigned short *)row;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t low = i + 2 * j < n ? codes[i + 2 * j] : 0;
        const uint32_t high = i + 2 * j + 1 < n ? codes[i + 2 * j + 1] : 0;
        words[j] = low | high << 16;
    }
    return uint4{ words[0], words[1], words[2], words[3] };
}

/* Prefetches keys and values of the share into the L2 cache. It skips the first tile,
 * which the warps load at once, and the new token, which is not written yet. */
template <class C>
__device__ __forceinline__ void prefetch(const params &p, const share &s, const typename C::T *keys,
                                         const typename C::T *values)
{
    const char *rows[2] = { (const char *)keys, (const char *)values };
    const int64_t row_bytes[2] = { 2 * p.a.qk_stored, 2 * p.a.v_stored };
    const int begin = s.begin + MIN_SHARE, end = s.end < s.n_keys - 1 ? s.end : s.n_keys - 1;
    for (int i = 0; i < 2; i++)
        for (int64_t at = begin * row_bytes[i] + threadIdx.x * 128; at < end * row_bytes[i];
             at += N_THREADS * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(rows[i] + at));
}

/* Copies the new token's row of the rotary tables to shared memory. */
template <class C>
__device__ __forceinline__ void stage_tables(const params &p, const share &s, shared<C> &m)
{
    const int half = (int)p.a.rotary_size / 2;
    const int64_t at = (int64_t)(s.n_keys - 1) * half;
    if (p.a.cosines)
        for (int i = threadIdx.x; i < half; i += N_THREADS) {
            m.cosines[i] = p.a.cosines[at + i];
            m.sines[i] = p.a.sines[at + i];
        }
}

/* Writes q of the block's heads to shared memory (ROWS, PITCH), padded with zeros. Writes
 * the new k and v to the cache if they belong to this share. */
template <class C>
__device__ __forceinline__ void stage_heads(const params &p, const share &s, int head0, int n_heads,
                                            shared<C> &m, typename C::T *keys,
                                            typename C::T *values)
{
    using T = typename C::T;
    T *q = (T *)m.q;
    const gac_heads_args &a = p.a;
    const int warp = threadIdx.x / 32, position = s.n_keys - 1;
    const int n_q = (int)a.n_q_heads, n_kv = (int)a.n_kv_heads, kv_head = head0 / p.group;
    const T *row = (const T *)a.qkv + (int64_t)blockIdx.z * a.qkv_ld;
    for (int h = warp; h < ROWS; h += N_WARPS) {
        if (h < n_heads) {
            head_rule rule = rule_for(a, true, head0 + h, blockIdx.z);
            rule.stored = C::D;
            rule.cosines = a.cosines ? m.cosines : nullptr;
            rule.sines = m.sines;
            norm_and_rotate<C::D>(rule, row + (int64_t)(head0 + h) * a.qk_stored, q + h * C::PITCH);
        } else {
            for (int i = threadIdx.x % 32; i < C::D; i += 32)
                q[h * C::PITCH + i] = from_float<T>(0.0f);
        }
    }
    if (position < s.begin || position >= s.end)
        return;
    if (warp == N_WARPS - 1) {
        head_rule rule = rule_for(a, false, kv_head, blockIdx.z);
        rule.cosines = a.cosines ? m.cosines : nullptr;
        rule.sines = m.sines;
        norm_and_rotate<C::D>(rule, row + (int64_t)(n_q + kv_head) * a.qk_stored,
                              keys + (int64_t)position * a.qk_stored);
    }
    if (warp == N_WARPS - 2)
        copy_head(row + (int64_t)(n_q + n_kv) * a.qk_stored + (int64_t)kv_head * a.v_stored,
                  values + (int64_t)position * a.v_stored, (int)a.v_stored);
}

/* Running softmax of one warp. top and sum belong to row g = lane / 4. y holds the sums
 * of columns 8 (lane % V_LANES) to + 7 over every V_KEYS-th key. */
template <class C> struct running {
    float top = -INFINITY, sum = 0;
    float y[C::G][8] = {};
};

/* Turns the scores of a tile into probabilities in shared memory. c holds row g, keys 2t
 * and 2t + 1 of each half of the tile. */
template <class C>
__device__ __forceinline__ void softmax_tile(const params &p, float (&c)[2][4], int n_valid,
                                             running<C> &r, float (&probabilities)[KEYS][C::G],
                                             float (&rescale)[C::G])
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float x[4], top = r.top;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int key = i / 2 * 8 + 2 * t + i % 2;
        x[i] = c[i / 2][i % 2] * p.scale_log2;
        if (p.cap_log2 > 0)
            x[i] = p.cap_log2 * tanhf(x[i] / p.cap_log2);
        x[i] = key < n_valid ? x[i] : -INFINITY;
        top = fmaxf(top, x[i]);
    }
    top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, 1));
    top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, 2));
    /* Avoid -inf - -inf if no score is finite. */
    const float base = top == -INFINITY ? 0.0f : top;
    const float lowered = exp2f(r.top - base);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = exp2f(x[i] - base);
        sum += x[i];
    }
    sum += __shfl_xor_sync(WHOLE_WARP, sum, 1);
    sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);
    r.sum = r.sum * lowered + sum;
    r.top = top;
    if (g < C::G) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            probabilities[i / 2 * 8 + 2 * t + i % 2][g] = x[i];
        if (t == 0)
            rescale[g] = lowered;
    }
}

template <class C>
__device__ __forceinline__ void add_values(const uint4 (&v)[C::N_V],
                                           const float (&probabilities)[KEYS][C::G],
                                           const float (&rescale)[C::G], running<C> &r)
{
    using T = typename C::T;
    const int v_key = threadIdx.x % 32 / C::V_LANES;
#pragma unroll
    for (int h = 0; h < C::G; h++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            r.y[h][e] *= rescale[h];
#pragma unroll
    for (int i = 0; i < C::N_V; i++) {
        const float2 a = unpack_pair<T>(v[i].x), b = unpack_pair<T>(v[i].y);
        const float2 c = unpack_pair<T>(v[i].z), d = unpack_pair<T>(v[i].w);
        const float x[8] = { a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y };
#pragma unroll
        for (int h = 0; h < C::G; h++) {
            const float weight = probabilities[i * C::V_KEYS + v_key][h];
#pragma unroll
            for (int e = 0; e < 8; e++)
                r.y[h][e] += weight * x[e];
        }
    }
}

/* A lane's part of a tile of keys and values. */
template <class C> struct tile {
    uint4 k[2][C::N_STEPS], v[C::N_V];
};

/* Reads keys begin to end - 1 of the tile that starts at base. The other keys become
 * zero, or stay as they are if KEEP. */
template <class C, bool KEEP>
__device__ __forceinline__ void read_keys(tile<C> &x, const params &p, const typename C::T *keys,
                                          int base, int begin, int end)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, qk = (int)p.a.qk_stored;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int key = base + 8 * h + g;
        const bool inside = key >= begin && key < end;
#pragma unroll
        for (int j = 0; j < C::N_STEPS; j++)
            if (!KEEP || inside)
                x.k[h][j] =
                    read_eight<C>(keys + (int64_t)key * qk, 32 * j + 8 * t, inside ? qk : 0);
    }
}

template <class C, bool KEEP>
__device__ __forceinline__ void
read_values(tile<C> &x, const params &p, const typename C::T *values, int base, int begin, int end)
{
    const int lane = threadIdx.x % 32, vs = (int)p.a.v_stored;
#pragma unroll
    for (int i = 0; i < C::N_V; i++) {
        const int key = base + i * C::V_KEYS + lane / C::V_LANES;
        const bool inside = key >= begin && key < end;
        if (!KEEP || inside)
            x.v[i] =
                read_eight<C>(values + (int64_t)key * vs, lane % C::V_LANES * 8, inside ? vs : 0);
    }
}

/* Processes the warp's tiles of the share. x holds the first tile. The next tile is read
 * as soon as its registers are free. */
template <class C>
__device__ __forceinline__ void attend_share(const params &p, const share &s, shared<C> &m,
                                             const typename C::T *keys, const typename C::T *values,
                                             tile<C> &x, running<C> &r)
{
    using T = typename C::T;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const T *q = (const T *)m.q + g * C::PITCH + 8 * t;
    for (int base = s.begin + warp * KEYS; base < s.end; base += MIN_SHARE) {
        float c[2][4] = {};
#pragma unroll
        for (int j = 0; j < C::N_STEPS; j++) {
            const uint4 a = *(const uint4 *)(q + 32 * j);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mma_16816<T>(c[h], a.x, 0, a.y, 0, x.k[h][j].x, x.k[h][j].y);
                mma_16816<T>(c[h], a.z, 0, a.w, 0, x.k[h][j].z, x.k[h][j].w);
            }
        }
        read_keys<C, false>(x, p, keys, base + MIN_SHARE, s.begin, s.end);
        softmax_tile<C>(p, c, s.end - base, r, m.p[warp], m.rescale[warp]);
        __syncwarp();
        add_values<C>(x.v, m.p[warp], m.rescale[warp], r);
        read_values<C, false>(x, p, values, base + MIN_SHARE, s.begin, s.end);
        __syncwarp();
    }
}

/* Writes the results of each warp to shared memory. */
template <class C> __device__ __forceinline__ void store_warp(shared<C> &m, running<C> &r)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane % 4 == 0)
        m.stats[warp][lane / 4] = float2{ r.top, r.sum };
#pragma unroll
    for (int h = 0; h < C::G; h++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float y = r.y[h][e];
#pragma unroll
            for (int i = C::V_LANES; i < 32; i *= 2)
                y += __shfl_xor_sync(WHOLE_WARP, y, i);
            if (lane < C::V_LANES)
                m.sums[warp][h][8 * lane + e] = y;
        }
}

/* Combines the results of the warps. Writes them to the output if there is only one
 * share, else to the workspace. */
template <class C>
__device__ __forceinline__ void store_share(const params &p, const share &s, shared<C> &m,
                                            int head0, int n_heads)
{
    using T = typename C::T;
    const int vs = (int)p.a.v_stored;
    const int64_t row = blockIdx.z * p.a.n_q_heads + head0;
    for (int i = threadIdx.x; i < n_heads * vs; i += N_THREADS) {
        const int h = i / vs, c = i % vs;
        float top = -INFINITY, sum = 0, y = 0;
#pragma unroll
        for (int w = 0; w < N_WARPS; w++)
            top = fmaxf(top, m.stats[w][h].x);
        const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (int w = 0; w < N_WARPS; w++) {
            const float weight = exp2f(m.stats[w][h].x - base);
            sum += weight * m.stats[w][h].y;
            y += weight * m.sums[w][h][c];
        }
        if (s.n_used == 1) {
            T *out = (T *)p.out + blockIdx.z * p.out_ld + (int64_t)(head0 + h) * vs;
            out[c] = from_float<T>(y / sum);
        } else {
            const int64_t at = (row + h) * p.n_splits + blockIdx.x;
            p.part[at * p.part_ld + c] = y;
            if (c == 0)
                p.stats[at] = float2{ top, sum };
        }
    }
}

/* Combines all shares of the block's heads into the output. */
template <class C>
__device__ __forceinline__ void combine(const params &p, const share &s, shared<C> &m, int head0,
                                        int n_heads)
{
    using T = typename C::T;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, vs = (int)p.a.v_stored;
    const int64_t row = blockIdx.z * p.a.n_q_heads + head0;
    for (int h = warp; h < n_heads; h += N_WARPS) {
        const float2 *stats = p.stats + (row + h) * p.n_splits;
        float2 mine[MAX_SPLITS / 32];
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < MAX_SPLITS / 32; j++) {
            const int i = lane + 32 * j;
            mine[j] = i < s.n_used ? __ldcg(stats + i) : float2{ -INFINITY, 0 };
            top = fmaxf(top, mine[j].x);
        }
        top = warp_max(top);
        const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (int j = 0; j < MAX_SPLITS / 32; j++)
            sum += mine[j].y * exp2f(mine[j].x - base);
        sum = warp_sum(sum);
#pragma unroll
        for (int j = 0; j < MAX_SPLITS / 32; j++)
            m.weights[h][lane + 32 * j] = exp2f(mine[j].x - base) / sum;
    }
    __syncthreads();
    const int n_fours = p.part_ld / 4;
    for (int i = threadIdx.x; i < n_heads * n_fours; i += N_THREADS) {
        const int h = i / n_fours, c = i % n_fours * 4;
        const float4 *part = (const float4 *)(p.part + (row + h) * p.n_splits * p.part_ld + c);
        float y[4] = {};
#pragma unroll 8
        for (int j = 0; j < s.n_used; j++) {
            const float weight = m.weights[h][j];
            const float4 v = __ldcg(part + (int64_t)j * n_fours);
            y[0] += weight * v.x;
            y[1] += weight * v.y;
            y[2] += weight * v.z;
            y[3] += weight * v.w;
        }
        T *out = (T *)p.out + blockIdx.z * p.out_ld + (int64_t)(head0 + h) * vs + c;
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (c + e < vs)
                out[e] = from_float<T>(y[e]);
    }
}

/* Grid: (splits, kv heads * n_groups, sequences). */
template <class C>
__global__ void __launch_bounds__(N_THREADS) gac_decode_kernel(const __grid_constant__ params p)
{
    using T = typename C::T;
    extern __shared__ __align__(16) char memory[];
    shared<C> &m = *(shared<C> *)memory;
    const int kv_head = (int)blockIdx.y / p.n_groups, part = (int)blockIdx.y % p.n_groups;
    const int head0 = kv_head * p.group + part * ROWS;
    const int n_heads = p.group - part * ROWS < ROWS ? p.group - part * ROWS : ROWS;
    const int64_t slot = (blockIdx.z * p.a.n_kv_heads + kv_head) * p.a.capacity;
    T *keys = (T *)p.a.k_cache + slot * p.a.qk_stored;
    T *values = (T *)p.a.v_cache + slot * p.a.v_stored;
    let_next_start();
    const share s = find_share(p);
    if (s.begin >= s.n_keys || s.n_keys > p.a.capacity)
        return;
    /* First read keys and values of earlier passes; those of this pass are not there yet. */
    const int base = s.begin + (int)threadIdx.x / 32 * KEYS, position = s.n_keys - 1;
    tile<C> x;
    read_keys<C, false>(x, p, keys, base, s.begin, min(s.end, position));
    read_values<C, false>(x, p, values, base, s.begin, min(s.end, position));
    stage_tables<C>(p, s, m);
    prefetch<C>(p, s, keys, values);
    wait_for_previous();
    __syncthreads();
    stage_heads<C>(p, s, head0, n_heads, m, keys, values);
    __syncthreads();
    read_keys<C, true>(x, p, keys, base, position, s.end);
    read_values<C, true>(x, p, values, base, position, s.end);
    running<C> r;
    attend_share<C>(p, s, m, keys, values, x, r);
    store_warp<C>(m, r);
    __syncthreads();
    store_share<C>(p, s, m, head0, n_heads);
    if (s.n_used == 1)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int *done = p.done + blockIdx.z * gridDim.y + blockIdx.y;
        m.is_last = atomicAdd(done, 1) == s.n_used - 1;
        if (m.is_last)
            *done = 0;
        __threadfence();
    }
    __syncthreads();
    if (m.is_last)
        combine<C>(p, s, m, head0, n_heads);
}

int count_groups(int64_t n_q_heads, int64_t n_kv_heads)
{
    return (int)((n_q_heads / n_kv_heads + ROWS - 1) / ROWS);
}

int count_splits(int64_t batch, int64_t n_q_heads, int64_t n_kv_heads)
{
    const int64_t n = WANTED_BLOCKS / (batch * n_kv_heads * count_groups(n_q_heads, n_kv_heads));
    return (int)(n < 1 ? 1 : n > MAX_SPLITS ? MAX_SPLITS : n);
}

template <class C> cudaError_t launch(const params &p, bool overlap, cudaStream_t stream)
{
    const dim3 grid((unsigned)p.n_splits, (unsigned)(p.a.n_kv_heads * p.n_groups),
                    (unsigned)p.a.batch);
    return launch_kernel(gac_decode_kernel<C>, grid, N_THREADS, sizeof(shared<C>), overlap, stream,
                         p);
}

template <typename T, int D>
cudaError_t launch_heads(const params &p, bool wide, bool overlap, cudaStream_t stream)
{
    if (!wide)
        return launch<config<T, D, 8, false>>(p, overlap, stream);
    if (p.group == 1)
        return launch<config<T, D, 1, true>>(p, overlap, stream);
    if (p.group <= 4)
        return launch<config<T, D, 4, true>>(p, overlap, stream);
    return launch<config<T, D, 8, true>>(p, overlap, stream);
}

template <typename T>
cudaError_t launch_type(const params &p, bool wide, bool overlap, cudaStream_t stream)
{
    const int64_t d = p.a.qk_stored > p.a.v_stored ? p.a.qk_stored : p.a.v_stored;
    if (d <= 64)
        return launch_heads<T, 64>(p, wide, overlap, stream);
    if (d <= 128)
        return launch_heads<T, 128>(p, wide, overlap, stream);
    return launch_heads<T, 256>(p, wide, overlap, stream);
}

} /* namespace */

extern "C" size_t gac_decode_counter_bytes(int64_t batch, int64_t n_q_heads, int64_t n_kv_heads)
{
    const int64_t n = batch * n_kv_heads * count_groups(n_q_heads, n_kv_heads);
    return (size_t)n * sizeof(int);
}

extern "C" size_t gac_decode_workspace_bytes(int64_t batch, int64_t n_q_heads, int64_t n_kv_heads,
                                             int64_t v_stored)
{
    const int64_t n = batch * n_q_heads * count_splits(batch, n_q_heads, n_kv_heads);
    return (size_t)(n * ((v_stored + 3) / 4 * 4)) * sizeof(float) + (size_t)n * sizeof(float2);
}

extern "C" gac_status gac_decode_launch(const gac_decode_args *args, cudaStream_t stream,
                                        gac_error *err)
{
    const gac_heads_args *a = &args->heads;
    if (!check_heads(a) || a->n_new != 1 || a->batch > 65535)
        return gac_error_set(err, GAC_USAGE, "attention of sizes that make no sense");
    params p = {};
    p.a = *a;
    p.out = args->out;
    p.out_ld = args->out_ld;
    p.group = (int)(a->n_q_heads / a->n_kv_heads);
    p.n_groups = count_groups(a->n_q_heads, a->n_kv_heads);
    p.n_splits = count_splits(a->batch, a->n_q_heads, a->n_kv_heads);
    p.scale_log2 = (float)args->scale * LOG2E;
    p.cap_log2 = (float)args->softcap * LOG2E;
    p.window = args->window > 0 && args->window < INT_MAX ? (int)args->window : INT_MAX;
    p.done = (int *)args->counters;
    p.part_ld = (int)(a->v_stored + 3) / 4 * 4;
    p.part = (float *)args->workspace; /* stats follow part, which must be 16-byte aligned */
    p.stats = (float2 *)(p.part + a->batch * a->n_q_heads * p.n_splits * p.part_ld);
    const bool wide = a->qk_stored % 8 == 0 && a->v_stored % 8 == 0 &&
                      ((uintptr_t)a->k_cache | (uintptr_t)a->v_cache) % 16 == 0;
    cudaError_t code = a->dtype == GAC_DTYPE_F16
                           ? launch_type<__half>(p, wide, args->overlap, stream)
                           : launch_type<__nv_bfloat16>(p, wide, args->overlap, stream);
    return launch_status(code, "attention of new tokens", err);
}
