/* Conversations in JSON: see messages.h. The recipe reads and renders them; what is stricter here
 * is that a field nobody reads is refused. */
#include "engine/messages.h"

#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "text/recipe/render.h"
#include "text/recipe/request.h"

static const char *const known[] = {"role",   "content",    "reasoning_content",
                                    "prefix", "tool_calls", "tool_call_id"};
enum { NUM_KNOWN = sizeof known / sizeof *known };

static bool check_names(const di_value *message, size_t index, di_error *err) {
    for (size_t i = 0; i < message->object.count; i++) {
        di_str name = message->object.members[i].name;
        bool is_known = false;
        for (size_t j = 0; j < NUM_KNOWN; j++) {
            is_known |= di_str_is(name, known[j]);
        }
        if (!is_known) {
            const char *near = di_suggest(name.data, known, NUM_KNOWN);
            return di_fail(err, DI_ERR_ARGUMENT, "messages[%zu]: unknown field %.*s%s%s%s", index,
                           di_str_shown(name, 64), name.data, near ? "; did you mean " : "",
                           near ? near : "", near ? "?" : "");
        }
    }
    return true;
}

/* The engine takes no images yet. */
static bool check_parts(const di_value *message, size_t index, di_error *err) {
    const di_value *content = di_value_get(message, "content");
    for (size_t i = 0; di_value_is(content, DI_VALUE_ARRAY) && i < content->array.count; i++) {
        const di_value *type = di_value_get(&content->array.items[i], "type");
        if (di_value_is(type, DI_VALUE_STRING) && !di_str_is(type->string, "text")) {
            return di_fail(err, DI_ERR_UNSUPPORTED,
                           "messages[%zu]: content of type \"%.*s\" is not supported, \"text\" is",
                           index, di_str_shown(type->string, 64), type->string.data);
        }
    }
    return true;
}

static bool check_messages(const di_value *messages, di_error *err) {
    if (messages->type == DI_VALUE_ARRAY && messages->array.count == 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "messages is empty, at least one message is needed");
    }
    for (size_t i = 0; messages->type == DI_VALUE_ARRAY && i < messages->array.count; i++) {
        const di_value *message = &messages->array.items[i];
        if (message->type == DI_VALUE_OBJECT &&
            (!check_names(message, i, err) || !check_parts(message, i, err))) {
            return false;
        }
    }
    return true;
}

static bool read_messages(di_request *r, const char *json, size_t size, int effort, di_error *err) {
    static const di_model_name model = {"messages", DI_MODEL_V41};
    di_named_value *body =
        di_pool_take(&r->pool, 2, sizeof *body, err); /* the request points at it */
    di_recipe_options options;
    di_recipe_options_init(&options);
    options.server = true;
    options.default_thinking = effort != DI_EFFORT_OFF;
    options.models = &model;
    options.model_count = 1;
    if (!body) {
        return false;
    }
    body[0] = (di_named_value){DI_STR("model"),
                               {.type = DI_VALUE_STRING, .string = di_str_of(model.name)}};
    body[1].name = DI_STR("messages");
    if (!di_value_parse_once(&r->pool, json, size, DI_VALUE_MAX_DEPTH, &body[1].value, err)) {
        return di_fail_prefix(err, "messages");
    }
    const di_value whole = {.type = DI_VALUE_OBJECT, .object = {body, 2}};
    if (!check_messages(&body[1].value, err) ||
        !di_request_read(r, DI_PROTOCOL_CHAT, &whole, &options, err)) {
        return false;
    }
    r->conversation.effort = effort;
    return true;
}

bool di_messages_encode(const di_chat_tokens *tokens, const char *json, size_t size, int effort,
                        di_ids *out, di_error *err) {
    di_request r = {0};
    di_chat_prompt prompt = {0};
    bool ok = read_messages(&r, json, size, effort, err) &&
              di_recipe_render(tokens, &r.conversation, &prompt, err) &&
              di_chat_encode(tokens, &prompt, out, err);
    di_chat_prompt_free(&prompt);
    di_request_free(&r);
    return ok;
}

void di_split_reasoning(const char *text, size_t size, size_t *reasoning, size_t *content) {
    static const char end[] = "</think>";
    const char *found = memmem(text, size, end, sizeof end - 1);
    *reasoning = found ? (size_t)(found - text) : size;
    *content = found ? *reasoning + sizeof end - 1 : size;
}
