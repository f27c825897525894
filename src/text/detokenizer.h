/* Token ids back to text, one at a time. Bytes are held until they are a whole character; what can
 * never become one is written as U+FFFD, one for each longest start of a character that broke off.
 * So every piece that comes out is valid UTF-8, and the pieces together are the same however the
 * ids were handed in. */
#ifndef DI_TEXT_DETOKENIZER_H
#define DI_TEXT_DETOKENIZER_H

#include "text/tokenizer.h"

typedef struct di_detokenizer {
    const di_tokenizer *tok;
    char held[4]; /* the start of a character */
    int held_size;
} di_detokenizer;

void di_detokenizer_init(di_detokenizer *d, const di_tokenizer *tok);

/* Begins behind a prompt that may end inside a character: its last bytes are held and will be
 * joined by the first new ones. Nothing of the prompt itself comes out. */
void di_detokenizer_prime(di_detokenizer *d, const int32_t *prompt, size_t count);

/* Appends the text that one more id completes: often nothing. An id without a token (a model's
 * vocabulary may be padded) has no text. Fails only for want of memory; the detokenizer is then of
 * no more use. */
bool di_detokenizer_push(di_detokenizer *d, int32_t id, di_buffer *out, di_error *err);

/* The end: a character that broke off comes out as U+FFFD. Afterwards d is as just initialised. */
bool di_detokenizer_finish(di_detokenizer *d, di_buffer *out, di_error *err);

/* All of it at once. */
bool di_detokenize(const di_tokenizer *tok, const int32_t *ids, size_t count, di_buffer *out,
                   di_error *err);

#endif
