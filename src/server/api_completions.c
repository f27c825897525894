/* /v1/completions: raw prompts. A prompt is text, in which control tokens are recognised as in
 * `deepinfer generate`, or ids; or a list of either, each with n answers of its own. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "server/internal.h"
#include "server/prepare.h"
#include "text/recipe/field.h"

enum { MOST_CHOICES = 1024, DEFAULT_MAX_TOKENS = 16 };

typedef struct prompts {
    di_ids *ids;
    size_t count;
    di_str suffix; /* data NULL: none */
} prompts;

/* ---- prompts ----------------------------------------------------------------------------------*/

static bool read_ids(const di_exchange *x, const di_value *list, size_t index, di_ids *out,
                     di_error *err) {
    int vocab = x->server->answerer.vocab_size;
    for (size_t i = 0; i < list->array.count; i++) {
        const di_value *id = &list->array.items[i];
        if (id->type != DI_VALUE_UINT || id->uint >= (uint64_t)vocab) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "prompt[%zu]: entry %zu is %s, a token id from 0 to %d expected", index,
                           i, id->type == DI_VALUE_UINT ? "too large" : di_value_type_name(id),
                           vocab - 1);
        }
        if (!di_ids_push(out, (int32_t)id->uint, err)) {
            return false;
        }
    }
    return list->array.count > 0 ||
           di_fail(err, DI_ERR_ARGUMENT, "prompt[%zu] is empty, at least one token is needed",
                   index);
}

static bool encode_text(const di_exchange *x, di_str text, di_ids *out, di_error *err) {
    const di_chat_tokens *t = x->server->answerer.chat;
    if (text.size == 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "prompt is empty, at least one character is needed");
    }
    if (!di_ids_push(out, t->bos, err) ||
        !di_tokenizer_encode(t->tok, text.data, text.size, DI_ENCODE_ADDED, out, err)) {
        return di_fail_prefix(err, "prompt");
    }
    if (out->count > 1 && out->data[1] == t->bos) { /* the client wrote it */
        out->count--;
        memmove(out->data, out->data + 1, out->count * sizeof *out->data);
    }
    return true;
}

/* Fill in the middle: the model was taught to write what is missing behind both ends. */
static bool encode_middle(const di_exchange *x, di_str before, di_str after, di_ids *out,
                          di_error *err) {
    static const char *const names[] = {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"};
    const di_chat_tokens *t = x->server->answerer.chat;
    int32_t ids[3];
    for (int i = 0; i < 3; i++) {
        ids[i] = di_tokenizer_id(t->tok, names[i]);
        if (ids[i] < 0) {
            return di_fail(err, DI_ERR_UNSUPPORTED,
                           "suffix needs the token %s, which the model "
                           "does not have",
                           names[i]);
        }
    }
    return di_ids_push(out, t->bos, err) && di_ids_push(out, ids[0], err) &&
           di_tokenizer_encode(t->tok, before.data, before.size, DI_ENCODE_PLAIN, out, err) &&
           di_ids_push(out, ids[1], err) &&
           di_tokenizer_encode(t->tok, after.data, after.size, DI_ENCODE_PLAIN, out, err) &&
           di_ids_push(out, ids[2], err);
}

static bool read_prompt(const di_exchange *x, prompts *p, const di_value *value, size_t index,
                        di_error *err) {
    di_ids *out = &p->ids[p->count++];
    if (value->type == DI_VALUE_STRING) {
        return p->suffix.data ? encode_middle(x, value->string, p->suffix, out, err)
                              : encode_text(x, value->string, out, err);
    }
    if (value->type == DI_VALUE_ARRAY && !p->suffix.data) {
        return read_ids(x, value, index, out, err);
    }
    return di_fail(err, DI_ERR_FORMAT, "prompt[%zu] is %s, %s expected", index,
                   di_value_type_name(value),
                   p->suffix.data ? "a text beside suffix" : "a text or a list of token ids");
}

static bool read_prompts(const di_exchange *x, const di_value *body, prompts *p, di_error *err) {
    const di_value *value = di_value_given(body, "prompt"),
                   *suffix = di_value_given(body, "suffix");
    if (!value) {
        return di_fail(err, DI_ERR_ARGUMENT, "prompt is missing");
    }
    if (suffix && suffix->type != DI_VALUE_STRING) {
        return di_field_wrong("", "suffix", suffix, "a string", err);
    }
    p->suffix = suffix ? suffix->string : (di_str){NULL, 0};
    bool list = value->type == DI_VALUE_ARRAY && value->array.count > 0 &&
                (value->array.items[0].type == DI_VALUE_STRING ||
                 value->array.items[0].type == DI_VALUE_ARRAY);
    const di_value *items = list ? value->array.items : value;
    size_t count = list ? value->array.count : 1;
    if (count > MOST_CHOICES) {
        return di_fail(err, DI_ERR_ARGUMENT, "prompt has %zu entries, at most %d are allowed",
                       count, MOST_CHOICES);
    }
    p->ids = di_calloc(count, sizeof *p->ids);
    if (!p->ids) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu prompts", count);
    }
    for (size_t i = 0; i < count; i++) {
        if (!read_prompt(x, p, &items[i], i, err)) {
            return false;
        }
    }
    return true;
}

