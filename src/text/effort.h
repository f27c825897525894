/* How hard the model thinks: 1 to 100, or not at all. The words of the API and of the command line
 * stand for numbers of that range. */
#ifndef DI_TEXT_EFFORT_H
#define DI_TEXT_EFFORT_H

#include <stdbool.h>

#include "base/error.h"

enum {
    DI_EFFORT_OFF = 0, /* chat mode */
    DI_EFFORT_LOW = 50,
    DI_EFFORT_HIGH = 75, /* the default */
    DI_EFFORT_MAX = 100,
};

/* "none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", or a number from 1 to 100.
 */
bool di_effort_parse(const char *name, int *effort, di_error *err);

#endif
