/* The CPU backend itself: choice of kernels, buffers, scratch memory, the table of ops. */
#include "ops/cpu/cpu.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/cpuinfo.h"
#include "ops/cpu/internal.h"

enum { BUFFER_ALIGNMENT = 256, MAX_THREADS = 1024 };

/* ---- buffers ----------------------------------------------------------------------------------*/

/* In front of each buffer, at its own alignment, stands the address that was allocated. */
static void *buffer_alloc(di_backend *be, size_t bytes) {
    (void)be;
    size_t total;
    if (!di_add_size(bytes, BUFFER_ALIGNMENT + sizeof(void *), &total)) {
        return NULL;
    }
    unsigned char *block = di_alloc_aligned(total);
    if (!block) {
        return NULL;
    }
    uintptr_t first = (uintptr_t)block + sizeof(void *);
    size_t skip = (BUFFER_ALIGNMENT - first % BUFFER_ALIGNMENT) % BUFFER_ALIGNMENT;
    unsigned char *buffer = block + sizeof(void *) + skip;
    memcpy(buffer - sizeof(void *), &block, sizeof(void *));
    return buffer;
}

static void buffer_free(di_backend *be, void *buffer) {
    (void)be;
    if (buffer) {
        void *block;
        memcpy(&block, (unsigned char *)buffer - sizeof(void *), sizeof block);
        di_free_aligned(block);
    }
}

static void copy_in(di_backend *be, void *to, const void *from_host, size_t bytes) {
    (void)be;
    if (bytes) {
        memcpy(to, from_host, bytes);
    }
}

static void copy_out(di_backend *be, void *to_host, const void *from, size_t bytes) {
    copy_in(be, to_host, from, bytes);
}

void *di_cpu_scratch(di_cpu *cpu, di_cpu_use use, size_t count, size_t size) {
    size_t bytes;
    if (!di_mul_size(count, size, &bytes)) {
        cpu->failed = SIZE_MAX;
        return NULL;
    }
    if (cpu->scratch[use].bytes < bytes || !cpu->scratch[use].data) {
        di_free_aligned(cpu->scratch[use].data);
        cpu->scratch[use].data = di_alloc_aligned(bytes);
        cpu->scratch[use].bytes = cpu->scratch[use].data ? bytes : 0;
        if (!cpu->scratch[use].data) {
            cpu->failed = bytes ? bytes : 1;
        }
    }
    return cpu->scratch[use].data;
}

float *di_cpu_thread_scratch(di_cpu *cpu, size_t floats, size_t *stride) {
    *stride = (floats + 31) / 32 * 32 + 16; /* threads never share a cache line */
    return di_cpu_scratch(cpu, DI_CPU_USE_THREADS, (size_t)cpu->threads, *stride * sizeof(float));
}

int di_cpu_threads_for(const di_cpu *cpu, double operations) {
    /* About 12 microseconds of one thread, then at least some 6 for each. An idle machine would pay
     * for less; on a busy one, whoever takes a part may lose the processor with it. */
    const double worth_a_team = 1 << 18, worth_a_thread = 1 << 17;
    double n = operations < worth_a_team ? 1 : operations / worth_a_thread;
    return n < cpu->threads ? (int)n : cpu->threads;
}

void di_cpu_for(di_cpu *cpu, double operations, int64_t n, di_team_pass *pass, void *arg) {
    int threads = di_cpu_threads_for(cpu, operations);
    di_team_run(cpu->team, threads, n, n / (16 * threads), pass, arg);
}

static bool synchronise(di_backend *be, di_error *err) {
    di_cpu *cpu = di_cpu_of(be);
    size_t failed = cpu->failed;
    cpu->failed = 0;
    return !failed || di_fail(err, DI_ERR_NO_MEMORY,
                              "cpu backend: no memory for %zu bytes of scratch space", failed);
}

static void destroy(di_backend *be) {
    di_cpu *cpu = di_cpu_of(be);
    for (int i = 0; i < DI_CPU_NUM_USES; i++) {
        di_free_aligned(cpu->scratch[i].data);
    }
    di_team_destroy(cpu->team);
    di_free(cpu);
}

