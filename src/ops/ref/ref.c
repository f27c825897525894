/* The oracle's table, its buffers, and the ops on single rows: embedding, hyper-connections, norms,
 * matrix products, rotation. */
#include "ops/ref/ref.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/ref/internal.h"

/* ---- buffers ----------------------------------------------------------------------------------*/

static void *ref_alloc(di_backend *be, size_t bytes) {
    (void)be;
    return di_alloc_aligned(bytes);
}

static void ref_free(di_backend *be, void *buffer) {
    (void)be;
    di_free_aligned(buffer);
}

static void ref_copy(di_backend *be, void *to, const void *from, size_t bytes) {
    (void)be;
    memcpy(to, from, bytes);
}

static bool ref_sync(di_backend *be, di_error *err) {
    di_ref *ref = (di_ref *)be;
    if (ref->failed) {
        ref->failed = false;
        return di_fail(err, DI_ERR_NO_MEMORY, "ref backend: no memory for scratch");
    }
    if (ref->not_q8) {
        ref->not_q8 = false;
        return di_fail(
            err, DI_ERR_INTERNAL,
            "ref backend: rows given as DI_Q8 are not quantised, or their weights are not");
    }
    return true;
}

static void ref_destroy(di_backend *be) {
    di_free(be);
}

void *di_ref_scratch(di_backend *be, size_t count, size_t size) {
    void *p = di_calloc(count, size);
    if (!p) {
        ((di_ref *)be)->failed = true;
    }
    return p;
}

/* ---- matrix products --------------------------------------------------------------------------*/

float di_ref_weight(const di_tensor *w, int64_t i, int64_t j) {
    int64_t at = i * w->shape[1] + j;
    float scale = 1;
    if (w->scale) {
        int64_t per_row = w->shape[1] / w->scale_block[1];
        scale = di_e8m0_to_f32(w->scale[i / w->scale_block[0] * per_row + j / w->scale_block[1]]);
    }
    switch (w->dtype) {
    case DI_F32:
        return ((const float *)w->data)[at];
    case DI_BF16:
        return di_bf16_to_f32(((const di_bf16 *)w->data)[at]);
    case DI_F8_E4M3:
        return di_e4m3_to_f32(((const uint8_t *)w->data)[at]) * scale;
    case DI_FP4_E2M1: {
        uint8_t pair = ((const uint8_t *)w->data)[at / 2];
        return di_e2m1_to_f32(at % 2 ? pair >> 4 : pair) * scale;
    }
    default:
        return NAN;
    }
}

void di_ref_q8(const di_bf16 *x, int64_t k, float *out) {
    for (int64_t b = 0; b < k; b += 32) {
        float amax = 0;
        for (int64_t j = b; j < b + 32; j++) {
            amax = fmaxf(amax, fabsf(di_bf16_to_f32(x[j])));
        }
        float s = di_e8m0_to_f32(di_q8_scale(amax));
        for (int64_t j = b; j < b + 32; j++) {
            out[j] = di_e4m3_to_f32(di_e4m3_from_f32(di_bf16_to_f32(x[j]) / s)) * s;
        }
    }
}

static void widen(const di_bf16 *x, int64_t k, float *out) {
    for (int64_t j = 0; j < k; j++) {
        out[j] = di_bf16_to_f32(x[j]);
    }
}

double di_ref_dot(const float *a, const di_tensor *w, int64_t row) {
    double sum = 0;
    for (int64_t j = 0; j < w->shape[1]; j++) {
        sum += (double)a[j] * di_ref_weight(w, row, j);
    }
    return sum;
}

/* A row through Q8, to BF16. */
static void q8_row(di_backend *be, di_bf16 *x, int64_t k) {
    float *a = di_ref_scratch(be, (size_t)k, sizeof *a);
    if (a) {
        di_ref_q8(x, k, a);
    }
    for (int64_t j = 0; a && j < k; j++) {
        x[j] = di_bf16_from_f32(a[j]);
    }
    di_free(a);
}

/* Whether Q8 leaves the row as it is, a being what it makes of it. An infinity is what Q8 itself
 * makes of the largest numbers. */
static bool is_q8(const di_bf16 *x, int64_t k, const float *a) {
    bool same = true, infinite = false;
    for (int64_t j = 0; j < k; j++) {
        float v = di_bf16_to_f32(x[j]);
        same = same && (v == a[j] || (isnan(v) && isnan(a[j])));
        infinite = infinite || isinf(v);
    }
    return same || infinite;
}

