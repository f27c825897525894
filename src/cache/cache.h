/* The state of sequences: where each kind lies, pools of blocks and slots to put it in, and
 * prefixes that are used again.
 *
 * Growing state (latents and index keys of all kv sources) lies in blocks of DI_BLOCK_TOKENS
 * tokens, fixed-size state (window rings, open groups) in one slot per sequence. Block 0 and slot 0
 * are never given out: padding rows may point there. Layout and bytes: layout.h.
 *
 * Reuse. A full block is published under the hash of all tokens up to its end (and a salt); it
 * stays published when its last holder has gone, until the block is needed for something else,
 * least recently used first, a chain from its end. Blocks alone do not let a sequence go on: the
 * rings at that place are needed too. They are kept as snapshots (copies of slots) at some block
 * borders; a new sequence resumes at the last snapshot whose blocks are all there. A snapshot goes
 * with its block, or before it if another one is wanted.
 *
 * This room only keeps books. Memory is touched by the copies it asks for: the caller takes them
 * with di_cache_take_copies and has the device do them, in order, before anything queued later.
 * Because the device works in order, a block or slot may be given out again as soon as it was given
 * back, though queued steps still write to it: its next owner's rows are written later, and nobody
 * reads what their sequence has not written.
 *
 * One thread at a time. Every table is as large as it can get from the start, but two: pins
 * allocate, and so does a call that asks for more copies than ever waited at once (room is there at
 * first for num_slots + num_snapshots). */
#ifndef DI_CACHE_CACHE_H
#define DI_CACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ops/ops.h"
#include "weights/config.h"

enum {
    DI_BLOCK_TOKENS = 128,
    DI_CACHE_MOST = INT32_MAX - 1, /* blocks, and slots with snapshots */
};

typedef struct di_cache di_cache;

typedef struct di_hash {
    uint64_t low, high;
} di_hash;

/* Of a text, the same in every process; not for what must not be guessed. */
di_hash di_hash_text(const void *text, size_t size);

/* A salt from a text, e.g. a tenant's name: keyed by this cache's secret, so that nobody can find a
 * text that shares another's prefixes. Any thread. */
di_hash di_cache_salt(const di_cache *cache, const void *text, size_t size);

typedef struct di_cache_options {
    int num_blocks;       /* usable ones, >= 1 */
    int num_slots;        /* sequences at once, >= 1 */
    int num_snapshots;    /* 0: prefixes are never reused */
    int max_backtracking; /* B: rings hold sliding_window + B rows, so that up to B - 1 tokens can
                             be taken back without copying (0: as reference, no rollback) */
    int draft_layers; /* of the draft model, numbered behind num_hidden_layers; each has a ring */
    bool compare_tokens; /* keep the tokens of published blocks (544 bytes a block) and compare them
                            on every hit: then no collision of hashes can lead to another's state.
                            Always so in builds with sanitizers; else see prefix.h */
} di_cache_options;

/* Blocks that `tokens` tokens need. */
static inline int64_t di_blocks_for(int64_t tokens) {
    return (tokens + DI_BLOCK_TOKENS - 1) / DI_BLOCK_TOKENS;
}

/* Bytes on the device that a cache with these options takes; SIZE_MAX if too many to count. */
size_t di_cache_bytes(const di_config *c, const di_cache_options *o);

/* The cache borrows the backend, which must outlive it. Pool memory is not touched here. */
di_cache *di_cache_create(const di_config *c, di_backend *be, const di_cache_options *o,
                          di_error *err);
void di_cache_destroy(di_cache *cache);

const di_state_pool *di_cache_pool(const di_cache *cache);

typedef struct di_cache_stats {
    int blocks, blocks_free, blocks_cached; /* cached: published, held by nobody, can be taken */
    int slots, slots_free;
    int snapshots, snapshots_used;
    uint64_t lookups, tokens_asked, tokens_hit; /* since the start */
    uint64_t blocks_evicted, snapshots_evicted;
} di_cache_stats;

void di_cache_get_stats(const di_cache *cache, di_cache_stats *stats);

/* Blocks that can be had now: free ones and cached ones. */
int di_cache_free_blocks(const di_cache *cache);
int di_cache_free_slots(const di_cache *cache);

/* ---- sequences --------------------------------------------------------------------------------
 * Fields are read by the model and the scheduler; only the functions below and di_model_forward
 * write them. */
typedef struct di_seq {
    int64_t len; /* tokens whose state is stored, or will be by steps already queued */
    int32_t slot;
    int32_t *blocks; /* block table, entries [0, num_blocks) */
    int num_blocks;
    size_t capacity;
    di_hash chain;     /* of the first num_published blocks */
    int num_published; /* full blocks that are published (or found published already) */
    int32_t rolling;   /* the snapshot that moved along with this sequence; 0 = none */
    /* The draft model's context is there from this position on. The scheduler's to write; snapshots
     * keep it. */
    int64_t draft_from;
    /* Bounded replay leaves rows of its prompt out of the model's second half, whose rings then
     * hold less than the sequence, or other values than without. The scheduler's to write;
     * snapshots keep it. */
    bool partial;
} di_seq;

