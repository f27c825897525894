/* The CPU backend: a team of threads (base/team.h), and kernels for AVX-512, AVX2 or plain C chosen
 * when it is created. All three give the same bits (docs/numerics.md), and so does any number of
 * threads. */
#ifndef DI_OPS_CPU_CPU_H
#define DI_OPS_CPU_CPU_H

#include <stdbool.h>

#include "base/error.h"
#include "ops/ops.h"

typedef enum di_cpu_isa { DI_CPU_AUTO, DI_CPU_PLAIN, DI_CPU_AVX2, DI_CPU_AVX512 } di_cpu_isa;

typedef struct di_cpu_options {
    int threads;    /* 0 = every processor this process may use; at most 1024 */
    di_cpu_isa isa; /* AUTO = the widest that the processor and this build have */
} di_cpu_options;

/* NULL with *err: DI_ERR_UNSUPPORTED for an instruction set that the processor or the build lacks,
 * DI_ERR_ARGUMENT for a thread count out of range. o may be NULL (all defaults). Destroy with
 * ops->destroy. */
di_backend *di_cpu_create(const di_cpu_options *o, di_error *err);

/* Can kernels of this kind run here? AUTO and PLAIN always can. */
bool di_cpu_isa_usable(di_cpu_isa isa);

/* "auto", "plain", "avx2", "avx512". */
const char *di_cpu_isa_name(di_cpu_isa isa);

/* What a backend made by di_cpu_create chose. */
di_cpu_isa di_cpu_isa_of(const di_backend *be);
int di_cpu_threads_of(const di_backend *be);

#endif
