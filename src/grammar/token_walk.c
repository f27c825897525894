/* Walks over the trie of tokens along a term's derivatives; called once for each token set that is
 * made, by token_set.c.
 *
 * Three things keep walks short. Where characters of some classes lead from term to term and none
 * of them can be refused (letters inside most texts), the tokens of such characters are allowed at
 * once by the vocabulary's masks of classes, and only tokens that hold others are walked: a chain.
 * Where nothing but characters of a chain and ones that cannot come lies below a node, its subtree
 * is settled without a derivative. And of a node's children only those are looked at whose bytes
 * may come. */
#include "grammar/token_walk.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

enum { NUM_KNOWN = 64, SMALL_SUBTREE = 12, MAX_RUNS = 6, MAX_BASES = 2, SMALL_BASE = 100 };

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

/* Allows the tokens of characters of these classes alone that have no more than `most` of them. */
static void allow_classes(const di_vocab *v, uint64_t classes, uint32_t most, uint32_t *words) {
    const uint32_t *without[DI_NUM_CLASS_SETS + 1];
    int count = 0;
    uint64_t left = ~classes;
    for (int i = 0; i < DI_NUM_CLASS_SETS && left; i++) {
        uint64_t set = v->class_sets[i];
        if (set & left && !(set & classes)) {
            without[count] = v->has[i];
            count += v->has[i] != NULL;
            left &= ~set;
        }
    }
    if (most <= DI_VOCAB_PLAIN_CHARS && v->longer[most]) {
        without[count++] = v->longer[most];
    }
    enum { BLOCK = 64 };
    for (int32_t w = 0; w < v->num_words; w += BLOCK) {
        uint32_t out[BLOCK] = {0};
        int32_t size = v->num_words - w < BLOCK ? v->num_words - w : BLOCK;
        for (int i = 0; i < count; i++) {
            for (int32_t k = 0; k < size; k++) {
                out[k] |= without[i][w + k];
            }
        }
        for (int32_t k = 0; k < size; k++) {
            words[w + k] |= ~out[k];
        }
    }
}

/* ---- what a term does with characters ---- */

/* Characters of the first `last` + 1 that a token has behind the chain's term: classes that cannot
 * come among them. */
typedef struct run {
    uint32_t last;
    uint64_t dead;
} run;

/* Terms of which each leads to the next by every character of some classes. */
typedef struct chain {
    di_term term, next; /* the first two */
    uint64_t classes;   /* 0: there is none */
    uint32_t most;      /* characters: UINT32_MAX = the last term leads to itself */
    uint64_t end_dead;  /* classes that cannot come behind them */
    int num_runs;
    run runs[MAX_RUNS];
} chain;

/* Whether every byte low..high, and what must follow it to make a character, leads from x to y. The
 * bytes before them have the payload `code`; apart: characters of DI_CLASS_APART are left out. */
static bool leads_to(di_terms *t, di_term x, uint32_t code, bool apart, uint8_t low, uint8_t high,
                     int more, di_term y) {
    const di_term_row *row = di_term_make_row(t, x);
    int before = -1;
    for (unsigned b = low; row && b <= high; b++) {
        if (before >= 0 && row->map->of[b] == row->map->of[before]) {
            continue;
        }
        uint32_t with = code << 6 | (b & 0x3F);
        bool special = apart && di_character_apart(with, more);
        if (special && more == 0) {
            continue;
        }
        di_term z = di_term_step(t, x, (uint8_t)b);
        if (more > 0 ? z == DI_TERM_NONE || !leads_to(t, z, with, special, 0x80, 0xBF, more - 1, y)
                     : z != y) {
            return false;
        }
        before = special ? before : (int)b;
    }
    return row != NULL;
}

/* What leads on from x when the characters of DI_CLASS_APART come: whether all lead to y; *any:
 * whether one of them can come. */
