/* A tokenizer in use, see tokenizer.h; opening one is in tokenizer_load.c. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_parts.h"

/* Places within a text are 31-bit numbers in the merge list. */
#define MOST_TEXT_BYTES ((size_t)1 << 30)

/* Below this a memo costs more to clear than it saves. */
#define MEMO_FROM_BYTES 8192

typedef struct encoding {
    const di_tokenizer *tok;
    di_bpe_scratch scratch;
    di_ids *out;
} encoding;

static bool encode_piece(void *context, const char *piece, size_t size, di_error *err) {
    encoding *e = context;
    return di_bpe_encode(&e->tok->bpe, &e->scratch, piece, size, e->out, err);
}

static bool encode_plain(encoding *e, const char *text, size_t size, di_error *err) {
    return di_split(&e->tok->splitter, text, size, encode_piece, e, err);
}

/* Encodes what lies between the added tokens of one set by `rest`. */
static bool encode_around(encoding *e, const di_added *added,
                          bool (*rest)(encoding *, const char *, size_t, di_error *),
                          const char *text, size_t size, di_error *err) {
    di_added_search search = {.text = text, .size = size};
    size_t done = 0;
    int32_t id;
    while ((id = di_added_next(added, &search)) >= 0) {
        if ((search.begin > done && !rest(e, text + done, search.begin - done, err)) ||
            !di_ids_push(e->out, id, err)) {
            return false;
        }
        done = search.end;
    }
    return done >= size || rest(e, text + done, size - done, err);
}

static bool encode_then(encoding *e, const char *text, size_t size, di_error *err) {
    return encode_around(e, &e->tok->added_then, encode_plain, text, size, err);
}

bool di_tokenizer_encode(const di_tokenizer *tok, const char *text, size_t size,
                         di_encode_mode mode, di_ids *out, di_error *err) {
    size_t bad;
    if (size > MOST_TEXT_BYTES) {
        return di_fail(err, DI_ERR_ARGUMENT, "text of %zu bytes (at most %zu can be tokenised)",
                       size, MOST_TEXT_BYTES);
    }
    if (!di_utf8_valid(text, size, &bad)) {
        return di_fail(err, DI_ERR_ARGUMENT, "text is not valid UTF-8: byte 0x%02x at offset %zu",
                       (unsigned)(unsigned char)text[bad], bad);
    }
    encoding e = {.tok = tok, .out = out};
    if (size >= MEMO_FROM_BYTES) {
        di_bpe_scratch_add_memo(&e.scratch);
    }
    size_t before = out->count;
    bool ok = mode == DI_ENCODE_PLAIN
                  ? encode_plain(&e, text, size, err)
                  : encode_around(&e, &tok->added_first, encode_then, text, size, err);
    di_bpe_scratch_free(&e.scratch);
    if (!ok) {
        out->count = before;
    }
    return ok;
}

int32_t di_tokenizer_vocab_size(const di_tokenizer *tok) {
    return tok->vocab.count;
}

static unsigned flags_of(const di_tokenizer *tok, int32_t id) {
    return id >= 0 && id < tok->vocab.count ? tok->vocab.flags[id] : 0;
}

const char *di_tokenizer_token_bytes(const di_tokenizer *tok, int32_t id, size_t *size) {
    if (!flags_of(tok, id)) {
        *size = 0;
        return "";
    }
    return di_vocab_bytes(&tok->vocab, id, size);
}

bool di_tokenizer_token_string(const di_tokenizer *tok, int32_t id, di_buffer *out, di_error *err) {
    size_t size;
    const char *bytes = di_tokenizer_token_bytes(tok, id, &size);
    if (flags_of(tok, id) & DI_TOKEN_RAW) {
        return di_buffer_append(out, bytes, size, err);
    }
    size_t before = out->size;
    for (size_t i = 0; i < size; i++) {
        char c[4];
        int length = di_utf8_encode(di_byte_to_char((unsigned char)bytes[i]), c);
        if (!di_buffer_append(out, c, (size_t)length, err)) {
            out->size = before;
            return false;
        }
    }
    return true;
}

int32_t di_tokenizer_id(const di_tokenizer *tok, const char *text) {
    int32_t id = di_added_find(&tok->added_first, text, strlen(text));
    return id >= 0 ? id : di_added_find(&tok->added_then, text, strlen(text));
}

bool di_tokenizer_is_added(const di_tokenizer *tok, int32_t id) {
    return flags_of(tok, id) & DI_TOKEN_ADDED;
}

bool di_tokenizer_is_special(const di_tokenizer *tok, int32_t id) {
    return flags_of(tok, id) & DI_TOKEN_SPECIAL;
}

void di_tokenizer_close(di_tokenizer *tok) {
    if (!tok) {
        return;
    }
    di_added_destroy(&tok->added_first);
    di_added_destroy(&tok->added_then);
    di_splitter_destroy(&tok->splitter);
    di_bpe_destroy(&tok->bpe);
    di_free(tok->vocab.bytes);
    di_free(tok->vocab.start);
    di_free(tok->vocab.flags);
    di_free(tok);
}
