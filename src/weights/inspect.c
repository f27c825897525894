/* Finding out what a folder holds: see inspect.h. The same checks as di_weights_open, in the same
 * order, but with a list of faults that lets them all go on. */
#include "weights/inspect.h"

#include <assert.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "weights/inspection.h"

/* ---- sizes ----------------------------------------------------------------------------------- */

uint64_t di_tensor_elements(const di_shard_tensor *t) {
    uint64_t bytes = t->end - t->begin;
    if (t->dtype == DI_F8_E8M0) {
        return 0;
    }
    return t->dtype == DI_I8 ? 2 * bytes : bytes * 8 / (uint64_t)di_dtype_bits(t->dtype);
}

static void add(di_size *sum, const di_shard_tensor *t) {
    sum->tensors++;
    sum->elements += di_tensor_elements(t);
    sum->bytes += t->end - t->begin;
}

static di_size *format_of(di_inspection *x, di_dtype dtype) {
    switch (dtype) {
    case DI_BF16:
        return &x->formats[0].size;
    case DI_F32:
        return &x->formats[1].size;
    case DI_F8_E4M3:
        return &x->formats[2].size;
    case DI_I8:
        return &x->formats[3].size;
    case DI_F8_E8M0:
        return &x->formats[4].size;
    default:
        return &x->formats[5].size;
    }
}

static void sum_sizes(di_inspection *x) {
    static const char *const names[DI_NUM_FORMATS] = {
        "BF16", "F32", "F8_E4M3", "FP4 (I8)", "F8_E8M0 scales", "other"};
    for (int i = 0; i < DI_NUM_FORMATS; i++) {
        x->formats[i].name = names[i];
    }
    for (size_t i = 0; i < x->checkpoint->num_tensors; i++) {
        const di_stored_tensor *t = &x->checkpoint->tensors[i];
        int part = t->part < 0 ? DI_NUM_PARTS : t->part;
        add(&x->parts[part], t->tensor);
        add(&x->total, t->tensor);
        add(format_of(x, t->tensor->dtype), t->tensor);
        if (part < DI_PART_ENGRAM_TABLES) {
            add(&x->backbone, t->tensor);
        }
    }
}

/* What a sequence keeps between steps. An entry of a KV source is an FP4 latent with an E4M3 scale
 * per 16 and an FP4 index key with an E8M0 scale per 32; a window row is E4M3 with an E8M0 scale
 * per 32; an open group keeps latent and gate of the tokens it still waits with, in float32. */
static void measure_state(di_inspection *x) {
    const di_config *c = &x->weights.config;
    uint64_t head = (uint64_t)c->head_dim, key = (uint64_t)c->index_head_dim;
    uint64_t entry = head / 2 + head / 16 + key / 2 + key / 32;
    uint64_t rings = (uint64_t)c->num_hidden_layers;
    if (x->weights.draft) {
        rings += (uint64_t)c->num_nextn_predict_layers;
    }
    x->state_bytes = rings * (uint64_t)c->sliding_window * (head + head / 32);
    for (int i = 0; i < c->num_kv_sources; i++) {
        uint64_t ratio = (uint64_t)c->layers[c->kv_source_layer_ids[i]].ratio;
        x->cache_half_bytes += entry * 2 / ratio;
        x->state_bytes += (ratio - 1) * 2 * head * sizeof(float);
    }
}

/* ---- the report ------------------------------------------------------------------------------ */

const char *di_part_label(int part) {
    return part >= 0 && part < DI_NUM_PARTS ? di_part_name((di_part)part) : "not of this model";
}

const char *di_layer_mode_name(di_layer_mode mode) {
    static const char *const names[] = {
        [DI_LAYER_SWA] = "window only",
        [DI_LAYER_FULL] = "own entries",
        [DI_LAYER_REINDEX] = "own selection",
        [DI_LAYER_REUSE] = "reuse",
    };
    return names[mode];
}

