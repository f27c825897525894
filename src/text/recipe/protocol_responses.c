/* OpenAI's responses: see reading.h. The input is a list of items; reasoning, text and calls that
 * follow each other are one turn of the assistant. */
#include <stdio.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "text/recipe/field.h"
#include "text/recipe/image.h"
#include "text/recipe/json_write.h"
#include "text/recipe/reading.h"

/* ---- content ---- */

static bool read_image_part(di_reading *x, const di_value *part, const char *where,
                            const char *path, di_part *out) {
    di_str url = DI_STR(""), file = DI_STR("");
    bool has_url, has_file;
    int detail = DI_DETAIL_HIGH;
    if (!di_field_string(part, where, "image_url", DI_OPTIONAL, &url, &has_url, x->err) ||
        !di_field_string(part, where, "file_id", DI_OPTIONAL, &file, &has_file, x->err) ||
        !di_field_word(part, where, "detail", DI_OPTIONAL, di_image_details, DI_NUM_DETAILS,
                       &detail, x->err)) {
        return false;
    }
    if (di_hide_image(x, out)) {
        return true;
    }
    if (has_url == has_file) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "%s: input_image %s", where,
                       has_url ? "cannot have both image_url and file_id"
                               : "must have image_url or file_id");
    }
    if (has_file) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "%s: file_id is not supported. Pass the image as a base64 data url instead.",
                       where);
    }
    out->image = di_image_from_url(x->pool, url, detail, path, x->err);
    return out->image != NULL;
}

/* Results of calls have no output_text. */
static bool read_part(di_reading *x, const di_value *part, const char *where, const char *path,
                      bool result, di_part *out) {
    static const char *const types[] = {"input_text", "input_image", "input_file", "output_text"};
    int type = 0;
    if (part->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, part, "an object", x->err);
    }
    if (!di_field_type(part, where, types, result ? 3 : 4, &type, x->err)) {
        return false;
    }
    if (type == 1) {
        return read_image_part(x, part, where, path, out);
    }
    if (type == 2 && x->o->server) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "%s: files are not supported", where);
    }
    if (type == 2) {
        out->text = DI_STR("[Unsupported Document]");
        return true;
    }
    return di_field_string(part, where, "text", DI_NEEDED, &out->text, NULL, x->err);
}

static bool read_content(di_reading *x, const di_value *content, const char *key, size_t index,
                         bool result, di_message *m) {
    char where[DI_PATH_BYTES], path[DI_PATH_BYTES];
    snprintf(path, sizeof path, "input[%zu]", index);
    if (content->type == DI_VALUE_STRING) {
        return di_message_set_text(m, x->pool, content->string, x->err);
    }
    if (content->type != DI_VALUE_ARRAY) {
        return di_field_wrong(path, key, content, "a string or a list", x->err);
    }
    m->part_count = content->array.count;
    m->parts = di_pool_take(x->pool, m->part_count, sizeof *m->parts, x->err);
    for (size_t i = 0; m->parts && i < m->part_count; i++) {
        snprintf(where, sizeof where, "input[%zu].%s[%zu]", index, key, i);
        if (!read_part(x, &content->array.items[i], where, path, result, &m->parts[i])) {
            return false;
        }
    }
    return m->parts != NULL;
}

/* ---- items ---- */

/* The turn of the assistant that is being put together, and the results that follow its calls. */
typedef struct turn {
    di_message *m; /* NULL: none is open */
    bool has_text; /* reasoning behind a text begins another turn */
    size_t part_capacity, call_capacity, result_capacity; /* of arrays that grow in the pool */
    di_message **results; /* by call: its result, NULL while it is missing */
    size_t answered;
    di_buffer reasoning; /* of m, still growing */
} turn;

/* A call of the input, found by its id. */
typedef struct known_call {
    di_str id;
    size_t turn, place;
} known_call;

typedef struct input {
    di_reading *x;
    turn t;
    size_t turn_number;
    known_call *calls; /* a hash table; the seed is not the client's to know */
    size_t num_calls, num_slots;
    uint64_t seed;
} input;

