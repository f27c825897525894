/* Arithmetic on sizes that come from files, sockets or users: overflow is an answer, not a wrap. */
#ifndef DI_BASE_CHECKED_H
#define DI_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool di_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool di_add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* Rounds up to a multiple of `unit` (> 0). */
static inline bool di_round_up_size(size_t a, size_t unit, size_t *out) {
    size_t rest = a % unit;
    return di_add_size(a, rest ? unit - rest : 0, out);
}

/* Little-endian loads from memory of any alignment. */
static inline uint64_t di_load_u64(const void *p) {
    const unsigned char *b = p;
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) {
        v = v << 8 | b[i];
    }
    return v;
}

#endif
