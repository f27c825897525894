/* Opening a folder of shards: see checkpoint.h. The index is a second account of what the shards
 * hold; both are sorted by name and walked side by side, so every difference is found and named. */
#include "weights/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/json.h"

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

enum { MAX_INDEX_BYTES = 256 << 20, MAX_SHOWN = 160 };

#define SHOWN(length) (int)((length) < MAX_SHOWN ? (length) : MAX_SHOWN)

typedef struct index_entry {
    const char *name;
    size_t length;
    size_t shard;
} index_entry;

/* model.safetensors.index.json, read. Strings belong to root. */
typedef struct shard_index {
    json_t *root;
    index_entry *entries; /* sorted by name */
    size_t num_entries;
    const char **shard_names; /* sorted, each once */
    size_t num_shards;
} shard_index;

static void strip_model(const char **name, size_t *length) {
    static const char prefix[] = "model.";
    if (*length > sizeof prefix - 1 && memcmp(*name, prefix, sizeof prefix - 1) == 0) {
        *name += sizeof prefix - 1;
        *length -= sizeof prefix - 1;
    }
}

/* ---- the index ------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_entry_name(const void *a, const void *b) {
    const index_entry *x = a, *y = b;
    return di_compare_names(x->name, x->length, y->name, y->length);
}

/* A shard is a file of the folder itself: nothing in an index may lead out of it. */
static bool plain_shard_name(const char *name) {
    static const char ending[] = ".safetensors";
    size_t length = name ? strlen(name) : 0, tail = sizeof ending - 1;
    return length > tail && length < 256 && name[0] != '.' && !strchr(name, '/') &&
           !strchr(name, '\\') && strcmp(name + length - tail, ending) == 0;
}

static bool refuse_shard_name(const char *tensor, const json_t *value, const char *path,
                              di_faults *faults) {
    if (!json_is_string(value)) {
        return di_fault(faults, DI_ERR_FORMAT, "%s: %s is %s, a file name expected", path, tensor,
                        di_json_type_name(value));
    }
    return di_fault(faults, DI_ERR_FORMAT,
                    "%s: %s lies in '%s', but shards are plain file names ending in .safetensors",
                    path, tensor, json_string_value(value));
}

/* Lists the shards that the index names. Entries with a name that cannot be are left out. */
static bool collect_shard_names(shard_index *x, json_t *map, const char *path, di_faults *faults) {
    size_t count = json_object_size(map);
    x->shard_names = di_alloc(count * sizeof *x->shard_names);
    if (!x->shard_names) {
        return di_fault(faults, DI_ERR_NO_MEMORY, "%s: no memory for %zu entries", path, count);
    }
    const char *key;
    json_t *value;
    const char *last = NULL;
    size_t n = 0;
    json_object_foreach(map, key, value) {
        const char *shard = json_string_value(value);
        if (shard && last && strcmp(shard, last) == 0) {
            continue; /* neighbours mostly share their shard */
        }
        if (!plain_shard_name(shard)) {
            if (!refuse_shard_name(key, value, path, faults)) {
                return false;
            }
            continue;
        }
        x->shard_names[n++] = last = shard;
    }
    qsort(x->shard_names, n, sizeof *x->shard_names, by_text);
    for (size_t i = 0; i < n; i++) {
        if (x->num_shards == 0 ||
            strcmp(x->shard_names[x->num_shards - 1], x->shard_names[i]) != 0) {
            x->shard_names[x->num_shards++] = x->shard_names[i];
        }
    }
    if (x->num_shards > DI_MAX_SHARDS) {
        di_fault(faults, DI_ERR_FORMAT, "%s: names %zu shards, at most %d are allowed", path,
                 x->num_shards, DI_MAX_SHARDS);
        return false;
    }
    return true;
}

static bool collect_entries(shard_index *x, json_t *map, const char *path, di_faults *faults) {
    size_t count = json_object_size(map);
    x->entries = di_alloc(count * sizeof *x->entries);
    if (!x->entries) {
        return di_fault(faults, DI_ERR_NO_MEMORY, "%s: no memory for %zu entries", path, count);
    }
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value) {
        const char *shard = json_string_value(value);
        const char **found =
            shard ? bsearch(&shard, x->shard_names, x->num_shards, sizeof shard, by_text) : NULL;
        if (!found) {
            continue; /* was left out above */
        }
        index_entry e = {key, strlen(key), (size_t)(found - x->shard_names)};
        strip_model(&e.name, &e.length);
        x->entries[x->num_entries++] = e;
    }
    qsort(x->entries, x->num_entries, sizeof *x->entries, by_entry_name);
    return true;
}

