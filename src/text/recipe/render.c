/* Prompts from conversations: see render.h. Nothing stands between turns but the tokens shown; the
 * results of calls are part of the user's turn, in the order of the calls. */
#include "text/recipe/render.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "text/recipe/json_write.h"
#include "text/recipe/texts.h"

/* The names of the tags of calls: V4.1 has a space behind the token, which makes each one token. */
typedef struct markup {
    const char *calls, *invoke, *parameter;
    const char *no_parameters; /* between the tags of a call without any */
} markup;

static const markup markup_v41 = {" calls", " invoke", " parameter", "\n"};
static const markup markup_v4 = {"tool_calls", "invoke", "parameter", ""};

typedef struct renderer {
    const di_chat_tokens *t;
    const di_conversation *c;
    const markup *m;
    di_chat_prompt *p;
    di_error *err;
} renderer;

static bool text(const renderer *r, const char *literal) {
    return di_chat_add_text(r->p, literal, strlen(literal), r->err);
}

static bool string(const renderer *r, di_str s) {
    return di_chat_add_text(r->p, s.data, s.size, r->err);
}

static bool control(const renderer *r, int32_t id, const char *what) {
    return di_chat_add_control(r->t, r->p, id, what, r->err);
}

static bool content(const renderer *r, const di_message *m) {
    for (size_t i = 0; i < m->part_count; i++) {
        const di_part *part = &m->parts[i];
        if ((i > 0 && !text(r, "\n\n")) ||
            !(part->image ? control(r, r->t->image, "images") : string(r, part->text))) {
            return false;
        }
    }
    return true;
}

/* ---- calls ---- */

/* "<DSML invoke", "</DSML invoke": what stands before the attributes. */
static bool open_tag(const renderer *r, const char *name) {
    return text(r, "<") && control(r, r->t->dsml, "calls of tools") && text(r, name);
}

static bool close_tag(const renderer *r, const char *name) {
    return text(r, "</") && control(r, r->t->dsml, "calls of tools") && text(r, name) &&
           text(r, ">");
}

static bool parameter(const renderer *r, di_str name, bool is_text, di_str value) {
    return open_tag(r, r->m->parameter) && text(r, " name=\"") && string(r, name) &&
           text(r, is_text ? "\" string=\"true\">" : "\" string=\"false\">") && string(r, value) &&
           close_tag(r, r->m->parameter);
}

static bool json_parameter(const renderer *r, di_str name, const di_value *value) {
    di_buffer json = {0};
    bool ok = di_value_write(value, DI_JSON_PYTHON, &json, r->err) &&
              parameter(r, name, false, (di_str){json.data, json.size});
    di_buffer_free(&json);
    return ok;
}

/* A text that holds a closing tag would end there; as JSON with the tag's '<' escaped it can be
 * said (in repair mode, docs/recipe.md). */
static bool escaped_parameter(const renderer *r, di_str name, di_str value) {
    di_buffer json = {0};
    bool ok = di_buffer_append(&json, "\"", 1, r->err);
    for (size_t i = 0, next; ok && i < value.size; i = next) {
        const char *found = memchr(value.data + i, '<', value.size - i);
        size_t end = found ? (size_t)(found - value.data) : value.size;
        next = end + (found != NULL);
        ok = di_json_escape(&json, value.data + i, end - i, r->err) &&
             (!found || di_buffer_append(&json, "\\u003c", 6, r->err));
    }
    ok = ok && di_buffer_append(&json, "\"", 1, r->err) &&
         parameter(r, name, false, (di_str){json.data, json.size});
    di_buffer_free(&json);
    return ok;
}

static bool holds_tag(di_str value) {
    static const char tag[] = "</｜DSML｜";
    return value.size >= sizeof tag - 1 && memmem(value.data, value.size, tag, sizeof tag - 1);
}

