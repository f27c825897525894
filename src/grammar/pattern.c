/* The regular expression front end; see pattern.h. One pass: parsing yields terms.
 *
 * Anchors are not bytes. A part of a pattern is therefore four sets of texts: those that it
 * matches anywhere, only at the text's beginning, only at its end, only if it is the whole text. */
#include "grammar/pattern.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "grammar/charset.h"

enum { MAX_NESTING = 200, MAX_REPEAT = 1000000000 };

typedef struct part {
    di_term at[2][2]; /* [at the beginning only][at the end only] */
} part;

typedef struct parser {
    di_terms *t;
    const char *text;
    size_t size, at;
    long character; /* of `at`, from 1 */
    int nesting;
    di_error *err;
} parser;

typedef struct parts {
    part *of;
    size_t count, capacity;
} parts;

static bool fail(parser *p, di_error_code code, const char *what) {
    return di_fail(p->err, code, "pattern, character %ld: %s", p->character, what);
}

static bool no_memory(parser *p) {
    return fail(p, DI_ERR_NO_MEMORY, "no memory");
}

static bool more(const parser *p) {
    return p->at < p->size;
}

static bool looking_at(const parser *p, const char *text) {
    size_t length = strlen(text);
    return p->size - p->at >= length && memcmp(p->text + p->at, text, length) == 0;
}

static bool take(parser *p, const char *text) {
    if (!looking_at(p, text)) {
        return false;
    }
    p->at += strlen(text);
    p->character += (long)strlen(text);
    return true;
}

/* The next character; the text has been checked to be UTF-8. */
static uint32_t next(parser *p) {
    uint32_t c;
    p->at += (size_t)di_utf8_next(p->text + p->at, p->size - p->at, &c);
    p->character++;
    return c;
}

static part plain(di_term x) {
    return (part){{{x, DI_TERM_NONE}, {DI_TERM_NONE, DI_TERM_NONE}}};
}

/* ---- joining parts ---- */

static part sequence(di_terms *t, const part *a, const part *b) {
    part joined = plain(DI_TERM_NONE);
    for (int i = 0; i < 16; i++) {
        int a_begin = i & 1, a_end = i >> 1 & 1, b_begin = i >> 2 & 1, b_end = i >> 3 & 1;
        di_term x = a->at[a_begin][a_end], y = b->at[b_begin][b_end];
        if (x == DI_TERM_NONE || y == DI_TERM_NONE) {
            continue;
        }
        /* Nothing may come behind an end, nor before a beginning. */
        if (a_end) {
            y = di_term_nullable(t, y) ? DI_TERM_EMPTY : DI_TERM_NONE;
        }
        if (b_begin) {
            x = di_term_nullable(t, x) ? DI_TERM_EMPTY : DI_TERM_NONE;
        }
        di_term *to = &joined.at[a_begin | b_begin][a_end | b_end];
        *to = di_term_alt2(t, *to, di_term_cat(t, x, y));
    }
    return joined;
}

static bool is_plain(const part *a) {
    return a->at[0][1] == DI_TERM_NONE && a->at[1][0] == DI_TERM_NONE &&
           a->at[1][1] == DI_TERM_NONE;
}

static part alternatives(di_terms *t, const parts *of) {
    part joined;
    for (int b = 0; b < 2; b++) {
        for (int e = 0; e < 2; e++) {
            size_t mark = t->num_scratch;
            for (size_t i = 0; i < of->count; i++) {
                di_terms_push(t, of->of[i].at[b][e]);
            }
            joined.at[b][e] = di_terms_take_alt(t, mark);
        }
    }
    return joined;
}

static bool add_part(parser *p, parts *list, part x) {
    part *of = di_grow(list->of, list->count, &list->capacity, sizeof *of);
    if (!of) {
        return no_memory(p);
    }
    list->of = of;
    list->of[list->count++] = x;
    return true;
}

/* ---- escapes ---- */

static int hex_digit(uint32_t c) {
    return c >= '0' && c <= '9'   ? (int)c - '0'
           : c >= 'a' && c <= 'f' ? (int)c - 'a' + 10
           : c >= 'A' && c <= 'F' ? (int)c - 'A' + 10
                                  : -1;
}

static bool take_hex(parser *p, int digits, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < digits; i++) {
        int digit = more(p) ? hex_digit((uint8_t)p->text[p->at]) : -1;
        if (digit < 0) {
            return fail(p, DI_ERR_ARGUMENT, "a hexadecimal digit is missing in an escape");
        }
        *value = *value << 4 | (uint32_t)digit;
        next(p);
    }
    return true;
}

