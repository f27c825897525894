/* Decimals and sets of numbers; see decimal.h. Called by the JSON Schema front end. */
#include "grammar/decimal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_EXPONENT = 1040 };

bool di_decimal_parse(di_decimal *d, const char *text, size_t size) {
    *d = (di_decimal){0};
    size_t i = 0;
    if (i < size && text[i] == '-') {
        d->negative = true;
        i++;
    }
    int zeros = 0; /* seen since the last digit kept */
    bool point = false;
    for (; i < size && text[i] != 'e' && text[i] != 'E'; i++) {
        if (text[i] == '.') {
            point = true;
            continue;
        }
        if (text[i] == '0') {
            zeros++;
            d->point += d->size > 0 && !point;
            d->point -= d->size == 0 && point;
            continue;
        }
        if (d->size > 0) {
            if (d->size + zeros + 1 > DI_DECIMAL_DIGITS) {
                return false;
            }
            memset(d->digits + d->size, '0', (size_t)zeros);
            d->size += zeros;
        }
        zeros = 0;
        if (d->size >= DI_DECIMAL_DIGITS) {
            return false;
        }
        d->digits[d->size++] = text[i];
        d->point += !point;
    }
    if (i < size) {
        i++;
        bool minus = text[i] == '-';
        i += text[i] == '-' || text[i] == '+';
        int exponent = 0;
        for (; i < size; i++) {
            exponent = exponent < 100000 ? exponent * 10 + (text[i] - '0') : exponent;
        }
        d->point += minus ? -exponent : exponent;
    }
    if (d->size == 0) {
        *d = (di_decimal){0};
    }
    return d->point <= MAX_EXPONENT && d->point >= -MAX_EXPONENT;
}

bool di_decimal_is_integer(const di_decimal *d) {
    return d->size <= d->point || d->size == 0;
}

bool di_decimal_to_u32(const di_decimal *d, uint32_t *value) {
    if (!di_decimal_is_integer(d) || (d->negative && d->size) || d->point > 10) {
        return false;
    }
    uint64_t v = 0;
    for (int i = 0; i < d->point; i++) {
        v = v * 10 + (uint64_t)(i < d->size ? d->digits[i] - '0' : 0);
    }
    *value = (uint32_t)v;
    return v <= UINT32_MAX;
}

/* ---- pieces ---- */

static di_term digit(di_terms *t, char low, char high) {
    return low > high ? DI_TERM_NONE : di_term_byte(t, (uint8_t)low, (uint8_t)high);
}

static di_term digits(di_terms *t, uint32_t low, uint32_t high) {
    return di_term_repeat(t, digit(t, '0', '9'), low, high);
}

/* 0 or digits that begin with another. */
static di_term whole(di_terms *t) {
    return di_term_alt2(t, digit(t, '0', '0'),
                        di_term_cat(t, digit(t, '1', '9'), digits(t, 0, DI_TERM_UNBOUNDED)));
}

/* Nothing, or a point and digits. */
static di_term fraction(di_terms *t) {
    return di_term_optional(t, di_term_cat(t, digit(t, '.', '.'), digits(t, 1, DI_TERM_UNBOUNDED)));
}

static di_term zero_fraction(di_terms *t) {
    return di_term_optional(
        t, di_term_cat(t, digit(t, '.', '.'),
                       di_term_repeat(t, digit(t, '0', '0'), 1, DI_TERM_UNBOUNDED)));
}

static di_term signed_of(di_terms *t, di_term x) {
    return di_term_cat(t, di_term_optional(t, digit(t, '-', '-')), x);
}

static di_term negative_of(di_terms *t, di_term x) {
    return di_term_cat(t, digit(t, '-', '-'), x);
}

static di_term absolute(di_terms *t) {
    return di_term_cat(t, whole(t), fraction(t));
}

di_term di_number_plain(di_terms *t) {
    return signed_of(t, absolute(t));
}

di_term di_number_any(di_terms *t) {
    di_byte_set e = {0}, sign = {0};
    di_byte_set_add(&e, 'e');
    di_byte_set_add(&e, 'E');
    di_byte_set_add(&sign, '+');
    di_byte_set_add(&sign, '-');
    di_term exponent =
        di_term_cat3(t, di_term_bytes(t, &e), di_term_optional(t, di_term_bytes(t, &sign)),
                     digits(t, 1, DI_TERM_UNBOUNDED));
    return signed_of(t, di_term_cat3(t, whole(t), fraction(t), di_term_optional(t, exponent)));
}

