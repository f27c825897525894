/* Records: values that have been written, for uniqueItems (schema_unique.c). A record is made as
 * its text is: a text is its last byte and the text before it, a list its last element and the list
 * before it. Equal values have equal numbers, whatever their spelling and the order of members. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "grammar/schema_internal.h"

/* In sets up to this size the order in which values came does not matter. */
enum { SORTED_SET = 64 };

struct record_table {
    record_node *nodes;
    size_t count, capacity;
    uint32_t *buckets, num_buckets;
    char **texts; /* of nodes of the document that were made of records */
    size_t num_texts, cap_texts;
};

/* ---- the table ---- */

static record no_memory(di_schema *s) {
    di_terms_fail(s->t, DI_ERR_NO_MEMORY, "no memory for a grammar");
    return RECORD_NONE;
}

static struct record_table *table_of(di_schema *s) {
    if (!s->records) {
        s->records = di_calloc(1, sizeof *s->records);
    }
    return s->records;
}

void schema_free_records(di_schema *s) {
    if (s->records) {
        for (size_t i = 0; i < s->records->num_texts; i++) {
            di_free(s->records->texts[i]);
        }
        di_free(s->records->texts);
        di_free(s->records->nodes);
        di_free(s->records->buckets);
        di_free(s->records);
    }
}

const record_node *schema_record_at(const di_schema *s, record x) {
    return &s->records->nodes[x];
}

static uint32_t hash_of(record_kind kind, record before, uint32_t a, uint32_t b) {
    uint64_t h = (kind * 0x9E3779B97F4A7C15ull) ^ before;
    h = (h ^ h >> 29 ^ a) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ h >> 31 ^ b) * 0x94D049BB133111EBull;
    return (uint32_t)(h >> 32);
}

static bool widen(di_schema *s, struct record_table *r) {
    uint32_t count = r->num_buckets ? 2 * r->num_buckets : 256;
    uint32_t *buckets = schema_new_buckets(s, &r->buckets, &r->num_buckets, count);
    for (uint32_t i = 1; buckets && i < r->count; i++) {
        record_node *n = &r->nodes[i];
        size_t at = hash_of(n->kind, n->before, n->a, n->b) % count;
        n->hash_next = buckets[at];
        buckets[at] = i;
    }
    return buckets != NULL;
}

record schema_record(di_schema *s, record_kind kind, record before, uint32_t a, uint32_t b) {
    struct record_table *r = table_of(s);
    if (!r || (r->count >= r->num_buckets && !widen(s, r))) {
        return no_memory(s);
    }
    if (before == RECORD_NONE || a == RECORD_NONE || b == RECORD_NONE) {
        return RECORD_NONE;
    }
    uint32_t hash = hash_of(kind, before, a, b);
    for (uint32_t i = r->buckets[hash % r->num_buckets]; i != UINT32_MAX;
         i = r->nodes[i].hash_next) {
        const record_node *n = &r->nodes[i];
        if (n->kind == kind && n->before == before && n->a == a && n->b == b) {
            return i;
        }
    }
    while (true) { /* twice the first time: number 0 is the empty text, list and set */
        record_node *nodes = di_grow(r->nodes, r->count, &r->capacity, sizeof *nodes);
        if (!nodes || !di_terms_charge(s->t, sizeof *nodes)) {
            r->nodes = nodes ? nodes : r->nodes;
            return no_memory(s);
        }
        r->nodes = nodes;
        if (r->count > 0) {
            break;
        }
        r->nodes[r->count++] = (record_node){.node = DI_DOC_NONE};
    }
    uint32_t *bucket = &r->buckets[hash % r->num_buckets], id = (uint32_t)r->count++;
    r->nodes[id] = (record_node){.kind = kind,
                                 .before = before,
                                 .a = a,
                                 .b = b,
                                 .length = r->nodes[before].length + 1,
                                 .hash_next = *bucket,
                                 .node = DI_DOC_NONE};
    *bucket = id;
    return id;
}

/* ---- texts and numbers ---- */

record schema_record_text(di_schema *s, const char *bytes, size_t size) {
    record text = 0;
    for (size_t i = 0; i < size; i++) {
        text = schema_record(s, RECORD_BYTE, text, (uint8_t)bytes[i], 0);
    }
    return text;
}

size_t schema_record_size(const di_schema *s, record text) {
    return text ? schema_record_at(s, text)->length : 0;
}

void schema_record_bytes(const di_schema *s, record text, char *bytes) {
    for (size_t i = schema_record_size(s, text); i-- > 0;) {
        bytes[i] = (char)schema_record_at(s, text)->a;
        text = schema_record_at(s, text)->before;
    }
}