static bool unicode_escape(parser *p, uint32_t *c) {
    if (take(p, "{")) {
        *c = 0;
        int digits = 0;
        while (more(p) && hex_digit((uint8_t)p->text[p->at]) >= 0 && *c <= DI_CHARSET_LAST) {
            *c = *c << 4 | (uint32_t)hex_digit(next(p));
            digits++;
        }
        if (digits == 0 || !take(p, "}") || *c > DI_CHARSET_LAST) {
            return fail(p, DI_ERR_ARGUMENT, "\\u{...} is not a code point");
        }
        return true;
    }
    if (!take_hex(p, 4, c)) {
        return false;
    }
    if (*c >= 0xD800 && *c < 0xDC00 && looking_at(p, "\\u")) {
        parser back = *p;
        uint32_t low;
        take(p, "\\u");
        if (!take_hex(p, 4, &low)) {
            return false;
        }
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
        } else {
            *p = back;
        }
    }
    return true;
}

static bool property(parser *p, bool negated, di_charset *set) {
    if (!take(p, "{")) {
        return fail(p, DI_ERR_ARGUMENT, "\\p needs a property in braces");
    }
    size_t begin = p->at;
    while (more(p) && p->text[p->at] != '}') {
        next(p);
    }
    size_t length = p->at - begin;
    if (!take(p, "}")) {
        return fail(p, DI_ERR_ARGUMENT, "\\p{ is not closed");
    }
    di_charset of = {0};
    bool known;
    bool ok = di_charset_add_property(&of, p->text + begin, length, &known);
    if (ok && !known) {
        char what[96];
        snprintf(what, sizeof what, "the Unicode property \"%.*s\" is not supported",
                 length > 40 ? 40 : (int)length, p->text + begin);
        return fail(p, DI_ERR_UNSUPPORTED, what);
    }
    ok = ok && (!negated || di_charset_complement(&of)) && di_charset_add_set(set, &of);
    di_charset_free(&of);
    return ok || no_memory(p);
}

/* Behind a backslash: either one character in *c (then *is_set is false) or a set. */
static bool escape(parser *p, bool in_class, uint32_t *c, di_charset *set, bool *is_set) {
    static const char controls[] = "tnvfr", values[] = "\t\n\v\f\r";
    *is_set = false;
    if (!more(p)) {
        return fail(p, DI_ERR_ARGUMENT, "ends behind a backslash");
    }
    uint32_t e = next(p);
    const char *control = e < 0x80 && e ? strchr(controls, (int)e) : NULL;
    if (control) {
        *c = (uint8_t)values[control - controls];
        return true;
    }
    switch (e) {
    case 'd':
    case 'w':
    case 's':
        *is_set = true;
        return di_charset_add_class(set, (char)e) || no_memory(p);
    case 'D':
    case 'W':
    case 'S': {
        di_charset of = {0};
        *is_set = true;
        bool ok = di_charset_add_class(&of, (char)(e - 'A' + 'a')) && di_charset_complement(&of) &&
                  di_charset_add_set(set, &of);
        di_charset_free(&of);
        return ok || no_memory(p);
    }
    case 'p':
    case 'P':
        *is_set = true;
        return property(p, e == 'P', set);
    case 'x':
        return take_hex(p, 2, c);
    case 'u':
        return unicode_escape(p, c);
    case 'c':
        e = more(p) ? next(p) : 0;
        if ((e | 32) < 'a' || (e | 32) > 'z') {
            return fail(p, DI_ERR_ARGUMENT, "\\c needs a letter");
        }
        *c = e % 32;
        return true;
    case 'b':
    case 'B':
        if (in_class && e == 'b') {
            *c = '\b';
            return true;
        }
        return fail(p, DI_ERR_UNSUPPORTED, "word boundaries (\\b, \\B) are not supported");
    case 'k':
        return fail(p, DI_ERR_UNSUPPORTED, "back references are not supported");
    case '0':
        *c = 0;
        return true;
    default:
        break;
    }
    if (e >= '1' && e <= '9') {
        return fail(p, DI_ERR_UNSUPPORTED, "back references are not supported");
    }
    if ((e | 32) >= 'a' && (e | 32) <= 'z') {
        char what[64];
        snprintf(what, sizeof what, "\\%c is not an escape of ECMA-262", (int)e);
        return fail(p, DI_ERR_ARGUMENT, what);
    }
    *c = e;
    return true;
}

/* ---- atoms ---- */

