/* Random events on tiny pools. A plain shadow, which knows prefixes by their tokens and searches
 * everything from end to end, says which blocks and snapshots must be there; a mark written into
 * each block and slot says whose state the memory really holds.
 *
 *   SEED=n EVENTS=n  another walk, a longer one */
#include <string.h>

#include "support/cmocka.h"
#include "support/configs.h"

#include "cache/internal.h"
#include "ops/cpu/cpu.h"
#include "support/random.h"

enum {
    BLOCKS = 14,
    SLOTS = 4,
    SNAPSHOTS = 3,
    BACKTRACKING = 6,
    LONGEST = 7, /* blocks of a sequence */
    PINS = 2,
};

/* A prefix of whole blocks as a number: digits salt, then the pattern of each block, from 1 on. */
typedef uint64_t prefix_key;

typedef struct text {
    int salt, patterns[LONGEST];
    int32_t tokens[LONGEST * DI_BLOCK_TOKENS];
} text;

/* A block in the pool. */
typedef struct instance {
    bool used;
    int refs;
    prefix_key key;            /* 0: not published */
    uint64_t published, stamp; /* when; and when it was last used, if nobody holds it */
} instance;

typedef struct shadow_snapshot {
    prefix_key key; /* 0: free */
    int pins, owner;
    bool partial;
    uint64_t stamp;
} shadow_snapshot;

typedef struct shadow_seq {
    bool open, slot_known;
    int id; /* never used again */
    text text;
    di_seq seq;
    int blocks[LONGEST], num_blocks, num_published, rolling;
} shadow_seq;

typedef struct shadow_pin {
    bool used;
    text text;
    int num_blocks, blocks[LONGEST], snapshot;
    int64_t n;
} shadow_pin;

typedef struct world {
    uint64_t seed, clock;
    bool exact; /* hashes are whole: the shadow knows what is found */
    di_config config;
    di_backend *be;
    di_cache *cache;
    instance blocks[BLOCKS];
    shadow_snapshot snapshots[SNAPSHOTS];
    shadow_seq seqs[SLOTS];
    shadow_pin pins[PINS];
    int next_id;
    long hits, refused, evicted, twins, replaced;
} world;

static int below(world *w, int n) {
    return (int)(next_random(&w->seed) % (uint32_t)n);
}

/* ---- texts ---- */

static prefix_key key_of(const text *t, int blocks) {
    prefix_key key = (prefix_key)t->salt + 1;
    for (int i = 0; i < blocks; i++) {
        key = key * 8 + (prefix_key)t->patterns[i] + 1;
    }
    return key;
}

static di_hash salt_of(const text *t) {
    return (di_hash){.low = (uint64_t)t->salt * 77, .high = (uint64_t)t->salt};
}

static void make_text(world *w, text *t) {
    t->salt = below(w, 8) == 0;
    for (int b = 0; b < LONGEST; b++) {
        t->patterns[b] = below(w, 4) == 0 ? 1 + below(w, 2) : 0;
        for (int i = 0; i < DI_BLOCK_TOKENS; i++) {
            t->tokens[b * DI_BLOCK_TOKENS + i] = t->patterns[b] * 1000 + i;
        }
    }
}

/* ---- the shadow's pool ---- */

static int count_free(const world *w) {
    int n = 0;
    for (int i = 0; i < BLOCKS; i++) {
        n += !w->blocks[i].used || w->blocks[i].refs == 0;
    }
    return n;
}

/* Of several, the one published first. */
static int find_instance(const world *w, prefix_key key, bool held) {
    int found = -1;
    for (int i = 0; i < BLOCKS; i++) {
        const instance *b = &w->blocks[i];
        bool first = found < 0 || b->published < w->blocks[found].published;
        if (b->used && b->key == key && (b->refs > 0) == held && first) {
            found = i;
        }
    }
    return found;
}

static int find_published(const world *w, prefix_key key) {
    int held = find_instance(w, key, true);
    return held >= 0 ? held : find_instance(w, key, false);
}

static int find_snapshot(const world *w, prefix_key key) {
    for (int i = 0; i < SNAPSHOTS; i++) {
        if (w->snapshots[i].key == key) {
            return i;
        }
    }
    return -1;
}

