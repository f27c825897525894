/* Time for measuring: monotonic seconds. */
#ifndef DI_BASE_CLOCK_H
#define DI_BASE_CLOCK_H

#include <time.h>

static inline double di_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
