/* Budget and shares of drafts against brute force, and the reason for their being two: no draft is
 * verified or not because of what it is. */
#include <math.h>
#include <string.h>

#include "support/cmocka.h"

#include "sched/price.h"
#include "support/random.h"

enum { MOST_ROWS = 6, MOST_DRAFTS = 4, MOST = MOST_ROWS * MOST_DRAFTS };

static uint64_t seed = 1;

static double unit(void) {
    return next_unit(&seed);
}

static int below(int n) {
    return (int)(unit() * n);
}

typedef struct case_ {
    float survival[MOST];
    int limits[MOST_ROWS], n, stride, all;
    di_slots slots;
} case_;

/* Survivals with many ties, zeros and ones. */
static void fill(case_ *c, int rows, int drafts) {
    *c = (case_){.n = 1 + below(rows), .stride = 1 + below(drafts)};
    for (int r = 0; r < c->n; r++) {
        double s = 1;
        c->limits[r] = below(c->stride + 1);
        c->all += c->limits[r];
        for (int j = 0; j < c->stride; j++) {
            s *= below(4) ? (below(2) ? unit() : below(5) / 4.0) : 1;
            c->survival[r * c->stride + j] = (float)s;
        }
    }
    c->slots = (di_slots){c->survival, c->limits, c->n, c->stride};
}

static di_price_scratch scratch;

static int open_scratch(void **state) {
    (void)state;
    return di_price_scratch_create(&scratch, 4096, NULL) ? 0 : -1;
}

static int close_scratch(void **state) {
    (void)state;
    di_price_scratch_destroy(&scratch);
    return 0;
}

/* ---- the budget ---- */

/* The best quotient over all vectors of lengths. */
static double best_of_all(const case_ *c, double certain, const double *seconds, int most) {
    int lengths[MOST_ROWS] = {0};
    double best = 0;
    for (;;) {
        int sum = 0;
        double tokens = certain;
        for (int r = 0; r < c->n; r++) {
            sum += lengths[r];
            for (int j = 0; j < lengths[r]; j++) {
                tokens += (double)c->survival[r * c->stride + j];
            }
        }
        if (sum <= most && tokens / seconds[sum] > best) {
            best = tokens / seconds[sum];
        }
        int r = 0;
        while (r < c->n && ++lengths[r] > c->limits[r]) {
            lengths[r++] = 0;
        }
        if (r == c->n) {
            return best;
        }
    }
}

static void test_budget_is_the_best_of_all_lengths(void **state) {
    (void)state;
    for (int k = 0; k < 3000; k++) {
        case_ c;
        double seconds[MOST + 1], rate;
        fill(&c, 4, 3);
        seconds[0] = 0.1 + unit();
        for (int b = 1; b <= MOST; b++) { /* stairs of any kind */
            seconds[b] = seconds[b - 1] + (below(3) ? 0 : unit() * (below(2) ? 0.1 : 1));
        }
        int most = below(c.all + 1);
        int b = di_price_budget(&c.slots, c.n, seconds, 0, most, &scratch, &rate);
        assert_true(b >= 0 && b <= most);
        assert_true(fabs(rate / best_of_all(&c, c.n, seconds, most) - 1) < 1e-6);
    }
}

static void test_equal_rates_take_the_smaller_budget(void **state) {
    (void)state;
    const float survival[] = {0, 0, 0};
    const int limits[] = {3};
    const double flat[] = {1, 1, 1, 1};
    di_slots slots = {survival, limits, 1, 3};
    double rate;
    assert_int_equal(di_price_budget(&slots, 1, flat, 0, 3, &scratch, &rate), 0);
}

/* ---- the shares ---- */

