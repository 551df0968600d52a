/* Row operations between the products: norms, gates, biases, the embedding and losses. */
#include "pass_common.cuh"

#include <cmath>

namespace
{

constexpr int NORM_THREADS = 256, ROW_THREADS = 256, LOSS_THREADS = 1024;

struct norm_params {
    gac_norm_args a;
};

/* What turns numbers of a row into normed ones: (x - mean) * scale. */
struct row_norm {
    float mean, scale;
};

/* Measures a row of n numbers with all threads of a block. */
template <typename F>
__device__ __forceinline__ row_norm measure_row(const F *x, int n, bool centred, float eps)
{
    __shared__ float spare[2][NORM_THREADS / 32];
    float sum = 0, squares = 0, mean = 0;
    if (centred) {
        for (int c = threadIdx.x; c < n; c += NORM_THREADS)
            sum += to_float(x[c]);
        mean = block_sum(sum, spare[0]) / (float)n;
    }
    for (int c = threadIdx.x; c < n; c += NORM_THREADS) {
        const float v = to_float(x[c]) - mean;
        squares += v * v;
    }
    return row_norm{ mean, rsqrtf(block_sum(squares, spare[1]) / (float)n + eps) };
}

/* One block per row. A row is read up to three times; the first read fills the cache. */
template <typename F, typename T>
__global__ void __launch_bounds__(NORM_THREADS) gac_norm_kernel(const norm_params p)
{
    const gac_norm_args &a = p.a;
    const F *x = (const F *)a.x + (int64_t)blockIdx.x * a.x_ld;
    T *out = (T *)a.out + (int64_t)blockIdx.x * a.out_ld;
    const int width = (int)a.width, ld = (int)a.out_ld;
    row_norm by = { 0, 1 };
    let_next_start();
    wait_for_previous();
    if (a.norm)
        by = measure_row(x, width, a.centred, (float)a.eps);
    for (int c = threadIdx.x; c < ld; c += NORM_THREADS) {
        float v = c < width ? (to_float(x[c]) - by.mean) * by.scale : 0.0f;
        if (a.norm && c < width)
            v = v * a.norm[c] + (a.bias ? a.bias[c] : 0.0f);
        out[c] = from_float<T>(v);
    }
}

/* One block per row. */
__global__ void __launch_bounds__(NORM_THREADS) gac_add_kernel(const gac_add_args a)
{
    const float *y = a.y + (int64_t)blockIdx.x * a.y_ld;
    float *to = a.to + (int64_t)blockIdx.x * a.to_ld;
    const int width = (int)a.width;
    row_norm by = { 0, 1 };
    if (a.norm)
        by = measure_row(y, width, a.centred, (float)a.eps);
    for (int c = threadIdx.x; c < width; c += NORM_THREADS) {
        const float v = (y[c] - by.mean) * by.scale * (a.norm ? a.norm[c] : 1.0f);
        to[c] += (float)a.scale * v;
    }
}

__global__ void __launch_bounds__(ROW_THREADS)
    gac_bound_kernel(float *x, int64_t n, float scale, float softcap)
{
    for (int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * ROW_THREADS) {
        const float y = x[i] * scale;
        x[i] = softcap > 0 ? softcap * tanhf(y / softcap) : y;
    }
}

/* One block per row. A thread keeps KEEP float4 of the row in registers, so the row is
 * read once. */
template <typename T, int KEEP>
__global__ void __launch_bounds__(NORM_THREADS) gac_norm_wide_kernel(const norm_params p)
{
    __shared__ float spare[NORM_THREADS / 32];
    const gac_norm_args &a = p.a;
    const float4 *x = (const float4 *)((const float *)a.x + (int64_t)blockIdx.x * a.x_ld);
    uint2 *out = (uint2 *)((T *)a.out + (int64_t)blockIdx.x * a.out_ld);
    const float4 *norm = (const float4 *)a.norm;
    const int n = (int)(a.width / 4);
    float4 v[KEEP], w[KEEP];
    let_next_start();
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const int c = threadIdx.x + i * NORM_THREADS;
        w[i] = c < n ? norm[c] : float4{ 0, 0, 0, 0 };
    }
    wait_for_previous();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const int c = threadIdx.x + i * NORM_THREADS;
        v[i] = c < n ? __ldcg(x + c) : float4{ 0, 0, 0, 0 };
        sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
    sum = block_sum(sum, spare);
    const float scale = rsqrtf(sum / (float)a.width + (float)a.eps);
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const int c = threadIdx.x + i * NORM_THREADS;
        if (c < n)
            out[c] = uint2{ pack_pair<T>(v[i].x * scale * w[i].x, v[i].y * scale * w[i].y),
                            pack_pair<T>(v[i].z * scale * w[i].z, v[i].w * scale * w[i].w) };
    }
}

