/* Speed of the CPU backend's products at DeepSeek-V4.1-Flash's widths, beside this machine's own
 * ceilings measured in the same run: decode (one row) against the bandwidth of reading memory (or,
 * on AVX2, against the rate of vector instructions where that binds first), prefill (256 rows)
 * against the peak of fused multiply-adds. One line a case.
 *
 *   bench/ops [--isa plain|avx2|avx512] [--threads N] [--only PART_OF_A_NAME] */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/alloc.h"
#include "base/clock.h"
#include "ops/cpu/cpu.h"

enum {
    HIDDEN = 5120,
    INTER = 2304,
    Q_LORA = 1280,
    HEADS = 64,
    HEAD_DIM = 512,
    O_GROUPS = 8,
    O_LORA = 1024,
    TOP_K = 6,
    PREFILL_ROWS = 256,
};
/* Weights are visited in turn until so much has gone by: none is found in a cache again. */
#define CYCLE_BYTES ((size_t)512 << 20)

static void *take(size_t bytes) {
    void *p = di_alloc_aligned(bytes);
    if (!p) {
        fprintf(stderr, "bench/ops: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* Random bytes that are no NaN in any of the formats used. */
static uint8_t *take_codes(size_t bytes) {
    uint8_t *p = take(bytes);
#pragma omp parallel for schedule(static, 1 << 16)
    for (size_t i = 0; i < bytes; i++) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
        p[i] = (uint8_t)(z >> 40 & 0xbf);
    }
    return p;
}

/* ---- ceilings ---------------------------------------------------------------------------------*/

typedef uint64_t words __attribute__((vector_size(64)));

/* The best time of each part of a cycle, over some rounds. Parts are timed alone and their best
 * times added up, so that other programs' time slices do not count: neither in a ceiling nor in a
 * case. */
enum { MOST_PARTS = 64, ROUNDS = 8 };

typedef struct best_times {
    double part[MOST_PARTS];
    int parts;
} best_times;

static void add_time(best_times *t, int part, double used) {
    t->part[part] = part == t->parts || used < t->part[part] ? used : t->part[part];
    t->parts = part == t->parts ? part + 1 : t->parts;
}

static double cycle_time(const best_times *t) {
    double sum = 0;
    for (int i = 0; i < t->parts; i++) {
        sum += t->part[i];
    }
    return sum;
}

static uint64_t add_up(const words *buffer, size_t n, int threads) {
    uint64_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        size_t share = n / (size_t)threads, first = share * (size_t)omp_get_thread_num();
        words sum[4] = {0};
        for (size_t i = first; i + 4 <= first + share; i += 4) {
            for (int j = 0; j < 4; j++) {
                sum[j] += buffer[i + (size_t)j];
            }
        }
        sum[0] += sum[1] + sum[2] + sum[3];
        total += sum[0][0] ^ sum[0][7];
    }
    return total;
}

/* Bytes a second of adding up a buffer that no cache holds. */
static double read_bandwidth(int threads) {
    enum { PARTS = 32 };
    words *buffer = (words *)take_codes(CYCLE_BYTES);
    size_t n = CYCLE_BYTES / sizeof(words) / PARTS;
    best_times times = {.parts = 0};
    uint64_t total = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PARTS; i++) {
            double begin = di_now();
            total += add_up(buffer + (size_t)i * n, n, threads);
            add_time(&times, i, di_now() - begin);
        }
    }
    di_free_aligned(buffer);
    return total ? (double)CYCLE_BYTES / cycle_time(&times) : 0;
}

enum { PEAK_STEPS = 1 << 18, PEAK_CHAINS = 12, PEAK_ROUNDS = 300 };

/* Multiply-adds in PEAK_CHAINS independent chains, as each instruction set does them. */
#define PEAK_LOOP(type, set1, muladd, first)                                                       \
    type sum[PEAK_CHAINS], a = set1(x), b = set1(0.5f);                                            \
    for (int j = 0; j < PEAK_CHAINS; j++) {                                                        \
        sum[j] = b;                                                                                \
    }                                                                                              \
    for (int i = 0; i < PEAK_STEPS; i++) {                                                         \
        _Pragma("GCC unroll 16") for (int j = 0; j < PEAK_CHAINS; j++) {                           \
            sum[j] = muladd(sum[j], a, b);                                                         \
        }                                                                                          \
    }                                                                                              \
    float total = 0;                                                                               \
    for (int j = 0; j < PEAK_CHAINS; j++) {                                                        \
        total += first(sum[j]);                                                                    \
    }                                                                                              \
    return total

