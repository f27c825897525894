/* The simulated card: see simcard.h. A call of an op is kept as its arguments and a function that
 * makes it; lists of calls are the queue, and programs. */
#include "simcard/simcard.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/version.h"
#include "model/engram.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/card/part.h"

enum { MAX_REGIONS = 16, TOTAL_BYTES = 1 << 30 };

typedef struct simcard simcard;

typedef struct sim_call {
    void (*run)(simcard *c, void *args);
    void *args;
} sim_call;

typedef struct calls {
    sim_call *items;
    size_t count, capacity;
} calls;

struct di_program {
    calls calls;
};

typedef struct region {
    unsigned char *host, *there;
    size_t bytes;
} region;

struct simcard {
    di_backend base;
    di_backend *inner;
    region regions[MAX_REGIONS];
    int num_regions;
    calls queue;
    size_t next;           /* of the queue, that has not run */
    di_program *recording; /* or NULL */
    calls branches[DI_QUEUE_BRANCHES];
    int branch;          /* that calls are recorded on, from 1; 0: the main line */
    const di_step *sent; /* whose sequences the queue's end has; NULL: nobody's */
    di_step there;       /* the sequences that the card has now */
    int ends[2];         /* by place: ends of steps that are queued and not reached */
    double begun[2], ended[2];
    bool in_step, guard;
    char fault[200]; /* "": none */
};

static atomic_size_t taken; /* bytes, by all cards */

static simcard *of(di_backend *be) {
    return (simcard *)be;
}

static void fault(simcard *c, const char *what, const char *why) {
    if (!c->fault[0]) {
        snprintf(c->fault, sizeof c->fault, "simulated card: %s %s", what, why);
    }
}

/* ---- calls ------------------------------------------------------------------------------------*/

static void *memory_for(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        abort();
    }
    return p;
}

static void append(calls *to, sim_call item) {
    if (to->count == to->capacity) {
        to->capacity = to->capacity ? 2 * to->capacity : 256;
        to->items = realloc(to->items, to->capacity * sizeof *to->items);
        if (!to->items) {
            abort();
        }
    }
    to->items[to->count++] = item;
}

static void clear(calls *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->items[i].args);
    }
    free(list->items);
    *list = (calls){0};
}

/* Queues a call, or writes it down; the arguments are copied. */
static void push(simcard *c, void (*run)(simcard *c, void *args), const void *args, size_t bytes) {
    sim_call item = {run, memory_for(bytes)};
    memcpy(item.args, args, bytes);
    append(!c->recording ? &c->queue
           : c->branch   ? &c->branches[c->branch - 1]
                         : &c->recording->calls,
           item);
}

static void run_next(simcard *c) {
    sim_call item = c->queue.items[c->next++];
    if (!c->fault[0]) {
        item.run(c, item.args);
    }
    free(item.args);
    if (c->next == c->queue.count) {
        c->next = c->queue.count = 0;
    }
}

static void run_all(simcard *c) {
    while (c->next < c->queue.count) {
        run_next(c);
    }
}

static void waits(simcard *c, const char *what) {
    if (c->in_step && c->guard) {
        fault(c, what, "made the host wait inside a step");
    }
    run_all(c);
}

static bool report(simcard *c, di_error *err) {
    bool ok = !c->fault[0];
    if (!ok) {
        di_fail(err, DI_ERR_INTERNAL, "%s", c->fault);
    }
    c->fault[0] = 0;
    return ok;
}

/* ---- buffers ----------------------------------------------------------------------------------*/

enum { HEAD = 256 }; /* in front of a buffer: its size */

static void *sim_alloc(di_backend *be, size_t bytes) {
    void *p = NULL;
    (void)be;
    if (bytes > TOTAL_BYTES || posix_memalign(&p, HEAD, HEAD + bytes) != 0) {
        return NULL;
    }
    memset(p, 0xa5, HEAD + (bytes < 1 << 24 ? bytes : 1 << 24)); /* rubbish of whoever had it */
    *(size_t *)p = bytes;
    atomic_fetch_add(&taken, bytes);
    return (unsigned char *)p + HEAD;
}

