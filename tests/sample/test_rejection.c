/* Exact rejection: whatever a draft was drawn from, the token has the target's distribution, and
 * the draft stands as often as it can. Chi-square of many draws for each option; words that draft
 * and test share would be seen. And the rule itself, with all its random words counted.
 *
 *   SOAK_EVENTS=n          n times as many draws, up to 10^6 */
#include <string.h>

#include "sample/statistics.h"

#include "sample/arithmetic.h"
#include "sample/law.h"
#include "sample/philox.h"

enum { DRAWS = 200000, MOST_DRAWS = 1000000 };

static uint64_t draws = DRAWS;

enum { N = 60 };

static float target[N], near[N], far[N];

static int fill_rows(void **state) {
    (void)state;
    const char *soak = getenv("SOAK_EVENTS");
    draws *= soak ? (uint64_t)strtoul(soak, NULL, 10) : 1;
    draws = draws < MOST_DRAWS ? draws : MOST_DRAWS;
    dice d = {5, 0};
    for (int i = 0; i < N; i++) {
        target[i] = (float)(4 * roll_unit(&d));
        near[i] = target[i] + (float)(0.7 * roll_unit(&d));
        far[i] = (float)(4 * roll_unit(&d));
    }
    return 0;
}

static law law_of(const float *x, const di_sampling *s) {
    double exact[N];
    for (int i = 0; i < N; i++) {
        exact[i] = (double)x[i];
    }
    return exact_law(exact, N, s);
}

/* The most that any test can let stand: sum of min(p, q). */
static double overlap(const law *p, const law *q) {
    double sum = 0;
    for (int i = 0; i < N; i++) {
        sum += fmin(p->p[i], q->p[i]);
    }
    return sum;
}

typedef struct outcome {
    int counts[MOST];
    double stood;
} outcome;

/* Draws at DRAWS positions. `spoil`: the draft is drawn with the word of its own test. */
static void draw_all(const di_sample_params *p, const float *draft, bool spoil, outcome *o) {
    di_error err = {0};
    di_sample_scratch *scratch = di_sample_scratch_create(N, &err);
    di_draft_law from = {0};
    di_sampled out;
    long stood = 0;
    *o = (outcome){0};
    for (uint64_t i = 0; i < draws; i++) {
        di_sample_input in = {.logits = draft, .seed = 77, .position = i};
        assert_true(di_propose_row(p, &in, (uint32_t)i % 5, scratch, &from, &err));
        if (spoil) {
            uint32_t words[4];
            di_random_words(in.seed, i, DI_RANDOM_ACCEPT, 0, words);
            uint64_t left =
                (uint64_t)((unsigned __int128)((uint64_t)words[0] << 32 | words[1]) * from.sum >>
                           64);
            int k = 0;
            for (; left >= from.weights[k]; k++) {
                left -= from.weights[k];
            }
            from.token = from.ids[k];
        }
        in.logits = target;
        in.law = &from;
        assert_true(di_sample_row(p, &in, scratch, &out, &err));
        o->counts[out.token]++;
        stood += out.token == from.token;
    }
    o->stood = (double)stood / (double)draws;
    di_draft_law_free(&from);
    di_sample_scratch_destroy(scratch);
}

static void check(di_sampling shape) {
    static outcome o;
    const float *drafts[] = {near, far};
    di_sample_params p = default_params();
    p.shape = shape;
    law wanted = law_of(target, &shape);
    for (int k = 0; k < 2; k++) {
        law proposed = law_of(drafts[k], &shape);
        draw_all(&p, drafts[k], false, &o);
        chi_square c = measure(o.counts, &wanted, (double)draws);
        double most = overlap(&wanted, &proposed);
        print_message("    chi-square %.1f, limit %.1f; %.4f stood of %.4f\n", c.value, c.limit,
                      o.stood, most);
        assert_true(c.value < c.limit);
        assert_true(fabs(o.stood - most) < 5 * sqrt(0.25 / (double)draws));
    }
}

static void test_temperature_1(void **state) {
    (void)state;
    check((di_sampling){.temperature = 1, .top_p = 1, .top_k = -1});
}

static void test_temperature_0_7(void **state) {
    (void)state;
    check((di_sampling){.temperature = 0.7, .top_p = 1, .top_k = -1});
}

static void test_top_k_5(void **state) {
    (void)state;
    check((di_sampling){.temperature = 1, .top_p = 1, .top_k = 5});
}

static void test_top_p_0_9(void **state) {
    (void)state;
    check((di_sampling){.temperature = 1, .top_p = 0.9, .top_k = -1});
}

static void test_all_filters(void **state) {
    (void)state;
    check((di_sampling){.temperature = 1.3, .top_p = 0.8, .top_k = 30, .min_p = 0.02});
}

/* Penalties and biases that only the target knows, and ones that both know. */
static void test_a_biased_target(void **state) {
    (void)state;
    static const di_logit_bias bias[] = {{3, 2.5}, {17, -100}};
    static float biased[N];
    static outcome o;
    di_sample_params p = default_params();
    memcpy(biased, target, sizeof biased);
    biased[3] += 2.5f;
    biased[17] -= 100;
    law wanted = law_of(biased, &p.shape);
    p.logit_bias = bias;
    p.num_logit_bias = 2;
    draw_all(&p, near, false, &o);
    chi_square c = measure(o.counts, &wanted, (double)draws);
    assert_true(c.value < c.limit);
}

