/* Ids to text, see detokenizer.h. */
#include "text/detokenizer.h"

#include <string.h>

#include "base/utf8.h"

static bool append_replacement(di_buffer *out, di_error *err) {
    char c[4];
    return di_buffer_append(out, c, (size_t)di_utf8_encode(DI_UTF8_REPLACEMENT, c), err);
}

/* One more byte. Before it, held is the start of a character, so at most one character is complete
 * behind it; but it may break off the held one and then stand for itself. */
static bool push_byte(di_detokenizer *d, char byte, di_buffer *out, di_error *err) {
    d->held[d->held_size++] = byte;
    while (d->held_size > 0) {
        uint32_t c;
        int length = di_utf8_next(d->held, (size_t)d->held_size, &c);
        if (length == 0) {
            return true;
        }
        if (!(c == DI_UTF8_MALFORMED ? append_replacement(out, err)
                                     : di_buffer_append(out, d->held, (size_t)length, err))) {
            return false;
        }
        d->held_size -= length;
        memmove(d->held, d->held + length, (size_t)d->held_size);
    }
    return true;
}

void di_detokenizer_init(di_detokenizer *d, const di_tokenizer *tok) {
    *d = (di_detokenizer){.tok = tok};
}

void di_detokenizer_prime(di_detokenizer *d, const int32_t *prompt, size_t count) {
    char tail[3]; /* the last bytes of the prompt, filled from its end */
    size_t size = 0;
    while (count > 0 && size < sizeof tail) {
        size_t n;
        const char *bytes = di_tokenizer_token_bytes(d->tok, prompt[--count], &n);
        while (n > 0 && size < sizeof tail) {
            tail[sizeof tail - ++size] = bytes[--n];
        }
    }
    /* No byte that begins a character can be part of another, so the first start that still lacks
     * its rest is the open one, whatever lies before it. */
    for (; size > 0; size--) {
        uint32_t c;
        const char *start = tail + sizeof tail - size;
        if (di_utf8_next(start, size, &c) == 0) {
            memcpy(d->held, start, size);
            d->held_size = (int)size;
            return;
        }
    }
}

bool di_detokenizer_push(di_detokenizer *d, int32_t id, di_buffer *out, di_error *err) {
    size_t size;
    const char *bytes = di_tokenizer_token_bytes(d->tok, id, &size);
    for (size_t i = 0; i < size; i++) {
        if (!push_byte(d, bytes[i], out, err)) {
            return false;
        }
    }
    return true;
}

bool di_detokenizer_finish(di_detokenizer *d, di_buffer *out, di_error *err) {
    bool broken = d->held_size > 0;
    d->held_size = 0;
    return !broken || append_replacement(out, err);
}

bool di_detokenize(const di_tokenizer *tok, const int32_t *ids, size_t count, di_buffer *out,
                   di_error *err) {
    di_detokenizer d;
    di_detokenizer_init(&d, tok);
    for (size_t i = 0; i < count; i++) {
        if (!di_detokenizer_push(&d, ids[i], out, err)) {
            return false;
        }
    }
    return di_detokenizer_finish(&d, out, err);
}
