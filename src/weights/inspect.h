/* `deepinfer inspect`: what a model's folder holds, what it takes to run it, and everything that is
 * wrong with it. Reads headers and small tensors only, unless told to check every value. */
#ifndef DI_WEIGHTS_INSPECT_H
#define DI_WEIGHTS_INSPECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"

typedef struct di_inspect_options {
    bool json;    /* one JSON object instead of text */
    bool tensors; /* list every tensor */
    bool check;   /* read every byte for NaN and infinities */
} di_inspect_options;

/* Writes the report on FOLDER to out. *num_faults (may be NULL) is what is wrong with the
 * checkpoint; those faults are part of the report, not errors. False with *err when there is no
 * report: not a folder, out of memory, out cannot be written. */
bool di_inspect(const char *folder, const di_inspect_options *o, FILE *out, size_t *num_faults,
                di_error *err);

#endif
