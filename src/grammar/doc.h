/* A JSON text as schemas need it: members in the text's order, numbers as they are spelt, where
 * each value stands. (base/json.h keeps neither spelling nor exact numbers.) Also writes values
 * compactly. */
#ifndef DI_GRAMMAR_DOC_H
#define DI_GRAMMAR_DOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"

#define DI_DOC_MAX_DEPTH 200
#define DI_DOC_NONE      UINT32_MAX

typedef enum di_doc_type {
    DI_DOC_NULL,
    DI_DOC_FALSE,
    DI_DOC_TRUE,
    DI_DOC_NUMBER,
    DI_DOC_STRING,
    DI_DOC_ARRAY,
    DI_DOC_OBJECT,
} di_doc_type;

typedef struct di_doc_node {
    uint8_t type;
    uint32_t parent, first, next; /* DI_DOC_NONE: none */
    uint32_t count;               /* of elements or members */
    uint32_t index;               /* among the parent's */
    uint32_t size, key_size;
    const char *text; /* of a string, decoded; of a number, as spelt */
    const char *key;  /* of a member, decoded */
} di_doc_node;

/* Node 0 is the whole value. */
typedef struct di_doc {
    di_doc_node *nodes;
    size_t count, capacity;
    char *text; /* decoded strings */
    size_t text_size;
} di_doc;

/* Refused, with line and column: what is no JSON, a name twice in an object, nesting deeper than
 * DI_DOC_MAX_DEPTH, text that is no Unicode. */
bool di_doc_parse(di_doc *d, const char *text, size_t size, di_error *err);
void di_doc_free(di_doc *d);

/* The member of an object, DI_DOC_NONE if there is none or it is no object. */
uint32_t di_doc_member(const di_doc *d, uint32_t object, const char *key);

/* A JSON string with its quotes; only what must be is escaped. */
bool di_doc_write_string(const char *text, size_t size, di_buffer *out, di_error *err);
bool di_doc_write(const di_doc *d, uint32_t node, di_buffer *out, di_error *err);

/* The JSON pointer of a node, cut to size. */
void di_doc_pointer(const di_doc *d, uint32_t node, char *out, size_t size);

#endif
