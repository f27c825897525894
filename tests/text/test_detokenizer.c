/* Streaming text out of ids: nothing lost, nothing twice, always valid UTF-8. */
#include <string.h>

#include "base/utf8.h"
#include "support/cmocka.h"
#include "support/random.h"
#include "support/text_data.h"
#include "text/detokenizer.h"

static di_tokenizer *tok;
static int32_t byte_id[256]; /* the token of each single byte */

static void push(di_detokenizer *d, int32_t id, di_buffer *out) {
    size_t before = out->size;
    assert_true(di_detokenizer_push(d, id, out, NULL));
    assert_true(di_utf8_valid(out->data ? out->data + before : "", out->size - before, NULL));
}

static void assert_text(const di_buffer *b, const char *expected) {
    assert_int_equal(b->size, strlen(expected));
    assert_memory_equal(b->data ? b->data : "", expected, b->size);
}

/* What `bytes` decode to when all are there from the start. Written apart from the code under test,
 * after Unicode's table of well-formed sequences, by trying the three multi-byte forms in turn. */
static void decode_whole(const unsigned char *p, size_t n, di_buffer *out) {
    for (size_t i = 0; i < n;) {
        size_t need = p[i] < 0x80                    ? 0
                      : p[i] >= 0xC2 && p[i] <= 0xDF ? 1
                      : p[i] >= 0xE0 && p[i] <= 0xEF ? 2
                      : p[i] >= 0xF0 && p[i] <= 0xF4 ? 3
                                                     : 9;
        size_t got = 0;
        while (need != 9 && got < need && i + 1 + got < n) {
            unsigned char low = 0x80, high = 0xBF, c = p[i + 1 + got];
            if (got == 0) {
                low = p[i] == 0xE0 ? 0xA0 : p[i] == 0xF0 ? 0x90 : low;
                high = p[i] == 0xED ? 0x9F : p[i] == 0xF4 ? 0x8F : high;
            }
            if (c < low || c > high) {
                break;
            }
            got++;
        }
        bool whole = got == need;
        assert_true(whole ? di_buffer_append(out, p + i, 1 + need, NULL)
                          : di_buffer_append(out, "\xEF\xBF\xBD", 3, NULL));
        i += 1 + got;
    }
}

static void test_split_characters_come_out_whole(void **state) {
    (void)state;
    static const char *const characters[] = {"é", "漢", "🙂"};
    for (size_t i = 0; i < 3; i++) {
        di_detokenizer d;
        di_buffer out = {0};
        di_detokenizer_init(&d, tok);
        size_t size = strlen(characters[i]);
        for (size_t k = 0; k < size; k++) {
            assert_int_equal(out.size, 0); /* nothing before the last byte */
            push(&d, byte_id[(unsigned char)characters[i][k]], &out);
        }
        assert_text(&out, characters[i]);
        assert_true(di_detokenizer_finish(&d, &out, NULL));
        assert_text(&out, characters[i]);
        di_buffer_free(&out);
    }
}

static void test_leftover_prompt_bytes_join_the_first_new_bytes(void **state) {
    (void)state;
    const int32_t prompt[] = {byte_id['a'], byte_id['b'], byte_id[0xE6], byte_id[0xBC]};
    di_detokenizer d;
    di_buffer out = {0};
    di_detokenizer_init(&d, tok);
    di_detokenizer_prime(&d, prompt, 4);
    push(&d, byte_id[0xA2], &out);
    assert_text(&out, "漢");
    push(&d, byte_id['c'], &out);
    assert_text(&out, "漢c");
    di_buffer_free(&out);

    /* A prompt of whole characters, of nothing, or of broken ones leaves nothing behind. */
    const int32_t whole[] = {byte_id[0xE6], byte_id[0xBC], byte_id[0xA2]};
    const int32_t broken[] = {byte_id[0xE6], byte_id[0xBC], byte_id[0x80], byte_id[0x80]};
    const struct {
        const int32_t *ids;
        size_t count;
    } prompts[] = {{whole, 3}, {whole, 0}, {broken, 4}, {prompt, 2}};
    for (size_t i = 0; i < 4; i++) {
        di_detokenizer_init(&d, tok);
        di_detokenizer_prime(&d, prompts[i].ids, prompts[i].count);
        assert_int_equal(d.held_size, 0);
    }
}

static void test_a_prompt_cut_anywhere_is_continued_without_repeating_it(void **state) {
    (void)state;
    const char *text = "aé漢🙂b";
    size_t size = strlen(text);
    for (size_t cut = 0; cut <= size; cut++) {
        int32_t ids[16];
        for (size_t i = 0; i < size; i++) {
            ids[i] = byte_id[(unsigned char)text[i]];
        }
        size_t whole = cut; /* the prompt's last complete character ends here */
        while (whole > 0 && whole < size && ((unsigned char)text[whole] & 0xC0) == 0x80) {
            whole--;
        }
        di_detokenizer d;
        di_buffer out = {0};
        di_detokenizer_init(&d, tok);
        di_detokenizer_prime(&d, ids, cut);
        for (size_t i = cut; i < size; i++) {
            push(&d, ids[i], &out);
        }
        assert_text(&out, text + whole);
        di_buffer_free(&out);
    }
}

static void test_broken_tail_is_flushed_once(void **state) {
    (void)state;
    di_detokenizer d;
    di_buffer out = {0};
    di_detokenizer_init(&d, tok);
    push(&d, byte_id['x'], &out);
    push(&d, byte_id[0xF0], &out);
    push(&d, byte_id[0x9F], &out);
    assert_text(&out, "x");
    assert_true(di_detokenizer_finish(&d, &out, NULL));
    assert_text(&out, "x\uFFFD");
    assert_true(di_detokenizer_finish(&d, &out, NULL));
    assert_text(&out, "x\uFFFD");
    di_buffer_free(&out);
}

