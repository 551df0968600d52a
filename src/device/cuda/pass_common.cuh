/* pass_common: device functions shared by the kernels of a forward pass. */
#ifndef GAC_PASS_COMMON_CUH
#define GAC_PASS_COMMON_CUH

#include "pass_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace
{

constexpr unsigned WHOLE_WARP = 0xffffffffu;

__device__ __forceinline__ float to_float(float x)
{
    return x;
}
__device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __half from_float<__half>(float x)
{
    return __float2half_rn(x);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* Converts the two half numbers of a word. */
template <typename T> __device__ __forceinline__ float2 unpack_pair(uint32_t word)
{
    if constexpr (std::is_same<T, __half>::value)
        return __half22float2(*(const __half2 *)&word);
    else
        return float2{ __uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u) };
}

template <typename T> __device__ __forceinline__ uint32_t pack_pair(float low, float high)
{
    if constexpr (std::is_same<T, __half>::value) {
        const __half2 pair = __floats2half2_rn(low, high);
        return *(const uint32_t *)&pair;
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *(const uint32_t *)&pair;
    }
}

__device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + __expf(-x));
}

__device__ __forceinline__ float activate(gac_activation activation, float x)
{
    switch (activation) {
    case GAC_ACTIVATION_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case GAC_ACTIVATION_GELU_TANH: /* 0.79788456 is the root of 2 / pi */
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case GAC_ACTIVATION_RELU:
        return fmaxf(x, 0.0f);
    default:
        return silu(x);
    }
}

/* c (16, 8) += a (16, 16) b (16, 8). Let g = lane / 4 and t = lane % 4. a0 and a2 hold
 * row g, a1 and a3 row g + 8, b0 and b1 column g. a0, a1 and b0 hold k = 2t and 2t + 1;
 * a2, a3 and b1 hold k = 2t + 8 and 2t + 9. c0 and c1 are row g, columns 2t and 2t + 1;
 * c2 and c3 are row g + 8. */
template <typename T>
__device__ __forceinline__ void mma_16816(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                          uint32_t a3, uint32_t b0, uint32_t b1)
{
    if constexpr (std::is_same<T, __half>::value)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Programmatic dependent launch: let_next_start allows the next kernel to start;
 * wait_for_previous waits until the previous kernel has finished. */
__device__ __forceinline__ void let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Converts a pointer to an address in shared memory. The asm keeps the compiler from
 * computing it again at every use. */
__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("" : "+r"(at));
    return at;
}

/* An mbarrier in shared memory for n arrivals, and a wait for its phase, which alternates
 * between 0 and 1. */
__device__ __forceinline__ void start_barrier(uint32_t barrier, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n) : "memory");
}

__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t phase)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n"
                     ".reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int i = 16; i; i /= 2)
        x += __shfl_xor_sync(WHOLE_WARP, x, i);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int i = 16; i; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(WHOLE_WARP, x, i));
    return x;
}

/* Returns the sum over a block in every thread. spare has one float per warp and must not
 * be reused before the block's next barrier. */
__device__ __forceinline__ float block_sum(float x, float *spare)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    x = warp_sum(x);
    if (lane == 0)
        spare[warp] = x;
    __syncthreads();
    return warp_sum(lane < n_warps ? spare[lane] : 0.0f);
}

/* Launches a kernel. pass_kernels.h explains overlap. cooperative: all blocks run at the
 * same time, so that they can wait for each other. */
template <typename P>
cudaError_t launch_kernel(void (*kernel)(P), dim3 grid, unsigned n_threads, size_t smem_bytes,
                          bool overlap, cudaStream_t stream, const P &params,
                          bool cooperative = false)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = overlap;
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = cooperative;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(n_threads);
    config.dynamicSmemBytes = smem_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    cudaError_t code = cudaSuccess;
    if (smem_bytes > 48 << 10)
        code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)smem_bytes);
    return code == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, params) : code;
}

inline gac_status launch_status(cudaError_t code, const char *what, gac_error *err)
{
    if (code == cudaSuccess)
        return GAC_OK;
    cudaGetLastError();
    return gac_error_set(err, GAC_FAILED, "%s: %s", what, cudaGetErrorString(code));
}

/* Properties of the device that products of few rows depend on. */
struct device_facts {
    int version;     /* major compute capability */
    int cooperative; /* whether cooperative launches are supported */
    int n_units;     /* multiprocessors */
    int max_bytes;   /* shared memory that a launch may request */
};

inline cudaError_t ask_device(device_facts &f)
{
    constexpr int OTHER_BYTES = 3 << 10; /* static shared memory of the kernels */
    int device = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&f.version, cudaDevAttrComputeCapabilityMajor, device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&f.cooperative, cudaDevAttrCooperativeLaunch, device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&f.n_units, cudaDevAttrMultiProcessorCount, device);
    if (code == cudaSuccess)
        code =
            cudaDeviceGetAttribute(&f.max_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    f.max_bytes -= OTHER_BYTES;
    return code;
}

inline bool is_half_type(gac_dtype dtype)
{
    return dtype == GAC_DTYPE_F16 || dtype == GAC_DTYPE_BF16;
}

} /* namespace */

#endif
