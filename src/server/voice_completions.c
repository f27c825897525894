/* Answers of /v1/completions: the engine's text as it is, log-probabilities in the older form of
 * four parallel lists. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "server/internal.h"
#include "text/recipe/json_write.h"

/* ---- log-probabilities ------------------------------------------------------------------------*/

/* A token's text; bytes that are no characters are spelled \xNN. */
static void write_token(di_writer *w, const di_tokenizer *tok, int32_t id, bool key) {
    size_t size;
    const char *bytes = di_tokenizer_token_bytes(tok, id, &size);
    char spelled[4 * 256 + 8];
    size_t n = 0;
    if (di_utf8_valid(bytes, size, NULL) && size < sizeof spelled) {
        memcpy(spelled, bytes, size);
        n = size;
    } else {
        n = (size_t)snprintf(spelled, sizeof spelled, "bytes:");
        for (size_t i = 0; i < size && n + 5 < sizeof spelled; i++) {
            n += (size_t)snprintf(spelled + n, 5, "\\x%02x", (unsigned char)bytes[i]);
        }
    }
    spelled[n] = 0;
    if (key) {
        di_write_key(w, spelled);
    } else {
        di_write_string(w, (di_str){spelled, n});
    }
}

static size_t count_characters(const di_tokenizer *tok, int32_t id) {
    size_t size, n = 0;
    const char *bytes = di_tokenizer_token_bytes(tok, id, &size);
    for (size_t i = 0; i < size; i++) {
        n += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    }
    return n;
}

typedef struct scored_tokens {
    const di_token_info *infos;
    size_t count;
    bool first_unknown; /* the first of a prompt has no probability */
} scored_tokens;

static void write_top(di_writer *w, const di_tokenizer *tok, const di_token_info *info) {
    di_write_open(w, '{');
    bool chosen = false;
    for (int i = 0; i < info->num_top; i++) {
        chosen |= info->top[i].token_id == info->chosen.token_id;
        write_token(w, tok, info->top[i].token_id, true);
        di_write_real(w, (double)info->top[i].logprob);
    }
    if (!chosen) {
        write_token(w, tok, info->chosen.token_id, true);
        di_write_real(w, (double)info->chosen.logprob);
    }
    di_write_close(w, '}');
}

typedef enum list_kind { LIST_TOKENS, LIST_LOGPROBS, LIST_TOPS, LIST_OFFSETS } list_kind;

static void write_entry(di_writer *w, const di_tokenizer *tok, list_kind kind,
                        const di_token_info *info, bool unknown, size_t offset) {
    switch (kind) {
    case LIST_TOKENS:
        write_token(w, tok, info->chosen.token_id, false);
        break;
    case LIST_LOGPROBS:
        if (unknown) {
            di_write_null(w);
        } else {
            di_write_real(w, (double)info->chosen.logprob);
        }
        break;
    case LIST_TOPS:
        if (unknown || info->num_top == 0) {
            di_write_null(w);
        } else {
            write_top(w, tok, info);
        }
        break;
    case LIST_OFFSETS:
        di_write_uint(w, offset);
        break;
    }
}

/* Appends the entries of one list, behind those that may be there. */
static bool add_entries(di_buffer *list, const di_tokenizer *tok, list_kind kind,
                        const scored_tokens *s, size_t offset, di_error *err) {
    di_writer w = di_writer_to(list, DI_JSON_COMPACT, err);
    w.comma = list->size > 0;
    for (size_t i = 0; i < s->count; i++) {
        write_entry(&w, tok, kind, &s->infos[i], s->first_unknown && i == 0, offset);
        offset += count_characters(tok, s->infos[i].chosen.token_id);
    }
    return !w.failed;
}

static bool add_scored(di_generation *g, di_generation_choice *c, const scored_tokens *s,
                       di_error *err) {
    const di_tokenizer *tok = g->server->answerer.chat->tok;
    for (int kind = LIST_TOKENS; kind <= LIST_OFFSETS; kind++) {
        if (!add_entries(&c->logprobs[kind], tok, (list_kind)kind, s, c->characters, err)) {
            return false;
        }
    }
    for (size_t i = 0; i < s->count; i++) {
        c->characters += count_characters(tok, s->infos[i].chosen.token_id);
    }
    return true;
}

static bool add_logprobs(di_generation *g, di_generation_choice *c, const di_output *out,
                         size_t count, di_error *err) {
    if (g->echo && out->prompt_logprobs) {
        scored_tokens prompt = {out->prompt_logprobs, (size_t)out->prompt_tokens, true};
        if (!add_scored(g, c, &prompt, err)) {
            return false;
        }
    }
    scored_tokens answer = {out->logprobs, count, false};
    return add_scored(g, c, &answer, err);
}

static void write_logprobs(di_writer *w, const di_generation_choice *c) {
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    di_write_key(w, "logprobs");
    if (c->logprobs[LIST_TOKENS].size == 0) {
        di_write_null(w);
        return;
    }
    di_write_open(w, '{');
    for (int kind = LIST_TOKENS; kind <= LIST_OFFSETS; kind++) {
        di_write_key(w, names[kind]);
        di_write_open(w, '[');
        di_write_raw(w, (di_str){c->logprobs[kind].data, c->logprobs[kind].size});
        di_write_close(w, ']');
    }
    di_write_close(w, '}');
}