template <typename T>
cudaError_t launch_norm(const gac_norm_args *a, bool overlap, cudaStream_t stream)
{
    const norm_params p = { *a };
    const dim3 grid((unsigned)a->n);
    constexpr int KEEP = 4; /* few registers, so that other blocks fit beside it */
    constexpr int WIDE = 4 * KEEP * NORM_THREADS; /* numbers that KEEP covers */
    const bool aligned = ((uintptr_t)a->x | (uintptr_t)a->norm | (uintptr_t)a->out) % 16 == 0;
    if constexpr (!std::is_same<T, float>::value)
        if (a->from_float && a->norm && !a->bias && !a->centred && aligned && a->width % 4 == 0 &&
            a->width <= 2 * WIDE && a->out_ld == a->width && a->x_ld % 4 == 0)
            return launch_kernel(a->width <= WIDE ? gac_norm_wide_kernel<T, KEEP>
                                                  : gac_norm_wide_kernel<T, 2 * KEEP>,
                                 grid, NORM_THREADS, 0, overlap, stream, p);
    if (a->from_float)
        return launch_kernel(gac_norm_kernel<float, T>, grid, NORM_THREADS, 0, overlap, stream, p);
    return launch_kernel(gac_norm_kernel<T, T>, grid, NORM_THREADS, 0, overlap, stream, p);
}

/* A thread computes eight numbers if everything is aligned, else one. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(ROW_THREADS) gac_activate_kernel(const gac_activate_args a)
{
    constexpr int N = WIDE ? 8 : 1;
    const int64_t c = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) * N;
    if (c >= a.width)
        return;
    for (int64_t r = blockIdx.y; r < a.n_rows; r += gridDim.y) {
        const T *x = (const T *)a.x + r * a.x_ld + c;
        T *to = (T *)a.out + r * a.out_ld + c;
        if constexpr (WIDE) {
            const uint4 v = *(const uint4 *)x, one = { 0, 0, 0, 0 };
            const uint4 u = a.gated ? *(const uint4 *)(x + a.width) : one;
            const uint32_t vs[4] = { v.x, v.y, v.z, v.w }, us[4] = { u.x, u.y, u.z, u.w };
            uint32_t ys[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 g = unpack_pair<T>(vs[i]), b = unpack_pair<T>(us[i]);
                const float2 y = { activate(a.activation, g.x), activate(a.activation, g.y) };
                ys[i] = pack_pair<T>(a.gated ? y.x * b.x : y.x, a.gated ? y.y * b.y : y.y);
            }
            *(uint4 *)to = uint4{ ys[0], ys[1], ys[2], ys[3] };
        } else {
            const float y = activate(a.activation, to_float(*x));
            *to = from_float<T>(a.gated ? y * to_float(x[a.width]) : y);
        }
    }
}

template <typename T> cudaError_t launch_activate(const gac_activate_args &a, cudaStream_t stream)
{
    const bool wide = ((uintptr_t)a.x | (uintptr_t)a.out) % 16 == 0 && a.width % 8 == 0 &&
                      a.x_ld % 8 == 0 && a.out_ld % 8 == 0;
    const int64_t per_block = ROW_THREADS * (wide ? 8 : 1);
    const dim3 grid((unsigned)((a.width + per_block - 1) / per_block),
                    (unsigned)(a.n_rows < 32768 ? a.n_rows : 32768));
    if (wide)
        gac_activate_kernel<T, true><<<grid, ROW_THREADS, 0, stream>>>(a);
    else
        gac_activate_kernel<T, false><<<grid, ROW_THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

template <typename T>
__global__ void __launch_bounds__(ROW_THREADS)
    gac_bias_kernel(T *y, int64_t ld, const float *bias, int64_t n_rows, int64_t n)
{
    const int64_t c = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (c >= n)
        return;
    const float b = bias[c];
    for (int64_t r = blockIdx.y; r < n_rows; r += gridDim.y)
        y[r * ld + c] = from_float<T>(to_float(y[r * ld + c]) + b);
}

/* Callers refuse ids and positions outside the tables; here they read row 0. */
template <typename T>
__device__ __forceinline__ const T *table_row(const gac_table &table, int64_t i)
{
    return (const T *)table.rows + (i >= 0 && i < table.n_rows ? i : 0) * table.ld;
}

