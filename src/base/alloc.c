/* Heap memory with fault injection, and arenas. See alloc.h. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

#ifdef DI_FAULTS
static atomic_ulong allocations, fail_at;

static bool fault(void) {
    unsigned long n = atomic_fetch_add(&allocations, 1) + 1;
    return n == atomic_load(&fail_at);
}

uint64_t di_alloc_fail_at(uint64_t n) {
    atomic_store(&fail_at, n);
    return atomic_exchange(&allocations, 0);
}
#else
static bool fault(void) {
    return false;
}

uint64_t di_alloc_fail_at(uint64_t n) {
    (void)n;
    return 0;
}
#endif

void *di_alloc(size_t bytes) {
    return fault() ? NULL : malloc(bytes ? bytes : 1);
}

void *di_calloc(size_t count, size_t size) {
    return fault() ? NULL : calloc(count ? count : 1, size ? size : 1);
}

void *di_realloc(void *p, size_t bytes) {
    return fault() ? NULL : realloc(p, bytes ? bytes : 1);
}

void *di_realloc_array(void *p, size_t count, size_t size) {
    size_t bytes;
    return di_mul_size(count, size, &bytes) ? di_realloc(p, bytes) : NULL;
}

char *di_strndup(const char *text, size_t length) {
    size_t bytes;
    char *copy = di_add_size(length, 1, &bytes) ? di_alloc(bytes) : NULL;
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
    }
    return copy;
}

char *di_strdup(const char *text) {
    return di_strndup(text, strlen(text));
}

void di_free(void *p) {
    free(p);
}

void *di_alloc_aligned(size_t bytes) {
    size_t rounded;
    if (fault() || !di_round_up_size(bytes ? bytes : 1, 64, &rounded)) {
        return NULL;
    }
    return aligned_alloc(64, rounded);
}

void di_free_aligned(void *p) {
    free(p);
}

void *di_grow(void *array, size_t count, size_t *capacity, size_t element_size) {
    if (array && count < *capacity) {
        return array;
    }
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    if (*capacity >= 8 && !di_mul_size(*capacity, 2, &wanted)) {
        return NULL;
    }
    void *moved = di_realloc_array(array, wanted, element_size);
    if (moved) {
        *capacity = wanted;
    }
    return moved;
}

bool di_arena_create(di_arena *a, size_t bytes) {
    *a = (di_arena){.base = di_alloc_aligned(bytes), .size = bytes};
    return a->base != NULL;
}

void di_arena_destroy(di_arena *a) {
    di_free_aligned(a->base);
    *a = (di_arena){0};
}

void *di_arena_take(di_arena *a, size_t bytes) {
    size_t rounded, end;
    if (!di_round_up_size(bytes, 64, &rounded) || !di_add_size(a->used, rounded, &end) ||
        end > a->size) {
        return NULL;
    }
    void *p = a->base + a->used;
    a->used = end;
    return p;
}
