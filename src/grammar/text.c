/* Terms over Unicode text: characters as UTF-8 byte sequences, and texts written as JSON strings.
 *
 * STRING(text, mode, data) is what may follow when part of a JSON string has been written: `text`
 * is what the characters still to come must make up. Modes, with data:
 *   0 between characters   1 behind a backslash
 *   2 in \uXXXX, first unit: digits seen << 16 | value
 *   3 behind a high surrogate (data: its 10 bits)   4 and its backslash
 *   5 in its second \uXXXX: high << 20 | digits << 16 | value */
#include <assert.h>

#include "base/utf8.h"
#include "grammar/terms.h"

enum { PLAIN, BACKSLASH, HEX, HIGH, HIGH_BACKSLASH, LOW };

/* ---- characters ---- */

/* Sequences of `length` bytes from that of `low` to that of `high`, both of that length; the bytes
 * given are the last `length` of each sequence. */
static di_term sequences(di_terms *t, const uint8_t *low, const uint8_t *high, int length) {
    assert(length >= 1 && length <= 4);
    if (length == 1) {
        return di_term_byte(t, low[0], high[0]);
    }
    static const uint8_t least[4] = {0x80, 0x80, 0x80, 0x80}, most[4] = {0xBF, 0xBF, 0xBF, 0xBF};
    if (low[0] == high[0]) {
        return di_term_cat(t, di_term_byte(t, low[0], low[0]),
                           sequences(t, low + 1, high + 1, length - 1));
    }
    bool from_least = true, to_most = true;
    for (int i = 1; i < length; i++) {
        from_least &= low[i] == 0x80;
        to_most &= high[i] == 0xBF;
    }
    uint8_t first = low[0], last = high[0];
    di_term parts[3];
    size_t n = 0;
    if (!from_least) {
        parts[n++] =
            di_term_cat(t, di_term_byte(t, first, first), sequences(t, low + 1, most, length - 1));
        first++;
    }
    if (!to_most) {
        parts[n++] =
            di_term_cat(t, di_term_byte(t, last, last), sequences(t, least, high + 1, length - 1));
        last--;
    }
    if (first <= last) {
        parts[n++] =
            di_term_cat(t, di_term_byte(t, first, last), sequences(t, least, most, length - 1));
    }
    return di_term_alt(t, parts, n);
}

/* Ends of the ranges in which all characters have sequences of one length, surrogates left out. */
static const uint32_t spans[][2] = {
    {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF},
};
enum { NUM_SPANS = sizeof spans / sizeof *spans };

di_term di_term_characters(di_terms *t, const uint32_t *ranges, size_t num_ranges) {
    size_t mark = t->num_scratch;
    for (size_t i = 0; i < num_ranges; i++) {
        for (int s = 0; s < NUM_SPANS; s++) {
            uint32_t low = ranges[2 * i] > spans[s][0] ? ranges[2 * i] : spans[s][0];
            uint32_t high = ranges[2 * i + 1] < spans[s][1] ? ranges[2 * i + 1] : spans[s][1];
            if (low > high) {
                continue;
            }
            char from[4], to[4];
            int length = di_utf8_encode(low, from);
            di_utf8_encode(high, to);
            di_term part = sequences(t, (const uint8_t *)from, (const uint8_t *)to, length);
            di_terms_push(t, part);
        }
    }
    return di_terms_take_alt(t, mark);
}

/* ---- JSON strings ---- */

/* Whether the text can go on with one of the characters low..high (no surrogates): by the UTF-8
 * bytes still missing. */
static bool can_begin_with(di_terms *t, di_term x, const uint8_t *low, const uint8_t *high,
                           int length) {
    for (unsigned b = low[0]; b <= high[0]; b++) {
        di_term y = di_term_step(t, x, (uint8_t)b);
        if (y == DI_TERM_NONE) {
            continue;
        }
        if (length == 1) {
            return true;
        }
        static const uint8_t least[3] = {0x80, 0x80, 0x80}, most[3] = {0xBF, 0xBF, 0xBF};
        if (can_begin_with(t, y, b == low[0] ? low + 1 : least, b == high[0] ? high + 1 : most,
                           length - 1)) {
            return true;
        }
    }
    return false;
}

