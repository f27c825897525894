/* The draw on a card gives the token, the error and the log-probabilities that sample/ gives, to
 * the bit: random rows and parameters, and the rows that are hard. Without a card (TEST_BACKEND)
 * the numbers that a card is given are checked, and the rest is skipped. TEST_SMALL in the
 * environment, for slow tools: only what reaches every way through the kernel. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/draws.h"
#include "ops/cuda/cuda.h"
#include "sample/rows.h"
#include "support/mirror.h"

enum { MOST_ROWS = 40, MAX_TOP = 1000, MAX_PAIRS = 1 << 18, MAX_MASKS = MOST_ROWS, WORDS = 4096 };

/* What a card is given, and what it gives back; argument memory. */
typedef struct card {
    di_backend *be;
    const di_queue_ops *ops;
    di_draw *rows;
    di_draw_pair *pairs, *top;
    uint32_t *masks;
    int32_t *before, *tokens;
    di_drawn *drawn;
} card;

static card device;

static void *args(size_t count, size_t size) {
    void *p = device.ops->args_create(device.be, count * size);
    assert_non_null(p);
    return p;
}

static int open_card(void **state) {
    (void)state;
    if (card_under_test()) {
        di_error err;
        int number;
        di_cuda_parse(getenv("TEST_BACKEND"), &number);
        device.be = di_cuda_create(number, &err);
        if (!device.be) {
            fail_msg("%s", err.message);
        }
        device.ops = device.be->ops->queue;
        device.rows = args(MOST_ROWS, sizeof *device.rows);
        device.pairs = args(MAX_PAIRS, sizeof *device.pairs);
        device.masks = args(MAX_MASKS, WORDS * sizeof *device.masks);
        device.before = args(MOST_ROWS, sizeof *device.before);
        device.tokens = args(MOST_ROWS, sizeof *device.tokens);
        device.drawn = args(MOST_ROWS, sizeof *device.drawn);
        device.top = args(MOST_ROWS, MAX_TOP * sizeof *device.top);
    }
    return 0;
}

static int close_card(void **state) {
    (void)state;
    if (device.be) {
        device.be->ops->destroy(device.be);
    }
    scratch_of(0);
    return 0;
}

/* ---- cases ------------------------------------------------------------------------------------*/

typedef struct row_case {
    float *x;
    di_sample_params p;
    di_sample_input in;
    di_sample_history history; /* what the host knows; the card's lacks a token that is fed */
    di_sample_history known;
    int32_t fed;
    uint32_t *mask;
    di_logit_bias bias[8];
    int32_t allowed[64], stops[4], golden[4];
} row_case;

static float random_logit(dice *d, int kind) {
    float x = (float)((roll_unit(d) + roll_unit(d) + roll_unit(d) - 1.5) * 12);
    switch (kind) {
    case 0:
        return x;
    case 1: /* many ties, zeros of both signs */
        return roll_below(d, 8) == 0 ? -0.0f : floorf(x);
    case 2: /* few tokens that can occur */
        return roll_below(d, 50) ? -INFINITY : x;
    case 3:
        return x * 1e30f;
    case 4:
        return 2.5f;
    case 5: /* a steep row */
        return -fabsf(x) * 40;
    default:
        return x * 0.01f;
    }
}

static void random_row(dice *d, row_case *r, int vocab) {
    int kind = roll_below(d, 8), odd = roll_below(d, 60);
    for (int i = 0; i < vocab; i++) {
        r->x[i] = random_logit(d, kind);
    }
    int at = roll_below(d, vocab);
    if (odd == 0) {
        r->x[at] = NAN;
    } else if (odd == 1) {
        r->x[at] = INFINITY;
    } else if (odd == 2) {
        for (int i = 0; i < vocab; i++) {
            r->x[i] = i == at && roll_below(d, 2) ? -3.0f : -INFINITY;
        }
    }
}

