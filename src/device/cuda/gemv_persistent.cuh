/* gemv_persistent: parameters of the kernel, the division of work among blocks, and the
 * copies of weights to shared memory. */
#ifndef GAC_GEMV_PERSISTENT_CUH
#define GAC_GEMV_PERSISTENT_CUH

#include "pass_common.cuh"

namespace
{

constexpr int N_WARPS = 16, N_THREADS = 32 * N_WARPS;
constexpr int PIECE = 1024;      /* most numbers in a piece */
constexpr int MAX_SLOTS = 5;     /* most slots in a warp's ring */
constexpr int MAX_SEGMENTS = 32; /* most segments of all products */

/* Weights for some columns of y, or for the gate or up projection of all columns. */
struct segment {
    const void *w;     /* (n, ld) */
    const float *bias; /* (n) or NULL */
    int ld, n, k, x_start, y_start;
    int n_pieces, length; /* pieces per row, and the length of each but the last */
    bool is_first;        /* first segment of its product */
};

struct one_product {
    const void *x;     /* (width), F32 or half */
    const float *norm; /* (n_norm) or NULL */
    void *y;
    int64_t cost;        /* cost of all rows of weights, in units of 8 numbers */
    unsigned block_cost; /* cost per block */
    int first, end;      /* range of its segments; GATED has two, gate and up */
    int width, n_norm;
    float eps;
    bool from_float;
    gac_skinny_mode mode;
};

struct params {
    one_product products[GAC_GEMV_MAX_PRODUCTS];
    segment segments[MAX_SEGMENTS];
    unsigned *arrived; /* counts finished products of all blocks, over all launches */
    unsigned *done;    /* (blocks) finished products of each block, over all launches */
    int n_products, n_segments;
    int n_slots, max_width; /* max_width: largest width of x */
};

/* A block's rows of a segment. first_piece counts the block's pieces of earlier segments
 * of the product. */
struct row_range {
    int row, n_rows, first_piece;
};

/* Returns the block's first row of a segment. cost is the cost of the segments before it.
 * With GATED, gate and up get the same rows. */
__host__ __device__ inline int first_row(const one_product &p, const segment &s, unsigned cost,
                                         unsigned block, unsigned n_blocks)
{
    const unsigned n = (unsigned)s.n, each = (unsigned)s.k / 8;
    if (p.mode == GAC_SKINNY_GATED)
        return (int)(n * block / n_blocks);
    const unsigned wanted = p.block_cost * block;
    const unsigned row = wanted < cost ? 0 : (wanted - cost + each - 1) / each;
    return (int)min(row, n);
}

/* Fills the block's row ranges of a product. Returns its number of pieces. */
__host__ __device__ inline int divide(const params &p, int product, unsigned block,
                                      unsigned n_blocks, row_range *ranges)
{
    const one_product &one = p.products[product];
    unsigned cost = 0;
    int n_pieces = 0;
    for (int s = one.first; s < one.end; s++) {
        const segment &seg = p.segments[s];
        const int row = first_row(one, seg, cost, block, n_blocks);
        const int end = first_row(one, seg, cost, block + 1, n_blocks);
        ranges[s] = row_range{ row, end - row, n_pieces };
        n_pieces += (end - row) * seg.n_pieces;
        cost += (unsigned)seg.n * ((unsigned)seg.k / 8);
    }
    return n_pieces;
}

__device__ __forceinline__ uint4 load_shared(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* The kernel is launched on sm_90 and later only. */
#if __CUDA_ARCH__ >= 900

/* Makes the initialised barriers visible to bulk copies. */
__device__ __forceinline__ void publish_barriers()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Starts a bulk copy of n_bytes, a multiple of 16, to shared memory. The barrier
 * completes when they have arrived. */
__device__ __forceinline__ void copy(uint32_t to, const void *from, uint32_t n_bytes,
                                     uint32_t barrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(barrier), "r"(n_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 :
                 : "r"(to), "l"(from), "r"(n_bytes), "r"(barrier)
                 : "memory");
}

#else

__device__ __forceinline__ void publish_barriers()
{
}
__device__ __forceinline__ void copy(uint32_t, const void *, uint32_t, uint32_t)
{
}

#endif

/* Signals that this block has finished a product. */
__device__ __forceinline__ void arrive_grid(unsigned *arrived)
{
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
}

/* Waits until n signals have arrived. What these blocks wrote is then visible. */
__device__ __forceinline__ void wait_grid(const unsigned *arrived, unsigned n)
{
    if (threadIdx.x == 0) {
        unsigned now;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(now)
                         : "l"(arrived)
                         : "memory");
        while ((int)(now - n) < 0);
    }
    __syncthreads();
}

/* State of a slot: the barrier of its copy, and which numbers of x belong to its piece. */
struct __align__(16) slot_state
{
    uint64_t barrier;
    int start, n;
};

/* The next piece that a warp copies. A warp copies every N_WARPS-th piece of the block in
 * each product. */
template <typename T> struct cursor {
    const T *row;
    int n_rows;               /* rows left in the segment, with this one */
    int s;                    /* segment; n_segments at the end */
    int piece;                /* piece within the row */
    int n_pieces;             /* pieces per row of the segment */
    int next_row, next_piece; /* distance to the warp's next piece */
};

/* Moves the cursor into segment c.s, where c.piece counts from the block's first piece,
 * or into a later one if the warp has no piece there. */
template <typename T>
__device__ __forceinline__ void enter_segment(const params &p, const row_range *ranges, int warp,
                                              cursor<T> &c)
{
    for (; c.s < p.n_segments; c.s++) {
        const segment &from = p.segments[c.s];
        const row_range r = ranges[c.s];
        if (from.is_first)
            c.piece = warp;
        const int i = c.piece / from.n_pieces;
        c.piece -= i * from.n_pieces;
        if (i < r.n_rows) {
            c.row = (const T *)from.w + (int64_t)(r.row + i) * from.ld;
            c.n_rows = r.n_rows - i;
            c.n_pieces = from.n_pieces;
            c.next_row = N_WARPS / from.n_pieces;
            c.next_piece = N_WARPS % from.n_pieces;
            break;
        }
        c.piece += (i - r.n_rows) * from.n_pieces;
    }
}

template <typename T>
__device__ __forceinline__ void advance(const params &p, const row_range *ranges, int warp,
                                        cursor<T> &c)
{
    int n = c.next_row;
    c.piece += c.next_piece;
    if (c.piece >= c.n_pieces) {
        c.piece -= c.n_pieces;
        n++;
    }
    c.row += n * p.segments[c.s].ld;
    c.n_rows -= n;
    if (c.n_rows <= 0) {
        c.piece -= c.n_rows * c.n_pieces;
        c.s++;
        enter_segment(p, ranges, warp, c);
    }
}

template <typename T>
__device__ __forceinline__ void start_copy(const params &p, const cursor<T> &c, uint32_t slot_data,
                                           uint32_t slot_at, slot_state *t)
{
    const segment &s = p.segments[c.s];
    const int start = c.piece * s.length, n = min(s.length, s.k - start);
    t->start = s.x_start + start;
    t->n = n;
    copy(slot_data, c.row + start, (uint32_t)n * 2, slot_at);
}

} /* namespace */

#endif
