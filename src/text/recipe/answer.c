/* Answers: see answer.h. Tokens become text, text goes through the parser, pieces go to the
 * protocol's voice. */
#include "text/recipe/answer.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "text/recipe/answering.h"

static bool take_piece(void *context, const di_piece *piece, di_error *err);

di_answer *di_answer_create(const di_answer_setup *setup, di_error *err) {
    static const di_protocol_voice *const voices[] = {&di_chat_voice, &di_messages_voice,
                                                      &di_responses_voice};
    di_answer *a = di_calloc(1, sizeof *a);
    if (!a) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for an answer");
        return NULL;
    }
    const di_parsing *how = &setup->request->parsing;
    a->s = *setup;
    a->completed = setup->created;
    a->voice = voices[setup->request->protocol];
    a->thinks = setup->request->conversation.thinking;
    a->starts_thinking =
        how->stage == DI_STAGE_REASONING_START || how->stage == DI_STAGE_REASONING_CONTINUATION;
    di_detokenizer_init(&a->detokenizer, setup->tok);
    a->parser = di_parser_create(how, take_piece, a, err);
    if (!a->parser) {
        di_answer_destroy(a);
        return NULL;
    }
    return a;
}

void di_answer_destroy(di_answer *a) {
    if (!a) {
        return;
    }
    for (size_t i = 0; i < a->num_texts; i++) {
        di_buffer_free(&a->texts[i].logprobs);
    }
    for (size_t i = 0; i < a->num_calls; i++) {
        di_buffer_free(&a->calls[i].name);
        di_buffer_free(&a->calls[i].arguments);
    }
    di_buffer *const buffers[] = {
        &a->fingerprint,        &a->waiting_logprobs, &a->reasoning, &a->content,
        &a->reasoning_logprobs, &a->content_logprobs, &a->json,      &a->head};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        di_buffer_free(buffers[i]);
    }
    di_parser_destroy(a->parser);
    di_ids_free(&a->waiting);
    di_free(a->texts);
    di_free(a->calls);
    di_free(a);
}

/* ---- events ---- */

di_writer di_event_begin(di_answer *a, di_error *err) {
    a->json.size = 0;
    return di_writer_to(&a->json, DI_JSON_COMPACT, err);
}

bool di_event_send(di_answer *a, di_writer *w, const char *name, di_error *err) {
    return !w->failed &&
           (!a->s.event || a->s.event(a->s.context, name, a->json.data, a->json.size, err));
}

void di_write_logprobs(di_writer *w, di_str entries) {
    di_write_open(w, '[');
    if (entries.size > 0) {
        di_write_raw(w, entries);
    }
    di_write_close(w, ']');
}

static bool open_stream(di_answer *a, di_error *err) {
    if (a->opened) {
        return true;
    }
    a->opened = true;
    return a->voice->open(a, err);
}

bool di_answer_ready(di_answer *a, uint64_t prompt_tokens, uint64_t cached_tokens,
                     di_str fingerprint, di_error *err) {
    if (a->ending != DI_ENDING_NONE || a->failed) {
        return di_fail(err, DI_ERR_ARGUMENT, "stream processor has finished");
    }
    if (a->opened) {
        return true;
    }
    a->prompt_tokens = prompt_tokens;
    a->cached_tokens = cached_tokens < prompt_tokens ? cached_tokens : prompt_tokens;
    return (!fingerprint.data ||
            di_buffer_append(&a->fingerprint, fingerprint.data, fingerprint.size, err)) &&
           open_stream(a, err);
}

/* ---- pieces ---- */

static di_answer_text_info *info_of(const di_answer *a, size_t number) {
    size_t i = number - a->first_text;
    return number >= a->first_text && i < a->num_texts ? &a->texts[i] : NULL;
}

/* Texts before the one whose piece came out are not asked for any more. */
static void forget_texts(di_answer *a, size_t before) {
    size_t gone = before > a->first_text ? before - a->first_text : 0;
    gone = gone < a->num_texts ? gone : a->num_texts;
    if (gone < 64 && gone < a->num_texts) {
        return; /* moving them one by one would cost their square */
    }
    for (size_t i = 0; i < gone; i++) {
        di_buffer_free(&a->texts[i].logprobs);
    }
    memmove(a->texts, a->texts + gone, (a->num_texts - gone) * sizeof *a->texts);
    a->num_texts -= gone;
    a->first_text += gone;
}

