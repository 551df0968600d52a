/* A sequence of products of one row (GEMV) in one launch, at the speed of memory.
 *
 * Rows of weights are cut into pieces of up to 2 KB. The pieces of a block are assigned
 * to its warps in turn. Each warp has a ring of slots in shared memory that bulk copies
 * fill. A warp waits for its next piece, loads it into registers, starts the copy of a
 * later piece into the free slot, and multiplies. Warps synchronise only at the end of a
 * product. Then the block adds the partial sums of the pieces, always in the same order.
 *
 * The launch has one block per multiprocessor, and every block has an equal share of
 * every product. Before blocks read what others wrote, all blocks wait for each other (a
 * grid barrier). The copies into the rings do not wait: they already load the weights of
 * the next product. The copies for the first product start before the previous kernel
 * ends. */
#include "gemv_persistent.cuh"

namespace
{

constexpr int CHUNK = 256; /* numbers of a piece that a warp loads at once, 8 per lane */
constexpr int N_CHUNKS = PIECE / CHUNK;
constexpr int MAX_BYTES = 192 << 10;  /* of shared memory; kernels beside it need the rest */
constexpr int MAX_N = 1 << 22;        /* times GAC_GEMV_MAX_BLOCKS it fits an unsigned */
constexpr int MAX_FLOAT_WIDTH = 8192; /* longest F32 row that is normed here */
constexpr int N_FLOATS = MAX_FLOAT_WIDTH / (4 * N_THREADS);

/* Multiplies a piece of weights by x with mma.m16n8k16. Lane (g, t) holds 8 numbers of
 * each, words 0 to 3. In shared memory the words of x are in the order 0, 2, 1, 3. As an
 * operand of the mma, words 0 and 1 of x from group g are row g, and words 2 and 3 are
 * row g + 8. The words of the weights are column g. Only the entries that multiply equal
 * words are wanted: a diagonal of the result. */
template <typename T> struct product {
    float low[4] = {}, high[4] = {};

    __device__ __forceinline__ void add(uint4 w, uint4 x)
    {
        mma_16816<T>(low, x.x, x.y, x.z, x.w, w.x, w.y);
        mma_16816<T>(high, x.x, x.y, x.z, x.w, w.z, w.w);
    }

    /* Returns the dot product in every lane. */
    __device__ __forceinline__ float total() const
    {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const float sum = g % 2 ? low[1] + high[3] : low[0] + high[2];
        return warp_sum(t == g / 2 ? sum : 0.0f);
    }
};

/* Stores numbers 8 c to 8 c + 7 of x in the order that product::add needs. */
template <typename T> __device__ __forceinline__ void put_eight(T *xs, int c, uint4 v)
{
    ((uint4 *)xs)[c] = uint4{ v.x, v.z, v.y, v.w };
}

/* Stores numbers c to c + 3 of x in that order. */
template <typename T> __device__ __forceinline__ void put_four(T *xs, int c, uint2 v)
{
    uint32_t *to = (uint32_t *)xs + c / 8 * 4 + c % 8 / 4;
    to[0] = v.x;
    to[2] = v.y;
}

/* Loads this lane's part of a piece. n: numbers left from the lane's first. */
template <typename T>
__device__ __forceinline__ void load_piece(uint4 (&w)[N_CHUNKS], uint32_t slot_data, int n)
{
#pragma unroll
    for (int u = 0; u < N_CHUNKS; u++)
        w[u] = u * CHUNK < n ? load_shared(slot_data + 2 * u * CHUNK) : uint4{ 0, 0, 0, 0 };
}

/* Adds the products of w with the same numbers of x. */
template <typename T>
__device__ __forceinline__ void multiply(product<T> &y, const uint4 (&w)[N_CHUNKS], uint32_t x,
                                         int n)
{
#pragma unroll
    for (int u = 0; u < N_CHUNKS; u++)
        y.add(w[u], u * CHUNK < n ? load_shared(x + 2 * u * CHUNK) : uint4{ 0, 0, 0, 0 });
}

/* Copies half x to shared memory. */
template <typename T> __device__ __forceinline__ void stage_half(const one_product &p, T *xs)
{
    const uint4 *x = (const uint4 *)p.x;
    for (int c = threadIdx.x; c < p.width / 8; c += N_THREADS)
        put_eight(xs, c, __ldcg(x + c));
}

/* Loads the norm weights. x may not be written yet. */
__device__ __forceinline__ void read_norm(const one_product &p, float4 (&norm)[N_FLOATS])
{
#pragma unroll
    for (int i = 0; i < N_FLOATS; i++) {
        const int c = 4 * (threadIdx.x + i * N_THREADS);
        norm[i] = float4{ 1, 1, 1, 1 };
        if (!p.norm || c >= p.width)
            continue;
        norm[i] =
            float4{ c < p.n_norm ? p.norm[c] : 0, c + 1 < p.n_norm ? p.norm[c + 1] : 0,
                    c + 2 < p.n_norm ? p.norm[c + 2] : 0, c + 3 < p.n_norm ? p.norm[c + 3] : 0 };
    }
}

/* Norms F32 x and stores it in shared memory as half. */
template <typename T>
__device__ __forceinline__ void stage_float(const one_product &p, T *xs,
                                            const float4 (&norm)[N_FLOATS], float *spare)
{
    const float *from = (const float *)p.x;
    float4 v[N_FLOATS];
    float sum = 0, scale = 1;
#pragma unroll
    for (int i = 0; i < N_FLOATS; i++) {
        const int c = 4 * (threadIdx.x + i * N_THREADS);
        v[i] = c < p.width ? __ldcg((const float4 *)(from + c)) : float4{ 0, 0, 0, 0 };
    }
#pragma unroll
    for (int i = 0; i < N_FLOATS; i++)
        sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    if (p.norm) {
        sum = block_sum(sum, spare);
        scale = rsqrtf(sum / (float)p.n_norm + p.eps);
    }
#pragma unroll
    for (int i = 0; i < N_FLOATS; i++) {
        const int c = 4 * (threadIdx.x + i * N_THREADS);
        if (c < p.width)
            put_four(xs, c,
                     uint2{ pack_pair<T>(v[i].x * scale * norm[i].x, v[i].y * scale * norm[i].y),
                            pack_pair<T>(v[i].z * scale * norm[i].z, v[i].w * scale * norm[i].w) });
    }
}

/* Adds the sums of the pieces of one row of weights. */
__device__ __forceinline__ float sum_pieces(const segment &s, const row_range &r, int row,
                                            const float *sums)
{
    float y = s.bias ? s.bias[row] : 0.0f;
    for (int q = 0; q < s.n_pieces; q++)
        y += sums[r.first_piece + (row - r.row) * s.n_pieces + q];
    return y;
}

/* Writes the block's part of y. */
template <typename T>
__device__ void finish(const params &p, const one_product &one, const row_range *ranges,
                       const float *sums)
{
    const bool gated = one.mode == GAC_SKINNY_GATED;
    for (int s = one.first; s < (gated ? one.first + 1 : one.end); s++) {
        const row_range r = ranges[s];
        for (int i = threadIdx.x; i < r.n_rows; i += N_THREADS) {
            const int row = r.row + i, to = p.segments[s].y_start + row;
            const float y = sum_pieces(p.segments[s], r, row, sums);
            if (gated)
                ((T *)one.y)[to] = from_float<T>(
                    silu(y) * sum_pieces(p.segments[s + 1], ranges[s + 1], row, sums));
            else if (one.mode == GAC_SKINNY_SET)
                ((T *)one.y)[to] = from_float<T>(y);
            else if (one.mode == GAC_SKINNY_ADD)
                atomicAdd((float *)one.y + to, y); /* only to not wait for the load */
            else
                ((float *)one.y)[to] = y;
        }
    }
}

/* One large function on purpose: split into parts it compiles to slower code with more
 * registers, which the attention kernel beside it needs. */
template <typename T>
__global__ void __launch_bounds__(N_THREADS, 2) gac_gemv_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) char memory[];
    __shared__ slot_state slot_states[N_WARPS][MAX_SLOTS];
    __shared__ row_range ranges[MAX_SEGMENTS];
    __shared__ int n_pieces[GAC_GEMV_MAX_PRODUCTS];
    __shared__ float spare[N_WARPS];
    const int lane = threadIdx.x % 32, warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0);
    T *xs = (T *)memory + N_WARPS * p.n_slots * PIECE;
    float *sums = (float *)(xs + p.max_width);
    /* This lane's part of the warp's ring. Lane 0's address is the start of the ring. */
    const uint32_t ring = shared_address((T *)memory + warp * p.n_slots * PIECE + 8 * lane);
    const uint32_t barriers = shared_address(slot_states[warp]);
    const uint32_t x_at = shared_address(xs + 8 * lane);

    let_next_start();
    if (threadIdx.x < p.n_products)
        n_pieces[threadIdx.x] = divide(p, (int)threadIdx.x, blockIdx.x, gridDim.x, ranges);
    if (lane == 0) {
        for (int i = 0; i < p.n_slots; i++)
            start_barrier(barriers + i * sizeof(slot_state), 1);
        publish_barriers();
    }
    __syncthreads();
    cursor<T> ahead;
    ahead.s = 0;
    ahead.piece = warp;
    enter_segment(p, ranges, warp, ahead);
    for (int i = 0; i < p.n_slots && ahead.s < p.n_segments; i++) {
        if (lane == 0)
            start_copy(p, ahead, ring + i * PIECE * 2, barriers + i * sizeof(slot_state),
                       &slot_states[warp][i]);
        advance(p, ranges, warp, ahead);
    }
    int slot = 0;
    uint32_t phase = 0;
    unsigned done = 0;
    for (int j = 0; j < p.n_products; j++) {
        const one_product &one = p.products[j];
        float4 norm[N_FLOATS];
        if (one.from_float)
            read_norm(one, norm);
        if (j == 0) {
            wait_for_previous();
            done = __ldcg(p.done + blockIdx.x);
        } else {
            wait_grid(p.arrived, (done + j) * gridDim.x);
        }
        if (one.from_float)
            stage_float(one, xs, norm, spare);
        else
            stage_half(one, xs);
        __syncthreads();
        for (int i = warp; i < n_pieces[j]; i += N_WARPS) {
            const uint32_t slot_at = barriers + slot * sizeof(slot_state);
            const uint32_t slot_data = ring + slot * PIECE * 2;
            const uint4 t = load_shared(slot_at);
            const uint32_t x_first = x_at + t.z * 2;
            const int n = (int)t.w;
            uint4 w[N_CHUNKS];
            wait_for(slot_at, phase);
            load_piece<T>(w, slot_data, n - 8 * lane);
            __syncwarp();
            if (ahead.s < p.n_segments) {
                if (lane == 0)
                    start_copy(p, ahead, slot_data, slot_at, &slot_states[warp][slot]);
                advance(p, ranges, warp, ahead);
            }
            product<T> y;
            multiply(y, w, x_first, n - 8 * lane);
            const float total = y.total();
            if (lane == 0)
                sums[i] = total;
            slot = slot + 1 == p.n_slots ? 0 : slot + 1;
            phase ^= slot == 0;
            __syncwarp();
        }
        __syncthreads();
        finish<T>(p, one, ranges, sums);
        arrive_grid(p.arrived);
    }
    if (threadIdx.x == 0)
        p.done[blockIdx.x] = done + p.n_products;
}

