/* Reading config.json: the release's values and what follows from them, and each refusal by name.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "support/cmocka.h"
#include "support/model_files.h"
#include "weights/config.h"

#define FLASH "tools/flash-config.json"

static void read_released(di_config *c) {
    di_error err;
    json_t *root = files_read_json(FLASH);
    if (!di_config_parse(c, root, "config.json", &err)) {
        fail_msg("%s", err.message);
    }
    json_decref(root);
}

/* ---- what the release says ------------------------------------------------------------------- */

static void test_released_fields_are_read(void **state) {
    (void)state;
    di_config c;
    read_released(&c);
    assert_int_equal(c.image_token_id, 129264);
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 5120);
    assert_int_equal(c.max_position_embeddings, 1048576);
    assert_float_equal(c.rms_norm_eps, 1e-20f, 1e-26);
    assert_true(c.rms_norm_eps > 0);
    assert_true(c.yarn);
    assert_int_equal(c.yarn_original_max_position_embeddings, 65536);
    assert_true(c.yarn_factor == 16 && c.yarn_beta_fast == 32 && c.yarn_beta_slow == 1);
    assert_true(c.rope_theta == 10000 && c.compress_rope_theta == 160000);
    assert_true(c.swiglu_limit == 10 && c.routed_scaling_factor == 1.5f && c.hc_eps == 1e-6f);
    assert_int_equal(c.engram_num_embeddings[1], 384016682);
    assert_int_equal(c.dspark_noise_token_id, 128799);
    assert_int_equal(c.dspark_n_routed_experts, 128);
    assert_int_equal(c.num_dspark_targets, 3);
    assert_int_equal(c.dspark_target_layer_ids[2], 39);
}

static void test_absent_keys_get_the_release_defaults(void **state) {
    (void)state;
    di_config c;
    read_released(&c);
    assert_true(c.gate_temp == 1.0f);
    assert_true(c.norm_topk_prob);
}

static void test_released_layers_are_planned(void **state) {
    (void)state;
    /* first layer of a run, mode, KV source, index source */
    static const int runs[][4] = {
        {0, DI_LAYER_SWA, -1, -1},    {2, DI_LAYER_FULL, 2, 2},
        {3, DI_LAYER_REUSE, 2, 2},    {8, DI_LAYER_FULL, 8, 8},
        {9, DI_LAYER_REUSE, 8, 8},    {14, DI_LAYER_FULL, 14, 14},
        {15, DI_LAYER_REUSE, 14, 14}, {20, DI_LAYER_FULL, 20, 20},
        {21, DI_LAYER_REUSE, 20, 20}, {24, DI_LAYER_REINDEX, 20, 24},
        {25, DI_LAYER_REUSE, 20, 24}, {28, DI_LAYER_REINDEX, 20, 28},
        {29, DI_LAYER_REUSE, 20, 28}, {32, DI_LAYER_REINDEX, 20, 32},
        {33, DI_LAYER_REUSE, 20, 32}, {36, DI_LAYER_REINDEX, 20, 36},
        {37, DI_LAYER_REUSE, 20, 36}, {40, 0, 0, 0},
    };
    di_config c;
    read_released(&c);
    for (int r = 0; runs[r][0] < 40; r++) {
        for (int l = runs[r][0]; l < runs[r + 1][0]; l++) {
            const di_layer_plan *p = &c.layers[l];
            assert_int_equal(p->mode, runs[r][1]);
            assert_int_equal(p->kv_source, runs[r][2]);
            assert_int_equal(p->index_source, runs[r][3]);
            assert_int_equal(p->ratio, l < 2 ? 0 : l < 20 ? 2 : 1);
            assert_int_equal(p->builds_candidates, l == 20);
            assert_int_equal(p->uses_candidates, l == 24 || l == 28 || l == 32 || l == 36);
            assert_int_equal(p->engram, l == 1 ? 0 : l == 14 ? 1 : -1);
        }
    }
    assert_int_equal(c.boundary_layer, 20);
    assert_int_equal(c.engram_columns, 24);
    assert_int_equal(c.hc_mixes, 24);
}

