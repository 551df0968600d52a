/* Keeps the stream busy while the host queues what is to be timed behind it,
 * so that the first event is not stamped before the work is there. */
#include "cuda_internal.h"

/* One thread; n_ns of the card's global timer. */
__global__ void gac_hold_kernel(unsigned long long n_ns)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < n_ns);
}

extern "C" gac_status gac_hold_launch(double time_us, cudaStream_t stream, gac_error *err)
{
    gac_hold_kernel<<<1, 1, 0, stream>>>((unsigned long long)(time_us * 1000));
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "launch of the hold kernel");
}