typedef float four __attribute__((vector_size(16)));
#define FOUR(x)              ((four){(x), (x), (x), (x)})
#define FOUR_MULADD(a, b, c) ((a) * (b) + (c))
#define FOUR_FIRST(a)        ((a)[0])

static float peak_plain(float x) {
    PEAK_LOOP(four, FOUR, FOUR_MULADD, FOUR_FIRST);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static float peak_avx2(float x) {
    PEAK_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32);
}

__attribute__((target("avx512f"))) static float peak_avx512(float x) {
    PEAK_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32);
}
#endif

/* Floating-point operations a second; two in a multiply-add. */
static double fma_peak(di_cpu_isa isa, int threads) {
    float (*loop)(float) = peak_plain;
    int lanes = 4;
#if defined(__x86_64__)
    if (isa == DI_CPU_AVX2) {
        loop = peak_avx2;
        lanes = 8;
    } else if (isa == DI_CPU_AVX512) {
        loop = peak_avx512;
        lanes = 16;
    }
#endif
    double best = 0;
    for (int round = 0; round < PEAK_ROUNDS; round++) {
        double begin = di_now();
        float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
        total += loop(0.5f);
        double rate = 2.0 * PEAK_STEPS * PEAK_CHAINS * lanes * threads / (di_now() - begin);
        best = total > 0 && rate > best ? rate : best;
    }
    return best;
}

/* Vector instructions a second, of a mix of one multiply-add to three integer operations. Only AVX2
 * needs it: there, decoding a weight costs more than reading it. */
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static float issue_loop(float x) {
    __m256 a = _mm256_set1_ps(x), b = _mm256_set1_ps(0.5f), s0 = b, s1 = b, s2 = b, s3 = b;
    __m256i one = _mm256_set1_epi32(1);
    __m256i i0 = one, i1 = one, i2 = one, i3 = one, i4 = one, i5 = one, i6 = one, i7 = one;
    for (int i = 0; i < PEAK_STEPS; i++) {
        __asm__ volatile("vfmadd213ps %13, %12, %0\n vpaddd %14, %4, %4\n vpxor %14, %5, %5\n"
                         "vpaddd %14, %6, %6\n vfmadd213ps %13, %12, %1\n vpxor %14, %7, %7\n"
                         "vpaddd %14, %8, %8\n vpxor %14, %9, %9\n vfmadd213ps %13, %12, %2\n"
                         "vpaddd %14, %10, %10\n vpxor %14, %11, %11\n vpaddd %14, %4, %4\n"
                         "vfmadd213ps %13, %12, %3\n vpxor %14, %5, %5\n vpaddd %14, %6, %6\n"
                         "vpxor %14, %7, %7"
                         : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(i0), "+x"(i1), "+x"(i2),
                           "+x"(i3), "+x"(i4), "+x"(i5), "+x"(i6), "+x"(i7)
                         : "x"(a), "x"(b), "x"(one));
    }
    s0 = _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3));
    return _mm256_cvtss_f32(s0);
}

static double issue_rate(di_cpu_isa isa, int threads) {
    double best = 0;
    for (int round = 0; round < PEAK_ROUNDS && isa == DI_CPU_AVX2; round++) {
        double begin = di_now();
        float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
        total += issue_loop(0.5f);
        double rate = 16.0 * PEAK_STEPS * threads / (di_now() - begin);
        best = total > 0 && rate > best ? rate : best;
    }
    return best;
}
#else
static double issue_rate(di_cpu_isa isa, int threads) {
    (void)isa;
    (void)threads;
    return 0;
}
#endif

/* ---- cases ------------------------------------------------------------------------------------*/

typedef struct bench {
    di_backend *be;
    double bandwidth, peak, issue;
    di_bf16 *x, *y;
    const char *only;
} bench;

static size_t tensor_bytes(const di_tensor *t) {
    size_t n = (size_t)t->shape[0] * (size_t)t->shape[1];
    size_t bytes = n * (size_t)di_dtype_bits(t->dtype) / 8;
    return t->scale ? bytes + n / (size_t)(t->scale_block[0] * t->scale_block[1]) : bytes;
}

static di_tensor make_tensor(di_dtype dtype, int64_t rows, int64_t cols) {
    di_tensor t = {.dtype = dtype, .rank = 2, .shape = {rows, cols}};
    if (dtype != DI_BF16) {
        t.scale_block[0] = dtype == DI_F8_E4M3 ? 32 : 1;
        t.scale_block[1] = 32;
        size_t scales = (size_t)(rows / t.scale_block[0] * (cols / 32));
        uint8_t *scale = take(scales);
        memset(scale, 120, scales);
        t.scale = scale;
    }
    t.data = take_codes((size_t)rows * (size_t)cols * (size_t)di_dtype_bits(dtype) / 8);
    return t;
}

