/* Is this a JSON Schema that could be compiled? See schema.h. Two passes: the shape of every
 * subschema, as the meta-schema asks for; then what can be reached from the root (references that
 * lead somewhere, patterns that are regular expressions). */
#include "text/recipe/schema.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/buffer.h"

enum { MOST_STEPS = 5000000, MOST_REFERENCES = 10000, LONGEST_PATTERN = 1 << 16 };

/* What a keyword's value must be. */
typedef enum shape {
    SCHEMA,
    SCHEMA_OR_LIST, /* of schemas */
    SCHEMAS,        /* a list of at least one */
    MAP,            /* names to schemas */
    PATTERN_MAP,    /* patterns to schemas */
    MIXED_MAP,      /* names to schemas or lists of names */
    NAMES_MAP,      /* names to lists of names */
    TYPE,
    COUNT,
    NUMBER,
    POSITIVE,
    BOUND, /* a number, or true or false in draft 4 */
    FLAG,
    STRING,
    PATTERN,
    NAMES,
    LIST,
} shape;

typedef struct rule {
    const char *name;
    shape shape;
    bool applies; /* its schemas are reached from the one that it stands in */
} rule;

static const rule keywords[] = {
    {"additionalItems", SCHEMA, true},
    {"additionalProperties", SCHEMA, true},
    {"allOf", SCHEMAS, true},
    {"anyOf", SCHEMAS, true},
    {"contains", SCHEMA, true},
    {"else", SCHEMA, true},
    {"if", SCHEMA, true},
    {"not", SCHEMA, true},
    {"oneOf", SCHEMAS, true},
    {"prefixItems", SCHEMAS, true},
    {"properties", MAP, true},
    {"patternProperties", PATTERN_MAP, true},
    {"dependentSchemas", MAP, true},
    {"dependencies", MIXED_MAP, true},
    {"propertyNames", SCHEMA, true},
    {"then", SCHEMA, true},
    {"unevaluatedItems", SCHEMA, true},
    {"unevaluatedProperties", SCHEMA, true},
    {"items", SCHEMA_OR_LIST, true},
    {"$defs", MAP, false},
    {"definitions", MAP, false},
    {"dependentRequired", NAMES_MAP, false},
    {"type", TYPE, false},
    {"maxLength", COUNT, false},
    {"minLength", COUNT, false},
    {"maxItems", COUNT, false},
    {"minItems", COUNT, false},
    {"maxProperties", COUNT, false},
    {"minProperties", COUNT, false},
    {"maxContains", COUNT, false},
    {"minContains", COUNT, false},
    {"maximum", NUMBER, false},
    {"minimum", NUMBER, false},
    {"exclusiveMaximum", BOUND, false},
    {"exclusiveMinimum", BOUND, false},
    {"multipleOf", POSITIVE, false},
    {"uniqueItems", FLAG, false},
    {"readOnly", FLAG, false},
    {"writeOnly", FLAG, false},
    {"deprecated", FLAG, false},
    {"title", STRING, false},
    {"description", STRING, false},
    {"format", STRING, false},
    {"$comment", STRING, false},
    {"$id", STRING, false},
    {"$schema", STRING, false},
    {"$ref", STRING, false},
    {"$dynamicRef", STRING, false},
    {"$anchor", STRING, false},
    {"$dynamicAnchor", STRING, false},
    {"contentEncoding", STRING, false},
    {"contentMediaType", STRING, false},
    {"pattern", PATTERN, false},
    {"required", NAMES, false},
    {"enum", LIST, false},
    {"examples", LIST, false},
};
enum { NUM_KEYWORDS = sizeof keywords / sizeof *keywords };

typedef struct checker {
    const di_value *root;
    const char *what;
    int draft;              /* 4, 6, 7, 2019 or 2020 */
    const di_value **found; /* targets of references; those from `done` on wait to be visited */
    size_t count, capacity, done;
    size_t steps; /* that following references has taken */
    di_error *err;
} checker;

static const rule *keyword_of(di_str name) {
    for (int i = 0; i < NUM_KEYWORDS; i++) {
        if (di_str_is(name, keywords[i].name)) {
            return &keywords[i];
        }
    }
    return NULL;
}

