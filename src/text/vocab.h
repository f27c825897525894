/* Token id -> bytes: the table that encoder, detokenizer and token map share. */
#ifndef DI_TEXT_VOCAB_H
#define DI_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DI_TOKEN_PRESENT = 1, /* the id has a token; ids without one have no bytes */
    DI_TOKEN_ADDED = 2,   /* from added_tokens */
    DI_TOKEN_SPECIAL = 4, /* ... and marked special */
    DI_TOKEN_RAW = 8,     /* its string is no byte alphabet: its bytes are the string's own UTF-8 */
};

/* Bytes of token id: bytes[start[id] .. start[id + 1]). */
typedef struct di_vocab {
    int32_t count; /* highest id + 1 */
    char *bytes;
    uint32_t *start; /* [count + 1] */
    uint8_t *flags;  /* [count] */
} di_vocab;

static inline const char *di_vocab_bytes(const di_vocab *v, int32_t id, size_t *size) {
    *size = v->start[id + 1] - v->start[id];
    return v->bytes + v->start[id];
}

#endif
