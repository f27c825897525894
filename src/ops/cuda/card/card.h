/* What the C files of the CUDA part share: the backend's struct, its memory, its faults. Included
 * only inside ops/cuda/card.
 *
 * Every op is queued on one stream. Nothing waits but sync, download, uploads larger than the ring,
 * and the first use of a weight or of more scratch memory. */
#ifndef DI_OPS_CUDA_CARD_H
#define DI_OPS_CUDA_CARD_H

#include <cuda_runtime_api.h>

#include "ops/cuda/card/kernels.h"
#include "ops/ops.h"

/* Scratch memory on the card grows on demand and is kept; one buffer for each use inside an op. */
typedef enum di_card_use {
    DI_CARD_USE_X,      /* prepared activations */
    DI_CARD_USE_SHARED, /* the same for the shared expert, or a compressed list's queries */
    DI_CARD_USE_Y,      /* results on their way */
    DI_CARD_USE_Z,
    DI_CARD_USE_LIST,
    DI_CARD_USE_KEYS,  /* scores of an index search, one for all branches */
    DI_CARD_USE_HOST,  /* copies of host arrays, one op's */
    DI_CARD_USE_STEP,  /* the step at hand */
    DI_CARD_USE_TILES, /* keys of attention, decoded: one for all branches */
    DI_CARD_USE_PACK,  /* weights as stored, on their way to the kernels' order */
    DI_CARD_NUM_USES,
} di_card_use;

enum {
    DI_CARD_SEGMENTS = 4,
    DI_CARD_SEGMENT_BYTES = 8 << 20,
    DI_CARD_SLAB_BYTES = 256 << 20,
    DI_CARD_ALIGNMENT = 256,
    DI_CARD_REGIONS = 8,
    DI_CARD_MARKS = 4,
    DI_CARD_TICKETS = 8192,
};

/* Page-locked host memory that copies to the card start from: filled segment by segment; an event
 * tells when the copies out of a segment are done. */
typedef struct di_card_ring {
    unsigned char *memory;
    cudaEvent_t done[DI_CARD_SEGMENTS];
    int segment;
    size_t used; /* of the segment */
} di_card_ring;

/* A weight on the card, found by its host address. */
typedef struct di_card_weight {
    const void *host; /* NULL: an empty place */
    dk_matrix matrix; /* data alone for what is not a matrix */
} di_card_weight;

typedef struct di_card_slab {
    unsigned char *data;
    size_t bytes;
} di_card_slab;

/* Host memory with a copy on the card: arguments of ops (ops/queue.h). */
typedef struct di_card_region {
    unsigned char *host, *device;
    size_t bytes;
} di_card_region;

/* An n-gram table that kernels can read: in the card's memory, or page-locked. */
typedef struct di_card_table {
    const void *host;
    const uint8_t *data, *scale; /* as the card sees them */
    void *owned[2];              /* to be given back: both of one kind */
    size_t bytes;                /* of the card's memory */
    enum { DI_TABLE_CARD, DI_TABLE_REGISTERED, DI_TABLE_COPY } kind;
} di_card_table;

/* Where steps begin and end in the queue. A step takes events that the other place's, which may be
 * under way, has not, nor the one whose times were told last: its own are told from there. */
typedef struct di_card_marks {
    cudaEvent_t begin[DI_CARD_MARKS], end[DI_CARD_MARKS];
    int at[2];        /* by place */
    int last;         /* whose end was at last_time */
    double last_time; /* on the clock, in seconds; 0: none has been told */
} di_card_marks;

/* What DI_CARD_USE_TILES holds, for the rows of a step: keys of a layer's window, chosen entries.
 */
typedef struct di_card_tiles {
    bool window, entries;
    int rows, layer, source;
    const int32_t *topk;
} di_card_tiles;

/* Streams beside the main one, for recordings. While a branch is recorded, di_card.stream is its.
 */
typedef struct di_card_branches {
    cudaStream_t main, stream[DI_QUEUE_BRANCHES];
    cudaEvent_t fork[DI_QUEUE_BRANCHES], join[DI_QUEUE_BRANCHES];
    int now; /* 0: the main line; else the branch's number and 1 */
} di_card_branches;

