/* The released model's numbers come out of the layout: 890 bytes a token, 528-byte window rows. */
#include "support/cmocka.h"

#include "base/json.h"
#include "cache/layout.h"

static di_config release(void) {
    di_config c = {
        .head_dim = 512,
        .index_head_dim = 128,
        .sliding_window = 128,
        .num_hidden_layers = 40,
        .num_kv_sources = 4,
        .kv_source_layer_ids = {2, 8, 14, 20},
    };
    for (int l = 2; l < 40; l++) {
        c.layers[l].ratio = l < 20 ? 2 : 1;
    }
    return c;
}

static void test_release_needs_890_bytes_a_token(void **state) {
    (void)state;
    di_config c = release();
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
    di_config c = release();
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_release_needs_890_bytes_a_token),
        cmocka_unit_test(test_parts_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
