/* What sampling one row of DeepSeek-V4.1's vocabulary costs: one thread, best of several runs, for
 * each set of kernels this processor has.
 *
 *   sampler [SETS]     SETS: how many kernel sets to time, best first (default: all)
 *
 * Every time stands beside that of reading the row once (summing it as integers) in the same run.
 * Rows are made from random words. "sharp": few likely tokens and a long tail, as a model's rows
 * are; "flat": logits of deviation 1, the filters' worst case (top_p 0.95 keeps three quarters). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sample/philox.h"
#include "sample/row.h"

enum { VOCAB = 129280, RUNS = 41, PENALISED = 2000 };

_Noreturn static void die(const di_error *err) {
    fprintf(stderr, "sampler: %s\n", err->message);
    exit(1);
}

/* Sharp: the best token has a few rivals. Flat: logits of deviation 1. */
static void fill_row(float *x, bool sharp) {
    for (uint32_t i = 0; i < VOCAB; i++) {
        uint32_t w[4];
        di_random_words(7, i, DI_RANDOM_TARGET, 0, w);
        double u = (w[0] + 0.5) * 0x1p-32, v = (w[1] + 0.5) * 0x1p-32;
        double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
        x[i] = (float)(sharp ? 3 * normal - 1.5 * log(u) : normal);
    }
}

static uint64_t read_row(const float *x) {
    const uint32_t *bits = (const uint32_t *)(const void *)x;
    uint32_t sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        sum += bits[i];
    }
    return sum;
}

static double time_read(const float *x) {
    double best = 1;
    for (int run = 0; run < RUNS; run++) {
        double start = di_now();
        uint64_t sum = read_row(x);
        double took = di_now() - start;
        best = took < best && sum != 0 ? took : best; /* the sum must be worth computing */
    }
    return best;
}

static double time_rows(const di_sample_params *p, const float *x, const di_sample_history *h,
                        const uint32_t *mask, di_sample_scratch *s) {
    double best = 1;
    di_error err;
    for (uint64_t run = 0; run < RUNS; run++) {
        di_sample_input in = {x, mask, h, 42, run, 0};
        di_sampled out;
        double start = di_now();
        if (!di_sample_row(p, &in, s, &out, &err)) {
            die(&err);
        }
        double took = di_now() - start;
        best = took < best ? took : best;
    }
    return best;
}

static void report(const char *row, const char *what, double took, double reading) {
    printf("%-6s %-26s %9.1f us %7.2f ns/token %6.1f x reading\n", row, what, 1e6 * took,
           1e9 * took / VOCAB, took / reading);
}

typedef struct setting {
    const char *name;
    double temperature, top_p, min_p;
    int64_t top_k;
    bool seeded;
    int64_t logprobs; /* -1 = none */
    bool penalties, mask;
} setting;

static const setting settings[] = {
    {"greedy", 0, 1, 0, -1, false, -1, false, false},
    {"greedy, a grammar's mask", 0, 1, 0, -1, false, -1, false, true},
    {"temperature 1", 1, 1, 0, -1, false, -1, false, false},
    {"temperature 1, seeded", 1, 1, 0, -1, true, -1, false, false},
    {"top_p 0.95", 1, 0.95, 0, -1, false, -1, false, false},
    {"top_p 0.95, seeded", 1, 0.95, 0, -1, true, -1, false, false},
    {"top_k 50", 1, 1, 0, 50, false, -1, false, false},
    {"top_k 50, top_p 0.95", 1, 0.95, 0, 50, false, -1, false, false},
    {"top_k 5000", 1, 1, 0, 5000, false, -1, false, false},
    {"min_p 0.05", 1, 1, 0.05, -1, false, -1, false, false},
    {"penalties, 2000 tokens", 1, 1, 0, -1, false, -1, true, false},
    {"logprobs 20, raw", 1, 1, 0, -1, false, 20, false, false},
    {"logprobs 20, raw, T = 0.6", 0.6, 0.95, 0, -1, false, 20, false, false},
};

static void bench_row(const char *row, const float *x, const di_sample_history *h,
                      const uint32_t *mask, di_sample_scratch *s) {
    double reading = time_read(x);
    report(row, "reading it once", reading, reading);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const setting *t = &settings[i];
        di_sample_params p;
        di_sample_params_init(&p);
        p.shape = (di_sampling){t->temperature, t->top_p, t->min_p, t->top_k};
        p.seeded = t->seeded;
        p.logprobs = t->logprobs >= 0;
        p.num_logprobs = t->logprobs > 0 ? t->logprobs : 0;
        if (t->penalties) {
            p.repetition_penalty = 1.1;
            p.frequency_penalty = 0.2;
        }
        double took = time_rows(&p, x, t->penalties ? h : NULL, t->mask ? mask : NULL, s);
        report(row, t->name, took, reading);
    }
}

static di_sample_history make_history(void) {
    static int32_t prompt[PENALISED];
    di_sample_params p;
    di_sample_history h;
    di_error err;
    di_sample_params_init(&p);
    p.repetition_penalty = 1.1;
    for (int i = 0; i < PENALISED; i++) {
        prompt[i] = i * 61 % VOCAB;
    }
    if (!di_sample_history_create(&h, &p, VOCAB, prompt, PENALISED, 0, &err)) {
        die(&err);
    }
    return h;
}

int main(int argc, char **argv) {
    static float sharp[VOCAB], flat[VOCAB];
    static uint32_t mask[(VOCAB + 31) / 32];
    int sets = argc > 1 ? atoi(argv[1]) : 3;
    di_error err;
    di_sample_scratch *s = di_sample_scratch_create(VOCAB, &err);
    if (!s) {
        die(&err);
    }
    fill_row(sharp, true);
    fill_row(flat, false);
    for (size_t i = 0; i < sizeof mask / sizeof *mask; i++) {
        mask[i] = 0x12345678u * (uint32_t)(i + 1);
    }
    di_sample_history h = make_history();
    for (int i = 0; i < sets && di_sample_scratch_use_kernels(s, i); i++) {
        printf("kernels: %s\n", di_sample_scratch_kernels_name(s));
        bench_row("sharp", sharp, &h, mask, s);
        bench_row("flat", flat, &h, mask, s);
    }
    di_sample_history_destroy(&h);
    di_sample_scratch_destroy(s);
    return 0;
}