/* ---- parameters -------------------------------------------------------------------------------*/

typedef struct wishes {
    bool stream, include_usage, usage_always;
    uint64_t best_of;
    bool has_best_of;
} wishes;

static bool read_wishes(const di_value *body, wishes *w, di_error *err) {
    const di_value *options;
    if (!di_field_bool(body, "", "stream", &w->stream, NULL, err) ||
        !di_field_object(body, "", "stream_options", DI_OPTIONAL, &options, err) ||
        (options && !di_prepare_usage(body, &w->include_usage, &w->usage_always, err)) ||
        !di_field_uint(body, "", "best_of", 128, &w->best_of, &w->has_best_of, err)) {
        return false;
    }
    return !options || w->stream ||
           di_fail(err, DI_ERR_ARGUMENT, "stream_options belong to stream: true");
}

static bool check_params(const wishes *w, const prompts *p, di_request_params *params,
                         di_error *err) {
    if (w->has_best_of && w->best_of != (uint64_t)params->n) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "best_of is %llu, allowed is n (%d): all answers are given",
                       (unsigned long long)w->best_of, params->n);
    }
    if ((size_t)params->n * p->count > MOST_CHOICES) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "n is %d for %zu prompts, at most %d answers are allowed", params->n,
                       p->count, MOST_CHOICES);
    }
    params->prompt_logprobs = params->echo && params->logprobs;
    return true;
}

static bool check_room(di_exchange *x, const prompts *p, const di_request_params *params,
                       int64_t *input, di_error *err) {
    int64_t context = x->server->answerer.max_model_len;
    for (size_t i = 0; i < p->count; i++) {
        int64_t size = (int64_t)p->ids[i].count;
        *input += size;
        if (size + params->max_tokens > context) {
            x->code = "context_length_exceeded";
            return di_fail(err, DI_ERR_ARGUMENT,
                           "prompt has %lld tokens and max_tokens is %lld, the context holds %lld",
                           (long long)size, (long long)params->max_tokens, (long long)context);
        }
    }
    return true;
}

/* ---- answering --------------------------------------------------------------------------------*/

static bool answer(di_exchange *x, di_pool *pool, const wishes *w, const prompts *p,
                   const di_request_params *params, di_error *err) {
    di_generation *g = di_generation_create(x->server, &di_completions_voice, x->shape,
                                            (int)p->count, params->n, err);
    if (!g) {
        return false;
    }
    g->pool = *pool;
    *pool = (di_pool){0};
    g->stream = w->stream;
    g->include_usage = w->include_usage;
    g->usage_always = w->usage_always;
    g->echo = params->echo;
    g->max_tokens = params->max_tokens;
    bool ok = di_pool_copy(&g->pool, x->model_text, strlen(x->model_text), &g->model, err);
    di_random_id("cmpl-", 32, g->id, sizeof g->id);
    if (!ok) {
        di_generation_release(g);
        return false;
    }
    return di_prepare_submit(x, g, p->ids, params, err);
}

static bool run(di_exchange *x, di_pool *pool, prompts *p, di_json_request *q, di_error *err) {
    di_value body;
    di_str model = DI_STR("");
    wishes w = {0};
    char salt[DI_KEY_CACHE_SALT_BYTES];
    int64_t input = 0;
    if (!di_prepare_body(x, pool, DI_FIELDS_COMPLETIONS, &body, err) ||
        !di_field_string(&body, "", "model", DI_NEEDED, &model, NULL, err) ||
        !di_prepare_model(x, model, err) || !read_wishes(&body, &w, err) ||
        !di_fields_params(&body, DI_FIELDS_COMPLETIONS, q, err) ||
        !read_prompts(x, &body, p, err) || !check_params(&w, p, &q->params, err) ||
        !check_room(x, p, &q->params, &input, err) ||
        !di_prepare_quota(x, input, q->params.n * (int)p->count, true, &q->params.max_tokens,
                          err)) {
        return false;
    }
    di_prepare_tenant(x, &body, &q->params, salt);
    return answer(x, pool, &w, p, &q->params, err);
}

void di_serve_completions(di_exchange *x) {
    const di_answerer *a = &x->server->answerer;
    di_pool pool = {0};
    prompts p = {0};
    di_json_request q = {0};
    di_error err = {0};
    a->params(a->self, &q.params);
    q.params.max_tokens = DEFAULT_MAX_TOKENS;
    if (!run(x, &pool, &p, &q, &err)) {
        di_exchange_fail(x, &err);
    }
    for (size_t i = 0; i < p.count; i++) {
        di_ids_free(&p.ids[i]);
    }
    di_free(p.ids);
    di_json_request_clear(&q);
    di_pool_free(&pool);
}
