/* Tests whether a cache's books agree with each other: every list is walked, every count counted
 * anew. For tests; changes nothing. */
#include <string.h>

#include "base/alloc.h"
#include "cache/internal.h"

typedef struct audit {
    const di_cache *cache;
    int32_t *refs;  /* [blocks + 1] counted from tables and pins */
    int32_t *order; /* [blocks + 1] place among the cached ones, from 1 on; 0: not cached */
    int32_t *pins;  /* [snapshots + 1] counted */
    bool *free;     /* [largest of the totals + 1] scratch: numbers that are not out */
    di_error *err;
} audit;

#define WRONG(a, ...) di_fail((a)->err, DI_ERR_INTERNAL, __VA_ARGS__)

/* Fills a->free. */
static bool numbers_ok(audit *a, const di_numbers *n, const char *what) {
    memset(a->free, 0, ((size_t)n->total + 1) * sizeof *a->free);
    for (int i = n->used + 1; i <= n->total; i++) {
        a->free[i] = true;
    }
    for (int i = 0; i < n->count; i++) {
        int32_t number = n->returned[i];
        if (number < 1 || number > n->used || a->free[number]) {
            return WRONG(a, "%s %d was given back twice or never was out", what, number);
        }
        a->free[number] = true;
    }
    return true;
}

static bool slots_ok(audit *a) {
    const di_cache *c = a->cache;
    if (!numbers_ok(a, &c->slots, "slot")) {
        return false;
    }
    for (int s = 1; s <= c->slots.total; s++) {
        if (a->free[s] != (c->table_used[s] < 0)) {
            return WRONG(a, "slot %d is %s but its table has %d blocks", s,
                         a->free[s] ? "free" : "taken", c->table_used[s]);
        }
    }
    return true;
}

static void count_holders(audit *a) {
    const di_cache *c = a->cache;
    for (int s = 1; s <= c->slots.total; s++) {
        const int32_t *table = c->tables + (size_t)(s - 1) * (size_t)c->table_blocks;
        for (int i = 0; i < c->table_used[s]; i++) {
            a->refs[table[i]]++;
        }
    }
    for (size_t p = 0; p < c->num_pins; p++) {
        for (int i = 0; i < c->pins[p].num_blocks; i++) {
            a->refs[c->pins[p].blocks[i]]++;
        }
        a->pins[c->pins[p].snapshot]++;
    }
}

/* Walks the list of cached blocks and numbers them. */
static bool cached_ok(audit *a) {
    const di_blocks *b = &a->cache->blocks;
    int count = 0;
    for (int32_t n = b->links[0].next, last = 0; n != 0; last = n, n = b->links[n].next) {
        if (b->links[n].previous != last || b->all[n].refs != 0 || !b->all[n].hashed ||
            a->order[n] != 0) {
            return WRONG(a, "block %d does not belong behind %d in the list of cached ones", n,
                         last);
        }
        a->order[n] = ++count;
    }
    return count == b->num_cached ||
           WRONG(a, "%d blocks are cached, counted as %d", count, b->num_cached);
}

/* The block in the map for n's hash is n's twin, and only cached if it is n itself. */
static bool published_ok(audit *a, int32_t n) {
    const di_blocks *b = &a->cache->blocks;
    int32_t chosen = di_prefix_map_find(&b->map, b->hashes[n]), twin = n;
    if (b->all[n].refs == 0) {
        return (chosen == n && a->order[n] > 0) ||
               WRONG(a, "cached block %d is not in the map or not in the list", n);
    }
    for (int i = 0; twin != chosen && i <= b->numbers.total; i++) {
        twin = b->links[twin].next;
    }
    return (chosen && twin == chosen && b->all[chosen].refs > 0 && b->all[chosen].hashed) ||
           WRONG(a, "block %d is hashed, but the map leads to %d", n, chosen);
}