static void free_tensor(di_tensor *t) {
    di_free_aligned((void *)t->data);
    di_free_aligned((void *)t->scale);
}

/* AVX2's instructions for 32 weights and one row (ops/cpu/v16_avx2.h), loads not counted: decoding,
 * scaling (FP4), looking for NaN codes (FP8), and four multiply-adds. */
static double decode_ceiling(const bench *b, di_dtype dtype) {
    double instructions = dtype == DI_FP4_E2M1 ? 25 : dtype == DI_F8_E4M3 ? 17 : 8;
    double bound = b->issue * 4 * di_dtype_bits(dtype) / instructions;
    return bound > 0 && bound < b->bandwidth ? bound : b->bandwidth;
}

static void report(const char *name, double rate, double ceiling, const char *unit) {
    printf("%-44s %8.1f %-8s ceiling %8.1f  ratio %.2f\n", name, rate * 1e-9, unit, ceiling * 1e-9,
           rate / ceiling);
    fflush(stdout);
}

typedef enum product_kind { LINEAR, LINEAR_F32, GROUPED } product_kind;

static void run_product(bench *b, product_kind kind, const di_tensor *w, int n) {
    if (kind == LINEAR) {
        b->be->ops->linear(b->be, b->x, DI_PLAIN, n, w, b->y);
    } else if (kind == LINEAR_F32) {
        b->be->ops->linear_f32(b->be, b->x, n, w, (float *)b->y);
    } else {
        b->be->ops->linear_grouped(b->be, b->x, n, O_GROUPS, w, b->y, DI_PLAIN);
    }
}

/* The same shape in as many copies as no cache holds. */
static void bench_product(bench *b, const char *name, product_kind kind, di_dtype dtype,
                          int64_t rows, int64_t cols) {
    if (b->only && !strstr(name, b->only)) {
        return;
    }
    di_tensor w[MOST_PARTS];
    int copies = 0;
    size_t bytes = 0;
    for (; copies < MOST_PARTS && bytes < CYCLE_BYTES; copies++) {
        w[copies] = make_tensor(dtype, rows, cols);
        bytes += tensor_bytes(&w[copies]);
    }
    best_times decode = {.parts = 0};
    double prefill = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < copies; i++) {
            double begin = di_now();
            run_product(b, kind, &w[i], 1);
            add_time(&decode, i, di_now() - begin);
        }
    }
    char title[64];
    snprintf(title, sizeof title, "decode 1, %s", name);
    report(title, (double)bytes / cycle_time(&decode), decode_ceiling(b, dtype), "GB/s");
    for (int round = 0; round < 2 * ROUNDS; round++) {
        double begin = di_now();
        run_product(b, kind, &w[round % copies], PREFILL_ROWS);
        double used = di_now() - begin;
        prefill = used < prefill ? used : prefill;
    }
    snprintf(title, sizeof title, "prefill %d, %s", PREFILL_ROWS, name);
    report(title, 2.0 * PREFILL_ROWS * (double)rows * (double)cols / prefill, b->peak, "GFLOP/s");
    for (int i = 0; i < copies; i++) {
        free_tensor(&w[i]);
    }
}

enum { EXPERTS = 4 * TOP_K };

static void make_expert(di_expert *e, di_dtype dtype) {
    e->w1 = make_tensor(dtype, INTER, HIDDEN);
    e->w3 = make_tensor(dtype, INTER, HIDDEN);
    e->w2 = make_tensor(dtype, HIDDEN, INTER);
}

