/* See guide.h. */
#include "engine/guide.h"

#include <string.h>

#include "base/alloc.h"

/* ---- triggers ---------------------------------------------------------------------------------*/

/* The longest beginning of the trigger that the text ends with, once the token has come: the
 * Knuth-Morris-Pratt step. */
static int advance(const di_trigger *t, int matched, int32_t token) {
    while (matched > 0 && t->ids[matched] != token) {
        matched = t->back[matched - 1];
    }
    return matched + (t->ids[matched] == token);
}

bool di_trigger_create(di_trigger *t, const int32_t *ids, size_t count, int32_t bound,
                       int32_t marked, di_error *err) {
    *t = (di_trigger){.bound = bound, .marked = marked};
    t->ids = di_calloc(count + 1, sizeof *t->ids);
    t->back = di_calloc(count + 1, sizeof *t->back);
    if (!t->ids || !t->back) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a trigger of %zu ids", count);
    }
    if (count > 0) {
        memcpy(t->ids, ids, count * sizeof *ids);
    }
    t->count = (int)count;
    for (int i = 1; i < t->count; i++) {
        t->back[i] = advance(t, t->back[i - 1], ids[i]);
    }
    return true;
}

/* ---- guides -----------------------------------------------------------------------------------*/

static size_t words_of(const di_guide *g) {
    return (size_t)g->constraint->vocab->num_words;
}

bool di_guide_create(di_guide *g, const di_constraint *c, int max_masks, di_error *err) {
    *g = (di_guide){.constraint = c, .begun = c->trigger.count == 0, .max_masks = max_masks};
    g->matcher = di_matcher_create(c->grammar, err);
    if (!g->matcher) {
        return false;
    }
    g->masks = di_calloc((size_t)max_masks, words_of(g) * sizeof *g->masks);
    g->masked = di_calloc((size_t)max_masks, sizeof *g->masked);
    return (g->masks && g->masked) || di_fail(err, DI_ERR_NO_MEMORY, "no memory for masks");
}

void di_guide_destroy(di_guide *g) {
    di_matcher_destroy(g->matcher);
    di_free(g->masks);
    di_free(g->masked);
    *g = (di_guide){0};
}

static uint32_t *mask_at(const di_guide *g, int k) {
    return g->masks + (size_t)k * words_of(g);
}

static void allow_only(const di_guide *g, int32_t id, uint32_t *mask) {
    memset(mask, 0, words_of(g) * sizeof *mask);
    mask[id / 32] |= 1u << id % 32;
}

/* Free text: everything, or everything but the one that does not belong here. */
static bool free_mask(const di_guide *g, uint32_t *mask) {
    int32_t marked = g->constraint->trigger.marked;
    if (marked < 0 || g->open) {
        return false;
    }
    memset(mask, 0xFF, words_of(g) * sizeof *mask);
    mask[marked / 32] &= ~(1u << marked % 32);
    return true;
}

static bool make_mask(di_guide *g, int k, di_error *err) {
    const di_trigger *t = &g->constraint->trigger;
    uint32_t *mask = mask_at(g, k);
    g->masked[k] = true;
    if (g->begun) {
        return di_matcher_mask(g->matcher, mask, err);
    }
    if (g->bounded) {
        allow_only(g, t->ids[g->matched], mask);
    } else {
        g->masked[k] = free_mask(g, mask);
    }
    return true;
}

bool di_guide_push(di_guide *g, int32_t token, di_error *err) {
    const di_constraint *c = g->constraint;
    if (g->begun) {
        return di_matcher_push(g->matcher, token, err);
    }
    if (token < 0 || token >= c->vocab->num_bits) {
        return di_fail(err, DI_ERR_ARGUMENT, "token %d is outside 0 to %d", token,
                       c->vocab->num_bits - 1);
    }
    const di_vocab_token *text = &c->vocab->tokens[token];
    g->open = text->size > 0 && text->bytes[text->size - 1] == '<';
    g->matched = advance(&c->trigger, g->matched, token);
    g->bounded = g->bounded || token == c->trigger.bound;
    g->begun = g->matched == c->trigger.count;
    return true;
}

di_guide_place di_guide_here(const di_guide *g) {
    return (di_guide_place){g->begun, g->bounded, g->open, g->matched,
                            di_matcher_length(g->matcher)};
}

void di_guide_return(di_guide *g, di_guide_place place) {
    di_matcher_rollback(g->matcher, di_matcher_length(g->matcher) - place.length);
    g->begun = place.begun;
    g->bounded = place.bounded;
    g->open = place.open;
    g->matched = place.matched;
}

void di_guide_prepare(di_guide *g, const int32_t *drafts, int num_drafts) {
    di_error ignored;
    di_guide_place place = di_guide_here(g);
    for (g->num_ready = 0; g->num_ready < g->max_masks; g->num_ready++) {
        int k = g->num_ready;
        if ((k > 0 && !di_guide_push(g, drafts[k - 1], &ignored)) || !make_mask(g, k, &ignored)) {
            break;
        }
        if (k == num_drafts) {
            g->num_ready++;
            break;
        }
    }
    di_guide_return(g, place);
}

bool di_guide_mask(di_guide *g, int k, const uint32_t **mask, di_error *err) {
    if (k >= g->num_ready) {
        k = 0;
        g->num_ready = 0; /* of this place alone, and not to be taken for another's */
        if (!make_mask(g, k, err)) {
            return false;
        }
    }
    *mask = g->masked[k] ? mask_at(g, k) : NULL;
    return true;
}
