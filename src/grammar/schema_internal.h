/* What the files of the JSON Schema front end share: schema.c (compiling, values), schema_refs.c
 * (identifiers and references), schema_shapes.h's files (keywords to shapes), schema_combine.c
 * (all, any, one, not), schema_object.c, schema_members.c, schema_names.c (names while they are
 * written) and schema_array.c (their states), schema_unique.c and schema_record.c (values that are
 * kept, for uniqueItems). */
#ifndef DI_GRAMMAR_SCHEMA_INTERNAL_H
#define DI_GRAMMAR_SCHEMA_INTERNAL_H

#include "grammar/decimal.h"
#include "grammar/doc.h"
#include "grammar/schema.h"

enum {
    SCHEMA_MAX_SHAPES = 4000, /* alternatives of one demand */
    SCHEMA_MAX_DEMANDS = 50000,
    SCHEMA_MAX_LITERALS = 64, /* of one demand */
    SCHEMA_MAX_PATTERNS = 24, /* of one object */
    SCHEMA_MAX_CONTAINS = 4,
    SCHEMA_ENDLESS = 1 << 20, /* as many values as no text can use up */
    SCHEMA_WITHOUT = 64,
    SCHEMA_MANY = 4096,        /* values that a demand is counted to have */
    SCHEMA_MAX_MEMBERS = 1000, /* a bound of minProperties above it is refused */
};

/* A statement about a value: node (of the document) read in one of these ways. */
typedef enum lit_kind { LIT_SCHEMA, LIT_NOT_SCHEMA, LIT_EQUALS, LIT_NOT_EQUALS } lit_kind;
typedef uint32_t lit; /* node << 2 | kind */
#define LIT(kind, node) ((lit)((node) << 2 | (lit)(kind)))
/* Statements without a node. */
enum { LIT_TRUE = UINT32_MAX - 1, LIT_FALSE = UINT32_MAX };

/* A demand: a set of statements. Number 0 is the empty one: any value. */
typedef uint32_t demand;

enum {
    TYPE_NULL = 1,
    TYPE_FALSE = 2,
    TYPE_TRUE = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127,
};

typedef enum rule_kind {
    /* objects */
    RULE_PROPERTY,   /* the member `name` is `value` */
    RULE_REQUIRED,   /* the member `name` is there */
    RULE_PATTERN,    /* members whose name is in `text` are `value` */
    RULE_ADDITIONAL, /* members that schema `node` neither names nor has a pattern for; or, of
                        unevaluatedProperties, none of node_list[low .. low + high) */
    RULE_NAMES,      /* names are in `text` */
    RULE_EXISTS,     /* a member of which ADDITIONAL (text = NONE) or PATTERN speaks is `value` */
    RULE_MEMBERS,    /* low to high of them */
    /* arrays */
    RULE_PREFIX,   /* element `low` is `value` */
    RULE_ITEMS,    /* elements from `low` on are `value` */
    RULE_CONTAINS, /* low to high elements are `value` */
    RULE_LENGTH,   /* low to high of them */
    RULE_UNIQUE,
} rule_kind;

/* Rules are never changed once made, so shapes share them. */
typedef struct rule {
    uint8_t kind;
    uint32_t node; /* of ADDITIONAL, EXISTS; of the keyword, for messages */
    lit value;
    di_term text;
    const char *name;
    uint32_t name_size;
    uint32_t low, high; /* high DI_TERM_UNBOUNDED = none */
} rule;

/* One alternative: the value has one of the types, and for its type what is said here holds. */
typedef struct shape {
    uint8_t types;
    di_term string;         /* its text */
    di_term number;         /* its spelling */
    uint32_t first, count;  /* rules of objects and arrays: rule_list[first ..] */
    uint32_t object, array; /* tables made of them, UINT32_MAX = not yet */
} shape;

typedef struct shapes {
    shape *of;
    size_t count, capacity;
} shapes;