/* A number is the text 0.DIGITSePOINT, which JSON would also have. */
record schema_record_number(di_schema *s, const di_decimal *d) {
    char text[DI_DECIMAL_DIGITS + 24];
    size_t n = 0;
    if (d->size == 0) {
        text[n++] = '0';
    } else {
        n = (size_t)snprintf(text, sizeof text, "%s0.%.*se%d", d->negative ? "-" : "", d->size,
                             d->digits, d->point);
    }
    return schema_record(s, RECORD_NUMBER, 0, schema_record_text(s, text, n), 0);
}

/* ---- lists and sets ---- */

static int by_number(const void *pa, const void *pb) {
    record a = *(const record *)pa, b = *(const record *)pb;
    return (a > b) - (a < b);
}

uint32_t schema_record_length(const di_schema *s, record list) {
    return list ? schema_record_at(s, list)->length : 0;
}

bool schema_set_has(const di_schema *s, record set, record value) {
    for (; set; set = schema_record_at(s, set)->before) {
        if (schema_record_at(s, set)->a == value) {
            return true;
        }
    }
    return false;
}

/* The values of a set that pass, and one more, in an array that the caller frees. */
typedef bool (*record_test)(const di_schema *s, record value, record key, record is);

static record *gather(di_schema *s, record set, record_test pass, record key, record is,
                      size_t *count) {
    record *of = di_realloc_array(NULL, schema_record_length(s, set) + 1u, sizeof *of);
    *count = 0;
    for (; of && set; set = schema_record_at(s, set)->before) {
        record value = schema_record_at(s, set)->a;
        if (!pass || pass(s, value, key, is)) {
            of[(*count)++] = value;
        }
    }
    if (!of) {
        no_memory(s);
    }
    return of;
}

static record set_of(di_schema *s, record *of, size_t count) {
    record set = 0;
    if (count > 1) {
        qsort(of, count, sizeof *of, by_number);
    }
    for (size_t i = 0; i < count; i++) {
        set = i > 0 && of[i] == of[i - 1] ? set : schema_record(s, RECORD_LIST, set, of[i], 0);
    }
    return set;
}

record schema_set_with(di_schema *s, record set, record value) {
    if (schema_set_has(s, set, value)) {
        return set;
    }
    if (schema_record_length(s, set) >= SORTED_SET) {
        return schema_record(s, RECORD_LIST, set, value, 0);
    }
    size_t count;
    record *of = gather(s, set, NULL, 0, 0, &count);
    if (!of) {
        return RECORD_NONE;
    }
    of[count++] = value;
    set = set_of(s, of, count);
    di_free(of);
    return set;
}

static record filtered(di_schema *s, record set, record_test pass, record key, record is) {
    size_t count;
    record *of = gather(s, set, pass, key, is, &count);
    if (!of) {
        return RECORD_NONE;
    }
    record kept = set_of(s, of, count);
    di_free(of);
    return kept;
}

/* ---- objects and arrays ---- */

record schema_record_member(const di_schema *s, record value, record name) {
    const record_node *n = schema_record_at(s, value);
    for (record m = n->kind == RECORD_OBJECT ? n->a : 0; m; m = schema_record_at(s, m)->before) {
        if (schema_record_at(s, m)->a == name) {
            return schema_record_at(s, m)->b;
        }
    }
    return RECORD_NONE;
}

record schema_record_element(const di_schema *s, record value, uint32_t index) {
    const record_node *n = schema_record_at(s, value);
    record list = n->kind == RECORD_ARRAY ? n->a : 0;
    uint32_t length = schema_record_length(s, list);
    if (index >= length) {
        return RECORD_NONE;
    }
    while (--length > index) {
        list = schema_record_at(s, list)->before;
    }
    return schema_record_at(s, list)->a;
}

static bool member_is(const di_schema *s, record value, record name, record is) {
    return schema_record_member(s, value, name) == is;
}

static bool element_is(const di_schema *s, record value, record index, record is) {
    return schema_record_element(s, value, index) == is;
}

record schema_set_by_member(di_schema *s, record set, record name, record is) {
    return set ? filtered(s, set, member_is, name, is) : 0;
}

record schema_set_by_element(di_schema *s, record set, uint32_t index, record is) {
    return set ? filtered(s, set, element_is, index, is) : 0;
}

typedef struct named {
    record name, value;
} named;

static int by_name(const void *pa, const void *pb) {
    const named *a = pa, *b = pb;
    return (a->name > b->name) - (a->name < b->name);
}

