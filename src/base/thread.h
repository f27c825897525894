/* Starting threads that leave the host program's signals alone, and threads that must run soon. */
#ifndef DI_BASE_THREAD_H
#define DI_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"

/* pthread_create with every signal blocked that comes from outside, also in threads that this one
 * starts: Ctrl-C must interrupt the program's read, not ours. Faults of the thread itself (SIGBUS
 * and the like) still reach the program's handlers. `name` stands in the message. */
bool di_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                     di_error *err);

/* Has the calling thread, and those that it starts from now on, run soon after they wake, for a
 * tenth of a millisecond at a time instead of some three: for threads that people wait for, beside
 * others that compute. The share of the processor stays the same. With false, as before. Asks Linux
 * 6.12 or newer for it; elsewhere, or if that is not granted, nothing changes. */
void di_thread_prompt(bool prompt);

#endif
