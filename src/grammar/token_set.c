/* Token sets: which tokens a term allows whatever the stack: the tokens that lie inside the term,
 * and the points in the middle of tokens at which it has ended. They are read off where the term is
 * a string of any characters (string_set.h), and else found by a walk (token_walk.h).
 *
 * Inside most JSON strings nearly the whole vocabulary is allowed: there the mask of plain tokens
 * is taken as it is and only the trie of the others is walked (vocab.h). */
#include <string.h>

#include "base/alloc.h"
#include "grammar/machine.h"
#include "grammar/string_set.h"
#include "grammar/token_walk.h"

enum { MAX_OPEN_STATES = 48 };

/* ---- texts that any plain token may continue ---- */

/* States of a text on the way of the search below. */
typedef struct open_search {
    di_term states[MAX_OPEN_STATES];
    int count;
} open_search;

/* Notes what follows the bytes low..high: false if one of them cannot follow, or the states become
 * too many. `more` bytes of the character are still to come. */
static bool note_followers(di_terms *t, open_search *s, di_term x, uint8_t low, uint8_t high,
                           int more) {
    const di_term_row *row = di_term_make_row(t, x);
    if (!row) {
        return false;
    }
    for (unsigned b = low; b <= high; b++) {
        if (b > low && row->map->of[b] == row->map->of[b - 1]) {
            continue;
        }
        di_term y = di_term_step(t, x, (uint8_t)b);
        if (y == DI_TERM_NONE) {
            return false;
        }
        if (more > 0) {
            if (!note_followers(t, s, y, 0x80, 0xBF, more - 1)) {
                return false;
            }
            continue;
        }
        int i = 0;
        while (i < s->count && s->states[i] != y) {
            i++;
        }
        if (i == MAX_OPEN_STATES) {
            return false;
        }
        if (i == s->count) {
            s->states[s->count++] = y;
        }
    }
    return true;
}

