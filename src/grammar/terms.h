/* Terms: the one form that regular expressions, EBNF and JSON Schema become, and their derivatives.
 *
 * A term denotes a set of byte strings. Equal terms have equal ids (hash-consing with the usual
 * simplifications), so the derivatives of a regular term are the states of a deterministic
 * automaton that is built as far as it is looked at: intersection, complement and counted repeats
 * cost nothing until a text gets there. Terms that are not regular (calls, lazily made ones) are
 * taken apart by the machine (machine.h), which alone knows a stack.
 *
 * One table belongs to one grammar and is used by one thread at a time. Its functions do not
 * report errors one by one: the first fault (memory, a limit) sticks in di_terms.fault, everything
 * returns DI_TERM_NONE from then on, and whoever entered the table asks once at the end. */
#ifndef DI_GRAMMAR_TERMS_H
#define DI_GRAMMAR_TERMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef uint32_t di_term;

/* Always there, under these ids. */
enum {
    DI_TERM_NONE,        /* no string at all */
    DI_TERM_EMPTY,       /* the empty string */
    DI_TERM_CHAR,        /* one well-formed UTF-8 character */
    DI_TERM_TEXT,        /* any number of them */
    DI_TERM_JSON_STRING, /* a JSON string behind its opening quote, with the closing one */
};

typedef enum di_term_kind {
    DI_KIND_NONE,
    DI_KIND_EMPTY,
    DI_KIND_BYTES,    /* a: set of bytes */
    DI_KIND_CAT,      /* a, then b */
    DI_KIND_ALT,      /* any of list[a .. a + b) */
    DI_KIND_AND,      /* all of list[a .. a + b) */
    DI_KIND_NOT,      /* every byte string but those of a */
    DI_KIND_REPEAT,   /* a, b to c times */
    DI_KIND_WORDS,    /* a finite set of strings: node a of the shared minimal automaton */
    DI_KIND_STRING,   /* a text of a, written as the rest of a JSON string with its closing quote;
                         b, c: where in an escape (text.c) */
    DI_KIND_MULTIPLE, /* the rest of a decimal that makes a multiple of a; b: remainder, c: phase */
    DI_KIND_FINAL,    /* the empty string, with tag a */
    DI_KIND_KEY,      /* a front end's own state over a key's characters: hooks.derive */
    /* from here on not regular */
    DI_KIND_CALL,   /* rule a */
    DI_KIND_LAZY,   /* hooks.expand says what it is */
    DI_KIND_RESUME, /* as LAZY, but expand gets the tag of what ended before it */
} di_term_kind;

enum {
    DI_TERM_NULLABLE = 1, /* the empty string belongs to it (regular ones only) */
    DI_TERM_REGULAR = 2,
    DI_TERM_INEXACT = 4,   /* may denote nothing without being NONE: only a search can tell */
    DI_TERM_LIVE = 8,      /* found by a search: denotes something */
    DI_TERM_DEAD = 16,     /* likewise: nothing */
    DI_TERM_TOUCHED = 64,  /* has been derived once, without a row */
    DI_TERM_FLEETING = 32, /* of one text alone: its derivatives are not worth remembering */
};

#define DI_TERM_UNBOUNDED UINT32_MAX
#define DI_NO_TAG         UINT32_MAX

typedef struct di_term_row di_term_row;

typedef struct di_term_node {
    uint8_t kind, flags;
    uint32_t a, b, c;
    uint32_t hash_next;
    uint32_t mark; /* of the last search that saw it */
    di_term_row *row;
} di_term_node;

typedef struct di_byte_set {
    uint64_t words[4];
} di_byte_set;

typedef struct di_terms di_terms;

