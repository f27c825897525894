/* Cases of the prompt recipe: see recipe_cases.h. Offsets count characters, times are 0, ids of
 * answers are "ID", and the random part of a call's id is "*". */
#include "cli/recipe_cases.h"

#include <stdio.h>

#include "base/alloc.h"
#include "text/recipe/answer.h"
#include "text/recipe/field.h"
#include "text/recipe/image.h"
#include "text/recipe/json_write.h"
#include "text/recipe/render.h"

typedef struct one_case {
    const di_chat_tokens *tokens;
    bool server;
    di_pool pool;
    const di_value *input;
    di_request request;
    di_writer *w; /* of the output */
    di_error *err;
} one_case;

/* ---- requests ---- */

static bool read_switch(const di_value *options, const char *key, const char *on, const char *off,
                        bool *out, di_error *err) {
    const char *const words[] = {off, on};
    int word = *out;
    bool ok = di_field_word(options, "options", key, DI_OPTIONAL, words, 2, &word, err);
    *out = word;
    return ok;
}

static bool read_bound(const di_value *options, const char *key, uint32_t *out, di_error *err) {
    uint64_t value = *out;
    bool ok = di_field_uint(options, "options", key, UINT32_MAX, &value, NULL, err);
    *out = (uint32_t)value;
    return ok;
}

static bool read_options(const one_case *c, di_recipe_options *o) {
    const di_value *options;
    di_recipe_options_init(o);
    o->server = c->server;
    return di_field_object(c->input, "input", "options", DI_OPTIONAL, &options, c->err) &&
           di_field_bool(options, "options", "default_thinking_mode", &o->default_thinking, NULL,
                         c->err) &&
           read_switch(options, "reasoning_content_behavior", "reject", "fill_empty",
                       &o->reject_missing_reasoning, c->err) &&
           read_switch(options, "responses_web_search", "reject", "drop",
                       &o->responses_web_search_fails, c->err) &&
           read_switch(options, "messages_web_search", "drop", "reject",
                       &o->messages_web_search_drops, c->err) &&
           read_bound(options, "thinking_max_tokens_upper_bound", &o->thinking_max_tokens,
                      c->err) &&
           read_bound(options, "non_thinking_max_tokens_upper_bound", &o->chat_max_tokens, c->err);
}

/* The body is read from its text, as it would come over the wire. */
static bool read_request(one_case *c, const di_value *body) {
    di_recipe_options options;
    int protocol = DI_PROTOCOL_CHAT;
    di_str text = DI_STR("");
    di_buffer written = {0};
    bool given,
        ok = read_options(c, &options) &&
             di_field_word(c->input, "input", "protocol", DI_OPTIONAL, di_protocol_names,
                           DI_NUM_PROTOCOLS, &protocol, c->err) &&
             di_field_string(c->input, "input", "body_text", DI_OPTIONAL, &text, &given, c->err);
    if (ok && !given) {
        body = body ? body : di_value_get(c->input, "body");
        ok = body ? di_value_write(body, DI_JSON_COMPACT, &written, c->err)
                  : di_fail(c->err, DI_ERR_FORMAT, "input has no body");
        text = (di_str){written.data, written.size};
    }
    di_request_free(&c->request);
    ok = ok && di_request_parse(&c->request, (di_protocol)protocol, text.data, text.size, &options,
                                c->err);
    di_buffer_free(&written);
    return ok;
}

/* ---- render ---- */

