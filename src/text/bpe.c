/* Byte-pair encoding, see bpe.h.
 *
 * A piece goes the cheapest way that fits: one look-up if it is itself a token; a memo of recent
 * pieces; a scan for the lowest rank if it is short; a heap over a linked list if it is long, so
 * that a piece of n bytes never costs more than n log n. */
#include "text/bpe.h"

#include <string.h>

#include "base/checked.h"

#define NO_PAIR UINT64_MAX

/* Up to here scanning all pairs beats the heap (measured on CJK and random letters). */
#define SHORT_PIECE 64

/* Odd, close to 2^64 divided by the golden ratio. */
#define SPREAD 0x9E3779B97F4A7C15u

/* A pair as one number that sorts by rank: rank << 32 | id of the joined token. */
static inline uint64_t find_pair(const di_bpe *bpe, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << bpe->merge_bits) - 1;
    for (size_t i = key * SPREAD >> (64 - bpe->merge_bits);; i = (i + 1) & mask) {
        const di_bpe_merge *m = &bpe->merges[i];
        if (m->rank == UINT32_MAX) {
            return NO_PAIR;
        }
        if (m->left == (uint32_t)left && m->right == (uint32_t)right) {
            return (uint64_t)m->rank << 32 | (uint32_t)m->id;
        }
    }
}

/* First eight bytes, zero-padded. */
static inline uint64_t head_of(const char *p, size_t size) {
    uint64_t head = 0;
    if (size >= 8) {
        memcpy(&head, p, 8);
    } else if (size >= 4) {
        uint32_t first, last;
        memcpy(&first, p, 4);
        memcpy(&last, p + size - 4, 4);
        head = first | (uint64_t)last << (8 * (size - 4));
    } else {
        const unsigned char *b = (const unsigned char *)p;
        /* 1..3 bytes: the middle and last reads fall together when there are fewer. */
        head = b[0] | (uint64_t)b[size / 2] << (8 * (size / 2)) |
               (uint64_t)b[size - 1] << (8 * (size - 1));
    }
    return head;
}

static inline uint64_t hash_piece(uint64_t head, const char *p, size_t size) {
    uint64_t h = head;
    for (size_t i = 8; i < size; i += 8) {
        uint64_t next;
        memcpy(&next, p + (i + 8 <= size ? i : size - 8), 8);
        h = (h ^ h >> 29) * SPREAD ^ next;
    }
    return (h ^ size) * SPREAD;
}

/* The token that this piece as a whole becomes, -1 if it becomes several. */
static inline int32_t find_word(const di_bpe *bpe, uint64_t hash, uint64_t head, const char *piece,
                                size_t size) {
    size_t mask = ((size_t)1 << bpe->word_bits) - 1;
    for (size_t i = hash >> (64 - bpe->word_bits);; i = (i + 1) & mask) {
        const di_bpe_word *w = &bpe->words[i];
        if (w->size == 0) {
            return -1;
        }
        if (w->head == head && w->size == size &&
            (size <= 8 ||
             memcmp(bpe->vocab->bytes + bpe->vocab->start[w->id] + 8, piece + 8, size - 8) == 0)) {
            return w->id;
        }
    }
}

/* The memo: each piece has one slot, the last comer stays. */
#define MEMO_BITS  11
#define MEMO_BYTES 32
#define MEMO_IDS   6

typedef struct di_bpe_memo {
    struct {
        char piece[MEMO_BYTES];
        uint8_t size, count; /* size 0: empty */
        int32_t ids[MEMO_IDS];
    } slot[1 << MEMO_BITS];
} di_bpe_memo;

void di_bpe_scratch_add_memo(di_bpe_scratch *scratch) {
    if (!scratch->memo) {
        scratch->memo = di_calloc(1, sizeof *scratch->memo);
    }
}

void di_bpe_scratch_free(di_bpe_scratch *scratch) {
    di_free(scratch->symbols);
    di_free(scratch->heap);
    di_free(scratch->memo);
    *scratch = (di_bpe_scratch){0};
}

