/* Token sets: which tokens a term allows whatever the stack, found by walking the trie of tokens
 * along the term's derivatives: the tokens that lie inside the term, and the points in the middle
 * of tokens at which it has ended.
 *
 * Four things keep walks short. Inside most JSON strings nearly the whole vocabulary is allowed:
 * there the mask of plain tokens is taken as it is and only the trie of the others is walked
 * (vocab.h). Where characters leave a term as it is, tokens of such characters are allowed by what
 * characters they hold. Where nothing but such characters and ones that cannot come lies below a
 * node, the term is not asked again. And a term that does the same as another with most first bytes
 * takes that one's set and walks the rest alone. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/machine.h"

enum { MAX_OPEN_STATES = 48, NUM_HABITS = 64, SMALL_SUBTREE = 12, MAX_BASES = 2 };

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
    di_free(set->words);
    di_free(set->ids);
    di_free(set->points);
    *set = (di_token_set){0};
}

static void allow_subtree(const di_trie *trie, uint32_t node, uint32_t *words) {
    uint32_t end = trie->nodes[trie->nodes[node].end].before;
    for (uint32_t i = trie->nodes[node].before; i < end; i++) {
        words[trie->order[i] / 32] |= 1u << trie->order[i] % 32;
    }
}

static void clear_subtree(const di_trie *trie, uint32_t node, uint32_t *words) {
    uint32_t end = trie->nodes[trie->nodes[node].end].before;
    for (uint32_t i = trie->nodes[node].before; i < end; i++) {
        words[trie->order[i] / 32] &= ~(1u << trie->order[i] % 32);
    }
}

/* Tokens of characters of these classes alone. */
static void allow_classes(const di_vocab *v, uint64_t classes, uint32_t *words) {
    for (int32_t w = 0; w < v->num_words; w++) {
        const uint64_t *of = v->classes + (size_t)w * 32;
        uint32_t bits = 0;
        for (int k = 0; k < 32; k++) {
            bits |= (uint32_t)((of[k] & ~classes) == 0) << k;
        }
        words[w] |= bits;
    }
}

/* ---- what a term does with characters ---- */

/* Classes of characters, by number of bit: those that leave the term as it is, and those that
 * cannot come. */
typedef struct habits {
    di_term term;
    uint64_t loops, dead;
} habits;

/* Whether every byte low..high, and what must follow it to make a character, leads from x to y. */
static bool leads_to(di_terms *t, di_term x, uint8_t low, uint8_t high, int more, di_term y) {
    const di_term_row *row = di_term_make_row(t, x);
    if (!row) {
        return false;
    }
    for (unsigned b = low; b <= high; b++) {
        if (b > low && row->map->of[b] == row->map->of[b - 1]) {
            continue;
        }
        di_term z = di_term_step(t, x, (uint8_t)b);
        if (more > 0 ? z == DI_TERM_NONE || !leads_to(t, z, 0x80, 0xBF, more - 1, y) : z != y) {
            return false;
        }
    }
    return true;
}

/* The classes of characters all of which lead from x to y; *dead: those none of which can come. */
static uint64_t classes_to(di_terms *t, di_term x, di_term y, uint64_t *dead) {
    uint64_t in = 0, out = 1ull << DI_CLASS_NONE, alive = out;
    const di_term_row *row = di_term_make_row(t, x);
    int before = DI_CLASS_NONE;
    for (unsigned b = 0; row && b < 0xF5; b++) {
        int class = di_character_class((uint8_t)b);
        bool seen = class == before && row->map->of[b] == row->map->of[b - 1];
        before = class;
        if (class == DI_CLASS_NONE || seen) {
            continue; /* of one class, the bytes behind the first have the same bounds */
        }
        di_term z = di_term_step(t, x, (uint8_t)b);
        alive |= z != DI_TERM_NONE ? 1ull << class : 0;
        if (out >> class & 1) {
            continue;
        }
        di_character_form f = di_character_form_of((uint8_t)b);
        bool all =
            f.more ? z != DI_TERM_NONE && leads_to(t, z, f.low, f.high, f.more - 1, y) : z == y;
        *(all ? &in : &out) |= 1ull << class;
    }
    *dead = ~alive;
    return in & ~out;
}

