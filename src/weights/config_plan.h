/* The second half of reading a configuration; only config.c calls it. */
#ifndef DI_WEIGHTS_CONFIG_PLAN_H
#define DI_WEIGHTS_CONFIG_PLAN_H

#include "weights/config.h"

/* Checks what the fields must be to one another and fills the derived ones. layers[].ratio is set
 * and every field lies in its own range already; `where` names the file in messages. */
bool di_config_plan(di_config *c, const char *where, di_error *err);

#endif