/* One draft after the other: always the largest survival that comes next in some row. */
static void admit(const case_ *c, int budget, int *lengths) {
    memset(lengths, 0, MOST_ROWS * sizeof *lengths);
    for (; budget > 0; budget--) {
        int best = -1;
        for (int r = 0; r < c->n; r++) {
            if (lengths[r] >= c->limits[r]) {
                continue;
            }
            float mine = c->survival[r * c->stride + lengths[r]];
            float other = best < 0 ? -1 : c->survival[best * c->stride + lengths[best]];
            if (mine > other || (mine == other && lengths[r] < lengths[best])) {
                best = r;
            }
        }
        if (best < 0) {
            return;
        }
        lengths[best]++;
    }
}

static void test_shares_are_those_of_admitting_one_by_one(void **state) {
    (void)state;
    for (int k = 0; k < 20000; k++) {
        case_ c;
        int found[MOST_ROWS], wanted[MOST_ROWS], sum = 0;
        fill(&c, MOST_ROWS, MOST_DRAFTS);
        int budget = below(c.all + 3);
        di_price_share(&c.slots, budget, &scratch, found);
        admit(&c, budget, wanted);
        for (int r = 0; r < c.n; r++) {
            assert_int_equal(found[r], wanted[r]);
            sum += found[r];
        }
        assert_int_equal(sum, budget < c.all ? budget : c.all);
    }
}

static void test_later_confidences_change_nothing_before_them(void **state) {
    (void)state;
    for (int k = 0; k < 20000; k++) {
        case_ c;
        int before[MOST_ROWS], after[MOST_ROWS];
        fill(&c, MOST_ROWS, MOST_DRAFTS);
        int budget = below(c.all + 1), r = below(c.n), j = below(c.stride);
        di_price_share(&c.slots, budget, &scratch, before);
        double s = j > 0 ? (double)c.survival[r * c.stride + j - 1] : 1;
        for (int i = j; i < c.stride; i++) {
            c.survival[r * c.stride + i] = (float)(s *= unit());
        }
        di_price_share(&c.slots, budget, &scratch, after);
        for (int i = 0; i < j; i++) {
            assert_int_equal(before[r] > i, after[r] > i);
        }
    }
}

/* ---- exactness ---- */

/* A world of two tokens and blocks of two drafts: the target's and the draft's law of the first
 * token and of the second given the first, and the confidence in the second draft given the first.
 */
typedef struct world {
    double p1, q1, p2[2], q2[2]; /* of token 0 */
    float c1, c2[2];
} world;

static double of(double zero, int token) {
    return token ? 1 - zero : zero;
}

/* Probability that token v comes out where a draft x from q was verified against p. */
static double comes_out(double p, double q, int x, int v) {
    double accept = fmin(1, of(p, x) / of(q, x)), mass = 0, mine = 0;
    for (int t = 0; t < 2; t++) {
        double rest = fmax(of(p, t) - of(q, t), 0);
        mass += rest;
        mine = t == v ? rest : mine;
    }
    double residual = mass > 0 ? mine / mass : 0;
    return (x == v ? accept : 0) + (1 - accept) * residual;
}

/* Probability of answer (a, b) given the drafts x and how many of them are verified. */
static double answer(const world *w, const int x[2], int length, int a, int b) {
    if (length == 0) {
        return of(w->p1, a) * of(w->p2[a], b);
    }
    double first = comes_out(w->p1, w->q1, x[0], a);
    bool stands = a == x[0];
    return first *
           (length == 2 && stands ? comes_out(w->p2[a], w->q2[a], x[1], b) : of(w->p2[a], b));
}

/* Joint law of two answers, drafts and lengths summed out; `lengths_of` may look at drafts only
 * through confidences. */
typedef void (*lengths_fn)(const world *w, int n, int x[][2], int budget, int *lengths);

static double joint(const world *w, int n, const int want[][2], lengths_fn lengths_of, int budget) {
    double sum = 0;
    for (int code = 0; code < 1 << 2 * n; code++) {
        int x[2][2], lengths[2];
        double drawn = 1;
        for (int r = 0; r < n; r++) {
            x[r][0] = code >> 2 * r & 1;
            x[r][1] = code >> (2 * r + 1) & 1;
            drawn *= of(w[r].q1, x[r][0]) * of(w[r].q2[x[r][0]], x[r][1]);
        }
        lengths_of(w, n, x, budget, lengths);
        for (int r = 0; r < n; r++) {
            drawn *= answer(&w[r], x[r], lengths[r], want[r][0], want[r][1]);
        }
        sum += drawn;
    }
    return sum;
}

