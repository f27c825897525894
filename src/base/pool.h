/* Memory for many small things that live and die together: a request and all that was read from it.
 * All zero is an empty pool. Not thread-safe. */
#ifndef DI_BASE_POOL_H
#define DI_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/str.h"

typedef struct di_pool_block di_pool_block;

typedef struct di_pool {
    di_pool_block *last;
    size_t used, size; /* bytes of the last block */
} di_pool;

/* Zeroed and aligned for any type; freed with the pool. NULL with an error if memory is short. */
void *di_pool_take(di_pool *pool, size_t count, size_t size, di_error *err);

/* Copies a text into the pool, with a NUL behind it. */
bool di_pool_copy(di_pool *pool, const char *text, size_t size, di_str *out, di_error *err);

void di_pool_free(di_pool *pool); /* and makes it empty */

#endif