static int take_instance(world *w) {
    int found = -1;
    for (int i = 0; i < BLOCKS && found < 0; i++) {
        found = w->blocks[i].used ? -1 : i;
    }
    if (found < 0) {
        for (int i = 0; i < BLOCKS; i++) {
            const instance *b = &w->blocks[i];
            if (b->refs == 0 && (found < 0 || b->stamp < w->blocks[found].stamp)) {
                found = i;
            }
        }
        int snapshot = find_snapshot(w, w->blocks[found].key);
        if (snapshot >= 0) {
            w->snapshots[snapshot] = (shadow_snapshot){0};
        }
        w->evicted++;
    }
    w->blocks[found] = (instance){.used = true, .refs = 1};
    return found;
}

static void release_instance(world *w, int i) {
    instance *b = &w->blocks[i];
    b->refs--;
    if (b->refs == 0) {
        prefix_key key = b->key;
        b->used = key != 0 && find_instance(w, key, true) < 0;
        b->stamp = ++w->clock;
    }
}

/* ---- marks in memory ---- */

static void *slot_memory(world *w, int slot) {
    return w->cache->pool.slots + (size_t)slot * w->cache->layout.slot_stride;
}

static prefix_key *block_memory(world *w, int block) {
    return (prefix_key *)(w->cache->pool.blocks + (size_t)block * w->cache->layout.block_stride);
}

static void do_copies(world *w) {
    di_slot_copy copies[3];
    int n;
    while ((n = di_cache_take_copies(w->cache, copies, 1 + below(w, 3))) > 0) {
        for (int i = 0; i < n; i++) {
            w->be->ops->copy(w->be, slot_memory(w, copies[i].to), slot_memory(w, copies[i].from),
                             w->cache->layout.slot_stride);
        }
    }
}

static void marks_ok(world *w) {
    for (int s = 0; s < SLOTS; s++) {
        const shadow_seq *q = &w->seqs[s];
        int full = (int)(q->seq.len / DI_BLOCK_TOKENS);
        for (int i = 0; q->open && i < full; i++) {
            assert_int_equal(*block_memory(w, q->seq.blocks[i]), key_of(&q->text, i + 1));
        }
        if (q->open && q->slot_known) {
            assert_int_equal(*(prefix_key *)slot_memory(w, q->seq.slot), key_of(&q->text, full));
        }
    }
}

/* ---- events ---- */

/* What a look-up must find, and what it makes recent. */
static di_prefix_hit shadow_match(world *w, const text *t, int64_t n, int64_t limit, bool partial,
                                  bool touch) {
    int found = 0, resume = 0, which[LONGEST];
    while (found < n / DI_BLOCK_TOKENS) {
        int i = find_published(w, key_of(t, found + 1));
        if (i < 0) {
            break;
        }
        which[found++] = i;
        int snapshot = find_snapshot(w, key_of(t, found));
        bool good = snapshot >= 0 && (partial || !w->snapshots[snapshot].partial);
        if (found * DI_BLOCK_TOKENS <= limit && good) {
            resume = found;
        }
    }
    for (int i = found - 1; touch && i >= 0; i--) {
        w->blocks[which[i]].stamp = ++w->clock;
    }
    if (touch && resume > 0) {
        w->snapshots[find_snapshot(w, key_of(t, resume))].stamp = ++w->clock;
    }
    di_prefix_hit hit = {.resume = resume * DI_BLOCK_TOKENS, .matched = found * DI_BLOCK_TOKENS};
    for (int i = 0; i < resume; i++) {
        hit.held += w->blocks[which[i]].refs > 0 ? DI_BLOCK_TOKENS : 0;
    }
    return hit;
}

static di_prefix_hit match(world *w, const text *t, int64_t n, int64_t limit, bool partial) {
    di_prefix_hit hit = di_cache_match(w->cache, salt_of(t), t->tokens, n, limit, partial);
    if (w->exact) {
        di_prefix_hit wanted = shadow_match(w, t, n, limit, partial, true);
        assert_int_equal(hit.resume, wanted.resume);
        assert_int_equal(hit.matched, wanted.matched);
        assert_int_equal(hit.held, wanted.held);
    }
    assert_true(hit.resume <= (limit > 0 ? limit : 0) && hit.resume <= hit.matched &&
                hit.matched <= n);
    w->hits += hit.resume > 0;
    return hit;
}

