/* A growable run of bytes that is always NUL-terminated once something was appended. */
#ifndef DI_BASE_BUFFER_H
#define DI_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* All zero is an empty buffer. The NUL behind the last byte is not in size. */
typedef struct di_buffer {
    char *data; /* NULL until the first append */
    size_t size, capacity;
} di_buffer;

/* Fail only for want of memory, and then leave the content as it was. */
bool di_buffer_append(di_buffer *b, const void *bytes, size_t size, di_error *err);
bool di_buffer_append_text(di_buffer *b, const char *text, di_error *err);

void di_buffer_free(di_buffer *b); /* and makes it empty */

#endif
