/* Opening a safetensors file: see safetensors.h. The order of business: map; check the header's
 * length before believing it; read the header tensor by tensor; check that the tensors' places tile
 * the data. Nothing is allocated but one array of tensors, whose size the header's bounds. */
#include "weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "weights/header_reader.h"

/* {"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}} is about the shortest tensor there is. */
enum { LEAST_TENSOR_BYTES = 48, MAX_SHOWN_NAME = 200 };

/* A name as printf("%.*s") wants it, cut to what a message can hold. */
#define SHOWN(t)                                                                                   \
    (int)((t)->name_length < MAX_SHOWN_NAME ? (t)->name_length : MAX_SHOWN_NAME), (t)->name

int di_compare_names(const char *a, size_t a_length, const char *b, size_t b_length) {
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

/* ---- one tensor's entry ---------------------------------------------------------------------- */

/* What a header says of a tensor, before it is believed. */
typedef struct entry {
    const char *name, *dtype;
    size_t name_length, dtype_length;
    uint64_t shape[DI_MAX_RANK];
    size_t rank; /* may exceed DI_MAX_RANK; the surplus is counted, not kept */
    uint64_t begin, end;
} entry;

static bool is(const char *text, size_t length, const char *word) {
    return length == strlen(word) && memcmp(text, word, length) == 0;
}

static bool read_shape(di_header_reader *r, entry *e) {
    if (!di_header_expect(r, '[', "shape must be an array")) {
        return false;
    }
    e->rank = 0;
    if (di_header_take(r, ']')) {
        return true;
    }
    do {
        uint64_t size;
        if (!di_header_unsigned(r, &size)) {
            return false;
        }
        if (e->rank < DI_MAX_RANK) {
            e->shape[e->rank] = size;
        }
        e->rank++;
    } while (di_header_take(r, ','));
    return di_header_expect(r, ']', "',' or ']' was expected in shape");
}

static bool read_offsets(di_header_reader *r, entry *e) {
    static const char problem[] = "data_offsets must be an array of two integers";
    return di_header_expect(r, '[', problem) && di_header_unsigned(r, &e->begin) &&
           di_header_expect(r, ',', problem) && di_header_unsigned(r, &e->end) &&
           di_header_expect(r, ']', problem);
}

static bool read_entry(di_header_reader *r, entry *e) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    int seen = 0;
    if (!di_header_expect(r, '{', "a tensor must be an object")) {
        return false;
    }
    do {
        const char *key;
        size_t length;
        if (!di_header_plain_string(r, &key, &length) ||
            !di_header_expect(r, ':', "':' was expected")) {
            return false;
        }
        int field = is(key, length, "dtype")          ? DTYPE
                    : is(key, length, "shape")        ? SHAPE
                    : is(key, length, "data_offsets") ? OFFSETS
                                                      : 0;
        if (field == 0 || (seen & field)) {
            r->at = key;
            return di_header_problem(r, field ? "a key stands twice in a tensor"
                                              : "a tensor has dtype, shape and data_offsets, "
                                                "nothing else");
        }
        seen |= field;
        bool ok = field == DTYPE   ? di_header_plain_string(r, &e->dtype, &e->dtype_length)
                  : field == SHAPE ? read_shape(r, e)
                                   : read_offsets(r, e);
        if (!ok) {
            return false;
        }
    } while (di_header_take(r, ','));
    return di_header_expect(r, '}', "',' or '}' was expected in a tensor") &&
           (seen == ALL || di_header_problem(r, "a tensor lacks dtype, shape or data_offsets"));
}

static bool skip_metadata(di_header_reader *r) {
    if (!di_header_expect(r, '{', "__metadata__ must be an object")) {
        return false;
    }
    if (di_header_take(r, '}')) {
        return true;
    }
    do {
        const char *text;
        size_t length;
        bool escaped;
        if (!di_header_string(r, &text, &length, &escaped) ||
            !di_header_expect(r, ':', "':' was expected") ||
            !di_header_string(r, &text, &length, &escaped)) {
            return false;
        }
    } while (di_header_take(r, ','));
    return di_header_expect(r, '}', "',' or '}' was expected in __metadata__");
}

/* ---- believing an entry ---------------------------------------------------------------------- */

static di_dtype dtype_of(const char *text, size_t length) {
    static const di_dtype known[] = {DI_F32, DI_BF16, DI_F8_E4M3, DI_F8_E8M0, DI_I8,
                                     DI_U8,  DI_I32,  DI_I64,     DI_F16,     DI_F64};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (is(text, length, di_dtype_name(known[i]))) {
            return known[i];
        }
    }
    return DI_DTYPE_NONE;
}

/* Bytes that shape and dtype ask for; false if they do not fit 63 bits. */
static bool shape_bytes(const entry *e, di_dtype dtype, uint64_t *bytes) {
    uint64_t product = (uint64_t)di_dtype_bits(dtype) / 8;
    bool empty = false;
    for (size_t i = 0; i < e->rank; i++) {
        if (e->shape[i] > INT64_MAX) {
            return false;
        }
        empty = empty || e->shape[i] == 0;
    }
    for (size_t i = 0; i < e->rank && !empty; i++) {
        if (__builtin_mul_overflow(product, e->shape[i], &product) || product > INT64_MAX) {
            return false;
        }
    }
    *bytes = empty ? 0 : product;
    return true;
}

