/* Requests: what the protocols have in common, and what is resolved once all is read. See
 * request.h; the readers themselves are protocol_*.c. */
#include "text/recipe/request.h"

#include <stdio.h>

#include "base/buffer.h"
#include "text/effort.h"
#include "text/recipe/field.h"
#include "text/recipe/json_write.h"
#include "text/recipe/reading.h"
#include "text/recipe/schema.h"

const char *const di_protocol_names[] = {"chat", "messages", "responses"};
const char *const di_constraint_names[] = {NULL, "json", "regex", "tool_call",
                                           "tool_call_required"};
const char *const di_stage_names[] = {NULL, "reasoning_start", "reasoning_continuation",
                                      "content_continuation"};

enum { MOST_STOPS = 16, MOST_MAX_TOKENS = 393216 };

void di_recipe_options_init(di_recipe_options *o) {
    *o = (di_recipe_options){
        .default_thinking = true,
        .thinking_max_tokens = MOST_MAX_TOKENS,
        .chat_max_tokens = MOST_MAX_TOKENS,
    };
}

/* ---- fields ---- */

static const char *const efforts[] = {"none", "minimal", "low",   "medium",
                                      "high", "xhigh",   "ultra", "max"};
static const di_effort effort_levels[] = {DI_LEVEL_NONE, DI_LEVEL_LOW,  DI_LEVEL_LOW,
                                          DI_LEVEL_HIGH, DI_LEVEL_HIGH, DI_LEVEL_XHIGH,
                                          DI_LEVEL_MAX,  DI_LEVEL_MAX};
enum { NUM_EFFORTS = sizeof efforts / sizeof *efforts };

bool di_read_effort(di_reading *x, const di_value *object, const char *where, const char *key) {
    const di_value *value = di_value_given(object, key);
    if (x->o->server && value && value->type == DI_VALUE_UINT) {
        if (value->uint < 1 || value->uint > 100) {
            return di_fail(x->err, DI_ERR_ARGUMENT,
                           "%s is %llu, allowed are 1 to 100 and the names of levels", key,
                           (unsigned long long)value->uint);
        }
        x->effort_number = (int)value->uint;
        return true;
    }
    return di_field_word(object, where, key, DI_OPTIONAL, efforts, NUM_EFFORTS, &x->effort, x->err);
}

bool di_read_thinking(di_reading *x) {
    static const char *const types[] = {"adaptive", "enabled", "disabled"};
    const di_value *thinking;
    int type = 0;
    uint64_t budget;
    if (!di_field_object(x->body, "", "thinking", DI_OPTIONAL, &thinking, x->err)) {
        return false;
    }
    if (!thinking) {
        return true;
    }
    if (!di_field_type(thinking, "thinking", types, 3, &type, x->err) ||
        !di_field_uint(thinking, "thinking", "budget_tokens", UINT64_MAX, &budget, NULL, x->err)) {
        return false;
    }
    x->thinking = type != 2;
    return true;
}

bool di_read_stops(di_reading *x, const di_value *list, const char *where) {
    const di_value *items = list && list->type == DI_VALUE_ARRAY ? list->array.items : list;
    size_t count = !list ? 0 : list->type == DI_VALUE_ARRAY ? list->array.count : 1;
    for (size_t i = 0; i < count; i++) {
        if (items[i].type != DI_VALUE_STRING) {
            return di_field_wrong("", where, &items[i], "a string or a list of strings", x->err);
        }
    }
    if (count > MOST_STOPS) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Stop string array too long: %zu", count);
    }
    di_str *stops = di_pool_take(x->pool, count, sizeof *stops, x->err);
    if (!stops) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        stops[i] = items[i].string;
        if (stops[i].size == 0) {
            char place[32] = "";
            if (list->type == DI_VALUE_ARRAY) {
                snprintf(place, sizeof place, "[%zu]", i);
            }
            return di_fail(x->err, DI_ERR_ARGUMENT,
                           "Invalid 'stop%s': empty string. Expected a string with minimum length "
                           "1, but got an empty string instead.",
                           place);
        }
    }
    x->r->parsing.stops = stops;
    x->r->parsing.stop_count = count;
    return true;
}

bool di_read_parallel(di_reading *x, const di_value *object, const char *where, const char *key,
                      bool means) {
    bool value = means;
    if (!di_field_bool(object, where, key, &value, NULL, x->err)) {
        return false;
    }
    x->r->parsing.single_call = x->o->server && value != means;
    return true;
}

