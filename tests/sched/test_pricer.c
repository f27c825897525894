/* Predicted times and the decisions made of them. */
#include <math.h>

#include "support/cmocka.h"

#include "sched/pricer.h"
#include "support/random.h"

static uint64_t seed = 1;

static double unit(void) {
    return next_unit(&seed);
}

static bool near(double found, double wanted, double share) {
    return fabs(found - wanted) <= share * fabs(wanted);
}

static di_curve curve_of(int count, const int *sizes, const double *seconds) {
    di_curve c = {0};
    for (int i = 0; i < count; i++) {
        assert_true(di_curve_add(&c, sizes[i], seconds[i]));
    }
    return c;
}

/* ---- curves ---- */

static void test_curves_lie_between_their_points(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 8};
    static const double seconds[] = {1, 1.5, 3};
    di_curve c = curve_of(3, sizes, seconds);
    assert_true(di_curve_at(&c, 1, false) == 1);
    assert_true(near(di_curve_at(&c, 5, false), 2.25, 1e-12));
    assert_true(near(di_curve_at(&c, 16, false), 5, 1e-12)); /* the last slope goes on */
    assert_true(di_curve_at(&c, 3, true) == 3);              /* what can run is the next size */
}

static void test_dips_and_nonsense_are_not_kept(void **state) {
    (void)state;
    di_curve c = {0};
    assert_true(di_curve_add(&c, 4, 2));
    assert_true(di_curve_add(&c, 8, 1)); /* noise */
    assert_true(di_curve_at(&c, 8, false) == 2);
    assert_false(di_curve_add(&c, 8, 3));
    assert_false(di_curve_add(&c, 9, 0));
    assert_false(di_curve_add(&c, 9, -1));
    assert_false(di_curve_add(&c, 9, NAN));
    assert_false(di_curve_add(&c, 9, INFINITY));
    for (int i = 0; i < DI_CURVE_POINTS - 2; i++) {
        assert_true(di_curve_add(&c, 9 + i, 3));
    }
    assert_false(di_curve_add(&c, 1000, 3));
}

static const int sizes[] = {1, 2, 4, 8, 16, 32, 64};

static di_cost flat_cost(double each) {
    double seconds[7];
    for (int i = 0; i < 7; i++) {
        seconds[i] = 0.01 + each * sizes[i];
    }
    di_curve step = curve_of(7, sizes, seconds);
    for (int i = 0; i < 7; i++) {
        seconds[i] = 0.002 + 0.0001 * sizes[i];
    }
    di_curve draft = curve_of(7, sizes, seconds);
    di_cost c;
    di_cost_init(&c, &step, &draft, false);
    return c;
}

/* Steps as the curve says leave it as it is; interrupted ones now and then change nothing. */
static void test_what_was_measured_is_believed(void **state) {
    (void)state;
    di_cost c = flat_cost(0.001);
    for (int k = 0; k < 2000; k++) {
        int rows = 1 + (int)(unit() * 60);
        double late = k % 20 == 7 ? 0.5 * unit() : 0;
        di_cost_learn_forward(&c, rows, rows * 100.0, 0.01 + 0.001 * rows + late);
        di_cost_learn_sampling(&c, rows, 0.0);
    }
    for (int rows = 1; rows < 64; rows += 7) {
        assert_true(near(di_cost_step(&c, rows, 100), 0.01 + 0.001 * rows, 0.03));
    }
}

/* A machine that has become slower, contexts that cost, sampling that costs by rows. */
static void test_changes_are_learned(void **state) {
    (void)state;
    di_cost c = flat_cost(0.001);
    for (int k = 0; k < 1500; k++) {
        int rows = 1 + (int)(unit() * 60);
        double context = 4000 * unit();
        double noise = 1 + 0.1 * (unit() - 0.5);
        double seconds = 1.6 * (0.01 + 0.001 * rows) + 2e-7 * context * rows;
        di_cost_learn_forward(&c, rows, context * rows, seconds * noise);
        di_cost_learn_sampling(&c, rows, 0.001 + 0.0002 * rows);
        di_cost_learn_draft(&c, 4, 0.0048);
    }
    for (int rows = 1; rows < 64; rows += 7) {
        double wanted = 1.6 * (0.01 + 0.001 * rows) + 2e-7 * 2000 * rows + 0.001 + 0.0002 * rows;
        assert_true(near(di_cost_step(&c, rows, 2000), wanted, 0.05));
    }
    assert_true(near(di_cost_draft(&c, 4), 0.0048, 0.05));
    assert_true(di_cost_draft(&c, 0) == 0);
}

