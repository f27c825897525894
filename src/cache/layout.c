/* The table of all kinds of per-sequence state, and what follows from it: see layout.h. */
#include "cache/layout.h"

#include <stdbool.h>

#include "cache/cache.h"

/* ---- the table ---- */

/* What the number of rows depends on. */
typedef struct extent {
    const di_config *c;
    int block_tokens, ring_rows, group_rows, draft_layers;
} extent;

typedef enum home { IN_BLOCKS, IN_SLOTS, ON_HOST, IN_STEP } home;

typedef struct state_kind {
    const char *name;
    home home;
    size_t (*row_bytes)(const di_config *c);
    int (*rows)(const extent *e, int layer); /* in each block or slot; 0: the layer has none */
    size_t bytes_field, offset_field;        /* in di_state_layout; blocks and slots only */
    const char *kept, *rollback;
} state_kind;

static bool is_source(const di_config *c, int layer) {
    for (int i = 0; i < c->num_kv_sources; i++) {
        if (c->kv_source_layer_ids[i] == layer) {
            return true;
        }
    }
    return false;
}

static int block_entries(const extent *e, int layer) {
    return is_source(e->c, layer) ? e->block_tokens / e->c->layers[layer].ratio : 0;
}

static int window_rows(const extent *e, int layer) {
    return layer < e->c->num_hidden_layers ? e->ring_rows : 0;
}

static int draft_rows(const extent *e, int layer) {
    int first = e->c->num_hidden_layers;
    return layer >= first && layer < first + e->draft_layers ? e->ring_rows : 0;
}

static int open_rows(const extent *e, int layer) {
    return is_source(e->c, layer) && e->c->layers[layer].ratio > 1 ? e->group_rows : 0;
}

static int one_row(const extent *e, int layer) {
    (void)e;
    return layer == 0;
}

static size_t key_bytes(const di_config *c) { /* E2M1 pairs, a scale for 32 */
    return (size_t)c->index_head_dim / 2 + (size_t)c->index_head_dim / 32;
}

static size_t latent_bytes(const di_config *c) { /* E2M1 pairs, a scale for 16 */
    return (size_t)c->head_dim / 2 + (size_t)c->head_dim / 16;
}

static size_t window_bytes(const di_config *c) { /* E4M3, a scale for 32 */
    return (size_t)c->head_dim + (size_t)c->head_dim / 32;
}

static size_t group_bytes(const di_config *c) { /* k and g, f32 */
    return 2 * (size_t)c->head_dim * sizeof(float);
}

static size_t token_bytes(const di_config *c) {
    (void)c;
    return sizeof(int32_t);
}

static size_t choice_bytes(const di_config *c) {
    return ((size_t)c->index_topk + (size_t)c->candidate_topk_blocks) * sizeof(int32_t);
}

