/* OpenAI's chat completions, with DeepSeek's additions: see reading.h. */
#include <stdio.h>

#include "text/recipe/field.h"
#include "text/recipe/image.h"
#include "text/recipe/reading.h"

/* ---- content ---- */

static bool read_image_part(di_reading *x, const di_value *part, const char *where,
                            const char *path, bool assistant, di_part *out) {
    const di_value *image;
    di_str url = DI_STR("");
    int detail = DI_DETAIL_HIGH;
    char place[DI_PATH_BYTES + 16];
    snprintf(place, sizeof place, "%s.image_url", where);
    if (!di_field_object(part, where, "image_url", DI_NEEDED, &image, x->err) ||
        !di_field_string(image, place, "url", DI_NEEDED, &url, NULL, x->err) ||
        !di_field_word(image, place, "detail", DI_OPTIONAL, di_image_details, DI_NUM_DETAILS,
                       &detail, x->err)) {
        return false;
    }
    if (di_hide_image(x, out)) {
        return true;
    }
    if (assistant) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Image in assistant message is not supported");
    }
    out->image = di_image_from_url(x->pool, url, detail, path, x->err);
    return out->image != NULL;
}

static bool read_part(di_reading *x, const di_value *part, const char *where, const char *path,
                      bool assistant, di_part *out) {
    static const char *const types[] = {"text", "image_url", "file"};
    int type = 0;
    if (part->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, part, "an object", x->err);
    }
    if (!di_field_type(part, where, types, 3, &type, x->err)) {
        return false;
    }
    if (type == 0) {
        return di_field_string(part, where, "text", DI_NEEDED, &out->text, NULL, x->err);
    }
    if (type == 1) {
        return read_image_part(x, part, where, path, assistant, out);
    }
    return di_fail(x->err, DI_ERR_ARGUMENT, "%s: files are not supported", path);
}

/* A string is one part. */
static bool read_content(di_reading *x, const di_value *content, size_t index, di_message *m) {
    char where[DI_PATH_BYTES], path[DI_PATH_BYTES];
    snprintf(path, sizeof path, ".messages[%zu]", index);
    if (content->type == DI_VALUE_STRING) {
        return di_message_set_text(m, x->pool, content->string, x->err);
    }
    if (content->type != DI_VALUE_ARRAY) {
        snprintf(where, sizeof where, "messages[%zu]", index);
        return di_field_wrong(where, "content", content, "a string or a list", x->err);
    }
    m->part_count = content->array.count;
    m->parts = di_pool_take(x->pool, m->part_count, sizeof *m->parts, x->err);
    for (size_t i = 0; m->parts && i < m->part_count; i++) {
        snprintf(where, sizeof where, "messages[%zu].content[%zu]", index, i);
        if (!read_part(x, &content->array.items[i], where, path, m->role == DI_ROLE_ASSISTANT,
                       &m->parts[i])) {
            return false;
        }
    }
    return m->parts != NULL;
}

/* ---- messages ---- */

static bool read_call(di_reading *x, const di_value *call, const char *where, di_call *out) {
    static const char *const types[] = {"function"};
    const di_value *function;
    char place[DI_PATH_BYTES + 16];
    int type;
    snprintf(place, sizeof place, "%s.function", where);
    if (call->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, call, "an object", x->err);
    }
    return di_field_string(call, where, "id", DI_NEEDED, &out->id, NULL, x->err) &&
           di_field_type(call, where, types, 1, &type, x->err) &&
           di_field_object(call, where, "function", DI_NEEDED, &function, x->err) &&
           di_field_string(function, place, "name", DI_NEEDED, &out->name, NULL, x->err) &&
           di_field_string(function, place, "arguments", DI_NEEDED, &out->arguments, NULL, x->err);
}

static bool read_calls(di_reading *x, const di_value *object, size_t index, di_message *m) {
    char where[DI_PATH_BYTES];
    const di_value *calls;
    snprintf(where, sizeof where, "messages[%zu]", index);
    if (!di_field_array(object, where, "tool_calls", DI_OPTIONAL, &calls, x->err)) {
        return false;
    }
    if (!calls) {
        return true;
    }
    m->call_count = calls->array.count;
    m->calls = di_pool_take(x->pool, m->call_count, sizeof *m->calls, x->err);
    for (size_t i = 0; m->calls && i < m->call_count; i++) {
        snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu]", index, i);
        if (!read_call(x, &calls->array.items[i], where, &m->calls[i])) {
            return false;
        }
    }
    if (m->calls && m->call_count == 0) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "Invalid 'messages[%zu].tool_calls': empty array. Expected an array with "
                       "minimum length 1, but got an empty array instead.",
                       index);
    }
    return m->calls != NULL;
}

