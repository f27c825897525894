/* Priced drafts in a simulated engine: tokens a second against no drafts, every fixed number of
 * them, and an oracle, over cost curves, acceptance and load.
 *
 *     spec-sim [COST_FILE ...]
 *
 * Curves: flat, stepped, steep, an H200's, what the demo model's steps cost on this machine right
 * now, and any files that --cost-cache has left (of a card's engine, say). Answers come and go;
 * each has its own acceptance, which wavers from draft to draft around it; the confidence head sees
 * it with some noise, the pricer sees step times with some. The oracle knows the true acceptance of
 * the drafts at hand and the true costs, and tries every budget and every share of answers that get
 * drafts: no scheduler may do that, for its answers would not be exact (sched/price.h). Whoever
 * drafts pays for the draft model's context in every step.
 *
 * Goal: priced at least as good as no drafts and as the best fixed number at every point, within
 * 2 %. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/spec_curve.h"
#include "sched/pricer.h"

enum {
    DRAFTS = 5,
    MOST = 512,
    LIFE = 200,
    ROUNDS = 40000,
    LEAST_STEPS = 1000,
    SHARES = 4,
    KNOWN = 4
};

static const double waver = 0.8, head_noise = 0.3, time_noise = 0.03;
static const double context_share = 0.03; /* of a step, that the draft model's context costs */
static const double acceptances[] = {0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0 /* mixed */};
enum { KINDS = sizeof acceptances / sizeof *acceptances };

/* ---- chance -----------------------------------------------------------------------------------*/

static uint64_t state;