/* ---- walking ---- */

/* A set that another term has, to begin with. */
typedef struct base {
    di_term term;
    const di_token_set *set;
    uint32_t next; /* of its points */
} base;

typedef struct walk {
    di_terms *t;
    const di_vocab *v;
    const di_trie *trie;
    int which;
    di_token_set *set;
    size_t capacity; /* of set->points */
    base base;       /* its set NULL: none */
    habits known[NUM_HABITS];
    /* Tokens of these classes alone, which lead to this term and leave it so, are in the set. */
    di_term steady;
    uint64_t classes;
    uint64_t walked;
} walk;

/* A letter tells whether it is worth asking. Where the term may end, what it does not take itself
 * may come behind it. */
static habits habits_of(walk *w, di_term x) {
    habits *h = &w->known[x % NUM_HABITS];
    if (h->term != x) {
        *h = (habits){.term = x};
        if (di_term_step(w->t, x, 'e') == x) {
            h->loops = classes_to(w->t, x, x, &h->dead);
            h->dead = di_term_nullable(w->t, x) ? 0 : h->dead;
        }
    }
    return *h;
}

static bool add_point(walk *w, uint32_t node, uint32_t tag, bool settled) {
    di_token_point *points =
        di_grow(w->set->points, w->set->num_points, &w->capacity, sizeof *points);
    if (!points) {
        di_terms_fail(w->t, DI_ERR_NO_MEMORY, "no memory for a mask");
        return false;
    }
    w->set->points = points;
    points[w->set->num_points++] =
        (di_token_point){.node = node, .trie = (uint8_t)w->which, .settled = settled, .tag = tag};
    return true;
}

/* The text that a STRING is of, with the tag of its ends; a key that may be any name is a text. */
static di_term text_of(const di_terms *t, di_term text, bool *tagged, uint32_t *tag) {
    const di_term_node *n = &t->nodes[text];
    di_term as = text;
    *tagged = n->kind == DI_KIND_KEY &&
              t->hooks.text(t->hooks.context, n->a, n->b, n->c, &as, tag) && *tag != DI_NO_TAG;
    return *tagged ? as : text;
}

/* Whether x allows what y does; *tagged: and where y ends, x ends with *tag. */
static bool alike(const di_terms *t, di_term x, di_term y, bool *tagged, uint32_t *tag) {
    *tagged = false;
    if (x == y) {
        return true;
    }
    const di_term_node *a = &t->nodes[x], *b = &t->nodes[y];
    if (a->kind != DI_KIND_STRING || b->kind != DI_KIND_STRING || a->b != b->b || a->c != b->c ||
        t->nodes[a->a].kind != DI_KIND_KEY) {
        return false;
    }
    uint32_t other;
    bool other_tagged;
    di_term of_y = text_of(t, b->a, &other_tagged, &other);
    return text_of(t, a->a, tagged, tag) == of_y && *tagged;
}

/* The base's points below a node, and those before them no more. */
static bool keep_points(walk *w, uint32_t node, uint32_t end, bool tagged, uint32_t tag) {
    const di_token_set *from = w->base.set;
    uint32_t i = w->base.next;
    for (; i < from->num_points && from->points[i].node < end; i++) {
        const di_token_point *p = &from->points[i];
        if (p->node >= node && !add_point(w, p->node, tagged ? tag : p->tag, true)) {
            return false;
        }
    }
    w->base.next = i;
    return true;
}

/* The tokens below a node at which the term is one that characters of these classes leave as it
 * is and all others end. */
static void scan(walk *w, uint32_t node, uint64_t classes) {
    const di_trie_node *nodes = w->trie->nodes;
    for (uint32_t i = node + 1, end = nodes[node].end; i < end;) {
        const di_trie_node *n = &nodes[i];
        w->walked++;
        if ((n->byte & 0xC0) != 0x80) {
            if (!(classes >> di_character_class(n->byte) & 1)) {
                i = n->end;
                continue;
            }
            if (n->end > i + SMALL_SUBTREE && !(n->below & ~classes)) {
                allow_subtree(w->trie, i, w->set->words);
                i = n->end;
                continue;
            }
        }
        di_trie_allow(w->v, n, w->set->words);
        i++;
    }
}

