/* A request written as a JSON object, as in the lines of `deepinfer generate`. */
#ifndef DI_ENGINE_REQUEST_JSON_H
#define DI_ENGINE_REQUEST_JSON_H

#include <jansson.h>

#include "deepinfer/deepinfer.h"

typedef struct di_json_request {
    di_prompt prompt; /* points into what follows */
    di_request_params params;
    int32_t *token_ids; /* or NULL */
    char *messages;     /* or NULL */
    json_t *object;
} di_json_request;

/* Reads an object; takes a reference of it. `request` comes with the defaults for params and
 * prompt.effort set, which the object's fields override. Unknown fields are refused with the
 * nearest right name, values by field, value and allowed range; null is absence. `where` stands in
 * front of messages ("line 3"). Whatever the outcome, di_json_request_clear is called afterwards.
 */
bool di_json_request_read(di_json_request *request, json_t *object, const char *where,
                          di_error *err);

void di_json_request_clear(di_json_request *request);

#endif
