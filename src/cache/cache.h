/* The state of sequences: where each kind lies, and pools of blocks and slots to put it in.
 *
 * Growing state (latents and index keys of all kv sources) lies in blocks of DI_BLOCK_TOKENS
 * tokens, fixed-size state (window rings, open groups) in one slot per sequence. Block 0 and slot 0
 * are never given out: padding rows may point there. Layout and bytes: layout.h. */
#ifndef DI_CACHE_CACHE_H
#define DI_CACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ops/ops.h"
#include "weights/config.h"

enum { DI_BLOCK_TOKENS = 128 };

typedef struct di_cache di_cache;

typedef struct di_cache_options {
    int num_blocks;       /* usable ones, >= 1 */
    int num_slots;        /* sequences at once, >= 1 */
    int max_backtracking; /* B: rings hold sliding_window + B rows, so that up to B - 1 tokens can
                             be taken back without copying (0: as reference, no rollback) */
} di_cache_options;

/* Blocks that `tokens` tokens need. */
static inline int64_t di_blocks_for(int64_t tokens) {
    return (tokens + DI_BLOCK_TOKENS - 1) / DI_BLOCK_TOKENS;
}

/* The cache borrows config and backend; both must outlive it. Not thread-safe. */
di_cache *di_cache_create(const di_config *c, di_backend *be, const di_cache_options *o,
                          di_error *err);
void di_cache_destroy(di_cache *cache);

const di_state_pool *di_cache_pool(const di_cache *cache);
int di_cache_free_blocks(const di_cache *cache);
int di_cache_free_slots(const di_cache *cache);

/* One sequence. Fields are read by the model; only the functions below and di_model_forward write
 * them. */
typedef struct di_seq {
    int64_t len; /* tokens whose state is stored */
    int32_t slot;
    int32_t *blocks; /* block table, entries [0, num_blocks) */
    int num_blocks;
    size_t capacity;
} di_seq;

/* Takes a slot; the sequence is empty. DI_ERR_NO_MEMORY when no slot is free. */
bool di_seq_open(di_cache *cache, di_seq *seq, di_error *err);

/* Makes the block table long enough for `len` tokens in all. On failure nothing has changed. */
bool di_seq_reserve(di_cache *cache, di_seq *seq, int64_t len, di_error *err);

/* Gives everything back; a zeroed or closed sequence may be closed again. */
void di_seq_close(di_cache *cache, di_seq *seq);

#endif
