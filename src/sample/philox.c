/* Philox4x32-10: see philox.h. */
#include "sample/philox.h"

enum { ROUNDS = 10 };

/* Constants of the generator's paper (Salmon et al., 2011). */
static const uint32_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
static const uint32_t weyl0 = 0x9E3779B9, weyl1 = 0xBB67AE85;

void di_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)multiplier0 * x0, p1 = (uint64_t)multiplier1 * x2;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += weyl0;
        k1 += weyl1;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

void di_random_words(uint64_t seed, uint64_t position, di_random_kind kind, uint32_t index,
                     uint32_t out[4]) {
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), (uint32_t)kind, index};
    di_philox(seed, counter, out);
}

uint64_t di_seed_of_choice(uint64_t seed, uint32_t choice) {
    uint32_t words[4];
    if (choice == 0) {
        return seed;
    }
    di_random_words(seed, choice, DI_RANDOM_CHOICE, 0, words);
    return (uint64_t)words[0] << 32 | words[1];
}
