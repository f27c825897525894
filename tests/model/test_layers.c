/* Layer by layer against vectors that DeepSeek's own code made on tiny checkpoints: every layer is
 * given the recorded streams and mix of the layer below, so a rounding that falls the other way
 * cannot spread and what remains is either nothing or a mistake. tests/data/golden/README.md. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"

#include "model/graph.h"
#include "ops/address.h"

/* One run: which recorded rows the observer compares with, and what it found. */
typedef struct trace {
    fixture f;
    golden_case g;
    const char *prefix; /* "prefill." or "decode." */
    int keep;           /* bounded replay: rows kept, 0 = all */
    int first_layer; /* replay: h and pre are recorded from this layer on, whose own are given, not
                        compared: the layers below ran end to end */
    int64_t row;     /* first recorded row of this call */
    int64_t num_rows;
    tally h, pre, weights, outs;
    int64_t integers, wrong_integers, latent_ties;
    char first_wrong[128];
} trace;

static const void *recorded(trace *t, di_dtype dtype, int layer, const char *name, int64_t *width) {
    di_tensor array = case_get(&t->g, dtype, "%slayers.%d.%s", t->prefix, layer, name);
    *width = elements_from(&array, 1);
    return (const char *)array.data + t->row * *width * di_dtype_bits(dtype) / 8;
}

static void integer(trace *t, const char *name, int layer, int64_t at, int64_t found,
                    int64_t wanted) {
    t->integers++;
    if (found != wanted && t->wrong_integers++ == 0) {
        snprintf(t->first_wrong, sizeof t->first_wrong, "%s%s layer %d at %lld: %lld, not %lld",
                 t->prefix, name, layer, (long long)at, (long long)found, (long long)wanted);
    }
}

static void compare_i32(trace *t, const char *name, int layer, const int32_t *found) {
    int64_t width;
    const int32_t *wanted = recorded(t, DI_I32, layer, name, &width);
    for (int64_t i = 0; i < t->num_rows * width; i++) {
        integer(t, name, layer, i, found[i], wanted[i]);
    }
}

/* Recorded selections are as wide as the call could fill; ours always index_topk. */
static void compare_topk(trace *t, int layer, const int32_t *found) {
    int64_t width, k = t->f.c->index_topk;
    const int32_t *wanted = recorded(t, DI_I32, layer, "topk", &width);
    for (int64_t i = 0; i < t->num_rows * k; i++) {
        int64_t row = i / k, at = i % k;
        integer(t, "topk", layer, i, found[i], at < width ? wanted[row * width + at] : -1);
    }
}

static void compare_candidates(trace *t, int layer, const int32_t *found) {
    if (!case_has(&t->g, "%slayers.%d.candidates", t->prefix, layer)) {
        return;
    }
    int64_t blocks, most = t->f.c->candidate_topk_blocks;
    const uint8_t *wanted = recorded(t, DI_U8, layer, "candidates", &blocks);
    for (int64_t row = 0; row < t->num_rows; row++) {
        for (int64_t b = 0; b < blocks; b++) {
            int in = 0;
            for (int64_t i = 0; i < most; i++) {
                in |= found[row * most + i] == b;
            }
            integer(t, "candidates", layer, row * blocks + b, in, wanted[row * blocks + b]);
        }
    }
}

static void compare_engram_rows(trace *t, int layer, const int64_t *found) {
    int64_t width;
    const int32_t *wanted = recorded(t, DI_I32, layer, "engram_rows", &width);
    for (int64_t i = 0; i < t->num_rows * width; i++) {
        integer(t, "engram_rows", layer, i, found[i], wanted[i]);
    }
}

static void compare_out(trace *t, const char *name, int layer, const void *found) {
    if (case_has(&t->g, "%slayers.%d.%s", t->prefix, layer, name)) {
        int64_t width;
        const di_bf16 *wanted = recorded(t, DI_BF16, layer, name, &width);
        tally_bf16(&t->outs, found, wanted, t->num_rows * width);
    }
}

