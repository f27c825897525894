/* Steps queued whole (ops/queue.h): loading of weights, argument memory, programs, the points where
 * a step begins and ends. What is drawn and hashed is in draw.cu and ngrams.cu. */
#include "ops/cuda/card/queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "ops/cuda/card/card.h"

/* ---- memory and weights -----------------------------------------------------------------------*/

static void memory(di_backend *be, size_t *free_bytes, size_t *total_bytes) {
    di_card *c = di_card_of(be);
    *free_bytes = *total_bytes = 0;
    if (di_card_enter(c, "memory")) {
        di_card_check(c, cudaMemGetInfo(free_bytes, total_bytes));
    }
}

static size_t array_bytes(di_backend *be, size_t bytes) {
    (void)be;
    return (bytes + DI_CARD_ALIGNMENT - 1) / DI_CARD_ALIGNMENT * DI_CARD_ALIGNMENT;
}

static size_t matrix_bytes(di_backend *be, const di_tensor *w) {
    return array_bytes(be, di_card_matrix_bytes(w));
}

static void reserve(di_backend *be, size_t bytes) {
    di_card *c = di_card_of(be);
    if (bytes && di_card_enter(c, "weights")) {
        di_card_reserve(c, bytes);
    }
}

static void load_matrix(di_backend *be, const di_tensor *w) {
    di_card *c = di_card_of(be);
    dk_matrix unused;
    if (di_card_enter(c, "weights")) {
        di_card_matrix(c, w, &unused);
        di_card_leave(c);
    }
}

static void load_array(di_backend *be, const void *host, size_t bytes) {
    di_card *c = di_card_of(be);
    if (di_card_enter(c, "weights")) {
        di_card_array(c, host, bytes);
        di_card_leave(c);
    }
}

static void load_experts(di_backend *be, const di_expert *table, int count) {
    di_card *c = di_card_of(be);
    if (di_card_enter(c, "weights")) {
        di_card_experts(c, table, count);
        di_card_leave(c);
    }
}

static bool load_ngrams(di_backend *be, const di_tensor *table, bool on_card) {
    di_card *c = di_card_of(be);
    if (di_card_enter(c, "n-gram tables")) {
        di_card_table_load(c, table, on_card);
        di_card_leave(c);
    }
    return di_card_table_find(c, table) != NULL;
}

/* ---- argument memory --------------------------------------------------------------------------*/

static void args_destroy(di_backend *be, void *args) {
    di_card *c = di_card_of(be);
    cudaSetDevice(c->device);
    for (int i = 0; i < c->num_regions && args; i++) {
        di_card_region *r = &c->regions[i];
        if (r->host == args) {
            cudaStreamSynchronize(c->stream);
            cudaFreeHost(r->host);
            cudaFree(r->device);
            c->bytes -= r->bytes;
            *r = c->regions[--c->num_regions];
            cudaGetLastError(); /* a card with a fault refuses even this */
            return;
        }
    }
}

static void *args_create(di_backend *be, size_t bytes) {
    di_card *c = di_card_of(be);
    di_card_region r = {.bytes = bytes ? bytes : 1};
    if (c->num_regions == DI_CARD_REGIONS || cudaSetDevice(c->device) != cudaSuccess) {
        return NULL;
    }
    bool ok = cudaHostAlloc((void **)&r.host, r.bytes, cudaHostAllocDefault) == cudaSuccess &&
              cudaMalloc((void **)&r.device, r.bytes) == cudaSuccess &&
              cudaMemsetAsync(r.device, 0, r.bytes, c->stream) == cudaSuccess;
    if (!ok) {
        cudaFreeHost(r.host);
        cudaFree(r.device);
        cudaGetLastError();
        return NULL;
    }
    memset(r.host, 0, r.bytes);
    c->bytes += r.bytes;
    c->regions[c->num_regions++] = r;
    return r.host;
}

void *di_card_on_card(const di_card *c, const void *host) {
    const unsigned char *p = host;
    for (int i = 0; i < c->num_regions; i++) {
        const di_card_region *r = &c->regions[i];
        if (p >= r->host && p < r->host + r->bytes) {
            return r->device + (p - r->host);
        }
    }
    return NULL;
}

/* The same, where nothing else will do. NULL: remembered. */
static void *argument(di_card *c, const void *host) {
    void *p = di_card_on_card(c, host);
    if (!p) {
        di_card_check(c, cudaErrorInvalidHostPointer);
    }
    return p;
}