/* Doubles an array in the pool; what is left behind is freed with it. */
static void *grow(di_reading *x, void *items, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) {
        return items;
    }
    size_t wanted = *capacity ? *capacity * 2 : 4;
    void *moved = di_pool_take(x->pool, wanted, size, x->err);
    if (moved && count > 0) {
        memcpy(moved, items, count * size);
    }
    *capacity = moved ? wanted : *capacity;
    return moved;
}

/* Puts the reasoning that has gathered into its message. */
static bool settle_reasoning(input *in) {
    turn *t = &in->t;
    bool ok = !t->m || !t->m->has_reasoning ||
              di_pool_copy(in->x->pool, t->reasoning.data, t->reasoning.size, &t->m->reasoning,
                           in->x->err);
    t->reasoning.size = 0;
    return ok;
}

static bool is_answered(const turn *t) {
    return !t->m || t->answered == t->m->call_count;
}

/* The recipe shows the calls of a turn in the order of their ids, whatever the client's was. */
static bool sort_calls(input *in) {
    turn *t = &in->t;
    size_t count = t->m->call_count, twice;
    di_open_calls sorted;
    if (in->x->o->server || count < 2) {
        return true;
    }
    di_call *calls = di_pool_take(in->x->pool, count, sizeof *calls, in->x->err);
    di_message **outputs = di_pool_take(in->x->pool, count, sizeof *outputs, in->x->err);
    if (!calls || !outputs ||
        !di_open_calls_set(&sorted, in->x->pool, t->m->calls, count, &twice, in->x->err)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        calls[i] = t->m->calls[sorted.sorted[i].place];
        outputs[i] = t->results[sorted.sorted[i].place];
    }
    t->m->calls = calls;
    t->results = outputs;
    return true;
}

/* Results go into the conversation in the order of their calls. */
static bool end_turn(input *in) {
    turn *t = &in->t;
    di_conversation *c = &in->x->r->conversation;
    if (t->m && !sort_calls(in)) {
        return false;
    }
    for (size_t i = 0; t->m && i < t->m->call_count; i++) {
        if (!t->results[i]) {
            return di_fail(in->x->err, DI_ERR_ARGUMENT, "No tool output found for tool call %.*s.",
                           di_str_shown(t->m->calls[i].id, 128), t->m->calls[i].id.data);
        }
        c->last->next = t->results[i];
        c->last = t->results[i];
        c->message_count++;
    }
    bool ok = settle_reasoning(in);
    di_buffer kept = t->reasoning;
    *t = (turn){.reasoning = kept};
    in->turn_number++;
    return ok;
}

/* The open turn of the assistant, or a new one. */
static bool begin_turn(input *in, bool fresh) {
    turn *t = &in->t;
    if (t->m && !fresh) {
        return true;
    }
    if (!end_turn(in)) {
        return false;
    }
    t->m = di_conversation_add(&in->x->r->conversation, in->x->pool, DI_ROLE_ASSISTANT, in->x->err);
    return t->m != NULL;
}

static bool join_reasoning(input *in, const di_value *content, const char *where,
                           di_buffer *joined) {
    static const char *const types[] = {"reasoning_text"};
    for (size_t i = 0; i < content->array.count; i++) {
        di_str text = DI_STR("");
        int type;
        const di_value *part = &content->array.items[i];
        if (part->type != DI_VALUE_OBJECT) {
            return di_field_wrong(where, "content", part, "a list of objects", in->x->err);
        }
        if (!di_field_type(part, where, types, 1, &type, in->x->err) ||
            !di_field_string(part, where, "text", DI_NEEDED, &text, NULL, in->x->err) ||
            (i > 0 && !di_buffer_append(joined, "\n", 1, in->x->err)) ||
            !di_buffer_append(joined, text.data, text.size, in->x->err)) {
            return false;
        }
    }
    return true;
}