static void random_lists(dice *d, row_case *r, int vocab) {
    di_sample_params *p = &r->p;
    int first = roll_below(d, vocab);
    if (roll_below(d, 4) == 0) {
        p->num_logit_bias = (size_t)(vocab < 8 ? 1 : 1 + roll_below(d, 8));
        for (size_t i = 0; i < p->num_logit_bias; i++) {
            r->bias[i] =
                (di_logit_bias){(int32_t)((first + (int)i) % vocab), 200 * roll_unit(d) - 100};
        }
        p->logit_bias = r->bias;
    }
    if (roll_below(d, 6) == 0) {
        int count = vocab < 64 ? 1 : 1 + roll_below(d, 64);
        for (int i = 0; i < count; i++) {
            r->allowed[i] = (first + i * 7) % vocab;
        }
        p->allowed_token_ids = (di_token_list){r->allowed, vocab < 500 ? 1 : (size_t)count};
    }
    if (roll_below(d, 6) == 0) {
        p->min_tokens = 3;
        p->eos_token_id = roll_below(d, vocab);
        r->stops[0] = roll_below(d, vocab);
        p->stop_token_ids = (di_token_list){r->stops, 1};
    }
    if (roll_below(d, 10) == 0) {
        r->golden[0] = roll_below(d, 3) ? roll_below(d, vocab) : -1;
        p->golden_token_ids = (di_token_list){r->golden, 1};
    }
    if (roll_below(d, 4) == 0) {
        int rare = roll_below(d, 2);
        for (int i = 0; i < (vocab + 31) / 32; i++) {
            r->mask[i] = rare && roll_below(d, 8) ? 0 : roll(d);
        }
        r->in.grammar_mask = r->mask;
    }
}

static void random_history(dice *d, row_case *r, int vocab) {
    int32_t prompt[200];
    int n = roll_below(d, 200), output = roll_below(d, 200);
    for (int i = 0; i < n; i++) {
        prompt[i] = roll_below(d, vocab);
    }
    di_error err;
    assert_true(di_sample_history_create(&r->history, &r->p, vocab, prompt, (size_t)n, 400, &err));
    assert_true(di_sample_history_create(&r->known, &r->p, vocab, prompt, (size_t)n, 400, &err));
    for (int i = 0; i < output; i++) {
        int32_t token = roll_below(d, vocab < 50 ? vocab : 50);
        bool last = i == output - 1 && roll_below(d, 2);
        assert_true(di_sample_history_push(&r->history, token, &err));
        r->fed = last ? token : -1;
        if (!last) {
            assert_true(di_sample_history_push(&r->known, token, &err));
        }
    }
    r->in.history = &r->history;
}

static void random_params(dice *d, row_case *r, int vocab) {
    static const double temperatures[] = {0, 0.05, 0.25, 0.7, 1, 1, 1.3, 2, 50};
    di_sample_params *p = &r->p;
    *p = default_params();
    p->shape.temperature = temperatures[roll_below(d, 9)];
    if (roll_below(d, 2)) {
        static const double shares[] = {0x1p-24, 0.01, 0.3, 0.5, 0.9, 0.95, 0.999999};
        p->shape.top_p = roll_below(d, 2) ? shares[roll_below(d, 7)] : roll_unit(d);
    }
    if (roll_below(d, 2)) {
        p->shape.top_k = roll_below(d, 4) ? 1 + roll_below(d, 100) : vocab - 1 + roll_below(d, 3);
        p->shape.top_k = p->shape.top_k > 0 ? p->shape.top_k : 1;
    }
    p->shape.min_p = roll_below(d, 4) ? 0 : roll_unit(d) * 0.2;
    p->seeded = roll_below(d, 2);
    p->logprobs = roll_below(d, 2);
    p->num_logprobs = p->logprobs ? (roll_below(d, 8) ? roll_below(d, 21) : MAX_TOP) : 0;
    p->logprobs_mode = roll_below(d, 2) ? DI_LOGPROBS_RAW : DI_LOGPROBS_PROCESSED;
    if (roll_below(d, 3) == 0) {
        p->repetition_penalty = 0.5 + roll_unit(d);
        p->presence_penalty = 4 * roll_unit(d) - 2;
        p->frequency_penalty = 4 * roll_unit(d) - 2;
    }
    r->in.seed = (uint64_t)roll(d) << 32 | roll(d);
    r->in.position = roll_below(d, 3) ? (uint64_t)roll_below(d, 100000) : (uint64_t)roll(d) << 8;
    random_lists(d, r, vocab);
}

