/* Time for measuring. */
#ifndef DI_BASE_CLOCK_H
#define DI_BASE_CLOCK_H

#include <time.h>

/* Monotonic seconds. */
static inline double di_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds that the calling thread has computed: what others do on a busy machine is left out. */
static inline double di_thread_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
