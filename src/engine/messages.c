/* Conversations in JSON: see messages.h. The layout itself is text/chat.c's. */
#include "engine/messages.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/suggest.h"

static const char *const known[] = {"role", "content", "reasoning_content", "prefix"};
enum { NUM_KNOWN = sizeof known / sizeof *known };

/* Texts are borrowed from the JSON values, which outlive this. */
typedef struct conversation {
    di_chat_message *messages; /* [count] */
    di_chat_part *parts;       /* of all messages, one behind the other */
    size_t count, num_parts;
} conversation;

static bool check_names(const json_t *object, const char *where, di_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        bool is_known = false;
        for (size_t i = 0; i < NUM_KNOWN; i++) {
            is_known |= strcmp(name, known[i]) == 0;
        }
        if (!is_known) {
            const char *near = di_suggest(name, known, NUM_KNOWN);
            return di_fail(err, DI_ERR_ARGUMENT, "%s: unknown field %s%s%s%s", where, name,
                           near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        }
    }
    return true;
}

static bool read_part(const json_t *part, const char *where, di_chat_part *out, di_error *err) {
    const char *type, *text;
    if (!json_is_object(part)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: a part of content is %s, an object expected",
                       where, di_json_type_name(part));
    }
    if (!di_json_string(part, where, "type", &type, err)) {
        return false;
    }
    if (strcmp(type, "text") != 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "%s: content of type \"%s\" is not supported, \"text\" is", where, type);
    }
    if (!di_json_string(part, where, "text", &text, err)) {
        return false;
    }
    *out = (di_chat_part){.text = text, .size = json_string_length(json_object_get(part, "text"))};
    return true;
}

/* A string is one part; null is an empty content. */
static bool read_content(const json_t *content, const char *where, conversation *c,
                         di_chat_message *m, di_error *err) {
    m->parts = c->parts + c->num_parts;
    if (json_is_string(content)) {
        c->parts[c->num_parts++] = (di_chat_part){
            .text = json_string_value(content),
            .size = json_string_length(content),
        };
        m->part_count = 1;
        return true;
    }
    if (json_is_array(content)) {
        m->part_count = json_array_size(content);
        for (size_t i = 0; i < m->part_count; i++) {
            if (!read_part(json_array_get(content, i), where, &c->parts[c->num_parts++], err)) {
                return false;
            }
        }
        return true;
    }
    if (json_is_null(content) && m->role == DI_ROLE_ASSISTANT) {
        return true;
    }
    return di_fail(err, DI_ERR_ARGUMENT, "%s: content is %s, a string or an array expected", where,
                   di_json_type_name(content));
}

static bool read_message(const json_t *object, const char *where, conversation *c,
                         di_chat_message *m, di_error *err) {
    const char *role;
    if (!json_is_object(object)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s is %s, an object expected", where,
                       di_json_type_name(object));
    }
    if (!check_names(object, where, err) || !di_json_string(object, where, "role", &role, err)) {
        return false;
    }
    if (!di_role_parse(role, &m->role, err)) {
        return di_fail_prefix(err, "%s", where);
    }
    if (!read_content(json_object_get(object, "content"), where, c, m, err) ||
        !di_json_bool_or(object, where, "prefix", false, &m->prefix, err)) {
        return false;
    }
    const json_t *reasoning = json_object_get(object, "reasoning_content");
    if (reasoning && !json_is_null(reasoning)) {
        if (!di_json_string(object, where, "reasoning_content", &m->reasoning, err)) {
            return false;
        }
        m->reasoning_size = json_string_length(reasoning);
    }
    return true;
}

static bool read_conversation(const json_t *array, conversation *c, di_error *err) {
    if (!json_is_array(array)) {
        return di_fail(err, DI_ERR_ARGUMENT, "messages is %s, an array expected",
                       di_json_type_name(array));
    }
    c->count = json_array_size(array);
    if (c->count == 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "messages is empty, at least one message is needed");
    }
    size_t parts = 0;
    for (size_t i = 0; i < c->count; i++) {
        const json_t *content = json_object_get(json_array_get(array, i), "content");
        parts += json_is_array(content) ? json_array_size(content) : 1;
    }
    c->messages = di_calloc(c->count, sizeof *c->messages);
    c->parts = di_calloc(parts, sizeof *c->parts);
    if (!c->messages || !c->parts) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu messages", c->count);
    }
    for (size_t i = 0; i < c->count; i++) {
        char where[40];
        snprintf(where, sizeof where, "messages[%zu]", i);
        if (!read_message(json_array_get(array, i), where, c, &c->messages[i], err)) {
            return false;
        }
    }
    return true;
}

bool di_messages_encode(const di_chat_tokens *tokens, const char *json, size_t size, int effort,
                        di_ids *out, di_error *err) {
    json_t *array = di_json_parse_text(json, size, DI_JSON_MAX_DEPTH, "messages", err);
    conversation c = {0};
    di_chat_prompt prompt = {0};
    bool ok = array && read_conversation(array, &c, err) &&
              di_chat_render(tokens, c.messages, c.count, effort, &prompt, err) &&
              di_chat_encode(tokens, &prompt, out, err);
    di_chat_prompt_free(&prompt);
    di_free(c.messages);
    di_free(c.parts);
    json_decref(array);
    return ok;
}

void di_split_reasoning(const char *text, size_t size, size_t *reasoning, size_t *content) {
    static const char end[] = "</think>";
    const char *found = memmem(text, size, end, sizeof end - 1);
    *reasoning = found ? (size_t)(found - text) : size;
    *content = found ? *reasoning + sizeof end - 1 : size;
}
