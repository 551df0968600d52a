/* Copies between rows of different lengths, at the speed of memory.
 *
 * Both sides are treated as flat ranges of bytes. A thread writes aligned 16-byte units
 * of the destination, so stores and loads are as wide as in a plain copy. The source
 * bytes of a unit lie in two aligned 16-byte units, which are combined by a byte shift.
 * The second unit is the first unit of the next lane and comes from the L1 cache. If a
 * row ends inside a unit, the next row contributes a second pair. */
#include "kernels.h"

namespace
{

constexpr int N_THREADS = 256;
constexpr int UNROLL = 2;                            /* units per thread, to overlap loads */
constexpr int BLOCK_BYTES = N_THREADS * UNROLL * 16; /* bytes of the destination per block */

struct job {
    const char *from;   /* (n_rows, from_bytes) */
    char *to;           /* (n_rows, to_bytes) */
    int64_t from_all;   /* size of from in bytes */
    int64_t to_all;     /* size of to in bytes */
    int64_t from_bytes; /* bytes per row */
    int64_t to_bytes;
    uint64_t inverse;   /* 2^64 / to_bytes rounded up; 0 means divide */
    uint32_t inverse32; /* 2^32 / to_bytes rounded up; 0 if to_bytes is 1 or above BLOCK_BYTES */
    int first_block;    /* first block of this job in the grid */
    int n_inner;        /* blocks that pad_inner can handle */
    int n_blocks;       /* n_inner, plus EDGE_PARTS for each other block */
};

struct jobs {
    job list[GAC_PAD_MAX_JOBS];
    int n;
};

/* A block of the destination and the position of its source. */
struct block {
    int64_t start; /* offset in the destination */
    int64_t base;  /* offset in the source */
    int64_t slip;  /* from_bytes - to_bytes: change of the source offset at each row end */
    int column;    /* offset in its first row */
    int room;      /* bytes of the destination before the first row end */
    int to_bytes;
    int pad; /* zeros at the end of each row */
};

struct words4 {
    uint32_t word[4];
};

__device__ __forceinline__ block find_block(const job &j, int index)
{
    block b;
    b.start = (int64_t)index * BLOCK_BYTES;
    const int64_t row =
        j.inverse ? (int64_t)__umul64hi((uint64_t)b.start, j.inverse) : b.start / j.to_bytes;
    b.column = (int)(b.start - row * j.to_bytes);
    b.slip = j.from_bytes - j.to_bytes;
    b.base = b.start + row * b.slip;
    b.to_bytes = (int)j.to_bytes;
    b.room = b.to_bytes - b.column;
    b.pad = b.slip < 0 ? (int)-b.slip : 0;
    return b;
}

/* Returns the number of row ends at or before byte at of the block. */
__device__ __forceinline__ int row_ends(const job &j, const block &b, int at)
{
    if (j.inverse32)
        return (int)__umulhi((uint32_t)(b.column + at), j.inverse32);
    return b.to_bytes == 1 ? at : at >= b.room;
}

/* Returns bytes shift to shift + 15 of low and high. */
__device__ __forceinline__ words4 window(uint4 low, uint4 high, int shift)
{
    const bool by2 = shift & 8, by1 = shift & 4;
    const uint32_t a0 = by2 ? low.z : low.x, a1 = by2 ? low.w : low.y;
    const uint32_t a2 = by2 ? high.x : low.z, a3 = by2 ? high.y : low.w;
    const uint32_t a4 = by2 ? high.z : high.x, a5 = by2 ? high.w : high.y;
    const uint32_t b0 = by1 ? a1 : a0, b1 = by1 ? a2 : a1, b2 = by1 ? a3 : a2;
    const uint32_t b3 = by1 ? a4 : a3, b4 = by1 ? a5 : a4;
    const int bits = 8 * (shift & 3);
    return words4{ { __funnelshift_r(b0, b1, bits), __funnelshift_r(b1, b2, bits),
                     __funnelshift_r(b2, b3, bits), __funnelshift_r(b3, b4, bits) } };
}

/* Returns a mask of the bytes of word i that come before byte n of the four words. */
__device__ __forceinline__ uint32_t bytes_before(int n, int i)
{
    return __funnelshift_lc(~0u, 0u, max(8 * max(n, 0) - 32 * i, 0));
}

__device__ __forceinline__ void store_unit(const job &j, const block &b, int at, const words4 &unit)
{
    *(uint4 *)(j.to + b.start + at) =
        make_uint4(unit.word[0], unit.word[1], unit.word[2], unit.word[3]);
}

/* The source of a 16-byte unit of the destination. */
struct unit_source {
    int64_t source; /* offset of the first byte */
    int room;       /* bytes of the destination before the row ends */
};

__device__ __forceinline__ unit_source find_source(const job &j, const block &b, int at)
{
    const int ends = row_ends(j, b, at);
    return unit_source{ b.base + at + ends * b.slip, b.room + ends * b.to_bytes - at };
}

/* Prefetches the whole 128-byte line into L2, because reading a source with small gaps is
 * slower than reading all of it. */
__device__ __forceinline__ uint4 load_unit(const uint4 *from)
{
    uint4 unit;
    asm("ld.global.nc.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
        : "l"(from));
    return unit;
}

/* Loads the two units around source offset at. Loads the second only if some of the n
 * wanted bytes are in it. */
__device__ __forceinline__ void load_units(const job &j, int64_t at, int n, uint4 &low, uint4 &high)
{
    const int shift = (int)at & 15;
    const uint4 *from = (const uint4 *)(j.from + (at - shift));
    low = high = make_uint4(0, 0, 0, 0);
    if (n > 0)
        low = load_unit(from);
    if (shift + min(n, 16) > 16)
        high = load_unit(from + 1);
}

/* Writes the unit that contains row end number end of the block: bytes of the row, zeros
 * if rows grow, then bytes of the next row. */
__device__ __forceinline__ void pad_across(const job &j, const block &b, int end)
{
    const int stop = b.room + end * b.to_bytes, room = stop % 16, at = stop - room;
    if (room == 0)
        return;
    const int64_t source = b.base + at + end * b.slip, next_source = source + b.slip;
    uint4 low, high, next_low, next_high;
    load_units(j, source, room - b.pad, low, high);
    load_units(j, next_source, 16, next_low, next_high);
    words4 unit = window(low, high, (int)source & 15);
    const words4 next = window(next_low, next_high, (int)next_source & 15);
#pragma unroll
    for (int i = 0; i < 4; i++)
        unit.word[i] = (unit.word[i] & bytes_before(room - b.pad, i)) |
                       (next.word[i] & ~bytes_before(room, i));
    store_unit(j, b, at, unit);
}

/* Handles a block that lies inside both sides, with rows of at least 16 bytes. Units
 * across a row end are few but need twice the work. A few threads write them afterwards,
 * so that not every warp diverges. */
__device__ __forceinline__ void pad_inner(const job &j, const block &b)
{
    uint4 low[UNROLL], high[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const unit_source p = find_source(j, b, ((int)threadIdx.x + u * N_THREADS) * 16);
        load_units(j, p.source, p.room < 16 ? 0 : p.room - b.pad, low[u], high[u]);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const int at = ((int)threadIdx.x + u * N_THREADS) * 16;
        const unit_source p = find_source(j, b, at);
        if (p.room < 16)
            continue;
        words4 unit = window(low[u], high[u], (int)p.source & 15);
        if (p.room - b.pad < 16)
#pragma unroll
            for (int i = 0; i < 4; i++)
                unit.word[i] &= bytes_before(p.room - b.pad, i);
        store_unit(j, b, at, unit);
    }
    const int n_ends = row_ends(j, b, BLOCK_BYTES - 1);
    for (int end = (int)threadIdx.x; end < n_ends; end += N_THREADS)
        pad_across(j, b, end);
}

/* Copies bytes begin to end of a block one by one, with several loads in flight. */
__device__ __forceinline__ void pad_bytes(const job &j, const block &b, int begin, int end)
{
    constexpr int AT_ONCE = 8;
    for (int first = begin + (int)threadIdx.x; first < end; first += AT_ONCE * N_THREADS) {
        char byte[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = first + i * N_THREADS;
            const int ends = row_ends(j, b, at);
            const bool inside = at < end && b.start + at < j.to_all;
            const int n = b.room + ends * b.to_bytes - at - b.pad;
            byte[i] = inside && n > 0 ? __ldg(j.from + b.base + at + ends * b.slip) : (char)0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int at = first + i * N_THREADS;
            if (at < end && b.start + at < j.to_all)
                j.to[b.start + at] = byte[i];
        }
    }
}

/* Blocks that must copy byte by byte (the end of a job, short rows) are divided among
 * EDGE_PARTS blocks. Otherwise they would take longer than all others. */
constexpr int EDGE_PARTS = 8;

__global__ void __launch_bounds__(N_THREADS, 6) gac_pad_kernel(const __grid_constant__ jobs all)
{
    int which = 0;
    while (which + 1 < all.n && (int)blockIdx.x >= all.list[which + 1].first_block)
        which++;
    const job &j = all.list[which];
    /* Start at the end: the data written last is still in the L2 cache, and the data that
     * the next kernel reads first will be. */
    const int index = j.n_blocks - 1 - ((int)blockIdx.x - j.first_block);
    if (index < j.n_inner) {
        pad_inner(j, find_block(j, index));
        return;
    }
    constexpr int PART = BLOCK_BYTES / EDGE_PARTS;
    const block b = find_block(j, j.n_inner + (index - j.n_inner) / EDGE_PARTS);
    const int begin = (index - j.n_inner) % EDGE_PARTS * PART;
    pad_bytes(j, b, begin, begin + PART);
}

/* Returns an upper bound on the source offset that pad_inner reads for block index: the
 * smaller of two bounds. */
int64_t source_end(const job *j, int64_t index)
{
    const int64_t start = index * BLOCK_BYTES, row = start / j->to_bytes;
    const int64_t slip = j->from_bytes - j->to_bytes, base = start + row * slip;
    const int64_t column = start - row * j->to_bytes;
    const int64_t ends = (column + BLOCK_BYTES - 1) / j->to_bytes + 1;
    const int64_t by_rows = base - column + ends * j->from_bytes + 48;
    const int64_t by_bytes = base + BLOCK_BYTES + (slip > 0 ? ends * slip : 0) + 48;
    return by_rows < by_bytes ? by_rows : by_bytes;
}

/* Returns how many leading blocks pad_inner can handle. */
int64_t count_inner(const job *j)
{
    if (((uintptr_t)j->from | (uintptr_t)j->to) % 16 || j->from_bytes < 16 || j->to_bytes < 16)
        return 0;
    int64_t n = j->to_all / BLOCK_BYTES;
    while (n > 0 && source_end(j, n - 1) > j->from_all)
        n--;
    return n;
}

gac_status make_job(const gac_pad_job *spec, job *j, gac_error *err)
{
    const int64_t size = spec->element_bytes, most = (int64_t)1 << 29;
    if ((size != 1 && size != 2 && size != 4) || spec->n_rows < 1 || spec->n_from < 1 ||
        spec->n_to < 1 || !gac_mul_i64(spec->n_from, size, &j->from_bytes) ||
        !gac_mul_i64(spec->n_to, size, &j->to_bytes) || j->from_bytes > most ||
        j->to_bytes > most || !gac_mul_i64(spec->n_rows, j->from_bytes, &j->from_all) ||
        !gac_mul_i64(spec->n_rows, j->to_bytes, &j->to_all))
        return gac_error_set(err, GAC_USAGE, "pad sizes out of range");
    j->from = (const char *)spec->from;
    j->to = (char *)spec->to;
    /* Exact while offset * to_bytes stays below 2^64 and 2^32. */
    const uint64_t d = (uint64_t)j->to_bytes;
    j->inverse = d > 1 && d < 1u << 20 ? UINT64_MAX / d + 1 : 0;
    j->inverse32 = d > 1 && d <= BLOCK_BYTES ? UINT32_MAX / (uint32_t)d + 1 : 0;
    const int64_t n_inner = count_inner(j);
    const int64_t n_edge = (j->to_all + BLOCK_BYTES - 1) / BLOCK_BYTES - n_inner;
    if (n_inner + n_edge * EDGE_PARTS > INT32_MAX / GAC_PAD_MAX_JOBS)
        return gac_error_set(err, GAC_USAGE, "pad sizes out of range");
    j->n_inner = (int)n_inner;
    j->n_blocks = (int)(n_inner + n_edge * EDGE_PARTS);
    j->first_block = 0;
    return GAC_OK;
}

} /* namespace */

extern "C" gac_status gac_pad_launch(const gac_pad_job *specs, int n_jobs, cudaStream_t stream,
                                     gac_error *err)
{
    if (n_jobs < 1 || n_jobs > GAC_PAD_MAX_JOBS)
        return gac_error_set(err, GAC_USAGE, "%d pads in one launch: 1 to %d", n_jobs,
                             (int)GAC_PAD_MAX_JOBS);
    jobs all = {};
    int n_blocks = 0;
    for (int i = 0; i < n_jobs; i++) {
        job *j = &all.list[all.n++];
        gac_status status = make_job(&specs[i], j, err);
        if (status != GAC_OK)
            return status;
        j->first_block = n_blocks;
        n_blocks += j->n_blocks;
    }
    gac_pad_kernel<<<(unsigned)n_blocks, N_THREADS, 0, stream>>>(all);
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        return gac_error_set(err, GAC_FAILED, "pad: %s", cudaGetErrorString(e));
    return GAC_OK;
}
