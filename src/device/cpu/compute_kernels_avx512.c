/* Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl (CMakeLists.txt). */
#if defined(__x86_64__)
#define KERNELS gac_cpu_kernels_avx512
#define KERNELS_NAME "avx512"
#define KERNELS_USABLE \
    __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && \
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
#define VECTOR_BYTES 64
#include "device/cpu/compute_kernels_body.h"
#else
typedef int no_avx512; /* ISO C forbids an empty file */
#endif