static void test_released_primes_are_the_published_ones(void **state) {
    (void)state;
    static const int64_t published[2][24] = {
        {16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
         16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
         16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463},
        {16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627,
         16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769,
         16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889},
    };
    int64_t primes[2][DI_MAX_ENGRAM_COLUMNS];
    di_config c;
    read_released(&c);
    di_engram_primes(&c, primes);
    for (int layer = 0; layer < 2; layer++) {
        assert_memory_equal(primes[layer], published[layer], sizeof published[layer]);
    }
}

static void test_the_test_models_are_accepted(void **state) {
    (void)state;
    static const char *const names[] = {"tiny", "wide", "deep"};
    for (int i = 0; i < 3; i++) {
        di_config c;
        di_error err;
        char *folder = files_testdata(names[i]);
        if (!di_config_read(&c, folder, &err)) {
            fail_msg("%s", err.message);
        }
        free(folder);
    }
    di_config c;
    assert_true(di_config_read(&c, "models/demo", NULL));
    assert_int_equal(c.boundary_layer, 6);
}

/* ---- variations ------------------------------------------------------------------------------ */

/* Sets `path` ("text_config.vocab_size") to the value of that JSON text; NULL takes it away. */
static void patch(json_t *root, const char *path, const char *value) {
    char copy[128];
    snprintf(copy, sizeof copy, "%s", path);
    json_t *object = root;
    char *key = copy;
    for (char *dot; (dot = strchr(key, '.')); key = dot + 1) {
        *dot = 0;
        object = json_object_get(object, key);
        assert_non_null(object);
    }
    if (value) {
        json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(parsed);
        assert_int_equal(json_object_set_new(object, key, parsed), 0);
    } else {
        assert_int_equal(json_object_del(object, key), 0);
    }
}

typedef struct variation {
    const char *path, *value;
    const char *message; /* a part of the refusal; NULL: accepted */
} variation;

#define T  "text_config."
#define Q  "quantization_config."
#define RS "text_config.rope_scaling."

