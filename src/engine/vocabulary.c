/* See vocabulary.h. */
#include "engine/vocabulary.h"

#include <string.h>

#include "base/alloc.h"

#define DSML_TOKEN "｜DSML｜"

/* Bytes that only stand for control tokens: no text of any grammar holds them. */
static bool is_text(const char *bytes, size_t size) {
    return !memchr(bytes, DI_VOCAB_DSML[0], size);
}

di_vocab *di_vocabulary_create(const di_tokenizer *tok, int32_t num_bits, int32_t stop,
                               di_error *err) {
    int32_t n = di_tokenizer_vocab_size(tok), dsml = di_tokenizer_id(tok, DSML_TOKEN);
    di_vocab_token *tokens = di_calloc((size_t)n + 1, sizeof *tokens);
    if (!tokens) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d tokens", n);
        return NULL;
    }
    for (int32_t id = 0; id < n; id++) {
        size_t size;
        const char *bytes = di_tokenizer_token_bytes(tok, id, &size);
        if (!di_tokenizer_is_added(tok, id) && size > 0 && is_text(bytes, size)) {
            tokens[id] = (di_vocab_token){bytes, size};
        }
    }
    if (dsml >= 0) {
        tokens[dsml] = (di_vocab_token){DI_VOCAB_DSML, 1};
    }
    di_vocab *v = di_vocab_create(tokens, n, num_bits, &stop, 1, err);
    di_free(tokens);
    return v;
}
