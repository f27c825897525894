/* The cache's rules one by one: tenants, order of eviction, pins, refusals, memory. */
#include <stdio.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/configs.h"

#include "base/alloc.h"
#include "cache/internal.h"
#include "cache/layout.h"
#include "ops/cpu/cpu.h"
#include "support/random.h"

enum { LONGEST = 16, TOKENS = LONGEST * DI_BLOCK_TOKENS };

static const di_hash no_salt;
static di_hash other_salt; /* set by main */

typedef struct world {
    di_config c;
    di_backend *be;
    di_cache *cache;
    di_error err;
} world;

static void open_world(world *w, int blocks, int slots, int snapshots) {
    *w = (world){.c = small_config(TOKENS)};
    di_cache_options o = {.num_blocks = blocks,
                          .num_slots = slots,
                          .num_snapshots = snapshots,
                          .compare_tokens = true};
    w->be = di_cpu_create(&(di_cpu_options){0}, &w->err);
    w->cache = di_cache_create(&w->c, w->be, &o, &w->err);
    if (!w->cache) {
        fail_msg("%s", w->err.message);
    }
}

static void close_world(world *w) {
    if (!di_cache_check(w->cache, &w->err)) {
        fail_msg("%s", w->err.message);
    }
    di_cache_destroy(w->cache);
    w->be->ops->destroy(w->be);
}

/* Tokens of conversation `which`; all have `shared` tokens in common. */
static const int32_t *text(int which, int shared) {
    static int32_t texts[4][TOKENS];
    static int next;
    int32_t *t = texts[next++ % 4];
    for (int i = 0; i < TOKENS; i++) {
        t[i] = i < shared ? i : i + 10000 * (which + 1);
    }
    return t;
}

/* A sequence of that many blocks, all published, a snapshot at the end. */
static void compute(world *w, di_seq *seq, di_hash salt, const int32_t *tokens, int blocks) {
    int64_t len = (int64_t)blocks * DI_BLOCK_TOKENS;
    if (!seq->slot && !di_seq_open(w->cache, seq, salt, &w->err)) {
        fail_msg("%s", w->err.message);
    }
    if (!di_seq_reserve(w->cache, seq, len, &w->err)) {
        fail_msg("%s", w->err.message);
    }
    seq->len = len;
    di_seq_publish(w->cache, seq, tokens, len);
    di_seq_snapshot(w->cache, seq, seq->len, false);
}

static void compute_and_close(world *w, di_hash salt, const int32_t *tokens, int blocks) {
    di_seq seq = {0};
    compute(w, &seq, salt, tokens, blocks);
    di_seq_close(w->cache, &seq);
}

static int matched(world *w, di_hash salt, const int32_t *tokens) {
    return (int)(di_cache_match(w->cache, salt, tokens, TOKENS, TOKENS, false).matched /
                 DI_BLOCK_TOKENS);
}

/* Makes that many blocks be evicted (or taken) and gives them back as nobody's. */
static void press(world *w, int blocks) {
    di_seq seq;
    assert_true(di_seq_open(w->cache, &seq, no_salt, &w->err));
    assert_true(di_seq_reserve(w->cache, &seq, (int64_t)blocks * DI_BLOCK_TOKENS, &w->err));
    di_seq_close(w->cache, &seq);
}

static void test_tenants_never_share(void **state) {
    (void)state;
    world w;
    open_world(&w, 8, 2, 2);
    compute_and_close(&w, no_salt, text(0, 0), 2);
    assert_int_equal(matched(&w, no_salt, text(0, 0)), 2);
    assert_int_equal(matched(&w, other_salt, text(0, 0)), 0);
    assert_int_equal(di_cache_pin(w.cache, other_salt, text(0, 0), TOKENS), 0);
    compute_and_close(&w, other_salt, text(0, 0), 3);
    assert_int_equal(matched(&w, no_salt, text(0, 0)), 2);
    assert_int_equal(matched(&w, other_salt, text(0, 0)), 3);
    assert_int_equal(w.cache->blocks.num_cached, 5);
    close_world(&w);
}

/* Two conversations that begin alike; the one used last keeps its end longer, and the beginning
 * that both need goes last. */
