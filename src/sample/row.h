/* From a row of logits to a token and its log-probability, in arithmetic that gives the same token
 * on every machine. Called by the engine once a token; the result depends on the arguments alone,
 * never on other rows, threads, vector width or how often it was called before.
 *
 * The order: bias, allowed tokens, bad words, min_tokens; grammar; repetition, frequency and
 * presence penalties; at temperature 0 the best token, lowest id among equals; else weights at the
 * temperature; top_p on the full softmax with top_k a second cap; min_p; the draw.
 *
 * Two ways to draw. Unseeded requests: inverse CDF over integer sums with words 0 and 1 of (seed,
 * position, DI_RANDOM_TARGET). Seeded ones: a race, in which token v's time is exponential noise of
 * (seed, position, DI_RANDOM_COUPLED, v) over its weight, so that a draft model running the same
 * race proposes mostly the winner, and the text does not depend on drafts. docs/sampling.md has
 * both.
 *
 * Drafts. Greedy and seeded: the draft is drawn as the token will be, and stands if it is equal.
 * Unseeded: exact rejection (law.h), by which the token has the target's distribution whatever the
 * draft's was, and drafts stand more often; it costs that the text depends on which drafts there
 * were. */
#ifndef DI_SAMPLE_ROW_H
#define DI_SAMPLE_ROW_H

#include "sample/history.h"
#include "sample/law.h"

/* Working memory for rows of one vocabulary size; one thread at a time. About 20 bytes a token. */
typedef struct di_sample_scratch di_sample_scratch;

di_sample_scratch *di_sample_scratch_create(int vocab_size, di_error *err);
void di_sample_scratch_destroy(di_sample_scratch *s); /* NULL is allowed */

/* For tests and benches: which of kernels.h's sets to use; false if this processor lacks it.
 * Results do not depend on it. */
bool di_sample_scratch_use_kernels(di_sample_scratch *s, int index);
const char *di_sample_scratch_kernels_name(const di_sample_scratch *s);

/* One row and where it stands. */
typedef struct di_sample_input {
    const float *logits; /* f32 [vocab_size], never written */
    /* Bit id % 32 of word id / 32: the grammar allows the token; NULL = all are. */
    const uint32_t *grammar_mask;
    const di_sample_history *history; /* NULL = empty */
    uint64_t seed;      /* the sequence's: the client's, its choice's, or the engine's random one */
    uint64_t position;  /* absolute index, in the sequence, of the token to be produced */
    int64_t num_output; /* tokens of the answer before it */
    /* Unseeded: the draft that stands at this position and what it was drawn from; NULL = none. The
     * draft stands if it is the token that comes out. */
    const di_draft_law *law;
} di_sample_input;

/* Log-probabilities of a token and of the likeliest ones. A row may have fewer than asked for: what
 * cannot occur is not listed. The arrays lie in the scratch, until its next use. */
typedef struct di_logprobs {
    double logprob; /* natural; -infinity for a (forced) token that cannot occur */
    int num_top;
    const int32_t *top_ids; /* key descending, id ascending */
    const double *top_logprobs;
} di_logprobs;

typedef struct di_sampled {
    int32_t token;
    bool forced;          /* by golden_token_ids; nothing was drawn */
    int32_t kept;         /* tokens that the filters left; 0 if nobody had to count them */
    uint64_t sum;         /* of all weights at the temperature; 0 if nobody had to know */
    uint64_t kept_sum;    /* of the kept ones; 0 likewise */
    di_logprobs logprobs; /* if the parameters ask for them, else all zero */
} di_sampled;

/* Draws one token. `p` has passed di_sample_params_check for the scratch's vocabulary. False with
 * "bad logits" when the model's row holds a NaN or +infinity and with "no legal token" when nothing
 * is left that may be drawn: errors of this request alone. */
bool di_sample_row(const di_sample_params *p, const di_sample_input *in, di_sample_scratch *s,
                   di_sampled *out, di_error *err);

/* Draws a draft; `index` counts positions from the newest token on. Unseeded above temperature 0
 * *law is filled for the test, else emptied; the draft is law->token. Masks and penalties are the
 * draft's to follow or not: they only make it likelier to stand. Fails as di_sample_row. */
bool di_propose_row(const di_sample_params *p, const di_sample_input *in, uint32_t index,
                    di_sample_scratch *s, di_draft_law *law, di_error *err);

/* Log-probability of a token that the prompt has, and of the likeliest at its place, from the row
 * before it. RAW: temperature 1; PROCESSED: the request's temperature and filters (no bias, masks
 * or penalties, which are for answers). Fails as di_sample_row. */
bool di_prompt_logprobs(const di_sample_params *p, const float *logits, int32_t token,
                        di_sample_scratch *s, di_logprobs *out, di_error *err);

#endif