/* A published block's prefix is published, and evicted after it. */
static bool parent_ok(audit *a, int32_t n) {
    const di_blocks *b = &a->cache->blocks;
    if (!b->contents || b->contents[n].parent_serial == 0) {
        return true;
    }
    int32_t parent = di_prefix_map_find(&b->map, b->contents[n].parent);
    if (!parent || b->contents[parent].serial != b->contents[n].parent_serial) {
        return WRONG(a, "the block in front of block %d is not published", n);
    }
    bool later = b->all[parent].refs > 0 || (a->order[n] && a->order[n] < a->order[parent]);
    return later || WRONG(a, "block %d would be evicted before block %d behind it", parent, n);
}

static bool blocks_ok(audit *a) {
    const di_blocks *b = &a->cache->blocks;
    size_t cells = 0, published = 0;
    if (!numbers_ok(a, &b->numbers, "block") || !cached_ok(a)) {
        return false;
    }
    for (int32_t n = 1; n <= b->numbers.total; n++) {
        const di_block *block = &b->all[n];
        if (block->refs != a->refs[n]) {
            return WRONG(a, "block %d has %d holders, counted as %d", n, a->refs[n], block->refs);
        }
        bool owned = block->refs > 0 || block->hashed;
        if (owned == a->free[n]) {
            return WRONG(a, "block %d is %s", n, owned ? "free and owned" : "lost");
        }
        if (block->hashed && (!published_ok(a, n) || !parent_ok(a, n))) {
            return false;
        }
        bool in_map = block->hashed && di_prefix_map_find(&b->map, b->hashes[n]) == n;
        published += in_map;
        const di_snapshot *snapshot = &a->cache->snapshots.all[block->snapshot];
        if (block->snapshot && (!in_map || !di_hash_equal(b->hashes[n], snapshot->hash))) {
            return WRONG(a, "block %d leads to snapshot %d of another", n, block->snapshot);
        }
    }
    for (size_t i = 0; i <= b->map.mask; i++) {
        cells += b->map.cells[i] != 0;
    }
    return cells == published ||
           WRONG(a, "%zu blocks are in the map, %zu should be", cells, published);
}

static bool snapshots_ok(audit *a) {
    const di_snapshots *s = &a->cache->snapshots;
    const di_blocks *b = &a->cache->blocks;
    int listed = 0, used = 0, pinned = 0;
    if (!numbers_ok(a, &s->numbers, "snapshot")) {
        return false;
    }
    for (int32_t n = s->links[0].next; n != 0 && listed <= s->numbers.total; n = s->links[n].next) {
        listed++;
    }
    for (int32_t n = 1; n <= s->numbers.total; n++) {
        if (a->free[n]) {
            continue;
        }
        int32_t block = di_prefix_map_find(&b->map, s->all[n].hash);
        if (!block || b->all[block].snapshot != n || s->all[n].pins != a->pins[n]) {
            return WRONG(a, "snapshot %d has no block that leads to it, or %d pins, not %d", n,
                         s->all[n].pins, a->pins[n]);
        }
        used++;
        pinned += s->all[n].pins > 0;
    }
    return used == listed + pinned ||
           WRONG(a, "%d snapshots are used, %d listed, %d pinned", used, listed, pinned);
}

bool di_cache_check(const di_cache *cache, di_error *err) {
    size_t blocks = (size_t)cache->o.num_blocks + 1, slots = (size_t)cache->o.num_slots + 1;
    size_t snapshots = (size_t)cache->o.num_snapshots + 1;
    audit a = {
        .cache = cache,
        .refs = di_calloc(blocks, sizeof *a.refs),
        .order = di_calloc(blocks, sizeof *a.order),
        .pins = di_calloc(snapshots, sizeof *a.pins),
        .free = di_calloc(blocks + slots + snapshots, sizeof *a.free),
        .err = err,
    };
    bool ok = a.refs && a.order && a.pins && a.free;
    if (ok) {
        count_holders(&a);
        ok = slots_ok(&a) && blocks_ok(&a) && snapshots_ok(&a);
    } else {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory to check the cache");
    }
    di_free(a.refs);
    di_free(a.order);
    di_free(a.pins);
    di_free(a.free);
    return ok;
}
