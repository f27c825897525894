/* The kernels of the bad card compute nothing; what a draw gives is token 300. See badcard.h. */
#include "ops/cuda/card/kernels.h"
#include "badcard/badcard.h"
#include "ops/cuda/card/queue.h"

void dk_pack(cudaStream_t s, const dk_matrix *w, int first, int rows, const uint8_t *codes,
             const uint8_t *scale) {
    badcard_launch(__func__);
}

bool dk_prepares(const dk_product *p) {
    return true;
}

void dk_multiply(cudaStream_t s, const dk_product *p) {
    badcard_launch(__func__);
}

void dk_moe_run(cudaStream_t s, const dk_moe *m) {
    badcard_launch(__func__);
}

void dk_route(cudaStream_t s, const float *logits, int n, int num_experts, const float *bias,
              const float *bias_vl, const uint8_t *image, float temp, int top_k, bool norm,
              float scale, int32_t *experts, float *weights) {
    badcard_launch(__func__);
}

void dk_window_make(cudaStream_t s, const dk_bf16 *kv, int n, int dim, const dk_bf16 *norm,
                    float eps, const float *cosine, const float *sine, int half, uint8_t *records) {
    badcard_launch(__func__);
}

void dk_window_store(cudaStream_t s, const dk_step *step, const uint8_t *records) {
    badcard_launch(__func__);
}

void dk_compress(cudaStream_t s, const dk_step *step, int ratio, const float *k, const float *g,
                 const dk_entry *entries, int m, int dim, dk_bf16 *latents) {
    badcard_launch(__func__);
}

void dk_entry_store(cudaStream_t s, const dk_step *step, int ratio, const dk_entry *entries, int m,
                    const dk_bf16 *latents, int dim, const dk_bf16 *keys, int key_dim) {
    badcard_launch(__func__);
}

void dk_attention(cudaStream_t s, const dk_attention_call *c) {
    badcard_launch(__func__);
}

bool dk_attention_takes_tiles(const dk_attention_call *c) {
    return false;
}

void dk_attention_keys(cudaStream_t s, const dk_attention_call *c, bool window, bool entries) {
    badcard_launch(__func__);
}

void dk_index(cudaStream_t s, const dk_index_call *c) {
    badcard_launch_rows(__func__, c->rows);
}

void dk_embed(cudaStream_t s, const int32_t *tokens, int n, const dk_bf16 *table, int d, int hc,
              dk_bf16 *h, float *pre) {
    badcard_launch(__func__);
}

void dk_gather(cudaStream_t s, const void *from, const int32_t *rows, int n, size_t bytes,
               void *to) {
    badcard_launch(__func__);
}

void dk_stream_mean(cudaStream_t s, const dk_bf16 *h, int n, int hc, int d, dk_bf16 *out,
                    size_t ldo) {
    badcard_launch_rows(__func__, n);
}

void dk_rms_norm(cudaStream_t s, const dk_bf16 *x, const dk_bf16 *w, float eps, int n, int dim,
                 dk_bf16 *y, dk_bf16 *q8) {
    badcard_launch(__func__);
}

void dk_rope_table(cudaStream_t s, const int64_t *positions, int n, const float *freq, int half,
                   float *cosine, float *sine) {
    badcard_launch(__func__);
}

void dk_rope(cudaStream_t s, dk_bf16 *x, int n, int heads, int dim, const float *cosine,
             const float *sine, int half, bool inverse) {
    badcard_launch(__func__);
}

void dk_mhc_mix(cudaStream_t s, const dk_mix *m) {
    badcard_launch(__func__);
}

void dk_mhc_pre(cudaStream_t s, const dk_bf16 *h, const float *pre, int n, int hc, int d,
                dk_bf16 *out) {
    badcard_launch_rows(__func__, n);
}

void dk_mhc_post(cudaStream_t s, const dk_expand *e) {
    badcard_launch_rows(__func__, e->n);
}

void dk_engram_rows(cudaStream_t s, const uint8_t *codes, const uint8_t *scales, int n, int k,
                    dk_bf16 *out) {
    badcard_launch(__func__);
}

void dk_engram_gate(cudaStream_t s, const int32_t *tokens, int n, const dk_bf16 *kv,
                    const dk_bf16 *qw, const dk_bf16 *kw, int hc, int d, float eps, dk_bf16 *h) {
    badcard_launch(__func__);
}

void dk_read_all(cudaStream_t s, const void *from, size_t bytes, uint32_t *sink) {
    badcard_launch(__func__);
}

void dk_hash_ngrams(cudaStream_t s, const dk_ngram_hash *h, int n) {
    badcard_launch(__func__);
}

void dk_feed(cudaStream_t s, int32_t *tokens, const int32_t *source, int n, const int32_t *drawn) {
    badcard_launch(__func__);
}

void dk_gather_ngrams(cudaStream_t s, const dk_ngram_rows *r, int n) {
    badcard_launch(__func__);
}

void dk_trap(cudaStream_t s) {
    badcard_trap();
}

cudaError_t dk_draw(cudaStream_t s, const di_draw_call *call) {
    badcard_launch(__func__);
    for (int i = 0; i < call->n; i++) {
        call->tokens[i] = 300;
        call->drawn[i] = (di_drawn){.token = 300};
    }
    return cudaSuccess;
}
