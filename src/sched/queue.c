/* Waiting jobs: a binary heap whose members know their place, so that any can be taken out. */
#include "sched/queue.h"

#include "base/alloc.h"

bool di_queue_reserve(di_job_queue *q, size_t count) {
    while (q->capacity < count) {
        di_job **jobs = di_grow(q->jobs, q->capacity, &q->capacity, sizeof *jobs);
        if (!jobs) {
            return false;
        }
        q->jobs = jobs;
    }
    return true;
}

static void put(di_job_queue *q, size_t i, di_job *job) {
    q->jobs[i] = job;
    job->heap_index = i;
}

static void rise(di_job_queue *q, size_t i) {
    di_job *job = q->jobs[i];
    while (i > 0 && di_job_before(job, q->jobs[(i - 1) / 2])) {
        put(q, i, q->jobs[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(q, i, job);
}

static void sink(di_job_queue *q, size_t i) {
    di_job *job = q->jobs[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < q->count && di_job_before(q->jobs[child + 1], q->jobs[child])) {
            child++;
        }
        if (child >= q->count || !di_job_before(q->jobs[child], job)) {
            break;
        }
        put(q, i, q->jobs[child]);
        i = child;
    }
    put(q, i, job);
}

void di_queue_push(di_job_queue *q, di_job *job) {
    put(q, q->count++, job);
    rise(q, q->count - 1);
}

void di_queue_remove(di_job_queue *q, di_job *job) {
    size_t i = job->heap_index;
    di_job *last = q->jobs[--q->count];
    if (last != job) {
        put(q, i, last);
        rise(q, i);
        sink(q, last->heap_index);
    }
}

void di_queue_free(di_job_queue *q) {
    di_free(q->jobs);
    *q = (di_job_queue){0};
}