static bool has_character(di_terms *t, di_term x, uint32_t low, uint32_t high) {
    if (x == DI_TERM_TEXT) {
        return low < 0xD800 || high > 0xDFFF;
    }
    for (int s = 0; s < NUM_SPANS; s++) {
        uint32_t from = low > spans[s][0] ? low : spans[s][0];
        uint32_t to = high < spans[s][1] ? high : spans[s][1];
        if (from <= to) {
            char a[4], b[4];
            int length = di_utf8_encode(from, a);
            di_utf8_encode(to, b);
            if (can_begin_with(t, x, (const uint8_t *)a, (const uint8_t *)b, length)) {
                return true;
            }
        }
    }
    return false;
}

static di_term after_character(di_terms *t, di_term x, uint32_t character) {
    char bytes[4];
    int length = di_utf8_encode(character, bytes);
    for (int i = 0; i < length && x != DI_TERM_NONE; i++) {
        x = di_term_step(t, x, (uint8_t)bytes[i]);
    }
    return x;
}

/* Of the code units that begin with these hexadecimal digits, whether one can come. */
static bool unit_possible(di_terms *t, di_term x, uint32_t data) {
    uint32_t shift = 4 * (4 - (data >> 16));
    uint32_t low = (data & 0xFFFF) << shift, high = low + (1u << shift) - 1;
    if (has_character(t, x, low, high)) { /* leaves surrogates out */
        return true;
    }
    uint32_t from = low > 0xD800 ? low : 0xD800, to = high < 0xDBFF ? high : 0xDBFF;
    return from <= to && has_character(t, x, 0x10000 + ((from - 0xD800) << 10),
                                       0x10000 + ((to - 0xD800) << 10) + 0x3FF);
}

static bool low_possible(di_terms *t, di_term x, uint32_t data) {
    uint32_t shift = 4 * (4 - (data >> 16 & 7));
    uint32_t low = (data & 0xFFFF) << shift, high = low + (1u << shift) - 1;
    uint32_t from = low > 0xDC00 ? low : 0xDC00, to = high < 0xDFFF ? high : 0xDFFF;
    uint32_t base = 0x10000 + (data >> 20 << 10);
    return from <= to && has_character(t, x, base + from - 0xDC00, base + to - 0xDC00);
}

static bool possible(di_terms *t, di_term x, uint32_t mode, uint32_t data) {
    if (x == DI_TERM_NONE) {
        return false;
    }
    switch (mode) {
    case PLAIN:
        return di_term_alive(t, x);
    case BACKSLASH:
        return has_character(t, x, 0, 0x10FFFF);
    case HEX:
        return unit_possible(t, x, data);
    case HIGH:
    case HIGH_BACKSLASH:
        return has_character(t, x, 0x10000 + (data << 10), 0x10000 + (data << 10) + 0x3FF);
    default:
        return low_possible(t, x, data);
    }
}

di_term di_string_make(di_terms *t, di_term text, uint32_t mode, uint32_t data) {
    if (text == DI_TERM_NONE || (mode != PLAIN && !possible(t, text, mode, data))) {
        return DI_TERM_NONE;
    }
    unsigned flags = t->nodes[text].flags & DI_TERM_FLEETING;
    flags |= mode == PLAIN ? t->nodes[text].flags & DI_TERM_INEXACT : 0;
    return di_term_intern(t, DI_KIND_STRING, DI_TERM_REGULAR | flags, text, mode, data);
}

bool di_string_alive(di_terms *t, di_term x) {
    return possible(t, t->nodes[x].a, t->nodes[x].b, t->nodes[x].c);
}

static int hex_digit(uint8_t b) {
    return b >= '0' && b <= '9'   ? b - '0'
           : b >= 'a' && b <= 'f' ? b - 'a' + 10
           : b >= 'A' && b <= 'F' ? b - 'A' + 10
                                  : -1;
}

static di_term derive_hex(di_terms *t, di_term text, uint32_t mode, uint32_t data, uint8_t byte) {
    int digit = hex_digit(byte);
    if (digit < 0) {
        return DI_TERM_NONE;
    }
    uint32_t digits = (data >> 16 & 7) + 1;
    uint32_t value = (data & 0xFFFF) << 4 | (uint32_t)digit, high = data >> 20;
    if (digits < 4) {
        return di_string_make(t, text, mode, high << 20 | digits << 16 | value);
    }
    if (mode == LOW) {
        uint32_t character = 0x10000 + (high << 10) + (value - 0xDC00);
        return value >= 0xDC00 && value <= 0xDFFF
                   ? di_string_make(t, after_character(t, text, character), PLAIN, 0)
                   : DI_TERM_NONE;
    }
    if (value >= 0xD800 && value <= 0xDBFF) {
        return di_string_make(t, text, HIGH, value - 0xD800);
    }
    return value >= 0xDC00 && value <= 0xDFFF
               ? DI_TERM_NONE
               : di_string_make(t, after_character(t, text, value), PLAIN, 0);
}