/* Adds a segment. Returns false if its sizes are not supported. */
bool add_segment(const gac_skinny_args *a, const gac_skinny_segment &from,
                 const gac_skinny_weights &w, params &p, one_product &to)
{
    if (p.n_segments == MAX_SEGMENTS || from.n < 1 || from.n >= MAX_N || w.k < 8 || w.k % 8 ||
        w.ld % 8 || w.ld < w.k || w.ld > 1 << 24 || w.x_start % 8 || w.x_start + w.k > a->width ||
        (uintptr_t)w.weight % 16)
        return false;
    segment &seg = p.segments[p.n_segments];
    seg.is_first = p.n_segments++ == to.first;
    seg.w = w.weight;
    seg.bias = w.bias;
    seg.ld = (int)w.ld;
    seg.n = (int)from.n;
    seg.k = (int)w.k;
    seg.x_start = (int)w.x_start;
    seg.y_start = (int)from.y_start;
    seg.n_pieces = (seg.k + PIECE - 1) / PIECE;
    seg.length = ((seg.k + seg.n_pieces - 1) / seg.n_pieces + 63) / 64 * 64;
    to.cost += from.n * w.k / 8;
    return true;
}

/* Adds a product. Returns false if its sizes are not supported. */
bool add_product(const gac_skinny_args *a, params &p)
{
    if (p.n_products == GAC_GEMV_MAX_PRODUCTS)
        return false;
    one_product &to = p.products[p.n_products++];
    bool ok = a->m == 1 && a->n_segments >= 1 && a->width >= 8 && a->width % 8 == 0 &&
              (uintptr_t)a->x % 16 == 0 && (!a->from_float || a->width <= MAX_FLOAT_WIDTH) &&
              (a->from_float || !a->norm) && is_half_type(a->dtype);
    to.x = a->x;
    to.norm = a->norm;
    to.y = a->y;
    to.first = p.n_segments;
    for (int s = 0; s < a->n_segments; s++)
        ok = ok && add_segment(a, a->segments[s], a->segments[s].gate, p, to);
    if (a->mode == GAC_SKINNY_GATED)
        ok = ok && a->n_segments == 1 && add_segment(a, a->segments[0], a->segments[0].up, p, to);
    to.end = p.n_segments;
    to.width = (int)a->width;
    to.n_norm = (int)a->n_norm;
    to.eps = (float)a->eps;
    to.from_float = a->from_float;
    to.mode = a->mode;
    p.max_width = max(p.max_width, to.width);
    return ok;
}

