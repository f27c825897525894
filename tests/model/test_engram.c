/* Engram's hashing against published constants and a NumPy run. */
#include <string.h>

#include "support/cmocka.h"

#include "base/alloc.h"
#include "model/engram.h"

static void release(di_config *c) {
    *c = (di_config){
        .vocab_size = 129280,
        .num_engram_layers = 2,
        .engram_layer_ids = {1, 14},
        .engram_max_ngram_size = 4,
        .engram_n_heads = 8,
        .engram_columns = 24,
        .engram_vocab_size = 16000000,
        .engram_compressed_vocab_size = 99092,
        .engram_pad_token_id = 2,
    };
}

/* Compressed ids as they are: the published rows are given for compressed ids. */
static int32_t *identity(int n) {
    int32_t *map = di_calloc((size_t)n, sizeof *map);
    for (int i = 0; i < n; i++) {
        map[i] = i;
    }
    return map;
}

static void test_multipliers_of_the_release(void **state) {
    (void)state;
    static const uint64_t wanted[2][4] = {
        {76632096046245, 4839876093313, 35959672319349, 73987337458391},
        {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
    di_config c;
    di_engram_hasher h;
    release(&c);
    int32_t *map = identity(c.vocab_size);
    di_engram_hasher_init(&h, &c, map);
    assert_memory_equal(h.multipliers[0], wanted[0], sizeof wanted[0]);
    assert_memory_equal(h.multipliers[1], wanted[1], sizeof wanted[1]);
    assert_int_equal(h.primes[0][0], 16000057);
    assert_int_equal(h.primes[1][23], 16000889);
    di_free(map);
}

static void test_rows_of_the_release(void **state) {
    (void)state;
    static const int32_t ids[] = {0, 5, 17, 99091, 1234};
    static const int64_t layer1_p3[24] = {
        379248,    18191193,  40143441,  48303286,  65018668,  94184119,  102190568, 114357284,
        141971515, 148328099, 170128869, 184338629, 202869581, 208948308, 226083122, 245587010,
        264890446, 278007708, 294118255, 313377065, 332736162, 339553833, 352322499, 369009118};
    di_config c;
    di_engram_hasher h;
    int64_t rows[24];
    release(&c);
    int32_t *map = identity(c.vocab_size);
    di_engram_hasher_init(&h, &c, map);
    di_engram_hash(&h, 0, ids, 0, rows);
    assert_int_equal(rows[0], 5702652);
    assert_int_equal(rows[1], 24393184);
    assert_int_equal(rows[2], 39183301);
    assert_int_equal(rows[23], 380066193);
    di_engram_hash(&h, 0, ids, 3, rows);
    assert_memory_equal(rows, layer1_p3, sizeof layer1_p3);
    di_engram_hash(&h, 0, ids, 4, rows);
    assert_int_equal(rows[0], 10328814);
    assert_int_equal(rows[23], 371359148);
    di_engram_hash(&h, 1, ids, 4, rows);
    assert_int_equal(rows[0], 1440856);
    assert_int_equal(rows[1], 24829676);
    assert_int_equal(rows[23], 380926429);
    di_free(map);
}

/* Multipliers need all 63 bits: 2^53 + 1 is the least integer a double cannot hold. */
static void test_numpy_draws_keep_every_bit(void **state) {
    (void)state;
    uint64_t v[4];
    di_numpy_integers(10007, 18014398509481983u, 4, v);
    assert_int_equal(2 * v[0] + 1, 29662608052400909);
    assert_int_equal(2 * v[1] + 1, 1873410163432121);
    assert_int_equal(2 * v[2] + 1, 13919202536988139);
    assert_int_equal(2 * v[3] + 1, 28638879857136817);
    di_numpy_integers(20014, 18014398509481983u, 4, v);
    assert_int_equal(2 * v[3] + 1, 27646881644150121);
}

/* An id of -1 once indexed a token map from its end. */
static void test_ids_outside_the_vocabulary_belong_to_no_ngram(void **state) {
    (void)state;
    di_config c;
    di_engram_hasher h;
    int64_t rows[24], behind[24], alone[24];
    release(&c);
    int32_t *map = identity(c.vocab_size);
    di_engram_hasher_init(&h, &c, map);
    assert_int_equal(di_engram_compress(&h, -1), DI_ENGRAM_BARRIER);
    assert_int_equal(di_engram_compress(&h, 129280), DI_ENGRAM_BARRIER);
    assert_int_equal(di_engram_compress(&h, INT64_MIN), DI_ENGRAM_BARRIER);
    assert_int_equal(di_engram_compress(&h, 5), 5);

    const int32_t ids[] = {7, DI_ENGRAM_BARRIER, 5};
    di_engram_hash(&h, 0, ids, 1, rows);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(rows[i], -1);
    }
    di_engram_hash(&h, 0, ids, 2, behind); /* as at the start of a sequence */
    di_engram_hash(&h, 0, ids + 2, 0, alone);
    assert_memory_equal(behind, alone, sizeof alone);
    di_free(map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_multipliers_of_the_release),
        cmocka_unit_test(test_rows_of_the_release),
        cmocka_unit_test(test_numpy_draws_keep_every_bit),
        cmocka_unit_test(test_ids_outside_the_vocabulary_belong_to_no_ngram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
