/* Opening model folders: every slot gets the bytes the file has for it, and a folder whose parts
 * disagree is refused by file and tensor. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/cmocka.h"
#include "support/model_files.h"
#include "weights/bind.h"

#define INDEX  "model.safetensors.index.json"
#define BODY   "model-00001-of-00003.safetensors"
#define DRAFT  "model-00002-of-00003.safetensors"
#define TABLES "model-00003-of-00003.safetensors"

static di_weights *opened(const char *folder) {
    di_error err;
    di_weights *w = di_weights_open(folder, &err);
    if (!w) {
        fail_msg("%s", err.message);
    }
    return w;
}

/* Refused with a message that says both. */
static void refused(const char *folder, const char *what, const char *more) {
    di_error err = {0};
    di_weights *w = di_weights_open(folder, &err);
    if (w) {
        di_weights_close(w);
        fail_msg("accepted, should say '%s' and '%s'", what, more);
    }
    if (!strstr(err.message, what) || !strstr(err.message, more)) {
        fail_msg("'%s' does not say '%s' and '%s'", err.message, what, more);
    }
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void index_set(const char *folder, const char *name, const char *shard) {
    json_t *index = files_read_json(files_path(folder, INDEX));
    json_t *map = json_object_get(index, "weight_map");
    if (shard) {
        json_object_set_new(map, name, json_string(shard));
    } else {
        json_object_del(map, name);
    }
    files_write_json(folder, INDEX, index);
    json_decref(index);
}

/* Another name for a tensor, in shard and index. */
static void rename_tensor(const char *folder, const char *shard, const char *from, const char *to) {
    shard_parts s;
    shard_read(&s, files_path(folder, shard));
    json_t *entry = json_object_get(s.header, from);
    assert_non_null(entry);
    json_object_set(s.header, to, entry);
    json_object_del(s.header, from);
    shard_write(&s, folder, shard);
    shard_free(&s);
    index_set(folder, from, NULL);
    index_set(folder, to, shard);
}

/* Changes dtype and shape (JSON texts) of a tensor that keeps its bytes. */
static void retype_tensor(const char *folder, const char *shard, const char *name,
                          const char *dtype, const char *shape) {
    shard_parts s;
    shard_read(&s, files_path(folder, shard));
    json_t *entry = json_object_get(s.header, name);
    assert_non_null(entry);
    json_object_set_new(entry, "dtype", json_string(dtype));
    json_object_set_new(entry, "shape", json_loads(shape, 0, NULL));
    shard_write(&s, folder, shard);
    shard_free(&s);
}

/* Overwrites bytes of a tensor; returns the offset in the file of the first. */
static size_t poke(const char *folder, const char *shard, const char *name, size_t at,
                   const void *bytes, size_t count) {
    shard_parts s;
    shard_read(&s, files_path(folder, shard));
    json_t *offsets = json_object_get(json_object_get(s.header, name), "data_offsets");
    assert_non_null(offsets);
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    memcpy(s.data + begin + at, bytes, count);
    size_t offset = (size_t)(s.data - s.file) + begin + at;
    shard_parts raw = s;
    files_write(folder, shard, raw.file, (size_t)(s.data - s.file) + s.size);
    shard_free(&s);
    return offset;
}

/* ---- binding --------------------------------------------------------------------------------- */

/* A slot against the file, read by other means. `name` without .weight for quantised tensors. */
static void check_slot(const char *folder, const char *name, const di_tensor *t, di_dtype dtype,
                       int rows, int cols) {
    json_t *index = files_read_json(files_path(folder, INDEX));
    char stored[128];
    bool quantised = dtype == DI_F8_E4M3 || dtype == DI_FP4_E2M1;
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->rank, cols ? 2 : 1);
    assert_int_equal(t->shape[0], rows);
    assert_int_equal(t->shape[1], cols);
    assert_int_equal(t->scale != NULL, quantised);
    for (int part = 0; part < 1 + quantised; part++) {
        snprintf(stored, sizeof stored, "%s%s", name,
                 !quantised ? ""
                 : part     ? ".scale"
                            : ".weight");
        const char *shard =
            json_string_value(json_object_get(json_object_get(index, "weight_map"), stored));
        assert_non_null(shard);
        shard_parts s;
        shard_read(&s, files_path(folder, shard));
        json_t *offsets = json_object_get(json_object_get(s.header, stored), "data_offsets");
        size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
        size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
        assert_memory_equal(part ? t->scale : t->data, s.data + begin, end - begin);
        shard_free(&s);
    }
    json_decref(index);
}