bool di_read_max_tokens(di_reading *x, const char *key) {
    di_inference *f = &x->r->inference;
    uint64_t value = f->max_tokens;
    bool given;
    if (!di_field_uint(x->body, "", key, UINT32_MAX, &value, &given, x->err)) {
        return false;
    }
    f->has_max_tokens |= given;
    f->max_tokens = (uint32_t)value;
    return true;
}

bool di_refuse_field(const di_reading *x, const char *key) {
    const di_value *value = di_value_given(x->body, key);
    if (!x->o->server || !value || (value->type == DI_VALUE_BOOL && !value->boolean)) {
        return true;
    }
    return di_fail(x->err, DI_ERR_ARGUMENT, "%s is not supported", key);
}

bool di_hide_image(const di_reading *x, di_part *part) {
    if (x->r->conversation.version != DI_MODEL_V4) {
        return false;
    }
    part->text = DI_STR("[Unsupported Image]");
    return true;
}

/* ---- sampling ---- */

static bool read_share(di_reading *x, const char *key, double low, double high, bool open_low,
                       const char *range, float *out, bool *given) {
    double value = 0;
    if (!di_field_real(x->body, "", key, &value, given, x->err)) {
        return false;
    }
    if (!*given) {
        return true;
    }
    float single = (float)value;
    if (!((open_low ? single > low : single >= low) && single <= high)) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Invalid %s value, the valid range of %s is %s",
                       key, key, range);
    }
    *out = single;
    return true;
}

/* What the recipe makes of the client's wishes; in server mode they stand. */
static bool read_sampling(di_reading *x) {
    di_inference *f = &x->r->inference;
    const di_conversation *c = &x->r->conversation;
    bool has_temperature = false, has_top_p = false;
    f->temperature = f->top_p = 1;
    if (!read_share(x, "temperature", 0, 2, false, "[0, 2]", &f->temperature, &has_temperature) ||
        !read_share(x, "top_p", 0, 1, true, "(0, 1.0]", &f->top_p, &has_top_p)) {
        return false;
    }
    if (x->o->server) {
        return true;
    }
    bool calls = x->tool_count > 0 && x->choice != DI_CHOICE_NONE;
    if (c->thinking) {
        f->temperature = 1;
    }
    if (c->version == DI_MODEL_V41) {
        f->top_p = !c->thinking ? 1 : f->top_p < 0.95F ? 0.95F : f->top_p;
    } else if (c->thinking) {
        f->top_p = calls ? 0.95F : 1;
    }
    return true;
}

static bool read_uint32(di_reading *x, const char *key, uint64_t low, uint64_t high, uint32_t *out,
                        bool *given) {
    uint64_t value = 0;
    if (!di_field_uint(x->body, "", key, UINT64_MAX, &value, given, x->err)) {
        return false;
    }
    if (*given && (value < low || value > high)) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "%s is %llu, allowed are %llu to %llu", key,
                       (unsigned long long)value, (unsigned long long)low,
                       (unsigned long long)high);
    }
    if (*given) {
        *out = (uint32_t)value;
    }
    return true;
}

/* Sampling that the recipe does not know. top_k -1 and 0 are off. */
static bool read_more_sampling(di_reading *x) {
    di_inference *f = &x->r->inference;
    bool given;
    f->n = 1;
    f->repetition_penalty = 1;
    if (!x->o->server) {
        return true;
    }
    const di_value *top_k = di_value_given(x->body, "top_k");
    bool off = top_k && top_k->type == DI_VALUE_INT && top_k->integer == -1;
    if (!off && !read_uint32(x, "top_k", 0, INT32_MAX, &f->top_k, &f->has_top_k)) {
        return false;
    }
    return read_uint32(x, "n", 1, 128, &f->n, &given) &&
           read_share(x, "min_p", 0, 1, false, "[0, 1]", &f->min_p, &f->has_min_p) &&
           read_share(x, "presence_penalty", -2, 2, false, "[-2, 2]", &f->presence_penalty,
                      &given) &&
           read_share(x, "frequency_penalty", -2, 2, false, "[-2, 2]", &f->frequency_penalty,
                      &given) &&
           read_share(x, "repetition_penalty", 0, 2, true, "(0, 2]", &f->repetition_penalty,
                      &given);
}

static bool check_max_tokens(di_reading *x) {
    di_inference *f = &x->r->inference;
    uint32_t most = x->r->conversation.thinking ? x->o->thinking_max_tokens : x->o->chat_max_tokens;
    if (!f->has_max_tokens) {
        return true;
    }
    if (x->lower_max_tokens && f->max_tokens > most) {
        f->max_tokens = most;
    }
    if (f->max_tokens < 1 || f->max_tokens > most) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "Invalid max_tokens value, the valid range of max_tokens is [1, %u]", most);
    }
    return true;
}

