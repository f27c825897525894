/* Starting threads that leave the host program's signals alone. */
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

#endif
