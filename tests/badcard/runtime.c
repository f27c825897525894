/* The CUDA runtime of the bad card: see badcard.h. Memory of the card is the host's, copies happen
 * at once, graphs are empty but for a kernel and a copy. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "badcard/badcard.h"
#include "base/clock.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_RULES = 16, NODES = 2 };

typedef struct rule {
    char name[48];
    int at, error; /* at: which call; 0: all */
    int calls;
} rule;

static struct {
    pthread_mutex_t lock;
    int driver, cards, capability;
    size_t memory, used; /* bytes of the card */
    rule rules[MAX_RULES];
    int num_rules;
    uint64_t calls, fail_at;
    const char *failed; /* the call number fail_at */
    int error;
    bool stays;
    cudaError_t stuck;   /* every call's answer from now on */
    cudaError_t pending; /* of a kernel that nobody has waited for */
    cudaError_t last;
    size_t left;
    bool capturing;
} card = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .driver = 13000,
    .cards = 1,
    .capability = 90,
    .memory = (size_t)8192 << 20,
};

/* ---- what is wrong ----------------------------------------------------------------------------*/

static void read_word(const char *name, const char *value) {
    int number = atoi(value);
    if (strcmp(name, "driver") == 0) {
        card.driver = number;
    } else if (strcmp(name, "cards") == 0) {
        card.cards = number;
    } else if (strcmp(name, "capability") == 0) {
        card.capability = number;
    } else if (strcmp(name, "memory") == 0) {
        card.memory = (size_t)number << 20;
    } else if (card.num_rules < MAX_RULES) {
        rule *r = &card.rules[card.num_rules++];
        const char *at = strchr(name, '@');
        size_t length = at ? (size_t)(at - name) : strlen(name);
        *r = (rule){.at = at ? atoi(at + 1) : 0, .error = number};
        snprintf(r->name, sizeof r->name, "%.*s", (int)length, name);
    }
}

__attribute__((constructor)) static void read_environment(void) {
    const char *given = getenv("BADCARD");
    char *text = strdup(given ? given : ""), *rest = NULL;
    for (char *word = text ? strtok_r(text, ",", &rest) : NULL; word;
         word = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(word, '=');
        if (value) {
            *value = 0;
            read_word(word, value + 1);
        }
    }
    free(text);
}

static cudaError_t by_rule(const char *name) {
    for (int i = 0; i < card.num_rules; i++) {
        rule *r = &card.rules[i];
        if (strcmp(r->name, name) == 0 && (++r->calls == r->at || r->at == 0)) {
            return (cudaError_t)r->error;
        }
    }
    return cudaSuccess;
}

/* What the call of this name comes to. A launch failure is for ever. */
static cudaError_t outcome(const char *name) {
    cudaError_t result = card.stuck;
    card.calls++;
    if (result == cudaSuccess && card.calls == card.fail_at) {
        result = (cudaError_t)card.error;
        card.stuck = card.stays ? result : cudaSuccess;
        card.failed = name;
    }
    if (result == cudaSuccess) {
        result = by_rule(name);
        card.stuck = result == cudaErrorLaunchFailure ? result : card.stuck;
    }
    card.last = result == cudaSuccess ? card.last : result;
    return result;
}

static cudaError_t call(const char *name) {
    pthread_mutex_lock(&card.lock);
    cudaError_t result = outcome(name);
    pthread_mutex_unlock(&card.lock);
    return result;
}

/* A call that waits learns what kernels have come to. */
static cudaError_t waiting_call(const char *name) {
    pthread_mutex_lock(&card.lock);
    card.stuck = card.stuck ? card.stuck : card.pending;
    cudaError_t result = outcome(name);
    pthread_mutex_unlock(&card.lock);
    return result;
}

void badcard_launch(const char *name) {
    call(name);
}

void badcard_launch_rows(const char *name, int rows) {
    if (call(name) == cudaSuccess && rows > 65535) {
        card.last = cudaErrorInvalidConfiguration;
    }
}

void badcard_trap(void) {
    card.pending = cudaErrorLaunchFailure;
}

EXPORT uint64_t badcard_fail_at(uint64_t n, int error, bool stays) {
    pthread_mutex_lock(&card.lock);
    uint64_t made = card.calls;
    card.calls = 0;
    card.fail_at = n;
    card.error = error;
    card.stays = stays;
    card.stuck = card.pending = card.last = cudaSuccess;
    card.failed = NULL;
    pthread_mutex_unlock(&card.lock);
    return made;
}

EXPORT const char *badcard_failed(void) {
    return card.failed;
}

EXPORT size_t badcard_left(void) {
    return card.left;
}

cudaError_t cudaGetLastError(void) {
    pthread_mutex_lock(&card.lock);
    cudaError_t result = card.stuck ? card.stuck : card.last;
    card.last = cudaSuccess;
    pthread_mutex_unlock(&card.lock);
    return result;
}

/* The real ones' words for what tests look for. */
const char *cudaGetErrorString(cudaError_t error) {
    static char text[64];
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorDevicesUnavailable:
        return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    default:
        snprintf(text, sizeof text, "error %d", error);
        return text;
    }
}

/* ---- cards ------------------------------------------------------------------------------------*/

cudaError_t cudaDriverGetVersion(int *version) {
    *version = card.driver;
    return call(__func__);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return call(__func__);
}

