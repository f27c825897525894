/* The model on a card's queue (model/queue.h): the logits of steps that are queued, recorded, fed
 * by the step before and filled up to a bucket are, bit for bit, those of calls that are waited
 * for. Needs a card (TEST_BACKEND=cuda), else it is skipped. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/parts.h"
#include "model/graph.h"
#include "model/queue.h"
#include "ops/cuda/cuda.h"
#include "support/cmocka.h"
#include "support/mirror.h"

enum { SEQS = 20, LONGEST = 150, STEPS = 60, MOST_LOGITS = 64 };

/* What a step's sequences have: a row each, one of them a piece of a prompt, or up to six rows with
 * logits each, as drafts are verified. */
typedef enum step_kind { DECODES, WITH_PROMPT, VERIFIES } step_kind;

typedef struct world {
    di_parts p;
    di_seq seqs[SEQS];
    int32_t tokens[SEQS][LONGEST + STEPS];
    float *wanted, *found;
    int32_t *drawn; /* argument memory */
    size_t row;     /* bytes of a row of logits */
} world;

static world w;

static void give_up_on(const di_error *err) {
    fail_msg("%s", err->message);
}

static int open_world(void **state) {
    (void)state;
    if (!card_under_test()) {
        return 0;
    }
    di_error err;
    di_parts_options o = {
        .model = "models/demo",
        .backend = getenv("TEST_BACKEND"),
        .max_num_seqs = SEQS,
        .max_rows = 256,
        .max_logits = MOST_LOGITS,
        .kv_memory = 64 << 20,
        .no_prefix_cache = true,
        .queue_steps = true,
    };
    if (!di_parts_open(&w.p, &o, &err)) {
        give_up_on(&err);
    }
    assert_true(w.p.queues_steps);
    w.row = (size_t)w.p.weights->config.vocab_size * sizeof(float);
    w.wanted = test_malloc(MOST_LOGITS * w.row);
    w.found = test_malloc(MOST_LOGITS * w.row);
    w.drawn = w.p.backend->ops->queue->args_create(w.p.backend, SEQS * sizeof *w.drawn);
    assert_non_null(w.drawn);
    return 0;
}

static int close_world(void **state) {
    (void)state;
    if (card_under_test()) {
        w.p.backend->ops->queue->args_destroy(w.p.backend, w.drawn);
        test_free(w.wanted);
        test_free(w.found);
        di_parts_close(&w.p);
    }
    return 0;
}

static uint32_t state = 1;

static int below(int n) {
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)n);
}

static di_model_rows rows_of(int s, int n) {
    di_error err;
    di_seq *seq = &w.seqs[s];
    if (!di_seq_reserve(w.p.cache, seq, seq->len + n, &err)) {
        give_up_on(&err);
    }
    di_model_rows rows = di_model_next_rows(seq, w.tokens[s], n);
    rows.num_logits = 1;
    return rows;
}

/* Sequences of odd and even lengths, shorter and longer than a window. */
static void open_sequences(void) {
    di_error err;
    for (int s = 0; s < SEQS; s++) {
        int n = s % 3 ? 1 + below(LONGEST) : 1 + below(8);
        for (int i = 0; i < LONGEST + STEPS; i++) {
            w.tokens[s][i] = below(w.p.weights->config.vocab_size);
        }
        assert_true(di_seq_open(w.p.cache, &w.seqs[s], (di_hash){0}, &err));
        di_model_rows rows = rows_of(s, n);
        if (!di_model_forward(w.p.model, &rows, 1, w.wanted, &err)) {
            give_up_on(&err);
        }
        w.seqs[s].len += n;
    }
}

static void close_sequences(void) {
    for (int s = 0; s < SEQS; s++) {
        di_seq_close(w.p.cache, &w.seqs[s]);
    }
}

/* Queues the step, half of its tokens fed; its logits into w.found. */
static void queue(di_model_rows *rows, int n, int logits, bool feed) {
    di_backend *be = w.p.backend;
    di_error err;
    double begin, end;
    int32_t source[SEQS], wrong[SEQS];
    for (int i = 0; i < n && feed; i++) {
        source[i] = i % 2 ? SEQS - 1 - i : -1;
        w.drawn[SEQS - 1 - i] = *rows[i].tokens;
        wrong[i] = (*rows[i].tokens + 1) % 100;
        rows[i].tokens = i % 2 ? &wrong[i] : rows[i].tokens;
    }
    be->ops->queue->begin(be, 0);
    be->ops->queue->args_send(be, w.drawn, SEQS * sizeof *w.drawn);
    if (!di_model_queue(w.p.model, rows, n, feed ? source : NULL, w.drawn, &err)) {
        give_up_on(&err);
    }
    be->ops->queue->end(be, 0);
    if (!be->ops->queue->wait(be, 0, &begin, &end, &err)) {
        give_up_on(&err);
    }
    assert_true(end >= begin);
    be->ops->download(be, w.found, di_model_logits(w.p.model), (size_t)logits * w.row);
    if (!be->ops->sync(be, &err)) {
        give_up_on(&err);
    }
}

