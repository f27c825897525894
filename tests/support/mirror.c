/* Host memory in front of a card: see mirror.h. */
#include "support/mirror.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "ops/cuda/cuda.h"
#include "support/cmocka.h"

enum { MAX_ARRAYS = 12, POISON = 0xa5 };

typedef struct array {
    void *device, *host; /* host NULL: not brought back */
    size_t bytes;
} array;

typedef struct mirror {
    di_backend base;
    di_backend *inner;
    void (*forget)(di_backend *be);
    array arrays[MAX_ARRAYS];
    int n;
    bool failed;
    di_error err;
} mirror;

static mirror *of(di_backend *be) {
    return (mirror *)be;
}

/* ---- bringing over and back -------------------------------------------------------------------*/

static void *bring(mirror *m, const void *host, size_t bytes, bool back) {
    assert_true(m->n < MAX_ARRAYS);
    if (!host) {
        return NULL;
    }
    array *a = &m->arrays[m->n++];
    *a = (array){m->inner->ops->alloc(m->inner, bytes), back ? (void *)host : NULL, bytes};
    assert_non_null(a->device);
    m->inner->ops->upload(m->inner, a->device, host, bytes);
    return a->device;
}

static void *in(mirror *m, const void *host, size_t bytes) {
    return bring(m, host, bytes, false);
}

static void *both(mirror *m, void *host, size_t bytes) {
    return bring(m, host, bytes, true);
}

/* Filled with rubbish first: an op that leaves something unwritten is found out. */
static void *out(mirror *m, void *host, size_t bytes) {
    memset(host, POISON, bytes);
    return bring(m, host, bytes, true);
}

static void finish(mirror *m) {
    di_error err;
    for (int i = 0; i < m->n; i++) {
        if (m->arrays[i].host) {
            m->inner->ops->download(m->inner, m->arrays[i].host, m->arrays[i].device,
                                    m->arrays[i].bytes);
        }
    }
    if (!m->inner->ops->sync(m->inner, &err) && !m->failed) {
        m->failed = true;
        m->err = err;
    }
    while (m->n > 0) {
        m->inner->ops->free(m->inner, m->arrays[--m->n].device);
    }
    if (m->forget) {
        m->forget(m->inner);
    }
}

/* The step with its pools brought over, as far as its sequences reach. */
static di_step bring_step(mirror *m, const di_step *step) {
    const di_state_layout *l = step->pool.layout;
    int32_t blocks = 0, slots = 0;
    di_step s = *step;
    for (int i = 0; i < step->num_seqs; i++) {
        const di_seq_rows *q = &step->seqs[i];
        int64_t end = q->pos0 + q->num_rows;
        for (int64_t b = 0; q->blocks && b * l->block_tokens < end; b++) {
            blocks = q->blocks[b] + 1 > blocks ? q->blocks[b] + 1 : blocks;
        }
        slots = q->slot + 1 > slots ? q->slot + 1 : slots;
    }
    s.pool.blocks = both(m, step->pool.blocks, (size_t)blocks * l->block_stride);
    s.pool.slots = both(m, step->pool.slots, (size_t)slots * l->slot_stride);
    return s;
}

/* ---- buffers ----------------------------------------------------------------------------------*/

static void *mirror_alloc(di_backend *be, size_t bytes) {
    (void)be;
    void *p = NULL;
    return bytes < SIZE_MAX / 2 && posix_memalign(&p, 256, bytes ? bytes : 1) == 0 ? p : NULL;
}

static void mirror_free(di_backend *be, void *buffer) {
    (void)be;
    free(buffer);
}

static void mirror_copy(di_backend *be, void *to, const void *from, size_t bytes) {
    (void)be;
    if (bytes) {
        memcpy(to, from, bytes);
    }
}

static bool mirror_sync(di_backend *be, di_error *err) {
    mirror *m = of(be);
    bool failed = m->failed;
    m->failed = false;
    if (failed && err) {
        *err = m->err;
    }
    return !failed;
}

static void mirror_destroy(di_backend *be) {
    of(be)->inner->ops->destroy(of(be)->inner);
    di_free(be);
}

/* ---- ops --------------------------------------------------------------------------------------*/

#define INNER(op, ...) m->inner->ops->op(m->inner, __VA_ARGS__), finish(m)

