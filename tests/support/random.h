/* Numbers for tests that are to be random and the same everywhere (Knuth's MMIX generator), and
 * what the environment says of how far such tests go. The state is the caller's, and its seed any
 * number. */
#ifndef TESTS_SUPPORT_RANDOM_H
#define TESTS_SUPPORT_RANDOM_H

#include <stdint.h>
#include <stdlib.h>

/* The next state; its upper bits are the good ones. */
static inline uint64_t random_advance(uint64_t *state) {
    return *state = *state * 6364136223846793005u + 1442695040888963407u;
}

/* 31 bits. */
static inline uint32_t next_random(uint64_t *state) {
    return (uint32_t)(random_advance(state) >> 33);
}

/* [0, 1) */
static inline double next_unit(uint64_t *state) {
    return (double)(random_advance(state) >> 11) * 0x1p-53;
}

/* A whole number that a variable of the environment gives, or another. */
static inline long from_environment(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? strtol(value, NULL, 10) : otherwise;
}

#endif
