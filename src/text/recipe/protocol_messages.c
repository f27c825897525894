/* Anthropic's messages: see reading.h. Content is a list of typed blocks; the results of calls are
 * blocks at the head of the user's next message. */
#include <stdio.h>

#include "base/buffer.h"
#include "text/recipe/field.h"
#include "text/recipe/image.h"
#include "text/recipe/json_write.h"
#include "text/recipe/reading.h"

typedef enum block_type {
    BLOCK_TEXT,
    BLOCK_IMAGE,
    BLOCK_DOCUMENT,
    BLOCK_THINKING,
    BLOCK_SERVER_TOOL_USE,
    BLOCK_TOOL_USE,
    BLOCK_TOOL_RESULT,
    BLOCK_WEB_SEARCH_RESULT,
    BLOCK_TOOL_ADDITION,
    NUM_BLOCKS,
} block_type;

static const char *const block_types[] = {"text",
                                          "image",
                                          "document",
                                          "thinking",
                                          "server_tool_use",
                                          "tool_use",
                                          "tool_result",
                                          "web_search_tool_result",
                                          "tool_addition"};

/* The message being read: how many of each there may be is known from the number of blocks. */
typedef struct open_message {
    size_t index, count;   /* of its blocks */
    di_message *m;         /* takes texts and images */
    const di_tool **shown; /* tools that it brings into view */
    size_t shown_count;
    di_buffer reasoning;
    size_t last_use;         /* block that holds the last call */
    di_open_calls *open;     /* calls of the message before */
    bool results_may_follow; /* only results have stood here */
} open_message;

/* ---- parts ---- */

static bool add_text(di_message *m, di_str text) {
    m->parts[m->part_count++] = (di_part){.text = text};
    return true;
}

static bool read_image(di_reading *x, const di_value *block, const char *where, const char *path,
                       di_part *out) {
    static const char *const sources[] = {"url", "base64", "file"};
    static const char *const media[] = {"image/jpeg", "image/jpg", "image/png", "image/gif",
                                        "image/webp"};
    const di_value *source;
    di_str text = DI_STR("");
    int type = 0, kind = 0;
    if (!di_field_object(block, where, "source", DI_NEEDED, &source, x->err) ||
        !di_field_type(source, where, sources, 3, &type, x->err)) {
        return false;
    }
    if (di_hide_image(x, out)) {
        return true;
    }
    if (type == 2) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "%s: file_id is not supported. Pass the image as a base64 data url instead.",
                       path);
    }
    if (type == 1) {
        if (!di_field_word(source, where, "media_type", DI_NEEDED, media, 5, &kind, x->err) ||
            !di_field_string(source, where, "data", DI_NEEDED, &text, NULL, x->err)) {
            return false;
        }
        out->image = di_image_from_base64(x->pool, media[kind] + 6, text, path, x->err);
        return out->image != NULL;
    }
    if (!di_field_string(source, where, "url", DI_NEEDED, &text, NULL, x->err)) {
        return false;
    }
    if (text.size < 4 || strncasecmp(text.data, "http", 4) != 0) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "%s: invalid url: \"%.*s\"", path,
                       di_str_shown(text, 128), text.data);
    }
    out->image = di_image_from_url(x->pool, text, DI_DETAIL_HIGH, path, x->err);
    return out->image != NULL;
}

/* Documents cannot be read; the model is told so. */
static bool read_document(di_reading *x, const di_value *block, const char *where, di_part *out) {
    const di_value *source;
    di_str media = DI_STR("unknown");
    char text[256];
    if (!di_field_object(block, where, "source", DI_NEEDED, &source, x->err) ||
        !di_field_string(source, where, "media_type", DI_OPTIONAL, &media, NULL, x->err)) {
        return false;
    }
    if (x->o->server) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "%s: documents are not supported", where);
    }
    int size = snprintf(text, sizeof text, "[Unsupported document type: %.*s]",
                        di_str_shown(media, 200), media.data);
    return di_pool_copy(x->pool, text, (size_t)size, &out->text, x->err);
}

