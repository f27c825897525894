/* One safetensors file: what it holds is found, and every lie about lengths, types, shapes and
 * places is refused with the file's name. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/cmocka.h"
#include "support/model_files.h"
#include "weights/safetensors.h"

#define NAME "x.safetensors"

static int make_folder(void **state) {
    *state = files_folder();
    return 0;
}

static int remove_folder(void **state) {
    files_remove(*state);
    return 0;
}

static void refused(const char *folder, const char *message) {
    di_shard s;
    di_error err = {0};
    if (di_shard_open(&s, files_path(folder, NAME), &err)) {
        fail_msg("accepted, should say '%s'", message);
    }
    if (!strstr(err.message, message) || !strstr(err.message, NAME)) {
        fail_msg("'%s' does not say '%s' of " NAME, err.message, message);
    }
    assert_int_equal(err.code, DI_ERR_FORMAT);
    assert_null(s.map.data);
}

static void accepted(di_shard *s, const char *folder) {
    di_error err;
    if (!di_shard_open(s, files_path(folder, NAME), &err)) {
        fail_msg("%s", err.message);
    }
}

/* ---- what is right --------------------------------------------------------------------------- */

static void test_every_dtype_and_rank_is_read(void **state) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"note\":\"a \\\"b\\\" \\u00e9\"},"
        "\"f64\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]},"
        "\"i64\":{\"shape\":[1,1,1,1],\"data_offsets\":[8,16],\"dtype\":\"I64\"},"
        "\"f32\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[16,20]},"
        "\"i32\":{\"dtype\":\"I32\",\"shape\":[2,1],\"data_offsets\":[20,28]},"
        "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[28,34]},"
        "\"f16\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[34,36]},"
        "\"e4m3\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,2],\"data_offsets\":[36,40]},"
        "\"e8m0\" : { \"dtype\" : \"F8_E8M0\" , \"shape\" : [ 1 ] , \"data_offsets\" : [40 , 41]},"
        "\"i8\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[41,42]},"
        "\"u8\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[42,43]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[4294967296,0,4294967296],"
        "\"data_offsets\":[43,43]}}   ";
    static const struct {
        const char *name;
        di_dtype dtype;
        int rank;
        size_t begin;
    } expected[] = {
        {"f64", DI_F64, 1, 0},       {"i64", DI_I64, 4, 8},       {"f32", DI_F32, 0, 16},
        {"i32", DI_I32, 2, 20},      {"bf16", DI_BF16, 1, 28},    {"f16", DI_F16, 1, 34},
        {"e4m3", DI_F8_E4M3, 2, 36}, {"e8m0", DI_F8_E8M0, 1, 40}, {"i8", DI_I8, 1, 41},
        {"u8", DI_U8, 1, 42},        {"none", DI_F32, 3, 43},
    };
    di_shard s;
    shard_write_text(*state, NAME, header, 43);
    accepted(&s, *state);
    assert_int_equal(s.num_tensors, 11);
    for (size_t i = 0; i < 11; i++) {
        di_tensor t;
        assert_true(di_shard_get(&s, expected[i].name, &t));
        assert_int_equal(t.dtype, expected[i].dtype);
        assert_int_equal(t.rank, expected[i].rank);
        assert_ptr_equal(t.data, s.data + expected[i].begin);
    }
    assert_int_equal(di_shard_find(&s, "i32")->shape[0], 2);
    assert_int_equal(di_shard_file_offset(&s, 5), 8 + strlen(header) + 5);
    assert_null(di_shard_find(&s, "f3"));
    assert_null(di_shard_find(&s, "f322"));
    assert_null(di_shard_find(&s, "__metadata__"));
    di_shard_close(&s);
}

static void test_a_file_without_tensors_is_read(void **state) {
    di_shard s;
    shard_write_text(*state, NAME, "{}", 0);
    accepted(&s, *state);
    assert_int_equal(s.num_tensors, 0);
    di_shard_close(&s);
    shard_write_text(*state, NAME, "{\"__metadata__\":{}}", 0);
    accepted(&s, *state);
    di_shard_close(&s);
}

