/* Names of prefixes: the hash of all tokens up to a block's end, and the map from it to the block.
 *
 * A block's hash is XXH3-128 of (the hash in front of it, its 128 token ids), the first one's that
 * of (salt, ids), salts being of their texts; all keyed by a secret that each cache draws anew, so
 * that nobody can prepare collisions. With n published blocks the chance that any two different
 * ones share a hash is about n^2 / 2^129: 2^-91 for half a million. di_cache_options.compare_tokens
 * takes away even that. */
#ifndef DI_CACHE_PREFIX_H
#define DI_CACHE_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cache/cache.h"

typedef struct di_hasher {
    uint8_t secret[192];
    uint64_t mask; /* all ones; tests clear bits to force collisions */
} di_hasher;

bool di_hasher_init(di_hasher *h, di_error *err);

/* Hash of the block of tokens[0 .. DI_BLOCK_TOKENS) behind the prefix `previous` (or the salt). */
di_hash di_hasher_next(const di_hasher *h, di_hash previous, const int32_t *tokens);

/* Of any number of tokens at once; not weakened by the mask. */
di_hash di_hasher_all(const di_hasher *h, di_hash salt, const int32_t *tokens, int64_t n);

/* Of a salt's text; not weakened by the mask. */
di_hash di_hasher_text(const di_hasher *h, const void *text, size_t size);

static inline bool di_hash_equal(di_hash a, di_hash b) {
    return a.low == b.low && a.high == b.high;
}

/* Open addressing with linear probing, at most half full. Holds numbers from 1 on; a number's key
 * stands in an array of its owner's. */
typedef struct di_prefix_map {
    int32_t *cells; /* 0: empty */
    size_t mask;
    const di_hash *keys; /* borrowed */
} di_prefix_map;

bool di_prefix_map_create(di_prefix_map *m, const di_hash *keys, int count);
void di_prefix_map_destroy(di_prefix_map *m);

/* The number whose key is `key`; 0: none. */
int32_t di_prefix_map_find(const di_prefix_map *m, di_hash key);

/* keys[n] is not in the map. */
void di_prefix_map_insert(di_prefix_map *m, int32_t n);

/* `n` stands in the map. */
void di_prefix_map_remove(di_prefix_map *m, int32_t n);

/* `to`, of the same key, stands in the place of `from`. */
void di_prefix_map_replace(di_prefix_map *m, int32_t from, int32_t to);

#endif