static void args_send(di_backend *be, const void *from, size_t bytes) {
    di_card *c = di_card_of(be);
    if (bytes && di_card_enter(c, "arguments")) {
        void *to = argument(c, from);
        if (to) {
            di_card_upload(c, to, from, bytes);
        }
        di_card_leave(c);
    }
}

static void args_fetch(di_backend *be, void *to, size_t bytes) {
    di_card *c = di_card_of(be);
    if (bytes && di_card_enter(c, "results")) {
        void *from = argument(c, to);
        if (from) {
            di_card_check(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, c->stream));
        }
        di_card_leave(c);
    }
}

static void step_send(di_backend *be, const di_step *step) {
    di_card *c = di_card_of(be);
    if (di_card_enter(c, "step")) {
        di_card_step_send(c, step);
        di_card_leave(c);
    }
}

/* ---- programs ---------------------------------------------------------------------------------*/

struct di_program {
    cudaGraphExec_t exec;
    uint64_t scratch_version;
};

static bool record(di_backend *be) {
    di_card *c = di_card_of(be);
    if (c->watch || !di_card_enter(c, "recording")) {
        return false; /* DI_CUDA_SYNC waits after every op: nothing to record */
    }
    c->recorded_from = c->scratch_version;
    c->recording =
        di_card_check(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed));
    return c->recording;
}

/* Called while ops are recorded on the main line. */
static void fork_branch(di_backend *be, int branch) {
    di_card *c = di_card_of(be);
    di_card_branches *b = &c->branches;
    if (c->recording && di_card_enter(c, "fork")) {
        di_card_check(c, cudaEventRecord(b->fork[branch], b->main));
        di_card_check(c, cudaStreamWaitEvent(b->stream[branch], b->fork[branch], 0));
        b->now = branch + 1;
        c->stream = b->stream[branch];
    }
}

static void back_to_main(di_backend *be) {
    di_card *c = di_card_of(be);
    c->branches.now = 0;
    c->stream = c->branches.main;
}

static void join_branch(di_backend *be, int branch) {
    di_card *c = di_card_of(be);
    di_card_branches *b = &c->branches;
    if (c->recording && di_card_enter(c, "join")) {
        di_card_check(c, cudaEventRecord(b->join[branch], b->stream[branch]));
        di_card_check(c, cudaStreamWaitEvent(b->main, b->join[branch], 0));
    }
}

bool di_card_branches_create(di_card *c) {
    di_card_branches *b = &c->branches;
    b->main = c->stream;
    bool ok = true;
    for (int i = 0; i < DI_QUEUE_BRANCHES && ok; i++) {
        ok = cudaStreamCreateWithFlags(&b->stream[i], cudaStreamNonBlocking) == cudaSuccess &&
             cudaEventCreateWithFlags(&b->fork[i], cudaEventDisableTiming) == cudaSuccess &&
             cudaEventCreateWithFlags(&b->join[i], cudaEventDisableTiming) == cudaSuccess;
    }
    return ok;
}

void di_card_branches_destroy(di_card *c) {
    di_card_branches *b = &c->branches;
    for (int i = 0; i < DI_QUEUE_BRANCHES; i++) {
        if (b->fork[i]) {
            cudaEventDestroy(b->fork[i]);
        }
        if (b->join[i]) {
            cudaEventDestroy(b->join[i]);
        }
        if (b->stream[i]) {
            cudaStreamDestroy(b->stream[i]);
        }
    }
}

enum { MOST_FUNCTIONS = 256 };

/* The most dynamic shared memory that a kernel of the graph takes. */
typedef struct kernel_need {
    void *function;
    unsigned bytes;
} kernel_need;

static cudaError_t note_need(cudaGraphNode_t node, kernel_need *needs, int *count) {
    enum cudaGraphNodeType type;
    struct cudaKernelNodeParams params;
    cudaError_t result = cudaGraphNodeGetType(node, &type);
    if (result != cudaSuccess || type != cudaGraphNodeTypeKernel) {
        return result;
    }
    result = cudaGraphKernelNodeGetParams(node, &params);
    if (result != cudaSuccess) {
        return result;
    }
    int i = 0;
    while (i < *count && needs[i].function != params.func) {
        i++;
    }
    if (i == MOST_FUNCTIONS) {
        return cudaErrorLaunchOutOfResources;
    }
    *count = i == *count ? i + 1 : *count;
    needs[i].function = params.func;
    needs[i].bytes =
        params.sharedMemBytes > needs[i].bytes ? params.sharedMemBytes : needs[i].bytes;
    return cudaSuccess;
}

/* Launchers set a kernel's limit of shared memory to what the launch at hand takes. When a graph is
 * made of launches that took more and less, the limit must be what the largest took. */
