/* Philox4x32-10: random words as a pure function of (key, counter).
 *
 * Every random decision of the engine is one call: key = the sequence's seed, counter = (position,
 * kind, index). There is no state to save, to restore or to share between threads. */
#ifndef DI_SAMPLE_PHILOX_H
#define DI_SAMPLE_PHILOX_H

#include <stdint.h>

/* What the words at a position are for; the third counter word. */
typedef enum di_random_kind {
    DI_RANDOM_TARGET = 0,   /* the draw of a token */
    DI_RANDOM_RESIDUAL = 1, /* the draw after a refused draft */
    DI_RANDOM_ACCEPT = 2,   /* the test of a draft */
    DI_RANDOM_DRAFT = 3,    /* the draw of a draft */
    DI_RANDOM_COUPLED = 4,  /* exponential noise shared by draft and target */
    DI_RANDOM_CHOICE = 5,   /* not a draw: the seed of a further choice of a request */
} di_random_kind;

/* Ten rounds over counter[4] with key = (low word, high word) of a 64-bit seed. */
void di_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

/* The four words of (seed, position, kind, index); position is the absolute index, in its
 * sequence, of the token to be produced. */
void di_random_words(uint64_t seed, uint64_t position, di_random_kind kind, uint32_t index,
                     uint32_t out[4]);

/* The seed of choice 0, 1, ... of a request that wants several answers. Choice 0 keeps the
 * request's seed: asking for more choices leaves the first as it was. The others' are words 0
 * (high) and 1 (low) of (seed, choice, DI_RANDOM_CHOICE, 0). */
uint64_t di_seed_of_choice(uint64_t seed, uint32_t choice);

#endif