static void test_tensors_are_found_whatever_their_order(void **state) {
    char header[8192];
    size_t used = (size_t)snprintf(header, sizeof header, "{");
    for (int i = 0; i < 100; i++) {
        int n = i * 37 % 100;
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"t.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,"
                                 "%d]}",
                                 i ? "," : "", n, n, n + 1);
    }
    snprintf(header + used, sizeof header - used, "}");
    di_shard s;
    shard_write_text(*state, NAME, header, 100);
    accepted(&s, *state);
    for (int n = 0; n < 100; n++) {
        char name[16];
        snprintf(name, sizeof name, "t.%d", n);
        assert_int_equal(di_shard_find(&s, name)->begin, n);
    }
    di_shard_close(&s);
}

/* ---- lengths --------------------------------------------------------------------------------- */

static void test_a_header_length_beyond_the_file_is_refused(void **state) {
    static const uint8_t all_ones[] = {255, 255, 255, 255, 255, 255, 255, 255};
    uint8_t file[64] = {0};
    files_write(*state, NAME, all_ones, 8);
    refused(*state, "8 bytes are too few");
    files_write(*state, NAME, all_ones, 7);
    refused(*state, "7 bytes are too few");
    memcpy(file, all_ones, 8);
    files_write(*state, NAME, file, sizeof file);
    refused(*state, "header length is 18446744073709551615, allowed are 2 to 56");
    static const uint64_t lengths[] = {0, 1, 57, 64, 65, UINT64_MAX - 7, UINT64_MAX - 4};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(file, &lengths[i], 8);
        files_write(*state, NAME, file, sizeof file);
        refused(*state, "header length is");
    }
}

static void test_an_empty_or_missing_file_is_refused(void **state) {
    di_shard s;
    di_error err;
    files_write(*state, NAME, "", 0);
    refused(*state, "empty");
    assert_false(di_shard_open(&s, files_path(*state, "none.safetensors"), &err));
    assert_int_equal(err.code, DI_ERR_IO);
    assert_non_null(strstr(err.message, "none.safetensors"));
    assert_false(di_shard_open(&s, *state, &err));
    assert_non_null(strstr(err.message, "not a regular file"));
}

static void test_a_header_above_100_mb_is_refused(void **state) {
    const char *path = files_path(*state, NAME);
    uint64_t length = (100 << 20) + 1;
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, &length, 8), 8);
    assert_int_equal(ftruncate(fd, 200 << 20), 0); /* sparse */
    close(fd);
    refused(*state, "allowed are 2 to 104857600");
}

static const char two_tensors[] =
    "{\"__metadata__\":{\"format\":\"pt\"},\"first\":{\"dtype\":\"F32\",\"shape\":[2],"
    "\"data_offsets\":[0,8]},\"second\":{\"dtype\":\"BF16\",\"shape\":[2,1],"
    "\"data_offsets\":[8,12]}}";

static void test_a_file_cut_anywhere_is_refused(void **state) {
    size_t size;
    shard_write_text(*state, NAME, two_tensors, 12);
    char *whole = files_read(files_path(*state, NAME), &size);
    for (size_t cut = 1; cut < size; cut++) {
        files_write(*state, NAME, whole, cut);
        refused(*state, "");
    }
    free(whole);
}

static void test_a_header_shorter_than_its_text_is_refused(void **state) {
    size_t size;
    shard_write_text(*state, NAME, two_tensors, 12);
    char *whole = files_read(files_path(*state, NAME), &size);
    for (uint64_t length = 2; length < sizeof two_tensors - 1; length++) {
        memcpy(whole, &length, 8);
        files_write(*state, NAME, whole, size);
        refused(*state, "header, file offset");
    }
    free(whole);
}

/* What opens after damage must still be consistent: tensors that tile the data. */
static void test_any_damaged_byte_leaves_a_consistent_file_or_none(void **state) {
    size_t size, opened = 0;
    shard_write_text(*state, NAME, two_tensors, 12);
    uint8_t *whole = files_read(files_path(*state, NAME), &size);
    for (size_t at = 0; at < size - 12; at++) {
        static const uint8_t masks[] = {1, 2, 16, 128, 255};
        for (size_t m = 0; m < sizeof masks; m++) {
            di_shard s;
            whole[at] ^= masks[m];
            files_write(*state, NAME, whole, size);
            whole[at] ^= masks[m];
            if (!di_shard_open(&s, files_path(*state, NAME), NULL)) {
                continue;
            }
            opened++;
            uint64_t sum = 0;
            for (size_t i = 0; i < s.num_tensors; i++) {
                sum += s.tensors[i].end - s.tensors[i].begin;
            }
            assert_int_equal(sum, s.data_bytes);
            di_shard_close(&s);
        }
    }
    assert_true(opened > 0); /* names may change */
    free(whole);
}

