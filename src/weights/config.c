/* Reading config.json: every field the engine uses with its range, every field that has only one
 * supported value, and nothing else. Called by weights and inspect. What fields must be to one
 * another, and what follows from them, is config_plan.c's. Never guesses a missing value that the
 * release writes down. */
#include "weights/config.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "weights/config_plan.h"

enum { MAX_CONFIG_BYTES = 1 << 20, WHERE_BYTES = 320 };

/* The parts of one config.json and their names for messages. */
typedef struct source {
    const json_t *root, *text, *quantization;
    char root_where[WHERE_BYTES], text_where[WHERE_BYTES], quantization_where[WHERE_BYTES];
} source;

/* ---- values with one supported form ---------------------------------------------------------- */

static bool unsupported(const char *where, const char *key, const json_t *found, const char *wanted,
                        di_error *err) {
    char text[96] = "missing";
    if (found) {
        size_t length = json_dumpb(found, text, sizeof text - 1, JSON_ENCODE_ANY | JSON_COMPACT);
        if (length < sizeof text) {
            text[length] = 0;
        } else {
            snprintf(text, sizeof text, "%s of %zu characters", di_json_type_name(found), length);
        }
    }
    return di_fail(err, DI_ERR_UNSUPPORTED, "%s: %s is %s, only %s is supported", where, key, text,
                   wanted);
}

/* `wanted` is JSON text. An absent (or null) key passes if `optional`. */
typedef struct fixed_value {
    const char *key, *wanted;
    bool optional;
} fixed_value;

static const fixed_value root_fixed[] = {
    {"architectures", "[\"DeepseekV41ForCausalLM\"]", false},
    {"model_type", "\"deepseek_v41\"", false},
    {"dtype", "\"bfloat16\"", false},
    {"tie_word_embeddings", "false", true},
    {"tokenizer_compatibility", "\"release\"", true},
};

static const fixed_value quantization_fixed[] = {
    {"quant_method", "\"fp8\"", false},      {"activation_scheme", "\"dynamic\"", false},
    {"weight_block_size", "[32,32]", false}, {"scale_fmt", "\"ue8m0\"", false},
    {"expert_dtype", "\"fp4\"", false},
};

static const fixed_value text_fixed[] = {
    {"model_type", "\"deepseek_v41_text\"", true},
    {"dtype", "\"bfloat16\"", true},
    {"tie_word_embeddings", "false", true},
    {"hidden_act", "\"silu\"", false},
    {"attention_bias", "false", true},
    {"num_key_value_heads", "1", false},
    {"n_shared_experts", "1", false},
    {"scoring_func", "\"sqrtsoftplus\"", false},
    {"topk_method", "\"noaux_tc\"", false},
    {"norm_topk_prob", "true", true},
    {"hc_shifted", "true", true},
    {"use_fp4_sparse_kv", "true", true},
    {"dspark_target_attn_input", "true", true},
};

static bool check_fixed(const json_t *object, const char *where, const fixed_value *table,
                        size_t count, di_error *err) {
    for (size_t i = 0; i < count; i++) {
        const fixed_value *f = &table[i];
        const json_t *found = json_object_get(object, f->key);
        if (f->optional && (!found || json_is_null(found))) {
            continue;
        }
        json_t *wanted = json_loads(f->wanted, JSON_DECODE_ANY, NULL);
        if (!wanted) {
            return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory to check %s", where, f->key);
        }
        bool same = json_equal(found, wanted);
        json_decref(wanted);
        if (!same) {
            return unsupported(where, f->key, found, f->wanted, err);
        }
    }
    return true;
}

/* Keys of older models, whose layers this engine does not have. */
static const struct {
    const char *key, *meaning;
} foreign_keys[] = {
    {"first_k_dense_replace", "dense leading layers"},
    {"num_hash_layers", "hash-routed layers (DeepSeek-V4)"},
    {"n_hash_layers", "hash-routed layers (DeepSeek-V4)"},
    {"hc_head", "a learned final hyper-connection mix (DeepSeek-V4)"},
    {"n_group", "expert groups (DeepSeek-V3)"},
    {"topk_group", "expert groups (DeepSeek-V3)"},
    {"kv_lora_rank", "multi-head latent attention (DeepSeek-V3)"},
};