static void test_a_real_replacement_character_does_not_stall(void **state) {
    (void)state;
    di_ids ids = {0};
    di_buffer out = {0};
    assert_true(di_tokenizer_encode(tok, "a\uFFFDb", 5, DI_ENCODE_PLAIN, &ids, NULL));
    assert_true(di_detokenize(tok, ids.data, ids.count, &out, NULL));
    assert_text(&out, "a\uFFFDb");
    di_ids_free(&ids);
    di_buffer_free(&out);
}

static void test_malformed_bytes_become_one_replacement_each(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\x80", "\uFFFD"},
        {"a\xFFz", "a\uFFFDz"},
        {"\xC0\xAF", "\uFFFD\uFFFD"},
        {"\xE2\x82x", "\uFFFDx"},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"\xF0\x9F\x98é", "\uFFFDé"},
        {"\xE6\xE6\xBC\xA2", "\uFFFD漢"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t ids[8];
        size_t n = strlen(cases[i].bytes);
        for (size_t k = 0; k < n; k++) {
            ids[k] = byte_id[(unsigned char)cases[i].bytes[k]];
        }
        di_buffer out = {0};
        assert_true(di_detokenize(tok, ids, n, &out, NULL));
        assert_text(&out, cases[i].text);
        di_buffer_free(&out);
    }
}

static void test_deltas_together_are_the_whole_text_for_any_bytes(void **state) {
    (void)state;
    static const unsigned char odd[] = {0x80, 0xBF, 0xC2, 0xE0, 0xA0, 0xED, 0x9F, 0xF0,
                                        0x90, 0xF4, 0x8F, 0xFF, 'a',  0xE2, 0xC0, 0xF5};
    uint64_t seed = 7;
    for (int round = 0; round < 50000; round++) {
        unsigned char bytes[12] = {0};
        size_t n = next_random(&seed) % sizeof bytes + 1;
        di_buffer stream = {0}, whole = {0};
        di_detokenizer d;
        di_detokenizer_init(&d, tok);
        for (size_t i = 0; i < n; i++) {
            bytes[i] = next_random(&seed) % 4 ? odd[next_random(&seed) % sizeof odd]
                                              : (unsigned char)next_random(&seed);
        }
        size_t cut = next_random(&seed) % (n + 1); /* so much of it is the prompt */
        int32_t prompt[12];
        for (size_t i = 0; i < cut; i++) {
            prompt[i] = byte_id[bytes[i]];
        }
        di_detokenizer_prime(&d, prompt, cut);
        size_t open = (size_t)d.held_size;
        for (size_t i = cut; i < n; i++) {
            push(&d, byte_id[bytes[i]], &stream);
        }
        assert_true(di_detokenizer_finish(&d, &stream, NULL));
        /* All the text is that of the prompt's closed part and then what was streamed. */
        di_buffer both = {0};
        decode_whole(bytes, cut - open, &both);
        assert_true(di_buffer_append(&both, stream.data, stream.size, NULL));
        decode_whole(bytes, n, &whole);
        assert_int_equal(both.size, whole.size);
        assert_memory_equal(both.data ? both.data : "", whole.data, whole.size);
        di_buffer_free(&stream);
        di_buffer_free(&whole);
        di_buffer_free(&both);
    }
}

static void test_golden_texts_survive_any_way_of_handing_in(void **state) {
    (void)state;
    json_t *rows = read_test_rows("tokenizer-v4/golden.jsonl"), *row;
    size_t i;
    di_ids ids = {0};
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text");
        size_t size = json_string_length(text);
        ids.count = 0;
        assert_true(
            di_tokenizer_encode(tok, json_string_value(text), size, DI_ENCODE_ADDED, &ids, NULL));
        di_buffer out = {0};
        assert_true(di_detokenize(tok, ids.data, ids.count, &out, NULL));
        assert_int_equal(out.size, size);
        assert_memory_equal(out.data ? out.data : "", json_string_value(text), size);
        di_buffer_free(&out);
    }
    di_ids_free(&ids);
    json_decref(rows);
}

static void test_ids_without_a_token_have_no_text(void **state) {
    (void)state;
    const int32_t ids[] = {-1, byte_id['a'], 1 << 30, byte_id['b']};
    di_buffer out = {0};
    assert_true(di_detokenize(tok, ids, 4, &out, NULL));
    assert_text(&out, "ab");
    di_buffer_free(&out);
}

static int open_tokenizer(void **state) {
    (void)state;
    tok = open_test_tokenizer("tokenizer-v4");
    for (int32_t id = 0; id < 300; id++) {
        size_t size;
        const char *bytes = di_tokenizer_token_bytes(tok, id, &size);
        if (size == 1) {
            byte_id[(unsigned char)*bytes] = id;
        }
    }
    return 0;
}

static int close_tokenizer(void **state) {
    (void)state;
    di_tokenizer_close(tok);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_characters_come_out_whole),
        cmocka_unit_test(test_leftover_prompt_bytes_join_the_first_new_bytes),
        cmocka_unit_test(test_a_prompt_cut_anywhere_is_continued_without_repeating_it),
        cmocka_unit_test(test_broken_tail_is_flushed_once),
        cmocka_unit_test(test_a_real_replacement_character_does_not_stall),
        cmocka_unit_test(test_malformed_bytes_become_one_replacement_each),
        cmocka_unit_test(test_deltas_together_are_the_whole_text_for_any_bytes),
        cmocka_unit_test(test_golden_texts_survive_any_way_of_handing_in),
        cmocka_unit_test(test_ids_without_a_token_have_no_text),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
