/* What drafts bring on a card: a whole model of DeepSeek-V4.1-Flash's width with its draft stages
 * (bench/support/wide.h), what its steps of one to six rows a sequence cost and what a round of
 * drafts costs, and from these, with drafts that stand as often as a given profile says, tokens a
 * second without drafts, with one to five verified always, and with the engine's own pricer
 * (sched/pricer.c), which has to find out.
 *
 *   bench/cuda_drafts [--expert-layers N] [--expect P,P,P,P,P] [CONTEXT]
 *
 * Random weights draft nothing that stands, so acceptance is forced: P is the probability that a
 * draft stands given that those before it did (0.9,0.8,0.7,0.6,0.5). Steps are recorded and queued
 * one behind the other; they end with logits, and drawing tokens is no part of them. A round of
 * drafts is timed as the engine runs it: five draws of greedy requests on the card, and the wait
 * for them. Without a card it says so and does nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/draft_round.h"
#include "sched/pricer.h"
#include "support/synthetic.h"
#include "support/wide.h"

enum {
    CHUNK = 2048, /* rows of a prefill step */
    DRAFTS = 5,
    MAX_BATCH = 256,
    STEPS = 8, /* queued at once */
    RUNS = 3,  /* of so many steps; the best counts */
    SIMULATED = 3000,
};

static const int batches[] = {1, 16, 64, MAX_BATCH};
enum { BATCHES = sizeof batches / sizeof *batches };

static wide w;
static di_seq seqs[MAX_BATCH];
static double chance[DRAFTS] = {0.9, 0.8, 0.7, 0.6, 0.5};

/* Seconds. */
static struct {
    double step[1 + DRAFTS]; /* by drafts a sequence */
    double draft;
} measured[BATCHES];

/* ---- measuring --------------------------------------------------------------------------------*/

/* As the engine runs it: draws, and the wait for them. */
static double draft_round(di_draft_round *r, const di_draft_rows *parts, int n) {
    static float confidence[MAX_BATCH * DRAFTS];
    di_error err;
    double start = di_now();
    di_draft_round_begin(r, n);
    for (int i = 0; i < n * DRAFTS; i++) {
        *di_draft_round_draw(r, i % n, i / n) =
            (di_draw){.forced = -1, .greedy = true, .mask = -1, .floor = 1};
    }
    wide_check(di_draft_round_run(r, parts, n, confidence, &err), &err);
    return di_now() - start;
}

/* The best of some runs behind one that records, or takes memory. */
static void keep_best(double *best, int run, double seconds) {
    *best = run == 1 || seconds < *best ? seconds : *best;
}

static void measure(int b, di_draft_round *round) {
    static di_draft_rows parts[MAX_BATCH];
    int n = batches[b];
    for (int run = 0; run <= RUNS; run++) {
        for (int k = 0; k <= DRAFTS; k++) {
            keep_best(&measured[b].step[k], run, wide_steps(&w, seqs, n, 1 + k, STEPS));
        }
    }
    for (int i = 0; i < n; i++) {
        parts[i] =
            (di_draft_rows){.pos0 = seqs[i].len, .slot = seqs[i].slot, .anchor = w.tokens[i]};
    }
    for (int run = 0; run <= RUNS; run++) {
        keep_best(&measured[b].draft, run, draft_round(round, parts, n));
    }
    printf("%6d", n);
    for (int k = 0; k <= DRAFTS; k++) {
        printf(" %8.2f", 1e3 * measured[b].step[k]);
    }
    printf("   %8.2f\n", 1e3 * measured[b].draft);
    fflush(stdout);
}