static bool add_image(di_reading *x, open_message *o, const di_value *block, const char *where,
                      size_t index) {
    char path[DI_PATH_BYTES];
    if (o->m->role == DI_ROLE_SYSTEM) {
        snprintf(path, sizeof path, "messages.%zu", o->index);
    } else {
        snprintf(path, sizeof path, "messages.%zu.content[%zu]", o->index, index);
    }
    di_part *part = &o->m->parts[o->m->part_count++];
    if (!read_image(x, block, where, path, part)) {
        return false;
    }
    return !part->image || o->m->role != DI_ROLE_ASSISTANT ||
           di_fail(x->err, DI_ERR_ARGUMENT, "Image in assistant message is unsupported");
}

/* ---- thinking and calls ---- */

/* Blocks of one message are joined by a blank line. */
static bool add_thinking(di_reading *x, open_message *o, const di_value *block, const char *where) {
    di_str text = DI_STR("");
    if (!di_field_string(block, where, "thinking", DI_NEEDED, &text, NULL, x->err)) {
        return false;
    }
    di_message *m = o->m;
    if (m->role != DI_ROLE_ASSISTANT) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu.content: thinking blocks may only be in `assistant` messages",
                       o->index);
    }
    bool first = !m->has_reasoning;
    m->has_reasoning = true;
    return (first || di_buffer_append_text(&o->reasoning, "\n\n", x->err)) &&
           di_buffer_append(&o->reasoning, text.data, text.size, x->err);
}

static bool add_call(di_reading *x, open_message *o, const di_value *block, const char *where,
                     size_t index) {
    di_message *m = o->m;
    di_call *call = &m->calls[m->call_count];
    bool ok;
    const di_value *input = di_field(block, where, "input", DI_NEEDED, &ok, x->err);
    if (!ok || !di_field_string(block, where, "id", DI_NEEDED, &call->id, NULL, x->err) ||
        !di_field_string(block, where, "name", DI_NEEDED, &call->name, NULL, x->err)) {
        return false;
    }
    if (m->role != DI_ROLE_ASSISTANT) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu: `tool_use` blocks can only be in `assistant` messages",
                       o->index);
    }
    di_buffer text = {0};
    ok = di_value_write(input, DI_JSON_PYTHON, &text, x->err) &&
         di_pool_copy(x->pool, text.data, text.size, &call->arguments, x->err);
    di_buffer_free(&text);
    m->call_count++;
    o->last_use = index;
    return ok;
}

/* ---- results ---- */

static bool show_tool(const di_reading *x, open_message *o, di_str name) {
    const di_tool *tool = di_find_tool(x, name);
    bool stays =
        x->choice != DI_CHOICE_NONE && (!x->choice_named || di_str_equal(x->choice_name, name));
    if (tool && x->r->conversation.version == DI_MODEL_V41 && stays) {
        o->shown[o->shown_count++] = tool;
    }
    return tool != NULL;
}

static bool read_reference(di_reading *x, open_message *o, const di_value *block, const char *where,
                           size_t index, di_part *out) {
    if (!di_field_string(block, where, "tool_name", DI_NEEDED, &out->text, NULL, x->err)) {
        return false;
    }
    return show_tool(x, o, out->text) ||
           di_fail(x->err, DI_ERR_ARGUMENT,
                   "messages.%zu.content.%zu: tool reference '%.*s' not found in available tools",
                   o->index, index, di_str_shown(out->text, 128), out->text.data);
}

static bool read_result_part(di_reading *x, open_message *o, const di_value *part, size_t index,
                             di_part *out) {
    static const char *const types[] = {"text", "image", "document", "tool_reference"};
    char where[DI_PATH_BYTES];
    int type = 0;
    snprintf(where, sizeof where, "messages.%zu.content.%zu.tool_result", o->index, index);
    if (part->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, part, "an object", x->err);
    }
    if (!di_field_type(part, where, types, 4, &type, x->err)) {
        return false;
    }
    switch (type) {
    case 0:
        return di_field_string(part, where, "text", DI_NEEDED, &out->text, NULL, x->err);
    case 1:
        return read_image(x, part, where, where, out);
    case 2:
        return read_document(x, part, where, out);
    default:
        return read_reference(x, o, part, where, index, out);
    }
}