/* Parts and items are joined by a newline; an item without text is as none. */
static bool add_reasoning(input *in, const di_value *item, const char *where) {
    const di_value *content;
    di_buffer joined = {0};
    if (!di_field_array(item, where, "content", DI_OPTIONAL, &content, in->x->err)) {
        return false;
    }
    bool called = in->t.m && in->t.m->call_count > 0;
    bool ok =
        (!called || end_turn(in)) && (!content || join_reasoning(in, content, where, &joined));
    if (ok && joined.size > 0) {
        ok = begin_turn(in, in->t.has_text) &&
             (!in->t.m->has_reasoning || di_buffer_append(&in->t.reasoning, "\n", 1, in->x->err)) &&
             di_buffer_append(&in->t.reasoning, joined.data, joined.size, in->x->err);
        if (ok) {
            in->t.m->has_reasoning = true;
        }
    }
    di_buffer_free(&joined);
    return ok;
}

static bool add_assistant_text(input *in, const di_value *content, size_t index) {
    di_message text = {.role = DI_ROLE_ASSISTANT};
    turn *t = &in->t;
    bool called = t->m && t->m->call_count > 0;
    if (!begin_turn(in, called) || !read_content(in->x, content, "content", index, false, &text)) {
        return false;
    }
    if (di_message_is_empty(&text)) {
        return true; /* nor does it get a blank line */
    }
    for (size_t i = 0; i < text.part_count; i++) {
        if (text.parts[i].image) {
            return di_fail(in->x->err, DI_ERR_ARGUMENT,
                           "input[%zu]: Image in assistant message is unsupported", index);
        }
        di_part *moved =
            grow(in->x, t->m->parts, t->m->part_count, &t->part_capacity, sizeof *moved);
        if (!moved) {
            return false;
        }
        t->m->parts = moved;
        t->m->parts[t->m->part_count++] = text.parts[i];
    }
    t->has_text = true;
    return true;
}

static bool read_message(input *in, const di_value *item, size_t index, const char *where) {
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    di_reading *x = in->x;
    int role = 0;
    bool ok;
    if (!di_field_word(item, where, "role", DI_NEEDED, roles, 4, &role, x->err)) {
        return false;
    }
    const di_value *content = di_field(item, where, "content", DI_NEEDED, &ok, x->err);
    if (!content || role == 1) {
        return content && add_assistant_text(in, content, index);
    }
    if (!end_turn(in)) {
        return false;
    }
    bool told_as_user = role == 3 && x->r->conversation.version == DI_MODEL_V4;
    di_message *m =
        di_conversation_add(&x->r->conversation, x->pool,
                            role == 0 || told_as_user ? DI_ROLE_USER : DI_ROLE_SYSTEM, x->err);
    return m && read_content(x, content, "content", index, false, m);
}

/* ---- calls ---- */

static size_t slot_of(const input *in, di_str id) {
    size_t i = (size_t)XXH3_64bits_withSeed(id.data, id.size, in->seed) & (in->num_slots - 1);
    while (in->calls[i].id.data && !di_str_equal(in->calls[i].id, id)) {
        i = (i + 1) & (in->num_slots - 1);
    }
    return i;
}

/* Keeps the table at most half full. */
static bool make_slots(input *in) {
    if (2 * (in->num_calls + 1) <= in->num_slots) {
        return true;
    }
    known_call *old = in->calls;
    size_t count = in->num_slots;
    in->num_slots = count ? count * 2 : 16;
    in->calls = di_calloc(in->num_slots, sizeof *in->calls);
    for (size_t i = 0; in->calls && i < count; i++) {
        if (old[i].id.data) {
            in->calls[slot_of(in, old[i].id)] = old[i];
        }
    }
    di_free(old);
    return in->calls || di_fail(in->x->err, DI_ERR_NO_MEMORY, "no memory for calls");
}

