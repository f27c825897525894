/* The small endpoints: models, tokenize, detokenize, health, version, metrics, the page. */
#include <stdio.h>
#include <string.h>

#include "base/version.h"
#include "server/internal.h"
#include "server/page.h"
#include "server/prepare.h"
#include "server/response_store.h"
#include "text/detokenizer.h"
#include "text/recipe/field.h"
#include "text/recipe/json_write.h"

/* Ends an exchange with what was written, or with why it could not be. */
static void reply(di_exchange *x, di_writer *w, int status, di_error *err) {
    if (w->failed) {
        di_exchange_fail(x, err);
        di_buffer_free(w->out);
    } else {
        di_reply_json(&x->reply, status, w->out);
    }
}

/* ---- models -----------------------------------------------------------------------------------*/

static void write_model(const di_server *s, di_writer *w, const char *name) {
    di_write_open(w, '{');
    di_write_key(w, "id");
    di_write_text(w, name);
    di_write_key(w, "object");
    di_write_text(w, "model");
    di_write_key(w, "created");
    di_write_uint(w, s->started);
    di_write_key(w, "owned_by");
    di_write_text(w, "deepinfer");
    di_write_key(w, "root");
    di_write_text(w, s->options.models[0]);
    di_write_key(w, "max_model_len");
    di_write_uint(w, (uint64_t)s->answerer.max_model_len);
    di_write_close(w, '}');
}

static bool may_see(const di_exchange *x, const char *name) {
    return !x->tenant.key || di_key_allows_model(x->tenant.key, di_str_of(name));
}

void di_serve_models(di_exchange *x) {
    const di_server *s = x->server;
    di_error err = {0};
    di_buffer json = {0};
    di_writer w = di_writer_to(&json, DI_JSON_COMPACT, &err);
    di_write_open(&w, '{');
    di_write_key(&w, "object");
    di_write_text(&w, "list");
    di_write_key(&w, "data");
    di_write_open(&w, '[');
    for (size_t i = 0; i < s->options.num_models; i++) {
        if (may_see(x, s->options.models[i])) {
            write_model(s, &w, s->options.models[i]);
        }
    }
    di_write_close(&w, ']');
    di_write_close(&w, '}');
    reply(x, &w, 200, &err);
}

void di_serve_model(di_exchange *x) {
    const di_server *s = x->server;
    for (size_t i = 0; i < s->options.num_models; i++) {
        const char *name = s->options.models[i];
        if (di_str_is(x->rest, name) && may_see(x, name)) {
            di_error err = {0};
            di_buffer json = {0};
            di_writer w = di_writer_to(&json, DI_JSON_COMPACT, &err);
            write_model(s, &w, name);
            reply(x, &w, 200, &err);
            return;
        }
    }
    di_exchange_error(x, 404, "model_not_found", "there is no model %.*s, served is %s",
                      di_str_shown(x->rest, 100), x->rest.data, s->options.models[0]);
}

/* ---- tokenize, detokenize ---------------------------------------------------------------------*/

static bool check_model(di_exchange *x, const di_value *body, di_error *err) {
    di_str model = DI_STR("");
    bool given;
    return di_field_string(body, "", "model", DI_OPTIONAL, &model, &given, err) &&
           (!given || di_prepare_model(x, model, err));
}

static void write_tokens(const di_exchange *x, di_writer *w, const di_ids *ids, bool strings) {
    const di_server *s = x->server;
    di_write_open(w, '{');
    di_write_key(w, "count");
    di_write_uint(w, ids->count);
    di_write_key(w, "max_model_len");
    di_write_uint(w, (uint64_t)s->answerer.max_model_len);
    di_write_key(w, "tokens");
    di_write_open(w, '[');
    for (size_t i = 0; i < ids->count; i++) {
        di_write_uint(w, (uint64_t)ids->data[i]);
    }
    di_write_close(w, ']');
    di_write_key(w, "token_strs");
    if (!strings) {
        di_write_null(w);
    } else {
        di_buffer name = {0};
        di_write_open(w, '[');
        for (size_t i = 0; i < ids->count && !w->failed; i++) {
            name.size = 0;
            w->failed |=
                !di_tokenizer_token_string(s->answerer.chat->tok, ids->data[i], &name, w->err);
            di_write_string(w, (di_str){name.data ? name.data : "", name.size});
        }
        di_write_close(w, ']');
        di_buffer_free(&name);
    }
    di_write_close(w, '}');
}

