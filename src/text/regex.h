/* The regular expressions of tokenizer files: written for Oniguruma, run by PCRE2.
 *
 * Only what means the same in both, or can be rewritten so that it does, is accepted; anything else
 * is refused by naming it, since a pattern that is read slightly differently gives other tokens. */
#ifndef DI_TEXT_REGEX_H
#define DI_TEXT_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct di_regex di_regex; /* read-only once compiled */

/* Compiles a NUL-terminated pattern. Refused as well: patterns that can match an empty text. */
di_regex *di_regex_compile(const char *pattern, di_error *err);
void di_regex_free(di_regex *regex); /* NULL is allowed */

/* One thread's memory for matching. */
typedef struct di_regex_run di_regex_run;
di_regex_run *di_regex_run_create(di_error *err);
void di_regex_run_free(di_regex_run *run); /* NULL is allowed */

/* First match in text[from..size), valid UTF-8 and looked at as if there were nothing outside of
 * text[0..size). Returns 1 with *begin and *end, 0 if there is none, -1 with *err set. */
int di_regex_find(const di_regex *regex, di_regex_run *run, const char *text, size_t size,
                  size_t from, size_t *begin, size_t *end, di_error *err);

#endif