/* One block per row. */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS) gac_embed_kernel(const gac_embed_args a)
{
    const int64_t r = blockIdx.x;
    const T *from = table_row<T>(a.table, a.ids[r]), *add = nullptr;
    float *to = a.out + r * a.out_ld;
    if (a.positions.rows)
        add = table_row<T>(a.positions, a.first_position + *a.n_past + r % a.n_new);
    let_next_start();
    for (int64_t c = threadIdx.x; c < a.width; c += ROW_THREADS)
        to[c] = (float)a.scale * to_float(from[c]) + (add ? to_float(add[c]) : 0.0f);
}

/* One block per row. The maximum first, then the sum of exponentials: per thread in F32,
 * across threads in F64. */
__global__ void __launch_bounds__(LOSS_THREADS)
    gac_losses_kernel(const float *logits, int64_t vocab, const int32_t *targets, double *out)
{
    __shared__ float spare[LOSS_THREADS / 32];
    __shared__ double sums[LOSS_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *row = logits + (int64_t)blockIdx.x * vocab;
    float top = -INFINITY, part = 0;
    for (int64_t c = threadIdx.x; c < vocab; c += LOSS_THREADS)
        top = fmaxf(top, row[c]);
    top = warp_max(top);
    if (lane == 0)
        spare[warp] = top;
    __syncthreads();
    top = warp_max(spare[lane]);
    for (int64_t c = threadIdx.x; c < vocab; c += LOSS_THREADS)
        part += expf(row[c] - top);
    double sum = part;
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(WHOLE_WARP, sum, i);
    if (lane == 0)
        sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    sum = 0;
    for (int i = 0; i < LOSS_THREADS / 32; i++)
        sum += sums[i];
    const int64_t target = targets[blockIdx.x];
    out[blockIdx.x] =
        target >= 0 && target < vocab ? log(sum) + (double)top - (double)row[target] : (double)NAN;
}

unsigned row_blocks(int64_t n_rows)
{
    return (unsigned)(n_rows < 32768 ? n_rows : 32768);
}

} /* namespace */

extern "C" gac_status gac_norm_launch(const gac_norm_args *args, cudaStream_t stream,
                                      gac_error *err)
{
    if (args->n < 1 || args->width < 1 || args->out_ld < args->width || args->out_ld > 1 << 30)
        return gac_error_set(err, GAC_USAGE, "a norm of sizes that make no sense");
    cudaError_t code;
    if (args->dtype == GAC_DTYPE_F16)
        code = launch_norm<__half>(args, args->overlap, stream);
    else if (args->dtype == GAC_DTYPE_BF16)
        code = launch_norm<__nv_bfloat16>(args, args->overlap, stream);
    else
        code = launch_norm<float>(args, args->overlap, stream);
    return launch_status(code, "norm", err);
}