static bool apart_lead_to(di_terms *t, di_term x, di_term y, bool *any) {
    bool all = true;
    *any = false;
    for (int i = 0; i < DI_NUM_APART; i++) {
        char bytes[4];
        int length = di_utf8_encode(di_characters_apart[i], bytes);
        di_term z = x;
        for (int k = 0; k < length && z != DI_TERM_NONE; k++) {
            z = di_term_step(t, z, (uint8_t)bytes[k]);
        }
        all &= z == y;
        *any |= z != DI_TERM_NONE;
    }
    return all;
}

/* The classes of characters all of which lead from x to y; *dead: those none of which can come, for
 * their first bytes are not in `may` or lead nowhere. */
static uint64_t classes_to(di_terms *t, const di_vocab *v, di_term x, di_term y,
                           const di_byte_set *may, uint64_t *dead) {
    uint64_t in = 0, out = 1ull << DI_CLASS_NONE, alive = out, before = 0;
    const di_term_row *row = di_term_make_row(t, x);
    bool maybe_apart = false, any_apart;
    for (int k = 0; row && k < 4; k++) {
        /* Of bytes in a row that neither the term nor the classes tell apart, the first. */
        uint64_t all = may->words[k];
        uint64_t left =
            all & (row->map->starts.words[k] | v->class_starts[k] | ~(all << 1 | before));
        before = all >> 63;
        for (; left; left &= left - 1) {
            unsigned b = 64u * (unsigned)k + (unsigned)__builtin_ctzll(left);
            uint64_t class = 1ull << v->class_of[b];
            di_term z = out & alive & class ? DI_TERM_NONE : di_term_step(t, x, (uint8_t)b);
            alive |= z != DI_TERM_NONE ? class : 0;
            if (!(out & class)) {
                bool all_lead = z == y;
                if (b >= 0x80 && z != DI_TERM_NONE) {
                    di_character_form f = di_character_form_of((uint8_t)b);
                    uint32_t code = di_character_payload((uint8_t)b);
                    bool apart = di_character_apart(code, f.more);
                    maybe_apart |= apart;
                    all_lead = leads_to(t, z, code, apart, f.low, f.high, f.more - 1, y);
                }
                *(all_lead ? &in : &out) |= class;
            }
        }
    }
    in &= ~out;
    for (uint64_t left = in; left; left &= left - 1) {
        int class = __builtin_ctzll(left);
        for (int k = 0; k < 4; k++) {
            in &= v->class_bytes[class][k] & ~may->words[k] ? ~(1ull << class) : UINT64_MAX;
        }
    }
    if (maybe_apart) {
        in |= (uint64_t)apart_lead_to(t, x, y, &any_apart) << DI_CLASS_APART;
        alive |= (uint64_t)any_apart << DI_CLASS_APART;
    }
    *dead = ~alive;
    return in;
}

/* The bytes that may come next in a term. */
typedef struct firsts {
    di_term term;
    di_byte_set set;
} firsts;

/* What has been found out about terms, by term: it stays true. */
struct di_walk_memory {
    chain known[NUM_KNOWN];
    firsts first[NUM_KNOWN];
};

di_walk_memory *di_walk_memory_create(void) {
    return di_calloc(1, sizeof(di_walk_memory));
}

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
    uint32_t *words;     /* the set's */
    size_t capacity;     /* of set->points */
    base base;           /* its set NULL: none */
    const chain *steady; /* whose tokens are in the set; NULL: none */
    chain first_chain;
    di_walk_memory *memory;
    uint64_t escapes; /* the class of '\\' */
    uint64_t walked;
} walk;

static const di_byte_set *first_of(walk *w, di_term x) {
    firsts *f = &w->memory->first[x % NUM_KNOWN];
    if (f->term != x) {
        *f = (firsts){.term = x};
        di_terms_first(w->t, x, &f->set);
    }
    return &f->set;
}

