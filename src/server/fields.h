/* Which fields a request may have: what reads them, which do nothing, which are refused and why.
 * One table for all endpoints; docs/serving.md says the same in words. */
#ifndef DI_SERVER_FIELDS_H
#define DI_SERVER_FIELDS_H

#include "engine/request_json.h"
#include "text/recipe/value.h"

typedef enum di_field_set {
    DI_FIELDS_CHAT = 1 << 0,
    DI_FIELDS_MESSAGES = 1 << 1,
    DI_FIELDS_RESPONSES = 1 << 2,
    DI_FIELDS_COMPLETIONS = 1 << 3,
    DI_FIELDS_TOKENIZE = 1 << 4,
    DI_FIELDS_DETOKENIZE = 1 << 5,
    DI_FIELDS_COUNT = 1 << 6, /* messages/count_tokens */
} di_field_set;

/* Every member of the body is known there. Null is absence; what is refused may be false. */
bool di_fields_check(const di_value *body, di_field_set set, di_error *err);

/* Reads those fields that are parameters of the engine under their own names into q->params, which
 * has the defaults. di_json_request_clear(q) afterwards, whatever came out. */
bool di_fields_params(const di_value *body, di_field_set set, di_json_request *q, di_error *err);

/* The field that a message is about ("messages[0].content is ..."), for `param`: copied into out;
 * NULL if it is about none. */
const char *di_fields_param(const char *message, char *out, size_t size);

#endif
