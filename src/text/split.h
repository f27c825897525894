/* Pre-tokenisation: cutting text into the pieces within which byte pairs are joined.
 *
 * A file gives a sequence of patterns. The first cuts the text into its matches and what lies
 * between them, the second cuts each of these pieces in the same way, and so on. Patterns run
 * through PCRE2, except for the three that DeepSeek ships: those have a matcher of their own
 * (split_deepseek.c), near three times as fast and checked against the patterns by tests. */
#ifndef DI_TEXT_SPLIT_H
#define DI_TEXT_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "text/char_class.h"
#include "text/regex.h"

enum { DI_SPLIT_MOST_PATTERNS = 16 };

typedef struct di_splitter {
    di_regex *patterns[DI_SPLIT_MOST_PATTERNS];
    int count;
    bool deepseek;           /* the patterns are the three that have their own matcher */
    di_char_classes classes; /* for that matcher */
} di_splitter;               /* read-only once created */

/* Gets each piece in turn (never empty; together they are the text). False ends the splitting. */
typedef bool di_piece_fn(void *context, const char *piece, size_t size, di_error *err);

bool di_splitter_create(di_splitter *s, const char *const *patterns, int count, di_error *err);
void di_splitter_destroy(di_splitter *s);

/* Splits text[0..size), valid UTF-8. */
bool di_split(const di_splitter *s, const char *text, size_t size, di_piece_fn *piece,
              void *context, di_error *err);

/* The two ways of di_split, for tests: through PCRE2, and by the matcher for DeepSeek's patterns.
 */
bool di_split_patterns(const di_splitter *s, const char *text, size_t size, di_piece_fn *piece,
                       void *context, di_error *err);
bool di_split_deepseek(const di_char_classes *k, const char *text, size_t size, di_piece_fn *piece,
                       void *context, di_error *err);

/* The three patterns. */
extern const char *const di_deepseek_patterns[3];

#endif
