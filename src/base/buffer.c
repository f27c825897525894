/* Growable bytes, see buffer.h. */
#include "base/buffer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"

bool di_buffer_append(di_buffer *b, const void *bytes, size_t size, di_error *err) {
    size_t needed; /* with the NUL */
    if (!di_add_size(b->size, size, &needed) || !di_add_size(needed, 1, &needed)) {
        return di_fail(err, DI_ERR_NO_MEMORY, "a buffer of %zu + %zu bytes overflows", b->size,
                       size);
    }
    if (needed > b->capacity) {
        size_t doubled;
        size_t capacity =
            di_mul_size(b->capacity, 2, &doubled) && doubled > needed ? doubled : needed;
        capacity = capacity < 32 ? 32 : capacity;
        char *moved = di_realloc(b->data, capacity);
        if (!moved) {
            return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a buffer of %zu bytes", capacity);
        }
        b->data = moved;
        b->capacity = capacity;
    }
    if (size) {
        memcpy(b->data + b->size, bytes, size);
    }
    b->size += size;
    b->data[b->size] = 0;
    return true;
}

bool di_buffer_append_text(di_buffer *b, const char *text, di_error *err) {
    return di_buffer_append(b, text, strlen(text), err);
}

void di_buffer_free(di_buffer *b) {
    di_free(b->data);
    *b = (di_buffer){0};
}