/* Joins pairs in a piece of 1..SHORT_PIECE bytes; writes at most size ids, returns how many. */
static size_t merge_short(const di_bpe *bpe, const char *piece, size_t size, int32_t *ids) {
    uint64_t pair[SHORT_PIECE];
    size_t n = size;
    for (size_t i = 0; i < n; i++) {
        ids[i] = bpe->byte_id[(unsigned char)piece[i]];
    }
    for (size_t i = 0; i + 1 < n; i++) {
        pair[i] = find_pair(bpe, ids[i], ids[i + 1]);
    }
    while (n > 1) {
        /* NO_PAIR in every place means done. Ids follow ranks in the number, and equal pairs have
         * equal numbers, so the first smallest number is the leftmost lowest rank. */
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            best = pair[i] < pair[best] ? i : best;
        }
        if (pair[best] == NO_PAIR) {
            break;
        }
        ids[best] = (int32_t)(uint32_t)pair[best];
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        if (best + 2 < n) {
            memmove(pair + best, pair + best + 1, (n - best - 2) * sizeof *pair);
        }
        n--;
        if (best + 1 < n) {
            pair[best] = find_pair(bpe, ids[best], ids[best + 1]);
        }
        if (best > 0) {
            pair[best - 1] = find_pair(bpe, ids[best - 1], ids[best]);
        }
    }
    return n;
}

/* One symbol of a long piece; the list keeps the order, places never move. */
typedef struct di_bpe_symbol {
    uint64_t pair; /* with the right neighbour; NO_PAIR also once joined to the left */
    int32_t id, previous, next;
} di_bpe_symbol;

/* A heap of rank << 32 | place, smallest on top. An entry whose symbol has another pair by now is
 * stale and is skipped when it comes up. */
static bool heap_push(di_bpe_scratch *s, size_t *count, uint64_t entry, di_error *err) {
    uint64_t *heap = di_grow(s->heap, *count, &s->heap_capacity, sizeof *heap);
    if (!heap) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to tokenise a long piece of text");
    }
    s->heap = heap;
    size_t i = (*count)++;
    for (; i > 0 && heap[(i - 1) / 2] > entry; i = (i - 1) / 2) {
        heap[i] = heap[(i - 1) / 2];
    }
    heap[i] = entry;
    return true;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count) {
    uint64_t top = heap[0], last = heap[--*count];
    size_t i = 0;
    for (size_t child = 1; child < *count; child = 2 * i + 1) {
        child += child + 1 < *count && heap[child + 1] < heap[child];
        if (last <= heap[child]) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static bool set_pair(const di_bpe *bpe, di_bpe_scratch *s, int32_t place, size_t *count,
                     di_error *err) {
    di_bpe_symbol *a = &s->symbols[place];
    a->pair = a->next < 0 ? NO_PAIR : find_pair(bpe, a->id, s->symbols[a->next].id);
    return a->pair == NO_PAIR ||
           heap_push(s, count, (a->pair & 0xFFFFFFFF00000000u) | (uint32_t)place, err);
}

static bool merge_long(const di_bpe *bpe, di_bpe_scratch *s, const char *piece, size_t size,
                       di_ids *out, di_error *err) {
    if (s->symbol_capacity < size) {
        di_bpe_symbol *moved = di_realloc_array(s->symbols, size, sizeof *moved);
        if (!moved) {
            return di_fail(err, DI_ERR_NO_MEMORY, "no memory to tokenise a piece of %zu bytes",
                           size);
        }
        s->symbols = moved;
        s->symbol_capacity = size;
    }
    di_bpe_symbol *symbols = s->symbols;
    for (size_t i = 0; i < size; i++) {
        symbols[i] = (di_bpe_symbol){.id = bpe->byte_id[(unsigned char)piece[i]],
                                     .previous = (int32_t)i - 1,
                                     .next = i + 1 < size ? (int32_t)i + 1 : -1};
    }
    size_t count = 0;
    for (size_t i = 0; i < size; i++) {
        if (!set_pair(bpe, s, (int32_t)i, &count, err)) {
            return false;
        }
    }
    while (count > 0) {
        uint64_t entry = heap_pop(s->heap, &count);
        int32_t place = (int32_t)(uint32_t)entry;
        di_bpe_symbol *a = &symbols[place];
        if (a->pair == NO_PAIR || a->pair >> 32 != entry >> 32) {
            continue;
        }
        di_bpe_symbol *b = &symbols[a->next];
        a->id = (int32_t)(uint32_t)a->pair;
        a->next = b->next;
        b->pair = NO_PAIR;
        if (b->next >= 0) {
            symbols[b->next].previous = place;
        }
        if (!set_pair(bpe, s, place, &count, err) ||
            (a->previous >= 0 && !set_pair(bpe, s, a->previous, &count, err))) {
            return false;
        }
    }
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        if (!di_ids_push(out, symbols[i].id, err)) {
            return false;
        }
    }
    return true;
}

static bool push_all(di_ids *out, const int32_t *ids, size_t count, di_error *err) {
    for (size_t i = 0; i < count; i++) {
        if (!di_ids_push(out, ids[i], err)) {
            return false;
        }
    }
    return true;
}

bool di_bpe_encode(const di_bpe *bpe, di_bpe_scratch *scratch, const char *piece, size_t size,
                   di_ids *out, di_error *err) {
    if (size > SHORT_PIECE && size > bpe->longest_word) {
        return merge_long(bpe, scratch, piece, size, out, err);
    }
    uint64_t head = head_of(piece, size), hash = hash_piece(head, piece, size);
    int32_t id = find_word(bpe, hash, head, piece, size);
    if (id >= 0) {
        return di_ids_push(out, id, err);
    }
    if (size > SHORT_PIECE) {
        return merge_long(bpe, scratch, piece, size, out, err);
    }
    int32_t ids[SHORT_PIECE];
    di_bpe_memo *memo = size <= MEMO_BYTES ? scratch->memo : NULL;
    if (!memo) {
        return push_all(out, ids, merge_short(bpe, piece, size, ids), err);
    }
    size_t slot = hash >> (64 - MEMO_BITS);
    if (memo->slot[slot].size != size || memcmp(memo->slot[slot].piece, piece, size) != 0) {
        size_t count = merge_short(bpe, piece, size, ids);
        if (count > MEMO_IDS) {
            return push_all(out, ids, count, err);
        }
        memcpy(memo->slot[slot].piece, piece, size);
        memcpy(memo->slot[slot].ids, ids, count * sizeof *ids);
        memo->slot[slot].size = (uint8_t)size;
        memo->slot[slot].count = (uint8_t)count;
    }
    return push_all(out, memo->slot[slot].ids, memo->slot[slot].count, err);
}

/* Bits of a table that `count` entries fill at most half. */
static int table_bits(size_t count) {
    int bits = 4;
    while (bits < 40 && ((size_t)1 << bits) / 2 < count) {
        bits++;
    }
    return bits;
}

bool di_bpe_create(di_bpe *bpe, const di_vocab *vocab, const int32_t byte_id[256],
                   size_t merge_count, di_error *err) {
    *bpe = (di_bpe){.vocab = vocab,
                    .merge_bits = table_bits(merge_count),
                    .word_bits = table_bits((size_t)vocab->count)};
    memcpy(bpe->byte_id, byte_id, sizeof bpe->byte_id);
    size_t slots = (size_t)1 << bpe->merge_bits;
    bpe->merges = di_realloc_array(NULL, slots, sizeof *bpe->merges);
    bpe->words = di_calloc((size_t)1 << bpe->word_bits, sizeof *bpe->words);
    if (!bpe->merges || !bpe->words) {
        di_bpe_destroy(bpe);
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu merges", merge_count);
    }
    memset(bpe->merges, 0xFF, slots * sizeof *bpe->merges);
    return true;
}

void di_bpe_destroy(di_bpe *bpe) {
    di_free(bpe->merges);
    di_free(bpe->words);
    *bpe = (di_bpe){0};
}

bool di_bpe_add_merge(di_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << bpe->merge_bits) - 1;
    size_t i = key * SPREAD >> (64 - bpe->merge_bits);
    for (; bpe->merges[i].rank != UINT32_MAX; i = (i + 1) & mask) {
        if (bpe->merges[i].left == (uint32_t)left && bpe->merges[i].right == (uint32_t)right) {
            return false;
        }
    }
    bpe->merges[i] = (di_bpe_merge){(uint32_t)left, (uint32_t)right, rank, id};
    return true;
}

