/* Sequences: their blocks and slot, publishing, snapshots, rollback, copies on the host. See
 * cache.h. */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "cache/internal.h"

/* ---- opening, growing, closing ---- */

static bool take_slot(di_cache *cache, di_seq *seq, di_hash salt, di_error *err) {
    *seq = (di_seq){.slot = di_numbers_take(&cache->slots), .chain = salt};
    if (seq->slot == 0) {
        return di_fail(err, DI_ERR_NO_MEMORY, "all %d sequence slots of the cache are in use",
                       cache->o.num_slots);
    }
    seq->blocks = di_cache_table(cache, seq->slot);
    cache->table_used[seq->slot] = 0;
    return true;
}

bool di_seq_open(di_cache *cache, di_seq *seq, di_hash salt, di_error *err) {
    return take_slot(cache, seq, salt, err);
}

static void append_block(di_cache *cache, di_seq *seq, int32_t block) {
    seq->blocks[seq->num_blocks++] = block;
    cache->table_used[seq->slot] = seq->num_blocks;
}

bool di_seq_open_at(di_cache *cache, di_seq *seq, di_hash salt, const int32_t *tokens,
                    int64_t resume, di_error *err) {
    if (resume == 0) {
        return di_seq_open(cache, seq, salt, err);
    }
    *seq = (di_seq){0};
    int64_t wanted = resume / DI_BLOCK_TOKENS;
    bool there = resume > 0 && resume % DI_BLOCK_TOKENS == 0 &&
                 di_cache_walk(cache, salt, tokens, wanted) == wanted;
    const di_block *last = there ? &cache->blocks.all[cache->walked[wanted - 1]] : NULL;
    if (!there || last->snapshot == 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "no state of these %lld tokens is in the cache",
                       (long long)resume);
    }
    if (!di_cache_reserve_copy(cache)) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the list of slot copies");
    }
    if (!take_slot(cache, seq, salt, err)) {
        return false;
    }
    for (int64_t i = 0; i < wanted; i++) {
        di_blocks_hold(&cache->blocks, cache->walked[i]);
        append_block(cache, seq, cache->walked[i]);
    }
    di_cache_add_copy(cache, cache->o.num_slots + last->snapshot, seq->slot);
    seq->len = resume;
    int64_t from = cache->snapshots.all[last->snapshot].draft_from;
    seq->draft_from = from < resume ? from : resume;
    seq->num_published = (int)wanted;
    seq->chain = cache->blocks.hashes[cache->walked[wanted - 1]];
    return true;
}

bool di_seq_reserve(di_cache *cache, di_seq *seq, int64_t len, di_error *err) {
    int64_t total = di_blocks_for(len), wanted = total - seq->num_blocks;
    if (wanted > di_cache_free_blocks(cache)) {
        return di_fail(err, DI_ERR_NO_MEMORY,
                       "%lld tokens need %lld more cache blocks, %d are free", (long long)len,
                       (long long)wanted, di_cache_free_blocks(cache));
    }
    if (wanted > 0 && total > cache->table_blocks) {
        return di_fail(err, DI_ERR_ARGUMENT, "a sequence of %lld tokens, longest is %lld",
                       (long long)len, (long long)cache->table_blocks * DI_BLOCK_TOKENS);
    }
    while (seq->num_blocks < total) {
        int32_t orphan, block = di_blocks_take(&cache->blocks, &orphan);
        if (orphan) {
            di_snapshots_release(&cache->snapshots, orphan);
            cache->snapshots.num_evicted++;
        }
        append_block(cache, seq, block);
    }
    return true;
}

/* The snapshot that moves along with seq, if it is still that. */
static int32_t own_snapshot(const di_cache *cache, const di_seq *seq) {
    bool own = seq->rolling && cache->snapshots.all[seq->rolling].owner == seq->slot;
    return own ? seq->rolling : 0;
}

void di_seq_truncate(di_cache *cache, di_seq *seq, int64_t len) {
    assert(len >= (int64_t)seq->num_published * DI_BLOCK_TOKENS && len <= seq->len);
    assert(len == seq->len || seq->len - len < cache->o.max_backtracking);
    (void)cache;
    seq->len = len;
}

void di_seq_close(di_cache *cache, di_seq *seq) {
    if (seq->slot > 0) {
        int32_t own = own_snapshot(cache, seq);
        if (own) {
            cache->snapshots.all[own].owner = 0;
        }
        while (seq->num_blocks > 0) {
            di_blocks_release(&cache->blocks, seq->blocks[--seq->num_blocks]);
        }
        cache->table_used[seq->slot] = -1;
        di_numbers_return(&cache->slots, seq->slot);
    }
    *seq = (di_seq){0};
}

/* ---- prefixes ---- */

