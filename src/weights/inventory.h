/* The list of a model's parameters: which there are by the configuration, how they are called in a
 * checkpoint, how they are stored, and where in di_weights they belong. The one place that knows
 * names; opening binds by it, inspecting reports by it. */
#ifndef DI_WEIGHTS_INVENTORY_H
#define DI_WEIGHTS_INVENTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "weights/weights.h"

/* The parts in which sizes are reported. Every draft stage's tensors are DI_PART_DRAFT. */
typedef enum di_part {
    DI_PART_EXPERTS,
    DI_PART_ATTENTION,
    DI_PART_SHARED_EXPERTS,
    DI_PART_EMBED_HEAD,
    DI_PART_ENGRAM_PROJECTIONS,
    DI_PART_ROUTER,
    DI_PART_INDEXERS,
    DI_PART_HYPER_CONNECTIONS,
    DI_PART_COMPRESSORS,
    DI_PART_NORMS,
    DI_PART_ENGRAM_TABLES,
    DI_PART_DRAFT,
    DI_PART_VISION, /* skipped by the text model */
    DI_NUM_PARTS,
} di_part;

const char *di_part_name(di_part part); /* "routed experts", ... */

/* How a parameter is kept in a checkpoint. The first two are one tensor of the parameter's name,
 * the others a NAME.weight with a NAME.scale of E8M0 bytes. */
typedef enum di_storage {
    DI_STORED_F32,
    DI_STORED_BF16,
    DI_STORED_FP8,   /* E4M3, a scale per 32 x 32 tile */
    DI_STORED_TABLE, /* E4M3, a scale per 32 columns of a row */
    DI_STORED_FP4,   /* E2M1 two a byte, as I8; a scale per 32 columns of a row */
} di_storage;

enum { DI_NAME_BYTES = 96 };

typedef struct di_parameter {
    char name[DI_NAME_BYTES];
    di_storage storage;
    int rank;
    int64_t shape[2]; /* logical */
    di_part part;
    di_tensor *slot; /* in the di_weights walked over */
} di_parameter;

/* A tensor of a checkpoint as a parameter wants it. */
typedef struct di_expected {
    char name[DI_NAME_BYTES + 8];
    di_dtype dtype;
    int rank;
    int64_t shape[2];
} di_expected;

/* Allocates the arrays of w (layers, experts, and the draft's if with_draft) for w->config. */
bool di_weights_allocate(di_weights *w, bool with_draft, di_error *err);
void di_weights_release(di_weights *w); /* those arrays */

/* Calls visit for every parameter of w, whose arrays are allocated (draft stages: if w->draft).
 * False as soon as visit returns false. */
typedef bool (*di_parameter_visit)(void *context, const di_parameter *p);
bool di_inventory_walk(di_weights *w, di_parameter_visit visit, void *context);

/* The tensors that hold a parameter: returns 1, or 2 with expected[1] the scales. */
int di_parameter_expected(const di_parameter *p, di_expected expected[2]);

/* True for a name that the text model leaves alone knowingly: images' encoder and delimiters. */
bool di_name_is_vision(const char *name, size_t length);

#endif