static double unit(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

/* The same in every run, whatever the policy has drawn: users must be. */
static double unit_of(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xc2b2ae3d27d4eb4fu + 1;
    for (int i = 0; i < 3; i++) {
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    }
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

static double normal(void) {
    return sqrt(-2 * log(unit())) * cos(6.283185307179586 * unit());
}

static double logit(double p) {
    return log(p / (1 - p));
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* ---- machines ---------------------------------------------------------------------------------*/

typedef struct machine {
    char name[48];
    di_curve step, draft;
    bool stepped;
} machine;

static double step_time(const machine *m, int rows) {
    return di_curve_at(&m->step, rows, m->stepped);
}

static double draft_time(const machine *m, int seqs) {
    return seqs ? di_curve_at(&m->draft, seqs, m->stepped) : 0;
}

typedef double (*shape_fn)(int n);

/* Bound by reading weights: rows cost next to nothing. */
static double flat_step(int n) {
    return 10 + 0.002 * n;
}
static double flat_draft(int n) {
    return 0.8 + 0.0005 * n;
}
/* Graphs, and tiles of 64 rows. */
static double stepped_step(int n) {
    return 8 + 1.2 * ceil(n / 64.0);
}
static double stepped_draft(int n) {
    return 0.7 + 0.1 * ceil(n / 64.0);
}
/* Bound by arithmetic from the first row on. */
static double steep_step(int n) {
    return 0.5 + 0.3 * n;
}
static double steep_draft(int n) {
    return 0.2 + 0.2 * n;
}

static machine machine_of(const char *name, bool stepped, shape_fn step, shape_fn draft) {
    machine m = {.stepped = stepped};
    snprintf(m.name, sizeof m.name, "%s", name);
    for (int n = 1; n <= MOST * (1 + DRAFTS); n = stepped ? n < 8 ? n * 2 : (n + n / 16 + 8) / 8 * 8
                                                  : n < 4 ? n + 1
                                                          : n + n / 4) {
        di_curve_add(&m.step, n, 1e-3 * step(n));
        if (n <= MOST) {
            di_curve_add(&m.draft, n, 1e-3 * draft(n));
        }
    }
    return m;
}

/* Measured times. */
typedef struct timed_rows {
    int rows;
    double ms;
} timed_rows;

static machine machine_with(const char *name, const timed_rows *steps, int num_steps,
                            const timed_rows *drafts, int num_drafts) {
    machine m = {.stepped = false};
    snprintf(m.name, sizeof m.name, "%s", name);
    for (int n = 0; n < num_steps; n++) {
        di_curve_add(&m.step, steps[n].rows, 1e-3 * steps[n].ms);
    }
    for (int n = 0; n < num_drafts; n++) {
        di_curve_add(&m.draft, drafts[n].rows, 1e-3 * drafts[n].ms);
    }
    return m;
}

/* Steps and rounds of drafts of a model of full width on an H200, contexts of 1,024 and up, as
 * bench/cuda_drafts measured them: bench/results/2026-11-30-h200-drafts.txt. */
static machine card_machine(void) {
    static const timed_rows steps[] = {
        {1, 6.28},      {2, 8.09},      {3, 10.96},    {5, 13.32},    {6, 14.45},    {16, 26.53},
        {32, 44.38},    {48, 57.06},    {64, 67.27},   {80, 78.94},   {96, 84.95},   {128, 94.22},
        {192, 108.21},  {256, 116.78},  {320, 125.41}, {384, 129.35}, {512, 140.06}, {768, 160.63},
        {1024, 184.91}, {1280, 206.97}, {1536, 230.66}};
    static const timed_rows drafts[] = {{1, 1.02}, {16, 2.74}, {64, 6.00}, {256, 14.78}};
    return machine_with("an H200, full width", steps, (int)(sizeof steps / sizeof *steps), drafts,
                        (int)(sizeof drafts / sizeof *drafts));
}

/* The demo model there at temperature 1, at 85827f3: a draw took some 70 us then, and a round of
 * drafts has five. From what steps of bench/drafts took, draws and rounds told apart by the same at
 * temperature 0. */
static machine demo_machine(void) {
    static const timed_rows steps[] = {{1, 0.89},  {6, 1.00},  {8, 1.06},  {16, 1.18},  {34, 1.44},
                                       {48, 1.58}, {64, 1.74}, {128, 2.4}, {256, 3.70}, {384, 5.0}};
    static const timed_rows drafts[] = {{1, 0.71}, {8, 0.79}, {64, 1.5}};
    return machine_with("an H200, the demo model at T 1", steps,
                        (int)(sizeof steps / sizeof *steps), drafts,
                        (int)(sizeof drafts / sizeof *drafts));
}

static bool measured_machine(machine *m) {
    di_error err;
    di_parts parts;
    di_curves curves;
    di_parts_options o = {.model = "models/demo",
                          .max_num_seqs = 64,
                          .max_rows = 512,
                          .max_logits = 512,
                          .drafts = DI_DRAFTS_ON};
    di_curve_request r = {.model = o.model,
                          .max_num_seqs = 64,
                          .max_rows = 512,
                          .max_logits = 512,
                          .num_drafts = DRAFTS};
    if (!di_parts_open(&parts, &o, &err)) {
        fprintf(stderr, "spec-sim: %s\n", err.message);
        return false;
    }
    bool ok = di_curves_get(&parts, &r, &curves, &err);
    di_parts_close(&parts);
    *m = (machine){.name = "this machine", .step = curves.step, .draft = curves.draft};
    return ok;
}

static bool read_points(const json_t *object, const char *path, const char *key, di_curve *curve) {
    di_error err;
    const json_t *array = di_json_array(object, path, key, &err);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *point = json_array_get(array, i);
        di_curve_add(curve, (int)json_integer_value(json_array_get(point, 0)),
                     json_number_value(json_array_get(point, 1)));
    }
    return curve->count > 0;
}

static bool file_machine(machine *m, const char *path) {
    di_error err = {0};
    json_t *object = di_json_read(path, 1 << 20, &err);
    *m = (machine){.stepped = false};
    const char *base = strrchr(path, '/');
    snprintf(m->name, sizeof m->name, "%.40s", base ? base + 1 : path);
    bool ok = object && read_points(object, path, "step", &m->step) &&
              read_points(object, path, "draft", &m->draft);
    json_decref(object);
    if (!ok) {
        fprintf(stderr, "spec-sim: %s holds no costs %s\n", path, err.message);
    }
    return ok;
}

/* ---- answers ----------------------------------------------------------------------------------*/

typedef struct user {
    double acceptance;
    uint64_t seat, number; /* the number-th that sits there */
    int left;
    bool drafted; /* has drafts at hand */
    double chance[DRAFTS];
} user;

typedef struct sim {
    const machine *m;
    double acceptance; /* 0 = mixed */
    int n;
    user users[MOST];
    double tokens, seconds;
} sim;

static void arrive(sim *s, user *u) {
    uint64_t seat = (uint64_t)(u - s->users), number = u->number + 1;
    *u = (user){.seat = seat,
                .number = number,
                .acceptance =
                    s->acceptance > 0 ? s->acceptance : 0.1 + 0.85 * unit_of(seat, 2 * number),
                .left = LIFE / 4 + (int)(LIFE * unit_of(seat, 2 * number + 1))};
}

static void open_sim(sim *s, const machine *m, double acceptance, int n) {
    *s = (sim){.m = m, .acceptance = acceptance, .n = n};
    state = 1;
    for (int i = 0; i < n; i++) {
        arrive(s, &s->users[i]);
    }
}

static void make_drafts(user *u) {
    u->drafted = true;
    for (int j = 0; j < DRAFTS; j++) {
        u->chance[j] = sigmoid(logit(u->acceptance) + waver * normal());
    }
}

/* Verifies `length` drafts; how many are accepted. True: the answer has ended, another begins. */
static bool verify(sim *s, user *u, int length, int *accepted) {
    int n = 0;
    while (n < length && unit() < u->chance[n]) {
        n++;
    }
    *accepted = n;
    s->tokens += n + 1;
    u->drafted = false;
    u->left -= n + 1;
    if (u->left <= 0) {
        arrive(s, u);
        return true;
    }
    return false;
}

static int steps_of(int n) {
    int steps = ROUNDS / n;
    return steps > LEAST_STEPS ? steps : LEAST_STEPS;
}

/* Counting begins behind a fifth of the steps. */
static void count_from_here(sim *s, int step, int steps) {
    if (step == steps / 5) {
        s->tokens = s->seconds = 0;
    }
}

/* ---- policies ---------------------------------------------------------------------------------*/

static double run_fixed(const machine *m, double acceptance, int n, int length) {
    static sim s;
    open_sim(&s, m, acceptance, n);
    for (int t = 0, steps = steps_of(n); t < steps; t++) {
        count_from_here(&s, t, steps);
        int rows = n, ignored;
        for (int i = 0; i < n; i++) {
            int mine = s.users[i].drafted ? length : 0;
            rows += mine;
            verify(&s, &s.users[i], mine, &ignored);
            if (length) {
                make_drafts(&s.users[i]);
            }
        }
        s.seconds += step_time(m, rows) * (length ? 1 + context_share : 1);
        s.seconds += draft_time(m, length ? n : 0);
    }
    return s.tokens / s.seconds;
}

static int better_user(const void *a, const void *b) {
    double x = (*(user *const *)a)->acceptance, y = (*(user *const *)b)->acceptance;
    return (x < y) - (x > y);
}

/* The best `drafters` answers get drafts; lengths by true chances and costs. */
static double run_oracle(const machine *m, double acceptance, int n, int drafters) {
    static sim s;
    static float survival[MOST * DRAFTS];
    static int limits[MOST], lengths[MOST];
    static double seconds[MOST * DRAFTS + 1];
    di_price_scratch scratch;
    if (!di_price_scratch_create(&scratch, n * DRAFTS, NULL)) {
        return 0;
    }
    open_sim(&s, m, acceptance, n);
    for (int t = 0, steps = steps_of(n); t < steps; t++) {
        count_from_here(&s, t, steps);
        int all = 0, ignored;
        user *order[MOST];
        for (int i = 0; i < n; i++) {
            double a = 1;
            limits[i] = s.users[i].drafted ? DRAFTS : 0;
            all += limits[i];
            order[i] = &s.users[i];
            for (int j = 0; j < DRAFTS; j++) {
                survival[i * DRAFTS + j] = (float)(a *= s.users[i].chance[j]);
            }
        }
        for (int b = 0; b <= all; b++) {
            seconds[b] = step_time(m, n + b) * (1 + context_share) + draft_time(m, drafters);
        }
        double rate;
        di_slots slots = {survival, limits, n, DRAFTS};
        int budget = di_price_budget(&slots, n, seconds, 0, all, &scratch, &rate);
        di_price_share(&slots, budget, &scratch, lengths);
        for (int i = 0; i < n; i++) {
            verify(&s, &s.users[i], lengths[i], &ignored);
        }
        qsort(order, (size_t)n, sizeof *order, better_user);
        for (int i = 0; i < drafters; i++) {
            make_drafts(order[i]);
        }
        s.seconds += seconds[budget];
    }
    di_price_scratch_destroy(&scratch);
    return s.tokens / s.seconds;
}

static void file(di_pricer *p, di_job *job, user *u) {
    float z[DRAFTS];
    make_drafts(u);
    for (int j = 0; j < DRAFTS; j++) {
        z[j] = (float)(logit(u->chance[j]) + head_noise * normal());
    }
    di_pricer_law law = di_pricer_get_law(p);
    di_pricer_file(p, job, &law, z, DRAFTS);
}

static const di_job fresh = {.max_len = 1000000};

/* As the scheduler asks: a row for each job. True: somebody's context is kept. */
static bool ask_context(di_pricer *p, di_job **jobs, int n) {
    bool any = false;
    for (int i = 0; i < n; i++) {
        di_seq *seq = &jobs[i]->seq;
        bool wanted = di_pricer_wants_context(p, jobs[i]);
        seq->len++;
        seq->draft_from = wanted ? seq->draft_from : seq->len;
        any = any || wanted;
    }
    return any;
}

/* An engine's pricer, and what it knows of its answers. */
typedef struct engine {
    di_pricer pricer;
    di_price_scratch scratch;
    di_job jobs[MOST];
} engine;

static bool open_priced(engine *e, const machine *m, int n) {
    di_pricer_options o = {.num_drafts = DRAFTS, .max_num_seqs = n, .priced = true};
    for (int j = 0; j < DRAFTS; j++) {
        o.temperatures[j] = 1;
    }
    if (!di_pricer_create(&e->pricer, &o, NULL) ||
        !di_price_scratch_create(&e->scratch, n * DRAFTS, NULL)) {
        return false;
    }
    di_cost_init(&e->pricer.cost, &m->step, &m->draft, m->stepped);
    return true;
}

static void close_priced(engine *e) {
    di_pricer_destroy(&e->pricer);
    di_price_scratch_destroy(&e->scratch);
}

/* How many drafts of each of the step's answers are verified: job->verify. */
static void choose_lengths(engine *e, di_job **list, int n) {
    static int limits[MOST], lengths[MOST];
    static float survival[MOST * DRAFTS];
    di_slots slots = {survival, limits, n, DRAFTS};
    int all = 0;
    for (int i = 0; i < n; i++) {
        list[i]->verify = 0;
        memcpy(survival + i * DRAFTS, list[i]->survival, DRAFTS * sizeof *survival);
        all += limits[i] = list[i]->num_drafts;
    }
    if (all > 0) {
        int budget = di_pricer_budget(&e->pricer, list, limits, n, n, all);
        di_price_share(&slots, budget, &e->scratch, lengths);
        for (int i = 0; i < n; i++) {
            list[i]->verify = lengths[i];
        }
    }
}

/* A step of the n answers that are there: s->users[who[i]] and its job. */
static void priced_step(engine *e, sim *s, const int *who, int n) {
    static di_job *list[MOST];
    di_pricer *p = &e->pricer;
    int rows = n, drafted = 0, given = 0;
    for (int i = 0; i < n; i++) {
        list[i] = &e->jobs[who[i]];
    }
    choose_lengths(e, list, n);
    bool context = ask_context(p, list, n);
    di_pricer_proposals(p, list, n);
    for (int i = 0; i < n; i++) {
        di_job *job = list[i];
        user *u = &s->users[who[i]];
        int accepted, mine = job->verify;
        bool propose = job->propose;
        rows += mine;
        bool ended = verify(s, u, mine, &accepted);
        given += 1 + accepted;
        if (job->num_drafts) {
            di_pricer_resolve(p, job, mine, accepted);
        }
        job->num_drafts = 0;
        job->num_tokens += 1 + accepted;
        if (ended) {
            *job = fresh;
        }
        if (propose) { /* one that ended has made them for nothing */
            drafted++;
            file(p, job, u);
        }
    }
    double step = step_time(s->m, rows) * (context ? 1 + context_share : 1);
    double draft = draft_time(s->m, drafted);
    double noise = 1 + time_noise * normal();
    s->seconds += step + draft;
    di_pricer_note(p, n, given, (step + draft) * noise, rows > n || drafted > 0);
    di_cost_learn_forward(&p->cost, rows, 0, step * noise);
    di_cost_learn_sampling(&p->cost, rows, 0);
    if (drafted > 0) {
        di_cost_learn_draft(&p->cost, drafted, draft * noise);
    }
}

static double run_priced(const machine *m, double acceptance, int n) {
    static sim s;
    static engine e;
    static int who[MOST];
    if (!open_priced(&e, m, n)) {
        return 0;
    }
    open_sim(&s, m, acceptance, n);
    for (int i = 0; i < n; i++) {
        e.jobs[i] = fresh;
        who[i] = i;
    }
    for (int t = 0, steps = steps_of(n); t < steps; t++) {
        count_from_here(&s, t, steps);
        priced_step(&e, &s, who, n);
    }
    close_priced(&e);
    return s.tokens / s.seconds;
}

/* ---- bursts -----------------------------------------------------------------------------------*/

/* As bench/drafts.c asks: n answers of so many tokens begin at once, and when the last has ended
 * the next n do. Drafts let answers end at different times, and the last ones run in small steps,
 * which is a loss that no rate of tokens a step tells. */
enum { BURST_TOKENS = 192, BURSTS = 5, ENGINES = 40 };

/* Seconds of one burst. */
static double run_burst(engine *e, sim *s, int n) {
    int who[MOST];
    double before = s->seconds;
    for (int i = 0; i < n; i++) {
        e->jobs[i] = (di_job){.max_len = BURST_TOKENS};
        s->users[i].left = BURST_TOKENS;
        s->users[i].drafted = false;
        who[i] = i;
    }
    for (int there = n; there > 0;) {
        uint64_t numbers[MOST];
        int stay = 0;
        for (int i = 0; i < there; i++) {
            numbers[i] = s->users[who[i]].number;
        }
        priced_step(e, s, who, there);
        for (int i = 0; i < there; i++) {
            if (s->users[who[i]].number == numbers[i]) {
                who[stay++] = who[i];
            }
        }
        there = stay;
    }
    return s->seconds - before;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Speed over that without drafts, of engines that have had one burst before: the median, and one in
 * ten is below the other figure. */
static void bursts(const machine *m, double acceptance, int n, double *median, double *tenth) {
    static sim s;
    static engine e;
    double ratios[ENGINES * (BURSTS - 1)], none = BURST_TOKENS * step_time(m, n);
    int count = 0;
    for (int k = 0; k < ENGINES && open_priced(&e, m, n); k++) {
        open_sim(&s, m, acceptance, n);
        state = (uint64_t)k + 1;
        for (int b = 0; b < BURSTS; b++) {
            double seconds = run_burst(&e, &s, n);
            if (b > 0) {
                ratios[count++] = none / seconds;
            }
        }
        close_priced(&e);
    }
    qsort(ratios, (size_t)count, sizeof *ratios, by_value);
    *median = ratios[count / 2];
    *tenth = ratios[count / 10];
}

/* ---- the tables -------------------------------------------------------------------------------*/

typedef struct worst {
    double off, fixed, oracle_sum;
    int points;
} worst;

static void run_point(const machine *m, double acceptance, int n, worst *w) {
    double off = run_fixed(m, acceptance, n, 0), best = off, oracle = off;
    int best_length = 0;
    for (int k = 1; k <= DRAFTS; k++) {
        double rate = run_fixed(m, acceptance, n, k);
        best_length = rate > best ? k : best_length;
        best = rate > best ? rate : best;
    }
    for (int k = 1, last = 0; k <= SHARES; k++) {
        int drafters = (n * k + SHARES - 1) / SHARES;
        double rate = drafters > last ? run_oracle(m, acceptance, n, drafters) : 0;
        oracle = rate > oracle ? rate : oracle;
        last = drafters;
    }
    double priced = run_priced(m, acceptance, n);
    w->off = priced / off < w->off ? priced / off : w->off;
    w->fixed = priced / best < w->fixed ? priced / best : w->fixed;
    w->oracle_sum += oracle / priced;
    w->points++;
    printf("  %5.2f/%d/%.2f/%.2f", priced / off, best_length, priced / best, oracle / priced);
}

/* 1, 4, 16, 64, 256, 512 */
static int next_load(int n) {
    return n == 256 ? MOST : n < 256 ? n * 4 : MOST + 1;
}

static void run_bursts(const machine *m) {
    printf("\nbursts of %d tokens on %s (priced over none: median / one in ten is below)\n%10s",
           BURST_TOKENS, m->name, "answers");
    for (int n = 1; n <= 64; n *= 8) {
        printf("  %12d", n);
    }
    putchar('\n');
    for (int tenths = 3; tenths <= 7; tenths++) {
        double a = tenths / 10.0;
        printf("%10.2f", a);
        for (int n = 1; n <= 64; n *= 8) {
            double median, tenth;
            bursts(m, a, n, &median, &tenth);
            printf("  %6.3f/%.3f", median, tenth);
        }
        putchar('\n');
        fflush(stdout);
    }
}

static void run_machine(const machine *m, int most, worst *all) {
    worst w = {.off = 1e9, .fixed = 1e9};
    printf("\n%s (priced over none / best fixed number / priced over that / oracle over priced)\n"
           "%10s",
           m->name, "answers");
    for (int n = 1; n <= most; n = next_load(n)) {
        printf("  %18d", n);
    }
    putchar('\n');
    for (int k = 0; k < KINDS; k++) {
        if (acceptances[k] > 0) {
            printf("%10.2f", acceptances[k]);
        } else {
            printf("%10s", "mixed");
        }
        for (int n = 1; n <= most; n = next_load(n)) {
            run_point(m, acceptances[k], n, &w);
        }
        putchar('\n');
        fflush(stdout);
    }
    printf("worst: %.3f of none, %.3f of the best fixed; the oracle's mean gain %.1f%%\n", w.off,
           w.fixed, 100 * (w.oracle_sum / w.points - 1));
    all->off = w.off < all->off ? w.off : all->off;
    all->fixed = w.fixed < all->fixed ? w.fixed : all->fixed;
}

int main(int argc, char **argv) {
    worst all = {.off = 1e9, .fixed = 1e9};
    machine machines[] = {machine_of("flat", false, flat_step, flat_draft),
                          machine_of("stepped", true, stepped_step, stepped_draft),
                          machine_of("steep", false, steep_step, steep_draft), card_machine()};
    for (int i = 0; i < KNOWN; i++) {
        run_machine(&machines[i], MOST, &all);
    }
    machine m = demo_machine();
    run_bursts(&m);
    if (measured_machine(&m)) {
        run_machine(&m, MOST, &all);
    }
    for (int i = 1; i < argc; i++) {
        if (file_machine(&m, argv[i])) {
            run_machine(&m, MOST, &all);
        }
    }
    printf("\nworst of all: %.3f of no drafts, %.3f of the best fixed number\n", all.off,
           all.fixed);
    return 0;
}
