/* Keeps the stream busy while the host queues what is to be timed behind it,
 * so that the first event is not stamped before the work is there, and looks at
 * the clock meanwhile: the driver's own figure is up to 100 ms old. */
#include "cuda_internal.h"

static __device__ unsigned long long now_ns()
{
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* One thread; n_ns of the card's global timer, from one tick of it to another,
 * since it may tick but once in a microsecond. */
__global__ void gac_hold_kernel(unsigned long long n_ns, float *clock_mhz)
{
    unsigned long long before = now_ns(), start, now;
    do
        start = now_ns();
    while (start == before);
    long long cycles = clock64();
    do
        now = now_ns();
    while (now - start < n_ns);
    *clock_mhz = 1000.0f * (float)(clock64() - cycles) / (float)(now - start);
}

extern "C" gac_status gac_hold_launch(double time_us, float *clock_mhz, cudaStream_t stream,
                                      gac_error *err)
{
    gac_hold_kernel<<<1, 1, 0, stream>>>((unsigned long long)(time_us * 1000), clock_mhz);
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "launch of the hold kernel");
}
