/* Regular expressions of ECMA-262 as JSON Schema's `pattern` uses them, made into terms.
 *
 * In: literals, `.`, classes, \d \w \s and their complements, \p{general category}, escapes (\t \n
 * \v \f \r \0 \cX \xHH \uHHHH \u{H...}), groups, alternatives, * + ? {n} {n,} {n,m} (lazy ones
 * denote the same texts), ^ and $ anywhere. Refused by name: look-around, back references, \b \B,
 * inline flags, script properties. `.` is any character but a line end. */
#ifndef DI_GRAMMAR_PATTERN_H
#define DI_GRAMMAR_PATTERN_H

#include "grammar/terms.h"

typedef enum di_pattern_use {
    DI_PATTERN_WHOLE,  /* the texts that match from end to end */
    DI_PATTERN_SEARCH, /* the texts that hold a match */
} di_pattern_use;

/* Sets *out. Fails with the pattern's fault and the character (from 1) where it stands;
 * DI_ERR_UNSUPPORTED for what is refused by name, DI_ERR_ARGUMENT for what is no pattern. */
bool di_pattern_compile(di_terms *t, const char *pattern, size_t size, di_pattern_use use,
                        di_term *out, di_error *err);

#endif
