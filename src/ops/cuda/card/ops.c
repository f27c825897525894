/* The ops as the graph calls them: host arrays and weights brought to the card, scratch taken, the
 * kernels of the *.cu files queued. An op that cannot have its memory remembers that and does
 * nothing; sync reports it. */
#include "ops/cuda/card/ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/cuda/card/card.h"

/* ---- rows -------------------------------------------------------------------------------------*/

void di_card_embed(di_backend *be, const int32_t *tokens, int n, const di_tensor *table, int hc,
                   di_bf16 *h, float *pre) {
    di_card *c = di_card_of(be);
    size_t d = (size_t)table->shape[1], bytes = (size_t)table->shape[0] * d * sizeof(di_bf16);
    di_card_part host[] = {{tokens, (size_t)n * sizeof *tokens, NULL}};
    if (n > 0 && di_card_enter(c, "embed")) {
        const void *rows = di_card_array(c, table->data, bytes); /* rows as stored: no matrix */
        if (rows && di_card_host_arrays(c, host, 1)) {
            dk_embed(c->stream, host[0].device, n, rows, (int)d, hc, h, pre);
        }
        di_card_leave(c);
    }
}

void di_card_gather_rows(di_backend *be, const void *from, const int32_t *rows, int n, size_t bytes,
                         void *to) {
    di_card *c = di_card_of(be);
    di_card_part host[] = {{rows, (size_t)n * sizeof *rows, NULL}};
    if (n > 0 && di_card_enter(c, "gather_rows")) {
        if (di_card_host_arrays(c, host, 1)) {
            dk_gather(c->stream, from, host[0].device, n, bytes, to);
        }
        di_card_leave(c);
    }
}

void di_card_rms_norm(di_backend *be, const di_bf16 *x, const di_tensor *w, float eps, int n,
                      int dim, di_bf16 *y, di_bf16 *q8) {
    di_card *c = di_card_of(be);
    if (n > 0 && di_card_enter(c, "rms_norm")) {
        const void *weight = di_card_array(c, w->data, (size_t)dim * sizeof(di_bf16));
        if (weight) {
            dk_rms_norm(c->stream, x, weight, eps, n, dim, y, q8);
        }
        di_card_leave(c);
    }
}

void di_card_rope_table(di_backend *be, const int64_t *positions, int n, const float *freq,
                        di_rope_table table) {
    di_card *c = di_card_of(be);
    di_card_part host[] = {{positions, (size_t)n * sizeof *positions, NULL},
                           {freq, (size_t)table.half * sizeof *freq, NULL}};
    if (n > 0 && table.half > 0 && di_card_enter(c, "rope_table")) {
        if (di_card_host_arrays(c, host, 2)) {
            dk_rope_table(c->stream, host[0].device, n, host[1].device, table.half, table.cos,
                          table.sin);
        }
        di_card_leave(c);
    }
}

void di_card_rope(di_backend *be, di_bf16 *x, int n, int heads, int dim, di_rope_table table,
                  bool inverse) {
    di_card *c = di_card_of(be);
    if (n > 0 && heads > 0 && table.half > 0 && di_card_enter(c, "rope")) {
        dk_rope(c->stream, x, n, heads, dim, table.cos, table.sin, table.half, inverse);
        di_card_leave(c);
    }
}

/* ---- hyper-connections ------------------------------------------------------------------------*/

enum { MIX_ROWS = 8192 }; /* rows whose sums wait */

/* Of n, from t on. */
static int rows_of_launch(int n, int t) {
    return n - t < DK_MOST_ROWS ? n - t : DK_MOST_ROWS;
}

