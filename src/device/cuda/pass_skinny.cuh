/* pass_skinny: what a product of few rows is told, how its blocks divide it, and
 * how x and weights come to a warp. */
#ifndef GAC_PASS_SKINNY_CUH
#define GAC_PASS_SKINNY_CUH

#include "block_schedule.h"
#include "pass_common.cuh"

namespace
{

constexpr int N_WARPS = 8; /* that multiply; as many fill their rings */
constexpr int N_THREADS = 32 * N_WARPS;
constexpr int TILE = 8;                     /* rows */
constexpr int STEP = 64;                    /* numbers of k */
constexpr int TILE_BYTES = TILE * STEP * 2; /* of a step: eight matrices of 8 by 8 */
constexpr int SPAN = 14; /* tiles whose gates are kept until their ups are there */
constexpr int SUM_BYTES = 32 * sizeof(float4);
constexpr int GATES_BYTES = SPAN * TILE * GAC_SKINNY_MAX_ROWS * 4;
constexpr int MAX_BLOCKS = 255;
constexpr int MAX_STEPS = 16; /* in a ring: a power of two */

/* Weights that give some columns of y: gate and up, or one. */
struct segment {
    const void *w[2];     /* (n, ld) */
    const float *bias[2]; /* (n) or NULL */
    int ld[2], k[2], x_start[2];
    int n, y_start;
    int tile, end_tile; /* of all */
    int cost;           /* of a tile: steps */
};

struct params {
    segment segments[GAC_SKINNY_MAX_SEGMENTS];
    const void *x; /* (m, x_ld) half */
    void *y;       /* (m, y_ld) */
    int64_t x_ld, y_ld;
    int cuts[MAX_BLOCKS + 1]; /* the first tile of each block */
    int m, n_segments;
    gac_skinny_mode mode;
};

template <typename T_, int M_TILES_, int GROUP_, int RING_> struct config {
    using T = T_;
    static constexpr int M_TILES = M_TILES_; /* of x */
    static constexpr int GROUP = GROUP_;     /* tiles of weights that share a step of x */
    static constexpr int RING_BYTES = RING_ * TILE_BYTES;
    static constexpr int SUMS_BYTES = N_WARPS * GROUP * SUM_BYTES;
    /* One step at a time, where two may leave too much over. */
    static constexpr bool IS_SMALL = RING_ < 2 * (M_TILES + GROUP);
    static_assert(RING_ >= M_TILES + GROUP && RING_ / (M_TILES + 1) <= MAX_STEPS,
                  "a ring holds a step, and there is a barrier for each");
};

/* Tiles that are multiplied together, of one part of a segment. */
struct group {
    int s, part;
    int start, end;
    int span_start, span_end; /* of them all, whose parts follow one another */
    int turn;                 /* steps of the groups before it */
};

/* The step that a warp asks for next. */
template <class C> struct cursor {
    const typename C::T *x, *w; /* a lane's, of the first tiles */
    int64_t ld;
    int rows, k; /* of the weights, from there on */
    int steps;   /* left of the group; 0: nothing is left at all */
    group of;
};

__host__ __device__ __forceinline__ int count_steps(int k)
{
    return (k + STEP - 1) / STEP;
}

/* A warp's steps of a group, and the first of them. Where they do not divide
 * evenly, warps have more of them by turns. */
__device__ __forceinline__ int share_of(const params &p, const group &g, int *first)
{
    const unsigned n = (unsigned)count_steps(p.segments[g.s].k[g.part]), more = n % N_WARPS;
    const unsigned mine = (threadIdx.x / 32 - (unsigned)g.turn) % N_WARPS;
    *first = (int)(mine * (n / N_WARPS) + min(mine, more));
    return (int)(n / N_WARPS + (mine < more));
}

/* The group after one, up to the block's last tile; it starts there where there
 * is none. */
template <class C> __device__ __forceinline__ group group_after(const params &p, int end, group g)
{
    if (g.end > g.start)
        g.turn += count_steps(p.segments[g.s].k[g.part]);
    g.start = g.end;
    if (g.start == g.span_end && g.part == 0 && p.mode == GAC_SKINNY_GATED) {
        g.part = 1;
        g.start = g.span_start;
    } else if (g.start == g.span_end) {
        g.part = 0;
        if (g.start >= end)
            return g;
        while (g.start >= p.segments[g.s].end_tile)
            g.s++;
        g.span_start = g.start;
        g.span_end = min(g.start + SPAN, min(end, p.segments[g.s].end_tile));
    }
    g.end = min(g.start + C::GROUP, g.span_end);
    return g;
}

template <class C> __device__ __forceinline__ group first_group(const params &p, int start, int end)
{
    group g = {};
    g.part = 1;
    g.span_end = g.end = g.start = start;
    return group_after<C>(p, end, g);
}

/* To the first step of the cursor's group, or of the next that has one. */
template <class C> __device__ __forceinline__ void enter(const params &p, int end, cursor<C> &at)
{
    using T = typename C::T;
    const int lane = threadIdx.x % 32;
    for (at.steps = 0; at.of.start < end; at.of = group_after<C>(p, end, at.of)) {
        const segment &seg = p.segments[at.of.s];
        const int part = at.of.part;
        int first;
        at.steps = share_of(p, at.of, &first);
        if (at.steps == 0)
            continue;
        const int k = first * STEP + lane % 8 * 8;
        const int row = (at.of.start - seg.tile) * TILE + lane / 8;
        at.ld = seg.ld[part];
        at.x = (const T *)p.x + lane / 8 * p.x_ld + seg.x_start[part] + k;
        at.w = (const T *)seg.w[part] + row * at.ld + k;
        at.rows = seg.n - row;
        at.k = seg.k[part] - k;
        return;
    }
}

/* To the next step. */
template <class C> __device__ __forceinline__ void advance(const params &p, int end, cursor<C> &at)
{
    at.x += STEP;
    at.w += STEP;
    at.k -= STEP;
    if (--at.steps == 0) {
        at.of = group_after<C>(p, end, at.of);
        enter<C>(p, end, at);
    }
}

__device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}