static bool wrong(const checker *c, const char *keyword, const di_value *found,
                  const char *expected) {
    return di_fail(c->err, DI_ERR_ARGUMENT, "%s: %s is %s, %s expected", c->what, keyword,
                   di_value_type_name(found), expected);
}

static bool is_number(const di_value *v) {
    return v->type == DI_VALUE_UINT || v->type == DI_VALUE_INT || v->type == DI_VALUE_REAL;
}

static bool is_count(const di_value *v) {
    return v->type == DI_VALUE_UINT ||
           (v->type == DI_VALUE_REAL && v->real >= 0 && v->real == floor(v->real));
}

static bool is_positive(const di_value *v) {
    return (v->type == DI_VALUE_UINT && v->uint > 0) || (v->type == DI_VALUE_REAL && v->real > 0);
}

static int by_bytes(const void *a, const void *b) {
    const di_str *x = a, *y = b;
    size_t shorter = x->size < y->size ? x->size : y->size;
    int order = shorter ? memcmp(x->data, y->data, shorter) : 0;
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

/* A list of strings, no two the same. */
static bool check_names(const checker *c, const char *keyword, const di_value *v) {
    if (v->type != DI_VALUE_ARRAY) {
        return wrong(c, keyword, v, "a list of strings");
    }
    size_t count = v->array.count;
    di_str *names = di_calloc(count, sizeof *names);
    if (!names) {
        return di_fail(c->err, DI_ERR_NO_MEMORY, "no memory for the names of a schema");
    }
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        ok = v->array.items[i].type == DI_VALUE_STRING;
        names[i] = ok ? v->array.items[i].string : DI_STR("");
    }
    if (!ok) {
        wrong(c, keyword, v, "a list of strings");
    } else {
        qsort(names, count, sizeof *names, by_bytes);
    }
    for (size_t i = 1; ok && i < count; i++) {
        ok = !di_str_equal(names[i], names[i - 1]) ||
             di_fail(c->err, DI_ERR_ARGUMENT, "%s: %s holds one name twice", c->what, keyword);
    }
    di_free(names);
    return ok;
}

static bool check_type(const checker *c, const di_value *v) {
    static const char *const types[] = {"array",  "boolean", "integer", "null",
                                        "number", "object",  "string"};
    const di_value *items = v->type == DI_VALUE_ARRAY ? v->array.items : v;
    size_t count = v->type == DI_VALUE_ARRAY ? v->array.count : 1;
    if (count == 0) {
        return di_fail(c->err, DI_ERR_ARGUMENT, "%s: type is an empty list", c->what);
    }
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (size_t j = 0; !known && j < sizeof types / sizeof *types; j++) {
            known = di_value_is_string(&items[i], types[j]);
        }
        if (!known && items[i].type == DI_VALUE_STRING) {
            return di_fail(c->err, DI_ERR_ARGUMENT, "%s: \"%.*s\" is no type of JSON Schema",
                           c->what, di_str_shown(items[i].string, 64), items[i].string.data);
        }
        if (!known) {
            return wrong(c, "type", &items[i], "a string or a list of strings");
        }
    }
    return v->type != DI_VALUE_ARRAY || check_names(c, "type", v);
}

static bool check_shape(const checker *c, const di_value *schema);

static bool check_list(const checker *c, const char *keyword, const di_value *v, size_t least) {
    if (v->type != DI_VALUE_ARRAY) {
        return wrong(c, keyword, v, "a list of schemas");
    }
    if (v->array.count < least) {
        return di_fail(c->err, DI_ERR_ARGUMENT, "%s: %s is empty", c->what, keyword);
    }
    for (size_t i = 0; i < v->array.count; i++) {
        if (!check_shape(c, &v->array.items[i])) {
            return false;
        }
    }
    return true;
}

