/* Answers of OpenAI's responses: see answering.h. Reasoning, text and each call are an item of the
 * output; all that an item says is told again when it is done, and all items once more at the end.
 */
#include <stdio.h>

#include "text/recipe/answering.h"

/* ---- the request, told back ---- */

static void write_given(di_writer *w, const char *key, const di_value *object, const char *field) {
    const di_value *value = di_value_given(object, field);
    di_write_key(w, key);
    if (value) {
        di_write_value(w, value);
    } else {
        di_write_null(w);
    }
}

static void write_nulls(di_writer *w, const char *const *keys, size_t count) {
    for (size_t i = 0; i < count; i++) {
        di_write_key(w, keys[i]);
        di_write_null(w);
    }
}

static void write_number(di_writer *w, const char *key, const di_value *body, double absent) {
    const di_value *value = di_value_given(body, key);
    di_write_key(w, key);
    di_write_real(w, !value                         ? absent
                     : value->type == DI_VALUE_REAL ? value->real
                     : value->type == DI_VALUE_UINT ? (double)value->uint
                                                    : (double)value->integer);
}

/* As it was given, if it is in force: the recipe takes none. */
static void write_penalty(di_writer *w, const char *key, const di_value *body, float in_force) {
    if (in_force != 0) {
        write_number(w, key, body, 0);
    } else {
        di_write_key(w, key);
        di_write_real(w, 0);
    }
}

static void write_reasoning_settings(di_writer *w, const di_value *body) {
    const di_value *reasoning = di_value_given(body, "reasoning");
    di_write_key(w, "reasoning");
    di_write_open(w, '{');
    write_given(w, "effort", reasoning, "effort");
    write_given(w, "summary", reasoning, "summary");
    di_write_close(w, '}');
}

static void write_text_settings(di_writer *w, const di_value *body) {
    const di_value *text = di_value_given(body, "text");
    const di_value *format = di_value_given(text, "format"), *type = di_value_get(format, "type");
    di_write_key(w, "text");
    di_write_open(w, '{');
    di_write_key(w, "format");
    di_write_open(w, '{');
    di_write_key(w, "type");
    di_write_string(w, type ? type->string : DI_STR("text"));
    if (di_value_is_string(type, "json_schema")) {
        write_given(w, "name", format, "name");
        di_write_key(w, "schema");
        di_write_value(w, di_value_get(format, "schema"));
        write_given(w, "description", format, "description");
        write_given(w, "strict", format, "strict");
    }
    di_write_close(w, '}');
    write_given(w, "verbosity", text, "verbosity");
    di_write_close(w, '}');
}

static void write_tool_choice(di_writer *w, const di_value *body) {
    const di_value *choice = di_value_given(body, "tool_choice");
    di_write_key(w, "tool_choice");
    if (!choice) {
        di_write_text(w, "auto");
    } else if (choice->type != DI_VALUE_OBJECT) {
        di_write_value(w, choice);
    } else {
        di_write_open(w, '{');
        write_given(w, "type", choice, "type");
        if (di_value_is_string(di_value_get(choice, "type"), "function") ||
            di_value_is_string(di_value_get(choice, "type"), "custom")) {
            write_given(w, "name", choice, "name");
        }
        di_write_close(w, '}');
    }
}

static void write_function(di_writer *w, const di_value *tool) {
    di_write_open(w, '{');
    write_given(w, "type", tool, "type");
    write_given(w, "name", tool, "name");
    write_given(w, "description", tool, "description");
    write_given(w, "parameters", tool, "parameters");
    write_given(w, "strict", tool, "strict");
    di_write_close(w, '}');
}

static void write_web_search(di_writer *w, const di_value *tool) {
    const di_value *place = di_value_given(tool, "user_location");
    di_write_open(w, '{');
    write_given(w, "type", tool, "type");
    write_given(w, "search_context_size", tool, "search_context_size");
    di_write_key(w, "user_location");
    if (place) {
        di_write_open(w, '{');
        write_given(w, "city", place, "city");
        write_given(w, "country", place, "country");
        write_given(w, "region", place, "region");
        write_given(w, "timezone", place, "timezone");
        di_write_close(w, '}');
    } else {
        di_write_null(w);
    }
    di_write_close(w, '}');
}