/* Returns an upper bound on a block's pieces of a product. */
int64_t bound_pieces(const params &p, const one_product &one, int n_blocks)
{
    int64_t n = 0;
    for (int s = one.first; s < one.end; s++) {
        const segment &seg = p.segments[s];
        const int64_t rows =
            one.mode == GAC_SKINNY_GATED ? seg.n / n_blocks + 1 : one.block_cost / (seg.k / 8) + 1;
        n += min(rows, (int64_t)seg.n) * seg.n_pieces;
    }
    return n;
}

/* Divides the products among the blocks and the shared memory of a block. Returns false
 * if there is no room for two slots per warp. */
bool divide_work(params &p, const device_facts &f, size_t *n_bytes)
{
    int64_t most = 0;
    for (int j = 0; j < p.n_products; j++) {
        one_product &one = p.products[j];
        if (one.cost > INT32_MAX || f.n_units > GAC_GEMV_MAX_BLOCKS)
            return false;
        one.block_cost = (unsigned)((one.cost + f.n_units - 1) / f.n_units);
        most = max(most, bound_pieces(p, one, f.n_units));
    }
    const int64_t slot_bytes = N_WARPS * PIECE * 2;
    const int64_t max_bytes = min(f.max_bytes, MAX_BYTES);
    const int64_t other_bytes = (p.max_width * 2 + most * (int64_t)sizeof(float) + 15) / 16 * 16;
    if (other_bytes + 2 * slot_bytes > max_bytes)
        return false;
    p.n_slots = (int)min((max_bytes - other_bytes) / slot_bytes, (int64_t)MAX_SLOTS);
    *n_bytes = (size_t)(p.n_slots * slot_bytes + other_bytes);
    return true;
}

