/* Fitting a checkpoint to a model: see bind.h; and di_weights_open, which does all of it in turn.
 */
#include "weights/bind.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"

typedef struct binder {
    di_checkpoint *checkpoint;
    di_faults *faults;
} binder;

/* "[2304, 2560]" */
static const char *shape_text(char *text, size_t size, const int64_t *shape, int rank) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)shape[i]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
    return text;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static bool matches(const di_expected *e, const di_shard_tensor *t) {
    return t->dtype == e->dtype && t->rank == e->rank &&
           memcmp(t->shape, e->shape, (size_t)e->rank * sizeof *e->shape) == 0;
}

/* Finds the tensor, marks it taken and checks it. *found is NULL after a fault; false: stop. */
static bool take(const binder *b, const di_expected *e, di_part part, di_stored_tensor **found) {
    di_stored_tensor *t = di_checkpoint_find(b->checkpoint, e->name);
    char have[96], want[96];
    *found = NULL;
    if (!t) {
        return di_fault(b->faults, DI_ERR_FORMAT, "%s: tensor %s (%s %s) is missing",
                        b->checkpoint->folder, e->name, di_dtype_name(e->dtype),
                        shape_text(want, sizeof want, e->shape, e->rank));
    }
    t->part = (int)part;
    if (!matches(e, t->tensor)) {
        return di_fault(b->faults, DI_ERR_FORMAT, "%s: %s is %s %s, but must be %s %s",
                        di_stored_path(b->checkpoint, t), e->name, di_dtype_name(t->tensor->dtype),
                        shape_text(have, sizeof have, t->tensor->shape, t->tensor->rank),
                        di_dtype_name(e->dtype), shape_text(want, sizeof want, e->shape, e->rank));
    }
    *found = t;
    return true;
}

/* The data as kernels want them: F32 and BF16 at multiples of their size. Nothing in the format
 * promises that (files by the usual writers are so); a tensor that lies badly is copied. */
static const void *aligned_data(const binder *b, const di_stored_tensor *t) {
    di_checkpoint *c = b->checkpoint;
    const uint8_t *data = di_stored_data(c, t);
    size_t bytes = (size_t)(t->tensor->end - t->tensor->begin);
    if ((uintptr_t)data % (size_t)(di_dtype_bits(t->tensor->dtype) / 8) == 0) {
        return data;
    }
    void **grown = di_grow(c->copies, c->num_copies, &c->copies_capacity, sizeof *grown);
    c->copies = grown ? grown : c->copies;
    void *copy = grown ? di_alloc_aligned(bytes) : NULL;
    if (!copy) {
        di_fault(b->faults, DI_ERR_NO_MEMORY, "%s: no memory to copy %.*s, which is misaligned",
                 di_stored_path(c, t), (int)t->name_length, t->name);
        return NULL;
    }
    c->copies[c->num_copies++] = copy;
    return memcpy(copy, data, bytes);
}

static bool bind_parameter(void *context, const di_parameter *p) {
    const binder *b = context;
    di_expected expected[2];
    di_stored_tensor *found[2] = {NULL, NULL};
    int count = di_parameter_expected(p, expected);
    for (int i = 0; i < count; i++) {
        if (!take(b, &expected[i], p->part, &found[i])) {
            return false;
        }
    }
    if (!found[0] || (count == 2 && !found[1])) {
        return true;
    }
    const void *data = aligned_data(b, found[0]);
    if (!data) {
        return false;
    }
    di_tensor t = {.dtype = expected[0].dtype, .rank = p->rank, .data = data};
    memcpy(t.shape, p->shape, (size_t)p->rank * sizeof *p->shape);
    if (count == 2) {
        t.dtype = p->storage == DI_STORED_FP4 ? DI_FP4_E2M1 : DI_F8_E4M3;
        t.scale = di_stored_data(b->checkpoint, found[1]);
        t.scale_block[0] = p->storage == DI_STORED_FP8 ? 32 : 1;
        t.scale_block[1] = 32;
    }
    *p->slot = t;
    return true;
}

/* ---- what is left over ----------------------------------------------------------------------- */

static const char *hint(const char *name, size_t length) {
    static const struct {
        const char *part, *meaning;
    } hints[] = {
        {"hc_head", ": DeepSeek-V4's learned final mix, not part of V4.1"},
        {"hc_attn_norm", ": must be folded into hc_attn_fn"},
        {"hc_ffn_norm", ": must be folded into hc_ffn_fn"},
        {"tid2eid", ": DeepSeek-V4's hash-routed layers, not part of V4.1"},
        {"markov_w", ": DeepSeek-V4's draft head, not part of V4.1"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        if (memmem(name, length, hints[i].part, strlen(hints[i].part))) {
            return hints[i].meaning;
        }
    }
    return "";
}

static bool check_leftovers(const binder *b) {
    di_checkpoint *c = b->checkpoint;
    for (size_t i = 0; i < c->num_tensors; i++) {
        di_stored_tensor *t = &c->tensors[i];
        if (di_name_is_vision(t->name, t->name_length)) {
            t->part = DI_PART_VISION;
        }
        if (t->part < 0 &&
            !di_fault(b->faults, DI_ERR_UNSUPPORTED, "%s: %.*s is not a tensor of this model%s",
                      di_stored_path(c, t), (int)(t->name_length < 160 ? t->name_length : 160),
                      t->name, hint(t->name, t->name_length))) {
            return false;
        }
    }
    return true;
}

bool di_weights_bind(di_weights *w, di_checkpoint *c, di_faults *faults) {
    binder b = {c, faults};
    di_error fault;
    bool with_draft = di_checkpoint_has_prefix(c, "mtp.");
    if (!di_weights_allocate(w, with_draft, &fault)) {
        di_fault_error(faults, &fault);
        return false;
    }
    return di_inventory_walk(w, bind_parameter, &b) && check_leftovers(&b);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* A checkpoint this small is read whole when it is opened, which takes milliseconds. */
enum { READ_WHOLE_BYTES = 64 << 20 };

static bool open_and_bind(di_weights *w, const char *folder, di_faults *faults) {
    w->checkpoint = di_checkpoint_open(folder, faults);
    if (!w->checkpoint || !di_weights_bind(w, w->checkpoint, faults)) {
        return false;
    }
    bool small = w->checkpoint->total_bytes <= READ_WHOLE_BYTES;
    return di_check_values(w->checkpoint, small ? DI_CHECK_ALL : DI_CHECK_QUICK, faults);
}

di_weights *di_weights_open(const char *folder, di_error *err) {
    di_faults faults = {0};
    di_weights *w = di_calloc(1, sizeof *w);
    if (!w) {
        di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory to open it", folder);
        return NULL;
    }
    if (!di_config_read(&w->config, folder, err)) {
        di_weights_close(w);
        return NULL;
    }
    if (!open_and_bind(w, folder, &faults)) {
        di_fail(err, faults.first.code, "%s", faults.first.message);
        di_weights_close(w);
        return NULL;
    }
    if (!w->draft && w->config.num_nextn_predict_layers > 0) {
        di_log(DI_LOG_INFO, "%s: no mtp.* tensors, so no drafts", folder);
    }
    return w;
}

void di_weights_close(di_weights *w) {
    if (w) {
        di_weights_release(w);
        di_checkpoint_close(w->checkpoint);
        di_free(w);
    }
}
