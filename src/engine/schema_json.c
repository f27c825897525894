/* Structured output in JSON requests: see schema_json.h. */
#include "engine/schema_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/json.h"
#include "base/suggest.h"

/* What is being read, and into what. */
typedef struct reading {
    di_schema_json *s;
    const char *where;
    char field[96]; /* "so_args.schema" */
    di_request_params *p;
    di_error *err;
} reading;

/* reading.field of a member. */
static reading member(const reading *r, const char *name) {
    reading m = *r;
    size_t size = strlen(m.field);
    snprintf(m.field + size, sizeof m.field - size, ".%s", name);
    return m;
}

static bool unexpected(const reading *r, const json_t *value, const char *wanted) {
    return di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s is %s, %s expected", r->where, r->field,
                   value ? di_json_type_name(value) : "missing", wanted);
}

static bool missing(const json_t *value) {
    return !value || json_is_null(value);
}

/* ---- texts ------------------------------------------------------------------------------------*/

static bool read_text(const reading *r, const json_t *value) {
    if (!json_is_string(value)) {
        return unexpected(r, value, "a string");
    }
    r->p->schema = json_string_value(value);
    r->p->schema_bytes = json_string_length(value);
    return r->p->schema_bytes > 0 ||
           di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s is empty", r->where, r->field);
}

/* Written with the fewest digits that read back as the same numbers: 0.1 must stay 0.1, for
 * multiples are exact. */
static char *write_json(const json_t *value) {
    for (size_t digits = 15; digits <= 17; digits++) {
        char *text =
            json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        json_t *back = text && digits < 17 ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool same = digits == 17 || !text || json_equal(back, value);
        json_decref(back);
        if (same) {
            return text;
        }
        free(text);
    }
    return NULL;
}

/* A schema, or a list of tools: JSON, or JSON in a string. */
static bool read_json(const reading *r, const json_t *value) {
    if (json_is_string(value)) {
        return read_text(r, value);
    }
    r->s->text = write_json(value);
    r->p->schema = r->s->text;
    return r->s->text ||
           di_fail(r->err, DI_ERR_NO_MEMORY, "%s: no memory for %s", r->where, r->field);
}

static bool read_schema(const reading *r, const json_t *value) {
    if (!json_is_object(value) && !json_is_string(value) && !json_is_boolean(value)) {
        return unexpected(r, value, "a schema or a string that holds one");
    }
    r->p->schema_type = DI_SCHEMA_JSON;
    return read_json(r, value);
}

static bool read_tools(const reading *r, const json_t *value) {
    return json_is_array(value) || json_is_string(value)
               ? read_json(r, value)
               : unexpected(r, value, "an array of tools or a string that holds one");
}

/* A literal of EBNF. */
static bool append_literal(di_buffer *out, const char *text, size_t size, di_error *err) {
    bool ok = di_buffer_append_text(out, "\"", err);
    for (size_t i = 0; ok && i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        char escape[8];
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7F) {
            snprintf(escape, sizeof escape, "\\u%04x", c);
            ok = di_buffer_append_text(out, escape, err);
        } else {
            ok = di_buffer_append(out, text + i, 1, err);
        }
    }
    return ok && di_buffer_append_text(out, "\"", err);
}

/* One of some texts: a grammar of literals. */
static bool read_choice(const reading *r, const json_t *value) {
    if (!json_is_array(value) || json_array_size(value) == 0) {
        return json_is_array(value)
                   ? di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s is empty", r->where, r->field)
                   : unexpected(r, value, "an array of strings");
    }
    di_buffer out = {0};
    bool ok = di_buffer_append_text(&out, "root ::= ", r->err);
    for (size_t i = 0; ok && i < json_array_size(value); i++) {
        const json_t *text = json_array_get(value, i);
        if (!json_is_string(text)) {
            ok = di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s[%zu] is %s, a string expected", r->where,
                         r->field, i, di_json_type_name(text));
        }
        ok = ok && di_buffer_append_text(&out, i ? " | " : "", r->err) &&
             append_literal(&out, json_string_value(text), json_string_length(text), r->err);
    }
    r->s->text = ok ? strndup(out.data, out.size) : NULL;
    di_buffer_free(&out);
    r->p->schema_type = DI_SCHEMA_EBNF;
    r->p->schema = r->s->text;
    return r->s->text ||
           (ok && di_fail(r->err, DI_ERR_NO_MEMORY, "%s: no memory for %s", r->where, r->field));
}

