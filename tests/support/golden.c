/* Golden vectors and models to hold against them: see golden.h. */
#include "support/golden.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/cmocka.h"
#include "support/mirror.h"

#include "base/alloc.h"
#include "base/file.h"
#include "model/graph.h"
#include "ops/address.h"
#include "ops/cpu/cpu.h"
#include "ops/ref/ref.h"
#include "text/token_map.h"

const char *testdata_path(const char *format, ...) {
    static char path[1024];
    const char *root = getenv("TESTDATA");
    int used = snprintf(path, sizeof path, "%s/", root ? root : "build/testdata");
    va_list args;
    va_start(args, format);
    vsnprintf(path + used, sizeof path - (size_t)used, format, args);
    va_end(args);
    return path;
}

/* ---- cases ------------------------------------------------------------------------------------*/

void case_open(golden_case *g, const char *path) {
    di_error err;
    if (!di_shard_open(&g->shard, path, &err)) {
        fail_msg("%s", err.message);
    }
}

void case_close(golden_case *g) {
    di_shard_close(&g->shard);
}

bool case_has(const golden_case *g, const char *format, ...) {
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return di_shard_find(&g->shard, name) != NULL;
}

/* Recorded arrays may lie at odd addresses; copies of those live as long as the test. */
static const void *aligned(const di_tensor *t) {
    static struct copy {
        struct copy *next;
        double data[];
    } * copies;
    if ((uintptr_t)t->data % sizeof(double) == 0) {
        return t->data;
    }
    size_t bytes = (size_t)elements_from(t, 0) * (size_t)di_dtype_bits(t->dtype) / 8;
    struct copy *c = malloc(sizeof *c + bytes);
    assert_non_null(c);
    c->next = copies;
    copies = c;
    return memcpy(c->data, t->data, bytes);
}

di_tensor case_get(const golden_case *g, di_dtype dtype, const char *format, ...) {
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    di_tensor t;
    if (!di_shard_get(&g->shard, name, &t)) {
        fail_msg("%s: no array %s", g->shard.path, name);
    }
    if (t.dtype != dtype) {
        fail_msg("%s: %s is %s", g->shard.path, name, di_dtype_name(t.dtype));
    }
    t.data = aligned(&t);
    return t;
}

int64_t elements_from(const di_tensor *t, int from) {
    int64_t n = 1;
    for (int i = from; i < t->rank; i++) {
        n *= t->shape[i];
    }
    return n;
}

/* ---- models -----------------------------------------------------------------------------------*/

/* From the folder's tokenizer, or the made-up one of checkpoints that have none. */
static int32_t *token_map(const di_config *c, const char *folder) {
    di_error err = {0};
    int32_t classes = c->engram_compressed_vocab_size;
    int32_t *map = di_calloc((size_t)c->vocab_size, sizeof *map);
    char *path = di_path_join(folder, "tokenizer.json");
    assert_true(map && path);
    if (access(path, R_OK) == 0) {
        di_tokenizer *tok = di_tokenizer_open(path, &err);
        if (!tok || !di_token_map_build(tok, c->vocab_size, map, &classes, &err)) {
            fail_msg("%s", err.message);
        }
        assert_int_equal(classes, c->engram_compressed_vocab_size);
        di_tokenizer_close(tok);
    } else {
        di_token_map_synthetic(c->vocab_size, classes, map);
    }
    di_free(path);
    return map;
}

static void open_all(fixture *f, const char *folder, backend_kind kind, int max_rows, bool drafts) {
    di_error err = {0};
    *f = (fixture){0};
    f->w = di_weights_open(folder, &err);
    if (!f->w) {
        fail_msg("%s", err.message);
    }
    f->c = &f->w->config;
    f->be = kind == BACKEND_REF ? di_ref_create(&err)
            : card_under_test() ? mirror_of_card(false)
                                : di_cpu_create(&(di_cpu_options){0}, &err);
    di_cache_options cache = {.num_blocks = 64, .num_slots = 8, .max_backtracking = 6};
    cache.draft_layers = drafts ? f->c->num_nextn_predict_layers : 0;
    f->cache = f->be ? di_cache_create(f->c, f->be, &cache, &err) : NULL;
    if (!f->cache) {
        fail_msg("%s", err.message);
    }
    f->token_map = token_map(f->c, folder);
    di_model_options o = {
        .max_rows = max_rows, .max_logits = max_rows, .token_map = f->token_map, .drafts = drafts};
    f->m = di_model_create(f->w, f->be, f->cache, &o, &err);
    if (!f->m) {
        fail_msg("%s", err.message);
    }
}