/* A prompt's text, as completions take it. */
static bool encode_prompt(di_exchange *x, const di_value *body, di_ids *ids, di_error *err) {
    const di_chat_tokens *t = x->server->answerer.chat;
    di_str prompt = DI_STR("");
    bool special = true;
    return di_field_string(body, "", "prompt", DI_NEEDED, &prompt, NULL, err) &&
           di_field_bool(body, "", "add_special_tokens", &special, NULL, err) &&
           (!special || di_str_starts(prompt, "<｜begin▁of▁sentence｜>") ||
            di_ids_push(ids, t->bos, err)) &&
           di_tokenizer_encode(t->tok, prompt.data, prompt.size, DI_ENCODE_ADDED, ids, err);
}

static bool tokenize(di_exchange *x, di_request *r, di_ids *ids, bool *strings, di_error *err) {
    di_value body;
    di_pool pool = {0};
    bool generation_prompt = true;
    bool ok = di_prepare_body(x, &pool, DI_FIELDS_TOKENIZE, &body, err) &&
              check_model(x, &body, err) &&
              di_field_bool(&body, "", "return_token_strs", strings, NULL, err) &&
              di_field_bool(&body, "", "add_generation_prompt", &generation_prompt, NULL, err);
    bool messages = ok && di_value_given(&body, "messages");
    if (ok && messages && di_value_given(&body, "prompt")) {
        ok = di_fail(err, DI_ERR_ARGUMENT, "prompt and messages are given, only one is allowed");
    }
    if (ok && messages && !generation_prompt) {
        ok = di_fail(err, DI_ERR_UNSUPPORTED,
                     "add_generation_prompt is false, but the recipe always opens the answer");
    }
    ok = ok &&
         (messages ? di_prepare_conversation(x, DI_PROTOCOL_CHAT, DI_FIELDS_TOKENIZE, r, ids, err)
                   : encode_prompt(x, &body, ids, err));
    di_pool_free(&pool);
    return ok;
}

void di_serve_tokenize(di_exchange *x) {
    di_request r = {0};
    di_ids ids = {0};
    di_error err = {0};
    bool strings = false;
    if (tokenize(x, &r, &ids, &strings, &err)) {
        di_buffer json = {0};
        di_writer w = di_writer_to(&json, DI_JSON_COMPACT, &err);
        write_tokens(x, &w, &ids, strings);
        reply(x, &w, 200, &err);
    } else {
        di_exchange_fail(x, &err);
    }
    di_ids_free(&ids);
    di_request_free(&r);
}

static bool detokenize(di_exchange *x, di_pool *pool, di_buffer *text, di_error *err) {
    di_value body;
    const di_value *tokens;
    di_ids ids = {0};
    if (!di_prepare_body(x, pool, DI_FIELDS_DETOKENIZE, &body, err) ||
        !check_model(x, &body, err) ||
        !di_field_array(&body, "", "tokens", DI_NEEDED, &tokens, err)) {
        return false;
    }
    bool ok = true;
    int vocab = x->server->answerer.vocab_size;
    for (size_t i = 0; ok && i < tokens->array.count; i++) {
        const di_value *id = &tokens->array.items[i];
        ok = id->type == DI_VALUE_UINT && id->uint < (uint64_t)vocab
                 ? di_ids_push(&ids, (int32_t)id->uint, err)
                 : di_fail(err, DI_ERR_ARGUMENT,
                           "tokens[%zu] is %s, a token id from 0 to %d expected", i,
                           id->type == DI_VALUE_UINT ? "too large" : di_value_type_name(id),
                           vocab - 1);
    }
    ok = ok && di_detokenize(x->server->answerer.chat->tok, ids.data, ids.count, text, err);
    di_ids_free(&ids);
    return ok;
}

