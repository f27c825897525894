/* The strict form of a JSON Schema: see schema.h. Each kind of node keeps the keywords that stand
 * in its table, in that order, and no others. */
#include "text/recipe/schema.h"

#include <stdio.h>

typedef struct strict {
    di_pool *pool;
    const char *what;
    di_error *err;
} strict;

typedef bool (*check_fn)(const strict *s, const di_value *value);

static bool refuse(const strict *s, const char *why) {
    return di_fail(s->err, DI_ERR_ARGUMENT, "%s : %s", s->what, why);
}

static bool is_integer(const strict *s, const di_value *v) {
    bool ok = v->type == DI_VALUE_INT || (v->type == DI_VALUE_UINT && v->uint <= INT64_MAX);
    return ok || refuse(s, "a bound of an integer is no 64-bit integer");
}

static bool is_number(const strict *s, const di_value *v) {
    bool ok = v->type == DI_VALUE_INT || v->type == DI_VALUE_UINT || v->type == DI_VALUE_REAL;
    return ok || refuse(s, "a bound of a number is no number");
}

static bool is_string(const strict *s, const di_value *v) {
    return v->type == DI_VALUE_STRING || refuse(s, "a description or pattern is no string");
}

static bool is_strings(const strict *s, const di_value *v) {
    bool ok = v->type == DI_VALUE_ARRAY;
    for (size_t i = 0; ok && i < v->array.count; i++) {
        ok = v->array.items[i].type == DI_VALUE_STRING;
    }
    return ok || refuse(s, "enum of a string is no list of strings");
}

static bool is_format(const strict *s, const di_value *v) {
    static const char *const known[] = {"email", "hostname", "ipv4", "ipv6", "uuid"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (di_value_is_string(v, known[i])) {
            return true;
        }
    }
    return refuse(s, "format is none of `email`, `hostname`, `ipv4`, `ipv6`, `uuid`");
}

typedef struct keyword {
    const char *name;
    check_fn check;
} keyword;

enum { MOST_KEYWORDS = 9, MOST_PROPERTIES = 5000 };

static const keyword description[] = {{"description", is_string}, {NULL, NULL}};
static const keyword string_keywords[] = {{"description", is_string},
                                          {"pattern", is_string},
                                          {"format", is_format},
                                          {"enum", is_strings},
                                          {NULL, NULL}};
static const keyword integer_keywords[] = {
    {"description", is_string},       {"const", is_integer},      {"default", is_integer},
    {"minimum", is_integer},          {"maximum", is_integer},    {"exclusiveMinimum", is_integer},
    {"exclusiveMaximum", is_integer}, {"multipleOf", is_integer}, {NULL, NULL}};
static const keyword number_keywords[] = {
    {"description", is_string},      {"const", is_number},      {"default", is_number},
    {"minimum", is_number},          {"maximum", is_number},    {"exclusiveMinimum", is_number},
    {"exclusiveMaximum", is_number}, {"multipleOf", is_number}, {NULL, NULL}};

/* A node under construction: members are added one by one, there are never more than these. */
typedef struct node {
    di_named_value *members;
    size_t count;
} node;

static bool begin(const strict *s, node *n) {
    *n = (node){di_pool_take(s->pool, MOST_KEYWORDS + 4, sizeof *n->members, s->err), 0};
    return n->members != NULL;
}

static void add(node *n, const char *name, di_value value) {
    n->members[n->count++] = (di_named_value){di_str_of(name), value};
}

static di_value done(const node *n) {
    return (di_value){.type = DI_VALUE_OBJECT, .object = {n->members, n->count}};
}

static bool copy_keywords(const strict *s, node *n, const di_value *from, const keyword *keywords) {
    for (; keywords->name; keywords++) {
        const di_value *value = di_value_given(from, keywords->name);
        if (value) {
            if (!keywords->check(s, value)) {
                return false;
            }
            add(n, keywords->name, *value);
        }
    }
    return true;
}

static bool rewrite(const strict *s, const di_value *from, di_value *out);