void fixture_open(fixture *f, const char *folder, backend_kind kind, int max_rows) {
    open_all(f, folder, kind, max_rows, false);
}

void fixture_open_drafts(fixture *f, const char *folder, backend_kind kind, int max_rows) {
    open_all(f, folder, kind, max_rows, true);
}

void fixture_close(fixture *f) {
    di_model_destroy(f->m);
    di_cache_destroy(f->cache);
    f->be->ops->destroy(f->be);
    di_weights_close(f->w);
    di_free(f->token_map);
    for (int i = 0; i < 16; i++) {
        di_free(f->tokens[i]);
    }
}

di_model_rows fixture_rows(fixture *f, di_seq *seq, const int32_t *tokens, int n) {
    di_error err = {0};
    if (!di_seq_reserve(f->cache, seq, seq->len + n, &err)) {
        fail_msg("%s", err.message);
    }
    int32_t **all = &f->tokens[seq->slot];
    *all = di_realloc_array(*all, (size_t)(seq->len + n), sizeof **all);
    assert_non_null(*all);
    memcpy(*all + seq->len, tokens, (size_t)n * sizeof *tokens);
    di_model_rows rows = di_model_next_rows(seq, *all, n);
    seq->len += n;
    return rows;
}

void fixture_forward(fixture *f, di_seq *seq, const int32_t *tokens, int n, int num_logits,
                     int64_t replay_from, float *logits) {
    di_error err = {0};
    di_model_rows part = fixture_rows(f, seq, tokens, n);
    part.num_logits = num_logits;
    part.replay_from = replay_from;
    if (!di_model_forward(f->m, &part, 1, logits, &err)) {
        fail_msg("%s", err.message);
    }
}

/* ---- latents ----------------------------------------------------------------------------------*/

static uint8_t code_at(const uint8_t *codes, int j) {
    return j % 2 ? codes[j / 2] >> 4 : codes[j / 2] & 15;
}

static void set_code(uint8_t *codes, int j, uint8_t code) {
    codes[j / 2] =
        (uint8_t)(j % 2 ? (codes[j / 2] & 15) | code << 4 : (codes[j / 2] & 0xf0) | code);
}

int64_t store_latents_as_recorded(fixture *f, int layer, const di_bf16 *latents) {
    int ratio = f->c->layers[layer].ratio, dim = f->c->head_dim;
    const di_pass *pass = &f->m->any.all;
    int64_t changed = 0;
    for (int i = 0; i < pass->num_entries[ratio]; i++) {
        const di_entry *e = &pass->entries[ratio][i];
        uint8_t *record = (uint8_t *)di_latent_row(
            di_cache_pool(f->cache), pass->seqs[e->seq].blocks, layer, ratio, e->entry);
        for (int j = 0; j < dim; j++) {
            float x = di_bf16_to_f32(latents[i * dim + j]);
            float s = di_e4m3_to_f32(record[dim / 2 + j / 16]);
            uint8_t ours = di_e2m1_from_f32(x * (1.0f / s)), theirs = di_e2m1_from_f32(x / s);
            assert_int_equal(code_at(record, j), ours);
            changed += ours != theirs;
            set_code(record, j, theirs);
        }
    }
    return changed;
}

void observe_latents(void *user, const char *name, int layer, void *data, size_t bytes) {
    (void)bytes;
    if (strcmp(name, "latents") == 0) {
        store_latents_as_recorded(user, layer, data);
    }
}

/* ---- comparing --------------------------------------------------------------------------------*/

void tally_f32(tally *t, const float *found, const float *wanted, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double gap = fabs((double)found[i] - wanted[i]);
        gap = isnan(gap) ? INFINITY : gap;
        t->worst = gap > t->worst ? gap : t->worst;
        t->unequal += gap != 0;
    }
    t->count += n;
}

void tally_bf16(tally *t, const di_bf16 *found, const di_bf16 *wanted, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float a = di_bf16_to_f32(found[i]), b = di_bf16_to_f32(wanted[i]);
        tally_f32(t, &a, &b, 1);
    }
}

double relative_error(const float *found, const float *wanted, int64_t n) {
    double gap = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)found[i] - wanted[i];
        gap += d * d;
        norm += (double)wanted[i] * wanted[i];
    }
    return sqrt(gap / norm);
}

int argmax(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}
