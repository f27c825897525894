/* /v1/chat/completions, /v1/messages, /v1/messages/count_tokens, /v1/responses: bodies to prompts
 * by the recipe, parameters to the engine, answers back by the recipe (voice_recipe.c). */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/exchange.h"
#include "server/fields.h"
#include "server/internal.h"
#include "server/prepare.h"
#include "server/recipe_answers.h"
#include "text/recipe/field.h"
#include "text/recipe/render.h"

/* ---- the body ---------------------------------------------------------------------------------*/

bool di_prepare_model(di_exchange *x, di_str model, di_error *err) {
    const di_server *s = x->server;
    bool known = false;
    for (size_t i = 0; i < s->options.num_models && !known; i++) {
        known = di_str_is(model, s->options.models[i]);
    }
    int shown = di_str_shown(model, (int)sizeof x->model_text - 1);
    snprintf(x->model_text, sizeof x->model_text, "%.*s", shown, shown ? model.data : "");
    di_text_repair(x->model_text);
    x->model = di_str_of(x->model_text);
    if (!known) {
        x->status = 404;
        x->code = "model_not_found";
        return di_fail(err, DI_ERR_ARGUMENT, "model is \"%.*s\", served is %s", shown,
                       shown ? model.data : "", s->options.models[0]);
    }
    if (x->tenant.key && !di_key_allows_model(x->tenant.key, model)) {
        x->status = 403;
        x->code = "model_not_allowed";
        return di_fail(err, DI_ERR_ARGUMENT, "key %s may not use model %.*s", x->tenant.key->id,
                       shown, model.data);
    }
    return true;
}

/* Adds a member to an object whose list has room. */
static void add_member(di_named_value *members, size_t *count, const char *name,
                       const di_value *value) {
    members[(*count)++] = (di_named_value){di_str_of(name), *value};
}

/* chat_template_kwargs says what thinking and reasoning_effort say; where they are given, they
 * count. */
static bool spread_kwargs(di_pool *pool, di_value *body, di_error *err) {
    const di_value *kwargs = di_value_given(body, "chat_template_kwargs");
    if (!kwargs) {
        return true;
    }
    if (kwargs->type != DI_VALUE_OBJECT) {
        return di_fail(err, DI_ERR_FORMAT, "chat_template_kwargs is %s, an object expected",
                       di_value_type_name(kwargs));
    }
    const di_value *on = di_value_given(kwargs, "thinking"),
                   *effort = di_value_given(kwargs, "reasoning_effort");
    on = on ? on : di_value_given(kwargs, "enable_thinking");
    if (on && on->type != DI_VALUE_BOOL) {
        return di_fail(err, DI_ERR_FORMAT,
                       "chat_template_kwargs.thinking is %s, true or false expected",
                       di_value_type_name(on));
    }
    size_t count = body->object.count;
    di_named_value *members = di_pool_take(pool, count + 2, sizeof *members, err);
    di_named_value *type = di_pool_take(pool, 1, sizeof *type, err);
    if (!members || !type) {
        return false;
    }
    memcpy(members, body->object.members, count * sizeof *members);
    if (on && !di_value_given(body, "thinking")) {
        const char *word = on->boolean ? "enabled" : "disabled";
        *type =
            (di_named_value){DI_STR("type"), {.type = DI_VALUE_STRING, .string = di_str_of(word)}};
        di_value thinking = {.type = DI_VALUE_OBJECT, .object = {type, 1}};
        add_member(members, &count, "thinking", &thinking);
    }
    if (effort && !di_value_given(body, "reasoning_effort")) {
        add_member(members, &count, "reasoning_effort", effort);
    }
    body->object.members = members;
    body->object.count = count;
    return true;
}

bool di_prepare_body(di_exchange *x, di_pool *pool, di_field_set set, di_value *body,
                     di_error *err) {
    if (x->body.size == 0) {
        return di_fail(err, DI_ERR_FORMAT, "the body is empty, a JSON object expected");
    }
    return di_value_parse_once(pool, x->body.data, x->body.size, DI_VALUE_MAX_DEPTH, body, err) &&
           di_fields_check(body, set, err);
}

static bool encode(const di_server *s, const di_request *r, di_ids *ids, di_error *err) {
    di_chat_prompt prompt = {0};
    bool ok = di_recipe_render(s->answerer.chat, &r->conversation, &prompt, err) &&
              di_chat_encode(s->answerer.chat, &prompt, ids, err);
    di_chat_prompt_free(&prompt);
    return ok;
}

static bool refuse_images(di_request *r, di_error *err) {
    const di_image *const *images;
    size_t count;
    if (!di_recipe_images(&r->conversation, &r->pool, &images, &count, err)) {
        return false;
    }
    di_str path = count > 0 ? images[0]->path : DI_STR("");
    if (path.size > 0 && path.data[0] == '.') { /* as the recipe writes it */
        path.data++;
        path.size--;
    }
    return count == 0 ||
           di_fail(err, DI_ERR_UNSUPPORTED, "%.*s holds an image, which this version cannot see",
                   di_str_shown(path, 100), path.data);
}