size_t di_config_lines(const di_config *c, di_config_line lines[DI_MAX_CONFIG_LINES]) {
    const di_config_line all[] = {
        {"num_hidden_layers", c->num_hidden_layers},
        {"boundary_layer", c->boundary_layer}, /* ours: where the decoder half begins */
        {"hidden_size", c->hidden_size},
        {"hc_mult", c->hc_mult},
        {"vocab_size", c->vocab_size},
        {"max_position_embeddings", c->max_position_embeddings},
        {"num_attention_heads", c->num_attention_heads},
        {"head_dim", c->head_dim},
        {"qk_rope_head_dim", c->qk_rope_head_dim},
        {"q_lora_rank", c->q_lora_rank},
        {"o_lora_rank", c->o_lora_rank},
        {"o_groups", c->o_groups},
        {"sliding_window", c->sliding_window},
        {"index_n_heads", c->index_n_heads},
        {"index_head_dim", c->index_head_dim},
        {"index_topk", c->index_topk},
        {"candidate_source_layer_id", c->candidate_source_layer_id},
        {"candidate_topk_blocks", c->candidate_topk_blocks},
        {"candidate_block_size", c->candidate_block_size},
        {"n_routed_experts", c->n_routed_experts},
        {"n_shared_experts", c->n_shared_experts},
        {"num_experts_per_tok", c->num_experts_per_tok},
        {"moe_intermediate_size", c->moe_intermediate_size},
        {"engram_vocab_size", c->engram_vocab_size},
        {"engram_max_ngram_size", c->engram_max_ngram_size},
        {"engram_n_heads", c->engram_n_heads},
        {"engram_head_dim", c->engram_head_dim},
        {"engram_compressed_vocab_size", c->engram_compressed_vocab_size},
        {"num_nextn_predict_layers", c->num_nextn_predict_layers},
        {"dspark_block_size", c->dspark_block_size},
        {"dspark_markov_rank", c->dspark_markov_rank},
        {"dspark_n_routed_experts", c->dspark_n_routed_experts},
        {"dspark_num_experts_per_tok", c->dspark_num_experts_per_tok},
    };
    static_assert(sizeof all / sizeof *all <= DI_MAX_CONFIG_LINES, "enlarge DI_MAX_CONFIG_LINES");
    memcpy(lines, all, sizeof all);
    return sizeof all / sizeof *all;
}

static void examine(di_inspection *x, const di_inspect_options *o) {
    di_error fault;
    x->has_config = di_config_read(&x->weights.config, x->folder, &fault);
    if (!x->has_config) {
        di_fault_error(&x->faults, &fault);
    }
    x->checkpoint = di_checkpoint_open(x->folder, &x->faults);
    if (!x->checkpoint) {
        return;
    }
    if (x->has_config && !di_weights_bind(&x->weights, x->checkpoint, &x->faults)) {
        return;
    }
    di_check_values(x->checkpoint, o->check ? DI_CHECK_ALL : DI_CHECK_QUICK, &x->faults);
    sum_sizes(x);
    if (x->has_config) {
        measure_state(x);
    }
}

bool di_inspect(const char *folder, const di_inspect_options *o, FILE *out, size_t *num_faults,
                di_error *err) {
    di_inspection x = {.folder = folder, .faults = {.collect = true}};
    struct stat st;
    if (stat(folder, &st) != 0) {
        return di_fail_errno(err, "%s", folder);
    }
    if (!S_ISDIR(st.st_mode)) {
        return di_fail(err, DI_ERR_IO, "%s: is not a folder", folder);
    }
    examine(&x, o);
    bool ok = !x.faults.out_of_memory;
    if (!ok) {
        di_fail(err, DI_ERR_NO_MEMORY, "%s", x.faults.first.message);
    } else if (!(o->json ? di_inspection_write_json : di_inspection_write_text)(&x, o, out)) {
        ok = di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for the report", folder);
    }
    if (ok && (fflush(out) != 0 || ferror(out))) {
        ok = di_fail_errno(err, "cannot write the report");
    }
    if (num_faults) {
        *num_faults = x.faults.count;
    }
    di_weights_release(&x.weights);
    di_checkpoint_close(x.checkpoint);
    di_faults_destroy(&x.faults);
    return ok;
}