static void test_least_recently_used_ends_go_first(void **state) {
    (void)state;
    world w;
    open_world(&w, 8, 2, 4);
    compute_and_close(&w, no_salt, text(0, 256), 4);
    di_seq seq = {0};
    assert_true(di_seq_open_at(w.cache, &seq, no_salt, text(0, 256), 0, &w.err));
    compute(&w, &seq, no_salt, text(1, 256), 4);
    di_seq_close(w.cache, &seq); /* the beginning was computed twice and is kept once */
    assert_int_equal(w.cache->blocks.num_cached, 6);
    assert_int_equal(matched(&w, no_salt, text(1, 256)), 4);
    assert_int_equal(matched(&w, no_salt, text(0, 256)), 4);
    static const int kept[][2] = {{4, 4}, {4, 4}, {4, 4}, {4, 3}, {4, 2}, {3, 2}, {2, 2}, {1, 1}};
    for (int used = 1; used < 8; used++) {
        press(&w, used);
        /* Looking would make them recent: count without. */
        assert_int_equal(di_cache_walk(w.cache, no_salt, text(0, 256), LONGEST), kept[used][0]);
        assert_int_equal(di_cache_walk(w.cache, no_salt, text(1, 256), LONGEST), kept[used][1]);
    }
    close_world(&w);
}

/* Who resumes at a snapshot has the draft model's context from where it was kept, or from there on.
 */
static void test_a_snapshot_knows_where_the_drafts_context_begins(void **state) {
    (void)state;
    static const int64_t from[] = {0, 100, 256, 300}, wanted[] = {0, 100, 256, 256};
    for (int i = 0; i < 4; i++) {
        world w;
        di_seq seq = {0}, next;
        open_world(&w, 8, 2, 4);
        assert_true(di_seq_open(w.cache, &seq, no_salt, &w.err));
        seq.draft_from = from[i];
        compute(&w, &seq, no_salt, text(0, 0), 2);
        di_seq_close(w.cache, &seq);
        assert_true(di_seq_open_at(w.cache, &next, no_salt, text(0, 0), 256, &w.err));
        assert_int_equal(next.draft_from, wanted[i]);
        di_seq_close(w.cache, &next);
        close_world(&w);
    }
}

static int64_t resumes(world *w, bool partial) {
    return di_cache_match(w->cache, no_salt, text(0, 0), TOKENS, TOKENS, partial).resume;
}

static void snapshot_of(world *w, bool partial) {
    di_seq seq;
    assert_true(di_seq_open(w->cache, &seq, no_salt, &w->err));
    seq.partial = partial;
    compute(w, &seq, no_salt, text(0, 0), 2);
    di_seq_close(w->cache, &seq);
}

/* A partial sequence's rings are of use to those alone that leave as much out; they make way for
 * whole ones, and not the other way round. */
static void test_partial_snapshots_are_not_for_everybody(void **state) {
    (void)state;
    world w;
    open_world(&w, 8, 2, 4);
    snapshot_of(&w, true);
    assert_int_equal(resumes(&w, true), 256);
    assert_int_equal(resumes(&w, false), 0);
    assert_int_equal(di_cache_pin(w.cache, no_salt, text(0, 0), 256), 256);
    snapshot_of(&w, false); /* the pinned one stays */
    assert_int_equal(resumes(&w, false), 0);
    di_cache_unpin(w.cache, no_salt, text(0, 0), 256);
    snapshot_of(&w, false);
    assert_int_equal(resumes(&w, false), 256);
    snapshot_of(&w, true);
    assert_int_equal(resumes(&w, false), 256);
    assert_int_equal(resumes(&w, true), 256);
    di_cache_stats stats;
    di_cache_get_stats(w.cache, &stats);
    assert_int_equal(stats.snapshots_used, 1);
    close_world(&w);
}

/* A snapshot of a block that is gone would be of no use. */
static void test_snapshots_go_with_their_blocks_or_when_not_used_for_longest(void **state) {
    (void)state;
    world w;
    di_cache_stats stats;
    open_world(&w, 8, 2, 2);
    for (int i = 0; i < 3; i++) {
        compute_and_close(&w, no_salt, text(i, 0), 2);
    }
    di_prefix_hit first = di_cache_match(w.cache, no_salt, text(0, 0), TOKENS, TOKENS, false);
    di_prefix_hit last = di_cache_match(w.cache, no_salt, text(2, 0), TOKENS, TOKENS, false);
    assert_true(first.matched == 256 && first.resume == 0 && last.resume == 256);
    press(&w, 3); /* two are free, the third is the end of the middle one */
    di_cache_get_stats(w.cache, &stats);
    assert_int_equal(stats.blocks_evicted, 1);
    assert_int_equal(stats.snapshots_used, 1);
    assert_int_equal(stats.snapshots_evicted, 2);
    close_world(&w);
}