static bool argument(const renderer *r, const di_named_value *m) {
    if (m->value.type != DI_VALUE_STRING) {
        return json_parameter(r, m->name, &m->value);
    }
    return r->c->repair && holds_tag(m->value.string)
               ? escaped_parameter(r, m->name, m->value.string)
               : parameter(r, m->name, true, m->value.string);
}

/* Whether every name can stand in its attribute; the tag has no way to escape a quote. */
static bool names_fit(const renderer *r, const di_value *arguments) {
    for (size_t i = 0; r->c->repair && i < arguments->object.count; i++) {
        di_str name = arguments->object.members[i].name;
        if (name.size > 0 && memchr(name.data, '"', name.size)) {
            return false;
        }
    }
    return true;
}

/* What is no JSON object becomes one parameter of that text. */
static bool arguments(const renderer *r, const di_call *call) {
    di_pool pool = {0};
    di_value value;
    di_error ignored = {0};
    bool parsed = di_value_parse(&pool, call->arguments.data, call->arguments.size,
                                 DI_VALUE_MAX_DEPTH, &value, &ignored);
    bool ok = parsed || ignored.code != DI_ERR_NO_MEMORY ||
              di_fail(r->err, DI_ERR_NO_MEMORY, "no memory for the arguments of a call");
    if (ok && !(parsed && value.type == DI_VALUE_OBJECT && names_fit(r, &value))) {
        ok = parameter(r, DI_STR("arguments"), true, call->arguments) && text(r, "\n");
    } else if (ok && value.object.count == 0) {
        ok = text(r, r->m->no_parameters);
    } else {
        for (size_t i = 0; ok && i < value.object.count; i++) {
            ok = argument(r, &value.object.members[i]) && text(r, "\n");
        }
    }
    di_pool_free(&pool);
    return ok;
}

static bool calls(const renderer *r, const di_message *m) {
    if (m->call_count == 0) {
        return true;
    }
    if (!text(r, "\n\n") || !open_tag(r, r->m->calls) || !text(r, ">\n")) {
        return false;
    }
    for (size_t i = 0; i < m->call_count; i++) {
        if (!open_tag(r, r->m->invoke) || !text(r, " name=\"") || !string(r, m->calls[i].name) ||
            !text(r, "\">\n") || !arguments(r, &m->calls[i]) || !close_tag(r, r->m->invoke) ||
            !text(r, "\n")) {
            return false;
        }
    }
    return close_tag(r, r->m->calls);
}

/* ---- the head ---- */

static bool schema_line(const renderer *r, const di_tool *tool) {
    di_buffer json = {0};
    di_writer w = di_writer_to(&json, DI_JSON_PYTHON, r->err);
    di_write_open(&w, '{');
    di_write_key(&w, "name");
    di_write_string(&w, tool->name);
    di_write_key(&w, "description");
    di_write_string(&w, tool->has_description ? tool->description : DI_STR(""));
    di_write_key(&w, "parameters");
    if (tool->parameters) {
        di_write_value(&w, tool->parameters);
    } else {
        di_write_raw(&w, DI_STR("{}"));
    }
    di_write_close(&w, '}');
    bool ok = !w.failed && string(r, (di_str){json.data, json.size});
    di_buffer_free(&json);
    return ok;
}

/* Tools that are deferred are shown later, in V4.1. */
static bool tools(const renderer *r) {
    bool v41 = r->c->version == DI_MODEL_V41;
    di_str head = v41 ? di_text_tools_v41 : di_text_tools_v4;
    if (r->c->tool_count == 0) {
        return true;
    }
    if (!text(r, "\n\n") || !di_chat_add_marked(r->t, r->p, head.data, head.size, r->err)) {
        return false;
    }
    bool first = true;
    for (size_t i = 0; i < r->c->tool_count; i++) {
        const di_tool *tool = &r->c->tools[i];
        if (v41 && tool->deferred) {
            continue;
        }
        if ((!first && !text(r, "\n")) || !schema_line(r, tool)) {
            return false;
        }
        first = false;
    }
    return string(r, di_text_tools_end);
}