/* ---- model, thinking ---- */

static bool find_model(const di_reading *x) {
    static const di_model_name own[] = {{"DeepSeek-V4-Pro", DI_MODEL_V4},
                                        {"DeepSeek-V4.1-Flash", DI_MODEL_V41}};
    for (size_t i = 0; i < 2 + x->o->model_count; i++) {
        const di_model_name *m =
            i < x->o->model_count ? &x->o->models[i] : &own[i - x->o->model_count];
        if (di_str_is(x->r->model, m->name)) {
            x->r->conversation.version = m->version;
            return true;
        }
    }
    return false;
}

static bool check_model(const di_reading *x, bool known) {
    return known ||
           di_fail(x->err, DI_ERR_ARGUMENT,
                   "The supported API model names are DeepSeek-V4-Pro, DeepSeek-V4.1-Flash, but "
                   "you passed %.*s.",
                   di_str_shown(x->r->model, 96), x->r->model.data);
}

/* "disabled" beats any effort, "enabled" beats effort none, an effort turns thinking on. */
static void resolve_thinking(di_reading *x) {
    static const int numbers[] = {[DI_LEVEL_NONE] = DI_EFFORT_OFF,
                                  [DI_LEVEL_LOW] = DI_EFFORT_LOW,
                                  [DI_LEVEL_HIGH] = DI_EFFORT_HIGH,
                                  [DI_LEVEL_XHIGH] = DI_EFFORT_HIGH,
                                  [DI_LEVEL_MAX] = DI_EFFORT_MAX};
    di_conversation *c = &x->r->conversation;
    bool given = x->effort >= 0 || x->effort_number > 0;
    di_effort level = x->effort_number > 90   ? DI_LEVEL_MAX
                      : x->effort_number > 60 ? DI_LEVEL_HIGH
                      : x->effort_number > 0  ? DI_LEVEL_LOW
                      : given                 ? effort_levels[x->effort]
                                              : DI_LEVEL_HIGH;
    c->thinking = x->thinking >= 0 ? x->thinking
                  : given          ? level != DI_LEVEL_NONE
                                   : x->o->default_thinking;
    c->level = !c->thinking ? DI_LEVEL_NONE : level == DI_LEVEL_NONE ? DI_LEVEL_HIGH : level;
    c->effort = c->thinking && x->effort_number > 0 ? x->effort_number : numbers[c->level];
}

/* ---- tools and constraint ---- */

/* The recipe's constraint can be of strict tools or of a format, and of one kind of tools only. */
static bool check_strict(const di_reading *x) {
    const di_conversation *c = &x->r->conversation;
    for (size_t i = 1; i < c->tool_count && !x->o->server; i++) {
        if (c->tools[i].strict != c->tools[0].strict) {
            return di_fail(x->err, DI_ERR_ARGUMENT,
                           "Cannot use strict tool with non-strict tool in the same request");
        }
    }
    return !c->tools[0].strict || c->format == DI_FORMAT_TEXT || x->o->server ||
           di_fail(x->err, DI_ERR_ARGUMENT, "response_format should not be used with tools");
}

static bool resolve_choice(di_reading *x) {
    di_conversation *c = &x->r->conversation;
    c->choice = x->choice;
    if (x->tool_count == 0 || x->choice == DI_CHOICE_NONE) {
        c->choice = x->choice == DI_CHOICE_NONE ? DI_CHOICE_NONE : DI_CHOICE_AUTO;
        return true;
    }
    c->tools = x->tools;
    c->tool_count = x->tool_count;
    if (x->choice_named) {
        c->tools = di_find_tool(x, x->choice_name);
        c->tool_count = 1;
        c->choice = DI_CHOICE_REQUIRED;
        if (!c->tools) {
            return di_fail(x->err, DI_ERR_ARGUMENT,
                           "Invalid value for 'tool_call': no function named '%.*s' was specified "
                           "in the 'tools' parameter.",
                           di_str_shown(x->choice_name, 128), x->choice_name.data);
        }
    }
    if (c->choice == DI_CHOICE_REQUIRED && c->thinking && x->o->server) {
        c->choice = DI_CHOICE_AUTO; /* the prompt cannot open the block: the constraint must */
        x->required_later = true;
    }
    if (c->choice == DI_CHOICE_REQUIRED && c->thinking) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Thinking mode does not support this tool_choice");
    }
    if (!check_strict(x)) {
        return false;
    }
    x->r->parsing.tool_calls = true;
    x->r->parsing.starts_in_tool_calls = c->choice == DI_CHOICE_REQUIRED;
    return true;
}