static bool note_call(input *in, di_str id, size_t place) {
    if (!make_slots(in)) {
        return false;
    }
    size_t slot = slot_of(in, id);
    if (in->calls[slot].id.data) {
        return di_fail(in->x->err, DI_ERR_ARGUMENT, "Duplicate 'call_id': %.*s.",
                       di_str_shown(id, 128), id.data);
    }
    in->calls[slot] = (known_call){id, in->turn_number, place};
    in->num_calls++;
    return true;
}

/* Calls may go on behind results as long as one is missing. */
static bool add_call(input *in, di_call call) {
    turn *t = &in->t;
    bool fresh = t->m && t->m->call_count > 0 && is_answered(t);
    if (!begin_turn(in, fresh) || !note_call(in, call.id, t->m->call_count)) {
        return false;
    }
    size_t count = t->m->call_count;
    di_call *calls = grow(in->x, t->m->calls, count, &t->call_capacity, sizeof *calls);
    di_message **results = grow(in->x, t->results, count, &t->result_capacity, sizeof *results);
    if (!calls || !results) {
        return false;
    }
    t->m->calls = calls;
    t->results = results;
    t->results[count] = NULL;
    t->m->calls[t->m->call_count++] = call;
    return true;
}

static bool read_function_call(input *in, const di_value *item, const char *where) {
    di_call call;
    di_str space = DI_STR("");
    bool spaced;
    di_reading *x = in->x;
    return di_field_string(item, where, "call_id", DI_NEEDED, &call.id, NULL, x->err) &&
           di_field_string(item, where, "name", DI_NEEDED, &call.name, NULL, x->err) &&
           di_field_string(item, where, "arguments", DI_NEEDED, &call.arguments, NULL, x->err) &&
           di_field_string(item, where, "namespace", DI_OPTIONAL, &space, &spaced, x->err) &&
           (!spaced || di_join_tool_names(x, space, call.name, &call.name)) && add_call(in, call);
}

static bool read_custom_call(input *in, const di_value *item, const char *where) {
    di_call call;
    di_str text = DI_STR("");
    di_reading *x = in->x;
    if (!di_field_string(item, where, "call_id", DI_NEEDED, &call.id, NULL, x->err) ||
        !di_field_string(item, where, "name", DI_NEEDED, &call.name, NULL, x->err) ||
        !di_field_string(item, where, "input", DI_NEEDED, &text, NULL, x->err)) {
        return false;
    }
    di_buffer json = {0};
    di_writer w = di_writer_to(&json, DI_JSON_COMPACT, x->err);
    di_write_open(&w, '{');
    di_write_key(&w, "input");
    di_write_string(&w, text);
    di_write_close(&w, '}');
    bool ok = !w.failed && di_pool_copy(x->pool, json.data, json.size, &call.arguments, x->err);
    di_buffer_free(&json);
    return ok && add_call(in, call);
}

static bool read_output(input *in, const di_value *item, size_t index, const char *where) {
    di_reading *x = in->x;
    di_str id = DI_STR("");
    bool ok;
    const di_value *output = di_field(item, where, "output", DI_NEEDED, &ok, x->err);
    di_message *m = di_pool_take(x->pool, 1, sizeof *m, x->err);
    if (!output || !m || !di_field_string(item, where, "call_id", DI_NEEDED, &id, NULL, x->err) ||
        !read_content(x, output, "output", index, true, m)) {
        return false;
    }
    m->role = DI_ROLE_TOOL;
    m->call_id = id;
    const known_call *call = in->num_calls > 0 ? &in->calls[slot_of(in, id)] : NULL;
    if (!call || !call->id.data) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "No tool call found for tool output with call_id %.*s.",
                       di_str_shown(id, 128), id.data);
    }
    if (call->turn != in->turn_number || in->t.results[call->place]) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Duplicate tool output for call_id: %.*s.",
                       di_str_shown(id, 128), id.data);
    }
    in->t.results[call->place] = m;
    in->t.answered++;
    return true;
}