static bool keep(di_buffer *text, di_buffer *logprobs, const di_piece *piece, di_str entries,
                 di_error *err) {
    return di_buffer_append(text, piece->text.data, piece->text.size, err) &&
           (entries.size == 0 ||
            ((logprobs->size == 0 || di_buffer_append(logprobs, ",", 1, err)) &&
             di_buffer_append(logprobs, entries.data, entries.size, err)));
}

static bool begin_call(di_answer *a, di_str name, di_error *err) {
    di_answer_call *moved = di_grow(a->calls, a->num_calls, &a->call_capacity, sizeof *moved);
    if (!moved) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a call");
    }
    a->calls = moved;
    di_answer_call *call = &a->calls[a->num_calls];
    char tail[DI_CALL_ID_TAIL + 1] = "";
    *call = (di_answer_call){.custom = DI_CUSTOM_OTHER};
    a->s.call_id(a->s.context, tail);
    snprintf(call->id, sizeof call->id, "call_%02zu_%s", a->num_calls, tail);
    const di_conversation *c = &a->s.request->conversation;
    for (size_t i = 0; i < c->tool_count && !call->tool; i++) {
        call->tool = di_str_equal(c->tools[i].name, name) ? &c->tools[i] : NULL;
    }
    if (call->tool && call->tool->custom) {
        call->custom = DI_CUSTOM_OPENING;
    }
    a->num_calls++;
    return di_buffer_append(&call->name, name.data, name.size, err) && a->voice->call(a, call, err);
}

static bool send_arguments(di_answer *a, di_answer_call *call, di_str delta, di_error *err) {
    return a->voice->arguments(a, call, delta, err);
}

/* See di_custom_state. */
static bool custom_arguments(di_answer *a, di_answer_call *call, const di_piece *piece,
                             di_error *err) {
    static const char opening[] = "{\"input\": \"";
    di_buffer *input = &call->arguments;
    bool ok;
    switch (call->custom) {
    case DI_CUSTOM_OPENING:
        ok = di_buffer_append(input, piece->text.data, piece->text.size, err);
        if (ok && input->size <= sizeof opening - 1 &&
            memcmp(input->data, opening, input->size) == 0) {
            if (input->size == sizeof opening - 1) {
                call->custom = DI_CUSTOM_TEXT;
                input->size = 0;
            }
            return true;
        }
        call->custom = DI_CUSTOM_OTHER;
        return ok && send_arguments(a, call, di_buffer_str(input), err);
    case DI_CUSTOM_TEXT:
        if (piece->kind != DI_PIECE_VALUE) {
            call->custom = DI_CUSTOM_CLOSED;
            return true;
        }
        return di_buffer_append(input, piece->raw.data, piece->raw.size, err) &&
               send_arguments(a, call, piece->raw, err);
    case DI_CUSTOM_CLOSED:
        return true;
    case DI_CUSTOM_OTHER:
        break;
    }
    return di_buffer_append(input, piece->text.data, piece->text.size, err) &&
           send_arguments(a, call, piece->text, err);
}

static bool take_piece(void *context, const di_piece *piece, di_error *err) {
    di_answer *a = context;
    di_answer_text_info *info = info_of(a, piece->in_text);
    di_str entries = info ? di_buffer_str(&info->logprobs) : DI_STR("");
    bool ok = false;
    switch (piece->kind) {
    case DI_PIECE_REASONING:
        if (a->s.request->server && info && !info->counted) {
            info->counted = true;
            a->reasoning_tokens += info->tokens;
        }
        ok = keep(&a->reasoning, &a->reasoning_logprobs, piece, entries, err) &&
             a->voice->reasoning(a, piece->text, entries, err);
        a->has_reasoning = true;
        break;
    case DI_PIECE_CONTENT:
        ok = keep(&a->content, &a->content_logprobs, piece, entries, err) &&
             a->voice->content(a, piece->text, entries, err);
        a->has_content = true;
        break;
    case DI_PIECE_CALL:
        ok = begin_call(a, piece->text, err);
        break;
    case DI_PIECE_ARGUMENTS:
    case DI_PIECE_VALUE:
    case DI_PIECE_QUOTE:
        ok = custom_arguments(a, &a->calls[a->num_calls - 1], piece, err);
        break;
    }
    forget_texts(a, piece->in_text);
    return ok;
}

