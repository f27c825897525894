/* Fields of requests: see fields.h. */
#include "server/fields.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/suggest.h"
#include "text/recipe/json_write.h"

enum {
    C = DI_FIELDS_CHAT,
    M = DI_FIELDS_MESSAGES,
    R = DI_FIELDS_RESPONSES,
    T = DI_FIELDS_COMPLETIONS,
    K = DI_FIELDS_TOKENIZE,
    D = DI_FIELDS_DETOKENIZE,
    N = DI_FIELDS_COUNT,
    ALL = C | M | R | T,
};

typedef struct row {
    const char *name;
    unsigned read;   /* where the recipe or the endpoint reads it */
    unsigned engine; /* where it is a parameter of the engine */
    unsigned none;   /* where it is taken and does nothing */
    const char *why; /* why it is refused elsewhere; NULL: it is unknown there */
} row;

static const char no_audio[] = "the model neither hears nor speaks";
static const char no_store[] = "conversations are not stored";

static const row rows[] = {
    {"model", ALL | K | D | N},
    {"messages", C | M | K | N},
    {"stream", ALL},
    {"stream_options", C | T | R},
    {"max_tokens", C | M, T},
    {"max_completion_tokens", C, T},
    {"max_output_tokens", R},
    {"temperature", C | M | R, T},
    {"top_p", C | M | R, T},
    {"top_k", C | M | R, T},
    {"min_p", C | M | R, T},
    {"n", C, T, 0, "it has one answer"},
    {"seed", C, T},
    {"stop", C, T},
    {"stop_sequences", M | N},
    {"presence_penalty", C | M | R, T},
    {"frequency_penalty", C | M | R, T},
    {"repetition_penalty", C | M | R, T},
    {"logprobs", C, T},
    {"top_logprobs", C | R},
    {"response_format", C | K, T},
    {"structured_outputs", 0, C | T},
    {"guided_json", 0, C | T},
    {"guided_regex", 0, C | T},
    {"guided_grammar", 0, C | T},
    {"guided_choice", 0, C | T},
    {"json_schema", 0, C | T},
    {"regex", 0, C | T},
    {"ebnf", 0, C | T},
    {"tools", C | M | R | K | N},
    {"tool_choice", C | M | R | K | N},
    {"parallel_tool_calls", C | R},
    {"reasoning_effort", C | K},
    {"thinking", C | M | K | N},
    {"chat_template_kwargs", C | K},
    {"output_config", M | N},
    {"system", M | N},
    {"metadata", M | N | R, 0, C},
    {"input", R},
    {"instructions", R},
    {"include", R},
    {"reasoning", R},
    {"text", R},

    {"logit_bias", 0, C | T},
    {"min_tokens", 0, C | T},
    {"ignore_eos", 0, C | T},
    {"stop_token_ids", 0, C | T},
    {"bad_words", 0, C | T},
    {"allowed_token_ids", 0, C | T},
    {"include_stop_str_in_output", 0, T, 0, "stop texts are looked for in the answer's content"},
    {"skip_special_tokens", 0, T, C, NULL},
    {"logprobs_mode", 0, C | T},
    {"priority", 0, ALL},
    {"deadline", 0, ALL},
    {"timeout", 0, ALL},
    {"cache_salt", 0, ALL},
    {"no_prefix_cache", 0, ALL},
    {"skip_reading_prefix_cache", 0, ALL},

    {"prompt", T | K, 0, 0, "prompts are not stored here"},
    {"suffix", T},
    {"echo", 0, T, 0, "the prompt is not part of a message"},
    {"best_of", T},
    {"add_special_tokens", K},
    {"return_token_strs", K},
    {"add_generation_prompt", K},
    {"tokens", D},

    /* nothing comes of these; that is what they ask for here */
    {"user", 0, 0, ALL | K},
    {"safety_identifier", 0, 0, C | R},
    {"prompt_cache_key", 0, 0, C | R | T},
    {"prompt_cache_retention", 0, 0, C | R},
    {"service_tier", 0, 0, C | M | R},
    {"store", R, 0, C},
    {"verbosity", 0, 0, C},
    {"truncation", R},
    {"spaces_between_special_tokens", 0, 0, C | T},

    {"previous_response_id", R, 0, 0, "it is for responses alone"},
    {"conversation", 0, 0, 0, no_store},
    {"background", R, 0, 0, "answers are told on the connection that asked"},
    {"max_tool_calls", 0, 0, 0, "it concerns tools that a server runs"},
    {"functions", 0, 0, 0, "use tools"},
    {"function_call", 0, 0, 0, "use tool_choice"},
    {"audio", 0, 0, 0, no_audio},
    {"modalities", 0, 0, 0, no_audio},
    {"prediction", 0, 0, 0, "answers are not predicted by the client"},
    {"web_search_options", 0, 0, 0, "the server does not search"},
    {"mcp_servers", 0, 0, 0, "the server runs no tools"},
    {"container", 0, 0, 0, "the server runs no tools"},
    {"context_management", 0, 0, 0, "the conversation is taken as it is sent"},
    {"output_format", 0, 0, 0, "use output_config.format"},
    {"prompt_logprobs", 0, 0, 0, "use echo and logprobs of completions"},
    {"golden_token_ids", 0, 0, 0, "it is for generate alone"},
    {"pin_prompt", 0, 0, 0, "it is for generate alone"},
    {"use_beam_search", 0, 0, 0, "there is no beam search"},
    {"length_penalty", 0, 0, 0, "there is no beam search"},
    {"return_token_ids", 0, 0, 0, "ids are told by generate alone"},
    {"prompt_embeds", 0, 0, 0, "prompts are text or ids"},
    {"documents", 0, 0, 0, "put them into a message"},
    {"chat_template", 0, 0, 0, "the model has one format"},
    {"continue_final_message", 0, 0, 0, "set prefix: true on the last message"},
};

