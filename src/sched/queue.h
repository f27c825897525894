/* Waiting jobs: a heap by rank. */
#ifndef DI_SCHED_QUEUE_H
#define DI_SCHED_QUEUE_H

#include "sched/job.h"

typedef struct di_job_queue {
    di_job **jobs;
    size_t count, capacity;
} di_job_queue;

bool di_queue_reserve(di_job_queue *q, size_t count); /* false: no memory */
void di_queue_push(di_job_queue *q, di_job *job);     /* room was reserved */
void di_queue_remove(di_job_queue *q, di_job *job);
static inline di_job *di_queue_head(const di_job_queue *q) {
    return q->count ? q->jobs[0] : NULL;
}
void di_queue_free(di_job_queue *q);

#endif