static void test_every_kind_of_slot_gets_its_bytes(void **state) {
    const char *f = *state;
    di_weights *w = opened(f);
    const di_layer_weights *l2 = &w->layers[2];
    check_slot(f, "embed.weight", &w->embed, DI_BF16, 512, 128);
    check_slot(f, "head.weight", &w->head, DI_BF16, 512, 128);
    check_slot(f, "norm.weight", &w->norm, DI_BF16, 128, 0);
    check_slot(f, "layers.2.attn_norm.weight", &l2->block.attn_norm, DI_BF16, 128, 0);
    check_slot(f, "layers.2.ffn_norm.weight", &l2->block.ffn_norm, DI_BF16, 128, 0);
    const di_attention_weights *a = &l2->block.attn;
    check_slot(f, "layers.2.attn.wq_a", &a->wq_a, DI_F8_E4M3, 64, 128);
    check_slot(f, "layers.2.attn.q_norm.weight", &a->q_norm, DI_BF16, 64, 0);
    check_slot(f, "layers.2.attn.wq_b", &a->wq_b, DI_F8_E4M3, 256, 64);
    check_slot(f, "layers.2.attn.wkv", &a->wkv, DI_F8_E4M3, 64, 128);
    check_slot(f, "layers.2.attn.kv_norm.weight", &a->kv_norm, DI_BF16, 64, 0);
    check_slot(f, "layers.2.attn.wo_a", &a->wo_a, DI_F8_E4M3, 64, 128);
    check_slot(f, "layers.2.attn.wo_b", &a->wo_b, DI_F8_E4M3, 128, 64);
    check_slot(f, "layers.2.attn.attn_sink", &a->attn_sink, DI_F32, 4, 0);
    check_slot(f, "layers.2.hc_attn_fn", &l2->block.hc_attn.fn, DI_F32, 24, 512);
    check_slot(f, "layers.2.hc_attn_base", &l2->block.hc_attn.base, DI_F32, 24, 0);
    check_slot(f, "layers.2.hc_ffn_fn", &l2->block.hc_ffn.fn, DI_F32, 24, 512);
    check_slot(f, "layers.2.hc_ffn_scale", &l2->block.hc_ffn.scale, DI_F32, 3, 0);
    const di_moe_weights *m = &l2->block.moe;
    assert_int_equal(m->num_experts, 8);
    check_slot(f, "layers.2.ffn.gate.weight", &m->gate, DI_BF16, 8, 128);
    check_slot(f, "layers.2.ffn.gate.bias", &m->bias, DI_F32, 8, 0);
    check_slot(f, "layers.2.ffn.gate.bias_vl", &m->bias_vl, DI_F32, 8, 0);
    check_slot(f, "layers.2.ffn.experts.7.w1", &m->experts[7].w1, DI_FP4_E2M1, 64, 128);
    check_slot(f, "layers.2.ffn.experts.3.w2", &m->experts[3].w2, DI_FP4_E2M1, 128, 64);
    check_slot(f, "layers.2.ffn.experts.0.w3", &m->experts[0].w3, DI_FP4_E2M1, 64, 128);
    check_slot(f, "layers.2.ffn.shared_experts.w2", &m->shared.w2, DI_F8_E4M3, 128, 64);
    check_slot(f, "layers.2.attn.compressor.wkv.weight", &l2->compressor.wkv, DI_BF16, 64, 128);
    check_slot(f, "layers.2.attn.compressor.wgate.weight", &l2->compressor.wgate, DI_BF16, 64, 128);
    check_slot(f, "layers.2.attn.compressor.norm.weight", &l2->compressor.norm, DI_BF16, 64, 0);
    check_slot(f, "layers.2.attn.indexer.wq_b", &l2->indexer.wq_b, DI_F8_E4M3, 128, 64);
    check_slot(f, "layers.2.attn.indexer.weights_proj.weight", &l2->indexer.weights_proj, DI_BF16,
               4, 128);
    check_slot(f, "layers.2.attn.indexer.wk.weight", &l2->indexer.wk, DI_BF16, 32, 64);
    check_slot(f, "layers.2.attn.indexer.k_norm.weight", &l2->indexer.k_norm, DI_BF16, 32, 0);
    check_slot(f, "layers.2.engram.embed", &l2->engram.embed, DI_F8_E4M3, 3424, 32);
    check_slot(f, "layers.1.engram.wkv", &w->layers[1].engram.wkv, DI_F8_E4M3, 640, 192);
    check_slot(f, "layers.1.engram.q_weight", &w->layers[1].engram.q_weight, DI_BF16, 4, 128);
    check_slot(f, "layers.1.engram.k_weight", &w->layers[1].engram.k_weight, DI_BF16, 4, 128);
    const di_draft_weights *d = &w->draft[0];
    assert_int_equal(d->block.moe.num_experts, 4);
    check_slot(f, "mtp.0.ffn.experts.3.w1", &d->block.moe.experts[3].w1, DI_FP4_E2M1, 64, 128);
    check_slot(f, "mtp.0.main_proj", &d->main_proj, DI_F8_E4M3, 128, 384);
    check_slot(f, "mtp.0.main_norm.weight", &d->main_norm, DI_BF16, 128, 0);
    check_slot(f, "mtp.0.norm.weight", &d->norm, DI_BF16, 128, 0);
    check_slot(f, "mtp.0.markov_head.embed.weight", &d->markov_embed, DI_BF16, 512, 32);
    check_slot(f, "mtp.0.markov_head.head.weight", &d->markov_head, DI_BF16, 512, 32);
    check_slot(f, "mtp.0.confidence_head.proj.weight", &d->confidence_proj, DI_BF16, 1, 160);
    di_weights_close(w);
}

