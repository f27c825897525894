/* What a draft was drawn from, kept until the target decides whether the draft stands: exact
 * rejection needs the same numbers again. Owned by a sequence; one thread at a time. */
#ifndef DI_SAMPLE_LAW_H
#define DI_SAMPLE_LAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Drafts are drawn from so many of the likeliest tokens at most. Any law keeps the answers' exact
 * as long as the test knows it, and what lies behind would hardly be accepted. */
enum { DI_LAW_TOKENS = 4096 };

typedef struct di_draft_law {
    int32_t token;     /* the draft */
    int32_t *ids;      /* [count], ascending */
    uint64_t *weights; /* [count], > 0, as in arithmetic.h */
    int count;         /* 0: the draft was the only token there could be */
    size_t capacity;
    uint64_t sum; /* of weights, < 2^63 */
} di_draft_law;   /* all zero: empty */

/* Makes room for `count` tokens; DI_ERR_NO_MEMORY. */
bool di_draft_law_reserve(di_draft_law *law, int count, di_error *err);
void di_draft_law_free(di_draft_law *law); /* and makes it all zero */

/* A share of a sum of weights as an integer of 63 bits: w / sum in units of 2^-63, no more than 8
 * units off. `sum` > 0, w <= sum. */
typedef struct di_share {
    int shift;
    uint64_t reciprocal;
} di_share;

static inline di_share di_share_of(uint64_t sum) {
    int shift = __builtin_clzll(sum);
    unsigned __int128 one = ((unsigned __int128)1 << 127) - 1;
    return (di_share){shift, (uint64_t)(one / (sum << shift))};
}

static inline uint64_t di_share_apply(di_share s, uint64_t w) {
    return (uint64_t)((unsigned __int128)(w << s.shift) * s.reciprocal >> 64);
}

/* The test of a draft, whose share is `target` of the target's law and `draft` > 0 of its own, by u
 * of 63 random bits: it stands with probability min(1, target / draft). */
static inline bool di_draft_stands(uint64_t target, uint64_t draft, uint64_t u) {
    return target >= draft || (unsigned __int128)u * draft < (unsigned __int128)target << 63;
}

/* What a token weighs where a draft does not stand. */
static inline uint64_t di_residual(uint64_t target, uint64_t draft) {
    return target > draft ? target - draft : 0;
}

#endif
