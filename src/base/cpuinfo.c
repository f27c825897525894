/* Processor features and count. The only place that asks the processor; see cpuinfo.h. */
#include "base/cpuinfo.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

static const char *const names[DI_CPU_NUM_FEATURES] = {
    [DI_CPU_HAS_AVX2] = "avx2",
    [DI_CPU_HAS_FMA] = "fma",
    [DI_CPU_HAS_F16C] = "f16c",
    [DI_CPU_HAS_AVX512F] = "avx512f",
    [DI_CPU_HAS_AVX512BW] = "avx512bw",
    [DI_CPU_HAS_AVX512DQ] = "avx512dq",
    [DI_CPU_HAS_AVX512VL] = "avx512vl",
    [DI_CPU_HAS_AVX512_VBMI] = "avx512vbmi",
    [DI_CPU_HAS_AVX512_VNNI] = "avx512vnni",
    [DI_CPU_HAS_AVX512_BF16] = "avx512bf16",
};

#if defined(__x86_64__)
bool di_cpu_has(di_cpu_feature feature) {
    __builtin_cpu_init(); /* also checks that the system saves the wide registers */
    switch (feature) {
    case DI_CPU_HAS_AVX2:
        return __builtin_cpu_supports("avx2") != 0;
    case DI_CPU_HAS_FMA:
        return __builtin_cpu_supports("fma") != 0;
    case DI_CPU_HAS_F16C: /* clang 14 cannot ask for it by name; no AVX2 processor lacks it */
        return __builtin_cpu_supports("avx2") != 0;
    case DI_CPU_HAS_AVX512F:
        return __builtin_cpu_supports("avx512f") != 0;
    case DI_CPU_HAS_AVX512BW:
        return __builtin_cpu_supports("avx512bw") != 0;
    case DI_CPU_HAS_AVX512DQ:
        return __builtin_cpu_supports("avx512dq") != 0;
    case DI_CPU_HAS_AVX512VL:
        return __builtin_cpu_supports("avx512vl") != 0;
    case DI_CPU_HAS_AVX512_VBMI:
        return __builtin_cpu_supports("avx512vbmi") != 0;
    case DI_CPU_HAS_AVX512_VNNI:
        return __builtin_cpu_supports("avx512vnni") != 0;
    case DI_CPU_HAS_AVX512_BF16:
        return __builtin_cpu_supports("avx512bf16") != 0;
    case DI_CPU_NUM_FEATURES:
        break;
    }
    return false;
}
#else
bool di_cpu_has(di_cpu_feature feature) {
    (void)feature;
    return false;
}
#endif

const char *di_cpu_feature_name(di_cpu_feature feature) {
    return names[feature];
}

void di_cpu_feature_list(char *text, size_t size) {
    size_t used = 0;
    if (size) {
        text[0] = 0;
    }
    for (int f = 0; f < DI_CPU_NUM_FEATURES; f++) {
        if (di_cpu_has((di_cpu_feature)f) && used < size) {
            int n = snprintf(text + used, size - used, "%s%s", used ? " " : "", names[f]);
            used += n > 0 ? (size_t)n : 0;
        }
    }
}

int di_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set);
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than a cpu_set_t holds */
    return n > 0 ? (int)n : 1;
}
