/* Engram's n-gram hashing: which rows of a layer's table a token looks up. Host integers only. */
#ifndef DI_MODEL_ENGRAM_H
#define DI_MODEL_ENGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/queue.h"
#include "weights/config.h"

/* Compressed id of a token that belongs to no n-gram and looks nothing up (image slots). */
enum { DI_ENGRAM_BARRIER = -1 };

typedef struct di_engram_hasher {
    int num_layers, max_ngram, heads, columns, vocab_size;
    int32_t pad;              /* compressed id that stands before a sequence's start */
    const int32_t *token_map; /* borrowed, [vocab_size] */
    int64_t primes[DI_MAX_ENGRAM_LAYERS][DI_MAX_ENGRAM_COLUMNS];
    int64_t offsets[DI_MAX_ENGRAM_LAYERS][DI_MAX_ENGRAM_COLUMNS];
    uint64_t multipliers[DI_MAX_ENGRAM_LAYERS][DI_MAX_NGRAM];
} di_engram_hasher;

/* Primes, offsets and multipliers follow from the config alone. token_map values must lie in
 * [0, engram_compressed_vocab_size). */
void di_engram_hasher_init(di_engram_hasher *h, const di_config *c, const int32_t *token_map);

/* Compressed id of a token id; a barrier for ids outside the vocabulary. */
int32_t di_engram_compress(const di_engram_hasher *h, int64_t token);

/* Rows of engram layer `layer` (index into engram_layer_ids) for the token ids[at]; ids are
 * compressed ids of one sequence, ids[0] preceded by the sequence's start if at_start, else the
 * caller gives max_ngram - 1 predecessors. rows: [columns]; -1 each for a barrier. */
void di_engram_hash(const di_engram_hasher *h, int layer, const int32_t *ids, int at,
                    int64_t *rows);

/* The same for a device (ops/queue.h); its arrays are the hasher's. */
di_ngram_hash di_engram_device_hash(const di_engram_hasher *h, int layer);

/* NumPy's default_rng(seed).integers(0, bound) drawn `count` times; bound > 2^32. Exposed for
 * tests. */
void di_numpy_integers(uint64_t seed, uint64_t bound, int count, uint64_t *out);

#endif