static cudaError_t allow_shared_memory(cudaGraph_t graph) {
    kernel_need needs[MOST_FUNCTIONS] = {{0}};
    size_t num_nodes = 0;
    int count = 0;
    cudaError_t result = cudaGraphGetNodes(graph, NULL, &num_nodes);
    cudaGraphNode_t *nodes = NULL;
    if (result == cudaSuccess) {
        nodes = di_calloc(num_nodes, sizeof *nodes);
        result = nodes ? cudaGraphGetNodes(graph, nodes, &num_nodes) : cudaErrorMemoryAllocation;
    }
    for (size_t i = 0; i < num_nodes && result == cudaSuccess; i++) {
        result = note_need(nodes[i], needs, &count);
    }
    for (int i = 0; i < count && result == cudaSuccess; i++) {
        struct cudaFuncAttributes now;
        result = cudaFuncGetAttributes(&now, needs[i].function);
        if (result == cudaSuccess && (int)needs[i].bytes > now.maxDynamicSharedSizeBytes) {
            result =
                cudaFuncSetAttribute(needs[i].function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)needs[i].bytes);
        }
    }
    di_free(nodes);
    return result;
}

/* Ends the recording; NULL: it came to nothing, and there was a fault. Nothing was queued, so
 * nothing is wrong with the card: the fault ends here. */
static cudaGraph_t end_recording(di_card *c, di_error *err) {
    cudaGraph_t graph = NULL;
    back_to_main(&c->base);
    c->recording = false;
    c->op = "recording";
    di_card_check(c, cudaStreamEndCapture(c->stream, &graph));
    if (c->fault_op && graph) {
        cudaGraphDestroy(graph);
        graph = NULL;
    }
    return di_card_report(c, err) ? graph : NULL;
}

static bool dropped(di_backend *be, di_error *err) {
    cudaGraph_t graph = end_recording(di_card_of(be), err);
    if (graph) {
        cudaGraphDestroy(graph);
    }
    return graph != NULL;
}

/* A graph whose scratch memory has moved while it was recorded begins with the old one's addresses:
 * it is never made, and replay() says so. */
static di_program *recorded(di_backend *be, di_error *err) {
    di_card *c = di_card_of(be);
    cudaGraph_t graph = end_recording(c, err);
    di_program *p = graph ? di_calloc(1, sizeof *p) : NULL;
    if (graph && !p) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a recorded step");
    }
    if (p && c->recorded_from == c->scratch_version) {
        c->op = "making a recorded step";
        if (!di_card_check(c, allow_shared_memory(graph)) ||
            !di_card_check(c, cudaGraphInstantiate(&p->exec, graph, 0))) {
            di_card_report(c, err);
            di_free(p);
            p = NULL;
        }
    }
    if (p) {
        p->scratch_version = c->recorded_from;
    }
    if (graph) {
        cudaGraphDestroy(graph);
    }
    return p;
}

static bool replay(di_backend *be, di_program *p) {
    di_card *c = di_card_of(be);
    if (p->scratch_version != c->scratch_version) {
        return false;
    }
    if (di_card_enter(c, "recorded step")) {
        di_card_check(c, cudaGraphLaunch(p->exec, c->stream));
        di_card_leave(c);
    }
    return true;
}

static void program_free(di_backend *be, di_program *p) {
    di_card *c = di_card_of(be);
    if (p) {
        cudaSetDevice(c->device);
        cudaStreamSynchronize(c->stream);
        if (p->exec) {
            cudaGraphExecDestroy(p->exec);
        }
        cudaGetLastError();
        di_free(p);
    }
}

/* ---- what depends on tokens -------------------------------------------------------------------*/

static void feed(di_backend *be, int32_t *tokens, const int32_t *source, int n,
                 const int32_t *drawn) {
    di_card *c = di_card_of(be);
    if (n > 0 && di_card_enter(c, "feed")) {
        int32_t *to = argument(c, tokens);
        const int32_t *at = argument(c, source), *from = argument(c, drawn);
        if (to && at && from) {
            dk_feed(c->stream, to, at, n, from);
        }
        di_card_leave(c);
    }
}