static void add_word(di_bpe *bpe, int32_t id, const char *bytes, size_t size) {
    uint64_t head = head_of(bytes, size), hash = hash_piece(head, bytes, size);
    size_t mask = ((size_t)1 << bpe->word_bits) - 1;
    size_t i = hash >> (64 - bpe->word_bits);
    while (bpe->words[i].size) {
        i = (i + 1) & mask;
    }
    bpe->words[i] = (di_bpe_word){head, id, (uint32_t)size};
    if (bpe->longest_word < size) {
        bpe->longest_word = (uint32_t)size;
    }
}

bool di_bpe_index_words(di_bpe *bpe, di_error *err) {
    di_bpe_scratch scratch = {0};
    di_ids ids = {0};
    bool ok = true;
    for (int32_t id = 0; ok && id < bpe->vocab->count; id++) {
        size_t size;
        const char *bytes = di_vocab_bytes(bpe->vocab, id, &size);
        if (size == 0 || bpe->vocab->flags[id] & DI_TOKEN_RAW) {
            continue;
        }
        ids.count = 0;
        /* The words found so far answer for themselves, so this is right while the table grows. */
        ok = di_bpe_encode(bpe, &scratch, bytes, size, &ids, err);
        if (ok && ids.count == 1 && ids.data[0] == id) {
            add_word(bpe, id, bytes, size);
        }
    }
    di_ids_free(&ids);
    di_bpe_scratch_free(&scratch);
    return ok;
}
