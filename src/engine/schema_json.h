/* Structured output as requests in JSON ask for it: DeepInfer's so_args, OpenAI's response_format,
 * and vLLM's and SGLang's fields where they mean the same. Called by request_json.c. */
#ifndef DI_ENGINE_SCHEMA_JSON_H
#define DI_ENGINE_SCHEMA_JSON_H

#include <jansson.h>

#include "deepinfer/deepinfer.h"

/* What the parameters point to; cleared by di_schema_json_clear. */
typedef struct di_schema_json {
    char *text; /* the schema, if it did not come as one string */
    int32_t *trigger;
} di_schema_json;

/* Reads the field `name`: so_args, response_format, structured_outputs, guided_json, guided_regex,
 * guided_grammar, guided_choice, json_schema, regex or ebnf. Strings stay `value`'s. */
bool di_schema_json_read(di_schema_json *s, const char *name, const json_t *value,
                         const char *where, di_request_params *p, di_error *err);
void di_schema_json_clear(di_schema_json *s); /* of all zero: nothing */

#endif
