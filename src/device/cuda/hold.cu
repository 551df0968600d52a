/* Keeps the stream busy while the host enqueues the work to be timed. Otherwise the start
 * event could be recorded before the work is there. The kernel also measures the clock,
 * because the driver's value is up to 100 ms old. */
#include "kernels.h"

static __device__ unsigned long long now_ns()
{
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* One thread that waits for n_ns of the card's global timer. The timer may tick only once
 * per microsecond, so the measurement starts at a tick. */
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
    if (now > start)
        *clock_mhz = 1000.0f * (float)(clock64() - cycles) / (float)(now - start);
}

extern "C" gac_status gac_hold_launch(double time_us, float *clock_mhz, cudaStream_t stream,
                                      gac_error *err)
{
    if (!(time_us >= 0 && time_us <= 1e6) || !clock_mhz)
        return gac_error_set(err, GAC_USAGE, "hold takes 0 to 1e6 us and where to put the clock");
    gac_hold_kernel<<<1, 1, 0, stream>>>((unsigned long long)(time_us * 1000), clock_mhz);
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        return gac_error_set(err, GAC_FAILED, "hold: %s", cudaGetErrorString(e));
    return GAC_OK;
}
