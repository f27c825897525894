/* Answers of OpenAI's chat completions: see answering.h. */
#include "text/recipe/answering.h"

static void write_head(const di_answer *a, di_writer *w, const char *object) {
    di_write_open(w, '{');
    di_write_key(w, "id");
    di_write_string(w, a->s.id);
    di_write_key(w, "object");
    di_write_text(w, object);
    di_write_key(w, "created");
    di_write_uint(w, a->s.created);
    di_write_key(w, "model");
    di_write_string(w, a->s.model);
}

static void write_fingerprint(const di_answer *a, di_writer *w) {
    di_write_key(w, "system_fingerprint");
    if (a->fingerprint.data) {
        di_write_string(w, di_buffer_str(&a->fingerprint));
    } else {
        di_write_null(w);
    }
}

/* Up to the members of the delta; the same in every chunk, so written once. */
static di_writer begin_chunk(di_answer *a, di_error *err) {
    di_writer w = di_event_begin(a, err);
    if (a->head.size > 0) {
        w.failed = !di_buffer_append(&a->json, a->head.data, a->head.size, err);
        return w;
    }
    write_head(a, &w, "chat.completion.chunk");
    write_fingerprint(a, &w);
    di_write_key(&w, "choices");
    di_write_open(&w, '[');
    di_write_open(&w, '{');
    di_write_key(&w, "index");
    di_write_uint(&w, a->s.index);
    di_write_key(&w, "delta");
    di_write_open(&w, '{');
    w.failed = w.failed || !di_buffer_append(&a->head, a->json.data, a->json.size, err);
    return w;
}

/* Of n answers to one prompt. */
static void write_usage_of(const di_answer *const *answers, size_t n, di_writer *w) {
    const di_answer *a = answers[0];
    uint64_t completion = 0, reasoning = 0;
    for (size_t i = 0; i < n; i++) {
        completion += answers[i]->completion_tokens;
        reasoning += answers[i]->reasoning_tokens;
    }
    di_write_open(w, '{');
    di_write_key(w, "prompt_tokens");
    di_write_uint(w, a->prompt_tokens);
    di_write_key(w, "completion_tokens");
    di_write_uint(w, completion);
    di_write_key(w, "total_tokens");
    di_write_uint(w, a->prompt_tokens + completion);
    di_write_key(w, "prompt_tokens_details");
    di_write_open(w, '{');
    di_write_key(w, "cached_tokens");
    di_write_uint(w, a->cached_tokens);
    di_write_close(w, '}');
    if (a->thinks) {
        di_write_key(w, "completion_tokens_details");
        di_write_open(w, '{');
        di_write_key(w, "reasoning_tokens");
        di_write_uint(w, reasoning);
        di_write_close(w, '}');
    }
    di_write_key(w, "prompt_cache_hit_tokens");
    di_write_uint(w, a->cached_tokens);
    di_write_key(w, "prompt_cache_miss_tokens");
    di_write_uint(w, a->prompt_tokens - a->cached_tokens);
    di_write_close(w, '}');
}

static void write_usage(const di_answer *a, di_writer *w) {
    write_usage_of(&a, 1, w);
}

static const char *finish_reason(const di_answer *a) {
    static const char *const reasons[] = {NULL,     "stop",           "stop",
                                          "length", "content_filter", "tool_calls"};
    return reasons[a->ending];
}

static void write_finish_reason(const di_answer *a, di_writer *w) {
    di_write_key(w, "finish_reason");
    if (finish_reason(a)) {
        di_write_text(w, finish_reason(a));
    } else {
        di_write_null(w);
    }
}

/* `list` names the logprobs' list; the usage stands in the last chunk only. */
static bool end_chunk(di_answer *a, di_writer *w, const char *list, di_str logprobs,
                      di_error *err) {
    di_write_close(w, '}');
    di_write_key(w, "logprobs");
    if (logprobs.size > 0) {
        di_write_open(w, '{');
        di_write_key(w, list);
        di_write_logprobs(w, logprobs);
        di_write_close(w, '}');
    } else {
        di_write_null(w);
    }
    write_finish_reason(a, w);
    di_write_close(w, '}');
    di_write_close(w, ']');
    const di_request *r = a->s.request;
    if (a->s.usage_always || (a->ending != DI_ENDING_NONE && !a->s.usage_apart)) {
        di_write_key(w, "usage");
        write_usage(a, w);
    } else if (!r->stream || r->include_usage) {
        di_write_key(w, "usage");
        di_write_null(w);
    }
    di_write_close(w, '}');
    return di_event_send(a, w, NULL, err);
}

/* NULL data: null. */
static void write_text_or_null(di_writer *w, const char *key, di_str text) {
    di_write_key(w, key);
    if (text.data) {
        di_write_string(w, text);
    } else {
        di_write_null(w);
    }
}

static void write_both(const di_answer *a, di_writer *w, di_str content, di_str reasoning) {
    write_text_or_null(w, "content", content);
    if (a->thinks) {
        write_text_or_null(w, "reasoning_content", reasoning);
    }
}

static const di_str null_text = {NULL, 0};

static bool chat_open(di_answer *a, di_error *err) {
    di_writer w = begin_chunk(a, err);
    di_write_key(&w, "role");
    di_write_text(&w, "assistant");
    write_both(a, &w, a->starts_thinking ? null_text : DI_STR(""),
               a->starts_thinking ? DI_STR("") : null_text);
    return end_chunk(a, &w, "", DI_STR(""), err);
}

static bool chat_reasoning(di_answer *a, di_str text, di_str logprobs, di_error *err) {
    di_writer w = begin_chunk(a, err);
    write_both(a, &w, null_text, text);
    return end_chunk(a, &w, "reasoning_content", logprobs, err);
}

