/* Reproducible random operands. Each number depends on the seed and its index only. It is
 * computed with integers, one exact conversion and one multiplication, so every device
 * and the CPU give the same bits. */
#include "kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace
{

constexpr int N_THREADS = 256;

__device__ __forceinline__ uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Returns a centred sum of four 16-bit uniforms. It is nearly normal with deviation 65536
 * / sqrt(3); the caller has divided scale by that. */
__device__ __forceinline__ float draw(uint32_t key, uint32_t index, float scale)
{
    const uint32_t a = mix(index ^ key), b = mix(a + 0x9e3779b9u);
    const int sum = (int)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16));
    return (float)(sum - 131070) * scale;
}

__device__ __forceinline__ void round_to(float x, float &out)
{
    out = x;
}

__device__ __forceinline__ void round_to(float x, __half &out)
{
    out = __float2half_rn(x);
}

__device__ __forceinline__ void round_to(float x, __nv_bfloat16 &out)
{
    out = __float2bfloat16_rn(x);
}

__device__ __forceinline__ void round_to(float x, __nv_fp8_e4m3 &out)
{
    out = __nv_fp8_e4m3(x);
}

__device__ __forceinline__ void round_to(float x, signed char &out)
{
    out = (signed char)fminf(fmaxf(rintf(x), -127.0f), 127.0f);
}

/* out (n). Each thread writes 16 bytes at a time. */
template <typename T>
__global__ void __launch_bounds__(N_THREADS)
    gac_fill_kernel(T *out, int64_t n, uint64_t seed, float scale)
{
    constexpr int N = 16 / sizeof(T);
    const int64_t step = (int64_t)gridDim.x * N_THREADS * N;
    for (int64_t i = ((int64_t)blockIdx.x * N_THREADS + threadIdx.x) * N; i < n; i += step) {
        /* All N elements share the index bits above 32. */
        const uint32_t key =
            mix(mix((uint32_t)seed) ^ (uint32_t)(seed >> 32)) + mix((uint32_t)(i >> 32) + 1);
        union {
            uint4 all;
            T one[N];
        } u = {};
#pragma unroll
        for (int k = 0; k < N; k++)
            round_to(draw(key, (uint32_t)i + k, scale), u.one[k]);
        if (i + N <= n)
            *(uint4 *)(out + i) = u.all;
        else
            for (int k = 0; k < N; k++)
                if (i + k < n)
                    out[i + k] = u.one[k];
    }
}

template <typename T>
void launch(void *out, int64_t n, uint64_t seed, float scale, cudaStream_t stream)
{
    const int64_t per_block = N_THREADS * (int64_t)(16 / sizeof(T));
    const int64_t n_blocks = (n + per_block - 1) / per_block;
    gac_fill_kernel<T><<<(unsigned)(n_blocks < 65536 ? n_blocks : 65536), N_THREADS, 0, stream>>>(
        (T *)out, n, seed, scale);
}

} /* namespace */

extern "C" gac_status gac_fill_launch(gac_dtype dtype, void *out, int64_t n, uint64_t seed,
                                      double scale, cudaStream_t stream, gac_error *err)
{
    if (n < 0 || (uintptr_t)out % 16)
        return gac_error_set(err, GAC_USAGE, "fill: a negative count, or out not on 16 bytes");
    if (n == 0)
        return GAC_OK;
    const float unit = (float)(scale * 1.7320508075688772 / 65536);
    switch (dtype) {
    case GAC_DTYPE_F16:
        launch<__half>(out, n, seed, unit, stream);
        break;
    case GAC_DTYPE_BF16:
        launch<__nv_bfloat16>(out, n, seed, unit, stream);
        break;
    case GAC_DTYPE_F32:
        launch<float>(out, n, seed, unit, stream);
        break;
    case GAC_DTYPE_F8_E4M3:
        launch<__nv_fp8_e4m3>(out, n, seed, unit, stream);
        break;
    case GAC_DTYPE_I8:
        launch<signed char>(out, n, seed, unit, stream);
        break;
    default:
        return gac_error_set(err, GAC_USAGE, "fill takes F16, BF16, F32, F8_E4M3 or I8");
    }
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        return gac_error_set(err, GAC_FAILED, "fill: %s", cudaGetErrorString(e));
    return GAC_OK;
}
