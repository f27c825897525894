/* What --stats shows: a line each second about the engine's steps in it, and a summary. On standard
 * error. */
#ifndef DI_CLI_WATCH_H
#define DI_CLI_WATCH_H

#include "deepinfer/deepinfer.h"

enum { DI_WATCH_BUCKETS = 256 };

typedef struct di_watch {
    di_engine *engine; /* NULL: nothing is shown */
    const char *backend;
    double begun, shown;
    uint64_t seen;            /* number of the last step that was read */
    di_engine_stats at_shown; /* when the last line was printed */
    /* Host time of steps: bucket b counts those below 2^(b/8) microseconds. */
    uint64_t hosts[DI_WATCH_BUCKETS], hosts_at_shown[DI_WATCH_BUCKETS];
    int lines; /* printed */
} di_watch;

/* Engine and name of its backend are borrowed. */
void di_watch_begin(di_watch *w, di_engine *engine, const char *backend, bool enabled);

/* Call often: the engine keeps the last 1024 steps only. */
void di_watch_look(di_watch *w);

void di_watch_end(di_watch *w);

#endif
