/* Byte-pair encoding of one piece of text: its bytes are joined pair by pair, lowest rank first and
 * leftmost among equals, until no known pair is left. Knows nothing of files or of how text is cut
 * into pieces. After it is built, a di_bpe is read-only and may be used by any number of threads,
 * each with a scratch of its own. */
#ifndef DI_TEXT_BPE_H
#define DI_TEXT_BPE_H

#include "base/error.h"
#include "text/ids.h"
#include "text/vocab.h"

typedef struct di_bpe_merge {
    uint32_t left, right; /* ids */
    uint32_t rank;        /* UINT32_MAX: empty slot */
    int32_t id;           /* of the joined token */
} di_bpe_merge;

/* A piece that merging turns into exactly one token. The first eight bytes, which decide nearly
 * every comparison, lie in the slot itself. */
typedef struct di_bpe_word {
    uint64_t head; /* zero-padded */
    int32_t id;
    uint32_t size; /* 0: empty slot */
} di_bpe_word;

typedef struct di_bpe {
    const di_vocab *vocab;
    int32_t byte_id[256];
    di_bpe_merge *merges; /* open addressing, 2^merge_bits slots */
    di_bpe_word *words;   /* open addressing, 2^word_bits slots */
    int merge_bits, word_bits;
    uint32_t longest_word;
} di_bpe;

/* Working memory of one thread: grows to the longest piece seen. All zero is a fresh one. */
typedef struct di_bpe_scratch {
    struct di_bpe_symbol *symbols;
    uint64_t *heap;
    size_t symbol_capacity, heap_capacity;
    struct di_bpe_memo *memo; /* NULL: none */
} di_bpe_scratch;

/* Makes room for merge_count merges. byte_id[b] is the token of the single byte b. */
bool di_bpe_create(di_bpe *bpe, const di_vocab *vocab, const int32_t byte_id[256],
                   size_t merge_count, di_error *err);
void di_bpe_destroy(di_bpe *bpe);

/* Adds the merge left + right -> id. False, and nothing added, if that pair is already there. */
bool di_bpe_add_merge(di_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id);

/* To be called once, after the last merge: finds the tokens that merging their own bytes gives
 * back, so that a piece that is such a token is found by one look-up. */
bool di_bpe_index_words(di_bpe *bpe, di_error *err);

/* Appends the ids of one piece of 1..INT32_MAX bytes. */
bool di_bpe_encode(const di_bpe *bpe, di_bpe_scratch *scratch, const char *piece, size_t size,
                   di_ids *out, di_error *err);

/* Gives the scratch a memo of recent pieces, worth it for texts of more than a few KiB. Does
 * nothing if memory is short. */
void di_bpe_scratch_add_memo(di_bpe_scratch *scratch);
void di_bpe_scratch_free(di_bpe_scratch *scratch);

#endif
