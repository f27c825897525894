/* The draft model against recorded rounds, stage by stage: the target's layers and the draft's
 * stages are given the recorded streams of what comes before them, so that nothing spreads
 * (tests/data/golden/README.md). The engine lists the ring by position, the record by slot: sums of
 * the attention may differ in their last bits. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"

#include "model/draft.h"
#include "model/graph.h"

typedef struct rounds {
    fixture f;
    golden_case g;
    const char *prefix; /* of the target's arrays */
    int64_t row;        /* its first recorded row */
    int round;          /* of drafts; -1 while the target runs */
    int64_t wrong_integers;
    tally taps, h, pre, logits, confidence;
    int32_t drawn;
} rounds;

static const void *row_of(const di_tensor *t, int64_t row, int from) {
    int64_t width = elements_from(t, from);
    return (const char *)t->data + row * width * di_dtype_bits(t->dtype) / 8;
}

/* Targets' taps: the prompt's last rows, or one row a step. */
static void compare_taps(rounds *t, const di_bf16 *found, size_t bytes) {
    di_tensor wanted = case_get(&t->g, DI_BF16, "%smain_hidden", t->prefix);
    int64_t width = elements_from(&wanted, 1), rows = (int64_t)(bytes / 2) / width;
    bool prompt = strcmp(t->prefix, "prefill.") == 0;
    int64_t recorded = prompt ? wanted.shape[0] : 1;
    tally_bf16(&t->taps, found + (rows - recorded) * width, row_of(&wanted, prompt ? 0 : t->row, 1),
               recorded * width);
}

static void give_streams(rounds *t, const char *name, int layer, void *data, size_t bytes) {
    di_dtype dtype = strcmp(name, "h") == 0 ? DI_BF16 : DI_F32;
    const void *wanted;
    di_tensor array;
    int stage = layer - t->f.c->num_hidden_layers;
    if (t->round >= 0) {
        array = case_get(&t->g, dtype, "draft.mtp.%d.%s", stage, name);
        wanted = row_of(&array, t->round, 1);
        if (dtype == DI_BF16) {
            tally_bf16(&t->h, data, wanted, (int64_t)(bytes / 2));
        } else {
            tally_f32(&t->pre, data, wanted, (int64_t)(bytes / 4));
        }
    } else {
        array = case_get(&t->g, dtype, "%slayers.%d.%s", t->prefix, layer, name);
        wanted = row_of(&array, t->row, 1);
    }
    t->f.be->ops->upload(t->f.be, data, wanted, bytes);
}

static void observe(void *user, const char *name, int layer, void *data, size_t bytes) {
    rounds *t = user;
    observe_latents(&t->f, name, layer, data, bytes);
    if (strcmp(name, "taps") == 0) {
        compare_taps(t, data, bytes);
    } else if (strcmp(name, "h") == 0 || strcmp(name, "pre") == 0) {
        give_streams(t, name, layer, data, bytes);
    } else if (strcmp(name, "experts") == 0 && t->round >= 0) {
        di_tensor wanted =
            case_get(&t->g, DI_I32, "draft.mtp.%d.experts", layer - t->f.c->num_hidden_layers);
        const int32_t *row = row_of(&wanted, t->round, 1);
        for (size_t i = 0; i < bytes / sizeof *row; i++) {
            t->wrong_integers += ((const int32_t *)data)[i] != row[i];
        }
    }
}

/* Greedy; compares the row's logits with the recorded ones on the way. */
static int32_t draw(void *user, int i, int j, const float *logits) {
    rounds *t = user;
    assert_int_equal(i, 0);
    di_tensor wanted = case_get(&t->g, DI_F32, "draft.logits");
    const float *row = (const float *)row_of(&wanted, t->round, 1) + j * wanted.shape[2];
    tally_f32(&t->logits, logits, row, wanted.shape[2]);
    return argmax(logits, (int)wanted.shape[2]);
}