cudaError_t cudaGetDeviceCount(int *count) {
    bool new_enough = card.driver >= CUDART_VERSION / 1000 * 1000;
    cudaError_t result = call(__func__);
    *count = card.cards;
    if (result == cudaSuccess && (!new_enough || card.cards == 0)) {
        *count = 0;
        result = new_enough ? cudaErrorNoDevice : cudaErrorInsufficientDriver;
        card.last = result;
    }
    return result;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device) {
    (void)device;
    *value = what == cudaDevAttrComputeCapabilityMajor   ? card.capability / 10
             : what == cudaDevAttrComputeCapabilityMinor ? card.capability % 10
                                                         : 1;
    return call(__func__);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Bad Card %d", device);
    p->totalGlobalMem = card.memory;
    p->major = card.capability / 10;
    p->minor = card.capability % 10;
    return call(__func__);
}

cudaError_t cudaSetDevice(int device) {
    (void)device;
    return call(__func__);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *total = card.memory;
    *free_bytes = card.memory - card.used;
    return call(__func__);
}

/* ---- things that are made and given back ------------------------------------------------------*/

typedef struct piece { /* in front of memory */
    size_t bytes;
    char filling[248];
} piece;

static cudaError_t make(const char *name, void **to, size_t bytes, bool of_card) {
    cudaError_t result = call(name);
    *to = NULL;
    if (result != cudaSuccess) {
        return result;
    }
    pthread_mutex_lock(&card.lock);
    bool fits = !of_card || bytes <= card.memory - card.used;
    piece *p = fits ? calloc(1, sizeof *p + bytes) : NULL;
    if (p) {
        p->bytes = of_card ? bytes : 0;
        card.used += p->bytes;
        card.left++;
        *to = p + 1;
    } else {
        card.last = cudaErrorMemoryAllocation;
    }
    pthread_mutex_unlock(&card.lock);
    return p ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* Even where the call fails: what a card with a fault keeps goes with the process. */
static cudaError_t give_back(const char *name, void *thing) {
    cudaError_t result = waiting_call(name);
    if (thing) {
        piece *p = (piece *)thing - 1;
        pthread_mutex_lock(&card.lock);
        card.used -= p->bytes;
        card.left--;
        pthread_mutex_unlock(&card.lock);
        free(p);
    }
    return result;
}

cudaError_t cudaMalloc(void **to, size_t bytes) {
    return make(__func__, to, bytes, true);
}

cudaError_t cudaFree(void *p) {
    return give_back(__func__, p);
}

cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned flags) {
    (void)flags;
    return make(__func__, to, bytes, false);
}

cudaError_t cudaFreeHost(void *p) {
    return give_back(__func__, p);
}

cudaError_t cudaHostGetDevicePointer(void **to, void *host, unsigned flags) {
    (void)flags;
    *to = host;
    return call(__func__);
}

static void count(int change) {
    pthread_mutex_lock(&card.lock);
    card.left += (size_t)change;
    pthread_mutex_unlock(&card.lock);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags) {
    (void)p;
    (void)bytes;
    (void)flags;
    cudaError_t result = call(__func__);
    count(result == cudaSuccess);
    return result;
}

cudaError_t cudaHostUnregister(void *p) {
    (void)p;
    count(-1);
    return call(__func__);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    (void)flags;
    return make(__func__, (void **)s, 1, false);
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    return give_back(__func__, s);
}

cudaError_t cudaEventCreate(cudaEvent_t *e) {
    return make(__func__, (void **)e, sizeof(double), false);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    (void)flags;
    return make(__func__, (void **)e, sizeof(double), false);
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    return give_back(__func__, e);
}

/* ---- the queue --------------------------------------------------------------------------------*/

static cudaError_t copy(const char *name, void *to, const void *from, size_t bytes) {
    cudaError_t result = call(name);
    if (result == cudaSuccess && !card.capturing) {
        memcpy(to, from, bytes);
    }
    return result;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    (void)kind;
    (void)s;
    return copy(__func__, to, from, bytes);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s) {
    (void)s;
    cudaError_t result = call(__func__);
    if (result == cudaSuccess && !card.capturing) {
        memset(to, value, bytes);
    }
    return result;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    return waiting_call(__func__);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    (void)s;
    (void)e;
    (void)flags;
    return call(__func__);
}

/* An event holds the time at which it was recorded, when all before it had been done. */
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)s;
    cudaError_t result = call(__func__);
    if (result == cudaSuccess && !card.capturing) {
        *(double *)(void *)e = di_now();
    }
    return result;
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    (void)e;
    return waiting_call(__func__);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    (void)e;
    return waiting_call(__func__);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = (float)(1e3 * (*(double *)(void *)to - *(double *)(void *)from));
    return call(__func__);
}

/* ---- graphs -----------------------------------------------------------------------------------*/

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    (void)s;
    (void)mode;
    cudaError_t result = call(__func__);
    card.capturing = result == cudaSuccess;
    return result;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    (void)s;
    card.capturing = false;
    return make(__func__, (void **)graph, 1, false);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return give_back(__func__, graph);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *num_nodes) {
    static char places[NODES];
    (void)graph;
    for (size_t i = 0; nodes && i < NODES; i++) {
        nodes[i] = (cudaGraphNode_t)(void *)&places[i];
    }
    *num_nodes = NODES;
    return call(__func__);
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type) {
    static int turn;
    (void)node;
    *type = turn++ % NODES == 0 ? cudaGraphNodeTypeKernel : cudaGraphNodeTypeMemcpy;
    return call(__func__);
}

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, struct cudaKernelNodeParams *p) {
    *p = (struct cudaKernelNodeParams){.func = node, .sharedMemBytes = 1024};
    return call(__func__);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function) {
    (void)function;
    memset(a, 0, sizeof *a);
    return call(__func__);
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute what, int value) {
    (void)function;
    (void)what;
    (void)value;
    return call(__func__);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags) {
    (void)graph;
    (void)flags;
    return make(__func__, (void **)exec, 1, false);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return give_back(__func__, exec);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    (void)exec;
    (void)s;
    return call(__func__);
}