static void sim_free(di_backend *be, void *buffer) {
    run_all(of(be));
    if (buffer) {
        void *p = (unsigned char *)buffer - HEAD;
        atomic_fetch_sub(&taken, *(size_t *)p);
        free(p);
    }
}

typedef struct copy_args {
    void *to;
    const void *from; /* NULL: `data` */
    size_t bytes;
    unsigned char data[];
} copy_args;

static void run_copy(simcard *c, void *args) {
    copy_args *a = args;
    (void)c;
    memmove(a->to, a->from ? a->from : a->data, a->bytes);
}

/* data: copied now; else from is read when the call runs. */
static void push_copy(simcard *c, void *to, const void *from, const void *data, size_t bytes) {
    size_t size = sizeof(copy_args) + (data ? bytes : 0);
    copy_args *a = memory_for(size);
    *a = (copy_args){to, from, bytes};
    if (data) {
        memcpy(a->data, data, bytes);
    }
    push(c, run_copy, a, size);
    free(a);
}

static void sim_upload(di_backend *be, void *to, const void *from, size_t bytes) {
    if (of(be)->recording) {
        fault(of(be), "upload", "is in a recording");
    } else if (bytes) {
        push_copy(of(be), to, NULL, from, bytes);
    }
}

static void sim_download(di_backend *be, void *to, const void *from, size_t bytes) {
    if (bytes) {
        waits(of(be), "download");
        memcpy(to, from, bytes);
    }
}

static void sim_copy(di_backend *be, void *to, const void *from, size_t bytes) {
    if (bytes) {
        push_copy(of(be), to, from, NULL, bytes);
    }
}

static bool sim_sync(di_backend *be, di_error *err) {
    waits(of(be), "sync");
    return report(of(be), err);
}

/* ---- argument memory --------------------------------------------------------------------------*/

static void *args_create(di_backend *be, size_t bytes) {
    simcard *c = of(be);
    if (c->num_regions == MAX_REGIONS) {
        return NULL;
    }
    region *r = &c->regions[c->num_regions++];
    *r = (region){memory_for(bytes), memory_for(bytes), bytes};
    atomic_fetch_add(&taken, bytes);
    return r->host;
}

static void args_destroy(di_backend *be, void *args) {
    simcard *c = of(be);
    run_all(c);
    for (int i = 0; i < c->num_regions && args; i++) {
        region *r = &c->regions[i];
        if (r->host == args) {
            free(r->host);
            free(r->there);
            atomic_fetch_sub(&taken, r->bytes);
            *r = c->regions[--c->num_regions];
            return;
        }
    }
}

/* The card's copy; NULL: it has none. */
static void *there(const simcard *c, const void *host) {
    const unsigned char *p = host;
    for (int i = 0; i < c->num_regions; i++) {
        const region *r = &c->regions[i];
        if (p >= r->host && p < r->host + r->bytes) {
            return r->there + (p - r->host);
        }
    }
    return NULL;
}

static void *argument(simcard *c, const void *host) {
    void *p = there(c, host);
    if (!p) {
        fault(c, "an array", "does not lie in argument memory");
    }
    return p;
}

static void args_send(di_backend *be, const void *from, size_t bytes) {
    simcard *c = of(be);
    void *to = bytes ? argument(c, from) : NULL;
    if (c->recording) {
        fault(c, "args_send", "is in a recording");
    } else if (to) {
        push_copy(c, to, NULL, from, bytes);
    }
}

static void args_fetch(di_backend *be, void *to, size_t bytes) {
    simcard *c = of(be);
    void *from = bytes ? argument(c, to) : NULL;
    if (from) {
        push_copy(c, to, from, NULL, bytes);
    }
}

/* ---- steps ------------------------------------------------------------------------------------*/

static size_t table_blocks(const di_step *step, const di_seq_rows *s) {
    int64_t tokens = step->pool.layout->block_tokens, end = s->pos0 + s->num_rows;
    return s->blocks ? (size_t)((end + tokens - 1) / tokens) : 0;
}