static bool read_as(const reading *r, const json_t *value, di_schema_type type) {
    r->p->schema_type = type;
    return read_text(r, value);
}

/* ---- DeepInfer's so_args ----------------------------------------------------------------------*/

static const struct {
    const char *name;
    di_schema_type type;
} types[] = {
    {"json", DI_SCHEMA_JSON},
    {"json_schema", DI_SCHEMA_JSON},
    {"regex", DI_SCHEMA_REGEX},
    {"json_object", DI_SCHEMA_JSON_OBJECT},
    {"ebnf", DI_SCHEMA_EBNF},
    {"tools_required", DI_SCHEMA_TOOLS_REQUIRED},
    {"tools", DI_SCHEMA_TOOLS},
    {"gbnf", DI_SCHEMA_GBNF},
    {"tools_or_content", DI_SCHEMA_TOOLS_OR_CONTENT},
};

static bool read_type(const reading *r, const json_t *value) {
    if (!json_is_string(value)) {
        return unexpected(r, value, "a string");
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(json_string_value(value), types[i].name) == 0) {
            r->p->schema_type = types[i].type;
            return true;
        }
    }
    return di_fail(r->err, DI_ERR_ARGUMENT,
                   "%s: %s is \"%.32s\", allowed are \"json\", \"json_object\", \"regex\", "
                   "\"ebnf\", \"gbnf\", \"tools\", \"tools_required\" and \"tools_or_content\"",
                   r->where, r->field, json_string_value(value));
}

/* By the type, which has been read. */
static bool read_type_text(const reading *r, const json_t *value) {
    switch (r->p->schema_type) {
    case DI_SCHEMA_JSON:
        return read_schema(r, value);
    case DI_SCHEMA_TOOLS:
    case DI_SCHEMA_TOOLS_REQUIRED:
        return read_tools(r, value);
    case DI_SCHEMA_TOOLS_OR_CONTENT:
        return json_is_object(value) || json_is_string(value)
                   ? read_json(r, value)
                   : unexpected(r, value,
                                "an object with tools and a schema, or a string with one");
    case DI_SCHEMA_JSON_OBJECT:
        return missing(value) ||
               di_fail(r->err, DI_ERR_ARGUMENT,
                       "%s: %s: \"json_object\" takes no schema; use \"json\"", r->where, r->field);
    default:
        return read_text(r, value);
    }
}

static bool is_id(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= INT32_MAX;
}

static bool read_trigger(const reading *r, const json_t *value) {
    if (missing(value)) {
        return true;
    }
    if (!json_is_array(value)) {
        return unexpected(r, value, "an array of token ids");
    }
    size_t count = json_array_size(value);
    int32_t *ids = r->s->trigger = di_calloc(count + 1, sizeof *ids);
    if (!ids) {
        return di_fail(r->err, DI_ERR_NO_MEMORY, "%s: no memory for %s", r->where, r->field);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(value, i);
        if (!is_id(id)) {
            return di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s[%zu] is no token id", r->where,
                           r->field, i);
        }
        ids[i] = (int32_t)json_integer_value(id);
    }
    r->p->trigger_token_ids = count ? ids : NULL;
    r->p->num_trigger_token_ids = count;
    return true;
}

static bool read_bound(const reading *r, const json_t *value) {
    if (missing(value)) {
        return true;
    }
    if (!is_id(value)) {
        return unexpected(r, value, "a token id");
    }
    r->p->bound_token_id = (int32_t)json_integer_value(value);
    return true;
}

