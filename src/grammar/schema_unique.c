/* uniqueItems: no element may be one that has come. Elements are written as kept values: their
 * texts are followed by KEY terms, as names of objects are, which know how far the text has got,
 * and end with the record of the value (schema_record.c) as tag. Objects and arrays inside keep
 * what has been written in their states, so their ends have tags, too.
 *
 * A kept value may be given records to avoid. A string or number then is a regular term without
 * those; an object or array knows which of them it can still become, and lets in only what leaves
 * a way to another value, so that no beginning leads to avoided values alone. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/decimal.h"
#include "grammar/schema_internal.h"

enum {
    MAX_DEPTH = 64, /* of a text whose continuations are counted */
    MAX_LOOKS = 100000,
    MAX_NUMBER = 300, /* characters */
    MAX_NESTING = 12, /* of values that are counted */
    MAX_SEARCHES = 20000,
};
/* In c of a KEY; the rest of c is what is to be avoided. */
#define NUMBER_KEY 0x40000000u
#define AVOID_MASK 0x3FFFFFFFu

/* ---- KEY terms: a the text so far, b what may still follow it, c the flags and a set ----
 *
 * Before the first character b does not leave out the set yet: most are never read, for a text that
 * ends where another token begins has a set of its own. */

static di_term key_of(di_schema *s, record text, di_term rest, uint32_t c) {
    return text == RECORD_NONE || rest == DI_TERM_NONE || (c & AVOID_MASK) == AVOID_MASK
               ? DI_TERM_NONE
               : di_term_special(s->t, DI_KIND_KEY, text, rest, c | SCHEMA_UNIQUE_KEY);
}

/* The number's record; RECORD_NONE if it is none. */
static record number_record(di_schema *s, record text) {
    char bytes[MAX_NUMBER];
    size_t size = schema_record_size(s, text);
    di_decimal d;
    if (size == 0 || size > MAX_NUMBER) {
        return RECORD_NONE;
    }
    schema_record_bytes(s, text, bytes);
    return di_decimal_parse(&d, bytes, size) ? schema_record_number(s, &d) : RECORD_NONE;
}

static di_term strings_without(di_schema *s, di_term strings, record avoid) {
    di_term words = avoid ? schema_set_strings(s, avoid, false) : DI_TERM_NONE;
    return words == DI_TERM_NONE ? strings
                                 : di_term_and2(s->t, strings, di_term_text_without(s->t, words));
}

/* Spellings whose value can be told: plain ones, and normalized ones with an exponent. */
static di_term numbers_without(di_schema *s, di_term numbers, record avoid) {
    di_term plain =
        di_term_and2(s->t, numbers, di_term_repeat(s->t, DI_TERM_CHAR, 0, (uint32_t)MAX_NUMBER));
    di_term scientific = di_term_and2(s->t, numbers, di_number_scientific(s->t));
    bool exponents = di_term_alive(s->t, scientific);
    plain = numbers == s->any_number ? di_term_and2(s->t, plain, s->plain_number) : plain;
    if (avoid) {
        di_term spelt = schema_set_numbers(s, avoid, false);
        plain = spelt == DI_TERM_NONE ? plain : di_term_and2(s->t, plain, di_term_not(s->t, spelt));
        spelt = exponents ? schema_set_numbers(s, avoid, true) : DI_TERM_NONE;
        scientific = spelt == DI_TERM_NONE
                         ? scientific
                         : di_term_and2(s->t, scientific, di_term_not(s->t, spelt));
    }
    return di_term_alt2(s->t, di_term_alive(s->t, plain) ? plain : DI_TERM_NONE,
                        exponents && di_term_alive(s->t, scientific) ? scientific : DI_TERM_NONE);
}

