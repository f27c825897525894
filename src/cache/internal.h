/* What the files of cache/ share: the cache itself. Nothing outside cache/ and its tests includes
 * it. */
#ifndef DI_CACHE_INTERNAL_H
#define DI_CACHE_INTERNAL_H

#include "cache/blocks.h"
#include "cache/cache.h"
#include "cache/snapshots.h"

/* One call of di_cache_pin that found something. */
typedef struct di_pin {
    di_hash key; /* of its arguments */
    int32_t *blocks;
    int num_blocks;
    int32_t snapshot; /* 0 = none */
} di_pin;

struct di_cache {
    /* fixed once created */
    di_backend *be;
    di_cache_options o;
    di_state_layout layout;
    di_state_pool pool;
    di_hasher hasher;

    di_blocks blocks;
    di_numbers slots;
    di_snapshots snapshots; /* number n lies in slot num_slots + n */

    int table_blocks;    /* length of a block table: the model's context, or the pool if smaller */
    int32_t *tables;     /* [num_slots][table_blocks], by slot from 1 on */
    int32_t *table_used; /* [num_slots + 1] as di_seq.num_blocks; -1: the slot is free */
    int32_t *walked;     /* [table_blocks] what di_cache_walk found */

    di_slot_copy *copies;
    size_t num_copies, copies_capacity;
    di_pin *pins;
    size_t num_pins, pins_capacity;

    uint64_t lookups, tokens_asked, tokens_hit;
};

static inline int32_t *di_cache_table(di_cache *cache, int32_t slot) {
    return cache->tables + (size_t)(slot - 1) * (size_t)cache->table_blocks;
}

/* Finds the published blocks that tokens[0 .. max_blocks * DI_BLOCK_TOKENS) begin with, into
 * cache->walked; returns how many. */
int di_cache_walk(di_cache *cache, di_hash salt, const int32_t *tokens, int64_t max_blocks);

/* Takes a snapshot from the block it belongs to and makes it free. */
void di_cache_drop_snapshot(di_cache *cache, int32_t snapshot);

/* Room for one more copy, so that di_cache_add_copy cannot fail. */
bool di_cache_reserve_copy(di_cache *cache);
void di_cache_add_copy(di_cache *cache, int32_t from, int32_t to);

#endif