/* Compares and, behind a layer, puts the recorded streams in place of what was computed. */
static void observe(void *user, const char *name, int layer, void *data, size_t bytes) {
    trace *t = user;
    int64_t width;
    bool streams = strcmp(name, "h") == 0 || strcmp(name, "pre") == 0;
    if (strcmp(name, "latents") == 0) {
        t->latent_ties += store_latents_as_recorded(&t->f, layer, data);
    } else if (layer < t->first_layer || (t->keep > 0 && !streams)) {
        return;
    } else if (strcmp(name, "experts") == 0) {
        compare_i32(t, name, layer, data);
    } else if (strcmp(name, "topk") == 0) {
        compare_topk(t, layer, data);
    } else if (strcmp(name, "candidates") == 0) {
        compare_candidates(t, layer, data);
    } else if (strcmp(name, "engram_rows") == 0) {
        compare_engram_rows(t, layer, data);
    } else if (strcmp(name, "weights") == 0) {
        const float *wanted = recorded(t, DI_F32, layer, name, &width);
        tally_f32(&t->weights, data, wanted, t->num_rows * width);
    } else if (strcmp(name, "h") == 0) {
        const di_bf16 *wanted = recorded(t, DI_BF16, layer, name, &width);
        if (t->keep == 0 || layer > t->first_layer) {
            tally_bf16(&t->h, data, wanted, (int64_t)(bytes / sizeof *wanted));
        }
        t->f.be->ops->upload(t->f.be, data, wanted, bytes);
    } else if (strcmp(name, "pre") == 0) {
        const float *wanted = recorded(t, DI_F32, layer, name, &width);
        if (t->keep == 0 || layer > t->first_layer) {
            tally_f32(&t->pre, data, wanted, (int64_t)(bytes / sizeof *wanted));
        }
        t->f.be->ops->upload(t->f.be, data, wanted, bytes);
    } else {
        compare_out(t, name, layer, data);
    }
}

/* The same for replay by mask, whose passes hold dropped rows too: recorded are the last ones. */
static void observe_masked(void *user, const char *name, int layer, void *data, size_t bytes) {
    trace *t = user;
    if (layer > t->first_layer && strcmp(name, "latents") != 0) {
        int64_t rows = t->f.m->any.kept.step.num_rows;
        size_t dropped = bytes / (size_t)rows * (size_t)(rows - t->keep);
        observe(user, name, layer, (char *)data + dropped, bytes - dropped);
    } else {
        observe(user, name, layer, data, bytes);
    }
}

/* ---- state ------------------------------------------------------------------------------------*/

static float e2m1_at(const uint8_t *codes, int j) {
    return di_e2m1_to_f32(j % 2 ? codes[j / 2] >> 4 : codes[j / 2]);
}

/* Reads a record the way ops.h says it is encoded, independently of any backend's reader. */
static float record_value(const uint8_t *record, const char *kind, int dim, int j) {
    if (strcmp(kind, "window") == 0) {
        return di_e4m3_to_f32(record[j]) * di_e8m0_to_f32(record[dim + j / 32]);
    }
    const uint8_t *scale = record + dim / 2;
    float s =
        strcmp(kind, "keys") == 0 ? di_e8m0_to_f32(scale[j / 32]) : di_e4m3_to_f32(scale[j / 16]);
    return e2m1_at(record, j) * s;
}

/* Counts values that differ from the recorded rows, the last of which is row `last`. */
static int64_t state_differences(trace *t, const di_seq *seq, int l, const char *kind,
                                 int64_t end) {
    if (!case_has(&t->g, "prefill.layers.%d.%s", l, kind)) {
        return 0;
    }
    di_tensor array = case_get(&t->g, DI_BF16, "prefill.layers.%d.%s", l, kind);
    const di_state_pool *pool = di_cache_pool(t->f.cache);
    int dim = (int)array.shape[1], ratio = t->f.c->layers[l].ratio;
    int64_t first = end - array.shape[0], wrong = 0;
    for (int64_t i = 0; i < array.shape[0]; i++) {
        int64_t e = first + i;
        const uint8_t *record = strcmp(kind, "window") == 0 ? di_ring_row(pool, seq->slot, l, e)
                                : strcmp(kind, "keys") == 0
                                    ? di_key_row(pool, seq->blocks, l, ratio, e)
                                    : di_latent_row(pool, seq->blocks, l, ratio, e);
        for (int j = 0; j < dim; j++) {
            float wanted = di_bf16_to_f32(((const di_bf16 *)array.data)[i * dim + j]);
            wrong += record_value(record, kind, dim, j) != wanted;
        }
    }
    return wrong;
}

