/* Row operations between the products: norms, gates, biases, the embedding and losses. */
#include "pass_common.cuh"

#include <cmath>

namespace
{

constexpr int NORM_THREADS = 256, ROW_THREADS = 256, LOSS_THREADS = 1024;

struct norm_params {
    gac_norm_args a;
};

/* One block per row. The row is read twice, the second time from the cache. */
template <typename F, typename T>
__global__ void __launch_bounds__(NORM_THREADS) gac_norm_kernel(const norm_params p)
{
    __shared__ float spare[NORM_THREADS / 32];
    const gac_norm_args &a = p.a;
    const F *x = (const F *)a.x + (int64_t)blockIdx.x * a.x_ld;
    T *out = (T *)a.out + (int64_t)blockIdx.x * a.out_ld;
    const int width = (int)a.width, ld = (int)a.out_ld;
    float scale = 1;
    let_next_start();
    wait_for_previous();
    if (a.norm) {
        float sum = 0;
        for (int c = threadIdx.x; c < width; c += NORM_THREADS) {
            const float v = to_float(x[c]);
            sum += v * v;
        }
        sum = block_sum(sum, spare);
        scale = rsqrtf(sum / (float)width + (float)a.eps);
    }
    for (int c = threadIdx.x; c < ld; c += NORM_THREADS) {
        const float v = c < width ? to_float(x[c]) * scale : 0.0f;
        out[c] = from_float<T>(a.norm && c < width ? v * a.norm[c] : v);
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
        if (a->from_float && a->norm && aligned && a->width % 4 == 0 && a->width <= 2 * WIDE &&
            a->out_ld == a->width && a->x_ld % 4 == 0)
            return launch_kernel(a->width <= WIDE ? gac_norm_wide_kernel<T, KEEP>
                                                  : gac_norm_wide_kernel<T, 2 * KEEP>,
                                 grid, NORM_THREADS, 0, overlap, stream, p);
    if (a->from_float)
        return launch_kernel(gac_norm_kernel<float, T>, grid, NORM_THREADS, 0, overlap, stream, p);
    return launch_kernel(gac_norm_kernel<T, T>, grid, NORM_THREADS, 0, overlap, stream, p);
}

/* A thread computes eight numbers if everything is aligned, else one. */
template <typename T, bool WIDE>
__global__ void __launch_bounds__(ROW_THREADS)
    gac_silu_kernel(const T *pair, int64_t pair_ld, T *out, int64_t out_ld, int64_t n_rows,
                    int64_t width)
{
    constexpr int N = WIDE ? 8 : 1;
    const int64_t c = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) * N;
    if (c >= width)
        return;
    for (int64_t r = blockIdx.y; r < n_rows; r += gridDim.y) {
        const T *gate = pair + r * pair_ld + c, *up = gate + width;
        T *to = out + r * out_ld + c;
        if constexpr (WIDE) {
            const uint4 g = *(const uint4 *)gate, u = *(const uint4 *)up;
            const uint32_t gs[4] = { g.x, g.y, g.z, g.w }, us[4] = { u.x, u.y, u.z, u.w };
            uint32_t ys[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 a = unpack_pair<T>(gs[i]), b = unpack_pair<T>(us[i]);
                ys[i] = pack_pair<T>(silu(a.x) * b.x, silu(a.y) * b.y);
            }
            *(uint4 *)to = uint4{ ys[0], ys[1], ys[2], ys[3] };
        } else {
            *to = from_float<T>(silu(to_float(*gate)) * to_float(*up));
        }
    }
}

template <typename T>
cudaError_t launch_silu(const T *pair, int64_t pair_ld, T *out, int64_t out_ld, int64_t n_rows,
                        int64_t width, cudaStream_t stream)
{
    const bool wide = ((uintptr_t)pair | (uintptr_t)out) % 16 == 0 && width % 8 == 0 &&
                      pair_ld % 8 == 0 && out_ld % 8 == 0;
    const int64_t per_block = ROW_THREADS * (wide ? 8 : 1);
    const dim3 grid((unsigned)((width + per_block - 1) / per_block),
                    (unsigned)(n_rows < 32768 ? n_rows : 32768));
    if (wide)
        gac_silu_kernel<T, true>
            <<<grid, ROW_THREADS, 0, stream>>>(pair, pair_ld, out, out_ld, n_rows, width);
    else
        gac_silu_kernel<T, false>
            <<<grid, ROW_THREADS, 0, stream>>>(pair, pair_ld, out, out_ld, n_rows, width);
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

/* One block per row. Callers refuse ids outside the table; here they read row 0. */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS)
    gac_embed_kernel(const T *table, int64_t ld, int64_t n_ids, const int32_t *ids, float *out,
                     int64_t out_ld, int64_t width)
{
    const int64_t id = ids[blockIdx.x];
    const T *from = table + (id >= 0 && id < n_ids ? id : 0) * ld;
    float *to = out + (int64_t)blockIdx.x * out_ld;
    let_next_start();
    for (int64_t c = threadIdx.x; c < width; c += ROW_THREADS)
        to[c] = to_float(from[c]);
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

extern "C" gac_status gac_silu_launch(gac_dtype dtype, const void *pair, int64_t pair_ld, void *out,
                                      int64_t out_ld, int64_t n_rows, int64_t width,
                                      cudaStream_t stream, gac_error *err)
{
    if (n_rows < 1 || width < 1 || pair_ld < 2 * width || out_ld < width || !is_half_type(dtype))
        return gac_error_set(err, GAC_USAGE, "a gate of sizes that make no sense");
    cudaError_t code;
    if (dtype == GAC_DTYPE_F16)
        code = launch_silu((const __half *)pair, pair_ld, (__half *)out, out_ld, n_rows, width,
                           stream);
    else
        code = launch_silu((const __nv_bfloat16 *)pair, pair_ld, (__nv_bfloat16 *)out, out_ld,
                           n_rows, width, stream);
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

extern "C" gac_status gac_embed_launch(gac_dtype dtype, const void *table, int64_t ld,
                                       int64_t n_ids, const int32_t *ids, float *out,
                                       int64_t out_ld, int64_t n_rows, int64_t width,
                                       cudaStream_t stream, gac_error *err)
{
    if (n_rows < 1 || n_rows > 1 << 30 || !is_half_type(dtype))
        return gac_error_set(err, GAC_USAGE, "an embedding of sizes that make no sense");
    const unsigned grid = (unsigned)n_rows;
    if (dtype == GAC_DTYPE_F16)
        gac_embed_kernel<<<grid, ROW_THREADS, 0, stream>>>((const __half *)table, ld, n_ids, ids,
                                                           out, out_ld, width);
    else
        gac_embed_kernel<<<grid, ROW_THREADS, 0, stream>>>((const __nv_bfloat16 *)table, ld, n_ids,
                                                           ids, out, out_ld, width);
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
