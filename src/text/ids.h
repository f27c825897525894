/* A growable list of token ids. All zero is an empty list; freed with di_ids_free. */
#ifndef DI_TEXT_IDS_H
#define DI_TEXT_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/error.h"

typedef struct di_ids {
    int32_t *data;
    size_t count, capacity;
} di_ids;

/* Appends one id. Fails only for want of memory; the list is then as it was. */
static inline bool di_ids_push(di_ids *ids, int32_t id, di_error *err) {
    if (__builtin_expect(ids->count == ids->capacity, 0)) {
        int32_t *moved = di_grow(ids->data, ids->count, &ids->capacity, sizeof *ids->data);
        if (!moved) {
            return di_fail(err, DI_ERR_NO_MEMORY, "no memory for more than %zu token ids",
                           ids->count);
        }
        ids->data = moved;
    }
    ids->data[ids->count++] = id;
    return true;
}

static inline void di_ids_free(di_ids *ids) {
    di_free(ids->data);
    *ids = (di_ids){0};
}

#endif
