/* Hyper-connections: the coefficients with their Sinkhorn rounds, collapse and expansion. */
#include <math.h>

#include "ops/cpu/fmath.h"
#include "ops/cpu/internal.h"

enum { MAX_HC = 8, FN_ROWS = 4 /* rows of fn that pass over the tokens together */, TOKENS = 16 };

typedef struct coeffs {
    int hc, sinkhorn_iters;
    float hc_eps;
    const float *base, *scale;
} coeffs;

/* Divides each row (or column) by its sum + eps; the sum runs upwards. */
static void normalise(float *c, int hc, int step, int inner, float eps) {
    for (int i = 0; i < hc; i++) {
        float *line = c + i * step, sum = 0;
        for (int j = 0; j < hc; j++) {
            sum += line[j * inner];
        }
        sum += eps;
        for (int j = 0; j < hc; j++) {
            line[j * inner] /= sum;
        }
    }
}

static void row_softmax(float *c, int hc, float eps) {
    for (int i = 0; i < hc; i++) {
        float *row = c + i * hc, top = row[0], sum = 0;
        for (int j = 1; j < hc; j++) {
            top = row[j] > top ? row[j] : top;
        }
        for (int j = 0; j < hc; j++) {
            row[j] = di_expf(row[j] - top);
            sum += row[j];
        }
        for (int j = 0; j < hc; j++) {
            row[j] = row[j] / sum + eps;
        }
    }
}

/* mix: the projections times rho, [(2 + hc) * hc]. */
static void from_mix(const coeffs *k, const float *mix, float *pre, float *post, float *comb) {
    int hc = k->hc;
    for (int j = 0; j < hc; j++) {
        pre[j] = di_sigmoidf(mix[j] * k->scale[0] + k->base[j]) + k->hc_eps;
        post[j] = 2.0f * di_sigmoidf(mix[hc + j] * k->scale[1] + k->base[hc + j]);
    }
    for (int i = 0; i < hc * hc; i++) {
        comb[i] = mix[2 * hc + i] * k->scale[2] + k->base[2 * hc + i];
    }
    row_softmax(comb, hc, k->hc_eps);
    normalise(comb, hc, 1, hc, k->hc_eps);
    for (int round = 1; round < k->sinkhorn_iters; round++) {
        normalise(comb, hc, hc, 1, k->hc_eps);
        normalise(comb, hc, 1, hc, k->hc_eps);
    }
}

/* One call's loops: first the projections, then what is made of them. */
typedef struct coeffs_loop {
    const di_cpu_kernels *kernels;
    coeffs rule;
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

static void mix_rows(void *arg, int64_t begin, int64_t end, int member) {
    const coeffs_loop *c = arg;
    int hc = c->rule.hc;
    (void)member;
    for (int t = (int)begin; t < (int)end; t++) {
        float mix[(2 + MAX_HC) * MAX_HC];
        double mean = c->kernels->squares(c->h + (size_t)t * c->width, c->width) / (double)c->width;
        double rho = 1 / sqrt(mean + (double)c->norm_eps);
        for (int i = 0; i < c->mixes; i++) {
            mix[i] = (float)(c->dot[t * c->mixes + i] * rho);
        }
        from_mix(&c->rule, mix, c->pre + t * hc, c->post + t * hc, c->comb + t * hc * hc);
    }
}

void di_cpu_mhc_coeffs(di_backend *be, const di_bf16 *h, int n, int hc, const di_tensor *fn,
                       const di_tensor *base, const di_tensor *scale, float norm_eps, float hc_eps,
                       int sinkhorn_iters, float *pre, float *post, float *comb) {
    di_cpu *cpu = di_cpu_of(be);
    int mixes = (2 + hc) * hc, groups = (mixes + FN_ROWS - 1) / FN_ROWS;
    int token_groups = (n + TOKENS - 1) / TOKENS;
    size_t width = (size_t)fn->shape[1];
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
    di_cpu_for(cpu, work, n, mix_rows, &loop);
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
                     int hc, int d, di_bf16 *h) {
    di_cpu *cpu = di_cpu_of(be);
    streams_loop loop = {cpu->k, hc, (size_t)d, y, post, comb, (size_t)hc, h, (size_t)(hc * d)};
    if (!cpu->failed) {
        di_cpu_for(cpu, (double)n * hc * hc * d, n, expand_rows, &loop);
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
