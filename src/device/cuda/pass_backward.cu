/* Kernels that pass gradients back through a layer and through the end of a model. */
#include "pass_backward_kernels.h"
#include "pass_common.cuh"

#include <climits>
#include <cmath>

namespace
{

constexpr int N_THREADS = 256, HEADS_EACH = N_THREADS / 32, DRAW_THREADS = 1024;

/* As block_sum. */
__device__ __forceinline__ float block_max(float x, float *spare)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    x = warp_max(x);
    if (lane == 0)
        spare[warp] = x;
    __syncthreads();
    return warp_max(lane < n_warps ? spare[lane] : -INFINITY);
}

/* With f = 1 / rms(x), the gradient of x is f (o - x s f^2 / n), where o = out * norm and s is
 * the sum of o * x. */
struct norm_slopes {
    float factor, sum; /* f, and s f^2 / n */
    __device__ __forceinline__ norm_slopes(float squares, float products, int64_t n, double eps)
    {
        factor = 1.0f / sqrtf(squares / (float)n + (float)eps);
        sum = products * factor * factor / (float)n;
    }
    __device__ __forceinline__ float at(float x, float o) const
    {
        return factor * (o - x * sum);
    }
};

/* One block per row. */
__global__ void __launch_bounds__(N_THREADS) gac_norm_back_kernel(const gac_norm_back_args a)
{
    __shared__ float spare[2][N_THREADS / 32];
    const int64_t row = (int64_t)blockIdx.x * a.n;
    const float *x = a.x + row, *out = a.out + row;
    float squares = 0, products = 0;
    for (int64_t i = threadIdx.x; i < a.n; i += N_THREADS) {
        squares += x[i] * x[i];
        products += out[i] * a.norm[i] * x[i];
    }
    squares = block_sum(squares, spare[0]);
    products = block_sum(products, spare[1]);
    const norm_slopes slopes(squares, products, a.n, a.eps);
    for (int64_t i = threadIdx.x; i < a.n; i += N_THREADS)
        a.gradient[row + i] += slopes.at(x[i], out[i] * a.norm[i]);
}

/* The head of a warp. */
struct head_place {
    float *x, *turned;            /* (size) */
    const float *cosines, *sines; /* (size / 2), or NULL */
};

__device__ __forceinline__ bool find_head(const gac_turn_args &a, head_place &p)
{
    const int64_t head = (int64_t)blockIdx.x * HEADS_EACH + threadIdx.x / 32;
    const int64_t n_heads = a.n_kv_heads * a.group, half = a.size / 2;
    if (head >= a.n_tokens * n_heads)
        return false;
    const int64_t token = head / n_heads, kv_head = head % n_heads / a.group;
    p.x = a.x + head * a.size;
    p.turned = a.turned + ((kv_head * a.n_tokens + token) * a.group + head % a.group) * a.size;
    p.cosines = a.cosines ? a.cosines + token * half : nullptr;
    p.sines = a.sines ? a.sines + token * half : nullptr;
    return true;
}

__device__ __forceinline__ float squares_of(const float *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32)
        sum += x[i] * x[i];
    return warp_sum(sum);
}

/* One warp per head. A lane has numbers i and i + size / 2, which are rotated together; the
 * last number of an odd size is not rotated. */
__global__ void __launch_bounds__(N_THREADS) gac_turn_kernel(const gac_turn_args a)
{
    const int64_t half = a.size / 2;
    const int lane = threadIdx.x % 32;
    head_place p;
    if (!find_head(a, p))
        return; /* the whole warp */
    float factor = 1;
    if (a.norm)
        factor = 1.0f / sqrtf(squares_of(p.x, a.size) / (float)a.size + (float)a.eps);
    for (int64_t i = lane; i < half; i += 32) {
        const float first = p.x[i] * factor * (a.norm ? a.norm[i] : 1.0f);
        const float second = p.x[i + half] * factor * (a.norm ? a.norm[i + half] : 1.0f);
        const float c = p.cosines ? p.cosines[i] : 1.0f, s = p.sines ? p.sines[i] : 0.0f;
        p.turned[i] = first * c - second * s;
        p.turned[i + half] = second * c + first * s;
    }
    if (a.size % 2 && lane == 0)
        p.turned[a.size - 1] = p.x[a.size - 1] * factor * (a.norm ? a.norm[a.size - 1] : 1.0f);
}

/* The gradients of numbers i and i + size / 2 before the rotation, times the norm. */
__device__ __forceinline__ float2 rotate_back(const gac_turn_args &a, const head_place &p,
                                              int64_t i)
{
    const int64_t half = a.size / 2;
    const float c = p.cosines ? p.cosines[i] : 1.0f, s = p.sines ? p.sines[i] : 0.0f;
    const float first = p.turned[i], second = p.turned[i + half];
    return float2{ (first * c + second * s) * (a.norm ? a.norm[i] : 1.0f),
                   (second * c - first * s) * (a.norm ? a.norm[i + half] : 1.0f) };
}