static void compare_state(trace *t, const di_seq *seq) {
    int64_t wrong = 0, len = seq->len;
    for (int l = 0; l < t->f.c->num_hidden_layers; l++) {
        int ratio = t->f.c->layers[l].ratio;
        wrong += state_differences(t, seq, l, "window", len);
        if (ratio > 0) {
            wrong += state_differences(t, seq, l, "entries", len / ratio);
            wrong += state_differences(t, seq, l, "keys", len / ratio);
        }
        if (case_has(&t->g, "prefill.layers.%d.partial", l)) {
            di_tensor p = case_get(&t->g, DI_F32, "prefill.layers.%d.partial", l);
            const di_state_pool *pool = di_cache_pool(t->f.cache);
            tally gap = {0};
            for (int64_t i = 0; i < p.shape[0]; i++) {
                int64_t width = elements_from(&p, 1);
                tally_f32(&gap, di_group_row(pool, seq->slot, l, len - p.shape[0] + i),
                          (const float *)p.data + i * width, width);
            }
            assert_true(gap.worst < 1e-4); /* f32 sums in another order */
        }
    }
    assert_int_equal(wrong, 0);
}

/* ---- runs -------------------------------------------------------------------------------------*/

static double calls(trace *t, int chunk) {
    di_error err = {0};
    di_seq seq;
    double worst = 0;
    int vocab = t->f.c->vocab_size;
    di_tensor tokens = case_get(&t->g, DI_I32, "tokens");
    di_tensor positions = case_get(&t->g, DI_I32, "prefill.positions");
    di_tensor prefill = case_get(&t->g, DI_F32, "prefill.logits");
    int n = (int)tokens.shape[0], kept = (int)positions.shape[0];
    float *logits = test_malloc((size_t)n * (size_t)vocab * sizeof *logits);
    assert_true(di_seq_open(t->f.cache, &seq, (di_hash){0}, &err));
    t->prefix = "prefill.";
    for (int at = 0; at < n; at += chunk) {
        t->row = at;
        t->num_rows = n - at < chunk ? n - at : chunk;
        fixture_forward(&t->f, &seq, (const int32_t *)tokens.data + at, (int)t->num_rows,
                        (int)t->num_rows, 0, logits + (size_t)at * (size_t)vocab);
    }
    compare_state(t, &seq);
    tally gap = {0};
    for (int i = 0; i < kept; i++) {
        int p = ((const int32_t *)positions.data)[i];
        tally_f32(&gap, logits + (size_t)p * (size_t)vocab,
                  (const float *)prefill.data + (size_t)i * (size_t)vocab, vocab);
    }
    di_tensor steps = case_get(&t->g, DI_F32, "decode.logits");
    di_tensor fed = case_get(&t->g, DI_I32, "decode.tokens");
    t->prefix = "decode.";
    t->num_rows = 1;
    for (t->row = 0; t->row < steps.shape[0]; t->row++) {
        fixture_forward(&t->f, &seq, (const int32_t *)fed.data + t->row, 1, 1, 0, logits);
        tally_f32(&gap, logits, (const float *)steps.data + t->row * vocab, vocab);
    }
    worst = gap.worst;
    di_seq_close(t->f.cache, &seq);
    test_free(logits);
    return worst;
}

static void check(const char *config, const char *file, backend_kind kind, int chunk) {
    trace t = {0};
    fixture_open(&t.f, testdata_path("%s", config), kind, 128);
    case_open(&t.g, testdata_path("golden/%s/%s.safetensors", config, file));
    di_model_observe(t.f.m, observe, &t);
    double logits = calls(&t, chunk);
    double share = (double)t.h.unequal / (double)t.h.count;
    print_message(
        "    %s/%s chunk %d: h unequal %lld of %lld, worst %.2g; outs worst %.2g; pre "
        "%.2g; weights %.2g; logits %.2g; latent ties %lld; integers wrong %lld of %lld %s\n",
        config, file, chunk, (long long)t.h.unequal, (long long)t.h.count, t.h.worst, t.outs.worst,
        t.pre.worst, t.weights.worst, logits, (long long)t.latent_ties, (long long)t.wrong_integers,
        (long long)t.integers, t.first_wrong);
    /* The limits of tests/data/golden/README.md: a deliberate mistake moves 14 % and more. A flip
     * inside a layer shows in its mix and weights; deep's narrow streams feel it most. */
    assert_true(t.h.count > 0 && t.integers > 0);
    assert_int_equal(t.wrong_integers, 0);
    assert_true(share <= 0.01);
    assert_true(t.h.worst < 0.04);
    assert_true(t.pre.worst < 2e-3);
    assert_true(t.weights.worst < 2e-3);
    assert_true(logits < 2e-5);
    case_close(&t.g);
    fixture_close(&t.f);
}

