/* Bytes and places of per-sequence state: see layout.h. */
#include "cache/layout.h"

/* Takes the next part of a block or slot and returns where it starts. */
static size_t place(size_t *end, size_t rows, size_t row_bytes) {
    size_t start = *end;
    *end = (start + rows * row_bytes + 63) / 64 * 64;
    return start;
}

void di_state_layout_fill(di_state_layout *layout, const di_config *c, int block_tokens,
                          int max_backtracking) {
    size_t hd = (size_t)c->head_dim, key = (size_t)c->index_head_dim;
    int max_ratio = 1;
    for (int i = 0; i < c->num_kv_sources; i++) {
        int ratio = c->layers[c->kv_source_layer_ids[i]].ratio;
        max_ratio = ratio > max_ratio ? ratio : max_ratio;
    }
    *layout = (di_state_layout){
        .block_tokens = block_tokens,
        .ring_rows = c->sliding_window + max_backtracking,
        .group_rows = max_ratio + (max_backtracking > 0 ? max_backtracking - 1 : 0),
        .window_bytes = hd + hd / 32,
        .latent_bytes = hd / 2 + hd / 16,
        .key_bytes = key / 2 + key / 32,
        .group_bytes = 2 * hd * sizeof(float),
    };
    for (int l = 0; l < DI_MAX_LAYERS; l++) {
        layout->latent_offset[l] = layout->key_offset[l] = SIZE_MAX;
        layout->ring_offset[l] = layout->group_offset[l] = SIZE_MAX;
    }
    for (int i = 0; i < c->num_kv_sources; i++) {
        int l = c->kv_source_layer_ids[i];
        size_t entries = (size_t)(block_tokens / c->layers[l].ratio);
        layout->key_offset[l] = place(&layout->block_stride, entries, layout->key_bytes);
        layout->latent_offset[l] = place(&layout->block_stride, entries, layout->latent_bytes);
    }
    for (int l = 0; l < c->num_hidden_layers; l++) {
        layout->ring_offset[l] =
            place(&layout->slot_stride, (size_t)layout->ring_rows, layout->window_bytes);
    }
    for (int i = 0; i < c->num_kv_sources; i++) {
        int l = c->kv_source_layer_ids[i];
        if (c->layers[l].ratio > 1) {
            layout->group_offset[l] =
                place(&layout->slot_stride, (size_t)layout->group_rows, layout->group_bytes);
        }
    }
}