static void open_event(world *w) {
    shadow_seq *q = &w->seqs[below(w, SLOTS)];
    di_error err;
    if (q->open) {
        return;
    }
    *q = (shadow_seq){.id = ++w->next_id};
    make_text(w, &q->text);
    int64_t n = below(w, LONGEST * DI_BLOCK_TOKENS + 1);
    bool partial = below(w, 2);
    int64_t resume = below(w, 5) ? match(w, &q->text, n, n - below(w, 3), partial).resume : 0;
    assert_true(di_seq_open_at(w->cache, &q->seq, salt_of(&q->text), q->text.tokens, resume, &err));
    assert_int_equal(q->seq.len, resume);
    q->seq.partial = partial;
    q->open = true;
    q->slot_known = resume > 0;
    q->rolling = -1;
    for (int i = 0; w->exact && i < resume / DI_BLOCK_TOKENS; i++) {
        q->blocks[i] = find_published(w, key_of(&q->text, i + 1));
        w->blocks[q->blocks[i]].refs++;
        q->num_blocks = q->num_published = i + 1;
    }
}

/* Computes some tokens: the blocks they need, then the marks that they would leave. */
static void grow_event(world *w) {
    shadow_seq *q = &w->seqs[below(w, SLOTS)];
    di_error err;
    int64_t left = LONGEST * DI_BLOCK_TOKENS - q->seq.len;
    if (!q->open || left == 0) {
        return;
    }
    int64_t to_border = DI_BLOCK_TOKENS - q->seq.len % DI_BLOCK_TOKENS;
    int64_t n = below(w, 2) ? to_border : 1 + below(w, 300);
    n = n < left ? n : left;
    int64_t wanted = di_blocks_for(q->seq.len + n) - q->seq.num_blocks;
    int available = di_cache_free_blocks(w->cache);
    bool ok = di_seq_reserve(w->cache, &q->seq, q->seq.len + n, &err);
    assert_int_equal(ok, wanted <= available);
    if (!ok) {
        assert_int_equal(err.code, DI_ERR_NO_MEMORY);
        w->refused++;
        return;
    }
    while (w->exact && q->num_blocks < q->seq.num_blocks) {
        q->blocks[q->num_blocks++] = take_instance(w);
    }
    do_copies(w);
    marks_ok(w);
    int first = (int)(q->seq.len / DI_BLOCK_TOKENS);
    q->seq.len += n;
    int full = (int)(q->seq.len / DI_BLOCK_TOKENS);
    for (int i = first; i < full; i++) {
        *block_memory(w, q->seq.blocks[i]) = key_of(&q->text, i + 1);
    }
    *(prefix_key *)slot_memory(w, q->seq.slot) = key_of(&q->text, full);
    q->slot_known = true;
}

static void publish_event(world *w) {
    shadow_seq *q = &w->seqs[below(w, SLOTS)];
    if (!q->open) {
        return;
    }
    int64_t known = q->seq.len - below(w, 2) * below(w, BACKTRACKING);
    known = known > 0 ? known : 0;
    di_seq_publish(w->cache, &q->seq, q->text.tokens, known);
    while (w->exact && q->num_published < known / DI_BLOCK_TOKENS) {
        int i = q->num_published++;
        prefix_key key = key_of(&q->text, i + 1);
        int cached = find_instance(w, key, false);
        w->twins += find_instance(w, key, true) >= 0;
        if (cached >= 0) {
            w->blocks[cached].used = false;
        }
        w->blocks[q->blocks[i]].key = key;
        w->blocks[q->blocks[i]].published = ++w->clock;
    }
    if (w->exact) {
        assert_int_equal(q->seq.num_published, q->num_published);
    }
}

static int own_snapshot(const world *w, const shadow_seq *q) {
    return q->rolling >= 0 && w->snapshots[q->rolling].owner == q->id ? q->rolling : -1;
}

/* A free one, or the one not used for longest that nobody pins; -1: none. */
static int shadow_choose_snapshot(const world *w) {
    int oldest = -1;
    for (int i = 0; i < SNAPSHOTS; i++) {
        const shadow_snapshot *s = &w->snapshots[i];
        if (s->key == 0) {
            return i;
        }
        if (s->pins == 0 && (oldest < 0 || s->stamp < w->snapshots[oldest].stamp)) {
            oldest = i;
        }
    }
    return oldest;
}

