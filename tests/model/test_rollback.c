/* Refused drafts leave no trace: after any rounds of verifying and taking back, every kind of state
 * that can still be read is that of a sequence that was never given a draft, bit for bit, and so
 * are the logits of every row that counted and the draft model's next proposals. What must not be
 * read any more is overwritten with what is no number before each round. */
#include <string.h>

#include "support/cmocka.h"
#include "support/golden.h"
#include "support/mirror.h"

#include "model/draft.h"
#include "ops/address.h"
#include "support/random.h"

enum { LENGTH = 150, MOST = 5, ROWS = 64 };

typedef struct world {
    fixture f;
    int32_t text[LENGTH + MOST + 1];
    di_seq plain, drafted;
    float *wanted, *found; /* [1 + MOST, vocab] */
    uint64_t random;
    long rounds, refused;
} world;

static int below(world *w, int n) {
    return (int)(next_random(&w->random) % (uint32_t)n);
}

static void open_world(world *w, const char *folder) {
    di_error err = {0};
    *w = (world){.random = 5};
    fixture_open_drafts(&w->f, folder, BACKEND_CPU, ROWS);
    size_t vocab = (size_t)w->f.c->vocab_size;
    w->wanted = test_malloc((1 + MOST) * vocab * sizeof(float));
    w->found = test_malloc((1 + MOST) * vocab * sizeof(float));
    for (int i = 0; i < LENGTH + MOST + 1; i++) {
        w->text[i] = below(w, (int)vocab);
    }
    assert_true(di_seq_open(w->f.cache, &w->plain, (di_hash){0}, &err));
    assert_true(di_seq_open(w->f.cache, &w->drafted, (di_hash){0}, &err));
}

static void close_world(world *w) {
    di_seq_close(w->f.cache, &w->plain);
    di_seq_close(w->f.cache, &w->drafted);
    test_free(w->wanted);
    test_free(w->found);
    fixture_close(&w->f);
}

/* ---- what can be read ---- */

static void same(const void *a, const void *b, size_t bytes, const char *kind, int layer,
                 int64_t at) {
    if (memcmp(a, b, bytes) != 0) {
        fail_msg("%s of layer %d at %lld differ", kind, layer, (long long)at);
    }
}

static void same_rings(const world *w, const di_state_pool *pool, int64_t len) {
    int layers = w->f.c->num_hidden_layers + w->f.c->num_nextn_predict_layers;
    int64_t from = len > w->f.c->sliding_window ? len - w->f.c->sliding_window : 0;
    for (int l = 0; l < layers; l++) {
        for (int64_t p = from; p < len; p++) {
            same(di_ring_row(pool, w->plain.slot, l, p), di_ring_row(pool, w->drafted.slot, l, p),
                 pool->layout->window_bytes, "ring rows", l, p);
        }
    }
}

static void same_entries(const world *w, const di_state_pool *pool, int64_t len) {
    for (int i = 0; i < w->f.c->num_kv_sources; i++) {
        int l = w->f.c->kv_source_layer_ids[i], ratio = w->f.c->layers[l].ratio;
        for (int64_t e = 0; e < len / ratio; e++) {
            same(di_latent_row(pool, w->plain.blocks, l, ratio, e),
                 di_latent_row(pool, w->drafted.blocks, l, ratio, e), pool->layout->latent_bytes,
                 "latents", l, e);
            same(di_key_row(pool, w->plain.blocks, l, ratio, e),
                 di_key_row(pool, w->drafted.blocks, l, ratio, e), pool->layout->key_bytes, "keys",
                 l, e);
        }
        for (int64_t p = len / ratio * ratio; ratio > 1 && p < len; p++) {
            same(di_group_row(pool, w->plain.slot, l, p), di_group_row(pool, w->drafted.slot, l, p),
                 pool->layout->group_bytes, "open groups", l, p);
        }
    }
}

/* ---- what cannot ---- */

/* No number in any format: E4M3, its scales, E8M0, f32. */
static void spoil(const void *record, size_t bytes) {
    memset((void *)record, 0xff, bytes);
}

/* Everything that lies at or behind the drafted sequence's end, or fell out of its windows. */
static void spoil_the_rest(const world *w) {
    const di_state_pool *pool = di_cache_pool(w->f.cache);
    const di_state_layout *l = pool->layout;
    int layers = w->f.c->num_hidden_layers + w->f.c->num_nextn_predict_layers;
    int64_t len = w->drafted.len;
    int64_t window = len < w->f.c->sliding_window ? len : w->f.c->sliding_window;
    for (int i = 0; i < layers; i++) {
        for (int64_t p = len; p < len + l->ring_rows - window; p++) {
            spoil(di_ring_row(pool, w->drafted.slot, i, p), l->window_bytes);
        }
    }
    for (int i = 0; i < w->f.c->num_kv_sources; i++) {
        int s = w->f.c->kv_source_layer_ids[i], ratio = w->f.c->layers[s].ratio;
        int64_t room = (int64_t)w->drafted.num_blocks * DI_BLOCK_TOKENS;
        for (int64_t e = len / ratio; e < room / ratio; e++) {
            spoil(di_latent_row(pool, w->drafted.blocks, s, ratio, e), l->latent_bytes);
            spoil(di_key_row(pool, w->drafted.blocks, s, ratio, e), l->key_bytes);
        }
        for (int64_t p = len; ratio > 1 && p < len + l->group_rows - len % ratio; p++) {
            spoil(di_group_row(pool, w->drafted.slot, s, p), l->group_bytes);
        }
    }
}