static uint64_t characters(const char *text, size_t size) {
    uint64_t n = 0;
    for (size_t i = 0; i < size; i++) {
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return n;
}

static void write_optional_text(di_writer *w, const char *key, const char *text) {
    di_write_key(w, key);
    if (text) {
        di_write_text(w, text);
    } else {
        di_write_null(w);
    }
}

static void write_optional_uint(di_writer *w, const char *key, bool given, uint64_t value) {
    di_write_key(w, key);
    if (given) {
        di_write_uint(w, value);
    } else {
        di_write_null(w);
    }
}

static void write_special(di_writer *w, const di_chat_prompt *p) {
    uint64_t at = 0;
    di_write_key(w, "special");
    di_write_open(w, '[');
    for (size_t i = 0; i < p->count; i++) {
        const di_chat_segment *s = &p->segments[i];
        uint64_t size = characters(p->text.data + s->begin, s->size);
        if (s->control >= 0) {
            di_write_open(w, '[');
            di_write_uint(w, at);
            di_write_uint(w, at + size);
            di_write_close(w, ']');
        }
        at += size;
    }
    di_write_close(w, ']');
}

static void write_image(di_writer *w, const di_image *image) {
    const char *kind = image->data_url ? "data_url" : "url";
    di_write_open(w, '{');
    di_write_key(w, "kind");
    di_write_text(w, kind);
    di_write_key(w, "detail");
    di_write_text(w, image->detail);
    di_write_key(w, kind);
    di_write_string(w, image->url);
    di_write_key(w, "path");
    di_write_string(w, image->path);
    di_write_close(w, '}');
}

static bool write_images(one_case *c) {
    const di_image *const *images;
    size_t count;
    if (!di_recipe_images(&c->request.conversation, &c->pool, &images, &count, c->err)) {
        return false;
    }
    if (count > 0) {
        di_write_key(c->w, "images");
        di_write_open(c->w, '[');
        for (size_t i = 0; i < count; i++) {
            write_image(c->w, images[i]);
        }
        di_write_close(c->w, ']');
    }
    return true;
}

static void write_inference(di_writer *w, const di_inference *f) {
    di_write_key(w, "inference");
    di_write_open(w, '{');
    write_optional_uint(w, "max_tokens", f->has_max_tokens, f->max_tokens);
    di_write_key(w, "temperature");
    di_write_real(w, (double)f->temperature);
    di_write_key(w, "top_p");
    di_write_real(w, (double)f->top_p);
    di_write_key(w, "logprobs");
    di_write_bool(w, f->logprobs);
    write_optional_uint(w, "top_logprobs", f->has_top_logprobs, f->top_logprobs);
    write_optional_uint(w, "seed", f->has_seed, f->seed);
    di_write_key(w, "output_constraint");
    if (f->constraint == DI_CONSTRAINT_NONE) {
        di_write_null(w);
    } else {
        di_write_open(w, '{');
        di_write_key(w, "kind");
        di_write_text(w, di_constraint_names[f->constraint]);
        di_write_key(w, "schema");
        di_write_string(w, f->constraint_text);
        di_write_close(w, '}');
    }
    di_write_close(w, '}');
}

static void write_parsing(di_writer *w, const di_parsing *p) {
    di_write_key(w, "parsing");
    di_write_open(w, '{');
    di_write_key(w, "parse_tool_calls");
    di_write_bool(w, p->tool_calls);
    di_write_key(w, "starts_in_tool_calls");
    di_write_bool(w, p->starts_in_tool_calls);
    di_write_key(w, "parse_json_output");
    di_write_bool(w, p->json);
    write_optional_text(w, "thinking_initial_stage", di_stage_names[p->stage]);
    di_write_key(w, "stop_sequences");
    di_write_open(w, '[');
    for (size_t i = 0; i < p->stop_count; i++) {
        di_write_string(w, p->stops[i]);
    }
    di_write_close(w, ']');
    di_write_close(w, '}');
}

static void write_rendered(one_case *c, const di_chat_prompt *p, const di_ids *ids) {
    static const char *const levels[] = {NULL, "low", "high", "xhigh", "max"};
    const di_conversation *conversation = &c->request.conversation;
    di_writer *w = c->w;
    di_write_key(w, "model_version");
    di_write_text(w, conversation->version == DI_MODEL_V41 ? "v41" : "v4");
    di_write_key(w, "thinking");
    di_write_bool(w, conversation->thinking);
    write_optional_text(w, "effort", levels[conversation->level]);
    di_write_key(w, "prompt");
    di_write_string(w, (di_str){p->text.data, p->text.size});
    write_special(w, p);
    di_write_key(w, "ids");
    di_write_open(w, '[');
    for (size_t i = 0; i < ids->count; i++) {
        di_write_uint(w, (uint64_t)ids->data[i]);
    }
    di_write_close(w, ']');
}

static bool render_case(one_case *c) {
    di_chat_prompt prompt = {0};
    di_ids ids = {0};
    bool ok = read_request(c, NULL) &&
              di_recipe_render(c->tokens, &c->request.conversation, &prompt, c->err) &&
              di_chat_encode(c->tokens, &prompt, &ids, c->err);
    if (ok) {
        di_write_open(c->w, '{');
        write_rendered(c, &prompt, &ids);
        ok = write_images(c);
        write_inference(c->w, &c->request.inference);
        write_parsing(c->w, &c->request.parsing);
        di_write_key(c->w, "stream");
        di_write_bool(c->w, c->request.stream);
        di_write_close(c->w, '}');
    }
    di_chat_prompt_free(&prompt);
    di_ids_free(&ids);
    return ok;
}

/* ---- parse ---- */

typedef struct events {
    di_buffer json;
    size_t count;
} events;

static bool note_event(void *context, const char *name, const char *json, size_t size,
                       di_error *err) {
    events *e = context;
    e->count++;
    return di_buffer_append_text(&e->json, e->count > 1 ? ",[" : "[", err) &&
           di_buffer_append_text(&e->json, name ? "\"" : "null", err) &&
           (!name || (di_buffer_append_text(&e->json, name, err) &&
                      di_buffer_append_text(&e->json, "\"", err))) &&
           di_buffer_append_text(&e->json, ",", err) &&
           di_buffer_append(&e->json, json, size, err) && di_buffer_append_text(&e->json, "]", err);
}

static void masked_call_id(void *context, char tail[DI_CALL_ID_TAIL + 1]) {
    (void)context;
    tail[0] = '*';
    tail[1] = 0;
}

static di_answer *begin_answer(one_case *c, events *e) {
    const di_answer_setup setup = {
        .request = &c->request,
        .tok = c->tokens->tok,
        .id = DI_STR("ID"),
        .model = c->request.model,
        .event = e ? note_event : NULL,
        .call_id = masked_call_id,
        .context = e,
    };
    return di_answer_create(&setup, c->err);
}

static bool bad_chunk(const one_case *c) {
    return di_fail(c->err, DI_ERR_FORMAT, "input.chunks has a chunk of an unknown form");
}

static const di_value *item(const di_value *list, size_t i) {
    return di_value_is(list, DI_VALUE_ARRAY) && i < list->array.count ? &list->array.items[i]
                                                                      : NULL;
}

static double number_of(const di_value *v) {
    return di_value_is(v, DI_VALUE_REAL)   ? v->real
           : di_value_is(v, DI_VALUE_UINT) ? (double)v->uint
           : di_value_is(v, DI_VALUE_INT)  ? (double)v->integer
                                           : -1.0 / 0.0;
}

/* [[logprob, [[id, logprob], ...]], ...] */
static bool read_logprobs(one_case *c, const di_value *list, di_logprob_entry **out,
                          size_t *count) {
    *count = list->array.count;
    *out = di_pool_take(&c->pool, *count, sizeof **out, c->err);
    for (size_t i = 0; *out && i < *count; i++) {
        const di_value *top = item(&list->array.items[i], 1);
        size_t top_count = di_value_is(top, DI_VALUE_ARRAY) ? top->array.count : 0;
        di_token_logprob *tops = di_pool_take(&c->pool, top_count, sizeof *tops, c->err);
        if (!tops) {
            return false;
        }
        for (size_t j = 0; j < top_count; j++) {
            const di_value *id = item(&top->array.items[j], 0);
            tops[j].id = di_value_is(id, DI_VALUE_UINT) && id->uint <= INT32_MAX ? (int32_t)id->uint
                                                                                 : INT32_MAX;
            tops[j].logprob = number_of(item(&top->array.items[j], 1));
        }
        (*out)[i] = (di_logprob_entry){number_of(item(&list->array.items[i], 0)), tops, top_count};
    }
    return *out != NULL;
}

static bool push_tokens(one_case *c, di_answer *a, const di_value *chunk) {
    const di_value *ids = item(chunk, 1), *probabilities = item(chunk, 2);
    di_logprob_entry *logprobs = NULL;
    size_t num_logprobs = 0;
    if (!di_value_is(ids, DI_VALUE_ARRAY)) {
        return bad_chunk(c);
    }
    int32_t *list = di_pool_take(&c->pool, ids->array.count, sizeof *list, c->err);
    for (size_t i = 0; list && i < ids->array.count; i++) {
        const di_value *id = &ids->array.items[i];
        list[i] =
            id->type == DI_VALUE_UINT && id->uint <= INT32_MAX ? (int32_t)id->uint : INT32_MAX;
    }
    if (!list || (di_value_is(probabilities, DI_VALUE_ARRAY) &&
                  !read_logprobs(c, probabilities, &logprobs, &num_logprobs))) {
        return false;
    }
    return di_answer_tokens(a, list, ids->array.count, logprobs, num_logprobs, c->err);
}

static bool push_ready(one_case *c, di_answer *a, const di_value *chunk) {
    const di_value *usage = item(chunk, 1), *fingerprint = item(chunk, 2);
    uint64_t prompt = 0, cached = 0;
    return di_field_uint(usage, "ready", "prompt_tokens", UINT32_MAX, &prompt, NULL, c->err) &&
           di_field_uint(usage, "ready", "prompt_cache_hit_tokens", UINT32_MAX, &cached, NULL,
                         c->err) &&
           di_answer_ready(a, prompt, cached,
                           di_value_is(fingerprint, DI_VALUE_STRING) ? fingerprint->string
                                                                     : (di_str){NULL, 0},
                           c->err);
}

static bool push_finish(one_case *c, di_answer *a, const di_value *reason) {
    static const char *const reasons[] = {"stop", "length", "content_filter"};
    for (int i = 0; i < 3; i++) {
        if (di_value_is_string(reason, reasons[i])) {
            return di_answer_finish(a, (di_answer_reason)i, c->err);
        }
    }
    return bad_chunk(c);
}

static bool push_chunk(one_case *c, di_answer *a, const di_value *chunk) {
    const di_value *kind = item(chunk, 0), *text = item(chunk, 1), *tokens = item(chunk, 2);
    if (di_value_is_string(kind, "ready")) {
        return push_ready(c, a, chunk);
    }
    if (di_value_is_string(kind, "tokens")) {
        return push_tokens(c, a, chunk);
    }
    if (di_value_is_string(kind, "finish")) {
        return push_finish(c, a, text);
    }
    if (!di_value_is_string(kind, "text") || !di_value_is(text, DI_VALUE_STRING)) {
        return bad_chunk(c);
    }
    return di_answer_text(a, text->string.data, text->string.size,
                          di_value_is(tokens, DI_VALUE_UINT) ? tokens->uint : 0, c->err);
}

/* The chunks, then the end of input. A run that stops early is part of the output. */
static bool run_chunks(one_case *c, di_answer *a, const di_value *chunks, const events *e,
                       di_buffer *counts, bool *stopped) {
    di_writer w = di_writer_to(counts, DI_JSON_COMPACT, c->err);
    di_write_open(&w, '[');
    for (size_t i = 0; i <= chunks->array.count && !*stopped; i++) {
        size_t before = e->count;
        *stopped = !(i < chunks->array.count ? push_chunk(c, a, &chunks->array.items[i])
                                             : di_answer_end(a, c->err));
        if (!*stopped) {
            di_write_uint(&w, e->count - before);
        }
    }
    di_write_close(&w, ']');
    return !w.failed && (!*stopped || c->err->code == DI_ERR_ARGUMENT);
}

static bool write_run(one_case *c, const di_answer *a, const events *e, const di_buffer *counts,
                      bool stopped) {
    di_buffer response = {0};
    di_error why = *c->err;
    bool ok = di_answer_response(a, &response, c->err);
    di_write_open(c->w, '{');
    di_write_key(c->w, "events");
    di_write_open(c->w, '[');
    if (e->count > 0) {
        di_write_raw(c->w, (di_str){e->json.data, e->json.size});
    }
    di_write_close(c->w, ']');
    di_write_key(c->w, "counts");
    di_write_raw(c->w, (di_str){counts->data, counts->size});
    di_write_key(c->w, "response");
    di_write_raw(c->w, (di_str){response.data, response.size});
    if (stopped) {
        char text[DI_ERROR_MESSAGE_BYTES + 32];
        snprintf(text, sizeof text, "RuntimeError: %s", why.message);
        di_write_key(c->w, "error");
        di_write_text(c->w, text);
    }
    di_write_close(c->w, '}');
    di_buffer_free(&response);
    return ok;
}

static bool parse_case(one_case *c) {
    const di_value *chunks;
    events e = {0};
    di_buffer counts = {0};
    bool stopped = false;
    if (!read_request(c, NULL) ||
        !di_field_array(c->input, "input", "chunks", DI_NEEDED, &chunks, c->err)) {
        return false;
    }
    di_answer *a = begin_answer(c, &e);
    bool ok = a && run_chunks(c, a, chunks, &e, &counts, &stopped) &&
              write_run(c, a, &e, &counts, stopped);
    di_answer_destroy(a);
    di_buffer_free(&e.json);
    di_buffer_free(&counts);
    return ok;
}

/* ---- splits ---- */

/* The byte at which character `n` of a text begins. */
static size_t byte_of(di_str text, uint64_t n) {
    size_t i = 0;
    for (; i < text.size; i++) {
        if (((unsigned char)text.data[i] & 0xC0) != 0x80 && n-- == 0) {
            return i;
        }
    }
    return text.size;
}

static bool run_cuts(one_case *c, di_answer *a, di_str text, const di_value *cuts) {
    const di_value *reason = di_value_get(c->input, "finish");
    static const di_value stop = {.type = DI_VALUE_STRING, .string = {"stop", 4}};
    size_t at = 0;
    if (!di_answer_ready(a, 10, 0, (di_str){NULL, 0}, c->err)) {
        return false;
    }
    for (size_t i = 0; i <= cuts->array.count && !di_answer_finished(a); i++) {
        const di_value *cut = item(cuts, i);
        size_t to = di_value_is(cut, DI_VALUE_UINT) ? byte_of(text, cut->uint) : text.size;
        to = to < at ? at : to;
        if (!di_answer_text(a, text.data + at, to - at, 1, c->err)) {
            return false;
        }
        at = to;
    }
    return di_answer_finished(a) || push_finish(c, a, reason ? reason : &stop);
}

/* One run: its response without the usage, and the usage. */
static bool run_split(one_case *c, di_str text, const di_value *cuts, di_value *out) {
    di_buffer json = {0};
    if (!di_value_is(cuts, DI_VALUE_ARRAY)) {
        return bad_chunk(c);
    }
    di_answer *a = begin_answer(c, NULL);
    bool ok = a && run_cuts(c, a, text, cuts) && di_answer_response(a, &json, c->err) &&
              di_value_parse(&c->pool, json.data, json.size, DI_VALUE_MAX_DEPTH, out, c->err);
    di_answer_destroy(a);
    di_buffer_free(&json);
    return ok;
}

static bool without_usage(const one_case *c, const di_value *response, di_buffer *out) {
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, c->err);
    di_write_open(&w, '{');
    for (size_t i = 0; i < response->object.count; i++) {
        const di_named_value *m = &response->object.members[i];
        if (!di_str_is(m->name, "usage")) {
            di_write_key(&w, m->name.data);
            di_write_value(&w, &m->value);
        }
    }
    di_write_close(&w, '}');
    return !w.failed;
}