static void make_case(dice *d, row_case *r, int vocab) {
    *r = (row_case){.x = test_malloc((size_t)vocab * sizeof(float)),
                    .mask = test_calloc(WORDS, sizeof(uint32_t)),
                    .fed = -1};
    random_row(d, r, vocab);
    random_params(d, r, vocab);
    di_error err = {0};
    if (!di_sample_params_check(&r->p, vocab, &err)) {
        fail_msg("%s", err.message);
    }
    random_history(d, r, vocab);
    r->in.logits = r->x;
}

static void free_case(row_case *r) {
    test_free(r->x);
    test_free(r->mask);
    di_sample_history_destroy(&r->history);
    di_sample_history_destroy(&r->known);
}

/* ---- comparing --------------------------------------------------------------------------------*/

static bool same_double(double a, double b) {
    /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the bits are meant */
    return memcmp(&a, &b, sizeof a) == 0;
}

static void compare(const row_case *r, int i, int vocab) {
    di_sampled wanted;
    di_error error = {0}, found_error = {0};
    const di_drawn *found = &device.drawn[i];
    bool ok = di_sample_row(&r->p, &r->in, scratch_of(vocab), &wanted, &error);
    bool found_ok = di_draw_ok(found, &found_error);
    if (ok != found_ok || (!ok && strcmp(error.message, found_error.message) != 0)) {
        fail_msg("row %d of %d: '%s', not '%s'", i, vocab, found_error.message, error.message);
    }
    if (!ok) {
        return;
    }
    if (found->token != wanted.token) {
        fail_msg("row %d of %d: token %d, not %d (temperature %g, top_p %.17g, top_k %lld, min_p "
                 "%g, %s)",
                 i, vocab, found->token, wanted.token, r->p.shape.temperature, r->p.shape.top_p,
                 (long long)r->p.shape.top_k, r->p.shape.min_p, r->p.seeded ? "race" : "by sum");
    }
    if (r->p.logprobs) {
        static int32_t ids[MAX_TOP];
        static double logprobs[MAX_TOP];
        di_logprobs l;
        di_draw_logprobs(&device.rows[i], found, device.top + (size_t)i * MAX_TOP, ids, logprobs,
                         &l);
        if (!same_double(l.logprob, wanted.logprobs.logprob) ||
            l.num_top != wanted.logprobs.num_top) {
            fail_msg("row %d of %d: log-probability %.17g and %d more, not %.17g and %d", i, vocab,
                     l.logprob, l.num_top, wanted.logprobs.logprob, wanted.logprobs.num_top);
        }
        for (int k = 0; k < l.num_top; k++) {
            assert_int_equal(l.top_ids[k], wanted.logprobs.top_ids[k]);
            assert_true(same_double(l.top_logprobs[k], wanted.logprobs.top_logprobs[k]));
        }
    }
}

