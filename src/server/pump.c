/* The pump: one thread that reads the engine's outputs and hands each to its generation. It never
 * waits for a client: what a client has not read lies in its generation's stream. */
#include "base/clock.h"
#include "server/internal.h"
#include "server/response_store.h"

enum { PATIENCE_MS = 250 };

static void tick(di_server *s, double now) {
    if (s->answerer.engine) {
        di_metrics_poll(s->metrics, s->answerer.engine);
    }
    if (s->stored) {
        di_response_store_expire(s->stored, now);
    }
    pthread_mutex_lock(&s->live_lock);
    for (di_generation *g = s->live; g; g = g->next_live) {
        di_generation_tick(g, now);
    }
    pthread_mutex_unlock(&s->live_lock);
}

void *di_server_pump(void *server) {
    di_server *s = server;
    const di_answerer *a = &s->answerer;
    double next = di_now();
    while (!atomic_load(&s->pump_stops)) {
        di_output *out = a->wait(a->self, PATIENCE_MS);
        double now = di_now();
        if (out) {
            di_submission *sub = out->tag;
            di_generation_take(sub->generation, sub, out, now);
            a->release(a->self, out);
        }
        if (now >= next) {
            tick(s, now);
            next = now + 0.25;
        }
    }
    return NULL;
}
