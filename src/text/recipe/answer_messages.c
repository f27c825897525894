/* Answers of Anthropic's messages: see answering.h. Thinking, text and each call are a block. */
#include <stdio.h>

#include "text/recipe/answering.h"

static void write_usage(const di_answer *a, di_writer *w, uint64_t output_tokens) {
    di_write_key(w, "usage");
    di_write_open(w, '{');
    di_write_key(w, "input_tokens");
    di_write_uint(w, a->prompt_tokens - a->cached_tokens);
    di_write_key(w, "cache_creation_input_tokens");
    di_write_uint(w, 0);
    di_write_key(w, "cache_read_input_tokens");
    di_write_uint(w, a->cached_tokens);
    di_write_key(w, "output_tokens");
    di_write_uint(w, output_tokens);
    di_write_key(w, "service_tier");
    di_write_text(w, "standard");
    di_write_close(w, '}');
}

static void write_stop(const di_answer *a, di_writer *w) {
    static const char *const reasons[] = {NULL,         "end_turn", "stop_sequence",
                                          "max_tokens", "refusal",  "tool_use"};
    di_write_key(w, "stop_reason");
    if (reasons[a->ending]) {
        di_write_text(w, reasons[a->ending]);
    } else {
        di_write_null(w);
    }
    di_write_key(w, "stop_sequence");
    if (a->ending == DI_ENDING_STOP_TEXT) {
        di_write_string(w, a->s.request->parsing.stops[di_parser_stop(a->parser)]);
    } else {
        di_write_null(w);
    }
}

static void write_head(const di_answer *a, di_writer *w) {
    di_write_open(w, '{');
    di_write_key(w, "id");
    di_write_string(w, a->s.id);
    di_write_key(w, "type");
    di_write_text(w, "message");
    di_write_key(w, "role");
    di_write_text(w, "assistant");
    di_write_key(w, "model");
    di_write_string(w, a->s.model);
    di_write_key(w, "content");
}

static di_writer begin_event(di_answer *a, const char *type, di_error *err) {
    di_writer w = di_event_begin(a, err);
    di_write_open(&w, '{');
    di_write_key(&w, "type");
    di_write_text(&w, type);
    return w;
}

static bool send(di_answer *a, di_writer *w, const char *type, di_error *err) {
    di_write_close(w, '}');
    return di_event_send(a, w, type, err);
}

static di_writer begin_block_event(di_answer *a, const char *type, size_t place, di_error *err) {
    di_writer w = begin_event(a, type, err);
    di_write_key(&w, "index");
    di_write_uint(&w, place);
    return w;
}

/* {"type": type, key: text} */
static void write_typed(di_writer *w, const char *type, const char *key, di_str text) {
    di_write_open(w, '{');
    di_write_key(w, "type");
    di_write_text(w, type);
    di_write_key(w, key);
    di_write_string(w, text);
}

static bool send_delta(di_answer *a, size_t place, const char *type, const char *key, di_str text,
                       di_error *err) {
    di_writer w = begin_block_event(a, "content_block_delta", place, err);
    di_write_key(&w, "delta");
    write_typed(&w, type, key, text);
    di_write_close(&w, '}');
    return send(a, &w, "content_block_delta", err);
}

/* The block that is open is the last that began. */
static bool close_block(di_answer *a, di_error *err) {
    if (a->open_item == DI_ITEM_NONE) {
        return true;
    }
    size_t place = a->num_items - 1;
    if (a->open_item == DI_ITEM_REASONING &&
        !send_delta(a, place, "signature_delta", "signature", a->s.id, err)) {
        return false;
    }
    a->open_item = DI_ITEM_NONE;
    di_writer w = begin_block_event(a, "content_block_stop", place, err);
    return send(a, &w, "content_block_stop", err);
}

/* Ends the event that begins a block. */
static bool opened_block(di_answer *a, di_writer *w, di_item_kind kind, di_error *err) {
    di_write_close(w, '}');
    if (!send(a, w, "content_block_start", err)) {
        return false;
    }
    a->open_item = (int)kind;
    if (a->num_items++ > 0) {
        return true;
    }
    di_writer ping = begin_event(a, "ping", err);
    return send(a, &ping, "ping", err);
}

static bool open_block(di_answer *a, di_item_kind kind, size_t *place, di_error *err) {
    if (a->open_item == (int)kind) {
        return true;
    }
    if (!close_block(a, err)) {
        return false;
    }
    *place = a->num_items;
    di_writer w = begin_block_event(a, "content_block_start", *place, err);
    di_write_key(&w, "content_block");
    if (kind == DI_ITEM_REASONING) {
        write_typed(&w, "thinking", "thinking", DI_STR(""));
        di_write_key(&w, "signature");
        di_write_text(&w, "");
    } else {
        write_typed(&w, "text", "text", DI_STR(""));
    }
    return opened_block(a, &w, kind, err);
}