static void draw_on_card(row_case *cases, int n, int vocab) {
    di_draw_lists lists = {
        .pairs = device.pairs,
        .masks = device.masks,
        .max_pairs = MAX_PAIRS,
        .max_masks = MAX_MASKS,
        .mask_words = (vocab + 31) / 32,
        .vocab_size = vocab,
    };
    di_backend *be = device.be;
    float *logits = be->ops->alloc(be, (size_t)n * (size_t)vocab * sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < n; i++) {
        di_sample_input in = cases[i].in;
        in.history = &cases[i].known;
        int at = n - 1 - i; /* rows of logits in another order than draws */
        be->ops->upload(be, logits + (size_t)at * (size_t)vocab, cases[i].x,
                        (size_t)vocab * sizeof *logits);
        assert_true(
            di_draw_fill(&cases[i].p, &in, cases[i].fed >= 0 ? i : -1, &lists, &device.rows[i]));
        device.rows[i].logits = at;
        device.before[i] = cases[i].fed;
        memset(&device.drawn[i], 0xa5, sizeof *device.drawn);
    }
    di_draw_call call = {
        .logits = logits,
        .vocab_size = vocab,
        .n = n,
        .rows = device.rows,
        .pairs = device.pairs,
        .masks = device.masks,
        .mask_words = lists.mask_words,
        .before = device.before,
        .tokens = device.tokens,
        .drawn = device.drawn,
        .top = device.top,
        .max_top = MAX_TOP,
    };
    di_error err;
    device.ops->args_send(be, device.rows, (size_t)n * sizeof *device.rows);
    device.ops->args_send(be, device.pairs, (size_t)lists.num_pairs * sizeof *device.pairs);
    device.ops->args_send(be, device.masks, (size_t)lists.num_masks * (size_t)lists.mask_words * 4);
    device.ops->args_send(be, device.before, (size_t)n * sizeof *device.before);
    device.ops->draw(be, &call);
    device.ops->args_fetch(be, device.drawn, (size_t)n * sizeof *device.drawn);
    device.ops->args_fetch(be, device.tokens, (size_t)n * sizeof *device.tokens);
    device.ops->args_fetch(be, device.top, (size_t)n * MAX_TOP * sizeof *device.top);
    bool ok = be->ops->sync(be, &err);
    be->ops->free(be, logits);
    if (!ok) {
        fail_msg("%s", err.message);
    }
}

/* Takes the cases' memory over. */
static void draw_and_compare(row_case *cases, int n, int vocab) {
    draw_on_card(cases, n, vocab);
    for (int i = 0; i < n; i++) {
        compare(&cases[i], i, vocab);
        assert_int_equal(device.tokens[i], device.drawn[i].token);
        free_case(&cases[i]);
    }
}

static void draw_random_rows(int rounds) {
    static const int vocabs[] = {1,    2,    5,    33,    127,    1000,  3001,
                                 4160, 8192, 8193, 16384, 129280, 131071};
    static row_case cases[MOST_ROWS];
    for (int round = 0; round < rounds; round++) {
        for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
            dice d = {.key = (uint64_t)round * 100 + v};
            int n = vocabs[v] < 10000 ? MOST_ROWS : 8;
            for (int i = 0; i < n; i++) {
                make_case(&d, &cases[i], vocabs[v]);
            }
            draw_and_compare(cases, n, vocabs[v]);
        }
    }
}

/* ---- few rows that reach everything -----------------------------------------------------------*/

/* Ways through the kernel. Those of a draw come once for every kind of draw, those of a filtered
 * one for every filter. */
enum {
    KIND_GREEDY,
    KIND_FORCED,
    KIND_RACE,
    KIND_SUM,
    KINDS,
    TOLD_NOTHING = 0, /* log-probabilities */
    TOLD_RAW,
    TOLD_PROCESSED,
    TOLD,
    FILTERS = 4, /* none, top_k, top_p, both */
    WAY_FILTERED = KINDS * TOLD,
    WAY_MIN_P = WAY_FILTERED + 2 * 2 * FILTERS,
    WAY_MASK,
    WAY_BIAS,
    WAY_PENALTIES,
    WAY_FED_KNOWN,
    WAY_FED_NEW,
    WAY_NONE_BESIDE, /* no likeliest tokens wanted: raw, and one further processed */
    WAY_SHORT_LIST = WAY_NONE_BESIDE + 2,
    WAY_CUT_OFF, /* the token told of is not among those drawn from */
    WAY_BAD_LOGITS,
    WAY_BAD_BEFORE_LISTS,
    WAY_NO_TOKEN,
    WAY_ALIGNED, /* rows for copies of 16 bytes, and others */
    WAY_UNALIGNED,
    WAYS
};

static uint64_t way(int number, bool taken) {
    return taken ? (uint64_t)1 << number : 0;
}

static const uint64_t all_ways =
    (((uint64_t)1 << WAYS) - 1) & ~((uint64_t)1 << (KIND_GREEDY * TOLD + TOLD_PROCESSED));

static bool counts_fed(const row_case *r) {
    for (size_t i = 0; i < r->known.num_tokens; i++) {
        if (r->known.tokens[i].id == r->fed) {
            return true;
        }
    }
    return false;
}