/* All of `properties` are required; a "required" that says less is refused. */
static bool check_required(const strict *s, const di_value *from, const di_value *properties) {
    const di_value *required = di_value_given(from, "required");
    if (!required) {
        return true;
    }
    if (!is_strings(s, required)) {
        return false;
    }
    if (required->array.count > 2 * MOST_PROPERTIES) {
        return refuse(s, "required is longer than properties");
    }
    for (size_t i = 0; i < required->array.count; i++) {
        di_str name = required->array.items[i].string;
        bool known = false;
        for (size_t j = 0; !known && j < properties->object.count; j++) {
            known = di_str_equal(properties->object.members[j].name, name);
        }
        if (!known) {
            return di_fail(s->err, DI_ERR_ARGUMENT, "Required property '%.*s' not found in object",
                           di_str_shown(name, 128), name.data);
        }
        for (size_t j = 0; j < i; j++) {
            if (di_str_equal(required->array.items[j].string, name)) {
                return di_fail(s->err, DI_ERR_ARGUMENT, "Duplicate required property '%.*s'",
                               di_str_shown(name, 128), name.data);
            }
        }
    }
    return required->array.count == properties->object.count ||
           di_fail(s->err, DI_ERR_ARGUMENT,
                   "Required properties must match all properties in the object");
}

static bool check_closed(const strict *s, const di_value *from) {
    const di_value *more = di_value_given(from, "additionalProperties");
    if (more && more->type != DI_VALUE_BOOL) {
        return refuse(s, "additionalProperties is neither true nor false");
    }
    return !more || !more->boolean ||
           di_fail(s->err, DI_ERR_ARGUMENT, "additionalProperties should not be true");
}

static bool rewrite_object(const strict *s, const di_value *from, bool allow_empty, di_value *out) {
    static const di_value none = {.type = DI_VALUE_OBJECT};
    const di_value *properties = di_value_given(from, "properties");
    properties = properties ? properties : &none;
    if (properties->type != DI_VALUE_OBJECT) {
        return refuse(s, "properties is no object");
    }
    size_t count = properties->object.count;
    if (count > MOST_PROPERTIES) {
        return refuse(s, "an object has more than 5000 properties");
    }
    if (count == 0 && !allow_empty) {
        return di_fail(s->err, DI_ERR_ARGUMENT, "An object with no properties is not allowed.");
    }
    node n;
    di_named_value *members = di_pool_take(s->pool, count, sizeof *members, s->err);
    di_value *names = di_pool_take(s->pool, count, sizeof *names, s->err);
    if (!members || !names || !begin(s, &n) || !check_required(s, from, properties) ||
        !check_closed(s, from)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        members[i].name = properties->object.members[i].name;
        names[i] = (di_value){.type = DI_VALUE_STRING, .string = members[i].name};
        if (!rewrite(s, &properties->object.members[i].value, &members[i].value)) {
            return false;
        }
    }
    add(&n, "type", (di_value){.type = DI_VALUE_STRING, .string = {"object", 6}});
    add(&n, "properties", (di_value){.type = DI_VALUE_OBJECT, .object = {members, count}});
    add(&n, "additionalProperties", (di_value){.type = DI_VALUE_BOOL, .boolean = false});
    add(&n, "required", (di_value){.type = DI_VALUE_ARRAY, .array = {names, count}});
    bool ok = copy_keywords(s, &n, from, description);
    *out = done(&n);
    return ok;
}

static bool rewrite_array(const strict *s, const di_value *from, di_value *out) {
    node n;
    const di_value *items = di_value_get(from, "items");
    di_value *rewritten = di_pool_take(s->pool, 1, sizeof *rewritten, s->err);
    if (!items) {
        return refuse(s, "missing field `items`");
    }
    if (!rewritten || !begin(s, &n) || !rewrite(s, items, rewritten)) {
        return false;
    }
    add(&n, "type", (di_value){.type = DI_VALUE_STRING, .string = {"array", 5}});
    add(&n, "items", *rewritten);
    bool ok = copy_keywords(s, &n, from, description);
    *out = done(&n);
    return ok;
}

