/* Between token_set.c and the walk that it is made by, token_walk.c. */
#ifndef DI_GRAMMAR_TOKEN_WALK_H
#define DI_GRAMMAR_TOKEN_WALK_H

#include "grammar/terms.h"
#include "grammar/vocab.h"

/* Of one table of terms, kept between walks; freed with di_free. */
typedef struct di_walk_memory di_walk_memory;
di_walk_memory *di_walk_memory_create(void); /* NULL: no memory */

/* Finds the tokens that lie inside a term, words[v->num_words], and, for the set, the points at
 * which it ends. set->plain: tokens that all may come, as far as they are known before; sets[]:
 * others that it may begin with. Faults stick in the terms. */
void di_token_walk(di_terms *t, const di_vocab *v, const di_token_set *sets, size_t num_sets,
                   di_term x, di_walk_memory *memory, uint32_t *words, di_token_set *set,
                   uint64_t *walked);

#endif