/* Tools of kinds that were left out are left out here too. */
static void write_tool(di_writer *w, const di_value *tool) {
    const di_value *type = di_value_get(tool, "type"), *inner = di_value_get(tool, "tools");
    if (di_value_is_string(type, "function")) {
        write_function(w, tool);
    } else if (di_value_is_string(type, "custom")) {
        di_write_open(w, '{');
        write_given(w, "type", tool, "type");
        write_given(w, "name", tool, "name");
        di_write_close(w, '}');
    } else if (di_value_is_string(type, "namespace")) {
        di_write_open(w, '{');
        write_given(w, "type", tool, "type");
        write_given(w, "name", tool, "name");
        write_given(w, "description", tool, "description");
        di_write_key(w, "tools");
        di_write_open(w, '[');
        for (size_t i = 0; di_value_is(inner, DI_VALUE_ARRAY) && i < inner->array.count; i++) {
            write_function(w, &inner->array.items[i]);
        }
        di_write_close(w, ']');
        di_write_close(w, '}');
    } else if (di_value_is_string(type, "web_search") ||
               di_value_is_string(type, "web_search_2025_08_26")) {
        write_web_search(w, tool);
    }
}

static void write_tools(di_writer *w, const di_value *body) {
    const di_value *tools = di_value_given(body, "tools");
    di_write_key(w, "tools");
    di_write_open(w, '[');
    for (size_t i = 0; tools && i < tools->array.count; i++) {
        write_tool(w, &tools->array.items[i]);
    }
    di_write_close(w, ']');
}

/* ---- the response ---- */

static const char *status(const di_answer *a) {
    return a->ending == DI_ENDING_NONE                                      ? "in_progress"
           : a->ending == DI_ENDING_LENGTH || a->ending == DI_ENDING_FILTER ? "incomplete"
                                                                            : "completed";
}

static void write_usage(const di_answer *a, di_writer *w) {
    di_write_key(w, "usage");
    if (a->ending == DI_ENDING_NONE) {
        di_write_null(w);
        return;
    }
    di_write_open(w, '{');
    di_write_key(w, "input_tokens");
    di_write_uint(w, a->prompt_tokens);
    di_write_key(w, "input_tokens_details");
    di_write_open(w, '{');
    di_write_key(w, "cached_tokens");
    di_write_uint(w, a->cached_tokens);
    di_write_close(w, '}');
    di_write_key(w, "output_tokens");
    di_write_uint(w, a->completion_tokens);
    di_write_key(w, "output_tokens_details");
    di_write_open(w, '{');
    di_write_key(w, "reasoning_tokens");
    di_write_uint(w, a->reasoning_tokens);
    di_write_close(w, '}');
    di_write_key(w, "total_tokens");
    di_write_uint(w, a->prompt_tokens + a->completion_tokens);
    di_write_close(w, '}');
}

static void write_output(const di_answer *a, di_writer *w);

static void write_incomplete(const di_answer *a, di_writer *w) {
    di_write_key(w, "incomplete_details");
    if (a->ending == DI_ENDING_LENGTH || a->ending == DI_ENDING_FILTER) {
        di_write_open(w, '{');
        di_write_key(w, "reason");
        di_write_text(w, a->ending == DI_ENDING_LENGTH ? "max_output_tokens" : "content_filter");
        di_write_close(w, '}');
    } else {
        di_write_null(w);
    }
}

