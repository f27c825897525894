/* The simulated card: see simcard.h. A call of an op is kept as its arguments and a function that
 * makes it; lists of calls are the queue, and programs. */
#include "simcard/card.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/version.h"
#include "model/engram.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/card/part.h"

static atomic_size_t taken; /* bytes, by all cards */

void simcard_fault(simcard *c, const char *what, const char *why) {
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
void simcard_push(simcard *c, void (*run)(simcard *c, void *args), const void *args, size_t bytes) {
    sim_call item = {run, memory_for(bytes)};
    memcpy(item.args, args, bytes);
    append(!c->recording ? &c->queue
           : c->branch   ? &c->branches[c->branch - 1]
                         : &c->recording->calls,
           item);
}

/* Notes a weight; true: it was known. */
static bool know(simcard *c, const void *host) {
    size_t at = ((uintptr_t)host >> 2) * 0x9e3779b97f4a7c15u >> 40 & (MAX_WEIGHTS - 1);
    while (c->weights[at] && c->weights[at] != host) {
        at = (at + 1) & (MAX_WEIGHTS - 1);
    }
    bool known = c->weights[at] != NULL;
    c->weights[at] = host;
    c->num_weights += !known;
    if (c->num_weights > MAX_WEIGHTS / 2) {
        abort();
    }
    return known;
}

/* A card loads a weight when it is first used, and waits for that. */
void simcard_use_weight(simcard *c, const void *host) {
    bool known = know(c, host);
    if (!known && c->recording) {
        simcard_fault(c, "a weight", "is recorded that was not loaded");
    } else if (!known && c->in_step && c->guard) {
        simcard_fault(c, "a weight that was not loaded", "made the host wait inside a step");
    }
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

void simcard_wait(simcard *c, const char *what) {
    if (c->in_step && c->guard) {
        simcard_fault(c, what, "made the host wait inside a step");
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
    run_all(simcard_of(be));
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
    simcard_push(c, run_copy, a, size);
    free(a);
}

static void sim_upload(di_backend *be, void *to, const void *from, size_t bytes) {
    if (simcard_of(be)->recording) {
        simcard_fault(simcard_of(be), "upload", "is in a recording");
    } else if (bytes) {
        push_copy(simcard_of(be), to, NULL, from, bytes);
    }
}

static void sim_download(di_backend *be, void *to, const void *from, size_t bytes) {
    if (bytes) {
        simcard_wait(simcard_of(be), "download");
        memcpy(to, from, bytes);
    }
}

static void sim_copy(di_backend *be, void *to, const void *from, size_t bytes) {
    if (bytes) {
        push_copy(simcard_of(be), to, from, NULL, bytes);
    }
}

static bool sim_sync(di_backend *be, di_error *err) {
    simcard_wait(simcard_of(be), "sync");
    return report(simcard_of(be), err);
}

/* ---- argument memory --------------------------------------------------------------------------*/

static void *args_create(di_backend *be, size_t bytes) {
    simcard *c = simcard_of(be);
    if (c->num_regions == MAX_REGIONS) {
        return NULL;
    }
    region *r = &c->regions[c->num_regions++];
    *r = (region){memory_for(bytes), memory_for(bytes), bytes};
    atomic_fetch_add(&taken, bytes);
    return r->host;
}

static void args_destroy(di_backend *be, void *args) {
    simcard *c = simcard_of(be);
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
void *simcard_there(const simcard *c, const void *host) {
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
    void *p = simcard_there(c, host);
    if (!p) {
        simcard_fault(c, "an array", "does not lie in argument memory");
    }
    return p;
}

static void args_send(di_backend *be, const void *from, size_t bytes) {
    simcard *c = simcard_of(be);
    void *to = bytes ? argument(c, from) : NULL;
    if (c->recording) {
        simcard_fault(c, "args_send", "is in a recording");
    } else if (to) {
        push_copy(c, to, NULL, from, bytes);
    }
}

static void args_fetch(di_backend *be, void *to, size_t bytes) {
    simcard *c = simcard_of(be);
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

/* As large as a card's copy of it, about; more memory is waited for. */
static void take_step_room(simcard *c, const di_step *step) {
    size_t bytes = 48 * (size_t)step->num_seqs + 4 * (size_t)step->num_rows;
    for (int i = 0; i < step->num_seqs; i++) {
        bytes += 4 * table_blocks(step, &step->seqs[i]);
    }
    if (bytes > c->step_room && !c->recording && c->in_step && c->guard) {
        simcard_fault(c, "a step larger than any before", "made the host wait inside a step");
    }
    c->step_room = bytes > c->step_room ? bytes : c->step_room;
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
    simcard_push(c, run_step, &a, sizeof a);
}

static void step_send(di_backend *be, const di_step *step) {
    simcard *c = simcard_of(be);
    take_step_room(c, step);
    if (!c->recording) {
        send_step(c, step);
    }
    c->sent = step;
}

/* The step as an op is given it. */
di_step simcard_given_step(simcard *c, const di_step *step) {
    if (step != c->sent && c->recording) {
        simcard_fault(c, "a step", "is recorded that was not sent");
    } else if (step != c->sent) {
        send_step(c, step);
        c->sent = NULL;
    }
    return *step;
}

/* The same when the op runs: the card's own sequences. */
bool simcard_enter_step(simcard *c, di_step *step) {
    if (step->num_seqs != c->there.num_seqs || step->num_rows != c->there.num_rows) {
        simcard_fault(c, "a step",
                      "runs with another number of rows or sequences than it was recorded");
        return false;
    }
    step->seqs = c->there.seqs;
    for (int i = 0; i < step->num_seqs; i++) {
        const di_seq_rows *s = &step->seqs[i];
        if (step->most_tokens && s->pos0 + s->num_rows > step->most_tokens) {
            simcard_fault(c, "a sequence", "is longer than its step allows");
            return false;
        }
    }
    return true;
}

/* ---- programs ---------------------------------------------------------------------------------*/

static bool record(di_backend *be) {
    simcard *c = simcard_of(be);
    if (c->recording || c->in_step) {
        return false;
    }
    c->recording = memory_for(sizeof *c->recording);
    return true;
}

static void fork_branch(di_backend *be, int branch) {
    simcard_of(be)->branch = simcard_of(be)->recording ? branch + 1 : 0;
}

static void back_to_main(di_backend *be) {
    simcard_of(be)->branch = 0;
}

static void join_branch(di_backend *be, int branch) {
    simcard *c = simcard_of(be);
    calls *b = &c->branches[branch];
    for (size_t i = 0; i < b->count; i++) {
        append(&c->recording->calls, b->items[i]);
    }
    b->count = 0;
}

static void program_free(di_backend *be, di_program *p) {
    if (p) {
        run_all(simcard_of(be));
        clear(&p->calls);
        free(p);
    }
}

static di_program *recorded(di_backend *be, di_error *err) {
    simcard *c = simcard_of(be);
    di_program *p = c->recording;
    c->recording = NULL;
    for (int b = 0; b < DI_QUEUE_BRANCHES; b++) {
        if (c->branches[b].count > 0) {
            simcard_fault(c, "a branch", "is not joined");
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
    simcard_push(simcard_of(be), run_program, &list, sizeof list);
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
    simcard *c = simcard_of(be);
    feed_args a = {argument(c, tokens), argument(c, source), argument(c, drawn), n};
    simcard_push(c, run_feed, &a, sizeof a);
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
    simcard *c = simcard_of(be);
    hash_args a = {
        *h, argument(c, tokens), argument(c, before), image ? argument(c, image) : NULL, look_back,
        n,  argument(c, rows)};
    simcard_push(c, run_hash, &a, sizeof a);
}

static void run_draw(simcard *c, void *args) {
    const di_draw_call *a = args;
    for (int i = 0; i < a->n; i++) {
        if (!simcard_draw(a, i)) {
            simcard_fault(c, "draw", "is asked for what this card does not draw");
        }
    }
}

static void draw(di_backend *be, const di_draw_call *call) {
    simcard *c = simcard_of(be);
    di_draw_call d = *call;
    d.rows = argument(c, call->rows);
    d.pairs = argument(c, call->pairs);
    d.masks = argument(c, call->masks);
    d.before = call->before ? argument(c, call->before) : NULL;
    d.tokens = argument(c, call->tokens);
    d.drawn = argument(c, call->drawn);
    d.top = argument(c, call->top);
    simcard_push(c, run_draw, &d, sizeof d);
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
    simcard_push(simcard_of(be), run_begin, &place, sizeof place);
    simcard_of(be)->in_step = true;
}

static void end(di_backend *be, int place) {
    simcard_push(simcard_of(be), run_end, &place, sizeof place);
    simcard_of(be)->ends[place]++;
    simcard_of(be)->in_step = false;
}

static bool wait(di_backend *be, int place, double *begin_time, double *end_time, di_error *err) {
    simcard *c = simcard_of(be);
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
    know(simcard_of(be), w->data);
}

static void load_array(di_backend *be, const void *host, size_t bytes) {
    (void)bytes;
    know(simcard_of(be), host);
}

static void load_experts(di_backend *be, const di_expert *table, int count) {
    (void)count;
    know(simcard_of(be), table);
}

static bool load_ngrams(di_backend *be, const di_tensor *table, bool on_card) {
    (void)on_card;
    know(simcard_of(be), table->data);
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
    simcard *c = simcard_of(be);
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

static di_ops make_table(void) {
    di_ops t = simcard_ops;
    t.alloc = sim_alloc;
    t.free = sim_free;
    t.upload = sim_upload;
    t.download = sim_download;
    t.copy = sim_copy;
    t.sync = sim_sync;
    t.destroy = destroy;
    t.queue = &sim_queue;
    return t;
}

static di_backend *create(int device, di_error *err) {
    const char *guard = getenv("DI_CUDA_GUARD");
    simcard *c = memory_for(sizeof *c);
    static di_ops table;
    (void)device;
    table = make_table();
    c->base.ops = &table;
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

static void free_order(di_backend *be, bool allowed) { /* the CPU's ops know one order */
    (void)be;
    (void)allowed;
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
    .free_order = free_order,
    .forget = forget,
    .bytes = bytes,
    .read_all = read_all,
};
