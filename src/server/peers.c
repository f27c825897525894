/* Watching connections: see peers.h. Peers lie in a table, so that an event of one that has gone
 * meanwhile is told by its serial number. */
#include "server/peers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "server/internal.h"

enum { TICK_MS = 200, EVENTS = 64 };

struct di_peers {
    struct di_server *server;
    int epoll;
    pthread_mutex_t lock;
    di_peer **peers; /* [max] by slot */
    uint32_t max, free_hint, serial;
    pthread_t thread;
    bool started;
    atomic_bool stops;
};

typedef enum probe_result {
    PROBE_SENT,  /* or not needed any more */
    PROBE_LATER, /* somebody may be writing to the socket */
    PROBE_GONE,
} probe_result;

/* Who has closed one end is asked whether the other is open. Nothing but the generation's lock
 * keeps the connection asleep meanwhile, and only then may its socket be written to. */
static probe_result ask(di_generation *g, int fd, bool interim) {
    static const char response[] = "HTTP/1.1 102 Processing\r\n\r\n";
    if (g->over || g->gone) {
        return PROBE_SENT;
    }
    if (g->opened) { /* whole answers are over by then */
        if (di_stream_text(&g->bytes, ": probe\n\n", NULL) && g->wake) {
            void (*wake)(void *) = g->wake;
            g->wake = NULL;
            wake(g->wake_context);
        }
        return PROBE_SENT;
    }
    if (!interim) {
        return PROBE_GONE;
    }
    if (!g->wake) {
        return PROBE_LATER;
    }
    ssize_t sent = send(fd, response, sizeof response - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 && errno != EAGAIN ? PROBE_GONE : PROBE_SENT;
}

static probe_result probe(di_generation *g, int fd, bool interim) {
    pthread_mutex_lock(&g->lock);
    probe_result result = ask(g, fd, interim);
    pthread_mutex_unlock(&g->lock);
    return result;
}

static void on_event(di_peers *w, uint64_t which, uint32_t events) {
    uint32_t slot = (uint32_t)which, serial = (uint32_t)(which >> 32);
    di_generation *g = NULL;
    bool gone = (events & (EPOLLERR | EPOLLHUP)) != 0;
    pthread_mutex_lock(&w->lock);
    di_peer *p = slot < w->max ? w->peers[slot] : NULL;
    if (p && p->serial == serial && p->generation) {
        g = p->generation;
        di_generation_keep(g);
        if (!gone) { /* under the lock: its socket stays ours */
            probe_result result = probe(g, p->fd, p->interim);
            p->ask_again = result == PROBE_LATER;
            gone = result == PROBE_GONE;
        }
    }
    pthread_mutex_unlock(&w->lock);
    if (g) {
        if (gone) {
            di_generation_abandon(g);
        }
        di_generation_release(g);
    }
}

/* Those that could not be asked when they closed their end. */
static void ask_again(di_peers *w) {
    uint64_t late[EVENTS];
    int n = 0;
    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->max && n < EVENTS; i++) {
        if (w->peers[i] && w->peers[i]->ask_again) {
            late[n++] = (uint64_t)w->peers[i]->serial << 32 | i;
        }
    }
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < n; i++) {
        on_event(w, late[i], 0);
    }
}