/* Responses that are all the same are written once. */
static bool write_splits(one_case *c, const di_value *runs, size_t count) {
    di_buffer *texts = di_calloc(count, sizeof *texts);
    bool same = true, ok = true;
    if (!texts) {
        return di_fail(c->err, DI_ERR_NO_MEMORY, "no memory for responses");
    }
    for (size_t i = 0; ok && i < count; i++) {
        ok = without_usage(c, &runs[i], &texts[i]);
        same = same && ok && texts[i].size == texts[0].size &&
               memcmp(texts[i].data, texts[0].data, texts[0].size) == 0;
    }
    if (ok) {
        di_write_open(c->w, '{');
        di_write_key(c->w, same ? "response" : "responses");
        if (!same) {
            di_write_open(c->w, '[');
        }
        for (size_t i = 0; i < (same && count ? 1 : count); i++) {
            di_write_raw(c->w, (di_str){texts[i].data, texts[i].size});
        }
        if (!same) {
            di_write_close(c->w, ']');
        }
        di_write_key(c->w, "usage");
        di_write_open(c->w, '[');
        for (size_t i = 0; i < count; i++) {
            di_write_value(c->w, di_value_get(&runs[i], "usage"));
        }
        di_write_close(c->w, ']');
        di_write_close(c->w, '}');
    }
    for (size_t i = 0; i < count; i++) {
        di_buffer_free(&texts[i]);
    }
    di_free(texts);
    return ok;
}

