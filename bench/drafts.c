/* Speed with drafts against speed without, on the demo model: engines with drafts off, all verified
 * (fixed) and priced are open at once and take turns at the same requests, in another order each
 * time, so that whatever else the machine does meets all of them. A second engine without drafts
 * shows how far that goes. Ratios: of the best turns, and the median of those within each turn.
 *
 *     drafts [MODEL] [TOKENS] [TURNS] [BACKEND]
 *
 * Goal: priced is never below off. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "deepinfer/deepinfer.h"

enum { OFF, AGAIN, FIXED, PRICED, MODES, MOST = 64, MOST_TURNS = 200 };

static const char *const names[MODES] = {"off", "off again", "fixed 5", "priced"};

static const char *const subjects[] = {
    "a ghost",       "the sea",  "an old house", "two brothers",
    "a long winter", "the king", "a letter",     "the forest",
};

static const char *backend;

static di_engine *open_engine(const char *model, int mode, int batch) {
    di_error err = {0};
    di_engine_options o;
    di_engine_options_init(&o, sizeof o);
    o.model = model;
    o.backend = backend;
    o.gpu_memory = (int64_t)4 << 30; /* several are open at once */
    o.max_num_seqs = batch;
    o.num_drafts = mode == OFF || mode == AGAIN ? 0 : 5;
    o.spec_mode = mode == FIXED ? DI_SPEC_FIXED : DI_SPEC_PRICED;
    di_engine *e = di_engine_open(&o, &err);
    if (!e) {
        fprintf(stderr, "drafts: %s\n", err.message);
        exit(1);
    }
    return e;
}

/* Seconds of decoding: from the first token of the last request to the last token of all. */
static double run(di_engine *e, int batch, double temperature, int tokens, int turn) {
    di_error err = {0};
    di_queue *q = di_queue_create(e, &err);
    int begun = 0, ended = 0;
    double start = 0;
    for (int i = 0; i < batch; i++) {
        char text[160];
        snprintf(text, sizeof text,
                 "[{\"role\": \"user\", \"content\": \"Tell me story %d about %s.\"}]",
                 turn * MOST + i, subjects[i % 8]);
        di_prompt p;
        di_prompt_init(&p, sizeof p);
        p.messages = text;
        di_request_params params;
        di_request_params_init(e, &params, sizeof params);
        params.temperature = temperature;
        params.ignore_eos = true;
        params.max_tokens = tokens;
        params.has_seed = temperature == 0;
        if (!di_submit(e, q, &p, &params, NULL, &err)) {
            fprintf(stderr, "drafts: %s\n", err.message);
            exit(1);
        }
    }
    while (ended < batch) {
        di_output *out = di_queue_wait(q, -1);
        if (out) {
            begun +=
                out->completion_tokens > 0 && out->completion_tokens == (int64_t)out->num_token_ids;
            start = start == 0 && begun == batch ? di_now() : start;
            ended += out->finish_reason != DI_FINISH_NONE;
        }
        di_output_free(out);
    }
    double seconds = di_now() - start;
    di_queue_destroy(q);
    return seconds;
}

static void print_drafts(di_engine *e, const di_engine_stats *before) {
    di_engine_stats s = {.struct_bytes = sizeof s};
    di_engine_get_stats(e, &s);
    const di_engine_stats *b = before;
    double made = (double)(s.drafts_made_at[0] - b->drafts_made_at[0]);
    double rounds = (double)(s.draft_rounds - b->draft_rounds);
    double accepted = (double)(s.drafts_accepted - b->drafts_accepted);
    double steps = (double)(s.steps - b->steps);
    printf("   %.2f tokens a round, %.2f drafts of %.0f%% of the tokens",
           rounds > 0 ? 1 + accepted / rounds : 1,
           made > 0 ? (double)(s.drafts_verified - b->drafts_verified) / made : 0,
           100 * made / (double)(s.completion_tokens - b->completion_tokens));
    double predicted = s.priced_seconds_predicted - b->priced_seconds_predicted;
    if (predicted > 0) {
        printf("; steps predicted %.3f",
               predicted / (s.priced_seconds_measured - b->priced_seconds_measured));
    }
    double idle = s.device_idle_seconds - b->device_idle_seconds;
    double device = s.device_seconds - b->device_seconds;
    printf("; %.0f us a step, idle %.1f%%", 1e6 * device / steps, 100 * idle / (idle + device));
    if (s.card_steps + s.recorded_steps > 0) {
        printf("; of 100 steps %.0f queued, %.0f recorded",
               100 * (double)(s.card_steps - b->card_steps) / steps,
               100 * (double)(s.recorded_steps - b->recorded_steps) / steps);
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the first engine's seconds over this one's, turn by turn. */
static double median_ratio(const double *off, const double *mine, int turns) {
    double ratios[MOST_TURNS];
    for (int i = 0; i < turns; i++) {
        ratios[i] = off[i] / mine[i];
    }
    qsort(ratios, (size_t)turns, sizeof *ratios, by_value);
    return (ratios[turns / 2] + ratios[(turns - 1) / 2]) / 2;
}

/* Turns of all engines, and a line for each. */
static void compare(const char *model, int batch, double temperature, int tokens, int turns) {
    di_engine *engines[MODES];
    static double seconds[MODES][MOST_TURNS];
    double best[MODES];
    di_engine_stats before[MODES];
    for (int m = 0; m < MODES; m++) {
        engines[m] = open_engine(model, m, batch);
        run(engines[m], batch, temperature, tokens, 0);
        before[m] = (di_engine_stats){.struct_bytes = sizeof before[m]};
        di_engine_get_stats(engines[m], &before[m]);
        best[m] = 1e9;
    }
    for (int turn = 1; turn <= turns; turn++) {
        for (int k = 0; k < MODES; k++) {
            int m = (turn + (turn % 2 ? k : MODES - k)) % MODES;
            double took = run(engines[m], batch, temperature, tokens, turn);
            seconds[m][turn - 1] = took;
            best[m] = took < best[m] ? took : best[m];
        }
    }
    for (int m = 0; m < MODES; m++) {
        printf("%6d %6.1f  %-9s %9.0f %8.3f %8.3f", batch, temperature, names[m],
               batch * (tokens - 1) / best[m], best[OFF] / best[m],
               median_ratio(seconds[OFF], seconds[m], turns));
        print_drafts(engines[m], &before[m]);
        putchar('\n');
        di_engine_close(engines[m]);
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "models/demo";
    int tokens = argc > 2 ? atoi(argv[2]) : 96, turns = argc > 3 ? atoi(argv[3]) : 7;
    backend = argc > 4 ? argv[4] : NULL;
    turns = turns < 1 ? 1 : turns > MOST_TURNS ? MOST_TURNS : turns;
    printf("%6s %6s  %-9s %9s %8s %8s\n", "batch", "T", "mode", "tokens/s", "x off", "median");
    for (int batch = 1; batch <= MOST; batch *= 8) {
        for (int t = 0; t < 2; t++) {
            compare(model, batch, t, tokens, batch < 64 ? turns : (turns + 1) / 2);
        }
    }
    return 0;
}