static void test_shared_words_would_be_seen(void **state) {
    (void)state;
    static outcome o;
    di_sample_params p = default_params();
    law wanted = law_of(target, &p.shape);
    draw_all(&p, near, true, &o);
    chi_square c = measure(o.counts, &wanted, (double)draws);
    assert_true(c.value > 2 * c.limit);
}

/* Equal laws never refuse; a draft that the target rules out never stands; one with all the mass
 * always does. */
static void test_edges(void **state) {
    (void)state;
    static outcome o;
    di_sample_params p = default_params();
    draw_all(&p, target, false, &o);
    assert_true(o.stood == 1);
    di_error err = {0};
    di_sample_scratch *scratch = di_sample_scratch_create(N, &err);
    di_sampled out;
    static const int32_t only[] = {7}, others[] = {8, 9};
    int32_t id = 7;
    uint64_t weight = (uint64_t)1 << 46;
    di_draft_law from = {.token = 7, .ids = &id, .weights = &weight, .count = 1, .sum = weight};
    for (uint64_t i = 0; i < 2000; i++) {
        di_sample_input in = {.logits = target, .seed = 3, .position = i, .law = &from};
        p.allowed_token_ids = (di_token_list){others, 2};
        assert_true(di_sample_row(&p, &in, scratch, &out, &err));
        assert_true(out.token == 8 || out.token == 9);
        p.allowed_token_ids = (di_token_list){only, 1};
        assert_true(di_sample_row(&p, &in, scratch, &out, &err));
        assert_int_equal(out.token, 7);
    }
    di_sample_scratch_destroy(scratch);
}

/* ---- the rule, all words counted --------------------------------------------------------------*/

enum { FEW = 4 };

/* How many of the 2^63 words let the draft stand; they are the lowest. */
static uint64_t words_that_stand(uint64_t p, uint64_t q) {
    uint64_t low = 0, high = (uint64_t)1 << 63;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (di_draft_stands(p, q, middle)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static uint64_t total(const uint64_t *w) {
    uint64_t sum = 0;
    for (int i = 0; i < FEW; i++) {
        sum += w[i];
    }
    return sum;
}

/* Weights of every size, zeros among them; the best weighs 2^46. */
static void roll_weights(dice *d, uint64_t *w) {
    for (int i = 0; i < FEW; i++) {
        uint64_t any = ((uint64_t)roll(d) << 32 | roll(d)) >> (18 + roll_below(d, 46));
        w[i] = roll_below(d, 4) ? any : 0;
    }
    w[roll_below(d, FEW)] = (uint64_t)1 << 46;
}

/* out[v]: probability that v comes out, all drafts and words summed up. */
static void law_of_rule(const uint64_t *w, const uint64_t *v, long double *out) {
    di_share of_target = di_share_of(total(w)), of_draft = di_share_of(total(v));
    uint64_t p[FEW], q[FEW], rest[FEW];
    int best = 0;
    for (int i = 0; i < FEW; i++) {
        p[i] = di_share_apply(of_target, w[i]);
        q[i] = di_share_apply(of_draft, v[i]);
        rest[i] = di_residual(p[i], q[i]);
        best = w[i] > w[best] ? i : best;
        out[i] = 0;
    }
    long double mass = (long double)total(rest);
    for (int x = 0; x < FEW; x++) {
        if (v[x] == 0) {
            continue;
        }
        long double drafted = (long double)v[x] / (long double)total(v);
        long double stands = (long double)words_that_stand(p[x], q[x]) * 0x1p-63L;
        out[x] += drafted * stands;
        for (int y = 0; y < FEW; y++) {
            long double share = mass > 0 ? (long double)rest[y] / mass : y == best;
            out[y] += drafted * (1 - stands) * share;
        }
    }
}

/* Weights of four tokens at random, near laws and equal ones among them: what comes out is off by
 * roundings of shares alone. */
static void test_the_rule_gives_the_targets_law_to_57_bits(void **state) {
    (void)state;
    dice d = {11, 0};
    long double worst = 0;
    for (int k = 0; k < 20000; k++) {
        uint64_t w[FEW], v[FEW];
        long double out[FEW];
        roll_weights(&d, w);
        roll_weights(&d, v);
        for (int i = 0; i < FEW && k % 3 == 0; i++) { /* as much, a little less, or another scale */
            v[i] = k % 2 ? w[i] >> roll_below(&d, 2) : w[i] - (w[i] > 0 ? w[i] % 3 : 0);
        }
        law_of_rule(w, v, out);
        for (int i = 0; i < FEW; i++) {
            long double off = out[i] - (long double)w[i] / (long double)total(w);
            worst = off > worst ? off : -off > worst ? -off : worst;
        }
    }
    print_message("    worst error 2^%.1f\n", (double)log2l(worst));
    assert_true(worst < 0x1p-57L);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperature_1),
        cmocka_unit_test(test_temperature_0_7),
        cmocka_unit_test(test_top_k_5),
        cmocka_unit_test(test_top_p_0_9),
        cmocka_unit_test(test_all_filters),
        cmocka_unit_test(test_a_biased_target),
        cmocka_unit_test(test_shared_words_would_be_seen),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_the_rule_gives_the_targets_law_to_57_bits),
    };
    return cmocka_run_group_tests(tests, fill_rows, NULL);
}