/* Recorded are the boundary's input and everything behind it, for the rows that replay keeps. */
static void check_replay(backend_kind kind, bool by_mask) {
    trace t = {.prefix = "prefill.", .keep = 20};
    di_error err = {0};
    di_seq seq;
    fixture_open(&t.f, testdata_path("tiny"), kind, 128);
    case_open(&t.g, testdata_path("golden/tiny-replay/replay-064-keep020.safetensors"));
    t.first_layer = t.f.c->boundary_layer - 1;
    di_tensor tokens = case_get(&t.g, DI_I32, "tokens");
    di_tensor wanted = case_get(&t.g, DI_F32, "prefill.logits");
    int n = (int)tokens.shape[0];
    assert_int_equal(((const int32_t *)case_get(&t.g, DI_I32, "keep").data)[0], t.keep);
    float *logits = test_malloc((size_t)elements_from(&wanted, 0) * sizeof *logits);
    di_model_observe(t.f.m, by_mask ? observe_masked : observe, &t);
    t.f.m->o.replay_by_mask = by_mask;
    assert_true(di_seq_open(t.f.cache, &seq, (di_hash){0}, &err));
    fixture_forward(&t.f, &seq, tokens.data, n, t.keep, n - t.keep, logits);
    tally gap = {0};
    tally_f32(&gap, logits, wanted.data, elements_from(&wanted, 0));
    print_message("    h unequal %lld of %lld, worst %.2g; pre %.2g; logits %.2g\n",
                  (long long)t.h.unequal, (long long)t.h.count, t.h.worst, t.pre.worst, gap.worst);
    assert_true(t.h.count > 0 && t.h.unequal <= t.h.count / 100);
    assert_true(t.h.worst < 0.04);
    assert_true(t.pre.worst < 2e-3);
    assert_true(gap.worst < 2e-5);
    di_seq_close(t.f.cache, &seq);
    test_free(logits);
    case_close(&t.g);
    fixture_close(&t.f);
}

static void test_ref_layers_equal_the_tiny_trace(void **state) {
    (void)state;
    check("tiny", "decode-025", BACKEND_REF, 128);
}

static void test_ref_layers_equal_the_wide_trace(void **state) {
    (void)state;
    check("wide", "decode-064", BACKEND_REF, 128);
}

static void test_ref_layers_equal_the_deep_trace(void **state) {
    (void)state;
    check("deep", "decode-070", BACKEND_REF, 128);
}

static void test_cpu_layers_equal_the_tiny_trace(void **state) {
    (void)state;
    check("tiny", "decode-025", BACKEND_CPU, 128);
}

static void test_cpu_layers_equal_the_wide_trace(void **state) {
    (void)state;
    check("wide", "decode-064", BACKEND_CPU, 128);
}

static void test_cpu_layers_equal_the_deep_trace(void **state) {
    (void)state;
    check("deep", "decode-070", BACKEND_CPU, 128);
}

/* Every split of the prompt must meet the same vectors: odd chunks leave groups open, chunks of one
 * are decode steps, others cross the window's and the block's border. */
static void test_cpu_layers_equal_the_traces_in_any_chunks(void **state) {
    (void)state;
    static const int chunks[] = {1, 2, 3, 7, 16, 17, 24, 47, 63};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        check("tiny", "decode-025", BACKEND_CPU, chunks[i]);
        check("wide", "decode-064", BACKEND_CPU, chunks[i]);
    }
}

static void test_layers_equal_bounded_replay(void **state) {
    (void)state;
    check_replay(BACKEND_REF, false);
    check_replay(BACKEND_CPU, false);
    check_replay(BACKEND_CPU, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref_layers_equal_the_tiny_trace),
        cmocka_unit_test(test_ref_layers_equal_the_wide_trace),
        cmocka_unit_test(test_ref_layers_equal_the_deep_trace),
        cmocka_unit_test(test_cpu_layers_equal_the_tiny_trace),
        cmocka_unit_test(test_cpu_layers_equal_the_wide_trace),
        cmocka_unit_test(test_cpu_layers_equal_the_deep_trace),
        cmocka_unit_test(test_cpu_layers_equal_the_traces_in_any_chunks),
        cmocka_unit_test(test_layers_equal_bounded_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
