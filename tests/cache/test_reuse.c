/* State that is used again, on real models: whoever goes on from a prefix that another request has
 * left behind, or from a copy on the host, gets the logits of a cold run, bit for bit. */
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"

#include "base/alloc.h"
#include "ops/address.h"

enum { ROWS = 640, BLOCKS = 24, SLOTS = 4, SNAPSHOTS = 6 };

static const di_hash no_salt;

typedef enum snapshots { NO_SNAPSHOTS, EACH_BORDER, ROLLING } snapshots;

typedef struct world {
    fixture f;
    int32_t tokens[ROWS], others[ROWS];
    float *cold, *found; /* [ROWS, vocab_size] */
    size_t row;          /* bytes of a row of logits */
} world;

static void do_copies(world *w) {
    di_slot_copy copies[2];
    di_state_pool pool = *di_cache_pool(w->f.cache);
    size_t stride = pool.layout->slot_stride;
    int n;
    while ((n = di_cache_take_copies(w->f.cache, copies, 2)) > 0) {
        for (int i = 0; i < n; i++) {
            w->f.be->ops->copy(w->f.be, pool.slots + (size_t)copies[i].to * stride,
                               pool.slots + (size_t)copies[i].from * stride, stride);
        }
    }
}

/* Takes a sequence to `end` tokens as the engine will: copies first, steps cut at block borders if
 * snapshots are wanted there. Logits of every row, or NULL. */
static void grow(world *w, di_seq *seq, const int32_t *tokens, int64_t end, int chunk,
                 snapshots keep, float *logits) {
    di_error err = {0};
    while (seq->len < end) {
        int64_t n = end - seq->len < chunk ? end - seq->len : chunk;
        int64_t border = DI_BLOCK_TOKENS - seq->len % DI_BLOCK_TOKENS;
        n = keep != NO_SNAPSHOTS && n > border ? border : n;
        if (!di_seq_reserve(w->f.cache, seq, seq->len + n, &err)) {
            fail_msg("%s", err.message);
        }
        di_model_rows part = di_model_next_rows(seq, tokens, (int)n);
        part.num_logits = logits ? (int)n : 0;
        do_copies(w);
        if (!di_model_forward(w->f.m, &part, 1, logits, &err)) {
            fail_msg("%s", err.message);
        }
        logits = logits ? logits + n * w->f.c->vocab_size : NULL;
        seq->len += n;
        di_seq_publish(w->f.cache, seq, tokens, seq->len);
        if (keep != NO_SNAPSHOTS && seq->len % DI_BLOCK_TOKENS == 0) {
            di_seq_snapshot(w->f.cache, seq, seq->len, keep == ROLLING);
        }
    }
}

static void open_at(world *w, di_seq *seq, di_hash salt, const int32_t *tokens, int64_t resume) {
    di_error err = {0};
    if (!di_seq_open_at(w->f.cache, seq, salt, tokens, resume, &err)) {
        fail_msg("%s", err.message);
    }
}

static void make_cache(world *w, int num_snapshots) {
    di_error err = {0};
    fixture *f = &w->f;
    di_model_destroy(f->m);
    di_cache_destroy(f->cache);
    di_cache_options o = {.num_blocks = BLOCKS,
                          .num_slots = SLOTS,
                          .num_snapshots = num_snapshots,
                          .max_backtracking = 6};
    f->cache = di_cache_create(f->c, f->be, &o, &err);
    di_model_options m = {.max_rows = ROWS, .max_logits = ROWS, .token_map = f->token_map};
    f->m = f->cache ? di_model_create(f->w, f->be, f->cache, &m, &err) : NULL;
    if (!f->m) {
        fail_msg("%s", err.message);
    }
}

