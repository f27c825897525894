/* Requests from JSON: see request_json.h. One table says which field is read how and into what;
 * names that write to the same place are names of one thing. */
#include "engine/request_json.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/suggest.h"
#include "engine/schema_json.h"
#include "text/chat.h"

/* What a reader is given. */
typedef struct reading {
    di_json_request *request;
    const char *where, *name;
    json_t *value; /* not null */
    void *to;      /* the member of params */
    di_error *err;
} reading;

typedef bool (*reader)(const reading *r);

static bool unexpected(const reading *r, const char *wanted) {
    return di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s is %s, %s expected", r->where, r->name,
                   di_json_type_name(r->value), wanted);
}

/* ---- single values ----------------------------------------------------------------------------
 * Ranges are left to di_request_params_check where it can tell a value from its absence. */

static bool read_bool(const reading *r) {
    return di_json_bool_or(r->request->object, r->where, r->name, false, r->to, r->err);
}

static bool read_real(const reading *r) {
    return di_json_real(r->request->object, r->where, r->name, -1e300, 1e300, r->to, r->err);
}

static bool read_int64(const reading *r) {
    return di_json_int(r->request->object, r->where, r->name, INT64_MIN, INT64_MAX, r->to, r->err);
}

static bool read_int(const reading *r) {
    int64_t value;
    if (!di_json_int(r->request->object, r->where, r->name, INT32_MIN, INT32_MAX, &value, r->err)) {
        return false;
    }
    *(int *)r->to = (int)value;
    return true;
}

/* 0 stands for absence in the parameters; here it is out of range. */
static bool read_max_tokens(const reading *r) {
    return di_json_int(r->request->object, r->where, r->name, 1, INT32_MAX, r->to, r->err);
}

static bool read_seconds(const reading *r) {
    return di_json_real(r->request->object, r->where, r->name, 1e-3, 1e9, r->to, r->err);
}

/* Negative seeds count from 2^64 down. */
static bool read_seed(const reading *r) {
    int64_t value;
    if (!di_json_int(r->request->object, r->where, r->name, INT64_MIN, INT64_MAX, &value, r->err)) {
        return false;
    }
    r->request->params.has_seed = true;
    r->request->params.seed = (uint64_t)value;
    return true;
}

static bool read_text(const reading *r) {
    const char *text;
    if (!di_json_string(r->request->object, r->where, r->name, &text, r->err)) {
        return false;
    }
    if (strlen(text) != json_string_length(r->value)) {
        return di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s holds a NUL character", r->where, r->name);
    }
    *(const char **)r->to = text;
    return true;
}

static bool read_logprobs_mode(const reading *r) {
    const char *mode;
    if (!di_json_string(r->request->object, r->where, r->name, &mode, r->err)) {
        return false;
    }
    *(bool *)r->to = strcmp(mode, "processed") == 0;
    return *(bool *)r->to || strcmp(mode, "raw") == 0 ||
           di_fail(r->err, DI_ERR_ARGUMENT,
                   "%s: %s is \"%s\", allowed are \"raw\" and "
                   "\"processed\"",
                   r->where, r->name, mode);
}

/* true or false; or, as in vLLM, how many of the likeliest tokens beside, which also means true.
 * logprobs, prompt_logprobs and top_logprobs share that number, so those given must agree. */
static bool read_logprobs(const reading *r) {
    di_request_params *p = &r->request->params;
    if (json_is_boolean(r->value)) {
        *(bool *)r->to = json_is_true(r->value);
        return true;
    }
    if (!json_is_integer(r->value)) {
        return unexpected(r, "true, false or a number");
    }
    int top;
    reading number = *r;
    number.to = &top;
    static const char *const names[] = {"top_logprobs", "logprobs", "prompt_logprobs"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *other = json_object_get(r->request->object, names[i]);
        if (json_is_integer(other) && json_integer_value(other) != json_integer_value(r->value)) {
            return di_fail(r->err, DI_ERR_ARGUMENT,
                           "%s: %s is %lld but %s is %lld; one number serves both", r->where,
                           r->name, (long long)json_integer_value(r->value), names[i],
                           (long long)json_integer_value(other));
        }
    }
    if (!read_int(&number)) {
        return false;
    }
    p->top_logprobs = top;
    *(bool *)r->to = true;
    return true;
}

/* ---- lists ------------------------------------------------------------------------------------*/

/* Memory for `count` elements that lives until the request is cleared. */
static void *new_list(const reading *r, size_t count, size_t size) {
    void *list = di_calloc(count ? count : 1, size);
    if (!list) {
        di_fail(r->err, DI_ERR_NO_MEMORY, "%s: no memory for %zu elements of %s", r->where, count,
                r->name);
        return NULL;
    }
    r->request->lists[r->request->num_lists++] = list;
    return list;
}

