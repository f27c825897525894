/* Writing an inspection for people: plain text, numbers in columns. See inspection.h. */
#include <string.h>

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
    fprintf(out, "\nConfiguration\n");
    fprintf(out, "  layers       %d (encoder half %d, decoder half %d)\n", c->num_hidden_layers,
            c->boundary_layer, c->num_hidden_layers - c->boundary_layer);
    fprintf(out, "  hidden       %d, %d hyper-connection streams\n", c->hidden_size, c->hc_mult);
    fprintf(out, "  attention    %d heads x %d (rotary %d), window %d\n", c->num_attention_heads,
            c->head_dim, c->qk_rope_head_dim, c->sliding_window);
    fprintf(out, "  selection    top %d by %d heads x %d", c->index_topk, c->index_n_heads,
            c->index_head_dim);
    if (c->candidate_source_layer_id >= 0) {
        fprintf(out, ", from layer %d on among %d blocks of %d", c->candidate_source_layer_id,
                c->candidate_topk_blocks, c->candidate_block_size);
    }
    fprintf(out, "\n  experts      %d routed (top %d) + %d shared, width %d\n", c->n_routed_experts,
            c->num_experts_per_tok, c->n_shared_experts, c->moe_intermediate_size);
    fprintf(out, "  vocabulary   %d\n", c->vocab_size);
    fprintf(out, "  positions    %d\n", c->max_position_embeddings);
    if (c->num_engram_layers) {
        fprintf(out, "  engram       %d layers, %d columns x %d, n-grams up to %d\n",
                c->num_engram_layers, c->engram_columns, c->engram_head_dim,
                c->engram_max_ngram_size);
    }
    if (c->num_nextn_predict_layers) {
        fprintf(out, "  draft        %d stages, block of %d, %d experts (top %d)\n",
                c->num_nextn_predict_layers, c->dspark_block_size, c->dspark_n_routed_experts,
                c->dspark_num_experts_per_tok);
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

static void write_tensors(const di_checkpoint *c, FILE *out) {
    fprintf(out, "\nTensors (dtype, shape, part, file, offset, bytes)\n");
    for (size_t i = 0; i < c->num_tensors; i++) {
        const di_stored_tensor *t = &c->tensors[i];
        const di_shard *s = &c->shards[t->shard];
        const char *slash = strrchr(s->path, '/');
        fprintf(out, "  %.*s  %s  [", (int)t->name_length, t->name,
                di_dtype_name(t->tensor->dtype));
        for (int k = 0; k < t->tensor->rank; k++) {
            fprintf(out, "%s%lld", k ? ", " : "", (long long)t->tensor->shape[k]);
        }
        fprintf(out, "]  %s  %s  %llu  %llu\n", di_part_label(t->part), slash ? slash + 1 : s->path,
                (unsigned long long)di_shard_file_offset(s, t->tensor->begin),
                (unsigned long long)(t->tensor->end - t->tensor->begin));
    }
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

void di_inspection_write_text(const di_inspection *x, const di_inspect_options *o, FILE *out) {
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
    if (x->checkpoint && o->tensors) {
        write_tensors(x->checkpoint, out);
    }
    write_faults(&x->faults, out);
}