void di_card_mhc_mix(di_backend *be, const di_bf16 *h, int n, int hc, int d, const di_tensor *fn,
                     const di_tensor *base, const di_tensor *scale, float norm_eps, float hc_eps,
                     int sinkhorn_iters, float *pre, float *post, float *comb) {
    di_card *c = di_card_of(be);
    size_t mixes = (2 + (size_t)hc) * (size_t)hc, width = (size_t)hc * (size_t)d;
    if (n <= 0 || !di_card_enter(c, "mhc_mix")) {
        return;
    }
    size_t most = n < MIX_ROWS ? (size_t)n : MIX_ROWS;
    dk_mix m = {
        .hc = hc,
        .width = (int)width,
        .mixes = (int)mixes,
        .sinkhorn_iters = sinkhorn_iters,
        .norm_eps = norm_eps,
        .hc_eps = hc_eps,
        .fn = di_card_array(c, fn->data, mixes * width * sizeof(float)),
        .base = di_card_array(c, base->data, mixes * sizeof(float)),
        .scale = di_card_array(c, scale->data, 3 * sizeof(float)),
        .sums = di_card_scratch(c, DI_CARD_USE_Y, most, (mixes + 1) * 16 * sizeof(double)),
        .tickets = c->tickets,
    };
    bool ok = m.fn && m.base && m.scale && m.sums;
    for (int t = 0; ok && t < n; t += MIX_ROWS) {
        size_t at = (size_t)t * (size_t)hc;
        m.n = n - t < MIX_ROWS ? n - t : MIX_ROWS;
        m.h = h + (size_t)t * width;
        m.pre = pre + at;
        m.post = post + at;
        m.comb = comb + at * (size_t)hc;
        dk_mhc_mix(c->stream, &m);
    }
    di_card_leave(c);
}

void di_card_mhc_pre(di_backend *be, const di_bf16 *h, const float *pre, int n, int hc, int d,
                     di_bf16 *out) {
    di_card *c = di_card_of(be);
    size_t width = (size_t)hc * (size_t)d;
    if (n > 0 && di_card_enter(c, "mhc_pre")) {
        for (int t = 0; t < n; t += DK_MOST_ROWS) {
            size_t at = (size_t)t;
            dk_mhc_pre(c->stream, h + at * width, pre + at * (size_t)hc, rows_of_launch(n, t), hc,
                       d, out + at * (size_t)d);
        }
        di_card_leave(c);
    }
}

void di_card_stream_mean(di_backend *be, const di_bf16 *h, int n, int hc, int d, di_bf16 *out,
                         size_t ldo) {
    di_card *c = di_card_of(be);
    size_t width = (size_t)hc * (size_t)d;
    if (n > 0 && di_card_enter(c, "stream_mean")) {
        for (int t = 0; t < n; t += DK_MOST_ROWS) {
            dk_stream_mean(c->stream, h + (size_t)t * width, rows_of_launch(n, t), hc, d,
                           out + (size_t)t * ldo, ldo);
        }
        di_card_leave(c);
    }
}

void di_card_mhc_post(di_backend *be, const di_bf16 *y, const float *post, const float *comb, int n,
                      int hc, int d, di_bf16 *h, const float *pre, const di_tensor *norm,
                      float norm_eps, di_bf16 *x, di_bf16 *q8) {
    di_card *c = di_card_of(be);
    if (n <= 0 || !di_card_enter(c, "mhc_post")) {
        return;
    }
    dk_expand e = {.hc = hc, .d = d};
    if (norm) {
        e.norm = di_card_array(c, norm->data, (size_t)d * sizeof(di_bf16));
        e.norm_eps = norm_eps;
    }
    for (int t = 0; t < n && (!norm || e.norm); t += DK_MOST_ROWS) {
        size_t row = (size_t)t * (size_t)d, weights = (size_t)t * (size_t)hc;
        e.n = rows_of_launch(n, t);
        e.y = y + row;
        e.post = post + weights;
        e.comb = comb + weights * (size_t)hc;
        e.h = h + row * (size_t)hc;
        e.pre = norm ? pre + weights : NULL;
        e.x = norm ? x + row : NULL;
        e.q8 = norm && q8 ? q8 + row : NULL;
        dk_mhc_post(c->stream, &e);
    }
    di_card_leave(c);
}

/* ---- products ---------------------------------------------------------------------------------*/

enum { ROWS_AT_ONCE = 8192 }; /* activation rows that wait prepared */