static void write_settings(const di_answer *a, di_writer *w) {
    static const char *const nulls[] = {"prompt_cache_key", "prompt_cache_retention"};
    const di_value *body = &a->s.request->body;
    di_write_key(w, "parallel_tool_calls");
    di_write_bool(w, !a->s.request->parsing.single_call);
    write_penalty(w, "presence_penalty", body, a->s.request->inference.presence_penalty);
    di_write_key(w, "previous_response_id");
    if (a->s.previous.data) {
        di_write_string(w, a->s.previous);
    } else {
        di_write_null(w);
    }
    write_nulls(w, nulls, 2);
    write_reasoning_settings(w, body);
    write_nulls(w, (const char *const[]){"safety_identifier"}, 1);
    di_write_key(w, "service_tier");
    di_write_text(w, "default");
    di_write_key(w, "store");
    di_write_bool(w, a->s.stored);
    write_number(w, "temperature", body, 1);
    write_text_settings(w, body);
    write_tool_choice(w, body);
    write_tools(w, body);
    di_write_key(w, "top_logprobs");
    di_write_uint(w, a->s.request->inference.top_logprobs);
    write_number(w, "top_p", body, 1);
    di_write_key(w, "truncation");
    di_write_text(w, "disabled");
}

/* What stands around output and settings: how far it is. */
static void write_head(const di_answer *a, di_writer *w, const char *state, bool ended) {
    di_write_open(w, '{');
    di_write_key(w, "id");
    di_write_string(w, a->s.id);
    di_write_key(w, "object");
    di_write_text(w, "response");
    di_write_key(w, "created_at");
    di_write_uint(w, a->s.created);
    di_write_key(w, "status");
    di_write_text(w, state);
    di_write_key(w, "background");
    di_write_bool(w, a->s.background);
    di_write_key(w, "completed_at");
    if (ended) {
        di_write_uint(w, a->completed);
    } else {
        di_write_null(w);
    }
    write_nulls(w, (const char *const[]){"content_filters"}, 1);
}

static void write_limits(const di_answer *a, di_writer *w) {
    const di_value *body = &a->s.request->body;
    write_given(w, "instructions", body, "instructions");
    write_given(w, "max_output_tokens", body, "max_output_tokens");
    write_nulls(w, (const char *const[]){"max_tool_calls"}, 1);
    di_write_key(w, "model");
    di_write_string(w, a->s.model);
    write_nulls(w, (const char *const[]){"moderation"}, 1);
}

static void write_tail(const di_answer *a, di_writer *w) {
    const di_value *metadata = di_value_given(&a->s.request->body, "metadata");
    write_given(w, "user", &a->s.request->body, "user");
    di_write_key(w, "metadata");
    if (a->s.metadata && metadata) {
        di_write_value(w, metadata);
    } else {
        di_write_open(w, '{');
        di_write_close(w, '}');
    }
    di_write_close(w, '}');
}

static void responses_response(const di_answer *a, di_writer *w) {
    write_head(a, w, status(a), a->ending != DI_ENDING_NONE);
    write_nulls(w, (const char *const[]){"error"}, 1);
    write_penalty(w, "frequency_penalty", &a->s.request->body,
                  a->s.request->inference.frequency_penalty);
    write_incomplete(a, w);
    write_limits(a, w);
    di_write_key(w, "output");
    write_output(a, w);
    write_settings(a, w);
    write_usage(a, w);
    write_tail(a, w);
}

void di_responses_report(const di_answer *a, const char *state, const char *error, di_writer *w) {
    write_head(a, w, state, false);
    di_write_key(w, "error");
    if (error) {
        di_write_open(w, '{');
        di_write_key(w, "code");
        di_write_text(w, "server_error");
        di_write_key(w, "message");
        di_write_text(w, error);
        di_write_close(w, '}');
    } else {
        di_write_null(w);
    }
    write_penalty(w, "frequency_penalty", &a->s.request->body,
                  a->s.request->inference.frequency_penalty);
    write_nulls(w, (const char *const[]){"incomplete_details"}, 1);
    write_limits(a, w);
    di_write_key(w, "output");
    di_write_open(w, '[');
    di_write_close(w, ']');
    write_settings(a, w);
    write_nulls(w, (const char *const[]){"usage"}, 1);
    write_tail(a, w);
}

/* ---- events ---- */

static di_writer begin_event(di_answer *a, const char *type, di_error *err) {
    di_writer w = di_event_begin(a, err);
    di_write_open(&w, '{');
    di_write_key(&w, "type");
    di_write_text(&w, type);
    return w;
}

