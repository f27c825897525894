/* A card's memory: see plan.h. What is taken is read off the card itself, so nothing is forgotten;
 * what is yet to be taken is known to the byte (weights) or found by a trial that runs nothing
 * (scratch memory, di_model_measure). */
#include "engine/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/queue.h"

enum {
    LOAD_STEPS = 80, /* of progress */
    RECORD_STEPS = 20,
};

static const double default_share = 0.92;
/* For programs, of which there are three times as many with drafts, and for what the driver takes
 * as it goes. */
static size_t spare_of(const di_parts *e) {
    return (size_t)(e->drafts ? 512 : 192) << 20;
}

int di_plan_progress_steps(const char *backend) {
    bool card = backend && strcmp(backend, "cpu") != 0 && strcmp(backend, "ref") != 0;
    return card ? LOAD_STEPS + RECORD_STEPS : 0;
}

/* ---- the plan ---------------------------------------------------------------------------------*/

/* In bytes. */
typedef struct card_plan {
    size_t start;   /* free before all of it */
    size_t budget;  /* that may be taken of it */
    size_t weights; /* all matrices and vectors */
    size_t tables;  /* n-gram tables, if they lie on the card */
    size_t work;    /* activations, arguments, scratch memory */
    size_t state;   /* of sequences: what is needed at least, then what it gets */
    size_t spare;
} card_plan;

static double gib(size_t bytes) {
    return (double)bytes / (double)((size_t)1 << 30);
}

/* For messages. */
static void write_plan(di_parts *e, const card_plan *p, const di_parts_options *o) {
    snprintf(e->plan, sizeof e->plan,
             "weights %.2f GiB, n-gram tables %.2f, work (max_num_batched_tokens %d) %.2f, state "
             "of %d sequences (max_num_seqs) at least %.2f, spare %.2f; allowed are %.2f "
             "(gpu_memory) of %.2f that are free",
             gib(p->weights), gib(p->tables), o->max_rows, gib(p->work), o->max_num_seqs,
             gib(p->state), gib(p->spare), gib(p->budget), gib(p->start));
}

static bool does_not_fit(di_parts *e, const card_plan *p, const di_parts_options *o,
                         di_error *err) {
    write_plan(e, p, o);
    return di_fail(err, DI_ERR_NO_MEMORY, "the card's memory is too small: %s", e->plan);
}

bool di_plan_failed(const di_parts *e, di_error *err) {
    di_error was = *err;
    if (was.code == DI_ERR_NO_MEMORY && e->plan[0] && !strstr(was.message, e->plan)) {
        di_fail(err, was.code, "%s; planned are %s", was.message, e->plan);
    }
    return false;
}

static size_t needed(const card_plan *p) {
    return p->weights + p->tables + p->work + p->state + p->spare;
}

static void set_budget(card_plan *p, const di_parts_options *o, const di_plan_start *start) {
    double share = o->gpu_memory_share > 0 ? o->gpu_memory_share : default_share;
    size_t asked =
        o->gpu_memory > 0 ? (size_t)o->gpu_memory : (size_t)(share * (double)start->free_bytes);
    p->start = start->free_bytes;
    p->budget = asked < p->start ? asked : p->start;
}

/* What has been taken since the start. */
static size_t taken(const di_parts *e, const card_plan *p) {
    size_t left = 0, total = 0;
    e->backend->ops->queue->memory(e->backend, &left, &total);
    return left < p->start ? p->start - left : 0;
}

/* Slots, and two blocks beside those that are nobody's. */
static size_t least_state(const di_parts *e, const di_parts_options *o) {
    di_state_layout l;
    di_parts_layout(e, &l);
    return ((size_t)o->max_num_seqs + 2) * l.slot_stride + 4 * l.block_stride;
}

void di_plan_begin(di_parts *e, const di_parts_options *o, di_plan_start *start) {
    di_backend *be = e->backend;
    *start = (di_plan_start){0};
    e->plan[0] = 0;
    if (be->ops->queue) {
        card_plan p = {
            .weights = e->weight_bytes,
            .work = e->work_bytes,
            .state = least_state(e, o),
            .spare = spare_of(e),
        };
        be->ops->queue->memory(be, &start->free_bytes, &start->total_bytes);
        set_budget(&p, o, start);
        write_plan(e, &p, o);
    }
}