static bool check_foreign(const json_t *object, const char *where, di_error *err) {
    for (size_t i = 0; i < sizeof foreign_keys / sizeof *foreign_keys; i++) {
        if (json_object_get(object, foreign_keys[i].key)) {
            return di_fail(err, DI_ERR_UNSUPPORTED,
                           "%s: %s is set: %s, which DeepSeek-V4.1 does not have", where,
                           foreign_keys[i].key, foreign_keys[i].meaning);
        }
    }
    return true;
}

/* ---- numbers --------------------------------------------------------------------------------- */

#define AT(field) offsetof(di_config, field)

/* An int field of di_config with the values allowed on its own. The bounds are generous (far above
 * the release) and keep every product of two or three of them inside int64. */
typedef struct int_field {
    const char *key;
    size_t offset;
    int64_t low, high;
} int_field;

static const int_field root_ints[] = {
    {"bos_token_id", AT(bos_token_id), 0, INT32_MAX},
    {"eos_token_id", AT(eos_token_id), 0, INT32_MAX},
    {"pad_token_id", AT(pad_token_id), 0, INT32_MAX},
    {"image_token_id", AT(image_token_id), 0, INT32_MAX},
};

static const int_field text_ints[] = {
    {"vocab_size", AT(vocab_size), 4, 1 << 24},
    {"hidden_size", AT(hidden_size), 32, 1 << 16},
    {"moe_intermediate_size", AT(moe_intermediate_size), 32, 1 << 16},
    {"num_hidden_layers", AT(num_hidden_layers), 1, DI_MAX_LAYERS},
    {"num_attention_heads", AT(num_attention_heads), 1, 1024},
    {"head_dim", AT(head_dim), 32, 4096},
    {"qk_rope_head_dim", AT(qk_rope_head_dim), 2, 4096},
    {"q_lora_rank", AT(q_lora_rank), 32, 1 << 16},
    {"o_lora_rank", AT(o_lora_rank), 1, 1 << 16},
    {"o_groups", AT(o_groups), 1, 1024},
    /* positions must be exact in float32, of which the rotation angles are made */
    {"max_position_embeddings", AT(max_position_embeddings), 1, 1 << 24},
    {"n_routed_experts", AT(n_routed_experts), 1, 4096},
    {"n_shared_experts", AT(n_shared_experts), 1, 1},
    {"num_experts_per_tok", AT(num_experts_per_tok), 1, 64},
    {"sliding_window", AT(sliding_window), 1, 1 << 16},
    {"index_n_heads", AT(index_n_heads), 1, 1024},
    {"index_head_dim", AT(index_head_dim), 32, 4096},
    {"index_topk", AT(index_topk), 1, 1 << 16},
    {"hc_mult", AT(hc_mult), 1, DI_MAX_HC},
    {"hc_sinkhorn_iters", AT(hc_sinkhorn_iters), 1, 1000},
    {"num_nextn_predict_layers", AT(num_nextn_predict_layers), 0, DI_MAX_STAGES},
};

static const int_field candidate_ints[] = {
    {"candidate_topk_blocks", AT(candidate_topk_blocks), 1, 4096},
    {"candidate_block_size", AT(candidate_block_size), 1, 1024},
};

static const int_field engram_ints[] = {
    {"engram_max_ngram_size", AT(engram_max_ngram_size), 2, DI_MAX_NGRAM},
    {"engram_n_heads", AT(engram_n_heads), 1, DI_MAX_ENGRAM_COLUMNS},
    {"engram_head_dim", AT(engram_head_dim), 32, 4096},
    {"engram_compressed_vocab_size", AT(engram_compressed_vocab_size), 1, 1 << 24},
};

/* Two blocks of drafts and a token must fit into a block of the cache (engine/parts.c). */
static const int_field draft_ints[] = {
    {"dspark_block_size", AT(dspark_block_size), 1, 63},
    {"dspark_noise_token_id", AT(dspark_noise_token_id), 0, INT32_MAX},
    {"dspark_markov_rank", AT(dspark_markov_rank), 1, 1 << 16},
};

