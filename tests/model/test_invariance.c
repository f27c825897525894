/* The same tokens give the same logits, bit for bit, however they are cut into calls, whatever else
 * shares a call, and whichever way bounded replay leaves rows out. */
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"

#include "model/graph.h"

enum { LENGTH = 150, ROWS = 192 };

static int32_t tokens[LENGTH], others[LENGTH];

/* Fixed, unremarkable ids. */
static void fill_tokens(int vocab) {
    uint32_t x = 12345;
    for (int i = 0; i < LENGTH; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((x >> 8) % (uint32_t)vocab);
        x = x * 1664525u + 1013904223u;
        others[i] = (int32_t)((x >> 8) % (uint32_t)vocab);
    }
}

/* Logits of every position of a text, in chunks of the lengths given (repeated). */
static void text_in_chunks(fixture *f, const int32_t *text, const int *lengths, int count,
                           float *logits) {
    di_seq seq;
    di_error err = {0};
    assert_true(di_seq_open(f->cache, &seq, (di_hash){0}, &err));
    for (int at = 0, i = 0; at < LENGTH; i++) {
        int n = lengths[i % count] < LENGTH - at ? lengths[i % count] : LENGTH - at;
        fixture_forward(f, &seq, text + at, n, n, 0, logits + (size_t)at * f->c->vocab_size);
        at += n;
    }
    di_seq_close(f->cache, &seq);
}

static void in_chunks(fixture *f, const int *lengths, int count, float *logits) {
    text_in_chunks(f, tokens, lengths, count, logits);
}

typedef struct world {
    fixture f;
    float *whole, *found;
    size_t bytes;
} world;

static void open_world(world *w, const char *checkpoint) {
    fixture_open(&w->f, testdata_path("%s", checkpoint), BACKEND_CPU, ROWS);
    fill_tokens(w->f.c->vocab_size);
    w->bytes = (size_t)LENGTH * (size_t)w->f.c->vocab_size * sizeof(float);
    w->whole = test_malloc(w->bytes);
    w->found = test_malloc(w->bytes);
    in_chunks(&w->f, (int[]){LENGTH}, 1, w->whole);
}

static void close_world(world *w) {
    test_free(w->whole);
    test_free(w->found);
    fixture_close(&w->f);
}

static void same_logits_in(world *w, const int *lengths, int count) {
    memset(w->found, 0xff, w->bytes);
    in_chunks(&w->f, lengths, count, w->found);
    assert_memory_equal(w->found, w->whole, w->bytes);
}

/* One token at a time is decoding; chunks below, at and above the window overwrite ring rows that
 * early queries of the same chunk still need; odd ones leave compressor groups open. */
static void test_any_chunking_gives_the_same_bits(void **state) {
    (void)state;
    static const char *const checkpoints[] = {"tiny", "wide", "deep"};
    for (int i = 0; i < 3; i++) {
        world w;
        open_world(&w, checkpoints[i]);
        int window = w.f.c->sliding_window;
        for (int n = 1; n <= 3 * window && n < LENGTH; n = n < 9 ? n + 1 : n * 3 / 2) {
            same_logits_in(&w, &n, 1);
        }
        same_logits_in(&w, (int[]){window - 1, window, window + 1, 2 * window, 1}, 5);
        same_logits_in(&w, (int[]){1, 5, 2, 31}, 4);
        close_world(&w);
    }
}

/* Two sequences share every call, at different positions and lengths. */
static void test_a_neighbour_changes_nothing(void **state) {
    (void)state;
    world w;
    di_error err = {0};
    di_seq a, b;
    open_world(&w, "tiny");
    size_t vocab = (size_t)w.f.c->vocab_size;
    float *logits = test_malloc(ROWS * vocab * sizeof *logits);
    assert_true(di_seq_open(w.f.cache, &a, (di_hash){0}, &err) &&
                di_seq_open(w.f.cache, &b, (di_hash){0}, &err));
    for (int at = 0, step = 0; at < LENGTH; step++) {
        int n = (int[]){7, 1, 30, 1, 1}[step % 5], m = (int[]){1, 20, 3}[step % 3];
        n = n < LENGTH - at ? n : LENGTH - at;
        m = m < LENGTH - (int)b.len ? m : LENGTH - (int)b.len;
        bool alone = m < 1;
        di_model_rows parts[2];
        parts[0] = fixture_rows(&w.f, &b, others + b.len, m);
        parts[1] = fixture_rows(&w.f, &a, tokens + at, n);
        parts[1].num_logits = n;
        if (!di_model_forward(w.f.m, parts + alone, 2 - alone, logits, &err)) {
            fail_msg("%s", err.message);
        }
        assert_memory_equal(logits, w.whole + (size_t)at * vocab,
                            (size_t)n * vocab * sizeof(float));
        at += n;
    }
    di_seq_close(w.f.cache, &a);
    di_seq_close(w.f.cache, &b);
    test_free(logits);
    close_world(&w);
}

/* Sequences of two texts, each at a place of its own, some decoding, some in the middle of a
 * prompt; one that is through begins anew. */
typedef struct crowd {
    di_seq seqs[7];
    const int32_t *texts[2];
    const float *whole[2]; /* logits of every position */
    uint32_t random;
} crowd;

static uint32_t next(crowd *c, uint32_t below) {
    c->random = c->random * 1664525u + 1013904223u;
    return (c->random >> 8) % below;
}

