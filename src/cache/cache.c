/* The cache as a whole: its memory, looking prefixes up, pins, statistics. Sequences: sequence.c.
 */
#include <assert.h>
#include <limits.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "cache/internal.h"
#include "cache/layout.h"

/* In builds for finding faults, no hash is believed. */
#ifdef DI_DEBUG
enum { ALWAYS_COMPARE = 1 };
#else
enum { ALWAYS_COMPARE = 0 };
#endif

/* ---- memory ---- */

/* Bytes of `count` units and of number 0, which is nobody's. */
static bool pool_bytes(int64_t count, size_t stride, size_t *bytes) {
    return di_mul_size((size_t)count + 1, stride, bytes);
}

static int64_t all_slots(const di_cache_options *o) {
    return (int64_t)o->num_slots + o->num_snapshots;
}

size_t di_cache_bytes(const di_config *c, const di_cache_options *o) {
    di_state_layout layout;
    size_t blocks, slots, total;
    di_state_layout_fill(&layout, c, DI_BLOCK_TOKENS, o->max_backtracking, o->draft_layers);
    bool ok = pool_bytes(o->num_blocks, layout.block_stride, &blocks) &&
              pool_bytes(all_slots(o), layout.slot_stride, &slots) &&
              di_add_size(blocks, slots, &total);
    return ok ? total : SIZE_MAX;
}

static bool options_ok(const di_config *c, const di_cache_options *o, di_error *err) {
    int room = DI_MAX_LAYERS - c->num_hidden_layers;
    if (o->num_blocks < 1 || o->num_slots < 1 || o->num_snapshots < 0 ||
        all_slots(o) > DI_CACHE_MOST || o->num_blocks > DI_CACHE_MOST) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "cache of %d blocks, %d slots and %d snapshots; allowed are 1 to %d blocks, "
                       "1 slot and 0 snapshots at least, %d of both at most",
                       o->num_blocks, o->num_slots, o->num_snapshots, DI_CACHE_MOST, DI_CACHE_MOST);
    }
    if (o->max_backtracking < 0 || o->max_backtracking > DI_BLOCK_TOKENS) {
        return di_fail(err, DI_ERR_ARGUMENT, "cache's max_backtracking is %d, allowed are 0 to %d",
                       o->max_backtracking, DI_BLOCK_TOKENS);
    }
    if (o->draft_layers < 0 || o->draft_layers > room) {
        return di_fail(err, DI_ERR_ARGUMENT, "cache's draft_layers is %d, allowed are 0 to %d",
                       o->draft_layers, room);
    }
    return true;
}

static bool pool_create(di_backend *be, int64_t count, size_t stride, const char *what,
                        uint8_t **pool, di_error *err) {
    size_t bytes;
    *pool = pool_bytes(count, stride, &bytes) ? be->ops->alloc(be, bytes ? bytes : 1) : NULL;
    return *pool || di_fail(err, DI_ERR_NO_MEMORY, "no memory for %lld cache %s of %zu bytes each",
                            (long long)count, what, stride);
}

/* Tables on the host. The larger ones are zero and not touched before they are used. */
static bool tables_create(di_cache *cache, const di_config *c) {
    const di_cache_options *o = &cache->o;
    /* One more for rows in flight behind the context's end. */
    int64_t context = di_blocks_for(c->max_position_embeddings) + 1;
    cache->table_blocks = context < o->num_blocks ? (int)context : o->num_blocks;
    size_t slots = (size_t)o->num_slots, entries, copies = slots + (size_t)o->num_snapshots;
    if (!di_mul_size(slots, (size_t)cache->table_blocks, &entries)) {
        return false;
    }
    cache->tables = di_calloc(entries, sizeof *cache->tables);
    cache->table_used = di_calloc(slots + 1, sizeof *cache->table_used);
    cache->walked = di_calloc((size_t)cache->table_blocks, sizeof *cache->walked);
    cache->copies = di_calloc(copies, sizeof *cache->copies);
    cache->copies_capacity = cache->copies ? copies : 0;
    if (!cache->tables || !cache->table_used || !cache->walked || !cache->copies) {
        return false;
    }
    for (size_t i = 0; i <= slots; i++) {
        cache->table_used[i] = -1;
    }
    return di_numbers_create(&cache->slots, o->num_slots) &&
           di_snapshots_create(&cache->snapshots, o->num_snapshots) &&
           di_blocks_create(&cache->blocks, o->num_blocks, cache->o.compare_tokens);
}