static bool messages_open(di_answer *a, di_error *err) {
    di_writer w = begin_event(a, "message_start", err);
    di_write_key(&w, "message");
    write_head(a, &w);
    di_write_open(&w, '[');
    di_write_close(&w, ']');
    di_write_key(&w, "stop_reason");
    di_write_null(&w);
    di_write_key(&w, "stop_sequence");
    di_write_null(&w);
    write_usage(a, &w, 0);
    di_write_close(&w, '}');
    return send(a, &w, "message_start", err) &&
           (!a->starts_thinking || open_block(a, DI_ITEM_REASONING, &a->reasoning_place, err));
}

static bool messages_reasoning(di_answer *a, di_str text, di_str logprobs, di_error *err) {
    (void)logprobs;
    return open_block(a, DI_ITEM_REASONING, &a->reasoning_place, err) &&
           send_delta(a, a->reasoning_place, "thinking_delta", "thinking", text, err);
}

static bool messages_content(di_answer *a, di_str text, di_str logprobs, di_error *err) {
    (void)logprobs;
    return open_block(a, DI_ITEM_CONTENT, &a->content_place, err) &&
           send_delta(a, a->content_place, "text_delta", "text", text, err);
}

static void write_call_head(di_writer *w, const di_answer_call *call) {
    write_typed(w, "tool_use", "id", di_str_of(call->id));
    di_write_key(w, "name");
    di_write_string(w, di_buffer_str(&call->name));
    di_write_key(w, "input");
}

static bool messages_call(di_answer *a, di_answer_call *call, di_error *err) {
    if (!close_block(a, err)) {
        return false;
    }
    call->place = a->num_items;
    di_writer w = begin_block_event(a, "content_block_start", call->place, err);
    di_write_key(&w, "content_block");
    write_call_head(&w, call);
    di_write_open(&w, '{');
    di_write_close(&w, '}');
    return opened_block(a, &w, DI_ITEM_CALL, err);
}

static bool messages_arguments(di_answer *a, di_answer_call *call, di_str delta, di_error *err) {
    return send_delta(a, call->place, "input_json_delta", "partial_json", delta, err);
}

static bool messages_finish(di_answer *a, di_error *err) {
    if (!close_block(a, err)) {
        return false;
    }
    di_writer w = begin_event(a, "message_delta", err);
    di_write_key(&w, "delta");
    di_write_open(&w, '{');
    write_stop(a, &w);
    di_write_close(&w, '}');
    write_usage(a, &w, a->completion_tokens);
    if (!send(a, &w, "message_delta", err)) {
        return false;
    }
    w = begin_event(a, "message_stop", err);
    return send(a, &w, "message_stop", err);
}

/* Arguments that are no JSON object are shown as none. */
static void write_input(di_writer *w, const di_answer_call *call) {
    di_pool pool = {0};
    di_value value;
    di_error why = {0};
    di_str text = di_buffer_str(&call->arguments);
    bool parsed = di_value_parse(&pool, text.data, text.size, DI_VALUE_MAX_DEPTH, &value, &why);
    if (parsed && value.type == DI_VALUE_OBJECT) {
        di_write_value(w, &value);
    } else {
        di_write_raw(w, DI_STR("{}"));
    }
    if (why.code == DI_ERR_NO_MEMORY) {
        w->failed = true;
        di_fail(w->err, DI_ERR_NO_MEMORY, "no memory for the input of a call");
    }
    di_pool_free(&pool);
}

static void messages_response(const di_answer *a, di_writer *w) {
    write_head(a, w);
    di_write_open(w, '[');
    if ((a->starts_thinking && a->opened) || a->has_reasoning) {
        write_typed(w, "thinking", "thinking", di_buffer_str(&a->reasoning));
        di_write_key(w, "signature");
        di_write_string(w, a->open_item == DI_ITEM_REASONING ? DI_STR("") : a->s.id);
        di_write_close(w, '}');
    }
    if (a->has_content) {
        write_typed(w, "text", "text", di_buffer_str(&a->content));
        di_write_close(w, '}');
    }
    for (size_t i = 0; i < a->num_calls; i++) {
        write_call_head(w, &a->calls[i]);
        write_input(w, &a->calls[i]);
        di_write_close(w, '}');
    }
    di_write_close(w, ']');
    write_stop(a, w);
    write_usage(a, w, a->completion_tokens);
    di_write_close(w, '}');
}

const di_protocol_voice di_messages_voice = {
    .open = messages_open,
    .reasoning = messages_reasoning,
    .content = messages_content,
    .call = messages_call,
    .arguments = messages_arguments,
    .finish = messages_finish,
    .response = messages_response,
};