static bool read_ints(di_config *c, const json_t *object, const char *where, const int_field *table,
                      size_t count, di_error *err) {
    for (size_t i = 0; i < count; i++) {
        const int_field *f = &table[i];
        int64_t value;
        if (!di_json_int(object, where, f->key, f->low, f->high, &value, err)) {
            return false;
        }
        *(int *)((char *)c + f->offset) = (int)value;
    }
    return true;
}

static bool read_real(const json_t *object, const char *where, const char *key, double low,
                      double high, float *out, di_error *err) {
    double value;
    if (!di_json_real(object, where, key, low, high, &value, err)) {
        return false;
    }
    *out = (float)value;
    return true;
}

static bool read_id_list(const json_t *object, const char *where, const char *key, int num_layers,
                         int *out, int max, int *count, di_error *err) {
    int64_t values[DI_MAX_LAYERS];
    size_t n;
    if (!di_json_int_array(object, where, key, 0, num_layers - 1, values, (size_t)max, &n, err)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && values[i] <= values[i - 1]) {
            return di_fail(err, DI_ERR_FORMAT, "%s: %s must ascend, but %lld follows %lld", where,
                           key, (long long)values[i], (long long)values[i - 1]);
        }
        out[i] = (int)values[i];
    }
    *count = (int)n;
    return true;
}

/* ---- groups of fields ------------------------------------------------------------------------ */

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static bool read_text_reals(di_config *c, const source *s, di_error *err) {
    const json_t *t = s->text;
    const char *where = s->text_where;
    double dropout, gate_temp;
    if (!read_real(t, where, "swiglu_limit", 0, 1e6, &c->swiglu_limit, err) ||
        !read_real(t, where, "rms_norm_eps", 1e-37, 1, &c->rms_norm_eps, err) ||
        !read_real(t, where, "routed_scaling_factor", 1e-6, 1e6, &c->routed_scaling_factor, err) ||
        !read_real(t, where, "hc_eps", 0, 1, &c->hc_eps, err) ||
        !di_json_real(t, where, "rope_theta", 2, 1e12, &c->rope_theta, err) ||
        !di_json_real(t, where, "compress_rope_theta", 2, 1e12, &c->compress_rope_theta, err) ||
        !di_json_real_or(t, where, "gate_temp", 1e-6, 1e6, 1.0, &gate_temp, err) ||
        !di_json_real_or(t, where, "attention_dropout", 0, 1, 0, &dropout, err)) {
        return false;
    }
    c->gate_temp = (float)gate_temp;
    c->norm_topk_prob = true;
    if (dropout != 0) {
        return unsupported(where, "attention_dropout", json_object_get(t, "attention_dropout"), "0",
                           err);
    }
    return true;
}

static bool read_rope_scaling(di_config *c, const source *s, di_error *err) {
    const json_t *found = json_object_get(s->text, "rope_scaling");
    if (!found || json_is_null(found)) {
        return true;
    }
    const json_t *scaling = di_json_object(s->text, s->text_where, "rope_scaling", err);
    if (!scaling) {
        return false;
    }
    static const fixed_value type[] = {{"rope_type", "\"yarn\"", false}};
    char where[WHERE_BYTES + 16];
    snprintf(where, sizeof where, "%s: rope_scaling", s->text_where);
    int64_t original;
    c->yarn = true;
    if (!check_fixed(scaling, where, type, LENGTH(type), err) ||
        !di_json_real(scaling, where, "factor", 1, 1e6, &c->yarn_factor, err) ||
        !di_json_real(scaling, where, "beta_fast", 1e-3, 1e6, &c->yarn_beta_fast, err) ||
        !di_json_real(scaling, where, "beta_slow", 1e-3, 1e6, &c->yarn_beta_slow, err) ||
        !di_json_int(scaling, where, "original_max_position_embeddings", 1, 1 << 24, &original,
                     err)) {
        return false;
    }
    c->yarn_original_max_position_embeddings = (int)original;
    if (c->yarn_beta_fast < c->yarn_beta_slow) {
        return di_fail(err, DI_ERR_FORMAT, "%s: beta_fast is %g, less than beta_slow, %g", where,
                       c->yarn_beta_fast, c->yarn_beta_slow);
    }
    return true;
}

