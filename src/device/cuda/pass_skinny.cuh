/* pass_skinny: parameters of the kernel, the division of work among blocks and warps, and
 * the rings in shared memory. */
#ifndef GAC_PASS_SKINNY_CUH
#define GAC_PASS_SKINNY_CUH

#include "block_schedule.h"
#include "pass_common.cuh"

namespace
{

constexpr int N_WARPS = 8; /* compute warps; each has a producer warp */
constexpr int N_THREADS = 32 * N_WARPS;
constexpr int TILE = 8;                     /* rows per tile */
constexpr int STEP = 64;                    /* numbers of k per step */
constexpr int TILE_BYTES = TILE * STEP * 2; /* bytes of a step of a tile: eight 8x8 matrices */
constexpr int SPAN = 14; /* most tiles whose gate results wait for their up results */
constexpr int SUM_BYTES = 32 * sizeof(float4);
constexpr int GATES_BYTES = SPAN * TILE * GAC_SKINNY_MAX_ROWS * 4;
constexpr int MAX_BLOCKS = 255;
constexpr int MAX_STEPS = 16; /* most steps in a ring; a power of two */

/* Weights for some columns of y: one matrix, or gate and up. */
struct segment {
    const void *w[2];     /* (n, ld) */
    const float *bias[2]; /* (n) or NULL */
    int ld[2], k[2], x_start[2];
    int n, y_start;
    int tile, end_tile; /* range in the tiles of all segments */
    int cost;           /* steps per tile */
};

struct params {
    segment segments[GAC_SKINNY_MAX_SEGMENTS];
    const void *x; /* (m, x_ld) half */
    void *y;       /* (m, y_ld) */
    int64_t x_ld, y_ld;
    int cuts[MAX_BLOCKS + 1]; /* first tile of each block */
    int m, n_segments;
    gac_skinny_mode mode;
};

template <typename T_, int M_TILES_, int GROUP_, int RING_> struct config {
    using T = T_;
    static constexpr int M_TILES = M_TILES_; /* tiles of x */
    static constexpr int GROUP = GROUP_;     /* most tiles of weights that share a step of x */
    static constexpr int RING_BYTES = RING_ * TILE_BYTES;
    static constexpr int SUMS_BYTES = N_WARPS * GROUP * SUM_BYTES;
    /* The ring holds one step at a time if two might not fit. */
    static constexpr bool IS_SMALL = RING_ < 2 * (M_TILES + GROUP);
    static_assert(RING_ >= M_TILES + GROUP && RING_ / (M_TILES + 1) <= MAX_STEPS,
                  "a ring holds a step, and there is a barrier for each");
};

/* Tiles of one part (gate or up) of a segment that are multiplied together. */
struct group {
    int s, part;
    int start, end;
    int span_start, span_end; /* tiles whose gate and up parts are processed in turn */
    int turn;                 /* steps of all earlier groups of the block */
};

/* The next step that a producer warp copies. */
template <class C> struct cursor {
    const typename C::T *x, *w; /* this lane's address in the first tile */
    int64_t ld;
    int rows, k; /* rows and numbers of k left in the weights */
    int steps;   /* steps left in the group; 0 means no work is left */
    group of;
};

__host__ __device__ __forceinline__ int count_steps(int k)
{
    return (k + STEP - 1) / STEP;
}

/* Returns the number of a warp's steps of a group and sets *first to its first step. If
 * the steps do not divide evenly, the warps take the extra steps in turn. */
__device__ __forceinline__ int share_of(const params &p, const group &g, int *first)
{
    const unsigned n = (unsigned)count_steps(p.segments[g.s].k[g.part]), more = n % N_WARPS;
    const unsigned mine = (threadIdx.x / 32 - (unsigned)g.turn) % N_WARPS;
    *first = (int)(mine * (n / N_WARPS) + min(mine, more));
    return (int)(n / N_WARPS + (mine < more));
}

/* Returns the next group of the block. Its start is end if there is none. */
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

/* Moves to the first step of the cursor's group, or of the next group in which this warp
 * has a step. */
template <class C>
__device__ __forceinline__ void enter_group(const params &p, int end, cursor<C> &at)
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

/* Moves to the next step. */
template <class C> __device__ __forceinline__ void advance(const params &p, int end, cursor<C> &at)
{
    at.x += STEP;
    at.w += STEP;
    at.k -= STEP;
    if (--at.steps == 0) {
        at.of = group_after<C>(p, end, at.of);
        enter_group<C>(p, end, at);
    }
}

__device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}