/* What may follow the text of a KEY. The set is left out once for all the bytes that begin it. */
static di_term rest_of(di_schema *s, record text, di_term rest, uint32_t c) {
    if (text != 0 || (c & (AVOID_MASK | NUMBER_KEY)) == 0) {
        return rest;
    }
    struct schema_without *known = &s->without[(rest * 31 + c) % SCHEMA_WITHOUT];
    if (known->of != rest || known->c != c) {
        record avoid = c & AVOID_MASK;
        di_term x =
            c & NUMBER_KEY ? numbers_without(s, rest, avoid) : strings_without(s, rest, avoid);
        *known = (struct schema_without){rest, c, x};
    }
    return known->to;
}

di_term schema_unique_derive(di_schema *s, di_term key, uint8_t byte) {
    const di_term_node n = s->t->nodes[key];
    di_term rest = di_term_step(s->t, rest_of(s, n.a, n.b, n.c), byte);
    if (rest == DI_TERM_NONE) {
        return DI_TERM_NONE;
    }
    return key_of(s, schema_record(s, RECORD_BYTE, n.a, byte, 0), rest, n.c & NUMBER_KEY);
}

di_term schema_unique_text(di_schema *s, uint32_t text, di_term rest, uint32_t c) {
    return rest_of(s, text, rest, c);
}

uint32_t schema_unique_end(di_schema *s, uint32_t text, di_term rest, uint32_t c) {
    if (!di_term_nullable(s->t, rest)) {
        return DI_NO_TAG;
    }
    record value =
        c & NUMBER_KEY ? number_record(s, text) : schema_record(s, RECORD_STRING, 0, text, 0);
    return schema_set_has(s, c & AVOID_MASK, value) ? DI_NO_TAG : value;
}

/* ---- kept values ---- */

/* What the shapes of a demand allow besides objects and arrays. */
typedef struct scalars {
    di_term strings, numbers;
    uint32_t num_strings, num_numbers; /* no more than there are, found once; at most SCHEMA_MANY */
    unsigned types;
} scalars;

/* One spelling for each number. */
static di_term shortest_of(di_schema *s, di_term numbers) {
    return schema_number_and(s, numbers, di_number_shortest(s->t));
}

static scalars scalars_of(di_schema *s, demand d) {
    scalars x = {DI_TERM_NONE, DI_TERM_NONE, 0, 0, 0};
    for (uint32_t i = 0; i < s->demands[d].shape_count; i++) {
        shape y = s->shapes[s->demands[d].shape_first + i];
        x.types |= y.types;
        x.strings = y.types & TYPE_STRING ? di_term_alt2(s->t, x.strings, y.string) : x.strings;
        x.numbers = y.types & TYPE_NUMBER ? di_term_alt2(s->t, x.numbers, y.number) : x.numbers;
    }
    demand_node *n = &s->demands[d];
    if (!n->counted) {
        bool exact = true;
        x.num_strings = schema_count_texts(s, x.strings, SCHEMA_MANY, &exact);
        x.num_numbers = schema_count_texts(s, shortest_of(s, x.numbers), SCHEMA_MANY, &exact);
        n = &s->demands[d];
        n->num_strings = x.num_strings;
        n->num_numbers = x.num_numbers;
        n->counted = true;
    }
    x.num_strings = n->num_strings;
    x.num_numbers = n->num_numbers;
    return x;
}

/* The record of null, false or true if it may come. */
static bool word_allowed(di_schema *s, const scalars *x, int word, record avoid, record *value) {
    *value = schema_record(s, RECORD_WORD, 0, (uint32_t)word, 0);
    return x->types >> word & 1 && *value != RECORD_NONE && !schema_set_has(s, avoid, *value);
}

static bool has_strings(di_schema *s, const scalars *x, record avoid) {
    return schema_record_length(s, avoid) < x->num_strings ||
           di_term_alive(s->t, strings_without(s, x->strings, avoid));
}

static bool has_numbers(di_schema *s, const scalars *x, record avoid) {
    return schema_record_length(s, avoid) < x->num_numbers ||
           di_term_alive(s->t, numbers_without(s, x->numbers, avoid));
}

bool schema_may_search(di_schema *s) {
    if (++s->searches > MAX_SEARCHES) {
        di_terms_fail(s->t, DI_ERR_UNSUPPORTED,
                      "too complex: cannot tell what unlike values there are");
    }
    return s->t->fault.code == DI_OK;
}