/* One end of a range, or a set. */
static bool class_atom(parser *p, uint32_t *c, di_charset *set, bool *is_set) {
    *is_set = false;
    if (!more(p)) {
        return fail(p, DI_ERR_ARGUMENT, "a character class is not closed");
    }
    *c = next(p);
    return *c != '\\' || escape(p, true, c, set, is_set);
}

static bool class_items(parser *p, di_charset *set) {
    while (!take(p, "]")) {
        uint32_t low = 0, high = 0;
        bool low_set, high_set;
        if (!class_atom(p, &low, set, &low_set)) {
            return false;
        }
        if (looking_at(p, "-") && !looking_at(p, "-]")) {
            take(p, "-");
            if (!class_atom(p, &high, set, &high_set)) {
                return false;
            }
            if (low_set || high_set) {
                /* [\w-.]: the dash and the other end stand for themselves. */
                if (!di_charset_add(set, '-', '-') ||
                    (!low_set && !di_charset_add(set, low, low)) ||
                    (!high_set && !di_charset_add(set, high, high))) {
                    return no_memory(p);
                }
                continue;
            }
            if (low > high) {
                return fail(p, DI_ERR_ARGUMENT, "a range in a character class is reversed");
            }
            if (!di_charset_add(set, low, high)) {
                return no_memory(p);
            }
        } else if (!low_set && !di_charset_add(set, low, low)) {
            return no_memory(p);
        }
    }
    return true;
}

static bool class(parser *p, part *out) {
    di_charset set = {0};
    bool negated = take(p, "^");
    bool ok = class_items(p, &set) && (!negated || di_charset_complement(&set) || no_memory(p));
    *out = plain(ok ? di_charset_term(p->t, &set) : DI_TERM_NONE);
    di_charset_free(&set);
    return ok;
}

static bool alternation(parser *p, part *out);

static bool group(parser *p, part *out) {
    if (take(p, "?")) {
        if (looking_at(p, "=") || looking_at(p, "!")) {
            return fail(p, DI_ERR_UNSUPPORTED, "look-ahead, (?= and (?!, is not supported");
        }
        if (looking_at(p, "<=") || looking_at(p, "<!")) {
            return fail(p, DI_ERR_UNSUPPORTED, "look-behind, (?<= and (?<!, is not supported");
        }
        if (take(p, "<") || take(p, "P<")) {
            while (more(p) && p->text[p->at] != '>' && p->text[p->at] != ')') {
                next(p);
            }
            if (!take(p, ">")) {
                return fail(p, DI_ERR_ARGUMENT, "a group's name is not closed");
            }
        } else if (!take(p, ":")) {
            return fail(p, DI_ERR_UNSUPPORTED, "inline flags are not supported");
        }
    }
    if (++p->nesting > MAX_NESTING) {
        return fail(p, DI_ERR_UNSUPPORTED, "groups are nested deeper than 200");
    }
    if (!alternation(p, out)) {
        return false;
    }
    p->nesting--;
    return take(p, ")") || fail(p, DI_ERR_ARGUMENT, "a group is not closed");
}

static bool any_character(parser *p, part *out) {
    di_charset set = {0};
    bool ok = di_charset_add(&set, '\n', '\n') && di_charset_add(&set, '\r', '\r') &&
              di_charset_add(&set, 0x2028, 0x2029) && di_charset_complement(&set);
    *out = plain(ok ? di_charset_term(p->t, &set) : DI_TERM_NONE);
    di_charset_free(&set);
    return ok || no_memory(p);
}

static bool atom(parser *p, part *out) {
    uint32_t c = next(p);
    switch (c) {
    case '(':
        return group(p, out);
    case '[':
        return class(p, out);
    case '.':
        return any_character(p, out);
    case '^':
    case '$':
        *out = plain(DI_TERM_NONE);
        out->at[c == '^'][c == '$'] = DI_TERM_EMPTY;
        return true;
    case '*':
    case '+':
    case '?':
        return fail(p, DI_ERR_ARGUMENT, "there is nothing to repeat");
    case '\\': {
        di_charset set = {0};
        bool is_set;
        if (!escape(p, false, &c, &set, &is_set)) {
            di_charset_free(&set);
            return false;
        }
        if (is_set) {
            *out = plain(di_charset_term(p->t, &set));
            di_charset_free(&set);
            return true;
        }
        break;
    }
    default:
        break;
    }
    *out = plain(di_term_characters(p->t, (uint32_t[]){c, c}, 1));
    return true;
}

/* ---- repeats ---- */

