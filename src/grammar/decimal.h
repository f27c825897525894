/* Exact decimals, and sets of numbers as terms over their spelling. */
#ifndef DI_GRAMMAR_DECIMAL_H
#define DI_GRAMMAR_DECIMAL_H

#include "grammar/terms.h"

#define DI_DECIMAL_DIGITS 400

/* 0.DIGITS * 10^point, without zeros at either end; zero has no digits. */
typedef struct di_decimal {
    bool negative;
    int point, size;
    char digits[DI_DECIMAL_DIGITS];
} di_decimal;

/* Of a JSON number's spelling. False if it has too many digits or too large an exponent. */
bool di_decimal_parse(di_decimal *d, const char *text, size_t size);

bool di_decimal_is_integer(const di_decimal *d);
/* An integer 0..UINT32_MAX. */
bool di_decimal_to_u32(const di_decimal *d, uint32_t *value);

/* The shortest plain spelling; returns its length, at most DI_DECIMAL_TEXT. */
#define DI_DECIMAL_TEXT 2600
size_t di_decimal_write(const di_decimal *d, char *text);

/* A spelling with an exponent, with its sign and padded to two digits if they are wanted; 0: there
 * is none. */
#define DI_SCIENTIFIC_DIGITS 40
size_t di_decimal_write_scientific(const di_decimal *d, char *text, bool plus, bool pad);

/* Numbers as JSON spells them; those that di_decimal_write_scientific spells; and those without an
 * exponent (in which all sets below are). */
di_term di_number_any(di_terms *t);
di_term di_number_scientific(di_terms *t);
di_term di_number_plain(di_terms *t);
/* Whole numbers, on demand also spelt 1.0. */
di_term di_number_integer(di_terms *t, bool with_zeros);

typedef enum di_number_bound {
    DI_NUMBER_AT_LEAST,
    DI_NUMBER_ABOVE,
    DI_NUMBER_AT_MOST,
    DI_NUMBER_BELOW,
} di_number_bound;

di_term di_number_bounded(di_terms *t, di_number_bound bound, const di_decimal *d);

/* Multiples of d > 0. False if that is not exact here: more than nine digits. */
bool di_number_multiple(di_terms *t, const di_decimal *d, di_term *out);

/* Every plain spelling of the value. */
di_term di_number_equal(di_terms *t, const di_decimal *d);
/* Every plain spelling of values whose shortest ones are these; the arrays get sorted. */
di_term di_number_among(di_terms *t, di_word *whole, size_t num_whole, di_word *fractions,
                        size_t num_fractions);
/* The shortest spellings of all numbers: one a value. */
di_term di_number_shortest(di_terms *t);
/* The spellings worth generating: shortest, and with .0. */
di_term di_number_spelt(di_terms *t, const di_decimal *d);

#endif