static void test_a_rolling_snapshot_moves_along(void **state) {
    (void)state;
    world w;
    di_seq seq;
    di_slot_copy copies[8];
    open_world(&w, 8, 2, 3);
    assert_true(di_seq_open(w.cache, &seq, no_salt, &w.err));
    for (int i = 1; i <= 4; i++) {
        assert_true(di_seq_reserve(w.cache, &seq, i * DI_BLOCK_TOKENS, &w.err));
        seq.len = i * DI_BLOCK_TOKENS;
        di_seq_publish(w.cache, &seq, text(0, 0), seq.len);
        di_seq_snapshot(w.cache, &seq, seq.len, i != 2);
    }
    assert_int_equal(di_cache_take_copies(w.cache, copies, 8), 4);
    assert_true(copies[3].from == seq.slot && copies[3].to == copies[0].to);
    di_prefix_hit hit = di_cache_match(w.cache, no_salt, text(0, 0), TOKENS, 511, false);
    assert_int_equal(hit.resume, 256);
    assert_int_equal(di_cache_match(w.cache, no_salt, text(0, 0), TOKENS, 512, false).resume, 512);
    di_seq_close(w.cache, &seq);
    close_world(&w);
}

static void test_pinned_prefixes_stay(void **state) {
    (void)state;
    world w;
    open_world(&w, 8, 2, 1);
    compute_and_close(&w, no_salt, text(0, 0), 3);
    assert_int_equal(di_cache_pin(w.cache, no_salt, text(0, 0), 300), 256);
    assert_int_equal(di_cache_pin(w.cache, no_salt, text(0, 0), TOKENS), 384);
    press(&w, 5);
    assert_int_equal(di_cache_free_blocks(w.cache), 5);
    compute_and_close(&w, no_salt, text(1, 0), 2); /* its snapshot finds no place */
    assert_int_equal(di_cache_match(w.cache, no_salt, text(0, 0), TOKENS, TOKENS, false).resume,
                     384);
    di_cache_unpin(w.cache, no_salt, text(0, 0), TOKENS);
    di_cache_unpin(w.cache, no_salt, text(0, 0), TOKENS); /* is not there any more */
    press(&w, 6);
    assert_int_equal(matched(&w, no_salt, text(0, 0)), 2); /* the other pin's */
    di_cache_unpin(w.cache, no_salt, text(0, 0), 300);
    press(&w, 8);
    assert_int_equal(matched(&w, no_salt, text(0, 0)), 0);
    close_world(&w);
}

static void test_what_cannot_be_is_refused_and_changes_nothing(void **state) {
    (void)state;
    world w;
    di_seq seqs[3] = {0};
    open_world(&w, 20, 2, 1);
    compute_and_close(&w, no_salt, text(0, 0), 2);
    assert_false(di_seq_open_at(w.cache, &seqs[0], no_salt, text(0, 0), 128, &w.err));
    assert_false(di_seq_open_at(w.cache, &seqs[0], no_salt, text(0, 0), 200, &w.err));
    assert_false(di_seq_open_at(w.cache, &seqs[0], no_salt, text(1, 0), 256, &w.err));
    assert_int_equal(w.err.code, DI_ERR_ARGUMENT);
    assert_non_null(strstr(w.err.message, "256 tokens"));
    assert_true(di_seq_open(w.cache, &seqs[0], no_salt, &w.err));
    assert_true(di_seq_open_at(w.cache, &seqs[1], no_salt, text(0, 0), 256, &w.err));
    assert_false(di_seq_open_at(w.cache, &seqs[2], no_salt, text(0, 0), 256, &w.err));
    assert_int_equal(w.err.code, DI_ERR_NO_MEMORY);
    assert_false(di_seq_reserve(w.cache, &seqs[0], 18 * DI_BLOCK_TOKENS, &w.err));
    assert_int_equal(w.err.code, DI_ERR_ARGUMENT); /* longer than the context */
    assert_false(di_seq_reserve(w.cache, &seqs[0], 19 * DI_BLOCK_TOKENS, &w.err));
    assert_int_equal(w.err.code, DI_ERR_NO_MEMORY);
    assert_int_equal(seqs[0].num_blocks, 0);
    assert_int_equal(di_cache_free_blocks(w.cache), 18);
    for (int i = 0; i < 3; i++) {
        di_seq_close(w.cache, &seqs[i]);
        di_seq_close(w.cache, &seqs[i]);
    }
    close_world(&w);
}