static void test_times_never_fall_with_rows(void **state) {
    (void)state;
    di_cost c = flat_cost(0);
    double seconds[64];
    for (int k = 0; k < 400; k++) {
        di_cost_learn_forward(&c, 8, 800, 0.02);
        di_cost_learn_forward(&c, 16, 1600, 0.01);
    }
    di_cost_steps(&c, 1, 64, 100, seconds);
    for (int i = 1; i < 64; i++) {
        assert_true(seconds[i] >= seconds[i - 1] && seconds[i] > 0);
    }
}

/* ---- decisions ---- */

enum { SEQS = 8, DRAFTS = 3 };

typedef struct world {
    di_pricer p;
    di_job jobs[SEQS], *list[SEQS];
    int limits[SEQS];
} world;

static void open_world(world *w, bool priced, double each) {
    *w = (world){0};
    di_pricer_options o = {.num_drafts = DRAFTS, .max_num_seqs = SEQS, .priced = priced};
    for (int j = 0; j < DRAFTS; j++) {
        o.temperatures[j] = 1;
    }
    assert_true(di_pricer_create(&w->p, &o, NULL));
    w->p.cost = flat_cost(each);
    for (int i = 0; i < SEQS; i++) {
        w->list[i] = &w->jobs[i];
        w->jobs[i].seq.len = 100;
        w->jobs[i].max_len = 1000000;
        w->limits[i] = DRAFTS;
    }
}

static void file(di_pricer *p, di_job *job, const float *confidence) {
    di_pricer_law law = di_pricer_get_law(p);
    di_pricer_file(p, job, &law, confidence, DRAFTS);
}

static void file_all(world *w, float confidence) {
    const float z[DRAFTS] = {confidence, confidence, confidence};
    for (int i = 0; i < SEQS; i++) {
        file(&w->p, &w->jobs[i], z);
    }
}

/* Rounds whose drafts fare as their confidence says. */
static void live(world *w, float confidence, int rounds) {
    double c = 1 / (1 + exp(-(double)confidence));
    for (int k = 0; k < rounds; k++) {
        file_all(w, confidence);
        for (int i = 0; i < SEQS; i++) {
            int accepted = 0;
            while (accepted < DRAFTS && unit() < c) {
                accepted++;
            }
            di_pricer_resolve(&w->p, &w->jobs[i], DRAFTS, accepted);
        }
    }
}

static void test_cheap_rows_verify_all_and_dear_ones_none(void **state) {
    (void)state;
    world w;
    open_world(&w, true, 0);
    live(&w, 1, 50);
    file_all(&w, 1);
    assert_int_equal(di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 100), SEQS * DRAFTS);
    di_pricer_destroy(&w.p);
    open_world(&w, true, 0.1);
    live(&w, 1, 50);
    file_all(&w, 1);
    assert_int_equal(di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 100), 0);
    di_pricer_destroy(&w.p);
}

/* The budget is the known rounds' matter alone, and room limits it. */
static void test_the_budget_looks_at_no_round_at_hand(void **state) {
    (void)state;
    world w;
    open_world(&w, true, 0.0007);
    live(&w, 0.5f, 50);
    file_all(&w, 0.5f);
    int budget = di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 100);
    assert_true(budget > 0 && budget < SEQS * DRAFTS);
    for (int k = 0; k < 100; k++) {
        for (int i = 0; i < SEQS; i++) {
            const float z[DRAFTS] = {(float)(8 * unit() - 4), (float)(8 * unit() - 4), NAN};
            file(&w.p, &w.jobs[i], z);
            assert_true(w.jobs[i].survival[2] == 0); /* no number is no confidence */
        }
        assert_int_equal(di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 100), budget);
    }
    assert_int_equal(w.p.broken, 100 * SEQS);
    assert_int_equal(di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 2),
                     budget < 2 ? budget : 2);
    assert_int_equal(di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, -1), 0);
    di_pricer_destroy(&w.p);
}

