/* Parameters of structured output; see constraint.h. */
#include "engine/constraint.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/internal.h"

#define ANY_OBJECT "{\"type\":\"object\"}"
#define BLOCK_TAG  " calls>\n" /* of the block of calls, behind the control token */

/* How long a caller waits for a grammar, so that most errors are told at once. */
static const double moment = 0.002;

static bool is_tools(di_schema_type type) {
    return type == DI_SCHEMA_TOOLS || type == DI_SCHEMA_TOOLS_REQUIRED ||
           type == DI_SCHEMA_TOOLS_OR_CONTENT;
}

static bool check_text(const di_request_params *p, di_error *err) {
    bool given = p->schema && (p->schema_bytes > 0 || *p->schema);
    switch (p->schema_type) {
    case DI_SCHEMA_NONE:
    case DI_SCHEMA_JSON_OBJECT:
        return !given || di_fail(err, DI_ERR_ARGUMENT, "schema is given, but schema_type is %s",
                                 p->schema_type ? "json_object, which takes none" : "missing");
    case DI_SCHEMA_JSON:
        return true;
    case DI_SCHEMA_REGEX:
    case DI_SCHEMA_EBNF:
    case DI_SCHEMA_TOOLS:
    case DI_SCHEMA_TOOLS_REQUIRED:
    case DI_SCHEMA_GBNF:
    case DI_SCHEMA_TOOLS_OR_CONTENT:
        return given || di_fail(err, DI_ERR_ARGUMENT, "schema is missing");
    }
    return di_fail(err, DI_ERR_ARGUMENT, "schema_type is %d, allowed are %d to %d",
                   (int)p->schema_type, DI_SCHEMA_NONE, DI_SCHEMA_TOOLS_OR_CONTENT);
}

static bool lists(const int32_t *ids, size_t count, int32_t id) {
    for (size_t i = 0; i < count; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* An id that must come in the free text for the schema ever to begin. */
static bool can_come(const di_request_params *p, const char *name, int32_t id, di_error *err) {
    if (id < 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s holds %d, which is no token id", name, id);
    }
    if (lists(p->stop_token_ids, p->num_stop_token_ids, id)) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "%s can never appear: %d is in stop_token_ids and ends the answer", name,
                       id);
    }
    if (p->allowed_token_ids && !lists(p->allowed_token_ids, p->num_allowed_token_ids, id)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s can never appear: %d is not in allowed_token_ids",
                       name, id);
    }
    return true;
}

static bool check_trigger(const di_request_params *p, di_error *err) {
    size_t count = p->num_trigger_token_ids;
    if (count == 0) {
        return p->bound_token_id < 0 ||
               di_fail(err, DI_ERR_ARGUMENT,
                       "bound_token_id is %d without trigger_token_ids: there is nothing to bound",
                       p->bound_token_id);
    }
    if (p->schema_type == DI_SCHEMA_NONE || is_tools(p->schema_type)) {
        return di_fail(err, DI_ERR_ARGUMENT, "trigger_token_ids are given, but schema_type is %s",
                       p->schema_type ? "tools, which has its own trigger" : "missing");
    }
    if (count > DI_MAX_TRIGGER) {
        return di_fail(err, DI_ERR_ARGUMENT, "trigger_token_ids has %zu ids, allowed are %d", count,
                       DI_MAX_TRIGGER);
    }
    if (p->max_tokens > 0 && (size_t)p->max_tokens <= count) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "trigger_token_ids has %zu ids, max_tokens is %lld: nothing can follow it",
                       count, (long long)p->max_tokens);
    }
    for (size_t i = 0; i < count; i++) {
        if (!can_come(p, "trigger_token_ids", p->trigger_token_ids[i], err)) {
            return false;
        }
    }
    return p->bound_token_id < -1
               ? di_fail(err, DI_ERR_ARGUMENT, "bound_token_id is %d, which is no token id",
                         p->bound_token_id)
               : p->bound_token_id == -1 || can_come(p, "bound_token_id", p->bound_token_id, err);
}

bool di_constraint_check(const di_request_params *p, di_error *err) {
    return check_text(p, err) && check_trigger(p, err);
}

/* ---- what the prompt has opened ---------------------------------------------------------------*/

typedef enum opened { OPENED_NOTHING, OPENED_THINKING, OPENED_CALLS } opened;

/* Whether the prompt's last tokens, from `begin`, spell the rest of the block's first tag. */
static bool spells_tag(const di_parts *parts, const di_ids *prompt, size_t begin) {
    size_t at = 0;
    for (size_t i = begin; i < prompt->count; i++) {
        size_t size;
        const char *bytes = di_tokenizer_token_bytes(parts->tokenizer, prompt->data[i], &size);
        if (size > strlen(BLOCK_TAG) - at || memcmp(&BLOCK_TAG[at], bytes, size) != 0) {
            return false;
        }
        at += size;
    }
    return at == strlen(BLOCK_TAG);
}

/* By the last control token of those that open and close things. */
static opened opened_by(const di_parts *parts, const di_ids *prompt) {
    const di_chat_tokens *t = &parts->chat;
    for (size_t i = prompt->count; i-- > 0;) {
        int32_t id = prompt->data[i];
        if (id == t->think) {
            return OPENED_THINKING;
        }
        if (id == t->dsml && spells_tag(parts, prompt, i + 1)) {
            return OPENED_CALLS;
        }
        if (id == t->think_end || id == t->dsml || id == t->user || id == t->assistant ||
            id == t->system || id == t->bos || id == t->eos) {
            break;
        }
    }
    return OPENED_NOTHING;
}

