/* What the files of the oracle share. */
#ifndef DI_OPS_REF_INTERNAL_H
#define DI_OPS_REF_INTERNAL_H

#include "ops/ops.h"

typedef struct di_ref {
    di_backend base;
    bool failed; /* sticky: reported by sync */
} di_ref;

/* Scratch of count * size bytes, zeroed; NULL sets the sticky fault. Freed with di_free. */
void *di_ref_scratch(di_backend *be, size_t count, size_t size);

/* Element [i][j] of a stored matrix as f32 (FP8 and FP4 with their scales). */
float di_ref_weight(const di_tensor *w, int64_t i, int64_t j);

/* Q8 round trip of one row: x bf16 [k] -> values code * scale, exact in f32. */
void di_ref_q8(const di_bf16 *x, int64_t k, float *out);

/* sum_j a[j] * w[row][j] in float64. */
double di_ref_dot(const float *a, const di_tensor *w, int64_t row);

/* Window, latent and key records -> values. */
void di_ref_read_window(const uint8_t *record, int dim, float *out);
void di_ref_read_latent(const uint8_t *record, int dim, float *out);
void di_ref_read_key(const uint8_t *record, int dim, float *out);

/* The k best finite scores of n, lower index first among equals; ascending, filled up with -1. */
bool di_ref_best(di_backend *be, const float *scores, int64_t n, int k, int32_t *out);

/* ref_attention.c */
void di_ref_index_topk(di_backend *be, const di_step *step, int source, int ratio, const di_bf16 *q,
                       const di_bf16 *weights, int heads, int key_dim, int k, int32_t *candidates,
                       bool build, int max_blocks, int block_size, int32_t *topk);
void di_ref_attention(di_backend *be, const di_step *step, int layer, int window, int source,
                      int ratio, di_bf16 *q, int heads, int dim, di_rope_table table,
                      const uint8_t *records, const int32_t *topk, int k, const di_tensor *sink,
                      di_bf16 *out);

/* ref_state.c */
void di_ref_window_make(di_backend *be, di_bf16 *kv, int n, int dim, const di_tensor *norm,
                        float eps, di_rope_table table, uint8_t *records);
void di_ref_window_store(di_backend *be, const di_step *step, int layer, const uint8_t *records);
void di_ref_compress(di_backend *be, const di_step *step, int layer, int ratio, const float *k,
                     const float *g, const di_entry *entries, int m, int dim, di_bf16 *latents);
void di_ref_entry_store(di_backend *be, const di_step *step, int layer, int ratio,
                        const di_entry *entries, int m, const di_bf16 *latents, int dim,
                        const di_bf16 *keys, int key_dim);

/* ref_moe.c */
void di_ref_route(di_backend *be, const di_bf16 *x, int n, const di_tensor *gate,
                  const di_tensor *bias, const di_tensor *bias_vl, const uint8_t *image, float temp,
                  int top_k, bool norm, float scale, int32_t *experts, float *weights);
void di_ref_moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                const float *weights, int top_k, const di_expert *table, int num_experts,
                const di_expert *shared, float limit, di_bf16 *y);
void di_ref_engram(di_backend *be, const int64_t *rows, int n, int columns, const di_tensor *table,
                   const di_tensor *wkv, const di_tensor *q_weight, const di_tensor *k_weight,
                   int hc, int d, float eps, di_bf16 *h);

#endif
