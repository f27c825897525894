/* Pools of blocks and slots and the sequences that hold them: see cache.h. Blocks and slots are
 * handed out from stacks of free numbers; state bytes are never cleared, because every reader asks
 * only for rows that its sequence has written. */
#include "cache/cache.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "cache/layout.h"

typedef struct free_stack {
    int32_t *numbers;
    int count;
} free_stack;

struct di_cache {
    di_backend *be;
    di_state_layout layout;
    di_state_pool pool;
    free_stack blocks, slots;
};

/* Numbers 1 .. count, lowest on top. */
static bool stack_fill(free_stack *s, int count) {
    s->numbers = di_calloc((size_t)count, sizeof *s->numbers);
    if (!s->numbers) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        s->numbers[i] = count - i;
    }
    s->count = count;
    return true;
}

static int32_t stack_take(free_stack *s) {
    return s->numbers[--s->count];
}

static void stack_return(free_stack *s, int32_t number) {
    s->numbers[s->count++] = number;
}

/* Device memory for `count` + 1 units (number 0 is reserved). */
static uint8_t *pool_alloc(di_backend *be, int count, size_t stride, const char *what,
                           di_error *err) {
    size_t bytes;
    uint8_t *memory = NULL;
    if (di_mul_size((size_t)count + 1, stride, &bytes)) {
        memory = be->ops->alloc(be, bytes ? bytes : 1);
    }
    if (!memory) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d cache %s of %zu bytes each", count, what,
                stride);
    }
    return memory;
}

di_cache *di_cache_create(const di_config *c, di_backend *be, const di_cache_options *o,
                          di_error *err) {
    if (o->num_blocks < 1 || o->num_slots < 1 || o->max_backtracking < 0) {
        di_fail(err, DI_ERR_ARGUMENT, "cache of %d blocks and %d slots, backtracking %d",
                o->num_blocks, o->num_slots, o->max_backtracking);
        return NULL;
    }
    di_cache *cache = di_calloc(1, sizeof *cache);
    if (!cache || !stack_fill(&cache->blocks, o->num_blocks) ||
        !stack_fill(&cache->slots, o->num_slots)) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the cache's tables");
        goto failed;
    }
    cache->be = be;
    di_state_layout_fill(&cache->layout, c, DI_BLOCK_TOKENS, o->max_backtracking);
    cache->pool.layout = &cache->layout;
    cache->pool.blocks = pool_alloc(be, o->num_blocks, cache->layout.block_stride, "blocks", err);
    if (!cache->pool.blocks) {
        goto failed;
    }
    cache->pool.slots = pool_alloc(be, o->num_slots, cache->layout.slot_stride, "slots", err);
    if (!cache->pool.slots) {
        goto failed;
    }
    return cache;
failed:
    di_cache_destroy(cache);
    return NULL;
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
    di_free(cache->blocks.numbers);
    di_free(cache->slots.numbers);
    di_free(cache);
}

const di_state_pool *di_cache_pool(const di_cache *cache) {
    return &cache->pool;
}

int di_cache_free_blocks(const di_cache *cache) {
    return cache->blocks.count;
}

int di_cache_free_slots(const di_cache *cache) {
    return cache->slots.count;
}

bool di_seq_open(di_cache *cache, di_seq *seq, di_error *err) {
    *seq = (di_seq){0};
    if (cache->slots.count == 0) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no free sequence slot in the cache");
    }
    seq->slot = stack_take(&cache->slots);
    return true;
}

bool di_seq_reserve(di_cache *cache, di_seq *seq, int64_t len, di_error *err) {
    int64_t wanted = di_blocks_for(len) - seq->num_blocks;
    if (wanted <= 0) {
        return true;
    }
    if (wanted > cache->blocks.count) {
        return di_fail(err, DI_ERR_NO_MEMORY,
                       "%lld tokens need %lld more cache blocks, %d are free", (long long)len,
                       (long long)wanted, cache->blocks.count);
    }
    size_t total = (size_t)seq->num_blocks + (size_t)wanted;
    while (seq->capacity < total) {
        int32_t *table = di_grow(seq->blocks, seq->capacity, &seq->capacity, sizeof *table);
        if (!table) {
            return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a block table of %zu", total);
        }
        seq->blocks = table;
    }
    while ((size_t)seq->num_blocks < total) {
        seq->blocks[seq->num_blocks++] = stack_take(&cache->blocks);
    }
    return true;
}

void di_seq_close(di_cache *cache, di_seq *seq) {
    while (seq->num_blocks > 0) {
        stack_return(&cache->blocks, seq->blocks[--seq->num_blocks]);
    }
    if (seq->slot > 0) {
        stack_return(&cache->slots, seq->slot);
    }
    di_free(seq->blocks);
    *seq = (di_seq){0};
}