/* ---- from parameters to a constraint ----------------------------------------------------------*/

/* What is asked of this engine's vocabulary. */
static bool check_ids(const di_engine *e, const di_request_params *p, di_error *err) {
    int vocab = e->parts.weights->config.vocab_size;
    int32_t eos = e->parts.weights->config.eos_token_id;
    for (size_t i = 0; i <= p->num_trigger_token_ids; i++) {
        bool bound = i == p->num_trigger_token_ids;
        int32_t id = bound ? p->bound_token_id : p->trigger_token_ids[i];
        const char *name = bound ? "bound_token_id" : "trigger_token_ids";
        if (id >= vocab) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "%s can never appear: %d is outside the vocabulary of %d tokens", name,
                           id, vocab);
        }
        if (id == eos && !p->ignore_eos) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "%s can never appear: %d is the end of sentence and ends the answer",
                           name, id);
        }
    }
    return true;
}

static di_grammar_type type_of(di_schema_type type) {
    switch (type) {
    case DI_SCHEMA_REGEX:
        return DI_GRAMMAR_REGEX;
    case DI_SCHEMA_EBNF:
        return DI_GRAMMAR_EBNF;
    case DI_SCHEMA_GBNF:
        return DI_GRAMMAR_GBNF;
    case DI_SCHEMA_TOOLS:
    case DI_SCHEMA_TOOLS_REQUIRED:
        return DI_GRAMMAR_TOOLS;
    case DI_SCHEMA_TOOLS_OR_CONTENT:
        return DI_GRAMMAR_TOOLS_OR_CONTENT;
    default:
        return DI_GRAMMAR_JSON_SCHEMA;
    }
}

/* Where the grammar begins: behind the caller's trigger, behind reasoning, with a block of calls,
 * or at once. */
static bool set_begin(di_constraint *c, const di_engine *e, const di_request_params *p,
                      const di_ids *prompt, di_grammar_options *o, di_error *err) {
    opened where = opened_by(&e->parts, prompt);
    const di_chat_tokens *t = &e->parts.chat;
    if (is_tools(p->schema_type) && t->dsml < 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "schema_type: the tokenizer has no control token for tool calls");
    }
    if (is_tools(p->schema_type) && where == OPENED_CALLS) {
        o->tools_from = DI_TOOLS_FROM_CALL;
        return di_trigger_create(&c->trigger, NULL, 0, -1, -1, err);
    }
    if (p->schema_type == DI_SCHEMA_TOOLS) {
        o->tools_from = DI_TOOLS_FROM_MARK;
        return di_trigger_create(&c->trigger, &t->dsml, 1, -1, t->dsml, err);
    }
    if (p->num_trigger_token_ids == 0 && where == OPENED_THINKING) {
        return di_trigger_create(&c->trigger, &t->think_end, 1, -1, -1, err);
    }
    return di_trigger_create(&c->trigger, p->trigger_token_ids, p->num_trigger_token_ids,
                             p->bound_token_id, -1, err);
}

static bool compile(di_constraint *c, const di_engine *e, const di_request_params *p,
                    const di_grammar_options *o, di_error *err) {
    const char *text = p->schema ? p->schema : "";
    size_t size = p->schema_bytes ? p->schema_bytes : strlen(text);
    if (size == 0) {
        text = p->schema_type == DI_SCHEMA_JSON ? "{}" : ANY_OBJECT;
        size = strlen(text);
    }
    c->compiled = di_grammars_get(e->grammars, type_of(p->schema_type), text, size, o, err);
    return c->compiled && (!di_compiled_wait(c->compiled, moment) ||
                           di_compiled_grammar(c->compiled, err) != NULL);
}

bool di_constraint_create(di_constraint *c, const di_engine *e, const di_request_params *p,
                          const di_ids *prompt, di_error *err) {
    di_grammar_options o;
    di_grammar_options_default(&o);
    o.any_order = p->schema_any_order;
    o.strict = p->schema_strict;
    o.lenient = p->schema_lenient;
    o.max_whitespace = p->schema_max_whitespace;
    if (!e->grammars) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "schema_type: structured output needs a "
                       "tokenizer.json");
    }
    if (!check_ids(e, p, err) || !set_begin(c, e, p, prompt, &o, err)) {
        return false;
    }
    return compile(c, e, p, &o, err) || di_fail_prefix(err, "schema");
}

void di_constraint_destroy(di_constraint *c) {
    di_compiled_release(c->compiled);
    di_free(c->trigger.ids);
    di_free(c->trigger.back);
    *c = (di_constraint){0};
}

bool di_constraint_start(di_request *r, const di_engine *e, di_error *err) {
    di_constraint *c = &r->constraint;
    c->vocab = di_grammars_vocab(e->grammars);
    c->grammar = di_compiled_grammar(c->compiled, err);
    if (!c->grammar) {
        return di_fail_prefix(err, "schema");
    }
    for (int i = 0; i < r->n; i++) {
        if (!di_guide_create(&r->choices[i].sampler.guide, c, e->max_masks, err)) {
            return false;
        }
    }
    return true;
}