static bool read_item(input *in, const di_value *item, size_t index) {
    char where[DI_PATH_BYTES];
    const di_value *type = di_value_get(item, "type");
    snprintf(where, sizeof where, "input[%zu]", index);
    if (item->type != DI_VALUE_OBJECT) {
        return di_field_wrong("", where, item, "an object", in->x->err);
    }
    if (!type && !di_value_get(item, "role")) {
        return di_fail(in->x->err, DI_ERR_FORMAT, "%s has neither type nor role", where);
    }
    if (type && type->type != DI_VALUE_STRING) {
        return di_field_wrong(where, "type", type, "a string", in->x->err);
    }
    if (!type || di_value_is_string(type, "message")) {
        return read_message(in, item, index, where);
    }
    if (di_value_is_string(type, "reasoning")) {
        return add_reasoning(in, item, where);
    }
    if (di_value_is_string(type, "function_call")) {
        return read_function_call(in, item, where);
    }
    if (di_value_is_string(type, "custom_tool_call")) {
        return read_custom_call(in, item, where);
    }
    if (di_value_is_string(type, "function_call_output") ||
        di_value_is_string(type, "custom_tool_call_output")) {
        return read_output(in, item, index, where);
    }
    if (di_value_is_string(type, "web_search_call") && !is_answered(&in->t)) {
        return end_turn(in); /* nothing but results may stand behind a call */
    }
    return !in->x->o->server || /* the recipe leaves out what it does not know */
           di_fail(in->x->err, DI_ERR_ARGUMENT, "%s: items of type \"%.*s\" are not supported",
                   where, di_str_shown(type->string, 64), type->string.data);
}

static bool read_items(di_reading *x, const di_value *list) {
    input in = {.x = x, .seed = (uint64_t)(uintptr_t)x->pool->last};
    bool ok = true;
    if (list->array.count == 0) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Input items array must not be empty");
    }
    for (size_t i = 0; ok && i < list->array.count; i++) {
        ok = read_item(&in, &list->array.items[i], i);
    }
    ok = ok && end_turn(&in);
    di_buffer_free(&in.t.reasoning);
    di_free(in.calls);
    return ok;
}

static bool read_input(di_reading *x) {
    const di_value *list = di_value_given(x->body, "input");
    di_str instructions = DI_STR("");
    bool instructed;
    if (!di_field_string(x->body, "", "instructions", DI_OPTIONAL, &instructions, &instructed,
                         x->err)) {
        return false;
    }
    if (!list && !instructed) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Either input or instructions must be provided");
    }
    if (instructed && instructions.size > 0) {
        di_message *m = di_conversation_add(&x->r->conversation, x->pool, DI_ROLE_SYSTEM, x->err);
        if (!m || !di_message_set_text(m, x->pool, instructions, x->err)) {
            return false;
        }
    }
    if (!list) {
        return true;
    }
    if (list->type == DI_VALUE_STRING) {
        di_message *m = di_conversation_add(&x->r->conversation, x->pool, DI_ROLE_USER, x->err);
        return m && di_message_set_text(m, x->pool, list->string, x->err);
    }
    return list->type == DI_VALUE_ARRAY
               ? read_items(x, list)
               : di_field_wrong("", "input", list, "a string or a list", x->err);
}

/* ---- the rest ---- */

static bool read_reasoning(di_reading *x) {
    static const char *const summaries[] = {"auto", "concise", "detailed"};
    const di_value *reasoning;
    int summary;
    return di_field_object(x->body, "", "reasoning", DI_OPTIONAL, &reasoning, x->err) &&
           (!reasoning || (di_read_effort(x, reasoning, "reasoning", "effort") &&
                           di_field_word(reasoning, "reasoning", "summary", DI_OPTIONAL, summaries,
                                         3, &summary, x->err)));
}