static void test_wrong_options_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        di_cache_options o;
        const char *said;
    } cases[] = {
        {{.num_blocks = 0, .num_slots = 1}, "0 blocks"},
        {{.num_blocks = INT32_MAX, .num_slots = 1}, "allowed are 1 to 2147483646 blocks"},
        {{.num_blocks = 1, .num_slots = -1}, "-1 slots"},
        {{.num_blocks = 1, .num_slots = 1, .num_snapshots = -1}, "-1 snapshots"},
        {{.num_blocks = 1, .num_slots = 1, .num_snapshots = INT32_MAX}, "snapshots"},
        {{.num_blocks = 1, .num_slots = 1, .max_backtracking = -1}, "max_backtracking is -1"},
        {{.num_blocks = 1, .num_slots = 1, .draft_layers = 255}, "allowed are 0 to 254"},
    };
    di_config c = small_config(TOKENS);
    di_error err = {0};
    di_backend *be = di_cpu_create(&(di_cpu_options){0}, &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(di_cache_create(&c, be, &cases[i].o, &err));
        assert_int_equal(err.code, DI_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, cases[i].said));
    }
    di_cache_options most = {.num_blocks = INT32_MAX - 1, .num_slots = INT32_MAX - 1};
    c.head_dim = c.index_head_dim = 1 << 28; /* no product may wrap */
    assert_int_equal(di_cache_bytes(&c, &most), SIZE_MAX);
    be->ops->destroy(be);
}

/* ---- memory ---- */

static size_t resident_bytes(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return (size_t)pages * 4096;
}

/* A million tokens' blocks are there at once, but only address space. */
static void test_creating_a_large_cache_touches_no_memory(void **state) {
    (void)state;
#ifdef DI_DEBUG
    skip(); /* sanitizers keep books of their own */
#endif
    di_config c = release_config();
    di_error err = {0};
    di_cache_options o = {.num_blocks = 8192, .num_slots = 77, .num_snapshots = 77};
    di_backend *be = di_cpu_create(&(di_cpu_options){0}, &err);
    assert_true(di_cache_bytes(&c, &o) > (size_t)1 << 30);
    size_t before = resident_bytes();
    di_cache *cache = di_cache_create(&c, be, &o, &err);
    assert_non_null(cache);
    assert_true(resident_bytes() < before + (1 << 20));
    di_cache_destroy(cache);
    be->ops->destroy(be);
}

static void test_every_failed_allocation_is_reported_and_leaks_nothing(void **state) {
    (void)state;
#ifndef DI_FAULTS
    skip();
#endif
    world w;
    di_cache_options o = {.num_blocks = 8, .num_slots = 2, .num_snapshots = 2};
    open_world(&w, 8, 2, 2);
    uint64_t n = 0;
    for (di_cache *cache = NULL; !cache;) {
        di_alloc_fail_at(++n);
        w.err = (di_error){0};
        cache = di_cache_create(&w.c, w.be, &o, &w.err);
        di_alloc_fail_at(0);
        assert_true(cache || w.err.code == DI_ERR_NO_MEMORY);
        di_cache_destroy(cache);
        if (cache) {
            break;
        }
    }
    assert_true(n > 10);
    compute_and_close(&w, no_salt, text(0, 0), 2);
    for (n = 1; n <= 2; n++) {
        di_alloc_fail_at(n);
        assert_int_equal(di_cache_pin(w.cache, no_salt, text(0, 0), TOKENS), 0);
        di_alloc_fail_at(0);
    }
    assert_int_equal(di_cache_pin(w.cache, no_salt, text(0, 0), TOKENS), 256);
    di_cache_unpin(w.cache, no_salt, text(0, 0), TOKENS);
    close_world(&w);
}

/* Copies are taken when a step is queued; else their list would grow. */
static void test_nothing_allocates_but_pins(void **state) {
    (void)state;
#ifndef DI_FAULTS
    skip();
#endif
    world w;
    di_slot_copy copies[16];
    open_world(&w, 9, 2, 2);
    di_alloc_fail_at(0);
    for (int i = 0; i < 200; i++) {
        di_seq seq;
        const int32_t *t = text(i * 7 % 5, i % 3 * DI_BLOCK_TOKENS);
        int64_t resume = di_cache_match(w.cache, no_salt, t, TOKENS, TOKENS - 1, false).resume;
        assert_true(di_seq_open_at(w.cache, &seq, no_salt, t, resume, &w.err));
        compute(&w, &seq, no_salt, t, resume > 0 ? LONGEST / 4 : 1 + i % 5);
        di_seq_close(w.cache, &seq);
        di_cache_take_copies(w.cache, copies, 16);
    }
    assert_int_equal(di_alloc_fail_at(0), 0);
    close_world(&w);
}