static bool chat_content(di_answer *a, di_str text, di_str logprobs, di_error *err) {
    di_writer w = begin_chunk(a, err);
    write_both(a, &w, text, null_text);
    return end_chunk(a, &w, "content", logprobs, err);
}

static void write_call(const di_answer *a, di_writer *w, const di_answer_call *call,
                       di_str arguments) {
    di_write_open(w, '{');
    di_write_key(w, "index");
    di_write_uint(w, (uint64_t)(call - a->calls));
    di_write_key(w, "id");
    di_write_text(w, call->id);
    di_write_key(w, "type");
    di_write_text(w, "function");
    di_write_key(w, "function");
    di_write_open(w, '{');
    di_write_key(w, "name");
    di_write_string(w, di_buffer_str(&call->name));
    di_write_key(w, "arguments");
    di_write_string(w, arguments);
    di_write_close(w, '}');
    di_write_close(w, '}');
}

static bool chat_call(di_answer *a, di_answer_call *call, di_error *err) {
    di_writer w = begin_chunk(a, err);
    di_write_key(&w, "tool_calls");
    di_write_open(&w, '[');
    write_call(a, &w, call, DI_STR(""));
    di_write_close(&w, ']');
    return end_chunk(a, &w, "", DI_STR(""), err);
}

static bool chat_arguments(di_answer *a, di_answer_call *call, di_str delta, di_error *err) {
    di_writer w = begin_chunk(a, err);
    di_write_key(&w, "tool_calls");
    di_write_open(&w, '[');
    di_write_open(&w, '{');
    di_write_key(&w, "index");
    di_write_uint(&w, (uint64_t)(call - a->calls));
    di_write_key(&w, "function");
    di_write_open(&w, '{');
    di_write_key(&w, "arguments");
    di_write_string(&w, delta);
    di_write_close(&w, '}');
    di_write_close(&w, '}');
    di_write_close(&w, ']');
    return end_chunk(a, &w, "", DI_STR(""), err);
}

static bool chat_finish(di_answer *a, di_error *err) {
    di_writer w = begin_chunk(a, err);
    write_both(a, &w, DI_STR(""), null_text);
    return end_chunk(a, &w, "", DI_STR(""), err);
}

static void write_message(const di_answer *a, di_writer *w) {
    di_write_open(w, '{');
    di_write_key(w, "role");
    di_write_text(w, "assistant");
    di_write_key(w, "content");
    di_write_string(w, di_buffer_str(&a->content));
    if ((a->starts_thinking && a->opened) || a->has_reasoning) {
        di_write_key(w, "reasoning_content");
        di_write_string(w, di_buffer_str(&a->reasoning));
    }
    if (a->num_calls > 0) {
        di_write_key(w, "tool_calls");
        di_write_open(w, '[');
        for (size_t i = 0; i < a->num_calls; i++) {
            write_call(a, w, &a->calls[i], di_buffer_str(&a->calls[i].arguments));
        }
        di_write_close(w, ']');
    }
    di_write_close(w, '}');
}

static void write_all_logprobs(const di_answer *a, di_writer *w) {
    di_write_key(w, "logprobs");
    if (a->content_logprobs.size == 0 && a->reasoning_logprobs.size == 0) {
        di_write_null(w);
        return;
    }
    di_write_open(w, '{');
    if (a->content_logprobs.size > 0) {
        di_write_key(w, "content");
        di_write_logprobs(w, di_buffer_str(&a->content_logprobs));
    }
    if (a->reasoning_logprobs.size > 0) {
        di_write_key(w, "reasoning_content");
        di_write_logprobs(w, di_buffer_str(&a->reasoning_logprobs));
    }
    di_write_close(w, '}');
}

static void write_choice(const di_answer *a, di_writer *w) {
    di_write_open(w, '{');
    di_write_key(w, "index");
    di_write_uint(w, a->s.index);
    di_write_key(w, "message");
    write_message(a, w);
    write_all_logprobs(a, w);
    write_finish_reason(a, w);
    di_write_close(w, '}');
}

static void write_response(const di_answer *const *answers, size_t n, di_writer *w) {
    bool ended = true;
    write_head(answers[0], w, "chat.completion");
    di_write_key(w, "choices");
    di_write_open(w, '[');
    for (size_t i = 0; i < n; i++) {
        write_choice(answers[i], w);
        ended = ended && answers[i]->ending != DI_ENDING_NONE;
    }
    di_write_close(w, ']');
    if (ended) {
        di_write_key(w, "usage");
        write_usage_of(answers, n, w);
    }
    write_fingerprint(answers[0], w);
    di_write_close(w, '}');
}

static void chat_response(const di_answer *a, di_writer *w) {
    write_response(&a, 1, w);
}

bool di_answers_response(const di_answer *const *answers, size_t n, di_buffer *out, di_error *err) {
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    write_response(answers, n, &w);
    return !w.failed;
}

bool di_answers_usage(const di_answer *const *answers, size_t n, di_buffer *out, di_error *err) {
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    write_head(answers[0], &w, "chat.completion.chunk");
    write_fingerprint(answers[0], &w);
    di_write_key(&w, "choices");
    di_write_open(&w, '[');
    di_write_close(&w, ']');
    di_write_key(&w, "usage");
    write_usage_of(answers, n, &w);
    di_write_close(&w, '}');
    return !w.failed;
}

const di_protocol_voice di_chat_voice = {
    .open = chat_open,
    .reasoning = chat_reasoning,
    .content = chat_content,
    .call = chat_call,
    .arguments = chat_arguments,
    .finish = chat_finish,
    .response = chat_response,
};
