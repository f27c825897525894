/* The released model's numbers come out of the layout: 890 bytes a token, 528-byte window rows; no
 * two records share a byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/configs.h"

#include "cache/layout.h"
#include "ops/address.h"

static void test_release_needs_890_bytes_a_token(void **state) {
    (void)state;
    di_config c = release_config();
    di_state_layout layout;
    di_state_layout_fill(&layout, &c, 128, 6, 0);
    assert_int_equal(layout.block_stride, 890 * 128);
    assert_int_equal(layout.latent_bytes, 288);
    assert_int_equal(layout.key_bytes, 68);
    assert_int_equal(layout.window_bytes, 528);
    assert_int_equal(layout.group_bytes, 4096);
    assert_int_equal(layout.ring_rows, 134);
    assert_int_equal(layout.group_rows, 7);
}

/* Every part of a block and of a slot has bytes of its own. */
static void test_parts_do_not_overlap(void **state) {
    (void)state;
    di_config c = release_config();
    di_state_layout l;
    di_state_layout_fill(&l, &c, 128, 6, 0);
    size_t end = 0;
    for (int i = 0; i < 4; i++) {
        int s = c.kv_source_layer_ids[i];
        size_t entries = (size_t)(128 / c.layers[s].ratio);
        assert_true(l.key_offset[s] >= end && l.key_offset[s] % 64 == 0);
        end = l.key_offset[s] + entries * l.key_bytes;
        assert_true(l.latent_offset[s] >= end && l.latent_offset[s] % 64 == 0);
        end = l.latent_offset[s] + entries * l.latent_bytes;
    }
    assert_true(end <= l.block_stride);
    assert_true(l.latent_offset[3] == SIZE_MAX && l.ring_offset[40] == SIZE_MAX);
    end = 0;
    for (int s = 0; s < 40; s++) {
        assert_true(l.ring_offset[s] >= end);
        end = l.ring_offset[s] + (size_t)l.ring_rows * l.window_bytes;
    }
    for (int i = 0; i < 3; i++) {
        int s = c.kv_source_layer_ids[i];
        assert_true(l.group_offset[s] >= end);
        end = l.group_offset[s] + (size_t)l.group_rows * l.group_bytes;
    }
    assert_true(l.group_offset[20] == SIZE_MAX && end <= l.slot_stride);
}

/* Fails if any byte was claimed before. */
static void claim(uint8_t *claimed, const void *record, const void *base, size_t bytes) {
    uint8_t *at = claimed + ((const uint8_t *)record - (const uint8_t *)base);
    for (size_t i = 0; i < bytes; i++) {
        assert_false(at[i]);
        at[i] = 1;
    }
}

/* Two sequences of T tokens with the draft model's rings; addresses alone, nothing lies there. */
static void check_addresses(const di_config *c, const di_state_layout *l, int64_t tokens) {
    enum { BLOCKS = 7, SLOTS = 3 };
    static const int32_t tables[2][3] = {{5, 1, 6}, {3, 4, 2}};
    size_t block_bytes = BLOCKS * l->block_stride, slot_bytes = SLOTS * l->slot_stride;
    uint8_t *claimed = calloc(block_bytes + slot_bytes, 1), *base = claimed;
    assert_non_null(claimed);
    di_state_pool pool = {.layout = l, .blocks = base, .slots = base + block_bytes};
    for (int s = 0; s < 2; s++) {
        int64_t ring = tokens < l->ring_rows ? tokens : l->ring_rows;
        int64_t group = tokens < l->group_rows ? tokens : l->group_rows;
        for (int layer = 0; layer < 43; layer++) {
            for (int64_t p = tokens - ring; p < tokens; p++) {
                claim(claimed, di_ring_row(&pool, s + 1, layer, p), base, l->window_bytes);
            }
        }
        for (int i = 0; i < c->num_kv_sources; i++) {
            int source = c->kv_source_layer_ids[i], ratio = c->layers[source].ratio;
            for (int64_t e = 0; e < tokens / ratio; e++) {
                claim(claimed, di_latent_row(&pool, tables[s], source, ratio, e), base,
                      l->latent_bytes);
                claim(claimed, di_key_row(&pool, tables[s], source, ratio, e), base, l->key_bytes);
            }
            for (int64_t p = tokens - group; ratio > 1 && p < tokens; p++) {
                claim(claimed, di_group_row(&pool, s + 1, source, p), base, l->group_bytes);
            }
        }
    }
    for (size_t i = 0; i < l->block_stride; i++) { /* number 0 is nobody's */
        assert_false(claimed[i]);
    }
    for (size_t i = 0; i < l->slot_stride; i++) {
        assert_false(claimed[block_bytes + i]);
    }
    free(claimed);
}

static void test_every_layer_and_position_has_bytes_of_its_own(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 127, 128, 129, 255, 256, 383, 384};
    di_config c = release_config();
    di_state_layout l;
    di_state_layout_fill(&l, &c, 128, 6, 3);
    assert_true(l.ring_offset[42] != SIZE_MAX && l.ring_offset[43] == SIZE_MAX);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_addresses(&c, &l, lengths[i]);
    }
}

static void test_the_printed_table_adds_up_to_blocks_and_slots(void **state) {
    (void)state;
    di_config c = release_config();
    di_state_layout l;
    di_state_layout_fill(&l, &c, 128, 6, 3);
    char *text = NULL, *line, *rest, where[16], name[64];
    size_t size, sums[2] = {0, 0};
    FILE *out = open_memstream(&text, &size);
    di_state_table_print(out, &c);
    fclose(out);
    assert_non_null(strstr(text, "113920 bytes (890 a token)"));
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        size_t bytes;
        if (sscanf(line, "%20c%15s %*d %*d %*d %zu", name, where, &bytes) == 3) {
            sums[0] += strcmp(where, "block") == 0 ? bytes : 0;
            sums[1] += strcmp(where, "slot") == 0 ? bytes : 0;
        }
    }
    free(text);
    assert_int_equal(sums[0], l.block_stride);
    assert_in_range(l.slot_stride - sums[1], 0, 46 * 63); /* parts begin at multiples of 64 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_release_needs_890_bytes_a_token),
        cmocka_unit_test(test_parts_do_not_overlap),
        cmocka_unit_test(test_every_layer_and_position_has_bytes_of_its_own),
        cmocka_unit_test(test_the_printed_table_adds_up_to_blocks_and_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