static const variation refusals[] = {
    /* another model */
    {"architectures", "[\"DeepseekV4ForCausalLM\"]",
     "architectures is [\"DeepseekV4ForCausalLM\"]"},
    {"architectures", "[\"DeepseekV41ForCausalLM\",\"X\"]", "architectures"},
    {"architectures", NULL, "architectures is missing"},
    {"model_type", "\"deepseek_v4\"", "model_type is \"deepseek_v4\""},
    {T "model_type", "\"deepseek_v4_text\"", "model_type"},
    {"first_k_dense_replace", "3", "first_k_dense_replace is set"},
    {T "first_k_dense_replace", "0", "first_k_dense_replace is set"},
    {T "num_hash_layers", "3", "hash-routed"},
    {T "hc_head", "true", "hc_head"},
    {T "kv_lora_rank", "512", "kv_lora_rank"},
    {"text_config", NULL, "text_config is missing"},
    {"text_config", "[]", "text_config is an array"},
    {"vision_config", NULL, "vision_config is missing"},
    {"quantization_config", NULL, "quantization_config is missing"},
    /* values with one supported form */
    {"dtype", "\"float16\"", "dtype is \"float16\", only \"bfloat16\""},
    {"tie_word_embeddings", "true", "tie_word_embeddings"},
    {T "tie_word_embeddings", "true", "tie_word_embeddings"},
    {"tokenizer_compatibility", "\"native\"", "tokenizer_compatibility"},
    {Q "quant_method", "\"awq\"", "quant_method"},
    {Q "activation_scheme", "\"static\"", "activation_scheme"},
    {Q "weight_block_size", "[128,128]", "weight_block_size is [128,128], only [32,32]"},
    {Q "scale_fmt", "\"float32\"", "scale_fmt"},
    {Q "expert_dtype", "\"fp8\"", "expert_dtype"},
    {T "hidden_act", "\"gelu\"", "hidden_act"},
    {T "attention_bias", "true", "attention_bias"},
    {T "attention_dropout", "0.1", "attention_dropout"},
    {T "num_key_value_heads", "2", "num_key_value_heads"},
    {T "n_shared_experts", "2", "n_shared_experts"},
    {T "scoring_func", "\"softmax\"", "scoring_func"},
    {T "topk_method", "\"greedy\"", "topk_method"},
    {T "norm_topk_prob", "false", "norm_topk_prob"},
    {T "hc_shifted", "false", "hc_shifted"},
    {T "use_fp4_sparse_kv", "false", "use_fp4_sparse_kv"},
    {T "dspark_target_attn_input", "false", "dspark_target_attn_input"},
    {T "index_k_source_layer_ids", "[2,8,14]", "index_k_source_layer_ids"},
    {RS "rope_type", "\"linear\"", "rope_type is \"linear\""},
    /* ranges and types */
    {"bos_token_id", "-1", "bos_token_id is -1"},
    {"eos_token_id", "129280", "eos_token_id is 129280, outside the vocabulary"},
    {"image_token_id", "129280", "image_token_id"},
    {T "vocab_size", "0", "vocab_size is 0"},
    {T "vocab_size", "1.5", "vocab_size is a number, an integer expected"},
    {T "vocab_size", NULL, "vocab_size is missing"},
    {T "hidden_size", "\"5120\"", "hidden_size is a string"},
    {T "hidden_size", "9223372036854775807", "hidden_size is 9223372036854775807"},
    {T "hidden_size", "5121", "hidden_size is 5121, not a multiple of 32"},
    {T "num_hidden_layers", "257", "num_hidden_layers"},
    {T "num_attention_heads", "0", "num_attention_heads"},
    {T "num_attention_heads", "63", "not a multiple of o_groups"},
    {T "o_groups", "0", "o_groups is 0"},
    {T "head_dim", "528", "head_dim is 528"},
    {T "q_lora_rank", "1281", "q_lora_rank is 1281"},
    {T "o_lora_rank", "1", "o_groups * o_lora_rank"},
    {T "moe_intermediate_size", "2300", "moe_intermediate_size"},
    {T "index_head_dim", "144", "index_head_dim"},
    {T "engram_head_dim", "40", "engram_head_dim"},
    {T "qk_rope_head_dim", "63", "qk_rope_head_dim is 63"},
    {T "qk_rope_head_dim", "256", "index_head_dim, 128"},
    {T "sliding_window", "0", "sliding_window"},
    {T "max_position_embeddings", "16777217", "max_position_embeddings"},
    {T "num_experts_per_tok", "0", "num_experts_per_tok"},
    {T "n_routed_experts", "5", "num_experts_per_tok is 6, more than n_routed_experts, 5"},
    {T "hc_mult", "9", "hc_mult"},
    {T "hc_sinkhorn_iters", "0", "hc_sinkhorn_iters"},
    {T "hc_eps", "-1", "hc_eps"},
    {T "rms_norm_eps", "0", "rms_norm_eps"},
    {T "swiglu_limit", "-1", "swiglu_limit"},
    {T "routed_scaling_factor", "0", "routed_scaling_factor"},
    {T "gate_temp", "0", "gate_temp"},
    {T "rope_theta", "1", "rope_theta"},
    {T "compress_rope_theta", "null", "compress_rope_theta"},
    {RS "factor", "0.5", "factor"},
    {RS "beta_fast", "0.5", "beta_fast is 0.5, less than beta_slow"},
    {RS "original_max_position_embeddings", "0", "original_max_position_embeddings"},
    {T "rope_scaling", "[]", "rope_scaling is an array"},
    /* layers and sources */
    {T "compress_ratios", "[0,0,2]", "compress_ratios has 3 entries, expected 40"},
    {T "num_nextn_predict_layers", "2", "compress_ratios has 43 entries"},
    {T "num_nextn_predict_layers", "17", "num_nextn_predict_layers"},
    {T "kv_source_layer_ids", "[2,8,14,40]", "kv_source_layer_ids is 40"},
    {T "kv_source_layer_ids", "[2,14,8,20]", "must ascend, but 8 follows 14"},
    {T "kv_source_layer_ids", "[2,8,8,20]", "must ascend, but 8 follows 8"},
    {T "kv_source_layer_ids", "[2,9,14,20]", "layer 9, which index_source_layer_ids does not"},
    {T "kv_source_layer_ids", "[8,14,20]", "layer 2 has compress_ratios entry 2"},
    {T "kv_source_layer_ids", "[2,8,14]", "layer 20 has compress_ratios entry 1"},
    {T "index_source_layer_ids", "[0,2,8,14,20]", "layer 0, whose compress_ratios entry is 0"},
    {T "candidate_source_layer_id", "21", "candidate_source_layer_id is 21"},
    {T "candidate_source_layer_id", "14", "layer 20 would use the candidates of layer 14"},
    {T "candidate_source_layer_id", NULL, "candidate_source_layer_id is missing"},
    {T "candidate_topk_blocks", "64", "may hold only 505 entries, fewer than index_topk, 512"},
    {T "candidate_topk_blocks", "4097", "candidate_topk_blocks"},
    {T "candidate_block_size", "0", "candidate_block_size"},
    {T "index_topk", "0", "index_topk"},
    /* engram */
    {T "engram_layer_ids", "[1,20]", "layer 20, but must stay before layer 20"},
    {T "engram_layer_ids", "[1]", "engram_num_embeddings has 2 entries, engram_layer_ids has 1"},
    {T "engram_num_embeddings", "[384006168,384016683]",
     "engram_num_embeddings[1] is 384016683, but the 24 primes from engram_vocab_size on add up to "
     "384016682"},
    {T "engram_vocab_size", "16000058", "engram_num_embeddings[0]"},
    {T "engram_vocab_size", "4294967297", "engram_vocab_size is 4294967297"},
    {T "engram_max_ngram_size", "9", "engram_max_ngram_size"},
    {T "engram_n_heads", "43", "(engram_max_ngram_size - 1) * engram_n_heads is 129"},
    {T "engram_compressed_vocab_size", "129281", "engram_compressed_vocab_size"},
    {T "engram_pad_token_id", "129280", "engram_pad_token_id"},
    {T "engram_pad_token_id", NULL, "engram_pad_token_id is missing"},
    {T "engram_pad_id", "3", "engram_pad_token_id is 2, but engram_pad_id is 3"},
    /* drafts */
    {T "dspark_block_size", "0", "dspark_block_size"},
    {T "dspark_block_size", "64", "dspark_block_size is 64, allowed are 1 to 63"},
    {T "dspark_noise_token_id", "129280", "dspark_noise_token_id"},
    {T "dspark_markov_rank", NULL, "dspark_markov_rank is missing"},
    {T "dspark_target_layer_ids", "[]", "dspark_target_layer_ids is empty"},
    {T "dspark_target_layer_ids", "[37,38,40]", "dspark_target_layer_ids is 40"},
    {T "dspark_target_layer_ids", "[19,38,39]", "both sides of layer 20"},
    {T "dspark_n_routed_experts", "2", "dspark_num_experts_per_tok is 3, more than"},
};

