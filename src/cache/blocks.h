/* The pool of blocks: who holds them, which are published under which hash, which may be evicted.
 *
 * A block is one of
 *   free       nobody's, its bytes mean nothing
 *   held       refs > 0; hashed once it is full and published
 *   cached     refs == 0 and hashed: kept for whoever asks for its hash, evicted when needed
 *
 * Two sequences that compute the same prefix side by side fill blocks of the same hash: twins. The
 * map points to one of them. When that one is given back another stands in for it, so a content is
 * in the map exactly as long as any block has it, and a cached block never has twins.
 *
 * Blocks are given back from a table's end, and looked up from its start, so a cached block always
 * lies in front of its parent in the order of eviction: what is evicted is the end of its chain,
 * and every published block's whole prefix is published too. Called by cache.c and sequence.c. */
#ifndef DI_CACHE_BLOCKS_H
#define DI_CACHE_BLOCKS_H

#include "cache/numbers.h"
#include "cache/prefix.h"
#include "cache/ring.h"

typedef struct di_block {
    int32_t refs;     /* block tables and pins that hold it */
    int32_t snapshot; /* of the rings at its end; 0 = none. Only the block in the map has one */
    bool hashed;
} di_block;

/* What a published block holds, to be compared on a hit. A content's serial is its own: equal
 * parents' serials mean equal prefixes, whatever the hashes say. */
typedef struct di_block_content {
    di_hash parent; /* the hash in front, or the salt */
    uint64_t parent_serial, serial;
    int32_t tokens[DI_BLOCK_TOKENS];
} di_block_content;

typedef struct di_blocks {
    di_block *all;   /* [total + 1] by number */
    di_link *links;  /* cached blocks: the list through 0, oldest first; held hashed ones: twins */
    di_hash *hashes; /* of hashed blocks */
    di_prefix_map map;
    di_numbers numbers;
    di_block_content *contents; /* NULL: hashes are believed */
    uint64_t last_serial;
    int num_cached;
    uint64_t num_evicted; /* since the start */
} di_blocks;

/* One block's worth of a prefix. */
typedef struct di_prefix_step {
    di_hash parent, hash;
    int32_t parent_block; /* a block of that content; 0: the start */
    const int32_t *tokens;
} di_prefix_step;

/* False when memory is short; destroy is right then too. */
bool di_blocks_create(di_blocks *b, int total, bool compare_tokens);
void di_blocks_destroy(di_blocks *b);

static inline int di_blocks_available(const di_blocks *b) {
    return di_numbers_free(&b->numbers) + b->num_cached;
}

/* A block of nobody's, now held once; one must be available. Evicts if need be: *orphan is then the
 * snapshot that the evicted block had, to be given back by the caller, else 0. */
int32_t di_blocks_take(di_blocks *b, int32_t *orphan);

/* One holder more, or less. */
void di_blocks_hold(di_blocks *b, int32_t n);
void di_blocks_release(di_blocks *b, int32_t n);

/* The block published for this step; 0 if there is none, or one of the same hash that holds
 * something else. */
int32_t di_blocks_find(const di_blocks *b, const di_prefix_step *step);

/* Publishes a held, unhashed block. False if its hash is taken by another content. */
bool di_blocks_publish(di_blocks *b, int32_t n, const di_prefix_step *step);

/* Makes n the last to be evicted if it is cached. */
void di_blocks_touch(di_blocks *b, int32_t n);

#endif