/* Token ids; which of them there are is the engine's matter. */
static bool read_ids(const reading *r, const int32_t **out, size_t *out_count) {
    if (!json_is_array(r->value)) {
        return unexpected(r, "an array");
    }
    size_t count = json_array_size(r->value);
    int32_t *ids = new_list(r, count, sizeof *ids);
    for (size_t i = 0; ids && i < count; i++) {
        json_t *id = json_array_get(r->value, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < INT32_MIN || v > INT32_MAX) {
            return di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s[%zu] is no token id", r->where, r->name,
                           i);
        }
        ids[i] = (int32_t)v;
    }
    *out = ids;
    *out_count = count;
    return ids != NULL;
}

static bool read_stop_ids(const reading *r) {
    di_request_params *p = &r->request->params;
    bool ok = read_ids(r, &p->stop_token_ids, &p->num_stop_token_ids);
    p->stop_token_ids = p->num_stop_token_ids ? p->stop_token_ids : NULL;
    return ok;
}

static bool read_golden_ids(const reading *r) {
    di_request_params *p = &r->request->params;
    bool ok = read_ids(r, &p->golden_token_ids, &p->num_golden_token_ids);
    p->golden_token_ids = p->num_golden_token_ids ? p->golden_token_ids : NULL;
    return ok;
}

/* An empty list allows nothing, so the engine refuses it. */
static bool read_allowed_ids(const reading *r) {
    di_request_params *p = &r->request->params;
    return read_ids(r, &p->allowed_token_ids, &p->num_allowed_token_ids);
}

/* A string, or an array of them. */
static bool read_texts(const reading *r, const char *const **out, size_t *out_count) {
    bool single = json_is_string(r->value);
    if (!single && !json_is_array(r->value)) {
        return unexpected(r, "a string or an array of strings");
    }
    size_t count = single ? 1 : json_array_size(r->value);
    const char **texts = new_list(r, count, sizeof *texts);
    for (size_t i = 0; texts && i < count; i++) {
        json_t *text = single ? r->value : json_array_get(r->value, i);
        if (!json_is_string(text) || json_string_length(text) == 0 ||
            strlen(json_string_value(text)) != json_string_length(text)) {
            return di_fail(r->err, DI_ERR_ARGUMENT,
                           "%s: %s[%zu] is %s, a string of at least one character and no NUL is "
                           "needed",
                           r->where, r->name, i,
                           json_is_string(text)
                               ? json_string_length(text) ? "a string with a NUL" : "empty"
                               : di_json_type_name(text));
        }
        texts[i] = json_string_value(text);
    }
    *out = count ? texts : NULL;
    *out_count = count;
    return texts != NULL;
}

static bool read_stop(const reading *r) {
    return read_texts(r, &r->request->params.stop, &r->request->params.num_stop);
}

static bool read_bad_words(const reading *r) {
    return read_texts(r, &r->request->params.bad_words, &r->request->params.num_bad_words);
}

/* "17" -> 17, written as a JSON number of this value would be. */
static bool parse_id(const char *text, int32_t *id) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    *id = (int32_t)value;
    return text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0 && value <= INT32_MAX;
}

/* {"17": -100, "4": 2.5}: ids are strings, as names of a JSON object must be. */
static bool read_logit_bias(const reading *r) {
    di_request_params *p = &r->request->params;
    if (!json_is_object(r->value)) {
        return unexpected(r, "an object of token ids and numbers");
    }
    size_t count = json_object_size(r->value), i = 0;
    di_bias *list = new_list(r, count, sizeof *list);
    if (!list) {
        return false;
    }
    const char *id;
    json_t *bias;
    json_object_foreach(r->value, id, bias) {
        if (!parse_id(id, &list[i].token_id)) {
            return di_fail(r->err, DI_ERR_ARGUMENT, "%s: %s: \"%.32s\" is no token id", r->where,
                           r->name, id);
        }
        double value = json_number_value(bias);
        if (!json_is_number(bias) || !(value >= -100 && value <= 100)) {
            return di_fail(r->err, DI_ERR_ARGUMENT,
                           "%s: %s of token %s is %s, allowed are numbers from -100 to 100",
                           r->where, r->name, id,
                           json_is_number(bias) ? "out of range" : di_json_type_name(bias));
        }
        list[i++].bias = (float)value;
    }
    p->logit_bias = count ? list : NULL;
    p->num_logit_bias = count;
    return true;
}

static bool read_structure(const reading *r) {
    return di_schema_json_read(&r->request->schema, r->name, r->value, r->where,
                               &r->request->params, r->err);
}