static void measure_all(int64_t context) {
    di_error err;
    di_draw_memory draws;
    di_draft_round round;
    wide_check(di_draw_memory_create(&draws, w.be, w.weights.config.vocab_size, MAX_BATCH * DRAFTS,
                                     0, 0, &err) &&
                   di_draft_round_create(&round, w.model, &draws, DRAFTS, &err),
               &err);
    wide_check(di_seq_open(w.cache, &seqs[0], (di_hash){0}, &err), &err);
    wide_prefill(&w, &seqs[0], context);
    wide_check(di_seq_reserve(w.cache, &seqs[0], context + WIDE_MORE, &err), &err);
    for (int i = 1; i < MAX_BATCH; i++) {
        wide_copy_sequence(&w, &seqs[i], &seqs[0]);
    }
    printf("\nms of a step by rows a sequence, and of a round of drafts; contexts of %lld and up\n"
           "%6s %8d %8d %8d %8d %8d %8d   %8s\n",
           (long long)context, "batch", 1, 2, 3, 4, 5, 6, "drafts");
    for (int b = 0; b < BATCHES; b++) {
        measure(b, &round);
    }
    di_model_counts c = di_model_get_counts(w.model);
    printf("as recorded programs ran %llu steps and %llu rounds, op by op %llu and %llu\n",
           (unsigned long long)c.recorded_steps, (unsigned long long)c.recorded_rounds,
           (unsigned long long)c.other_steps, (unsigned long long)c.other_rounds);
    di_draft_round_destroy(&round);
    di_draw_memory_destroy(&draws);
    for (int i = 0; i < MAX_BATCH; i++) {
        di_seq_close(w.cache, &seqs[i]);
    }
}

/* ---- policies ---------------------------------------------------------------------------------*/

static double fixed_rate(int b, int length) {
    double tokens = 1, survival = 1;
    for (int j = 0; j < length; j++) {
        tokens += survival *= chance[j];
    }
    double seconds = measured[b].step[length] + (length ? measured[b].draft : 0);
    return batches[b] * tokens / seconds;
}

static double unit(void) {
    return ((double)(synthetic_random() >> 11) + 0.5) * 0x1p-53;
}

static void open_pricer(di_pricer *p, int b) {
    di_pricer_options o = {.num_drafts = DRAFTS, .max_num_seqs = batches[b], .priced = true};
    di_curve step = {0}, draft = {0};
    for (int j = 0; j < DRAFTS; j++) {
        o.temperatures[j] = 1;
    }
    for (int k = 0; k <= DRAFTS; k++) {
        di_curve_add(&step, batches[b] * (1 + k), measured[b].step[k]);
    }
    for (int i = 0; i <= b; i++) {
        di_curve_add(&draft, batches[i], measured[i].draft);
    }
    di_error err;
    wide_check(di_pricer_create(p, &o, &err), &err);
    di_cost_init(&p->cost, &step, &draft, false);
}

typedef struct run {
    double tokens, seconds;
    long drafted, verified;
} run;

/* One step of n answers, as scheduler and device do it. */
static void simulate_step(di_pricer *p, di_job *jobs, int n, di_price_scratch *scratch, run *r) {
    static di_job *list[MAX_BATCH];
    static int limits[MAX_BATCH], lengths[MAX_BATCH];
    static float survival[MAX_BATCH * DRAFTS], confidence[DRAFTS];
    int all = 0, budget = 0, drafted = 0, given = 0;
    for (int i = 0; i < n; i++) {
        list[i] = &jobs[i];
        all += limits[i] = jobs[i].num_drafts;
        memcpy(survival + i * DRAFTS, jobs[i].survival, DRAFTS * sizeof *survival);
        di_pricer_wants_context(p, &jobs[i]);
    }
    if (all > 0) {
        budget = di_pricer_budget(p, list, limits, n, n, all);
    }
    di_slots slots = {survival, limits, n, DRAFTS};
    di_price_share(&slots, budget, scratch, lengths);
    di_pricer_proposals(p, list, n);
    di_pricer_law law = di_pricer_get_law(p);
    for (int j = 0; j < DRAFTS; j++) {
        confidence[j] = (float)log(chance[j] / (1 - chance[j]));
    }
    for (int i = 0; i < n; i++) {
        int accepted = 0;
        while (accepted < lengths[i] && unit() < chance[accepted]) {
            accepted++;
        }
        given += 1 + accepted;
        if (limits[i] > 0) {
            di_pricer_resolve(p, &jobs[i], lengths[i], accepted);
        }
        di_pricer_file(p, &jobs[i], &law, confidence, jobs[i].propose ? DRAFTS : 0);
        drafted += jobs[i].propose;
    }
    double seconds = di_curve_at(&p->cost.step, n + budget, false);
    double draft = drafted > 0 ? di_curve_at(&p->cost.draft, drafted, false) : 0;
    di_pricer_note(p, n, given, seconds + draft, budget > 0 || drafted > 0);
    di_cost_learn_forward(&p->cost, n + budget, 0, seconds);
    r->tokens += given;
    r->seconds += seconds + draft;
    r->drafted += drafted;
    r->verified += budget;
}

