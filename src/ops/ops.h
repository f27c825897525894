/* The table every backend fills: what the model graph is made of. One op, one documented formula;
 * section numbers are those of the model page named in docs/architecture.md.
 *
 * Conventions.
 * - Activations live in buffers of the backend's device; the graph only passes their addresses.
 *   "bf16" means uint16_t holding the upper half of an f32. n = rows of the step (tokens).
 * - Every op is queued in order; on the CPU it is done when the call returns. Ops return nothing: a
 *   fault (no memory, a device error) is remembered by the backend and reported by sync().
 * - A row's result is a function of that row (and its sequence) alone, to the bit, whatever else is
 *   in the step, however a prompt is cut into steps, and however many threads there are.
 * - Rounding to BF16 happens exactly where a formula says bf16(...); everything else is float32
 *   unless a backend documents something wider. docs/numerics.md lists all fixed sum orders.
 * - Rows that only products with FP8 weights read are handed over as DI_Q8: their values are what
 * Q8 makes of them, there and back. BF16 holds that exactly and Q8 leaves it as it is, so who has
 *   quantised changes no result. It is the caller's promise; the oracle faults rows that break it,
 *   and quantised rows for weights that would not have quantised them (BF16).
 * - Arrays described as "host" are read before the call returns.
 * - Thread-safety: one thread at a time per backend. */
#ifndef DI_OPS_OPS_H
#define DI_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/formats.h"
#include "base/tensor.h"
#include "ops/queue.h"

/* ---- state of sequences, as the ops address it ------------------------------------------------
 *
 * Growing state (latents and index keys of every kv source) lies in blocks of block_tokens tokens;
 * one block number serves all sources. Fixed-size state (window rings, open groups) lies in one
 * slot per sequence. Record encodings (bytes):
 *
 *   - window: head_dim E4M3 codes, then head_dim / 32 E8M0 scales;
 *   - latent: head_dim / 2 E2M1 pairs (even dim in the low nibble), then head_dim / 16 E4M3 scales;
 *   - key: index_head_dim / 2 E2M1 pairs, then index_head_dim / 32 E8M0 scales;
 *   - group: head_dim f32 of k, then head_dim f32 of g.
 *
 * Row e of a source with ratio r: block table[e / (block_tokens / r)], row e % (block_tokens / r).
 * Window row of position p: ring row p % ring_rows; open-group row of it: p % group_rows. */
typedef struct di_state_layout {
    int block_tokens, ring_rows, group_rows;
    size_t window_bytes, latent_bytes, key_bytes, group_bytes; /* of one record */
    size_t block_stride, slot_stride;
    /* by layer; offsets inside a block (latent, key) or a slot (ring, group). SIZE_MAX: has none */
    size_t latent_offset[256], key_offset[256], ring_offset[256], group_offset[256];
} di_state_layout;

typedef struct di_state_pool {
    const di_state_layout *layout;
    uint8_t *blocks; /* device, [num_blocks] * block_stride */
    uint8_t *slots;  /* device, [num_slots] * slot_stride */
} di_state_pool;

/* One sequence's part of a step: rows [row0, row0 + num_rows) are its tokens at positions pos0,
 * pos0 + 1, ... `blocks` covers every entry up to the last of these tokens. */
typedef struct di_seq_rows {
    int row0, num_rows;
    int64_t pos0;
    int64_t window_start; /* window keys of earlier positions do not exist (bounded replay); or 0 */
    const int32_t *blocks; /* host block table */
    int32_t slot;
    /* A block of drafts: its rows see each other whatever their order, and all of them the `window`
     * keys before pos0. */
    bool draft;
} di_seq_rows;

/* The ragged batch that attention-side ops need. Host memory, valid for the whole step. */
typedef struct di_step {
    int num_rows, num_seqs;
    const di_seq_rows *seqs;
    di_state_pool pool;
    /* No sequence has more tokens than this, so that launches fit whatever lengths it has; 0: the
     * sequences tell. */
    int64_t most_tokens;
} di_step;

/* cos and sin of every row's rotation angles, [rows, rope_dim / 2] f32 each (device). */
typedef struct di_rope_table {
    float *cos, *sin;
    int half; /* rope_dim / 2 */
} di_rope_table;

/* New compressed entries of one step and source: entry e closes at a row of this step. */
typedef struct di_entry {
    int seq;       /* index into step->seqs */
    int64_t entry; /* number within its sequence; its position is entry * ratio */
} di_entry;

