/* Any text as config.json: accepted with what the rest of the engine relies on, or refused. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "weights/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check(const di_config *c) {
    require(c->num_hidden_layers > 0 && c->num_hidden_layers <= DI_MAX_LAYERS);
    require(c->head_dim % 32 == 0 && c->hidden_size % 32 == 0);
    require(c->qk_rope_head_dim <= c->head_dim && c->qk_rope_head_dim <= c->index_head_dim);
    require(c->engram_columns <= DI_MAX_ENGRAM_COLUMNS);
    for (int l = 0; l < c->num_hidden_layers; l++) {
        const di_layer_plan *p = &c->layers[l];
        require((p->mode == DI_LAYER_SWA) == (p->ratio == 0));
        require(p->engram < c->num_engram_layers);
        if (p->mode != DI_LAYER_SWA) {
            require(p->kv_source >= 0 && p->kv_source <= p->index_source && p->index_source <= l);
            require(c->layers[p->kv_source].mode == DI_LAYER_FULL);
            require(c->layers[p->kv_source].ratio == p->ratio);
        }
        require(l < c->boundary_layer || p->kv_source == c->boundary_layer);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    di_config c;
    json_t *root = di_json_parse((const char *)data, size, DI_JSON_MAX_DEPTH, "config.json", NULL);
    if (root && di_config_parse(&c, root, "config.json", NULL)) {
        check(&c);
    }
    json_decref(root);
    return 0;
}