typedef struct demand_node {
    uint32_t first, count; /* of literals */
    uint32_t hash_next;
    uint32_t shape_first, shape_count; /* in schema.shapes, once known */
    uint8_t known;                     /* shapes: 0 not asked, 1 being made, 2 made */
    uint8_t inhabited;                 /* 0 not asked, 1 being asked, 2 no, 3 yes */
    bool visited;                      /* by the walk over all demands */
    bool counted;                      /* num_strings, num_numbers: see schema_unique.c */
    uint32_t num_strings, num_numbers;
    di_term value;    /* its automaton or a LAZY term; NONE = not made */
    di_term expanded; /* what the LAZY term is; NONE = not made */
} demand_node;

/* ---- values that have been written, for uniqueItems: schema_record.c ---- */

typedef uint32_t record; /* 0: the empty text, list, set, and object under way */
#define RECORD_NONE DI_NO_TAG

typedef enum record_kind {
    RECORD_BYTE,   /* a text: `before`, then byte a */
    RECORD_STRING, /* values: of text a */
    RECORD_NUMBER, /* text a: 0 or 0.DIGITSePOINT */
    RECORD_WORD,   /* a: its di_doc_type */
    RECORD_ARRAY,  /* of list a */
    RECORD_OBJECT, /* of members a, in the order of their names' numbers */
    RECORD_LIST,   /* a list or set: `before`, then value a */
    RECORD_MEMBER, /* members: `before`, then name (text) a with value b */
    RECORD_NAME,   /* text a, which matches patterns b */
} record_kind;

typedef struct record_node {
    record_kind kind;
    record before;
    uint32_t a, b, length, hash_next;
    uint32_t node; /* of the document, made of it; DI_DOC_NONE = not yet */
} record_node;

/* ---- objects ---- */

typedef struct object_name {
    const char *text;
    uint32_t size;
    uint32_t order; /* its place in the fixed order */
    demand value;
    bool required, possible;
    uint32_t exists; /* bits of the EXISTS rules it can fulfil */
} object_name;

typedef struct name_node {
    uint32_t first_child, next_sibling; /* UINT32_MAX = none */
    uint32_t name;                      /* that ends here, UINT32_MAX = none */
    uint8_t byte;
} name_node;

typedef struct object_table {
    object_name *names; /* in the fixed order */
    uint32_t num_names;
    name_node *trie; /* [0] the root */
    uint32_t num_nodes, cap_nodes;
    di_term patterns[SCHEMA_MAX_PATTERNS];
    lit pattern_values[SCHEMA_MAX_PATTERNS][4]; /* LIT_TRUE = none */
    uint32_t num_patterns;
    di_term allowed_names; /* TEXT if any */
    uint32_t low, high;
    struct additional {
        uint32_t node, first, count; /* of node_list; count 0: node alone */
        uint32_t patterns;           /* bits of the patterns that take a name out */
        lit value;
    } * additional;
    uint32_t num_additional;
    struct {
        uint32_t patterns; /* ADDITIONAL: bits that take a name out; PATTERN: the bit */
        bool additional;
        uint32_t node;
        lit value;
    } exists[8];
    uint32_t num_exists;
    struct extra_demand { /* on members without a declared name, by the patterns they match */
        uint32_t matches;
        demand value;
        bool possible;
    } * extras;
    uint32_t num_extras, cap_extras;
    uint32_t *required_from, *possible_from; /* [num_names + 1]: how many from there on */
    bool markup;          /* written as the parameters of a call (schema_tools.c), not as JSON */
    uint8_t roomy;        /* schema_object_roomy: 0 not asked, 1 no, 2 yes */
    bool settled;         /* `possible`, and what follows, is known */
    bool extras_possible; /* some name that is not declared may come */
    bool any_extra;       /* all of them may */
    di_term others;       /* names behind characters that begin no declared one; NONE = not made */
} object_table;

