/* Configurations, as far as the cache's layout asks for them: the released model's, and one whose
 * state takes little room. */
#ifndef TESTS_SUPPORT_CONFIGS_H
#define TESTS_SUPPORT_CONFIGS_H

#include "weights/config.h"

static inline di_config release_config(void) {
    di_config c = {
        .head_dim = 512,
        .index_head_dim = 128,
        .sliding_window = 128,
        .num_hidden_layers = 40,
        .num_nextn_predict_layers = 3,
        .dspark_block_size = 5,
        .index_topk = 512,
        .num_kv_sources = 4,
        .kv_source_layer_ids = {2, 8, 14, 20},
        .max_position_embeddings = 1 << 20,
    };
    for (int l = 2; l < 40; l++) {
        c.layers[l].ratio = l < 20 ? 2 : 1;
    }
    return c;
}

/* One layer with a window only, one with entries. */
static inline di_config small_config(int max_position_embeddings) {
    return (di_config){
        .head_dim = 32,
        .index_head_dim = 32,
        .sliding_window = 8,
        .num_hidden_layers = 2,
        .num_kv_sources = 1,
        .kv_source_layer_ids = {1},
        .max_position_embeddings = max_position_embeddings,
        .layers = {{.ratio = 0}, {.ratio = 1}},
    };
}

#endif