static const di_ops cpu_ops = {
    .name = "cpu",
    .alloc = buffer_alloc,
    .free = buffer_free,
    .upload = copy_in,
    .download = copy_out,
    .copy = copy_out,
    .sync = synchronise,
    .destroy = destroy,
    .embed = di_cpu_embed,
    .gather_rows = di_cpu_gather_rows,
    .mhc_mix = di_cpu_mhc_mix,
    .mhc_pre = di_cpu_mhc_pre,
    .mhc_post = di_cpu_mhc_post,
    .rms_norm = di_cpu_rms_norm,
    .linear = di_cpu_linear,
    .linear_pair = di_cpu_linear_pair,
    .linear_f32 = di_cpu_linear_f32,
    .linear_add_f32 = di_cpu_linear_add_f32,
    .linear_grouped = di_cpu_linear_grouped,
    .stream_mean = di_cpu_stream_mean,
    .rope_table = di_cpu_rope_table,
    .rope = di_cpu_rope,
    .window_make = di_cpu_window_make,
    .window_store = di_cpu_window_store,
    .compress = di_cpu_compress,
    .entry_store = di_cpu_entry_store,
    .index_topk = di_cpu_index_topk,
    .attention = di_cpu_attention,
    .route = di_cpu_route,
    .moe = di_cpu_moe,
    .engram = di_cpu_engram,
};

/* ---- choice -----------------------------------------------------------------------------------*/

const char *di_cpu_isa_name(di_cpu_isa isa) {
    static const char *const names[] = {"auto", "plain", "avx2", "avx512"};
    return names[isa];
}

bool di_cpu_isa_usable(di_cpu_isa isa) {
#if defined(__x86_64__)
    bool avx2 =
        di_cpu_has(DI_CPU_HAS_AVX2) && di_cpu_has(DI_CPU_HAS_FMA) && di_cpu_has(DI_CPU_HAS_F16C);
    if (isa == DI_CPU_AVX2) {
        return avx2;
    }
    if (isa == DI_CPU_AVX512) {
        return avx2 && di_cpu_has(DI_CPU_HAS_AVX512F) && di_cpu_has(DI_CPU_HAS_AVX512BW) &&
               di_cpu_has(DI_CPU_HAS_AVX512DQ) && di_cpu_has(DI_CPU_HAS_AVX512VL);
    }
#endif
    return isa == DI_CPU_AUTO || isa == DI_CPU_PLAIN;
}

static const di_cpu_kernels *kernels_of(di_cpu_isa isa) {
#if defined(__x86_64__)
    if (isa == DI_CPU_AVX2) {
        return &di_cpu_kernels_avx2;
    }
    if (isa == DI_CPU_AVX512) {
        return &di_cpu_kernels_avx512;
    }
#endif
    (void)isa;
    return &di_cpu_kernels_plain;
}

di_backend *di_cpu_create(const di_cpu_options *o, di_error *err) {
    di_cpu_options defaults = {0};
    o = o ? o : &defaults;
    if (o->threads < 0 || o->threads > MAX_THREADS) {
        di_fail(err, DI_ERR_ARGUMENT, "threads: %d is not between 0 and %d", o->threads,
                MAX_THREADS);
        return NULL;
    }
    if (o->isa < DI_CPU_AUTO || o->isa > DI_CPU_AVX512) {
        di_fail(err, DI_ERR_ARGUMENT, "unknown instruction set number %d", (int)o->isa);
        return NULL;
    }
    di_cpu_isa isa = o->isa;
    if (isa == DI_CPU_AUTO) {
        isa = di_cpu_isa_usable(DI_CPU_AVX512) ? DI_CPU_AVX512
              : di_cpu_isa_usable(DI_CPU_AVX2) ? DI_CPU_AVX2
                                               : DI_CPU_PLAIN;
    } else if (!di_cpu_isa_usable(isa)) {
        char found[256];
        di_cpu_feature_list(found, sizeof found);
        di_fail(err, DI_ERR_UNSUPPORTED, "this processor cannot run the %s kernels (it has: %s)",
                di_cpu_isa_name(isa), found[0] ? found : "none of the features asked for");
        return NULL;
    }
    di_cpu *cpu = di_calloc(1, sizeof *cpu);
    if (!cpu) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the cpu backend");
        return NULL;
    }
    cpu->base.ops = &cpu_ops;
    cpu->k = kernels_of(isa);
    cpu->isa = isa;
    cpu->threads = o->threads ? o->threads : di_cpu_count();
    cpu->threads = cpu->threads > MAX_THREADS ? MAX_THREADS : cpu->threads;
    cpu->team = di_team_create(cpu->threads, err);
    if (!cpu->team) {
        destroy(&cpu->base);
        return NULL;
    }
    return &cpu->base;
}

di_cpu_isa di_cpu_isa_of(const di_backend *be) {
    return ((const di_cpu *)be)->isa;
}

int di_cpu_threads_of(const di_backend *be) {
    return ((const di_cpu *)be)->threads;
}
