/* The queue table of the CUDA backend (queue.c) and the kernels behind it. Plain C on both sides.
 */
#ifndef DI_OPS_CUDA_CARD_QUEUE_H
#define DI_OPS_CUDA_CARD_QUEUE_H

#include <cuda_runtime_api.h>

#include "ops/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* di_ngram_hash and its call, with addresses on the card. */
typedef struct dk_ngram_hash {
    int max_ngram, heads, columns, vocab_size, look_back;
    int32_t pad;
    const int32_t *token_map;
    const int64_t *primes, *offsets;
    const uint64_t *multipliers;
    const int32_t *tokens, *before; /* [n], [n, look_back] */
    const uint8_t *image;           /* [n] or NULL */
    int64_t *rows;                  /* [n, columns] */
} dk_ngram_hash;

void dk_hash_ngrams(cudaStream_t s, const dk_ngram_hash *h, int n);
void dk_feed(cudaStream_t s, int32_t *tokens, const int32_t *source, int n, const int32_t *drawn);

/* Codes E4M3 [rows, width] and scales E8M0 [rows, width / 32] of the rows that n tokens look up, as
 * dk_engram_rows takes them: [n, columns, width] and [n, columns, width / 32]. Zeros for tokens
 * that look nothing up, whose place in `tokens` gets -1, else the token's number from `first` on.
 */
typedef struct dk_ngram_rows {
    const uint8_t *data, *scale;
    const int64_t *rows; /* [n, columns] */
    int columns, width, first;
    uint8_t *codes, *scales;
    int32_t *tokens; /* [n] */
} dk_ngram_rows;
void dk_gather_ngrams(cudaStream_t s, const dk_ngram_rows *r, int n);

/* Fails. */
void dk_trap(cudaStream_t s);

/* di_draw_call with addresses on the card. */
cudaError_t dk_draw(cudaStream_t s, const di_draw_call *call);

extern const di_queue_ops di_card_queue_ops;

#ifdef __cplusplus
}
#endif

#endif