static uint64_t ways_of_draw(const di_draw *d, const di_sampled *drawn, int vocab) {
    int kind = d->forced >= 0 ? KIND_FORCED
               : d->greedy    ? KIND_GREEDY
               : d->race      ? KIND_RACE
                              : KIND_SUM;
    int told = d->processed ? TOLD_PROCESSED : d->logprobs ? TOLD_RAW : TOLD_NOTHING;
    int filters = (d->top_k > 0 && d->top_k < vocab) + 2 * (d->p_mantissa != 0);
    uint64_t ways = way(kind * TOLD + told, true);
    if (kind >= KIND_RACE) {
        int draw = kind == KIND_SUM, processed = told == TOLD_PROCESSED;
        ways |= way(WAY_FILTERED + (draw * 2 + processed) * FILTERS + filters, true);
        ways |= way(WAY_MIN_P, d->floor > 1);
    }
    if (told != TOLD_NOTHING) {
        ways |= way(WAY_NONE_BESIDE + (told == TOLD_PROCESSED), d->num_top == 0);
        ways |= way(WAY_SHORT_LIST, told == TOLD_RAW && drawn->logprobs.num_top < d->num_top);
        ways |= way(WAY_CUT_OFF, isinf(drawn->logprobs.logprob));
    }
    return ways;
}

static uint64_t ways_of(const row_case *r, int vocab) {
    static di_draw_pair pairs[512];
    static uint32_t mask[WORDS];
    di_draw_lists lists = {.pairs = pairs,
                           .masks = mask,
                           .max_pairs = sizeof pairs / sizeof *pairs,
                           .max_masks = 1,
                           .mask_words = (vocab + 31) / 32,
                           .vocab_size = vocab};
    di_sample_input in = r->in;
    in.history = &r->known;
    di_draw d;
    di_sampled drawn;
    di_error err = {0};
    assert_true(di_draw_fill(&r->p, &in, r->fed >= 0 ? 0 : -1, &lists, &d));
    bool listed = d.num_bias > 0 || d.penalise;
    if (!di_sample_row(&r->p, &r->in, scratch_of(vocab), &drawn, &err)) {
        return way(err.code != DI_ERR_INTERNAL ? WAY_NO_TOKEN
                   : listed                    ? WAY_BAD_BEFORE_LISTS
                                               : WAY_BAD_LOGITS,
                   true);
    }
    bool fed = d.penalise && d.fed >= 0, known = fed && counts_fed(r);
    return ways_of_draw(&d, &drawn, vocab) | way(WAY_MASK, d.mask >= 0) |
           way(WAY_BIAS, d.num_bias > 0) | way(WAY_PENALTIES, d.penalise && !fed) |
           way(WAY_FED_KNOWN, known) | way(WAY_FED_NEW, fed && !known) |
           way(WAY_ALIGNED, vocab % 4 == 0) | way(WAY_UNALIGNED, vocab % 4 != 0);
}

/* Random rows as above, but only those of which each reaches what none before it has: by turns of
 * both vocabularies. False if there is no end to it. */
static bool pick_cases(const int vocabs[2], row_case cases[2][MOST_ROWS], int n[2]) {
    dice d = {.key = (uint64_t)vocabs[0]};
    uint64_t reached = 0;
    n[0] = n[1] = 0;
    for (int turn = 0; reached != all_ways; turn++) {
        int v = turn % 2;
        if (turn == 5000 || n[v] == MOST_ROWS) {
            print_error("ways of %d and %d tokens not reached: %#llx\n", vocabs[0], vocabs[1],
                        (unsigned long long)(all_ways & ~reached));
            return false;
        }
        row_case *r = &cases[v][n[v]];
        make_case(&d, r, vocabs[v]);
        uint64_t ways = ways_of(r, vocabs[v]);
        n[v] += (ways & ~reached) != 0;
        if ((ways & ~reached) == 0) {
            free_case(r);
        }
        reached |= ways;
    }
    return true;
}