void di_seq_publish(di_cache *cache, di_seq *seq, const int32_t *tokens, int64_t known) {
    int64_t full = (known < seq->len ? known : seq->len) / DI_BLOCK_TOKENS;
    while (cache->o.num_snapshots > 0 && seq->num_published < full) {
        int i = seq->num_published;
        di_prefix_step step = {
            .parent = seq->chain,
            .parent_block = i > 0 ? seq->blocks[i - 1] : 0,
            .tokens = tokens + (int64_t)i * DI_BLOCK_TOKENS,
        };
        step.hash = di_hasher_next(&cache->hasher, step.parent, step.tokens);
        if (!di_blocks_publish(&cache->blocks, seq->blocks[i], &step)) {
            return;
        }
        seq->chain = step.hash;
        seq->num_published++;
    }
}

/* A snapshot to write to: the sequence's own if it may move, a free one, or the one not used for
 * longest; 0 if all are pinned. */
static int32_t snapshot_for(di_cache *cache, int32_t own) {
    di_snapshots *s = &cache->snapshots;
    if (own && s->all[own].pins == 0) {
        di_cache_drop_snapshot(cache, own);
    } else if (di_numbers_free(&s->numbers) == 0) {
        int32_t oldest = di_snapshots_oldest(s);
        if (oldest) {
            di_cache_drop_snapshot(cache, oldest);
            s->num_evicted++;
        }
    }
    return di_snapshots_take(s);
}

/* A partial snapshot for one that is not. */
static bool makes_way(const di_cache *cache, const di_seq *seq, int32_t n) {
    const di_snapshot *s = &cache->snapshots.all[n];
    return s->partial && !seq->partial && s->pins == 0;
}

void di_seq_snapshot(di_cache *cache, di_seq *seq, int64_t written, bool rolling) {
    int64_t beyond = written - (int64_t)seq->num_published * DI_BLOCK_TOKENS;
    assert(beyond >= 0);
    if (cache->o.num_snapshots == 0 || seq->num_published == 0 ||
        (beyond > 0 && beyond >= cache->o.max_backtracking)) {
        return;
    }
    di_block *block = &cache->blocks.all[di_prefix_map_find(&cache->blocks.map, seq->chain)];
    if (block->snapshot && !makes_way(cache, seq, block->snapshot)) {
        di_snapshots_touch(&cache->snapshots, block->snapshot);
        return;
    }
    if (block->snapshot) {
        di_cache_drop_snapshot(cache, block->snapshot);
    }
    int32_t own = rolling ? own_snapshot(cache, seq) : 0;
    int32_t n = di_cache_reserve_copy(cache) ? snapshot_for(cache, own) : 0;
    if (n == 0) {
        return;
    }
    if (own && own != n) { /* a pinned one: it stays where it is */
        cache->snapshots.all[own].owner = 0;
    }
    di_snapshots_attach(&cache->snapshots, n, seq->chain, rolling ? seq->slot : 0);
    cache->snapshots.all[n].draft_from = seq->draft_from;
    cache->snapshots.all[n].partial = seq->partial;
    block->snapshot = n;
    seq->rolling = rolling ? n : seq->rolling;
    di_cache_add_copy(cache, seq->slot, cache->o.num_slots + n);
}

/* ---- host copies ---- */

static uint8_t *block_bytes(const di_cache *cache, int32_t block) {
    return cache->pool.blocks + (size_t)block * cache->layout.block_stride;
}

static uint8_t *slot_bytes(const di_cache *cache, int32_t slot) {
    return cache->pool.slots + (size_t)slot * cache->layout.slot_stride;
}

size_t di_seq_export_bytes(const di_cache *cache, const di_seq *seq) {
    return cache->layout.slot_stride + (size_t)di_blocks_for(seq->len) * cache->layout.block_stride;
}

void di_seq_export(di_cache *cache, const di_seq *seq, void *host) {
    di_backend *be = cache->be;
    size_t stride = cache->layout.block_stride, slot = cache->layout.slot_stride;
    uint8_t *to = host;
    be->ops->download(be, to, slot_bytes(cache, seq->slot), slot);
    to += slot;
    for (int64_t i = 0; i < di_blocks_for(seq->len); i++, to += stride) {
        be->ops->download(be, to, block_bytes(cache, seq->blocks[i]), stride);
    }
}

void di_seq_import(di_cache *cache, di_seq *seq, int64_t len, const void *host) {
    di_backend *be = cache->be;
    size_t stride = cache->layout.block_stride, slot = cache->layout.slot_stride;
    const uint8_t *blocks = (const uint8_t *)host + slot;
    assert(di_blocks_for(len) <= seq->num_blocks && len >= seq->len);
    be->ops->upload(be, slot_bytes(cache, seq->slot), host, slot);
    for (int64_t i = seq->num_published; i < di_blocks_for(len); i++) {
        be->ops->upload(be, block_bytes(cache, seq->blocks[i]), blocks + (size_t)i * stride,
                        stride);
    }
    seq->len = len;
}
