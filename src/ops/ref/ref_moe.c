/* The oracle: router, experts, and the n-gram table. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/ref/internal.h"

/* ---- router -----------------------------------------------------------------------------------*/

void di_ref_route(di_backend *be, const di_bf16 *x, int n, const di_tensor *gate,
                  const di_tensor *bias, const di_tensor *bias_vl, const uint8_t *image, float temp,
                  int top_k, bool norm, float scale, int32_t *experts, float *weights) {
    int64_t count = gate->shape[0], d = gate->shape[1];
    float *logits = di_ref_scratch(be, (size_t)n * (size_t)count, sizeof *logits);
    float *key = di_ref_scratch(be, (size_t)count, sizeof *key);
    float *a = di_ref_scratch(be, (size_t)d, sizeof *a);
    for (int t = 0; logits && key && a && t < n; t++) {
        const float *b = image && image[t] ? bias_vl->data : bias->data;
        float *s = logits + (size_t)t * (size_t)count;
        int32_t *chosen = experts + (size_t)t * (size_t)top_k;
        for (int64_t j = 0; j < d; j++) {
            a[j] = di_bf16_to_f32(x[t * d + j]);
        }
        for (int64_t e = 0; e < count; e++) {
            double v = (double)((float)di_ref_dot(a, gate, e) / temp);
            s[e] = (float)sqrt(v > 20 ? v : log1p(exp(v)));
            key[e] = s[e] + b[e];
            key[e] = isfinite(key[e]) ? key[e] : -0x1.fffffep127f;
        }
        if (!di_ref_best(be, key, count, top_k, chosen)) {
            break;
        }
        double sum = 0;
        for (int i = 0; i < top_k; i++) {
            sum += s[chosen[i]];
        }
        for (int i = 0; i < top_k; i++) {
            double w = s[chosen[i]];
            w = norm && top_k > 1 ? w / (sum + 1e-20) : w;
            weights[(size_t)t * (size_t)top_k + (size_t)i] = (float)(w * scale);
        }
    }
    di_free(logits);
    di_free(key);
    di_free(a);
}

/* ---- experts ----------------------------------------------------------------------------------*/

/* Adds bf16(lin(t, w2)) of one expert to sum [d]. a: Q8 values of x [d]; t, u: scratch [inter]. */
static void add_expert(const float *a, const di_expert *e, float weight, float limit, di_bf16 *t,
                       float *u, double *sum) {
    int64_t inter = e->w1.shape[0], d = e->w2.shape[0];
    for (int64_t i = 0; i < inter; i++) {
        float gate = di_round_bf16((float)di_ref_dot(a, &e->w1, i));
        float up = di_round_bf16((float)di_ref_dot(a, &e->w3, i));
        if (limit > 0) {
            gate = gate > limit ? limit : gate;
            up = up > limit ? limit : up < -limit ? -limit : up;
        }
        double silu = gate / (1 + exp(-(double)gate));
        t[i] = di_bf16_from_f32((float)(weight * (silu * up)));
    }
    di_ref_q8(t, inter, u);
    for (int64_t i = 0; i < d; i++) {
        sum[i] += di_round_bf16((float)di_ref_dot(u, &e->w2, i));
    }
}

void di_ref_moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                const float *weights, int top_k, const di_expert *table, int num_experts,
                const di_expert *shared, float limit, di_bf16 *y) {
    (void)num_experts;
    size_t d = (size_t)shared->w1.shape[1], inter = (size_t)shared->w1.shape[0];
    float *a = di_ref_scratch(be, d, sizeof *a), *u = di_ref_scratch(be, inter, sizeof *u);
    di_bf16 *mid = di_ref_scratch(be, inter, sizeof *mid);
    double *sum = di_ref_scratch(be, d, sizeof *sum);
    for (size_t t = 0; a && u && mid && sum && t < (size_t)n; t++) {
        memset(sum, 0, d * sizeof *sum);
        di_ref_q8(x + t * d, (int64_t)d, a);
        for (size_t i = t * (size_t)top_k; i < (t + 1) * (size_t)top_k; i++) {
            add_expert(a, &table[experts[i]], weights[i], limit, mid, u, sum);
        }
        add_expert(a, shared, 1, limit, mid, u, sum);
        for (size_t c = 0; c < d; c++) {
            y[t * d + c] = di_bf16_from_f32((float)sum[c]);
        }
    }
    di_free(a);
    di_free(u);
    di_free(mid);
    di_free(sum);
}

/* ---- engram -----------------------------------------------------------------------------------*/

/* One token. kv f32 [hc + 1, d] holds BF16 values: keys first, value last. */
static void add_gated(const float *kv, const di_bf16 *qw, const di_bf16 *kw, int hc, int64_t d,
                      float eps, di_bf16 *h) {
    for (int i = 0; i < hc; i++) {
        double hh = 0, kk = 0, dot = 0;
        for (int64_t c = 0; c < d; c++) {
            double hv = di_bf16_to_f32(h[i * d + c]), kv_c = kv[i * d + c];
            double w = di_bf16_to_f32(qw[i * d + c]) * di_bf16_to_f32(kw[i * d + c]);
            hh += hv * hv;
            kk += kv_c * kv_c;
            dot += hv * w * kv_c;
        }
        double rho = 1 / sqrt(hh / (double)d + eps) / sqrt(kk / (double)d + eps);
        dot = dot * rho / sqrt((double)d);
        double gate = 1 / (1 + exp(-copysign(sqrt(fmax(fabs(dot), 1e-6)), dot)));
        for (int64_t c = 0; c < d; c++) {
            double v = di_bf16_to_f32(h[i * d + c]) + gate * kv[hc * d + c];
            h[i * d + c] = di_bf16_from_f32((float)v);
        }
    }
}

void di_ref_engram(di_backend *be, const int64_t *rows, int n, int columns, const di_tensor *table,
                   const di_tensor *wkv, const di_tensor *q_weight, const di_tensor *k_weight,
                   int hc, int d, float eps, di_bf16 *h) {
    int64_t width = table->shape[1], out = wkv->shape[0];
    float *e = di_ref_scratch(be, (size_t)(columns * width), sizeof *e);
    float *kv = di_ref_scratch(be, (size_t)out, sizeof *kv);
    for (int64_t t = 0; e && kv && t < n; t++) {
        if (rows[t * columns] < 0) {
            continue;
        }
        for (int64_t c = 0; c < columns; c++) {
            for (int64_t j = 0; j < width; j++) {
                e[c * width + j] = di_ref_weight(table, rows[t * columns + c], j);
            }
        }
        for (int64_t i = 0; i < out; i++) {
            kv[i] = di_round_bf16((float)di_ref_dot(e, wkv, i));
        }
        add_gated(kv, q_weight->data, k_weight->data, hc, d, eps, h + t * hc * d);
    }
    di_free(e);
    di_free(kv);
}