/* One warp per head, as above. */
__global__ void __launch_bounds__(N_THREADS) gac_turn_back_kernel(const gac_turn_args a)
{
    const int64_t half = a.size / 2, last = a.size - 1;
    const int lane = threadIdx.x % 32;
    const bool has_tail = a.size % 2 && lane == 0;
    head_place p;
    if (!find_head(a, p))
        return; /* the whole warp */
    const float tail = has_tail ? p.turned[last] * (a.norm ? a.norm[last] : 1.0f) : 0.0f;
    float squares = 0, products = has_tail ? tail * p.x[last] : 0.0f;
    if (a.norm) {
        squares = squares_of(p.x, a.size);
        for (int64_t i = lane; i < half; i += 32) {
            const float2 o = rotate_back(a, p, i);
            products += o.x * p.x[i] + o.y * p.x[i + half];
        }
        products = warp_sum(products);
    }
    const norm_slopes slopes(squares, products, a.size, a.eps);
    for (int64_t i = lane; i < half; i += 32) {
        const float2 o = rotate_back(a, p, i);
        p.x[i] = a.norm ? slopes.at(p.x[i], o.x) : o.x;
        p.x[i + half] = a.norm ? slopes.at(p.x[i + half], o.y) : o.y;
    }
    if (has_tail)
        p.x[last] = a.norm ? slopes.at(p.x[last], tail) : tail;
}

/* One block per row. */
__global__ void __launch_bounds__(N_THREADS) gac_shares_kernel(const gac_scores a)
{
    __shared__ float spare[2][N_THREADS / 32];
    const int64_t query = a.first + (int64_t)blockIdx.x / a.group % a.n_queries, end = query + 1;
    const int64_t begin = a.window > 0 && end > a.window ? end - a.window : 0;
    float *row = a.shares + (int64_t)blockIdx.x * a.n_keys;
    float top = -INFINITY, sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += N_THREADS)
        top = fmaxf(top, row[i]);
    top = block_max(top, spare[0]);
    for (int64_t i = begin + threadIdx.x; i < end; i += N_THREADS) {
        row[i] = expf(row[i] - top);
        sum += row[i];
    }
    const float factor = 1.0f / block_sum(sum, spare[1]);
    for (int64_t i = threadIdx.x; i < a.n_keys; i += N_THREADS)
        row[i] = i >= begin && i < end ? row[i] * factor : 0.0f;
}

/* One block per row. */
__global__ void __launch_bounds__(N_THREADS) gac_shares_back_kernel(const gac_scores a)
{
    __shared__ float spare[N_THREADS / 32];
    const float *share = a.shares + (int64_t)blockIdx.x * a.n_keys;
    float *row = a.gradient + (int64_t)blockIdx.x * a.n_keys;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < a.n_keys; i += N_THREADS)
        sum += share[i] * row[i];
    sum = block_sum(sum, spare);
    for (int64_t i = threadIdx.x; i < a.n_keys; i += N_THREADS)
        row[i] = share[i] * (row[i] - sum) * (float)a.scale;
}

__global__ void __launch_bounds__(N_THREADS)
    gac_gate_back_kernel(float *gate, float *up, const float *gated, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * N_THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * N_THREADS) {
        const float x = gate[i], sigmoid = 1.0f / (1.0f + expf(-x));
        gate[i] = gated[i] * up[i] * sigmoid * (1.0f + x * (1.0f - sigmoid));
        up[i] = gated[i] * x * sigmoid;
    }
}

/* One block per row of n numbers. */
__global__ void __launch_bounds__(N_THREADS)
    gac_swap_kernel(const float *from, float *to, int64_t n_a, int64_t n_b, int64_t n)
{
    const int64_t a = (int64_t)blockIdx.x / n_b, b = (int64_t)blockIdx.x % n_b;
    for (int64_t i = threadIdx.x; i < n; i += N_THREADS)
        to[(b * n_a + a) * n + i] = from[(a * n_b + b) * n + i];
}

/* Returns the sum of x over the threads of a block up to this one, and sets *all to the sum
 * over all threads. spare has one number per warp; another barrier must precede its reuse. */
__device__ __forceinline__ double block_prefix(double x, double *spare, double *all)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    for (int i = 1; i < 32; i *= 2) {
        const double y = __shfl_up_sync(WHOLE_WARP, x, i);
        x += lane >= i ? y : 0;
    }
    if (lane == 31)
        spare[warp] = x;
    __syncthreads();
    double sum = 0, before = 0;
    for (int i = 0; i < n_warps; i++) {
        before = i == warp ? sum : before;
        sum += spare[i];
    }
    *all = sum;
    return before + x;
}

/* One block per row, a number per thread at a time. The token is the first of all tokens at
 * which the sum exceeds the draw, so rounding cannot give two of them or none but the last. */