static void shadow_take_snapshot(world *w, shadow_seq *q, bool rolling) {
    prefix_key key = key_of(&q->text, q->num_published);
    int there = find_snapshot(w, key), own = rolling ? own_snapshot(w, q) : -1;
    if (there >= 0 && w->snapshots[there].partial && !q->seq.partial &&
        w->snapshots[there].pins == 0) {
        w->snapshots[there] = (shadow_snapshot){0};
        w->replaced++;
    } else if (there >= 0) {
        w->snapshots[there].stamp = ++w->clock;
        return;
    }
    bool moves = own >= 0 && w->snapshots[own].pins == 0;
    int chosen = moves ? own : shadow_choose_snapshot(w);
    if (chosen < 0) {
        return;
    }
    if (own >= 0) {
        w->snapshots[own].owner = 0;
    }
    w->snapshots[chosen] = (shadow_snapshot){
        .key = key, .owner = rolling ? q->id : 0, .partial = q->seq.partial, .stamp = ++w->clock};
    q->rolling = rolling ? chosen : q->rolling;
}

static void snapshot_event(world *w) {
    shadow_seq *q = &w->seqs[below(w, SLOTS)];
    if (!q->open || q->seq.len == 0 || q->seq.len % DI_BLOCK_TOKENS) {
        return;
    }
    bool rolling = below(w, 2);
    di_seq_snapshot(w->cache, &q->seq, q->seq.len, rolling);
    if (w->exact && q->num_published * DI_BLOCK_TOKENS == q->seq.len) {
        shadow_take_snapshot(w, q, rolling);
    }
}

static void truncate_event(world *w) {
    shadow_seq *q = &w->seqs[below(w, SLOTS)];
    int64_t len = q->seq.len - below(w, BACKTRACKING);
    if (q->open && len >= q->seq.num_published * DI_BLOCK_TOKENS) {
        q->slot_known = q->slot_known && len / DI_BLOCK_TOKENS == q->seq.len / DI_BLOCK_TOKENS;
        di_seq_truncate(w->cache, &q->seq, len);
    }
}

static void close_seq(world *w, shadow_seq *q) {
    if (!q->open) {
        return;
    }
    int own = own_snapshot(w, q);
    if (own >= 0) {
        w->snapshots[own].owner = 0;
    }
    while (q->num_blocks > 0) {
        release_instance(w, q->blocks[--q->num_blocks]);
    }
    di_seq_close(w->cache, &q->seq);
    q->open = false;
}

static void pin_event(world *w) {
    shadow_pin *p = &w->pins[below(w, PINS)];
    if (p->used) {
        return;
    }
    *p = (shadow_pin){.snapshot = -1};
    make_text(w, &p->text);
    p->n = below(w, LONGEST * DI_BLOCK_TOKENS + 1);
    int64_t pinned = di_cache_pin(w->cache, salt_of(&p->text), p->text.tokens, p->n);
    p->used = pinned > 0;
    if (w->exact) {
        di_prefix_hit wanted = shadow_match(w, &p->text, p->n, p->n, true, false);
        assert_int_equal(pinned, wanted.matched);
        for (int i = 0; i < pinned / DI_BLOCK_TOKENS; i++) {
            p->blocks[i] = find_published(w, key_of(&p->text, i + 1));
            w->blocks[p->blocks[i]].refs++;
            p->num_blocks = i + 1;
        }
        if (wanted.resume > 0) {
            p->snapshot =
                find_snapshot(w, key_of(&p->text, (int)(wanted.resume / DI_BLOCK_TOKENS)));
            w->snapshots[p->snapshot].pins++;
        }
    }
}

static void unpin(world *w, shadow_pin *p) {
    if (!p->used) {
        return;
    }
    di_cache_unpin(w->cache, salt_of(&p->text), p->text.tokens, p->n);
    p->used = false;
    if (w->exact && p->snapshot >= 0 && --w->snapshots[p->snapshot].pins == 0) {
        w->snapshots[p->snapshot].stamp = ++w->clock;
    }
    while (p->num_blocks > 0) {
        release_instance(w, p->blocks[--p->num_blocks]);
    }
}