static void ref_linear(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w,
                       di_bf16 *y) {
    int64_t m = w->shape[0], k = w->shape[1];
    float *a = di_ref_scratch(be, (size_t)k, sizeof *a);
    for (int t = 0; a && t < n; t++) {
        if (w->dtype != DI_BF16) {
            di_ref_q8(x + t * k, k, a);
        }
        if (form == DI_Q8 && (w->dtype == DI_BF16 || !is_q8(x + t * k, k, a))) {
            ((di_ref *)be)->not_q8 = true;
        }
        if (w->dtype == DI_BF16 || form == DI_Q8) {
            widen(x + t * k, k, a);
        }
        for (int64_t i = 0; i < m; i++) {
            y[t * m + i] = di_bf16_from_f32((float)di_ref_dot(a, w, i));
        }
    }
    di_free(a);
}

static void ref_linear_pair(di_backend *be, const di_bf16 *x, di_form form, int n,
                            const di_tensor *w1, di_bf16 *y1, const di_tensor *w2, di_bf16 *y2) {
    ref_linear(be, x, form, n, w1, y1);
    ref_linear(be, x, form, n, w2, y2);
}

static void ref_linear_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y) {
    int64_t m = w->shape[0], k = w->shape[1];
    float *a = di_ref_scratch(be, (size_t)k, sizeof *a);
    for (int t = 0; a && t < n; t++) {
        widen(x + t * k, k, a);
        for (int64_t i = 0; i < m; i++) {
            y[t * m + i] = (float)di_ref_dot(a, w, i);
        }
    }
    di_free(a);
}

static void ref_linear_add_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w,
                               float *y, size_t ldy) {
    int64_t m = w->shape[0], k = w->shape[1];
    float *a = di_ref_scratch(be, (size_t)k, sizeof *a);
    for (int64_t t = 0; a && t < n; t++) {
        widen(x + t * k, k, a);
        for (int64_t i = 0; i < m; i++) {
            y[(size_t)t * ldy + (size_t)i] += (float)di_ref_dot(a, w, i);
        }
    }
    di_free(a);
}

static void ref_linear_grouped(di_backend *be, const di_bf16 *x, int n, int groups,
                               const di_tensor *w, di_bf16 *y, di_form form) {
    int64_t m = w->shape[0] / groups, k = w->shape[1];
    float *a = di_ref_scratch(be, (size_t)k, sizeof *a);
    for (int64_t t = 0; a && t < n; t++) {
        for (int64_t g = 0; g < groups; g++) {
            widen(x + (t * groups + g) * k, k, a);
            for (int64_t i = 0; i < m; i++) {
                float sum = (float)di_ref_dot(a, w, g * m + i);
                y[(t * groups + g) * m + i] = di_bf16_from_f32(sum);
            }
        }
        if (form == DI_Q8) {
            q8_row(be, y + t * groups * m, groups * m);
        }
    }
    di_free(a);
}

/* ---- embedding, hyper-connections, norm -------------------------------------------------------*/

static void ref_embed(di_backend *be, const int32_t *tokens, int n, const di_tensor *table, int hc,
                      di_bf16 *h, float *pre) {
    (void)be;
    int64_t d = table->shape[1];
    const di_bf16 *rows = table->data;
    for (int64_t t = 0; t < n; t++) {
        for (int64_t i = 0; i < hc; i++) {
            memcpy(h + (t * hc + i) * d, rows + tokens[t] * d, (size_t)d * sizeof *h);
            pre[t * hc + i] = i == 0;
        }
    }
}