/* Rows as any op leaves them, or gone through Q8 (32 values of a row share a scale). */
typedef enum di_form { DI_PLAIN, DI_Q8 } di_form;

/* ---- the ops -----------------------------------------------------------------------------------
 *
 * As types of functions, so that a backend declares its own by them. */

/* 2.0: h[t][i] = table[tokens[t]] for every stream i; pre[t] = (1, 0, ...).
 * tokens: host [n], in range; table BF16 [vocab, d]; h bf16 [n, hc, d]; pre f32 [n, hc]. */
typedef void di_op_embed(di_backend *be, const int32_t *tokens, int n, const di_tensor *table,
                         int hc, di_bf16 *h, float *pre);

/* to[i] = from[rows[i]] for rows of `bytes` bytes; rows: host [n]. */
typedef void di_op_gather_rows(di_backend *be, const void *from, const int32_t *rows, int n,
                               size_t bytes, void *to);

/* 2.1: h bf16 [n, hc, d], fn F32 [(2 + hc) * hc, hc * d], base F32, scale F32 [3] -> pre f32
 * [n, hc], post f32 [n, hc], comb f32 [n, hc (from), hc (to)]. */
typedef void di_op_mhc_mix(di_backend *be, const di_bf16 *h, int n, int hc, int d,
                           const di_tensor *fn, const di_tensor *base, const di_tensor *scale,
                           float norm_eps, float hc_eps, int sinkhorn_iters, float *pre,
                           float *post, float *comb);

/* 2.2 collapse: out[t] = bf16(sum_i pre[t][i] * h[t][i]), bf16 [n, d]. */
typedef void di_op_mhc_pre(di_backend *be, const di_bf16 *h, const float *pre, int n, int hc, int d,
                           di_bf16 *out);

/* 2.2 expand, in place: h[t][j] = bf16(post[t][j] * y[t] + sum_i comb[t][i][j] * h[t][i]).
 * norm != NULL: what enters the next sub-block too, x = rms_norm(mhc_pre(h, pre), norm) to the
 * bit, bf16 [n, d], and q8 unless that is NULL, the same through Q8; else pre, x, q8 are unused. */
typedef void di_op_mhc_post(di_backend *be, const di_bf16 *y, const float *post, const float *comb,
                            int n, int hc, int d, di_bf16 *h, const float *pre,
                            const di_tensor *norm, float norm_eps, di_bf16 *x, di_bf16 *q8);

/* out[t] = bf16((h[t][0] + h[t][1] + ...) / hc), rows of out ldo values apart. */
typedef void di_op_stream_mean(di_backend *be, const di_bf16 *h, int n, int hc, int d, di_bf16 *out,
                               size_t ldo);

/* 0.3: y = bf16(w * (x / sqrt(mean(x^2) + eps))), and q8 the same through Q8; x, y, q8 bf16
 * [n, dim]. One of y and q8 may be NULL, and one of them may be x. */
typedef void di_op_rms_norm(di_backend *be, const di_bf16 *x, const di_tensor *w, float eps, int n,
                            int dim, di_bf16 *y, di_bf16 *q8);

/* 0.3 lin8, lin4, linB by w's dtype: y = bf16(x W^T); FP8 and FP4 weights quantise x by Q8
 * first, unless it has that form. x bf16 [n, k], w [m, k], y bf16 [n, m]. */
typedef void di_op_linear(di_backend *be, const di_bf16 *x, di_form form, int n, const di_tensor *w,
                          di_bf16 *y);

/* Two such products of one x, to the bit: w1 and w2 have one dtype. */
typedef void di_op_linear_pair(di_backend *be, const di_bf16 *x, di_form form, int n,
                               const di_tensor *w1, di_bf16 *y1, const di_tensor *w2, di_bf16 *y2);

/* 0.3 linF: as linB without the last rounding, y f32 [n, m]; w BF16. Also the LM head (2.10). */
typedef void di_op_linear_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w,
                              float *y);

/* y[t] += x[t] W^T for rows of y ldy floats apart: the product as linear_f32, then one sum. */
typedef void di_op_linear_add_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w,
                                  float *y, size_t ldy);

/* 2.7: y[t][g] = bf16(x[t][g] W_g^T), x bf16 [n, groups, k], not quantised; w FP8
 * [groups * m, k], group g owning rows g * m ..; y bf16 [n, groups, m], in the form asked for (one
 * row being all groups' values). */