/* What a term becomes behind a character of several bytes, known by its first one; NONE: that
 * depends. */
static di_term behind_character(walk *w, di_term x, bool first, uint8_t byte) {
    int class = di_character_class(byte);
    return class == DI_CLASS_NONE               ? DI_TERM_NONE
           : habits_of(w, x).loops >> class & 1 ? x
           : first && w->classes >> class & 1   ? w->steady
                                                : DI_TERM_NONE;
}

/* What can be said of a whole subtree at once: true if all has been. */
static bool settle_subtree(walk *w, uint32_t node, di_term x, bool pure) {
    uint64_t below = w->trie->nodes[node].below;
    habits h = habits_of(w, x);
    if (!h.loops || below & ~(h.loops | h.dead)) {
        return false;
    }
    if (pure && x == w->steady && !(below & h.loops & ~w->classes)) {
        return true; /* begin_steady has */
    }
    if (!(below & ~h.loops)) {
        allow_subtree(w->trie, node, w->set->words);
        return true; /* and what ends in it adds nothing */
    }
    if (w->base.set) {
        clear_subtree(w->trie, node, w->set->words);
    }
    di_trie_allow(w->v, &w->trie->nodes[node], w->set->words);
    scan(w, node, h.loops);
    return true;
}

/* The terms on the way to a node of the trie, by depth. */
typedef struct way {
    di_term path[DI_VOCAB_MAX_TOKEN_BYTES + 1], beside[DI_VOCAB_MAX_TOKEN_BYTES + 1]; /* base's */
    const di_term_row *rows[DI_VOCAB_MAX_TOKEN_BYTES + 1]; /* of the path's */
    di_term behind[DI_VOCAB_MAX_TOKEN_BYTES + 1];          /* the character that the path ends in */
    bool pure[DI_VOCAB_MAX_TOKEN_BYTES + 1];
} way;

/* A node to which y leads: whether what lies below is to be looked at. */
static bool enter_node(walk *w, way *a, uint32_t i, di_term y) {
    const di_trie_node *n = &w->trie->nodes[i];
    unsigned d = n->depth;
    bool begins = (n->byte & 0xC0) != 0x80;
    a->path[d + 1] = y;
    a->rows[d + 1] = w->t->nodes[y].row;
    a->pure[d + 1] = a->pure[d] && (!begins || w->classes >> di_character_class(n->byte) & 1);
    a->behind[d + 1] = n->lacks == 0 ? y
                       : begins      ? behind_character(w, a->path[d], d == 0, n->byte)
                                     : a->behind[d];
    if (n->end > i + SMALL_SUBTREE && a->behind[d + 1] != DI_TERM_NONE &&
        settle_subtree(w, i, a->behind[d + 1], a->pure[d + 1])) {
        return false;
    }
    di_trie_allow(w->v, n, w->set->words);
    return n->end == i + 1 || !di_term_nullable(w->t, y) ||
           add_point(w, i, di_term_tag(w->t, y), false);
}

/* Whether the base does the same from a node on as y does. */
static bool base_settles(walk *w, way *a, uint32_t i, di_term y) {
    const di_trie_step *e = &w->trie->steps[i];
    di_term z = a->beside[e->depth];
    z = z == DI_TERM_NONE ? z : di_term_step(w->t, z, e->byte);
    bool tagged;
    uint32_t tag = DI_NO_TAG;
    if (alike(w->t, y, z, &tagged, &tag)) {
        keep_points(w, i, e->end, tagged, tag);
        return true;
    }
    a->beside[e->depth + 1] = z;
    if (y == DI_TERM_NONE) {
        clear_subtree(w->trie, i, w->set->words);
    }
    return false;
}