/* w->cold are the logits of a run that shares nothing with anybody. */
static void open_world(world *w, const char *folder, int length) {
    uint32_t x = 4711;
    di_seq seq;
    fixture_open(&w->f, folder, BACKEND_CPU, 1);
    for (int i = 0; i < ROWS; i++) {
        x = x * 1664525u + 1013904223u;
        w->tokens[i] = (int32_t)((x >> 8) % (uint32_t)w->f.c->vocab_size);
        x = x * 1664525u + 1013904223u;
        w->others[i] = (int32_t)((x >> 8) % (uint32_t)w->f.c->vocab_size);
    }
    w->row = (size_t)w->f.c->vocab_size * sizeof(float);
    w->cold = test_malloc(ROWS * w->row);
    w->found = test_malloc(ROWS * w->row);
    make_cache(w, 0);
    open_at(w, &seq, no_salt, w->tokens, 0);
    grow(w, &seq, w->tokens, length, ROWS, NO_SNAPSHOTS, w->cold);
    di_seq_close(w->f.cache, &seq);
    make_cache(w, SNAPSHOTS);
}

static void close_world(world *w) {
    di_error err = {0};
    if (!di_cache_check(w->f.cache, &err)) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(di_cache_free_blocks(w->f.cache), BLOCKS);
    assert_int_equal(di_cache_free_slots(w->f.cache), SLOTS);
    test_free(w->cold);
    test_free(w->found);
    fixture_close(&w->f);
}

/* Runs from where the sequence stands to `length` and compares; closes it. */
static void ends_as_cold(world *w, di_seq *seq, int64_t length, int chunk) {
    size_t from = (size_t)seq->len, bytes = ((size_t)length - from) * w->row;
    memset(w->found, 0xff, bytes);
    grow(w, seq, w->tokens, length, chunk, NO_SNAPSHOTS, w->found);
    assert_memory_equal(w->found, (char *)w->cold + from * w->row, bytes);
    di_seq_close(w->f.cache, seq);
}

static int64_t resume_of(world *w, di_hash salt, int64_t length) {
    return di_cache_match(w->f.cache, salt, w->tokens, length, length - 1, false).resume;
}

/* The first request's rings are overwritten by the request in between, which gets its slot. */
static void test_same_prompt_after_another_request_resumes_and_ends_the_same(void **state) {
    (void)state;
    enum { LENGTH = 200 };
    static world w;
    di_seq a, b;
    open_world(&w, testdata_path("tiny"), LENGTH);
    open_at(&w, &a, no_salt, w.tokens, 0);
    grow(&w, &a, w.tokens, LENGTH, 50, EACH_BORDER, NULL);
    int32_t slot = a.slot;
    di_seq_close(w.f.cache, &a);

    open_at(&w, &b, no_salt, w.others, 0);
    assert_int_equal(b.slot, slot);
    grow(&w, &b, w.others, LENGTH, 50, EACH_BORDER, NULL);
    di_seq_close(w.f.cache, &b);

    assert_int_equal(resume_of(&w, no_salt, LENGTH), 128);
    open_at(&w, &a, no_salt, w.tokens, 128);
    ends_as_cold(&w, &a, LENGTH, 7);
    close_world(&w);
}

/* Also while the first is still at it, beyond the shared part. */
static void test_a_prefix_can_be_shared_in_mid_request(void **state) {
    (void)state;
    enum { LENGTH = 240 };
    static world w;
    di_seq a, b;
    open_world(&w, testdata_path("tiny"), LENGTH);
    open_at(&w, &a, no_salt, w.tokens, 0);
    grow(&w, &a, w.tokens, 150, 150, EACH_BORDER, NULL);
    open_at(&w, &b, no_salt, w.tokens, resume_of(&w, no_salt, LENGTH));
    assert_int_equal(b.len, 128);
    assert_int_equal(b.blocks[0], a.blocks[0]);
    grow(&w, &a, w.tokens, 200, 1, EACH_BORDER, NULL);
    ends_as_cold(&w, &b, LENGTH, 30);
    ends_as_cold(&w, &a, LENGTH, 30);
    close_world(&w);
}

