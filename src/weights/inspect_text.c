/* Writing an inspection for people: plain text, numbers in columns. See inspection.h. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "weights/inspection.h"

/* "510,286,023,000"; text of at least 27 bytes. */
static const char *grouped(char *text, uint64_t value) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    char *out = text;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) {
            *out++ = ',';
        }
        *out++ = digits[i];
    }
    *out = 0;
    return text;
}

static void write_config(const di_config *c, FILE *out) {
    di_config_line lines[DI_MAX_CONFIG_LINES];
    size_t count = di_config_lines(c, lines);
    fprintf(out, "\nConfiguration\n");
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "  %-28s %10lld\n", lines[i].name, (long long)lines[i].value);
    }
}

/* Neighbouring layers that are alike share a line. */
static void write_layers(const di_config *c, FILE *out) {
    fprintf(out, "\nLayers     ratio  attention       entries of  selection of\n");
    for (int l = 0, end; l < c->num_hidden_layers; l = end) {
        const di_layer_plan *p = &c->layers[l];
        char range[24];
        for (end = l + 1; end < c->num_hidden_layers; end++) {
            const di_layer_plan *q = &c->layers[end];
            if (q->mode != p->mode || q->kv_source != p->kv_source ||
                q->index_source != p->index_source || p->engram != q->engram) {
                break;
            }
        }
        snprintf(range, sizeof range, end - l > 1 ? "%d-%d" : "%d", l, end - 1);
        fprintf(out, "  %-8s %5d  %-14s", range, p->ratio, di_layer_mode_name(p->mode));
        if (p->mode != DI_LAYER_SWA) {
            fprintf(out, "  %10d  %12d", p->kv_source, p->index_source);
        }
        fprintf(out, "%s%s%s\n", p->builds_candidates ? "  builds candidates" : "",
                p->uses_candidates ? "  uses candidates" : "", p->engram >= 0 ? "  engram" : "");
    }
}

static void write_size(FILE *out, const char *name, const di_size *s) {
    char tensors[32], elements[32], bytes[32];
    fprintf(out, "  %-28s %10s %20s %20s\n", name, grouped(tensors, s->tensors),
            grouped(elements, s->elements), grouped(bytes, s->bytes));
}

static void write_sizes(const di_inspection *x, FILE *out) {
    fprintf(out, "\n%-30s %10s %20s %20s\n", "Sizes", "tensors", "elements", "bytes");
    for (int i = 0; i <= DI_NUM_PARTS; i++) {
        if (i == DI_PART_ENGRAM_TABLES) {
            write_size(out, "= backbone", &x->backbone);
        }
        if (x->parts[i].tensors) {
            write_size(out, di_part_label(i), &x->parts[i]);
        }
    }
    write_size(out, "= total", &x->total);
    fprintf(out, "\n%-30s %10s %20s %20s\n", "Formats", "tensors", "elements", "bytes");
    for (int i = 0; i < DI_NUM_FORMATS; i++) {
        if (x->formats[i].size.tensors) {
            write_size(out, x->formats[i].name, &x->formats[i].size);
        }
    }
}

static void write_memory(const di_inspection *x, FILE *out) {
    char text[32];
    fprintf(out, "\nMemory to run\n");
    fprintf(out, "  weights, mapped      %s bytes\n", grouped(text, x->total.bytes));
    fprintf(out, "  cache, each token    %s%s bytes\n", grouped(text, x->cache_half_bytes / 2),
            x->cache_half_bytes % 2 ? ".5" : "");
    fprintf(out, "  each sequence        %s bytes\n", grouped(text, x->state_bytes));
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void write_shape(FILE *out, const di_shard_tensor *t) {
    char text[96] = "";
    size_t used = 0;
    for (int k = 0; k < t->rank; k++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", k ? ", " : "",
                                 (long long)t->shape[k]);
    }
    fprintf(out, "%-8s [%s]", di_dtype_name(t->dtype), text);
}