static bool read_attention_lists(di_config *c, const source *s, di_error *err) {
    const json_t *t = s->text;
    const char *where = s->text_where;
    int64_t ratios[DI_MAX_LAYERS + DI_MAX_STAGES];
    size_t num_ratios;
    int layers = c->num_hidden_layers, stages = c->num_nextn_predict_layers;
    if (!di_json_int_array(t, where, "compress_ratios", 0, 2, ratios, LENGTH(ratios), &num_ratios,
                           err)) {
        return false;
    }
    if ((int)num_ratios != layers && (int)num_ratios != layers + stages) {
        return di_fail(err, DI_ERR_FORMAT,
                       "%s: compress_ratios has %zu entries, expected %d (num_hidden_layers) or "
                       "%d (with num_nextn_predict_layers)",
                       where, num_ratios, layers, layers + stages);
    }
    for (size_t l = 0; l < num_ratios; l++) {
        if (l < (size_t)layers) {
            c->layers[l].ratio = (int)ratios[l];
        } else if (ratios[l] != 0) {
            return di_fail(err, DI_ERR_UNSUPPORTED,
                           "%s: compress_ratios[%zu] belongs to a draft stage and is %lld, only 0 "
                           "is supported",
                           where, l, (long long)ratios[l]);
        }
    }
    return read_id_list(t, where, "kv_source_layer_ids", layers, c->kv_source_layer_ids,
                        DI_MAX_LAYERS, &c->num_kv_sources, err) &&
           read_id_list(t, where, "index_source_layer_ids", layers, c->index_source_layer_ids,
                        DI_MAX_LAYERS, &c->num_index_sources, err);
}

/* Absent in the release: which cache an index source scores. We know one answer, its KV source's.
 */
static bool check_index_k_sources(const source *s, di_error *err) {
    const json_t *found = json_object_get(s->text, "index_k_source_layer_ids");
    if (!found || json_is_null(found) ||
        json_equal(found, json_object_get(s->text, "kv_source_layer_ids"))) {
        return true;
    }
    return unsupported(s->text_where, "index_k_source_layer_ids", found,
                       "the value of kv_source_layer_ids", err);
}

static bool read_candidates(di_config *c, const source *s, di_error *err) {
    int64_t layer;
    if (!di_json_int(s->text, s->text_where, "candidate_source_layer_id", INT32_MIN,
                     c->num_hidden_layers - 1, &layer, err)) {
        return false;
    }
    c->candidate_source_layer_id = layer < 0 ? -1 : (int)layer;
    return layer < 0 ||
           read_ints(c, s->text, s->text_where, candidate_ints, LENGTH(candidate_ints), err);
}

/* The release says engram_pad_token_id, its transformers version engram_pad_id. */
static bool read_engram_pad(di_config *c, const source *s, di_error *err) {
    const char *key = "engram_pad_token_id", *alias = "engram_pad_id";
    int64_t pad, other;
    if (!json_object_get(s->text, key) && json_object_get(s->text, alias)) {
        key = alias;
    }
    if (!di_json_int(s->text, s->text_where, key, 0, c->vocab_size - 1, &pad, err) ||
        !di_json_int_or(s->text, s->text_where, alias, 0, c->vocab_size - 1, pad, &other, err)) {
        return false;
    }
    if (pad != other) {
        return di_fail(err, DI_ERR_FORMAT, "%s: %s is %lld, but %s is %lld", s->text_where, key,
                       (long long)pad, alias, (long long)other);
    }
    c->engram_pad_token_id = (int)pad;
    return true;
}

static bool read_engram(di_config *c, const source *s, di_error *err) {
    const json_t *t = s->text;
    const char *where = s->text_where;
    size_t num_tables;
    if (!read_id_list(t, where, "engram_layer_ids", c->num_hidden_layers, c->engram_layer_ids,
                      DI_MAX_ENGRAM_LAYERS, &c->num_engram_layers, err)) {
        return false;
    }
    if (c->num_engram_layers == 0) {
        return true;
    }
    /* 2^32 keeps the search for primes below a few milliseconds a column */
    if (!read_ints(c, t, where, engram_ints, LENGTH(engram_ints), err) ||
        !read_engram_pad(c, s, err) ||
        !di_json_int(t, where, "engram_vocab_size", 2, INT64_C(1) << 32, &c->engram_vocab_size,
                     err) ||
        !di_json_int_array(t, where, "engram_num_embeddings", 1, INT64_C(1) << 40,
                           c->engram_num_embeddings, DI_MAX_ENGRAM_LAYERS, &num_tables, err)) {
        return false;
    }
    if (num_tables != (size_t)c->num_engram_layers) {
        return di_fail(err, DI_ERR_FORMAT,
                       "%s: engram_num_embeddings has %zu entries, engram_layer_ids has %d", where,
                       num_tables, c->num_engram_layers);
    }
    return true;
}