static bool read_result_content(di_reading *x, open_message *o, const di_value *content,
                                size_t index, di_message *m) {
    if (!content) {
        return true;
    }
    if (content->type == DI_VALUE_STRING) {
        return di_message_set_text(m, x->pool, content->string, x->err);
    }
    if (content->type != DI_VALUE_ARRAY) {
        return di_field_wrong("tool_result", "content", content, "a string or a list", x->err);
    }
    m->part_count = content->array.count;
    m->parts = di_pool_take(x->pool, m->part_count, sizeof *m->parts, x->err);
    for (size_t i = 0; m->parts && i < m->part_count; i++) {
        if (!read_result_part(x, o, &content->array.items[i], index, &m->parts[i])) {
            return false;
        }
    }
    return m->parts != NULL;
}

static bool close_call(di_reading *x, const open_message *o, di_str id, size_t index) {
    di_open_call *call = o->results_may_follow ? di_open_calls_find(o->open, id) : NULL;
    if (!call) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "unexpected `messages.%zu.content.%zu: tool_use_id` found in `tool_result` "
                       "blocks: %.*s. Each `tool_result` block must have a corresponding "
                       "`tool_use` block in the previous message.",
                       o->index, index, di_str_shown(id, 128), id.data);
    }
    if (call->answered) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu.content.%zu: each tool_use must have a single result. Found "
                       "multiple `tool_result` blocks with id: %.*s",
                       o->index, index, di_str_shown(id, 128), id.data);
    }
    call->answered = true;
    o->open->answered++;
    return true;
}

/* Results are messages of their own, in front of the one that holds the texts. */
static bool add_result(di_reading *x, open_message *o, const di_value *block, const char *where,
                       size_t index) {
    di_str id = DI_STR("");
    bool is_error;
    if (!di_field_string(block, where, "tool_use_id", DI_NEEDED, &id, NULL, x->err) ||
        !di_field_bool(block, where, "is_error", &is_error, NULL, x->err)) {
        return false;
    }
    if (o->m->role != DI_ROLE_USER) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu: `tool_result` blocks can only be in `user` messages",
                       o->index);
    }
    di_message *m = di_pool_take(x->pool, 1, sizeof *m, x->err);
    if (!m) {
        return false;
    }
    *m = *o->m; /* the message moves behind the result */
    *o->m = (di_message){.next = m, .role = DI_ROLE_TOOL, .call_id = id};
    di_message *result = o->m;
    o->m = m;
    di_conversation *c = &x->r->conversation;
    c->last = m;
    c->message_count++;
    return close_call(x, o, id, index) &&
           read_result_content(x, o, di_value_given(block, "content"), index, result);
}

/* ---- blocks ---- */

static bool add_addition(di_reading *x, open_message *o, const di_value *block, const char *where,
                         size_t index) {
    static const char *const types[] = {"tool_reference"};
    const di_value *tool;
    di_str name = DI_STR("");
    int type;
    if (!di_field_object(block, where, "tool", DI_NEEDED, &tool, x->err) ||
        !di_field_type(tool, where, types, 1, &type, x->err) ||
        !di_field_string(tool, where, "name", DI_NEEDED, &name, NULL, x->err)) {
        return false;
    }
    if (o->m->role != DI_ROLE_SYSTEM) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu: `tool_addition` blocks can only be in `system` messages",
                       o->index);
    }
    return show_tool(x, o, name) ||
           di_fail(x->err, DI_ERR_ARGUMENT,
                   "messages.%zu.content.%zu: `tool_addition` references unknown tool '%.*s'",
                   o->index, index, di_str_shown(name, 128), name.data);
}