/* Shutting the socket makes its connection end in libmicrohttpd's own way. */
static void end_late(di_peers *w) {
    double now = di_now();
    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->max; i++) {
        di_peer *p = w->peers[i];
        if (p && p->deadline > 0 && now >= p->deadline) {
            p->deadline = 0;
            shutdown(p->fd, SHUT_RDWR);
            di_metrics_event(w->server->metrics, DI_EVENT_TIMEOUT);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

static void *run(void *context) {
    di_peers *w = context;
    double next = di_now();
    while (!atomic_load(&w->stops)) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(w->epoll, events, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++) {
            on_event(w, events[i].data.u64, events[i].events);
        }
        if (di_now() >= next) {
            end_late(w);
            ask_again(w);
            next = di_now() + TICK_MS / 1e3;
        }
    }
    return NULL;
}

di_peers *di_peers_create(struct di_server *s, int max_peers, di_error *err) {
    di_peers *w = di_calloc(1, sizeof *w);
    if (!w) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the server");
        return NULL;
    }
    pthread_mutex_init(&w->lock, NULL);
    w->server = s;
    w->max = (uint32_t)max_peers;
    w->peers = di_calloc(w->max, sizeof(di_peer *));
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!w->peers) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d connections", max_peers);
    } else if (w->epoll < 0) {
        di_fail_errno(err, "epoll");
    } else {
        w->started = di_thread_start(&w->thread, run, w, "the watching thread", err);
    }
    if (!w->started) {
        di_peers_destroy(w);
        return NULL;
    }
    return w;
}

void di_peers_destroy(di_peers *w) {
    if (!w) {
        return;
    }
    if (w->started) {
        atomic_store(&w->stops, true);
        pthread_join(w->thread, NULL);
    }
    if (w->epoll >= 0) {
        close(w->epoll);
    }
    pthread_mutex_destroy(&w->lock);
    di_free((void *)w->peers);
    di_free(w);
}

/* The first free slot from the last one that was given or got free on. */
static bool find_slot(di_peers *w, uint32_t *slot) {
    for (uint32_t i = 0; i < w->max; i++) {
        uint32_t at = (w->free_hint + i) % w->max;
        if (!w->peers[at]) {
            *slot = at;
            w->free_hint = (at + 1) % w->max;
            return true;
        }
    }
    return false;
}

di_peer *di_peers_open(di_peers *w, int fd, const char *address) {
    di_peer *p = di_calloc(1, sizeof *p);
    if (!p) {
        return NULL;
    }
    snprintf(p->address, sizeof p->address, "%s", address);
    p->fd = fd;
    pthread_mutex_lock(&w->lock);
    bool fits = find_slot(w, &p->slot);
    if (fits) {
        p->serial = ++w->serial;
        p->deadline = w->server->options.header_seconds > 0
                          ? di_now() + w->server->options.header_seconds
                          : 0;
        w->peers[p->slot] = p;
    }
    pthread_mutex_unlock(&w->lock);
    if (!fits) {
        di_free(p);
        return NULL;
    }
    di_metrics_connections(w->server->metrics, 1);
    return p;
}

void di_peers_close(di_peers *w, di_peer *p) {
    if (!p) {
        return;
    }
    di_peers_end(w, p);
    pthread_mutex_lock(&w->lock);
    w->peers[p->slot] = NULL;
    w->free_hint = p->slot;
    pthread_mutex_unlock(&w->lock);
    di_free(p);
    di_metrics_connections(w->server->metrics, -1);
}

void di_peers_expect(di_peers *w, di_peer *p, double seconds) {
    if (p) {
        pthread_mutex_lock(&w->lock);
        p->deadline = seconds > 0 ? di_now() + seconds : 0;
        pthread_mutex_unlock(&w->lock);
    }
}

void di_peers_begin(di_peers *w, di_peer *p, di_generation *g, bool interim) {
    if (!p) {
        return;
    }
    di_generation_keep(g);
    pthread_mutex_lock(&w->lock);
    p->generation = g;
    p->interim = interim;
    p->ask_again = false;
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLET,
                            .data.u64 = (uint64_t)p->serial << 32 | p->slot};
    epoll_ctl(w->epoll, EPOLL_CTL_ADD, p->fd, &e); /* without it a failed write tells, later */
    pthread_mutex_unlock(&w->lock);
}

void di_peers_end(di_peers *w, di_peer *p) {
    if (!p) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    di_generation *g = p->generation;
    p->generation = NULL;
    p->ask_again = false;
    if (g) {
        epoll_ctl(w->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    }
    pthread_mutex_unlock(&w->lock);
    if (g) {
        di_generation_release(g);
    }
}
