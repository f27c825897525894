/* Rounds of drafts as programs (model/draft.h), drawn on the card: drafts and confidences are, bit
 * for bit, those of rounds that the host draws, for any number of sequences, behind steps that were
 * queued as behind ones that were waited for. On the card under test, else on the simulated one. */
#include <stdlib.h>
#include <string.h>

#include "engine/draft_round.h"
#include "engine/parts.h"
#include "model/queue.h"
#include "support/cmocka.h"
#include "support/queued.h"

enum { SEQS = 9, LONGEST = 150, MORE = 60, DRAFTS = 5, MOST_ROWS = SEQS * (1 + DRAFTS) };

typedef struct world {
    di_parts p;
    di_seq seqs[SEQS];
    int32_t tokens[SEQS][LONGEST + MORE];
    float *logits; /* [MOST_ROWS, vocab] */
    di_draw_memory draws;
    di_draft_round round;
} world;

static world w;

static uint32_t state = 7;

static int below(int n) {
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)n);
}

static void check(bool ok, const di_error *err) {
    if (!ok) {
        fail_msg("%s", err->message);
    }
}

static di_model_rows rows_of(int s, int n) {
    di_error err;
    di_seq *seq = &w.seqs[s];
    check(di_seq_reserve(w.p.cache, seq, seq->len + n, &err), &err);
    di_model_rows rows = di_model_next_rows(seq, w.tokens[s], n);
    rows.num_logits = n > MOST_ROWS ? 1 : n;
    return rows;
}

static int open_world(void **unused) {
    (void)unused;
    di_error err;
    di_parts_options o = {
        .model = "models/demo",
        .backend = queued_backend(),
        .max_num_seqs = SEQS,
        .max_rows = 256,
        .max_logits = MOST_ROWS,
        .most_drafts = DRAFTS,
        .kv_memory = 64 << 20,
        .no_prefix_cache = true,
        .queue_steps = true,
        .drafts = DI_DRAFTS_ON,
    };
    check(di_parts_open(&w.p, &o, &err), &err);
    assert_true(w.p.queues_steps);
    int vocab = w.p.weights->config.vocab_size;
    w.logits = test_malloc(MOST_ROWS * (size_t)vocab * sizeof *w.logits);
    check(di_draw_memory_create(&w.draws, w.p.backend, vocab, SEQS * DRAFTS, 0, 0, &err) &&
              di_draft_round_create(&w.round, w.p.model, &w.draws, DRAFTS, &err),
          &err);
    for (int s = 0; s < SEQS; s++) {
        int n = 1 + below(s % 3 ? LONGEST : 8);
        for (int i = 0; i < LONGEST + MORE; i++) {
            w.tokens[s][i] = below(vocab);
        }
        check(di_seq_open(w.p.cache, &w.seqs[s], (di_hash){0}, &err), &err);
        di_model_rows rows = rows_of(s, n);
        rows.num_logits = 1;
        check(di_model_forward(w.p.model, &rows, 1, w.logits, &err), &err);
        w.seqs[s].len += n;
    }
    return 0;
}

static int close_world(void **unused) {
    (void)unused;
    for (int s = 0; s < SEQS; s++) {
        di_seq_close(w.p.cache, &w.seqs[s]);
    }
    di_draft_round_destroy(&w.round);
    di_draw_memory_destroy(&w.draws);
    test_free(w.logits);
    di_parts_close(&w.p);
    return 0;
}

/* ---- rounds -----------------------------------------------------------------------------------*/

static int32_t likeliest(void *user, int i, int j, const float *logits) {
    int32_t best = 0;
    (void)user;
    (void)i;
    (void)j;
    for (int32_t v = 1; v < w.p.weights->config.vocab_size; v++) {
        best = logits[v] > logits[best] ? v : best;
    }
    return best;
}

typedef struct proposals {
    int32_t tokens[SEQS][DRAFTS];
    float confidence[SEQS][DRAFTS];
} proposals;

/* Rounds for n sequences from `first` on, by turns around. */
static void propose(int first, int n, bool recorded, proposals *out) {
    di_draft_rows parts[SEQS];
    di_error err;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++) {
        int s = (first + i) % SEQS;
        parts[i] = (di_draft_rows){
            .pos0 = w.seqs[s].len, .slot = w.seqs[s].slot, .anchor = w.tokens[s][w.seqs[s].len]};
    }
    if (!recorded) {
        check(di_model_draft(w.p.model, parts, n, likeliest, NULL, out->tokens[0],
                             out->confidence[0], &err),
              &err);
        return;
    }
    di_draft_round_begin(&w.round, n);
    for (int i = 0; i < n * DRAFTS; i++) {
        *di_draft_round_draw(&w.round, i % n, i / n) =
            (di_draw){.forced = -1, .greedy = true, .mask = -1, .floor = 1};
    }
    check(di_draft_round_run(&w.round, parts, n, out->confidence[0], &err), &err);
    for (int i = 0; i < n * DRAFTS; i++) {
        out->tokens[i % n][i / n] = di_draft_round_drawn(&w.round, i % n, i / n)->token;
    }
}

