/* Requests under way and the JSON of their answers: see flight.h. */
#include "cli/flight.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* What stands for a probability of 0, which JSON has no logarithm of. */
static const double least_logprob = -9999.0;

bool di_flight_create(di_flight *f, int capacity, di_error *err) {
    *f = (di_flight){.capacity = capacity};
    f->ring = di_calloc((size_t)capacity, sizeof *f->ring);
    return f->ring || di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d requests", capacity);
}

static void clear(di_flight_request *r) {
    for (int i = 0; r->answers && i < r->n; i++) {
        di_ids_free(&r->answers[i].tokens);
        di_buffer_free(&r->answers[i].text);
        di_free(r->answers[i].stop);
        json_decref(r->answers[i].logprobs);
    }
    di_free(r->answers);
    json_decref(r->prompt_logprobs);
    *r = (di_flight_request){0};
}

void di_flight_destroy(di_flight *f) {
    while (f->count > 0) {
        di_flight_pop(f);
    }
    di_free(f->ring);
    *f = (di_flight){0};
}

di_flight_request *di_flight_push(di_flight *f, int64_t index, const char *where) {
    di_flight_request *r = &f->ring[(f->first + f->count++) % f->capacity];
    *r = (di_flight_request){.index = index};
    snprintf(r->where, sizeof r->where, "%s", where);
    return r;
}

bool di_flight_expect(di_flight_request *r, const di_request_params *params, di_error *err) {
    r->answers = di_calloc((size_t)params->n, sizeof *r->answers);
    if (!r->answers) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d answers", params->n);
    }
    r->n = r->running = params->n;
    r->drawn = params->temperature >= 1e-5;
    r->says_stop = params->num_stop > 0 || params->num_stop_token_ids > 0;
    return true;
}

di_flight_request *di_flight_done(di_flight *f) {
    di_flight_request *r = &f->ring[f->first];
    return f->count > 0 && r->running == 0 ? r : NULL;
}

void di_flight_pop(di_flight *f) {
    clear(&f->ring[f->first]);
    f->first = (f->first + 1) % f->capacity;
    f->count--;
}

/* ---- log-probabilities ------------------------------------------------------------------------*/

static json_t *logprob_object(const di_logprob *l) {
    double value = isfinite(l->logprob) ? (double)l->logprob : least_logprob;
    return json_pack("{s:i, s:f}", "token_id", (int)l->token_id, "logprob", value);
}

/* {"token_id", "logprob", "top": [...]}, without "top" if none were asked for; NULL without memory.
 */