static void any_event(world *w) {
    int event = below(w, 100);
    if (event < 12) {
        open_event(w);
    } else if (event < 50) {
        grow_event(w);
    } else if (event < 68) {
        publish_event(w);
    } else if (event < 80) {
        snapshot_event(w);
    } else if (event < 85) {
        truncate_event(w);
    } else if (event < 94) {
        close_seq(w, &w->seqs[below(w, SLOTS)]);
    } else if (event < 96) {
        pin_event(w);
    } else if (event < 98) {
        unpin(w, &w->pins[below(w, PINS)]);
    } else {
        text t;
        make_text(w, &t);
        match(w, &t, below(w, LONGEST * DI_BLOCK_TOKENS + 1), below(w, 900), below(w, 2));
    }
}

/* ---- walks ---- */

static void open_world(world *w, uint64_t seed, bool compare, uint64_t hash_mask) {
    di_error err = {0};
    *w = (world){.seed = seed, .exact = hash_mask == UINT64_MAX};
    w->config = small_config(LONGEST * DI_BLOCK_TOKENS);
    di_cache_options o = {
        .num_blocks = BLOCKS,
        .num_slots = SLOTS,
        .num_snapshots = SNAPSHOTS,
        .max_backtracking = BACKTRACKING,
        .compare_tokens = compare,
    };
    w->be = di_cpu_create(&(di_cpu_options){0}, &err);
    w->cache = di_cache_create(&w->config, w->be, &o, &err);
    if (!w->cache) {
        fail_msg("%s", err.message);
    }
    w->cache->hasher.mask = hash_mask;
    for (size_t i = 0; i < sizeof w->cache->hasher.secret;
         i++) { /* collisions come from the seed */
        w->cache->hasher.secret[i] = (uint8_t)below(w, 256);
    }
}

/* All is given back at the end. */
static void close_world(world *w) {
    di_error err = {0};
    for (int i = 0; i < SLOTS; i++) {
        close_seq(w, &w->seqs[i]);
    }
    for (int i = 0; i < PINS; i++) {
        unpin(w, &w->pins[i]);
    }
    if (!di_cache_check(w->cache, &err)) {
        fail_msg("at the end: %s", err.message);
    }
    assert_int_equal(di_cache_free_blocks(w->cache), BLOCKS);
    assert_int_equal(di_cache_free_slots(w->cache), SLOTS);
    di_cache_destroy(w->cache);
    w->be->ops->destroy(w->be);
}

static void walk(bool compare, uint64_t hash_mask, long events) {
    static world w;
    di_error err = {0};
    uint64_t seed = (uint64_t)from_environment("SEED", 20261129);
    events = from_environment("EVENTS", events);
    open_world(&w, seed, compare, hash_mask);
    for (long i = 0; i < events; i++) {
        any_event(&w);
        if (!di_cache_check(w.cache, &err)) {
            fail_msg("seed %lu, event %ld: %s", (unsigned long)seed, i, err.message);
        }
        if (w.exact && di_cache_free_blocks(w.cache) != count_free(&w)) {
            fail_msg("seed %lu, event %ld: %d blocks free, %d expected", (unsigned long)seed, i,
                     di_cache_free_blocks(w.cache), count_free(&w));
        }
    }
    di_cache_stats stats;
    di_cache_get_stats(w.cache, &stats);
    print_message("    seed %lu: %ld events, %ld hits, %ld refused, %lu blocks and %lu snapshots "
                  "evicted, %ld twins, %ld partial snapshots replaced\n",
                  (unsigned long)seed, events, w.hits, w.refused,
                  (unsigned long)stats.blocks_evicted, (unsigned long)stats.snapshots_evicted,
                  w.twins, w.replaced);
    assert_true(w.hits > events / 200 && w.refused > events / 200);
    if (w.exact) {
        assert_int_equal(stats.blocks_evicted, w.evicted);
        assert_true(w.twins > events / 200 && w.evicted > events / 200);
        assert_true(w.replaced > 0);
    }
    close_world(&w);
}

static void test_everything_found_is_what_the_shadow_says(void **state) {
    (void)state;
    walk(true, UINT64_MAX, 200000);
    walk(false, UINT64_MAX, 50000);
}

/* Hashes of two bits in each half: nearly every look-up meets another's block. */
static void test_colliding_hashes_never_lead_to_anothers_state(void **state) {
    (void)state;
    walk(true, 3, 50000);
    walk(true, 0, 20000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_found_is_what_the_shadow_says),
        cmocka_unit_test(test_colliding_hashes_never_lead_to_anothers_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