static void compare(int first, int n) {
    proposals wanted, found;
    propose(first, n, false, &wanted);
    propose(first, n, true, &found);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < DRAFTS; j++) {
            if (found.tokens[i][j] != wanted.tokens[i][j]) {
                fail_msg("%d sequences, draft %d of number %d: %d, not %d", n, j, i,
                         found.tokens[i][j], wanted.tokens[i][j]);
            }
        }
    }
    assert_memory_equal(found.confidence, wanted.confidence, sizeof found.confidence);
}

static void test_recorded_rounds_are_those_the_host_draws(void **unused) {
    (void)unused;
    di_model_counts before = di_model_get_counts(w.p.model);
    for (int n = 1; n <= SEQS; n++) {
        compare(below(SEQS), n);
    }
    di_model_counts after = di_model_get_counts(w.p.model);
    assert_int_equal(after.recorded_rounds - before.recorded_rounds, SEQS);
    assert_int_equal(after.other_rounds, 0);
}

/* ---- context ----------------------------------------------------------------------------------*/

/* A step of all sequences, up to a block of rows each: by the queue, or waited for. */
static void step(bool queued) {
    di_model_rows rows[SEQS];
    di_error err;
    for (int s = 0; s < SEQS; s++) {
        rows[s] = rows_of(s, 1 + below(1 + DRAFTS));
    }
    bool ok = queued ? di_model_queue(w.p.model, rows, SEQS, NULL, NULL, &err) &&
                           w.p.backend->ops->sync(w.p.backend, &err)
                     : di_model_forward(w.p.model, rows, SEQS, w.logits, &err);
    check(ok, &err);
    for (int s = 0; s < SEQS; s++) {
        w.seqs[s].len += rows[s].num_tokens;
    }
}

static void test_recorded_steps_keep_context(void **unused) {
    (void)unused;
    proposals behind_queued, behind_waited;
    for (int turn = 0; turn < 4; turn++) {
        int64_t len[SEQS];
        uint32_t here = state;
        di_model_counts before = di_model_get_counts(w.p.model);
        for (int s = 0; s < SEQS; s++) {
            len[s] = w.seqs[s].len;
        }
        step(true);
        assert_int_equal(di_model_get_counts(w.p.model).recorded_steps, before.recorded_steps + 1);
        propose(0, SEQS, true, &behind_queued);
        for (int s = 0; s < SEQS; s++) {
            w.seqs[s].len = len[s];
        }
        state = here; /* the same once more */
        step(false);
        propose(0, SEQS, true, &behind_waited);
        assert_memory_equal(&behind_queued, &behind_waited, sizeof behind_queued);
        compare(0, SEQS);
    }
}

/* The program without context leaves the draft model's rings alone: tokens in front of it are what
 * they were, and nothing looks at what it has left out. */
static void test_steps_that_keep_no_context_are_other_programs(void **unused) {
    (void)unused;
    size_t vocab = (size_t)w.p.weights->config.vocab_size;
    di_model_counts before = di_model_get_counts(w.p.model);
    const di_state_pool *pool = di_cache_pool(w.p.cache);
    const di_config *c = &w.p.weights->config;
    int stage = c->num_hidden_layers;
    size_t ring = (size_t)pool->layout->ring_rows * pool->layout->window_bytes;
    uint8_t *was = test_malloc(ring), *is = test_malloc(ring);
    float *logits = test_malloc(SEQS * vocab * sizeof *logits);
    const uint8_t *at = pool->slots + (size_t)w.seqs[1].slot * pool->layout->slot_stride +
                        pool->layout->ring_offset[stage];
    di_error err;
    for (int kept = 0; kept < 2; kept++) {
        di_model_rows rows[SEQS];
        for (int s = 0; s < SEQS; s++) {
            rows[s] = rows_of(s, 1);
            rows[s].no_context = !kept;
        }
        w.p.backend->ops->download(w.p.backend, was, at, ring);
        check(di_model_queue(w.p.model, rows, SEQS, NULL, NULL, &err), &err);
        w.p.backend->ops->download(w.p.backend, is, at, ring);
        w.p.backend->ops->download(w.p.backend, kept ? w.logits : logits,
                                   di_model_logits(w.p.model), SEQS * vocab * sizeof *logits);
        check(w.p.backend->ops->sync(w.p.backend, &err), &err);
        assert_int_equal(memcmp(was, is, ring) != 0, kept);
    }
    assert_memory_equal(logits, w.logits, SEQS * vocab * sizeof *logits);
    assert_int_equal(di_model_get_counts(w.p.model).recorded_steps, before.recorded_steps + 2);
    test_free(was);
    test_free(is);
    test_free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_rounds_are_those_the_host_draws),
        cmocka_unit_test(test_recorded_steps_keep_context),
        cmocka_unit_test(test_steps_that_keep_no_context_are_other_programs),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