typedef struct object_state {
    uint32_t table;
    uint32_t count;              /* members so far, capped where it does not matter */
    uint32_t next;               /* fixed order: the first name that may still come */
    uint32_t exists;             /* bits fulfilled */
    uint32_t seen;               /* any order: set of names */
    bool extras;                 /* fixed order: only extras may still come */
    bool first;                  /* no member yet */
    di_term term;                /* what the rest of the object is; NONE = not made */
    uint32_t required, possible; /* names that still must, and can, come */
    uint8_t extra;               /* whether an extra may come: 0 not asked, 1 no, 2 yes */
    bool kept;                   /* ends with the record of the object as tag; of such alone: */
    record members;              /* written */
    record avoid;                /* what it must not become, as far as it still can */
    uint8_t differs;             /* whether it can become another: 0 not asked, 1 no, 2 yes */
    uint32_t plain;              /* schema_key_text's; UINT32_MAX = not made */
    uint32_t hash_next;
} object_state;

/* Where in a name the text is. */
typedef struct key_state {
    uint32_t table;
    uint32_t node; /* of the trie, UINT32_MAX = no declared name any more */
    di_term allowed;
    di_term patterns[SCHEMA_MAX_PATTERNS];
    bool kept;
    record text; /* of a kept one */
    uint32_t hash_next;
} key_state;

/* ---- arrays ---- */

typedef struct array_table {
    uint32_t low, high;
    uint32_t num_prefix;
    demand *prefix; /* [num_prefix] */
    demand rest;
    struct {
        uint32_t low, high;
        lit value;
    } contains[SCHEMA_MAX_CONTAINS];
    uint32_t num_contains;
    uint32_t unique; /* the node of uniqueItems; DI_DOC_NONE = not */
    uint8_t roomy;   /* schema_array_roomy: 0 not asked, 1 no, 2 yes */
    bool settled;
} array_table;

typedef struct array_state {
    uint32_t table;
    uint32_t count; /* elements so far, capped where it does not matter */
    uint32_t found[SCHEMA_MAX_CONTAINS];
    record list;     /* elements written: of a kept array in order, else of a unique one the set */
    bool kept;       /* ends with the record of the array as tag; of such alone: */
    record avoid;    /* what it must not become, as far as it still can */
    uint8_t differs; /* whether it can become another: 0 not asked, 1 no, 2 yes */
    uint32_t hash_next;
} array_state;

/* Kinds of LAZY and RESUME terms (their a). */
enum { LAZY_VALUE, LAZY_OBJECT, LAZY_ARRAY, LAZY_MEMBER, LAZY_ELEMENT, LAZY_KEPT, LAZY_WRITTEN };
#define TAG_CLOSE (UINT32_MAX - 1)
/* Set in c of the KEY terms of schema_unique.c. */
#define SCHEMA_UNIQUE_KEY 0x80000000u

struct di_schema {
    di_machine *m;
    di_terms *t;
    di_schema_options options;
    di_doc doc;
    di_error *err;  /* of the call under way */
    bool old_refs;  /* draft 7 and before: $ref's siblings do not count */
    bool draft4;    /* 1.0 is no integer */
    bool draft2019; /* unevaluatedItems does not know of contains */
    char ignored[160];

    /* schema_refs.c */
    struct schema_base *bases;
    uint32_t num_bases;
    size_t cap_bases;
    uint32_t *base_of; /* [doc.count] */
    struct schema_anchor *anchors;
    size_t num_anchors, cap_anchors;

    demand_node *demands;
    size_t num_demands, cap_demands;
    lit *literals;
    size_t num_literals, cap_literals;
    uint32_t demand_buckets[1024];
    shape *shapes;
    size_t num_shapes, cap_shapes;
    rule *rules;
    size_t num_rules, cap_rules;
    uint32_t *rule_list;
    size_t num_rule_list, cap_rule_list;
    uint32_t *node_list; /* schemas that rules speak of together */
    size_t num_node_list, cap_node_list;
    int depth;
    int making;     /* demands whose shapes are being made */
    uint64_t steps; /* of combining shapes and searching values; bounded */
    bool assumed;   /* the search for a value rests on an assumption */
    int searches;   /* of kept values, since the machine last asked for a term; bounded */

