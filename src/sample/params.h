/* What a request asks of the sampler: checked once, then never changed. One copy serves all
 * sequences of the request; what grows with a sequence is in history.h, and its seed is given with
 * every draw. Stop strings are not here (stop.h works on text), nor max_tokens and n (the
 * engine's).
 */
#ifndef DI_SAMPLE_PARAMS_H
#define DI_SAMPLE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* So that the sum of V weights of at most 2^46 stays below 2^63. */
enum { DI_SAMPLER_MAX_VOCAB = 131071 };

#define DI_GREEDY_TEMPERATURE 1e-5 /* below it: argmax, and no random number is used */
#define DI_MAX_TEMPERATURE    100.0

#define DI_MIN_REPETITION_PENALTY 1e-6
#define DI_MAX_REPETITION_PENALTY 100.0

enum {
    DI_MAX_LOGPROBS = 1000,      /* likeliest tokens reported beside the chosen one */
    DI_MAX_BAD_WORDS = 1024,     /* sequences */
    DI_MAX_BAD_WORD_TOKENS = 64, /* tokens in one */
};

/* The shape of the distribution that tokens are drawn from. */
typedef struct di_sampling {
    double temperature; /* [0, 100]; used as the nearest float32 */
    double top_p;       /* (0, 1]; 1 = off */
    double min_p;       /* [0, 1]; 0 = off */
    int64_t top_k;      /* -1 or 0 = off, else 1 .. 2^31 - 1 */
} di_sampling;

/* Refuses by name, value and allowed range; NaN and infinities too. */
bool di_sampling_check(const di_sampling *p, di_error *err);

typedef struct di_token_list {
    const int32_t *ids;
    size_t count;
} di_token_list;

typedef struct di_logit_bias {
    int32_t id;
    double bias; /* [-100, 100], added to the logit as float32 */
} di_logit_bias;

typedef enum di_logprobs_mode {
    DI_LOGPROBS_RAW,       /* the model's row at temperature 1; always so at temperature 0 */
    DI_LOGPROBS_PROCESSED, /* what the token was drawn from, after masks, penalties and filters */
} di_logprobs_mode;

/* Lists are the caller's memory; di_sample_params_clone copies them. */
typedef struct di_sample_params {
    di_sampling shape;

    /* On tokens of prompt and answer: x > 0 ? x / p : x * p. [1e-6, 100]; 1 = off. */
    double repetition_penalty;
    /* Subtracted once from every token of the answer, and once per occurrence. [-2, 2]; 0 = off. */
    double presence_penalty, frequency_penalty;

    const di_logit_bias *logit_bias; /* no id twice */
    size_t num_logit_bias;
    di_token_list allowed_token_ids; /* ids == NULL: all */
    const di_token_list *bad_words;  /* token sequences that the answer must not contain */
    size_t num_bad_words;
    di_token_list golden_token_ids; /* the answer's first tokens, forced; -1 leaves one free */

    int64_t min_tokens; /* before so many, no token that would end the answer */
    di_token_list stop_token_ids;
    int32_t eos_token_id; /* -1 = none */
    bool ignore_eos;      /* EOS does not end the answer, so min_tokens need not ban it */

    bool seeded; /* the client chose the seed: coupled draws (row.h) */
    uint64_t seed;

    bool logprobs;        /* report the chosen token's log-probability, and num_logprobs others' */
    int64_t num_logprobs; /* 0 .. 1000 */
    di_logprobs_mode logprobs_mode;
} di_sample_params;

/* Temperature 1, everything else off. */
void di_sample_params_init(di_sample_params *p);

/* DI_ERR_ARGUMENT naming the field, its value and what is allowed: numbers out of range or not
 * finite, ids outside [0, vocab_size), ids given twice, empty lists. DI_ERR_NO_MEMORY. */
bool di_sample_params_check(const di_sample_params *p, int vocab_size, di_error *err);

/* A copy that owns its lists (one allocation); NULL if memory is short. */
di_sample_params *di_sample_params_clone(const di_sample_params *p, di_error *err);
void di_sample_params_free(di_sample_params *p); /* of a clone; NULL is allowed */

/* True below DI_GREEDY_TEMPERATURE. */
static inline bool di_sampling_is_greedy(const di_sampling *p) {
    return (float)p->temperature < (float)DI_GREEDY_TEMPERATURE;
}

/* True if this token ends the answer. */
bool di_sample_ends(const di_sample_params *p, int32_t token);

/* True if some parameter depends on which tokens came before. */
static inline bool di_sample_params_penalise(const di_sample_params *p) {
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

#endif
