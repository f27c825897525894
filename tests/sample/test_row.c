/* A row's filters and uncoupled draws: golden vectors, edges, and agreement with a plain sort. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sample/rows.h"

enum { VOCAB = 129280 };

static float row[VOCAB];

static const di_sampling plain = {.temperature = 1, .top_p = 1, .min_p = 0, .top_k = -1};

static bool try_draw(const float *x, int n, di_sampling shape, uint64_t seed, uint64_t position,
                     di_sampled *d, di_error *err) {
    di_sample_params p;
    di_sample_params_init(&p);
    p.shape = shape;
    return di_sample_params_check(&p, n, err) &&
           di_sample_row(&p, &(di_sample_input){.logits = x, .seed = seed, .position = position},
                         scratch_of(n), d, err);
}

static di_sampled draw(const float *x, int n, di_sampling shape, uint64_t seed, uint64_t position) {
    di_error err = {0};
    di_sampled d = {0};
    if (!try_draw(x, n, shape, seed, position, &d, &err)) {
        fail_msg("%s", err.message);
    }
    return d;
}

static void fill_golden_row(void) {
    for (uint32_t i = 0; i < VOCAB; i++) {
        row[i] = i % 97 == 5 ? -INFINITY : (float)(i * 2654435761u >> 20) / 256 - 8;
    }
}

static void test_golden_vectors(void **state) {
    (void)state;
    static const struct {
        double t;
        int64_t k;
        double top_p, min_p;
        uint64_t seed, position, sum;
        int kept, token;
    } vectors[] = {
        {0, -1, 1, 0, 42, 10, 0, 1, 2584},
        {1, -1, 1, 0, 42, 10, 563835227438216277, 127947, 67823},
        {1, -1, 1, 0, 42, 11, 563835227438216277, 127947, 42331},
        {1, -1, 1, 0, 43, 10, 563835227438216277, 127947, 78002},
        {0.25, -1, 1, 0, 42, 10, 141822779414413267, 63752, 67815},
        {0.25, -1, 0.9, 0, 42, 10, 141822779414413267, 4604, 67794},
        {0.25, 50, 1, 0, 42, 10, 141822779414413267, 50, 53133},
        {0.25, 50, 0.01, 0, 42, 10, 141822779414413267, 21, 46368},
        {2, -1, 1, 0.05, 42, 10, 1126145689275039744, 47914, 67831},
        {0.05, -1, 0.5, 0, UINT64_MAX, (uint64_t)1 << 33, 29307993248134791, 277, 48952},
        {1, -1, 0.95, 0, 7, 100000, 563835227438216277, 23955, 1571},
    };
    fill_golden_row();
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        di_sampling p = {vectors[i].t, vectors[i].top_p, vectors[i].min_p, vectors[i].k};
        di_sampled d = draw(row, VOCAB, p, vectors[i].seed, vectors[i].position);
        if (vectors[i].top_p < 1 || (vectors[i].k < 0 && vectors[i].min_p == 0)) {
            /* nobody needs the sum for top_k and min_p alone */
            assert_int_equal(d.sum, vectors[i].sum);
        }
        assert_int_equal(d.kept, vectors[i].kept);
        assert_int_equal(d.token, vectors[i].token);
    }
}

/* At T = log2(e) the octaves are the differences of logits, so a row of two shows single weights.
 */
static void test_single_weights(void **state) {
    (void)state;
    const struct {
        float y;
        uint64_t weight;
    } cases[] = {
        {0, 70368744177664},     {0.5f, 49758215340032},
        {1, 35184372088832},     {3.25f, 7396603199488},
        {20.125f, 61539100},     {45.9f, 1},
        {nextafterf(46, 0), 1},  {46, 0},
        {nextafterf(46, 47), 0},
    };
    di_sampling p = plain;
    p.temperature = 0x1.71547652b82fep+0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float two[2] = {0, -cases[i].y};
        di_sampled d = draw(two, 2, p, 1, 1);
        /* T is rounded to float32, which makes c = 1 only to its last bit: exactly 1 is needed. */
        assert_true((float)(0x1.71547652b82fep+0 / (double)(float)p.temperature) == 1.0f);
        assert_int_equal(d.sum - 70368744177664, cases[i].weight);
        assert_int_equal(d.kept, cases[i].weight ? 2 : 1);
    }
}