bool schema_inhabited_without(di_schema *s, demand d, record avoid) {
    if (avoid == 0) {
        return schema_inhabited(s, d);
    }
    if (avoid == RECORD_NONE || !schema_know(s, d)) {
        return false;
    }
    scalars x = scalars_of(s, d);
    bool found = has_strings(s, &x, avoid) || has_numbers(s, &x, avoid);
    for (int w = 0; w < 3 && !found; w++) {
        record value;
        found = word_allowed(s, &x, w, avoid, &value);
    }
    for (uint32_t i = 0; i < s->demands[d].shape_count && !found; i++) {
        uint32_t at = s->demands[d].shape_first + i, table;
        uint8_t types = s->shapes[at].types;
        found = (types & TYPE_OBJECT && schema_object_of(s, at, &table) &&
                 schema_object_inhabited(s, table) && schema_object_differs(s, table, avoid)) ||
                (types & TYPE_ARRAY && schema_array_of(s, at, &table) &&
                 schema_array_inhabited(s, table) && schema_array_differs(s, table, avoid));
    }
    return found && s->t->fault.code == DI_OK;
}

di_term schema_kept_value(di_schema *s, demand d, record avoid) {
    return avoid == RECORD_NONE ? DI_TERM_NONE
                                : di_term_special(s->t, DI_KIND_LAZY, LAZY_KEPT, d, avoid);
}

di_term schema_kept_expand(di_schema *s, demand d, record avoid) {
    static const char *const words[] = {"null", "false", "true"};
    if (!schema_know(s, d)) {
        return DI_TERM_NONE;
    }
    scalars x = scalars_of(s, d);
    size_t mark = s->t->num_scratch;
    if (has_strings(s, &x, avoid)) {
        di_term key = key_of(s, 0, x.strings, avoid);
        di_terms_push(s->t, di_term_cat(s->t, s->quote, di_term_string(s->t, key)));
    }
    if (has_numbers(s, &x, avoid)) {
        di_terms_push(s->t, key_of(s, 0, x.numbers, NUMBER_KEY | avoid));
    }
    for (int w = 0; w < 3; w++) {
        record value;
        if (word_allowed(s, &x, w, avoid, &value)) {
            di_term word = di_term_literal(s->t, words[w], strlen(words[w]));
            di_terms_push(s->t, di_term_cat(s->t, word, di_term_final(s->t, value)));
        }
    }
    for (uint32_t i = 0; i < s->demands[d].shape_count; i++) {
        uint32_t at = s->demands[d].shape_first + i, table;
        uint8_t types = s->shapes[at].types;
        if (types & TYPE_OBJECT && schema_object_of(s, at, &table) &&
            schema_object_inhabited(s, table)) {
            di_term rest = schema_object_start_kept(s, table, avoid);
            di_terms_push(s->t, di_term_cat(s->t, di_term_byte(s->t, '{', '{'), rest));
        }
        if (types & TYPE_ARRAY && schema_array_of(s, at, &table) &&
            schema_array_inhabited(s, table)) {
            di_term rest = schema_array_start_kept(s, table, avoid);
            di_terms_push(s->t, di_term_cat(s->t, di_term_byte(s->t, '[', '['), rest));
        }
    }
    return di_terms_take_alt(s->t, mark);
}

/* ---- which values can be kept ---- */

typedef struct keep_check {
    demand *of;
    size_t count, capacity;
    const char *why; /* NULL: they can be */
} keep_check;

static bool note_demand(di_schema *s, demand d, void *context) {
    keep_check *c = context;
    for (size_t i = 0; i < c->count; i++) {
        if (c->of[i] == d) {
            return true;
        }
    }
    demand *of = di_grow(c->of, c->count, &c->capacity, sizeof *of);
    if (!of) {
        return schema_no_memory(s);
    }
    c->of = of;
    c->of[c->count++] = d;
    return true;
}