static void write_tensors(const di_checkpoint *c, FILE *out) {
    fprintf(out, "\nTensors: dtype, shape, part, file, offset, bytes\n");
    for (size_t i = 0; i < c->num_tensors; i++) {
        const di_stored_tensor *t = &c->tensors[i];
        const di_shard *s = &c->shards[t->shard];
        const char *slash = strrchr(s->path, '/');
        fprintf(out, "  %.*s  ", (int)t->name_length, t->name);
        write_shape(out, t->tensor);
        fprintf(out, "  %s  %s  %llu  %llu\n", di_part_label(t->part), slash ? slash + 1 : s->path,
                (unsigned long long)di_shard_file_offset(s, t->tensor->begin),
                (unsigned long long)(t->tensor->end - t->tensor->begin));
    }
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Orders names as if every number in them were the same. */
static int compare_patterns(const di_stored_tensor *a, const di_stored_tensor *b) {
    size_t i = 0, k = 0;
    while (i < a->name_length && k < b->name_length) {
        bool number = is_digit(a->name[i]) && is_digit(b->name[k]);
        if (!number && a->name[i] != b->name[k]) {
            return (unsigned char)a->name[i] < (unsigned char)b->name[k] ? -1 : 1;
        }
        i++, k++;
        while (number && i < a->name_length && is_digit(a->name[i])) {
            i++;
        }
        while (number && k < b->name_length && is_digit(b->name[k])) {
            k++;
        }
    }
    return (i < a->name_length) - (k < b->name_length);
}

/* Zero for tensors that differ in nothing but the numbers in their names. */
static int compare_kinds(const di_stored_tensor *a, const di_stored_tensor *b) {
    int order = compare_patterns(a, b);
    order = order ? order : (int)a->tensor->dtype - (int)b->tensor->dtype;
    order = order ? order : a->tensor->rank - b->tensor->rank;
    return order ? order : memcmp(a->tensor->shape, b->tensor->shape, sizeof a->tensor->shape);
}

static int by_kind(const void *a, const void *b) {
    const di_stored_tensor *x = a, *y = b;
    int order = compare_kinds(x, y);
    if (order == 0 && x->name_length != y->name_length) {
        return x->name_length < y->name_length ? -1 : 1;
    }
    return order ? order : memcmp(x->name, y->name, x->name_length);
}

/* One line for all that are alike: the first one's name and how many there are. */
static bool write_kinds(const di_checkpoint *c, FILE *out) {
    di_stored_tensor *sorted = di_alloc(c->num_tensors * sizeof *sorted);
    if (!sorted) {
        return false;
    }
    memcpy(sorted, c->tensors, c->num_tensors * sizeof *sorted);
    qsort(sorted, c->num_tensors, sizeof *sorted, by_kind);
    fprintf(out, "\nTensors (one of those that are alike, how many, dtype, shape)\n");
    for (size_t i = 0, end; i < c->num_tensors; i = end) {
        for (end = i + 1; end < c->num_tensors; end++) {
            if (compare_kinds(&sorted[i], &sorted[end]) != 0) {
                break;
            }
        }
        fprintf(out, "  %-44.*s %6zu  ", (int)sorted[i].name_length, sorted[i].name, end - i);
        write_shape(out, sorted[i].tensor);
        fprintf(out, "\n");
    }
    di_free(sorted);
    return true;
}

static void write_faults(const di_faults *f, FILE *out) {
    if (f->count == 0) {
        fprintf(out, "\nNo faults\n");
        return;
    }
    fprintf(out, "\nFaults: %zu\n", f->count);
    for (size_t i = 0; i < f->num_messages; i++) {
        fprintf(out, "  %s\n", f->messages[i]);
    }
    if (f->count > f->num_messages) {
        fprintf(out, "  ... and %zu more\n", f->count - f->num_messages);
    }
}

bool di_inspection_write_text(const di_inspection *x, const di_inspect_options *o, FILE *out) {
    char tensors[32], bytes[32];
    fprintf(out, "%s", x->folder);
    if (x->checkpoint) {
        fprintf(out, ": %zu %s, %s tensors, %s bytes", x->checkpoint->num_shards,
                x->checkpoint->num_shards == 1 ? "file" : "files",
                grouped(tensors, x->total.tensors), grouped(bytes, x->total.bytes));
    }
    fprintf(out, "\n");
    if (x->has_config) {
        write_config(&x->weights.config, out);
        write_layers(&x->weights.config, out);
    }
    if (x->checkpoint) {
        write_sizes(x, out);
    }
    if (x->checkpoint && x->has_config) {
        write_memory(x, out);
    }
    bool ok = true;
    if (x->checkpoint && o->tensors) {
        write_tensors(x->checkpoint, out);
    } else if (x->checkpoint) {
        ok = write_kinds(x->checkpoint, out);
    }
    write_faults(&x->faults, out);
    return ok;
}
