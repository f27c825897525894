/* Every op of the CUDA backend; what each computes stands in ops/ops.h. */
#ifndef DI_OPS_CUDA_CARD_OPS_H
#define DI_OPS_CUDA_CARD_OPS_H

#include "ops/ops.h"

void di_card_embed(di_backend *be, const int32_t *tokens, int n, const di_tensor *table, int hc,
                   di_bf16 *h, float *pre);
void di_card_gather_rows(di_backend *be, const void *from, const int32_t *rows, int n, size_t bytes,
                         void *to);
void di_card_rms_norm(di_backend *be, const di_bf16 *x, const di_tensor *w, float eps, int n,
                      int dim, di_bf16 *y);
void di_card_rope_table(di_backend *be, const int64_t *positions, int n, const float *freq,
                        di_rope_table table);
void di_card_rope(di_backend *be, di_bf16 *x, int n, int heads, int dim, di_rope_table table,
                  bool inverse);

void di_card_mhc_mix(di_backend *be, const di_bf16 *h, int n, int hc, int d, const di_tensor *fn,
                     const di_tensor *base, const di_tensor *scale, float norm_eps, float hc_eps,
                     int sinkhorn_iters, float *pre, float *post, float *comb);
void di_card_mhc_pre(di_backend *be, const di_bf16 *h, const float *pre, int n, int hc, int d,
                     di_bf16 *out);
void di_card_stream_mean(di_backend *be, const di_bf16 *h, int n, int hc, int d, di_bf16 *out,
                         size_t ldo);
void di_card_mhc_post(di_backend *be, const di_bf16 *y, const float *post, const float *comb, int n,
                      int hc, int d, di_bf16 *h, const float *pre, const di_tensor *norm,
                      float norm_eps, di_bf16 *x);

void di_card_linear(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, di_bf16 *y);
void di_card_linear_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y);
void di_card_linear_add_f32(di_backend *be, const di_bf16 *x, int n, const di_tensor *w, float *y,
                            size_t ldy);
void di_card_linear_grouped(di_backend *be, const di_bf16 *x, int n, int groups, const di_tensor *w,
                            di_bf16 *y);

void di_card_window_make(di_backend *be, di_bf16 *kv, int n, int dim, const di_tensor *norm,
                         float eps, di_rope_table table, uint8_t *records);
void di_card_window_store(di_backend *be, const di_step *step, int layer, const uint8_t *records);
void di_card_compress(di_backend *be, const di_step *step, int layer, int ratio, const float *k,
                      const float *g, const di_entry *entries, int m, int dim, di_bf16 *latents);
void di_card_entry_store(di_backend *be, const di_step *step, int layer, int ratio,
                         const di_entry *entries, int m, const di_bf16 *latents, int dim,
                         const di_bf16 *keys, int key_dim);

void di_card_index_topk(di_backend *be, const di_step *step, int source, int ratio,
                        const di_bf16 *q, const di_bf16 *weights, int heads, int key_dim, int k,
                        int32_t *candidates, bool build, int max_blocks, int block_size,
                        int32_t *topk);
void di_card_attention_keys(di_backend *be, const di_step *step, int layer, int window, int source,
                            int ratio, int heads, int dim, const uint8_t *records,
                            const int32_t *topk, int k);
void di_card_attention(di_backend *be, const di_step *step, int layer, int window, int source,
                       int ratio, di_bf16 *q, int heads, int dim, di_rope_table table,
                       const uint8_t *records, const int32_t *topk, int k, const di_tensor *sink,
                       di_bf16 *out);

void di_card_route(di_backend *be, const di_bf16 *x, int n, const di_tensor *gate,
                   const di_tensor *bias, const di_tensor *bias_vl, const uint8_t *image,
                   float temp, int top_k, bool norm, float scale, int32_t *experts, float *weights);
void di_card_moe(di_backend *be, const di_bf16 *x, int n, const int32_t *experts,
                 const float *weights, int top_k, const di_expert *table, int num_experts,
                 const di_expert *shared, float limit, di_bf16 *y);
void di_card_engram(di_backend *be, const int64_t *rows, int n, int columns, const di_tensor *table,
                    const di_tensor *wkv, const di_tensor *q_weight, const di_tensor *k_weight,
                    int hc, int d, float eps, di_bf16 *h);

#endif