#define FIELDS(record, place)                                                                      \
    offsetof(di_state_layout, record##_bytes), offsetof(di_state_layout, place##_offset)

static const state_kind kinds[] = {
    {"index keys", IN_BLOCKS, key_bytes, block_entries, FIELDS(key, key), "all entries",
     "entries from len / ratio on are not read, then written again"},
    {"latents", IN_BLOCKS, latent_bytes, block_entries, FIELDS(latent, latent), "all entries",
     "as the index keys"},
    {"window rings", IN_SLOTS, window_bytes, window_rows, FIELDS(window, ring), "position mod rows",
     "nothing: B more rows than the window, so the window in front of len is still there"},
    {"draft rings", IN_SLOTS, window_bytes, draft_rows, FIELDS(window, ring), "position mod rows",
     "nothing: as the window rings"},
    {"open groups", IN_SLOTS, group_bytes, open_rows, FIELDS(group, group), "position mod rows",
     "nothing: B - 1 more rows than a group, so the open group in front of len is still there"},
    {"token ids", ON_HOST, token_bytes, one_row, 0, 0, "all; Engram looks back at the newest",
     "the caller's list is cut"},
    {"choice, candidates", IN_STEP, choice_bytes, one_row, 0, 0, "of the step's rows only",
     "nothing"},
};

enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

/* ---- bytes and places ---- */

static void set_size(di_state_layout *layout, size_t field, size_t value) {
    *(size_t *)((char *)layout + field) = value;
}

/* Takes the next part of a block or slot for the rows that `layer` keeps of this kind. */
static void place(di_state_layout *layout, const state_kind *k, const extent *e, int layer,
                  size_t *end) {
    size_t rows = (size_t)k->rows(e, layer);
    if (rows > 0) {
        set_size(layout, k->offset_field + (size_t)layer * sizeof(size_t), *end);
        *end = (*end + rows * k->row_bytes(e->c) + 63) / 64 * 64;
    }
}

static extent extent_of(const di_config *c, int block_tokens, int max_backtracking,
                        int draft_layers) {
    int max_ratio = 1;
    for (int i = 0; i < c->num_kv_sources; i++) {
        int ratio = c->layers[c->kv_source_layer_ids[i]].ratio;
        max_ratio = ratio > max_ratio ? ratio : max_ratio;
    }
    return (extent){
        .c = c,
        .block_tokens = block_tokens,
        .ring_rows = c->sliding_window + max_backtracking,
        .group_rows = max_ratio + (max_backtracking > 0 ? max_backtracking - 1 : 0),
        .draft_layers = draft_layers,
    };
}

void di_state_layout_fill(di_state_layout *layout, const di_config *c, int block_tokens,
                          int max_backtracking, int draft_layers) {
    extent e = extent_of(c, block_tokens, max_backtracking, draft_layers);
    int num_layers = c->num_hidden_layers + draft_layers;
    *layout = (di_state_layout){
        .block_tokens = block_tokens, .ring_rows = e.ring_rows, .group_rows = e.group_rows};
    for (int l = 0; l < DI_MAX_LAYERS; l++) {
        layout->latent_offset[l] = layout->key_offset[l] = SIZE_MAX;
        layout->ring_offset[l] = layout->group_offset[l] = SIZE_MAX;
    }
    for (const state_kind *k = kinds; k < kinds + NUM_KINDS; k++) {
        if (k->home == IN_BLOCKS || k->home == IN_SLOTS) {
            set_size(layout, k->bytes_field, k->row_bytes(c));
        }
    }
    /* What one source's readers need lies together in a block; a slot goes kind by kind. */
    for (int l = 0; l < num_layers; l++) {
        for (const state_kind *k = kinds; k < kinds + NUM_KINDS; k++) {
            if (k->home == IN_BLOCKS) {
                place(layout, k, &e, l, &layout->block_stride);
            }
        }
    }
    for (const state_kind *k = kinds; k < kinds + NUM_KINDS; k++) {
        for (int l = 0; k->home == IN_SLOTS && l < num_layers; l++) {
            place(layout, k, &e, l, &layout->slot_stride);
        }
    }
}

/* ---- for people ---- */

/* One line for the layers of a kind that have this ratio (-1: any). */
static void print_kind(FILE *out, const state_kind *k, const extent *e, int ratio) {
    static const char *const homes[] = {"block", "slot", "host", "step"};
    const di_config *c = e->c;
    int layers = 0, rows = 0;
    for (int l = 0; l < c->num_hidden_layers + e->draft_layers; l++) {
        if (k->rows(e, l) > 0 && (ratio < 0 || c->layers[l].ratio == ratio)) {
            layers++;
            rows = k->rows(e, l);
        }
    }
    if (layers == 0) {
        return;
    }
    char name[64], bytes[32] = "-";
    snprintf(name, sizeof name, ratio < 0 ? "%s" : "%s, ratio %d", k->name, ratio);
    bool pooled = k->home == IN_BLOCKS || k->home == IN_SLOTS;
    if (pooled) {
        snprintf(bytes, sizeof bytes, "%zu", (size_t)layers * (size_t)rows * k->row_bytes(c));
    }
    fprintf(out, "%-19s %-5s  %6d  %4d  %9zu  %9s  %-32s  %s\n", name, homes[k->home],
            pooled ? layers : 1, rows, k->row_bytes(c), bytes, k->kept, k->rollback);
}

void di_state_table_print(FILE *out, const di_config *c) {
    int room = DI_MAX_LAYERS - c->num_hidden_layers;
    int drafts = c->num_nextn_predict_layers < room ? c->num_nextn_predict_layers : room;
    int back = drafts > 0 ? c->dspark_block_size + 1 : 0; /* B */
    extent e = extent_of(c, DI_BLOCK_TOKENS, back, drafts);
    di_state_layout layout;
    di_state_layout_fill(&layout, c, DI_BLOCK_TOKENS, back, drafts);
    fprintf(out, "%-19s %-5s  %6s  %4s  %9s  %9s  %-32s  %s\n", "kind", "in", "layers", "rows",
            "row bytes", "bytes", "kept", "when tokens are taken back");
    for (const state_kind *k = kinds; k < kinds + NUM_KINDS; k++) {
        bool by_ratio = k->home == IN_BLOCKS;
        for (int ratio = by_ratio ? 1 : -1; ratio <= (by_ratio ? 2 : -1); ratio++) {
            print_kind(out, k, &e, ratio);
        }
    }
    fprintf(out,
            "\nA block holds %d tokens in %zu bytes (%zu a token), a slot one sequence in %zu "
            "bytes.\nB = %d: up to %d tokens can be taken back.\n",
            DI_BLOCK_TOKENS, layout.block_stride, layout.block_stride / DI_BLOCK_TOKENS,
            layout.slot_stride, back, back > 0 ? back - 1 : 0);
}