enum { NUM_ROWS = sizeof rows / sizeof *rows };

static const row *find(di_str name) {
    for (const row *r = rows; r < rows + NUM_ROWS; r++) {
        if (di_str_is(name, r->name)) {
            return r;
        }
    }
    return NULL;
}

static bool unknown(di_str name, di_field_set set, di_error *err) {
    const char *names[NUM_ROWS];
    size_t count = 0;
    char word[64];
    for (const row *r = rows; r < rows + NUM_ROWS; r++) {
        if ((r->read | r->engine | r->none) & set) {
            names[count++] = r->name;
        }
    }
    snprintf(word, sizeof word, "%.*s", di_str_shown(name, 63), name.data);
    const char *near = di_suggest(word, names, count);
    return di_fail(err, DI_ERR_ARGUMENT, "%s is no field of this request%s%s%s", word,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static bool is_off(const di_value *v) {
    return v->type == DI_VALUE_NULL || (v->type == DI_VALUE_BOOL && !v->boolean);
}

/* Objects of which every member is known, too: one that is not would change what was meant. */
static const struct {
    const char *path[2]; /* a field, and a member of it or NULL */
    const char *members[8];
} objects[] = {
    {{"stream_options"}, {"include_usage", "continuous_usage_stats", "include_obfuscation"}},
    {{"chat_template_kwargs"}, {"thinking", "enable_thinking", "reasoning_effort"}},
    {{"response_format"}, {"type", "json_schema", "regex"}},
    {{"response_format", "json_schema"}, {"name", "description", "schema", "strict"}},
    {{"text"}, {"format", "verbosity"}},
    {{"text", "format"}, {"type", "name", "description", "schema", "strict"}},
    {{"output_config"}, {"effort", "format"}},
    {{"output_config", "format"}, {"type", "schema"}},
    {{"reasoning"}, {"effort", "summary", "generate_summary"}},
    {{"thinking"}, {"type", "budget_tokens", "display"}},
};

static bool check_objects(const di_value *body, di_error *err) {
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        const char *outer = objects[i].path[0], *inner = objects[i].path[1];
        const di_value *object = di_value_get(body, outer);
        object = inner && object ? di_value_get(object, inner) : object;
        if (!di_value_is(object, DI_VALUE_OBJECT)) {
            continue;
        }
        for (size_t k = 0; k < object->object.count; k++) {
            di_str name = object->object.members[k].name;
            bool known = object->object.members[k].value.type == DI_VALUE_NULL;
            for (const char *const *m = objects[i].members; *m && !known; m++) {
                known = di_str_is(name, *m);
            }
            if (!known) {
                return di_fail(err, DI_ERR_ARGUMENT, "%s%s%s.%.*s is no field of this request",
                               outer, inner ? "." : "", inner ? inner : "", di_str_shown(name, 64),
                               name.data);
            }
        }
    }
    return true;
}

bool di_fields_check(const di_value *body, di_field_set set, di_error *err) {
    if (body->type != DI_VALUE_OBJECT) {
        return di_fail(err, DI_ERR_FORMAT, "the body is %s, an object expected",
                       di_value_type_name(body));
    }
    for (size_t i = 0; i < body->object.count; i++) {
        const di_named_value *m = &body->object.members[i];
        const row *r = find(m->name);
        unsigned used = r ? r->read | r->engine | r->none : 0;
        if ((used & set) || (r && is_off(&m->value))) {
            continue;
        }
        if (r && r->why) {
            return di_fail(err, DI_ERR_UNSUPPORTED, "%s is not supported here: %s", r->name,
                           r->why);
        }
        return unknown(m->name, set, err);
    }
    return check_objects(body, err);
}

bool di_fields_params(const di_value *body, di_field_set set, di_json_request *q, di_error *err) {
    di_buffer text = {0};
    di_writer w = di_writer_to(&text, DI_JSON_COMPACT, err);
    di_write_open(&w, '{');
    for (size_t i = 0; i < body->object.count; i++) {
        const di_named_value *m = &body->object.members[i];
        const row *r = find(m->name);
        if (r && (r->engine & set)) {
            di_write_key(&w, r->name);
            di_write_value(&w, &m->value);
        }
    }
    di_write_close(&w, '}');
    json_t *object =
        w.failed ? NULL
                 : di_json_parse_text(text.data, text.size, DI_JSON_MAX_DEPTH, "the body", err);
    bool ok = object && di_json_params_read(q, object, "the body", err);
    json_decref(object);
    di_buffer_free(&text);
    return ok;
}

static size_t word_length(const char *text) {
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]");
}

const char *di_fields_param(const char *message, char *out, size_t size) {
    static const char *const before[] = {"the body: ", "Invalid '", "Invalid "};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        if (strncmp(message, before[i], strlen(before[i])) == 0) {
            message += strlen(before[i]);
            break;
        }
    }
    size_t length = word_length(message), name = strcspn(message, ".[ :'");
    if (length == 0 || length >= size || !find((di_str){message, name})) {
        return NULL;
    }
    memcpy(out, message, length);
    out[length] = 0;
    return out;
}