static size_t cells(int n, int64_t a, int64_t b) {
    return (size_t)n * (size_t)a * (size_t)b;
}

static void embed(di_backend *be, const int32_t *tokens, int n, const di_tensor *table, int hc,
                  di_bf16 *h, float *pre) {
    mirror *m = of(be);
    INNER(embed, tokens, n, table, hc, out(m, h, cells(n, hc, table->shape[1]) * 2),
          out(m, pre, cells(n, hc, 4)));
}

static void gather_rows(di_backend *be, const void *from, const int32_t *rows, int n, size_t bytes,
                        void *to) {
    mirror *m = of(be);
    int32_t last = 0;
    for (int i = 0; i < n; i++) {
        last = rows[i] > last ? rows[i] : last;
    }
    INNER(gather_rows, in(m, from, (size_t)(last + 1) * bytes), rows, n, bytes,
          out(m, to, (size_t)n * bytes));
}

static void mhc_mix(di_backend *be, const di_bf16 *h, int n, int hc, int d, const di_tensor *fn,
                    const di_tensor *base, const di_tensor *scale, float norm_eps, float hc_eps,
                    int iters, float *pre, float *post, float *comb) {
    mirror *m = of(be);
    INNER(mhc_mix, in(m, h, cells(n, hc, d) * 2), n, hc, d, fn, base, scale, norm_eps, hc_eps,
          iters, out(m, pre, cells(n, hc, 4)), out(m, post, cells(n, hc, 4)),
          out(m, comb, cells(n, hc, hc) * 4));
}

static void mhc_pre(di_backend *be, const di_bf16 *h, const float *pre, int n, int hc, int d,
                    di_bf16 *x) {
    mirror *m = of(be);
    INNER(mhc_pre, in(m, h, cells(n, hc, d) * 2), in(m, pre, cells(n, hc, 4)), n, hc, d,
          out(m, x, cells(n, d, 2)));
}

static void mhc_post(di_backend *be, const di_bf16 *y, const float *post, const float *comb, int n,
                     int hc, int d, di_bf16 *h, const float *pre, const di_tensor *norm,
                     float norm_eps, di_bf16 *x, di_bf16 *q8) {
    mirror *m = of(be);
    INNER(mhc_post, in(m, y, cells(n, d, 2)), in(m, post, cells(n, hc, 4)),
          in(m, comb, cells(n, hc, hc) * 4), n, hc, d, both(m, h, cells(n, hc, d) * 2),
          norm ? in(m, pre, cells(n, hc, 4)) : NULL, norm, norm_eps,
          norm ? out(m, x, cells(n, d, 2)) : NULL, norm && q8 ? out(m, q8, cells(n, d, 2)) : NULL);
}

static void stream_mean(di_backend *be, const di_bf16 *h, int n, int hc, int d, di_bf16 *x,
                        size_t ldo) {
    mirror *m = of(be);
    size_t last = n > 0 ? (size_t)(n - 1) * ldo + (size_t)d : 0;
    INNER(stream_mean, in(m, h, cells(n, hc, d) * 2), n, hc, d, both(m, x, last * 2), ldo);
}

static void rms_norm(di_backend *be, const di_bf16 *x, const di_tensor *w, float eps, int n,
                     int dim, di_bf16 *y, di_bf16 *q8) {
    mirror *m = of(be);
    const di_bf16 *from = in(m, x, cells(n, dim, 2));
    di_bf16 *plain = y ? out(m, y, cells(n, dim, 2)) : NULL;
    INNER(rms_norm, from, w, eps, n, dim, plain, q8 ? out(m, q8, cells(n, dim, 2)) : NULL);
}

static void linear(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w,
                   di_bf16 *y) {
    mirror *m = of(be);
    INNER(linear, in(m, x, cells(n, w->shape[1], 2)), form, n, w,
          out(m, y, cells(n, w->shape[0], 2)));
}

static void linear_pair(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w1,
                        di_bf16 *y1, const di_tensor *w2, di_bf16 *y2) {
    mirror *m = of(be);
    di_bf16 *first = out(m, y1, cells(n, w1->shape[0], 2));
    INNER(linear_pair, in(m, x, cells(n, w1->shape[1], 2)), form, n, w1, first, w2,
          out(m, y2, cells(n, w2->shape[0], 2)));
}

