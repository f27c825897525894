/* Where a record of a sequence's state lies: the address function that ops.h describes, for
 * backends whose pools are in host memory. Nothing above ops/ may use it. */
#ifndef DI_OPS_ADDRESS_H
#define DI_OPS_ADDRESS_H

#include "ops/ops.h"

static inline uint8_t *di_ring_row(const di_state_pool *pool, int32_t slot, int layer,
                                   int64_t pos) {
    const di_state_layout *l = pool->layout;
    return pool->slots + (size_t)slot * l->slot_stride + l->ring_offset[layer] +
           (size_t)(pos % l->ring_rows) * l->window_bytes;
}

static inline float *di_group_row(const di_state_pool *pool, int32_t slot, int layer, int64_t pos) {
    const di_state_layout *l = pool->layout;
    return (float *)(pool->slots + (size_t)slot * l->slot_stride + l->group_offset[layer] +
                     (size_t)(pos % l->group_rows) * l->group_bytes);
}

/* Block that holds entry e of a source with this ratio, and e's row in it. */
static inline const uint8_t *di_entry_block(const di_state_pool *pool, const int32_t *blocks,
                                            int ratio, int64_t e, size_t *row) {
    const di_state_layout *l = pool->layout;
    int64_t per_block = l->block_tokens / ratio;
    *row = (size_t)(e % per_block);
    return pool->blocks + (size_t)blocks[e / per_block] * l->block_stride;
}

static inline const uint8_t *di_latent_row(const di_state_pool *pool, const int32_t *blocks,
                                           int source, int ratio, int64_t e) {
    size_t row;
    const uint8_t *block = di_entry_block(pool, blocks, ratio, e, &row);
    return block + pool->layout->latent_offset[source] + row * pool->layout->latent_bytes;
}

static inline const uint8_t *di_key_row(const di_state_pool *pool, const int32_t *blocks,
                                        int source, int ratio, int64_t e) {
    size_t row;
    const uint8_t *block = di_entry_block(pool, blocks, ratio, e, &row);
    return block + pool->layout->key_offset[source] + row * pool->layout->key_bytes;
}

#endif
