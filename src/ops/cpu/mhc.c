/* Hyper-connections: the coefficients with their Sinkhorn rounds, collapse and expansion. */
#include <math.h>

#include "ops/cpu/internal.h"

enum { MAX_HC = 8, FN_ROWS = 4 /* rows of fn that pass over the tokens together */, TOKENS = 16 };

/* One call's loops: first the projections, then what is made of them. */
typedef struct coeffs_loop {
    const di_cpu_kernels *kernels;
    di_cpu_mix rule;
    const di_bf16 *h;
    const float *fn;
    int n, mixes;
    size_t width; /* hc * d */
    float norm_eps;
    double *dot; /* [n][mixes] */
    float *pre, *post, *comb;
} coeffs_loop;

/* A task is FN_ROWS rows of fn times TOKENS tokens. */
static void project(void *arg, int64_t begin, int64_t end, int member) {
    const coeffs_loop *c = arg;
    int token_groups = (c->n + TOKENS - 1) / TOKENS;
    (void)member;
    for (int task = (int)begin; task < (int)end; task++) {
        int row = task / token_groups * FN_ROWS, t0 = task % token_groups * TOKENS;
        int rows = c->mixes - row < FN_ROWS ? c->mixes - row : FN_ROWS;
        const float *w = c->fn + (size_t)row * c->width;
        for (int t = t0; t < c->n && t < t0 + TOKENS; t++) {
            c->kernels->dots64(c->h + (size_t)t * c->width, w, c->width, rows, c->width,
                               c->dot + t * c->mixes + row);
        }
    }
}

/* A task is TOKENS tokens. */
static void mix_rows(void *arg, int64_t begin, int64_t end, int member) {
    const coeffs_loop *c = arg;
    int hc = c->rule.hc;
    (void)member;
    for (int t0 = (int)begin * TOKENS; t0 < c->n && t0 < (int)end * TOKENS; t0 += TOKENS) {
        float mixes[TOKENS * (2 + MAX_HC) * MAX_HC], *mix = mixes;
        int count = c->n - t0 < TOKENS ? c->n - t0 : TOKENS;
        for (int t = t0; t < t0 + count; t++) {
            const di_bf16 *h = c->h + (size_t)t * c->width;
            double mean = c->kernels->squares(h, c->width) / (double)c->width;
            double rho = 1 / sqrt(mean + (double)c->norm_eps);
            for (int i = 0; i < c->mixes; i++) {
                *mix++ = (float)(c->dot[t * c->mixes + i] * rho);
            }
        }
        c->kernels->mix(&c->rule, mixes, count, c->pre + t0 * hc, c->post + t0 * hc,
                        c->comb + t0 * hc * hc);
    }
}

void di_cpu_mhc_mix(di_backend *be, const di_bf16 *h, int n, int hc, int d, const di_tensor *fn,
                    const di_tensor *base, const di_tensor *scale, float norm_eps, float hc_eps,
                    int sinkhorn_iters, float *pre, float *post, float *comb) {
    di_cpu *cpu = di_cpu_of(be);
    int mixes = (2 + hc) * hc, groups = (mixes + FN_ROWS - 1) / FN_ROWS;
    int token_groups = (n + TOKENS - 1) / TOKENS;
    size_t width = (size_t)hc * (size_t)d;
    double *dot =
        cpu->failed ? NULL
                    : di_cpu_scratch(cpu, DI_CPU_USE_X, (size_t)n, (size_t)mixes * sizeof(double));
    if (!dot) {
        return;
    }
    coeffs_loop loop = {
        .kernels = cpu->k,
        .rule = {hc, sinkhorn_iters, hc_eps, base->data, scale->data},
        .h = h,
        .fn = fn->data,
        .n = n,
        .mixes = mixes,
        .width = width,
        .norm_eps = norm_eps,
        .dot = dot,
        .pre = pre,
        .post = post,
        .comb = comb,
    };
    double work = (double)n * (double)width;
    di_cpu_for(cpu, work * mixes / 2, groups * token_groups, project, &loop);
    di_cpu_for(cpu, work + n * (32.0 * mixes * sinkhorn_iters), token_groups, mix_rows, &loop);
}

/* ---- streams ----------------------------------------------------------------------------------*/

typedef struct streams_loop {
    const di_cpu_kernels *k;
    int hc;
    size_t d;
    const di_bf16 *in; /* what is collapsed, or the output that is written back */
    const float *weight, *comb;
    size_t ldweight; /* from one token's weights to the next's */
    di_bf16 *out;
    size_t ldo;
} streams_loop;

static void collapse_rows(void *arg, int64_t begin, int64_t end, int member) {
    const streams_loop *c = arg;
    (void)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        c->k->collapse(c->in + t * (size_t)c->hc * c->d, c->weight + t * c->ldweight, c->hc, c->d,
                       c->out + t * c->ldo);
    }
}

static void expand_rows(void *arg, int64_t begin, int64_t end, int member) {
    const streams_loop *c = arg;
    size_t hc = (size_t)c->hc;
    (void)member;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        c->k->expand(c->in + t * c->d, c->weight + t * hc, c->comb + t * hc * hc, c->hc, c->d,
                     c->out + t * hc * c->d);
    }
}

void di_cpu_mhc_pre(di_backend *be, const di_bf16 *h, const float *pre, int n, int hc, int d,
                    di_bf16 *out) {
    di_cpu *cpu = di_cpu_of(be);
    streams_loop loop = {cpu->k, hc, (size_t)d, h, pre, NULL, (size_t)hc, out, (size_t)d};
    if (!cpu->failed) {
        di_cpu_for(cpu, (double)n * hc * d, n, collapse_rows, &loop);
    }
}

void di_cpu_mhc_post(di_backend *be, const di_bf16 *y, const float *post, const float *comb, int n,
                     int hc, int d, di_bf16 *h, const float *pre, const di_tensor *norm,
                     float norm_eps, di_bf16 *x, di_bf16 *q8) {
    di_cpu *cpu = di_cpu_of(be);
    streams_loop loop = {cpu->k, hc, (size_t)d, y, post, comb, (size_t)hc, h, (size_t)(hc * d)};
    if (!cpu->failed) {
        di_cpu_for(cpu, (double)n * hc * hc * d, n, expand_rows, &loop);
    }
    if (norm) {
        di_cpu_mhc_pre(be, h, pre, n, hc, d, x);
        di_cpu_rms_norm(be, x, norm, norm_eps, n, d, x, q8);
    }
}

void di_cpu_stream_mean(di_backend *be, const di_bf16 *h, int n, int hc, int d, di_bf16 *out,
                        size_t ldo) {
    di_cpu *cpu = di_cpu_of(be);
    float share[MAX_HC];
    for (int i = 0; i < hc; i++) {
        share[i] = 1.0f / (float)hc;
    }
    streams_loop loop = {cpu->k, hc, (size_t)d, h, share, NULL, 0, out, ldo};
    if (!cpu->failed) {
        di_cpu_for(cpu, (double)n * hc * d, n, collapse_rows, &loop);
    }
}