record schema_record_object(di_schema *s, record members) {
    size_t count = 0;
    named *of = di_realloc_array(NULL, schema_record_length(s, members) + 1u, sizeof *of);
    if (!of) {
        return no_memory(s);
    }
    for (record m = members; m; m = schema_record_at(s, m)->before) {
        of[count++] = (named){schema_record_at(s, m)->a, schema_record_at(s, m)->b};
    }
    if (count > 1) {
        qsort(of, count, sizeof *of, by_name);
    }
    record sorted = 0;
    for (size_t i = 0; i < count; i++) {
        sorted = schema_record(s, RECORD_MEMBER, sorted, of[i].name, of[i].value);
    }
    di_free(of);
    return schema_record(s, RECORD_OBJECT, 0, sorted, 0);
}

/* ---- as terms ---- */

static record text_in(const di_schema *s, record value, record_kind kind) {
    return schema_record_at(s, value)->kind == kind ? schema_record_at(s, value)->a : RECORD_NONE;
}

/* The texts of a set's values of one kind, or of a chain of members their names, one behind the
 * other; both for the caller to free. NULL: no memory. */
static di_word *words_of(di_schema *s, record set, record_kind kind, size_t *count, char **bytes) {
    size_t total = 0, n = 0;
    for (record i = set; i; i = schema_record_at(s, i)->before) {
        record text = kind == RECORD_MEMBER ? schema_record_at(s, i)->a
                                            : text_in(s, schema_record_at(s, i)->a, kind);
        total += text != RECORD_NONE ? schema_record_size(s, text) : 0;
    }
    di_word *words = di_realloc_array(NULL, schema_record_length(s, set) + 1u, sizeof *words);
    char *end = *bytes = di_alloc(total + 1);
    if (!words || !end) {
        di_free(words);
        di_free(end);
        no_memory(s);
        return NULL;
    }
    for (record i = set; i; i = schema_record_at(s, i)->before) {
        record text = kind == RECORD_MEMBER ? schema_record_at(s, i)->a
                                            : text_in(s, schema_record_at(s, i)->a, kind);
        if (text != RECORD_NONE) {
            schema_record_bytes(s, text, end);
            words[n] = (di_word){end, (uint32_t)schema_record_size(s, text)};
            end += words[n++].size;
        }
    }
    *count = n;
    return words;
}

di_term schema_set_strings(di_schema *s, record set, bool names) {
    size_t count;
    char *bytes;
    di_word *words = words_of(s, set, names ? RECORD_MEMBER : RECORD_STRING, &count, &bytes);
    if (!words) {
        return DI_TERM_NONE;
    }
    di_term x = count ? di_term_words(s->t, words, count) : DI_TERM_NONE;
    di_free(words);
    di_free(bytes);
    return x;
}

/* Spellings of numbers under way: their words point into `text` once all are there. */
typedef struct spellings {
    di_buffer text;
    di_word *words;
    size_t count, capacity;
    bool failed;
} spellings;

static void add_spelling(spellings *x, const char *text, size_t size) {
    di_word *words = size ? di_grow(x->words, x->count, &x->capacity, sizeof *words) : NULL;
    x->words = words ? words : x->words;
    if (words && di_buffer_append(&x->text, text, size, NULL)) {
        x->words[x->count++].size = size;
    } else {
        x->failed |= size > 0;
    }
}

/* The shortest spellings of whole numbers or of the others; zero has two. */
static void add_plain(spellings *x, const di_word *numbers, size_t count, bool whole) {
    for (size_t i = 0; i < count; i++) {
        di_decimal d;
        char text[DI_DECIMAL_TEXT];
        di_decimal_parse(&d, numbers[i].bytes, numbers[i].size);
        if (di_decimal_is_integer(&d) == whole) {
            add_spelling(x, text, di_decimal_write(&d, text));
            add_spelling(x, "-0", d.size == 0 ? 2 : 0);
        }
    }
}

static void add_scientific(spellings *x, const di_word *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        di_decimal d;
        char text[DI_DECIMAL_TEXT];
        di_decimal_parse(&d, numbers[i].bytes, numbers[i].size);
        for (int form = 0; form < 4; form++) {
            add_spelling(x, text, di_decimal_write_scientific(&d, text, form & 1, form & 2));
        }
    }
}