/* Rows of x are [groups, k]. The weights of p's targets are on the card. */
static void multiply_rows(di_card *c, const di_bf16 *x, int n, dk_product p) {
    int k = p.to[0].w.k;
    size_t pitch = (size_t)p.groups * (size_t)k;
    for (int t = 0; t < n; t += ROWS_AT_ONCE) {
        p.n = n - t < ROWS_AT_ONCE ? n - t : ROWS_AT_ONCE;
        p.x = x + (size_t)t * pitch;
        if (dk_prepares(&p)) {
            size_t rows = (size_t)p.n * (size_t)p.groups;
            p.prepared =
                di_card_scratch(c, DI_CARD_USE_X, dk_prepared_values(rows, k), sizeof *p.prepared);
            if (!p.prepared) {
                return;
            }
        }
        dk_multiply(c->stream, &p);
        for (int i = 0; i < p.targets; i++) {
            dk_result *y = &p.to[i].y;
            y->yb = y->yb ? y->yb + (size_t)p.n * y->ldy : NULL;
            y->yf = y->yf ? y->yf + (size_t)p.n * y->ldy : NULL;
        }
    }
}

/* The product of each group of x with its share of w's rows. */
static void multiply(di_card *c, const di_bf16 *x, int n, int groups, const di_tensor *w,
                     bool quantise, dk_result y) {
    dk_product p = {.to = {{.y = y}},
                    .targets = 1,
                    .groups = groups,
                    .quantise = quantise,
                    .free_order = c->free_order};
    if (di_card_matrix(c, w, &p.to[0].w)) {
        multiply_rows(c, x, n, p);
    }
}

static bool quantises(const di_tensor *w, di_form form) {
    return w->dtype != DI_BF16 && form != DI_Q8;
}

void di_card_linear(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w,
                    di_bf16 *y) {
    di_card *c = di_card_of(be);
    if (n > 0 && di_card_enter(c, "linear")) {
        multiply(c, x, n, 1, w, quantises(w, form),
                 (dk_result){.yb = y, .ldy = (size_t)w->shape[0]});
        di_card_leave(c);
    }
}

void di_card_linear_pair(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w1,
                         di_bf16 *y1, const di_tensor *w2, di_bf16 *y2) {
    di_card *c = di_card_of(be);
    if (n > 0 && di_card_enter(c, "linear_pair")) {
        dk_product p = {.targets = 2, .groups = 1, .free_order = c->free_order};
        p.quantise = quantises(w1, form);
        p.to[0].y = (dk_result){.yb = y1, .ldy = (size_t)w1->shape[0]};
        p.to[1].y = (dk_result){.yb = y2, .ldy = (size_t)w2->shape[0]};
        if (di_card_matrix(c, w1, &p.to[0].w) && di_card_matrix(c, w2, &p.to[1].w)) {
            multiply_rows(c, x, n, p);
        }
        di_card_leave(c);
    }
}

void di_card_linear_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y) {
    di_card *c = di_card_of(be);
    if (n > 0 && di_card_enter(c, "linear_f32")) {
        multiply(c, x, n, 1, w, false, (dk_result){.yf = y, .ldy = (size_t)w->shape[0]});
        di_card_leave(c);
    }
}

void di_card_linear_add_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y,
                            size_t ldy) {
    di_card *c = di_card_of(be);
    if (n > 0 && di_card_enter(c, "linear_add_f32")) {
        multiply(c, x, n, 1, w, false, (dk_result){.yf = y, .ldy = ldy, .add = true});
        di_card_leave(c);
    }
}

void di_card_linear_grouped(di_backend *be, const di_bf16 *x, int n, int groups, const di_tensor *w,
                            di_bf16 *y, di_form form) {
    di_card *c = di_card_of(be);
    if (n > 0 && di_card_enter(c, "linear_grouped")) {
        multiply(c, x, n, groups, w, false,
                 (dk_result){.yb = y, .ldy = (size_t)w->shape[0], .q8 = form == DI_Q8});
        di_card_leave(c);
    }
}

/* ---- state ------------------------------------------------------------------------------------*/