/* ---- the table --------------------------------------------------------------------------------*/

typedef struct field {
    const char *name;
    reader read;   /* NULL: read with the prompt */
    size_t offset; /* of the member of di_request_params that it sets */
} field;

#define TO(member) offsetof(di_request_params, member)

static const field fields[] = {
    {"prompt", NULL, 0},
    {"prompt_token_ids", NULL, 0},
    {"messages", NULL, 0},
    {"thinking", NULL, 0},
    {"reasoning_effort", NULL, 0},

    {"temperature", read_real, TO(temperature)},
    {"top_p", read_real, TO(top_p)},
    {"top_k", read_int64, TO(top_k)},
    {"min_p", read_real, TO(min_p)},
    {"seed", read_seed, TO(seed)},
    {"seq_seed", read_seed, TO(seed)},      /* DeepInfer's Python interface */
    {"sampling_seed", read_seed, TO(seed)}, /* SGLang */
    {"n", read_int, TO(n)},

    {"max_tokens", read_max_tokens, TO(max_tokens)},
    {"max_completion_tokens", read_max_tokens, TO(max_tokens)}, /* OpenAI */
    {"max_new_tokens", read_max_tokens, TO(max_tokens)},        /* SGLang */
    {"min_tokens", read_int64, TO(min_tokens)},
    {"min_new_tokens", read_int64, TO(min_tokens)},       /* SGLang */
    {"first_n_token_no_eos", read_int64, TO(min_tokens)}, /* DeepInfer's Python interface */
    {"ignore_eos", read_bool, TO(ignore_eos)},
    {"stop", read_stop, TO(stop)},
    {"include_stop_str_in_output", read_bool, TO(include_stop)}, /* vLLM */
    {"include_stop", read_bool, TO(include_stop)},
    {"no_stop_trim", read_bool, TO(include_stop)}, /* SGLang */
    {"stop_token_ids", read_stop_ids, TO(stop_token_ids)},

    {"repetition_penalty", read_real, TO(repetition_penalty)},
    {"presence_penalty", read_real, TO(presence_penalty)},
    {"frequency_penalty", read_real, TO(frequency_penalty)},
    {"logit_bias", read_logit_bias, TO(logit_bias)},
    {"allowed_token_ids", read_allowed_ids, TO(allowed_token_ids)},
    {"bad_words", read_bad_words, TO(bad_words)},
    {"golden_token_ids", read_golden_ids, TO(golden_token_ids)},

    {"top_logprobs", read_int, TO(top_logprobs)},
    {"logprobs", read_logprobs, TO(logprobs)},
    {"prompt_logprobs", read_logprobs, TO(prompt_logprobs)},
    {"logprobs_mode", read_logprobs_mode, TO(processed_logprobs)},
    {"echo", read_bool, TO(echo)},
    {"skip_special_tokens", read_bool, TO(skip_special_tokens)},

    {"priority", read_int, TO(priority)},
    {"deadline", read_seconds, TO(deadline)},
    {"timeout", read_seconds, TO(deadline)},
    {"no_prefix_cache", read_bool, TO(no_prefix_cache)},
    {"skip_reading_prefix_cache", read_bool, TO(no_prefix_cache)}, /* vLLM */
    {"cache_salt", read_text, TO(cache_salt)},
    {"pin_prompt", read_bool, TO(pin_prompt)},

    {"so_args", read_structure, TO(schema_type)},            /* DeepInfer's Python interface */
    {"response_format", read_structure, TO(schema_type)},    /* OpenAI */
    {"structured_outputs", read_structure, TO(schema_type)}, /* vLLM; and these four: */
    {"guided_json", read_structure, TO(schema_type)},
    {"guided_regex", read_structure, TO(schema_type)},
    {"guided_grammar", read_structure, TO(schema_type)},
    {"guided_choice", read_structure, TO(schema_type)},
    {"json_schema", read_structure, TO(schema_type)}, /* SGLang; and these two: */
    {"regex", read_structure, TO(schema_type)},
    {"ebnf", read_structure, TO(schema_type)},
};

#undef TO

/* Fields of other engines and of DeepInfer's own Python interface that this version lacks: said so,
 * rather than ignored or called unknown. */
static const char *const missing[] = {
    "best_of",
    "eos_id",
    "tools",
    "tool_choice",
    "tool_calls",
    "logprob_token_ids",
    "output_kind",
    "detokenize",
    "stream",
    "stream_interval",
    "spaces_between_special_tokens",
    "thinking_token_budget",
};

enum {
    NUM_FIELDS = sizeof fields / sizeof *fields,
    NUM_MISSING = sizeof missing / sizeof *missing,
};

