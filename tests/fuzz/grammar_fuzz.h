/* What the fuzzers of the three grammar languages do with their bytes. */
#ifndef TESTS_FUZZ_GRAMMAR_FUZZ_H
#define TESTS_FUZZ_GRAMMAR_FUZZ_H

#include <stdlib.h>

#include "grammar/grammar.h"

static inline void fuzz_must(bool ok) {
    if (!ok) {
        abort();
    }
}

/* All single bytes, and some pairs. */
static inline di_vocab *fuzz_vocab(void) {
    static char bytes[256];
    static di_vocab_token tokens[260];
    for (int b = 0; b < 256; b++) {
        bytes[b] = (char)b;
        tokens[1 + b] = (di_vocab_token){&bytes[b], 1};
    }
    tokens[257] = (di_vocab_token){"\",", 2};
    tokens[258] = (di_vocab_token){"ab", 2};
    tokens[259] = (di_vocab_token){"{\"", 2};
    int32_t stop = 0;
    return di_vocab_create(tokens, 260, 260, &stop, 1, NULL);
}

static inline void fuzz_walk(di_grammar *g, const uint8_t *choices, size_t size) {
    di_error err = {0};
    uint32_t mask[9];
    di_matcher *m = di_matcher_create(g, &err);
    fuzz_must(m != NULL);
    for (size_t i = 0; i < size && i < 24 && !di_matcher_ended(m); i++) {
        if (!di_matcher_mask(m, mask, &err)) {
            fuzz_must(err.code == DI_ERR_UNSUPPORTED);
            break;
        }
        int32_t taken = -1;
        for (int32_t k = 0; k < 260; k++) {
            int32_t id = (choices[i] + k) % 260;
            bool allowed = mask[id / 32] >> id % 32 & 1;
            di_error why = {0};
            bool ok = di_matcher_push(m, id, &why);
            fuzz_must(ok == allowed || why.code == DI_ERR_UNSUPPORTED);
            fuzz_must(!ok || di_matcher_rollback(m, 1));
            if (allowed && taken < 0) {
                taken = id;
            }
        }
        fuzz_must(taken >= 0);
        if (!di_matcher_push(m, taken, &err)) {
            break;
        }
    }
    di_matcher_destroy(m);
}

static inline void fuzz_grammar(di_grammar_type type, const uint8_t *data, size_t size) {
    static di_vocab *vocab;
    vocab = vocab ? vocab : fuzz_vocab();
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.max_bytes = 16u << 20;
    o.any_order = size & 1;
    di_error err = {0};
    di_grammar *g = di_grammar_compile(vocab, type, (const char *)data, size, &o, &err);
    fuzz_must(g || (err.code != DI_OK && err.code != DI_ERR_INTERNAL && err.message[0]));
    if (g) {
        fuzz_walk(g, data, size);
        di_grammar_release(g);
    }
}

#endif