static void linear_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y) {
    mirror *m = of(be);
    INNER(linear_f32, in(m, x, cells(n, w->shape[1], 2)), n, w,
          out(m, y, cells(n, w->shape[0], 4)));
}

static void linear_add_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y,
                           size_t ldy) {
    mirror *m = of(be);
    size_t last = n > 0 ? (size_t)(n - 1) * ldy + (size_t)w->shape[0] : 0;
    INNER(linear_add_f32, in(m, x, cells(n, w->shape[1], 2)), n, w, both(m, y, last * 4), ldy);
}

static void linear_grouped(di_backend *be, const di_bf16 *x, int n, int groups, const di_tensor *w,
                           di_bf16 *y, di_form form) {
    mirror *m = of(be);
    INNER(linear_grouped, in(m, x, cells(n, groups, w->shape[1]) * 2), n, groups, w,
          out(m, y, cells(n, w->shape[0], 2)), form);
}

static void rope_table(di_backend *be, const int64_t *positions, int n, const float *freq,
                       di_rope_table table) {
    mirror *m = of(be);
    di_rope_table t = {.half = table.half};
    t.cos = out(m, table.cos, cells(n, table.half, 4));
    t.sin = out(m, table.sin, cells(n, table.half, 4));
    INNER(rope_table, positions, n, freq, t);
}

static di_rope_table bring_table(mirror *m, di_rope_table table, int n) {
    di_rope_table t = {.half = table.half};
    t.cos = in(m, table.cos, cells(n, table.half, 4));
    t.sin = in(m, table.sin, cells(n, table.half, 4));
    return t;
}

static void rope(di_backend *be, di_bf16 *x, int n, int heads, int dim, di_rope_table table,
                 bool inverse) {
    mirror *m = of(be);
    di_rope_table t = bring_table(m, table, n);
    INNER(rope, both(m, x, cells(n, heads, dim) * 2), n, heads, dim, t, inverse);
}

static void window_make(di_backend *be, di_bf16 *kv, int n, int dim, const di_tensor *norm,
                        float eps, di_rope_table table, uint8_t *records) {
    mirror *m = of(be);
    di_rope_table t = bring_table(m, table, n);
    INNER(window_make, in(m, kv, cells(n, dim, 2)), n, dim, norm, eps, t,
          out(m, records, cells(n, dim + dim / 32, 1)));
}

static void window_store(di_backend *be, const di_step *step, int layer, const uint8_t *records) {
    mirror *m = of(be);
    di_step s = bring_step(m, step);
    size_t bytes = (size_t)step->num_rows * step->pool.layout->window_bytes;
    INNER(window_store, &s, layer, in(m, records, bytes));
}

static void compress(di_backend *be, const di_step *step, int layer, int ratio, const float *k,
                     const float *g, const di_entry *entries, int count, int dim,
                     di_bf16 *latents) {
    mirror *m = of(be);
    di_step s = bring_step(m, step);
    size_t bytes = cells(step->num_rows, dim, 4);
    INNER(compress, &s, layer, ratio, in(m, k, bytes), in(m, g, bytes), entries, count, dim,
          out(m, latents, cells(count, dim, 2)));
}

static void entry_store(di_backend *be, const di_step *step, int layer, int ratio,
                        const di_entry *entries, int count, const di_bf16 *latents, int dim,
                        const di_bf16 *keys, int key_dim) {
    mirror *m = of(be);
    di_step s = bring_step(m, step);
    INNER(entry_store, &s, layer, ratio, entries, count, in(m, latents, cells(count, dim, 2)), dim,
          in(m, keys, cells(count, key_dim, 2)), key_dim);
}

static void index_topk(di_backend *be, const di_step *step, int source, int ratio, const di_bf16 *q,
                       const di_bf16 *weights, int heads, int key_dim, int k, int32_t *candidates,
                       bool build, int max_blocks, int block_size, int32_t *topk) {
    mirror *m = of(be);
    di_step s = bring_step(m, step);
    int n = step->num_rows;
    INNER(index_topk, &s, source, ratio, in(m, q, cells(n, heads, key_dim) * 2),
          in(m, weights, cells(n, heads, 2)), heads, key_dim, k,
          both(m, candidates, cells(n, max_blocks, 4)), build, max_blocks, block_size,
          out(m, topk, cells(n, k, 4)));
}