/* Then another request needs the memory of the newer half: what is left still serves. */
static void test_a_prompt_resumes_at_every_block_border_also_partly_evicted(void **state) {
    (void)state;
    enum { LENGTH = 600 };
    static world w;
    di_error err = {0};
    di_seq seq;
    open_world(&w, "models/demo", LENGTH);
    open_at(&w, &seq, no_salt, w.tokens, 0);
    grow(&w, &seq, w.tokens, LENGTH, ROWS, EACH_BORDER, NULL);
    di_seq_close(w.f.cache, &seq);
    for (int64_t border = 128; border <= 512; border += DI_BLOCK_TOKENS) {
        di_prefix_hit hit =
            di_cache_match(w.f.cache, no_salt, w.tokens, LENGTH, border + 127, false);
        assert_int_equal(hit.resume, border);
        assert_int_equal(hit.matched, 512);
        open_at(&w, &seq, no_salt, w.tokens, border);
        ends_as_cold(&w, &seq, LENGTH, ROWS);
    }
    assert_true(di_seq_open(w.f.cache, &seq, no_salt, &err));
    assert_true(di_seq_reserve(w.f.cache, &seq, (BLOCKS - 2) * DI_BLOCK_TOKENS, &err));
    di_seq_close(w.f.cache, &seq);
    assert_int_equal(resume_of(&w, no_salt, LENGTH), 256);
    open_at(&w, &seq, no_salt, w.tokens, 256);
    ends_as_cold(&w, &seq, LENGTH, 100);
    close_world(&w);
}

/* The newest `window` rows of all rings and every entry of two sequences. */
static void same_state(world *w, const di_seq *a, const di_seq *b) {
    const di_config *c = w->f.c;
    const di_state_pool *pool = di_cache_pool(w->f.cache);
    const di_state_layout *l = pool->layout;
    assert_int_equal(a->len, b->len);
    for (int layer = 0; layer < c->num_hidden_layers; layer++) {
        for (int64_t p = a->len - c->sliding_window; p < a->len; p++) {
            assert_memory_equal(di_ring_row(pool, a->slot, layer, p),
                                di_ring_row(pool, b->slot, layer, p), l->window_bytes);
        }
    }
    for (int i = 0; i < c->num_kv_sources; i++) {
        int source = c->kv_source_layer_ids[i], ratio = c->layers[source].ratio;
        for (int64_t e = 0; e < a->len / ratio; e++) {
            assert_memory_equal(di_latent_row(pool, a->blocks, source, ratio, e),
                                di_latent_row(pool, b->blocks, source, ratio, e), l->latent_bytes);
            assert_memory_equal(di_key_row(pool, a->blocks, source, ratio, e),
                                di_key_row(pool, b->blocks, source, ratio, e), l->key_bytes);
        }
    }
}

static void test_decoding_leaves_the_state_that_prefill_leaves(void **state) {
    (void)state;
    enum { LENGTH = 240 };
    static world w;
    di_seq at_once, one_by_one, later;
    di_hash salt = {.low = 1};
    open_world(&w, testdata_path("tiny"), LENGTH);
    open_at(&w, &at_once, no_salt, w.tokens, 0);
    open_at(&w, &one_by_one, salt, w.tokens, 0);
    grow(&w, &at_once, w.tokens, 200, ROWS, NO_SNAPSHOTS, NULL);
    grow(&w, &one_by_one, w.tokens, 200, 1, ROLLING, NULL);
    same_state(&w, &at_once, &one_by_one);
    di_seq_close(w.f.cache, &at_once);
    di_seq_close(w.f.cache, &one_by_one);
    assert_int_equal(resume_of(&w, no_salt, LENGTH), 0); /* blocks, but no snapshot */
    assert_int_equal(resume_of(&w, salt, LENGTH), 128);
    open_at(&w, &later, salt, w.tokens, 128);
    ends_as_cold(&w, &later, LENGTH, ROWS);
    close_world(&w);
}

static void *export_seq(world *w, const di_seq *seq) {
    void *host = test_malloc(di_seq_export_bytes(w->f.cache, seq));
    di_seq_export(w->f.cache, seq, host);
    return host;
}