static bool shown_tools(const renderer *r, const di_message *m) {
    if (m->tool_count == 0) {
        return true;
    }
    if (!text(r, "\n\n### Updated Tool Schemas\n")) {
        return false;
    }
    for (size_t i = 0; i < m->tool_count; i++) {
        if (!text(r, "\n") || !schema_line(r, m->tools[i])) {
            return false;
        }
    }
    return true;
}

static bool format_is_shown(const di_conversation *c) {
    return c->format == DI_FORMAT_JSON || c->format == DI_FORMAT_SCHEMA;
}

static bool response_format(const renderer *r) {
    const di_conversation *c = r->c;
    if (!format_is_shown(c)) {
        return true;
    }
    if (c->version == DI_MODEL_V4 && c->format == DI_FORMAT_JSON) {
        return text(r, "\n\nYou are a helpful assistant designed to output JSON.\n"
                       "## Response Format:\n\nReply with JSON object ONLY.");
    }
    if (!text(r, "\n\n## Response Format:\n\n"
                 "You MUST strictly adhere to the following schema to reply:\n")) {
        return false;
    }
    if (c->format == DI_FORMAT_JSON) {
        return text(r, "{\"type\": \"json_object\"}");
    }
    di_buffer json = {0};
    bool ok = di_value_write(c->schema, DI_JSON_PYTHON, &json, r->err) &&
              string(r, (di_str){json.data, json.size});
    di_buffer_free(&json);
    return ok;
}

static bool effort_line(const renderer *r) {
    char line[128];
    if (!r->c->thinking) {
        return true;
    }
    if (r->c->version == DI_MODEL_V4) {
        return r->c->level == DI_LEVEL_LOW   ? true
               : r->c->level == DI_LEVEL_MAX ? string(r, di_text_effort_v4_max)
                                             : string(r, di_text_effort_v4_high);
    }
    snprintf(line, sizeof line,
             "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the "
             "reasoning)\n\n",
             r->c->effort);
    return text(r, line);
}

/* Up to the first turn. The first message, if it is the system's, is part of it. */
static bool head_v41(const renderer *r) {
    const di_conversation *c = r->c;
    const di_message *system = c->first && c->first->role == DI_ROLE_SYSTEM ? c->first : NULL;
    bool thinks = c->thinking && c->first;
    if (!thinks && !system && c->tool_count == 0 && !format_is_shown(c)) {
        return true;
    }
    return control(r, r->t->system, "system messages") && effort_line(r) &&
           (!system || content(r, system)) && tools(r) && response_format(r) &&
           (!system || shown_tools(r, system));
}

/* All system messages, wherever they stand, in front of everything. */
static bool head_v4(const renderer *r) {
    bool first = true;
    if (!effort_line(r)) {
        return false;
    }
    for (const di_message *m = r->c->first; m; m = m->next) {
        if (m->role != DI_ROLE_SYSTEM || di_message_is_empty(m)) {
            continue;
        }
        if ((!first && !text(r, "\n\n")) || !content(r, m)) {
            return false;
        }
        first = false;
    }
    return tools(r) && response_format(r);
}

/* ---- turns ---- */

static bool assistant(const renderer *r, const di_message *m) {
    const di_conversation *c = r->c;
    /* For V4.1, what stands at the very beginning is no turn's continuation. */
    bool stands_first = m == c->first && c->version != DI_MODEL_V4 && !format_is_shown(c);
    bool continues = m->prefix && !stands_first;
    bool reasons = c->thinking && (c->tool_count > 0 || continues);
    bool stays_open = continues && c->thinking && di_message_is_empty(m);
    if (!control(r, r->t->assistant, "answers")) {
        return false;
    }
    if (reasons && (!control(r, r->t->think, "thinking") || !string(r, m->reasoning))) {
        return false;
    }
    return stays_open || (control(r, r->t->think_end, "thinking") && content(r, m) && calls(r, m) &&
                          (m->prefix || control(r, r->t->eos, "ends of turns")));
}

