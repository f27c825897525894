/* Counts of tokens in a small hash table, and a short tail of the answer. See history.h. */
#include "sample/history.h"

#include <string.h>

#include "base/alloc.h"

static size_t slot_of(const di_sample_history *h, int32_t id) {
    return (uint32_t)id * 2654435761u >> 7 & h->table_mask;
}

/* The place in the table of `id`, or the free place where it would go. */
static uint32_t *find(const di_sample_history *h, int32_t id) {
    size_t slot = slot_of(h, id);
    while (h->table[slot] && h->tokens[h->table[slot] - 1].id != id) {
        slot = (slot + 1) & h->table_mask;
    }
    return &h->table[slot];
}

/* Room for `capacity` distinct tokens in all. */
static bool reserve(di_sample_history *h, size_t capacity, di_error *err) {
    if (h->table && capacity <= h->capacity) {
        return true;
    }
    size_t slots = 16;
    while (slots < 2 * capacity) {
        slots *= 2;
    }
    uint32_t *table = di_calloc(slots, sizeof *table);
    di_token_count *tokens =
        table ? di_realloc_array(h->tokens, capacity, sizeof *h->tokens) : NULL;
    if (!tokens) {
        di_free(table);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the token counts of a sequence");
        return false;
    }
    di_free(h->table);
    h->table = table;
    h->table_mask = slots - 1;
    h->tokens = tokens;
    h->capacity = capacity;
    for (size_t i = 0; i < h->num_tokens; i++) {
        *find(h, tokens[i].id) = (uint32_t)i + 1;
    }
    return true;
}

/* The count of `id`, made if it is new. NULL if memory is short. */
static di_token_count *count_of(di_sample_history *h, int32_t id, di_error *err) {
    uint32_t *slot = h->table ? find(h, id) : NULL;
    if (slot && *slot) {
        return &h->tokens[*slot - 1];
    }
    if (!slot || h->num_tokens == h->capacity) {
        if (!reserve(h, h->capacity ? 2 * h->capacity : 64, err)) {
            return NULL;
        }
        slot = find(h, id);
    }
    h->tokens[h->num_tokens] = (di_token_count){.id = id};
    *slot = (uint32_t)++h->num_tokens;
    return &h->tokens[h->num_tokens - 1];
}

static bool count_prompt(di_sample_history *h, const di_sample_params *p, int vocab_size,
                         const int32_t *prompt, size_t num_prompt, size_t max_tokens,
                         di_error *err) {
    h->counting = di_sample_params_penalise(p);
    if (!h->counting) {
        return true;
    }
    for (size_t i = 0; i < num_prompt; i++) {
        di_token_count *t = count_of(h, prompt[i], err);
        if (!t) {
            return false;
        }
        t->in_prompt = true;
    }
    size_t most = (size_t)vocab_size - h->num_tokens; /* tokens that can still be new */
    return reserve(h, h->num_tokens + (max_tokens < most ? max_tokens : most), err);
}

static bool make_tail(di_sample_history *h, const di_sample_params *p, di_error *err) {
    for (size_t w = 0; w < p->num_bad_words; w++) {
        size_t before = p->bad_words[w].count - 1;
        h->max_last = before > h->max_last ? before : h->max_last;
    }
    if (h->max_last > 0 && !(h->last = di_alloc(h->max_last * sizeof *h->last))) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the last tokens of a sequence");
    }
    return true;
}

bool di_sample_history_create(di_sample_history *h, const di_sample_params *p, int vocab_size,
                              const int32_t *prompt, size_t num_prompt, size_t max_tokens,
                              di_error *err) {
    *h = (di_sample_history){0};
    if (!count_prompt(h, p, vocab_size, prompt, num_prompt, max_tokens, err) ||
        !make_tail(h, p, err)) {
        di_sample_history_destroy(h);
        return false;
    }
    return true;
}

void di_sample_history_destroy(di_sample_history *h) {
    di_free(h->tokens);
    di_free(h->table);
    di_free(h->last);
    *h = (di_sample_history){0};
}

bool di_sample_history_push(di_sample_history *h, int32_t token, di_error *err) {
    if (h->counting) {
        di_token_count *t = count_of(h, token, err);
        if (!t) {
            return false;
        }
        t->in_output++;
    }
    if (h->max_last > 0) {
        if (h->num_last == h->max_last) {
            memmove(h->last, h->last + 1, --h->num_last * sizeof *h->last);
        }
        h->last[h->num_last++] = token;
    }
    return true;
}

bool di_sample_history_ends_with(const di_sample_history *h, const int32_t *ids, size_t count) {
    return count == 0 || (count <= h->num_last &&
                          memcmp(h->last + h->num_last - count, ids, count * sizeof *ids) == 0);
}
