/* What lies in rings and open groups after any cutting into steps and any rollback: the rows that
 * readers ask for next are those of the newest writing of their positions. */
#include <string.h>

#include "support/cmocka.h"

#include "base/alloc.h"
#include "cache/cache.h"
#include "ops/address.h"
#include "ops/cpu/cpu.h"
#include "ops/ref/ref.h"
#include "support/random.h"

enum { DIM = 32, RATIO = 2, BACKTRACKING = 6, LONGEST = 6000, STEP = 1000 };

typedef struct world {
    di_config c;
    di_backend *be;
    di_cache *cache;
    di_seq seq;
    uint32_t written[LONGEST], version; /* which writing of a position counts */
    uint64_t seed;
} world;

static int below(world *w, int n) {
    return (int)(next_random(&w->seed) % (uint32_t)n);
}

static void open_world(world *w, bool ref) {
    di_error err = {0};
    *w = (world){.seed = 7};
    w->c = (di_config){
        .head_dim = DIM,
        .index_head_dim = 32,
        .sliding_window = 128,
        .num_hidden_layers = 2,
        .num_kv_sources = 1,
        .kv_source_layer_ids = {1},
        .max_position_embeddings = LONGEST,
        .layers = {{.ratio = 0}, {.ratio = RATIO}},
    };
    di_cache_options o = {.num_blocks = (int)di_blocks_for(LONGEST) + 1,
                          .num_slots = 2,
                          .max_backtracking = BACKTRACKING,
                          .draft_layers = 1};
    w->be = ref ? di_ref_create(&err) : di_cpu_create(&(di_cpu_options){0}, &err);
    w->cache = di_cache_create(&w->c, w->be, &o, &err);
    di_seq unused;
    assert_true(di_seq_open(w->cache, &unused, (di_hash){0}, &err));
    assert_true(di_seq_open(w->cache, &w->seq, (di_hash){0}, &err));
    assert_int_equal(w->seq.slot, 2);
}

static void close_world(world *w) {
    di_seq_close(w->cache, &w->seq);
    di_cache_destroy(w->cache);
    w->be->ops->destroy(w->be);
}

/* Runs n rows: every record and every group row is filled with its version. */
static void step(world *w, int n) {
    static uint8_t records[STEP * (DIM + 1)];
    static float k[STEP * DIM], g[STEP * DIM];
    static di_bf16 latents[STEP * DIM];
    static di_entry entries[STEP];
    di_error err = {0};
    int64_t first = w->seq.len;
    int closed = 0;
    assert_true(di_seq_reserve(w->cache, &w->seq, first + n, &err));
    for (int t = 0; t < n; t++) {
        uint32_t version = w->written[first + t] = ++w->version;
        memset(records + t * (DIM + 1), 0, DIM + 1);
        memcpy(records + t * (DIM + 1), &version, sizeof version);
        for (int i = 0; i < DIM; i++) {
            k[t * DIM + i] = (float)version;
            g[t * DIM + i] = 0;
        }
        if ((first + t + 1) % RATIO == 0) {
            entries[closed++] = (di_entry){.entry = (first + t) / RATIO};
        }
    }
    di_seq_rows rows = {.num_rows = n, .pos0 = first, .blocks = w->seq.blocks, .slot = w->seq.slot};
    di_step s = {.num_rows = n, .num_seqs = 1, .seqs = &rows, .pool = *di_cache_pool(w->cache)};
    w->be->ops->compress(w->be, &s, 1, RATIO, k, g, entries, closed, DIM, latents);
    for (int layer = 0; layer < 3; layer++) { /* the third is the draft model's */
        w->be->ops->window_store(w->be, &s, layer, records);
    }
    assert_true(w->be->ops->sync(w->be, &err));
    for (int i = 0; i < closed; i++) { /* equal gates: the mean of both rows */
        int64_t p = entries[i].entry * RATIO;
        float mean = ((float)w->written[p] + (float)w->written[p + 1]) / 2;
        assert_true(di_bf16_to_f32(latents[i * DIM]) == di_round_bf16(mean));
    }
    w->seq.len += n;
}

static void rows_ok(world *w) {
    const di_state_pool *pool = di_cache_pool(w->cache);
    int64_t len = w->seq.len, from = len > 128 ? len - 128 : 0;
    for (int64_t p = from; p < len; p++) {
        for (int layer = 0; layer < 3; layer++) {
            uint32_t found;
            memcpy(&found, di_ring_row(pool, w->seq.slot, layer, p), sizeof found);
            assert_int_equal(found, w->written[p]);
        }
    }
    if (len % RATIO) {
        assert_true(*di_group_row(pool, w->seq.slot, 1, len - 1) == (float)w->written[len - 1]);
    }
}

/* Steps of lengths around the window and the ring, each followed by taking back up to B - 1. */
static void test_rows_are_right_after_any_steps_and_rollbacks(void **state) {
    (void)state;
    static const int lengths[] = {1, 2, 3, 6, 127, 128, 133, 134, 135, 1000};
    for (int ref = 0; ref < 2; ref++) {
        static world w;
        open_world(&w, ref);
        for (int round = 0; round < 600; round++) {
            int n = lengths[below(&w, round % 8 ? 4 : 10)];
            if (w.seq.len + n > LONGEST) {
                w.seq.len = 0; /* as another sequence in the same slot */
            }
            step(&w, n);
            rows_ok(&w);
            int back = below(&w, n < BACKTRACKING ? n + 1 : BACKTRACKING);
            di_seq_truncate(w.cache, &w.seq, w.seq.len - (below(&w, 2) ? back : 0));
            rows_ok(&w);
        }
        close_world(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_right_after_any_steps_and_rollbacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
