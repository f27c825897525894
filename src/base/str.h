/* A run of bytes that somebody else owns: texts with their length, NUL a character like any other.
 */
#ifndef DI_BASE_STR_H
#define DI_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct di_str {
    const char *data; /* may be NULL if size is 0 */
    size_t size;
} di_str;

#define DI_STR(literal) ((di_str){"" literal, sizeof(literal) - 1})

static inline di_str di_str_of(const char *text) {
    return (di_str){text, strlen(text)};
}

static inline bool di_str_equal(di_str a, di_str b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static inline bool di_str_is(di_str a, const char *text) {
    return di_str_equal(a, di_str_of(text));
}

static inline bool di_str_starts(di_str a, const char *start) {
    size_t size = strlen(start);
    return a.size >= size && memcmp(a.data, start, size) == 0;
}

/* For "%.*s": messages are short, so a longer text may be cut. */
static inline int di_str_shown(di_str a, int most) {
    return a.size < (size_t)most ? (int)a.size : most;
}

#endif