/* ---- the end ---- */

static bool count_reasoning(di_answer *a, di_error *err) {
    if (a->s.request->server || a->reasoning.size == 0) {
        return true; /* counted by the tokens that came */
    }
    di_ids ids = {0};
    bool ok = di_tokenizer_encode(a->s.tok, a->reasoning.data, a->reasoning.size, DI_ENCODE_ADDED,
                                  &ids, err);
    a->reasoning_tokens = ids.count;
    di_ids_free(&ids);
    return ok;
}

static bool end_with(di_answer *a, di_ending ending, di_error *err) {
    a->ending = ending;
    return open_stream(a, err) && count_reasoning(a, err) && a->voice->finish(a, err);
}

/* A text goes in; a stop text in it ends the answer at once. */
static bool push_text(di_answer *a, const char *text, size_t size, di_text_source source,
                      uint64_t tokens, di_buffer *logprobs, di_error *err) {
    di_answer_text_info *moved = di_grow(a->texts, a->num_texts, &a->text_capacity, sizeof *moved);
    if (!moved) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the texts of an answer");
    }
    a->texts = moved;
    a->texts[a->num_texts++] = (di_answer_text_info){.logprobs = *logprobs, .tokens = tokens};
    *logprobs = (di_buffer){0};
    a->completion_tokens += tokens;
    if (!open_stream(a, err) ||
        !di_parser_push(a->parser, text, size, source, a->first_text + a->num_texts - 1, err)) {
        return false;
    }
    return di_parser_stop(a->parser) < 0 || end_with(a, DI_ENDING_STOP_TEXT, err);
}

static bool check_open(const di_answer *a, di_error *err) {
    return (a->ending == DI_ENDING_NONE && !a->failed) ||
           di_fail(err, DI_ERR_ARGUMENT, "stream processor has finished");
}

bool di_answer_text(di_answer *a, const char *text, size_t size, uint64_t tokens, di_error *err) {
    di_buffer none = {0};
    if (!check_open(a, err)) {
        return false;
    }
    if (!di_utf8_valid(text, size, NULL)) {
        return di_fail(err, DI_ERR_ARGUMENT, "a text of an answer is not valid UTF-8");
    }
    a->failed = !push_text(a, text, size, DI_SOURCE_TEXT, tokens, &none, err);
    return !a->failed;
}

/* ---- tokens ---- */

/* A token that is no text of its own is spelled by its bytes. */
static void write_token(di_writer *w, const di_tokenizer *tok, int32_t id, double logprob) {
    size_t size;
    const char *bytes = di_tokenizer_token_bytes(tok, id, &size);
    di_write_key(w, "token");
    if (di_utf8_valid(bytes, size, NULL)) {
        di_write_string(w, (di_str){bytes, size});
    } else {
        char spelled[4 * 256 + 1];
        size_t n = 0;
        for (size_t i = 0; i < size && n + 4 < sizeof spelled; i++, n += 4) {
            snprintf(spelled + n, 5, "\\x%02x", (unsigned char)bytes[i]);
        }
        di_write_string(w, (di_str){spelled, n});
    }
    di_write_key(w, "logprob");
    di_write_real(w, logprob);
    di_write_key(w, "bytes");
    di_write_open(w, '[');
    for (size_t i = 0; i < size; i++) {
        di_write_uint(w, (unsigned char)bytes[i]);
    }
    di_write_close(w, ']');
}

