/* Up to 16 rows times weights, at the speed of memory.
 *
 * A tile is 8 rows of weights or of x. There is one block per multiprocessor, and
 * block_schedule.h assigns tiles to blocks. Eight warps of a block multiply. They divide
 * the k of each tile among them in steps of 64 numbers. Each compute warp is paired with
 * a producer warp that fills its ring in shared memory. A step in the ring holds tiles of
 * x and up to GROUP tiles of weights that use the same x. After the last step of a group
 * the block adds the sums of its warps.
 *
 * The producer warps start to load weights before the previous kernel has finished, and
 * leave gaps for x. They wait for that kernel only when the rings are full. The block
 * uses few registers, so that a norm kernel for up to 4096 numbers can run beside it. */
#include "pass_skinny.cuh"

namespace
{

/* Loads four 8x8 matrices. Lane (g, t) gets row g, columns 2t and 2t + 1 of each. Lane 8
 * i + r passes the address of row r of matrix i. */
__device__ __forceinline__ void load_matrices(uint32_t (&v)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from));
}

/* Loads x of a step as the first mma operand, 16 numbers of k at a time: rows 0 to 7 of
 * the first 8 numbers, rows 8 to 15 of them, then the same for the next 8 numbers.
 * Missing rows are read from zeros. */
template <class C>
__device__ __forceinline__ void load_x(uint32_t slot, uint32_t zeros, uint32_t (&a)[4][4])
{
    const int lane = threadIdx.x % 32, r = lane % 8, is_high = lane / 8 % 2, second = lane / 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t from = slot + is_high * TILE_BYTES + matrix_offset(r, 2 * i + second);
        load_matrices(a[i], C::M_TILES == 1 && is_high ? zeros + r * 16 : from);
    }
}

/* Multiplies x by N tiles of weights. */
template <class C, int N>
__device__ __forceinline__ void multiply(float (&c)[C::GROUP][4], const uint32_t (&x)[4][4],
                                         uint32_t tiles)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t w[N][4];
#pragma unroll
        for (int i = 0; i < N; i++)
            load_matrices(w[i], tiles + i * TILE_BYTES +
                                    matrix_offset(threadIdx.x % 8, 4 * h + threadIdx.x % 32 / 8));
#pragma unroll
        for (int q = 0; q < 2; q++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                const uint32_t(&a)[4] = x[2 * h + q];
                mma_16816<typename C::T>(c[i], a[0], a[1], a[2], a[3], w[i][2 * q],
                                         w[i][2 * q + 1]);
            }
    }
}

/* Multiplies x by n tiles of weights, n at most N. */
template <class C, int N>
__device__ __forceinline__ void multiply_some(int n, float (&c)[C::GROUP][4],
                                              const uint32_t (&x)[4][4], uint32_t tiles)
{
    if (n == N)
        multiply<C, N>(c, x, tiles);
    else if constexpr (N > 1)
        multiply_some<C, N - 1>(n, c, x, tiles);
}

/* Barrier of the compute warps. */
__device__ __forceinline__ void wait_for_warps()
{
    asm volatile("bar.sync 1, %0;" ::"n"(N_THREADS) : "memory");
}

/* Stores one number of y. gate points at the gate's value: part 0 writes it, part 1 reads
 * it. */
template <typename T>
__device__ __forceinline__ void store(const params &p, const group &of, int row, int column,
                                      float v, float *gate)
{
    const segment &seg = p.segments[of.s];
    const float *bias = seg.bias[of.part];
    const int64_t at = row * p.y_ld + seg.y_start + column;
    v += bias ? bias[column] : 0.0f;
    if (p.mode == GAC_SKINNY_GATED && of.part == 0)
        *gate = v;
    else if (p.mode == GAC_SKINNY_GATED)
        ((T *)p.y)[at] = from_float<T>(silu(*gate) * v);
    else if (p.mode == GAC_SKINNY_SET)
        ((T *)p.y)[at] = from_float<T>(v);
    else if (p.mode == GAC_SKINNY_ADD)
        atomicAdd((float *)p.y + at, v); /* only to not wait for the load */
    else
        ((float *)p.y)[at] = v;
}

/* Adds the sums of the warps for a group and stores the result. A thread handles two
 * columns of one row, the same ones for the gate and the up tile. */