di_term di_number_scientific(di_terms *t) {
    di_byte_set sign = {0};
    di_byte_set_add(&sign, '+');
    di_byte_set_add(&sign, '-');
    di_term some = digit(t, '1', '9');
    di_term decimals =
        di_term_cat3(t, digit(t, '.', '.'), digits(t, 0, DI_SCIENTIFIC_DIGITS - 2), some);
    di_term exponent = di_term_alt2(t, di_term_cat(t, digit(t, '0', '0'), some),
                                    di_term_cat(t, some, digits(t, 0, 2)));
    exponent =
        di_term_cat3(t, digit(t, 'e', 'e'), di_term_optional(t, di_term_bytes(t, &sign)), exponent);
    return signed_of(t, di_term_cat3(t, some, di_term_optional(t, decimals), exponent));
}

size_t di_decimal_write_scientific(const di_decimal *d, char *text, bool plus, bool pad) {
    int exponent = d->point - 1, size = exponent < 0 ? -exponent : exponent;
    if (d->size == 0 || d->size > DI_SCIENTIFIC_DIGITS || size == 0 || size > 999 ||
        (plus && exponent < 0) || (pad && size > 9)) {
        return 0;
    }
    return (size_t)snprintf(text, DI_DECIMAL_TEXT, "%s%c%s%.*se%s%s%d", d->negative ? "-" : "",
                            d->digits[0], d->size > 1 ? "." : "", d->size - 1, d->digits + 1,
                            exponent < 0 ? "-"
                            : plus       ? "+"
                                         : "",
                            pad ? "0" : "", size);
}

di_term di_number_integer(di_terms *t, bool with_zeros) {
    return signed_of(t, with_zeros ? di_term_cat(t, whole(t), zero_fraction(t)) : whole(t));
}

/* ---- bounds ---- */

/* Digit i of the whole part (of d->point or one digit), of the fraction. */
static char whole_digit(const di_decimal *d, int i) {
    return d->point <= 0 ? '0' : i < d->size ? d->digits[i] : '0';
}

static int fraction_size(const di_decimal *d) {
    return d->size > d->point ? d->size - d->point : 0;
}

static char fraction_digit(const di_decimal *d, int i) {
    int at = d->point + i;
    return at < 0 ? '0' : d->digits[at];
}

/* Fraction digits from the i-th on, the ones before being equal to d's, that make the number larger
 * (or smaller) than d, or equal where that is allowed. `point`: no digit has been written yet. */
static di_term fraction_compared(di_terms *t, const di_decimal *d, bool larger, bool or_equal) {
    int size = fraction_size(d);
    di_term any = digits(t, 0, DI_TERM_UNBOUNDED);
    di_term zeros = di_term_repeat(t, digit(t, '0', '0'), 0, DI_TERM_UNBOUNDED);
    /* Behind all of d's digits. */
    di_term rest = larger ? (or_equal ? any : di_term_cat3(t, zeros, digit(t, '1', '9'), any))
                          : (or_equal ? zeros : DI_TERM_NONE);
    for (int i = size - 1; i >= 0; i--) {
        char c = fraction_digit(d, i);
        di_term apart = larger ? digit(t, (char)(c + 1), '9') : digit(t, '0', (char)(c - 1));
        rest = di_term_alt2(t, di_term_cat(t, digit(t, c, c), rest), di_term_cat(t, apart, any));
        if (!larger && i > 0) {
            rest = di_term_optional(t, rest); /* ends early: smaller, for d's last digit is not 0 */
        }
    }
    /* A point needs a digit behind it; without a point the fraction is zero. */
    if (di_term_nullable(t, rest)) {
        rest = di_term_and2(t, rest, digits(t, 1, DI_TERM_UNBOUNDED));
    }
    di_term with_point = di_term_cat(t, digit(t, '.', '.'), rest);
    bool none = larger ? size == 0 && or_equal : size > 0 || or_equal;
    return none ? di_term_optional(t, with_point) : with_point;
}

/* Decimals without a sign at least (at most) |d|. */
static di_term compared(di_terms *t, const di_decimal *d, bool larger, bool or_equal) {
    int size = d->point > 1 ? d->point : 1;
    di_term result = fraction_compared(t, d, larger, or_equal);
    for (int i = size - 1; i >= 0; i--) {
        char c = whole_digit(d, i), least = i == 0 && size > 1 ? '1' : '0';
        di_term apart = larger ? digit(t, (char)(c + 1 > least ? c + 1 : least), '9')
                               : digit(t, least, (char)(c - 1));
        di_term behind = di_term_cat(
            t, digits(t, (uint32_t)(size - 1 - i), (uint32_t)(size - 1 - i)), fraction(t));
        result =
            di_term_alt2(t, di_term_cat(t, digit(t, c, c), result), di_term_cat(t, apart, behind));
    }
    /* More digits are larger, fewer smaller. */
    if (larger) {
        return di_term_alt2(t, result,
                            di_term_cat3(t, digit(t, '1', '9'),
                                         digits(t, (uint32_t)size, DI_TERM_UNBOUNDED),
                                         fraction(t)));
    }
    if (size > 1) {
        di_term fewer = di_term_cat(t, digit(t, '1', '9'), digits(t, 0, (uint32_t)size - 2));
        result = di_term_alt2(
            t, result, di_term_cat(t, di_term_alt2(t, fewer, digit(t, '0', '0')), fraction(t)));
    }
    return result;
}

