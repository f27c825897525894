/* The kernels in plain C, for any processor. */
#include "ops/cpu/v16_plain.h"

#define DI_CPU_KERNELS      di_cpu_kernels_plain
#define DI_CPU_KERNELS_NAME "plain"
#include "ops/cpu/kernels.inc"