template <class C>
__device__ __forceinline__ void finish_group(const params &p, const group &of, const char *sums,
                                             float *gates)
{
    const segment &seg = p.segments[of.s];
    for (int i = threadIdx.x; i < (of.end - of.start) * 64; i += N_THREADS) {
        const int tile = i / 64, lane = i % 64 / 2, row = lane / 4 + i % 2 * 8;
        const int column = (of.start + tile - seg.tile) * TILE + lane % 4 * 2;
        float *gate = gates + ((of.start - of.span_start) * 64 + i) * 2;
        float2 sum = { 0, 0 };
        if (row >= p.m)
            continue;
#pragma unroll
        for (int w = 0; w < N_WARPS; w++) {
            const float2 v =
                *(const float2 *)(sums + (w * C::GROUP + tile) * SUM_BYTES + i % 64 * 8);
            sum.x += v.x;
            sum.y += v.y;
        }
        if (column < seg.n)
            store<typename C::T>(p, of, row, column, sum.x, gate);
        if (column + 1 < seg.n)
            store<typename C::T>(p, of, row, column + 1, sum.y, gate + 1);
    }
}

/* Multiplies one group, whose steps arrive in the ring. */
template <class C>
__device__ __forceinline__ void multiply_group(const group &of, int n_steps, uint32_t ring,
                                               ring_state &state, uint32_t zeros,
                                               ring_position<C> &position, float (&c)[C::GROUP][4])
{
    const uint32_t full = shared_address(state.full), empty = shared_address(state.empty);
    const int n = of.end - of.start;
#pragma unroll 1
    for (; n_steps > 0; n_steps--) {
        const int i = position.n % MAX_STEPS;
        uint32_t x[4][4];
        wait_for(full + i * 8, position.n / MAX_STEPS % 2);
        const uint32_t step = ring + position.take(of), weights = step + C::M_TILES * TILE_BYTES;
        load_x<C>(step, zeros, x);
        multiply_some<C, C::GROUP>(n, c, x, weights);
        if (threadIdx.x % 32 == 0)
            state.used[i] = position.used;
        arrive(empty + i * 8);
    }
}

template <class C>
__global__ void __maxnreg__(104) gac_skinny_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) char memory[]; /* sums (N_WARPS, GROUP, 32, 4), gates, rings */
    __shared__ ring_state states[N_WARPS];
    __shared__ uint4 zeros[TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % N_WARPS;
    const uint32_t ring =
        shared_address(memory) + C::SUMS_BYTES + GATES_BYTES + warp * C::RING_BYTES;
    const int start = p.cuts[blockIdx.x], end = p.cuts[blockIdx.x + 1];
    float *gates = (float *)(memory + C::SUMS_BYTES);
    ring_position<C> position;
    let_next_start();
    if (threadIdx.x < N_THREADS && lane < MAX_STEPS) {
        start_barrier(shared_address(&states[warp].full[lane]), 2 * 32);
        start_barrier(shared_address(&states[warp].empty[lane]), 32);
    }
    if (threadIdx.x < TILE)
        zeros[threadIdx.x] = uint4{ 0, 0, 0, 0 };
    __syncthreads();
    if (threadIdx.x >= N_THREADS) {
        fill_ring<C>(p, start, end, ring, states[warp]);
        return;
    }
    for (group of = first_group<C>(p, start, end); of.start < end;
         of = group_after<C>(p, end, of)) {
        int first;
        float c[C::GROUP][4] = {};
        multiply_group<C>(of, share_of(p, of, &first), ring, states[warp], shared_address(zeros),
                          position, c);
        if (of.turn > 0)
            wait_for_warps(); /* the sums of the previous group have been read */
#pragma unroll
        for (int q = 0; q < C::GROUP; q++)
            if (q < of.end - of.start)
                *(float4 *)(memory + (warp * C::GROUP + q) * SUM_BYTES + lane * 16) =
                    float4{ c[q][0], c[q][1], c[q][2], c[q][3] };
        wait_for_warps();
        finish_group<C>(p, of, memory, gates);
    }
}

constexpr int count_bytes(int group, int ring)
{
    return N_WARPS * (group * SUM_BYTES + ring * TILE_BYTES) + GATES_BYTES;
}

