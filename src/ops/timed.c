/* The timing backend: see timed.h. One wrapper an op, all alike. */
#include "ops/timed.h"

#include "base/alloc.h"
#include "base/clock.h"

/* What is timed. */
#define EACH_OP(x)                                                                                 \
    x(embed) x(gather_rows) x(mhc_mix) x(mhc_pre) x(mhc_post) x(rms_norm) x(linear) x(linear_pair) \
        x(linear_f32) x(linear_add_f32) x(stream_mean) x(linear_grouped) x(rope_table) x(rope)     \
            x(window_make) x(window_store) x(compress) x(entry_store) x(index_topk) x(attention)   \
                x(route) x(moe) x(engram)

#define NUMBER(op) T_##op,
#define NAME(op)   [T_##op] = #op,
#define ENTRY(op)  .op = timed_##op,

typedef enum timed_op { EACH_OP(NUMBER) T_COUNT } timed_op;

static const char *const names[T_COUNT] = {EACH_OP(NAME)};

typedef struct timed {
    di_backend base;
    di_backend *inner;
    double seconds[T_COUNT];
    unsigned long long calls[T_COUNT];
} timed;

static timed *timed_of(di_backend *be) {
    return (timed *)be;
}

/* Passes a call on and adds up its time. */
#define PASS(op, ...)                                                                              \
    do {                                                                                           \
        timed *t = timed_of(be);                                                                   \
        double start = di_now();                                                                   \
        t->inner->ops->op(t->inner, __VA_ARGS__);                                                  \
        t->seconds[T_##op] += di_now() - start;                                                    \
        t->calls[T_##op]++;                                                                        \
    } while (0)

/* ---- buffers: passed on, not timed ---- */

static void *timed_alloc(di_backend *be, size_t bytes) {
    return timed_of(be)->inner->ops->alloc(timed_of(be)->inner, bytes);
}

static void timed_free(di_backend *be, void *buffer) {
    timed_of(be)->inner->ops->free(timed_of(be)->inner, buffer);
}

static void timed_upload(di_backend *be, void *to, const void *from_host, size_t bytes) {
    timed_of(be)->inner->ops->upload(timed_of(be)->inner, to, from_host, bytes);
}

static void timed_download(di_backend *be, void *to_host, const void *from, size_t bytes) {
    timed_of(be)->inner->ops->download(timed_of(be)->inner, to_host, from, bytes);
}

static void timed_copy(di_backend *be, void *to, const void *from, size_t bytes) {
    timed_of(be)->inner->ops->copy(timed_of(be)->inner, to, from, bytes);
}

static bool timed_sync(di_backend *be, di_error *err) {
    return timed_of(be)->inner->ops->sync(timed_of(be)->inner, err);
}

static void timed_destroy(di_backend *be) {
    timed_of(be)->inner->ops->destroy(timed_of(be)->inner);
    di_free(be);
}

/* ---- ops ---- */

static void timed_embed(di_backend *be, const int32_t *tokens, int n, const di_tensor *table,
                        int hc, di_bf16 *h, float *pre) {
    PASS(embed, tokens, n, table, hc, h, pre);
}

static void timed_gather_rows(di_backend *be, const void *from, const int32_t *rows, int n,
                              size_t bytes, void *to) {
    PASS(gather_rows, from, rows, n, bytes, to);
}

static void timed_mhc_mix(di_backend *be, const di_bf16 *h, int n, int hc, int d,
                          const di_tensor *fn, const di_tensor *base, const di_tensor *scale,
                          float norm_eps, float hc_eps, int sinkhorn_iters, float *pre, float *post,
                          float *comb) {
    PASS(mhc_mix, h, n, hc, d, fn, base, scale, norm_eps, hc_eps, sinkhorn_iters, pre, post, comb);
}

static void timed_mhc_pre(di_backend *be, const di_bf16 *h, const float *pre, int n, int hc, int d,
                          di_bf16 *out) {
    PASS(mhc_pre, h, pre, n, hc, d, out);
}

static void timed_mhc_post(di_backend *be, const di_bf16 *y, const float *post, const float *comb,
                           int n, int hc, int d, di_bf16 *h, const float *pre,
                           const di_tensor *norm, float norm_eps, di_bf16 *x, di_bf16 *q8) {
    PASS(mhc_post, y, post, comb, n, hc, d, h, pre, norm, norm_eps, x, q8);
}

static void timed_rms_norm(di_backend *be, const di_bf16 *x, const di_tensor *w, float eps, int n,
                           int dim, di_bf16 *y, di_bf16 *q8) {
    PASS(rms_norm, x, w, eps, n, dim, y, q8);
}

static void timed_linear(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w,
                         di_bf16 *y) {
    PASS(linear, x, form, n, w, y);
}

static void timed_linear_pair(di_backend *be, const di_bf16 *x, di_form form, int n,
                              const di_tensor *w1, di_bf16 *y1, const di_tensor *w2, di_bf16 *y2) {
    PASS(linear_pair, x, form, n, w1, y1, w2, y2);
}

static void timed_linear_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w,
                             float *y) {
    PASS(linear_f32, x, n, w, y);
}

static void timed_linear_add_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w,
                                 float *y, size_t ldy) {
    PASS(linear_add_f32, x, n, w, y, ldy);
}