typedef struct step_args {
    di_step step; /* its sequences and their tables are the call's */
} step_args;

static void free_step(di_step *step) {
    for (int i = 0; i < step->num_seqs; i++) {
        free((void *)step->seqs[i].blocks);
    }
    free((void *)step->seqs);
    *step = (di_step){0};
}

static void run_step(simcard *c, void *args) {
    free_step(&c->there);
    c->there = ((step_args *)args)->step;
}

static void send_step(simcard *c, const di_step *step) {
    step_args a = {*step};
    di_seq_rows *seqs = memory_for((size_t)step->num_seqs * sizeof *seqs);
    memcpy(seqs, step->seqs, (size_t)step->num_seqs * sizeof *seqs);
    for (int i = 0; i < step->num_seqs; i++) {
        size_t bytes = table_blocks(step, &seqs[i]) * sizeof(int32_t);
        void *table = seqs[i].blocks ? memory_for(bytes) : NULL;
        if (table) {
            memcpy(table, seqs[i].blocks, bytes);
        }
        seqs[i].blocks = table;
    }
    a.step.seqs = seqs;
    push(c, run_step, &a, sizeof a);
}

static void step_send(di_backend *be, const di_step *step) {
    simcard *c = of(be);
    if (!c->recording) {
        send_step(c, step);
    }
    c->sent = step;
}

/* The step as an op is given it. */
static di_step given_step(simcard *c, const di_step *step) {
    if (step != c->sent && c->recording) {
        fault(c, "a step", "is recorded that was not sent");
    } else if (step != c->sent) {
        send_step(c, step);
        c->sent = NULL;
    }
    return *step;
}

/* The same when the op runs: the card's own sequences. */
static bool enter_step(simcard *c, di_step *step) {
    if (step->num_seqs != c->there.num_seqs || step->num_rows != c->there.num_rows) {
        fault(c, "a step", "runs with another number of rows or sequences than it was recorded");
        return false;
    }
    step->seqs = c->there.seqs;
    for (int i = 0; i < step->num_seqs; i++) {
        const di_seq_rows *s = &step->seqs[i];
        if (step->most_tokens && s->pos0 + s->num_rows > step->most_tokens) {
            fault(c, "a sequence", "is longer than its step allows");
            return false;
        }
    }
    return true;
}

/* ---- ops --------------------------------------------------------------------------------------
 *
 * Kinds of arguments: V a value, or memory that stays as it is; H a host array; T a weight, whose
 * description is the caller's; S the step. */

typedef struct weight {
    bool given;
    di_tensor tensor;
} weight;

static weight copy_weight(const di_tensor *w) {
    return w ? (weight){true, *w} : (weight){0};
}

#define FIELD(kind, type, name) FIELD_##kind(type, name)
#define FIELD_V(type, name)     type name;
#define FIELD_H(type, name)     type name;
#define FIELD_T(type, name)     weight name;
#define FIELD_S(type, name)     di_step name;
#define PARAM(kind, type, name) , type name
#define KEEP(kind, type, name)  KEEP_##kind(name)
#define KEEP_V(name)            a.name = name;
#define KEEP_H(name)            a.name = there(c, name), here = here || (name && !a.name);
#define KEEP_T(name)            a.name = copy_weight(name);
#define KEEP_S(name)            a.name = given_step(c, name);
#define ENTER(kind, type, name) ENTER_##kind(name)
#define ENTER_V(name)           true
#define ENTER_H(name)           true
#define ENTER_T(name)           true
#define ENTER_S(name)           enter_step(c, &a->name)
#define PASS(kind, type, name)  , PASS_##kind(name)
#define PASS_V(name)            a->name
#define PASS_H(name)            a->name
#define PASS_T(name)            (a->name.given ? &a->name.tensor : NULL)
#define PASS_S(name)            &a->name
#define AND(kind, type, name)   &&ENTER(kind, type, name)
#define NAME(kind, type, name)  , name