/* Fills a segment. Returns false if its sizes are not supported. */
bool make_segment(const gac_skinny_args *a, const gac_skinny_segment &from, segment &to)
{
    const int n_parts = a->mode == GAC_SKINNY_GATED ? 2 : 1;
    const gac_skinny_weights *parts[2] = { &from.gate, &from.up };
    if (from.n < 1 || from.n > 1 << 24)
        return false;
    for (int i = 0; i < n_parts; i++) {
        const gac_skinny_weights &w = *parts[i];
        if (w.k < 8 || w.k % 8 || w.ld % 8 || w.ld < w.k || w.ld > 1 << 24 || w.x_start % 8 ||
            w.x_start + w.k > a->width || (uintptr_t)w.weight % 16)
            return false;
        to.w[i] = w.weight;
        to.bias[i] = w.bias;
        to.ld[i] = (int)w.ld;
        to.k[i] = (int)w.k;
        to.x_start[i] = (int)w.x_start;
        to.cost += count_steps((int)w.k);
    }
    to.n = (int)from.n;
    to.y_start = (int)from.y_start;
    to.end_tile = to.tile + (to.n + TILE - 1) / TILE;
    return true;
}

/* Fills all segments. Returns false if their sizes are not supported. */
bool make_segments(const gac_skinny_args *a, params &p)
{
    int64_t cost = 0;
    if (a->n_segments < 1 || a->n_segments > GAC_SKINNY_MAX_SEGMENTS)
        return false;
    for (int s = 0; s < a->n_segments; s++) {
        segment &to = p.segments[s];
        to.tile = s ? p.segments[s - 1].end_tile : 0;
        if (!make_segment(a, a->segments[s], to))
            return false;
        cost += (int64_t)(to.end_tile - to.tile) * to.cost;
    }
    p.n_segments = a->n_segments;
    return cost <= INT32_MAX;
}

/* Assigns the tiles to the blocks. */
void assign_tiles(params &p, int n_blocks, int group)
{
    gac_block_schedule_segment segments[GAC_SKINNY_MAX_SEGMENTS];
    for (int s = 0; s < p.n_segments; s++)
        segments[s] = { p.segments[s].end_tile - p.segments[s].tile, p.segments[s].cost };
    const gac_block_schedule schedule = {
        segments, p.n_segments,        n_blocks,
        group,    p.m <= TILE ? 1 : 2, p.mode == GAC_SKINNY_GATED ? 2 : 1
    };
    gac_block_schedule_assign(&schedule, p.cuts);
}

template <typename T, int GROUP, int RING>
cudaError_t launch(params &p, int n_blocks, bool overlap, cudaStream_t stream)
{
    const auto kernel = p.m <= TILE ? gac_skinny_kernel<config<T, 1, GROUP, RING>>
                                    : gac_skinny_kernel<config<T, 2, GROUP, RING>>;
    assign_tiles(p, n_blocks, GROUP);
    return launch_kernel(kernel, dim3((unsigned)n_blocks), 2 * N_THREADS,
                         (size_t)count_bytes(GROUP, RING), overlap, stream, p);
}

/* Uses as much shared memory as there is. Groups are no larger than the number of tiles
 * per block, because smaller groups compile to less code per step. */
template <typename T>
cudaError_t launch_type(params &p, const device_facts &f, bool overlap, cudaStream_t stream)
{
    constexpr int FEW = 4, MANY = 7;
    const int n_tiles = p.segments[p.n_segments - 1].end_tile;
    const int n_blocks = f.n_units < MAX_BLOCKS ? f.n_units : MAX_BLOCKS;
    if (f.max_bytes < count_bytes(MANY, 23))
        return launch<T, FEW, FEW + 2>(p, n_blocks, overlap, stream);
    if (n_tiles > FEW * n_blocks)
        return launch<T, MANY, 23>(p, n_blocks, overlap, stream);
    return launch<T, FEW, 24>(p, n_blocks, overlap, stream);
}

} /* namespace */

extern "C" gac_status gac_skinny_launch(const gac_skinny_args *args, cudaStream_t stream,
                                        gac_error *err)
{
    params p = {};
    device_facts f = {};
    cudaError_t code = ask_device(f);
    if (code != cudaSuccess)
        return launch_status(code, "product of few rows", err);
    if (args->m < 1 || args->m > GAC_SKINNY_MAX_ROWS || args->width < 8 || args->width % 8 ||
        args->x_ld % 8 || (uintptr_t)args->x % 16 || !is_half_type(args->dtype) ||
        args->from_float || args->norm || !make_segments(args, p))
        return gac_error_set(err, GAC_USAGE, "a product of few rows, of sizes that make no sense");
    p.x = args->x;
    p.y = args->y;
    p.x_ld = args->x_ld;
    p.y_ld = args->y_ld;
    p.m = (int)args->m;
    p.mode = args->mode;
    code = args->dtype == GAC_DTYPE_F16 ? launch_type<__half>(p, f, args->overlap, stream)
                                        : launch_type<__nv_bfloat16>(p, f, args->overlap, stream);
    return launch_status(code, "product of few rows", err);
}