static const field *find(const char *name) {
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        if (strcmp(name, fields[i].name) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

static bool unknown(const char *name, const char *where, di_error *err) {
    const char *names[NUM_FIELDS];
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        names[i] = fields[i].name;
    }
    for (size_t i = 0; i < NUM_MISSING; i++) {
        if (strcmp(name, missing[i]) == 0) {
            return di_fail(err, DI_ERR_UNSUPPORTED, "%s: %s is not supported by this version",
                           where, name);
        }
    }
    const char *near = di_suggest(name, names, NUM_FIELDS);
    return di_fail(err, DI_ERR_ARGUMENT, "%s: unknown field %.64s%s%s%s", where, name,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* Absent and null are one. */
static json_t *given(json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool check_names(json_t *object, const char *where, di_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value) {
        if (!find(name)) {
            return unknown(name, where, err);
        }
    }
    return true;
}

/* In the table's order: what a later field needs of an earlier one is there. */
static bool read_params(di_json_request *q, const char *where, di_error *err) {
    const field *reads[NUM_FIELDS];
    size_t count = 0;
    for (const field *f = fields; f < fields + NUM_FIELDS; f++) {
        json_t *value = f->read ? given(q->object, f->name) : NULL;
        if (!value) {
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            if (reads[i]->offset == f->offset) {
                return di_fail(err, DI_ERR_ARGUMENT, "%s: %s and %s %s; give one", where,
                               reads[i]->name, f->name,
                               f->read == read_structure ? "both constrain the answer"
                                                         : "are the same");
            }
        }
        reads[count++] = f;
        reading r = {q, where, f->name, value, (char *)&q->params + f->offset, err};
        if (!f->read(&r)) {
            return false;
        }
    }
    return di_request_params_check(&q->params, err) || di_fail_prefix(err, "%s", where);
}

/* ---- the prompt -------------------------------------------------------------------------------*/

/* thinking switches reasoning on and off; reasoning_effort says how much, and alone switches it on.
 */
static bool read_effort(di_json_request *q, bool messages, const char *where, di_error *err) {
    json_t *thinking = given(q->object, "thinking"), *effort = given(q->object, "reasoning_effort");
    if ((thinking || effort) && !messages) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: %s belongs to messages only", where,
                       thinking ? "thinking" : "reasoning_effort");
    }
    int *level = &q->prompt.effort;
    if (json_is_string(effort)) {
        if (!di_effort_parse(json_string_value(effort), level, err)) {
            return di_fail_prefix(err, "%s: reasoning_effort", where);
        }
    } else if (effort) {
        int64_t value;
        if (!di_json_int(q->object, where, "reasoning_effort", 1, 100, &value, err)) {
            return false;
        }
        *level = (int)value;
    }
    bool on;
    if (!di_json_bool_or(q->object, where, "thinking", *level > 0, &on, err)) {
        return false;
    }
    *level = !on ? DI_EFFORT_OFF : *level ? *level : DI_EFFORT_DEFAULT;
    return true;
}

static bool read_prompt(di_json_request *q, const char *where, di_error *err) {
    json_t *text = given(q->object, "prompt"), *ids = given(q->object, "prompt_token_ids"),
           *messages = given(q->object, "messages");
    if ((text != NULL) + (ids != NULL) + (messages != NULL) != 1) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "%s: exactly one of prompt, prompt_token_ids and messages is needed", where);
    }
    if (!read_effort(q, messages != NULL, where, err)) {
        return false;
    }
    if (ids) {
        reading r = {q, where, "prompt_token_ids", ids, NULL, err};
        return read_ids(&r, &q->prompt.token_ids, &q->prompt.num_token_ids);
    }
    if (text) {
        q->prompt.text_bytes = json_string_length(text);
        return di_json_string(q->object, where, "prompt", &q->prompt.text, err);
    }
    if (!json_is_array(messages)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s: messages is %s, an array expected", where,
                       di_json_type_name(messages));
    }
    q->messages = json_dumps(messages, JSON_COMPACT);
    if (!q->messages) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for the messages", where);
    }
    q->prompt.messages = q->messages;
    return true;
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

bool di_json_params_read(di_json_request *request, json_t *object, const char *where,
                         di_error *err) {
    request->object = json_incref(object);
    return check_names(object, where, err) && read_params(request, where, err);
}

void di_json_request_clear(di_json_request *request) {
    for (int i = 0; i < request->num_lists; i++) {
        di_free(request->lists[i]);
    }
    free(request->messages); /* jansson's */
    json_decref(request->object);
    di_schema_json_clear(&request->schema);
    request->num_lists = 0;
    request->messages = NULL;
    request->object = NULL;
}
