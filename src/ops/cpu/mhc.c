/* Hyper-connections: the coefficients with their Sinkhorn rounds, collapse and expansion. */
#include <math.h>

#include "ops/cpu/fmath.h"
#include "ops/cpu/internal.h"

enum { MAX_HC = 8, FN_ROWS = 4 /* rows of fn that pass over the tokens together */ };

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

void di_cpu_mhc_coeffs(di_backend *be, const di_bf16 *h, int n, int hc, const di_tensor *fn,
                       const di_tensor *base, const di_tensor *scale, float norm_eps, float hc_eps,
                       int sinkhorn_iters, float *pre, float *post, float *comb) {
    di_cpu *cpu = di_cpu_of(be);
    enum { TOKENS = 16 };
    int mixes = (2 + hc) * hc, groups = (mixes + FN_ROWS - 1) / FN_ROWS;
    int token_groups = (n + TOKENS - 1) / TOKENS;
    size_t width = (size_t)fn->shape[1];
    double *dot =
        cpu->failed ? NULL
                    : di_cpu_scratch(cpu, DI_CPU_USE_X, (size_t)n, (size_t)mixes * sizeof(double));
    if (!dot) {
        return;
    }
    double work = (double)n * mixes * (double)width / 2;
#pragma omp parallel for schedule(dynamic) num_threads(di_cpu_threads_for(cpu, work))
    for (int task = 0; task < groups * token_groups; task++) {
        int row = task / token_groups * FN_ROWS, t0 = task % token_groups * TOKENS;
        int rows = mixes - row < FN_ROWS ? mixes - row : FN_ROWS;
        const float *w = (const float *)fn->data + (size_t)row * width;
        for (int t = t0; t < n && t < t0 + TOKENS; t++) {
            cpu->k->dots64(h + (size_t)t * width, w, width, rows, width, dot + t * mixes + row);
        }
    }
    coeffs k = {hc, sinkhorn_iters, hc_eps, base->data, scale->data};
    double finishing = (double)n * (double)width;
#pragma omp parallel for num_threads(di_cpu_threads_for(cpu, finishing))
    for (int t = 0; t < n; t++) {
        float mix[(2 + MAX_HC) * MAX_HC];
        double mean = cpu->k->squares(h + (size_t)t * width, width) / (double)width;
        double rho = 1 / sqrt(mean + (double)norm_eps);
        for (int i = 0; i < mixes; i++) {
            mix[i] = (float)(dot[t * mixes + i] * rho);
        }
        from_mix(&k, mix, pre + t * hc, post + t * hc, comb + t * hc * hc);
    }
}

void di_cpu_mhc_pre(di_backend *be, const di_bf16 *h, const float *pre, int n, int hc, int d,
                    di_bf16 *out) {
    di_cpu *cpu = di_cpu_of(be);
    size_t width = (size_t)d;
    if (cpu->failed) {
        return;
    }
    double work = (double)n * hc * d;
#pragma omp parallel for num_threads(di_cpu_threads_for(cpu, work))
    for (int t = 0; t < n; t++) {
        cpu->k->collapse(h + (size_t)t * (size_t)hc * width, pre + t * hc, hc, width,
                         out + (size_t)t * width);
    }
}

void di_cpu_mhc_post(di_backend *be, const di_bf16 *y, const float *post, const float *comb, int n,
                     int hc, int d, di_bf16 *h) {
    di_cpu *cpu = di_cpu_of(be);
    size_t width = (size_t)d;
    if (cpu->failed) {
        return;
    }
    double work = (double)n * hc * hc * d;
#pragma omp parallel for num_threads(di_cpu_threads_for(cpu, work))
    for (int t = 0; t < n; t++) {
        cpu->k->expand(y + (size_t)t * width, post + t * hc, comb + t * hc * hc, hc, width,
                       h + (size_t)t * (size_t)hc * width);
    }
}

void di_cpu_stream_mean(di_backend *be, const di_bf16 *h, int n, int hc, int d, di_bf16 *out,
                        size_t ldo) {
    float share[MAX_HC];
    for (int i = 0; i < hc; i++) {
        share[i] = 1.0f / (float)hc;
    }
    for (size_t t = 0; t < (size_t)n; t++) {
        di_cpu_of(be)->k->collapse(h + t * (size_t)hc * (size_t)d, share, hc, (size_t)d,
                                   out + t * ldo);
    }
}
