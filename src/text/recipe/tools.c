/* Tools of a request: names, schemas, and which calls are open. See reading.h. */
#include <stdio.h>
#include <stdlib.h>

#include "text/recipe/reading.h"
#include "text/recipe/schema.h"

enum { LONGEST_NAME = 128 };

bool di_check_tool_name(di_str name, const char *where, di_error *err) {
    if (name.size == 0) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "Invalid '%s': empty string. Expected a string with minimum length 1, but "
                       "got an empty string instead.",
                       where);
    }
    bool plain = true;
    size_t length = 0; /* in characters */
    for (size_t i = 0; i < name.size; i++) {
        char c = name.data[i];
        length += ((unsigned char)c & 0xC0) != 0x80;
        plain &= (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 c == '_' || c == '-';
    }
    if (length > LONGEST_NAME) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "Invalid '%s': string too long. Expected a string with maximum length %d, "
                       "but got a string with length %zu instead.",
                       where, LONGEST_NAME, length);
    }
    return plain || di_fail(err, DI_ERR_ARGUMENT,
                            "Invalid '%s': string does not match pattern. Expected a string that "
                            "matches the pattern '^[a-zA-Z0-9_-]+$'.",
                            where);
}

static bool check_object_type(const di_value *schema, const char *what, di_error *err) {
    const di_value *type = di_value_get(schema, "type");
    if (di_value_is_string(type, "object")) {
        return true;
    }
    if (di_value_is(type, DI_VALUE_STRING)) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "%s: schema must be a JSON Schema of 'type: \"object\"', got 'type: "
                       "\"%.*s\"'.",
                       what, di_str_shown(type->string, 64), type->string.data);
    }
    return di_fail(err, DI_ERR_ARGUMENT,
                   "%s: schema must be a JSON Schema of 'type: \"object\"', got 'type: %s'.", what,
                   type && type->type != DI_VALUE_NULL ? di_value_type_name(type) : "null");
}

bool di_check_tool(di_reading *x, di_tool *tool, const char *where, bool needs_schema) {
    static const di_value null_value = {.type = DI_VALUE_NULL};
    char what[DI_PATH_BYTES];
    if (!di_check_tool_name(tool->in_name, where, x->err)) {
        return false;
    }
    if (x->choice == DI_CHOICE_NONE) {
        return true; /* it is not shown */
    }
    snprintf(what, sizeof what, "Invalid schema for function '%.*s'", di_str_shown(tool->name, 96),
             tool->name.data);
    const di_value *schema = tool->parameters;
    if (!schema && needs_schema) {
        schema = &null_value;
    }
    if (schema &&
        (!di_schema_check(schema, what, x->err) || !check_object_type(schema, what, x->err))) {
        return false;
    }
    if (!tool->strict || x->r->server) { /* ours enforces the schema as the client wrote it */
        return true;
    }
    return di_schema_strict(x->pool, tool->parameters, "Invalid tool parameters schema", true,
                            &tool->parameters, x->err);
}

static int by_bytes(const void *a, const void *b) {
    const di_str *x = a, *y = b;
    size_t shorter = x->size < y->size ? x->size : y->size;
    int order = shorter ? memcmp(x->data, y->data, shorter) : 0;
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static int by_name(const void *a, const void *b) {
    const di_tool *const *x = a, *const *y = b;
    return by_bytes(&(*x)->name, &(*y)->name);
}

bool di_check_tool_names(di_reading *x) {
    x->by_name = di_pool_take(x->pool, x->tool_count, sizeof(di_tool *), x->err);
    for (size_t i = 0; x->by_name && i < x->tool_count; i++) {
        x->by_name[i] = &x->tools[i];
    }
    if (x->by_name && x->tool_count > 1) {
        qsort(x->by_name, x->tool_count, sizeof(di_tool *), by_name);
    }
    for (size_t i = 1; x->by_name && i < x->tool_count; i++) {
        if (di_str_equal(x->by_name[i - 1]->name, x->by_name[i]->name)) {
            return di_fail(x->err, DI_ERR_ARGUMENT, "Tool names must be unique.");
        }
    }
    return x->by_name != NULL;
}

const di_tool *di_find_tool(const di_reading *x, di_str name) {
    const di_tool wanted = {.name = name}, *key = &wanted;
    if (x->tool_count == 0) {
        return NULL;
    }
    const di_tool **found = bsearch(&key, x->by_name, x->tool_count, sizeof(di_tool *), by_name);
    return found ? *found : NULL;
}

static int by_id(const void *a, const void *b) {
    const di_open_call *x = a, *y = b;
    int order = by_bytes(&x->id, &y->id);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

bool di_open_calls_set(di_open_calls *open, di_pool *pool, const di_call *calls, size_t count,
                       size_t *twice, di_error *err) {
    *open = (di_open_calls){di_pool_take(pool, count, sizeof *open->sorted, err), count, 0};
    *twice = SIZE_MAX;
    if (!open->sorted) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        open->sorted[i] = (di_open_call){.id = calls[i].id, .place = i};
    }
    if (count > 1) {
        qsort(open->sorted, count, sizeof *open->sorted, by_id);
    }
    for (size_t i = 1; i < count; i++) {
        if (di_str_equal(open->sorted[i - 1].id, open->sorted[i].id) &&
            open->sorted[i].place < *twice) {
            *twice = open->sorted[i].place;
        }
    }
    return true;
}

di_open_call *di_open_calls_find(const di_open_calls *open, di_str id) {
    size_t low = 0, high = open->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = by_bytes(&open->sorted[middle].id, &id);
        if (order == 0) {
            return &open->sorted[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

const di_open_call *di_open_calls_missing(const di_open_calls *open) {
    const di_open_call *first = NULL;
    for (size_t i = 0; i < open->count; i++) {
        if (!open->sorted[i].answered && (!first || open->sorted[i].place < first->place)) {
            first = &open->sorted[i];
        }
    }
    return first;
}
