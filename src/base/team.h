/* A team of threads that share the passes of a loop. Used by the CPU backend inside an op and by
 * the device's thread; one thread at a time may run a team's loops. */
#ifndef DI_BASE_TEAM_H
#define DI_BASE_TEAM_H

#include <stdint.h>

#include "base/error.h"

typedef struct di_team di_team;

/* Passes [begin, end) of a loop, done by member `member` of those that take part: 0 is the thread
 * that runs the loop, and no two threads have the same number at a time. */
typedef void di_team_pass(void *arg, int64_t begin, int64_t end, int member);

/* `members` threads, the caller's among them, so that members - 1 are started: when the first loop
 * needs them. Some processors' workers may fail to start then: the rest does the work. NULL with
 * *err without memory. */
di_team *di_team_create(int members, di_error *err);
void di_team_destroy(di_team *t); /* NULL is fine */

/* Has passes 0 .. n - 1 done, in parts of `grain`, by up to `members` of the team, and returns when
 * all are. Which member does which part is left to chance. Runs do not nest. */
void di_team_run(di_team *t, int members, int64_t n, int64_t grain, di_team_pass *pass, void *arg);

#endif
