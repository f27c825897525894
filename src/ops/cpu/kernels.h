/* The inner loops of the CPU backend, one table per instruction set. Each table is made by
 * compiling kernels.inc over one v16_*.h; the tables give the same bits. Called by the ops in this
 * folder, from many threads at once; kernels never allocate and never start threads.
 *
 * "Lane order" of a row of f32: in each block of 32 values the 16 even-numbered ones come first,
 * then the 16 odd ones. Every dot product below is summed so: lane i of 16 takes values 32b + 2i
 * and then 32b + 2i + 1 for b ascending, and the lanes are added by the tree of v16_sum. Rows end
 * on a block (zeros behind the last value). */
#ifndef DI_OPS_CPU_KERNELS_H
#define DI_OPS_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/formats.h"
#include "base/tensor.h"

enum {
    DI_CPU_BLOCK = 32,           /* values that share a scale, and the unit of lane order */
    DI_CPU_PRODUCT_ROWS = 48,    /* most activation rows of one product() */
    DI_CPU_PRODUCT_COLS = 96,    /* most weight rows of one product() */
    DI_CPU_PRODUCT_DEPTH = 1024, /* values along k that a panel of decoded weights covers */
    DI_CPU_SLOTS = 64,           /* list slots of one attention block */
    DI_CPU_PAD_ROWS = 8,         /* dots() may read (not use) this many rows behind b's last */
};

/* A weight matrix as stored. k is a multiple of 32 unless dtype is BF16. */
typedef struct di_cpu_matrix {
    di_dtype dtype; /* BF16, F8_E4M3 or FP4_E2M1 */
    const uint8_t *data, *scale;
    int64_t rows;
    int k;
    size_t row_bytes;
    int scale_rows; /* weight rows that share a row of scales */
} di_cpu_matrix;

/* Floats of scratch that product() needs for depth k. */
static inline size_t di_cpu_product_scratch(int k) {
    size_t blocks = ((size_t)k + DI_CPU_BLOCK - 1) / DI_CPU_BLOCK;
    size_t few = 8 * blocks * DI_CPU_BLOCK + 8 * blocks;
    size_t many = (size_t)DI_CPU_PRODUCT_ROWS * DI_CPU_PRODUCT_COLS * 16 + 8 * DI_CPU_PRODUCT_DEPTH;
    return few > many ? few : many;
}

/* The rule by which projections become hyper-connection coefficients; hc <= 8. */
typedef struct di_cpu_mix {
    int hc, rounds; /* of Sinkhorn's */
    float eps;
    const float *base, *scale;
} di_cpu_mix;

typedef struct di_cpu_kernels {
    const char *name;

    /* BF16 [k] to f32 in lane order; the last block is filled with zeros. */
    void (*widen)(const di_bf16 *x, int k, float *a);

    /* Q8 and Q4I there and back: code * scale in lane order; k a multiple of 32. */
    void (*quant8)(const di_bf16 *x, int k, float *a);
    void (*quant4)(const di_bf16 *x, int k, float *a);

    /* y[i][r] = sum over k of a[i] * w[row0 + r], i < m <= PRODUCT_ROWS, r < rows <= PRODUCT_COLS.
     * a: m rows in lane order; scratch: di_cpu_product_scratch(k) floats. */
    void (*product)(const di_cpu_matrix *w, int64_t row0, int rows, const float *const *a, int m,
                    float *scratch, float *y, size_t ldy);

    /* y[i][j] = a[i] . b[j], both in lane order, k a multiple of 32, i < m, j < n; PAD_ROWS. */
    void (*dots)(const float *a, size_t lda, int m, const float *b, size_t ldb, int n, int k,
                 float *y, size_t ldy);

    /* Sums in f64, lane i of 16 taking values 16b + i, the lanes added by the same tree.
     * squares: x . x;  dots64: y[r] = x . w[r], w f32 rows `stride` apart;
     * triple: sum of x * (q * k) * y. */
    double (*squares)(const di_bf16 *x, size_t n);
    void (*dots64)(const di_bf16 *x, const float *w, size_t stride, int rows, size_t n, double *y);
    double (*triple)(const di_bf16 *x, const di_bf16 *q, const di_bf16 *k, const di_bf16 *y,
                     size_t n);

    /* x: [n][(2 + hc) * hc] projections; pre, post: [n][hc]; comb: [n][hc][hc]. */
    void (*mix)(const di_cpu_mix *rule, const float *x, int n, float *pre, float *post,
                float *comb);
    /* y = bf16(w * (x * rho)); y may be x. */
    void (*scale_row)(const di_bf16 *x, const di_bf16 *w, float rho, size_t n, di_bf16 *y);
    /* out = bf16(sum of pre[i] * h[i]), streams d apart. */
    void (*collapse)(const di_bf16 *h, const float *pre, int hc, size_t d, di_bf16 *out);
    /* h[j] = bf16(post[j] * y + (sum over i of comb[i][j] * h[i])), in place; hc <= 8. */
    void (*expand)(const di_bf16 *y, const float *post, const float *comb, int hc, size_t d,
                   di_bf16 *h);
    /* h = bf16(h + g * v) */
    void (*add_scaled)(const di_bf16 *v, float g, size_t n, di_bf16 *h);
    /* t = bf16(weight * (silu(a) * b)), a and b clamped first if limit > 0 */
    void (*swiglu)(const di_bf16 *a, const di_bf16 *b, float weight, float limit, size_t n,
                   di_bf16 *t);
    /* sum += x */
    void (*accumulate)(const di_bf16 *x, size_t n, float *sum);
    void (*round_row)(const float *x, size_t n, di_bf16 *y);

    /* Cache records (ops.h) to f32 in lane order. */
    void (*window_row)(const uint8_t *record, int dim, float *a);
    void (*latent_row)(const uint8_t *record, int dim, float *a);
    void (*key_row)(const uint8_t *record, int dim, float *a);

    /* One head's part of an attention block of n <= SLOTS scores (dots, scaled here): moves *peak
     * and *total, leaves BF16-rounded probabilities in p and gives the factor by which older sums
     * fade. Entries of p up to the next multiple of 16 are overwritten. */
    float (*softmax)(float *p, int n, float scale, float *peak, float *total);
    /* out[h] = out[h] * fade[h] + sum over j ascending of p[h][j] * v[j]; dim a multiple of 32. */
    void (*values)(const float *p, size_t ldp, int heads, const float *v, size_t ldv, int n,
                   int dim, const float *fade, float *out, size_t ldo);
    /* y = bf16(x / total), from lane order to plain order. */
    void (*finish)(const float *x, float total, int dim, di_bf16 *y);

    /* score[e] = sum over h ascending of weight[h] * max(0, dot[h][e]), e < n <= SLOTS */
    void (*index_scores)(const float *dot, size_t ld, int heads, const float *weight, int n,
                         float *score);
} di_cpu_kernels;

extern const di_cpu_kernels di_cpu_kernels_plain;
#if defined(__x86_64__)
extern const di_cpu_kernels di_cpu_kernels_avx2, di_cpu_kernels_avx512;
#endif

#endif