static void attention(di_backend *be, const di_step *step, int layer, int window, int source,
                      int ratio, di_bf16 *q, int heads, int dim, di_rope_table table,
                      const uint8_t *records, const int32_t *topk, int k, const di_tensor *sink,
                      di_bf16 *o) {
    mirror *m = of(be);
    di_step s = bring_step(m, step);
    int n = step->num_rows;
    di_rope_table t = bring_table(m, table, n);
    INNER(attention, &s, layer, window, source, ratio, in(m, q, cells(n, heads, dim) * 2), heads,
          dim, t, in(m, records, (size_t)n * step->pool.layout->window_bytes),
          in(m, topk, cells(n, k, 4)), k, sink, out(m, o, cells(n, heads, dim) * 2));
}

static void route(di_backend *be, const di_bf16 *x, int n, const di_tensor *gate,
                  const di_tensor *bias, const di_tensor *bias_vl, const uint8_t *image, float temp,
                  int top_k, bool norm, float scale, int32_t *experts, float *weights) {
    mirror *m = of(be);
    INNER(route, in(m, x, cells(n, gate->shape[1], 2)), n, gate, bias, bias_vl, image, temp, top_k,
          norm, scale, out(m, experts, cells(n, top_k, 4)), out(m, weights, cells(n, top_k, 4)));
}

static void moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                const float *weights, int top_k, const di_expert *table, int num_experts,
                const di_expert *shared, float limit, di_bf16 *y) {
    mirror *m = of(be);
    int64_t d = shared->w2.shape[0];
    INNER(moe, in(m, x, cells(n, d, 2)), n, in(m, experts, cells(n, top_k, 4)),
          in(m, weights, cells(n, top_k, 4)), top_k, table, num_experts, shared, limit,
          out(m, y, cells(n, d, 2)));
}

static void engram(di_backend *be, const int64_t *rows, int n, int columns, const di_tensor *table,
                   const di_tensor *wkv, const di_tensor *q_weight, const di_tensor *k_weight,
                   int hc, int d, float eps, di_bf16 *h) {
    mirror *m = of(be);
    INNER(engram, rows, n, columns, table, wkv, q_weight, k_weight, hc, d, eps,
          both(m, h, cells(n, hc, d) * 2));
}

static const di_ops mirror_ops = {
    .name = "mirror",
    .alloc = mirror_alloc,
    .free = mirror_free,
    .upload = mirror_copy,
    .download = mirror_copy,
    .copy = mirror_copy,
    .sync = mirror_sync,
    .destroy = mirror_destroy,
    .embed = embed,
    .gather_rows = gather_rows,
    .mhc_mix = mhc_mix,
    .mhc_pre = mhc_pre,
    .mhc_post = mhc_post,
    .stream_mean = stream_mean,
    .rms_norm = rms_norm,
    .linear = linear,
    .linear_pair = linear_pair,
    .linear_f32 = linear_f32,
    .linear_add_f32 = linear_add_f32,
    .linear_grouped = linear_grouped,
    .rope_table = rope_table,
    .rope = rope,
    .window_make = window_make,
    .window_store = window_store,
    .compress = compress,
    .entry_store = entry_store,
    .index_topk = index_topk,
    .attention = attention,
    .route = route,
    .moe = moe,
    .engram = engram,
};

di_backend *mirror_create(di_backend *inner, void (*forget)(di_backend *be)) {
    mirror *m = di_calloc(1, sizeof *m);
    assert_non_null(m);
    m->base.ops = &mirror_ops;
    m->inner = inner;
    m->forget = forget;
    return &m->base;
}

bool card_under_test(void) {
    int device;
    const char *backend = getenv("TEST_BACKEND");
    return backend && di_cuda_parse(backend, &device);
}

bool small_form(void) {
    return getenv("TEST_SMALL") != NULL;
}

di_backend *mirror_of_card(bool passing) {
    int device = 0;
    di_error err;
    di_cuda_parse(getenv("TEST_BACKEND"), &device);
    di_backend *card = di_cuda_create(device, &err);
    if (!card) {
        fail_msg("%s", err.message);
    }
    return mirror_create(card, passing ? di_cuda_forget : NULL);
}