static bool take_number(parser *p, uint32_t *value) {
    if (!more(p) || p->text[p->at] < '0' || p->text[p->at] > '9') {
        return false;
    }
    uint64_t v = 0;
    while (more(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        v = v < MAX_REPEAT ? v * 10 + (uint64_t)(next(p) - '0') : v + (next(p) != 0);
    }
    *value = v < MAX_REPEAT ? (uint32_t)v : MAX_REPEAT;
    return true;
}

/* {n}, {n,} or {n,m}; what looks otherwise is no repeat but text. */
static bool take_braces(parser *p, uint32_t *low, uint32_t *high) {
    parser back = *p;
    if (take(p, "{") && take_number(p, low)) {
        *high = *low;
        if (take(p, ",")) {
            *high = DI_TERM_UNBOUNDED;
            take_number(p, high);
        }
        if (take(p, "}")) {
            return true;
        }
    }
    *p = back;
    return false;
}

static bool take_repeat(parser *p, uint32_t *low, uint32_t *high) {
    *low = 0;
    *high = DI_TERM_UNBOUNDED;
    if (take(p, "*")) {
    } else if (take(p, "+")) {
        *low = 1;
    } else if (take(p, "?")) {
        *high = 1;
    } else if (!take_braces(p, low, high)) {
        return false;
    }
    return true;
}

static bool repeated(parser *p, part *out) {
    if (!atom(p, out)) {
        return false;
    }
    uint32_t low, high;
    if (!take_repeat(p, &low, &high)) {
        return true;
    }
    take(p, "?"); /* lazy: the same texts */
    uint32_t l, h;
    if (take_repeat(p, &l, &h)) {
        return fail(p, DI_ERR_ARGUMENT, "a repeat is repeated");
    }
    if (low > high) {
        return fail(p, DI_ERR_ARGUMENT, "a repeat's bounds are reversed");
    }
    if (is_plain(out)) {
        *out = plain(di_term_repeat(p->t, out->at[0][0], low, high));
        return true;
    }
    if (high > 1) {
        return fail(p, DI_ERR_UNSUPPORTED, "anchors inside a repeated group are not supported");
    }
    if (high == 0) {
        *out = plain(DI_TERM_EMPTY);
    } else if (low == 0) {
        out->at[0][0] = di_term_optional(p->t, out->at[0][0]);
    }
    return true;
}

static bool concatenation(parser *p, part *out) {
    parts list = {0};
    bool ok = true;
    while (ok && more(p) && !looking_at(p, "|") && !looking_at(p, ")")) {
        part x = plain(DI_TERM_NONE);
        ok = repeated(p, &x) && add_part(p, &list, x);
    }
    /* From the right, so that a text's beginning is taken off without rebuilding the rest. */
    *out = plain(DI_TERM_EMPTY);
    for (size_t i = list.count; ok && i > 0; i--) {
        *out = sequence(p->t, &list.of[i - 1], out);
    }
    di_free(list.of);
    return ok;
}

static bool alternation(parser *p, part *out) {
    parts list = {0};
    bool ok;
    do {
        part x = plain(DI_TERM_NONE);
        ok = concatenation(p, &x) && add_part(p, &list, x);
    } while (ok && take(p, "|"));
    if (ok) {
        *out = alternatives(p->t, &list);
    }
    di_free(list.of);
    return ok;
}

bool di_pattern_compile(di_terms *t, const char *pattern, size_t size, di_pattern_use use,
                        di_term *out, di_error *err) {
    parser p = {.t = t, .text = pattern, .size = size, .character = 1, .err = err};
    size_t bad;
    if (!di_utf8_valid(pattern, size, &bad)) {
        return di_fail(err, DI_ERR_ARGUMENT, "pattern: byte %zu is not UTF-8", bad);
    }
    part whole;
    if (!alternation(&p, &whole)) {
        return false;
    }
    if (more(&p)) {
        return fail(&p, DI_ERR_ARGUMENT, "a closing parenthesis has no opening one");
    }
    size_t mark = t->num_scratch;
    for (int b = 0; b < 2; b++) {
        for (int e = 0; e < 2; e++) {
            di_term x = whole.at[b][e];
            if (use == DI_PATTERN_SEARCH) {
                x = di_term_cat3(t, b ? DI_TERM_EMPTY : DI_TERM_TEXT, x,
                                 e ? DI_TERM_EMPTY : DI_TERM_TEXT);
            }
            di_terms_push(t, x);
        }
    }
    *out = di_terms_take_alt(t, mark);
    if (t->fault.code != DI_OK) {
        return di_fail(err, t->fault.code, "pattern: %s", t->fault.message);
    }
    return true;
}