/* Takes a slot; the sequence is empty and its hash chain begins with `salt` (tenants must not see
 * each other's prefixes; {0, 0} for one tenant). DI_ERR_NO_MEMORY when no slot is free. */
bool di_seq_open(di_cache *cache, di_seq *seq, di_hash salt, di_error *err);

typedef struct di_prefix_hit {
    int64_t resume;  /* tokens that need not be computed: a multiple of DI_BLOCK_TOKENS, or 0 */
    int64_t matched; /* tokens whose blocks are there; >= resume. A snapshot at this border would
                        have served: worth taking when the sequence gets there */
    int64_t held;    /* of the resume tokens, those whose blocks somebody holds: sharing them takes
                        no block that could be had */
} di_prefix_hit;

/* The longest prefix of tokens[0..n) that can be reused, with resume <= limit. partial: snapshots
 * of partial sequences will do, as for those that replay what lies behind `limit` themselves.
 * Changes nothing but the recency of what it found. */
di_prefix_hit di_cache_match(di_cache *cache, di_hash salt, const int32_t *tokens, int64_t n,
                             int64_t limit, bool partial);

/* Opens a sequence that starts with the first `resume` tokens' state (a result of di_cache_match
 * with the same salt and tokens, nothing having happened in between): shares their blocks, takes a
 * slot, and asks for the copy of the snapshot into it. seq->len == resume. */
bool di_seq_open_at(di_cache *cache, di_seq *seq, di_hash salt, const int32_t *tokens,
                    int64_t resume, di_error *err);

/* Makes the block table long enough for `len` tokens in all, evicting cached blocks if need be. On
 * failure nothing has changed: DI_ERR_NO_MEMORY when blocks are short, DI_ERR_ARGUMENT for more
 * than the model's context and a block. */
bool di_seq_reserve(di_cache *cache, di_seq *seq, int64_t len, di_error *err);

/* Publishes the full blocks among the first min(len, known) tokens; tokens[0..known) are the
 * sequence's. Cheap when no new block is full. If a block of the same content is published already,
 * the sequence keeps its own copy, which stands in for the other should that go first. A block
 * whose hash another content has is left for the next call, and with it what follows. Without
 * snapshots nothing is published. */
void di_seq_publish(di_cache *cache, di_seq *seq, const int32_t *tokens, int64_t known);

/* Keeps the rings as they are, for those who resume behind the last published block. written: rows
 * of at most so many tokens have been written into them (by steps that are queued, too); they must
 * be fewer than max_backtracking behind that place, for what lies in front of it to be there still.
 * `rolling`: replaces the sequence's earlier rolling snapshot instead of adding one (for decoding,
 * where only the newest matters). The least recently used snapshot goes if none is free. Nothing is
 * kept if too much has been written, if no block is published, if there is a snapshot at this place
 * already (it counts as used; a partial one that is not pinned makes way for one that is not), if
 * all are pinned, or without snapshots. */
void di_seq_snapshot(di_cache *cache, di_seq *seq, int64_t written, bool rolling);

/* Takes back the newest tokens down to `len` (rollback of drafts): at most max_backtracking - 1,
 * not into published blocks. Blocks beyond are kept. No memory is touched: layout.c's table says
 * why. */
void di_seq_truncate(di_cache *cache, di_seq *seq, int64_t len);

/* Gives everything back; published blocks and snapshots stay until they are needed. A zeroed or
 * closed sequence may be closed again. */
void di_seq_close(di_cache *cache, di_seq *seq);

/* ---- copies ---- */

typedef struct di_slot_copy {
    int32_t from, to; /* slot numbers */
} di_slot_copy;

/* Copies asked for since the last call, in order, at most max of them; the rest stays for the next
 * call. Each is slot_stride bytes. */
int di_cache_take_copies(di_cache *cache, di_slot_copy *copies, int max);

/* ---- pins and host copies ---- */

/* Keeps the published blocks that these tokens begin with, and the last snapshot among them, from
 * eviction; returns how many tokens that is. 0: nothing of them is there, or no memory. Undone by
 * di_cache_unpin with the same arguments, once for each call that returned more than 0; what is not
 * pinned may be unpinned. */
int64_t di_cache_pin(di_cache *cache, di_hash salt, const int32_t *tokens, int64_t n);
void di_cache_unpin(di_cache *cache, di_hash salt, const int32_t *tokens, int64_t n);

/* State of a sequence in host memory: its slot, then the blocks of its len tokens; for preemption,
 * so only for a cache of the same layout. */
size_t di_seq_export_bytes(const di_cache *cache, const di_seq *seq);

/* Reads it from the device, which must be idle up to the sequence's last step, with all copies that
 * concern it done. */
void di_seq_export(di_cache *cache, const di_seq *seq, void *host);

/* The reverse: the sequence has been opened and reserved for the same len; len is set. If it was
 * opened at a prefix of the same tokens, the blocks shared with others are left alone; the copy
 * into its slot must be done by then. Its blocks can be published again. */
void di_seq_import(di_cache *cache, di_seq *seq, int64_t len, const void *host);

/* ---- for tests ---- */

/* Walks every list and table: counts, references, order. False names the first thing that is wrong.
 */
bool di_cache_check(const di_cache *cache, di_error *err);

#endif
