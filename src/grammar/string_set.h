/* Token sets of strings of any characters that are bounded in length: read off what each token
 * would add to a string, which is found out once a vocabulary. */
#ifndef DI_GRAMMAR_STRING_SET_H
#define DI_GRAMMAR_STRING_SET_H

#include "grammar/vocab.h"

/* A token inside a string, or one that closes it. */
typedef struct di_string_mark {
    int32_t token;
    uint32_t characters; /* that it begins before it ends, or closes the string */
} di_string_mark;

struct di_string_marks {
    di_string_mark *inside; /* [num_inside]: not plain ones, those of most characters first */
    di_string_mark *closing;
    uint32_t num_inside, num_closing;
    uint32_t *points;     /* [strings->num_points]: characters before each */
    uint32_t most_closed; /* characters before a closing quote in any token, at most */
};

/* Of a vocabulary that has its set of strings. */
bool di_string_marks_make(di_vocab *v, di_error *err);
void di_string_marks_destroy(di_string_marks *m); /* NULL is allowed */

/* Strings of low to high characters (UINT32_MAX = any number): writes the tokens that lie inside
 * them to words[v->num_words], and the points to the set. False: no memory. */
bool di_string_set_of_length(const di_vocab *v, uint32_t low, uint32_t high, uint32_t *words,
                             di_token_set *set);

#endif