/* Every call of the message before must have its result before anything else stands here. */
static bool check_answered(di_reading *x, open_message *o) {
    if (!o->results_may_follow) {
        return true;
    }
    o->results_may_follow = false;
    if (o->open->answered == o->open->count) {
        return true;
    }
    di_str id = di_open_calls_missing(o->open)->id;
    return di_fail(x->err, DI_ERR_ARGUMENT,
                   "messages.%zu: `tool_use` ids were found without `tool_result` blocks "
                   "immediately after: %.*s. Each `tool_use` block must have a corresponding "
                   "`tool_result` block in the next message.",
                   o->index, di_str_shown(id, 64), id.data);
}

static bool read_block(di_reading *x, open_message *o, const di_value *block, size_t index) {
    char where[DI_PATH_BYTES];
    int type = 0;
    di_str text = DI_STR("");
    snprintf(where, sizeof where, "messages.%zu.content.%zu", o->index, index);
    if (block->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, block, "an object", x->err);
    }
    if (!di_field_type(block, where, block_types, NUM_BLOCKS, &type, x->err)) {
        return false;
    }
    if (type != BLOCK_TOOL_RESULT && !check_answered(x, o)) {
        return false;
    }
    switch ((block_type)type) {
    case BLOCK_TEXT:
        return di_field_string(block, where, "text", DI_NEEDED, &text, NULL, x->err) &&
               add_text(o->m, text);
    case BLOCK_IMAGE:
        return add_image(x, o, block, where, index);
    case BLOCK_DOCUMENT:
        return read_document(x, block, where, &o->m->parts[o->m->part_count++]);
    case BLOCK_THINKING:
        return add_thinking(x, o, block, where);
    case BLOCK_TOOL_USE:
        return add_call(x, o, block, where, index);
    case BLOCK_TOOL_RESULT:
        return add_result(x, o, block, where, index);
    case BLOCK_TOOL_ADDITION:
        return add_addition(x, o, block, where, index);
    case BLOCK_SERVER_TOOL_USE:
    case BLOCK_WEB_SEARCH_RESULT:
    case NUM_BLOCKS:
        break;
    }
    return x->o->messages_web_search_drops ||
           di_fail(x->err, DI_ERR_ARGUMENT,
                   "Unsupported content block: server tools are not supported");
}

/* Room for the most that the blocks can bring; references hide inside results. */
static bool make_room(di_reading *x, open_message *o, const di_value *content) {
    size_t references = 0;
    for (size_t i = 0; i < content->array.count; i++) {
        const di_value *parts = di_value_get(&content->array.items[i], "content");
        references += di_value_is(parts, DI_VALUE_ARRAY) ? parts->array.count : 1;
    }
    o->count = content->array.count;
    o->m->parts = di_pool_take(x->pool, o->count, sizeof *o->m->parts, x->err);
    o->m->calls = di_pool_take(x->pool, o->count, sizeof *o->m->calls, x->err);
    o->shown = di_pool_take(x->pool, references, sizeof *o->shown, x->err);
    return o->m->parts && o->m->calls && o->shown;
}

static bool read_blocks(di_reading *x, open_message *o, const di_value *content) {
    if (content->type == DI_VALUE_STRING) {
        return check_answered(x, o) && di_message_set_text(o->m, x->pool, content->string, x->err);
    }
    if (content->type != DI_VALUE_ARRAY) {
        return di_field_wrong("messages", "content", content, "a string or a list", x->err);
    }
    if (content->array.count == 0 && o->m->role != DI_ROLE_SYSTEM) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu: all messages must have non-empty content", o->index);
    }
    if (!make_room(x, o, content)) {
        return false;
    }
    for (size_t i = 0; i < content->array.count; i++) {
        if (!read_block(x, o, &content->array.items[i], i)) {
            return false;
        }
    }
    return check_answered(x, o);
}

/* ---- messages ---- */