void di_card_window_make(di_backend *be, di_bf16 *kv, int n, int dim, const di_tensor *norm,
                         float eps, di_rope_table table, uint8_t *records) {
    di_card *c = di_card_of(be);
    if (n > 0 && di_card_enter(c, "window_make")) {
        const void *weight = di_card_array(c, norm->data, (size_t)dim * sizeof(di_bf16));
        if (weight) {
            dk_window_make(c->stream, kv, n, dim, weight, eps, table.cos, table.sin, table.half,
                           records);
        }
        di_card_leave(c);
    }
}

void di_card_window_store(di_backend *be, const di_step *step, int layer, const uint8_t *records) {
    di_card *c = di_card_of(be);
    dk_step s;
    if (step->num_rows > 0 && di_card_enter(c, "window_store")) {
        if (di_card_step(c, step, layer, &s)) {
            dk_window_store(c->stream, &s, records);
        }
        di_card_leave(c);
    }
}

/* Entries as kernels want them, in DI_CARD_USE_HOST; by way of the ring, without a third copy. */
static const dk_entry *upload_entries(di_card *c, const di_entry *entries, int m) {
    size_t bytes = (size_t)m * sizeof(dk_entry), most = DI_CARD_SEGMENT_BYTES / sizeof(dk_entry);
    static_assert(sizeof(dk_entry) == sizeof(di_entry) &&
                      offsetof(dk_entry, entry) == offsetof(di_entry, entry),
                  "entries in argument memory are used as they are");
    const dk_entry *there = di_card_on_card(c, entries);
    if (there) {
        return there;
    }
    if (c->recording) {
        di_card_check(c, cudaErrorStreamCaptureUnsupported);
        return NULL;
    }
    dk_entry *to = di_card_scratch(c, DI_CARD_USE_HOST, bytes ? bytes : 1, 1);
    for (size_t i = 0; to && i < (size_t)m; i += most) {
        size_t count = (size_t)m - i < most ? (size_t)m - i : most;
        dk_entry *pinned = di_card_ring_take(c, count * sizeof *pinned);
        if (!pinned) {
            return NULL;
        }
        for (size_t j = 0; j < count; j++) {
            pinned[j] = (dk_entry){entries[i + j].seq, entries[i + j].entry};
        }
        if (!di_card_check(c, cudaMemcpyAsync(to + i, pinned, count * sizeof *to,
                                              cudaMemcpyHostToDevice, c->stream))) {
            return NULL;
        }
    }
    return to;
}

void di_card_compress(di_backend *be, const di_step *step, int layer, int ratio, const float *k,
                      const float *g, const di_entry *entries, int m, int dim, di_bf16 *latents) {
    di_card *c = di_card_of(be);
    dk_step s;
    if (step->num_rows > 0 && di_card_enter(c, "compress")) {
        const dk_entry *list = upload_entries(c, entries, m);
        if (list && di_card_step(c, step, layer, &s)) {
            dk_compress(c->stream, &s, ratio, k, g, list, m, dim, latents);
        }
        di_card_leave(c);
    }
}

void di_card_entry_store(di_backend *be, const di_step *step, int layer, int ratio,
                         const di_entry *entries, int m, const di_bf16 *latents, int dim,
                         const di_bf16 *keys, int key_dim) {
    di_card *c = di_card_of(be);
    dk_step s;
    if (m > 0 && di_card_enter(c, "entry_store")) {
        const dk_entry *list = upload_entries(c, entries, m);
        if (list && di_card_step(c, step, layer, &s)) {
            dk_entry_store(c->stream, &s, ratio, list, m, latents, dim, keys, key_dim);
        }
        di_card_leave(c);
    }
}

/* Most scores that wait for selection: 256 MiB. */
static const int64_t scores_at_once = 1 << 26;