static bool check_shape(di_schema *s, uint32_t at, keep_check *c) {
    uint32_t table;
    uint8_t types = s->shapes[at].types;
    if (types & TYPE_OBJECT) {
        if (!schema_object_of(s, at, &table)) {
            return false;
        }
        if (schema_object_inhabited(s, table)) {
            if (!schema_object_demands(s, table, note_demand, c)) {
                return false;
            }
            if (!schema_object_roomy(s, table) && s->objects[table].extras_possible) {
                c->why = "is not enforced over objects that bound names which are not declared";
            }
        }
    }
    if (types & TYPE_ARRAY) {
        if (!schema_array_of(s, at, &table)) {
            return false;
        }
        if (schema_array_inhabited(s, table)) {
            if (!schema_array_demands(s, table, note_demand, c)) {
                return false;
            }
            if (!schema_array_roomy(s, table) && s->arrays[table].num_contains > 0) {
                c->why = "is not enforced over arrays that have a bound beside contains";
            }
        }
    }
    return schema_check(s);
}

bool schema_can_keep(di_schema *s, demand d, const char **why) {
    keep_check c = {0};
    bool ok = note_demand(s, d, &c);
    for (size_t i = 0; ok && i < c.count; i++) {
        ok = schema_know(s, c.of[i]);
        for (uint32_t k = 0; ok && k < s->demands[c.of[i]].shape_count; k++) {
            ok = check_shape(s, s->demands[c.of[i]].shape_first + k, &c);
        }
    }
    di_free(c.of);
    *why = c.why;
    return ok;
}

/* ---- how many values there are ---- */

typedef struct counting {
    uint32_t need;
    uint32_t looks;
    bool cut; /* some text was too long to look at */
} counting;

/* At least so many texts, at most `need`: exactly, unless `cut`. The term is alive. */
static uint32_t count_texts(di_schema *s, counting *c, di_term x, int depth) {
    if (depth == MAX_DEPTH || ++c->looks > MAX_LOOKS) {
        c->cut = true;
        return 1;
    }
    uint64_t sum = di_term_nullable(s->t, x);
    const di_term_row *row = di_term_make_row(s->t, x);
    for (uint32_t k = 0; row && k < row->map->count && sum < c->need; k++) {
        unsigned first = row->map->sample[k];
        unsigned next = k + 1 < row->map->count ? row->map->sample[k + 1] : 256;
        di_term y = di_term_step(s->t, x, (uint8_t)first);
        if (y != DI_TERM_NONE) {
            sum += (uint64_t)(next - first) * count_texts(s, c, y, depth + 1);
        }
    }
    return sum < c->need ? (uint32_t)sum : c->need;
}

uint32_t schema_count_texts(di_schema *s, di_term texts, uint32_t need, bool *exact) {
    counting c = {.need = need};
    uint32_t count = di_term_alive(s->t, texts) ? count_texts(s, &c, texts, 0) : 0;
    *exact = *exact && !c.cut;
    return count;
}

/* Whether some text comes back to where it has been. `path`: the terms on the way, depth of them.
 */
static bool has_cycle(di_schema *s, di_term x, di_term *path, int depth, uint32_t *looks) {
    for (int i = 0; i < depth; i++) {
        if (path[i] == x) {
            return true;
        }
    }
    const di_term_row *row = di_term_make_row(s->t, x);
    if (depth == MAX_DEPTH || ++*looks > MAX_LOOKS) {
        return false;
    }
    path[depth] = x;
    for (uint32_t k = 0; row && k < row->map->count; k++) {
        di_term y = di_term_step(s->t, x, row->map->sample[k]);
        if (y != DI_TERM_NONE && has_cycle(s, y, path, depth + 1, looks)) {
            return true;
        }
    }
    return false;
}

bool schema_endless_texts(di_schema *s, di_term texts) {
    di_term path[MAX_DEPTH];
    uint32_t looks = 0;
    bool exact = true;
    return texts == DI_TERM_TEXT ||
           schema_count_texts(s, texts, SCHEMA_ENDLESS, &exact) == SCHEMA_ENDLESS ||
           (di_term_alive(s->t, texts) && has_cycle(s, texts, path, 0, &looks));
}