static int largest_rank(void *user, int rows) {
    int *others = user;
    return rows > *others ? rows : *others;
}

/* A rank with cheap drafts left fills its step up to the largest rank's. */
static void test_ranks_agree_on_a_size(void **state) {
    (void)state;
    world w;
    open_world(&w, true, 0.0007);
    live(&w, 0.5f, 50);
    file_all(&w, 0.5f);
    int alone = di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 100);
    static const int more[] = {-5, 0, 3, 100};
    for (int i = 0; i < 4; i++) {
        int others = SEQS + alone + more[i];
        w.p.o.agree = largest_rank;
        w.p.o.user = &others;
        int wanted = alone + (more[i] > 0 ? more[i] : 0);
        assert_int_equal(di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 100),
                         wanted < SEQS * DRAFTS ? wanted : SEQS * DRAFTS);
    }
    di_pricer_destroy(&w.p);
}

static void test_fixed_verifies_what_there_is_room_for(void **state) {
    (void)state;
    world w;
    open_world(&w, false, 0.1);
    file_all(&w, -3);
    assert_int_equal(di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 100), SEQS * DRAFTS);
    assert_int_equal(di_pricer_budget(&w.p, w.list, w.limits, SEQS, SEQS, 5), 5);
    di_pricer_proposals(&w.p, w.list, SEQS);
    for (int i = 0; i < SEQS; i++) {
        assert_true(w.jobs[i].propose);
    }
    di_pricer_destroy(&w.p);
}

static int proposals(world *w) {
    int count = 0;
    di_pricer_proposals(&w->p, w->list, SEQS);
    for (int i = 0; i < SEQS; i++) {
        count += w->jobs[i].propose;
    }
    return count;
}

/* As the scheduler asks: a row for each job, then whose drafts are wanted. Returns how many are;
 * *context: of how many jobs the context is kept. */
static int turn(world *w, int *context) {
    *context = 0;
    for (int i = 0; i < SEQS; i++) {
        di_seq *seq = &w->jobs[i].seq;
        bool wanted = di_pricer_wants_context(&w->p, &w->jobs[i]);
        seq->len++;
        seq->draft_from = wanted ? seq->draft_from : seq->len;
        *context += wanted;
    }
    int made = proposals(w);
    for (int i = 0; i < SEQS; i++) {
        const di_seq *seq = &w->jobs[i].seq;
        assert_true(!w->jobs[i].propose || seq->draft_from == 0 ||
                    seq->len - seq->draft_from >= 64);
    }
    return made;
}

/* Where drafts do not pay, nothing of the draft model runs but probes, which find out when they do
 * again; the longer they are in vain, the rarer they are. */