void di_card_index_topk(di_backend *be, const di_step *step, int source, int ratio,
                        const di_bf16 *q, const di_bf16 *weights, int heads, int key_dim, int k,
                        int32_t *candidates, bool build, int max_blocks, int block_size,
                        int32_t *topk) {
    di_card *c = di_card_of(be);
    dk_index_call call = {
        .ratio = ratio,
        .heads = heads,
        .key_dim = key_dim,
        .k = k,
        .max_blocks = max_blocks,
        .block_size = candidates ? block_size : 1,
        .factor = (float)(1 / sqrt((double)key_dim) / sqrt((double)heads)),
        .q = q,
        .weights = weights,
        .candidates = candidates,
        .topk = topk,
        .build = build,
    };
    int n = step->num_rows;
    if (n <= 0 || !di_card_enter(c, "index_topk")) {
        return;
    }
    call.places = step->most_tokens / ratio;
    for (int i = 0; i < step->num_seqs && step->most_tokens == 0; i++) {
        const di_seq_rows *s = &step->seqs[i];
        int64_t entries = s->num_rows > 0 ? (s->pos0 + s->num_rows) / ratio : 0;
        call.places = entries > call.places ? entries : call.places;
    }
    if (candidates && !build) {
        int64_t most = (int64_t)max_blocks * block_size;
        int64_t whole = (call.places + block_size - 1) / block_size * block_size;
        call.places = whole < most ? whole : most;
    }
    int64_t fit = scores_at_once / (call.places > 0 ? call.places : 1);
    int rows = rows_of_launch(fit < 1 ? 1 : fit < n ? (int)fit : n, 0);
    size_t places = (size_t)call.places;
    call.keys = di_card_scratch(c, DI_CARD_USE_KEYS, (size_t)rows, (places + 1) * sizeof(uint32_t));
    bool ok = call.keys && di_card_step(c, step, source, &call.step);
    for (call.first_row = 0; ok && call.first_row < n; call.first_row += rows) {
        call.rows = n - call.first_row < rows ? n - call.first_row : rows;
        dk_index(c->stream, &call);
    }
    di_card_leave(c);
}

/* All records that attention may read lie at multiples of 16 bytes. */
static bool aligned_records(const dk_step *s, const uint8_t *records, bool entries) {
    size_t all =
        (size_t)records | (size_t)s->slots | s->slot_stride | s->ring_offset | s->window_bytes;
    if (entries) {
        all |= (size_t)s->blocks | s->block_stride | s->latent_offset | s->latent_bytes;
    }
    return all % 16 == 0;
}

/* A call of the kernels without what only the op itself knows: queries, sinks, results. */
static bool begin_attention(di_card *c, const di_step *step, int layer, int window, int source,
                            int heads, int dim, const uint8_t *records, bool entries,
                            dk_attention_call *call) {
    call->window = window;
    call->heads = heads;
    call->dim = dim;
    call->records = records;
    call->most_slots = window + call->k;
    for (int i = 0; i < step->num_seqs; i++) {
        int drafts = step->seqs[i].draft ? window + step->seqs[i].num_rows : 0;
        call->most_slots = drafts > call->most_slots ? drafts : call->most_slots;
    }
    if (!di_card_step(c, step, layer, &call->step)) {
        return false;
    }
    if (entries) {
        call->step.latent_offset = step->pool.layout->latent_offset[source];
    }
    call->wide = aligned_records(&call->step, records, entries);
    return true;
}

/* The tiles of so many rows. */
static bool take_tiles(di_card *c, int rows, dk_attention_call *call) {
    size_t tiles = (size_t)rows * DK_TILE_BLOCKS, filled = 2 * sizeof(uint32_t);
    size_t told = (size_t)((call->heads + 63) / 64) * DK_TOLD_BYTES;
    call->tiles = di_card_scratch(c, DI_CARD_USE_TILES, tiles, DK_TILE_BYTES + filled + told);
    if (!call->tiles) {
        return false;
    }
    call->filled = (uint32_t *)(void *)(call->tiles + tiles * DK_TILE_BYTES);
    call->told = call->tiles + tiles * (DK_TILE_BYTES + filled);
    return true;
}

