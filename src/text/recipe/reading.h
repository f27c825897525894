/* What the readers of the three protocols share; private to this folder. */
#ifndef DI_TEXT_RECIPE_READING_H
#define DI_TEXT_RECIPE_READING_H

#include "text/recipe/request.h"

/* What a reader has found that must be resolved together. */
typedef struct di_reading {
    di_request *r;
    const di_recipe_options *o;
    di_pool *pool;
    const di_value *body;
    int thinking;      /* thinking.type: -1 not given, 0 disabled, 1 enabled or adaptive */
    int effort;        /* index into the words, -1: not given */
    int effort_number; /* 1 to 100, 0: not given as a number (server mode) */
    di_tool *tools;
    const di_tool **by_name; /* the same, sorted, once their names are checked */
    size_t tool_count;
    di_tool_choice choice;
    bool required_later; /* a call must come, behind the reasoning */
    bool choice_named;   /* one tool must be called: choice_name */
    di_str choice_name;
    bool strict_schema;            /* of the response format */
    bool lower_max_tokens;         /* what is above the bound is lowered, not refused */
    const char *json_word_missing; /* message */
    const char *reasoning_missing; /* message */
    di_error *err;
} di_reading;

enum { DI_PATH_BYTES = 160 };

/* The three readers: they fill conversation.messages and the fields above. */
bool di_read_chat(di_reading *x);
bool di_read_messages(di_reading *x);
bool di_read_responses(di_reading *x);

/* ---- fields that more than one protocol has ---- */

bool di_read_effort(di_reading *x, const di_value *object, const char *where, const char *key);
bool di_read_thinking(di_reading *x); /* "thinking": {"type": ...} */
bool di_read_stops(di_reading *x, const di_value *list, const char *where); /* NULL: none */
bool di_read_parallel(di_reading *x, const di_value *object, const char *where, const char *key,
                      bool means); /* true means as many calls as the model likes: `means` */
bool di_read_max_tokens(di_reading *x, const char *key);

/* Refuses, in server mode only, a field that would be ignored though it changes the meaning. */
bool di_refuse_field(const di_reading *x, const char *key);

/* V4 does not see images and is told so: makes the part that text. False in V4.1. */
bool di_hide_image(const di_reading *x, di_part *part);

/* ---- tools ---- */

/* 1 to 128 of [A-Za-z0-9_-]. */
bool di_check_tool_name(di_str name, const char *where, di_error *err);

/* Checks a tool's name and schema and takes its strict form; `where` names the field of the name.
 * needs_schema: none is an error. */
bool di_check_tool(di_reading *x, di_tool *tool, const char *where, bool needs_schema);

/* All checked tools together: no name twice. */
bool di_check_tool_names(di_reading *x);

const di_tool *di_find_tool(const di_reading *x, di_str name);

/* "space::name", as the tools of a namespace are called in the prompt. */
bool di_join_tool_names(di_reading *x, di_str space, di_str name, di_str *out);

bool di_read_responses_tools(di_reading *x); /* "tool_choice" and "tools" */

/* ---- names and calls ---- */

/* A set of names that remembers who was asked for: the open calls of a turn. */
typedef struct di_open_call {
    di_str id;
    size_t place;
    bool answered;
} di_open_call;

typedef struct di_open_calls {
    di_open_call *sorted;
    size_t count, answered;
} di_open_calls;

/* Opens calls; *twice is the place of one whose id stood before, SIZE_MAX if there is none. */
bool di_open_calls_set(di_open_calls *open, di_pool *pool, const di_call *calls, size_t count,
                       size_t *twice, di_error *err);

/* The call with that id, NULL if there is none. */
di_open_call *di_open_calls_find(const di_open_calls *open, di_str id);

/* The first that has no answer yet; there must be one. */
const di_open_call *di_open_calls_missing(const di_open_calls *open);

#endif