static void write_sequence(di_answer *a, di_writer *w) {
    di_write_key(w, "sequence_number");
    di_write_uint(w, a->sequence++);
}

static bool send(di_answer *a, di_writer *w, const char *type, di_error *err) {
    di_write_close(w, '}');
    return di_event_send(a, w, type, err);
}

static bool send_response(di_answer *a, const char *type, di_error *err) {
    di_writer w = begin_event(a, type, err);
    di_write_key(&w, "response");
    responses_response(a, &w);
    write_sequence(a, &w);
    return send(a, &w, type, err);
}

/* "rs_ID_0": kind, response, place. */
static void write_item_id(const di_answer *a, di_writer *w, const char *key, const char *kind,
                          size_t place) {
    char id[320];
    snprintf(id, sizeof id, "%s_%.*s_%zu", kind, di_str_shown(a->s.id, 256), a->s.id.data, place);
    di_write_key(w, key);
    di_write_text(w, id);
}

typedef struct part_kind {
    const char *item, *part, *delta, *done, *prefix;
} part_kind;

static const part_kind reasoning_kind = {"reasoning", "reasoning_text",
                                         "response.reasoning_text.delta",
                                         "response.reasoning_text.done", "rs"};
static const part_kind content_kind = {"message", "output_text", "response.output_text.delta",
                                       "response.output_text.done", "msg"};

static void write_part(di_writer *w, const part_kind *kind, di_str text, di_str logprobs) {
    di_write_open(w, '{');
    di_write_key(w, "type");
    di_write_text(w, kind->part);
    if (kind == &content_kind) {
        di_write_key(w, "annotations");
        di_write_open(w, '[');
        di_write_close(w, ']');
        di_write_key(w, "logprobs");
        di_write_logprobs(w, logprobs);
    }
    di_write_key(w, "text");
    di_write_string(w, text);
    di_write_close(w, '}');
}

/* An item of text; `filled`: with its part. */
static void write_text_item(const di_answer *a, di_writer *w, const part_kind *kind, size_t place,
                            const char *state, bool filled) {
    bool content = kind == &content_kind;
    di_write_open(w, '{');
    di_write_key(w, "type");
    di_write_text(w, kind->item);
    write_item_id(a, w, "id", kind->prefix, place);
    di_write_key(w, "status");
    di_write_text(w, state);
    if (content) {
        di_write_key(w, "role");
        di_write_text(w, "assistant");
        di_write_key(w, "phase");
        di_write_text(w, a->num_calls > 0 ? "commentary" : "final_answer");
    }
    di_write_key(w, "content");
    di_write_open(w, '[');
    if (filled) {
        write_part(w, kind, di_buffer_str(content ? &a->content : &a->reasoning),
                   di_buffer_str(&a->content_logprobs));
    }
    di_write_close(w, ']');
    if (!content) {
        char sealed[320];
        di_write_key(w, "summary");
        di_write_open(w, '[');
        di_write_close(w, ']');
        snprintf(sealed, sizeof sealed, "%.*s-%zu", di_str_shown(a->s.id, 256), a->s.id.data,
                 place);
        di_write_key(w, "encrypted_content");
        di_write_text(w, sealed);
    }
    di_write_close(w, '}');
}

static void write_call_item(const di_answer *a, di_writer *w, const di_answer_call *call,
                            const char *state, di_str arguments) {
    bool custom = call->tool && call->tool->custom, spaced = call->tool && call->tool->space.size;
    di_write_open(w, '{');
    di_write_key(w, "type");
    di_write_text(w, custom ? "custom_tool_call" : "function_call");
    write_item_id(a, w, "id", custom ? "ctc" : "fc", call->place);
    di_write_key(w, "status");
    di_write_text(w, state);
    di_write_key(w, "call_id");
    di_write_text(w, call->id);
    di_write_key(w, "name");
    di_write_string(w, spaced ? call->tool->in_name : di_buffer_str(&call->name));
    if (spaced) {
        di_write_key(w, "namespace");
        di_write_string(w, call->tool->space);
    }
    di_write_key(w, custom ? "input" : "arguments");
    di_write_string(w, arguments);
    di_write_close(w, '}');
}