    object_table *objects;
    size_t num_objects, cap_objects;
    object_state *object_states;
    size_t num_object_states, cap_object_states;
    uint32_t *object_buckets, num_object_buckets;
    key_state *keys;
    size_t num_keys, cap_keys;
    uint32_t *key_buckets, num_key_buckets;
    uint32_t *seen_words; /* sets of names, each of its object's length */
    size_t num_seen, cap_seen;
    array_table *arrays;
    size_t num_arrays, cap_arrays;
    struct record_table *records; /* NULL at first */
    struct schema_without {
        di_term of;
        uint32_t c;
        di_term to;
    } without[SCHEMA_WITHOUT]; /* what was left out last of terms (schema_unique.c) */
    array_state *array_states;
    size_t num_array_states, cap_array_states;
    uint32_t *array_buckets, num_array_buckets;

    di_term space, any_number, plain_number, quote;
};

/* An error at a node: "KEYWORD at POINTER: why". Always false. */
bool schema_fail(di_schema *s, di_error_code code, uint32_t node, const char *why);
/* The same for what is not supported: true if lenient, and then it is noted. */
bool schema_unsupported(di_schema *s, uint32_t node, const char *why);
bool schema_no_memory(di_schema *s);
/* Empty buckets of a hash table in place of fewer; NULL after a fault. */
uint32_t *schema_new_buckets(di_schema *s, uint32_t **old, uint32_t *count, uint32_t wanted);
/* The fault of the terms as this call's error. */
bool schema_check(di_schema *s);

/* ---- schema_refs.c ---- */
bool schema_read_ids(di_schema *s);
/* For a text that is no schema but holds some: makes room, and reads the one at a node. */
bool schema_open_ids(di_schema *s);
bool schema_read_ids_at(di_schema *s, uint32_t node);
/* The schema that the $ref (or $dynamicRef) at node `ref` names. */
bool schema_resolve(di_schema *s, uint32_t ref, uint32_t *target);
void schema_free_ids(di_schema *s);

/* ---- schema_shapes.c ---- */
/* Adds the shapes of a statement. For schema_know, which remembers them. */
bool schema_make_shapes(di_schema *s, lit x, shapes *out);
shape schema_any_shape(const di_schema *s);
bool schema_add_shape(di_schema *s, shapes *list, shape x);
bool schema_add_rule(di_schema *s, shape *x, rule r);
/* Both at once, in *out (false: no memory); its types are 0 if that is plainly impossible. */
bool schema_meet(di_schema *s, const shape *a, const shape *b, shape *out);
di_term schema_number_and(di_schema *s, di_term a, di_term b);

/* The texts that a pattern finds. */
bool schema_pattern(di_schema *s, uint32_t node, const char *text, uint32_t size, di_term *out);

/* ---- schema_combine.c ---- */
bool schema_product(di_schema *s, shapes *list, const shapes *with);
bool schema_and_literal(di_schema *s, shapes *list, lit x);
bool schema_any_of(di_schema *s, uint32_t array, lit_kind kind, shapes *out);
bool schema_one_of(di_schema *s, uint32_t array, bool negated, shapes *out);
bool schema_if(di_schema *s, uint32_t node, bool negated, shapes *out);

/* ---- schema_tools.c ---- */
/* A value as a parameter of a call, from its string="..." on to the end of its tag. */
di_term schema_markup_value(di_schema *s, demand d);
#define MARK             DI_VOCAB_DSML
#define MARKUP_PARAMETER "<" MARK " parameter name=\""
#define MARKUP_CALL_END  "</" MARK " invoke>\n"