di_term di_number_bounded(di_terms *t, di_number_bound bound, const di_decimal *d) {
    bool lower = bound == DI_NUMBER_AT_LEAST || bound == DI_NUMBER_ABOVE;
    bool or_equal = bound == DI_NUMBER_AT_LEAST || bound == DI_NUMBER_AT_MOST;
    if (d->size == 0) {
        di_term zero = di_term_cat(t, digit(t, '0', '0'), zero_fraction(t));
        di_term side = compared(t, d, true, false);
        side = lower ? side : negative_of(t, side);
        return or_equal ? di_term_alt2(t, side, signed_of(t, zero)) : side;
    }
    if (lower != d->negative) { /* away from zero on the bound's own side */
        di_term side = compared(t, d, true, or_equal);
        return lower ? side : negative_of(t, side);
    }
    di_term side = compared(t, d, false, or_equal);
    return lower ? di_term_alt2(t, absolute(t), negative_of(t, side))
                 : di_term_alt2(t, negative_of(t, absolute(t)), side);
}

bool di_number_multiple(di_terms *t, const di_decimal *d, di_term *out) {
    int decimals = fraction_size(d);
    if (d->size == 0 || d->negative || d->size > 9 || decimals > 20 || d->point > 9) {
        return false;
    }
    uint32_t multiple = 0;
    for (int i = 0; i < (d->size > d->point ? d->size : d->point); i++) {
        multiple = multiple * 10 + (uint32_t)(i < d->size ? d->digits[i] - '0' : 0);
    }
    *out = di_term_and2(t, di_number_plain(t),
                        signed_of(t, di_term_multiple(t, multiple, (uint32_t)decimals)));
    return true;
}

di_term di_number_equal(di_terms *t, const di_decimal *d) {
    return di_term_and2(t, di_number_bounded(t, DI_NUMBER_AT_LEAST, d),
                        di_number_bounded(t, DI_NUMBER_AT_MOST, d));
}

di_term di_number_among(di_terms *t, di_word *whole, size_t num_whole, di_word *fractions,
                        size_t num_fractions) {
    di_term zeros = di_term_repeat(t, digit(t, '0', '0'), 0, DI_TERM_UNBOUNDED);
    return di_term_alt2(t, di_term_cat(t, di_term_words(t, whole, num_whole), zero_fraction(t)),
                        di_term_cat(t, di_term_words(t, fractions, num_fractions), zeros));
}

di_term di_number_shortest(di_terms *t) {
    di_term some = digit(t, '1', '9');
    di_term rest = di_term_cat3(t, digit(t, '.', '.'), digits(t, 0, DI_TERM_UNBOUNDED), some);
    di_term above =
        di_term_cat3(t, some, digits(t, 0, DI_TERM_UNBOUNDED), di_term_optional(t, rest));
    di_term below = di_term_cat(t, digit(t, '0', '0'), rest);
    return di_term_alt2(t, digit(t, '0', '0'), signed_of(t, di_term_alt2(t, above, below)));
}

size_t di_decimal_write(const di_decimal *d, char *text) {
    size_t n = 0;
    if (d->negative) {
        text[n++] = '-';
    }
    int size = d->point > 1 ? d->point : 1;
    for (int i = 0; i < size; i++) {
        text[n++] = whole_digit(d, i);
    }
    int decimals = fraction_size(d);
    if (decimals > 0) {
        text[n++] = '.';
    }
    for (int i = 0; i < decimals; i++) {
        text[n++] = fraction_digit(d, i);
    }
    return n;
}

di_term di_number_spelt(di_terms *t, const di_decimal *d) {
    char text[DI_DECIMAL_TEXT + 2];
    size_t n = di_decimal_write(d, text);
    di_term shortest = di_term_literal(t, text, n);
    if (fraction_size(d) > 0) {
        return shortest;
    }
    text[n++] = '.';
    text[n++] = '0';
    return di_term_alt2(t, shortest, di_term_literal(t, text, n));
}