typedef void di_op_linear_grouped(di_backend *be, const di_bf16 *x, int n, int groups,
                                  const di_tensor *w, di_bf16 *y, di_form form);

/* 2.3: angle = f32(position) * freq[i] rounded to f32; cos and sin of that number as f32.
 * positions: host [n]; freq: host [half]. */
typedef void di_op_rope_table(di_backend *be, const int64_t *positions, int n, const float *freq,
                              di_rope_table table);

/* 2.3, in place: rotates the last 2 * table.half values of each of x's [n, heads] vectors of
 * `dim` values, adjacent pairs; row t by table row t; inverse negates sin. */
typedef void di_op_rope(di_backend *be, di_bf16 *x, int n, int heads, int dim, di_rope_table table,
                        bool inverse);

/* 2.4: kv bf16 [n, dim] through rms_norm and rope, then Q8 -> window records
 * [n, window_bytes]. What kv holds afterwards is the backend's affair. */
typedef void di_op_window_make(di_backend *be, di_bf16 *kv, int n, int dim, const di_tensor *norm,
                               float eps, di_rope_table table, uint8_t *records);

/* Stores each sequence's last min(num_rows, ring_rows) records into layer's ring. Called after
 * the attention of the step has read the ring. */
typedef void di_op_window_store(di_backend *be, const di_step *step, int layer,
                                const uint8_t *records);

/* 2.5: pools tokens into latents, before norm.
 *   ratio 1: latents[t] = bf16(k[t]); g is NULL.
 *   ratio r: weights = softmax over the group's r values of g; bf16(sum k * weight).
 * k, g: f32 [n, dim]. entries: host [m], what this step closes, by sequence and then number;
 * group tokens from before the step are read from the open-group ring; the step's last rows are
 * then written there. latents: bf16 [m, dim]. */
typedef void di_op_compress(di_backend *be, const di_step *step, int layer, int ratio,
                            const float *k, const float *g, const di_entry *entries, int m, int dim,
                            di_bf16 *latents);

/* Q4K of (rotated) latents bf16 [m, dim] and Q4I of (rotated) keys bf16 [m, key_dim] into
 * the blocks of kv source `layer`, at the entries given. */
typedef void di_op_entry_store(di_backend *be, const di_step *step, int layer, int ratio,
                               const di_entry *entries, int m, const di_bf16 *latents, int dim,
                               const di_bf16 *keys, int key_dim);

/* 2.6. q bf16 [n, heads, key_dim] rotated (this op applies Q4I); weights bf16 [n, heads], not
 * yet scaled: each is multiplied by f32(key_dim^-0.5 * heads^-0.5) in f32. Scores against the
 * keys of `source`: f32 sum over heads ascending. Visible entries: (p + 1) / ratio.
 *   candidates != NULL and build: also publishes the best max_blocks entry blocks (the newest
 *   visible one forced in), ascending, -1 filled, candidates i32 [n, max_blocks].
 *   candidates != NULL and !build: only entries of these blocks may be chosen.
 * topk i32 [n, k]: the k best, lower entry first among equals, ascending, -1 filled. */
typedef void di_op_index_topk(di_backend *be, const di_step *step, int source, int ratio,
                              const di_bf16 *q, const di_bf16 *weights, int heads, int key_dim,
                              int k, int32_t *candidates, bool build, int max_blocks,
                              int block_size, int32_t *topk);

/* 2.7 core. Key list of the query at p, `window` slots for positions max(window_start,
 * p - window + 1) .. p ascending (empty slots behind them), then topk's entries of `source`
 * ascending; K = V. For rows of a draft block: `window` slots for positions max(window_start,
 * pos0 - window) .. pos0 - 1, then num_rows slots for the block's own, no entries. Online
 * softmax over blocks of 64 list slots in order; probabilities rounded to BF16 for the values
 * only; the sink joins the denominator once, at the end. records: this step's own window
 * records; earlier ones come from layer's ring. Queries go through rope first, results through
 * its inverse behind their rounding. q bf16 [n, heads, dim], which may be left rotated; topk
 * i32 [n, k] or NULL (k = 0); sink F32 [heads]; out bf16 [n, heads, dim]. scale =
 * f32(dim^-0.5). */
typedef void di_op_attention(di_backend *be, const di_step *step, int layer, int window, int source,
                             int ratio, di_bf16 *q, int heads, int dim, di_rope_table table,
                             const uint8_t *records, const int32_t *topk, int k,
                             const di_tensor *sink, di_bf16 *out);

