/* The one way to heap memory, so that tests can make the n-th allocation fail; and arenas.
 *
 * Every function that returns a pointer returns NULL when memory is short (or the size overflows);
 * the caller reports it with di_fail(err, DI_ERR_NO_MEMORY, ...). Thread-safe, arenas are not. */
#ifndef DI_BASE_ALLOC_H
#define DI_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *di_alloc(size_t bytes); /* never NULL for bytes == 0 unless memory is short */
void *di_calloc(size_t count, size_t size);
void *di_realloc(void *p, size_t bytes);
void *di_realloc_array(void *p, size_t count, size_t size);
char *di_strdup(const char *text);
char *di_strndup(const char *text, size_t length); /* copies exactly length bytes, adds NUL */
void di_free(void *p);

/* 64-byte aligned, freed with di_free_aligned. */
void *di_alloc_aligned(size_t bytes);
void di_free_aligned(void *p);

/* Makes room for one more element: doubles *capacity when count == *capacity. Returns the array
 * (moved, perhaps) or NULL with the old one untouched. */
void *di_grow(void *array, size_t count, size_t *capacity, size_t element_size);

/* Test builds (DI_FAULTS): the n-th allocation from now fails, and every later one succeeds;
 * 0 switches it off. Returns how many allocations were made since the last call. */
uint64_t di_alloc_fail_at(uint64_t n);

/* Lays arrays out in one piece of memory: the next one's place, of count elements, with `alignment`
 * from one array to the next. With base NULL only *end grows, to the size of the piece. */
static inline void *di_place(void *base, size_t *end, size_t count, size_t size, size_t alignment) {
    size_t start = *end;
    *end = (start + count * size + alignment - 1) / alignment * alignment;
    return base ? (char *)base + start : NULL;
}

/* A bump allocator over one block, given back whole. */
typedef struct di_arena {
    unsigned char *base;
    size_t size, used;
} di_arena;

bool di_arena_create(di_arena *a, size_t bytes);
void di_arena_destroy(di_arena *a);
void *di_arena_take(di_arena *a, size_t bytes); /* 64-byte aligned; NULL when it is full */

#endif