static const variation acceptances[] = {
    {"tokenizer_compatibility", "\"release\"", NULL},
    {"unknown_key", "{\"a\":[1]}", NULL},
    {T "use_fp4_sparse_kv", "true", NULL},
    {T "hc_shifted", "true", NULL},
    {T "dspark_target_attn_input", "true", NULL},
    {T "index_k_source_layer_ids", "[2,8,14,20]", NULL},
    {T "norm_topk_prob", NULL, NULL},
    {T "gate_temp", "2", NULL},
    {T "rope_scaling", NULL, NULL},
    {T "rope_scaling", "null", NULL},
    {T "candidate_source_layer_id", "-1", NULL},
    {T "engram_pad_id", "2", NULL},
    {T "swiglu_limit", "0", NULL},
    {T "dspark_num_experts_per_tok", "64", NULL},
    {T "candidate_topk_blocks", "65", NULL},
};

static void try_variation(const variation *v) {
    di_config c;
    di_error err = {0};
    json_t *root = files_read_json(FLASH);
    patch(root, v->path, v->value);
    bool ok = di_config_parse(&c, root, "some/config.json", &err);
    json_decref(root);
    const char *value = v->value ? v->value : "(absent)";
    if (ok != !v->message) {
        fail_msg("%s = %s: %s", v->path, value, ok ? "accepted" : err.message);
    }
    if (!ok && (!strstr(err.message, v->message) || !strstr(err.message, "some/config.json"))) {
        fail_msg("%s = %s: '%s' does not say '%s'", v->path, value, err.message, v->message);
    }
}

