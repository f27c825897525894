/* Joining pairs against the plain definition, with random merges, across all lengths of pieces. */
#include <string.h>

#include "support/cmocka.h"
#include "support/random.h"
#include "support/text_data.h"
#include "text/bpe.h"

enum { LETTERS = 4, MOST_MERGES = 60, MOST_PIECE = 400 };

/* A vocabulary: ids 0..255 are the bytes, then one token for each distinct joined text. */
typedef struct toy {
    di_vocab vocab;
    di_bpe bpe;
    uint32_t start[256 + MOST_MERGES + 1];
    uint8_t flags[256 + MOST_MERGES];
    char bytes[1 << 16];
    int32_t merges[MOST_MERGES][3]; /* left, right, id; by rank */
    int merge_count;
} toy;

static int32_t find_text(const toy *t, const char *text, size_t size) {
    for (int32_t id = 0; id < t->vocab.count; id++) {
        size_t n;
        const char *bytes = di_vocab_bytes(&t->vocab, id, &n);
        if (n == size && memcmp(bytes, text, n) == 0) {
            return id;
        }
    }
    return -1;
}

static void add_token(toy *t, const char *text, size_t size) {
    uint32_t at = t->start[t->vocab.count];
    memcpy(t->bytes + at, text, size);
    t->flags[t->vocab.count] = DI_TOKEN_PRESENT;
    t->start[++t->vocab.count] = at + (uint32_t)size;
}

/* Joins two random tokens made of the letters 'a'.. into one. */
static void add_random_merge(toy *t, uint64_t *seed) {
    int32_t pool[LETTERS + MOST_MERGES];
    int count = 0;
    for (int32_t id = 0; id < t->vocab.count; id++) {
        if (id >= 256 || (id >= 'a' && id < 'a' + LETTERS)) {
            pool[count++] = id;
        }
    }
    assert_true(count > 0);
    int32_t left = pool[next_random(seed) % (uint32_t)count];
    int32_t right = pool[next_random(seed) % (uint32_t)count];
    size_t n, m;
    const char *a = di_vocab_bytes(&t->vocab, left, &n), *b = di_vocab_bytes(&t->vocab, right, &m);
    char text[256];
    if (n + m > 24) {
        return;
    }
    memcpy(text, a, n);
    memcpy(text + n, b, m);
    for (int i = 0; i < t->merge_count; i++) {
        if (t->merges[i][0] == left && t->merges[i][1] == right) {
            return;
        }
    }
    if (find_text(t, text, n + m) < 0) {
        add_token(t, text, n + m);
    }
    int32_t *merge = t->merges[t->merge_count++];
    merge[0] = left;
    merge[1] = right;
    merge[2] = find_text(t, text, n + m);
}

static void make_toy(toy *t, uint64_t *seed) {
    memset(t, 0, sizeof *t);
    t->vocab = (di_vocab){.bytes = t->bytes, .start = t->start, .flags = t->flags};
    int32_t byte_id[256];
    for (int b = 0; b < 256; b++) {
        byte_id[b] = b;
        add_token(t, (const char[]){(char)b}, 1);
    }
    int wanted = (int)(next_random(seed) % MOST_MERGES);
    for (int i = 0; i < wanted; i++) {
        add_random_merge(t, seed);
    }
    assert_true(di_bpe_create(&t->bpe, &t->vocab, byte_id, (size_t)t->merge_count, NULL));
    for (int i = 0; i < t->merge_count; i++) {
        assert_true(di_bpe_add_merge(&t->bpe, t->merges[i][0], t->merges[i][1], (uint32_t)i,
                                     t->merges[i][2]));
        assert_false(di_bpe_add_merge(&t->bpe, t->merges[i][0], t->merges[i][1], 0, 0));
    }
    assert_true(di_bpe_index_words(&t->bpe, NULL));
}

/* The definition: as long as any merge applies, the one of lowest rank, at its leftmost place. */
static size_t join_plainly(const toy *t, const char *piece, size_t size, int32_t *ids) {
    size_t n = size;
    for (size_t i = 0; i < n; i++) {
        ids[i] = (unsigned char)piece[i];
    }
    for (int rank = 0; rank < t->merge_count;) {
        size_t i = 0;
        while (i + 1 < n && !(ids[i] == t->merges[rank][0] && ids[i + 1] == t->merges[rank][1])) {
            i++;
        }
        if (i + 1 >= n) {
            rank++;
            continue;
        }
        ids[i] = t->merges[rank][2];
        memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
        n--;
        rank = 0;
    }
    return n;
}

static void test_any_piece_is_joined_by_rank_then_from_the_left(void **state) {
    (void)state;
    static toy t;
    static int32_t expected[MOST_PIECE];
    uint64_t seed = 11;
    for (int round = 0; round < 400; round++) {
        make_toy(&t, &seed);
        di_bpe_scratch scratch = {0};
        if (round % 2) {
            di_bpe_scratch_add_memo(&scratch);
        }
        di_ids ids = {0};
        for (int k = 0; k < 60; k++) {
            char piece[MOST_PIECE];
            size_t size = next_random(&seed) % (k % 4 ? 40 : MOST_PIECE) + 1;
            uint32_t letters = next_random(&seed) % LETTERS + 1;
            for (size_t i = 0; i < size; i++) {
                piece[i] = (char)('a' + next_random(&seed) % letters);
            }
            size_t count = join_plainly(&t, piece, size, expected);
            for (int again = 0; again < 2; again++) { /* the second time from the memo */
                ids.count = 0;
                assert_true(di_bpe_encode(&t.bpe, &scratch, piece, size, &ids, NULL));
                assert_int_equal(ids.count, count);
                assert_memory_equal(ids.data, expected, count * sizeof *expected);
            }
        }
        di_ids_free(&ids);
        di_bpe_scratch_free(&scratch);
        di_bpe_destroy(&t.bpe);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_piece_is_joined_by_rank_then_from_the_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