typedef struct di_card {
    di_backend base;
    int device;
    cudaStream_t stream;
    di_card_ring ring;
    struct {
        void *data;
        size_t bytes;
    } scratch[DI_CARD_NUM_USES * (1 + DI_QUEUE_BRANCHES)]; /* the main line's, then each branch's */

    di_card_weight *weights; /* hash table, linear probing, a power of two of places */
    size_t num_weights, num_places;
    di_card_slab *slabs; /* weights are taken from the last of these, and freed together */
    size_t num_slabs, slab_capacity, slab_used;
    size_t weight_bytes; /* of all slabs */
    size_t bytes;        /* taken from the card, buffers of ops->alloc not among them */

    unsigned char *step; /* what DI_CARD_USE_STEP holds, as last copied */
    size_t step_bytes, step_capacity;
    unsigned char *staging; /* the next step, packed */
    size_t staging_capacity;

    di_card_region regions[DI_CARD_REGIONS];
    int num_regions;
    di_card_table *tables;
    size_t num_tables, table_capacity;
    const di_step *sent; /* whose copy DI_CARD_USE_STEP holds, told by step_send; or NULL */
    bool recording;      /* between record and recorded */
    di_card_branches branches;
    di_card_tiles tiles;
    uint64_t recorded_from;   /* scratch_version when the recording began */
    uint64_t scratch_version; /* counts moves of scratch memory */
    di_card_marks marks;
    const char *trap; /* DI_CUDA_TRAP: the op whose kernels shall fail, for tests; or NULL */
    bool guard;       /* DI_CUDA_GUARD, but with `watch`: a wait inside a step is a fault; debug
                       * builds: unless 0 */
    bool free_order;  /* sums may be cut as suits the number of rows */
    bool host_tables; /* DI_CUDA_HOST_TABLES: no n-gram table on the card, for tests */
    bool in_step;     /* between begin and end */
    /* Zeros between launches, to tell which block comes last: DI_CARD_TICKETS of rows, then
     * DK_MOE_TICKETS. */
    unsigned *tickets;

    bool watch;           /* DI_CUDA_SYNC: wait after every op, to name the one at fault */
    const char *op;       /* running */
    const char *fault_op; /* first fault since the last sync; NULL: none */
    cudaError_t fault;
    size_t no_memory; /* bytes that could not be had */
    bool waited;      /* the fault is a wait inside a step */
} di_card;

static inline di_card *di_card_of(di_backend *be) {
    return (di_card *)be;
}

/* ---- faults (card.c) --------------------------------------------------------------------------*/

/* Begins an op: false when an earlier one failed, and then the op does nothing. */
bool di_card_enter(di_card *c, const char *op);
/* Remembers what the op's launches came to. */
void di_card_leave(di_card *c);
/* Remembers a call's failure; returns whether it went well. */
bool di_card_check(di_card *c, cudaError_t result);
/* Remembers that so many bytes could not be had. Always false. */
bool di_card_short(di_card *c, size_t bytes);
/* To be called where the host is about to wait; with DI_CUDA_GUARD a fault inside a step. */
void di_card_waits(di_card *c, const char *why);
/* The first fault since the last report, as an error. True: there was none. */
bool di_card_report(di_card *c, di_error *err);

/* ---- memory (memory.c) ------------------------------------------------------------------------*/

/* count * size bytes on the card, valid until the next call with the same use. NULL: remembered. */
void *di_card_scratch(di_card *c, di_card_use use, size_t count, size_t size);

/* Room in the ring for `bytes` <= DI_CARD_SEGMENT_BYTES; waits for old copies if it must. Whoever
 * fills it queues the copy before the next call. NULL: remembered. */
void *di_card_ring_take(di_card *c, size_t bytes);

/* Copies host memory to the card; it may change as soon as the call returns. */
bool di_card_upload(di_card *c, void *to, const void *from, size_t bytes);

/* Host arrays of one op side by side in DI_CARD_USE_HOST: at most 3 parts, NULL parts stay NULL. */
typedef struct di_card_part {
    const void *host;
    size_t bytes;
    void *device;
} di_card_part;
bool di_card_host_arrays(di_card *c, di_card_part *parts, int count);

/* The step's sequences and block tables on the card, as kernels want them; layer: whose offsets. */
bool di_card_step(di_card *c, const di_step *step, int layer, dk_step *out);
/* Copies it now; di_card_step takes this very step as it is from then on. */
void di_card_step_send(di_card *c, const di_step *step);

/* Weights, uploaded at first use. NULL or false: remembered. */
bool di_card_matrix(di_card *c, const di_tensor *w, dk_matrix *out);
/* Bytes that a matrix takes on the card; and room for so many, ahead. */
size_t di_card_matrix_bytes(const di_tensor *w);
void di_card_reserve(di_card *c, size_t bytes);
const void *di_card_array(di_card *c, const void *host, size_t bytes);
const dk_expert *di_card_experts(di_card *c, const di_expert *table, int count);
void di_card_forget(di_card *c);

/* n-gram tables (ngrams.c): NULL if this one was not loaded. */
void di_card_table_load(di_card *c, const di_tensor *table, bool on_card);
const di_card_table *di_card_table_find(const di_card *c, const di_tensor *table);
void di_card_tables_drop(di_card *c);

/* An address in argument memory as the card sees it; NULL for other host memory (queue.c). */
void *di_card_on_card(const di_card *c, const void *host);
bool di_card_branches_create(di_card *c);
void di_card_branches_destroy(di_card *c);
bool di_card_marks_create(di_card_marks *m);
void di_card_marks_destroy(di_card_marks *m);

bool di_card_memory_create(di_card *c, di_error *err);
void di_card_memory_destroy(di_card *c);

extern const di_ops di_card_ops; /* card.c */

#endif
