/* Softmax over rows of attention scores, for the unfused path. A row is read once into
 * registers if it fits: by a warp up to 1024 keys, by a block up to 8192. Longer rows are
 * read three times. Elements are loaded one at a time unless all rows are 16-byte
 * aligned. */
#include "kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

namespace
{

constexpr int PER_THREAD = 32; /* elements of a row per thread, in registers */
constexpr int BLOCK = 256;
constexpr unsigned ALL_LANES = 0xffffffffu;

struct params {
    const void *scores; /* (n_rows, n_kv) */
    void *out;          /* (n_rows, n_kv) */
    int64_t n_rows;
    int n_q, n_kv;
    float scale_log2;
    bool causal;
};

__device__ __forceinline__ float widen(float x)
{
    return x;
}

__device__ __forceinline__ float widen(__half x)
{
    return __half2float(x);
}

__device__ __forceinline__ float widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

__device__ __forceinline__ void narrow(float x, float &out)
{
    out = x;
}

__device__ __forceinline__ void narrow(float x, __half &out)
{
    out = __float2half_rn(x);
}

__device__ __forceinline__ void narrow(float x, __nv_bfloat16 &out)
{
    out = __float2bfloat16_rn(x);
}

/* V adjacent elements, loaded as one. */
template <typename T, int V> struct alignas(sizeof(T) * V) vec {
    T e[V];
};

/* Returns the maximum or the sum of x over the THREADS threads of a row. */
template <int THREADS, bool MAX> __device__ __forceinline__ float reduce(float x, float *shared)
{
#pragma unroll
    for (int i = 16; i; i /= 2) {
        const float y = __shfl_xor_sync(ALL_LANES, x, i);
        x = MAX ? fmaxf(x, y) : x + y;
    }
    if (THREADS == 32)
        return x;
    __syncthreads(); /* wait until the previous result has been read */
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++)
        x = MAX ? fmaxf(x, shared[i]) : x + shared[i];
    return x;
}

__device__ __forceinline__ int visible_keys(const params &p, int64_t row)
{
    return p.causal ? max(0, p.n_kv + ((int)(row % p.n_q) + 1 - p.n_q)) : p.n_kv;
}

/* Rows of at most THREADS * PER_THREAD keys, one row per THREADS threads. V divides n_kv. */
template <typename T, int V, int THREADS>
__global__ void __launch_bounds__(BLOCK) gac_softmax_kernel(const __grid_constant__ params p)
{
    __shared__ float shared[BLOCK / 32];
    const int t = threadIdx.x % THREADS;
    const int64_t row = (int64_t)blockIdx.x * (BLOCK / THREADS) + threadIdx.x / THREADS;
    if (row >= p.n_rows)
        return; /* whole warps return, or the whole block */
    const int n_seen = visible_keys(p, row);
    const T *from = (const T *)p.scores + row * p.n_kv;
    T *to = (T *)p.out + row * p.n_kv;
    float x[PER_THREAD];
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i += V) {
        const int c = i * THREADS + t * V;
        vec<T, V> v = {};
        if (c < n_seen)
            v = *(const vec<T, V> *)(from + c);
#pragma unroll
        for (int k = 0; k < V; k++) {
            x[i + k] = c + k < n_seen ? widen(v.e[k]) * p.scale_log2 : -INFINITY;
            top = fmaxf(top, x[i + k]);
        }
    }
    top = reduce<THREADS, true>(top, shared);
    const float offset = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        x[i] = exp2f(x[i] - offset);
        sum += x[i];
    }
    sum = reduce<THREADS, false>(sum, shared);
    const float scale = sum == 0 ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i += V) {
        const int c = i * THREADS + t * V;
        vec<T, V> v;
#pragma unroll
        for (int k = 0; k < V; k++)
            narrow(x[i + k] * scale, v.e[k]);
        if (c < p.n_kv)
            *(vec<T, V> *)(to + c) = v;
    }
}

/* Longer rows, one per block. The row is read for the maximum, the sum and the result. */
template <typename T>
__global__ void __launch_bounds__(BLOCK) gac_softmax_kernel_long(const __grid_constant__ params p)
{
    __shared__ float shared[BLOCK / 32];
    const int64_t row = blockIdx.x;
    const int n_seen = visible_keys(p, row);
    const T *from = (const T *)p.scores + row * p.n_kv;
    T *to = (T *)p.out + row * p.n_kv;
    float top = -INFINITY, sum = 0;
    for (int c = threadIdx.x; c < n_seen; c += BLOCK)
        top = fmaxf(top, widen(from[c]) * p.scale_log2);
    top = reduce<BLOCK, true>(top, shared);
    for (int c = threadIdx.x; c < n_seen; c += BLOCK)
        sum += exp2f(widen(from[c]) * p.scale_log2 - top);
    sum = reduce<BLOCK, false>(sum, shared);
    const float scale = sum == 0 ? 0.0f : 1.0f / sum;
    for (int c = threadIdx.x; c < p.n_kv; c += BLOCK) {
        const float x = c < n_seen ? exp2f(widen(from[c]) * p.scale_log2 - top) * scale : 0.0f;
        narrow(x, to[c]);
    }
}

template <typename T> void launch(const params &p, cudaStream_t stream)
{
    constexpr int V = 16 / sizeof(T), WARPS = BLOCK / 32;
    const bool wide = p.n_kv % V == 0 && ((uintptr_t)p.scores | (uintptr_t)p.out) % 16 == 0;
    const unsigned rows = (unsigned)p.n_rows, warps = (unsigned)((p.n_rows + WARPS - 1) / WARPS);
    if (p.n_kv > BLOCK * PER_THREAD)
        gac_softmax_kernel_long<T><<<rows, BLOCK, 0, stream>>>(p);
    else if (p.n_kv > 32 * PER_THREAD && wide)
        gac_softmax_kernel<T, V, BLOCK><<<rows, BLOCK, 0, stream>>>(p);
    else if (p.n_kv > 32 * PER_THREAD)
        gac_softmax_kernel<T, 1, BLOCK><<<rows, BLOCK, 0, stream>>>(p);
    else if (wide)
        gac_softmax_kernel<T, V, 32><<<warps, BLOCK, 0, stream>>>(p);
    else
        gac_softmax_kernel<T, 1, 32><<<warps, BLOCK, 0, stream>>>(p);
}

} /* namespace */

extern "C" gac_status gac_softmax_launch(const gac_softmax_args *args, cudaStream_t stream,
                                         gac_error *err)
{
    if (args->n_rows < 1 || args->n_q < 1 || args->n_kv < 1 || args->n_rows > INT32_MAX ||
        args->n_q > INT32_MAX || args->n_kv > (int64_t)1 << 30)
        return gac_error_set(err, GAC_USAGE, "softmax sizes out of range");
    const params p = { args->scores,   args->out,       args->n_rows,
                       (int)args->n_q, (int)args->n_kv, (float)(args->scale * 1.4426950408889634),
                       args->causal };
    switch (args->dtype) {
    case GAC_DTYPE_F16:
        launch<__half>(p, stream);
        break;
    case GAC_DTYPE_BF16:
        launch<__nv_bfloat16>(p, stream);
        break;
    case GAC_DTYPE_F32:
        launch<float>(p, stream);
        break;
    default:
        return gac_error_set(err, GAC_USAGE, "softmax takes F16, BF16 or F32");
    }
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        return gac_error_set(err, GAC_FAILED, "softmax: %s", cudaGetErrorString(e));
    return GAC_OK;
}