/* Only the item that is open when the answer breaks off is incomplete. */
static const char *item_status(const di_answer *a, size_t place) {
    return place + 1 == a->num_items ? status(a) : "completed";
}

static void write_output(const di_answer *a, di_writer *w) {
    di_write_open(w, '[');
    if (a->has_reasoning) {
        write_text_item(a, w, &reasoning_kind, a->reasoning_place,
                        item_status(a, a->reasoning_place), true);
    }
    if (a->has_content) {
        write_text_item(a, w, &content_kind, a->content_place, item_status(a, a->content_place),
                        true);
    }
    for (size_t i = 0; i < a->num_calls; i++) {
        const di_answer_call *call = &a->calls[i];
        write_call_item(a, w, call, item_status(a, call->place), di_buffer_str(&call->arguments));
    }
    di_write_close(w, ']');
}

static void write_place(di_writer *w, size_t place) {
    di_write_key(w, "output_index");
    di_write_uint(w, place);
}

/* ---- items of text ---- */

static bool send_part(di_answer *a, const char *type, const part_kind *kind, size_t place,
                      di_str text, di_str logprobs, di_error *err) {
    di_writer w = begin_event(a, type, err);
    di_write_key(&w, "content_index");
    di_write_uint(&w, 0);
    write_item_id(a, &w, "item_id", kind->prefix, place);
    write_place(&w, place);
    di_write_key(&w, "part");
    write_part(&w, kind, text, logprobs);
    write_sequence(a, &w);
    return send(a, &w, type, err);
}

static bool close_text_item(di_answer *a, const part_kind *kind, size_t place, di_error *err) {
    bool content = kind == &content_kind;
    di_str text = di_buffer_str(content ? &a->content : &a->reasoning);
    di_str logprobs = di_buffer_str(&a->content_logprobs);
    di_writer w = begin_event(a, kind->done, err);
    di_write_key(&w, "content_index");
    di_write_uint(&w, 0);
    write_item_id(a, &w, "item_id", kind->prefix, place);
    if (content) {
        di_write_key(&w, "logprobs");
        di_write_logprobs(&w, logprobs);
    }
    write_place(&w, place);
    write_sequence(a, &w);
    di_write_key(&w, "text");
    di_write_string(&w, text);
    if (!send(a, &w, kind->done, err) ||
        !send_part(a, "response.content_part.done", kind, place, text, logprobs, err)) {
        return false;
    }
    w = begin_event(a, "response.output_item.done", err);
    di_write_key(&w, "item");
    write_text_item(a, &w, kind, place, a->ending == DI_ENDING_NONE ? "completed" : status(a),
                    true);
    write_place(&w, place);
    write_sequence(a, &w);
    return send(a, &w, "response.output_item.done", err);
}

static bool close_call_item(di_answer *a, const di_answer_call *call, di_error *err) {
    bool custom = call->tool && call->tool->custom;
    const char *type =
        custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done";
    di_writer w = begin_event(a, type, err);
    di_write_key(&w, custom ? "input" : "arguments");
    di_write_string(&w, di_buffer_str(&call->arguments));
    write_item_id(a, &w, "item_id", custom ? "ctc" : "fc", call->place);
    write_place(&w, call->place);
    write_sequence(a, &w);
    if (!send(a, &w, type, err)) {
        return false;
    }
    w = begin_event(a, "response.output_item.done", err);
    di_write_key(&w, "item");
    write_call_item(a, &w, call, a->ending == DI_ENDING_NONE ? "completed" : status(a),
                    di_buffer_str(&call->arguments));
    write_place(&w, call->place);
    write_sequence(a, &w);
    return send(a, &w, "response.output_item.done", err);
}

