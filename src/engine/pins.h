/* Prompts whose prefixes stay in the cache until they are let go. The step thread's, but for the
 * list of what to let go, which callers write under the engine's lock. */
#ifndef DI_ENGINE_PINS_H
#define DI_ENGINE_PINS_H

#include "sched/job.h"

struct di_engine;

/* A prompt to be kept: made with its request, pinned when its state is in the cache. */
typedef struct di_pinned {
    uint64_t request;
    di_hash salt; /* once pinned */
    int64_t num_tokens;
    bool pinned, released; /* released: di_unpin was called */
    struct di_pinned *next;
    int32_t tokens[];
} di_pinned;

/* NULL without memory. */
di_pinned *di_pinned_create(const int32_t *tokens, int64_t n);

/* A request's prompt has been computed whole by this job: pins what the cache has of it. */
void di_pins_settle(struct di_engine *e, uint64_t request, di_job *job);

/* Lets go what callers have released; all of it when the engine closes. */
void di_pins_sweep(struct di_engine *e, bool all);

#endif
