/* Threads: see thread.h. */
#include "base/thread.h"

#include <errno.h>
#include <signal.h>

bool di_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                     di_error *err) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    sigset_t outside, before;
    sigfillset(&outside);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        sigdelset(&outside, own[i]);
    }
    pthread_sigmask(SIG_SETMASK, &outside, &before);
    int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = failed;
    return failed == 0 || di_fail_errno(err, "cannot start %s", name);
}