/* Walks a whole trie along the derivatives of a term, and of its base as far as they differ. */
static void walk_trie(walk *w, di_term x) {
    const di_trie_step *steps = w->trie->steps;
    way a;
    a.path[0] = x;
    a.rows[0] = di_term_make_row(w->t, x);
    a.beside[0] = w->base.term;
    a.pure[0] = w->steady != DI_TERM_NONE;
    for (uint32_t i = 0; i < w->trie->num_nodes && w->t->fault.code == DI_OK;) {
        unsigned d = steps[i].depth;
        uint8_t byte = steps[i].byte;
        if (!a.rows[d]) {
            a.rows[d] = w->t->nodes[a.path[d]].row;
        }
        di_term y = di_term_step_by(w->t, a.path[d], a.rows[d], byte);
        w->walked++;
        if ((w->base.set && base_settles(w, &a, i, y)) || y == DI_TERM_NONE ||
            !enter_node(w, &a, i, y)) {
            i = steps[i].end;
        } else {
            i++;
        }
    }
}

/* If letters lead to a term that they leave as it is: allows the tokens of characters that do
 * both, all at once. */
static void begin_steady(walk *w, di_term x) {
    di_term y = di_term_step(w->t, x, 'e');
    if (y == DI_TERM_NONE) {
        return;
    }
    uint64_t dead, loops = habits_of(w, y).loops;
    uint64_t classes = loops ? classes_to(w->t, x, y, &dead) & loops : 0;
    if (classes >> di_character_class('e') & 1) {
        w->steady = y;
        w->classes = classes;
        allow_classes(w->v, classes, w->set->words);
    }
}

/* ---- which set to begin with ---- */

/* How many nodes of the trie lie below first bytes with which both do the same; 0 if no more than
 * `most`. */
static uint32_t shared_nodes(di_terms *t, const di_trie *trie, di_term x, di_term y,
                             uint32_t most) {
    uint32_t other = 0, all = trie->first[256];
    const di_term_row *a = di_term_make_row(t, x), *b = di_term_make_row(t, y);
    bool same = false, tagged;
    uint32_t tag;
    for (unsigned byte = 0; a && b && byte < 256; byte++) {
        if (byte == 0 || a->map->of[byte] != a->map->of[byte - 1] ||
            b->map->of[byte] != b->map->of[byte - 1]) {
            same = alike(t, di_term_step(t, x, (uint8_t)byte), di_term_step(t, y, (uint8_t)byte),
                         &tagged, &tag);
        }
        other += same ? 0 : trie->first[byte + 1] - trie->first[byte];
        if (all - other <= most) {
            return 0;
        }
    }
    return all - other;
}

/* Of the sets made last, and of that of any string, the one to begin with. */
static base choose_base(di_terms *t, const di_vocab *v, const di_token_set *sets, size_t num_sets,
                        di_term x, const uint32_t *plain) {
    const di_trie *trie = &v->tries[plain ? DI_TRIE_MARKED : DI_TRIE_ALL];
    base best = {0};
    uint32_t most = trie->num_nodes / 4 * 3;
    if (v->strings && v->strings->words && v->strings->plain == plain) {
        uint32_t shared = shared_nodes(t, trie, x, DI_TERM_JSON_STRING, most);
        if (shared > most) {
            best = (base){.term = DI_TERM_JSON_STRING, .set = v->strings};
            most = shared;
        }
    }
    int tried = 0;
    for (size_t i = num_sets; i-- > 0 && tried < MAX_BASES && most < trie->num_nodes / 16 * 15;) {
        if (sets[i].plain == plain && sets[i].words) {
            tried++;
            uint32_t shared = shared_nodes(t, trie, x, sets[i].term, most);
            if (shared > most) {
                best = (base){.term = sets[i].term, .set = &sets[i]};
                most = shared;
            }
        }
    }
    return best;
}

/* ---- the whole ---- */

enum { BLOCK = 16 }; /* words; most blocks of a set of few tokens are empty */

static uint32_t bits_of(uint32_t x) {
    x -= x >> 1 & 0x55555555;
    x = (x & 0x33333333) + (x >> 2 & 0x33333333);
    x = (x + (x >> 4)) & 0x0F0F0F0F;
    return x * 0x01010101 >> 24;
}

