/* Keeping masks small; see kept_mask.h. Called once for each mask that is made and for each use. */
#include "grammar/kept_mask.h"

#include <string.h>

#include "base/alloc.h"

/* Words that are compared at once, for most blocks do not differ; patches a word of the mask. */
enum { BLOCK = 16, SHARE = 8, MOST_PATCHES = 1024, SAMPLE = 61 };

/* Whether a block of words differs from another, or has any bit. */
static bool block_differs(const uint32_t *words, const uint32_t *like) {
    uint32_t any = 0;
    if (like) {
        for (int k = 0; k < BLOCK; k++) {
            any |= words[k] ^ like[k];
        }
    } else {
        for (int k = 0; k < BLOCK; k++) {
            any |= words[k];
        }
    }
    return any != 0;
}

/* Writes places and words that differ, if they are no more than `most`; else -1. */
static int32_t find_patches(const uint32_t *words, int32_t num_words, const uint32_t *like,
                            uint32_t *patches, int32_t most) {
    int32_t count = 0;
    for (int32_t w = 0; w < num_words; w += BLOCK) {
        int32_t end = w + BLOCK < num_words ? w + BLOCK : num_words;
        if (end == w + BLOCK && !block_differs(words + w, like ? like + w : NULL)) {
            continue;
        }
        for (int32_t k = w; k < end; k++) {
            if (words[k] == (like ? like[k] : 0)) {
                continue;
            }
            if (count == most) {
                return -1;
            }
            patches[2 * count] = (uint32_t)k;
            patches[2 * count++ + 1] = words[k];
        }
    }
    return count;
}

/* Whether a mask is nearer to another than to an empty one, by a sample. */
static bool is_near(const uint32_t *words, int32_t num_words, const uint32_t *like) {
    int differ = 0, any = 0;
    for (int32_t w = 0; w < num_words; w += SAMPLE) {
        differ += words[w] != like[w];
        any += words[w] != 0;
    }
    return differ < any;
}

static size_t data_bytes(int32_t num_words, int32_t num_patches) {
    return sizeof(uint32_t) * (num_patches < 0 ? (size_t)num_words : 2 * (size_t)num_patches);
}

di_kept_mask *di_kept_mask_make(const uint32_t *words, int32_t num_words, const uint32_t *like) {
    uint32_t patches[2 * MOST_PATCHES];
    int32_t most = num_words / SHARE < MOST_PATCHES ? num_words / SHARE : MOST_PATCHES;
    like = like && is_near(words, num_words, like) ? like : NULL;
    int32_t count = find_patches(words, num_words, like, patches, most);
    like = count < 0 ? NULL : like;
    size_t bytes = data_bytes(num_words, count);
    di_kept_mask *k = di_alloc(sizeof *k + bytes);
    if (k) {
        *k = (di_kept_mask){.like = like, .num_words = num_words, .num_patches = count};
        memcpy(k->data, count < 0 ? words : patches, bytes);
    }
    return k;
}

size_t di_kept_mask_bytes(const di_kept_mask *k) {
    return sizeof *k + data_bytes(k->num_words, k->num_patches);
}

void di_kept_mask_write(const di_kept_mask *k, uint32_t *words) {
    size_t bytes = (size_t)k->num_words * sizeof *words;
    const uint32_t *from = k->num_patches < 0 ? k->data : k->like;
    if (from) {
        memcpy(words, from, bytes);
    } else {
        memset(words, 0, bytes);
    }
    for (int32_t p = 0; p < k->num_patches; p++) {
        words[k->data[2 * p]] = k->data[2 * p + 1];
    }
}

static void or_words(const uint32_t *from, uint32_t begin, uint32_t end, uint32_t *words) {
    for (uint32_t w = begin; from && w < end; w++) {
        words[w] |= from[w];
    }
}

void di_kept_mask_or(const di_kept_mask *k, uint32_t *words) {
    uint32_t done = 0;
    for (int32_t p = 0; p < k->num_patches; p++) {
        uint32_t at = k->data[2 * p];
        or_words(k->like, done, at, words);
        words[at] |= k->data[2 * p + 1];
        done = at + 1;
    }
    or_words(k->num_patches < 0 ? k->data : k->like, done, (uint32_t)k->num_words, words);
}