static bool check_map(const checker *c, const char *keyword, const di_value *v, shape of) {
    if (v->type != DI_VALUE_OBJECT) {
        return wrong(c, keyword, v, "an object");
    }
    for (size_t i = 0; i < v->object.count; i++) {
        const di_value *value = &v->object.members[i].value;
        bool names = of == NAMES_MAP || (of == MIXED_MAP && value->type == DI_VALUE_ARRAY);
        if (!(names ? check_names(c, keyword, value) : check_shape(c, value))) {
            return false;
        }
    }
    return true;
}

static bool check_keyword(const checker *c, const rule *k, const di_value *v) {
    bool flag = v->type == DI_VALUE_BOOL;
    switch (k->shape) {
    case SCHEMA_OR_LIST:
        if (c->draft < 2020 && v->type == DI_VALUE_ARRAY) {
            return check_list(c, k->name, v, 0);
        }
        return check_shape(c, v);
    case SCHEMA:
        return check_shape(c, v);
    case SCHEMAS:
        return check_list(c, k->name, v, 1);
    case MAP:
    case PATTERN_MAP:
    case MIXED_MAP:
    case NAMES_MAP:
        return check_map(c, k->name, v, k->shape);
    case TYPE:
        return check_type(c, v);
    case COUNT:
        return is_count(v) || wrong(c, k->name, v, "an integer not below 0");
    case NUMBER:
        return is_number(v) || wrong(c, k->name, v, "a number");
    case POSITIVE:
        return is_positive(v) || wrong(c, k->name, v, "a number above 0");
    case BOUND:
        return (c->draft == 4 ? flag : is_number(v)) || wrong(c, k->name, v, "a number");
    case FLAG:
        return flag || wrong(c, k->name, v, "true or false");
    case STRING:
    case PATTERN:
        return v->type == DI_VALUE_STRING || wrong(c, k->name, v, "a string");
    case NAMES:
        return check_names(c, k->name, v);
    case LIST:
        return v->type == DI_VALUE_ARRAY || wrong(c, k->name, v, "a list");
    }
    return true;
}

/* Recursion is bounded by the depth of values. */
static bool check_shape(const checker *c, const di_value *schema) {
    if (schema->type == DI_VALUE_BOOL) {
        return true;
    }
    if (schema->type != DI_VALUE_OBJECT) {
        return di_fail(c->err, DI_ERR_ARGUMENT,
                       "%s: a schema is %s, an object, true or false expected", c->what,
                       di_value_type_name(schema));
    }
    for (size_t i = 0; i < schema->object.count; i++) {
        const di_named_value *m = &schema->object.members[i];
        const rule *k = keyword_of(m->name);
        if (k && !check_keyword(c, k, &m->value)) {
            return false;
        }
    }
    return true;
}

static bool check_pattern(const checker *c, di_str pattern) {
    int code = 0;
    size_t offset;
    pcre2_code *compiled = NULL;
    if (pattern.size <= LONGEST_PATTERN) {
        compiled = pcre2_compile((PCRE2_SPTR)pattern.data, pattern.size, PCRE2_UTF | PCRE2_UCP,
                                 &code, &offset, NULL);
    }
    pcre2_code_free(compiled);
    return compiled || di_fail(c->err, DI_ERR_ARGUMENT, "%s: \"%.*s\" is not a \"regex\"", c->what,
                               di_str_shown(pattern, 128), pattern.data);
}

static bool note_target(checker *c, const di_value *target) {
    for (size_t i = 0; i < c->count; i++) {
        if (c->found[i] == target) {
            return true;
        }
    }
    if (c->count == MOST_REFERENCES) {
        return di_fail(c->err, DI_ERR_ARGUMENT, "%s: more than %d references", c->what,
                       MOST_REFERENCES);
    }
    const di_value **moved = di_grow(c->found, c->count, &c->capacity, sizeof *moved);
    if (!moved) {
        return di_fail(c->err, DI_ERR_NO_MEMORY, "no memory for the references of a schema");
    }
    c->found = moved;
    c->found[c->count++] = target;
    return true;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One step of a JSON pointer, decoded into `out` of at least step.size bytes. */
static di_str decode_step(di_str step, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < step.size; i++) {
        char ch = step.data[i];
        if (ch == '%' && step.size - i > 2 && hex_digit(step.data[i + 1]) >= 0 &&
            hex_digit(step.data[i + 2]) >= 0) {
            ch = (char)(hex_digit(step.data[i + 1]) << 4 | hex_digit(step.data[i + 2]));
            i += 2;
        } else if (ch == '~' && i + 1 < step.size &&
                   (step.data[i + 1] == '0' || step.data[i + 1] == '1')) {
            ch = step.data[++i] == '0' ? '~' : '/';
        }
        out[n++] = ch;
    }
    return (di_str){out, n};
}