static void test_drafts_are_made_where_they_pay(void **state) {
    (void)state;
    world w;
    int context;
    open_world(&w, true, 0.0001);
    live(&w, 2, 50);
    for (int k = 0; k < 12; k++) { /* the first steps show what is without */
        turn(&w, &context);
        di_pricer_note(&w.p, SEQS, SEQS, 0.010, false);
    }
    for (int k = 0; k < 100; k++) {
        assert_int_equal(turn(&w, &context), SEQS);
        assert_int_equal(context, SEQS);
    }
    live(&w, -4, 200);
    long made[2] = {0}, kept = 0, steps = 50000;
    bool tried[SEQS] = {false};
    for (long k = 0; k < 100; k++) { /* they go on for a while */
        turn(&w, &context);
    }
    for (long k = 0; k < 2 * steps; k++) {
        made[k / steps] += turn(&w, &context);
        assert_in_range(context, 0, 1);
        kept += context;
        for (int i = 0; i < SEQS; i++) {
            tried[i] |= w.jobs[i].propose;
        }
    }
    double step = di_cost_step(&w.p.cost, SEQS, 100);
    double spent = (double)(made[0] + made[1]) * di_cost_draft(&w.p.cost, 1);
    double share = (spent + 0.02 * (double)kept * step) / (2 * (double)steps * step);
    print_message("    %ld drafts in %ld steps, then %ld; context of %ld; %.3f %% of the time\n",
                  made[0], steps, made[1], kept, 100 * share);
    assert_true(made[0] > made[1] && made[1] >= 6 && share < 0.0025);
    for (int i = 0; i < SEQS; i++) {
        assert_true(tried[i]);
    }
    live(&w, 2, 50);
    for (int k = 0; k < 90; k++) { /* until it is noticed, and there is context enough */
        turn(&w, &context);
    }
    assert_int_equal(context, SEQS);
    assert_int_equal(turn(&w, &context), SEQS);
    di_pricer_destroy(&w.p);
}

/* Where drafts never paid, the next answer that begins is the probe. */
static void test_a_probe_is_an_answer_that_begins(void **state) {
    (void)state;
    world w;
    int context = -1;
    open_world(&w, true, 0.1);
    for (int k = 0; !w.p.idle || w.p.since_trial < 1.2 * w.p.probe_cost / 0.0025; k++) {
        assert_true(k < 100000);
        turn(&w, &context);
    }
    assert_int_equal(context, 0);
    w.jobs[5] = (di_job){.max_len = 1000}; /* another in its place */
    turn(&w, &context);
    assert_int_equal(context, 1);
    assert_true(w.jobs[5].probe && w.jobs[5].propose && w.jobs[5].seq.draft_from == 0);
    for (int k = 0; k < 6; k++) {
        turn(&w, &context);
    }
    assert_true(!w.jobs[5].probe && !w.jobs[5].propose && !w.p.probing);
    /* one that ends before it has had its rounds is not waited for for ever */
    for (int k = 0; !w.p.probing; k++) {
        assert_true(k < 1000000);
        turn(&w, &context);
    }
    for (int i = 0; i < SEQS; i++) {
        w.jobs[i].probe = false;
    }
    for (int k = 0; k < 1001; k++) {
        turn(&w, &context);
    }
    assert_true(!w.p.probing);
    di_pricer_destroy(&w.p);
}

/* What few tests say is doubted, what many say is not, nor is hope held on to when it was let down.
 */
static void test_what_few_tests_say_is_doubted(void **state) {
    (void)state;
    static const struct {
        double tests;
        int letdowns;
        bool begins;
    } cases[] = {{0, 0, true}, {1000, 0, false}, {0, 9, false}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        world w;
        open_world(&w, true, 0.0005);
        live(&w, -0.2f, 50);
        w.p.tests = cases[c].tests;
        w.p.letdowns = cases[c].letdowns;
        w.p.idle = true;
        w.p.control_left = 0;
        proposals(&w);
        assert_int_equal(w.p.chosen_share > 0, cases[c].begins);
        assert_true(c == 0 ? w.p.promise > 1.03 : w.p.promise < 1.03);
        di_pricer_destroy(&w.p);
    }
}

/* Drafts that gain less than context costs are made while it is kept, and in vain: it goes, and
 * then they have to gain more. */
static void test_small_gains_are_taken_while_context_is_there(void **state) {
    (void)state;
    world w;
    int context, made = 0, turns = 0;
    open_world(&w, true, 0.0005);
    w.p.tests = 1e6;             /* no hope */
    w.p.without[3].steps = 1000; /* nor a look at steps without */
    for (float z = 2; w.p.promise == 0 || w.p.promise > 1.015; z -= 0.02f) {
        live(&w, z, 200);
        w.p.turn = 0;
        proposals(&w);
    }
    print_message("    drafts promise %.4f\n", w.p.promise);
    assert_true(w.p.promise > 1.002 && !w.p.idle);
    for (; !w.p.idle; turns++) {
        assert_true(turns < 2000);
        made += turn(&w, &context) == SEQS;
    }
    assert_in_range(turns, 90, 1100);
    assert_true(made >= turns - 1);
    for (int k = 0; k < 100; k++) {
        assert_true(turn(&w, &context) < SEQS);
        assert_in_range(context, 0, 1);
    }
    di_pricer_destroy(&w.p);
}