static bool splits_case(one_case *c) {
    const di_value *cuts;
    di_str text = DI_STR("");
    if (!read_request(c, NULL) ||
        !di_field_array(c->input, "input", "cuts", DI_NEEDED, &cuts, c->err) ||
        !di_field_string(c->input, "input", "text", DI_NEEDED, &text, NULL, c->err)) {
        return false;
    }
    size_t count = cuts->array.count;
    if (count == 0) {
        return di_fail(c->err, DI_ERR_FORMAT, "input.cuts is empty");
    }
    di_value *runs = di_pool_take(&c->pool, count, sizeof *runs, c->err);
    for (size_t i = 0; runs && i < count; i++) {
        if (!run_split(c, text, &cuts->array.items[i], &runs[i])) {
            return false;
        }
    }
    return runs && write_splits(c, runs, count);
}

/* ---- round trips ---- */

static void write_history_call(di_writer *w, const di_value *call, size_t i) {
    const di_value *function = di_value_get(call, "function");
    char id[24];
    snprintf(id, sizeof id, "c%zu", i);
    di_write_open(w, '{');
    di_write_key(w, "id");
    di_write_text(w, id);
    di_write_key(w, "type");
    di_write_text(w, "function");
    di_write_key(w, "function");
    di_write_value(w, function);
    di_write_close(w, '}');
}