static void test_greedy_is_the_lowest_best_id_for_every_seed(void **state) {
    (void)state;
    fill_golden_row();
    di_sampling p = plain;
    p.temperature = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        assert_int_equal(draw(row, 4096, p, seed, seed * 7).token, 2584);
    }
    p.temperature = 9.9e-6;
    assert_int_equal(draw(row, VOCAB, p, 1, 1).token, 2584);
    float zeros[3] = {-1, -0.0f, 0.0f};
    assert_int_equal(draw(zeros, 3, p, 1, 1).token, 1);
}

static void test_ties_at_the_edge_keep_the_lowest_ids(void **state) {
    (void)state;
    float x[6] = {1, 3, 2, 2, 2, 1};
    di_sampling p = plain;
    bool seen[6] = {false};
    p.top_k = 3; /* 3 and the first two 2s */
    for (uint64_t i = 0; i < 500; i++) {
        di_sampled d = draw(x, 6, p, 5, i);
        assert_int_equal(d.kept, 3);
        seen[d.token] = true;
    }
    assert_true(seen[1] && seen[2] && seen[3] && !seen[4] && !seen[0] && !seen[5]);

    float equal[8] = {0};
    p = plain;
    p.top_p = 0.5; /* exactly half of eight equal ones, and the one that lifts the sum above it */
    assert_int_equal(draw(equal, 8, p, 1, 1).kept, 5);
    p.top_p = 0.49;
    assert_int_equal(draw(equal, 8, p, 1, 1).kept, 4);
}

static void test_negative_and_positive_zero_are_one_value(void **state) {
    (void)state;
    float x[5] = {0.0f, -0.0f, 0.0f, -0.0f, -9};
    di_sampling p = plain;
    p.top_k = 2;
    for (uint64_t i = 0; i < 200; i++) {
        assert_true(draw(x, 5, p, 9, i).token < 2);
    }
}

static void test_filters_at_their_limits(void **state) {
    (void)state;
    fill_golden_row();
    di_sampling p = plain;
    p.top_p = 0x1p-24;
    assert_int_equal(draw(row, VOCAB, p, 1, 1).kept, 1);
    p = plain;
    p.top_k = VOCAB;
    assert_int_equal(draw(row, VOCAB, p, 42, 10).token, 67823);
    p.top_k = VOCAB + 1;
    assert_int_equal(draw(row, VOCAB, p, 42, 10).token, 67823);
    p = plain;
    p.min_p = 1;
    float x[4] = {1, 2, 2, 0};
    assert_int_equal(draw(x, 4, p, 1, 1).kept, 2);
    float lonely[4] = {-INFINITY, -INFINITY, -3e38f, -INFINITY};
    assert_int_equal(draw(lonely, 4, plain, 1, 1).token, 2);
    float one[1] = {7};
    assert_int_equal(draw(one, 1, plain, 1, 1).token, 0);
    float wide[3] = {3e38f, -3e38f, 3e38f}; /* the difference overflows to infinity */
    assert_int_equal(draw(wide, 3, plain, 1, 1).kept, 2);
}

