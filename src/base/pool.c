/* Pools: a list of blocks, each filled from its beginning. See pool.h. */
#include "base/pool.h"

#include <assert.h>
#include <stdalign.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/checked.h"

enum { SMALLEST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20 };

struct di_pool_block {
    alignas(max_align_t) di_pool_block *before;
};

/* Blocks double, so that a large request costs few of them and a small one little. */
static bool add_block(di_pool *pool, size_t bytes, di_error *err) {
    size_t size = pool->size < SMALLEST_BLOCK  ? SMALLEST_BLOCK
                  : pool->size < LARGEST_BLOCK ? pool->size * 2
                                               : LARGEST_BLOCK;
    size = bytes > size ? bytes : size;
    size_t whole;
    di_pool_block *block =
        di_add_size(size, sizeof(di_pool_block), &whole) ? di_alloc(whole) : NULL;
    if (!block) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu bytes of a request", size);
    }
    block->before = pool->last;
    *pool = (di_pool){.last = block, .used = 0, .size = size};
    return true;
}

void *di_pool_take(di_pool *pool, size_t count, size_t size, di_error *err) {
    size_t bytes;
    if (!di_mul_size(count, size, &bytes) ||
        !di_round_up_size(bytes, alignof(max_align_t), &bytes)) {
        di_fail(err, DI_ERR_NO_MEMORY, "%zu things of %zu bytes overflow", count, size);
        return NULL;
    }
    if ((!pool->last || bytes > pool->size - pool->used) && !add_block(pool, bytes, err)) {
        return NULL;
    }
    assert(pool->last);
    char *taken = (char *)(pool->last + 1) + pool->used;
    pool->used += bytes;
    return memset(taken, 0, bytes);
}

bool di_pool_copy(di_pool *pool, const char *text, size_t size, di_str *out, di_error *err) {
    char *copy = size < SIZE_MAX ? di_pool_take(pool, size + 1, 1, err) : NULL;
    if (!copy) {
        return false;
    }
    if (size > 0) {
        memcpy(copy, text, size);
    }
    *out = (di_str){copy, size};
    return true;
}

void di_pool_free(di_pool *pool) {
    for (di_pool_block *block = pool->last; block;) {
        di_pool_block *before = block->before;
        di_free(block);
        block = before;
    }
    *pool = (di_pool){0};
}