/* The term to which all bytes of a word of a set lead from x; NONE: not all to one. */
static di_term led_to(walk *w, di_term x, int word, uint64_t bytes) {
    const di_term_row *row = di_term_make_row(w->t, x);
    di_term y = DI_TERM_NONE;
    unsigned before = 0;
    for (uint64_t left = bytes; row && left; left &= left - 1) {
        unsigned b = 64u * (unsigned)word + (unsigned)__builtin_ctzll(left);
        if (left != bytes && row->map->of[b] == row->map->of[before]) {
            continue;
        }
        di_term z = di_term_step(w->t, x, (uint8_t)b);
        if (z == DI_TERM_NONE || (left != bytes && z != y)) {
            return DI_TERM_NONE;
        }
        y = z;
        before = b;
    }
    return y;
}

/* A byte of a class that leads as a whole to a term *to, and is one of these; 0: there is none of
 * those that many tokens are made of. */
static uint8_t probe(walk *w, di_term x, uint64_t classes, bool digits, di_term *to) {
    static const uint8_t samples[] = {'g', 'G', 'a', 'A', '0'};
    const di_byte_set *may = first_of(w, x);
    for (size_t i = 0; i < sizeof samples - !digits; i++) {
        int class = w->v->class_of[samples[i]], word = samples[i] / 64;
        uint64_t bytes = w->v->class_bytes[class][word];
        if (bytes & ~may->words[word] || !(classes >> class & 1)) {
            continue;
        }
        *to = led_to(w, x, word, bytes);
        if (*to != DI_TERM_NONE) {
            return samples[i];
        }
    }
    return 0;
}

/* Taking one more off a counted repeat of characters, alone in a string or before a rest: the term
 * then, which `after` says of how many (at most *count). NONE if it is none. */
static di_term counted(di_terms *t, di_term x, uint32_t after, uint32_t *count) {
    bool string = t->nodes[x].kind == DI_KIND_STRING;
    di_term_node n = t->nodes[x];
    if (string && n.b != 0) {
        return DI_TERM_NONE;
    }
    n = string ? t->nodes[n.a] : n;
    di_term rest = DI_TERM_EMPTY;
    if (n.kind == DI_KIND_CAT) {
        rest = n.b;
        n = t->nodes[n.a];
    }
    if (n.kind != DI_KIND_REPEAT || di_term_nullable(t, n.a) || (n.b == 0 && n.c == UINT32_MAX)) {
        return DI_TERM_NONE;
    }
    *count = n.b > 0 ? n.b : n.c;
    uint32_t less = after < *count ? after : *count;
    di_term y = di_term_repeat(t, n.a, n.b > less ? n.b - less : 0,
                               n.c == DI_TERM_UNBOUNDED ? n.c : n.c - less);
    y = di_term_cat(t, y, rest);
    return string ? di_term_string(t, y) : y;
}

/* Adds a run of characters at x to the chain; the term behind it, NONE if there is none. */
static di_term add_run(walk *w, bool first, di_term x, chain *c) {
    di_term y;
    uint8_t byte = probe(w, x, c->classes, !first || c->num_runs > 0, &y);
    if (byte == 0) {
        return DI_TERM_NONE;
    }
    di_term end = y;
    uint32_t count = 1;
    if (y == x) {
        count = UINT32_MAX;
    } else if (counted(w->t, x, 1, &count) == y) {
        end = counted(w->t, x, count, &count);
    } else if (first || di_term_step(w->t, y, byte) == y) {
        count = 1;
    } else {
        return DI_TERM_NONE;
    }
    uint64_t dead, classes = classes_to(w->t, w->v, x, y, first_of(w, x), &dead) & c->classes;
    bool narrow = c->num_runs && 2 * di_bits64(classes) < di_bits64(c->classes);
    if (!classes || narrow) {
        return DI_TERM_NONE;
    }
    c->classes = classes;
    c->next = c->num_runs ? c->next : y;
    dead = di_term_nullable(w->t, x) ? 0 : dead; /* what it does not take may come behind it */
    dead &= c->num_runs ? c->runs[c->num_runs - 1].dead : dead;
    c->most = count == UINT32_MAX ? count : c->most + count;
    c->runs[c->num_runs++] = (run){c->most - 1, dead};
    return end;
}

