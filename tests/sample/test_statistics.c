/* Chi-square of 10^6 draws against the exact distribution, for each option and both ways to draw.
 *
 * The seeds are fixed, so a result never changes. Significance: the threshold is the value that
 * chance exceeds once in 10^6 (z = 4.75 in Wilson and Hilferty's approximation); there are 24
 * tests, so even new seeds would fail once in 40,000 times. The last test shows that 10^6 draws
 * would tell a temperature that is wrong by one percent. */
#include <stdlib.h>
#include <string.h>

#include "base/cpuinfo.h"
#include "base/team.h"
#include "sample/rows.h"
#include "sample/statistics.h"

enum { PARTS = 8 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
enum { DRAWS = 100000 }; /* slow builds look for other faults */
#else
enum { DRAWS = 1000000 };
#endif

/* Draws number `from` up to `to` of DRAWS, each at its own position or with its own seed. */
static void draw_some(const di_sample_params *p, di_sample_input in, int n, bool over_seeds,
                      uint64_t from, uint64_t to, int *counts) {
    di_sampled out;
    di_sample_scratch *scratch = di_sample_scratch_create(n, NULL);
    for (uint64_t i = from; scratch && i < to; i++) {
        *(over_seeds ? &in.seed : &in.position) = i;
        if (di_sample_row(p, &in, scratch, &out, NULL)) {
            counts[out.token]++;
        }
    }
    di_sample_scratch_destroy(scratch);
}

typedef struct share {
    const di_sample_params *p;
    di_sample_input in;
    int n;
    bool over_seeds;
    int parts[PARTS][MOST];
} share;

static void draw_parts(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    share *s = arg;
    for (int64_t k = begin; k < end; k++) {
        draw_some(s->p, s->in, s->n, s->over_seeds, (uint64_t)k * DRAWS / PARTS,
                  (uint64_t)(k + 1) * DRAWS / PARTS, s->parts[k]);
    }
}

/* All of them, shared by the threads: a draw depends on nothing but its seed and position. */
static void draw_many(const di_sample_params *p, di_sample_input in, int n, bool over_seeds,
                      int *counts) {
    static share s;
    int drawn = 0;
    di_error err = {0};
    if (!di_sample_params_check(p, n, &err)) {
        fail_msg("%s", err.message);
    }
    s = (share){.p = p, .in = in, .n = n, .over_seeds = over_seeds};
    di_team *team = di_team_create(di_cpu_count(), &err);
    assert_non_null(team);
    di_team_run(team, PARTS, PARTS, 1, draw_parts, &s);
    di_team_destroy(team);
    for (int i = 0; i < n; i++) {
        counts[i] = 0;
        for (int k = 0; k < PARTS; k++) {
            counts[i] += s.parts[k][i];
        }
        drawn += counts[i];
    }
    assert_int_equal(drawn, DRAWS);
}

/* Both ways to draw from a row whose transformed logits are x. */
static void check(di_sample_params p, di_sample_input in, const double *x, int n) {
    static int counts[MOST];
    law l = exact_law(x, n, &p.shape);
    for (int seeded = 0; seeded < 2; seeded++) {
        p.seeded = seeded;
        in.seed = 20 + (uint64_t)seeded;
        draw_many(&p, in, n, false, counts);
        chi_square c = measure(counts, &l, DRAWS);
        if (!(c.value < c.limit)) {
            fail_msg("%s: chi-square %g, limit %g", seeded ? "seeded" : "unseeded", c.value,
                     c.limit);
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------------*/

enum { N = 60 };

static float row[MOST];
static double exact[MOST];

static int fill_row(void **state) {
    (void)state;
    dice d = {11, 0};
    for (int i = 0; i < MOST; i++) {
        row[i] = (float)(5 * roll_unit(&d));
        exact[i] = (double)row[i];
    }
    return 0;
}

static const di_sample_input plain_row = {.logits = row};

static void test_temperature(void **state) {
    (void)state;
    static const double values[] = {0.3, 2.5};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        di_sample_params p = default_params();
        p.shape.temperature = values[i];
        check(p, plain_row, exact, N);
    }
}

static void test_a_vocabulary_of_500(void **state) {
    (void)state;
    check(default_params(), plain_row, exact, 500);
}

static void test_top_k(void **state) {
    (void)state;
    di_sample_params p = default_params();
    p.shape.top_k = 7;
    check(p, plain_row, exact, N);
}

static void test_top_p(void **state) {
    (void)state;
    di_sample_params p = default_params();
    p.shape.top_p = 0.8;
    check(p, plain_row, exact, N);
}

static void test_min_p(void **state) {
    (void)state;
    di_sample_params p = default_params();
    p.shape.min_p = 0.2;
    check(p, plain_row, exact, N);
}

static void test_all_filters_together(void **state) {
    (void)state;
    di_sample_params p = default_params();
    p.shape = (di_sampling){.temperature = 0.7, .top_k = 20, .top_p = 0.9, .min_p = 0.05};
    check(p, plain_row, exact, N);
}

static void test_penalties(void **state) {
    (void)state;
    static const int32_t prompt[] = {3, 7, 7, 20}, output[] = {7, 8, 8, 8, 40};
    static const int times[N] = {[7] = 1, [8] = 3, [40] = 1};
    double x[N];
    di_error err;
    di_sample_history h;
    di_sample_params p = default_params();
    p.repetition_penalty = 1.3;
    p.presence_penalty = 0.4;
    p.frequency_penalty = -0.25;
    assert_true(di_sample_history_create(&h, &p, N, prompt, 4, 5, &err));
    memcpy(x, exact, sizeof x);
    for (int i = 0; i < 5; i++) {
        assert_true(di_sample_history_push(&h, output[i], &err));
    }
    for (int i = 0; i < N; i++) {
        bool seen = i == 3 || i == 20 || times[i];
        x[i] = seen ? (x[i] > 0 ? x[i] / 1.3 : x[i] * 1.3) : x[i];
        x[i] -= times[i] ? 0.4 - 0.25 * times[i] : 0;
    }
    di_sample_input in = plain_row;
    in.history = &h;
    check(p, in, x, N);
    di_sample_history_destroy(&h);
}

static void test_logit_bias(void **state) {
    (void)state;
    static const di_logit_bias bias[] = {{0, 1.5}, {17, -2}, {59, 3}};
    double x[N];
    di_sample_params p = default_params();
    p.logit_bias = bias;
    p.num_logit_bias = 3;
    memcpy(x, exact, sizeof x);
    for (int i = 0; i < 3; i++) {
        x[bias[i].id] += bias[i].bias;
    }
    check(p, plain_row, x, N);
}

static void test_bans(void **state) {
    (void)state;
    static const int32_t allowed[] = {1, 2, 3, 5, 8, 13, 21, 34, 55}, stop[] = {8}, word[] = {21};
    static const di_token_list words[] = {{word, 1}};
    const uint32_t mask[] = {~(uint32_t)(1 << 13), ~(uint32_t)0};
    double x[N];
    di_sample_params p = default_params();
    p.allowed_token_ids = (di_token_list){allowed, 9};
    p.stop_token_ids = (di_token_list){stop, 1};
    p.eos_token_id = 1;
    p.min_tokens = 1;
    p.bad_words = words;
    p.num_bad_words = 1;
    for (int i = 0; i < N; i++) {
        bool legal = i == 2 || i == 3 || i == 5 || i == 34 || i == 55;
        x[i] = legal ? exact[i] : -INFINITY;
    }
    di_sample_input in = plain_row;
    in.grammar_mask = mask;
    check(p, in, x, N);
}

/* Requests of the same prompt differ in their seeds, not their positions: those must be as good. */
static void test_draws_over_seeds(void **state) {
    (void)state;
    static int counts[N];
    law l = exact_law(exact, N, &(di_sampling){1, 1, 0, -1});
    for (int seeded = 0; seeded < 2; seeded++) {
        di_sample_params p = default_params();
        p.seeded = seeded;
        draw_many(&p, (di_sample_input){.logits = row, .position = 100}, N, true, counts);
        chi_square c = measure(counts, &l, DRAWS);
        assert_true(c.value < c.limit);
    }
}

static void test_a_temperature_wrong_by_a_percent_is_found(void **state) {
    (void)state;
    static int counts[N];
    for (int seeded = 0; seeded < 2; seeded++) {
        di_sample_params p = default_params();
        p.seeded = seeded;
        p.shape.temperature = DRAWS < 1000000 ? 1.04 : 1.01;
        draw_many(&p, (di_sample_input){.logits = row, .seed = 20}, N, false, counts);
        law l = exact_law(exact, N, &(di_sampling){1, 1, 0, -1});
        chi_square c = measure(counts, &l, DRAWS);
        assert_true(c.value > c.limit);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_a_vocabulary_of_500),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_all_filters_together),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_logit_bias),
        cmocka_unit_test(test_bans),
        cmocka_unit_test(test_draws_over_seeds),
        cmocka_unit_test(test_a_temperature_wrong_by_a_percent_is_found),
    };
    return cmocka_run_group_tests(tests, fill_row, NULL);
}
