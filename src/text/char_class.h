/* What the pre-tokeniser asks of a character, as one byte of flags per code point. Made from
 * PCRE2's own properties when a tokenizer is opened, so that hand-written matching and patterns
 * cannot disagree about a character. One that is newer than PCRE2's tables has no class. */
#ifndef DI_TEXT_CHAR_CLASS_H
#define DI_TEXT_CHAR_CLASS_H

#include <stdint.h>

#include "base/error.h"

enum {
    DI_CHAR_LETTER = 1,      /* \p{L} */
    DI_CHAR_MARK = 2,        /* \p{M} */
    DI_CHAR_NUMBER = 4,      /* \p{N} */
    DI_CHAR_PUNCTUATION = 8, /* \p{P} */
    DI_CHAR_SYMBOL = 16,     /* \p{S} */
    DI_CHAR_SPACE = 32,      /* White_Space */
    DI_CHAR_NEWLINE = 64,    /* CR, LF */
    DI_CHAR_KANA_HAN = 128,  /* U+3040..30FF and U+4E00..9FA5 */
};

typedef struct di_char_classes {
    uint8_t ascii[128];
    uint8_t page[0x110000 >> 8]; /* which of the pages a code point's upper bits lead to */
    uint8_t (*pages)[256];       /* equal pages are stored once */
} di_char_classes;

bool di_char_classes_create(di_char_classes *k, di_error *err);
void di_char_classes_destroy(di_char_classes *k);

/* Flags of a code point below 0x110000. */
static inline unsigned di_char_class(const di_char_classes *k, uint32_t c) {
    return k->pages[k->page[c >> 8]][c & 0xFF];
}

/* Flags of the character at p, in text that is known to be valid UTF-8; *next is behind it. */
static inline unsigned di_char_class_at(const di_char_classes *k, const uint8_t *p,
                                        const uint8_t **next) {
    if (p[0] < 0x80) {
        *next = p + 1;
        return k->ascii[p[0]];
    }
    uint32_t c;
    if (p[0] < 0xE0) {
        c = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        *next = p + 2;
    } else if (p[0] < 0xF0) {
        c = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        *next = p + 3;
    } else {
        c = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        *next = p + 4;
    }
    return di_char_class(k, c);
}

#endif
