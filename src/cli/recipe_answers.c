/* Cases about answers: what a model writes, whole, in chunks and cut anywhere, and conversations
 * that go on behind it. */
#include <stdio.h>

#include "base/alloc.h"
#include "cli/recipe_case.h"
#include "text/recipe/answer.h"
#include "text/recipe/field.h"
#include "text/recipe/json_write.h"
#include "text/recipe/render.h"

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

bool di_recipe_parse_case(one_case *c) {
    const di_value *chunks;
    events e = {0};
    di_buffer counts = {0};
    bool stopped = false;
    if (!di_recipe_read_request(c, NULL) ||
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

bool di_recipe_splits_case(one_case *c) {
    const di_value *cuts;
    di_str text = DI_STR("");
    if (!di_recipe_read_request(c, NULL) ||
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
    di_write_uint(c->w, di_recipe_characters(sampled.data, same));
    di_write_key(c->w, "sampled_length");
    di_write_uint(c->w, di_recipe_characters(sampled.data, sampled.size));
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

bool di_recipe_roundtrip_case(one_case *c) {
    di_str text = DI_STR("");
    di_value message, body;
    di_chat_prompt first = {0}, second = {0};
    bool ok = di_recipe_read_request(c, NULL) &&
              (c->request.protocol == DI_PROTOCOL_CHAT ||
               di_fail(c->err, DI_ERR_FORMAT, "round trips are for protocol chat only")) &&
              di_field_string(c->input, "input", "text", DI_NEEDED, &text, NULL, c->err) &&
              di_recipe_render(c->tokens, &c->request.conversation, &first, c->err) &&
              answer_whole(c, text, &message) && extend_body(c, &message, &body) &&
              di_recipe_read_request(c, &body) &&
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