static run priced_run(int b) {
    static di_job jobs[MAX_BATCH];
    di_price_scratch scratch;
    di_pricer p;
    di_error err;
    run r = {0};
    int n = batches[b];
    open_pricer(&p, b);
    wide_check(di_price_scratch_create(&scratch, n * DRAFTS, &err), &err);
    for (int i = 0; i < n; i++) {
        jobs[i] = (di_job){.max_len = 1000000};
    }
    for (int t = 0; t < SIMULATED; t++) {
        if (t == SIMULATED / 10) { /* what it had to find out is not counted */
            r = (run){0};
        }
        simulate_step(&p, jobs, n, &scratch, &r);
    }
    di_price_scratch_destroy(&scratch);
    di_pricer_destroy(&p);
    return r;
}

static void compare(void) {
    printf("\ntokens/s, and over none; drafts stand with %.2f %.2f %.2f %.2f %.2f\n%6s %15s",
           chance[0], chance[1], chance[2], chance[3], chance[4], "batch", "none");
    for (int k = 1; k <= DRAFTS; k++) {
        printf(" %14s%d", "fixed ", k);
    }
    printf(" %15s   verified of drafted\n", "priced");
    for (int b = 0; b < BATCHES; b++) {
        double none = fixed_rate(b, 0);
        printf("%6d", batches[b]);
        for (int k = 0; k <= DRAFTS; k++) {
            double rate = fixed_rate(b, k);
            printf(" %9.0f %5.2f", rate, rate / none);
        }
        run r = priced_run(b);
        double rate = r.tokens / r.seconds;
        printf(" %9.0f %5.2f   %.2f of %.2f a token\n", rate, rate / none,
               (double)r.verified / r.tokens, (double)r.drafted * DRAFTS / r.tokens);
    }
    fflush(stdout);
}

/* ---- the run ----------------------------------------------------------------------------------*/

static void read_chances(const char *text) {
    for (int j = 0; j < DRAFTS; j++) {
        char *end;
        chance[j] = strtod(text, &end);
        if (end == text || chance[j] <= 0 || chance[j] >= 1 || *end != (j + 1 < DRAFTS ? ',' : 0)) {
            wide_give_up("--expect takes five numbers between 0 and 1, with commas");
        }
        text = end + 1;
    }
}

int main(int argc, char **argv) {
    int expert_layers = 13;
    int64_t context = 1024;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--expert-layers") == 0 && i + 1 < argc) {
            expert_layers = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--expect") == 0 && i + 1 < argc) {
            read_chances(argv[++i]);
        } else {
            context = atoll(argv[i]);
        }
    }
    if (context < 1 || context > 100000) {
        wide_give_up("contexts are 1 to 100000 tokens");
    }
    wide_options o = {
        .expert_layers = expert_layers,
        .drafts = true,
        .chunk = CHUNK,
        .max_batch = MAX_BATCH,
        .max_logits = MAX_BATCH * (1 + DRAFTS),
        .longest = context > CHUNK ? context : CHUNK,
    };
    if (!wide_open(&w, &o)) {
        return 0;
    }
    if (w.weights.config.dspark_block_size != DRAFTS) {
        wide_give_up("the model's block has another number of drafts");
    }
    measure_all(context);
    compare();
    wide_close(&w);
    return 0;
}