/* Drawn by one block, and by a cluster. */
static const int small_vocabs[2][2] = {{1000, 3001}, {8196, 8193}};

static void test_few_rows_reach_every_way(void **state) {
    (void)state;
    static row_case cases[2][MOST_ROWS];
    for (int form = 0; form < 2; form++) {
        int n[2];
        assert_true(pick_cases(small_vocabs[form], cases, n));
        for (int v = 0; v < 2; v++) {
            if (device.be) {
                draw_and_compare(cases[v], n[v], small_vocabs[form][v]);
                continue;
            }
            for (int i = 0; i < n[v]; i++) {
                free_case(&cases[v][i]);
            }
        }
    }
}

static void test_random_rows(void **state) {
    (void)state;
    const char *rounds = getenv("ROUNDS");
    if (!device.be || small_form()) {
        skip();
    }
    draw_random_rows(rounds ? atoi(rounds) : 12);
}

/* ---- the numbers that a card is given ---------------------------------------------------------*/

static void fill(const di_sample_params *p, di_draw *d, bool expected) {
    static di_draw_pair pairs[4];
    static uint32_t masks[2][4];
    di_draw_lists lists = {.pairs = pairs,
                           .masks = masks[0],
                           .max_pairs = 4,
                           .max_masks = 1,
                           .mask_words = 4,
                           .vocab_size = 100};
    di_sample_input in = {.seed = 7, .position = 9};
    assert_int_equal(di_draw_fill(p, &in, -1, &lists, d), expected);
}

static void test_top_p_is_exact(void **state) {
    (void)state;
    static const double shares[] = {0.5, 0.9, 0x1p-24, 1 - 0x1p-53, 0x1.23456789abcdep-300};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        di_sample_params p = default_params();
        di_draw d;
        p.shape.top_p = shares[i];
        fill(&p, &d, true);
        assert_true(d.p_mantissa < (uint64_t)1 << 53);
        assert_true(ldexp((double)d.p_mantissa, -d.p_shift) == shares[i]);
    }
}

static void test_what_a_card_cannot_draw(void **state) {
    (void)state;
    di_draw d;
    di_sample_params p = default_params();
    int32_t word[] = {1, 2};
    di_token_list words[] = {{word, 2}};
    p.bad_words = words;
    p.num_bad_words = 1;
    fill(&p, &d, false);
    p = default_params();
    di_logit_bias bias[5] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}};
    p.logit_bias = bias;
    p.num_logit_bias = 5; /* room is for four */
    fill(&p, &d, false);
    p.num_logit_bias = 4;
    fill(&p, &d, true);
    assert_int_equal(d.num_bias, 4);
}

static void test_one_mask_for_all_that_is_ruled_out(void **state) {
    (void)state;
    di_draw d;
    di_draw_pair pairs[1];
    uint32_t mask[4], grammar[4] = {0xffffffff, 0xfffffffd, 0, 0};
    int32_t allowed[] = {0, 5, 33, 34, 70}, stop[] = {34};
    di_sample_params p = default_params();
    p.allowed_token_ids = (di_token_list){allowed, 5};
    p.min_tokens = 1;
    p.eos_token_id = 5;
    p.stop_token_ids = (di_token_list){stop, 1};
    di_draw_lists lists = {
        .pairs = pairs, .masks = mask, .max_masks = 1, .mask_words = 4, .vocab_size = 100};
    di_sample_input in = {.grammar_mask = grammar};
    assert_true(di_draw_fill(&p, &in, -1, &lists, &d));
    assert_int_equal(d.mask, 0);
    assert_int_equal(mask[0], 1); /* 5 would end the answer */
    assert_int_equal(mask[1], 0); /* 33 is not in the grammar, 34 would end the answer */
    assert_int_equal(mask[2], 0); /* nor is 70 */
    assert_int_equal(mask[3], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_p_is_exact),
        cmocka_unit_test(test_what_a_card_cannot_draw),
        cmocka_unit_test(test_one_mask_for_all_that_is_ruled_out),
        cmocka_unit_test(test_few_rows_reach_every_way),
        cmocka_unit_test(test_random_rows),
    };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
