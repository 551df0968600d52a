/* Kernels for any processor. The compiler splits 16-byte vectors where the hardware has
 * none. */
#define KERNELS gac_cpu_kernels_base
#define KERNELS_NAME "base"
#define KERNELS_USABLE true
#define VECTOR_BYTES 16
#include "device/cpu/compute_kernels_body.h"

const gac_cpu_kernels *gac_cpu_kernels_choice(int index)
{
    static const gac_cpu_kernels *const all[] = {
#if defined(__x86_64__)
        &gac_cpu_kernels_avx512,
        &gac_cpu_kernels_avx2,
#endif
        &gac_cpu_kernels_base,
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i]->usable() && index-- == 0)
            return all[i];
    }
    return NULL;
}