static bool read_text(di_reading *x) {
    static const char *const types[] = {"text", "json_object", "json_schema"};
    static const char *const verbosities[] = {"low", "medium", "high"};
    di_conversation *c = &x->r->conversation;
    const di_value *text, *format = NULL;
    int type = 0, verbosity;
    di_str name = DI_STR("");
    bool ok = true;
    if (!di_field_object(x->body, "", "text", DI_OPTIONAL, &text, x->err)) {
        return false;
    }
    if (text && (!di_field_word(text, "text", "verbosity", DI_OPTIONAL, verbosities, 3, &verbosity,
                                x->err) ||
                 !di_field_object(text, "text", "format", DI_OPTIONAL, &format, x->err) ||
                 (format && !di_field_type(format, "text.format", types, 3, &type, x->err)))) {
        return false;
    }
    c->format = (di_response_format)type;
    if (c->format == DI_FORMAT_SCHEMA) {
        c->schema = di_field(format, "text.format", "schema", DI_NEEDED, &ok, x->err);
        ok = ok && di_field_string(format, "text.format", "name", DI_NEEDED, &name, NULL, x->err) &&
             di_field_bool(format, "text.format", "strict", &x->strict_schema, NULL, x->err);
    }
    return ok;
}

static bool read_logprobs(di_reading *x) {
    di_inference *f = &x->r->inference;
    const di_value *include = di_value_given(x->body, "include");
    uint64_t top = 0;
    if (!di_field_uint(x->body, "", "top_logprobs", 255, &top, &f->has_top_logprobs, x->err)) {
        return false;
    }
    if (top > 20) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
    }
    f->top_logprobs = (uint32_t)top;
    f->logprobs = f->has_top_logprobs;
    for (size_t i = 0;
         x->o->server && di_value_is(include, DI_VALUE_ARRAY) && i < include->array.count;
         i++) { /* that this asks for them too is left out by the recipe */
        f->logprobs |= di_value_is_string(&include->array.items[i], "message.output_text.logprobs");
    }
    return true;
}

/* "auto" says what to do with a conversation that is too long; such a one is refused, as with
 * "disabled". */
static bool read_truncation(const di_reading *x) {
    static const char *const words[] = {"disabled", "auto"};
    int word = 0;
    return !x->o->server ||
           di_field_word(x->body, "", "truncation", DI_OPTIONAL, words, 2, &word, x->err);
}

/* Texts by name, as OpenAI bounds them in number; their bytes are bounded with the body. */
static bool read_metadata(const di_reading *x) {
    enum { MOST = 16 };
    const di_value *metadata;
    if (!x->o->server) {
        return true;
    }
    if (!di_field_object(x->body, "", "metadata", DI_OPTIONAL, &metadata, x->err)) {
        return false;
    }
    if (metadata && metadata->object.count > MOST) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "metadata has %zu members, at most %d are allowed",
                       metadata->object.count, MOST);
    }
    for (size_t i = 0; metadata && i < metadata->object.count; i++) {
        const di_named_value *m = &metadata->object.members[i];
        if (m->value.type != DI_VALUE_STRING) {
            return di_fail(x->err, DI_ERR_FORMAT, "metadata.%.*s is %s, a string expected",
                           di_str_shown(m->name, 64), m->name.data, di_value_type_name(&m->value));
        }
    }
    return true;
}

static bool refuse_unsupported(const di_reading *x) {
    static const char *const fields[] = {"conversation", "prompt"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!di_refuse_field(x, fields[i])) {
            return false;
        }
    }
    return true;
}

bool di_read_responses(di_reading *x) {
    di_str user = DI_STR("");
    x->json_word_missing = "Response input messages must contain the word 'json' in some form to "
                           "use 'text.format' of type 'json_object'.";
    x->reasoning_missing = "reasoning_text";
    return di_read_max_tokens(x, "max_output_tokens") && read_logprobs(x) &&
           di_field_string(x->body, "", "user", DI_OPTIONAL, &user, NULL, x->err) &&
           (!x->o->server || di_read_parallel(x, x->body, "", "parallel_tool_calls", true)) &&
           read_reasoning(x) && read_text(x) && di_read_responses_tools(x) && read_input(x) &&
           read_truncation(x) && read_metadata(x) && refuse_unsupported(x);
}