/* The round recorded after `after` tokens, if there is one. */
static void draft_if_recorded(rounds *t, const di_seq *seq) {
    di_tensor after = case_get(&t->g, DI_I32, "draft.after");
    for (t->round = 0; t->round < after.shape[0]; t->round++) {
        if (((const int32_t *)after.data)[t->round] == seq->len) {
            break;
        }
    }
    if (t->round < after.shape[0]) {
        di_error err = {0};
        int32_t tokens[16];
        float confidence[16];
        int size = t->f.c->dspark_block_size;
        di_tensor anchors = case_get(&t->g, DI_I32, "draft.anchor");
        di_tensor wanted = case_get(&t->g, DI_I32, "draft.tokens");
        di_tensor sure = case_get(&t->g, DI_F32, "draft.confidence_logits");
        di_draft_rows part = {seq->len, seq->slot, ((const int32_t *)anchors.data)[t->round], 0};
        if (!di_model_draft(t->f.m, &part, 1, draw, t, tokens, confidence, &err)) {
            fail_msg("%s", err.message);
        }
        for (int j = 0; j < size; j++) {
            t->wrong_integers += tokens[j] != ((const int32_t *)wanted.data)[t->round * size + j];
        }
        tally_f32(&t->confidence, confidence, (const float *)sure.data + t->round * size, size);
    }
    t->round = -1;
}

static void check(const char *config, const char *file, backend_kind kind) {
    rounds t = {.prefix = "prefill.", .round = -1};
    di_error err = {0};
    di_seq seq;
    fixture_open_drafts(&t.f, testdata_path("%s", config), kind, 128);
    case_open(&t.g, testdata_path("golden/%s/%s.safetensors", config, file));
    di_model_observe(t.f.m, observe, &t);
    di_tensor tokens = case_get(&t.g, DI_I32, "tokens");
    di_tensor fed = case_get(&t.g, DI_I32, "decode.tokens");
    int64_t steps = case_get(&t.g, DI_F32, "decode.logits").shape[0];
    assert_true(di_seq_open(t.f.cache, &seq, (di_hash){0, 0}, &err));
    fixture_forward(&t.f, &seq, tokens.data, (int)tokens.shape[0], 0, 0, NULL);
    draft_if_recorded(&t, &seq);
    t.prefix = "decode.";
    for (t.row = 0; t.row < steps; t.row++) {
        fixture_forward(&t.f, &seq, (const int32_t *)fed.data + t.row, 1, 0, 0, NULL);
        draft_if_recorded(&t, &seq);
    }
    print_message("    %s/%s: taps unequal %lld of %lld; h unequal %lld of %lld, worst %.2g; pre "
                  "%.2g; logits %.2g; confidence %.2g; integers wrong %lld\n",
                  config, file, (long long)t.taps.unequal, (long long)t.taps.count,
                  (long long)t.h.unequal, (long long)t.h.count, t.h.worst, t.pre.worst,
                  t.logits.worst, t.confidence.worst, (long long)t.wrong_integers);
    assert_true(t.taps.count > 0 && t.h.count > 0);
    assert_int_equal(t.taps.unequal, 0);
    assert_int_equal(t.wrong_integers, 0);
    assert_true(t.h.unequal <= t.h.count / 100);
    assert_true(t.h.worst < 0.04);
    assert_true(t.pre.worst < 2e-3);
    assert_true(t.logits.worst < 2e-5); /* from the recorded last streams; wrong taps give 6 */
    assert_true(t.confidence.worst < 2e-5);
    di_seq_close(t.f.cache, &seq);
    case_close(&t.g);
    fixture_close(&t.f);
}

static void test_ref_drafts_equal_the_tiny_rounds(void **state) {
    (void)state;
    check("tiny", "decode-025", BACKEND_REF);
}

static void test_cpu_drafts_equal_the_tiny_rounds(void **state) {
    (void)state;
    check("tiny", "decode-025", BACKEND_CPU);
}

static void test_cpu_drafts_equal_the_wide_rounds(void **state) {
    (void)state;
    check("wide", "decode-064", BACKEND_CPU);
}

static void test_cpu_drafts_equal_the_deep_rounds(void **state) {
    (void)state;
    check("deep", "decode-070", BACKEND_CPU);
}

static int32_t likeliest(void *user, int i, int j, const float *logits) {
    (void)i;
    (void)j;
    return argmax(logits, ((const fixture *)user)->c->vocab_size);
}

/* Drafts behind more[t], of which the first that are more[t + 1 ...] count. */
static int right_drafts(fixture *f, const di_seq *seq, const int32_t *more, int t) {
    di_error err = {0};
    int32_t tokens[64];
    float confidence[64];
    int n = 0, size = f->c->dspark_block_size;
    di_draft_rows part = {seq->len, seq->slot, more[t], 0};
    if (!di_model_draft(f->m, &part, 1, likeliest, f, tokens, confidence, &err)) {
        fail_msg("%s", err.message);
    }
    while (n < size && tokens[n] == more[t + 1 + n]) {
        n++;
    }
    return n;
}

