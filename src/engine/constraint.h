/* What the text of an answer must be: from the parameters of structured output to a constraint, and
 * from there to the guides of its answers. */
#ifndef DI_ENGINE_CONSTRAINT_H
#define DI_ENGINE_CONSTRAINT_H

#include "engine/request.h"

enum {
    DI_SCHEMA_WHITESPACE = 32, /* characters between two tokens of JSON, unless asked otherwise */
    DI_MAX_TRIGGER = 256,      /* ids of a trigger */
};

/* Everything that needs no engine: types, what belongs together, triggers that cannot appear. */
bool di_constraint_check(const di_request_params *p, di_error *err);

/* On the caller's thread: fills an empty constraint and has its grammar compiled. If that fails
 * within a moment, so does this; later it is di_constraint_start that tells. */
bool di_constraint_create(di_constraint *c, const di_engine *e, const di_request_params *p,
                          const di_ids *prompt, di_error *err);
void di_constraint_destroy(di_constraint *c); /* of all zero: nothing */

/* On the step thread, once its grammar is done: gives every answer its guide. */
bool di_constraint_start(di_request *r, const di_engine *e, di_error *err);

#endif