static void test_scale_blocks_are_tiles_or_rows(void **state) {
    di_weights *w = opened(*state);
    const struct {
        const di_tensor *t;
        int rows;
    } slots[] = {
        {&w->layers[0].block.attn.wq_a, 32},
        {&w->layers[0].block.moe.shared.w1, 32},
        {&w->layers[0].block.moe.experts[0].w1, 1},
        {&w->layers[1].engram.embed, 1},
        {&w->layers[1].engram.wkv, 32},
    };
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        assert_int_equal(slots[i].t->scale_block[0], slots[i].rows);
        assert_int_equal(slots[i].t->scale_block[1], 32);
    }
    di_weights_close(w);
}

static void test_layers_have_what_their_mode_needs_and_no_more(void **state) {
    di_weights *w = opened(*state);
    for (int l = 0; l < 8; l++) {
        const di_layer_weights *x = &w->layers[l];
        assert_int_equal(x->compressor.wkv.dtype != DI_DTYPE_NONE, l == 2 || l == 4);
        assert_int_equal(x->compressor.wgate.dtype != DI_DTYPE_NONE, l == 2);
        assert_int_equal(x->indexer.wq_b.dtype != DI_DTYPE_NONE, l == 2 || l == 4 || l == 6);
        assert_int_equal(x->indexer.wk.dtype != DI_DTYPE_NONE, l == 2 || l == 4);
        assert_int_equal(x->engram.embed.dtype != DI_DTYPE_NONE, l == 1 || l == 2);
    }
    di_weights_close(w);
}