/* Ops called with host arrays outside argument memory read them before they return. */
#define OP(op, LIST)                                                                               \
    typedef struct op##_args {                                                                     \
        LIST(FIELD)                                                                                \
    } op##_args;                                                                                   \
    static void run_##op(simcard *c, void *args) {                                                 \
        op##_args *a = args;                                                                       \
        if (true LIST(AND)) {                                                                      \
            c->inner->ops->op(c->inner LIST(PASS));                                                \
        }                                                                                          \
    }                                                                                              \
    static void sim_##op(di_backend *be LIST(PARAM)) {                                             \
        simcard *c = of(be);                                                                       \
        op##_args a = {0};                                                                         \
        bool here = false;                                                                         \
        LIST(KEEP)                                                                                 \
        if (here && c->recording) {                                                                \
            fault(c, #op, "is recorded with an array outside argument memory");                    \
        } else if (here) {                                                                         \
            waits(c, #op);                                                                         \
            c->inner->ops->op(c->inner LIST(NAME));                                                \
        } else {                                                                                   \
            push(c, run_##op, &a, sizeof a);                                                       \
        }                                                                                          \
    }

#define EMBED(X)                                                                                   \
    X(H, const int32_t *, tokens)                                                                  \
    X(V, int, n) X(T, const di_tensor *, table) X(V, int, hc) X(V, di_bf16 *, h) X(V, float *, pre)
OP(embed, EMBED)

#define GATHER(X)                                                                                  \
    X(V, const void *, from)                                                                       \
    X(H, const int32_t *, rows) X(V, int, n) X(V, size_t, bytes) X(V, void *, to)
OP(gather_rows, GATHER)

#define MIX(X)                                                                                     \
    X(V, const di_bf16 *, h)                                                                       \
    X(V, int, n)                                                                                   \
    X(V, int, hc)                                                                                  \
    X(V, int, d) X(T, const di_tensor *, fn) X(T, const di_tensor *, base)                         \
        X(T, const di_tensor *, scale) X(V, float, norm_eps) X(V, float, hc_eps) X(V, int, iters)  \
            X(V, float *, pre) X(V, float *, post) X(V, float *, comb)
OP(mhc_mix, MIX)

#define PRE(X)                                                                                     \
    X(V, const di_bf16 *, h)                                                                       \
    X(V, const float *, pre) X(V, int, n) X(V, int, hc) X(V, int, d) X(V, di_bf16 *, out)
OP(mhc_pre, PRE)

#define POST(X)                                                                                    \
    X(V, const di_bf16 *, y)                                                                       \
    X(V, const float *, post)                                                                      \
    X(V, const float *, comb)                                                                      \
    X(V, int, n) X(V, int, hc) X(V, int, d) X(V, di_bf16 *, h) X(V, const float *, pre)            \
        X(T, const di_tensor *, norm) X(V, float, norm_eps) X(V, di_bf16 *, x)
OP(mhc_post, POST)

#define MEAN(X)                                                                                    \
    X(V, const di_bf16 *, h)                                                                       \
    X(V, int, n) X(V, int, hc) X(V, int, d) X(V, di_bf16 *, out) X(V, size_t, ldo)
OP(stream_mean, MEAN)

#define NORM(X)                                                                                    \
    X(V, const di_bf16 *, x)                                                                       \
    X(T, const di_tensor *, w) X(V, float, eps) X(V, int, n) X(V, int, dim) X(V, di_bf16 *, y)
OP(rms_norm, NORM)

#define LINEAR(X)                                                                                  \
    X(V, const di_bf16 *, x) X(V, int, n) X(T, const di_tensor *, w) X(V, di_bf16 *, y)
OP(linear, LINEAR)

#define LINEAR_F32(X)                                                                              \
    X(V, const di_bf16 *, x) X(V, int, n) X(T, const di_tensor *, w) X(V, float *, y)
OP(linear_f32, LINEAR_F32)

#define LINEAR_ADD(X) LINEAR_F32(X) X(V, size_t, ldy)
OP(linear_add_f32, LINEAR_ADD)

#define GROUPED(X)                                                                                 \
    X(V, const di_bf16 *, x)                                                                       \
    X(V, int, n) X(V, int, groups) X(T, const di_tensor *, w) X(V, di_bf16 *, y)
OP(linear_grouped, GROUPED)

#define ROPE_TABLE(X)                                                                              \
    X(H, const int64_t *, positions)                                                               \
    X(V, int, n) X(H, const float *, freq) X(V, di_rope_table, table)
OP(rope_table, ROPE_TABLE)

#define ROPE(X)                                                                                    \
    X(V, di_bf16 *, x)                                                                             \
    X(V, int, n) X(V, int, heads) X(V, int, dim) X(V, di_rope_table, table) X(V, bool, inverse)
OP(rope, ROPE)

#define WINDOW_MAKE(X)                                                                             \
    X(V, di_bf16 *, kv)                                                                            \
    X(V, int, n)                                                                                   \
    X(V, int, dim)                                                                                 \
    X(T, const di_tensor *, norm) X(V, float, eps) X(V, di_rope_table, table)                      \
        X(V, uint8_t *, records)
OP(window_make, WINDOW_MAKE)

#define WINDOW_STORE(X) X(S, const di_step *, step) X(V, int, layer) X(V, const uint8_t *, records)
OP(window_store, WINDOW_STORE)

#define COMPRESS(X)                                                                                \
    X(S, const di_step *, step)                                                                    \
    X(V, int, layer)                                                                               \
    X(V, int, ratio)                                                                               \
    X(V, const float *, k) X(V, const float *, g) X(H, const di_entry *, entries) X(V, int, m)     \
        X(V, int, dim) X(V, di_bf16 *, latents)
OP(compress, COMPRESS)

#define ENTRY_STORE(X)                                                                             \
    X(S, const di_step *, step)                                                                    \
    X(V, int, layer)                                                                               \
    X(V, int, ratio)                                                                               \
    X(H, const di_entry *, entries) X(V, int, m) X(V, const di_bf16 *, latents) X(V, int, dim)     \
        X(V, const di_bf16 *, keys) X(V, int, key_dim)
OP(entry_store, ENTRY_STORE)

#define INDEX(X)                                                                                   \
    X(S, const di_step *, step)                                                                    \
    X(V, int, source)                                                                              \
    X(V, int, ratio)                                                                               \
    X(V, const di_bf16 *, q) X(V, const di_bf16 *, weights) X(V, int, heads) X(V, int, key_dim)    \
        X(V, int, k) X(V, int32_t *, candidates) X(V, bool, build) X(V, int, max_blocks)           \
            X(V, int, block_size) X(V, int32_t *, topk)
OP(index_topk, INDEX)

#define ATTENTION(X)                                                                               \
    X(S, const di_step *, step)                                                                    \
    X(V, int, layer)                                                                               \
    X(V, int, window)                                                                              \
    X(V, int, source) X(V, int, ratio) X(V, di_bf16 *, q) X(V, int, heads) X(V, int, dim)          \
        X(V, di_rope_table, table) X(V, const uint8_t *, records) X(V, const int32_t *, topk)      \
            X(V, int, k) X(T, const di_tensor *, sink) X(V, di_bf16 *, out)
OP(attention, ATTENTION)

#define ROUTE(X)                                                                                   \
    X(V, const di_bf16 *, x)                                                                       \
    X(V, int, n)                                                                                   \
    X(T, const di_tensor *, gate)                                                                  \
    X(T, const di_tensor *, bias) X(T, const di_tensor *, bias_vl) X(H, const uint8_t *, image)    \
        X(V, float, temp) X(V, int, top_k) X(V, bool, norm) X(V, float, scale)                     \
            X(V, int32_t *, experts) X(V, float *, weights)
OP(route, ROUTE)

#define MOE(X)                                                                                     \
    X(V, const di_bf16 *, x)                                                                       \
    X(V, int, n)                                                                                   \
    X(V, const int32_t *, experts)                                                                 \
    X(V, const float *, weights) X(V, int, top_k) X(V, const di_expert *, table)                   \
        X(V, int, num_experts) X(V, const di_expert *, shared) X(V, float, limit)                  \
            X(V, di_bf16 *, y)
OP(moe, MOE)

#define ENGRAM(X)                                                                                  \
    X(H, const int64_t *, rows)                                                                    \
    X(V, int, n)                                                                                   \
    X(V, int, columns)                                                                             \
    X(T, const di_tensor *, table) X(T, const di_tensor *, wkv) X(T, const di_tensor *, q_weight)  \
        X(T, const di_tensor *, k_weight) X(V, int, hc) X(V, int, d) X(V, float, eps)              \
            X(V, di_bf16 *, h)
OP(engram, ENGRAM)

/* ---- programs ---------------------------------------------------------------------------------*/

static bool record(di_backend *be) {
    simcard *c = of(be);
    if (c->recording || c->in_step) {
        return false;
    }
    c->recording = memory_for(sizeof *c->recording);
    return true;
}

static void fork_branch(di_backend *be, int branch) {
    of(be)->branch = of(be)->recording ? branch + 1 : 0;
}

static void back_to_main(di_backend *be) {
    of(be)->branch = 0;
}

static void join_branch(di_backend *be, int branch) {
    simcard *c = of(be);
    calls *b = &c->branches[branch];
    for (size_t i = 0; i < b->count; i++) {
        append(&c->recording->calls, b->items[i]);
    }
    b->count = 0;
}

static void program_free(di_backend *be, di_program *p) {
    if (p) {
        run_all(of(be));
        clear(&p->calls);
        free(p);
    }
}

static di_program *recorded(di_backend *be, di_error *err) {
    simcard *c = of(be);
    di_program *p = c->recording;
    c->recording = NULL;
    for (int b = 0; b < DI_QUEUE_BRANCHES; b++) {
        if (c->branches[b].count > 0) {
            fault(c, "a branch", "is not joined");
        }
    }
    if (!report(c, err)) {
        program_free(be, p);
        return NULL;
    }
    return p;
}

static bool dropped(di_backend *be, di_error *err) {
    di_program *p = recorded(be, err);
    program_free(be, p);
    return p != NULL;
}

static void run_program(simcard *c, void *args) {
    const calls *list = *(calls *const *)args;
    for (size_t i = 0; i < list->count && !c->fault[0]; i++) {
        list->items[i].run(c, list->items[i].args);
    }
}

static bool replay(di_backend *be, di_program *p) {
    const calls *list = &p->calls;
    push(of(be), run_program, &list, sizeof list);
    return true;
}

/* ---- what depends on tokens -------------------------------------------------------------------*/

typedef struct feed_args {
    int32_t *tokens;
    const int32_t *source, *drawn;
    int n;
} feed_args;

static void run_feed(simcard *c, void *args) {
    const feed_args *a = args;
    (void)c;
    for (int i = 0; i < a->n; i++) {
        a->tokens[i] = a->source[i] >= 0 ? a->drawn[a->source[i]] : a->tokens[i];
    }
}

static void feed(di_backend *be, int32_t *tokens, const int32_t *source, int n,
                 const int32_t *drawn) {
    simcard *c = of(be);
    feed_args a = {argument(c, tokens), argument(c, source), argument(c, drawn), n};
    push(c, run_feed, &a, sizeof a);
}

typedef struct hash_args {
    di_ngram_hash hash;
    const int32_t *tokens, *before;
    const uint8_t *image;
    int look_back, n;
    int64_t *rows;
} hash_args;

static void run_hash(simcard *c, void *args) {
    const hash_args *a = args;
    const di_ngram_hash *from = &a->hash;
    size_t columns = (size_t)from->columns;
    (void)c;
    di_engram_hasher h = {.num_layers = 1,
                          .max_ngram = from->max_ngram,
                          .heads = from->heads,
                          .columns = from->columns,
                          .vocab_size = from->vocab_size,
                          .pad = from->pad,
                          .token_map = from->token_map};
    memcpy(h.primes[0], from->primes, columns * sizeof *from->primes);
    memcpy(h.offsets[0], from->offsets, columns * sizeof *from->offsets);
    memcpy(h.multipliers[0], from->multipliers,
           (size_t)from->max_ngram * sizeof *from->multipliers);
    for (int i = 0; i < a->n; i++) {
        int32_t ids[DI_MAX_NGRAM];
        for (int k = 0; k < a->look_back; k++) {
            ids[k] = di_engram_compress(&h, a->before[i * a->look_back + k]);
        }
        bool image = a->image && a->image[i];
        ids[a->look_back] = image ? DI_ENGRAM_BARRIER : di_engram_compress(&h, a->tokens[i]);
        di_engram_hash(&h, 0, ids, a->look_back, a->rows + (size_t)i * columns);
    }
}

static void hash_ngrams(di_backend *be, const di_ngram_hash *h, const int32_t *tokens,
                        const int32_t *before, int look_back, const uint8_t *image, int n,
                        int64_t *rows) {
    simcard *c = of(be);
    hash_args a = {
        *h, argument(c, tokens), argument(c, before), image ? argument(c, image) : NULL, look_back,
        n,  argument(c, rows)};
    push(c, run_hash, &a, sizeof a);
}

static void run_draw(simcard *c, void *args) {
    const di_draw_call *a = args;
    for (int i = 0; i < a->n; i++) {
        if (!simcard_draw(a, i)) {
            fault(c, "draw", "is asked for what this card does not draw");
        }
    }
}

static void draw(di_backend *be, const di_draw_call *call) {
    simcard *c = of(be);
    di_draw_call d = *call;
    d.rows = argument(c, call->rows);
    d.pairs = argument(c, call->pairs);
    d.masks = argument(c, call->masks);
    d.before = call->before ? argument(c, call->before) : NULL;
    d.tokens = argument(c, call->tokens);
    d.drawn = argument(c, call->drawn);
    d.top = argument(c, call->top);
    push(c, run_draw, &d, sizeof d);
}

/* ---- begin, end, wait -------------------------------------------------------------------------*/

static void run_begin(simcard *c, void *args) {
    c->begun[*(int *)args] = di_now();
}

static void run_end(simcard *c, void *args) {
    int place = *(int *)args;
    c->ended[place] = di_now();
    c->ends[place]--;
}

static void begin(di_backend *be, int place) {
    push(of(be), run_begin, &place, sizeof place);
    of(be)->in_step = true;
}

static void end(di_backend *be, int place) {
    push(of(be), run_end, &place, sizeof place);
    of(be)->ends[place]++;
    of(be)->in_step = false;
}

static bool wait(di_backend *be, int place, double *begin_time, double *end_time, di_error *err) {
    simcard *c = of(be);
    while (c->ends[place] > 0 && c->next < c->queue.count) {
        run_next(c);
    }
    c->ends[place] = 0;
    *begin_time = c->begun[place];
    *end_time = c->ended[place];
    return report(c, err);
}

/* ---- weights ----------------------------------------------------------------------------------*/

static void memory(di_backend *be, size_t *free_bytes, size_t *total_bytes) {
    (void)be;
    size_t used = atomic_load(&taken);
    *total_bytes = TOTAL_BYTES;
    *free_bytes = used < TOTAL_BYTES ? TOTAL_BYTES - used : 0;
}

static size_t matrix_bytes(di_backend *be, const di_tensor *w) {
    (void)be;
    (void)w;
    return 0; /* it stays where it is */
}

static size_t array_bytes(di_backend *be, size_t bytes) {
    (void)be;
    (void)bytes;
    return 0;
}

static void reserve(di_backend *be, size_t bytes) {
    (void)be;
    (void)bytes;
}

static void load_matrix(di_backend *be, const di_tensor *w) {
    (void)be;
    (void)w;
}

static void load_array(di_backend *be, const void *host, size_t bytes) {
    (void)be;
    (void)host;
    (void)bytes;
}

static void load_experts(di_backend *be, const di_expert *table, int count) {
    (void)be;
    (void)table;
    (void)count;
}

static bool load_ngrams(di_backend *be, const di_tensor *table, bool on_card) {
    (void)be;
    (void)table;
    (void)on_card;
    return true;
}

static const di_queue_ops sim_queue = {
    .memory = memory,
    .matrix_bytes = matrix_bytes,
    .array_bytes = array_bytes,
    .reserve = reserve,
    .load_matrix = load_matrix,
    .load_array = load_array,
    .load_experts = load_experts,
    .load_ngrams = load_ngrams,
    .args_create = args_create,
    .args_destroy = args_destroy,
    .args_send = args_send,
    .args_fetch = args_fetch,
    .step_send = step_send,
    .record = record,
    .recorded = recorded,
    .dropped = dropped,
    .replay = replay,
    .program_free = program_free,
    .fork = fork_branch,
    .back = back_to_main,
    .join = join_branch,
    .feed = feed,
    .hash_ngrams = hash_ngrams,
    .draw = draw,
    .begin = begin,
    .end = end,
    .wait = wait,
};

/* ---- the part's table -------------------------------------------------------------------------*/

static void destroy(di_backend *be) {
    simcard *c = of(be);
    run_all(c);
    while (c->num_regions > 0) {
        args_destroy(be, c->regions[0].host);
    }
    for (int b = 0; b < DI_QUEUE_BRANCHES; b++) {
        clear(&c->branches[b]);
    }
    clear(&c->queue);
    free_step(&c->there);
    c->inner->ops->destroy(c->inner);
    free(c);
}

static const di_ops sim_ops = {
    .name = "simulated card",
    .alloc = sim_alloc,
    .free = sim_free,
    .upload = sim_upload,
    .download = sim_download,
    .copy = sim_copy,
    .sync = sim_sync,
    .destroy = destroy,
    .embed = sim_embed,
    .gather_rows = sim_gather_rows,
    .mhc_mix = sim_mhc_mix,
    .mhc_pre = sim_mhc_pre,
    .mhc_post = sim_mhc_post,
    .stream_mean = sim_stream_mean,
    .rms_norm = sim_rms_norm,
    .linear = sim_linear,
    .linear_f32 = sim_linear_f32,
    .linear_add_f32 = sim_linear_add_f32,
    .linear_grouped = sim_linear_grouped,
    .rope_table = sim_rope_table,
    .rope = sim_rope,
    .window_make = sim_window_make,
    .window_store = sim_window_store,
    .compress = sim_compress,
    .entry_store = sim_entry_store,
    .index_topk = sim_index_topk,
    .attention = sim_attention,
    .route = sim_route,
    .moe = sim_moe,
    .engram = sim_engram,
    .queue = &sim_queue,
};

static di_backend *create(int device, di_error *err) {
    const char *guard = getenv("DI_CUDA_GUARD");
    simcard *c = memory_for(sizeof *c);
    (void)device;
    c->base.ops = &sim_ops;
    c->guard = !guard || strcmp(guard, "0") != 0;
    c->inner = di_cpu_create(NULL, err);
    if (!c->inner) {
        free(c);
        return NULL;
    }
    return &c->base;
}

static void describe(char *text, size_t size) {
    snprintf(text, size, "cuda:0 simulated");
}

static void forget(di_backend *be) {
    (void)be;
}

static size_t bytes(const di_backend *be) {
    (void)be;
    return atomic_load(&taken);
}

static void read_all(di_backend *be, const void *buffer, size_t count) {
    (void)be;
    (void)buffer;
    (void)count;
}

__attribute__((visibility("default"))) const di_cuda_part di_cuda_part_table = {
    .size = sizeof(di_cuda_part),
    .version = di_version_string,
    .revision = di_git_revision,
    .create = create,
    .describe = describe,
    .forget = forget,
    .bytes = bytes,
    .read_all = read_all,
};
