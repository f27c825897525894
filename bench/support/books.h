/* What the benchmarks of the host's books (cache, scheduler) share: a backend that has addresses
 * and no memory. */
#ifndef BENCH_SUPPORT_BOOKS_H
#define BENCH_SUPPORT_BOOKS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/ops.h"

static void *null_alloc(di_backend *be, size_t bytes) {
    (void)bytes;
    return be;
}

static void null_free(di_backend *be, void *buffer) {
    (void)be;
    (void)buffer;
}

static const di_ops null_ops = {.name = "null", .alloc = null_alloc, .free = null_free};

/* Ends the program with the message unless ok. */
static void check(bool ok, const di_error *err) {
    if (!ok) {
        fprintf(stderr, "bench: %s\n", err->message);
        exit(1);
    }
}

#endif