static bool read_index(shard_index *x, const char *path, di_faults *faults) {
    di_error fault;
    x->root = di_json_read(path, MAX_INDEX_BYTES, &fault);
    json_t *map = x->root ? di_json_object(x->root, path, "weight_map", &fault) : NULL;
    if (!map) {
        di_fault_error(faults, &fault);
        return false;
    }
    if (json_object_size(map) == 0) {
        di_fault(faults, DI_ERR_FORMAT, "%s: weight_map is empty", path);
        return false;
    }
    return collect_shard_names(x, map, path, faults) && collect_entries(x, map, path, faults);
}

static void free_index(shard_index *x) {
    json_decref(x->root);
    di_free(x->entries);
    di_free(x->shard_names);
    *x = (shard_index){0};
}

/* ---- shards ---------------------------------------------------------------------------------- */

/* While collecting, a shard that cannot be used stays as an empty one, so that numbers agree. */
static bool open_shard(di_checkpoint *c, const char *folder, const char *name, di_faults *faults) {
    char *path = di_path_join(folder, name);
    if (!path) {
        return di_fault(faults, DI_ERR_NO_MEMORY, "%s: no memory for a path", folder);
    }
    bool ok = di_shard_check(&c->shards[c->num_shards++], path, faults);
    di_free(path);
    return ok || !di_faults_stop(faults);
}

static bool open_shards(di_checkpoint *c, const char *folder, const char **names, size_t count,
                        di_faults *faults) {
    c->shards = di_calloc(count, sizeof *c->shards);
    if (!c->shards) {
        return di_fault(faults, DI_ERR_NO_MEMORY, "%s: no memory for %zu shards", folder, count);
    }
    for (size_t i = 0; i < count; i++) {
        if (!open_shard(c, folder, names[i], faults)) {
            return false;
        }
    }
    return true;
}

static int by_stored_name(const void *a, const void *b) {
    const di_stored_tensor *x = a, *y = b;
    int order = di_compare_names(x->name, x->name_length, y->name, y->name_length);
    return order ? order : (x->shard > y->shard) - (x->shard < y->shard);
}

static bool same_name(const di_stored_tensor *a, const di_stored_tensor *b) {
    return a->name_length == b->name_length && memcmp(a->name, b->name, a->name_length) == 0;
}

/* Lists the tensors of all shards by name and finds those that two shards have. */
static bool merge_tensors(di_checkpoint *c, const char *folder, di_faults *faults) {
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < c->num_shards; i++) {
        count += c->shards[i].num_tensors;
    }
    c->tensors = di_alloc(count * sizeof *c->tensors);
    if (!c->tensors) {
        return di_fault(faults, DI_ERR_NO_MEMORY, "%s: no memory for %zu tensors", folder, count);
    }
    for (size_t i = 0, n = 0; i < c->num_shards; i++) {
        for (size_t k = 0; k < c->shards[i].num_tensors; k++, n++) {
            const di_shard_tensor *t = &c->shards[i].tensors[k];
            size_t length = t->name_length;
            c->tensors[n] = (di_stored_tensor){t->name, 0, (uint32_t)i, t, -1};
            strip_model(&c->tensors[n].name, &length);
            c->tensors[n].name_length = (uint32_t)length;
        }
    }
    qsort(c->tensors, count, sizeof *c->tensors, by_stored_name);
    for (size_t i = 0; i < count; i++) {
        const di_stored_tensor *t = &c->tensors[i];
        const di_stored_tensor *last = kept ? &c->tensors[kept - 1] : NULL;
        if (last && same_name(t, last)) {
            if (!di_fault(faults, DI_ERR_FORMAT, "%s: %.*s lies in %s too", di_stored_path(c, t),
                          SHOWN(t->name_length), t->name, di_stored_path(c, last))) {
                return false;
            }
            continue;
        }
        c->total_bytes += t->tensor->end - t->tensor->begin;
        c->tensors[kept++] = *t;
    }
    c->num_tensors = kept;
    return true;
}

/* ---- index against shards -------------------------------------------------------------------- */

static bool check_total_size(const di_checkpoint *c, const shard_index *x, const char *path,
                             di_faults *faults) {
    di_error fault;
    int64_t total;
    json_t *metadata = json_object_get(x->root, "metadata");
    if (!json_object_get(metadata, "total_size")) {
        return true;
    }
    if (!di_json_int(metadata, path, "total_size", 0, INT64_MAX, &total, &fault)) {
        return di_fault_error(faults, &fault);
    }
    return (uint64_t)total == c->total_bytes ||
           di_fault(faults, DI_ERR_FORMAT, "%s: total_size is %lld, the shards hold %llu bytes",
                    path, (long long)total, (unsigned long long)c->total_bytes);
}

