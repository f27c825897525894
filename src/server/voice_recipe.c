/* Answers of chat completions, messages and responses: the recipe reads what the model writes and
 * speaks each protocol; here it is given the engine's outputs. */
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "server/internal.h"
#include "server/recipe_answers.h"

/* ---- what the recipe calls --------------------------------------------------------------------*/

static bool on_event(void *context, const char *name, const char *json, size_t size,
                     di_error *err) {
    di_generation *g = context;
    return di_stream_event(&g->bytes, name, json, size, err);
}

/* 20 letters and digits, and 4 digits. */
static void on_call_id(void *context, char tail[DI_CALL_ID_TAIL + 1]) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    unsigned char random[DI_CALL_ID_TAIL];
    (void)context;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        memset(random, 0, sizeof random);
    }
    for (int i = 0; i < DI_CALL_ID_TAIL; i++) {
        tail[i] = i < 20 ? letters[random[i] % 62] : (char)('0' + random[i] % 10);
    }
    tail[DI_CALL_ID_TAIL] = 0;
}

bool di_recipe_answers_create(di_generation *g, di_error *err) {
    const di_value *previous = di_value_given(&g->recipe.body, "previous_response_id");
    for (int i = 0; i < g->n; i++) {
        di_answer_setup setup = {
            .request = &g->recipe,
            .tok = g->server->answerer.chat->tok,
            .id = di_str_of(g->id),
            .model = g->model,
            .created = g->created,
            .index = (uint32_t)i,
            .previous = previous ? previous->string : (di_str){NULL, 0},
            .stored = g->input.size > 0,
            .background = g->background,
            .metadata = true,
            .usage_apart = g->recipe.protocol == DI_PROTOCOL_CHAT,
            .usage_always = g->usage_always,
            .event = g->stream ? on_event : NULL,
            .call_id = on_call_id,
            .context = g,
        };
        g->choices[i].answer = di_answer_create(&setup, err);
        if (!g->choices[i].answer) {
            return false;
        }
    }
    return true;
}

/* ---- outputs ----------------------------------------------------------------------------------*/

/* The engine's log-probabilities as the recipe takes them, in one piece of memory. */
static di_logprob_entry *convert(const di_output *out, size_t count) {
    size_t tops = 0;
    for (size_t i = 0; i < count; i++) {
        tops += (size_t)out->logprobs[i].num_top;
    }
    di_logprob_entry *entries =
        di_alloc(count * sizeof *entries + tops * sizeof(di_token_logprob) + 1);
    di_token_logprob *top = (di_token_logprob *)(entries + count);
    for (size_t i = 0; entries && i < count; i++) {
        const di_token_info *info = &out->logprobs[i];
        entries[i] = (di_logprob_entry){info->chosen.logprob, top, (size_t)info->num_top};
        for (int k = 0; k < info->num_top; k++) {
            *top++ = (di_token_logprob){info->top[k].token_id, info->top[k].logprob};
        }
    }
    return entries;
}

static bool push(di_answer *a, const di_output *out, size_t count, di_error *err) {
    if (count == 0) {
        return true;
    }
    if (!out->logprobs) {
        return di_answer_tokens(a, out->token_ids, count, NULL, 0, err);
    }
    di_logprob_entry *entries = convert(out, count);
    if (!entries) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for log-probabilities");
    }
    bool ok = di_answer_tokens(a, out->token_ids, count, entries, count, err);
    di_free(entries);
    return ok;
}

/* The token that ended the answer is not part of it. */
static bool take(di_generation *g, int choice, const di_output *out, di_error *err) {
    di_generation_choice *c = &g->choices[choice];
    bool last = out->finish_reason != DI_FINISH_NONE;
    bool ending = out->finish_reason == DI_FINISH_STOP && out->stop_token_id >= 0;
    size_t count = out->num_token_ids - (ending && out->num_token_ids > 0);
    if (out->num_token_ids == 0 && !last) {
        return true;
    }
    if (!di_answer_ready(c->answer, (uint64_t)out->prompt_tokens, (uint64_t)out->cached_tokens,
                         di_str_of(g->server->fingerprint), err) ||
        !push(c->answer, out, count, err)) {
        return false;
    }
    if (last) {
        di_answer_set_completed(c->answer, (uint64_t)time(NULL));
    }
    if (last && !di_answer_finished(c->answer) &&
        !di_answer_finish(
            c->answer, out->finish_reason == DI_FINISH_LENGTH ? DI_REASON_LENGTH : DI_REASON_STOP,
            err)) {
        return false;
    }
    c->answered = di_answer_finished(c->answer);
    return true;
}

static const di_answer **list_answers(const di_generation *g, di_error *err) {
    const di_answer **list = di_calloc((size_t)g->n, sizeof *list);
    if (!list) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the response");
    }
    for (int i = 0; list && i < g->n; i++) {
        list[i] = g->choices[i].answer;
    }
    return list;
}

static bool add_usage(di_generation *g, di_error *err) {
    const di_answer **answers = list_answers(g, err);
    di_buffer json = {0};
    bool ok = answers && di_answers_usage(answers, (size_t)g->n, &json, err) &&
              di_stream_event(&g->bytes, NULL, json.data, json.size, err);
    di_buffer_free(&json);
    di_free(answers);
    return ok;
}

static bool done(di_generation *g, di_error *err) {
    return g->recipe.protocol != DI_PROTOCOL_CHAT ||
           ((!g->include_usage || add_usage(g, err)) &&
            di_stream_text(&g->bytes, "data: [DONE]\n\n", err));
}

static bool whole(const di_generation *g, di_buffer *out, di_error *err) {
    if (g->recipe.protocol != DI_PROTOCOL_CHAT) {
        return di_answer_response(g->choices[0].answer, out, err);
    }
    const di_answer **answers = list_answers(g, err);
    bool ok = answers && di_answers_response(answers, (size_t)g->n, out, err);
    di_free(answers);
    return ok;
}

static bool fail(di_generation *g, const di_api_error *error, di_error *err) {
    di_buffer json = {0};
    bool ok = g->recipe.protocol == DI_PROTOCOL_RESPONSES
                  ? di_answer_error(g->choices[0].answer, error->message, &json, err)
                  : di_api_error_write(g->shape, error, g->request_id, &json, err);
    ok = ok && di_stream_event(&g->bytes, g->recipe.protocol == DI_PROTOCOL_CHAT ? NULL : "error",
                               json.data, json.size, err);
    di_buffer_free(&json);
    return ok;
}

const di_voice di_recipe_voice = {.take = take, .done = done, .whole = whole, .fail = fail};
