/* A matcher for the three patterns that DeepSeek's tokenizer files ship, and for nothing else.
 *
 * Pattern 1 takes numbers in threes, pattern 2 runs of kana and Han; both leave stretches on which
 * pattern 3 runs as if each were a text of its own. No number matches pattern 3, so the threes stay
 * as they are. split.c chooses this file only when a tokenizer's patterns are exactly these. */
#include "text/split.h"

const char *const di_deepseek_patterns[3] = {
    "\\p{N}{1,3}",
    "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    "|\\s+(?!\\S)"
    "|\\s+",
};

enum {
    WORD = DI_CHAR_LETTER | DI_CHAR_MARK,
    SIGN = DI_CHAR_PUNCTUATION | DI_CHAR_SYMBOL,
};

/* End of the run of characters that have one of `flags`, from p on. */
static inline const uint8_t *run_of(const di_char_classes *k, unsigned flags, const uint8_t *p,
                                    const uint8_t *end) {
    const uint8_t *next = p;
    while (p < end && di_char_class_at(k, p, &next) & flags) {
        p = next;
    }
    return p;
}

static inline bool is_ascii_letter(uint8_t c) {
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

/* Alternatives 4 to 6 at a space character: up to the last line end of the run; or the run without
 * its last character, which belongs to the word behind it; or all of it at the end of the stretch.
 */
static const uint8_t *match_space(const di_char_classes *k, const uint8_t *p, const uint8_t *end) {
    const uint8_t *line_end = NULL, *last = p, *next = p, *at = p;
    unsigned flags;
    while (at < end && (flags = di_char_class_at(k, at, &next)) & DI_CHAR_SPACE) {
        last = at;
        at = next;
        line_end = flags & DI_CHAR_NEWLINE ? at : line_end;
    }
    if (line_end) {
        return line_end;
    }
    return at == end || last == p ? at : last;
}

/* End of pattern 3's match at p, or p if no alternative matches there. */
static inline const uint8_t *match_word(const di_char_classes *k, const uint8_t *p,
                                        const uint8_t *end) {
    const uint8_t *next, *after;
    unsigned flags = di_char_class_at(k, p, &next);
    if (flags & WORD) { /* alternative 2; a mark in front is prefix or word, which is the same */
        return run_of(k, WORD, next, end);
    }
    unsigned following = next < end ? di_char_class_at(k, next, &after) : 0;
    if (flags & SIGN) {
        if (*p < 0x80 && next < end && is_ascii_letter(*next)) { /* alternative 1 */
            do {
                next++;
            } while (next < end && is_ascii_letter(*next));
            return next;
        }
        return run_of(k, DI_CHAR_NEWLINE, run_of(k, SIGN, next, end), end); /* alternative 3 */
    }
    if (following & WORD && !(flags & DI_CHAR_NEWLINE)) { /* alternative 2 with its prefix */
        return run_of(k, WORD, after, end);
    }
    if (*p == ' ' && following & SIGN) { /* alternative 3 */
        return run_of(k, DI_CHAR_NEWLINE, run_of(k, SIGN, after, end), end);
    }
    return flags & DI_CHAR_SPACE ? match_space(k, p, end) : p;
}

static inline bool emit(const uint8_t *from, const uint8_t *to, di_piece_fn *piece, void *context,
                        di_error *err) {
    return from == to || piece(context, (const char *)from, (size_t)(to - from), err);
}

/* Pattern 3 on one stretch; what matches nothing is a piece up to the next match. */
static bool split_stretch(const di_char_classes *k, const uint8_t *p, const uint8_t *end,
                          di_piece_fn *piece, void *context, di_error *err) {
    const uint8_t *gap = p;
    while (p < end) {
        const uint8_t *to = match_word(k, p, end);
        if (to == p) {
            di_char_class_at(k, p, &p);
            continue;
        }
        if (!emit(gap, p, piece, context, err) || !emit(p, to, piece, context, err)) {
            return false;
        }
        gap = p = to;
    }
    return emit(gap, end, piece, context, err);
}

/* End of the group of at most three numbers at p. */
static const uint8_t *match_number(const di_char_classes *k, const uint8_t *p, const uint8_t *end) {
    const uint8_t *next = p;
    for (int i = 0; i < 3 && p < end && di_char_class_at(k, p, &next) & DI_CHAR_NUMBER; i++) {
        p = next;
    }
    return p;
}

bool di_split_deepseek(const di_char_classes *k, const char *text, size_t size, di_piece_fn *piece,
                       void *context, di_error *err) {
    const uint8_t *p = (const uint8_t *)text, *end = p + size;
    while (p < end) {
        const uint8_t *next, *to;
        unsigned flags = di_char_class_at(k, p, &next);
        if (flags & DI_CHAR_NUMBER) {
            to = match_number(k, p, end);
            if (!emit(p, to, piece, context, err)) {
                return false;
            }
        } else {
            if (flags & DI_CHAR_KANA_HAN) {
                to = run_of(k, DI_CHAR_KANA_HAN, next, end);
            } else {
                to = p;
                while (to < end &&
                       !(di_char_class_at(k, to, &next) & (DI_CHAR_NUMBER | DI_CHAR_KANA_HAN))) {
                    to = next;
                }
            }
            if (!split_stretch(k, p, to, piece, context, err)) {
                return false;
            }
        }
        p = to;
    }
    return true;
}