/* The demo model's training code counted so (tools/demo-model/golden.py) and found 2.98 tokens in
 * 57 rounds: over the six recorded continuations, whole blocks only. */
static void test_the_demo_models_rounds_are_those_of_its_training(void **state) {
    (void)state;
    fixture f;
    golden_case g;
    int count = 0, tokens = 0;
    fixture_open_drafts(&f, "models/demo", BACKEND_CPU, 128);
    case_open(&g, "models/demo/golden.safetensors");
    for (int i = 0; i < 6; i++) {
        di_error err = {0};
        di_seq seq;
        di_tensor ids = case_get(&g, DI_I32, "prompt.%d.ids", i);
        di_tensor greedy = case_get(&g, DI_I32, "prompt.%d.greedy", i);
        const int32_t *more = greedy.data;
        int last = (int)greedy.shape[0] - f.c->dspark_block_size;
        assert_true(di_seq_open(f.cache, &seq, (di_hash){0}, &err));
        for (int64_t at = 0; at < ids.shape[0]; at += 100) {
            int64_t n = ids.shape[0] - at < 100 ? ids.shape[0] - at : 100;
            fixture_forward(&f, &seq, (const int32_t *)ids.data + at, (int)n, 0, 0, NULL);
        }
        for (int t = 0, fed = 0; t < last;) {
            if (t > fed) {
                fixture_forward(&f, &seq, more + fed, t - fed, 0, 0, NULL);
                fed = t;
            }
            int n = right_drafts(&f, &seq, more, t);
            tokens += n + 1;
            t += n + 1;
            count++;
        }
        di_seq_close(f.cache, &seq);
    }
    print_message("    %.2f tokens a round over %d rounds\n", (double)tokens / count, count);
    assert_true((double)tokens / count > 2.9);
    case_close(&g);
    fixture_close(&f);
}

enum { SEEN = 150, MOST_KEPT = 100 };

typedef struct heard {
    const fixture *f;
    uint64_t logits; /* a hash of all */
} heard;

static int32_t hear(void *user, int i, int j, const float *logits) {
    heard *h = user;
    const uint32_t *bits = (const uint32_t *)logits;
    (void)i;
    (void)j;
    for (int v = 0; v < h->f->c->vocab_size; v++) {
        h->logits = (h->logits ^ bits[v]) * 1099511628211u;
    }
    return argmax(logits, h->f->c->vocab_size);
}

static uint64_t drafts_heard(fixture *f, const di_seq *seq, int64_t context_from) {
    di_error err = {0};
    heard h = {f, 14695981039346656037u};
    int32_t tokens[64];
    float confidence[64];
    di_draft_rows part = {seq->len, seq->slot, 17, context_from};
    if (!di_model_draft(f->m, &part, 1, hear, &h, tokens, confidence, &err)) {
        fail_msg("%s", err.message);
    }
    return h.logits;
}

/* A sequence whose first rows have (or have not) context, behind some rows that have it. */
static void run_sequence(fixture *f, di_seq *seq, const int32_t *tokens, int kept,
                         bool no_context) {
    di_error err = {0};
    assert_true(di_seq_open(f->cache, seq, (di_hash){0}, &err));
    for (int at = 0; at < SEEN + kept; at++) {
        di_model_rows part = fixture_rows(f, seq, tokens + at, 1);
        part.no_context = no_context && at >= 20 && at < SEEN;
        if (!di_model_forward(f->m, &part, 1, NULL, &err)) {
            fail_msg("%s", err.message);
        }
    }
}

/* Where context was left out, drafts that look no further back are those of a sequence that always
 * had it. */
static void test_context_that_was_left_out_is_not_looked_at(void **state) {
    (void)state;
    fixture f;
    di_seq with, without;
    int32_t tokens[SEEN + MOST_KEPT];
    fixture_open_drafts(&f, testdata_path("tiny"), BACKEND_CPU, 128);
    int kept = f.c->sliding_window / 2;
    assert_in_range(kept, 2, MOST_KEPT);
    for (int i = 0; i < SEEN + kept; i++) {
        tokens[i] = 5 + i * 37 % 90;
    }
    run_sequence(&f, &with, tokens, kept, false);
    run_sequence(&f, &without, tokens, kept, true);
    assert_true(drafts_heard(&f, &with, 0) != drafts_heard(&f, &without, 0));
    assert_true(drafts_heard(&f, &with, 0) != drafts_heard(&f, &with, SEEN));
    for (int64_t from = SEEN; from <= SEEN + kept; from++) {
        assert_true(drafts_heard(&f, &with, from) == drafts_heard(&f, &without, from));
    }
    di_seq_close(f.cache, &with);
    di_seq_close(f.cache, &without);
    fixture_close(&f);
}