/* What a front end with terms of its own gives. */
typedef struct di_term_hooks {
    void *context;
    /* KEY: the derivative by a byte of the key's (decoded) text; which bytes may differ (as
     * di_terms_boundaries); and the tag if the key may end here, else DI_NO_TAG. */
    di_term (*derive)(void *context, di_terms *t, di_term key, uint8_t byte);
    void (*boundaries)(void *context, di_terms *t, di_term key, di_byte_set *starts);
    /* KEY: adds the bytes that may come next, and perhaps more (as di_terms_first). */
    void (*first)(void *context, di_terms *t, di_term key, di_byte_set *set);
    uint32_t (*end)(void *context, di_terms *t, uint32_t a, uint32_t b, uint32_t c);
    /* KEY: whether any characters at all may follow. */
    bool (*open)(void *context, di_term key);
    /* KEY: whether there is another regular term (*text, if it is wanted), that is alive, for the
     * texts that may still follow; *tag: of all ends, DI_NO_TAG if they differ. */
    bool (*text)(void *context, uint32_t a, uint32_t b, uint32_t c, di_term *text, uint32_t *tag);
    /* RESUME behind a key: the bytes that may come whatever the key was; false if they depend on
     * it. */
    bool (*behind_key)(void *context, di_term resume, di_byte_set *set);
    /* LAZY (tag = DI_NO_TAG) and RESUME. */
    di_term (*expand)(void *context, di_terms *t, di_term lazy, uint32_t tag);
} di_term_hooks;

typedef struct di_word_node {
    uint32_t first, count; /* edges */
    uint32_t hash_next;
    bool final;
} di_word_node;

typedef struct di_word_edge {
    uint32_t node;
    uint8_t byte;
} di_word_edge;

typedef struct di_class_map {
    di_byte_set starts;
    uint32_t count;
    uint8_t of[256];     /* byte to class */
    uint8_t sample[256]; /* class to its first byte */
    uint32_t hash_next;
} di_class_map;

/* The derivatives of a term, one for each class of bytes that it cannot tell apart. */
struct di_term_row {
    const di_class_map *map;
    di_term to[]; /* UINT32_MAX = not looked at yet */
};

struct di_terms {
    di_term_node *nodes;
    size_t num_nodes, cap_nodes;
    uint32_t *buckets;
    uint32_t num_buckets, level; /* a power of two: num_buckets is up to twice as much */
    size_t cap_buckets;
    di_term *list;
    size_t num_list, cap_list;
    di_byte_set *sets;
    size_t num_sets, cap_sets;
    di_word_node *words;
    size_t num_words, cap_words;
    di_word_edge *edges;
    size_t num_edges, cap_edges;
    uint32_t *word_buckets;
    uint32_t num_word_buckets;
    di_class_map **maps;
    size_t num_maps, cap_maps;
    di_term *scratch;
    size_t num_scratch, cap_scratch;
    uint32_t epoch;
    size_t bytes, max_bytes; /* held; and where the fault "too complex" is */
    uint64_t work, max_work; /* derivatives taken since the caller last set work to 0 */
    di_term_hooks hooks;
    di_error fault; /* code DI_OK while all is well */
};

bool di_terms_create(di_terms *t, size_t max_bytes, di_error *err);
void di_terms_destroy(di_terms *t);

/* Sets the fault (the first one stays) and returns DI_TERM_NONE. */
di_term di_terms_fail(di_terms *t, di_error_code code, const char *message);

/* ---- making terms ---- */

di_term di_term_bytes(di_terms *t, const di_byte_set *set);
di_term di_term_byte(di_terms *t, uint8_t low, uint8_t high);
di_term di_term_literal(di_terms *t, const char *bytes, size_t size);
di_term di_term_cat(di_terms *t, di_term a, di_term b);
di_term di_term_cat3(di_terms *t, di_term a, di_term b, di_term c);
di_term di_term_alt(di_terms *t, const di_term *of, size_t count);
di_term di_term_alt2(di_terms *t, di_term a, di_term b);
di_term di_term_and(di_terms *t, const di_term *of, size_t count);
di_term di_term_and2(di_terms *t, di_term a, di_term b);
/* Texts (well-formed UTF-8) that are not a's. */
di_term di_term_text_without(di_terms *t, di_term a);
di_term di_term_not(di_terms *t, di_term a);
di_term di_term_repeat(di_terms *t, di_term a, uint32_t low, uint32_t high);
di_term di_term_optional(di_terms *t, di_term a);
/* A JSON string of one of the texts, behind its opening quote. */
di_term di_term_string(di_terms *t, di_term text);
/* Decimals, without a sign, whose value times 10^decimals is a multiple of `multiple`. */
di_term di_term_multiple(di_terms *t, uint32_t multiple, uint32_t decimals);
di_term di_term_final(di_terms *t, uint32_t tag);
/* CALL, LAZY, RESUME, KEY. */
di_term di_term_special(di_terms *t, di_term_kind kind, uint32_t a, uint32_t b, uint32_t c);