static void ref_gather_rows(di_backend *be, const void *from, const int32_t *rows, int n,
                            size_t bytes, void *to) {
    (void)be;
    for (size_t i = 0; i < (size_t)n; i++) {
        memcpy((char *)to + i * bytes, (const char *)from + (size_t)rows[i] * bytes, bytes);
    }
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double mean_square(const di_bf16 *x, int64_t k) {
    double sum = 0;
    for (int64_t j = 0; j < k; j++) {
        double v = di_bf16_to_f32(x[j]);
        sum += v * v;
    }
    return sum / (double)k;
}

/* Row softmax, then alternating column and row normalisation; c [hc, hc] (from, to). */
static void sinkhorn(double *c, int hc, double eps, int iters) {
    for (int i = 0; i < hc; i++) {
        double top = c[i * hc], sum = 0;
        for (int j = 0; j < hc; j++) {
            top = fmax(top, c[i * hc + j]);
        }
        for (int j = 0; j < hc; j++) {
            c[i * hc + j] = exp(c[i * hc + j] - top);
            sum += c[i * hc + j];
        }
        for (int j = 0; j < hc; j++) {
            c[i * hc + j] = c[i * hc + j] / sum + eps;
        }
    }
    for (int round = 0; round < iters; round++) {
        for (int i = 0; round > 0 && i < hc; i++) {
            double sum = eps;
            for (int j = 0; j < hc; j++) {
                sum += c[i * hc + j];
            }
            for (int j = 0; j < hc; j++) {
                c[i * hc + j] /= sum;
            }
        }
        for (int j = 0; j < hc; j++) {
            double sum = eps;
            for (int i = 0; i < hc; i++) {
                sum += c[i * hc + j];
            }
            for (int i = 0; i < hc; i++) {
                c[i * hc + j] /= sum;
            }
        }
    }
}

static void ref_mhc_mix(di_backend *be, const di_bf16 *h, int n, int hc, int d, const di_tensor *fn,
                        const di_tensor *base, const di_tensor *scale, float norm_eps, float hc_eps,
                        int sinkhorn_iters, float *pre, float *post, float *comb) {
    int64_t width = (int64_t)hc * d;
    const float *b = base->data, *s = scale->data;
    float *x = di_ref_scratch(be, (size_t)width, sizeof *x);
    for (int t = 0; x && t < n; t++) {
        widen(h + t * width, width, x);
        double rho = 1 / sqrt(mean_square(h + t * width, width) + norm_eps);
        double c[16 * 16];
        for (int j = 0; j < hc; j++) {
            double a = di_ref_dot(x, fn, j) * rho, p = di_ref_dot(x, fn, hc + j) * rho;
            pre[t * hc + j] = (float)(sigmoid(a * s[0] + b[j]) + hc_eps);
            post[t * hc + j] = (float)(2 * sigmoid(p * s[1] + b[hc + j]));
        }
        for (int i = 0; i < hc * hc; i++) {
            c[i] = di_ref_dot(x, fn, 2 * hc + i) * rho * s[2] + b[2 * hc + i];
        }
        sinkhorn(c, hc, hc_eps, sinkhorn_iters);
        for (int i = 0; i < hc * hc; i++) {
            comb[t * hc * hc + i] = (float)c[i];
        }
    }
    di_free(x);
}

static void ref_mhc_pre(di_backend *be, const di_bf16 *h, const float *pre, int n, int hc, int d,
                        di_bf16 *out) {
    (void)be;
    for (int64_t t = 0; t < n; t++) {
        for (int64_t c = 0; c < d; c++) {
            double sum = 0;
            for (int64_t i = 0; i < hc; i++) {
                sum += (double)pre[t * hc + i] * di_bf16_to_f32(h[(t * hc + i) * d + c]);
            }
            out[t * d + c] = di_bf16_from_f32((float)sum);
        }
    }
}

static void ref_stream_mean(di_backend *be, const di_bf16 *h, int n, int hc, int d, di_bf16 *out,
                            size_t ldo) {
    (void)be;
    for (int64_t t = 0; t < n; t++) {
        for (int64_t c = 0; c < d; c++) {
            double sum = 0;
            for (int64_t i = 0; i < hc; i++) {
                sum += di_bf16_to_f32(h[(t * hc + i) * d + c]);
            }
            out[(size_t)t * ldo + (size_t)c] = di_bf16_from_f32((float)(sum / hc));
        }
    }
}

static void ref_rms_norm(di_backend *be, const di_bf16 *x, const di_tensor *w, float eps, int n,
                         int dim, di_bf16 *y, di_bf16 *q8) {
    const di_bf16 *weight = w->data;
    for (int64_t t = 0; t < n; t++) {
        double rho = 1 / sqrt(mean_square(x + t * dim, dim) + eps);
        for (int64_t c = 0; c < dim; c++) {
            double v = di_bf16_to_f32(x[t * dim + c]) * rho * di_bf16_to_f32(weight[c]);
            di_bf16 rounded = di_bf16_from_f32((float)v);
            if (q8) {
                q8[t * dim + c] = rounded;
            }
            if (y) {
                y[t * dim + c] = rounded;
            }
        }
        if (q8) {
            q8_row(be, q8 + t * dim, dim);
        }
    }
}

static void ref_mhc_post(di_backend *be, const di_bf16 *y, const float *post, const float *comb,
                         int n, int hc, int d, di_bf16 *h, const float *pre, const di_tensor *norm,
                         float norm_eps, di_bf16 *x, di_bf16 *q8) {
    for (int64_t t = 0; t < n; t++) {
        for (int64_t c = 0; c < d; c++) {
            double mixed[16];
            for (int64_t j = 0; j < hc; j++) {
                mixed[j] = (double)post[t * hc + j] * di_bf16_to_f32(y[t * d + c]);
                for (int64_t i = 0; i < hc; i++) {
                    mixed[j] += (double)comb[(t * hc + i) * hc + j] *
                                di_bf16_to_f32(h[(t * hc + i) * d + c]);
                }
            }
            for (int64_t j = 0; j < hc; j++) {
                h[(t * hc + j) * d + c] = di_bf16_from_f32((float)mixed[j]);
            }
        }
    }
    if (norm) {
        ref_mhc_pre(be, h, pre, n, hc, d, x);
        ref_rms_norm(be, x, norm, norm_eps, n, d, x, q8);
    }
}

/* ---- rotation ---------------------------------------------------------------------------------*/

static void ref_rope_table(di_backend *be, const int64_t *positions, int n, const float *freq,
                           di_rope_table table) {
    (void)be;
    for (int64_t t = 0; t < n; t++) {
        for (int i = 0; i < table.half; i++) {
            float angle = (float)positions[t] * freq[i];
            table.cos[t * table.half + i] = (float)cos((double)angle);
            table.sin[t * table.half + i] = (float)sin((double)angle);
        }
    }
}

static void ref_rope(di_backend *be, di_bf16 *x, int n, int heads, int dim, di_rope_table table,
                     bool inverse) {
    (void)be;
    int half = table.half;
    for (int64_t t = 0; t < n; t++) {
        for (int64_t i = 0; i < heads; i++) {
            di_bf16 *v = x + (t * heads + i) * dim + dim - 2 * half;
            for (int64_t j = 0; j < half; j++) {
                float c = table.cos[t * half + j], s = table.sin[t * half + j];
                float a = di_bf16_to_f32(v[2 * j]), b = di_bf16_to_f32(v[2 * j + 1]);
                s = inverse ? -s : s;
                v[2 * j] = di_bf16_from_f32(a * c - b * s);
                v[2 * j + 1] = di_bf16_from_f32(a * s + b * c);
            }
        }
    }
}

static const di_ops ref_ops = {
    .name = "ref",
    .alloc = ref_alloc,
    .free = ref_free,
    .upload = ref_copy,
    .download = ref_copy,
    .copy = ref_copy,
    .sync = ref_sync,
    .destroy = ref_destroy,
    .embed = ref_embed,
    .gather_rows = ref_gather_rows,
    .mhc_mix = ref_mhc_mix,
    .mhc_pre = ref_mhc_pre,
    .mhc_post = ref_mhc_post,
    .rms_norm = ref_rms_norm,
    .linear = ref_linear,
    .linear_pair = ref_linear_pair,
    .linear_f32 = ref_linear_f32,
    .linear_add_f32 = ref_linear_add_f32,
    .stream_mean = ref_stream_mean,
    .linear_grouped = ref_linear_grouped,
    .rope_table = ref_rope_table,
    .rope = ref_rope,
    .window_make = di_ref_window_make,
    .window_store = di_ref_window_store,
    .compress = di_ref_compress,
    .entry_store = di_ref_entry_store,
    .index_topk = di_ref_index_topk,
    .attention = di_ref_attention,
    .route = di_ref_route,
    .moe = di_ref_moe,
    .engram = di_ref_engram,
};

di_backend *di_ref_create(di_error *err) {
    di_ref *ref = di_calloc(1, sizeof *ref);
    if (!ref) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the ref backend");
        return NULL;
    }
    ref->base.ops = &ref_ops;
    return &ref->base;
}
