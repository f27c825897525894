/* What inspect finds out, between the finding (inspect.c) and the writing (inspect_text.c,
 * inspect_json.c). Nobody else includes this. */
#ifndef DI_WEIGHTS_INSPECTION_H
#define DI_WEIGHTS_INSPECTION_H

#include <stdio.h>

#include "weights/bind.h"
#include "weights/inspect.h"

typedef struct di_size {
    uint64_t tensors, elements, bytes; /* scales are bytes, but no elements */
} di_size;

/* A row of the table by stored format; FP4 counts two elements a byte. */
typedef struct di_format_size {
    const char *name;
    di_size size;
} di_format_size;

enum { DI_NUM_FORMATS = 6 };

typedef struct di_inspection {
    const char *folder;
    di_faults faults;
    bool has_config;                 /* weights.config is valid */
    di_weights weights;              /* bound as far as possible */
    di_checkpoint *checkpoint;       /* NULL if the folder could not be opened at all */
    di_size parts[DI_NUM_PARTS + 1]; /* the last: tensors that are not this model's */
    di_size backbone, total;         /* backbone: without engram tables, draft and vision */
    di_format_size formats[DI_NUM_FORMATS];
    uint64_t cache_half_bytes; /* two tokens' bytes in a sequence's growing state */
    uint64_t state_bytes;      /* a sequence's fixed state: window and draft rings, open groups */
} di_inspection;

/* A line of the configuration: the released name and the value. */
typedef struct di_config_line {
    const char *name;
    int64_t value;
} di_config_line;

enum { DI_MAX_CONFIG_LINES = 48 };

size_t di_config_lines(const di_config *c, di_config_line lines[DI_MAX_CONFIG_LINES]);

/* False when memory is short; what could not be written shows in ferror(out). */
bool di_inspection_write_text(const di_inspection *x, const di_inspect_options *o, FILE *out);
bool di_inspection_write_json(const di_inspection *x, const di_inspect_options *o, FILE *out);

/* Elements a tensor stands for: 0 for scales, two a byte for packed FP4. */
uint64_t di_tensor_elements(const di_shard_tensor *t);
const char *di_part_label(int part); /* di_part_name, and a name for tensors of no part */
const char *di_layer_mode_name(di_layer_mode mode);

#endif