/* The answer as a client would send it back. */
static void write_history_message(di_writer *w, const di_value *message) {
    const di_value *reasoning = di_value_get(message, "reasoning_content"),
                   *calls = di_value_get(message, "tool_calls");
    di_write_open(w, '{');
    di_write_key(w, "role");
    di_write_text(w, "assistant");
    di_write_key(w, "content");
    di_write_value(w, di_value_get(message, "content"));
    if (reasoning) {
        di_write_key(w, "reasoning_content");
        di_write_value(w, reasoning);
    }
    if (calls) {
        di_write_key(w, "tool_calls");
        di_write_open(w, '[');
        for (size_t i = 0; i < calls->array.count; i++) {
            write_history_call(w, &calls->array.items[i], i);
        }
        di_write_close(w, ']');
    }
    di_write_close(w, '}');
}

/* What follows the answer: results of its calls, or another question. */
static void write_next(di_writer *w, const di_value *message) {
    const di_value *calls = di_value_get(message, "tool_calls");
    for (size_t i = 0; i < (calls ? calls->array.count : 1); i++) {
        char id[24];
        snprintf(id, sizeof id, "c%zu", i);
        di_write_open(w, '{');
        di_write_key(w, "role");
        di_write_text(w, calls ? "tool" : "user");
        if (calls) {
            di_write_key(w, "tool_call_id");
            di_write_text(w, id);
        }
        di_write_key(w, "content");
        di_write_text(w, calls ? "ok" : "next");
        di_write_close(w, '}');
    }
}