/* ---- objects ----------------------------------------------------------------------------------*/

static void write_head(const di_generation *g, di_writer *w) {
    di_write_open(w, '{');
    di_write_key(w, "id");
    di_write_text(w, g->id);
    di_write_key(w, "object");
    di_write_text(w, "text_completion");
    di_write_key(w, "created");
    di_write_uint(w, g->created);
    di_write_key(w, "model");
    di_write_string(w, g->model);
    di_write_key(w, "system_fingerprint");
    di_write_text(w, g->server->fingerprint);
    di_write_key(w, "choices");
    di_write_open(w, '[');
}

static void write_usage(const di_generation *g, di_writer *w) {
    uint64_t prompt = (uint64_t)g->prompt_tokens, answer = (uint64_t)g->completion_tokens;
    di_write_key(w, "usage");
    di_write_open(w, '{');
    di_write_key(w, "prompt_tokens");
    di_write_uint(w, prompt);
    di_write_key(w, "completion_tokens");
    di_write_uint(w, answer);
    di_write_key(w, "total_tokens");
    di_write_uint(w, prompt + answer);
    di_write_key(w, "prompt_tokens_details");
    di_write_open(w, '{');
    di_write_key(w, "cached_tokens");
    di_write_uint(w, (uint64_t)g->cached_tokens);
    di_write_close(w, '}');
    di_write_close(w, '}');
}

static void write_choice(di_writer *w, const di_generation_choice *c, int index) {
    di_write_open(w, '{');
    di_write_key(w, "index");
    di_write_uint(w, (uint64_t)index);
    di_write_key(w, "text");
    di_write_string(w, (di_str){c->text.data ? c->text.data : "", c->text.size});
    write_logprobs(w, c);
    di_write_key(w, "finish_reason");
    if (c->reason == DI_FINISH_NONE) {
        di_write_null(w);
    } else {
        di_write_text(w, di_finish_reason_name(c->reason));
    }
    di_write_close(w, '}');
}

static bool send_chunk(di_generation *g, di_generation_choice *c, int index, di_error *err) {
    di_buffer json = {0};
    di_writer w = di_writer_to(&json, DI_JSON_COMPACT, err);
    write_head(g, &w);
    if (c) {
        write_choice(&w, c, index);
    }
    di_write_close(&w, ']');
    if (!c || g->usage_always) {
        write_usage(g, &w);
    } else if (g->include_usage) {
        di_write_key(&w, "usage");
        di_write_null(&w);
    }
    di_write_close(&w, '}');
    bool ok = !w.failed && di_stream_event(&g->bytes, NULL, json.data, json.size, err);
    di_buffer_free(&json);
    return ok;
}

/* ---- the voice --------------------------------------------------------------------------------*/

static bool take(di_generation *g, int choice, const di_output *out, di_error *err) {
    di_generation_choice *c = &g->choices[choice];
    bool last = out->finish_reason != DI_FINISH_NONE;
    bool ending = out->finish_reason == DI_FINISH_STOP && out->stop_token_id >= 0;
    size_t count = out->num_token_ids - (ending && out->num_token_ids > 0);
    if (!di_buffer_append(&c->text, out->text, out->text_bytes, err) ||
        (out->logprobs && !add_logprobs(g, c, out, count, err))) {
        return false;
    }
    c->answered = last;
    c->reason = out->finish_reason;
    if (!g->stream || (c->text.size == 0 && !out->logprobs && !last)) {
        return true;
    }
    bool ok = send_chunk(g, c, choice, err);
    c->text.size = 0;
    for (int kind = LIST_TOKENS; kind <= LIST_OFFSETS; kind++) {
        c->logprobs[kind].size = 0;
    }
    return ok;
}

static bool done(di_generation *g, di_error *err) {
    return (!g->include_usage || send_chunk(g, NULL, 0, err)) &&
           di_stream_text(&g->bytes, "data: [DONE]\n\n", err);
}

static bool whole(const di_generation *g, di_buffer *out, di_error *err) {
    di_writer w = di_writer_to(out, DI_JSON_COMPACT, err);
    write_head(g, &w);
    for (int i = 0; i < g->n * g->num_prompts; i++) {
        write_choice(&w, &g->choices[i], i);
    }
    di_write_close(&w, ']');
    write_usage(g, &w);
    di_write_close(&w, '}');
    return !w.failed;
}

static bool fail(di_generation *g, const di_api_error *error, di_error *err) {
    di_buffer json = {0};
    bool ok = di_api_error_write(g->shape, error, g->request_id, &json, err) &&
              di_stream_event(&g->bytes, NULL, json.data, json.size, err);
    di_buffer_free(&json);
    return ok;
}

const di_voice di_completions_voice = {.take = take, .done = done, .whole = whole, .fail = fail};