__global__ void __launch_bounds__(DRAW_THREADS)
    gac_draw_kernel(float *logits, const double *log_sums, const double *draws, int vocab)
{
    __shared__ double spare[DRAW_THREADS / 32];
    __shared__ int token;
    float *row = logits + (int64_t)blockIdx.x * vocab;
    const double log_sum = log_sums[blockIdx.x], draw = draws[blockIdx.x];
    double before = 0, all;
    if (threadIdx.x == 0)
        token = vocab - 1;
    __syncthreads();
    for (int64_t first = 0; first < vocab; first += DRAW_THREADS) {
        const int64_t i = first + threadIdx.x;
        const double p = i < vocab ? exp((double)row[i] - log_sum) : 0;
        const double sum = before + block_prefix(p, spare, &all);
        if (i < vocab) {
            row[i] = (float)p;
            if (sum > draw)
                atomicMin(&token, (int)i);
        }
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        row[token] -= 1.0f;
}

bool fits_grid(int64_t n_blocks)
{
    return n_blocks > 0 && n_blocks <= INT_MAX;
}

gac_status refuse(const char *what, gac_error *err)
{
    return gac_error_set(err, GAC_USAGE, "%s of sizes that make no sense", what);
}

using turn_kernel = void (*)(const gac_turn_args);

gac_status launch_turn(turn_kernel kernel, const gac_turn_args *a, cudaStream_t stream,
                       gac_error *err)
{
    const int64_t n = a->n_tokens * a->n_kv_heads * a->group;
    const int64_t n_blocks = (n + HEADS_EACH - 1) / HEADS_EACH;
    if (!fits_grid(n_blocks) || a->size < 1)
        return refuse("a rotation", err);
    kernel<<<(unsigned)n_blocks, N_THREADS, 0, stream>>>(*a);
    return launch_status(cudaGetLastError(), "rotation", err);
}

using scores_kernel = void (*)(const gac_scores);

gac_status launch_scores(scores_kernel kernel, const gac_scores *a, cudaStream_t stream,
                         gac_error *err)
{
    const int64_t n_rows = a->n_kv_heads * a->n_queries * a->group;
    if (!fits_grid(n_rows) || a->n_keys != a->first + a->n_queries)
        return refuse("scores", err);
    kernel<<<(unsigned)n_rows, N_THREADS, 0, stream>>>(*a);
    return launch_status(cudaGetLastError(), "scores", err);
}

} /* namespace */

extern "C" gac_status gac_norm_back_launch(const gac_norm_back_args *a, cudaStream_t stream,
                                           gac_error *err)
{
    if (!fits_grid(a->n_rows) || a->n < 1)
        return refuse("a norm", err);
    gac_norm_back_kernel<<<(unsigned)a->n_rows, N_THREADS, 0, stream>>>(*a);
    return launch_status(cudaGetLastError(), "the way back through a norm", err);
}

extern "C" gac_status gac_turn_launch(const gac_turn_args *a, cudaStream_t stream, gac_error *err)
{
    return launch_turn(gac_turn_kernel, a, stream, err);
}

extern "C" gac_status gac_turn_back_launch(const gac_turn_args *a, cudaStream_t stream,
                                           gac_error *err)
{
    return launch_turn(gac_turn_back_kernel, a, stream, err);
}

extern "C" gac_status gac_shares_launch(const gac_scores *a, cudaStream_t stream, gac_error *err)
{
    return launch_scores(gac_shares_kernel, a, stream, err);
}

extern "C" gac_status gac_shares_back_launch(const gac_scores *a, cudaStream_t stream,
                                             gac_error *err)
{
    return launch_scores(gac_shares_back_kernel, a, stream, err);
}

extern "C" gac_status gac_gate_back_launch(float *gate, float *up, const float *gated, int64_t n,
                                           cudaStream_t stream, gac_error *err)
{
    if (n < 1)
        return refuse("a gate", err);
    const int64_t n_blocks = (n + N_THREADS - 1) / N_THREADS;
    gac_gate_back_kernel<<<(unsigned)(n_blocks < 4096 ? n_blocks : 4096), N_THREADS, 0, stream>>>(
        gate, up, gated, n);
    return launch_status(cudaGetLastError(), "the way back through a gate", err);
}

extern "C" gac_status gac_swap_launch(const float *from, float *to, int64_t n_a, int64_t n_b,
                                      int64_t n, cudaStream_t stream, gac_error *err)
{
    if (n_a < 1 || n_b < 1 || !fits_grid(n_a * n_b) || n < 1)
        return refuse("heads", err);
    gac_swap_kernel<<<(unsigned)(n_a * n_b), N_THREADS, 0, stream>>>(from, to, n_a, n_b, n);
    return launch_status(cudaGetLastError(), "order of heads", err);
}

extern "C" gac_status gac_draw_launch(float *logits, const double *log_sums, const double *draws,
                                      int64_t n_rows, int64_t vocab, cudaStream_t stream,
                                      gac_error *err)
{
    if (!fits_grid(n_rows) || vocab < 1 || vocab > INT_MAX)
        return refuse("logits", err);
    gac_draw_kernel<<<(unsigned)n_rows, DRAW_THREADS, 0, stream>>>(logits, log_sums, draws,
                                                                   (int)vocab);
    return launch_status(cudaGetLastError(), "drawing of tokens", err);
}