di_cache *di_cache_create(const di_config *c, di_backend *be, const di_cache_options *o,
                          di_error *err) {
    if (!options_ok(c, o, err)) {
        return NULL;
    }
    di_cache *cache = di_calloc(1, sizeof *cache);
    if (!cache) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the cache's tables");
        return NULL;
    }
    cache->be = be;
    cache->o = *o;
    cache->o.compare_tokens = o->compare_tokens || ALWAYS_COMPARE;
    di_state_layout_fill(&cache->layout, c, DI_BLOCK_TOKENS, o->max_backtracking, o->draft_layers);
    cache->pool.layout = &cache->layout;
    bool ok = di_hasher_init(&cache->hasher, err);
    if (ok && !tables_create(cache, c)) {
        ok = di_fail(err, DI_ERR_NO_MEMORY, "no memory for the tables of %d cache blocks",
                     o->num_blocks);
    }
    if (!ok ||
        !pool_create(be, o->num_blocks, cache->layout.block_stride, "blocks", &cache->pool.blocks,
                     err) ||
        !pool_create(be, all_slots(o), cache->layout.slot_stride, "slots", &cache->pool.slots,
                     err)) {
        di_cache_destroy(cache);
        return NULL;
    }
    return cache;
}

di_hash di_cache_salt(const di_cache *cache, const void *text, size_t size) {
    return di_hasher_text(&cache->hasher, text, size);
}

void di_cache_destroy(di_cache *cache) {
    if (!cache) {
        return;
    }
    if (cache->pool.blocks) {
        cache->be->ops->free(cache->be, cache->pool.blocks);
    }
    if (cache->pool.slots) {
        cache->be->ops->free(cache->be, cache->pool.slots);
    }
    for (size_t i = 0; i < cache->num_pins; i++) {
        di_free(cache->pins[i].blocks);
    }
    di_blocks_destroy(&cache->blocks);
    di_snapshots_destroy(&cache->snapshots);
    di_numbers_destroy(&cache->slots);
    di_free(cache->tables);
    di_free(cache->table_used);
    di_free(cache->walked);
    di_free(cache->copies);
    di_free(cache->pins);
    di_free(cache);
}

/* ---- looking at it ---- */

const di_state_pool *di_cache_pool(const di_cache *cache) {
    return &cache->pool;
}

int di_cache_free_blocks(const di_cache *cache) {
    return di_blocks_available(&cache->blocks);
}

int di_cache_free_slots(const di_cache *cache) {
    return di_numbers_free(&cache->slots);
}

void di_cache_get_stats(const di_cache *cache, di_cache_stats *stats) {
    const di_snapshots *s = &cache->snapshots;
    *stats = (di_cache_stats){
        .blocks = cache->o.num_blocks,
        .blocks_free = di_numbers_free(&cache->blocks.numbers),
        .blocks_cached = cache->blocks.num_cached,
        .slots = cache->o.num_slots,
        .slots_free = di_cache_free_slots(cache),
        .snapshots = cache->o.num_snapshots,
        .snapshots_used = cache->o.num_snapshots - di_numbers_free(&s->numbers),
        .lookups = cache->lookups,
        .tokens_asked = cache->tokens_asked,
        .tokens_hit = cache->tokens_hit,
        .blocks_evicted = cache->blocks.num_evicted,
        .snapshots_evicted = s->num_evicted,
    };
}

/* ---- copies ---- */

bool di_cache_reserve_copy(di_cache *cache) {
    di_slot_copy *grown =
        di_grow(cache->copies, cache->num_copies, &cache->copies_capacity, sizeof *grown);
    if (grown) {
        cache->copies = grown;
    }
    return grown;
}

void di_cache_add_copy(di_cache *cache, int32_t from, int32_t to) {
    assert(cache->num_copies < cache->copies_capacity);
    cache->copies[cache->num_copies++] = (di_slot_copy){from, to};
}

int di_cache_take_copies(di_cache *cache, di_slot_copy *copies, int max) {
    size_t n = cache->num_copies < (size_t)max ? cache->num_copies : (size_t)max;
    cache->num_copies -= n;
    memcpy(copies, cache->copies, n * sizeof *copies);
    memmove(cache->copies, cache->copies + n, cache->num_copies * sizeof *copies);
    return (int)n;
}

/* ---- prefixes ---- */

int di_cache_walk(di_cache *cache, di_hash salt, const int32_t *tokens, int64_t max_blocks) {
    int count = 0;
    di_prefix_step step = {.parent = salt};
    while (count < max_blocks && count < cache->table_blocks) {
        step.tokens = tokens + (int64_t)count * DI_BLOCK_TOKENS;
        step.hash = di_hasher_next(&cache->hasher, step.parent, step.tokens);
        int32_t n = di_blocks_find(&cache->blocks, &step);
        if (n == 0) {
            break;
        }
        cache->walked[count++] = n;
        step.parent = step.hash;
        step.parent_block = n;
    }
    return count;
}