/* The classes of characters that may come if these are the first bytes. */
static uint64_t classes_of_bytes(const di_vocab *v, const di_byte_set *set) {
    uint64_t classes = 1ull << DI_CLASS_NONE;
    classes |= (uint64_t)(set->words[3] != 0) << DI_CLASS_APART;
    for (int k = 0; k < 4; k++) {
        uint64_t all = set->words[k], left = all & (v->class_starts[k] | ~(all << 1));
        for (; left; left &= left - 1) {
            classes |= 1ull << v->class_of[64 * k + __builtin_ctzll(left)];
        }
    }
    return classes;
}

/* The chain of the first term may have more than one run, but begins with letters. */
static void make_chain(walk *w, bool first, di_term x, chain *c) {
    bool lasting = !(w->t->nodes[x].flags & DI_TERM_FLEETING);
    *c = (chain){.term = x, .classes = lasting ? UINT64_MAX : 0};
    di_term at = x, end = x;
    while (at != DI_TERM_NONE && c->num_runs < (first ? MAX_RUNS : 2) && c->most != UINT32_MAX) {
        end = at;
        at = add_run(w, first, at, c);
    }
    end = at != DI_TERM_NONE ? at : end;
    if (c->most != UINT32_MAX && c->most > DI_VOCAB_PLAIN_CHARS) {
        c->most = DI_VOCAB_PLAIN_CHARS; /* of more, no mask is there */
        end = DI_TERM_NONE;
    }
    c->classes = c->num_runs ? c->classes : 0;
    if (first && c->num_runs && end != DI_TERM_NONE && !di_term_nullable(w->t, end)) {
        c->end_dead = ~classes_of_bytes(w->v, first_of(w, end));
    }
}

static const chain *chain_of(walk *w, di_term x) {
    if (w->steady && x == w->steady->term) {
        return w->steady;
    }
    chain *c = &w->memory->known[x % NUM_KNOWN];
    if (c->term != x) {
        make_chain(w, false, x, c);
    }
    return c;
}

/* Whether nothing but characters of the chain and ones that cannot come lies below a node to which
 * `behind` of the chain's characters have led; *open: and some of the latter do. If tokens of too
 * many of the chain's characters are not allowed yet (behind > 0), they may lie there, too. */
static bool chain_holds(const chain *c, const di_trie_node *n, uint32_t behind, bool *open) {
    uint32_t count = behind + n->height;
    uint64_t others = n->below & ~c->classes, dead = 0;
    bool beyond = count > c->most;
    *open = others != 0;
    if (!c->classes || behind > c->most || (beyond && (behind == 0 || n->below & ~c->end_dead))) {
        return false;
    }
    for (int i = 0; others && i < c->num_runs; i++) {
        dead = c->runs[i].dead;
        if (count - 1 <= c->runs[i].last) {
            break;
        }
    }
    return !(others & ~dead);
}

/* ---- sets that terms share ---- */

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

/* ---- walking ---- */

/* The tokens below a node at which the term is one that characters of these classes leave as it
 * is, or lead on from, and all others end. */
static void scan(walk *w, uint32_t node, uint64_t classes) {
    const di_trie_node *nodes = w->trie->nodes;
    for (uint32_t i = node + 1, end = nodes[node].end; i < end;) {
        const di_trie_node *n = &nodes[i];
        w->walked++;
        if ((n->byte & 0xC0) != 0x80) {
            if (!(classes >> w->v->class_of[n->byte] & 1)) {
                i = n->end;
                continue;
            }
            if (n->end > i + SMALL_SUBTREE && !n->apart && !(n->below & ~classes)) {
                allow_subtree(w->trie, i, w->words);
                i = n->end;
                continue;
            }
        } else if (n->apart && n->lacks == 0 && !(classes >> DI_CLASS_APART & 1)) {
            i = n->end;
            continue;
        }
        di_trie_allow(w->v, n, w->words);
        i++;
    }
}

