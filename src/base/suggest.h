/* "Did you mean ...?": the nearest of some known names. */
#ifndef DI_BASE_SUGGEST_H
#define DI_BASE_SUGGEST_H

#include <stddef.h>

/* Edits (insert, delete, replace, swap of neighbours) between two names; names longer than 63 bytes
 * are compared by their first 63. */
int di_edit_distance(const char *a, const char *b);

/* The first name that begins with `word` (of three letters or more); else the nearest, the first
 * among equals; NULL when none is near enough to be meant (a third of the word's letters, at least
 * one and at most three). */
const char *di_suggest(const char *word, const char *const *names, size_t count);

#endif