static bool tool_result(const renderer *r, const di_message *m) {
    return text(r, "<tool_result>") && content(r, m) && text(r, "</tool_result>");
}

typedef struct placed {
    const di_message *m;
    size_t place; /* of its call */
} placed;

static int by_place(const void *a, const void *b) {
    const placed *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

static int by_call_id(const void *a, const void *b) {
    const di_call *const *x = a, *const *y = b;
    size_t shorter = (*x)->id.size < (*y)->id.size ? (*x)->id.size : (*y)->id.size;
    int order = shorter ? memcmp((*x)->id.data, (*y)->id.data, shorter) : 0;
    return order ? order : ((*x)->id.size > (*y)->id.size) - ((*x)->id.size < (*y)->id.size);
}

/* The results that begin at `first`, sorted by the calls that they answer. */
static bool place_results(const di_message *caller, placed *results, size_t count, di_error *err) {
    size_t num_calls = caller ? caller->call_count : 0;
    const di_call **sorted = di_calloc(num_calls, sizeof(di_call *));
    if (!sorted) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the results of calls");
    }
    for (size_t i = 0; i < num_calls; i++) {
        sorted[i] = &caller->calls[i];
    }
    if (num_calls > 1) {
        qsort(sorted, num_calls, sizeof(di_call *), by_call_id);
    }
    for (size_t i = 0; i < count; i++) {
        di_call wanted = {.id = results[i].m->call_id};
        const di_call *key = &wanted;
        const di_call **found =
            num_calls ? bsearch(&key, sorted, num_calls, sizeof(di_call *), by_call_id) : NULL;
        results[i].place = found ? (size_t)(*found - caller->calls) : num_calls + i;
    }
    di_free(sorted);
    qsort(results, count, sizeof *results, by_place);
    return true;
}

/* The run of results that begins at `first`, sorted; freed by the caller. *last is the last message
 * of it. NULL for want of memory. */
static placed *sorted_results(const di_message *caller, const di_message *first,
                              const di_message **last, size_t *count, di_error *err) {
    *count = 0;
    for (const di_message *m = first; m && m->role == DI_ROLE_TOOL; m = m->next) {
        *last = m;
        ++*count;
    }
    placed *run = di_calloc(*count, sizeof *run);
    if (!run) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu results of calls", *count);
        return NULL;
    }
    const di_message *m = first;
    for (size_t i = 0; i < *count; i++, m = m->next) {
        run[i].m = m;
    }
    if (!place_results(caller, run, *count, err)) {
        di_free(run);
        return NULL;
    }
    return run;
}

static bool results(const renderer *r, const di_message *caller, const di_message *first,
                    const di_message **last) {
    size_t count;
    placed *run = sorted_results(caller, first, last, &count, r->err);
    bool ok = run != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        ok = (i == 0 || text(r, "\n\n")) && tool_result(r, run[i].m);
    }
    di_free(run);
    return ok;
}

static bool turn(const renderer *r, const di_message *m) {
    switch (m->role) {
    case DI_ROLE_SYSTEM:
        return control(r, r->t->system, "system messages") && content(r, m) && shown_tools(r, m);
    case DI_ROLE_REMINDER:
        return control(r, r->t->reminder, "reminders") && content(r, m);
    case DI_ROLE_ASSISTANT:
        return assistant(r, m);
    case DI_ROLE_USER:
    case DI_ROLE_TOOL:
        break;
    }
    return content(r, m);
}

/* V4 leaves empty ones out of messages of the user that follow each other; *last is the last. */
static bool users_v4(const renderer *r, const di_message *first, const di_message **last) {
    bool begun = false;
    for (const di_message *m = first; m; m = m->next) {
        if (m->role == DI_ROLE_SYSTEM) {
            continue; /* stands in the head */
        }
        if (m->role != DI_ROLE_USER) {
            break;
        }
        *last = m;
        if (!di_message_is_empty(m)) {
            if ((begun && !text(r, "\n\n")) || !content(r, m)) {
                return false;
            }
            begun = true;
        }
    }
    return true;
}