/* wide's writer does not care for alignment; its heads and stages also have odd counts. */
static void test_misaligned_tensors_are_aligned_copies(void **state) {
    (void)state;
    char *folder = files_testdata("wide");
    di_weights *w = opened(folder);
    assert_true(w->checkpoint->num_copies > 0);
    for (int l = 0; l < w->config.num_hidden_layers; l++) {
        const di_block_weights *b = &w->layers[l].block;
        assert_int_equal((uintptr_t)b->attn.attn_sink.data % 4, 0);
        assert_int_equal((uintptr_t)b->hc_attn.fn.data % 4, 0);
        assert_int_equal((uintptr_t)b->moe.gate.data % 2, 0);
    }
    check_slot(folder, "layers.9.attn.attn_sink", &w->layers[9].block.attn.attn_sink, DI_F32, 6, 0);
    check_slot(folder, "mtp.0.main_proj", &w->draft[0].main_proj, DI_F8_E4M3, 160, 480);
    check_slot(folder, "mtp.2.norm.weight", &w->draft[2].norm, DI_BF16, 160, 0);
    assert_int_equal(w->draft[2].main_proj.dtype, DI_DTYPE_NONE);
    assert_int_equal(w->draft[0].norm.dtype, DI_DTYPE_NONE);
    di_weights_close(w);
    free(folder);
}

static void test_the_demo_model_opens(void **state) {
    (void)state;
    di_weights *w = opened("models/demo");
    assert_int_equal(w->config.num_hidden_layers, 12);
    assert_non_null(w->draft);
    di_weights_close(w);
}

/* ---- other forms of a folder ----------------------------------------------------------------- */

/* Puts the tensors of all shards into one file, whose names begin with `prefix`. */
static void merge_shards(const char *folder, const char *prefix) {
    static const char *const shards[] = {BODY, DRAFT, TABLES};
    shard_parts whole = {.header = json_object()};
    for (int i = 0; i < 3; i++) {
        shard_parts s;
        const char *name;
        json_t *entry;
        shard_read(&s, files_path(folder, shards[i]));
        json_object_del(s.header, "__metadata__");
        json_object_foreach(s.header, name, entry) {
            char renamed[128];
            json_t *offsets = json_object_get(entry, "data_offsets");
            for (size_t k = 0; k < 2; k++) {
                json_int_t at = json_integer_value(json_array_get(offsets, k));
                json_array_set_new(offsets, k, json_integer(at + (json_int_t)whole.size));
            }
            snprintf(renamed, sizeof renamed, "%s%s", prefix, name);
            json_object_set(whole.header, renamed, entry);
        }
        whole.data = realloc(whole.data, whole.size + s.size);
        assert_non_null(whole.data);
        memcpy(whole.data + whole.size, s.data, s.size);
        whole.size += s.size;
        shard_free(&s);
        assert_int_equal(remove(files_path(folder, shards[i])), 0);
    }
    assert_int_equal(remove(files_path(folder, INDEX)), 0);
    shard_write(&whole, folder, "model.safetensors");
    json_decref(whole.header);
    free(whole.data);
}

static void test_a_single_file_needs_no_index(void **state) {
    merge_shards(*state, "");
    di_weights *w = opened(*state);
    assert_int_equal(w->checkpoint->num_shards, 1);
    assert_non_null(w->draft);
    di_weights_close(w);
}

static void test_a_leading_model_is_taken_off_names(void **state) {
    merge_shards(*state, "model.");
    di_weights_close(opened(*state));
}

static void test_only_the_one_prefix_is_known(void **state) {
    merge_shards(*state, "model.model.");
    refused(*state, "embed.weight", "missing");
}

static void test_a_checkpoint_without_draft_opens_without(void **state) {
    files_drop_draft(*state);
    di_weights *w = opened(*state);
    assert_null(w->draft);
    assert_int_equal(w->checkpoint->num_shards, 2);
    di_weights_close(w);
}

