/* Which row kernels this processor can run; see kernels.h. */
#include "sample/kernels.h"

#include <stddef.h>

#include "base/cpuinfo.h"

#if defined(__x86_64__)
static bool has_avx512(void) {
    return di_cpu_has(DI_CPU_HAS_AVX512F) && di_cpu_has(DI_CPU_HAS_AVX512BW) &&
           di_cpu_has(DI_CPU_HAS_AVX512DQ) && di_cpu_has(DI_CPU_HAS_AVX512VL) &&
           di_cpu_has(DI_CPU_HAS_AVX2);
}

const di_row_kernels *di_row_kernels_at(int index) {
    const di_row_kernels *sets[3];
    int count = 0;
    if (has_avx512()) {
        sets[count++] = &di_row_kernels_avx512;
    }
    if (di_cpu_has(DI_CPU_HAS_AVX2) && di_cpu_has(DI_CPU_HAS_FMA)) {
        sets[count++] = &di_row_kernels_avx2;
    }
    sets[count++] = &di_row_kernels_plain;
    return index >= 0 && index < count ? sets[index] : NULL;
}
#else
const di_row_kernels *di_row_kernels_at(int index) {
    return index == 0 ? &di_row_kernels_plain : NULL;
}
#endif

const di_row_kernels *di_row_kernels_best(void) {
    return di_row_kernels_at(0);
}