/* A finite set of strings, in any order, equal ones allowed; the array gets sorted. */
typedef struct di_word {
    const char *bytes;
    size_t size;
} di_word;
di_term di_term_words(di_terms *t, di_word *words, size_t count);

/* Characters low..high of Unicode, surrogates left out. Ranges: pairs, sorted, apart. */
di_term di_term_characters(di_terms *t, const uint32_t *ranges, size_t num_ranges);

/* ---- asking ---- */

static inline const di_term_node *di_term_at(const di_terms *t, di_term x) {
    return &t->nodes[x];
}
static inline bool di_term_nullable(const di_terms *t, di_term x) {
    return t->nodes[x].flags & DI_TERM_NULLABLE;
}
static inline bool di_term_regular(const di_terms *t, di_term x) {
    return t->nodes[x].flags & DI_TERM_REGULAR;
}

/* The tag of a nullable term, DI_NO_TAG if it has none. */
uint32_t di_term_tag(const di_terms *t, di_term x);

/* Whether a regular term denotes anything. */
bool di_term_alive(di_terms *t, di_term x);

/* The derivative of a regular term; NONE if nothing can follow. */
di_term di_term_step_slow(di_terms *t, di_term x, uint8_t byte);
/* The same for one that looks at many bytes of x and has its row, which may be NULL, at hand. */
static inline di_term di_term_step_by(di_terms *t, di_term x, const di_term_row *row,
                                      uint8_t byte) {
    if (row) {
        di_term y = row->to[row->map->of[byte]];
        if (y == DI_TERM_NONE ||
            (y != UINT32_MAX &&
             (t->nodes[y].flags & (DI_TERM_INEXACT | DI_TERM_LIVE)) != DI_TERM_INEXACT)) {
            return y;
        }
    }
    return di_term_step_slow(t, x, byte);
}
static inline di_term di_term_step(di_terms *t, di_term x, uint8_t byte) {
    return di_term_step_by(t, x, t->nodes[x].row, byte);
}

/* Forgets all rows: they are made again when they are needed. */
void di_terms_drop_rows(di_terms *t);
/* The row of a term, made if need be; NULL after a fault. */
di_term_row *di_term_make_row(di_terms *t, di_term x);

/* ---- between the files of this table ---- */

/* The derivative, which may denote nothing without being NONE. */
di_term di_term_derive(di_terms *t, di_term x, uint8_t byte);
/* Sets the bytes at which a new class begins: two bytes with none in between derive the same. */
void di_terms_boundaries(di_terms *t, di_term x, di_byte_set *starts);
/* Adds the bytes that may come next in a regular term, and perhaps some more: what is cheap to tell
 * without a derivative. */
void di_terms_first(di_terms *t, di_term x, di_byte_set *set);
di_term di_term_intern(di_terms *t, di_term_kind kind, unsigned flags, uint32_t a, uint32_t b,
                       uint32_t c);
bool di_terms_charge(di_terms *t, size_t bytes);
bool di_terms_push(di_terms *t, di_term x); /* onto the scratch stack */
/* The ALT of what was pushed since num_scratch was `mark`, and takes it off. */
di_term di_terms_take_alt(di_terms *t, size_t mark);
di_term di_word_step(const di_terms *t, uint32_t node, uint8_t byte, bool *found);
di_term di_string_derive(di_terms *t, di_term x, uint8_t byte);
bool di_string_alive(di_terms *t, di_term x);
void di_string_boundaries(di_terms *t, di_term x, di_byte_set *starts);
void di_string_first(di_terms *t, di_term x, di_byte_set *set);
/* A STRING term in mode b with data c, NONE if no text can come of it. */
di_term di_string_make(di_terms *t, di_term text, uint32_t mode, uint32_t data);

static inline bool di_byte_set_has(const di_byte_set *s, unsigned byte) {
    return s->words[byte / 64] >> byte % 64 & 1;
}
static inline void di_byte_set_add(di_byte_set *s, unsigned byte) {
    if (byte < 256) {
        s->words[byte / 64] |= 1ull << byte % 64;
    }
}
/* For boundaries: makes low..high apart from the rest. */
static inline void di_byte_set_cut(di_byte_set *s, unsigned low, unsigned high) {
    di_byte_set_add(s, low);
    di_byte_set_add(s, high + 1);
}

#endif