void di_serve_detokenize(di_exchange *x) {
    di_pool pool = {0};
    di_buffer text = {0}, json = {0};
    di_error err = {0};
    if (detokenize(x, &pool, &text, &err)) {
        di_writer w = di_writer_to(&json, DI_JSON_COMPACT, &err);
        di_write_open(&w, '{');
        di_write_key(&w, "prompt");
        di_write_string(&w, (di_str){text.data ? text.data : "", text.size});
        di_write_close(&w, '}');
        reply(x, &w, 200, &err);
    } else {
        di_exchange_fail(x, &err);
    }
    di_buffer_free(&text);
    di_pool_free(&pool);
}

/* ---- state ------------------------------------------------------------------------------------*/

static void say_status(di_exchange *x, int status, const char *text) {
    di_error err = {0};
    di_buffer json = {0};
    di_writer w = di_writer_to(&json, DI_JSON_COMPACT, &err);
    di_write_open(&w, '{');
    di_write_key(&w, "status");
    di_write_text(&w, text);
    di_write_close(&w, '}');
    reply(x, &w, status, &err);
}

/* The process lives; that it drains is no reason to kill it. */
void di_serve_health(di_exchange *x) {
    bool live = atomic_load(&x->server->state) == DI_SERVER_LIVE;
    say_status(x, 200, live ? "ok" : "draining");
}

void di_serve_ready(di_exchange *x) {
    bool live = atomic_load(&x->server->state) == DI_SERVER_LIVE;
    if (live && !di_quota_healthy(x->server->quota, NULL)) {
        say_status(x, 503, "the quota journal cannot be written");
        return;
    }
    di_engine *engine = x->server->answerer.engine;
    if (live && engine && !di_engine_usable(engine, NULL)) {
        say_status(x, 503, "the device has failed");
        return;
    }
    say_status(x, live ? 200 : 503, live ? "ready" : "draining");
}

void di_serve_version(di_exchange *x) {
    di_error err = {0};
    di_buffer json = {0};
    di_writer w = di_writer_to(&json, DI_JSON_COMPACT, &err);
    di_write_open(&w, '{');
    di_write_key(&w, "version");
    di_write_text(&w, di_version_string());
    di_write_close(&w, '}');
    reply(x, &w, 200, &err);
}

void di_serve_metrics(di_exchange *x) {
    di_server *s = x->server;
    di_error err = {0};
    di_buffer text = {0};
    if (s->answerer.engine) {
        di_metrics_poll(s->metrics, s->answerer.engine);
    }
    if (s->stored) {
        size_t count, bytes;
        di_response_store_usage(s->stored, &count, &bytes);
        di_metrics_stored(s->metrics, count, bytes, atomic_load(&s->num_background));
    }
    di_metrics_log_lost(s->metrics, di_access_log_lost(s->log));
    di_metrics_journal(s->metrics, di_quota_healthy(s->quota, NULL));
    if (!di_metrics_write(s->metrics, &text, &err)) {
        di_buffer_free(&text);
        di_exchange_fail(x, &err);
        return;
    }
    di_reply_json(&x->reply, 200, &text);
    x->reply.type = DI_METRICS_TYPE;
}

/* ---- the page ---------------------------------------------------------------------------------*/

void di_serve_page(di_exchange *x) {
    const di_page_file *file = di_page_find(di_str_of(x->path));
    di_reply *r = &x->reply;
    if (!file) {
        di_exchange_error(x, 404, NULL, "there is nothing at %.200s", x->path);
        return;
    }
    const char *known = x->header ? x->header(x->context, "If-None-Match") : NULL;
    bool same = known && strcmp(known, file->etag) == 0;
    r->status = same ? 304 : 200;
    r->type = file->type;
    r->fixed = (di_str){file->data, same ? 0 : file->size};
    di_reply_header(r, "ETag", "%s", file->etag);
    di_reply_header(r, "Cache-Control", "%s", DI_PAGE_CACHE_CONTROL);
    di_reply_header(r, "Content-Security-Policy", "%s", DI_PAGE_CSP);
    di_reply_header(r, "X-Content-Type-Options", "nosniff");
    di_reply_header(r, "Referrer-Policy", "no-referrer");
}