/* Appends the tensor if all that is said of it can be true. False: stop checking. */
static bool add_tensor(di_shard *s, const entry *e, di_faults *faults) {
    di_shard_tensor t = {.name = e->name, .name_length = (uint32_t)e->name_length};
    uint64_t bytes;
    t.dtype = dtype_of(e->dtype, e->dtype_length);
    if (t.dtype == DI_DTYPE_NONE) {
        return di_fault(faults, DI_ERR_FORMAT, "%s: %.*s: dtype '%.*s' is not known", s->path,
                        SHOWN(&t), (int)(e->dtype_length < 40 ? e->dtype_length : 40), e->dtype);
    }
    if (e->rank > DI_MAX_RANK) {
        return di_fault(faults, DI_ERR_FORMAT,
                        "%s: %.*s: shape has %zu dimensions, at most %d are allowed", s->path,
                        SHOWN(&t), e->rank, DI_MAX_RANK);
    }
    if (e->begin > e->end || e->end > s->data_bytes) {
        return di_fault(faults, DI_ERR_FORMAT,
                        "%s: %.*s: data_offsets [%llu, %llu] must ascend and end within the %llu "
                        "bytes of data",
                        s->path, SHOWN(&t), (unsigned long long)e->begin,
                        (unsigned long long)e->end, (unsigned long long)s->data_bytes);
    }
    if (!shape_bytes(e, t.dtype, &bytes)) {
        return di_fault(faults, DI_ERR_FORMAT, "%s: %.*s: shape asks for 2^63 bytes or more",
                        s->path, SHOWN(&t));
    }
    if (bytes != e->end - e->begin) {
        return di_fault(faults, DI_ERR_FORMAT,
                        "%s: %.*s: shape and dtype ask for %llu bytes, data_offsets give %llu",
                        s->path, SHOWN(&t), (unsigned long long)bytes,
                        (unsigned long long)(e->end - e->begin));
    }
    t.rank = (int)e->rank;
    for (size_t i = 0; i < e->rank; i++) {
        t.shape[i] = (int64_t)e->shape[i];
    }
    t.begin = e->begin;
    t.end = e->end;
    s->tensors[s->num_tensors++] = t;
    return true;
}

/* ---- the header ------------------------------------------------------------------------------ */

static bool has_room(const di_shard *s, di_header_reader *r, size_t capacity) {
    return s->num_tensors < capacity ||
           di_header_problem(r, "more tensors than the header has room for");
}

static bool read_members(di_shard *s, di_header_reader *r, size_t capacity, di_faults *faults) {
    bool metadata = false;
    do {
        entry e = {0};
        if (!di_header_plain_string(r, &e.name, &e.name_length) ||
            !di_header_expect(r, ':', "':' was expected")) {
            return false;
        }
        if (!is(e.name, e.name_length, "__metadata__")) {
            if (!read_entry(r, &e) || !has_room(s, r, capacity) || !add_tensor(s, &e, faults)) {
                return false;
            }
            continue;
        }
        if (metadata) {
            return di_header_problem(r, "__metadata__ stands twice");
        }
        metadata = true;
        if (!skip_metadata(r)) {
            return false;
        }
    } while (di_header_take(r, ','));
    return true;
}

static bool read_header(di_shard *s, const char *text, size_t bytes, di_faults *faults) {
    di_header_reader r = {text, text, text + bytes, NULL};
    size_t capacity = bytes / LEAST_TENSOR_BYTES + 1;
    s->tensors = di_alloc(capacity * sizeof *s->tensors);
    if (!s->tensors) {
        return di_fault(faults, DI_ERR_NO_MEMORY, "%s: no memory for %zu tensors", s->path,
                        capacity);
    }
    bool ok = di_header_expect(&r, '{', "a header must begin with '{'") &&
              (di_header_take(&r, '}') || (read_members(s, &r, capacity, faults) &&
                                           di_header_expect(&r, '}', "',' or '}' was expected")));
    if (ok && !di_header_ended(&r)) {
        ok = di_header_problem(&r, "only spaces may follow the header's closing '}'");
    }
    if (!ok && r.problem) {
        di_fault(faults, DI_ERR_FORMAT, "%s: header, file offset %zu: %s", s->path,
                 (size_t)(r.at - text) + 8, r.problem);
    }
    return ok;
}

/* ---- places and names ------------------------------------------------------------------------ */

static int by_place(const void *a, const void *b) {
    const di_shard_tensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
    const di_shard_tensor *x = a, *y = b;
    return di_compare_names(x->name, x->name_length, y->name, y->name_length);
}