/* Fills params for n products. Returns false if one launch cannot run them. */
bool make_params(const gac_skinny_args *args, int n, const device_facts &f, params &p,
                 size_t *n_bytes)
{
    bool ok = f.version >= 9 && f.cooperative;
    for (int i = 0; i < n; i++)
        ok = ok && args[i].dtype == args->dtype && add_product(&args[i], p);
    return ok && divide_work(p, f, n_bytes);
}

template <typename T>
cudaError_t launch(params &p, int n_blocks, size_t n_bytes, bool overlap, cudaStream_t stream)
{
    /* The kernel needs no L1 cache, so all of it can be shared memory. */
    cudaError_t code =
        cudaFuncSetAttribute(gac_gemv_kernel<T>, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    if (code != cudaSuccess)
        return code;
    return launch_kernel(gac_gemv_kernel<T>, dim3((unsigned)n_blocks), N_THREADS, n_bytes, overlap,
                         stream, p, true);
}

} /* namespace */

extern "C" bool gac_gemv_takes(const gac_skinny_args *args, int n)
{
    params p = {};
    device_facts f = {};
    size_t n_bytes = 0;
    return ask_device(f) == cudaSuccess && make_params(args, n, f, p, &n_bytes);
}

extern "C" gac_status gac_gemv_launch(const gac_skinny_args *args, int n, void *state, bool overlap,
                                      cudaStream_t stream, gac_error *err)
{
    params p = {};
    device_facts f = {};
    size_t n_bytes = 0;
    cudaError_t code = ask_device(f);
    if (code == cudaSuccess && !make_params(args, n, f, p, &n_bytes))
        return gac_error_set(err, GAC_USAGE, "products of one row, of sizes that make no sense");
    p.arrived = (unsigned *)state;
    p.done = p.arrived + 1;
    if (code == cudaSuccess && args->dtype == GAC_DTYPE_F16)
        code = launch<__half>(p, f.n_units, n_bytes, overlap, stream);
    else if (code == cudaSuccess)
        code = launch<__nv_bfloat16>(p, f.n_units, n_bytes, overlap, stream);
    return launch_status(code, "products of one row", err);
}