di_term schema_set_numbers(di_schema *s, record set, bool scientific) {
    size_t count;
    char *bytes;
    di_word *numbers = words_of(s, set, RECORD_NUMBER, &count, &bytes);
    if (!numbers) {
        return DI_TERM_NONE;
    }
    spellings x = {0};
    size_t whole = 0;
    if (scientific) {
        add_scientific(&x, numbers, count);
    } else {
        add_plain(&x, numbers, count, true);
        whole = x.count;
        add_plain(&x, numbers, count, false);
    }
    const char *at = x.text.data;
    for (size_t i = 0; i < x.count; at += x.words[i++].size) {
        x.words[i].bytes = at;
    }
    di_term result = DI_TERM_NONE;
    if (x.failed) {
        no_memory(s);
    } else if (x.count > 0) {
        result = scientific
                     ? di_term_words(s->t, x.words, x.count)
                     : di_number_among(s->t, x.words, whole, x.words + whole, x.count - whole);
    }
    di_buffer_free(&x.text);
    di_free(x.words);
    di_free(numbers);
    di_free(bytes);
    return result;
}

/* ---- as nodes of the document ---- */

/* The bytes of a text, kept as long as the schema. */
static bool keep_text(di_schema *s, record text, const char **bytes, uint32_t *size) {
    struct record_table *r = s->records;
    *size = (uint32_t)schema_record_size(s, text);
    char **texts = di_grow(r->texts, r->num_texts, &r->cap_texts, sizeof *texts);
    r->texts = texts ? texts : r->texts;
    char *copy = texts ? di_alloc(*size + 1u) : NULL;
    if (!copy || !di_terms_charge(s->t, *size + sizeof *texts)) {
        di_free(copy);
        return no_memory(s) != RECORD_NONE;
    }
    r->texts[r->num_texts++] = copy;
    schema_record_bytes(s, text, copy);
    copy[*size] = 0;
    *bytes = copy;
    return true;
}

uint32_t schema_add_node(di_schema *s, di_doc_node n) {
    di_doc_node *nodes = di_grow(s->doc.nodes, s->doc.count, &s->doc.capacity, sizeof *nodes);
    if (!nodes || !di_terms_charge(s->t, sizeof *nodes)) {
        s->doc.nodes = nodes ? nodes : s->doc.nodes;
        no_memory(s);
        return DI_DOC_NONE;
    }
    s->doc.nodes = nodes;
    s->doc.nodes[s->doc.count++] = n;
    return (uint32_t)s->doc.count - 1;
}

static uint32_t node_of(di_schema *s, record value);

/* The members or elements of a value, the last first, as children of a node. */
static bool add_children(di_schema *s, uint32_t parent, record list) {
    for (; list; list = s->records->nodes[list].before) {
        record_node n = s->records->nodes[list];
        bool member = n.kind == RECORD_MEMBER;
        uint32_t from = node_of(s, member ? n.b : n.a);
        if (from == DI_DOC_NONE) {
            return false;
        }
        di_doc_node child = s->doc.nodes[from]; /* shares the children of the node it copies */
        child.parent = parent;
        child.next = s->doc.nodes[parent].first;
        child.index = n.length - 1;
        if (member && !keep_text(s, n.a, &child.key, &child.key_size)) {
            return false;
        }
        uint32_t id = schema_add_node(s, child);
        if (id == DI_DOC_NONE) {
            return false;
        }
        s->doc.nodes[parent].first = id;
        s->doc.nodes[parent].count++;
    }
    return true;
}

/* DI_DOC_NONE after a fault. */
static uint32_t node_of(di_schema *s, record value) {
    record_node n = s->records->nodes[value];
    if (n.node != DI_DOC_NONE) {
        return n.node;
    }
    static const di_doc_type types[] = {[RECORD_STRING] = DI_DOC_STRING,
                                        [RECORD_NUMBER] = DI_DOC_NUMBER,
                                        [RECORD_ARRAY] = DI_DOC_ARRAY,
                                        [RECORD_OBJECT] = DI_DOC_OBJECT};
    di_doc_node x = {.type = (uint8_t)(n.kind == RECORD_WORD ? n.a : types[n.kind]),
                     .parent = DI_DOC_NONE,
                     .first = DI_DOC_NONE,
                     .next = DI_DOC_NONE};
    bool text = n.kind == RECORD_STRING || n.kind == RECORD_NUMBER;
    if (text && !keep_text(s, n.a, &x.text, &x.size)) {
        return DI_DOC_NONE;
    }
    uint32_t id = schema_add_node(s, x);
    bool compound = n.kind == RECORD_ARRAY || n.kind == RECORD_OBJECT;
    if (id == DI_DOC_NONE || (compound && !add_children(s, id, n.a))) {
        return DI_DOC_NONE;
    }
    s->records->nodes[value].node = id;
    return id;
}

bool schema_record_meets(di_schema *s, record value, demand d) {
    uint32_t node = node_of(s, value);
    demand both = node == DI_DOC_NONE ? UINT32_MAX : schema_demand_and(s, d, LIT(LIT_EQUALS, node));
    return both != UINT32_MAX && schema_inhabited(s, both);
}
