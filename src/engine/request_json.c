/* Requests from JSON: see request_json.h. */
#include "engine/request_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/suggest.h"
#include "text/chat.h"

static const char *const known[] = {
    "prompt",
    "prompt_token_ids",
    "messages",
    "thinking",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "ignore_eos",
    "seed",
    "seq_seed",
    "reasoning_effort",
};

/* Fields of other engines' and of DeepInfer's own Python interface that this version lacks: said
 * so, rather than ignored or called unknown. */
static const char *const missing[] = {
    "n",
    "best_of",
    "echo",
    "stop",
    "stop_token_ids",
    "bad_words",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "first_n_token_no_eos",
    "so_args",
    "golden_token_ids",
    "tools",
    "tool_choice",
    "response_format",
};

enum {
    NUM_KNOWN = sizeof known / sizeof *known,
    NUM_MISSING = sizeof missing / sizeof *missing,
};

static bool is_one_of(const char *name, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool check_names(json_t *object, const char *where, di_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value) {
        if (is_one_of(name, known, NUM_KNOWN)) {
            continue;
        }
        if (is_one_of(name, missing, NUM_MISSING)) {
            return di_fail(err, DI_ERR_UNSUPPORTED, "%s: %s is not supported by this version",
                           where, name);
        }
        const char *near = di_suggest(name, known, NUM_KNOWN);
        return di_fail(err, DI_ERR_ARGUMENT, "%s: unknown field %s%s%s%s", where, name,
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    return true;
}

/* Absent and null are one. */
static json_t *given(json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool read_token_ids(di_json_request *r, json_t *array, const char *where, di_error *err) {
    size_t count = json_array_size(array);
    if (!json_is_array(array)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: prompt_token_ids is %s, an array expected", where,
                       di_json_type_name(array));
    }
    r->token_ids = di_realloc_array(NULL, count, sizeof *r->token_ids);
    if (!r->token_ids) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for %zu token ids", where, count);
    }
    for (size_t i = 0; i < count; i++) {
        json_t *id = json_array_get(array, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < INT32_MIN || v > INT32_MAX) {
            return di_fail(err, DI_ERR_ARGUMENT, "%s: prompt_token_ids[%zu] is no token id", where,
                           i);
        }
        r->token_ids[i] = (int32_t)v; /* the engine knows the vocabulary */
    }
    r->prompt.token_ids = r->token_ids;
    r->prompt.num_token_ids = count;
    return true;
}

/* thinking switches reasoning on and off; reasoning_effort says how much, and alone switches it on.
 */
static bool read_effort(di_json_request *r, bool messages, const char *where, di_error *err) {
    json_t *thinking = given(r->object, "thinking"), *effort = given(r->object, "reasoning_effort");
    if ((thinking || effort) && !messages) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: %s belongs to messages only", where,
                       thinking ? "thinking" : "reasoning_effort");
    }
    int *level = &r->prompt.effort;
    if (json_is_string(effort)) {
        if (!di_effort_parse(json_string_value(effort), level, err)) {
            return di_fail_prefix(err, "%s: reasoning_effort", where);
        }
    } else if (effort) {
        int64_t value;
        if (!di_json_int(r->object, where, "reasoning_effort", 1, 100, &value, err)) {
            return false;
        }
        *level = (int)value;
    }
    bool on;
    if (!di_json_bool_or(r->object, where, "thinking", *level > 0, &on, err)) {
        return false;
    }
    *level = !on ? DI_EFFORT_OFF : *level ? *level : DI_EFFORT_DEFAULT;
    return true;
}

static bool read_prompt(di_json_request *r, const char *where, di_error *err) {
    json_t *text = given(r->object, "prompt"), *ids = given(r->object, "prompt_token_ids"),
           *messages = given(r->object, "messages");
    if ((text != NULL) + (ids != NULL) + (messages != NULL) != 1) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "%s: exactly one of prompt, prompt_token_ids and messages is needed", where);
    }
    if (!read_effort(r, messages != NULL, where, err)) {
        return false;
    }
    if (ids) {
        return read_token_ids(r, ids, where, err);
    }
    if (text) {
        r->prompt.text_bytes = json_string_length(text);
        return di_json_string(r->object, where, "prompt", &r->prompt.text, err);
    }
    if (!json_is_array(messages)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: messages is %s, an array expected", where,
                       di_json_type_name(messages));
    }
    r->messages = json_dumps(messages, JSON_COMPACT);
    if (!r->messages) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for the messages", where);
    }
    r->prompt.messages = r->messages;
    return true;
}

/* Both spellings of the seed; negative ones count from 2^64 down. */
static bool read_seed(di_json_request *r, const char *where, di_error *err) {
    json_t *seed = given(r->object, "seed"), *seq_seed = given(r->object, "seq_seed");
    int64_t value;
    if (seed && seq_seed) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: seed and seq_seed are the same; give one", where);
    }
    if (!seed && !seq_seed) {
        return true;
    }
    if (!di_json_int(r->object, where, seed ? "seed" : "seq_seed", INT64_MIN, INT64_MAX, &value,
                     err)) {
        return false;
    }
    r->params.has_seed = true;
    r->params.seed = (uint64_t)value;
    return true;
}

/* Ranges that have an open end or a hole (top_p, top_k) are left to di_request_params_check. */
static bool read_params(di_json_request *r, const char *where, di_error *err) {
    di_request_params *p = &r->params;
    const json_t *o = r->object;
    bool ok = di_json_real_or(o, where, "temperature", -1e300, 1e300, p->temperature,
                              &p->temperature, err) &&
              di_json_real_or(o, where, "top_p", -1e300, 1e300, p->top_p, &p->top_p, err) &&
              di_json_real_or(o, where, "min_p", -1e300, 1e300, p->min_p, &p->min_p, err) &&
              di_json_int_or(o, where, "top_k", INT64_MIN, INT64_MAX, p->top_k, &p->top_k, err) &&
              di_json_bool_or(o, where, "ignore_eos", p->ignore_eos, &p->ignore_eos, err);
    if (ok && given(r->object, "max_tokens")) {
        ok = di_json_int(o, where, "max_tokens", 1, INT32_MAX, &p->max_tokens, err);
    }
    if (!ok || !read_seed(r, where, err)) {
        return false;
    }
    return di_request_params_check(p, err) || di_fail_prefix(err, "%s", where);
}

bool di_json_request_read(di_json_request *request, json_t *object, const char *where,
                          di_error *err) {
    request->object = json_incref(object);
    if (!json_is_object(object)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: is %s, an object expected", where,
                       di_json_type_name(object));
    }
    return check_names(object, where, err) && read_prompt(request, where, err) &&
           read_params(request, where, err);
}

void di_json_request_clear(di_json_request *request) {
    di_free(request->token_ids);
    free(request->messages); /* jansson's */
    json_decref(request->object);
    request->token_ids = NULL;
    request->messages = NULL;
    request->object = NULL;
}
