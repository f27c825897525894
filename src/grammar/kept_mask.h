/* A mask as it is kept: most allow few tokens, or nearly the same as some other mask, so what is
 * kept is how it differs from that one.
 *
 * Read-only once made; freed with di_free. */
#ifndef DI_GRAMMAR_KEPT_MASK_H
#define DI_GRAMMAR_KEPT_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct di_kept_mask {
    const uint32_t *like; /* borrowed; NULL: nothing is allowed but what is patched */
    int32_t num_words;
    int32_t num_patches; /* by place; -1 = the whole mask follows instead */
    uint32_t data[];     /* patches, each its place and its word; or words */
} di_kept_mask;

/* Of words[num_words], by its differences from like[] (which outlives it) if that is not NULL, from
 * an empty mask, or as it is, whichever is small. NULL: no memory. */
di_kept_mask *di_kept_mask_make(const uint32_t *words, int32_t num_words, const uint32_t *like);
size_t di_kept_mask_bytes(const di_kept_mask *k);
/* Writes it to words[num_words]; ORs it to what is there. */
void di_kept_mask_write(const di_kept_mask *k, uint32_t *words);
void di_kept_mask_or(const di_kept_mask *k, uint32_t *words);
/* Whether it allows many tokens. */
static inline bool di_kept_mask_wide(const di_kept_mask *k) {
    return k->like || k->num_patches < 0;
}

#endif