/* ---- who else is in a round -------------------------------------------------------------------*/

enum { COMPANY = 5 };

typedef struct company {
    const fixture *f;
    int first;                /* number of the sequence that stands first */
    uint64_t logits[COMPANY]; /* hashes, by sequence */
} company;

static int32_t hear_company(void *user, int i, int j, const float *logits) {
    company *c = user;
    heard h = {c->f, c->logits[(c->first + i) % COMPANY]};
    int32_t token = hear(&h, i, j, logits);
    c->logits[(c->first + i) % COMPANY] = h.logits;
    return token;
}

/* Sequences of all kinds of lengths, some of which see no context before some place: drafts and
 * confidences are those that each has alone, whatever its place in the round. */
static void test_drafts_do_not_depend_on_who_else_is_in_the_round(void **state) {
    (void)state;
    static const int lengths[COMPANY] = {1, 15, 16, 17, 61};
    fixture f;
    di_seq seqs[COMPANY];
    di_draft_rows parts[2 * COMPANY];
    int32_t tokens[64], alone[COMPANY][16], together[COMPANY * 16];
    float sure[COMPANY][16], all_sure[COMPANY * 16];
    di_error err = {0};
    fixture_open_drafts(&f, testdata_path("tiny"), BACKEND_CPU, 128);
    company single = {.f = &f};
    size_t size = (size_t)f.c->dspark_block_size;
    for (int i = 0; i < COMPANY; i++) {
        for (int t = 0; t < lengths[i]; t++) {
            tokens[t] = 5 + (i * 11 + t) * 37 % 90;
        }
        assert_true(di_seq_open(f.cache, &seqs[i], (di_hash){0, 0}, &err));
        fixture_forward(&f, &seqs[i], tokens, lengths[i], 0, 0, NULL);
        parts[i] = (di_draft_rows){seqs[i].len, seqs[i].slot, 17 + i, i == 4 ? 50 : 0};
        parts[COMPANY + i] = parts[i];
        single.first = i;
        assert_true(
            di_model_draft(f.m, &parts[i], 1, hear_company, &single, alone[i], sure[i], &err));
    }
    for (int first = 0; first < COMPANY; first++) { /* in turn */
        company c = {.f = &f, .first = first};
        assert_true(di_model_draft(f.m, parts + first, COMPANY, hear_company, &c, together,
                                   all_sure, &err));
        assert_memory_equal(c.logits, single.logits, sizeof c.logits);
        for (size_t i = 0; i < COMPANY; i++) {
            size_t who = ((size_t)first + i) % COMPANY;
            assert_memory_equal(together + i * size, alone[who], size * sizeof(int32_t));
            assert_memory_equal(all_sure + i * size, sure[who], size * sizeof(float));
        }
    }
    for (int i = 0; i < COMPANY; i++) {
        di_seq_close(f.cache, &seqs[i]);
    }
    fixture_close(&f);
}

/* ---- how many sequences a round has -----------------------------------------------------------*/

/* A second model on the fixture's weights and state, for rounds of so many sequences. */
static di_model *model_for(const fixture *f, int max_rows, int draft_seqs, di_error *err) {
    di_model_options o = {.max_rows = max_rows,
                          .max_logits = 1,
                          .token_map = f->token_map,
                          .drafts = true,
                          .max_draft_seqs = draft_seqs};
    return di_model_create(f->w, f->be, f->cache, &o, err);
}