static di_term derive_escape(di_terms *t, di_term text, uint8_t byte) {
    switch (byte) {
    case '"':
    case '\\':
    case '/':
        return di_string_make(t, di_term_step(t, text, byte), PLAIN, 0);
    case 'b':
        return di_string_make(t, di_term_step(t, text, '\b'), PLAIN, 0);
    case 'f':
        return di_string_make(t, di_term_step(t, text, '\f'), PLAIN, 0);
    case 'n':
        return di_string_make(t, di_term_step(t, text, '\n'), PLAIN, 0);
    case 'r':
        return di_string_make(t, di_term_step(t, text, '\r'), PLAIN, 0);
    case 't':
        return di_string_make(t, di_term_step(t, text, '\t'), PLAIN, 0);
    case 'u':
        return di_string_make(t, text, HEX, 0);
    default:
        return DI_TERM_NONE;
    }
}

di_term di_string_derive(di_terms *t, di_term x, uint8_t byte) {
    di_term text = t->nodes[x].a;
    uint32_t mode = t->nodes[x].b, data = t->nodes[x].c;
    switch (mode) {
    case PLAIN:
        if (byte == '"') {
            if (!di_term_nullable(t, text)) {
                return DI_TERM_NONE;
            }
            uint32_t tag = di_term_tag(t, text);
            return tag == DI_NO_TAG ? DI_TERM_EMPTY : di_term_final(t, tag);
        }
        if (byte == '\\') {
            return di_string_make(t, text, BACKSLASH, 0);
        }
        return byte < 0x20 ? DI_TERM_NONE
                           : di_string_make(t, di_term_step(t, text, byte), PLAIN, 0);
    case BACKSLASH:
        return derive_escape(t, text, byte);
    case HEX:
    case LOW:
        return derive_hex(t, text, mode, data, byte);
    case HIGH:
        return byte == '\\' ? di_string_make(t, text, HIGH_BACKSLASH, data) : DI_TERM_NONE;
    default:
        return byte == 'u' ? di_string_make(t, text, LOW, data << 20) : DI_TERM_NONE;
    }
}

void di_string_boundaries(di_terms *t, di_term x, di_byte_set *starts) {
    static const char escapes[] = "\"\\/bfnrtu";
    switch (t->nodes[x].b) {
    case PLAIN:
        di_terms_boundaries(t, t->nodes[x].a, starts);
        di_byte_set_cut(starts, 0, 0x1F);
        di_byte_set_cut(starts, '"', '"');
        di_byte_set_cut(starts, '\\', '\\');
        break;
    case HEX:
    case LOW:
        for (unsigned b = '0'; b <= '9'; b++) {
            di_byte_set_cut(starts, b, b);
        }
        for (unsigned b = 'A'; b <= 'F'; b++) {
            di_byte_set_cut(starts, b, b);
            di_byte_set_cut(starts, b + 'a' - 'A', b + 'a' - 'A');
        }
        break;
    default:
        for (const char *e = escapes; *e; e++) {
            di_byte_set_cut(starts, (uint8_t)*e, (uint8_t)*e);
        }
    }
}

void di_string_first(di_terms *t, di_term x, di_byte_set *set) {
    if (t->nodes[x].b != PLAIN) {
        static const char escapes[] = "\"\\/0123456789ABCDEFabcdefnrtu";
        for (const char *e = escapes; *e; e++) {
            di_byte_set_add(set, (uint8_t)*e);
        }
        return;
    }
    di_byte_set of = {0};
    di_term text = t->nodes[x].a;
    di_terms_first(t, text, &of);
    of.words[0] &= ~(uint64_t)UINT32_MAX & ~(1ull << '"');
    for (int w = 0; w < 4; w++) {
        set->words[w] |= of.words[w];
    }
    if (di_term_nullable(t, text)) {
        di_byte_set_add(set, '"');
    }
    di_byte_set_add(set, '\\');
}