static const di_value *step_into(checker *c, const di_value *at, di_str step) {
    c->steps += at->type == DI_VALUE_OBJECT ? at->object.count : 1;
    if (at->type == DI_VALUE_OBJECT) {
        for (size_t i = 0; i < at->object.count; i++) {
            if (di_str_equal(at->object.members[i].name, step)) {
                return &at->object.members[i].value;
            }
        }
    }
    if (at->type == DI_VALUE_ARRAY && step.size > 0 && step.size < 10) {
        size_t index = 0;
        for (size_t i = 0; i < step.size; i++) {
            if (step.data[i] < '0' || step.data[i] > '9') {
                return NULL;
            }
            index = index * 10 + (size_t)(step.data[i] - '0');
        }
        return index < at->array.count ? &at->array.items[index] : NULL;
    }
    return NULL;
}

/* pointer: "/a/b". */
static const di_value *follow(checker *c, const di_value *root, di_str pointer, char *scratch) {
    const di_value *at = root;
    for (size_t i = 0; at && i < pointer.size;) {
        size_t begin = ++i;
        while (i < pointer.size && pointer.data[i] != '/') {
            i++;
        }
        at = step_into(c, at, decode_step((di_str){pointer.data + begin, i - begin}, scratch));
    }
    return at;
}

/* The subschema anywhere in `at` whose `key` has that value, or, for ids, ends with "/value". */
static const di_value *find_named(checker *c, const di_value *at, const char *key, di_str value) {
    const di_value *name = di_value_get(at, key);
    c->steps += at->type == DI_VALUE_OBJECT ? at->object.count + 1 : 1;
    if (di_value_is(name, DI_VALUE_STRING)) {
        di_str id = name->string;
        size_t before = id.size - (value.size < id.size ? value.size : id.size);
        if (di_str_equal(id, value) ||
            (strcmp(key, "$id") == 0 && before > 0 && value.size > 0 &&
             id.data[before - 1] == '/' && memcmp(id.data + before, value.data, value.size) == 0)) {
            return at;
        }
    }
    const di_value *found = NULL;
    for (size_t i = 0; !found && at->type == DI_VALUE_OBJECT && i < at->object.count; i++) {
        found = find_named(c, &at->object.members[i].value, key, value);
    }
    for (size_t i = 0; !found && at->type == DI_VALUE_ARRAY && i < at->array.count; i++) {
        found = find_named(c, &at->array.items[i], key, value);
    }
    return found;
}

static bool is_meta_schema(di_str uri) {
    return di_str_starts(uri, "https://json-schema.org/draft/2020-12/") ||
           di_str_starts(uri, "https://json-schema.org/draft/2019-09/") ||
           di_str_starts(uri, "http://json-schema.org/draft-0");
}

