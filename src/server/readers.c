/* Threads that read long bodies: see readers.h. */
#include "server/readers.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/thread.h"

struct di_readers {
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    di_reading_job *first, *last;
    int running;
    bool finishing, stops;
    int num_threads;
    pthread_t threads[];
};

static void *run(void *context) {
    di_readers *r = context;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        while (!r->first && !r->stops) {
            pthread_cond_wait(&r->given, &r->lock);
        }
        di_reading_job *job = r->first;
        if (!job) {
            break;
        }
        r->first = job->next;
        r->last = r->first ? r->last : NULL;
        r->running++;
        pthread_mutex_unlock(&r->lock);
        job->run(job->context); /* from here on the job may be gone */
        pthread_mutex_lock(&r->lock);
        r->running--;
        pthread_cond_broadcast(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

di_readers *di_readers_create(int threads, di_error *err) {
    di_readers *r = di_calloc(1, sizeof *r + (size_t)threads * sizeof *r->threads);
    if (!r) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d threads", threads);
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->given, NULL);
    pthread_cond_init(&r->done, NULL);
    while (r->num_threads < threads) {
        if (!di_thread_start(&r->threads[r->num_threads], run, r, "a reading thread", err)) {
            di_readers_destroy(r);
            return NULL;
        }
        r->num_threads++;
    }
    return r;
}

bool di_readers_give(di_readers *r, di_reading_job *job) {
    pthread_mutex_lock(&r->lock);
    bool taken = r->num_threads > 0 && !r->finishing;
    if (taken) {
        job->next = NULL;
        *(r->last ? &r->last->next : &r->first) = job;
        r->last = job;
        pthread_cond_signal(&r->given);
    }
    pthread_mutex_unlock(&r->lock);
    return taken;
}

void di_readers_finish(di_readers *r) {
    if (!r) {
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->finishing = true;
    while (r->first || r->running > 0) {
        pthread_cond_wait(&r->done, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
}

void di_readers_destroy(di_readers *r) {
    if (!r) {
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->stops = true;
    pthread_cond_broadcast(&r->given);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->num_threads; i++) {
        pthread_join(r->threads[i], NULL);
    }
    pthread_cond_destroy(&r->given);
    pthread_cond_destroy(&r->done);
    pthread_mutex_destroy(&r->lock);
    di_free(r);
}