/* ---- schema.c ---- */
/* An empty schema over a machine whose hooks it becomes. */
di_schema *schema_create(di_machine *m, const di_schema_options *options, di_error *err);
/* Which draft a schema says it is written in. */
void schema_read_draft(di_schema *s, uint32_t node);
/* Terms that all values need. */
void schema_make_terms(di_schema *s);
/* Makes every demand that a text can come to. */
bool schema_visit_all(di_schema *s, demand root);
/* Values without those that are strings, as JSON. */
di_term schema_value_but_strings(di_schema *s, demand d);
demand schema_demand(di_schema *s, const lit *literals, size_t count);
demand schema_demand_and(di_schema *s, demand a, lit x); /* both UINT32_MAX after an error */
/* Makes the shapes of a demand. */
bool schema_know(di_schema *s, demand d);
/* Adds the shapes of a statement to *out, which the caller frees. */
bool schema_shapes_of(di_schema *s, lit x, shapes *out);
/* The table of a shape that is an object, or an array. */
bool schema_object_of(di_schema *s, uint32_t shape_index, uint32_t *table);
bool schema_array_of(di_schema *s, uint32_t shape_index, uint32_t *table);
/* Whether some value meets the demand; false also after an error. */
bool schema_inhabited(di_schema *s, demand d);
di_term schema_value(di_schema *s, demand d);
/* A format's texts; *known is false for one that this program has not. */
bool schema_format(di_schema *s, uint32_t node, bool *known, di_term *out);

/* ---- schema_object.c ---- */
bool schema_object(di_schema *s, const shape *x, uint32_t *table);
/* The same for the parameters of a call, whose names are among `names`. */
bool schema_markup_object(di_schema *s, const shape *x, di_term names, uint32_t *table);
bool schema_object_inhabited(di_schema *s, uint32_t table);
/* Calls f for every demand that members of the object can have to meet. */
typedef bool (*demand_fn)(di_schema *s, demand d, void *context);
bool schema_object_demands(di_schema *s, uint32_t table, demand_fn f, void *context);
/* Finds out which members are possible. */
bool schema_object_settle(di_schema *s, uint32_t table);
/* The demand on a member whose name is not declared and matches these patterns (bits). */
demand schema_extra_demand(di_schema *s, uint32_t table, uint32_t bits);
/* Calls f for every set of patterns that such a name can match; stops when f returns false. */
typedef bool (*extra_fn)(di_schema *s, demand d, uint32_t bits, void *context);
bool schema_extra_sets(di_schema *s, uint32_t table, extra_fn f, void *context);
/* Whether any number of names that are not declared may come, so that every object of the table
 * can still become one that has not been seen. */
bool schema_object_roomy(di_schema *s, uint32_t table);
bool schema_exists_possible(di_schema *s, uint32_t table, uint32_t index);

/* ---- schema_members.c ---- */
di_term schema_object_start(di_schema *s, uint32_t table);
di_term schema_object_expand(di_schema *s, uint32_t state);
di_term schema_object_resume(di_schema *s, uint32_t state, uint32_t tag);
/* Hooks. */
bool schema_behind_key(void *schema, di_term resume, di_byte_set *set);
/* A kept object, which avoids what is in the set; whether there is one. */
di_term schema_object_start_kept(di_schema *s, uint32_t table, record avoid);
bool schema_object_differs(di_schema *s, uint32_t table, record avoid);
/* Behind a member's value, which has been written. */
di_term schema_object_written(di_schema *s, uint32_t state, record name, record value);
void schema_free_objects(di_schema *s);
/* Whether names that are not declared may come next, or a declared one. */
bool schema_extras_allowed(di_schema *s, uint32_t state);
bool schema_name_allowed(di_schema *s, uint32_t state, uint32_t name);
/* The state of an object that is not kept but lets the same names come; its own if there is none.
 */
uint32_t schema_plain_state(di_schema *s, uint32_t state);

/* ---- schema_names.c ---- */
/* A KEY term is (state, key, table). Where no declared name is possible any more the state does not
 * matter and is left out, so that all states share the automaton. */
di_term schema_key_term(di_schema *s, uint32_t state, const key_state *x);
/* Whether a name below a node of the object's trie may come. */
bool schema_names_allowed(di_schema *s, uint32_t state, uint32_t node);
/* Hooks. */
di_term schema_key_derive(void *schema, di_terms *t, di_term key, uint8_t byte);
void schema_key_boundaries(void *schema, di_terms *t, di_term key, di_byte_set *starts);
void schema_key_first(void *schema, di_terms *t, di_term key, di_byte_set *set);
uint32_t schema_key_end(void *schema, di_terms *t, uint32_t a, uint32_t b, uint32_t c);
bool schema_key_open(void *schema, di_term key);
bool schema_key_text(void *schema, uint32_t a, uint32_t b, uint32_t c, di_term *text,
                     uint32_t *tag);