/* A hint; NULL in the table where it is of no use. Of what `attention` called with the same
 * arguments (k = 0: without entries) will read, the window's keys are there (records != NULL) or
 * the chosen entries (topk != NULL), so that a backend may decode them beforehand: the window's for
 * the next such call, the entries for all with this topk and source up to the next hint. */
typedef void di_op_attention_keys(di_backend *be, const di_step *step, int layer, int window,
                                  int source, int ratio, int heads, int dim, const uint8_t *records,
                                  const int32_t *topk, int k);

/* 2.8 router: s = sqrt(softplus(linF(x, gate) / temp)); the top_k largest of s + bias (lower
 * number first among equals), in ascending expert number; weight = s / (sum s + 1e-20) if norm
 * and top_k > 1, then times scale. image: host [n] flags that choose bias_vl, or NULL.
 * experts i32 [n, top_k], weights f32 [n, top_k]. A non-finite s + bias is never chosen before
 * a finite one. */
typedef void di_op_route(di_backend *be, const di_bf16 *x, int n, const di_tensor *gate,
                         const di_tensor *bias, const di_tensor *bias_vl, const uint8_t *image,
                         float temp, int top_k, bool norm, float scale, int32_t *experts,
                         float *weights);

/* 2.8 experts: a = lin(x, w1), b = lin(x, w3); a = min(a, limit), b = clamp(b, +-limit) if
 * limit > 0; t = bf16(weight * (silu(a) * b)); out = lin(t, w2). y = bf16(sum of the routed
 * outs in ascending expert number, then the shared one (weight 1)). x, y bf16 [n, d]. */
typedef void di_op_moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                       const float *weights, int top_k, const di_expert *table, int num_experts,
                       const di_expert *shared, float limit, di_bf16 *y);

/* 2.9 lookup and gate, in place on h bf16 [n, hc, d]. rows: host i64 [n, columns], rows of the
 * table; a token whose first row is -1 is skipped. The table's codes and scales go into wkv as
 * they lie (no Q8). */
typedef void di_op_engram(di_backend *be, const int64_t *rows, int n, int columns,
                          const di_tensor *table, const di_tensor *wkv, const di_tensor *q_weight,
                          const di_tensor *k_weight, int hc, int d, float eps, di_bf16 *h);

/* ---- the table --------------------------------------------------------------------------------*/

typedef struct di_ops {
    const char *name; /* "ref", "cpu", "cuda" */

    /* Buffers on the device, 256-byte aligned; NULL when memory is short. */
    void *(*alloc)(di_backend *be, size_t bytes);
    void (*free)(di_backend *be, void *buffer);
    void (*upload)(di_backend *be, void *to, const void *from_host, size_t bytes);
    void (*download)(di_backend *be, void *to_host, const void *from, size_t bytes);
    void (*copy)(di_backend *be, void *to, const void *from, size_t bytes); /* both on the device */
    /* Waits for everything queued; false with the first fault since the last sync. */
    bool (*sync)(di_backend *be, di_error *err);
    void (*destroy)(di_backend *be);

    /* As described above. */
    di_op_embed *embed;
    di_op_gather_rows *gather_rows;
    di_op_mhc_mix *mhc_mix;
    di_op_mhc_pre *mhc_pre;
    di_op_mhc_post *mhc_post;
    di_op_stream_mean *stream_mean;
    di_op_rms_norm *rms_norm;
    di_op_linear *linear;
    di_op_linear_pair *linear_pair;
    di_op_linear_f32 *linear_f32;
    di_op_linear_add_f32 *linear_add_f32;
    di_op_linear_grouped *linear_grouped;
    di_op_rope_table *rope_table;
    di_op_rope *rope;
    di_op_window_make *window_make;
    di_op_window_store *window_store;
    di_op_compress *compress;
    di_op_entry_store *entry_store;
    di_op_index_topk *index_topk;
    di_op_attention *attention;
    di_op_attention_keys *attention_keys;
    di_op_route *route;
    di_op_moe *moe;
    di_op_engram *engram;

    /* What it takes to queue whole steps; NULL: ops run when they are called. */
    const di_queue_ops *queue;
} di_ops;

/* First member of every backend's own struct. */
struct di_backend {
    const di_ops *ops;
};

/* Constructors live with their backends: ops/ref/ref.h, ops/cpu/cpu.h,
 * ops/cuda/cuda.h. */

#endif
