/* Sets of Unicode code points, for character classes of regular expressions and EBNF. */
#ifndef DI_GRAMMAR_CHARSET_H
#define DI_GRAMMAR_CHARSET_H

#include "grammar/terms.h"

#define DI_CHARSET_LAST 0x10FFFFu

/* Ranges low..high, in any order until di_charset_sort. All zero is the empty set. */
typedef struct di_charset {
    uint32_t (*ranges)[2];
    size_t count, capacity;
} di_charset;

/* Each false if memory is short. */
bool di_charset_add(di_charset *s, uint32_t low, uint32_t high);
bool di_charset_add_set(di_charset *s, const di_charset *other);
bool di_charset_complement(di_charset *s);

void di_charset_sort(di_charset *s); /* sorted, apart, none touching */
void di_charset_free(di_charset *s);

/* Adds what \d, \w or \s (by its letter) stand for in ECMA-262. */
bool di_charset_add_class(di_charset *s, char letter);

/* Adds a general category of Unicode ("L", "Lu", "Letter", ...), "Any" or "ASCII". *known says
 * whether there is one of that name. */
bool di_charset_add_property(di_charset *s, const char *name, size_t size, bool *known);

di_term di_charset_term(di_terms *t, di_charset *s);

#endif