/* Drafts that gain a little gain nothing where all answers have as far to go: some end early by
 * chance, and the others run in small steps. It matters less the farther that is, and where answers
 * end one after the other anyway. */
static void test_a_small_gain_is_not_worth_an_uneven_end(void **state) {
    (void)state;
    static const struct {
        int64_t left, apart; /* of the first, and how much more each of the others has */
        double each;         /* seconds of a row: small ones let drafts gain more */
        bool begins;
    } cases[] = {{40, 0, 0.0012, false},
                 {40, 0, 0.0005, true},
                 {100000, 0, 0.0012, true},
                 {40, 40, 0.0012, true}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        world w;
        open_world(&w, true, cases[c].each);
        live(&w, 1, 50);
        w.p.tests = 1e6; /* no hope: what is known is believed */
        w.p.idle = true;
        for (int i = 0; i < SEQS; i++) {
            w.jobs[i].num_tokens = 1000;
            w.jobs[i].max_len = 1000 + cases[c].left + i * cases[c].apart;
        }
        proposals(&w);
        print_message("    %lld tokens left and %lld apart: drafts promise %.3f\n",
                      (long long)cases[c].left, (long long)cases[c].apart, w.p.promise);
        assert_true(w.p.promise > 1.04);
        assert_int_equal(w.p.chosen_share > 0, cases[c].begins);
        di_pricer_destroy(&w.p);
    }
}

/* Some answers are easy, some are not: the easy ones alone get drafts. */
static void test_drafts_go_to_those_who_use_them(void **state) {
    (void)state;
    static const float good[DRAFTS] = {4, 4, 4}, bad[DRAFTS] = {-6, -6, -6};
    world w;
    open_world(&w, true, 0.001);
    for (int k = 0; k < 60; k++) {
        for (int i = 0; i < SEQS; i++) {
            file(&w.p, &w.jobs[i], i < 4 ? good : bad);
            di_pricer_resolve(&w.p, &w.jobs[i], DRAFTS, i < 4 ? DRAFTS : 0);
        }
    }
    for (int k = 0; k < 12; k++) { /* the first have none */
        proposals(&w);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(w.jobs[i].propose);
    }
    assert_true(!w.jobs[6].propose && !w.jobs[7].propose);
    di_pricer_destroy(&w.p);
}

/* A head that promises too much is believed less, place by place. */
static void test_experience_corrects_the_head(void **state) {
    (void)state;
    static const float z[DRAFTS] = {2, 2, 2}; /* 0.88 */
    world w;
    open_world(&w, true, 0.001);
    di_job *job = &w.jobs[0];
    for (int k = 0; k < 3000; k++) {
        file(&w.p, job, z);
        int accepted = unit() < 0.5 ? 0 : unit() < 0.88 ? 2 : 1;
        di_pricer_resolve(&w.p, job, DRAFTS, accepted);
    }
    file(&w.p, job, z);
    assert_true(near((double)job->survival[0], 0.5, 0.1));
    assert_true(near((double)job->survival[1], 0.44, 0.1));
    assert_true(job->survival[2] <= job->survival[1]);
    di_pricer_destroy(&w.p);
}

/* Whatever temperatures a head was calibrated to, and whatever experience says: survivals never
 * rise along a block, or the shares of a step's budget were no beginnings of blocks. */
