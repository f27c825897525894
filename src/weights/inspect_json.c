/* Writing an inspection for programs: one JSON object, a member a line. See inspection.h. The long
 * lists are written element by element, so that a report costs no memory to speak of. */
#include <jansson.h>
#include <string.h>

#include "weights/inspection.h"

/* Writes `value` and releases it. False if it could not be made. */
static bool put(FILE *out, json_t *value) {
    bool ok = value && json_dumpf(value, out, JSON_ENCODE_ANY | JSON_COMPACT) == 0;
    json_decref(value);
    /* A write that failed stays visible in ferror(out); only a missing value is ours to report. */
    return ok || (value != NULL && ferror(out));
}

static bool put_member(FILE *out, const char *key, json_t *value) {
    fprintf(out, ",\n\"%s\":", key);
    return put(out, value);
}

static json_t *size_value(const char *key, const char *name, const di_size *s) {
    return json_pack("{s:s, s:I, s:I, s:I}", key, name, "tensors", (json_int_t)s->tensors,
                     "elements", (json_int_t)s->elements, "bytes", (json_int_t)s->bytes);
}

static bool put_config(const di_config *c, FILE *out) {
    di_config_line lines[DI_MAX_CONFIG_LINES];
    size_t count = di_config_lines(c, lines);
    json_t *config = json_object();
    for (size_t i = 0; i < count; i++) {
        if (json_object_set_new(config, lines[i].name, json_integer(lines[i].value)) != 0) {
            json_decref(config);
            return false;
        }
    }
    return put_member(out, "config", config);
}

static bool put_layers(const di_config *c, FILE *out) {
    fprintf(out, ",\n\"layers\":[");
    for (int l = 0; l < c->num_hidden_layers; l++) {
        const di_layer_plan *p = &c->layers[l];
        fputs(l ? ",\n" : "\n", out);
        if (!put(out, json_pack("{s:i, s:i, s:s, s:i, s:i, s:b, s:b, s:b}", "layer", l, "ratio",
                                p->ratio, "attention", di_layer_mode_name(p->mode), "entries_of",
                                p->kv_source, "selection_of", p->index_source, "builds_candidates",
                                p->builds_candidates, "uses_candidates", p->uses_candidates,
                                "engram", p->engram >= 0))) {
            return false;
        }
    }
    fprintf(out, "]");
    return true;
}

static bool put_sizes(const di_inspection *x, FILE *out) {
    fprintf(out, ",\n\"sizes\":[");
    const char *separator = "\n";
    for (int i = 0; i <= DI_NUM_PARTS; i++) {
        if (x->parts[i].tensors == 0) {
            continue;
        }
        fputs(separator, out);
        separator = ",\n";
        if (!put(out, size_value("part", di_part_label(i), &x->parts[i]))) {
            return false;
        }
    }
    fprintf(out, "],\n\"formats\":[");
    for (int i = 0; i < DI_NUM_FORMATS; i++) {
        fputs(i ? ",\n" : "\n", out);
        if (!put(out, size_value("format", x->formats[i].name, &x->formats[i].size))) {
            return false;
        }
    }
    fprintf(out, "]");
    return put_member(out, "backbone", size_value("part", "backbone", &x->backbone)) &&
           put_member(out, "total", size_value("part", "total", &x->total));
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool put_shards(const di_checkpoint *c, FILE *out) {
    fprintf(out, ",\n\"files\":[");
    const char *separator = "\n";
    for (size_t i = 0; i < c->num_shards; i++) {
        const di_shard *s = &c->shards[i];
        if (!s->path) {
            continue; /* could not be used: see the faults */
        }
        fputs(separator, out);
        separator = ",\n";
        if (!put(out, json_pack("{s:s, s:I, s:I}", "file", file_name(s->path), "bytes",
                                (json_int_t)s->map.size, "tensors", (json_int_t)s->num_tensors))) {
            return false;
        }
    }
    fprintf(out, "]");
    return true;
}

static bool put_tensors(const di_checkpoint *c, FILE *out) {
    fprintf(out, ",\n\"tensors\":[");
    for (size_t i = 0; i < c->num_tensors; i++) {
        const di_stored_tensor *t = &c->tensors[i];
        const di_shard *s = &c->shards[t->shard];
        json_t *shape = json_array();
        for (int k = 0; shape && k < t->tensor->rank; k++) {
            json_array_append_new(shape, json_integer(t->tensor->shape[k]));
        }
        fputs(i ? ",\n" : "\n", out);
        if (!put(out,
                 json_pack("{s:s#, s:s, s:o, s:s, s:s, s:I, s:I}", "name", t->name,
                           (int)t->name_length, "dtype", di_dtype_name(t->tensor->dtype), "shape",
                           shape, "part", di_part_label(t->part), "file", file_name(s->path),
                           "offset", (json_int_t)di_shard_file_offset(s, t->tensor->begin), "bytes",
                           (json_int_t)(t->tensor->end - t->tensor->begin)))) {
            return false;
        }
    }
    fprintf(out, "]");
    return true;
}

static bool put_memory(const di_inspection *x, FILE *out) {
    return put_member(out, "memory",
                      json_pack("{s:I, s:f, s:I}", "weight_bytes", (json_int_t)x->total.bytes,
                                "cache_bytes_per_token", (double)x->cache_half_bytes / 2,
                                "state_bytes_per_sequence", (json_int_t)x->state_bytes));
}

/* Messages may quote bytes that are no UTF-8 (a folder's name): those become '?'. */
static json_t *message_value(const char *message) {
    json_t *value = json_string(message);
    if (value) {
        return value;
    }
    char text[DI_ERROR_MESSAGE_BYTES];
    snprintf(text, sizeof text, "%s", message);
    for (char *p = text; *p; p++) {
        *p = (unsigned char)*p < 0x80 ? *p : '?';
    }
    return json_string(text);
}

static bool put_faults(const di_faults *f, FILE *out) {
    if (!put_member(out, "num_faults", json_integer((json_int_t)f->count))) {
        return false;
    }
    fprintf(out, ",\n\"faults\":[");
    for (size_t i = 0; i < f->num_messages; i++) {
        fputs(i ? ",\n" : "\n", out);
        if (!put(out, message_value(f->messages[i]))) {
            return false;
        }
    }
    fprintf(out, "]");
    return true;
}

bool di_inspection_write_json(const di_inspection *x, const di_inspect_options *o, FILE *out) {
    fprintf(out, "{\"folder\":");
    bool ok = put(out, message_value(x->folder));
    if (x->has_config) {
        ok = ok && put_config(&x->weights.config, out) && put_layers(&x->weights.config, out);
    }
    if (x->checkpoint) {
        ok = ok && put_shards(x->checkpoint, out) && put_sizes(x, out);
    }
    if (x->checkpoint && x->has_config) {
        ok = ok && put_memory(x, out);
    }
    if (x->checkpoint && o->tensors) {
        ok = ok && put_tensors(x->checkpoint, out);
    }
    ok = ok && put_faults(&x->faults, out);
    fprintf(out, "}\n");
    return ok;
}