/* a * b, at most need. */
static uint32_t times(uint32_t a, uint32_t b, uint32_t need) {
    uint64_t product = (uint64_t)a * b;
    return product < need ? (uint32_t)product : need;
}

static uint32_t count_values(di_schema *s, demand d, uint32_t need, bool *exact, int depth);

/* Of an object whose names are all declared: as many as its members make. */
static uint32_t count_objects(di_schema *s, uint32_t table, uint32_t need, int depth) {
    if (schema_object_roomy(s, table)) {
        return need;
    }
    uint32_t n = s->objects[table].num_names, required = 0, product = 1;
    bool exact = true;
    for (uint32_t i = 0; i < n; i++) {
        const object_name *name = &s->objects[table].names[i];
        if (name->required) {
            required++;
            product = times(product, count_values(s, name->value, need, &exact, depth + 1), need);
        }
    }
    const object_table *o = &s->objects[table];
    if (o->num_exists > 0 || o->low > required) {
        return 1;
    }
    for (uint32_t i = 0; i < n && o->high >= n; i++) {
        const object_name *name = &s->objects[table].names[i];
        if (!name->required && schema_inhabited(s, name->value)) {
            uint32_t count = count_values(s, name->value, need, &exact, depth + 1);
            product = times(product, count + 1, need);
        }
        o = &s->objects[table];
    }
    return product;
}

/* Of the shortest length alone, unless there is no bound. */
static uint32_t count_arrays(di_schema *s, uint32_t table, uint32_t need, int depth) {
    array_table a = s->arrays[table];
    if (a.unique != DI_DOC_NONE || a.num_contains > 0) {
        return a.low == 0 ? 1 : 0;
    }
    uint32_t product = 1;
    bool exact = true;
    for (uint32_t i = 0; i < a.low && product < need && product > 0; i++) {
        demand d = i < a.num_prefix ? a.prefix[i] : a.rest;
        uint32_t count = count_values(s, d, need, &exact, depth + 1);
        product = times(product, count, need);
        if (i >= a.num_prefix && count <= 1) {
            break;
        }
    }
    return a.high == DI_TERM_UNBOUNDED && product > 0 && schema_inhabited(s, a.rest) ? need
                                                                                     : product;
}

static uint32_t count_values(di_schema *s, demand d, uint32_t need, bool *exact, int depth) {
    if (!schema_know(s, d)) {
        return 0;
    }
    scalars x = scalars_of(s, d);
    uint64_t sum = (x.types & TYPE_NULL) + (x.types >> 1 & 1) + (x.types >> 2 & 1);
    sum += schema_count_texts(s, x.strings, need, exact);
    sum += sum < need ? schema_count_texts(s, shortest_of(s, x.numbers), need, exact) : 0;
    uint32_t objects = 0, arrays = 0;
    for (uint32_t i = 0; i < s->demands[d].shape_count && sum < need; i++) {
        uint32_t at = s->demands[d].shape_first + i, table, count;
        uint8_t types = s->shapes[at].types;
        *exact = *exact && !(types & (TYPE_OBJECT | TYPE_ARRAY));
        if (depth == MAX_NESTING) {
            continue;
        }
        if (types & TYPE_OBJECT && schema_object_of(s, at, &table) &&
            schema_object_inhabited(s, table)) {
            count = count_objects(s, table, need, depth);
            objects = count > objects ? count : objects;
        }
        if (types & TYPE_ARRAY && schema_array_of(s, at, &table)) {
            count = count_arrays(s, table, need, depth);
            arrays = count > arrays ? count : arrays;
        }
    }
    sum += (uint64_t)objects + arrays;
    return sum < need ? (uint32_t)sum : need;
}

uint32_t schema_count_values(di_schema *s, demand d, uint32_t need, bool *exact) {
    *exact = true;
    return count_values(s, d, need, exact, 0);
}