/* Whether any text at all may continue this one (and end some way or other). */
static bool is_open(di_terms *t, di_term text) {
    open_search s = {.states = {text}, .count = 1};
    static const struct {
        uint8_t lead_low, lead_high, low, high;
        int more;
    } forms[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1},
                 {0xE1, 0xEC, 0x80, 0xBF, 1}, {0xED, 0xED, 0x80, 0x9F, 1},
                 {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
                 {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
    for (int i = 0; i < s.count; i++) {
        di_term x = s.states[i];
        if (x == DI_TERM_TEXT) {
            continue;
        }
        if (!note_followers(t, &s, x, 0x20, 0x21, 0) || !note_followers(t, &s, x, 0x23, 0x5B, 0) ||
            !note_followers(t, &s, x, 0x5D, 0x7F, 0)) {
            return false;
        }
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            const di_term_row *row = di_term_make_row(t, x);
            for (unsigned b = forms[f].lead_low; row && b <= forms[f].lead_high; b++) {
                if (b > forms[f].lead_low && row->map->of[b] == row->map->of[b - 1]) {
                    continue;
                }
                di_term y = di_term_step(t, x, (uint8_t)b);
                if (y == DI_TERM_NONE ||
                    !note_followers(t, &s, y, forms[f].low, forms[f].high, forms[f].more)) {
                    return false;
                }
            }
        }
    }
    return t->fault.code == DI_OK;
}

/* Whether it is some words, each written out. */
static bool are_words(const di_terms *t, di_term x) {
    const di_term_node *n = &t->nodes[x];
    return n->kind == DI_KIND_WORDS || n->kind == DI_KIND_EMPTY || n->kind == DI_KIND_BYTES ||
           (n->kind == DI_KIND_CAT && are_words(t, n->a) && are_words(t, n->b));
}

/* Any text but some words, if it may be longer than a plain token: no token leads to words alone.
 */
static bool is_all_but_words(const di_terms *t, const di_term_node *all) {
    for (uint32_t i = 0; i < all->b; i++) {
        di_term x = t->list[all->a + i];
        const di_term_node *n = &t->nodes[x];
        bool fits = n->kind == DI_KIND_NOT ? are_words(t, n->a)
                                           : n->kind == DI_KIND_REPEAT && n->a == DI_TERM_CHAR &&
                                                 n->c > DI_VOCAB_PLAIN_CHARS;
        if (!fits && x != DI_TERM_TEXT) {
            return false;
        }
    }
    return true;
}

/* Whether any text may come before what it asks for: a pattern that is searched, with or without a
 * least length. */
static bool is_search(const di_terms *t, di_term x) {
    const di_term_node *n = &t->nodes[x];
    bool found = false;
    switch (n->kind) {
    case DI_KIND_CAT:
        return n->a == DI_TERM_TEXT && !(t->nodes[n->b].flags & DI_TERM_INEXACT);
    case DI_KIND_ALT:
        for (uint32_t i = 0; i < n->b && !found; i++) {
            found = is_search(t, t->list[n->a + i]);
        }
        return found;
    case DI_KIND_AND:
        for (uint32_t i = 0; i < n->b; i++) {
            di_term y = t->list[n->a + i];
            const di_term_node *part = &t->nodes[y];
            if (part->kind == DI_KIND_REPEAT && part->a == DI_TERM_CHAR &&
                part->c == DI_TERM_UNBOUNDED) {
                continue;
            }
            if (found || !is_search(t, y)) {
                return false;
            }
            found = true;
        }
        return found;
    default:
        return false;
    }
}

/* The mask of plain tokens that all may come inside this term, NULL if it must be found out token
 * by token. */
static const uint32_t *plain_tokens(di_terms *t, const di_vocab *v, di_term x) {
    const di_term_node *n = &t->nodes[x];
    if (n->kind != DI_KIND_STRING || n->b != 0) {
        return NULL;
    }
    const di_term_node *text = &t->nodes[n->a];
    if (text->kind == DI_KIND_REPEAT && text->a == DI_TERM_CHAR) {
        return v->plain[text->c < DI_VOCAB_PLAIN_CHARS ? text->c : DI_VOCAB_PLAIN_CHARS];
    }
    if (text->kind == DI_KIND_KEY && t->hooks.open) {
        return t->hooks.open(t->hooks.context, n->a) ? v->plain[DI_VOCAB_PLAIN_CHARS] : NULL;
    }
    if ((text->kind == DI_KIND_AND && is_all_but_words(t, text)) || is_search(t, n->a)) {
        return v->plain[DI_VOCAB_PLAIN_CHARS];
    }
    return is_open(t, n->a) ? v->plain[DI_VOCAB_PLAIN_CHARS] : NULL;
}

/* ---- sets ---- */

void di_token_set_clear(di_token_set *set) {
    di_free(set->tokens);
    di_free(set->points);
    *set = (di_token_set){0};
}

size_t di_token_set_bytes(const di_token_set *set) {
    return sizeof *set + set->num_points * sizeof *set->points + di_kept_mask_bytes(set->tokens);
}

/* Drops the points behind which every token is allowed already. */
static void drop_settled_points(const di_vocab *v, const uint32_t *words, di_token_set *set) {
    uint32_t kept = 0;
    for (uint32_t p = 0; p < set->num_points; p++) {
        const di_trie *trie = &v->tries[set->points[p].trie];
        uint32_t node = set->points[p].node, end = trie->nodes[node].end;
        bool open = set->points[p].settled;
        for (uint32_t i = node + 1; i < end && !open; i++) {
            int32_t token = trie->nodes[i].token;
            open = token >= 0 && !(words[token / 32] >> token % 32 & 1);
        }
        if (open) {
            set->points[kept] = set->points[p];
            set->points[kept++].settled = true;
        }
    }
    set->num_points = kept;
}

/* In a spaced set: the vocabulary's `spaces`, and what its points need to tell whether they count.
 */
static void leave_out_spaces(const di_vocab *v, uint32_t *words, di_token_set *set) {
    for (int32_t i = 0; set->spaced && i < v->num_spaces; i++) {
        int32_t id = v->spaces[i].token;
        words[id / 32] &= ~(1u << id % 32);
    }
    for (uint32_t p = 0; set->spaced && p < set->num_points; p++) {
        const di_trie *trie = &v->tries[set->points[p].trie];
        const di_trie_node *n = &trie->nodes[set->points[p].node];
        const char *bytes = v->tokens[trie->order[n->before]].bytes; /* of one behind it */
        set->points[p].spaces = (uint8_t)di_leading_spaces(bytes, n->depth + 1u);
    }
}

/* Whether it is any string of so many characters. */
static bool is_measured(const di_terms *t, di_term x, uint32_t *low, uint32_t *high) {
    const di_term_node *n = &t->nodes[x], *text = &t->nodes[n->a];
    if (n->kind != DI_KIND_STRING || n->b != 0) {
        return false;
    }
    bool counted = text->kind == DI_KIND_REPEAT && text->a == DI_TERM_CHAR;
    *low = counted ? text->b : n->a == DI_TERM_CHAR;
    *high = counted ? text->c : n->a == DI_TERM_CHAR;
    return counted || n->a == DI_TERM_CHAR || n->a == DI_TERM_EMPTY;
}

bool di_token_set_make(di_terms *t, const di_vocab *v, const di_token_set *sets, size_t num_sets,
                       di_term x, bool spaced, di_walk_memory *memory, uint32_t *scratch,
                       di_token_set *set, uint64_t *walked) {
    const uint32_t *plain = plain_tokens(t, v, x);
    *set = (di_token_set){.term = x, .plain = plain, .spaced = spaced};
    uint32_t low, high;
    if (!v->marks || !is_measured(t, x, &low, &high)) {
        di_token_walk(t, v, sets, num_sets, x, memory, scratch, set, walked);
        leave_out_spaces(v, scratch, set);
        drop_settled_points(v, scratch, set);
    } else if (!di_string_set_of_length(v, low, high, scratch, set)) {
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a mask");
    }
    if (t->fault.code == DI_OK) {
        set->tokens = di_kept_mask_make(scratch, v->num_words, v->like);
        if (!set->tokens) {
            di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a mask");
        }
    }
    if (t->fault.code != DI_OK) {
        di_token_set_clear(set);
        return false;
    }
    return true;
}

di_token_set *di_token_set_of_strings(const di_vocab *v, di_error *err) {
    di_terms terms;
    if (!di_terms_create(&terms, SIZE_MAX, err)) {
        return NULL;
    }
    uint64_t walked = 0;
    di_token_set *set = di_calloc(1, sizeof *set);
    uint32_t *scratch = di_calloc((size_t)v->num_words, sizeof *scratch);
    di_walk_memory *memory = di_walk_memory_create();
    if (!set || !scratch || !memory ||
        !di_token_set_make(&terms, v, NULL, 0, DI_TERM_JSON_STRING, false, memory, scratch, set,
                           &walked)) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a mask");
        di_free(set);
        set = NULL;
    }
    di_free(memory);
    di_free(scratch);
    di_terms_destroy(&terms);
    return set;
}