static bool read_assistant(di_reading *x, const di_value *object, size_t index, di_message *m) {
    char where[DI_PATH_BYTES];
    const di_value *content = di_value_given(object, "content");
    snprintf(where, sizeof where, "messages[%zu]", index);
    if (!di_field_string(object, where, "reasoning_content", DI_OPTIONAL, &m->reasoning,
                         &m->has_reasoning, x->err) ||
        !di_field_bool(object, where, "prefix", &m->prefix, NULL, x->err) ||
        !read_calls(x, object, index, m) || (content && !read_content(x, content, index, m))) {
        return false;
    }
    return content || m->calls ||
           di_fail(x->err, DI_ERR_ARGUMENT,
                   "Invalid assistant message: content or tool_calls must be set");
}

static bool read_message(di_reading *x, const di_value *object, size_t index) {
    static const char *const roles[] = {"system", "user", "assistant", "tool", "latest_reminder"};
    char where[DI_PATH_BYTES];
    int role = 0;
    bool ok;
    di_str name = DI_STR("");
    snprintf(where, sizeof where, "messages[%zu]", index);
    if (object->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, object, "an object", x->err);
    }
    if (!di_field_word(object, where, "role", DI_NEEDED, roles, 5, &role, x->err) ||
        !di_field_string(object, where, "name", DI_OPTIONAL, &name, NULL, x->err)) {
        return false;
    }
    di_message *m = di_conversation_add(&x->r->conversation, x->pool, (di_role)role, x->err);
    if (!m || role == DI_ROLE_ASSISTANT) {
        return m && read_assistant(x, object, index, m);
    }
    const di_value *content = di_field(object, where, "content", DI_NEEDED, &ok, x->err);
    if (!content ||
        (role == DI_ROLE_TOOL &&
         !di_field_string(object, where, "tool_call_id", DI_NEEDED, &m->call_id, NULL, x->err))) {
        return false;
    }
    if (role == DI_ROLE_REMINDER && content->type != DI_VALUE_STRING) {
        return di_field_wrong(where, "content", content, "a string", x->err);
    }
    return read_content(x, content, index, m);
}

/* An empty system message says nothing: it is left out. */
static void drop_empty_systems(di_conversation *c) {
    di_message **link = &c->first;
    c->last = NULL;
    while (*link) {
        di_message *m = *link;
        if (m->role == DI_ROLE_SYSTEM && di_message_is_empty(m)) {
            *link = m->next;
            c->message_count--;
        } else {
            c->last = m;
            link = &m->next;
        }
    }
}

/* ---- calls and their results ---- */

static bool close_call(const di_reading *x, di_open_calls *open, const di_message *m) {
    if (open->answered == open->count) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "Messages with role 'tool' must be a response to a preceding message with "
                       "'tool_calls'");
    }
    di_open_call *call = di_open_calls_find(open, m->call_id);
    if (!call || call->answered) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "An assistant message with 'tool_calls' must be followed by tool messages "
                       "responding to each 'tool_call_id', The following tool_call_ids did not "
                       "have response messages: %.*s",
                       di_str_shown(m->call_id, 128), m->call_id.data);
    }
    call->answered = true;
    open->answered++;
    return true;
}

static bool check_order(const di_reading *x) {
    di_open_calls open = {0};
    size_t index = 0, twice;
    for (const di_message *m = x->r->conversation.first; m; m = m->next, index++) {
        if (m->role == DI_ROLE_TOOL) {
            if (!close_call(x, &open, m)) {
                return false;
            }
            continue;
        }
        if (open.answered < open.count) {
            break;
        }
        if (!di_open_calls_set(&open, x->pool, m->calls, m->call_count, &twice, x->err)) {
            return false;
        }
        if (twice != SIZE_MAX) {
            return di_fail(x->err, DI_ERR_ARGUMENT,
                           "Duplicate value for 'tool_call_id' of %.*s in message[%zu]",
                           di_str_shown(m->calls[twice].id, 128), m->calls[twice].id.data, index);
        }
    }
    return open.answered == open.count ||
           di_fail(x->err, DI_ERR_ARGUMENT,
                   "An assistant message with 'tool_calls' must be followed by tool messages "
                   "responding to each 'tool_call_id'. (insufficient tool messages following "
                   "tool_calls message)");
}