static void test_bad_rows_are_errors(void **state) {
    (void)state;
    static const float bad[][3] = {{0, NAN, 1}, {0, INFINITY, 1}, {NAN, -INFINITY, -INFINITY}};
    di_sampled d;
    for (size_t i = 0; i < 3; i++) {
        di_error err = {0};
        assert_false(try_draw(bad[i], 3, plain, 1, 1, &d, &err));
        assert_non_null(strstr(err.message, "bad logits"));
    }
    const float none[2] = {-INFINITY, -INFINITY};
    di_error err = {0};
    assert_false(try_draw(none, 2, plain, 1, 1, &d, &err));
    assert_non_null(strstr(err.message, "no legal token"));
    assert_null(di_sample_scratch_create(DI_SAMPLER_MAX_VOCAB + 1, &err));
}

/* ---- the same rules by sorting, for rows small enough ---- ------------------------------------*/
typedef struct item {
    float x;
    int id;
    uint64_t w;
} item;

static int by_value_then_id(const void *a, const void *b) {
    const item *p = a, *q = b;
    return p->x != q->x ? (p->x < q->x ? 1 : -1) : p->id - q->id;
}

/* 2^-y by the math library, to the 22 bits that the polynomial promises. */
static void check_by_sorting(const float *x, int n, di_sampling p, uint64_t seed) {
    item items[64];
    double total = 0, before = 0, kept_total = 0;
    float best = x[0];
    for (int i = 1; i < n; i++) {
        best = fmaxf(best, x[i]);
    }
    for (int i = 0; i < n; i++) {
        items[i] = (item){x[i], i, 0};
        total += exp((double)(x[i] - best) / p.temperature);
    }
    qsort(items, (size_t)n, sizeof *items, by_value_then_id);
    int kept = 0;
    for (; kept < n; kept++) {
        double w = exp((double)(items[kept].x - best) / p.temperature);
        if (kept > 0 &&
            ((p.top_k > 0 && kept >= p.top_k) || before > total * p.top_p || w < p.min_p)) {
            break;
        }
        before += w;
    }
    kept_total = before;
    di_sampled d = draw(x, n, p, seed, 3);
    assert_int_equal(d.kept, kept);
    assert_true(!d.sum || fabs((double)d.sum * 0x1p-46 / total - 1) < 1e-6);
    assert_true(fabs((double)d.kept_sum * 0x1p-46 / kept_total - 1) < 1e-6);
    bool among = false;
    for (int i = 0; i < kept; i++) {
        among |= items[i].id == d.token;
    }
    assert_true(among);
}

static void test_kept_set_equals_that_of_a_sort(void **state) {
    (void)state;
    uint32_t r[4];
    for (uint64_t round = 0; round < 20000; round++) {
        di_random_words(1234, round, DI_RANDOM_TARGET, 0, r);
        int n = 1 + (int)(r[0] % 64);
        float x[64];
        for (int i = 0; i < n; i++) { /* few distinct values: many ties */
            uint32_t v[4];
            di_random_words(1234, round, DI_RANDOM_TARGET, (uint32_t)i + 1, v);
            x[i] = (float)(v[0] % 23) * 0.37f - 4;
        }
        di_sampling p = plain;
        p.temperature = 0.3 + (double)(r[1] % 100) / 50;
        p.top_k = r[2] % 3 ? -1 : (int64_t)(1 + r[2] / 3 % 70);
        p.top_p = r[3] % 3 ? 1 : 0.013 + (double)(r[3] / 3 % 970) / 1000;
        p.min_p = r[0] % 5 ? 0 : (double)(r[1] % 97) / 100 + 0.0031;
        check_by_sorting(x, n, p, round);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_vectors),
        cmocka_unit_test(test_single_weights),
        cmocka_unit_test(test_greedy_is_the_lowest_best_id_for_every_seed),
        cmocka_unit_test(test_ties_at_the_edge_keep_the_lowest_ids),
        cmocka_unit_test(test_negative_and_positive_zero_are_one_value),
        cmocka_unit_test(test_filters_at_their_limits),
        cmocka_unit_test(test_bad_rows_are_errors),
        cmocka_unit_test(test_kept_set_equals_that_of_a_sort),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_of(0);
    return failed;
}