extern "C" gac_status gac_add_launch(const gac_add_args *args, cudaStream_t stream, gac_error *err)
{
    if (args->n_rows < 1 || args->n_rows > 1 << 30 || args->width < 1 || args->width > 1 << 30 ||
        args->y_ld < args->width || args->to_ld < args->width)
        return gac_error_set(err, GAC_USAGE, "outputs of sizes that make no sense");
    gac_add_kernel<<<(unsigned)args->n_rows, NORM_THREADS, 0, stream>>>(*args);
    return launch_status(cudaGetLastError(), "addition of outputs", err);
}

extern "C" gac_status gac_bound_launch(float *x, int64_t n, double scale, double softcap,
                                       cudaStream_t stream, gac_error *err)
{
    const int64_t n_blocks = (n + ROW_THREADS - 1) / ROW_THREADS;
    if (n < 1)
        return gac_error_set(err, GAC_USAGE, "a bound of no numbers");
    gac_bound_kernel<<<(unsigned)(n_blocks < 4096 ? n_blocks : 4096), ROW_THREADS, 0, stream>>>(
        x, n, (float)scale, (float)softcap);
    return launch_status(cudaGetLastError(), "bound of logits", err);
}

extern "C" gac_status gac_activate_launch(const gac_activate_args *args, cudaStream_t stream,
                                          gac_error *err)
{
    if (args->n_rows < 1 || args->width < 1 || args->x_ld < (args->gated ? 2 : 1) * args->width ||
        args->out_ld < args->width || !is_half_type(args->dtype))
        return gac_error_set(err, GAC_USAGE, "a gate of sizes that make no sense");
    cudaError_t code = args->dtype == GAC_DTYPE_F16 ? launch_activate<__half>(*args, stream)
                                                    : launch_activate<__nv_bfloat16>(*args, stream);
    return launch_status(code, "gate", err);
}

extern "C" gac_status gac_bias_launch(gac_dtype dtype, void *y, int64_t ld, const float *bias,
                                      int64_t n_rows, int64_t n, cudaStream_t stream,
                                      gac_error *err)
{
    if (n_rows < 1 || n < 1)
        return gac_error_set(err, GAC_USAGE, "a bias of sizes that make no sense");
    const dim3 grid((unsigned)((n + ROW_THREADS - 1) / ROW_THREADS), row_blocks(n_rows));
    if (dtype == GAC_DTYPE_F16)
        gac_bias_kernel<<<grid, ROW_THREADS, 0, stream>>>((__half *)y, ld, bias, n_rows, n);
    else if (dtype == GAC_DTYPE_BF16)
        gac_bias_kernel<<<grid, ROW_THREADS, 0, stream>>>((__nv_bfloat16 *)y, ld, bias, n_rows, n);
    else
        gac_bias_kernel<<<grid, ROW_THREADS, 0, stream>>>((float *)y, ld, bias, n_rows, n);
    return launch_status(cudaGetLastError(), "bias", err);
}

extern "C" gac_status gac_embed_launch(const gac_embed_args *args, cudaStream_t stream,
                                       gac_error *err)
{
    if (args->n_rows < 1 || args->n_rows > 1 << 30 || args->n_new < 1 || !is_half_type(args->dtype))
        return gac_error_set(err, GAC_USAGE, "an embedding of sizes that make no sense");
    const unsigned grid = (unsigned)args->n_rows;
    if (args->dtype == GAC_DTYPE_F16)
        gac_embed_kernel<__half><<<grid, ROW_THREADS, 0, stream>>>(*args);
    else
        gac_embed_kernel<__nv_bfloat16><<<grid, ROW_THREADS, 0, stream>>>(*args);
    return launch_status(cudaGetLastError(), "embedding", err);
}

extern "C" gac_status gac_losses_launch(const float *logits, int64_t vocab, const int32_t *targets,
                                        double *out, int64_t n, cudaStream_t stream, gac_error *err)
{
    if (n < 1 || vocab < 1)
        return gac_error_set(err, GAC_USAGE, "losses of no rows");
    gac_losses_kernel<<<(unsigned)n, LOSS_THREADS, 0, stream>>>(logits, vocab, targets, out);
    return launch_status(cudaGetLastError(), "losses", err);
}
