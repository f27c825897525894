/* A progress bar on standard error: only when that is a terminal, only after a moment, and wiped
 * away when done, so that nothing of it stays. */
#ifndef DI_CLI_PROGRESS_H
#define DI_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct di_progress {
    const char *label;
    bool enabled, drawn;
    double begun, last; /* di_now */
} di_progress;

void di_progress_begin(di_progress *p, const char *label, bool quiet);
void di_progress_show(di_progress *p, int64_t done, int64_t total);
/* Where no total is known: "label N, M tokens (R tokens/s)". */
void di_progress_count(di_progress *p, int64_t done, int64_t tokens);
void di_progress_end(di_progress *p);

#endif