/* One call with whoever the dice choose. */
static void random_step(world *w, crowd *c, float *logits) {
    di_model_rows parts[7];
    di_error err = {0};
    int who[7], count = 0, rows = 0;
    size_t row_bytes = (size_t)w->f.c->vocab_size * sizeof(float);
    for (int i = 0; i < 7; i++) {
        int left = LENGTH - (int)c->seqs[i].len;
        int n = next(c, 3) > 0 ? 1 : 1 + (int)next(c, 60);
        n = n < left ? n : left;
        if (next(c, 4) == 0 || rows + n > ROWS) {
            continue;
        }
        parts[count] = fixture_rows(&w->f, &c->seqs[i], c->texts[i % 2] + c->seqs[i].len, n);
        parts[count].num_logits = n;
        who[count++] = i;
        rows += n;
    }
    if (count == 0) {
        return;
    }
    if (!di_model_forward(w->f.m, parts, count, logits, &err)) {
        fail_msg("%s", err.message);
    }
    for (int p = 0; p < count; p++) {
        const char *wanted = (const char *)c->whole[who[p] % 2];
        size_t bytes = (size_t)parts[p].num_tokens * row_bytes;
        assert_memory_equal(logits, wanted + (size_t)parts[p].pos0 * row_bytes, bytes);
        logits += bytes / sizeof *logits;
        di_seq *seq = &c->seqs[who[p]];
        if (seq->len == LENGTH) {
            di_seq_close(w->f.cache, seq);
            assert_true(di_seq_open(w->f.cache, seq, (di_hash){0}, &err));
        }
    }
}

static void test_200_random_companies_give_the_same_bits(void **state) {
    (void)state;
    world w;
    di_error err = {0};
    open_world(&w, "tiny");
    text_in_chunks(&w.f, others, (int[]){LENGTH}, 1, w.found);
    crowd c = {.texts = {tokens, others}, .whole = {w.whole, w.found}, .random = 2026};
    float *logits = test_malloc(ROWS * (size_t)w.f.c->vocab_size * sizeof *logits);
    for (int i = 0; i < 7; i++) {
        assert_true(di_seq_open(w.f.cache, &c.seqs[i], (di_hash){0}, &err));
    }
    for (int step = 0; step < 200; step++) {
        random_step(&w, &c, logits);
    }
    for (int i = 0; i < 7; i++) {
        di_seq_close(w.f.cache, &c.seqs[i]);
    }
    test_free(logits);
    close_world(&w);
}

static void replay_logits(fixture *f, int chunk, int64_t from, float *logits) {
    di_seq seq;
    di_error err = {0};
    float *out = logits;
    assert_true(di_seq_open(f->cache, &seq, (di_hash){0}, &err));
    for (int at = 0; at < LENGTH; at += chunk) {
        int n = chunk < LENGTH - at ? chunk : LENGTH - at;
        int kept = at + n > from ? at + n - (int)(at > from ? at : from) : 0;
        fixture_forward(f, &seq, tokens + at, n, kept, from, out);
        out += (size_t)kept * (size_t)f->c->vocab_size;
    }
    for (int i = 0; i < 20; i++) { /* decoding goes on from the replayed rings */
        fixture_forward(f, &seq, others + i, 1, 1, 0, out);
        out += f->c->vocab_size;
    }
    di_seq_close(f->cache, &seq);
}

static void test_replay_by_mask_and_compact_give_the_same_bits_in_any_chunks(void **state) {
    (void)state;
    fixture mask, compact;
    int keep = 22; /* window 16 + 6 rows that may be taken back */
    fixture_open(&compact, testdata_path("tiny"), BACKEND_CPU, ROWS);
    fixture_open(&mask, testdata_path("tiny"), BACKEND_CPU, ROWS);
    mask.m->o.replay_by_mask = true;
    fill_tokens(compact.c->vocab_size);
    size_t bytes = (size_t)(keep + 20) * (size_t)compact.c->vocab_size * sizeof(float);
    float *wanted = test_malloc(bytes), *found = test_malloc(bytes);
    replay_logits(&compact, LENGTH, LENGTH - keep, wanted);
    for (int chunk = 1; chunk <= LENGTH; chunk = chunk * 2 + 1) {
        memset(found, 0xff, bytes);
        replay_logits(&mask, chunk, LENGTH - keep, found);
        assert_memory_equal(found, wanted, bytes);
        memset(found, 0xff, bytes);
        replay_logits(&compact, chunk, LENGTH - keep, found);
        assert_memory_equal(found, wanted, bytes);
    }
    test_free(wanted);
    test_free(found);
    fixture_close(&mask);
    fixture_close(&compact);
}

/* What a sequence leaves behind in its blocks and slot is never read by the next one. */
static void test_reused_blocks_and_slots_carry_nothing_over(void **state) {
    (void)state;
    world w;
    open_world(&w, "tiny");
    const di_state_pool *pool = di_cache_pool(w.f.cache);
    memset(pool->blocks, 0x7f, 65 * pool->layout->block_stride);
    memset(pool->slots, 0x7f, 9 * pool->layout->slot_stride);
    same_logits_in(&w, (int[]){13}, 1);
    close_world(&w);
}

static void test_pools_are_whole_after_use(void **state) {
    (void)state;
    world w;
    open_world(&w, "tiny");
    assert_int_equal(di_cache_free_blocks(w.f.cache), 64);
    assert_int_equal(di_cache_free_slots(w.f.cache), 8);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_chunking_gives_the_same_bits),
        cmocka_unit_test(test_a_neighbour_changes_nothing),
        cmocka_unit_test(test_200_random_companies_give_the_same_bits),
        cmocka_unit_test(test_replay_by_mask_and_compact_give_the_same_bits_in_any_chunks),
        cmocka_unit_test(test_reused_blocks_and_slots_carry_nothing_over),
        cmocka_unit_test(test_pools_are_whole_after_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