static void hash_ngrams(di_backend *be, const di_ngram_hash *h, const int32_t *tokens,
                        const int32_t *before, int look_back, const uint8_t *image, int n,
                        int64_t *rows) {
    di_card *c = di_card_of(be);
    if (n <= 0 || !di_card_enter(c, "hash_ngrams")) {
        return;
    }
    size_t columns = (size_t)h->columns;
    dk_ngram_hash hash = {
        .max_ngram = h->max_ngram,
        .heads = h->heads,
        .columns = h->columns,
        .vocab_size = h->vocab_size,
        .look_back = look_back,
        .pad = h->pad,
        .token_map = di_card_array(c, h->token_map, (size_t)h->vocab_size * sizeof(int32_t)),
        .primes = di_card_array(c, h->primes, columns * sizeof(int64_t)),
        .offsets = di_card_array(c, h->offsets, columns * sizeof(int64_t)),
        .multipliers = di_card_array(c, h->multipliers, (size_t)h->max_ngram * sizeof(uint64_t)),
        .tokens = argument(c, tokens),
        .before = argument(c, before),
        .image = image ? argument(c, image) : NULL,
        .rows = argument(c, rows),
    };
    if (!c->fault_op) {
        dk_hash_ngrams(c->stream, &hash, n);
    }
    di_card_leave(c);
}

static void draw(di_backend *be, const di_draw_call *call) {
    di_card *c = di_card_of(be);
    if (call->n <= 0 || !di_card_enter(c, "draw")) {
        return;
    }
    di_draw_call d = *call;
    d.rows = argument(c, call->rows);
    d.pairs = argument(c, call->pairs);
    d.masks = argument(c, call->masks);
    d.before = call->before ? argument(c, call->before) : NULL;
    d.tokens = argument(c, call->tokens);
    d.drawn = argument(c, call->drawn);
    d.top = argument(c, call->top);
    if (!c->fault_op) {
        di_card_check(c, dk_draw(c->stream, &d));
    }
    di_card_leave(c);
}

/* ---- begin, end, wait -------------------------------------------------------------------------*/

static void begin(di_backend *be, int place) {
    di_card *c = di_card_of(be);
    di_card_marks *m = &c->marks;
    do { /* not those of a step that is under way, nor those that say when the last one ended */
        m->at[place] = (m->at[place] + 1) % DI_CARD_MARKS;
    } while (m->at[place] == m->at[place ^ 1] || m->at[place] == m->last);
    if (di_card_enter(c, "step")) {
        di_card_check(c, cudaEventRecord(m->begin[m->at[place]], c->stream));
        c->in_step = true;
    }
}

static void end(di_backend *be, int place) {
    di_card *c = di_card_of(be);
    c->in_step = false;
    if (di_card_enter(c, "step")) {
        di_card_check(c, cudaEventRecord(c->marks.end[c->marks.at[place]], c->stream));
    }
}

/* Events tell the time between two of them; the end of the step before has one on the clock. After
 * a pause it is told anew, for the card gives differences as floats. */
static void tell_times(di_card *c, int at, double *begin_time, double *end_time) {
    di_card_marks *m = &c->marks;
    float since = 0, took = 0;
    *end_time = di_now();
    di_card_check(c, cudaEventElapsedTime(&took, m->begin[at], m->end[at]));
    *begin_time = *end_time - 1e-3 * took;
    bool known = m->last_time > 0 && *end_time - m->last_time < 1;
    if (known && di_card_check(c, cudaEventElapsedTime(&since, m->end[m->last], m->begin[at]))) {
        *begin_time = m->last_time + 1e-3 * since;
        *end_time = *begin_time + 1e-3 * took;
    }
    m->last = at;
    m->last_time = *end_time;
}

static bool wait(di_backend *be, int place, double *begin_time, double *end_time, di_error *err) {
    di_card *c = di_card_of(be);
    int at = c->marks.at[place];
    *begin_time = *end_time = di_now();
    if (!c->fault_op) {
        c->op = "step";
        if (di_card_check(c, cudaSetDevice(c->device)) &&
            di_card_check(c, cudaEventSynchronize(c->marks.end[at]))) {
            tell_times(c, at, begin_time, end_time);
        }
    }
    return di_card_report(c, err);
}

bool di_card_marks_create(di_card_marks *m) {
    for (int i = 0; i < DI_CARD_MARKS; i++) {
        if (cudaEventCreate(&m->begin[i]) != cudaSuccess ||
            cudaEventCreate(&m->end[i]) != cudaSuccess) {
            return false;
        }
    }
    return true;
}

void di_card_marks_destroy(di_card_marks *m) {
    for (int i = 0; i < DI_CARD_MARKS; i++) {
        if (m->begin[i]) {
            cudaEventDestroy(m->begin[i]);
        }
        if (m->end[i]) {
            cudaEventDestroy(m->end[i]);
        }
    }
}

const di_queue_ops di_card_queue_ops = {
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
