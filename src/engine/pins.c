/* Pinned prompts: see pins.h. */
#include "engine/pins.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/internal.h"

di_pinned *di_pinned_create(const int32_t *tokens, int64_t n) {
    di_pinned *p = di_alloc(sizeof *p + (size_t)n * sizeof *tokens);
    if (p) {
        *p = (di_pinned){.num_tokens = n};
        memcpy(p->tokens, tokens, (size_t)n * sizeof *tokens);
    }
    return p;
}

void di_pins_settle(di_engine *e, uint64_t request, di_job *job) {
    pthread_mutex_lock(&e->lock);
    di_pinned *p = e->pins;
    while (p && p->request != request) {
        p = p->next;
    }
    pthread_mutex_unlock(&e->lock); /* only this thread takes pins off the list */
    if (p && !p->pinned && job->state == DI_JOB_RUNNING) {
        p->salt = job->salt;
        di_seq_publish(e->parts.cache, &job->seq, job->tokens, job->num_tokens);
        p->pinned = di_cache_pin(e->parts.cache, p->salt, p->tokens, p->num_tokens) > 0;
    }
}

void di_pins_sweep(di_engine *e, bool all) {
    di_pinned *gone = NULL;
    pthread_mutex_lock(&e->lock);
    for (di_pinned **link = &e->pins; *link;) {
        di_pinned *p = *link;
        if (all || p->released) {
            *link = p->next;
            p->next = gone;
            gone = p;
        } else {
            link = &p->next;
        }
    }
    e->unpins = false;
    pthread_mutex_unlock(&e->lock);
    while (gone) {
        di_pinned *next = gone->next;
        if (gone->pinned) {
            di_cache_unpin(e->parts.cache, gone->salt, gone->tokens, gone->num_tokens);
        }
        di_free(gone);
        gone = next;
    }
}

bool di_unpin(di_engine *e, uint64_t request) {
    bool found = false;
    pthread_mutex_lock(&e->lock);
    for (di_pinned *p = e->pins; p && !found; p = p->next) {
        if (p->request == request && !p->released) {
            found = p->released = true;
            e->unpins = true;
            pthread_cond_broadcast(&e->called);
        }
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}
