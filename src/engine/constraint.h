/* What the text of an answer must be: the parameters of structured output, checked.
 * Called by params.c and request.c on the caller's thread. */
#ifndef DI_ENGINE_CONSTRAINT_H
#define DI_ENGINE_CONSTRAINT_H

#include "deepinfer/deepinfer.h"

enum {
    DI_SCHEMA_WHITESPACE = 32, /* characters between two tokens of JSON, unless asked otherwise */
    DI_MAX_TRIGGER = 256,      /* ids of a trigger */
};

/* Everything that needs no engine: types, what belongs together, triggers that cannot appear. */
bool di_constraint_check(const di_request_params *p, di_error *err);

#endif