/* What a term becomes behind a character of several bytes, known by its first one; NONE: that
 * depends. */
static di_term behind_character(walk *w, di_term x, uint8_t byte) {
    int class = w->v->class_of[byte];
    const chain *c = class == DI_CLASS_NONE || w->set->plain ? NULL : chain_of(w, x);
    return c && c->classes >> class & 1 ? c->next : DI_TERM_NONE;
}

/* What can be said of a whole subtree at once: true if all has been. */
static bool settle_subtree(walk *w, uint32_t node, di_term x) {
    /* Nearly all that is not plain has a quote or an escape, and a string never ends the latter. */
    bool string = w->t->nodes[x].kind == DI_KIND_STRING;
    if (w->set->plain || (string && w->trie->nodes[node].below & w->escapes)) {
        return false;
    }
    const chain *c = chain_of(w, x);
    bool open;
    if (!chain_holds(c, &w->trie->nodes[node], 0, &open)) {
        return false;
    }
    if (!open) {
        allow_subtree(w->trie, node, w->words);
        return true; /* and what ends in it adds nothing */
    }
    if (w->base.set) {
        clear_subtree(w->trie, node, w->words);
    }
    di_trie_allow(w->v, &w->trie->nodes[node], w->words);
    scan(w, node, c->classes);
    return true;
}

/* What is known of the way to a node of the trie, by depth. */
typedef struct place {
    di_term at, beside;     /* the term, the base's */
    di_term behind;         /* the character that the way ends in */
    const di_term_row *row; /* of `at` */
    uint32_t characters;    /* begun */
    uint8_t lacks;          /* as the node's */
    bool pure;              /* all of them of the steady chain */
} place;

/* Children of a fan that are still to be walked. */
typedef struct cursor {
    uint64_t left[4];
    const di_trie_fan *fan;
    uint32_t end; /* of the fan's node */
    unsigned depth;
} cursor;

typedef struct way {
    place places[DI_VOCAB_MAX_TOKEN_BYTES + 1];
    cursor fans[DI_VOCAB_MAX_TOKEN_BYTES + 1];
    int num_fans;
} way;

/* A node to which y leads: whether what lies below is to be looked at. */
static bool enter_node(walk *w, way *a, uint32_t i, di_term y) {
    const di_trie_node *n = &w->trie->nodes[i];
    const place *from = &a->places[n->depth];
    place *to = &a->places[n->depth + 1];
    bool begins = (n->byte & 0xC0) != 0x80, open;
    to->at = y;
    to->row = w->t->nodes[y].row;
    to->characters = from->characters + begins;
    to->lacks = n->lacks;
    to->pure = from->pure &&
               (begins ? w->steady->classes >> w->v->class_of[n->byte] & 1 : from->lacks > 0);
    if (to->pure && n->apart && n->lacks == 0) {
        to->pure = w->steady->classes >> DI_CLASS_APART & 1;
    }
    /* Where the character may be one apart, nothing can be said yet. */
    bool large = n->end > i + SMALL_SUBTREE && !(n->apart && n->lacks > 0);
    if (to->pure && large && chain_holds(w->steady, n, to->characters, &open)) {
        return false; /* allow_classes has said all */
    }
    to->behind = n->lacks == 0 ? y : begins ? behind_character(w, from->at, n->byte) : from->behind;
    if (large && to->behind != DI_TERM_NONE && settle_subtree(w, i, to->behind)) {
        return false;
    }
    di_trie_allow(w->v, n, w->words);
    return n->end == i + 1 || !di_term_nullable(w->t, y) ||
           add_point(w, i, di_term_tag(w->t, y), false);
}