/* Returns the address of this lane's second chunk of a tile, four rows below the first. */
__device__ __forceinline__ uint32_t second_chunk(uint32_t first)
{
    return (first + 4 * STEP * 2) ^ 64;
}

template <typename T>
__device__ __forceinline__ void copy_tile(uint32_t to, const T *from, int64_t ld, int rows, int k)
{
    copy_16(to, from, rows > 0 && k > 0);
    copy_16(second_chunk(to), from + 4 * ld, rows > 4 && k > 0);
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

/* Returns the offset of row r of 8x8 matrix i in a step of a tile. The XOR spreads each
 * matrix over all banks. */
__device__ __forceinline__ uint32_t matrix_offset(int r, int i)
{
    return (uint32_t)(r * STEP * 2 + (i ^ r) * 16);
}

/* Communication between the two warps of a ring, one entry per step. full: x and weights
 * have arrived. empty: the step has been read. used: bytes that the ring has consumed up
 * to that step, in total. */
struct ring_state {
    uint64_t full[MAX_STEPS], empty[MAX_STEPS]; /* barriers */
    unsigned used[MAX_STEPS];
};

/* A position in a ring. A step is contiguous: if it does not fit before the end of the
 * ring, it starts at the beginning. */
template <class C> struct ring_position {
    uint32_t at = 0;   /* offset after the last step */
    unsigned used = 0; /* bytes used so far, in total */
    int n = 0;         /* steps so far */

    static __device__ __forceinline__ uint32_t size_of(const group &g)
    {
        return C::IS_SMALL ? C::RING_BYTES : (uint32_t)(C::M_TILES + g.end - g.start) * TILE_BYTES;
    }

    /* Returns used after one more step of a group. */
    __device__ __forceinline__ unsigned used_with(const group &g) const
    {
        const uint32_t size = size_of(g);
        return used + size + (at + size > C::RING_BYTES ? C::RING_BYTES - at : 0);
    }

    /* Advances over one step of a group and returns the step's offset. */
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

/* Arrives at the barrier when all copies of this thread so far have completed. */
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Producer: fills a ring with all steps of the block. It loads weights while there is
 * room, and x once the previous kernel has finished. */
template <class C>
__device__ void fill_ring(const params &p, int start, int end, uint32_t ring, ring_state &state)
{
    const int lane = threadIdx.x % 32;
    const uint32_t mine = ring + matrix_offset(lane / 8, lane % 8);
    const uint32_t full = shared_address(state.full), empty = shared_address(state.empty);
    cursor<C> w, x;
    ring_position<C> w_at, x_at;
    unsigned freed = 0; /* bytes freed so far, in total */
    int n_freed = 0;
    bool is_x_there = false;
    w.of = first_group<C>(p, start, end);
    enter_group<C>(p, end, w);
    x = w;
    while (x.steps > 0) {
        if (is_x_there && x_at.n < w_at.n) {
            const int i = x_at.n % MAX_STEPS;
            copy_x<C>(p, x, mine + x_at.take(x.of));
            arrive_after_copies(full + i * 8);
            advance<C>(p, end, x);
        } else if (w.steps > 0 && w_at.used_with(w.of) - freed <= C::RING_BYTES) {
            const int i = w_at.n % MAX_STEPS;
            copy_weights<C>(w, mine + w_at.take(w.of));
            arrive_after_copies(full + i * 8);
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