static bool read_options(const reading *r, const json_t *o) {
    int64_t spaces;
    bool strict = r->p->schema_type == DI_SCHEMA_JSON; /* as the release does */
    if (!di_json_bool_or(o, r->field, "strict", strict, &r->p->schema_strict, r->err) ||
        !di_json_bool_or(o, r->field, "lenient", false, &r->p->schema_lenient, r->err) ||
        !di_json_bool_or(o, r->field, "any_order", false, &r->p->schema_any_order, r->err) ||
        !di_json_int_or(o, r->field, "max_whitespace", 0, 1000, r->p->schema_max_whitespace,
                        &spaces, r->err)) {
        return di_fail_prefix(r->err, "%s", r->where);
    }
    r->p->schema_max_whitespace = (int)spaces;
    return true;
}

static bool check_members(const reading *r, const json_t *o, const char *const *names,
                          size_t num_names, const char *const *lacking, size_t num_lacking) {
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)o, name, value) {
        bool known = false;
        for (size_t i = 0; i < num_names && !known; i++) {
            known = strcmp(name, names[i]) == 0;
        }
        for (size_t i = 0; i < num_lacking; i++) {
            if (strcmp(name, lacking[i]) == 0) {
                return di_fail(r->err, DI_ERR_UNSUPPORTED, "%s: %s.%s is not supported", r->where,
                               r->field, name);
            }
        }
        if (!known) {
            const char *near = di_suggest(name, names, num_names);
            return di_fail(r->err, DI_ERR_ARGUMENT, "%s: unknown field %s.%.64s%s%s%s", r->where,
                           r->field, name, near ? "; did you mean " : "", near ? near : "",
                           near ? "?" : "");
        }
    }
    return true;
}

#define CHECK_MEMBERS(r, o, names, lacking)                                                        \
    check_members(r, o, names, sizeof(names) / sizeof *(names), lacking,                           \
                  sizeof(lacking) / sizeof *(lacking))

static bool read_so_args(const reading *r, const json_t *o) {
    static const char *const names[] = {"schema",         "schema_type",   "trigger_token_ids",
                                        "bound_token_id", "strict",        "lenient",
                                        "any_order",      "max_whitespace"};
    static const char *const lacking[] = {"serialized", "bound_token_ids"};
    if (!json_is_object(o)) {
        return unexpected(r, o, "an object");
    }
    reading type = member(r, "schema_type"), schema = member(r, "schema"),
            trigger = member(r, "trigger_token_ids"), bound = member(r, "bound_token_id");
    return CHECK_MEMBERS(r, o, names, lacking) &&
           read_type(&type, json_object_get(o, "schema_type")) &&
           read_type_text(&schema, json_object_get(o, "schema")) &&
           read_trigger(&trigger, json_object_get(o, "trigger_token_ids")) &&
           read_bound(&bound, json_object_get(o, "bound_token_id")) && read_options(r, o);
}

/* ---- others' ----------------------------------------------------------------------------------*/

/* OpenAI: {"type": "text" | "json_object" | "json_schema", "json_schema": {"schema", "strict"}}. */
static bool read_response_format(const reading *r, const json_t *o) {
    static const char *const names[] = {"type", "json_schema"};
    static const char *const inner[] = {"name", "description", "schema", "strict"};
    static const char *const none[] = {""};
    if (!json_is_object(o)) {
        return unexpected(r, o, "an object");
    }
    const json_t *type = json_object_get(o, "type"), *format = json_object_get(o, "json_schema");
    const char *word = json_string_value(type);
    reading at_type = member(r, "type"), at_format = member(r, "json_schema");
    if (!CHECK_MEMBERS(r, o, names, none)) {
        return false;
    }
    if (!word) {
        return unexpected(&at_type, type, "a string");
    }
    if (strcmp(word, "json_schema") == 0) {
        reading schema = member(&at_format, "schema");
        if (!json_is_object(format)) {
            return unexpected(&at_format, format, "an object");
        }
        return CHECK_MEMBERS(&at_format, format, inner, none) &&
               (di_json_bool_or(format, at_format.field, "strict", false, &r->p->schema_strict,
                                r->err) ||
                di_fail_prefix(r->err, "%s", r->where)) &&
               read_schema(&schema, json_object_get(format, "schema"));
    }
    if (!missing(format)) {
        return di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s is given, but %s is \"%.32s\"", r->where,
                       at_format.field, at_type.field, word);
    }
    r->p->schema_type = strcmp(word, "json_object") == 0 ? DI_SCHEMA_JSON_OBJECT : DI_SCHEMA_NONE;
    return r->p->schema_type != DI_SCHEMA_NONE || strcmp(word, "text") == 0 ||
           di_fail(r->err, DI_ERR_ARGUMENT,
                   "%s: %s is \"%.32s\", allowed are \"text\", \"json_object\" and \"json_schema\"",
                   r->where, at_type.field, word);
}

