/* What a sequence's past means to its next token: counts for the penalties, and the last tokens for
 * bad words. Owned by the sequence; the engine adds every token it keeps. Holds nothing when the
 * parameters ask for nothing, and allocates nothing while the answer stays within what was
 * reserved.
 */
#ifndef DI_SAMPLE_HISTORY_H
#define DI_SAMPLE_HISTORY_H

#include "sample/params.h"

/* A token that has occurred. */
typedef struct di_token_count {
    int32_t id;
    uint32_t in_output; /* times */
    bool in_prompt;
} di_token_count;

/* All zero is the history of a request without penalties and bad words. */
typedef struct di_sample_history {
    bool counting;
    di_token_count *tokens; /* [num_tokens], in order of first occurrence */
    size_t num_tokens, capacity;
    uint32_t *table; /* open addressing: index into tokens + 1, 0 = free; twice capacity or more */
    size_t table_mask;

    int32_t *last; /* [num_last]: the answer's last tokens, newest at the end */
    size_t num_last, max_last;
} di_sample_history;

/* Counts the prompt and makes room for max_tokens further tokens (no more than the vocabulary can
 * need). `p` has passed its check; ids lie in [0, vocab_size). On failure *h is all zero. */
bool di_sample_history_create(di_sample_history *h, const di_sample_params *p, int vocab_size,
                              const int32_t *prompt, size_t num_prompt, size_t max_tokens,
                              di_error *err);
void di_sample_history_destroy(di_sample_history *h); /* and makes it all zero */

/* Takes in a token of the answer. Fails only for want of memory beyond what was reserved, and then
 * leaves the history as it was. */
bool di_sample_history_push(di_sample_history *h, int32_t token, di_error *err);

/* True if the answer's last tokens are ids[0 .. count). */
bool di_sample_history_ends_with(const di_sample_history *h, const int32_t *ids, size_t count);

#endif