/* Whether the base does the same from a node on as y does. */
static bool base_settles(walk *w, way *a, uint32_t i, di_term y) {
    const di_trie_step *e = &w->trie->steps[i];
    di_term z = a->places[e->depth].beside;
    z = z == DI_TERM_NONE ? z : di_term_step(w->t, z, e->byte);
    bool tagged;
    uint32_t tag = DI_NO_TAG;
    if (alike(w->t, y, z, &tagged, &tag)) {
        keep_points(w, i, e->end, tagged, tag);
        return true;
    }
    a->places[e->depth + 1].beside = z;
    if (y == DI_TERM_NONE) {
        clear_subtree(w->trie, i, w->words);
    }
    return false;
}

static void open_fan(walk *w, way *a, uint16_t fan, uint32_t end, unsigned depth) {
    cursor *c = &a->fans[a->num_fans++];
    const place *p = &a->places[depth];
    c->fan = &w->trie->fans[fan];
    c->end = end;
    c->depth = depth;
    memcpy(c->left, first_of(w, p->at)->words, sizeof c->left);
    if (w->base.set && p->beside != DI_TERM_NONE) {
        const di_byte_set *z = first_of(w, p->beside);
        for (int k = 0; k < 4; k++) {
            c->left[k] |= z->words[k];
        }
    }
    for (int k = 0; k < 4; k++) {
        c->left[k] &= c->fan->bytes[k];
    }
}

/* The next of the nodes that may matter, from a node on. */
static uint32_t next_node(const walk *w, way *a, uint32_t node) {
    while (a->num_fans > 0) {
        cursor *c = &a->fans[a->num_fans - 1];
        if (node < c->end && w->trie->steps[node].depth != c->depth) {
            return node; /* deeper down */
        }
        for (unsigned k = 0; k < 4; k++) {
            if (c->left[k]) {
                unsigned byte = 64 * k + (unsigned)__builtin_ctzll(c->left[k]);
                c->left[k] &= c->left[k] - 1;
                return di_trie_child(w->trie, c->fan, byte);
            }
        }
        node = c->end;
        a->num_fans--;
    }
    return node;
}

/* Walks a whole trie along the derivatives of a term, and of its base as far as they differ. */
static void walk_trie(walk *w, di_term x) {
    const di_trie_step *steps = w->trie->steps;
    way a;
    a.num_fans = 0;
    a.places[0] = (place){
        .at = x, .row = w->t->nodes[x].row, .beside = w->base.term, .pure = w->steady != NULL};
    open_fan(w, &a, 0, w->trie->num_nodes, 0);
    uint32_t i = next_node(w, &a, 0);
    while (i < w->trie->num_nodes && w->t->fault.code == DI_OK) {
        const di_trie_step e = steps[i];
        place *from = &a.places[e.depth];
        if (!from->row) {
            from->row = w->t->nodes[from->at].row;
        }
        di_term y = di_term_step_by(w->t, from->at, from->row, e.byte);
        w->walked++;
        if ((w->base.set && base_settles(w, &a, i, y)) || y == DI_TERM_NONE ||
            !enter_node(w, &a, i, y)) {
            i = next_node(w, &a, e.end);
            continue;
        }
        if (e.fan) {
            open_fan(w, &a, e.fan, e.end, e.depth + 1u);
        }
        i = next_node(w, &a, i + 1);
    }
}

/* ---- what to begin with ---- */

/* How many nodes of the trie lie below first bytes that may come in x, as far as y does not do the
 * same with them (NONE: in x at all); at least `most` if it is that much. */