/* A lane's second piece of a tile, four rows below the first. */
__device__ __forceinline__ uint32_t second_place(uint32_t first)
{
    return (first + 4 * STEP * 2) ^ 64;
}

template <typename T>
__device__ __forceinline__ void copy_tile(uint32_t to, const T *from, int64_t ld, int rows, int k)
{
    copy_16(to, from, rows > 0 && k > 0);
    copy_16(second_place(to), from + 4 * ld, rows > 4 && k > 0);
}

template <class C>
__device__ __forceinline__ void copy_x(const params &p, const cursor<C> &at, uint32_t to)
{
#pragma unroll
    for (int r = 0; r < C::M_TILES; r++)
        copy_tile(to + r * TILE_BYTES, at.x + r * TILE * p.x_ld, p.x_ld,
                  p.m - (int)threadIdx.x % 32 / 8 - r * TILE, at.k);
}

template <class C> __device__ __forceinline__ void copy_weights(const cursor<C> &at, uint32_t to)
{
    const typename C::T *w = at.w;
#pragma unroll
    for (int i = 0; i < C::GROUP; i++)
        if (at.of.start + i < at.of.end) {
            copy_tile(to + (C::M_TILES + i) * TILE_BYTES, w, at.ld, at.rows - i * TILE, at.k);
            w += TILE * at.ld;
        }
}

/* Where row r of matrix i lies in a step of a tile: so rows lie side by side, and
 * every matrix in all banks. */
__device__ __forceinline__ uint32_t place_of(int r, int i)
{
    return (uint32_t)(r * STEP * 2 + (i ^ r) * 16);
}

/* What the two warps of a ring tell each other of steps, each time round: it is
 * there, x and weights; it has been read, up to how many bytes of all. */
struct ring_state {
    uint64_t full[MAX_STEPS], empty[MAX_STEPS]; /* barriers */
    unsigned used[MAX_STEPS];
};

/* A place in a ring. A step lies in one piece: one that does not fit before the
 * end lies at the start. */
template <class C> struct ring_place {
    uint32_t at = 0;   /* of the step after the last one */
    unsigned used = 0; /* bytes up to there, of all */
    int n = 0;         /* steps up to there */

    static __device__ __forceinline__ uint32_t size_of(const group &g)
    {
        return C::IS_SMALL ? C::RING_BYTES : (uint32_t)(C::M_TILES + g.end - g.start) * TILE_BYTES;
    }

    /* With a step of a group. */
    __device__ __forceinline__ unsigned used_with(const group &g) const
    {
        const uint32_t size = size_of(g);
        return used + size + (at + size > C::RING_BYTES ? C::RING_BYTES - at : 0);
    }

    /* Goes behind that step; gives where it lies. */
    __device__ __forceinline__ uint32_t take(const group &g)
    {
        const uint32_t size = size_of(g);
        used = used_with(g);
        n++;
        const uint32_t start = at + size > C::RING_BYTES ? 0 : at;
        at = start + size;
        return start;
    }
};

/* What this thread has asked for so far will arrive at the barrier. */
__device__ __forceinline__ void arrive_when_there(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Fills a ring with all there is to multiply: with weights while there is room,
 * and with x once the kernel before this one is done. */
template <class C>
__device__ void fill_ring(const params &p, int start, int end, uint32_t ring, ring_state &state)
{
    const int lane = threadIdx.x % 32;
    const uint32_t mine = ring + place_of(lane / 8, lane % 8);
    const uint32_t full = shared_address(state.full), empty = shared_address(state.empty);
    cursor<C> w, x;
    ring_place<C> w_place, x_place;
    unsigned freed = 0; /* bytes of all */
    int n_freed = 0;
    bool is_x_there = false;
    w.of = first_group<C>(p, start, end);
    enter<C>(p, end, w);
    x = w;
    while (x.steps > 0) {
        if (is_x_there && x_place.n < w_place.n) {
            const int i = x_place.n % MAX_STEPS;
            copy_x<C>(p, x, mine + x_place.take(x.of));
            arrive_when_there(full + i * 8);
            advance<C>(p, end, x);
        } else if (w.steps > 0 && w_place.used_with(w.of) - freed <= C::RING_BYTES) {
            const int i = w_place.n % MAX_STEPS;
            copy_weights<C>(w, mine + w_place.take(w.of));
            arrive_when_there(full + i * 8);
            advance<C>(p, end, w);
        } else if (!is_x_there) {
            wait_for_previous();
            is_x_there = true;
        } else {
            const int i = n_freed % MAX_STEPS;
            wait_for(empty + i * 8, n_freed / MAX_STEPS % 2);
            freed = state.used[i];
            n_freed++;
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

} /* namespace */

#endif