bool di_prepare_conversation(di_exchange *x, di_protocol protocol, di_field_set set, di_request *r,
                             di_ids *ids, di_error *err) {
    di_value body = {0}; /* the analyzer does not know that di_fail is false */
    *r = (di_request){0};
    if (!di_prepare_body(x, &r->pool, set, &body, err) || !spread_kwargs(&r->pool, &body, err)) {
        return false;
    }
    const di_value *name = di_value_given(&body, "model");
    if (name && name->type == DI_VALUE_STRING && !di_prepare_model(x, name->string, err)) {
        return false;
    }
    if (protocol == DI_PROTOCOL_RESPONSES && !di_stored_spread(x, &r->pool, &body, err)) {
        return false;
    }
    return di_request_read(r, protocol, &body, &x->server->recipe, err) && refuse_images(r, err) &&
           encode(x->server, r, ids, err);
}

/* ---- parameters -------------------------------------------------------------------------------*/

/* The model's own defaults stand where the client says nothing. */
static void set_sampling(const di_request *r, di_request_params *p) {
    const di_inference *f = &r->inference;
    if (di_value_given(&r->body, "temperature")) {
        p->temperature = (double)f->temperature;
    }
    if (di_value_given(&r->body, "top_p")) {
        p->top_p = (double)f->top_p;
    }
    if (di_value_given(&r->body, "top_k")) {
        p->top_k = f->has_top_k && f->top_k > 0 ? (int64_t)f->top_k : -1;
    }
    if (f->has_min_p) {
        p->min_p = (double)f->min_p;
    }
    p->presence_penalty = (double)f->presence_penalty;
    p->frequency_penalty = (double)f->frequency_penalty;
    p->repetition_penalty = (double)f->repetition_penalty;
    p->n = (int)f->n;
    p->has_seed = f->has_seed;
    p->seed = f->seed;
    p->logprobs = f->logprobs;
    p->top_logprobs = f->has_top_logprobs ? (int)f->top_logprobs : 0;
}

bool di_prepare_usage(const di_value *body, bool *apart, bool *always, di_error *err) {
    static const char where[] = "stream_options";
    const di_value *options = di_value_given(body, where);
    bool continuous = false;
    if (!di_field_bool(options, where, "include_usage", apart, NULL, err) ||
        !di_field_bool(options, where, "continuous_usage_stats", &continuous, NULL, err)) {
        return false;
    }
    *always = *apart && continuous;
    return true;
}

void di_prepare_tenant(const di_exchange *x, const di_value *body, di_request_params *p,
                       char salt[DI_KEY_CACHE_SALT_BYTES]) {
    const di_key *key = x->tenant.key;
    if (key) {
        bool given = di_value_given(body, "priority") != NULL;
        p->priority = given && p->priority > key->priority ? p->priority : key->priority;
        p->cache_salt =
            di_key_cache_salt(key, p->cache_salt ? di_str_of(p->cache_salt) : DI_STR(""), salt);
    }
}

bool di_prepare_quota(di_exchange *x, int64_t input_tokens, int answers, bool limited,
                      int64_t *max_tokens, di_error *err) {
    di_quota_refusal no;
    int64_t wanted = answers * *max_tokens, granted = wanted;
    if (!x->tenant.ticket) {
        return true;
    }
    if (di_quota_reserve(x->server->quota, x->tenant.ticket, input_tokens, wanted,
                         limited ? wanted : answers, &granted, &no)) {
        *max_tokens = granted / answers > 0 ? granted / answers : 1;
        return true;
    }
    di_metrics_refused(x->server->metrics, x->tenant.key->id, no.reason);
    x->status = no.status;
    x->code = di_quota_reason_name(no.reason);
    x->retry_after = no.retry_after;
    return di_fail(err, DI_ERR_BUSY, "%s", no.message);
}

static bool set_max_tokens(di_exchange *x, const di_request *r, size_t prompt_tokens,
                           di_request_params *p, di_error *err) {
    const di_answerer *a = &x->server->answerer;
    uint32_t most;
    if (!di_request_max_tokens(r, prompt_tokens, (uint64_t)a->max_model_len, &most, err)) {
        x->code = "context_length_exceeded";
        return false;
    }
    int64_t left = a->max_tokens - (int64_t)prompt_tokens;
    p->max_tokens = most;
    if (!r->inference.has_max_tokens && left > 0 && p->max_tokens > left) {
        p->max_tokens = left;
    }
    return di_prepare_quota(x, (int64_t)prompt_tokens, p->n, r->inference.has_max_tokens,
                            &p->max_tokens, err);
}

/* ---- answering --------------------------------------------------------------------------------*/