/* Draws the likeliest token of each row. */
static int32_t likeliest(void *user, int i, int j, const float *logits) {
    (void)i;
    (void)j;
    return argmax(logits, ((const fixture *)user)->c->vocab_size);
}

static void same_proposals(world *w) {
    int32_t tokens[2][64];
    float confidence[2][64];
    di_error err = {0};
    const di_seq *seqs[] = {&w->plain, &w->drafted};
    for (int i = 0; i < 2; i++) {
        di_draft_rows part = {seqs[i]->len, seqs[i]->slot, w->text[seqs[i]->len]};
        if (!di_model_draft(w->f.m, &part, 1, likeliest, &w->f, tokens[i], confidence[i], &err)) {
            fail_msg("%s", err.message);
        }
    }
    size_t n = (size_t)w->f.c->dspark_block_size;
    assert_memory_equal(tokens[0], tokens[1], n * sizeof(int32_t));
    assert_memory_equal(confidence[0], confidence[1], n * sizeof(float));
}

/* ---- rounds ---- */

/* Verifies `length` drafts behind the next token, of which the first `right` are. */
static void round_of(world *w, int length, int right) {
    int32_t rows[1 + MOST];
    size_t vocab = (size_t)w->f.c->vocab_size;
    int64_t at = w->drafted.len;
    memcpy(rows, w->text + at, sizeof rows);
    for (int j = right; j < length; j++) {
        rows[1 + j] = (rows[1 + j] + 1 + below(w, (int)vocab - 1)) % (int)vocab;
    }
    spoil_the_rest(w);
    fixture_forward(&w->f, &w->drafted, rows, 1 + length, 1 + length, 0, w->found);
    di_seq_truncate(w->f.cache, &w->drafted, at + 1 + right);
    for (int j = 0; j <= right; j++) {
        fixture_forward(&w->f, &w->plain, w->text + at + j, 1, 1, 0, w->wanted);
        assert_memory_equal(w->found + (size_t)j * vocab, w->wanted, vocab * sizeof(float));
    }
    assert_int_equal(w->plain.len, w->drafted.len);
    same_rings(w, di_cache_pool(w->f.cache), w->plain.len);
    same_entries(w, di_cache_pool(w->f.cache), w->plain.len);
    w->rounds++;
    w->refused += length - right;
}

typedef struct pattern {
    int length, right; /* -1 = any */
} pattern;

static void walk(world *w, int prompt, pattern p) {
    di_error err = {0};
    di_seq_close(w->f.cache, &w->plain);
    di_seq_close(w->f.cache, &w->drafted);
    assert_true(di_seq_open(w->f.cache, &w->plain, (di_hash){0}, &err));
    assert_true(di_seq_open(w->f.cache, &w->drafted, (di_hash){0}, &err));
    fixture_forward(&w->f, &w->plain, w->text, prompt, 0, 0, NULL);
    fixture_forward(&w->f, &w->drafted, w->text, prompt, 0, 0, NULL);
    for (int k = 0; w->drafted.len < LENGTH; k++) {
        int length = p.length < 0 ? below(w, MOST + 1) : p.length;
        int right = p.right < 0 ? below(w, length + 1) : p.right;
        round_of(w, length, right);
        if (k % 7 == 0) {
            spoil_the_rest(w);
            same_proposals(w);
        }
    }
}

static void walk_all(const char *folder) {
    static const pattern patterns[] = {{2, 1}, {5, 2}, {5, 0}, {5, 5}, {1, 0}, {-1, -1}};
    world w;
    open_world(&w, folder);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        walk(&w, 1 + below(&w, 40), patterns[i]); /* rounds begin at every place in a ring */
    }
    print_message("    %s: %ld rounds, %ld drafts refused\n", folder, w.rounds, w.refused);
    close_world(&w);
}

static void test_tiny(void **state) {
    (void)state;
    walk_all(testdata_path("tiny"));
}

static void test_wide(void **state) {
    (void)state;
    walk_all(testdata_path("wide"));
}

static void test_deep(void **state) {
    (void)state;
    walk_all(testdata_path("deep"));
}

static void test_demo(void **state) {
    (void)state;
    walk_all("models/demo");
}

int main(void) {
    if (card_under_test()) { /* its pools are not the host's to read */
        print_message("1..0 # SKIP on a card\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_deep),
        cmocka_unit_test(test_demo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
