/* The rules of an EBNF grammar as they are read, shared by the parser (ebnf.c) and the passes that
 * make them ready for the machine (ebnf_rules.c). */
#ifndef DI_GRAMMAR_EBNF_INTERNAL_H
#define DI_GRAMMAR_EBNF_INTERNAL_H

#include "grammar/ebnf.h"

typedef uint32_t ebnf_node;

typedef enum ebnf_kind {
    EBNF_TERM,   /* a: a regular term */
    EBNF_RULE,   /* a: rule */
    EBNF_CAT,    /* a, then b */
    EBNF_ALT,    /* a or b */
    EBNF_REPEAT, /* a, low to high times */
} ebnf_kind;

typedef struct ebnf_expr {
    ebnf_kind kind;
    uint32_t a, b;
    uint32_t low, high;
} ebnf_expr;

typedef struct ebnf_rule {
    char *name; /* NULL for made ones */
    bool defined;
    ebnf_node body;
    long line, column; /* of the first reference or the definition */
    bool productive, nullable, regular;
    bool visiting; /* by the search for regular rules */
    int component; /* of the graph of left corners; -1 = not left-recursive */
    di_term term;  /* what a reference becomes: its automaton if regular, else a CALL */
} ebnf_rule;

typedef struct ebnf {
    di_machine *m;
    ebnf_expr *nodes;
    size_t num_nodes, cap_nodes;
    ebnf_rule *rules;
    size_t num_rules, cap_rules;
    di_error *err;
    bool failed; /* memory was short for a node or a rule */
} ebnf;

/* Each UINT32_MAX if memory is short (and the error is set). */
ebnf_node di_ebnf_add(ebnf *g, ebnf_kind kind, uint32_t a, uint32_t b);
uint32_t di_ebnf_add_rule(ebnf *g);

/* Checks that the root derives something, takes out left recursion, and fills m. */
bool di_ebnf_finish(ebnf *g, uint32_t root);

#endif