/* ---- schema_array.c ---- */
bool schema_array(di_schema *s, const shape *x, uint32_t *table);
bool schema_array_inhabited(di_schema *s, uint32_t table);
bool schema_array_demands(di_schema *s, uint32_t table, demand_fn f, void *context);
di_term schema_array_start(di_schema *s, uint32_t table);
di_term schema_array_expand(di_schema *s, uint32_t state, bool first);
di_term schema_array_resume(di_schema *s, uint32_t state, uint32_t tag);
/* As for objects: arrays of any length. */
bool schema_array_roomy(di_schema *s, uint32_t table);
di_term schema_array_start_kept(di_schema *s, uint32_t table, record avoid);
bool schema_array_differs(di_schema *s, uint32_t table, record avoid);
void schema_free_arrays(di_schema *s);

/* ---- schema_record.c ---- */
/* All give RECORD_NONE after a fault, or if they are given it. */
record schema_record(di_schema *s, record_kind kind, record before, uint32_t a, uint32_t b);
const record_node *schema_record_at(const di_schema *s, record x); /* until the next is made */
record schema_record_text(di_schema *s, const char *bytes, size_t size);
size_t schema_record_size(const di_schema *s, record text);
void schema_record_bytes(const di_schema *s, record text, char *bytes);
record schema_record_number(di_schema *s, const di_decimal *d);
/* Of members in any order. */
record schema_record_object(di_schema *s, record members);
uint32_t schema_record_length(const di_schema *s, record list);
/* RECORD_NONE: it is no object with that member, no array of that length. */
record schema_record_member(const di_schema *s, record value, record name);
record schema_record_element(const di_schema *s, record value, uint32_t index);
bool schema_set_has(const di_schema *s, record set, record value);
record schema_set_with(di_schema *s, record set, record value);
/* Those of a set whose member, or element, is this. */
record schema_set_by_member(di_schema *s, record set, record name, record is);
record schema_set_by_element(di_schema *s, record set, uint32_t index, record is);
/* The texts of the strings of a set, or of the names of members; the spellings of its numbers that
 * are plain, or have an exponent. */
di_term schema_set_strings(di_schema *s, record set, bool names);
di_term schema_set_numbers(di_schema *s, record set, bool scientific);
/* Whether a value meets a demand. */
bool schema_record_meets(di_schema *s, record value, demand d);
/* Adds a node to the document, whose nodes may move. DI_DOC_NONE after a fault. */
uint32_t schema_add_node(di_schema *s, di_doc_node n);
void schema_free_records(di_schema *s);

/* ---- schema_unique.c ---- */
/* A value that ends with its record as tag, and is none of a set. */
di_term schema_kept_value(di_schema *s, demand d, record avoid);
di_term schema_kept_expand(di_schema *s, demand d, record avoid);
/* Whether there is such a value. */
bool schema_inhabited_without(di_schema *s, demand d, record avoid);
/* Counts a search for values that need not be avoided; false when there have been too many. */
bool schema_may_search(di_schema *s);
/* Whether values can be kept: *why not, NULL if they can be. */
bool schema_can_keep(di_schema *s, demand d, const char **why);
/* At least so many texts, or values, but at most `need`; no more than that if *exact is left. */
uint32_t schema_count_texts(di_schema *s, di_term texts, uint32_t need, bool *exact);
bool schema_endless_texts(di_schema *s, di_term texts);
uint32_t schema_count_values(di_schema *s, demand d, uint32_t need, bool *exact);
di_term schema_unique_derive(di_schema *s, di_term key, uint8_t byte);
/* The text that may still follow, a regular term. */
di_term schema_unique_text(di_schema *s, uint32_t text, di_term rest, uint32_t c);
uint32_t schema_unique_end(di_schema *s, uint32_t text, di_term rest, uint32_t c);

#endif