static void test_each_wrong_value_is_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        try_variation(&refusals[i]);
    }
}

static void test_spelt_out_defaults_and_options_are_accepted(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof acceptances / sizeof *acceptances; i++) {
        try_variation(&acceptances[i]);
    }
}

static void test_every_key_of_the_release_matters_or_has_a_default(void **state) {
    (void)state;
    static const char *const with_default[] = {"model_type",
                                               "tie_word_embeddings",
                                               "attention_bias",
                                               "attention_dropout",
                                               "use_cache",
                                               "rope_scaling",
                                               "norm_topk_prob",
                                               "dspark_n_routed_experts",
                                               "dspark_num_experts_per_tok"};
    json_t *released = files_read_json(FLASH);
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(released, "text_config"), key, value) {
        bool expected = false;
        for (size_t i = 0; i < sizeof with_default / sizeof *with_default; i++) {
            expected = expected || strcmp(key, with_default[i]) == 0;
        }
        char path[128];
        snprintf(path, sizeof path, T "%s", key);
        try_variation(&(variation){path, NULL, expected ? NULL : key});
    }
    json_decref(released);
}

/* All blocks but the newest are full; the newest may hold one entry. */
static void test_candidates_must_fill_the_selection(void **state) {
    (void)state;
    di_config c;
    di_error err;
    json_t *root = files_read_json(FLASH);
    patch(root, T "candidate_block_size", "1");
    patch(root, T "candidate_topk_blocks", "512");
    assert_true(di_config_parse(&c, root, "config.json", NULL));
    patch(root, T "candidate_topk_blocks", "511");
    assert_false(di_config_parse(&c, root, "config.json", &err));
    assert_non_null(strstr(err.message, "511 entries, fewer than index_topk, 512"));
    json_decref(root);
}

/* A number that a double cannot hold comes back digit by digit. */
static void test_integers_above_2_53_are_exact(void **state) {
    (void)state;
    try_variation(
        &(variation){T "engram_num_embeddings", "[9007199254740993, 1]", "9007199254740993"});
    try_variation(&(variation){T "sliding_window", "9007199254740993", "9007199254740993"});
}

static void test_the_alias_of_the_engram_pad_token_is_read(void **state) {
    (void)state;
    di_config c;
    json_t *root = files_read_json(FLASH);
    patch(root, T "engram_pad_token_id", NULL);
    patch(root, T "engram_pad_id", "7");
    assert_true(di_config_parse(&c, root, "config.json", NULL));
    assert_int_equal(c.engram_pad_token_id, 7);
    json_decref(root);
}

static void test_draft_expert_counts_of_zero_are_the_targets(void **state) {
    (void)state;
    di_config c;
    json_t *root = files_read_json(FLASH);
    patch(root, T "dspark_n_routed_experts", "0");
    patch(root, T "dspark_num_experts_per_tok", NULL);
    assert_true(di_config_parse(&c, root, "config.json", NULL));
    assert_int_equal(c.dspark_n_routed_experts, 384);
    assert_int_equal(c.dspark_num_experts_per_tok, 6);
    json_decref(root);
}

static void test_a_model_without_drafts_needs_no_dspark_keys(void **state) {
    (void)state;
    di_config c;
    di_error err;
    json_t *root = files_read_json(FLASH);
    patch(root, T "num_nextn_predict_layers", "0");
    json_t *ratios = json_object_get(json_object_get(root, "text_config"), "compress_ratios");
    while (json_array_size(ratios) > 40) {
        json_array_remove(ratios, 40);
    }
    patch(root, T "dspark_block_size", NULL);
    patch(root, T "dspark_noise_token_id", NULL);
    patch(root, T "dspark_markov_rank", NULL);
    patch(root, T "dspark_target_layer_ids", NULL);
    if (!di_config_parse(&c, root, "config.json", &err)) {
        fail_msg("%s", err.message);
    }
    json_decref(root);
}