/* V4 has no system turns behind the first: it is told as the user. */
static bool tell_as_user(di_reading *x, di_message *m) {
    di_buffer text = {0};
    bool ok = di_buffer_append_text(&text, "<system-reminder>\n", x->err);
    for (size_t i = 0; ok && i < m->part_count; i++) {
        const di_part *p = &m->parts[i];
        ok = (i == 0 || di_buffer_append_text(&text, "\n\n", x->err)) &&
             di_buffer_append(&text, p->text.data, p->text.size, x->err);
    }
    di_str told = DI_STR("");
    ok = ok && di_buffer_append_text(&text, "\n</system-reminder>", x->err) &&
         di_pool_copy(x->pool, text.data, text.size, &told, x->err);
    di_buffer_free(&text);
    m->role = DI_ROLE_USER;
    return ok && di_message_set_text(m, x->pool, told, x->err);
}

/* In V4 each block is a message of its own, and of those empty ones are left out. */
static void drop_empty_parts(di_message *m) {
    size_t kept = 0, count = m->part_count;
    for (size_t i = 0; i < count; i++) {
        if (m->parts[i].image || m->parts[i].text.size > 0) {
            m->parts[kept++] = m->parts[i];
        }
    }
    m->part_count = kept > 0 || count == 0 ? kept : 1;
}

/* Takes the message at the end away if it has become superfluous. */
static bool settle_message(di_reading *x, open_message *o, di_message *before) {
    di_conversation *c = &x->r->conversation;
    di_message *m = o->m;
    bool v4 = c->version == DI_MODEL_V4;
    if (v4 && m->role == DI_ROLE_USER) {
        drop_empty_parts(m);
    }
    bool results_only = m->role == DI_ROLE_USER && m->part_count == 0 && m->parts;
    if (results_only || (v4 && m->role == DI_ROLE_SYSTEM && di_message_is_empty(m))) {
        di_message **link = before ? &before->next : &c->first;
        while (*link != m) {
            before = *link;
            link = &before->next;
        }
        *link = NULL;
        c->last = before;
        c->message_count--;
    } else if (v4 && m->role == DI_ROLE_SYSTEM) {
        return tell_as_user(x, m);
    }
    if (o->shown_count > 0 && m->role != DI_ROLE_SYSTEM) {
        m = di_conversation_add(c, x->pool, DI_ROLE_SYSTEM, x->err);
    }
    if (m && o->shown_count > 0) {
        m->tools = (const di_tool *const *)o->shown;
        m->tool_count = o->shown_count;
    }
    return m != NULL;
}

static bool open_calls(di_reading *x, const open_message *o, const di_message *m,
                       di_open_calls *open) {
    size_t twice;
    if (!di_open_calls_set(open, x->pool, m->calls, m->call_count, &twice, x->err)) {
        return false;
    }
    if (twice != SIZE_MAX) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu.content.%zu: `tool_use` ids must be unique", o->index, twice);
    }
    if (m->call_count > 0 && o->last_use + 1 < o->count) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu.%zu: `tool_use` ids were found without `tool_result` blocks "
                       "immediately after: %.*s. Each `tool_use` block must have a corresponding "
                       "`tool_result` block in the next message.",
                       o->index, o->last_use + 1, di_str_shown(m->calls[0].id, 64),
                       m->calls[0].id.data);
    }
    return true;
}

static bool read_message(di_reading *x, const di_value *object, size_t index, di_open_calls *open) {
    static const char *const roles[] = {"user", "assistant", "system"};
    static const di_role role_of[] = {DI_ROLE_USER, DI_ROLE_ASSISTANT, DI_ROLE_SYSTEM};
    char where[DI_PATH_BYTES];
    int role = 0;
    bool ok;
    snprintf(where, sizeof where, "messages.%zu", index);
    if (object->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, object, "an object", x->err);
    }
    if (!di_field_word(object, where, "role", DI_NEEDED, roles, 3, &role, x->err)) {
        return false;
    }
    const di_value *content = di_field(object, where, "content", DI_NEEDED, &ok, x->err);
    di_message *before = x->r->conversation.last;
    open_message o = {.index = index, .open = open, .results_may_follow = true};
    o.m = ok ? di_conversation_add(&x->r->conversation, x->pool, role_of[role], x->err) : NULL;
    ok = o.m && read_blocks(x, &o, content) && open_calls(x, &o, o.m, open) &&
         (!o.m->has_reasoning ||
          di_pool_copy(x->pool, o.reasoning.data, o.reasoning.size, &o.m->reasoning, x->err)) &&
         settle_message(x, &o, before);
    di_buffer_free(&o.reasoning);
    return ok;
}