static bool add_logprob(di_answer *a, int32_t id, const di_logprob_entry *entry, di_error *err) {
    di_writer w = di_writer_to(&a->waiting_logprobs, DI_JSON_COMPACT, err);
    w.comma = a->waiting_logprobs.size > 0;
    di_write_open(&w, '{');
    write_token(&w, a->s.tok, id, entry->logprob);
    di_write_key(&w, "top_logprobs");
    di_write_open(&w, '[');
    for (size_t i = 0; i < entry->top_count; i++) {
        di_write_open(&w, '{');
        write_token(&w, a->s.tok, entry->top[i].id, entry->top[i].logprob);
        di_write_close(&w, '}');
    }
    di_write_close(&w, ']');
    di_write_close(&w, '}');
    return !w.failed;
}

static bool is_whole(const di_buffer *text) {
    static const char replacement[] = "\xEF\xBF\xBD";
    return text->size > 0 &&
           (text->size < 3 || memcmp(text->data + text->size - 3, replacement, 3) != 0);
}

/* Gives what waits to the parser if it is text by now; `forced`: whatever it is. */
static bool push_waiting(di_answer *a, bool forced, di_text_source source, di_error *err) {
    di_buffer text = {0};
    bool ok = true;
    if (a->waiting.count > 0) {
        ok = di_detokenize(a->s.tok, a->waiting.data, a->waiting.count, &text, err);
        if (ok && (is_whole(&text) || (forced && text.size > 0))) {
            ok = push_text(a, text.data, text.size, source, a->waiting.count, &a->waiting_logprobs,
                           err);
            di_buffer_free(&a->waiting_logprobs);
            a->waiting.count = 0;
        }
    }
    di_buffer_free(&text);
    return ok;
}

/* As deepseek-recipe does it: ids gather until their text does not end in U+FFFD; control tokens
 * stand for themselves. */
static bool push_ids(di_answer *a, const int32_t *ids, size_t count,
                     const di_logprob_entry *logprobs, di_error *err) {
    for (size_t i = 0; i < count && a->ending == DI_ENDING_NONE; i++) {
        bool added = di_tokenizer_is_added(a->s.tok, ids[i]);
        if ((added && !push_waiting(a, true, DI_SOURCE_PLAIN, err)) ||
            a->ending != DI_ENDING_NONE) {
            return a->ending != DI_ENDING_NONE;
        }
        if (!di_ids_push(&a->waiting, ids[i], err) ||
            (logprobs && !add_logprob(a, ids[i], &logprobs[i], err)) ||
            (added && !push_waiting(a, true, DI_SOURCE_CONTROL, err))) {
            return false;
        }
    }
    return a->ending != DI_ENDING_NONE || push_waiting(a, false, DI_SOURCE_PLAIN, err);
}

static bool push_exactly(di_answer *a, di_buffer *text, di_text_source source, di_error *err) {
    bool ok = text->size == 0 || push_text(a, text->data, text->size, source, a->waiting_count,
                                           &a->waiting_logprobs, err);
    if (text->size > 0) {
        di_buffer_free(&a->waiting_logprobs);
        a->waiting_count = 0;
        text->size = 0;
    }
    return ok;
}

/* Our own way: no more is held back than the start of a character, and nothing is lost. */
static bool push_ids_exactly(di_answer *a, const int32_t *ids, size_t count,
                             const di_logprob_entry *logprobs, di_error *err) {
    di_buffer text = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < count && a->ending == DI_ENDING_NONE; i++) {
        bool added = di_tokenizer_is_added(a->s.tok, ids[i]);
        if (added) { /* what is held can never become a character */
            ok = di_detokenizer_finish(&a->detokenizer, &text, err) &&
                 push_exactly(a, &text, DI_SOURCE_PLAIN, err);
        }
        if (!ok || a->ending != DI_ENDING_NONE) {
            break;
        }
        a->waiting_count++;
        ok = (!logprobs || add_logprob(a, ids[i], &logprobs[i], err)) &&
             di_detokenizer_push(&a->detokenizer, ids[i], &text, err) &&
             push_exactly(a, &text, added ? DI_SOURCE_CONTROL : DI_SOURCE_PLAIN, err);
    }
    di_buffer_free(&text);
    return ok;
}