static json_t *info_object(const di_token_info *info) {
    json_t *object = logprob_object(&info->chosen), *top = info->num_top ? json_array() : NULL;
    bool ok = object && (top || info->num_top == 0);
    for (int i = 0; ok && i < info->num_top; i++) {
        ok = json_array_append_new(top, logprob_object(&info->top[i])) == 0;
    }
    ok = ok && (!top || json_object_set(object, "top", top) == 0);
    json_decref(top);
    if (!ok) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static bool append_infos(json_t **array, const di_token_info *infos, size_t count) {
    *array = *array ? *array : json_array();
    for (size_t i = 0; i < count; i++) {
        if (json_array_append_new(*array, info_object(&infos[i])) != 0) {
            return false;
        }
    }
    return *array != NULL;
}

/* Entry 0 is null: nothing comes before the first token. */
static bool take_prompt(di_flight_request *r, const di_output *out) {
    r->prompt_logprobs = json_array();
    return json_array_append_new(r->prompt_logprobs, json_null()) == 0 &&
           append_infos(&r->prompt_logprobs, out->prompt_logprobs + 1,
                        (size_t)out->prompt_tokens - 1);
}

/* ---- taking -----------------------------------------------------------------------------------*/

static bool add(di_flight_request *r, di_flight_answer *a, const di_output *out) {
    for (size_t i = 0; i < out->num_token_ids; i++) {
        if (!di_ids_push(&a->tokens, out->token_ids[i], NULL)) {
            return false;
        }
    }
    return di_buffer_append(&a->text, out->text, out->text_bytes, NULL) &&
           (!out->logprobs || append_infos(&a->logprobs, out->logprobs, out->num_token_ids)) &&
           (!out->prompt_logprobs || take_prompt(r, out));
}

void di_flight_take(const di_output *out) {
    di_flight_request *r = out->tag;
    di_flight_answer *a = &r->answers[out->index];
    r->no_memory = !add(r, a, out) || r->no_memory;
    r->prompt_tokens = out->prompt_tokens;
    if (out->finish_reason == DI_FINISH_NONE) {
        return;
    }
    r->running--;
    r->completion_tokens += out->completion_tokens;
    a->reason = out->finish_reason;
    a->error = out->error;
    a->seed = out->seed;
    a->stop_token = out->stop_token_id;
    if (out->stop) {
        a->stop = di_strdup(out->stop);
        r->no_memory = !a->stop || r->no_memory;
    }
}

/* ---- the line ---------------------------------------------------------------------------------*/

static const char *code_name(di_error_code code) {
    switch (code) {
    case DI_ERR_ARGUMENT:
    case DI_ERR_FORMAT:
        return "invalid_request";
    case DI_ERR_UNSUPPORTED:
        return "unsupported";
    case DI_ERR_NO_MEMORY:
        return "no_memory";
    default:
        return "internal";
    }
}

static json_t *error_object(const di_error *e) {
    return json_pack("{s:s, s:s}", "code", code_name(e->code), "message", e->message);
}

/* What stopped it, if that can be one of several things. */
static json_t *stop_reason(const di_flight_request *r, const di_flight_answer *a) {
    if (a->reason != DI_FINISH_STOP || !r->says_stop) {
        return NULL;
    }
    return a->stop ? json_string(a->stop) : json_integer(a->stop_token);
}

/* An answer's fields into `object`. */
static bool set_answer(json_t *object, const di_flight_request *r, const di_flight_answer *a) {
    json_t *ids = json_array();
    bool ok = ids != NULL;
    for (size_t i = 0; ok && i < a->tokens.count; i++) {
        ok = json_array_append_new(ids, json_integer(a->tokens.data[i])) == 0;
    }
    ok = ok && json_object_set(object, "token_ids", ids) == 0 &&
         json_object_set_new(object, "text",
                             json_stringn(a->text.data ? a->text.data : "", a->text.size)) == 0 &&
         json_object_set_new(object, "finish_reason",
                             json_string(di_finish_reason_name(a->reason))) == 0;
    json_decref(ids);
    json_t *stop = stop_reason(r, a);
    ok = ok && (!stop || json_object_set(object, "stop_reason", stop) == 0);
    json_decref(stop);
    ok = ok &&
         (!r->drawn || json_object_set_new(object, "seed", json_integer((json_int_t)a->seed)) == 0);
    return ok && (!a->logprobs || json_object_set(object, "logprobs", a->logprobs) == 0);
}

/* n > 1: {"index", "token_ids", ...} each, and "error" in those that failed. */
static json_t *answer_list(di_flight_request *r, bool *failed) {
    json_t *list = json_array();
    for (int i = 0; list && i < r->n; i++) {
        di_flight_answer *a = &r->answers[i];
        json_t *object = json_pack("{s:i}", "index", i);
        bool ok = object && set_answer(object, r, a);
        if (a->reason == DI_FINISH_ERROR) {
            *failed = true;
            ok = ok && json_object_set_new(object, "error", error_object(&a->error)) == 0;
        }
        if (!ok || json_array_append(list, object) != 0) {
            json_decref(list);
            list = NULL;
        }
        json_decref(object);
    }
    return list;
}

static bool set_request(json_t *object, di_flight_request *r, bool *failed) {
    if (r->n > 1 ? json_object_set_new(object, "outputs", answer_list(r, failed)) != 0
                 : !set_answer(object, r, &r->answers[0])) {
        return false;
    }
    if (r->prompt_logprobs && json_object_set(object, "prompt_logprobs", r->prompt_logprobs) != 0) {
        return false;
    }
    json_int_t prompt = r->prompt_tokens, completion = r->completion_tokens;
    json_t *usage = json_pack("{s:I, s:I, s:I}", "prompt_tokens", prompt, "completion_tokens",
                              completion, "total_tokens", prompt + completion);
    return json_object_set_new(object, "usage", usage) == 0;
}

json_t *di_flight_object(di_flight_request *r, bool *failed) {
    json_t *object = json_pack("{s:I}", "index", (json_int_t)r->index);
    if (r->error.code == DI_OK && r->no_memory) {
        di_fail(&r->error, DI_ERR_NO_MEMORY, "%s: no memory for the answer", r->where);
    }
    if (r->error.code == DI_OK && r->n == 1 && r->answers[0].reason == DI_FINISH_ERROR) {
        r->error = r->answers[0].error;
        di_fail_prefix(&r->error, "%s", r->where);
    }
    bool ok;
    *failed = r->error.code != DI_OK;
    if (*failed) {
        ok = json_object_set_new(object, "error", error_object(&r->error)) == 0;
    } else {
        ok = object && set_request(object, r, failed);
    }
    if (!ok) {
        json_decref(object);
        return NULL;
    }
    return object;
}