static bool extend_body(one_case *c, const di_value *message, di_value *out) {
    const di_value *body = &c->request.body, *messages = di_value_get(body, "messages");
    di_buffer json = {0};
    di_writer w = di_writer_to(&json, DI_JSON_COMPACT, c->err);
    di_write_open(&w, '{');
    for (size_t i = 0; i < body->object.count; i++) {
        const di_named_value *m = &body->object.members[i];
        di_write_key(&w, m->name.data);
        if (!messages || &m->value != messages) {
            di_write_value(&w, &m->value);
            continue;
        }
        di_write_open(&w, '[');
        for (size_t j = 0; j < messages->array.count; j++) {
            di_write_value(&w, &messages->array.items[j]);
        }
        write_history_message(&w, message);
        write_next(&w, message);
        di_write_close(&w, ']');
    }
    di_write_close(&w, '}');
    bool ok = !w.failed &&
              di_value_parse(&c->pool, json.data, json.size, DI_VALUE_MAX_DEPTH, out, c->err);
    di_buffer_free(&json);
    return ok;
}

/* How far the new prompt repeats what the model has seen and written, in characters. */
static void write_sameness(one_case *c, const di_chat_prompt *first, di_str text,
                           const di_chat_prompt *second) {
    size_t eos_size, same = 0;
    const char *eos = di_tokenizer_token_bytes(c->tokens->tok, c->tokens->eos, &eos_size);
    di_buffer sampled = {0};
    if (!di_buffer_append(&sampled, first->text.data, first->text.size, c->err) ||
        !di_buffer_append(&sampled, text.data, text.size, c->err) ||
        !di_buffer_append(&sampled, eos, eos_size, c->err)) {
        c->w->failed = true;
    }
    while (same < sampled.size && same < second->text.size &&
           sampled.data[same] == second->text.data[same]) {
        same++;
    }
    while (same > 0 && same < sampled.size && ((unsigned char)sampled.data[same] & 0xC0) == 0x80) {
        same--;
    }
    di_write_key(c->w, "same_prefix");
    di_write_uint(c->w, characters(sampled.data, same));
    di_write_key(c->w, "sampled_length");
    di_write_uint(c->w, characters(sampled.data, sampled.size));
    di_write_key(c->w, "identical");
    di_write_bool(c->w, same == sampled.size);
    di_buffer_free(&sampled);
}