/* `call`: the one that begins now, NULL: none. */
static bool close_item(di_answer *a, const di_answer_call *call, di_error *err) {
    int open = a->open_item;
    a->open_item = DI_ITEM_NONE;
    switch (open) {
    case DI_ITEM_REASONING:
        return close_text_item(a, &reasoning_kind, a->reasoning_place, err);
    case DI_ITEM_CONTENT:
        return close_text_item(a, &content_kind, a->content_place, err);
    case DI_ITEM_CALL:
        return close_call_item(a, call ? call - 1 : &a->calls[a->num_calls - 1], err);
    default:
        return true;
    }
}

static bool open_text_item(di_answer *a, const part_kind *kind, di_item_kind item, size_t *place,
                           di_error *err) {
    if (a->open_item == (int)item) {
        return true;
    }
    if (!close_item(a, NULL, err)) {
        return false;
    }
    *place = a->num_items++;
    a->open_item = (int)item;
    di_writer w = begin_event(a, "response.output_item.added", err);
    di_write_key(&w, "item");
    write_text_item(a, &w, kind, *place, "in_progress", false);
    write_place(&w, *place);
    write_sequence(a, &w);
    return send(a, &w, "response.output_item.added", err) &&
           send_part(a, "response.content_part.added", kind, *place, DI_STR(""), DI_STR(""), err);
}

static bool send_text(di_answer *a, const part_kind *kind, size_t place, di_str text,
                      di_str logprobs, di_error *err) {
    di_writer w = begin_event(a, kind->delta, err);
    di_write_key(&w, "content_index");
    di_write_uint(&w, 0);
    di_write_key(&w, "delta");
    di_write_string(&w, text);
    write_item_id(a, &w, "item_id", kind->prefix, place);
    if (kind == &content_kind) {
        di_write_key(&w, "logprobs");
        di_write_logprobs(&w, logprobs);
    }
    write_place(&w, place);
    write_sequence(a, &w);
    return send(a, &w, kind->delta, err);
}

/* ---- the voice ---- */

static bool responses_open(di_answer *a, di_error *err) {
    return send_response(a, "response.created", err) &&
           send_response(a, "response.in_progress", err);
}

static bool responses_reasoning(di_answer *a, di_str text, di_str logprobs, di_error *err) {
    return open_text_item(a, &reasoning_kind, DI_ITEM_REASONING, &a->reasoning_place, err) &&
           send_text(a, &reasoning_kind, a->reasoning_place, text, logprobs, err);
}

static bool responses_content(di_answer *a, di_str text, di_str logprobs, di_error *err) {
    return open_text_item(a, &content_kind, DI_ITEM_CONTENT, &a->content_place, err) &&
           send_text(a, &content_kind, a->content_place, text, logprobs, err);
}

static bool responses_call(di_answer *a, di_answer_call *call, di_error *err) {
    if (!close_item(a, call, err)) {
        return false;
    }
    call->place = a->num_items++;
    a->open_item = DI_ITEM_CALL;
    di_writer w = begin_event(a, "response.output_item.added", err);
    di_write_key(&w, "item");
    write_call_item(a, &w, call, "in_progress", DI_STR(""));
    write_place(&w, call->place);
    write_sequence(a, &w);
    return send(a, &w, "response.output_item.added", err);
}

static bool responses_arguments(di_answer *a, di_answer_call *call, di_str delta, di_error *err) {
    bool custom = call->tool && call->tool->custom;
    const char *type =
        custom ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta";
    di_writer w = begin_event(a, type, err);
    di_write_key(&w, "delta");
    di_write_string(&w, delta);
    write_item_id(a, &w, "item_id", custom ? "ctc" : "fc", call->place);
    write_place(&w, call->place);
    write_sequence(a, &w);
    return send(a, &w, type, err);
}

static bool responses_finish(di_answer *a, di_error *err) {
    bool broke_off = a->ending == DI_ENDING_LENGTH || a->ending == DI_ENDING_FILTER;
    return close_item(a, NULL, err) &&
           send_response(a, broke_off ? "response.incomplete" : "response.completed", err);
}

const di_protocol_voice di_responses_voice = {
    .open = responses_open,
    .reasoning = responses_reasoning,
    .content = responses_content,
    .call = responses_call,
    .arguments = responses_arguments,
    .finish = responses_finish,
    .response = responses_response,
};