/* One step of some sequences, waited for and then queued: it stores the same state again. */
static void step(int n, bool feed, step_kind kind) {
    static const char *const names[] = {"decoding", "with a prompt", "verifying"};
    di_model_rows rows[SEQS];
    di_error err;
    int first = below(SEQS), logits = 0;
    for (int i = 0; i < n; i++) {
        int s = (first + i) % SEQS;
        rows[i] = rows_of(s, kind == VERIFIES ? 1 + below(6) : kind && i == 0 ? 3 : 1);
        rows[i].num_logits = kind == VERIFIES ? rows[i].num_tokens : 1;
        w.seqs[s].len += rows[i].num_tokens;
        logits += rows[i].num_logits;
    }
    if (!di_model_forward(w.p.model, rows, n, w.wanted, &err)) {
        give_up_on(&err);
    }
    memset(w.found, 0xa5, (size_t)logits * w.row);
    queue(rows, n, logits, feed && kind == DECODES);
    for (int i = 0; i < logits; i++) {
        if (memcmp(w.found + (size_t)i * w.row / 4, w.wanted + (size_t)i * w.row / 4, w.row) != 0) {
            fail_msg("step of %d sequences, %s%s: logits %d of %d differ", n, names[kind],
                     feed ? ", fed" : "", i, logits);
        }
    }
}

static void test_queued_steps_give_the_same_bits(void **unused) {
    (void)unused;
    if (!card_under_test()) {
        skip();
    }
    open_sequences();
    uint64_t before = di_model_get_counts(w.p.model).recorded_steps;
    for (int i = 0; i < 12; i++) {
        step(1 + below(SEQS), i % 2, i % 4 == 3 ? WITH_PROMPT : DECODES);
    }
    assert_int_equal(di_model_get_counts(w.p.model).recorded_steps - before,
                     9); /* the others had a prompt in them */
    for (int i = 0; i < 12; i++) {
        step(1 + below(3), false, VERIFIES); /* no more than SEQS rows */
    }
    assert_int_equal(di_model_get_counts(w.p.model).recorded_steps - before, 9 + 12);
    close_sequences();
}

static void test_nothing_waits_inside_a_step(void **unused) {
    (void)unused;
    di_backend *be = w.p.backend;
    char host[16];
    di_error err;
    double begin, end;
    if (!card_under_test()) {
        skip();
    }
    if (!getenv("DI_CUDA_GUARD")) {
        skip();
    }
    be->ops->queue->begin(be, 0);
    be->ops->download(be, host, w.p.model->a.logits, sizeof host);
    be->ops->queue->end(be, 0);
    assert_false(be->ops->queue->wait(be, 0, &begin, &end, &err));
    assert_non_null(strstr(err.message, "download made the host wait inside a step"));
    assert_true(be->ops->sync(be, &err)); /* told once */
}

/* Hashing on the card, against the host's, for tokens with every kind of past. */
static void test_hashes(void **unused) {
    (void)unused;
    enum { N = 64 };
    if (!card_under_test()) {
        skip();
    }
    const di_engram_hasher *h = &w.p.model->hasher;
    di_backend *be = w.p.backend;
    const di_queue_ops *q = be->ops->queue;
    size_t columns = (size_t)h->columns, bytes = N * (DI_MODEL_LOOK_BACK + 2) * 4 + N * columns * 8;
    int32_t *tokens = q->args_create(be, bytes + 256), *back = tokens + N;
    uint8_t *image = (uint8_t *)(back + N * DI_MODEL_LOOK_BACK);
    int64_t *rows = (int64_t *)(void *)(image + N * 4);
    for (int i = 0; i < N * (DI_MODEL_LOOK_BACK + 1); i++) {
        tokens[i] = i >= N && below(4) == 0 ? -1 : below(h->vocab_size);
    }
    for (int i = 0; i < N; i++) {
        image[i] = below(8) == 0;
    }
    for (int l = 0; l < h->num_layers; l++) {
        di_error err;
        di_ngram_hash hash = di_engram_device_hash(h, l);
        q->args_send(be, tokens, bytes);
        q->hash_ngrams(be, &hash, tokens, back, DI_MODEL_LOOK_BACK, image, N, rows);
        q->args_fetch(be, rows, N * columns * sizeof *rows);
        assert_true(be->ops->sync(be, &err));
        for (int i = 0; i < N; i++) {
            int32_t ids[DI_MAX_NGRAM];
            int64_t wanted[DI_MAX_ENGRAM_COLUMNS];
            for (int k = 0; k < DI_MODEL_LOOK_BACK; k++) {
                ids[k] = di_engram_compress(h, back[i * DI_MODEL_LOOK_BACK + k]);
            }
            ids[DI_MODEL_LOOK_BACK] =
                image[i] ? DI_ENGRAM_BARRIER : di_engram_compress(h, tokens[i]);
            di_engram_hash(h, l, ids, DI_MODEL_LOOK_BACK, wanted);
            assert_memory_equal(rows + (size_t)i * columns, wanted, columns * sizeof *wanted);
        }
    }
    assert_true(h->num_layers > 0);
    q->args_destroy(be, tokens);
}