/* One step of the walk: e or t may be NULL (the other side only). */
static bool compare_entry(const di_checkpoint *c, const index_entry *e, const di_stored_tensor *t,
                          const char *path, di_faults *faults) {
    if (!e) {
        return di_fault(faults, DI_ERR_FORMAT, "%s: %.*s is not in the index", di_stored_path(c, t),
                        SHOWN(t->name_length), t->name);
    }
    const char *named = c->shards[e->shard].path;
    if (!named) {
        return true; /* the shard could not be used, which was said */
    }
    if (!t) {
        return di_fault(faults, DI_ERR_FORMAT, "%s: %.*s should be here by the index, but is not",
                        named, SHOWN(e->length), e->name);
    }
    return t->shard == e->shard ||
           di_fault(faults, DI_ERR_FORMAT, "%s: %.*s lies in %s, but the index says %s", path,
                    SHOWN(e->length), e->name, di_stored_path(c, t), named);
}

static bool check_index(const di_checkpoint *c, const shard_index *x, const char *path,
                        di_faults *faults) {
    size_t i = 0, k = 0;
    while (i < x->num_entries || k < c->num_tensors) {
        const index_entry *e = i < x->num_entries ? &x->entries[i] : NULL;
        const di_stored_tensor *t = k < c->num_tensors ? &c->tensors[k] : NULL;
        int order = !e   ? 1
                    : !t ? -1
                         : di_compare_names(e->name, e->length, t->name, t->name_length);
        i += order <= 0;
        k += order >= 0;
        if (!compare_entry(c, order <= 0 ? e : NULL, order >= 0 ? t : NULL, path, faults)) {
            return false;
        }
    }
    return check_total_size(c, x, path, faults);
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool open_indexed(di_checkpoint *c, const char *folder, const char *path,
                         di_faults *faults) {
    shard_index x = {0};
    bool ok = read_index(&x, path, faults) &&
              open_shards(c, folder, x.shard_names, x.num_shards, faults) &&
              merge_tensors(c, folder, faults) && check_index(c, &x, path, faults);
    free_index(&x);
    return ok;
}

static bool open_single(di_checkpoint *c, const char *folder, di_faults *faults) {
    const char *name = single_name;
    return open_shards(c, folder, &name, 1, faults) && merge_tensors(c, folder, faults);
}

/* True if FOLDER/name can be looked at; *path is then or otherwise set, unless memory is short. */
static bool exists(const char *folder, const char *name, char **path) {
    *path = di_path_join(folder, name);
    return *path && (access(*path, F_OK) == 0 || errno != ENOENT);
}

di_checkpoint *di_checkpoint_open(const char *folder, di_faults *faults) {
    di_checkpoint *c = di_calloc(1, sizeof *c);
    char *index = NULL, *single = NULL;
    bool ok = false, has_index = exists(folder, index_name, &index);
    bool has_single = exists(folder, single_name, &single);
    if (!c || !index || !single || !(c->folder = di_strdup(folder))) {
        di_fault(faults, DI_ERR_NO_MEMORY, "%s: no memory to open it", folder);
    } else if (has_index) {
        ok = open_indexed(c, folder, index, faults);
    } else if (has_single) {
        ok = open_single(c, folder, faults);
    } else {
        di_fault(faults, DI_ERR_IO, "%s: holds neither %s nor %s", folder, index_name, single_name);
    }
    di_free(index);
    di_free(single);
    if (!ok) {
        di_checkpoint_close(c);
        return NULL;
    }
    return c;
}

void di_checkpoint_close(di_checkpoint *c) {
    if (!c) {
        return;
    }
    for (size_t i = 0; i < c->num_shards; i++) {
        di_shard_close(&c->shards[i]);
    }
    for (size_t i = 0; i < c->num_copies; i++) {
        di_free_aligned(c->copies[i]);
    }
    di_free(c->folder);
    di_free(c->copies);
    di_free(c->shards);
    di_free(c->tensors);
    di_free(c);
}

/* The first tensor whose name is not below `name`. */
static size_t lower_bound(const di_checkpoint *c, const char *name, size_t length) {
    size_t low = 0, high = c->num_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const di_stored_tensor *t = &c->tensors[middle];
        if (di_compare_names(t->name, t->name_length, name, length) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

di_stored_tensor *di_checkpoint_find(const di_checkpoint *c, const char *name) {
    size_t length = strlen(name), at = lower_bound(c, name, length);
    di_stored_tensor *t = at < c->num_tensors ? &c->tensors[at] : NULL;
    return t && t->name_length == length && memcmp(t->name, name, length) == 0 ? t : NULL;
}

bool di_checkpoint_has_prefix(const di_checkpoint *c, const char *prefix) {
    size_t length = strlen(prefix), at = lower_bound(c, prefix, length);
    const di_stored_tensor *t = at < c->num_tensors ? &c->tensors[at] : NULL;
    return t && t->name_length >= length && memcmp(t->name, prefix, length) == 0;
}

const uint8_t *di_stored_data(const di_checkpoint *c, const di_stored_tensor *t) {
    return c->shards[t->shard].data + t->tensor->begin;
}

const char *di_stored_path(const di_checkpoint *c, const di_stored_tensor *t) {
    return c->shards[t->shard].path;
}
