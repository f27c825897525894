/* How long it takes to find a prompt's prefix in a full cache of the release's size, what of it is
 * hashing, and how much host memory the cache's tables take. No device: the pools are addresses
 * only.
 *
 *   prefix [TOKENS of the prompt, 100000] */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/internal.h"
#include "support/books.h"
#include "support/configs.h"

enum { BLOCKS = 564900, SLOTS = 308, SNAPSHOTS = 4096, RUNS = 64 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double *times, const char *unit, double each) {
    qsort(times, RUNS, sizeof *times, by_value);
    printf("%-34s %8.1f us median, %8.1f us worst  (%.1f ns a %s)\n", what, times[RUNS / 2],
           times[RUNS - 1], 1e3 * times[RUNS / 2] / each, unit);
}

/* Prompt number i: all tokens are its own. */
static void make_prompt(int32_t *tokens, int64_t n, int i) {
    uint32_t x = (uint32_t)i * 2654435761u + 1;
    for (int64_t t = 0; t < n; t++) {
        x = x * 1664525u + 1013904223u;
        tokens[t] = (int32_t)(x >> 15);
    }
}

/* Publishes as many prompts as the pool has room for. */
static double fill(di_cache *cache, int32_t *tokens, int64_t n, int *count) {
    double spent = 0;
    int64_t blocks = n / DI_BLOCK_TOKENS;
    *count = (int)(BLOCKS / blocks);
    for (int i = 0; i < *count; i++) {
        di_seq seq;
        di_error err;
        make_prompt(tokens, n, i);
        check(di_seq_open(cache, &seq, (di_hash){0}, &err), &err);
        check(di_seq_reserve(cache, &seq, n, &err), &err);
        seq.len = blocks * DI_BLOCK_TOKENS;
        double start = 1e6 * di_now();
        di_seq_publish(cache, &seq, tokens, seq.len);
        spent += 1e6 * di_now() - start;
        di_seq_snapshot(cache, &seq, seq.len, false);
        di_seq_close(cache, &seq);
        di_cache_take_copies(cache, &(di_slot_copy){0}, 1);
    }
    return spent / (double)*count / (double)blocks;
}

static void look_up(di_cache *cache, int32_t *tokens, int64_t n, int count) {
    double match[RUNS], hash[RUNS], open[RUNS];
    int64_t whole = n / DI_BLOCK_TOKENS;
    double blocks = (double)whole;
    int newest = count < SNAPSHOTS ? count : SNAPSHOTS; /* the others' snapshots are gone */
    for (int run = 0; run < RUNS; run++) {
        di_seq seq;
        di_error err;
        di_hash h = {0};
        make_prompt(tokens, n, count - 1 - run * 37 % newest);
        double start = 1e6 * di_now();
        di_prefix_hit hit = di_cache_match(cache, (di_hash){0}, tokens, n, n - 1, false);
        double found = 1e6 * di_now();
        check(di_seq_open_at(cache, &seq, (di_hash){0}, tokens, hit.resume, &err), &err);
        di_seq_close(cache, &seq);
        double closed = 1e6 * di_now();
        for (int64_t i = 0; i + DI_BLOCK_TOKENS <= n; i += DI_BLOCK_TOKENS) {
            h = di_hasher_next(&cache->hasher, h, tokens + i);
        }
        double hashed = 1e6 * di_now();
        if (hit.resume != n / DI_BLOCK_TOKENS * DI_BLOCK_TOKENS || h.low == 0) {
            fprintf(stderr, "prefix: prompt %d was not found\n", run);
            exit(1);
        }
        match[run] = found - start;
        open[run] = closed - found;
        hash[run] = hashed - closed;
        di_cache_take_copies(cache, &(di_slot_copy){0}, 1);
    }
    report("look-up (di_cache_match)", match, "block", blocks);
    report("  of it hashing, alone", hash, "block", blocks);
    report("open at it, close again", open, "block", blocks);
}

/* As the create functions allocate. */
static void report_memory(const di_cache *cache, const di_config *c) {
    const di_blocks *b = &cache->blocks;
    size_t per_block = sizeof *b->all + sizeof *b->links + sizeof *b->hashes + sizeof(int32_t);
    size_t map = (b->map.mask + 1) * sizeof *b->map.cells;
    size_t blocks = per_block * (BLOCKS + 1) + map;
    size_t snapshots = (sizeof(di_snapshot) + sizeof(di_link) + sizeof(int32_t)) * (SNAPSHOTS + 1);
    size_t tables = (size_t)SLOTS * (size_t)cache->table_blocks * sizeof(int32_t);
    size_t copies = cache->copies_capacity * sizeof *cache->copies;
    double pool = (double)di_cache_bytes(c, &cache->o);
    printf("a block's books: %zu bytes, %.1f with its share of the map\n", per_block,
           (double)blocks / BLOCKS);
    printf(
        "all tables: blocks %.1f, block tables %.1f, snapshots %.1f, copies %.1f MiB: %.3f %% of "
        "the pools' %.1f GiB\n",
        (double)blocks / 1048576, (double)tables / 1048576, (double)snapshots / 1048576,
        (double)copies / 1048576, 100 * (double)(blocks + tables + snapshots + copies) / pool,
        pool / 1073741824);
}

int main(int argc, char **argv) {
    int64_t n = argc > 1 ? strtoll(argv[1], NULL, 10) : 100000;
    if (n < DI_BLOCK_TOKENS || n > 1 << 20) {
        fprintf(stderr, "prefix: a prompt of 128 to 1048576 tokens, please\n");
        return 2;
    }
    di_config c = release_config();
    di_error err;
    di_backend be = {.ops = &null_ops};
    di_cache_options o = {.num_blocks = BLOCKS,
                          .num_slots = SLOTS,
                          .num_snapshots = SNAPSHOTS,
                          .max_backtracking = 6};
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    double start = 1e6 * di_now();
    di_cache *cache = di_cache_create(&c, &be, &o, &err);
    double created = 1e6 * di_now() - start;
    check(cache && tokens, &err);
    int count;
    double publish = fill(cache, tokens, n, &count);
    printf(
        "%d blocks, %d prompts of %lld tokens published; create %.0f us, publish %.0f ns a block\n",
        BLOCKS, count, (long long)n, created, 1e3 * publish);
    look_up(cache, tokens, n, count);
    report_memory(cache, &c);
    di_cache_destroy(cache);
    free(tokens);
    return 0;
}