static void test_image_tensors_are_left_alone(void **state) {
    rename_tensor(*state, DRAFT, "mtp.0.norm.weight", "vision.norm.weight");
    refused(*state, "mtp.0.norm.weight", "missing");
    files_drop_draft(*state);
    shard_write_text(*state, DRAFT,
                     "{\"vision.x\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]},"
                     "\"aligner.y\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[2,4]},"
                     "\"image_start\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[4,6]}}",
                     6);
    index_set(*state, "vision.norm.weight", NULL);
    index_set(*state, "vision.x", DRAFT);
    index_set(*state, "aligner.y", DRAFT);
    index_set(*state, "image_start", DRAFT);
    di_weights_close(opened(*state));
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Whichever tensor is missing is named; and so is the stranger in its place. */
static void test_any_renamed_tensor_is_named(void **state) {
    static const char *const shards[] = {BODY, DRAFT, TABLES};
    for (int i = 0; i < 3; i++) {
        shard_parts s;
        size_t count = 0;
        shard_read(&s, files_path(*state, shards[i]));
        json_object_del(s.header, "__metadata__");
        const char **names = malloc(json_object_size(s.header) * sizeof *names);
        const char *key;
        json_t *value;
        json_object_foreach(s.header, key, value) {
            names[count++] = key;
        }
        /* every 7th of the many, so that the test stays a matter of a second */
        for (size_t n = 0; n<count; n += count> 20 ? 7 : 1) {
            di_faults faults = {.collect = true};
            di_weights w = {0};
            rename_tensor(*state, shards[i], names[n], "stranger");
            refused(*state, names[n], "missing");
            assert_true(di_config_read(&w.config, *state, NULL));
            di_checkpoint *c = di_checkpoint_open(*state, &faults);
            assert_true(di_weights_bind(&w, c, &faults));
            assert_int_equal(faults.count, 2);
            assert_non_null(strstr(faults.messages[1], "stranger is not a tensor of this model"));
            di_weights_release(&w);
            di_checkpoint_close(c);
            di_faults_destroy(&faults);
            rename_tensor(*state, shards[i], "stranger", names[n]);
        }
        free(names);
        shard_free(&s);
    }
    di_weights_close(opened(*state));
}

static void test_a_tensor_of_another_shape_or_dtype_is_refused(void **state) {
    retype_tensor(*state, BODY, "layers.3.attn.wq_a.weight", "F8_E4M3", "[128,64]");
    refused(*state, "layers.3.attn.wq_a.weight is F8_E4M3 [128, 64]", "must be F8_E4M3 [64, 128]");
    retype_tensor(*state, BODY, "layers.3.attn.wq_a.weight", "I8", "[64,128]");
    refused(*state, "layers.3.attn.wq_a.weight is I8 [64, 128]", BODY);
    retype_tensor(*state, BODY, "layers.3.attn.wq_a.weight", "F8_E4M3", "[64,128]");
    retype_tensor(*state, BODY, "layers.0.hc_attn_base", "F32", "[24,1]");
    refused(*state, "layers.0.hc_attn_base is F32 [24, 1]", "must be F32 [24]");
    retype_tensor(*state, BODY, "layers.0.hc_attn_base", "BF16", "[48]");
    refused(*state, "layers.0.hc_attn_base is BF16 [48]", "must be F32 [24]");
    retype_tensor(*state, BODY, "layers.0.hc_attn_base", "F32", "[24]");
    retype_tensor(*state, BODY, "layers.0.attn.wkv.scale", "U8", "[2,4]");
    refused(*state, "layers.0.attn.wkv.scale is U8", "must be F8_E8M0 [2, 4]");
}

static void test_tensors_of_older_models_are_refused_with_a_hint(void **state) {
    static const char *const strangers[][2] = {
        {"hc_head_fn", "DeepSeek-V4"},
        {"layers.0.hc_attn_norm.weight", "folded into hc_attn_fn"},
        {"layers.0.ffn.gate.tid2eid", "hash-routed"},
        {"mtp.0.markov_w1.weight", "draft head"},
        {"mtp.0.embed.weight", "not a tensor of this model"},
        {"layers.8.attn_norm.weight", "not a tensor of this model"},
        {"layers.0.engram.q_weight", "not a tensor of this model"},
        {"mtp.1.norm.weight", "not a tensor of this model"},
    };
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        char header[256];
        snprintf(header, sizeof header,
                 "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                 strangers[i][0]);
        shard_write_text(*state, "more.safetensors", header, 4);
        json_t *index = files_read_json(files_path(*state, INDEX));
        json_object_del(index, "metadata");
        files_write_json(*state, INDEX, index);
        json_decref(index);
        index_set(*state, strangers[i][0], "more.safetensors");
        refused(*state, strangers[i][0], strangers[i][1]);
        index_set(*state, strangers[i][0], NULL);
    }
}

/* ---- the index ------------------------------------------------------------------------------- */

static void test_shards_are_plain_names_in_the_folder(void **state) {
    static const char *const names[] = {
        "../x.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..",
        "/x.safetensors",
        ".safetensors",
        "",
        "model.bin",
        ".hid.safetensors",
        "a\\b.safetensors",
        "x.safetensors/",
        "x.safetensors.index.json",
        "./x.safetensors",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        index_set(*state, "norm.weight", names[i]);
        refused(*state, INDEX, "norm.weight lies in");
    }
}

static void test_a_missing_shard_is_named(void **state) {
    assert_int_equal(remove(files_path(*state, TABLES)), 0);
    refused(*state, TABLES, "No such file");
}

static void test_an_indexed_tensor_must_be_in_its_shard(void **state) {
    index_set(*state, "stranger", BODY);
    refused(*state, BODY, "stranger should be here by the index");
    index_set(*state, "stranger", NULL);
    index_set(*state, "norm.weight", TABLES);
    refused(*state, "norm.weight lies in", TABLES);
}

static void test_a_tensor_outside_the_index_is_refused(void **state) {
    index_set(*state, "norm.weight", NULL);
    refused(*state, BODY, "norm.weight is not in the index");
}

static void test_a_tensor_in_two_shards_is_refused(void **state) {
    shard_parts s;
    shard_read(&s, files_path(*state, DRAFT));
    json_t *entry = json_object_get(s.header, "mtp.0.main_norm.weight");
    json_object_set(s.header, "norm.weight", entry);
    json_object_del(s.header, "mtp.0.main_norm.weight");
    shard_write(&s, *state, DRAFT);
    shard_free(&s);
    refused(*state, "norm.weight lies in", "too");
}

static void test_a_wrong_total_size_is_refused(void **state) {
    json_t *index = files_read_json(files_path(*state, INDEX));
    json_t *metadata = json_object_get(index, "metadata");
    json_object_set_new(metadata, "total_size", json_integer(9007199254740993));
    files_write_json(*state, INDEX, index);
    refused(*state, "total_size is 9007199254740993", INDEX);
    json_object_set_new(metadata, "total_size", json_string("1"));
    files_write_json(*state, INDEX, index);
    refused(*state, "total_size is a string", INDEX);
    json_object_del(metadata, "total_size");
    files_write_json(*state, INDEX, index);
    di_weights_close(opened(*state));
    json_decref(index);
}

static void test_a_broken_index_is_refused(void **state) {
    static const char *const texts[][2] = {
        {"", "JSON"},
        {"[]", "weight_map is missing"},
        {"{\"weight_map\":[]}", "weight_map is an array"},
        {"{\"weight_map\":{}}", "weight_map is empty"},
        {"{\"weight_map\":{\"a\":\"\"}}", "a lies in ''"},
        {"{\"weight_map\":{\"a\":1}}", "a is an integer, a file name expected"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}", "duplicate"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        files_write_text(*state, INDEX, texts[i][0]);
        refused(*state, INDEX, texts[i][1]);
    }
    assert_int_equal(remove(files_path(*state, INDEX)), 0);
    refused(*state, "neither " INDEX, "model.safetensors");
}

/* ---- values ---------------------------------------------------------------------------------- */

static void test_values_that_are_no_numbers_are_refused_with_their_offset(void **state) {
    static const struct {
        const char *shard, *name;
        size_t at, count;
        uint8_t good[4], bad[4];
    } pokes[] = {
        {BODY, "layers.0.attn.wq_a.scale", 3, 1, {120}, {255}},
        {BODY, "layers.5.ffn.experts.6.w2.scale", 100, 1, {120}, {255}},
        {TABLES, "layers.2.engram.embed.scale", 3423, 1, {120}, {255}},
        {BODY, "layers.0.attn.wq_a.weight", 5000, 1, {0}, {0x7f}},
        {TABLES, "layers.1.engram.embed.weight", 3144 * 32 - 1, 1, {0}, {0xff}},
        {BODY, "layers.7.attn_norm.weight", 254, 2, {0}, {0x80, 0x7f}},
        {BODY, "layers.7.attn_norm.weight", 0, 2, {0}, {0xc0, 0xff}},
        {DRAFT, "mtp.0.attn.attn_sink", 12, 4, {0}, {0, 0, 0x80, 0xff}},
        {BODY, "layers.1.hc_ffn_scale", 4, 4, {0}, {1, 0, 0x80, 0x7f}},
    };
    for (size_t i = 0; i < sizeof pokes / sizeof *pokes; i++) {
        char where[64];
        size_t offset =
            poke(*state, pokes[i].shard, pokes[i].name, pokes[i].at, pokes[i].bad, pokes[i].count);
        snprintf(where, sizeof where, "at file offset %zu", offset);
        refused(*state, pokes[i].name, where);
        refused(*state, pokes[i].shard, where);
        poke(*state, pokes[i].shard, pokes[i].name, pokes[i].at, pokes[i].good, pokes[i].count);
    }
    di_weights_close(opened(*state));
}

static void test_a_quick_check_reads_scales_and_small_tensors_only(void **state) {
    static const uint8_t nan = 255;
    poke(*state, BODY, "layers.5.ffn.experts.6.w2.scale", 0, &nan, 1);
    poke(*state, TABLES, "layers.2.engram.embed.scale", 0, &nan, 1);
    poke(*state, TABLES, "layers.2.engram.embed.weight", 0, &nan, 1);
    poke(*state, BODY, "layers.0.attn.wq_a.scale", 0, &nan, 1);
    poke(*state, BODY, "layers.0.attn_norm.weight", 1, "\x7f\xff", 2);
    di_faults faults = {.collect = true};
    di_checkpoint *c = di_checkpoint_open(*state, &faults);
    assert_true(di_check_values(c, DI_CHECK_QUICK, &faults));
    assert_int_equal(faults.count, 2);
    assert_true(di_check_values(c, DI_CHECK_ALL, &faults));
    assert_int_equal(faults.count, 2 + 5);
    di_checkpoint_close(c);
    di_faults_destroy(&faults);
}

/* ---- memory ---------------------------------------------------------------------------------- */

#ifdef DI_FAULTS
static void test_any_allocation_may_fail(void **state) {
    di_alloc_fail_at(0);
    di_weights_close(opened(*state));
    uint64_t count = di_alloc_fail_at(0);
    assert_true(count > 10);
    for (uint64_t n = 1; n <= count; n++) {
        di_error err = {0};
        di_alloc_fail_at(n);
        di_weights *w = di_weights_open(*state, &err);
        di_alloc_fail_at(0);
        assert_null(w);
        assert_int_equal(err.code, DI_ERR_NO_MEMORY);
    }
    di_weights_close(opened(*state));
}
#endif

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, files_copy_tiny, files_remove_copy)
    const struct CMUnitTest tests[] = {
        TEST(test_every_kind_of_slot_gets_its_bytes),
        TEST(test_scale_blocks_are_tiles_or_rows),
        TEST(test_layers_have_what_their_mode_needs_and_no_more),
        TEST(test_misaligned_tensors_are_aligned_copies),
        TEST(test_the_demo_model_opens),
        TEST(test_a_single_file_needs_no_index),
        TEST(test_a_leading_model_is_taken_off_names),
        TEST(test_only_the_one_prefix_is_known),
        TEST(test_a_checkpoint_without_draft_opens_without),
        TEST(test_image_tensors_are_left_alone),
        TEST(test_any_renamed_tensor_is_named),
        TEST(test_a_tensor_of_another_shape_or_dtype_is_refused),
        TEST(test_tensors_of_older_models_are_refused_with_a_hint),
        TEST(test_shards_are_plain_names_in_the_folder),
        TEST(test_a_missing_shard_is_named),
        TEST(test_an_indexed_tensor_must_be_in_its_shard),
        TEST(test_a_tensor_outside_the_index_is_refused),
        TEST(test_a_tensor_in_two_shards_is_refused),
        TEST(test_a_wrong_total_size_is_refused),
        TEST(test_a_broken_index_is_refused),
        TEST(test_values_that_are_no_numbers_are_refused_with_their_offset),
        TEST(test_a_quick_check_reads_scales_and_small_tensors_only),
#ifdef DI_FAULTS
        TEST(test_any_allocation_may_fail),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