/* ---- progress ---------------------------------------------------------------------------------*/

typedef struct stage {
    const di_parts_options *o;
    int before, steps;
} stage;

static void tell(void *user, int done, int total) {
    const stage *s = user;
    if (s->o->progress) {
        s->o->progress(s->o->user, DI_OPEN_STEPS - 1 + s->before + s->steps * done / total,
                       DI_OPEN_STEPS + LOAD_STEPS + RECORD_STEPS);
    }
}

/* ---- doing it ---------------------------------------------------------------------------------*/

static bool load(di_parts *e, const di_parts_options *o, card_plan *p, di_error *err) {
    p->weights = di_model_weight_bytes(e->model);
    p->work = taken(e, p);
    p->state = least_state(e, o);
    if (needed(p) > p->budget) {
        return does_not_fit(e, p, o, err);
    }
    size_t tables = di_model_table_bytes(e->model);
    bool on_card = tables < p->budget && needed(p) + tables + p->budget / 8 <= p->budget;
    p->tables = on_card ? tables : 0;
    write_plan(e, p, o);
    stage s = {o, 0, LOAD_STEPS};
    return di_model_load(e->model, on_card, tell, &s, err) &&
           di_model_measure(e->model, e->max_model_len, o->max_num_seqs, err);
}

/* The smallest cache makes way for the one that is meant. */
static bool make_cache(di_parts *e, const di_parts_options *o, card_plan *p, di_error *err) {
    di_cache_options c;
    di_cache_destroy(e->cache);
    e->cache = NULL;
    size_t used = taken(e, p), known = p->weights + p->tables;
    p->work = used > known ? used - known : 0;
    if (needed(p) > p->budget) {
        return does_not_fit(e, p, o, err);
    }
    write_plan(e, p, o);
    size_t rest = p->budget - used - p->spare;
    p->state = o->kv_memory > 0 ? (size_t)o->kv_memory : rest;
    if (p->state > rest) {
        return does_not_fit(e, p, o, err);
    }
    if (!di_parts_size_cache(e, o, p->state, o->kv_memory == 0, &c, err)) {
        return false;
    }
    e->cache = di_cache_create(&e->weights->config, e->backend, &c, err);
    if (e->cache) {
        di_model_set_cache(e->model, e->cache);
    }
    return e->cache != NULL;
}

/* Block 0 and slot 0 are read by rows that only fill a program up: they had better be numbers. */
static bool clear_nobodys(di_parts *e, di_error *err) {
    const di_state_pool *pool = di_cache_pool(e->cache);
    const di_state_layout *l = pool->layout;
    size_t bytes = l->block_stride > l->slot_stride ? l->block_stride : l->slot_stride;
    void *zeros = di_calloc(1, bytes);
    if (!zeros) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu zeros", bytes);
    }
    e->backend->ops->upload(e->backend, pool->blocks, zeros, l->block_stride);
    e->backend->ops->upload(e->backend, pool->slots, zeros, l->slot_stride);
    di_free(zeros);
    return true;
}

bool di_plan_card(di_parts *e, const di_parts_options *o, const di_plan_start *start,
                  di_error *err) {
    card_plan p = {.spare = spare_of(e)};
    set_budget(&p, o, start);
    if (!load(e, o, &p, err) || !make_cache(e, o, &p, err)) {
        return false;
    }
    e->weight_bytes = p.weights + p.tables;
    e->work_bytes = p.work;
    stage s = {o, LOAD_STEPS, RECORD_STEPS};
    bool recorded;
    e->queues_steps = false;
    if (!o->queue_steps) {
        return true;
    }
    int rows = o->max_num_seqs * (1 + (e->drafts ? o->most_drafts : 0));
    if (!clear_nobodys(e, err) ||
        !di_model_prepare(e->model, o->max_num_seqs, rows, &recorded, tell, &s, err)) {
        return false;
    }
    e->queues_steps = di_model_can_queue(e->model);
    return true;
}
