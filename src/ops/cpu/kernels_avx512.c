/* The kernels for AVX-512 (F, BW, DQ, VL). */
#include "ops/cpu/v16_avx512.h"

#define DI_CPU_KERNELS      di_cpu_kernels_avx512
#define DI_CPU_KERNELS_NAME "avx512"
#include "ops/cpu/kernels.inc"