static void bench_experts(bench *b) {
    if (b->only && !strstr("experts", b->only)) {
        return;
    }
    static di_expert routed[EXPERTS], shared[4];
    static int32_t chosen[PREFILL_ROWS * TOP_K];
    static float weights[PREFILL_ROWS * TOP_K];
    for (int e = 0; e < EXPERTS; e++) {
        make_expert(&routed[e], DI_FP4_E2M1);
    }
    for (int e = 0; e < 4; e++) {
        make_expert(&shared[e], DI_F8_E4M3);
    }
    double decode = 1e9, prefill = 1e9;
    double bytes =
        3.0 * (double)(TOP_K * tensor_bytes(&routed[0].w1) + tensor_bytes(&shared[0].w1));
    for (int round = 0; round < 4 * ROUNDS; round++) {
        for (int j = 0; j < TOP_K; j++) {
            chosen[j] = round % 4 * TOP_K + j;
            weights[j] = 0.25f;
        }
        double begin = di_now();
        b->be->ops->moe(b->be, b->x, 1, chosen, weights, TOP_K, routed, EXPERTS, &shared[round % 4],
                        10, b->y);
        double used = di_now() - begin;
        decode = round && used < decode ? used : decode;
    }
    /* six FP4 parts of one unit of bytes, one FP8 part of two */
    double ceiling = 8 / (6 / decode_ceiling(b, DI_FP4_E2M1) + 2 / decode_ceiling(b, DI_F8_E4M3));
    report("decode 1, 6 MXFP4 experts + 1 FP8", bytes / decode, ceiling, "GB/s");
    for (int t = 0; t < PREFILL_ROWS; t++) { /* every expert gets its share of the rows */
        for (int j = 0; j < TOP_K; j++) {
            chosen[t * TOP_K + j] = t % 4 * TOP_K + j;
            weights[t * TOP_K + j] = 0.25f;
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        double begin = di_now();
        b->be->ops->moe(b->be, b->x, PREFILL_ROWS, chosen, weights, TOP_K, routed, EXPERTS,
                        &shared[round % 4], 10, b->y);
        double used = di_now() - begin;
        prefill = used < prefill ? used : prefill;
    }
    double work = 2.0 * PREFILL_ROWS * (TOP_K + 1) * 3.0 * HIDDEN * INTER;
    report("prefill 256, MXFP4 experts (64 rows each)", work / prefill, b->peak, "GFLOP/s");
}

static di_cpu_isa isa_named(const char *name) {
    for (int isa = DI_CPU_AUTO; isa <= DI_CPU_AVX512; isa++) {
        if (strcmp(name, di_cpu_isa_name((di_cpu_isa)isa)) == 0) {
            return (di_cpu_isa)isa;
        }
    }
    fprintf(stderr, "bench/ops: unknown --isa %s\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    di_cpu_options options = {0};
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--isa") == 0) {
            options.isa = isa_named(argv[++i]);
        } else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0) {
            options.threads = atoi(argv[++i]);
        } else if (i + 1 < argc && strcmp(argv[i], "--only") == 0) {
            only = argv[++i];
        } else {
            fprintf(stderr,
                    "usage: bench/ops [--isa plain|avx2|avx512] [--threads N] [--only NAME]\n");
            return 2;
        }
    }
    di_error err;
    bench b = {.only = only, .be = di_cpu_create(&options, &err)};
    if (!b.be) {
        fprintf(stderr, "bench/ops: %s\n", err.message);
        return 1;
    }
    int threads = di_cpu_threads_of(b.be);
    di_cpu_isa isa = di_cpu_isa_of(b.be);
    b.bandwidth = read_bandwidth(threads);
    b.peak = fma_peak(isa, threads);
    b.issue = issue_rate(isa, threads);
    printf("cpu backend: %s, %d threads; reading %.1f GB/s, multiply-add peak %.1f GFLOP/s\n",
           di_cpu_isa_name(isa), threads, b.bandwidth * 1e-9, b.peak * 1e-9);
    if (b.issue > 0) {
        printf("vector instructions: %.1f G/s\n", b.issue * 1e-9);
    }
    b.x = (di_bf16 *)take_codes((size_t)PREFILL_ROWS * HEADS * HEAD_DIM * sizeof *b.x);
    b.y = take((size_t)PREFILL_ROWS * HEADS * HEAD_DIM * sizeof *b.y);
    bench_product(&b, "FP8 wq_b [32768, 1280]", LINEAR, DI_F8_E4M3, HEADS * HEAD_DIM, Q_LORA);
    bench_product(&b, "FP8 wo_b [5120, 8192]", LINEAR, DI_F8_E4M3, HIDDEN, O_GROUPS * O_LORA);
    bench_product(&b, "FP8 wkv [512, 5120]", LINEAR, DI_F8_E4M3, HEAD_DIM, HIDDEN);
    bench_product(&b, "FP8 wo_a 8 x [1024, 4096]", GROUPED, DI_F8_E4M3, O_GROUPS * O_LORA,
                  HEADS * HEAD_DIM / O_GROUPS);
    bench_product(&b, "MXFP4 w1 [2304, 5120]", LINEAR, DI_FP4_E2M1, INTER, HIDDEN);
    bench_product(&b, "MXFP4 w2 [5120, 2304]", LINEAR, DI_FP4_E2M1, HIDDEN, INTER);
    bench_product(&b, "BF16 gate [384, 5120]", LINEAR_F32, DI_BF16, 384, HIDDEN);
    bench_product(&b, "BF16 head [16160, 5120]", LINEAR_F32, DI_BF16, 16160, HIDDEN);
    bench_experts(&b);
    return 0;
}
