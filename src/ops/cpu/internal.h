/* What the files of the CPU backend share: the backend's struct, scratch memory, the runner of
 * matrix products, and every op's prototype. Included only inside ops/cpu. */
#ifndef DI_OPS_CPU_INTERNAL_H
#define DI_OPS_CPU_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/team.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/kernels.h"
#include "ops/ops.h"

/* Scratch memory grows on demand and is kept; one buffer for each use inside an op. */
typedef enum di_cpu_use {
    DI_CPU_USE_THREADS, /* di_cpu_thread_scratch */
    DI_CPU_USE_A,       /* activation rows in lane order */
    DI_CPU_USE_B,       /* a second set of them */
    DI_CPU_USE_ROWS,    /* pointers to activation rows */
    DI_CPU_USE_JOBS,
    DI_CPU_USE_LIST, /* integers: orders, compact lists */
    DI_CPU_USE_X,    /* results on their way: three kinds */
    DI_CPU_USE_Y,
    DI_CPU_USE_Z,
    DI_CPU_NUM_USES,
} di_cpu_use;

typedef struct di_cpu {
    di_backend base;
    const di_cpu_kernels *k;
    di_cpu_isa isa;
    int threads;
    di_team *team;
    size_t failed; /* bytes that could not be had since the last sync; until then ops do nothing */
    struct {
        void *data;
        size_t bytes;
    } scratch[DI_CPU_NUM_USES];
} di_cpu;

static inline di_cpu *di_cpu_of(di_backend *be) {
    return (di_cpu *)be;
}

/* count * size bytes, 64-byte aligned, valid until the next call with the same use. NULL when
 * memory is short: the fault is remembered and the op returns. */
void *di_cpu_scratch(di_cpu *cpu, di_cpu_use use, size_t count, size_t size);

/* `floats` of scratch for each thread; thread i's part begins at i * *stride. */
float *di_cpu_thread_scratch(di_cpu *cpu, size_t floats, size_t *stride);

/* Threads worth using for that many elementary operations (multiply-adds). */
int di_cpu_threads_for(const di_cpu *cpu, double operations);

/* Has passes 0 .. n - 1 of a loop done by as many threads as that many operations are worth, and
 * returns when all are. */
void di_cpu_for(di_cpu *cpu, double operations, int64_t n, di_team_pass *pass, void *arg);

/* Floats from one row in lane order to the next: whole blocks, and an odd number of cache lines so
 * that rows do not fall on each other in the cache. */
static inline size_t di_cpu_row_floats(int k) {
    return ((size_t)k + 31) / 32 * 32 + 16;
}

/* ---- matrix products (linear.c) ---------------------------------------------------------------*/

/* y rows of one product: [rows of w] f32 or bf16 values (the other pointer NULL), ld apart; the row
 * of a[i] is y row index[i], or i when index is NULL. */
typedef struct di_cpu_job {
    di_cpu_matrix w;
    int64_t row0, rows; /* rows of w that take part */
    const float *const *a;
    int m;
    float *yf;
    di_bf16 *yb;
    size_t ldy;
    const int32_t *index;
    bool add;           /* to what yf holds */
    int64_t first_task; /* the runner's */
} di_cpu_job;

di_cpu_matrix di_cpu_matrix_of(const di_tensor *w);

/* All jobs in one parallel region. */
void di_cpu_run(di_cpu *cpu, di_cpu_job *jobs, int num_jobs);

/* Rows of x [n, k], ldx apart, in lane order, quantised by Q8 or not; *rows: pointers to them.
 * Lives in USE_A and USE_ROWS. false without memory. */
bool di_cpu_activations(di_cpu *cpu, const di_bf16 *x, size_t ldx, int n, int k, bool quantise,
                        float **a, const float ***rows);

/* Rows of x [n, k] through Q8, to BF16; y may be x. */
void di_cpu_q8_rows(di_cpu *cpu, const di_bf16 *x, int n, int k, di_bf16 *y);

/* ---- selection (select.c) ---------------------------------------------------------------------*/

/* Order of f32 scores as integers: a larger key is a better score, +0 and -0 are equal; 0 for what
 * may never be chosen (infinities, NaN). */
uint32_t di_cpu_score_key(float score);

/* The k best of n keys, lower index first among equals, ascending, filled up with -1; keys of 0 are
 * never chosen. */
void di_cpu_select(const uint32_t *keys, int64_t n, int k, int32_t *chosen);

/* ---- ops --------------------------------------------------------------------------------------*/

di_op_embed di_cpu_embed;
di_op_gather_rows di_cpu_gather_rows;
di_op_rms_norm di_cpu_rms_norm;
di_op_rope_table di_cpu_rope_table;
di_op_rope di_cpu_rope;

di_op_mhc_mix di_cpu_mhc_mix;
di_op_mhc_pre di_cpu_mhc_pre;
di_op_stream_mean di_cpu_stream_mean;
di_op_mhc_post di_cpu_mhc_post;

di_op_linear di_cpu_linear;
di_op_linear_pair di_cpu_linear_pair;
di_op_linear_f32 di_cpu_linear_f32;
di_op_linear_add_f32 di_cpu_linear_add_f32;
di_op_linear_grouped di_cpu_linear_grouped;

di_op_window_make di_cpu_window_make;
di_op_window_store di_cpu_window_store;
di_op_compress di_cpu_compress;
di_op_entry_store di_cpu_entry_store;

di_op_index_topk di_cpu_index_topk;
di_op_attention di_cpu_attention;

di_op_route di_cpu_route;
di_op_moe di_cpu_moe;
di_op_engram di_cpu_engram;

#endif
