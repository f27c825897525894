/* Unseeded answers have the same distribution with drafts as without: short continuations of one
 * prompt, many times, counted and compared by chi-square, for several ways to sample.
 *
 *   SOAK_EVENTS=n          7 n times as many, up to 10^6 of each kind */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/model_files.h"
#include "support/requests.h"

enum { COUNT = 3000, MOST_COUNT = 1000000, LENGTH = 3, CELLS = 40, CHOICES = 100, SEQS = 64 };

static long count = COUNT;

/* Ids few of which are likely: a table of the first CELLS - 1 pairs that were seen without drafts;
 * all others are one cell. */
typedef struct cells {
    int32_t pairs[CELLS][2];
    int used;
    long counts[2][CELLS]; /* without, with drafts */
} cells;

static void add(cells *c, int which, const answer *a) {
    assert_int_equal(a->num_tokens, LENGTH);
    const int32_t *pair = a->tokens + 1; /* behind the token that has no draft */
    int i = 0;
    while (i < c->used && memcmp(c->pairs[i], pair, sizeof c->pairs[i]) != 0) {
        i++;
    }
    if (i == c->used && which == 0 && c->used < CELLS - 1) {
        memcpy(c->pairs[c->used++], pair, sizeof c->pairs[i]);
    }
    c->counts[which][i < c->used ? i : CELLS - 1]++;
}

static uint64_t sample(cells *c, int which, const char *model, di_request_params p) {
    static const int32_t prompt[] = {9, 17, 33, 4};
    static answer answers[CHOICES];
    di_engine_options o = demo_options();
    o.model = model;
    o.max_num_seqs = SEQS;
    o.num_drafts = which ? 2 : 0;
    o.spec_mode = DI_SPEC_FIXED;
    di_engine *e = open_engine(&o);
    for (long k = 0; k < count; k += CHOICES) {
        di_queue *q = open_queue(e);
        memset(answers, 0, sizeof answers);
        submit(e, q, ids_prompt(prompt, 4), p, answers);
        read_answers(q, CHOICES);
        di_queue_destroy(q);
        for (int i = 0; i < CHOICES; i++) {
            add(c, which, &answers[i]);
            answer_clear(&answers[i]);
        }
    }
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(e, &s);
    di_engine_close(e);
    return s.drafts_verified ? 1 + s.drafts_accepted : 0;
}

/* Of two samples of the same size; cells with few are joined. */
static void compare(const cells *c) {
    double value = 0, rest[2] = {0, 0};
    int used = 0;
    for (int i = 0; i < CELLS; i++) {
        double a = (double)c->counts[0][i], b = (double)c->counts[1][i];
        if (a + b < 20) {
            rest[0] += a;
            rest[1] += b;
        } else {
            value += (a - b) * (a - b) / (a + b);
            used++;
        }
    }
    if (rest[0] + rest[1] > 0) {
        value += (rest[0] - rest[1]) * (rest[0] - rest[1]) / (rest[0] + rest[1]);
        used++;
    }
    assert_true(used > 2);
    /* Chance exceeds this once in 10^6 (Wilson and Hilferty). Seeds are drawn anew each time. */
    double df = used - 1, h = 2 / (9 * df), limit = df * pow(1 - h + 4.75 * sqrt(h), 3);
    print_message("    chi-square %.1f of %d cells, limit %.1f\n", value, used, limit);
    assert_true(value < limit);
}

static void check(double temperature, int64_t top_k, double top_p, double penalty) {
    static cells c;
    char *model = files_testdata("tiny");
    di_request_params p;
    di_request_params_init(NULL, &p, sizeof p);
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.repetition_penalty = penalty;
    p.ignore_eos = true;
    p.max_tokens = LENGTH;
    p.n = CHOICES;
    memset(&c, 0, sizeof c);
    sample(&c, 0, model, p);
    uint64_t accepted = sample(&c, 1, model, p);
    print_message("    %llu drafts accepted over %ld answers\n", (unsigned long long)accepted,
                  count);
    assert_true(accepted > 1);
    compare(&c);
    free(model);
}

static void test_temperature_1(void **state) {
    (void)state;
    check(1, -1, 1, 1);
}

static void test_temperature_0_7(void **state) {
    (void)state;
    check(0.7, -1, 1, 1);
}

static void test_top_k_5(void **state) {
    (void)state;
    check(1, 5, 1, 1);
}

static void test_top_p_0_9(void **state) {
    (void)state;
    check(1, -1, 0.9, 1);
}

static void test_penalties(void **state) {
    (void)state;
    check(0.5, 8, 1, 1.3);
}

static int scale(void **state) {
    (void)state;
    const char *soak = getenv("SOAK_EVENTS");
    count *= soak ? 7 * strtol(soak, NULL, 10) : 1;
    count = count < MOST_COUNT ? count : MOST_COUNT;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperature_1), cmocka_unit_test(test_temperature_0_7),
        cmocka_unit_test(test_top_k_5),       cmocka_unit_test(test_top_p_0_9),
        cmocka_unit_test(test_penalties),
    };
    return cmocka_run_group_tests(tests, scale, NULL);
}