/* ---- n-gram tables ----------------------------------------------------------------------------*/

enum { T_ROWS = 500, T_WIDTH = 64, T_COLUMNS = 6, T_TOKENS = 40, T_HC = 2, T_D = 96 };

/* Random bytes without NaN codes. */
static uint8_t *codes(size_t n, int low, int high) {
    uint8_t *p = test_malloc(n);
    for (size_t i = 0; i < n; i++) {
        int b = low + below(high - low + 1);
        p[i] = (uint8_t)((b & 0x7f) == 0x7f ? 0 : b);
    }
    return p;
}

static di_bf16 *values(size_t n) {
    di_bf16 *p = test_malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        p[i] = di_bf16_from_f32((float)(below(2001) - 1000) / 500);
    }
    return p;
}

/* h after the op, with the table on the card (1), in the host's locked memory (0), or not loaded,
 * so that the host picks its rows (-1). */
static void look_up(int on_card, const di_tensor *table, const di_tensor *wkv,
                    const di_tensor *norm, const int64_t *rows, const di_bf16 *h, di_bf16 *out) {
    di_error err;
    size_t bytes = (size_t)T_TOKENS * T_HC * T_D * sizeof *h;
    di_backend *be = di_cuda_create(0, &err);
    assert_non_null(be);
    int64_t *args = be->ops->queue->args_create(be, T_TOKENS * T_COLUMNS * sizeof *args);
    di_bf16 *there = be->ops->alloc(be, bytes);
    assert_non_null(args);
    assert_non_null(there);
    memcpy(args, rows, T_TOKENS * T_COLUMNS * sizeof *args);
    be->ops->queue->args_send(be, args, T_TOKENS * T_COLUMNS * sizeof *args);
    be->ops->upload(be, there, h, bytes);
    if (on_card >= 0) {
        assert_true(be->ops->queue->load_ngrams(be, table, on_card));
    }
    be->ops->engram(be, on_card >= 0 ? args : rows, T_TOKENS, T_COLUMNS, table, wkv, norm, norm,
                    T_HC, T_D, 1e-6f, there);
    be->ops->download(be, out, there, bytes);
    if (!be->ops->sync(be, &err)) {
        give_up_on(&err);
    }
    be->ops->free(be, there);
    be->ops->destroy(be);
}

static void test_tables_are_read_wherever_they_lie(void **unused) {
    (void)unused;
    enum { K = T_WIDTH * T_COLUMNS, M = (T_HC + 1) * T_D, CELLS = T_TOKENS * T_HC * T_D };
    int64_t rows[T_TOKENS * T_COLUMNS];
    static di_bf16 found[3][CELLS];
    if (!card_under_test()) {
        skip();
    }
    uint8_t *data = codes((size_t)T_ROWS * T_WIDTH, 0, 255);
    uint8_t *scale = codes((size_t)T_ROWS * T_WIDTH / 32, 120, 126);
    uint8_t *product = codes((size_t)M * K, 0, 255),
            *w_scale = codes((size_t)M * K / 1024, 120, 124);
    di_bf16 *h = values(CELLS), *norm_values = values((size_t)T_HC * T_D);
    di_tensor table = {.dtype = DI_F8_E4M3, .rank = 2, .shape = {T_ROWS, T_WIDTH}, .data = data};
    table.scale = scale;
    table.scale_block[0] = 1;
    table.scale_block[1] = 32;
    di_tensor wkv = {
        .dtype = DI_F8_E4M3, .rank = 2, .shape = {M, K}, .data = product, .scale = w_scale};
    wkv.scale_block[0] = wkv.scale_block[1] = 32;
    di_tensor norm = {.dtype = DI_BF16, .rank = 2, .shape = {T_HC, T_D}, .data = norm_values};
    for (int i = 0; i < T_TOKENS * T_COLUMNS; i++) {
        rows[i] = i / T_COLUMNS % 7 == 3 ? -1 : below(T_ROWS);
    }
    for (int i = 0; i < 3; i++) {
        look_up(i - 1, &table, &wkv, &norm, rows, h, found[i]);
    }
    for (int i = 1; i < 3; i++) {
        int differ = 0, first = -1;
        for (int k = 0; k < CELLS; k++) {
            differ += found[i][k] != found[0][k];
            first = first < 0 && differ ? k : first;
        }
        if (differ) {
            fail_msg("%s: %d of %d values differ, the first is number %d of token %d",
                     i == 1 ? "in the host's memory" : "on the card", differ, CELLS,
                     first % (T_HC * T_D), first / (T_HC * T_D));
        }
    }
    assert_memory_not_equal(found[0], h, sizeof found[0]);
    assert_memory_equal(found[0] + 3 * T_HC * T_D, h + 3 * T_HC * T_D, T_HC * T_D * sizeof *h);
    test_free(data);
    test_free(scale);
    test_free(product);
    test_free(w_scale);
    test_free(h);
    test_free(norm_values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_tables_are_read_wherever_they_lie),
        cmocka_unit_test(test_queued_steps_give_the_same_bits),
        cmocka_unit_test(test_nothing_waits_inside_a_step),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