static uint32_t nodes_below(walk *w, di_term x, di_term y, uint32_t most) {
    const di_byte_set *a = first_of(w, x), none = {0},
                      *b = y == DI_TERM_NONE ? &none : first_of(w, y);
    const di_term_row *row_x = y == DI_TERM_NONE ? NULL : di_term_make_row(w->t, x);
    const di_term_row *row_y = y == DI_TERM_NONE ? NULL : di_term_make_row(w->t, y);
    uint32_t count = 0;
    bool same = false, tagged;
    uint32_t tag;
    int before = -1;
    for (int k = 0; k < 4; k++) {
        uint64_t left = (a->words[k] | b->words[k]) & w->trie->fans->bytes[k];
        for (; left && count < most; left &= left - 1) {
            int byte = 64 * k + __builtin_ctzll(left);
            if (row_x && row_y &&
                (before < 0 || row_x->map->of[byte] != row_x->map->of[before] ||
                 row_y->map->of[byte] != row_y->map->of[before])) {
                same = alike(w->t, di_term_step(w->t, x, (uint8_t)byte),
                             di_term_step(w->t, y, (uint8_t)byte), &tagged, &tag);
            }
            before = byte;
            count += same ? 0 : w->trie->first[byte + 1] - w->trie->first[byte];
        }
    }
    return count;
}

/* Of the sets made last, and of that of any string, the one that leaves least to be walked, if that
 * is far less than without: a share of all that may come. */
static base choose_base(walk *w, const di_token_set *sets, size_t num_sets, di_term x,
                        uint32_t share) {
    const di_vocab *v = w->v;
    base best = {0};
    uint32_t all = w->set->plain ? w->trie->num_nodes : nodes_below(w, x, DI_TERM_NONE, UINT32_MAX);
    uint32_t most = all / share;
    int tried = 0;
    if (most < SMALL_BASE) {
        return best;
    }
    if (v->strings && v->strings->plain == w->set->plain) {
        uint32_t count = nodes_below(w, x, DI_TERM_JSON_STRING, most);
        if (count < most) {
            return (base){.term = DI_TERM_JSON_STRING, .set = v->strings};
        }
    }
    for (size_t i = num_sets; i-- > 0 && tried < MAX_BASES && most >= SMALL_BASE;) {
        if (sets[i].plain == w->set->plain && sets[i].spaced == w->set->spaced &&
            di_kept_mask_wide(sets[i].tokens)) {
            tried++;
            uint32_t count = nodes_below(w, x, sets[i].term, most);
            if (count < most) {
                best = (base){.term = sets[i].term, .set = &sets[i]};
                most = count;
            }
        }
    }
    return best;
}

/* Writes what is known before the walk. */
static void begin(walk *w, const di_token_set *sets, size_t num_sets, di_term x) {
    size_t bytes = (size_t)w->v->num_words * sizeof *w->words;
    if (!w->set->plain) {
        make_chain(w, true, x, &w->first_chain);
    }
    w->base = choose_base(w, sets, num_sets, x, w->first_chain.classes ? 16 : 2);
    if (w->first_chain.classes && !w->base.set) {
        w->steady = &w->first_chain;
        memset(w->words, 0, bytes);
        allow_classes(w->v, w->steady->classes, w->steady->most, w->words);
        return;
    }
    if (w->base.set) {
        di_kept_mask_write(w->base.set->tokens, w->words);
    } else if (w->set->plain) {
        memcpy(w->words, w->set->plain, bytes);
    } else {
        memset(w->words, 0, bytes);
    }
}

void di_token_walk(di_terms *t, const di_vocab *v, const di_token_set *sets, size_t num_sets,
                   di_term x, di_walk_memory *memory, uint32_t *words, di_token_set *set,
                   uint64_t *walked) {
    walk w = {.t = t,
              .v = v,
              .memory = memory,
              .set = set,
              .words = words,
              .which = set->plain ? DI_TRIE_MARKED : DI_TRIE_ALL};
    w.trie = &v->tries[w.which];
    w.escapes = 1ull << v->class_of['\\'];
    begin(&w, sets, num_sets, x);
    walk_trie(&w, x);
    *walked += w.walked;
}