static void write_tool(di_writer *w, const di_tool *t) {
    di_write_open(w, '{');
    di_write_key(w, "type");
    di_write_text(w, "function");
    di_write_key(w, "function");
    di_write_open(w, '{');
    di_write_key(w, "name");
    di_write_string(w, t->name);
    di_write_key(w, "description");
    if (t->has_description) {
        di_write_string(w, t->description);
    } else {
        di_write_null(w);
    }
    di_write_key(w, "parameters");
    if (t->parameters) {
        di_write_value(w, t->parameters);
    } else {
        di_write_raw(w, DI_STR("{}"));
    }
    di_write_key(w, "strict");
    if (t->has_strict) {
        di_write_bool(w, t->strict);
    } else {
        di_write_null(w);
    }
    di_write_close(w, '}');
    if (t->deferred) {
        di_write_key(w, "defer_loading");
        di_write_bool(w, true);
    }
    di_write_close(w, '}');
}

static bool keep_constraint(di_reading *x, di_buffer *text, di_constraint_kind kind) {
    x->r->inference.constraint = kind;
    return di_pool_copy(x->pool, text->data ? text->data : "", text->size,
                        &x->r->inference.constraint_text, x->err);
}

static bool constrain_to_tools(di_reading *x) {
    const di_conversation *c = &x->r->conversation;
    di_buffer text = {0};
    di_writer w = di_writer_to(&text, DI_JSON_COMPACT, x->err);
    di_write_open(&w, '[');
    for (size_t i = 0; i < c->tool_count; i++) {
        write_tool(&w, &c->tools[i]);
    }
    di_write_close(&w, ']');
    bool ok = !w.failed && keep_constraint(x, &text,
                                           c->choice == DI_CHOICE_REQUIRED || x->required_later
                                               ? DI_CONSTRAINT_TOOL_CALL_REQUIRED
                                               : DI_CONSTRAINT_TOOL_CALL);
    di_buffer_free(&text);
    return ok;
}

static bool constrain_to_schema(di_reading *x) {
    const di_conversation *c = &x->r->conversation;
    const di_value *schema = c->schema;
    if (!di_schema_check(schema, "Invalid json schema", x->err)) {
        return false;
    }
    if (x->strict_schema && !x->o->server) {
        if (!di_value_is_string(di_value_get(schema, "type"), "object")) {
            return di_fail(x->err, DI_ERR_ARGUMENT,
                           "The top level of the json schema must be an object.");
        }
        if (!di_schema_strict(x->pool, schema, "Invalid json schema", false, &schema, x->err)) {
            return false;
        }
    }
    if (x->r->inference.constraint != DI_CONSTRAINT_NONE) {
        return true; /* that of the tools is the only one */
    }
    di_buffer text = {0};
    bool ok = di_value_write(schema, DI_JSON_COMPACT, &text, x->err) &&
              keep_constraint(x, &text, DI_CONSTRAINT_JSON);
    di_buffer_free(&text);
    return ok;
}

static bool resolve_format(di_reading *x) {
    di_conversation *c = &x->r->conversation;
    di_inference *f = &x->r->inference;
    f->strict_format = x->strict_schema;
    bool free = f->constraint == DI_CONSTRAINT_NONE;
    switch (c->format) {
    case DI_FORMAT_TEXT:
        return true;
    case DI_FORMAT_JSON:
        if (!di_conversation_says_json(c)) {
            return di_fail(x->err, DI_ERR_ARGUMENT, "%s", x->json_word_missing);
        }
        x->r->parsing.json = true;
        if (free) {
            f->constraint = DI_CONSTRAINT_JSON;
            f->constraint_text = DI_STR("");
        }
        return true;
    case DI_FORMAT_REGEX:
        if (free) {
            f->constraint = DI_CONSTRAINT_REGEX;
            f->constraint_text = c->regex;
        }
        return true;
    case DI_FORMAT_SCHEMA:
        return constrain_to_schema(x);
    }
    return true;
}

/* ---- the history ---- */

/* Reasoning that is missing is none; or, in the turn that still goes on, an error if tools are in
 * play. */
