/* What the processor can do, asked once by whoever chooses kernels or reports a build. */
#ifndef DI_BASE_CPUINFO_H
#define DI_BASE_CPUINFO_H

#include <stdbool.h>
#include <stddef.h>

typedef enum di_cpu_feature {
    DI_CPU_HAS_AVX2,
    DI_CPU_HAS_FMA,
    DI_CPU_HAS_F16C,
    DI_CPU_HAS_AVX512F,
    DI_CPU_HAS_AVX512BW,
    DI_CPU_HAS_AVX512DQ,
    DI_CPU_HAS_AVX512VL,
    DI_CPU_HAS_AVX512_VBMI,
    DI_CPU_HAS_AVX512_VNNI,
    DI_CPU_HAS_AVX512_BF16,
    DI_CPU_NUM_FEATURES,
} di_cpu_feature;

/* Found in the processor and switched on by the system; always false on other architectures. */
bool di_cpu_has(di_cpu_feature feature);

/* "avx2", "avx512bw", ... */
const char *di_cpu_feature_name(di_cpu_feature feature);

/* The names of all features found, separated by spaces, cut to fit; "" where there are none. */
void di_cpu_feature_list(char *text, size_t size);

/* Processors this process may run on, at least 1. */
int di_cpu_count(void);

#endif