/* The tensors' places must tile the data: no byte twice, none unaccounted for. */
static bool check_places(di_shard *s, di_faults *faults) {
    uint64_t reached = 0;
    qsort(s->tensors, s->num_tensors, sizeof *s->tensors, by_place);
    for (size_t i = 0; i < s->num_tensors; i++) {
        const di_shard_tensor *t = &s->tensors[i], *before = t - 1;
        if (t->begin < reached &&
            !di_fault(faults, DI_ERR_FORMAT, "%s: %.*s overlaps %.*s at file offset %llu", s->path,
                      SHOWN(t), SHOWN(before),
                      (unsigned long long)di_shard_file_offset(s, t->begin))) {
            return false;
        }
        if (t->begin > reached &&
            !di_fault(faults, DI_ERR_FORMAT,
                      "%s: %llu bytes before %.*s, from file offset %llu, belong to no tensor",
                      s->path, (unsigned long long)(t->begin - reached), SHOWN(t),
                      (unsigned long long)di_shard_file_offset(s, reached))) {
            return false;
        }
        reached = t->end > reached ? t->end : reached;
    }
    if (reached == s->data_bytes) {
        return true;
    }
    return di_fault(faults, DI_ERR_FORMAT,
                    "%s: the last %llu bytes, from file offset %llu, belong to no tensor", s->path,
                    (unsigned long long)(s->data_bytes - reached),
                    (unsigned long long)di_shard_file_offset(s, reached));
}

/* Sorts by name; of those that stand twice one is kept. */
static bool check_names(di_shard *s, di_faults *faults) {
    qsort(s->tensors, s->num_tensors, sizeof *s->tensors, by_name);
    size_t kept = 0;
    for (size_t i = 0; i < s->num_tensors; i++) {
        if (kept > 0 && by_name(&s->tensors[kept - 1], &s->tensors[i]) == 0) {
            if (!di_fault(faults, DI_ERR_FORMAT, "%s: %.*s stands twice in the header", s->path,
                          SHOWN(&s->tensors[i]))) {
                return false;
            }
            continue;
        }
        s->tensors[kept++] = s->tensors[i];
    }
    s->num_tensors = kept;
    return true;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The length is checked against the file before anything is read or allocated by it. */
static bool header_length(const di_shard *s, uint64_t *length, di_faults *faults) {
    size_t size = s->map.size;
    if (size < 10) {
        di_fault(faults, DI_ERR_FORMAT, "%s: %zu bytes are too few for a header", s->path, size);
        return false;
    }
    *length = di_load_u64(s->map.data);
    uint64_t most = size - 8 < DI_MAX_HEADER_BYTES ? size - 8 : DI_MAX_HEADER_BYTES;
    if (*length < 2 || *length > most) {
        di_fault(faults, DI_ERR_FORMAT,
                 "%s: header length is %llu, allowed are 2 to %llu in a file of %zu bytes", s->path,
                 (unsigned long long)*length, (unsigned long long)most, size);
        return false;
    }
    return true;
}

bool di_shard_check(di_shard *s, const char *path, di_faults *faults) {
    di_error fault;
    uint64_t length;
    *s = (di_shard){.path = di_strdup(path)};
    if (!s->path) {
        return di_fault(faults, DI_ERR_NO_MEMORY, "%s: no memory for its name", path);
    }
    if (!di_map_open(&s->map, path, &fault)) {
        di_fault_error(faults, &fault);
        goto failed;
    }
    if (!header_length(s, &length, faults)) {
        goto failed;
    }
    s->data = s->map.data + 8 + length;
    s->data_bytes = s->map.size - 8 - length;
    size_t before = faults->count;
    if (!read_header(s, (const char *)s->map.data + 8, length, faults)) {
        goto failed;
    }
    /* A tensor that was left out leaves a hole; one fault is enough for it. */
    if ((faults->count == before && !check_places(s, faults)) || !check_names(s, faults)) {
        goto failed;
    }
    return true;
failed:
    di_shard_close(s);
    return false;
}

bool di_shard_open(di_shard *s, const char *path, di_error *err) {
    di_faults faults = {0};
    if (di_shard_check(s, path, &faults)) {
        return true;
    }
    return di_fail(err, faults.first.code, "%s", faults.first.message);
}

void di_shard_close(di_shard *s) {
    di_free(s->path);
    di_free(s->tensors);
    di_map_close(&s->map);
    *s = (di_shard){0};
}

const di_shard_tensor *di_shard_find(const di_shard *s, const char *name) {
    size_t low = 0, high = s->num_tensors, length = strlen(name);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const di_shard_tensor *t = &s->tensors[middle];
        int order = di_compare_names(name, length, t->name, t->name_length);
        if (order == 0) {
            return t;
        }
        low = order > 0 ? middle + 1 : low;
        high = order < 0 ? middle : high;
    }
    return NULL;
}

bool di_shard_get(const di_shard *s, const char *name, di_tensor *out) {
    const di_shard_tensor *t = di_shard_find(s, name);
    if (!t) {
        return false;
    }
    *out = (di_tensor){.dtype = t->dtype, .rank = t->rank, .data = s->data + t->begin};
    memcpy(out->shape, t->shape, sizeof out->shape);
    return true;
}