static void timed_stream_mean(di_backend *be, const di_bf16 *h, int n, int hc, int d, di_bf16 *out,
                              size_t ldo) {
    PASS(stream_mean, h, n, hc, d, out, ldo);
}

static void timed_linear_grouped(di_backend *be, const di_bf16 *x, int n, int groups,
                                 const di_tensor *w, di_bf16 *y, di_form form) {
    PASS(linear_grouped, x, n, groups, w, y, form);
}

static void timed_rope_table(di_backend *be, const int64_t *positions, int n, const float *freq,
                             di_rope_table table) {
    PASS(rope_table, positions, n, freq, table);
}

static void timed_rope(di_backend *be, di_bf16 *x, int n, int heads, int dim, di_rope_table table,
                       bool inverse) {
    PASS(rope, x, n, heads, dim, table, inverse);
}

static void timed_window_make(di_backend *be, di_bf16 *kv, int n, int dim, const di_tensor *norm,
                              float eps, di_rope_table table, uint8_t *records) {
    PASS(window_make, kv, n, dim, norm, eps, table, records);
}

static void timed_window_store(di_backend *be, const di_step *step, int layer,
                               const uint8_t *records) {
    PASS(window_store, step, layer, records);
}

static void timed_compress(di_backend *be, const di_step *step, int layer, int ratio,
                           const float *k, const float *g, const di_entry *entries, int m, int dim,
                           di_bf16 *latents) {
    PASS(compress, step, layer, ratio, k, g, entries, m, dim, latents);
}

static void timed_entry_store(di_backend *be, const di_step *step, int layer, int ratio,
                              const di_entry *entries, int m, const di_bf16 *latents, int dim,
                              const di_bf16 *keys, int key_dim) {
    PASS(entry_store, step, layer, ratio, entries, m, latents, dim, keys, key_dim);
}

static void timed_index_topk(di_backend *be, const di_step *step, int source, int ratio,
                             const di_bf16 *q, const di_bf16 *weights, int heads, int key_dim,
                             int k, int32_t *candidates, bool build, int max_blocks, int block_size,
                             int32_t *topk) {
    PASS(index_topk, step, source, ratio, q, weights, heads, key_dim, k, candidates, build,
         max_blocks, block_size, topk);
}

static void timed_attention(di_backend *be, const di_step *step, int layer, int window, int source,
                            int ratio, di_bf16 *q, int heads, int dim, di_rope_table table,
                            const uint8_t *records, const int32_t *topk, int k,
                            const di_tensor *sink, di_bf16 *out) {
    PASS(attention, step, layer, window, source, ratio, q, heads, dim, table, records, topk, k,
         sink, out);
}

static void timed_route(di_backend *be, const di_bf16 *x, int n, const di_tensor *gate,
                        const di_tensor *bias, const di_tensor *bias_vl, const uint8_t *image,
                        float temp, int top_k, bool norm, float scale, int32_t *experts,
                        float *weights) {
    PASS(route, x, n, gate, bias, bias_vl, image, temp, top_k, norm, scale, experts, weights);
}

static void timed_moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                      const float *weights, int top_k, const di_expert *table, int num_experts,
                      const di_expert *shared, float limit, di_bf16 *y) {
    PASS(moe, x, n, experts, weights, top_k, table, num_experts, shared, limit, y);
}

static void timed_engram(di_backend *be, const int64_t *rows, int n, int columns,
                         const di_tensor *table, const di_tensor *wkv, const di_tensor *q_weight,
                         const di_tensor *k_weight, int hc, int d, float eps, di_bf16 *h) {
    PASS(engram, rows, n, columns, table, wkv, q_weight, k_weight, hc, d, eps, h);
}

static const di_ops timed_ops = {.name = "timed",
                                 .alloc = timed_alloc,
                                 .free = timed_free,
                                 .upload = timed_upload,
                                 .download = timed_download,
                                 .copy = timed_copy,
                                 .sync = timed_sync,
                                 .destroy = timed_destroy,
                                 EACH_OP(ENTRY)};

di_backend *di_timed_create(di_backend *inner, di_error *err) {
    timed *t = di_calloc(1, sizeof *t);
    if (!t) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory to time ops");
        return NULL;
    }
    t->base.ops = &timed_ops;
    t->inner = inner;
    return &t->base;
}

void di_timed_print(const di_backend *be, FILE *out) {
    const timed *t = (const timed *)be;
    double total = 0;
    bool printed[T_COUNT] = {false};
    for (int i = 0; i < T_COUNT; i++) {
        total += t->seconds[i];
    }
    fprintf(out, "%-16s %10s %10s %7s\n", "op", "calls", "seconds", "share");
    for (int k = 0; k < T_COUNT; k++) {
        int best = -1;
        for (int i = 0; i < T_COUNT; i++) {
            if (!printed[i] && (best < 0 || t->seconds[i] > t->seconds[best])) {
                best = i;
            }
        }
        printed[best] = true;
        if (t->calls[best] > 0) {
            fprintf(out, "%-16s %10llu %10.4f %6.1f%%\n", names[best], t->calls[best],
                    t->seconds[best], total > 0 ? 100 * t->seconds[best] / total : 0);
        }
    }
}
