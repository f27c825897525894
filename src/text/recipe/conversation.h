/* A conversation, whatever protocol it came in: what the prompt is made of.
 *
 * All of it lies in one pool and points into the values of the request. */
#ifndef DI_TEXT_RECIPE_CONVERSATION_H
#define DI_TEXT_RECIPE_CONVERSATION_H

#include "text/recipe/value.h"

typedef enum di_role {
    DI_ROLE_SYSTEM,
    DI_ROLE_USER,
    DI_ROLE_ASSISTANT,
    DI_ROLE_TOOL,     /* the result of a call; part of the user's turn in a prompt */
    DI_ROLE_REMINDER, /* "latest_reminder" */
} di_role;

typedef struct di_image {
    bool data_url;      /* holds the image itself; else an address */
    const char *detail; /* "low", "high", "original" or "auto" */
    di_str url;
    di_str path; /* where it stood in the request, for messages */
} di_image;

/* Content is a list of parts, joined by blank lines. */
typedef struct di_part {
    const di_image *image; /* stands as a place holder; NULL: text */
    di_str text;
} di_part;

typedef struct di_call {
    di_str id, name;
    di_str arguments; /* meant to be a JSON object, not checked */
} di_call;

typedef struct di_tool {
    di_str name;
    bool has_description;
    di_str description;
    const di_value *parameters; /* a JSON Schema; NULL: none, shown as {} */
    bool has_strict, strict;
    bool deferred;         /* shown only once a tool's result or a system message names it */
    bool custom;           /* its one argument `input` is plain text to the client */
    di_str space, in_name; /* of a tool in a namespace: the two halves of its name */
} di_tool;

typedef struct di_message di_message;
struct di_message {
    di_message *next;
    di_role role;
    di_part *parts;
    size_t part_count;
    bool has_reasoning;
    di_str reasoning; /* of an assistant */
    di_call *calls;   /* of an assistant */
    size_t call_count;
    di_str call_id;              /* of a tool: which call it answers */
    bool prefix;                 /* the last message, an assistant's, is to be continued */
    const di_tool *const *tools; /* of a system message: tools it shows from here on */
    size_t tool_count;
};

typedef enum di_tool_choice {
    DI_CHOICE_AUTO,
    DI_CHOICE_NONE,     /* tools are not shown and calls not looked for */
    DI_CHOICE_REQUIRED, /* the answer begins inside a block of calls */
} di_tool_choice;

typedef enum di_response_format {
    DI_FORMAT_TEXT,
    DI_FORMAT_JSON, /* any JSON value */
    DI_FORMAT_SCHEMA,
    DI_FORMAT_REGEX,
} di_response_format;

typedef enum di_model_version {
    DI_MODEL_V4,
    DI_MODEL_V41,
} di_model_version;

/* How hard the model thinks; the name counts where the levels render alike. */
typedef enum di_effort {
    DI_LEVEL_NONE, /* chat mode */
    DI_LEVEL_LOW,
    DI_LEVEL_HIGH,
    DI_LEVEL_XHIGH,
    DI_LEVEL_MAX,
} di_effort;

typedef struct di_conversation {
    di_model_version version;
    di_message *first, *last;
    size_t message_count;
    const di_tool *tools; /* what may be called; empty with DI_CHOICE_NONE */
    size_t tool_count;
    di_tool_choice choice;
    bool thinking;
    di_effort level;
    int effort; /* of a thinking V4.1: 1 to 100 */
    di_response_format format;
    const di_value *schema; /* as the client sent it */
    di_str regex;
    bool repair; /* calls of the history are written so that they can be read back */
} di_conversation;

/* Appends an empty message of that role. NULL for want of memory. */
di_message *di_conversation_add(di_conversation *c, di_pool *pool, di_role role, di_error *err);

/* Whether the joined content has no character and no image in it. */
bool di_message_is_empty(const di_message *m);

/* Content of one part. */
bool di_message_set_text(di_message *m, di_pool *pool, di_str text, di_error *err);

/* Whether some message's content holds the word "json", in any case. */
bool di_conversation_says_json(const di_conversation *c);

#endif