static bool check_reference(checker *c, di_str ref) {
    const char *hash = ref.size ? memchr(ref.data, '#', ref.size) : NULL;
    di_str resource = {ref.data, hash ? (size_t)(hash - ref.data) : ref.size};
    di_str fragment = {hash ? hash + 1 : "", hash ? ref.size - resource.size - 1 : 0};
    if (is_meta_schema(resource)) {
        return true;
    }
    if (c->steps > MOST_STEPS) {
        return di_fail(c->err, DI_ERR_ARGUMENT, "%s: its references take too long to follow",
                       c->what);
    }
    const di_value *root = resource.size ? find_named(c, c->root, "$id", resource) : c->root,
                   *target = root;
    if (!root) {
        return di_fail(c->err, DI_ERR_ARGUMENT,
                       "%s: Resource '%.*s' is not in the schema, and references are not fetched",
                       c->what, di_str_shown(ref, 128), ref.data);
    }
    if (fragment.size > 0 && fragment.data[0] == '/') {
        char *scratch = di_alloc(fragment.size);
        if (!scratch) {
            return di_fail(c->err, DI_ERR_NO_MEMORY, "no memory for a reference");
        }
        target = follow(c, root, fragment, scratch);
        di_free(scratch);
    } else if (fragment.size > 0) {
        target = find_named(c, root, "$anchor", fragment);
        target = target ? target : find_named(c, root, "$dynamicAnchor", fragment);
    }
    if (!target) {
        return di_fail(c->err, DI_ERR_ARGUMENT,
                       fragment.data[0] == '/' ? "%s: Pointer '%.*s' does not exist"
                                               : "%s: Anchor '%.*s' does not exist",
                       c->what, di_str_shown(fragment, 128), fragment.data);
    }
    return note_target(c, target);
}

static bool visit(checker *c, const di_value *schema);

static bool visit_children(checker *c, const rule *k, const di_value *v) {
    if (v->type == DI_VALUE_ARRAY) {
        for (size_t i = 0; i < v->array.count; i++) {
            if (!visit(c, &v->array.items[i])) {
                return false;
            }
        }
        return true;
    }
    if (k->shape != MAP && k->shape != PATTERN_MAP && k->shape != MIXED_MAP) {
        return visit(c, v);
    }
    for (size_t i = 0; v->type == DI_VALUE_OBJECT && i < v->object.count; i++) {
        if ((k->shape == PATTERN_MAP && !check_pattern(c, v->object.members[i].name)) ||
            !visit(c, &v->object.members[i].value)) {
            return false;
        }
    }
    return true;
}

/* Patterns and references of a schema and of those that it applies. */
static bool visit(checker *c, const di_value *schema) {
    if (schema->type != DI_VALUE_OBJECT) {
        return true;
    }
    for (size_t i = 0; i < schema->object.count; i++) {
        const di_named_value *m = &schema->object.members[i];
        const rule *k = keyword_of(m->name);
        bool ref = di_str_is(m->name, "$ref") || di_str_is(m->name, "$dynamicRef");
        if (!k) {
            continue;
        }
        if ((k->shape == PATTERN && m->value.type == DI_VALUE_STRING &&
             !check_pattern(c, m->value.string)) ||
            (ref && m->value.type == DI_VALUE_STRING && !check_reference(c, m->value.string)) ||
            (k->applies && !visit_children(c, k, &m->value))) {
            return false;
        }
    }
    return true;
}

static bool find_draft(checker *c) {
    static const struct {
        const char *uri;
        int draft;
    } drafts[] = {{"https://json-schema.org/draft/2020-12/schema", 2020},
                  {"https://json-schema.org/draft/2019-09/schema", 2019},
                  {"http://json-schema.org/draft-07/schema", 7},
                  {"http://json-schema.org/draft-06/schema", 6},
                  {"http://json-schema.org/draft-04/schema", 4}};
    const di_value *named = di_value_get(c->root, "$schema");
    c->draft = 2020;
    if (!di_value_is(named, DI_VALUE_STRING)) {
        return true; /* the check of shapes says what is wrong with it */
    }
    di_str uri = named->string;
    if (uri.size > 0 && uri.data[uri.size - 1] == '#') {
        uri.size--;
    }
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        if (di_str_is(uri, drafts[i].uri)) {
            c->draft = drafts[i].draft;
            return true;
        }
    }
    return di_fail(c->err, DI_ERR_ARGUMENT, "%s: Unknown meta-schema: '%.*s'", c->what,
                   di_str_shown(uri, 128), uri.data);
}

bool di_schema_check(const di_value *schema, const char *what, di_error *err) {
    checker c = {.root = schema, .what = what, .err = err};
    bool ok = find_draft(&c) && check_shape(&c, schema) && visit(&c, schema);
    for (; ok && c.done < c.count; c.done++) { /* what is found on the way is appended */
        ok = visit(&c, c.found[c.done]);
    }
    di_free(c.found);
    return ok;
}
