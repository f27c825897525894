/* What steps cost on this machine: measured when an engine is opened, or read from a file that an
 * earlier one has left. */
#ifndef DI_ENGINE_SPEC_CURVE_H
#define DI_ENGINE_SPEC_CURVE_H

#include "engine/parts.h"
#include "sched/cost.h"

typedef struct di_curve_request {
    const char *model;  /* folder */
    const char *device; /* di_parts.device */
    bool time_ops;      /* which makes steps slower */
    int max_num_seqs, max_rows, max_logits, num_drafts;
    const char *cache; /* folder for the file; NULL = none */
    int64_t ttl;       /* seconds that a file is good for */
} di_curve_request;

typedef struct di_curves {
    di_curve step;  /* forward pass by rows, all with logits, 1 .. max_num_seqs * (1 + drafts) */
    di_curve draft; /* a round of drafts by answers, 1 .. max_num_seqs */
} di_curves;

/* From the file if there is a good one for these very parts and options, else measured, and then
 * kept there. A damaged file costs a warning, and so does one that cannot be written. False if the
 * model's calls fail. Called before the engine's threads run; leaves no sequence open. */
bool di_curves_get(const di_parts *parts, const di_curve_request *r, di_curves *c, di_error *err);

/* The file alone, for tests: "" in *path if there is no cache. */
void di_curves_path(const di_curve_request *r, char *path, size_t size);

#endif