void di_card_attention_keys(di_backend *be, const di_step *step, int layer, int window, int source,
                            int ratio, int heads, int dim, const uint8_t *records,
                            const int32_t *topk, int k) {
    di_card *c = di_card_of(be);
    di_card_tiles *t = &c->tiles;
    dk_attention_call call = {.ratio = ratio, .topk = topk, .k = k};
    t->window = t->window && !records;
    t->entries = t->entries && !topk && t->rows == step->num_rows;
    if (step->num_rows <= 0 || !di_card_enter(c, "attention_keys")) {
        return;
    }
    if (begin_attention(c, step, layer, window, source, heads, dim, records, topk != NULL, &call) &&
        dk_attention_takes_tiles(&call) && take_tiles(c, step->num_rows, &call)) {
        dk_attention_keys(c->stream, &call, records != NULL, topk != NULL);
        t->rows = step->num_rows;
        t->window = t->window || records;
        t->layer = records ? layer : t->layer;
        t->entries = t->entries || topk;
        t->source = topk ? source : t->source;
        t->topk = topk ? topk : t->topk;
    }
    di_card_leave(c);
}

/* Whether the tiles hold all that a call reads; the window's serve but one. */
static bool tiles_serve(di_card *c, int rows, int layer, int source,
                        const dk_attention_call *call) {
    di_card_tiles *t = &c->tiles;
    bool window = t->window && t->layer == layer && t->rows == rows;
    bool entries = t->entries && t->topk == call->topk && t->source == source && t->rows == rows;
    t->window = false;
    return window && (!call->topk || entries) && dk_attention_takes_tiles(call);
}

void di_card_attention(di_backend *be, const di_step *step, int layer, int window, int source,
                       int ratio, di_bf16 *q, int heads, int dim, di_rope_table table,
                       const uint8_t *records, const int32_t *topk, int k, const di_tensor *sink,
                       di_bf16 *out) {
    di_card *c = di_card_of(be);
    dk_attention_call call = {
        .ratio = ratio,
        .k = topk ? k : 0,
        .half = table.half,
        .cosine = table.cos,
        .sine = table.sin,
        .q = q,
        .topk = topk,
        .scale = (float)(1 / sqrt((double)dim)),
        .out = out,
    };
    if (step->num_rows <= 0 || !di_card_enter(c, "attention")) {
        return;
    }
    call.sink = di_card_array(c, sink->data, (size_t)heads * sizeof(float));
    if (call.sink &&
        begin_attention(c, step, layer, window, source, heads, dim, records, topk != NULL, &call)) {
        if (!tiles_serve(c, step->num_rows, layer, source, &call) ||
            take_tiles(c, step->num_rows, &call)) {
            dk_attention(c->stream, &call);
        }
    }
    di_card_leave(c);
}

/* ---- experts ----------------------------------------------------------------------------------*/

void di_card_route(di_backend *be, const di_bf16 *x, int n, const di_tensor *gate,
                   const di_tensor *bias, const di_tensor *bias_vl, const uint8_t *image,
                   float temp, int top_k, bool norm, float scale, int32_t *experts,
                   float *weights) {
    di_card *c = di_card_of(be);
    int count = (int)gate->shape[0];
    size_t bias_bytes = (size_t)count * sizeof(float);
    di_card_part host[] = {{image, (size_t)n, NULL}};
    if (n <= 0 || !di_card_enter(c, "route")) {
        return;
    }
    float *logits = di_card_scratch(c, DI_CARD_USE_Y, (size_t)n, bias_bytes);
    const float *b = di_card_array(c, bias->data, bias_bytes);
    const float *vl = image ? di_card_array(c, bias_vl->data, bias_bytes) : b;
    if (logits && b && vl && di_card_host_arrays(c, host, 1)) {
        multiply(c, x, n, 1, gate, false, (dk_result){.yf = logits, .ldy = (size_t)count});
        if (!c->fault_op) {
            dk_route(c->stream, logits, n, count, b, vl, host[0].device, temp, top_k, norm, scale,
                     experts, weights);
        }
    }
    di_card_leave(c);
}

enum { MOE_ROWS = 8192 }; /* tokens whose intermediate rows are in scratch memory at a time */

static void *part(unsigned char *base, size_t *end, size_t count, size_t size) {
    return di_place(base, end, count, size, DI_CARD_ALIGNMENT);
}