static bool check_prefix(const di_reading *x) {
    for (const di_message *m = x->r->conversation.first; m; m = m->next) {
        if (m->prefix && m->next) {
            return di_fail(x->err, DI_ERR_ARGUMENT,
                           "Invalid completion message: prefix set true with message which is not "
                           "final message or message role is not assistant");
        }
    }
    return true;
}

static bool read_conversation(di_reading *x) {
    const di_value *messages;
    if (!di_field_array(x->body, "", "messages", DI_NEEDED, &messages, x->err)) {
        return false;
    }
    if (messages->array.count == 0) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Empty input messages");
    }
    for (size_t i = 0; i < messages->array.count; i++) {
        if (!read_message(x, &messages->array.items[i], i)) {
            return false;
        }
    }
    if (!check_prefix(x) || !check_order(x)) {
        return false;
    }
    drop_empty_systems(&x->r->conversation);
    return true;
}

/* ---- tools ---- */

static bool read_tool(di_reading *x, const di_value *object, size_t index, di_tool *out) {
    static const char *const types[] = {"function"};
    char where[DI_PATH_BYTES];
    const di_value *function;
    int type;
    snprintf(where, sizeof where, "tools[%zu]", index);
    if (object->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, object, "an object", x->err);
    }
    if (!di_field_type(object, where, types, 1, &type, x->err) ||
        !di_field_object(object, where, "function", DI_NEEDED, &function, x->err)) {
        return false;
    }
    snprintf(where, sizeof where, "tools[%zu].function", index);
    if (!di_field_string(function, where, "name", DI_NEEDED, &out->name, NULL, x->err) ||
        !di_field_string(function, where, "description", DI_OPTIONAL, &out->description,
                         &out->has_description, x->err) ||
        !di_field_bool(function, where, "strict", &out->strict, &out->has_strict, x->err)) {
        return false;
    }
    out->parameters = di_value_given(function, "parameters");
    out->in_name = out->name;
    snprintf(where, sizeof where, "tools[%zu].function.name", index);
    return di_check_tool(x, out, where, false);
}

static bool read_tools(di_reading *x) {
    const di_value *tools;
    if (!di_field_array(x->body, "", "tools", DI_OPTIONAL, &tools, x->err)) {
        return false;
    }
    x->tool_count = tools ? tools->array.count : 0;
    x->tools = di_pool_take(x->pool, x->tool_count, sizeof *x->tools, x->err);
    for (size_t i = 0; x->tools && i < x->tool_count; i++) {
        if (!read_tool(x, &tools->array.items[i], i, &x->tools[i])) {
            return false;
        }
    }
    return x->tools && di_check_tool_names(x);
}

static bool read_tool_choice(di_reading *x) {
    static const char *const words[] = {"auto", "none", "required"}, *const types[] = {"function"};
    const di_value *choice = di_value_given(x->body, "tool_choice"), *function;
    int word = DI_CHOICE_AUTO, type;
    if (choice && choice->type == DI_VALUE_OBJECT) {
        x->choice_named = true;
        x->choice = DI_CHOICE_REQUIRED;
        return di_field_type(choice, "tool_choice", types, 1, &type, x->err) &&
               di_field_object(choice, "tool_choice", "function", DI_NEEDED, &function, x->err) &&
               di_field_string(function, "tool_choice.function", "name", DI_NEEDED, &x->choice_name,
                               NULL, x->err);
    }
    if (!di_field_word(x->body, "", "tool_choice", DI_OPTIONAL, words, 3, &word, x->err)) {
        return false;
    }
    x->choice = (di_tool_choice)word;
    return true;
}

/* ---- the rest ---- */

