/* Holding, publishing and evicting blocks: see blocks.h. */
#include "cache/blocks.h"

#include <assert.h>
#include <string.h>

bool di_blocks_create(di_blocks *b, int total, bool compare_tokens) {
    size_t count = (size_t)total + 1;
    *b = (di_blocks){
        .all = di_calloc(count, sizeof *b->all),
        .links = di_calloc(count, sizeof *b->links),
        .hashes = di_calloc(count, sizeof *b->hashes),
    };
    if (compare_tokens) {
        b->contents = di_calloc(count, sizeof *b->contents);
    }
    return b->all && b->links && b->hashes && (b->contents || !compare_tokens) &&
           di_numbers_create(&b->numbers, total) && di_prefix_map_create(&b->map, b->hashes, total);
}

void di_blocks_destroy(di_blocks *b) {
    di_free(b->all);
    di_free(b->links);
    di_free(b->hashes);
    di_free(b->contents);
    di_numbers_destroy(&b->numbers);
    di_prefix_map_destroy(&b->map);
    *b = (di_blocks){0};
}

/* ---- the list of cached blocks ---- */

static void cached_append(di_blocks *b, int32_t n) {
    di_ring_insert(b->links, 0, n);
    b->num_cached++;
}

static void cached_remove(di_blocks *b, int32_t n) {
    di_ring_remove(b->links, n);
    b->num_cached--;
}

void di_blocks_touch(di_blocks *b, int32_t n) {
    if (b->all[n].refs == 0) {
        cached_remove(b, n);
        cached_append(b, n);
    }
}

/* ---- holders ---- */

int32_t di_blocks_take(di_blocks *b, int32_t *orphan) {
    int32_t n = di_numbers_take(&b->numbers);
    *orphan = 0;
    if (n == 0) {
        assert(b->num_cached > 0);
        n = b->links[0].next;
        cached_remove(b, n);
        di_prefix_map_remove(&b->map, n);
        *orphan = b->all[n].snapshot;
        b->num_evicted++;
    }
    b->all[n] = (di_block){.refs = 1};
    return n;
}

void di_blocks_hold(di_blocks *b, int32_t n) {
    if (b->all[n].refs == 0) {
        cached_remove(b, n);
    }
    b->all[n].refs++;
}

/* The twin `to` stands in for `from`, which may be forgotten then. */
static void stand_in(di_blocks *b, int32_t from, int32_t to) {
    di_prefix_map_replace(&b->map, from, to);
    b->all[to].snapshot = b->all[from].snapshot;
}

static void forget(di_blocks *b, int32_t n) {
    b->all[n] = (di_block){0};
    di_numbers_return(&b->numbers, n);
}

void di_blocks_release(di_blocks *b, int32_t n) {
    assert(b->all[n].refs > 0);
    if (--b->all[n].refs > 0) {
        return;
    }
    int32_t twin = b->links[n].next;
    if (!b->all[n].hashed) {
        forget(b, n);
    } else if (twin == n) {
        cached_append(b, n);
    } else {
        if (di_prefix_map_find(&b->map, b->hashes[n]) == n) {
            stand_in(b, n, twin);
        }
        di_ring_remove(b->links, n);
        forget(b, n);
    }
}

/* ---- hashes ---- */

static uint64_t serial_of(const di_blocks *b, int32_t n) {
    return n ? b->contents[n].serial : 0;
}

static bool same_content(const di_blocks *b, int32_t n, const di_prefix_step *step) {
    if (!b->contents) {
        return true;
    }
    const di_block_content *c = &b->contents[n];
    return di_hash_equal(c->parent, step->parent) &&
           c->parent_serial == serial_of(b, step->parent_block) &&
           memcmp(c->tokens, step->tokens, sizeof c->tokens) == 0;
}

int32_t di_blocks_find(const di_blocks *b, const di_prefix_step *step) {
    int32_t n = di_prefix_map_find(&b->map, step->hash);
    return n && same_content(b, n, step) ? n : 0;
}

static void write_content(di_blocks *b, int32_t n, const di_prefix_step *step, int32_t twin) {
    if (b->contents) {
        di_block_content *c = &b->contents[n];
        c->parent = step->parent;
        c->parent_serial = serial_of(b, step->parent_block);
        c->serial = twin ? b->contents[twin].serial : ++b->last_serial;
        memcpy(c->tokens, step->tokens, sizeof c->tokens);
    }
}

bool di_blocks_publish(di_blocks *b, int32_t n, const di_prefix_step *step) {
    assert(b->all[n].refs > 0 && !b->all[n].hashed);
    int32_t twin = di_prefix_map_find(&b->map, step->hash);
    if (twin && !same_content(b, twin, step)) {
        return false;
    }
    b->hashes[n] = step->hash;
    b->all[n].hashed = true;
    write_content(b, n, step, twin);
    di_ring_start(b->links, n);
    if (twin == 0) {
        di_prefix_map_insert(&b->map, n);
    } else if (b->all[twin].refs > 0) {
        di_ring_insert(b->links, twin, n);
    } else { /* nobody needs the cached one now */
        cached_remove(b, twin);
        stand_in(b, twin, n);
        forget(b, twin);
    }
    return true;
}