static bool rewrite_any_of(const strict *s, const di_value *from, const di_value *any,
                           di_value *out) {
    if (any->type != DI_VALUE_ARRAY) {
        return refuse(s, "anyOf is no list");
    }
    node n;
    di_value *items = di_pool_take(s->pool, any->array.count, sizeof *items, s->err);
    if (!items || !begin(s, &n)) {
        return false;
    }
    for (size_t i = 0; i < any->array.count; i++) {
        if (!rewrite(s, &any->array.items[i], &items[i])) {
            return false;
        }
    }
    add(&n, "anyOf", (di_value){.type = DI_VALUE_ARRAY, .array = {items, any->array.count}});
    bool ok = copy_keywords(s, &n, from, description);
    *out = done(&n);
    return ok;
}

/* A node of one simple type. */
static bool rewrite_simple(const strict *s, const di_value *from, const di_value *type,
                           const keyword *keywords, di_value *out) {
    node n;
    if (!begin(s, &n)) {
        return false;
    }
    add(&n, "type", *type);
    bool ok = copy_keywords(s, &n, from, keywords);
    *out = done(&n);
    return ok;
}

static bool rewrite_typed(const strict *s, const di_value *from, const di_value *type,
                          di_value *out) {
    static const struct {
        const char *name;
        const keyword *keywords;
    } simple[] = {{"string", string_keywords},
                  {"integer", integer_keywords},
                  {"number", number_keywords},
                  {"boolean", description},
                  {"null", description}};
    if (type->type == DI_VALUE_ARRAY) {
        for (size_t i = 0; i < type->array.count; i++) {
            bool known = false;
            for (size_t j = 0; j < sizeof simple / sizeof *simple; j++) {
                known |= di_value_is_string(&type->array.items[i], simple[j].name);
            }
            if (!known) {
                return refuse(s, "a list of types holds one that is not simple");
            }
        }
        return rewrite_simple(s, from, type, description, out);
    }
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++) {
        if (di_value_is_string(type, simple[i].name)) {
            return rewrite_simple(s, from, type, simple[i].keywords, out);
        }
    }
    if (di_value_is_string(type, "object")) {
        return rewrite_object(s, from, false, out);
    }
    return di_value_is_string(type, "array") ? rewrite_array(s, from, out)
                                             : refuse(s, "an unknown type");
}

/* Recursion is bounded by the depth of values. */
static bool rewrite(const strict *s, const di_value *from, di_value *out) {
    const di_value *type = di_value_given(from, "type"), *any = di_value_given(from, "anyOf"),
                   *ref = di_value_given(from, "$ref");
    if (type) {
        return rewrite_typed(s, from, type, out);
    }
    if (any) {
        return rewrite_any_of(s, from, any, out);
    }
    if (ref) {
        node n;
        if (!begin(s, &n)) {
            return false;
        }
        add(&n, "$ref", *ref);
        bool ok = copy_keywords(s, &n, from, description);
        *out = done(&n);
        return ok;
    }
    return refuse(s, "one of `type`, `anyOf`, `$ref` field is required");
}

bool di_schema_strict(di_pool *pool, const di_value *schema, const char *what, bool allow_empty,
                      const di_value **out, di_error *err) {
    static const di_named_value empty_members[] = {
        {{"type", 4}, {.type = DI_VALUE_STRING, .string = {"object", 6}}}};
    static const di_value empty = {.type = DI_VALUE_OBJECT, .object = {empty_members, 1}};
    const strict s = {pool, what, err};
    di_value *root = di_pool_take(pool, 1, sizeof *root, err);
    *out = root;
    if (!root) {
        return false;
    }
    schema = schema ? schema : &empty;
    if (di_value_is_string(di_value_get(schema, "type"), "object")) {
        return rewrite_object(&s, schema, allow_empty, root);
    }
    return rewrite(&s, schema, root);
}
