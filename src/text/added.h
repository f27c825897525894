/* Finding added tokens in text: leftmost first, longest among those that begin at one place. What
 * the flags of a token ask for (white space that it takes along, whole words only) is done here. */
#ifndef DI_TEXT_ADDED_H
#define DI_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    DI_ADDED_LSTRIP = 1,      /* takes the white space before it along */
    DI_ADDED_RSTRIP = 2,      /* ... and behind it */
    DI_ADDED_SINGLE_WORD = 4, /* no word character may touch it */
};

typedef struct di_added_node {
    int32_t child, sibling; /* -1: none; children of a node are a list */
    int32_t id;             /* of the token that ends here, -1: none */
    uint8_t byte, flags;
} di_added_node;

/* A trie over the tokens' bytes; node 0 is the root. A search costs at most (bytes of text) x
 * (bytes of the longest token), and one table look-up where no token begins. Read-only once built.
 */
typedef struct di_added {
    di_added_node *nodes;
    size_t count, capacity;
    bool begins[256]; /* some token begins with this byte */
} di_added;

bool di_added_create(di_added *a, di_error *err);
void di_added_destroy(di_added *a);

/* Adds a token of size >= 1 bytes. Refuses a text that is already there. */
bool di_added_insert(di_added *a, const char *text, size_t size, int32_t id, uint8_t flags,
                     di_error *err);

/* Id of the token whose text is exactly this, -1 if there is none. */
int32_t di_added_find(const di_added *a, const char *text, size_t size);

/* A search through text[0..size), valid UTF-8. All zero begins one, text and size set. */
typedef struct di_added_search {
    const char *text;
    size_t size;
    size_t from;       /* where to look on: behind the last token's own text */
    size_t begin, end; /* what the last token found covers, white space included */
} di_added_search;

/* Moves to the next token and returns its id, or -1 if none is left. Two tokens may both cover
 * white space that one of them takes along and that is the other's text: then begin is before the
 * last end. */
int32_t di_added_next(const di_added *a, di_added_search *s);

#endif
