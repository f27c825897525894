/* A request written as a JSON object, as in the lines of `deepinfer generate`. */
#ifndef DI_ENGINE_REQUEST_JSON_H
#define DI_ENGINE_REQUEST_JSON_H

#include <jansson.h>

#include "deepinfer/deepinfer.h"
#include "engine/schema_json.h"

enum { DI_JSON_REQUEST_LISTS = 8 };

typedef struct di_json_request {
    di_prompt prompt; /* points into what follows */
    di_request_params params;
    char *messages;                     /* or NULL */
    void *lists[DI_JSON_REQUEST_LISTS]; /* arrays that prompt and params point to */
    int num_lists;
    di_schema_json schema;
    json_t *object;
} di_json_request;

/* Reads an object; takes a reference of it. `request` comes with the defaults for params and
 * prompt.effort set, which the object's fields override. Fields are those of di_request_params by
 * the names that DeepInfer, OpenAI, vLLM and SGLang give them (the table in request_json.c); two
 * names of one thing in one object are refused, unknown fields with the nearest right name, values
 * by field, value and allowed range; null is absence. `where` stands in front of messages
 * ("line 3"). Whatever the outcome, di_json_request_clear is called afterwards. */
bool di_json_request_read(di_json_request *request, json_t *object, const char *where,
                          di_error *err);

/* The same for an object that holds parameters only. */
bool di_json_params_read(di_json_request *request, json_t *object, const char *where,
                         di_error *err);

void di_json_request_clear(di_json_request *request);

#endif