static void fill_survivals(const world *w, int n, int x[][2], float *survival) {
    for (int r = 0; r < n; r++) {
        survival[2 * r] = w[r].c1;
        survival[2 * r + 1] = w[r].c1 * w[r].c2[x[r][0]];
    }
}

static void shares(const world *w, int n, int x[][2], int budget, int *lengths) {
    static const int limits[2] = {2, 2};
    float survival[4];
    fill_survivals(w, n, x, survival);
    di_slots slots = {survival, limits, n, 2};
    di_price_share(&slots, budget, &scratch, lengths);
}

/* What must not be: the budget from the confidences at hand. */
static void search_now(const world *w, int n, int x[][2], int budget, int *lengths) {
    static const int limits[2] = {2, 2};
    static const double seconds[] = {1, 1 / 0.5, 1 / 0.45};
    (void)budget;
    float survival[4];
    double rate;
    fill_survivals(w, n, x, survival);
    di_slots slots = {survival, limits, n, 2};
    int b = di_price_budget(&slots, n, seconds, 0, 2, &scratch, &rate);
    di_price_share(&slots, b, &scratch, lengths);
}

static void test_two_answers_keep_their_joint_law(void **state) {
    (void)state;
    double worst = 0;
    for (int k = 0; k < 300; k++) {
        world w[2];
        for (int r = 0; r < 2; r++) {
            w[r] = (world){unit(), unit(), {unit(), unit()}, {unit(), unit()}, 0, {0, 0}};
            w[r].c1 = (float)unit();
            w[r].c2[0] = (float)unit();
            w[r].c2[1] = (float)unit();
        }
        for (int budget = 0; budget <= 4; budget++) {
            for (int code = 0; code < 16; code++) {
                int want[2][2] = {{code & 1, code >> 1 & 1}, {code >> 2 & 1, code >> 3 & 1}};
                double p = 1;
                for (int r = 0; r < 2; r++) {
                    p *= of(w[r].p1, want[r][0]) * of(w[r].p2[want[r][0]], want[r][1]);
                }
                double found = joint(w, 2, (const int(*)[2])want, shares, budget);
                worst = fmax(worst, fabs(found - p));
            }
        }
    }
    assert_true(worst < 1e-12);
}

/* The paper's: one answer, p = (0.7, 0.3), q = (0.5, 0.5), confidence 0.8 in the first draft, and
 * 0.9 or 0 in the second, depending on what the first is. */
static void test_the_papers_counter_example(void **state) {
    (void)state;
    world w = {0.7, 0.5, {0.5, 0.5}, {0.5, 0.5}, 0.8f, {0.9f, 0}};
    for (int budget = 0; budget <= 2; budget++) {
        double zero = 0;
        for (int b = 0; b < 2; b++) {
            const int want[1][2] = {{0, b}};
            zero += joint(&w, 1, want, shares, budget);
        }
        assert_true(fabs(zero - 0.7) < 1e-12);
    }
    double zero = 0;
    for (int b = 0; b < 2; b++) {
        const int want[1][2] = {{0, b}};
        zero += joint(&w, 1, want, search_now, 0);
    }
    assert_true(fabs(zero - 0.85) < 1e-12); /* so the test can fail */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget_is_the_best_of_all_lengths),
        cmocka_unit_test(test_equal_rates_take_the_smaller_budget),
        cmocka_unit_test(test_shares_are_those_of_admitting_one_by_one),
        cmocka_unit_test(test_later_confidences_change_nothing_before_them),
        cmocka_unit_test(test_two_answers_keep_their_joint_law),
        cmocka_unit_test(test_the_papers_counter_example),
    };
    return cmocka_run_group_tests(tests, open_scratch, close_scratch);
}
