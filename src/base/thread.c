/* Threads: see thread.h. */
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* The kernel's struct sched_attr in its first size, for which older C libraries have no name. */
typedef struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime; /* ns; with the normal policy: of a slice, 0 = the usual */
    uint64_t deadline, period;
} attributes;

void di_thread_prompt(bool prompt) {
    attributes a = {0};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0 && a.policy == SCHED_OTHER) {
        a.runtime = prompt ? 100000 : 0;
        syscall(SYS_sched_setattr, 0, &a, 0);
    }
}