static void test_ratios_may_leave_out_the_draft_stages_but_not_compress_them(void **state) {
    (void)state;
    di_config c;
    di_error err;
    json_t *root = files_read_json(FLASH);
    json_t *ratios = json_object_get(json_object_get(root, "text_config"), "compress_ratios");
    json_array_set_new(ratios, 41, json_integer(1));
    assert_false(di_config_parse(&c, root, "config.json", &err));
    assert_non_null(strstr(err.message, "compress_ratios[41]"));
    while (json_array_size(ratios) > 40) {
        json_array_remove(ratios, 40);
    }
    assert_true(di_config_parse(&c, root, "config.json", NULL));
    json_decref(root);
}

static void test_the_decoder_half_has_one_ratio(void **state) {
    (void)state;
    di_config c;
    di_error err;
    json_t *root = files_read_json(FLASH);
    json_t *ratios = json_object_get(json_object_get(root, "text_config"), "compress_ratios");
    json_array_set_new(ratios, 30, json_integer(0));
    assert_false(di_config_parse(&c, root, "config.json", &err));
    assert_non_null(strstr(err.message, "compress_ratios[30] is 0, but must be 1"));
    json_array_set_new(ratios, 30, json_integer(3));
    assert_false(di_config_parse(&c, root, "config.json", &err));
    assert_non_null(strstr(err.message, "compress_ratios is 3"));
    json_decref(root);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_broken_files_are_refused_by_path(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } files[] = {
        {"", "JSON"},
        {"{", "JSON"},
        {"[]", "is an array, an object expected"},
        {"{\"dtype\":1,\"dtype\":2}", "duplicate"},
        {"{\"x\":1} tail", "JSON"},
        {"{\"x\":92233720368547758080}", "too big integer"},
        {"{\"x\":\"\xff\"}", "byte 0xff"},
    };
    char *folder = files_folder();
    di_config c;
    di_error err;
    assert_false(di_config_read(&c, folder, &err));
    assert_int_equal(err.code, DI_ERR_IO);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        files_write_text(folder, "config.json", files[i].text);
        assert_false(di_config_read(&c, folder, &err));
        if (!strstr(err.message, files[i].message) || !strstr(err.message, "config.json")) {
            fail_msg("'%s' does not say '%s'", err.message, files[i].message);
        }
    }
    files_remove(folder);
}

static void test_deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 100000 };
    char *folder = files_folder(), *text = malloc(DEPTH);
    di_config c;
    di_error err;
    memset(text, '[', DEPTH);
    files_write(folder, "config.json", text, DEPTH);
    assert_false(di_config_read(&c, folder, &err));
    assert_non_null(strstr(err.message, "nested"));
    free(text);
    files_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_released_fields_are_read),
        cmocka_unit_test(test_absent_keys_get_the_release_defaults),
        cmocka_unit_test(test_released_layers_are_planned),
        cmocka_unit_test(test_released_primes_are_the_published_ones),
        cmocka_unit_test(test_the_test_models_are_accepted),
        cmocka_unit_test(test_each_wrong_value_is_refused_by_name),
        cmocka_unit_test(test_spelt_out_defaults_and_options_are_accepted),
        cmocka_unit_test(test_every_key_of_the_release_matters_or_has_a_default),
        cmocka_unit_test(test_candidates_must_fill_the_selection),
        cmocka_unit_test(test_integers_above_2_53_are_exact),
        cmocka_unit_test(test_the_alias_of_the_engram_pad_token_is_read),
        cmocka_unit_test(test_draft_expert_counts_of_zero_are_the_targets),
        cmocka_unit_test(test_a_model_without_drafts_needs_no_dspark_keys),
        cmocka_unit_test(test_ratios_may_leave_out_the_draft_stages_but_not_compress_them),
        cmocka_unit_test(test_the_decoder_half_has_one_ratio),
        cmocka_unit_test(test_broken_files_are_refused_by_path),
        cmocka_unit_test(test_deep_nesting_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