/* The number of bits, at least if it is no more than `most`; blocks[]: where those are. */
static uint32_t count_bits(const uint32_t *words, int32_t num_words, uint32_t most, int32_t *blocks,
                           uint32_t *num_blocks) {
    uint32_t count = 0;
    *num_blocks = 0;
    for (int32_t w = 0; w < num_words && count <= most; w += BLOCK) {
        uint32_t any = 0;
        int32_t end = w + BLOCK < num_words ? w + BLOCK : num_words;
        for (int32_t k = w; k < end; k++) {
            any |= words[k];
        }
        for (int32_t k = w; any && k < end; k++) {
            count += bits_of(words[k]);
        }
        if (any && count <= most) {
            blocks[(*num_blocks)++] = w;
        }
    }
    return count;
}

/* Replaces a bit set of few bits by their list, which is to be shorter. */
static void shrink(const di_vocab *v, di_token_set *set) {
    enum { MOST = 1024 };
    int32_t blocks[MOST];
    uint32_t num_blocks, most = (uint32_t)v->num_bits / 128;
    most = most < MOST ? most : MOST; /* a block has a bit at least */
    uint32_t count = count_bits(set->words, v->num_words, most, blocks, &num_blocks);
    int32_t *ids = count <= most ? di_realloc_array(NULL, count + 1, sizeof *ids) : NULL;
    if (!ids) {
        return;
    }
    for (uint32_t i = 0; i < num_blocks; i++) {
        int32_t end = blocks[i] + BLOCK < v->num_words ? blocks[i] + BLOCK : v->num_words;
        for (int32_t w = blocks[i]; w < end; w++) {
            for (uint32_t bits = set->words[w]; bits; bits &= bits - 1) {
                ids[set->num_ids++] = w * 32 + __builtin_ctz(bits);
            }
        }
    }
    di_free(set->words);
    set->words = NULL;
    set->ids = ids;
}

/* Drops the points behind which every token is allowed already. */
static void drop_settled_points(const di_vocab *v, di_token_set *set) {
    uint32_t kept = 0;
    for (uint32_t p = 0; p < set->num_points; p++) {
        const di_trie *trie = &v->tries[set->points[p].trie];
        uint32_t node = set->points[p].node, end = trie->nodes[node].end;
        bool open = set->points[p].settled;
        for (uint32_t i = node + 1; i < end && !open; i++) {
            int32_t token = trie->nodes[i].token;
            open = token >= 0 && !(set->words[token / 32] >> token % 32 & 1);
        }
        if (open) {
            set->points[kept] = set->points[p];
            set->points[kept++].settled = true;
        }
    }
    set->num_points = kept;
}

bool di_token_set_make(di_terms *t, const di_vocab *v, const di_token_set *sets, size_t num_sets,
                       di_term x, di_token_set *set, uint64_t *walked) {
    const uint32_t *plain = plain_tokens(t, v, x);
    size_t bytes = (size_t)v->num_words * sizeof *set->words;
    walk w = {.t = t, .v = v, .set = set, .which = plain ? DI_TRIE_MARKED : DI_TRIE_ALL};
    w.trie = &v->tries[w.which];
    w.base = choose_base(t, v, sets, num_sets, x, plain);
    const uint32_t *from = w.base.set ? w.base.set->words : plain;
    *set = (di_token_set){
        .term = x, .plain = plain, .words = from ? di_alloc(bytes) : di_calloc(1, bytes)};
    if (!set->words) {
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a mask");
        return false;
    }
    if (from) {
        memcpy(set->words, from, bytes);
    } else {
        begin_steady(&w, x);
    }
    walk_trie(&w, x);
    *walked += w.walked;
    if (t->fault.code != DI_OK) {
        di_token_set_clear(set);
        return false;
    }
    drop_settled_points(v, set);
    shrink(v, set);
    return true;
}

di_token_set *di_token_set_of_strings(const di_vocab *v, di_error *err) {
    di_terms terms;
    if (!di_terms_create(&terms, SIZE_MAX, err)) {
        return NULL;
    }
    uint64_t walked = 0;
    di_token_set *set = di_calloc(1, sizeof *set);
    if (!set || !di_token_set_make(&terms, v, NULL, 0, DI_TERM_JSON_STRING, set, &walked)) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a mask");
        di_free(set);
        set = NULL;
    }
    di_terms_destroy(&terms);
    return set;
}