static bool read_system(di_reading *x) {
    static const char *const types[] = {"text"};
    const di_value *system = di_value_given(x->body, "system");
    if (!system) {
        return true;
    }
    di_message *m = di_conversation_add(&x->r->conversation, x->pool, DI_ROLE_SYSTEM, x->err);
    if (!m || system->type == DI_VALUE_STRING) {
        return m && di_message_set_text(m, x->pool, system->string, x->err);
    }
    if (system->type != DI_VALUE_ARRAY) {
        return di_field_wrong("", "system", system, "a string or a list", x->err);
    }
    m->parts = di_pool_take(x->pool, system->array.count, sizeof *m->parts, x->err);
    for (size_t i = 0; m->parts && i < system->array.count; i++) {
        const di_value *block = &system->array.items[i];
        int type;
        if (block->type != DI_VALUE_OBJECT) {
            return di_field_wrong("", "system", block, "a list of objects", x->err);
        }
        if (!di_field_type(block, "system", types, 1, &type, x->err) ||
            !di_field_string(block, "system", "text", DI_NEEDED, &m->parts[i].text, NULL, x->err)) {
            return false;
        }
        m->part_count++;
    }
    return m->parts != NULL;
}

static bool read_conversation(di_reading *x) {
    const di_value *messages;
    di_open_calls open = {0};
    if (!di_field_array(x->body, "", "messages", DI_NEEDED, &messages, x->err)) {
        return false;
    }
    size_t count = messages->array.count;
    if (count == 0) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "messages: at least one message is required");
    }
    if (!read_system(x)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!read_message(x, &messages->array.items[i], i, &open)) {
            return false;
        }
    }
    if (open.count > 0) {
        di_str id = open.sorted[0].id;
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "messages.%zu:`tool_use` ids were found without `tool_result` blocks "
                       "immediately after: %.*s. Each `tool_use` block must have a corresponding "
                       "`tool_result` block in the next message.",
                       count - 1, di_str_shown(id, 64), id.data);
    }
    return true;
}

/* ---- tools ---- */

static bool is_web_search(const di_value *tool) {
    const di_value *type = di_value_get(tool, "type");
    return di_value_is(type, DI_VALUE_STRING) && di_str_starts(type->string, "web_search");
}

static bool read_tool(di_reading *x, const di_value *object, size_t index) {
    char where[DI_PATH_BYTES];
    di_str type = DI_STR("");
    bool typed = false;
    snprintf(where, sizeof where, "tools[%zu]", index);
    if (object->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, object, "an object", x->err);
    }
    if (di_value_get(object, "type") &&
        !di_field_string(object, where, "type", DI_NEEDED, &type, &typed, x->err)) {
        return false;
    }
    if (typed && x->o->messages_web_search_drops && is_web_search(object)) {
        return true;
    }
    if (typed && !(x->o->server && di_str_is(type, "custom"))) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "tools[%zu]: server tools are not supported",
                       index);
    }
    di_tool *out = &x->tools[x->tool_count++];
    if (!di_field_string(object, where, "name", DI_NEEDED, &out->name, NULL, x->err) ||
        !di_field_string(object, where, "description", DI_OPTIONAL, &out->description,
                         &out->has_description, x->err) ||
        !di_field_bool(object, where, "defer_loading", &out->deferred, NULL, x->err)) {
        return false;
    }
    out->in_name = out->name;
    out->parameters = di_value_get(object, "input_schema");
    snprintf(where, sizeof where, "tools[%zu].name", index);
    return di_check_tool(x, out, where, true);
}

