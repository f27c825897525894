/* The pool of snapshots: copies of sequences' slots at the ends of published blocks. A snapshot
 * belongs to the content of one block (di_block.snapshot leads to it) and goes when that does, or
 * when another is wanted and it is the one not used for longest. Called by cache.c and sequence.c;
 * the bytes lie in slots behind those of the sequences. */
#ifndef DI_CACHE_SNAPSHOTS_H
#define DI_CACHE_SNAPSHOTS_H

#include "cache/numbers.h"
#include "cache/prefix.h"
#include "cache/ring.h"

typedef struct di_snapshot {
    di_hash hash; /* of its block */
    int32_t pins;
    int32_t owner;      /* slot of the sequence that it moves along with; 0 = none */
    int64_t draft_from; /* as the sequence's, and so is partial */
    bool partial;
} di_snapshot;

typedef struct di_snapshots {
    di_snapshot *all; /* [total + 1] by number */
    di_link *links;   /* unpinned ones: the list through 0, the one not used for longest first */
    di_numbers numbers;
    uint64_t num_evicted; /* since the start, for another snapshot or with their block */
} di_snapshots;

/* False when memory is short; destroy is right then too. */
bool di_snapshots_create(di_snapshots *s, int total);
void di_snapshots_destroy(di_snapshots *s);

/* A free number, or 0; di_snapshots_oldest can then be released. */
int32_t di_snapshots_take(di_snapshots *s);
int32_t di_snapshots_oldest(const di_snapshots *s); /* 0: none, or all are pinned */

/* Snapshot n, just taken, is of the block of that hash. */
void di_snapshots_attach(di_snapshots *s, int32_t n, di_hash hash, int32_t owner);

/* Makes n free again; its block must not lead to it any more. */
void di_snapshots_release(di_snapshots *s, int32_t n);

void di_snapshots_touch(di_snapshots *s, int32_t n);
void di_snapshots_pin(di_snapshots *s, int32_t n);
void di_snapshots_unpin(di_snapshots *s, int32_t n);

#endif