/* vLLM: exactly one of json, regex, choice, grammar and json_object. */
static bool read_structured_outputs(const reading *r, const json_t *o) {
    static const char *const names[] = {"json", "regex", "choice", "grammar", "json_object"};
    static const char *const lacking[] = {"disable_fallback", "disable_any_whitespace",
                                          "disable_additional_properties", "whitespace_pattern",
                                          "structural_tag"};
    if (!json_is_object(o)) {
        return unexpected(r, o, "an object");
    }
    if (!CHECK_MEMBERS(r, o, names, lacking)) {
        return false;
    }
    const char *given[2] = {0};
    size_t count = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(o, names[i]);
        if (!missing(value) && !json_is_false(value) && count < 2) {
            given[count++] = names[i];
        }
    }
    if (count != 1) {
        return count ? di_fail(r->err, DI_ERR_ARGUMENT,
                               "%s: %s: %s and %s both constrain the answer; give one", r->where,
                               r->field, given[0], given[1])
                     : di_fail(r->err, DI_ERR_ARGUMENT,
                               "%s: %s needs one of json, regex, choice, grammar and json_object",
                               r->where, r->field);
    }
    reading m = member(r, given[0]);
    const json_t *value = json_object_get(o, given[0]);
    switch (given[0][0]) {
    case 'r':
        return read_as(&m, value, DI_SCHEMA_REGEX);
    case 'c':
        return read_choice(&m, value);
    case 'g':
        return read_as(&m, value, DI_SCHEMA_EBNF);
    default:
        break;
    }
    if (strcmp(given[0], "json") == 0) {
        return read_schema(&m, value);
    }
    r->p->schema_type = DI_SCHEMA_JSON_OBJECT;
    return json_is_true(value) || unexpected(&m, value, "a boolean");
}

static bool read_regex(const reading *r, const json_t *value) {
    return read_as(r, value, DI_SCHEMA_REGEX);
}

static bool read_ebnf(const reading *r, const json_t *value) {
    return read_as(r, value, DI_SCHEMA_EBNF);
}

bool di_schema_json_read(di_schema_json *s, const char *name, const json_t *value,
                         const char *where, di_request_params *p, di_error *err) {
    static const struct {
        const char *name;
        bool (*read)(const reading *r, const json_t *value);
    } readers[] = {
        {"so_args", read_so_args},
        {"response_format", read_response_format},
        {"structured_outputs", read_structured_outputs},
        {"guided_json", read_schema},
        {"guided_regex", read_regex},
        {"guided_grammar", read_ebnf},
        {"guided_choice", read_choice},
        {"json_schema", read_schema},
        {"regex", read_regex},
        {"ebnf", read_ebnf},
    };
    reading r = {.s = s, .where = where, .p = p, .err = err};
    snprintf(r.field, sizeof r.field, "%s", name);
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (strcmp(name, readers[i].name) == 0) {
            return readers[i].read(&r, value);
        }
    }
    return di_fail(err, DI_ERR_INTERNAL, "%s: %s is no field of structured output", where, name);
}

void di_schema_json_clear(di_schema_json *s) {
    free(s->text); /* jansson's or strndup's */
    di_free(s->trigger);
    *s = (di_schema_json){0};
}
