/* Teams of threads: see team.h.
 *
 * A loop is cut into parts, and members take parts off one counter until none is left. Nobody is
 * waited for but those who hold a part: the caller begins at once, and who comes late (asleep, or
 * its processor is busy with another program) finds nothing left to do. So a loop of a few
 * microseconds may be shared, and on a busy machine a team is as fast as the members that run.
 * Waiting is a short spin, as loops follow each other closely, and then sleep: a spinning thread
 * may hold the very processor that the awaited one needs. */
#include "base/team.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

static const double SPIN_SECONDS = 50e-6;

typedef struct worker {
    di_team *team;
    pthread_t thread;
    int member;
} worker;

struct di_team {
    /* From the top: number of the loop, members that may take parts, parts that nobody has taken
     * yet. A part is taken by counting down, which fails if meanwhile the loop is another. */
    _Alignas(64) atomic_uint_fast64_t open;
    _Alignas(64) atomic_int_fast64_t unfinished; /* parts of the loop */
    atomic_bool caller_sleeps;

    /* The loop: written by the caller while no part is open or unfinished. */
    _Alignas(64) di_team_pass *pass;
    void *arg;
    int64_t n, grain, parts;

    _Alignas(64) atomic_int sleepers; /* workers */
    atomic_bool closing;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    worker *workers;
    int size, started; /* members; workers that run */
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- parts ------------------------------------------------------------------------------------*/

enum { PART_BITS = 20, MEMBER_BITS = 12, MOST_PARTS = (1 << PART_BITS) - 1 };

static int64_t parts_left(uint_fast64_t open) {
    return (int64_t)(open & MOST_PARTS);
}

static bool is_open_to(uint_fast64_t open, int member) {
    return parts_left(open) > 0 && member < (int)(open >> PART_BITS & ((1 << MEMBER_BITS) - 1));
}

static bool take_part(di_team *t, int member, int64_t *part) {
    uint_fast64_t open = atomic_load(&t->open);
    while (is_open_to(open, member)) {
        if (atomic_compare_exchange_weak(&t->open, &open, open - 1)) {
            *part = t->parts - parts_left(open);
            return true;
        }
    }
    return false;
}

static void report(di_team *t, int64_t finished) {
    if (atomic_fetch_sub(&t->unfinished, finished) == finished && atomic_load(&t->caller_sleeps)) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_signal(&t->done);
        pthread_mutex_unlock(&t->lock);
    }
}

static void take_part_in_loop(di_team *t, int member) {
    int64_t part, finished = 0;
    while (take_part(t, member, &part)) {
        int64_t begin = part * t->grain, left = t->n - begin;
        t->pass(t->arg, begin, begin + (left < t->grain ? left : t->grain), member);
        finished++;
    }
    if (finished > 0) {
        report(t, finished);
    }
}

/* ---- workers ----------------------------------------------------------------------------------*/

static bool has_work(di_team *t, int member) {
    return is_open_to(atomic_load(&t->open), member);
}

/* false when the team closes. */
static bool await_work(di_team *t, int member) {
    for (double end = di_now() + SPIN_SECONDS; di_now() < end;) {
        for (int i = 0; i < 32; i++, relax()) {
            if (has_work(t, member)) {
                return true;
            }
        }
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1); /* then look: di_team_run opens a loop, then looks here */
    while (!has_work(t, member) && !atomic_load(&t->closing)) {
        pthread_cond_wait(&t->work, &t->lock);
    }
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
    return !atomic_load(&t->closing);
}

static void *work(void *arg) {
    worker *w = arg;
    while (await_work(w->team, w->member)) {
        take_part_in_loop(w->team, w->member);
    }
    return NULL;
}

/* ---- the caller -------------------------------------------------------------------------------*/

static void start_workers(di_team *t) {
    while (t->started < t->size - 1) {
        worker *w = &t->workers[t->started];
        *w = (worker){.team = t, .member = t->started + 1};
        if (!di_thread_start(&w->thread, work, w, "a thread of the team", NULL)) {
            t->size = t->started + 1; /* goes on with those that there are */
            return;
        }
        t->started++;
    }
}

static void await_others(di_team *t) {
    for (double end = di_now() + SPIN_SECONDS; di_now() < end;) {
        for (int i = 0; i < 32; i++, relax()) {
            if (atomic_load(&t->unfinished) == 0) {
                return;
            }
        }
    }
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->caller_sleeps, true); /* then look: report() counts, then looks here */
    while (atomic_load(&t->unfinished) > 0) {
        pthread_cond_wait(&t->done, &t->lock);
    }
    atomic_store(&t->caller_sleeps, false);
    pthread_mutex_unlock(&t->lock);
}

void di_team_run(di_team *t, int members, int64_t n, int64_t grain, di_team_pass *pass, void *arg) {
    int64_t least = n / MOST_PARTS + 1; /* so that the parts can be counted */
    grain = grain < least ? least : grain;
    members = members < 1 << MEMBER_BITS ? members : (1 << MEMBER_BITS) - 1;
    int64_t parts = n > 0 ? (n + grain - 1) / grain : 0;
    if (members < 2 || parts < 2 || t->size < 2) {
        if (n > 0) {
            pass(arg, 0, n, 0);
        }
        return;
    }
    start_workers(t);
    t->pass = pass;
    t->arg = arg;
    t->n = n;
    t->grain = grain;
    t->parts = parts;
    atomic_store(&t->unfinished, parts);
    uint_fast64_t number = (atomic_load(&t->open) >> (PART_BITS + MEMBER_BITS)) + 1;
    atomic_store(&t->open, (number << MEMBER_BITS | (uint_fast64_t)members) << PART_BITS |
                               (uint_fast64_t)parts);
    if (atomic_load(&t->sleepers) > 0) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->work);
        pthread_mutex_unlock(&t->lock);
    }
    take_part_in_loop(t, 0);
    if (atomic_load(&t->unfinished) > 0) {
        await_others(t);
    }
}

/* ---- life -------------------------------------------------------------------------------------*/

di_team *di_team_create(int members, di_error *err) {
    di_team *t = di_alloc_aligned(sizeof *t);
    worker *workers = di_calloc((size_t)members, sizeof *workers);
    if (!t || !workers) {
        di_free_aligned(t);
        di_free(workers);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a team of %d threads", members);
        return NULL;
    }
    memset(t, 0, sizeof *t);
    t->workers = workers;
    t->size = members;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    return t;
}

void di_team_destroy(di_team *t) {
    if (!t) {
        return;
    }
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->closing, true);
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->started; i++) {
        pthread_join(t->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    di_free(t->workers);
    di_free_aligned(t);
}