static bool check_reasoning(const di_reading *x) {
    const di_conversation *c = &x->r->conversation;
    bool missing = false;
    for (const di_message *m = c->first; m; m = m->next) {
        bool lacks = m->role == DI_ROLE_ASSISTANT && !m->has_reasoning &&
                     (m->call_count > 0 || x->tool_count > 0);
        missing = m->role != DI_ROLE_USER && (missing || lacks);
    }
    return !missing || !c->thinking || !x->o->reject_missing_reasoning ||
           di_fail(x->err, DI_ERR_ARGUMENT,
                   "The `%s` in the thinking mode must be passed back to the API.",
                   x->reasoning_missing);
}

static bool resolve_prefix(di_reading *x) {
    di_conversation *c = &x->r->conversation;
    bool open = c->last && c->last->prefix;
    bool calls = x->tool_count > 0;
    for (const di_message *m = c->first; m; m = m->next) {
        calls |= m->call_count > 0;
    }
    if (open && calls) {
        return di_fail(x->err, DI_ERR_ARGUMENT, "Function call should not be used with prefix");
    }
    if (open && c->format == DI_FORMAT_JSON) {
        return di_fail(x->err, DI_ERR_ARGUMENT,
                       "response_format json_object should not be used with prefix");
    }
    bool empty = open && di_message_is_empty(c->last);
    x->r->parsing.stage = !c->thinking                  ? DI_STAGE_CHAT
                          : !open                       ? DI_STAGE_REASONING_START
                          : !empty                      ? DI_STAGE_CONTENT_CONTINUATION
                          : c->last->reasoning.size > 0 ? DI_STAGE_REASONING_CONTINUATION
                                                        : DI_STAGE_REASONING_START;
    return true;
}

static bool resolve(di_reading *x) {
    resolve_thinking(x);
    return check_max_tokens(x) && read_sampling(x) && read_more_sampling(x) && check_reasoning(x) &&
           resolve_choice(x) && resolve_prefix(x) &&
           (x->r->conversation.tool_count == 0 || constrain_to_tools(x)) && resolve_format(x);
}

bool di_request_read(di_request *r, di_protocol protocol, const di_value *body,
                     const di_recipe_options *options, di_error *err) {
    static bool (*const readers[])(di_reading *) = {di_read_chat, di_read_messages,
                                                    di_read_responses};
    di_reading x = {
        .r = r,
        .o = options,
        .pool = &r->pool,
        .body = &r->body,
        .thinking = -1,
        .effort = -1,
        .err = err,
    };
    r->body = *body;
    r->protocol = protocol;
    r->server = options->server;
    r->parsing.repair = r->conversation.repair = options->server;
    if (body->type != DI_VALUE_OBJECT) {
        return di_fail(err, DI_ERR_FORMAT, "the body is %s, an object expected",
                       di_value_type_name(body));
    }
    if (!di_field_string(body, "", "model", DI_NEEDED, &r->model, NULL, err) ||
        !di_field_bool(body, "", "stream", &r->stream, NULL, err)) {
        return false;
    }
    bool known = find_model(&x); /* wrong types are told before a wrong name */
    return readers[protocol](&x) && check_model(&x, known) && resolve(&x);
}

bool di_request_parse(di_request *r, di_protocol protocol, const char *json, size_t size,
                      const di_recipe_options *options, di_error *err) {
    *r = (di_request){0};
    di_value body;
    bool (*parse)(di_pool *, const char *, size_t, int, di_value *, di_error *) =
        options->server ? di_value_parse_once : di_value_parse;
    return parse(&r->pool, json, size, DI_VALUE_MAX_DEPTH, &body, err) &&
           di_request_read(r, protocol, &body, options, err);
}

void di_request_free(di_request *r) {
    di_pool_free(&r->pool);
    *r = (di_request){0};
}

bool di_request_max_tokens(const di_request *r, uint64_t prompt_tokens, uint64_t context,
                           uint32_t *out, di_error *err) {
    const di_conversation *c = &r->conversation;
    uint32_t asked = r->inference.has_max_tokens ? r->inference.max_tokens : 0;
    if (prompt_tokens > context || asked > context - prompt_tokens) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "This model's maximum context length is %llu tokens. However, you requested "
                       "%llu tokens (%llu in the messages, %u in the completion). Please reduce "
                       "the length of the messages or completion.",
                       (unsigned long long)context, (unsigned long long)prompt_tokens + asked,
                       (unsigned long long)prompt_tokens, asked);
    }
    uint64_t most = asked ? asked : !c->thinking ? 8192 : c->level == DI_LEVEL_MAX ? 131072 : 65536;
    uint64_t left = context - prompt_tokens;
    most = most < left ? most : left;
    *out = most > 0 ? (uint32_t)most : 1;
    return true;
}
