/* Compiled with -mavx2 -mfma -mf16c (CMakeLists.txt). */
#if defined(__x86_64__)
#define KERNELS gac_cpu_kernels_avx2
#define KERNELS_NAME "avx2"
/* F16C is not tested: not every compiler can, and every processor with AVX2 has it. */
#define KERNELS_USABLE __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
#define VECTOR_BYTES 32
#include "device/cpu/compute_kernels_body.h"
#else
typedef int no_avx2; /* ISO C forbids an empty file */
#endif