static size_t lay_out_lists(dk_moe *m, unsigned char *base) {
    size_t end = 0, pairs = (size_t)m->n * (size_t)m->top_k;
    m->num_tiles = part(base, &end, 1, sizeof *m->num_tiles);
    m->tiles = part(base, &end, (size_t)m->max_tiles, sizeof *m->tiles);
    m->slot = part(base, &end, pairs, sizeof *m->slot);
    m->place = part(base, &end, (size_t)m->slots, sizeof *m->place);
    m->weight = part(base, &end, (size_t)m->slots, sizeof *m->weight);
    return end;
}

/* Tiles that fit an expert's share of the rows, and as many as the worst case needs. */
static void choose_tiles(dk_moe *m) {
    int pairs = m->n * m->top_k, share = pairs / (m->num_experts > 0 ? m->num_experts : 1);
    int used = pairs < m->num_experts ? pairs : m->num_experts;
    m->tile_rows = share <= 32 ? 64 : 256;
    m->max_tiles = used + pairs / m->tile_rows;
    m->slots = dk_moe_slots(m->n, m->top_k, m->num_experts);
}

static bool moe_scratch(di_card *c, dk_moe *m) {
    size_t pairs = (size_t)m->n * (size_t)m->top_k, n = (size_t)m->n, slots = (size_t)m->slots;
    size_t mid = dk_prepared_values(slots, m->down.k), all = mid + dk_prepared_values(n, m->down.k);
    unsigned char *lists = di_card_scratch(c, DI_CARD_USE_LIST, lay_out_lists(m, NULL), 1);
    m->x_routed =
        di_card_scratch(c, DI_CARD_USE_X, dk_prepared_values(slots, m->d), sizeof(dk_bf16));
    m->x_shared =
        di_card_scratch(c, DI_CARD_USE_SHARED, dk_prepared_values(n, m->d), sizeof(dk_bf16));
    m->mid = di_card_scratch(c, DI_CARD_USE_Y, all, sizeof(dk_bf16));
    m->out = di_card_scratch(c, DI_CARD_USE_Z, pairs + n, (size_t)m->d * sizeof(dk_bf16));
    if (!lists || !m->x_routed || !m->x_shared || !m->mid || !m->out) {
        return false;
    }
    lay_out_lists(m, lists);
    m->mid_shared = m->mid + mid;
    return true;
}

void di_card_moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                 const float *weights, int top_k, const di_expert *table, int num_experts,
                 const di_expert *shared, float limit, di_bf16 *y) {
    di_card *c = di_card_of(be);
    dk_moe m = {
        .top_k = top_k,
        .num_experts = num_experts,
        .d = (int)shared->w2.shape[0],
        .limit = limit,
        .tickets = c->tickets + DI_CARD_TICKETS,
    };
    const di_expert *first = num_experts > 0 ? &table[0] : shared;
    if (n <= 0 || !di_card_enter(c, "moe")) {
        return;
    }
    m.table = num_experts > 0 ? di_card_experts(c, table, num_experts) : NULL;
    m.shared = di_card_experts(c, shared, 1);
    bool ok = m.shared && (m.table || num_experts == 0) && di_card_matrix(c, &first->w1, &m.up) &&
              di_card_matrix(c, &first->w2, &m.down) &&
              di_card_matrix(c, &shared->w1, &m.shared_up) &&
              di_card_matrix(c, &shared->w2, &m.shared_down);
    for (int t = 0; ok && t < n; t += MOE_ROWS) {
        size_t at = (size_t)t;
        m.n = n - t < MOE_ROWS ? n - t : MOE_ROWS;
        m.experts = experts + at * (size_t)top_k;
        m.weights = weights + at * (size_t)top_k;
        m.y = y + at * (size_t)m.d;
        choose_tiles(&m);
        if (!moe_scratch(c, &m)) {
            break;
        }
        m.x = x + at * (size_t)m.d;
        dk_moe_run(c->stream, &m);
    }
    di_card_leave(c);
}