static bool one_or_more(const renderer *r, const di_message *caller, const di_message **m) {
    if ((*m)->role == DI_ROLE_TOOL) {
        return results(r, caller, *m, m);
    }
    return (*m)->role == DI_ROLE_USER && r->c->version == DI_MODEL_V4 ? users_v4(r, *m, m)
                                                                      : turn(r, *m);
}

/* Messages of the user and results that follow each other are one turn. */
static bool turns(const renderer *r) {
    bool v4 = r->c->version == DI_MODEL_V4, in_user_turn = false;
    const di_message *caller = NULL;
    di_role last_role = DI_ROLE_SYSTEM;
    for (const di_message *m = r->c->first; m; m = m->next) {
        if (m->role == DI_ROLE_SYSTEM && (v4 || m == r->c->first)) {
            continue; /* stands in the head */
        }
        bool again = m->role == DI_ROLE_REMINDER && last_role == DI_ROLE_REMINDER;
        last_role = m->role;
        if (again && !v4 && !r->c->repair) {
            continue; /* of reminders that follow each other, the recipe shows the first */
        }
        bool of_user = m->role == DI_ROLE_USER || m->role == DI_ROLE_TOOL;
        if (of_user && !(in_user_turn ? text(r, "\n\n") : control(r, r->t->user, "users"))) {
            return false;
        }
        if (!one_or_more(r, caller, &m)) {
            return false;
        }
        in_user_turn = of_user;
        caller = m->role == DI_ROLE_ASSISTANT ? m : caller;
    }
    return true;
}

/* Where the model goes on. */
static bool generation_prompt(const renderer *r) {
    const di_conversation *c = r->c;
    if (c->last && c->last->prefix) {
        return true;
    }
    return control(r, r->t->assistant, "answers") &&
           control(r, c->thinking ? r->t->think : r->t->think_end, "thinking") &&
           (c->choice != DI_CHOICE_REQUIRED || c->tool_count == 0 ||
            (text(r, "\n\n") && open_tag(r, r->m->calls) && text(r, ">\n")));
}

bool di_recipe_render(const di_chat_tokens *t, const di_conversation *c, di_chat_prompt *out,
                      di_error *err) {
    bool v41 = c->version == DI_MODEL_V41;
    const renderer r = {t, c, v41 ? &markup_v41 : &markup_v4, out, err};
    *out = (di_chat_prompt){0};
    if (control(&r, t->bos, "beginnings") && (v41 ? head_v41(&r) : head_v4(&r)) && turns(&r) &&
        generation_prompt(&r)) {
        return true;
    }
    di_chat_prompt_free(out);
    return false;
}

static size_t note_images(const di_message *m, const di_image **list) {
    size_t found = 0;
    for (size_t i = 0; i < m->part_count; i++) {
        if (m->parts[i].image && list) {
            list[found] = m->parts[i].image;
        }
        found += m->parts[i].image != NULL;
    }
    return found;
}

bool di_recipe_images(const di_conversation *c, di_pool *pool, const di_image *const **images,
                      size_t *count, di_error *err) {
    size_t most = 0, found = 0;
    for (const di_message *m = c->first; m; m = m->next) {
        most += note_images(m, NULL);
    }
    const di_image **list = di_pool_take(pool, most, sizeof(di_image *), err);
    const di_message *caller = NULL;
    for (const di_message *m = c->first; list && m; m = m->next) {
        if (m->role != DI_ROLE_TOOL) {
            found += note_images(m, list + found);
            caller = m->role == DI_ROLE_ASSISTANT ? m : caller;
            continue;
        }
        size_t run_count;
        placed *run = sorted_results(caller, m, &m, &run_count, err);
        for (size_t i = 0; run && i < run_count; i++) {
            found += note_images(run[i].m, list + found);
        }
        di_free(run);
        if (!run) {
            return false;
        }
    }
    *images = (const di_image *const *)list;
    *count = found;
    return list != NULL;
}