static bool has_snapshot(const di_cache *cache, int32_t block, bool partial) {
    int32_t n = cache->blocks.all[block].snapshot;
    return n > 0 && (partial || !cache->snapshots.all[n].partial);
}

/* How many of the first `count` blocks walked end at the last snapshot among them. */
static int last_snapshot(const di_cache *cache, int count, bool partial) {
    while (count > 0 && !has_snapshot(cache, cache->walked[count - 1], partial)) {
        count--;
    }
    return count;
}

static int64_t at_most(int64_t value, int64_t most) {
    return value < most ? value : most;
}

di_prefix_hit di_cache_match(di_cache *cache, di_hash salt, const int32_t *tokens, int64_t n,
                             int64_t limit, bool partial) {
    cache->lookups++;
    cache->tokens_asked += (uint64_t)n;
    if (cache->o.num_snapshots == 0) {
        return (di_prefix_hit){0};
    }
    int found = di_cache_walk(cache, salt, tokens, n / DI_BLOCK_TOKENS);
    for (int i = found; i-- > 0;) {
        di_blocks_touch(&cache->blocks, cache->walked[i]);
    }
    int within = (int)at_most(found, limit > 0 ? limit / DI_BLOCK_TOKENS : 0);
    int resume = last_snapshot(cache, within, partial);
    if (resume > 0) {
        di_snapshots_touch(&cache->snapshots,
                           cache->blocks.all[cache->walked[resume - 1]].snapshot);
    }
    di_prefix_hit hit = {.resume = (int64_t)resume * DI_BLOCK_TOKENS,
                         .matched = (int64_t)found * DI_BLOCK_TOKENS};
    for (int i = 0; i < resume; i++) {
        hit.held += cache->blocks.all[cache->walked[i]].refs > 0 ? DI_BLOCK_TOKENS : 0;
    }
    cache->tokens_hit += (uint64_t)hit.resume;
    return hit;
}

void di_cache_drop_snapshot(di_cache *cache, int32_t snapshot) {
    int32_t block = di_prefix_map_find(&cache->blocks.map, cache->snapshots.all[snapshot].hash);
    assert(cache->blocks.all[block].snapshot == snapshot);
    cache->blocks.all[block].snapshot = 0;
    di_snapshots_release(&cache->snapshots, snapshot);
}

/* ---- pins ---- */

int64_t di_cache_pin(di_cache *cache, di_hash salt, const int32_t *tokens, int64_t n) {
    int found = di_cache_walk(cache, salt, tokens, n / DI_BLOCK_TOKENS);
    if (found == 0) {
        return 0;
    }
    di_pin *pins = di_grow(cache->pins, cache->num_pins, &cache->pins_capacity, sizeof *pins);
    cache->pins = pins ? pins : cache->pins;
    int32_t *blocks = pins ? di_calloc((size_t)found, sizeof *blocks) : NULL;
    if (!blocks) {
        return 0;
    }
    di_pin pin = {.key = di_hasher_all(&cache->hasher, salt, tokens, n),
                  .blocks = blocks,
                  .num_blocks = found};
    for (int i = 0; i < found; i++) {
        blocks[i] = cache->walked[i];
        di_blocks_hold(&cache->blocks, blocks[i]);
    }
    int resume = last_snapshot(cache, found, true);
    if (resume > 0) {
        pin.snapshot = cache->blocks.all[blocks[resume - 1]].snapshot;
        di_snapshots_pin(&cache->snapshots, pin.snapshot);
    }
    cache->pins[cache->num_pins++] = pin;
    return (int64_t)found * DI_BLOCK_TOKENS;
}

void di_cache_unpin(di_cache *cache, di_hash salt, const int32_t *tokens, int64_t n) {
    di_hash key = di_hasher_all(&cache->hasher, salt, tokens, n);
    size_t i = 0;
    while (i < cache->num_pins && !di_hash_equal(cache->pins[i].key, key)) {
        i++;
    }
    if (i == cache->num_pins) {
        return;
    }
    di_pin pin = cache->pins[i];
    cache->pins[i] = cache->pins[--cache->num_pins];
    if (pin.snapshot) {
        di_snapshots_unpin(&cache->snapshots, pin.snapshot);
    }
    while (pin.num_blocks > 0) {
        di_blocks_release(&cache->blocks, pin.blocks[--pin.num_blocks]);
    }
    di_free(pin.blocks);
}