static void test_survivals_never_rise_whatever_the_temperatures(void **state) {
    (void)state;
    enum { N = DI_MAX_DRAFTS };
    static const float odd[] = {INFINITY, -INFINITY, NAN, 1e30f, -1e30f, 0};
    for (int k = 0; k < 20000; k++) {
        di_pricer_law law;
        float z[N], single[N], survival[N];
        int broken = 0;
        for (int j = 0; j < N; j++) {
            law.temperatures[j] = exp2(14 * unit() - 7); /* all that are allowed */
            law.factors[j] = 3 * unit();
            z[j] = unit() < 0.1 ? odd[(int)(6 * unit())] : (float)(40 * unit() - 20);
            broken += isnan(z[j]);
        }
        assert_int_equal(di_pricer_survivals(&law, z, N, single, survival), broken);
        for (int j = 0; j < N; j++) {
            float last = j > 0 ? survival[j - 1] : 1;
            assert_true(survival[j] >= 0 && survival[j] <= last); /* and so is a number */
            assert_true(single[j] >= 0 && single[j] <= 1);
        }
    }
}

/* Predictions say that drafts pay, and steps with them are slower: they stop, for longer each time,
 * and go on when they come out better. */
static void test_what_comes_out_refutes_predictions(void **state) {
    (void)state;
    world w;
    int context, made = 0;
    open_world(&w, true, 0.0001);
    live(&w, 2, 50);
    for (int k = 0; k < 40000; k++) {
        bool drafts = turn(&w, &context) == SEQS;
        di_pricer_note(&w.p, SEQS, drafts ? 3 * SEQS : SEQS, drafts ? 0.040 : 0.010, drafts);
        made += drafts;
    }
    assert_in_range(made, 2 * 8, 400); /* though nothing was known of steps without at first */
    made = 0;
    for (int k = 0; k < 20000; k++) {
        bool drafts = turn(&w, &context) == SEQS;
        di_pricer_note(&w.p, SEQS, drafts ? 3 * SEQS : SEQS, drafts ? 0.020 : 0.010, drafts);
        made += drafts;
    }
    assert_true(made > 10000);
    di_pricer_destroy(&w.p);
}

/* Now and then drafts are left out, to know what steps give without. No answer tries some then: the
 * step would count as neither. */
static void test_steps_that_show_what_none_give_have_none(void **state) {
    (void)state;
    world w;
    int context, none = 0;
    open_world(&w, true, 0.0001);
    live(&w, 2, 50);
    for (int k = 0; k < 5000; k++) {
        int made = turn(&w, &context);
        di_pricer_note(&w.p, SEQS, made ? 3 * SEQS : SEQS, made ? 0.020 : 0.010, made > 0);
        assert_true(made == 0 || made == SEQS);
        none += made == 0;
    }
    assert_in_range(none, 3 * 8, 3 * 12);
    di_pricer_destroy(&w.p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curves_lie_between_their_points),
        cmocka_unit_test(test_dips_and_nonsense_are_not_kept),
        cmocka_unit_test(test_what_was_measured_is_believed),
        cmocka_unit_test(test_changes_are_learned),
        cmocka_unit_test(test_times_never_fall_with_rows),
        cmocka_unit_test(test_cheap_rows_verify_all_and_dear_ones_none),
        cmocka_unit_test(test_the_budget_looks_at_no_round_at_hand),
        cmocka_unit_test(test_ranks_agree_on_a_size),
        cmocka_unit_test(test_fixed_verifies_what_there_is_room_for),
        cmocka_unit_test(test_drafts_are_made_where_they_pay),
        cmocka_unit_test(test_what_comes_out_refutes_predictions),
        cmocka_unit_test(test_steps_that_show_what_none_give_have_none),
        cmocka_unit_test(test_a_probe_is_an_answer_that_begins),
        cmocka_unit_test(test_what_few_tests_say_is_doubted),
        cmocka_unit_test(test_small_gains_are_taken_while_context_is_there),
        cmocka_unit_test(test_a_small_gain_is_not_worth_an_uneven_end),
        cmocka_unit_test(test_drafts_go_to_those_who_use_them),
        cmocka_unit_test(test_experience_corrects_the_head),
        cmocka_unit_test(test_survivals_never_rise_whatever_the_temperatures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