/* ---- lies ------------------------------------------------------------------------------------ */

#define TENSOR(dtype, shape, offsets)                                                              \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_each_lie_is_refused_with_its_reason(void **state) {
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *message;
    } lies[] = {
        /* places */
        {TENSOR("\"F32\"", "[1]", "[8,4]"), 8, "t: data_offsets [8, 4] must ascend"},
        {TENSOR("\"F32\"", "[1]", "[-4,0]"), 4, "an integer from 0 to 2^64 - 1 was expected"},
        {TENSOR("\"F32\"", "[1]", "[0,8]"), 4, "end within the 4 bytes"},
        {TENSOR("\"F32\"", "[1]", "[18446744073709551612,18446744073709551615]"), 4, "end within"},
        {TENSOR("\"F32\"", "[1]", "[18446744073709551612,0]"), 4, "must ascend"},
        {TENSOR("\"F32\"", "[1]", "[0,18446744073709551616]"), 4, "an integer from 0 to 2^64"},
        {TENSOR("\"F32\"", "[1]", "[0]"), 4, "data_offsets must be an array of two"},
        {TENSOR("\"F32\"", "[1]", "[0,2,4]"), 4, "data_offsets must be an array of two"},
        {TENSOR("\"F32\"", "[1]", "{}"), 4, "data_offsets must be an array of two"},
        {TENSOR("\"F32\"", "[1]", "[0,4]"), 8, "the last 4 bytes"},
        {TENSOR("\"F32\"", "[1]", "[4,8]"), 8, "4 bytes before t"},
        {"{}", 1, "the last 1 bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
         7, "b overlaps a"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         4, "overlaps"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
         9, "b overlaps a"},
        /* shapes */
        {TENSOR("\"F32\"", "[1000,1000]", "[0,4]"), 4,
         "ask for 4000000 bytes, data_offsets give 4"},
        {TENSOR("\"F32\"", "[2]", "[0,4]"), 4, "ask for 8 bytes"},
        {TENSOR("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "2^63 bytes or more"},
        {TENSOR("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "2^63 bytes or more"},
        {TENSOR("\"U8\"", "[4294967296,2147483648]", "[0,0]"), 0, "2^63 bytes or more"},
        {TENSOR("\"F32\"", "[4611686018427387905]", "[0,4]"), 4, "2^63 bytes or more"},
        {TENSOR("\"U8\"", "[9223372036854775808]", "[0,0]"), 0, "2^63 bytes or more"},
        {TENSOR("\"U8\"", "[9223372036854775808,0]", "[0,0]"), 0, "2^63 bytes or more"},
        {TENSOR("\"F32\"", "[-1]", "[0,4]"), 4, "an integer from 0"},
        {TENSOR("\"F32\"", "[1.0]", "[0,4]"), 4, "an integer from 0"},
        {TENSOR("\"F32\"", "[1e0]", "[0,4]"), 4, "an integer from 0"},
        {TENSOR("\"F32\"", "[01]", "[0,4]"), 4, "an integer from 0"},
        {TENSOR("\"F32\"", "[\"1\"]", "[0,4]"), 4, "an integer from 0"},
        {TENSOR("\"F32\"", "1", "[0,4]"), 4, "shape must be an array"},
        {TENSOR("\"F32\"", "[1,]", "[0,4]"), 4, "an integer from 0"},
        {TENSOR("\"F32\"", "[1,1,1,1,1]", "[0,4]"), 4, "shape has 5 dimensions"},
        /* dtypes */
        {TENSOR("\"F33\"", "[1]", "[0,4]"), 4, "t: dtype 'F33' is not known"},
        {TENSOR("\"f32\"", "[1]", "[0,4]"), 4, "not known"},
        {TENSOR("\"FP4\"", "[8]", "[0,4]"), 4, "not known"},
        {TENSOR("\"\"", "[1]", "[0,4]"), 4, "not known"},
        {TENSOR("null", "[1]", "[0,4]"), 4, "a string was expected"},
        {TENSOR("\"F\\u0033\"", "[1]", "[0,4]"), 4, "ASCII without escapes"},
        /* structure */
        {"[]", 0, "must begin with '{'"},
        {"{}x", 0, "only spaces may follow"},
        {"{} {}", 0, "only spaces may follow"},
        {"{,}", 0, "a string was expected"},
        {"{\"t\":1}", 0, "a tensor must be an object"},
        {"{\"t\":{}}", 0, "a string was expected"},
        {"{\"t\":{\"dtype\":\"U8\"}}", 0, "lacks dtype, shape or data_offsets"},
        {"{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "a key stands twice"},
        {"{\"t\":{\"strides\":[1]}}", 0, "nothing else"},
        {"{\"t\" {}}", 0, "':' was expected"},
        {"{\"t\\n\":{}}", 0, "ASCII without escapes"},
        {"{\"t\xc3\xa9\":{}}", 0, "ASCII without escapes"},
        {"{\"t\n\":{}}", 0, "control character"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0, "a stands twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},}", 0,
         "a string was expected"},
        /* metadata */
        {"{\"__metadata__\":{\"a\":1}}", 0, "a string was expected"},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "a string was expected"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ must be an object"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ stands twice"},
        {"{\"__metadata__\":{\"a\":\"\\x\"}}", 0, "unknown escape"},
        {"{\"__metadata__\":{\"a\":\"\\u12g4\"}}", 0, "four hexadecimal digits"},
        {"{\"__metadata__\":{\"a\":\"b}}", 0, "does not end"},
        {"{\"__metadata__\":{\"a\":\"b\\", 0, "does not end"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        shard_write_text(*state, NAME, lies[i].header, lies[i].data_bytes);
        refused(*state, lies[i].message);
    }
}

static void test_deep_nesting_is_refused(void **state) {
    enum { DEPTH = 1000000 };
    char *header = malloc(DEPTH + 1);
    memset(header, '[', DEPTH);
    header[DEPTH] = 0;
    memcpy(header, "{\"t\":{\"shape\":", 14);
    shard_write_text(*state, NAME, header, 0);
    refused(*state, "an integer from 0");
    free(header);
}

static void test_long_and_odd_names_do_not_spoil_messages(void **state) {
    enum { LENGTH = 100000 };
    char *header = malloc(LENGTH + 100);
    memset(header, 'n', LENGTH + 100);
    memcpy(header, "{\"", 2);
    strcpy(header + LENGTH, "\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,0]}}");
    shard_write_text(*state, NAME, header, 0);
    refused(*state, "dtype 'X' is not known");
    free(header);
}

static void test_collecting_goes_on_after_a_fault(void **state) {
    di_shard s;
    di_faults faults = {.collect = true};
    shard_write_text(*state, NAME,
                     "{\"a\":{\"dtype\":\"X\",\"shape\":[4],\"data_offsets\":[0,4]},"
                     "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[4,8]},"
                     "\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]},"
                     "\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}}",
                     12);
    assert_true(di_shard_check(&s, files_path(*state, NAME), &faults));
    assert_int_equal(faults.count, 3);
    assert_int_equal(s.num_tensors, 1);
    assert_non_null(di_shard_find(&s, "c"));
    di_shard_close(&s);
    di_faults_destroy(&faults);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dtype_and_rank_is_read),
        cmocka_unit_test(test_a_file_without_tensors_is_read),
        cmocka_unit_test(test_tensors_are_found_whatever_their_order),
        cmocka_unit_test(test_a_header_length_beyond_the_file_is_refused),
        cmocka_unit_test(test_an_empty_or_missing_file_is_refused),
        cmocka_unit_test(test_a_header_above_100_mb_is_refused),
        cmocka_unit_test(test_a_file_cut_anywhere_is_refused),
        cmocka_unit_test(test_a_header_shorter_than_its_text_is_refused),
        cmocka_unit_test(test_any_damaged_byte_leaves_a_consistent_file_or_none),
        cmocka_unit_test(test_each_lie_is_refused_with_its_reason),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_long_and_odd_names_do_not_spoil_messages),
        cmocka_unit_test(test_collecting_goes_on_after_a_fault),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