static const char *id_prefix(di_protocol protocol) {
    static const char *const prefixes[] = {"chatcmpl-", "msg_", "resp_"};
    return prefixes[protocol];
}

bool di_prepare_submit(di_exchange *x, di_generation *g, const di_ids *prompts,
                       const di_request_params *p, di_error *err) {
    snprintf(g->request_id, sizeof g->request_id, "%s", x->request_id);
    snprintf(g->key_id, sizeof g->key_id, "%s", x->tenant.key ? x->tenant.key->id : "");
    g->arrived = x->arrived;
    g->tenant = x->tenant;
    x->tenant = (di_tenant){0};
    if (!di_generation_submit(g, prompts, p, err)) {
        di_generation_release(g);
        return false;
    }
    if (g->background) {
        di_generation_release(g);
    } else {
        x->generation = g;
    }
    di_metrics_request_read(x->server->metrics, di_now() - x->whole);
    return true;
}

/* What a client is told that does not wait: its response is queued. Takes the generation. */
static bool answer_later(di_exchange *x, di_generation *g, const di_ids *ids,
                         const di_request_params *p, di_error *err) {
    di_buffer json = {0};
    if (!di_background_enter(x, g, err) || !di_generation_report(g, &json, err)) {
        di_generation_release(g);
        di_buffer_free(&json);
        return false;
    }
    bool ok = di_prepare_submit(x, g, ids, p, err);
    if (ok) {
        di_reply_json(&x->reply, 200, &json);
    }
    di_buffer_free(&json);
    return ok;
}

/* Takes the request. */
static bool answer(di_exchange *x, di_request *r, const di_ids *ids, const di_request_params *p,
                   di_error *err) {
    di_generation *g = di_generation_create(x->server, &di_recipe_voice, x->shape, 1, p->n, err);
    if (!g) {
        return false;
    }
    g->recipe = *r;
    *r = (di_request){0};
    g->stream = g->recipe.stream;
    if (g->recipe.protocol == DI_PROTOCOL_CHAT && g->stream &&
        !di_prepare_usage(&g->recipe.body, &g->include_usage, &g->usage_always, err)) {
        di_generation_release(g);
        return false;
    }
    g->max_tokens = g->recipe.inference.has_max_tokens ? p->max_tokens : 0;
    g->model = g->recipe.model;
    di_random_id(id_prefix(g->recipe.protocol), 32, g->id, sizeof g->id);
    if (!di_stored_input(x, &g->recipe, &g->input, err) ||
        !di_background_wanted(x, g, &g->background, err) || !di_recipe_answers_create(g, err)) {
        di_generation_release(g);
        return false;
    }
    return g->background ? answer_later(x, g, ids, p, err) : di_prepare_submit(x, g, ids, p, err);
}

static void run(di_exchange *x, di_protocol protocol, di_field_set set) {
    const di_answerer *a = &x->server->answerer;
    char salt[DI_KEY_CACHE_SALT_BYTES];
    di_error err = {0};
    di_request r;
    di_ids ids = {0};
    di_json_request q = {0};
    a->params(a->self, &q.params);
    bool ok = di_prepare_conversation(x, protocol, set, &r, &ids, &err);
    if (ok) {
        set_sampling(&r, &q.params);
        ok = di_fields_params(&r.body, set, &q, &err) &&
             di_prepare_constraint(&r, &q.params, &err) &&
             set_max_tokens(x, &r, ids.count, &q.params, &err);
    }
    if (ok) {
        di_prepare_tenant(x, &r.body, &q.params, salt);
        ok = answer(x, &r, &ids, &q.params, &err);
    }
    if (!ok) {
        di_exchange_fail(x, &err);
    }
    di_json_request_clear(&q);
    di_ids_free(&ids);
    di_request_free(&r);
}

void di_serve_chat(di_exchange *x) {
    run(x, DI_PROTOCOL_CHAT, DI_FIELDS_CHAT);
}

void di_serve_messages(di_exchange *x) {
    run(x, DI_PROTOCOL_MESSAGES, DI_FIELDS_MESSAGES);
}

void di_serve_responses(di_exchange *x) {
    run(x, DI_PROTOCOL_RESPONSES, DI_FIELDS_RESPONSES);
}

void di_serve_count_tokens(di_exchange *x) {
    di_error err = {0};
    di_request r;
    di_ids ids = {0};
    di_buffer json = {0};
    char text[48];
    if (!di_prepare_conversation(x, DI_PROTOCOL_MESSAGES, DI_FIELDS_COUNT, &r, &ids, &err)) {
        di_exchange_fail(x, &err);
    } else {
        snprintf(text, sizeof text, "{\"input_tokens\":%zu}", ids.count);
        if (di_buffer_append_text(&json, text, &err)) {
            di_reply_json(&x->reply, 200, &json);
        } else {
            di_exchange_fail(x, &err);
        }
    }
    di_ids_free(&ids);
    di_request_free(&r);
}