static bool answer_whole(one_case *c, di_str text, di_value *message) {
    di_buffer json = {0};
    di_value response;
    di_answer *a = begin_answer(c, NULL);
    bool ok = a && di_answer_text(a, text.data, text.size, 1, c->err) &&
              (di_answer_finished(a) || di_answer_finish(a, DI_REASON_STOP, c->err)) &&
              di_answer_response(a, &json, c->err) &&
              di_value_parse(&c->pool, json.data, json.size, DI_VALUE_MAX_DEPTH, &response, c->err);
    di_answer_destroy(a);
    di_buffer_free(&json);
    if (ok) {
        *message = *di_value_get(item(di_value_get(&response, "choices"), 0), "message");
    }
    return ok;
}

static bool roundtrip_case(one_case *c) {
    di_str text = DI_STR("");
    di_value message, body;
    di_chat_prompt first = {0}, second = {0};
    bool ok = read_request(c, NULL) &&
              (c->request.protocol == DI_PROTOCOL_CHAT ||
               di_fail(c->err, DI_ERR_FORMAT, "round trips are for protocol chat only")) &&
              di_field_string(c->input, "input", "text", DI_NEEDED, &text, NULL, c->err) &&
              di_recipe_render(c->tokens, &c->request.conversation, &first, c->err) &&
              answer_whole(c, text, &message) && extend_body(c, &message, &body) &&
              read_request(c, &body) &&
              di_recipe_render(c->tokens, &c->request.conversation, &second, c->err);
    if (ok) {
        di_write_open(c->w, '{');
        di_write_key(c->w, "message");
        write_history_message(c->w, &message);
        di_write_key(c->w, "prompt");
        di_write_string(c->w, (di_str){second.text.data, second.text.size});
        write_sameness(c, &first, text, &second);
        di_write_close(c->w, '}');
    }
    di_chat_prompt_free(&first);
    di_chat_prompt_free(&second);
    return ok;
}

/* ---- numbers ---- */

static bool max_tokens_case(one_case *c) {
    uint64_t prompt = 0, context = 0;
    uint32_t most;
    if (!read_request(c, NULL) ||
        !di_field_uint(c->input, "input", "prompt_tokens", UINT32_MAX, &prompt, NULL, c->err) ||
        !di_field_uint(c->input, "input", "context_limit", UINT32_MAX, &context, NULL, c->err) ||
        !di_request_max_tokens(&c->request, prompt, context, &most, c->err)) {
        return false;
    }
    di_write_open(c->w, '{');
    di_write_key(c->w, "max_tokens");
    di_write_uint(c->w, most);
    di_write_close(c->w, '}');
    return true;
}