/* Odd lengths leave a compressor's group open. */
static void test_state_comes_back_from_the_host_into_other_blocks(void **state) {
    (void)state;
    enum { LENGTH = 240 };
    static const int lengths[] = {1, 127, 128, 129, 133, 200};
    static world w;
    di_error err = {0};
    di_seq seq, other;
    open_world(&w, testdata_path("tiny"), LENGTH);
    for (int i = 0; i < 6; i++) {
        open_at(&w, &seq, no_salt, w.tokens, 0);
        grow(&w, &seq, w.tokens, lengths[i], 50, NO_SNAPSHOTS, NULL);
        int32_t slot = seq.slot, block = seq.blocks[0];
        void *host = export_seq(&w, &seq);
        di_seq_close(w.f.cache, &seq);
        open_at(&w, &other, no_salt, w.others, 0); /* takes their place */
        grow(&w, &other, w.others, LENGTH, 50, NO_SNAPSHOTS, NULL);

        assert_true(di_seq_open(w.f.cache, &seq, no_salt, &err));
        assert_true(di_seq_reserve(w.f.cache, &seq, lengths[i], &err));
        assert_true(seq.slot != slot && seq.blocks[0] != block);
        di_seq_import(w.f.cache, &seq, lengths[i], host);
        test_free(host);
        ends_as_cold(&w, &seq, LENGTH, 9);
        di_seq_close(w.f.cache, &other);
    }
    close_world(&w);
}

/* The blocks that are there already are shared, only the rest comes from the host. */
static void test_state_from_the_host_joins_a_prefix_that_stayed(void **state) {
    (void)state;
    enum { LENGTH = 240 };
    static world w;
    di_error err = {0};
    di_seq seq;
    open_world(&w, testdata_path("tiny"), LENGTH);
    open_at(&w, &seq, no_salt, w.tokens, 0);
    grow(&w, &seq, w.tokens, 201, 50, EACH_BORDER, NULL);
    void *host = export_seq(&w, &seq);
    di_seq_close(w.f.cache, &seq);
    open_at(&w, &seq, no_salt, w.tokens, resume_of(&w, no_salt, LENGTH));
    assert_int_equal(seq.len, 128);
    do_copies(&w);
    assert_true(di_seq_reserve(w.f.cache, &seq, 201, &err));
    di_seq_import(w.f.cache, &seq, 201, host);
    test_free(host);
    ends_as_cold(&w, &seq, LENGTH, 9);
    close_world(&w);
}

/* Rejected drafts: taken back and computed anew with the right tokens. */
static void test_tokens_taken_back_leave_no_trace(void **state) {
    (void)state;
    enum { LENGTH = 240 };
    static world w;
    di_error err = {0};
    di_seq seq;
    open_world(&w, testdata_path("tiny"), LENGTH);
    open_at(&w, &seq, no_salt, w.tokens, 0);
    grow(&w, &seq, w.tokens, 100, 100, NO_SNAPSHOTS, NULL);
    for (int64_t len = 100; len < LENGTH - 6;) {
        int32_t drafted[ROWS];
        memcpy(drafted, w.tokens, sizeof drafted);
        for (int64_t i = len + 1; i < len + 6; i++) {
            drafted[i] = w.others[i];
        }
        assert_true(di_seq_reserve(w.f.cache, &seq, len + 6, &err));
        di_model_rows part = di_model_next_rows(&seq, drafted, 6);
        part.num_logits = 6;
        assert_true(di_model_forward(w.f.m, &part, 1, w.found, &err));
        assert_memory_equal(w.found, (char *)w.cold + (size_t)len * w.row, w.row);
        seq.len += 6;
        di_seq_publish(w.f.cache, &seq, w.tokens, len + 1);
        di_seq_truncate(w.f.cache, &seq, len + 1);
        len++;
    }
    ends_as_cold(&w, &seq, LENGTH, 4);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_prompt_after_another_request_resumes_and_ends_the_same),
        cmocka_unit_test(test_a_prefix_can_be_shared_in_mid_request),
        cmocka_unit_test(test_a_prompt_resumes_at_every_block_border_also_partly_evicted),
        cmocka_unit_test(test_decoding_leaves_the_state_that_prefill_leaves),
        cmocka_unit_test(test_state_comes_back_from_the_host_into_other_blocks),
        cmocka_unit_test(test_state_from_the_host_joins_a_prefix_that_stayed),
        cmocka_unit_test(test_tokens_taken_back_leave_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