static bool read_tools(di_reading *x) {
    const di_value *tools;
    if (!di_field_array(x->body, "", "tools", DI_OPTIONAL, &tools, x->err)) {
        return false;
    }
    size_t count = tools ? tools->array.count : 0, deferred = 0;
    x->tools = di_pool_take(x->pool, count, sizeof *x->tools, x->err);
    for (size_t i = 0; x->tools && i < count; i++) {
        if (!read_tool(x, &tools->array.items[i], i)) {
            return false;
        }
    }
    for (size_t i = 0; x->tools && i < x->tool_count; i++) {
        if (x->r->conversation.version == DI_MODEL_V4) {
            x->tools[i].deferred = false; /* it has no way to show them later */
        }
        deferred += x->tools[i].deferred;
    }
    if (x->tools && deferred > 0 && deferred == x->tool_count) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "tools: at least one tool must have defer_loading=false. All tools cannot "
                       "be deferred.");
    }
    return x->tools && di_check_tool_names(x);
}

/* To the recipe "any" is as "auto". */
static bool read_tool_choice(di_reading *x) {
    static const char *const types[] = {"auto", "any", "tool", "none"};
    const di_value *choice;
    int type = 0;
    if (!di_field_object(x->body, "", "tool_choice", DI_OPTIONAL, &choice, x->err) ||
        (choice && !di_field_type(choice, "tool_choice", types, 4, &type, x->err)) ||
        (choice && x->o->server &&
         !di_read_parallel(x, choice, "tool_choice", "disable_parallel_tool_use", false))) {
        return false;
    }
    x->choice = type == 3 ? DI_CHOICE_NONE : DI_CHOICE_AUTO;
    if (type == 1 && x->o->server) {
        x->choice = DI_CHOICE_REQUIRED;
    }
    if (type == 2) {
        x->choice_named = true;
        x->choice = DI_CHOICE_REQUIRED;
        return di_field_string(choice, "tool_choice", "name", DI_NEEDED, &x->choice_name, NULL,
                               x->err);
    }
    return true;
}

static bool read_metadata(di_reading *x) {
    const di_value *metadata;
    di_str user = DI_STR("");
    return di_field_object(x->body, "", "metadata", DI_OPTIONAL, &metadata, x->err) &&
           (!metadata ||
            di_field_string(metadata, "metadata", "user_id", DI_OPTIONAL, &user, NULL, x->err));
}

static bool refuse_unsupported(const di_reading *x) {
    static const char *const fields[] = {"output_format", "mcp_servers", "container"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!di_refuse_field(x, fields[i])) {
            return false;
        }
    }
    return true;
}

/* output_config.format: a schema that the answer keeps to as a whole. The recipe does not know it.
 */
static bool read_format(di_reading *x, const di_value *config) {
    static const char where[] = "output_config.format";
    static const char *const types[] = {"json_schema"};
    const di_value *format;
    int type;
    bool ok;
    if (!x->o->server ||
        !di_field_object(config, "output_config", "format", DI_OPTIONAL, &format, x->err)) {
        return !x->o->server;
    }
    if (!format) {
        return true;
    }
    if (!di_field_type(format, where, types, 1, &type, x->err)) {
        return false;
    }
    x->r->conversation.format = DI_FORMAT_SCHEMA;
    x->r->conversation.schema = di_field(format, where, "schema", DI_NEEDED, &ok, x->err);
    x->strict_schema = true;
    return ok;
}

bool di_read_messages(di_reading *x) {
    const di_value *config, *stops;
    x->reasoning_missing = "content[].thinking";
    x->lower_max_tokens = true;
    if (!di_read_max_tokens(x, "max_tokens") ||
        !di_field_array(x->body, "", "stop_sequences", DI_OPTIONAL, &stops, x->err) ||
        !di_read_stops(x, stops, "stop_sequences") || !read_metadata(x) || !di_read_thinking(x) ||
        !di_field_object(x->body, "", "output_config", DI_OPTIONAL, &config, x->err) ||
        (config &&
         (!di_read_effort(x, config, "output_config", "effort") || !read_format(x, config)))) {
        return false;
    }
    return read_tool_choice(x) && read_tools(x) && read_conversation(x) && refuse_unsupported(x);
}
