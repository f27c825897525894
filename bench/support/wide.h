/* A whole model of DeepSeek-V4.1-Flash's width on a card, with random weights: what the benchmarks
 * of whole steps (bench/cuda_model.c, cuda_drafts.c) have in common.
 *
 * Weights are random and spread as the released model's are (synthetic.h). As all of its routed
 * experts (272 GB) fit on no card, only some layers have experts of their own, and layer l (draft
 * stages are numbered behind the others) uses those of layer l % expert_layers: a step still reads
 * as many bytes, far more than any cache holds. n-gram tables are small ones, for the same reason.
 *
 * On the host the weights are a few pieces of memory that stand at many addresses; on the card each
 * address has a copy of its own. Whatever fails here ends the program with a message. */
#ifndef BENCH_SUPPORT_WIDE_H
#define BENCH_SUPPORT_WIDE_H

#include "cache/cache.h"
#include "model/queue.h"

typedef struct wide_options {
    int expert_layers; /* 1 .. 40 */
    bool drafts;       /* with the draft model */
    int chunk;         /* rows of a prefill step, and at most of any */
    int max_batch;     /* sequences */
    int max_logits;    /* rows with logits, and of recorded steps */
    int64_t longest;   /* context; sequences have room for WIDE_MORE tokens behind it */
} wide_options;

enum { WIDE_MORE = 4096 };

typedef struct wide {
    wide_options o;
    di_backend *be;
    di_weights weights;
    di_cache *cache;
    di_model *model;
    double bandwidth; /* bytes a second, of reading memory */
    /* Random ones. Sequences have their contexts in common, but should go on with other tokens
     * each (from tokens + 64 * i), so that they touch other experts. */
    int32_t *tokens;
} wide;

_Noreturn void wide_give_up(const char *what);
void wide_check(bool ok, const di_error *err);

/* Everything on the card, steps recorded. False: there is no card, which has been said. */
bool wide_open(wide *w, const wide_options *o);
void wide_close(wide *w);

/* A sequence's first n tokens in chunks; seconds of the whole. */
double wide_prefill(wide *w, di_seq *seq, int64_t n);

/* Opens another sequence with the same state in memory of its own. */
void wide_copy_sequence(wide *w, di_seq *to, const di_seq *from);

enum { WIDE_MOST_SEQS = 256 };

/* Seconds of a step in which each of n sequences, WIDE_MOST_SEQS at most, has so many rows, on
 * average over `steps` of them that are queued one behind the other. */
double wide_steps(wide *w, di_seq *seqs, int n, int rows_each, int steps);

/* Experts of a layer that the next step of one row each touches, the mean of all layers. Runs it op
 * by op; lengths stay. */
double wide_touched(wide *w, di_seq *seqs, int n);

#endif