/* Copies that wait are not lost when more are asked for than the list had room for. */
static void test_waiting_copies_keep_their_order(void **state) {
    (void)state;
    world w;
    di_slot_copy copies[64];
    open_world(&w, 8, 2, 2);
    for (int i = 0; i < 20; i++) {
        compute_and_close(&w, no_salt, text(i, 0), 1);
    }
    assert_int_equal(di_cache_take_copies(w.cache, copies, 7), 7);
    assert_int_equal(di_cache_take_copies(w.cache, copies + 7, 64 - 7), 13);
    assert_int_equal(di_cache_take_copies(w.cache, copies, 64), 0);
    for (int i = 2; i < 20; i++) {
        assert_int_equal(copies[i].to, copies[i - 2].to); /* two snapshots take turns */
    }
    close_world(&w);
}

/* ---- the map ---- */

/* Few homes and a nearly full table: removing must close every gap that a search runs over, also
 * around the end. */
static void test_the_map_finds_what_is_in_it_and_nothing_else(void **state) {
    (void)state;
    enum { COUNT = 32 };
    di_hash keys[COUNT + 1] = {{0}};
    bool in[COUNT + 1] = {false};
    di_prefix_map map;
    uint64_t x = 99;
    assert_true(di_prefix_map_create(&map, keys, COUNT));
    for (int event = 0; event < 100000; event++) {
        random_advance(&x);
        int n = 1 + (int)(x >> 40) % COUNT;
        if (in[n]) {
            di_prefix_map_remove(&map, n);
        } else {
            keys[n] = (di_hash){.low = 58 + (x >> 33) % 12, .high = (uint64_t)event};
            di_prefix_map_insert(&map, n);
        }
        in[n] = !in[n];
        for (int i = 1; i <= COUNT; i++) {
            assert_int_equal(di_prefix_map_find(&map, keys[i]), in[i] ? i : 0);
        }
    }
    di_prefix_map_destroy(&map);
}

static void test_a_hash_depends_on_each_token_and_on_all_in_front(void **state) {
    (void)state;
    di_hasher h;
    di_error err;
    int32_t tokens[DI_BLOCK_TOKENS] = {0};
    assert_true(di_hasher_init(&h, &err));
    di_hash plain = di_hasher_next(&h, no_salt, tokens);
    assert_true(di_hash_equal(plain, di_hasher_next(&h, no_salt, tokens)));
    assert_false(di_hash_equal(plain, di_hasher_next(&h, other_salt, tokens)));
    assert_false(di_hash_equal(plain, di_hasher_next(&h, plain, tokens)));
    assert_false(di_hash_equal(di_hash_text("a", 1), di_hash_text("b", 1)));
    di_hasher other;
    assert_true(di_hasher_init(&other, &err));
    for (size_t size = 0; size < 300; size += 7) { /* salts are keyed, whatever their length */
        char text[300];
        memset(text, 'x', sizeof text);
        di_hash salt = di_hasher_text(&h, text, size);
        assert_true(di_hash_equal(salt, di_hasher_text(&h, text, size)));
        assert_false(di_hash_equal(salt, di_hasher_text(&other, text, size)));
        assert_false(di_hash_equal(salt, di_hash_text(text, size)));
    }
    for (int i = 0; i < DI_BLOCK_TOKENS; i++) {
        tokens[i] = 1;
        assert_false(di_hash_equal(plain, di_hasher_next(&h, no_salt, tokens)));
        tokens[i] = 0;
    }
}

int main(void) {
    other_salt = di_hash_text("another tenant", 14);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tenants_never_share),
        cmocka_unit_test(test_least_recently_used_ends_go_first),
        cmocka_unit_test(test_a_snapshot_knows_where_the_drafts_context_begins),
        cmocka_unit_test(test_partial_snapshots_are_not_for_everybody),
        cmocka_unit_test(test_snapshots_go_with_their_blocks_or_when_not_used_for_longest),
        cmocka_unit_test(test_a_rolling_snapshot_moves_along),
        cmocka_unit_test(test_pinned_prefixes_stay),
        cmocka_unit_test(test_what_cannot_be_is_refused_and_changes_nothing),
        cmocka_unit_test(test_wrong_options_are_refused_by_name),
        cmocka_unit_test(test_creating_a_large_cache_touches_no_memory),
        cmocka_unit_test(test_every_failed_allocation_is_reported_and_leaks_nothing),
        cmocka_unit_test(test_nothing_allocates_but_pins),
        cmocka_unit_test(test_waiting_copies_keep_their_order),
        cmocka_unit_test(test_the_map_finds_what_is_in_it_and_nothing_else),
        cmocka_unit_test(test_a_hash_depends_on_each_token_and_on_all_in_front),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