bool di_answer_tokens(di_answer *a, const int32_t *ids, size_t count,
                      const di_logprob_entry *logprobs, size_t num_logprobs, di_error *err) {
    if (!check_open(a, err)) {
        return false;
    }
    if (logprobs && num_logprobs != count) {
        a->failed = true;
        return di_fail(err, DI_ERR_ARGUMENT,
                       "invalid log probabilities: %zu log probabilities for %zu token IDs",
                       num_logprobs, count);
    }
    a->failed = !(a->s.request->server ? push_ids_exactly(a, ids, count, logprobs, err)
                                       : push_ids(a, ids, count, logprobs, err));
    return !a->failed;
}

/* A character that broke off, in server mode. */
static bool push_rest(di_answer *a, di_error *err) {
    di_buffer text = {0};
    bool ok = di_detokenizer_finish(&a->detokenizer, &text, err);
    if (ok && a->waiting_count > 0) {
        ok = push_text(a, text.data ? text.data : "", text.size, DI_SOURCE_PLAIN, a->waiting_count,
                       &a->waiting_logprobs, err);
        a->waiting_count = 0;
    }
    di_buffer_free(&text);
    return ok;
}

static bool finish(di_answer *a, di_ending ending, bool complete, di_error *err) {
    if (!open_stream(a, err) || (a->s.request->server && !push_rest(a, err))) {
        return false;
    }
    if (a->ending != DI_ENDING_NONE) {
        return true; /* a stop text was in the rest */
    }
    if (!di_parser_finish(a->parser, complete, err)) {
        return false;
    }
    if (complete && ending == DI_ENDING_STOP && a->num_calls > 0) {
        ending = DI_ENDING_CALLS;
    }
    return end_with(a, ending, err);
}

bool di_answer_finish(di_answer *a, di_answer_reason reason, di_error *err) {
    static const di_ending endings[] = {DI_ENDING_STOP, DI_ENDING_LENGTH, DI_ENDING_FILTER};
    if (!check_open(a, err)) {
        return false;
    }
    a->failed = !finish(a, endings[reason], reason == DI_REASON_STOP, err);
    return !a->failed;
}

bool di_answer_end(di_answer *a, di_error *err) {
    if (a->ending != DI_ENDING_NONE) {
        return true;
    }
    if (a->failed) {
        return check_open(a, err);
    }
    a->failed = !finish(a, DI_ENDING_STOP, false, err);
    return !a->failed;
}

bool di_answer_finished(const di_answer *a) {
    return a->ending != DI_ENDING_NONE;
}

bool di_answer_response(const di_answer *a, di_buffer *out, di_error *err) {
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    a->voice->response(a, &w);
    return !w.failed;
}

bool di_answer_report(const di_answer *a, const char *status, const char *error, di_buffer *out,
                      di_error *err) {
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    di_responses_report(a, status, error, &w);
    return !w.failed;
}

void di_answer_set_completed(di_answer *a, uint64_t seconds) {
    a->completed = seconds;
}

void di_answer_get_status(const di_answer *a, di_answer_status *status) {
    *status = (di_answer_status){
        .completion_tokens = a->completion_tokens,
        .reasoning_tokens = a->reasoning_tokens,
        .calls = a->num_calls,
        .stopped = a->ending != DI_ENDING_NONE && a->ending != DI_ENDING_LENGTH,
        .length = a->ending == DI_ENDING_LENGTH,
        .repairs = di_parser_repairs(a->parser),
    };
}

bool di_answer_error(di_answer *a, const char *message, di_buffer *out, di_error *err) {
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    di_write_open(&w, '{');
    di_write_key(&w, "type");
    di_write_text(&w, "error");
    di_write_key(&w, "code");
    di_write_text(&w, "server_error");
    di_write_key(&w, "message");
    di_write_text(&w, message);
    di_write_key(&w, "param");
    di_write_null(&w);
    di_write_key(&w, "sequence_number");
    di_write_uint(&w, a->sequence++);
    di_write_close(&w, '}');
    return !w.failed;
}
