/* Numbers 1 .. total to hand out: of blocks, slots, snapshots. A number that came back last goes
 * out first; memory of numbers that were never out is not touched. */
#ifndef DI_CACHE_NUMBERS_H
#define DI_CACHE_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"

typedef struct di_numbers {
    int32_t *returned; /* [total], a stack of the first `count` */
    int count, used;   /* numbers above `used` have never been out */
    int total;
} di_numbers;

static inline bool di_numbers_create(di_numbers *n, int total) {
    *n = (di_numbers){.returned = di_calloc((size_t)total, sizeof(int32_t)), .total = total};
    return n->returned;
}

static inline void di_numbers_destroy(di_numbers *n) {
    di_free(n->returned);
    *n = (di_numbers){0};
}

static inline int di_numbers_free(const di_numbers *n) {
    return n->count + n->total - n->used;
}

/* 0 when none is left. */
static inline int32_t di_numbers_take(di_numbers *n) {
    if (n->count > 0) {
        return n->returned[--n->count];
    }
    return n->used < n->total ? ++n->used : 0;
}

static inline void di_numbers_return(di_numbers *n, int32_t number) {
    n->returned[n->count++] = number;
}

#endif
