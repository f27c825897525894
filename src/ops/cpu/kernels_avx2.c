/* The kernels for AVX2 with FMA and F16C. */
#include "ops/cpu/v16_avx2.h"

#define DI_CPU_KERNELS      di_cpu_kernels_avx2
#define DI_CPU_KERNELS_NAME "avx2"
#include "ops/cpu/kernels.inc"
