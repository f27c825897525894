/* Deciding about drafts: the host's time per step to choose how many of 512 answers' 5 drafts are
 * verified and whose, and which answers get new ones.
 *
 *     price [STEPS]
 *
 * Goal: lengths in at most 50 us. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "sched/pricer.h"

enum { SEQS = 512, DRAFTS = 5, POINTS = 40 };

static double unit(void) {
    static uint64_t seed = 1;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double *seconds, int steps) {
    qsort(seconds, (size_t)steps, sizeof *seconds, by_size);
    printf("%-10s %8.1f us median %8.1f us at 99 %%\n", what, 1e6 * seconds[steps / 2],
           1e6 * seconds[steps * 99 / 100]);
}

int main(int argc, char **argv) {
    static di_job jobs[SEQS];
    static di_job *list[SEQS];
    static int limits[SEQS], shares[SEQS];
    static float survival[SEQS * DRAFTS];
    di_slots slots = {survival, limits, SEQS, DRAFTS};
    di_price_scratch scratch = {0};
    int steps = argc > 1 ? atoi(argv[1]) : 2000;
    double *lengths = calloc((size_t)steps, sizeof *lengths);
    double *proposals = calloc((size_t)steps, sizeof *proposals);
    di_pricer_options o = {.num_drafts = DRAFTS, .max_num_seqs = SEQS, .priced = true};
    di_curve step = {0}, draft = {0};
    di_pricer p;
    for (int j = 0; j < DRAFTS; j++) {
        o.temperatures[j] = 1;
    }
    for (int i = 0; i < POINTS; i++) { /* stairs */
        di_curve_add(&step, 1 + i * SEQS * (1 + DRAFTS) / POINTS, 0.01 + 0.0005 * i);
        di_curve_add(&draft, 1 + i * SEQS / POINTS, 0.001 + 0.00002 * i);
    }
    if (!lengths || !proposals || !di_pricer_create(&p, &o, NULL) ||
        !di_price_scratch_create(&scratch, SEQS * DRAFTS, NULL)) {
        fprintf(stderr, "price: no memory\n");
        return 1;
    }
    di_cost_init(&p.cost, &step, &draft, true);
    long verified = 0;
    for (int t = 0; t < steps; t++) {
        for (int i = 0; i < SEQS; i++) {
            float z[DRAFTS];
            for (int j = 0; j < DRAFTS; j++) {
                z[j] = (float)(6 * unit() - 2 - j);
            }
            list[i] = &jobs[i];
            limits[i] = DRAFTS;
            jobs[i].seq.len = 1000;
            di_pricer_resolve(&p, &jobs[i], DRAFTS, (int)(unit() * 3));
            di_pricer_law law = di_pricer_get_law(&p);
            di_pricer_file(&p, &jobs[i], &law, z, DRAFTS);
            memcpy(survival + i * DRAFTS, jobs[i].survival, DRAFTS * sizeof *survival);
        }
        double start = di_now();
        int budget = di_pricer_budget(&p, list, limits, SEQS, SEQS, SEQS * DRAFTS);
        di_price_share(&slots, budget, &scratch, shares);
        double middle = di_now();
        di_pricer_proposals(&p, list, SEQS);
        lengths[t] = middle - start;
        proposals[t] = di_now() - middle;
        verified += budget;
    }
    printf("%d answers with %d drafts, %.0f of %d verified on average\n", SEQS, DRAFTS,
           (double)verified / steps, SEQS * DRAFTS);
    report("lengths", lengths, steps);
    report("proposals", proposals, steps);
    di_pricer_destroy(&p);
    di_price_scratch_destroy(&scratch);
    free(lengths);
    free(proposals);
    return 0;
}