static bool image_case(one_case *c, bool with_size) {
    uint64_t width = 0, height = 0;
    int detail = DI_DETAIL_HIGH;
    di_image_plan plan;
    if (!di_field_uint(c->input, "input", "width", UINT32_MAX, &width, NULL, c->err) ||
        !di_field_uint(c->input, "input", "height", UINT32_MAX, &height, NULL, c->err) ||
        !di_field_word(c->input, "input", "detail", DI_OPTIONAL, di_image_details, DI_NUM_DETAILS,
                       &detail, c->err) ||
        !(with_size ? di_image_plan_detail((int64_t)width, (int64_t)height, detail, &plan, c->err)
                    : di_image_plan_make((int64_t)width, (int64_t)height, &plan, c->err))) {
        return false;
    }
    di_write_open(c->w, '{');
    if (with_size) {
        di_write_key(c->w, "width");
        di_write_uint(c->w, (uint64_t)plan.width);
        di_write_key(c->w, "height");
        di_write_uint(c->w, (uint64_t)plan.height);
    }
    di_write_key(c->w, "tokens");
    di_write_uint(c->w, (uint64_t)plan.tokens);
    di_write_close(c->w, '}');
    return true;
}

static bool image_tokens_case(one_case *c) {
    return image_case(c, false);
}

static bool image_size_case(one_case *c) {
    return image_case(c, true);
}

/* ---- cases ---- */

static void write_error(di_writer *w, const di_error *why) {
    di_write_key(w, "error");
    di_write_open(w, '{');
    di_write_key(w, "kind");
    if (why->code == DI_ERR_FORMAT) {
        di_write_text(w, "body");
    } else {
        di_write_text(w, "request");
        di_write_key(w, "status");
        di_write_uint(w, 400);
    }
    di_write_key(w, "message");
    di_write_text(w, why->message);
    di_write_close(w, '}');
}

static bool is_the_clients_fault(di_error_code code) {
    return code == DI_ERR_FORMAT || code == DI_ERR_ARGUMENT || code == DI_ERR_UNSUPPORTED;
}

static bool run_case(one_case *c, const di_value *whole, bool (*run)(one_case *), di_buffer *out,
                     di_error *err) {
    di_buffer output = {0};
    di_error why = {0};
    di_writer result = di_writer_to(&output, DI_JSON_COMPACT, err);
    c->w = &result;
    c->err = &why;
    bool done = run(c);
    if (!done && !is_the_clients_fault(why.code)) {
        *err = why;
    }
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    bool ok = !result.failed && (done || is_the_clients_fault(why.code));
    if (ok) {
        di_write_open(&w, '{');
        di_write_key(&w, "name");
        di_write_value(&w, di_value_get(whole, "name"));
        if (done) {
            di_write_key(&w, "output");
            di_write_raw(&w, (di_str){output.data, output.size});
        } else {
            write_error(&w, &why);
        }
        di_write_close(&w, '}');
        ok = !w.failed && di_buffer_append(out, "\n", 1, err);
    }
    di_buffer_free(&output);
    return ok;
}

bool di_recipe_case(const di_chat_tokens *tokens, bool server, const char *line, size_t size,
                    di_buffer *out, di_error *err) {
    static const char *const kinds[] = {"render",     "parse",        "splits",    "roundtrip",
                                        "max_tokens", "image_tokens", "image_size"};
    static bool (*const runs[])(one_case *) = {render_case,    parse_case,      splits_case,
                                               roundtrip_case, max_tokens_case, image_tokens_case,
                                               image_size_case};
    one_case c = {.tokens = tokens, .server = server, .err = err};
    di_value whole;
    di_str name = DI_STR("");
    int kind = 0;
    bool ok =
        di_value_parse(&c.pool, line, size, DI_VALUE_MAX_DEPTH + 2, &whole, err) &&
        (whole.type == DI_VALUE_OBJECT ||
         di_fail(err, DI_ERR_FORMAT, "is %s, an object expected", di_value_type_name(&whole))) &&
        di_field_string(&whole, "", "name", DI_NEEDED, &name, NULL, err) &&
        di_field_word(&whole, "", "kind", DI_NEEDED, kinds, 7, &kind, err) &&
        di_field_object(&whole, "", "input", DI_NEEDED, &c.input, err) &&
        run_case(&c, &whole, runs[kind], out, err);
    di_request_free(&c.request);
    di_pool_free(&c.pool);
    return ok;
}
