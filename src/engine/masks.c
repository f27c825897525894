/* A thread, and a team that it shares the rows with; see masks.h. */
#include "engine/masks.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/team.h"
#include "base/thread.h"

enum { MOST_THREADS = 8 };

struct di_masks {
    di_team *team;
    int num_threads;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const di_work *work; /* to be done; NULL = idle */
    bool closing;
};

static bool is_guided(const di_work *w, int i) {
    return w->outputs[i] > 0 && w->samplers[i]->guide.constraint;
}

static void prepare_rows(void *arg, int64_t begin, int64_t end, int member) {
    const di_work *w = arg;
    (void)member;
    for (int i = (int)begin; i < (int)end; i++) {
        const di_model_rows *part = &w->parts[i];
        if (is_guided(w, i)) {
            di_guide_prepare(&w->samplers[i]->guide,
                             part->tokens + part->num_tokens - w->outputs[i] + 1,
                             w->outputs[i] - 1);
        }
    }
}

static void prepare(di_masks *m, const di_work *w) {
    di_team_run(m->team, m->num_threads, w->plan.num_rows, 1, prepare_rows, (void *)w);
}

static void *run(void *arg) {
    di_masks *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->work && !m->closing) {
            pthread_cond_wait(&m->changed, &m->lock);
        }
        if (!m->work) {
            break;
        }
        const di_work *w = m->work;
        pthread_mutex_unlock(&m->lock);
        prepare(m, w);
        pthread_mutex_lock(&m->lock);
        m->work = NULL;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

di_masks *di_masks_create(int threads, di_error *err) {
    di_masks *m = di_calloc(1, sizeof *m);
    if (!m) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the thread that makes masks");
        return NULL;
    }
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    m->num_threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    m->team = di_team_create(m->num_threads, err);
    if (!m->team) {
        di_masks_destroy(m);
        return NULL;
    }
    return m;
}

void di_masks_destroy(di_masks *m) {
    if (!m) {
        return;
    }
    if (m->started) {
        pthread_mutex_lock(&m->lock);
        m->closing = true;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    di_team_destroy(m->team);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    di_free(m);
}

void di_masks_begin(di_masks *m, const di_work *w) {
    bool any = false;
    for (int i = 0; i < w->plan.num_rows && !any; i++) {
        any = is_guided(w, i);
    }
    if (!any) {
        return;
    }
    m->started =
        m->started || di_thread_start(&m->thread, run, m, "the thread that makes masks", NULL);
    if (!m->started) {
        prepare(m, w); /* later than it could be, and the same */
        return;
    }
    pthread_mutex_lock(&m->lock);
    m->work = w;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

void di_masks_wait(di_masks *m) {
    pthread_mutex_lock(&m->lock);
    while (m->work) {
        pthread_cond_wait(&m->changed, &m->lock);
    }
    pthread_mutex_unlock(&m->lock);
}