static bool read_draft(di_config *c, const source *s, di_error *err) {
    const json_t *t = s->text;
    const char *where = s->text_where;
    int64_t experts, top;
    if (c->num_nextn_predict_layers == 0) {
        return true;
    }
    if (!read_ints(c, t, where, draft_ints, LENGTH(draft_ints), err) ||
        !read_id_list(t, where, "dspark_target_layer_ids", c->num_hidden_layers,
                      c->dspark_target_layer_ids, DI_MAX_LAYERS, &c->num_dspark_targets, err) ||
        !di_json_int_or(t, where, "dspark_n_routed_experts", 0, 4096, 0, &experts, err) ||
        !di_json_int_or(t, where, "dspark_num_experts_per_tok", 0, 64, 0, &top, err)) {
        return false;
    }
    if (c->num_dspark_targets == 0) {
        return di_fail(err, DI_ERR_FORMAT, "%s: dspark_target_layer_ids is empty", where);
    }
    c->dspark_n_routed_experts = experts ? (int)experts : c->n_routed_experts;
    c->dspark_num_experts_per_tok = top ? (int)top : c->num_experts_per_tok;
    return true;
}

/* ---- the whole file -------------------------------------------------------------------------- */

static bool check_kind(const source *s, di_error *err) {
    return check_foreign(s->root, s->root_where, err) &&
           check_foreign(s->text, s->text_where, err) &&
           check_fixed(s->quantization, s->quantization_where, quantization_fixed,
                       LENGTH(quantization_fixed), err) &&
           check_fixed(s->text, s->text_where, text_fixed, LENGTH(text_fixed), err) &&
           check_index_k_sources(s, err) &&
           di_json_object(s->root, s->root_where, "vision_config", err);
}

static bool find_parts(source *s, const json_t *root, const char *where, di_error *err) {
    s->root = root;
    snprintf(s->root_where, sizeof s->root_where, "%.300s", where);
    snprintf(s->text_where, sizeof s->text_where, "%.300s: text_config", where);
    snprintf(s->quantization_where, sizeof s->quantization_where, "%.290s: quantization_config",
             where);
    if (!json_is_object(root)) {
        return di_fail(err, DI_ERR_FORMAT, "%s: is %s, an object expected", where,
                       di_json_type_name(root));
    }
    /* Name the wrong architecture before complaining about the parts that it lacks. */
    if (!check_fixed(root, s->root_where, root_fixed, LENGTH(root_fixed), err)) {
        return false;
    }
    s->text = di_json_object(root, s->root_where, "text_config", err);
    s->quantization =
        s->text ? di_json_object(root, s->root_where, "quantization_config", err) : NULL;
    return s->quantization != NULL;
}

bool di_config_parse(di_config *c, const json_t *root, const char *where, di_error *err) {
    source s = {0};
    *c = (di_config){0};
    return find_parts(&s, root, where, err) && check_kind(&s, err) &&
           read_ints(c, s.root, s.root_where, root_ints, LENGTH(root_ints), err) &&
           read_ints(c, s.text, s.text_where, text_ints, LENGTH(text_ints), err) &&
           read_text_reals(c, &s, err) && read_rope_scaling(c, &s, err) &&
           read_attention_lists(c, &s, err) && read_candidates(c, &s, err) &&
           read_engram(c, &s, err) && read_draft(c, &s, err) &&
           di_config_plan(c, s.text_where, err);
}

bool di_config_read(di_config *c, const char *folder, di_error *err) {
    char *path = di_path_join(folder, "config.json");
    if (!path) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for a path", folder);
    }
    json_t *root = di_json_read(path, MAX_CONFIG_BYTES, err);
    bool ok = root && di_config_parse(c, root, path, err);
    json_decref(root);
    di_free(path);
    return ok;
}
