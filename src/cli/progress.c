/* Progress bars: see progress.h. */
#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR = 30 };

static const double patience = 0.3, interval = 0.08; /* seconds */

void di_progress_begin(di_progress *p, const char *label, bool quiet) {
    *p = (di_progress){
        .label = label,
        .enabled = !quiet && isatty(STDERR_FILENO),
        .begun = di_now(),
    };
}

/* Whether it is time to draw again. */
static bool due(di_progress *p) {
    double now = di_now();
    if (!p->enabled || now - p->begun < patience || now - p->last < interval) {
        return false;
    }
    p->last = now;
    p->drawn = true;
    return true;
}

void di_progress_show(di_progress *p, int64_t done, int64_t total) {
    if (done >= total || !due(p)) {
        return;
    }
    int filled = (int)(BAR * done / total);
    char bar[BAR + 1] = {0};
    for (int i = 0; i < BAR; i++) {
        bar[i] = i < filled ? '#' : '.';
    }
    fprintf(stderr, "\r%s [%s] %lld of %lld\033[K", p->label, bar, (long long)done,
            (long long)total);
    fflush(stderr);
}

void di_progress_count(di_progress *p, int64_t done, int64_t tokens) {
    if (due(p)) {
        fprintf(stderr, "\r%s %lld, %lld tokens (%.0f tokens/s)\033[K", p->label, (long long)done,
                (long long)tokens, (double)tokens / (p->last - p->begun));
        fflush(stderr);
    }
}

void di_progress_end(di_progress *p) {
    if (p->drawn) {
        fprintf(stderr, "\r\033[K");
        fflush(stderr);
    }
    p->drawn = false;
}