static void test_a_round_has_as_many_sequences_as_there_is_room_for(void **state) {
    (void)state;
    enum { SEQS = 4, LEN = 20 };
    fixture f;
    di_seq seqs[SEQS];
    di_draft_rows parts[SEQS];
    int32_t tokens[LEN], drafts[2][SEQS * 16];
    float confidence[2][SEQS * 16];
    heard heard_by[2];
    fixture_open_drafts(&f, testdata_path("tiny"), BACKEND_CPU, 128);
    int size = f.c->dspark_block_size;
    for (int i = 0; i < SEQS; i++) {
        di_error err = {0};
        for (int t = 0; t < LEN; t++) {
            tokens[t] = 5 + (i * 11 + t) * 37 % 90;
        }
        assert_true(di_seq_open(f.cache, &seqs[i], (di_hash){0, 0}, &err));
        fixture_forward(&f, &seqs[i], tokens, LEN, 0, 0, NULL);
        parts[i] = (di_draft_rows){seqs[i].len, seqs[i].slot, 17 + i, 0};
    }
    for (int k = 0; k < 2; k++) { /* as many as rows allow, and just those */
        di_error err = {0};
        di_model *m = model_for(&f, 128, k ? SEQS : 0, &err);
        assert_non_null(m);
        int most = di_model_draft_seqs(m);
        assert_int_equal(most, k ? SEQS : 128 / size);
        heard_by[k] = (heard){&f, 14695981039346656037u};
        assert_true(
            di_model_draft(m, parts, SEQS, hear, &heard_by[k], drafts[k], confidence[k], &err));
        assert_false(
            di_model_draft(m, parts, most + 1, hear, &heard_by[k], drafts[k], confidence[k], &err));
        assert_int_equal(err.code, DI_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, "allowed are 1 to "));
        di_model_destroy(m);
    }
    assert_true(heard_by[0].logits == heard_by[1].logits);
    assert_memory_equal(drafts[0], drafts[1], (size_t)(SEQS * size) * sizeof **drafts);
    assert_memory_equal(confidence[0], confidence[1], (size_t)(SEQS * size) * sizeof **confidence);
    for (int i = 0; i < SEQS; i++) {
        di_seq_close(f.cache, &seqs[i]);
    }
    fixture_close(&f);
}

static void test_the_number_of_sequences_is_checked(void **state) {
    (void)state;
    fixture f;
    di_error err = {0};
    fixture_open_drafts(&f, testdata_path("tiny"), BACKEND_CPU, 128);
    assert_null(model_for(&f, 128, -1, &err));
    assert_int_equal(err.code, DI_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "max_draft_seqs is -1"));
    di_model *m = model_for(&f, 1 << 14, 1 << 20, &err);
    assert_non_null(m);
    assert_int_equal(di_model_draft_seqs(m), DI_MODEL_MAX_DRAFT_SEQS);
    di_model_destroy(m);
    fixture_close(&f);
}

/* What drafts take beside the activations of steps, at the released model's sizes: taps and main_x
 * are of every row of a step, logits of a round's rows alone. */
static void test_drafts_take_logits_for_a_rounds_rows_alone(void **state) {
    (void)state;
    enum { ROWS = 8192, SEQS = 64 };
    di_config *c = test_malloc(sizeof *c);
    di_error err = {0};
    if (!di_config_read(c, testdata_path("flash"), &err)) {
        fail_msg("%s", err.message);
    }
    size_t block = (size_t)c->dspark_block_size, vocab = (size_t)c->vocab_size;
    size_t width = (size_t)c->hidden_size * sizeof(di_bf16);
    di_model_options o = {.max_rows = ROWS, .max_logits = SEQS};
    size_t without = di_model_activation_bytes(c, &o);
    o.drafts = true;
    o.max_draft_seqs = SEQS;
    size_t with = di_model_activation_bytes(c, &o);
    size_t taps = ROWS * ((size_t)c->num_dspark_targets + 1) * width;
    size_t logits = SEQS * (block - 1) * vocab * sizeof(float); /* beside those of the steps */
    size_t hidden = SEQS * block * width;
    assert_in_range(with - without, taps + logits + hidden, taps + logits + hidden + (1 << 20));
    /* No more logits where a step has as many as a round. */
    o.max_logits = SEQS * (int)(1 + block);
    with = di_model_activation_bytes(c, &o);
    o.drafts = false;
    without = di_model_activation_bytes(c, &o);
    assert_in_range(with - without, taps + hidden, taps + hidden + (1 << 20));
    test_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref_drafts_equal_the_tiny_rounds),
        cmocka_unit_test(test_cpu_drafts_equal_the_tiny_rounds),
        cmocka_unit_test(test_cpu_drafts_equal_the_wide_rounds),
        cmocka_unit_test(test_cpu_drafts_equal_the_deep_rounds),
        cmocka_unit_test(test_context_that_was_left_out_is_not_looked_at),
        cmocka_unit_test(test_the_demo_models_rounds_are_those_of_its_training),
        cmocka_unit_test(test_drafts_do_not_depend_on_who_else_is_in_the_round),
        cmocka_unit_test(test_a_round_has_as_many_sequences_as_there_is_room_for),
        cmocka_unit_test(test_the_number_of_sequences_is_checked),
        cmocka_unit_test(test_drafts_take_logits_for_a_rounds_rows_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