static bool read_response_format(di_reading *x) {
    static const char *const types[] = {"text", "json_object", "json_schema", "regex"};
    static const char schema_place[] = "response_format.json_schema";
    di_conversation *c = &x->r->conversation;
    const di_value *format, *schema;
    int type = 0;
    bool ok;
    if (!di_field_object(x->body, "", "response_format", DI_OPTIONAL, &format, x->err) ||
        (format && !di_field_type(format, "response_format", types, 4, &type, x->err))) {
        return false;
    }
    c->format = (di_response_format)type;
    if (c->format == DI_FORMAT_REGEX) {
        return di_field_string(format, "response_format", "regex", DI_NEEDED, &c->regex, NULL,
                               x->err);
    }
    if (c->format == DI_FORMAT_SCHEMA) {
        if (!di_field_object(format, "response_format", "json_schema", DI_NEEDED, &schema,
                             x->err) ||
            !di_field_bool(schema, schema_place, "strict", &x->strict_schema, NULL, x->err)) {
            return false;
        }
        c->schema = di_field(schema, schema_place, "schema", DI_NEEDED, &ok, x->err);
        return ok;
    }
    return true;
}

static bool read_logprobs(di_reading *x) {
    di_inference *f = &x->r->inference;
    uint64_t top = 0;
    if (!di_field_bool(x->body, "", "logprobs", &f->logprobs, NULL, x->err) ||
        !di_field_uint(x->body, "", "top_logprobs", 255, &top, &f->has_top_logprobs, x->err)) {
        return false;
    }
    if (f->has_top_logprobs && top > 20) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
    }
    if (f->has_top_logprobs && !f->logprobs) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "Invalid top_logprobs and logprobs value, logprobs must be set to true if "
                       "top_logprobs is used.");
    }
    f->top_logprobs = (uint32_t)top;
    return true;
}

static bool read_penalty(di_reading *x, const char *key) {
    double value = 0;
    if (!di_field_real(x->body, "", key, &value, NULL, x->err)) {
        return false;
    }
    return ((float)value >= -2 && (float)value <= 2) ||
           di_fail(x->err, DI_ERR_ARGUMENT, "Invalid %s value, the valid range of %s is [-2, 2]",
                   key, key);
}

static bool read_sampling(di_reading *x) {
    di_inference *f = &x->r->inference;
    uint64_t n = 1;
    if (!di_field_uint(x->body, "", "seed", UINT64_MAX, &f->seed, &f->has_seed, x->err) ||
        !di_field_uint(x->body, "", "n", 255, &n, NULL, x->err) ||
        !read_penalty(x, "presence_penalty") || !read_penalty(x, "frequency_penalty") ||
        !read_logprobs(x)) {
        return false;
    }
    if (f->seed > INT64_MAX) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "Invalid seed value, the valid range of seed is [0, 2^63)");
    }
    return n == 1 || x->o->server ||
           di_fail(x->err, DI_ERR_ARGUMENT, "Invalid n value (currently only n = 1 is supported)");
}

static bool read_stream_options(di_reading *x) {
    const di_value *options;
    if (!di_field_object(x->body, "", "stream_options", DI_OPTIONAL, &options, x->err)) {
        return false;
    }
    if (!options) {
        return true;
    }
    if (!di_field_bool(options, "stream_options", "include_usage", &x->r->include_usage, NULL,
                       x->err)) {
        return false;
    }
    return x->r->stream || di_fail(x->err, DI_ERR_ARGUMENT,
                                   "stream_options should be set along with stream = true");
}

/* In server mode max_completion_tokens is the newer name of max_tokens. */
static bool read_limits(di_reading *x) {
    return di_read_max_tokens(x, "max_tokens") &&
           (!x->o->server || di_read_max_tokens(x, "max_completion_tokens")) &&
           di_read_stops(x, di_value_given(x->body, "stop"), "stop");
}

static bool refuse_unsupported(const di_reading *x) {
    static const char *const fields[] = {"functions",  "function_call", "audio",
                                         "modalities", "prediction",    "web_search_options"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!di_refuse_field(x, fields[i])) {
            return false;
        }
    }
    return true;
}

bool di_read_chat(di_reading *x) {
    x->json_word_missing = "Prompt must contain the word 'json' in some form to use "
                           "'response_format' of type 'json_object'.";
    x->reasoning_missing = "reasoning_content";
    return read_limits(x) && read_sampling(x) && read_stream_options(x) && di_read_thinking(x) &&
           di_read_effort(x, x->body, "", "reasoning_effort") &&
           di_read_parallel(x, x->body, "", "parallel_tool_calls", true) &&
           read_response_format(x) && read_tool_choice(x) && read_tools(x) &&
           read_conversation(x) && refuse_unsupported(x);
}
