/* Masks: which tokens a configuration allows. Called by matchers once a token.
 *
 * A term's own verdict does not depend on the stack, so it is computed once (a token set): walking
 * the trie along the term's derivatives gives the tokens that lie inside the term, and the points
 * at which the term has ended in the middle of tokens. A configuration's mask is the union of its
 * terms' sets plus what a walk from those points on, along configurations, allows.
 *
 * Inside most JSON strings nearly the whole vocabulary is allowed; there the mask of plain tokens
 * is taken as it is and only the trie of the others is walked (vocab.h). */
#include <string.h>

#include "base/alloc.h"
#include "grammar/machine.h"

enum { MAX_IDS = 1024, MAX_OPEN_STATES = 48, MAX_OPERANDS = 64 };

static inline void allow(const di_vocab *v, int32_t token, uint32_t *words) {
    for (; token >= 0; token = v->same[token]) {
        words[token / 32] |= 1u << token % 32;
    }
}

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

/* The mask of plain tokens that all may come inside this term, NULL if it must be found out token
 * by token. */
static const uint32_t *plain_tokens(di_machine *m, di_term x) {
    di_terms *t = &m->terms;
    const di_vocab *v = m->vocab;
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
    return is_open(t, n->a) ? v->plain[DI_VOCAB_PLAIN_CHARS] : NULL;
}

/* ---- token sets ---- */

void di_token_set_clear(di_token_set *set) {
    di_free(set->words);
    di_free(set->ids);
    di_free(set->points);
    *set = (di_token_set){0};
}

static bool add_point(di_terms *t, di_token_set *set, size_t *capacity, uint32_t node, int trie,
                      uint32_t tag) {
    di_token_point *points = di_grow(set->points, set->num_points, capacity, sizeof *points);
    if (!points) {
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a mask");
        return false;
    }
    set->points = points;
    set->points[set->num_points++] = (di_token_point){node, (uint8_t)trie, tag};
    return true;
}

/* ---- characters that leave a term as it is ---- */

enum { NUM_LOOPS = 64, SMALL_SUBTREE = 12 };

/* What was found about some terms during a walk. */
typedef struct loop_cache {
    struct {
        di_term term;
        uint64_t classes;
    } of[NUM_LOOPS];
} loop_cache;

/* Whether every byte low..high, and what must follow it to make a character, leads from x to y. */
static bool leads_back(di_terms *t, di_term x, uint8_t low, uint8_t high, int more, di_term y) {
    const di_term_row *row = di_term_make_row(t, x);
    if (!row) {
        return false;
    }
    for (unsigned b = low; b <= high; b++) {
        if (b > low && row->map->of[b] == row->map->of[b - 1]) {
            continue;
        }
        di_term z = di_term_step(t, x, (uint8_t)b);
        if (more > 0 ? z == DI_TERM_NONE || !leads_back(t, z, 0x80, 0xBF, more - 1, y) : z != y) {
            return false;
        }
    }
    return true;
}

/* The classes of characters none of which changes the term: below them a trie need not be walked.
 * A letter tells whether it is worth asking. */
static uint64_t loops_of(di_terms *t, di_term x, loop_cache *cache) {
    uint32_t at = x % NUM_LOOPS;
    if (cache->of[at].term == x) {
        return cache->of[at].classes;
    }
    uint64_t in = 0, out = 1ull << DI_CLASS_NONE;
    if (di_term_step(t, x, 'e') == x) {
        for (unsigned b = 0; b < 0xF5; b++) {
            int class = di_character_class((uint8_t)b);
            if (out >> class & 1) {
                continue;
            }
            di_character_form f = di_character_form_of((uint8_t)b);
            di_term y = di_term_step(t, x, (uint8_t)b);
            bool same = f.more ? y != DI_TERM_NONE && leads_back(t, y, f.low, f.high, f.more - 1, x)
                               : y == x;
            *(same ? &in : &out) |= 1ull << class;
        }
    }
    cache->of[at].term = x;
    cache->of[at].classes = in & ~out;
    return in & ~out;
}

static void allow_subtree(const di_vocab *v, const di_trie *trie, uint32_t node, uint32_t *words) {
    uint32_t end = trie->before[trie->nodes[node].end];
    for (uint32_t i = trie->before[node]; i < end; i++) {
        allow(v, trie->order[i], words);
    }
}

/* Walks a whole trie along the derivatives of a term. */
static uint64_t walk_term(di_terms *t, const di_vocab *v, int which, di_term x, di_token_set *set) {
    const di_trie *trie = &v->tries[which];
    const di_trie_node *nodes = trie->nodes;
    di_term path[DI_VOCAB_MAX_TOKEN_BYTES + 1];
    size_t capacity = set->num_points;
    uint64_t walked = 0;
    loop_cache cache = {0}; /* of DI_TERM_NONE, which nobody asks about */
    path[0] = x;
    for (uint32_t i = 0; i < trie->num_nodes && t->fault.code == DI_OK;) {
        const di_trie_node *n = &nodes[i];
        di_term y = di_term_step(t, path[n->depth], n->byte);
        walked++;
        if (y == DI_TERM_NONE) {
            i = n->end;
            continue;
        }
        path[n->depth + 1] = y;
        if (n->end > i + SMALL_SUBTREE && !(trie->below[i] & ~loops_of(t, y, &cache))) {
            allow_subtree(v, trie, i, set->words); /* and what ends in it adds nothing */
            i = n->end;
            continue;
        }
        if (n->token >= 0) {
            allow(v, n->token, set->words);
        }
        if (n->end > i + 1 && di_term_nullable(t, y) &&
            !add_point(t, set, &capacity, i, which, di_term_tag(t, y))) {
            break;
        }
        i++;
    }
    return walked;
}

/* Replaces a bit set of few bits by their list. */
static void shrink(const di_vocab *v, di_token_set *set) {
    uint32_t count = 0;
    for (int32_t w = 0; w < v->num_words; w++) {
        count += (uint32_t)__builtin_popcount(set->words[w]);
    }
    int32_t *ids = count <= MAX_IDS ? di_realloc_array(NULL, count + 1, sizeof *ids) : NULL;
    if (!ids) {
        return;
    }
    for (int32_t w = 0; w < v->num_words; w++) {
        for (uint32_t bits = set->words[w]; bits; bits &= bits - 1) {
            ids[set->num_ids++] = w * 32 + __builtin_ctz(bits);
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
        bool open = false;
        for (uint32_t i = node + 1; i < end && !open; i++) {
            int32_t token = trie->nodes[i].token;
            open = token >= 0 && !(set->words[token / 32] >> token % 32 & 1);
        }
        if (open) {
            set->points[kept++] = set->points[p];
        }
    }
    set->num_points = kept;
}

static bool fill_set(di_terms *t, const di_vocab *v, di_term x, const uint32_t *plain,
                     di_token_set *set, uint64_t *walked) {
    size_t bytes = (size_t)v->num_words * sizeof *set->words;
    *set = (di_token_set){.term = x, .words = plain ? di_alloc(bytes) : di_calloc(1, bytes)};
    if (!set->words) {
        di_terms_fail(t, DI_ERR_NO_MEMORY, "no memory for a mask");
        return false;
    }
    if (plain) {
        memcpy(set->words, plain, bytes);
    }
    *walked += walk_term(t, v, plain ? DI_TRIE_MARKED : DI_TRIE_ALL, x, set);
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
    if (!set ||
        !fill_set(&terms, v, DI_TERM_JSON_STRING, v->plain[DI_VOCAB_PLAIN_CHARS], set, &walked)) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a mask");
        di_free(set);
        set = NULL;
    }
    di_terms_destroy(&terms);
    return set;
}

void di_machine_drop_masks(di_machine *m) {
    for (size_t i = 0; i < m->num_configs; i++) {
        di_free(m->configs[i].mask);
        m->configs[i].mask = NULL;
    }
    for (size_t i = 0; i < m->num_sets; i++) {
        di_token_set_clear(&m->sets[i]);
    }
    memset(m->set_buckets, 0xFF, sizeof m->set_buckets);
    m->num_sets = 0;
    m->mask_bytes = 0;
}

/* ---- terms that look alike to every token ---- */

/* More characters than a text can be bound to need, at the least, to reach an end from anywhere in
 * it; UINT32_MAX = cannot tell. */
static uint64_t longest_way_out(const di_terms *t, di_term x) {
    const di_term_node *n = &t->nodes[x];
    switch (n->kind) {
    case DI_KIND_EMPTY:
    case DI_KIND_FINAL:
        return 0;
    case DI_KIND_BYTES:
        return 1;
    case DI_KIND_CAT: {
        uint64_t sum = longest_way_out(t, n->a) + longest_way_out(t, n->b);
        return sum < UINT32_MAX ? sum : UINT32_MAX;
    }
    case DI_KIND_ALT: {
        uint64_t most = 0;
        for (uint32_t i = 0; i < n->b && n->b <= MAX_OPERANDS; i++) {
            uint64_t one = longest_way_out(t, t->list[n->a + i]);
            most = one > most ? one : most;
        }
        return n->b <= MAX_OPERANDS ? most : UINT32_MAX;
    }
    case DI_KIND_REPEAT: {
        uint64_t product = longest_way_out(t, n->a) * (n->b + 1ull);
        return product < UINT32_MAX ? product : UINT32_MAX;
    }
    default:
        return UINT32_MAX;
    }
}

static di_term clamp(di_machine *m, di_term x, uint64_t slack, int depth);

/* A repeat whose bounds lie further away than a token is long: no token can tell. `slack`: what
 * must be left of an upper bound so that something else that holds too can still come to its end.
 */
static di_term clamp_repeat(di_machine *m, di_term x, uint64_t slack, bool alone) {
    di_term_node n = m->terms.nodes[x];
    uint32_t most = (uint32_t)m->vocab->max_bytes, low = n.b, high = n.c;
    if (di_term_nullable(&m->terms, n.a) || !di_term_regular(&m->terms, n.a)) {
        return x;
    }
    low = alone && low > most ? most + 1 : low;
    high = high != DI_TERM_UNBOUNDED && high > most + low + slack ? DI_TERM_UNBOUNDED : high;
    return low == n.b && high == n.c ? x : di_term_repeat(&m->terms, n.a, low, high);
}

/* All parts hold at once. An upper bound goes if all others come to an end long before. */
static di_term clamp_and(di_machine *m, di_term x) {
    di_terms *t = &m->terms;
    di_term_node n = t->nodes[x];
    di_term parts[8];
    for (uint32_t i = 0; i < n.b && n.b <= 8; i++) {
        di_term part = t->list[n.a + i];
        uint64_t slack = 0;
        for (uint32_t k = 0; k < n.b; k++) {
            slack += k == i ? 0 : longest_way_out(t, t->list[n.a + k]);
        }
        bool counts = t->nodes[part].kind == DI_KIND_REPEAT && t->nodes[part].a == DI_TERM_CHAR;
        parts[i] = counts && slack < UINT32_MAX ? clamp_repeat(m, part, slack, false) : part;
    }
    return n.b <= 8 ? di_term_and(t, parts, n.b) : x;
}

static di_term clamp(di_machine *m, di_term x, uint64_t slack, int depth) {
    di_terms *t = &m->terms;
    di_term_node n = t->nodes[x];
    if (depth == 0 || t->fault.code != DI_OK) {
        return x;
    }
    switch (n.kind) {
    case DI_KIND_REPEAT:
        return clamp_repeat(m, x, slack, true);
    case DI_KIND_CAT: {
        di_term a = clamp(m, n.a, slack, depth - 1), b = clamp(m, n.b, slack, depth - 1);
        return a == n.a && b == n.b ? x : di_term_cat(t, a, b);
    }
    case DI_KIND_ALT: {
        di_term parts[8];
        for (uint32_t i = 0; i < n.b && n.b <= 8; i++) {
            parts[i] = clamp(m, t->list[n.a + i], slack, depth - 1);
        }
        return n.b <= 8 ? di_term_alt(t, parts, n.b) : x;
    }
    case DI_KIND_AND:
        return clamp_and(m, x);
    case DI_KIND_STRING:
        return n.b == 0 ? di_term_string(t, clamp(m, n.a, slack, depth - 1)) : x;
    default:
        return x;
    }
}

/* A term that allows the same tokens and ends at the same places in them, the same for many; what
 * was found is kept. */
static di_term representative(di_machine *m, di_term x) {
    struct di_alike *known = &m->alike[x % DI_MACHINE_ALIKE];
    if (known->of != x || x == DI_TERM_NONE) {
        di_term to = di_term_regular(&m->terms, x) ? clamp(m, x, 0, 12) : x;
        known->of = x;
        known->to = m->terms.fault.code == DI_OK ? to : x;
    }
    return known->to;
}

/* Borrowed until the next call. */
static const di_token_set *token_set(di_machine *m, di_term x) {
    x = representative(m, x);
    if (x == DI_TERM_JSON_STRING && m->vocab->strings) {
        return m->vocab->strings;
    }
    uint32_t bucket = x * 0x9E3779B9u >> 24;
    for (uint32_t i = m->set_buckets[bucket]; i != UINT32_MAX; i = m->sets[i].hash_next) {
        if (m->sets[i].term == x) {
            return &m->sets[i];
        }
    }
    di_token_set *sets = di_grow(m->sets, m->num_sets, &m->cap_sets, sizeof *sets);
    if (!sets) {
        di_terms_fail(&m->terms, DI_ERR_NO_MEMORY, "no memory for a mask");
        return NULL;
    }
    m->sets = sets;
    di_token_set *set = &m->sets[m->num_sets];
    if (!fill_set(&m->terms, m->vocab, x, plain_tokens(m, x), set, &m->walked)) {
        return NULL;
    }
    set->hash_next = m->set_buckets[bucket];
    m->set_buckets[bucket] = (uint32_t)m->num_sets++;
    m->mask_bytes += sizeof *set + set->num_points * sizeof *set->points +
                     (set->words ? (size_t)m->vocab->num_words * 4 : set->num_ids * 4u);
    return set;
}

/* ---- masks of configurations ---- */

/* Walks the tokens below a node along configurations. */
static void walk_configs(di_machine *m, di_config c, const di_token_point *from, uint32_t *words) {
    const di_trie_node *nodes = m->vocab->tries[from->trie].nodes;
    di_config path[DI_VOCAB_MAX_TOKEN_BYTES + 1];
    unsigned base = nodes[from->node].depth + 1u;
    path[base] = c;
    for (uint32_t i = from->node + 1, end = nodes[from->node].end; i < end;) {
        const di_trie_node *n = &nodes[i];
        di_config to = di_machine_step(m, path[n->depth], n->byte);
        m->walked++;
        if (to == DI_CONFIG_DEAD) {
            i = n->end;
            continue;
        }
        path[n->depth + 1] = to;
        if (n->token >= 0) {
            allow(m->vocab, n->token, words);
        }
        i++;
    }
}

static bool add_item(di_machine *m, di_item item, uint32_t *words) {
    const di_token_set *set = token_set(m, item.term);
    if (!set) {
        return false;
    }
    if (set->words) {
        for (int32_t w = 0; w < m->vocab->num_words; w++) {
            words[w] |= set->words[w];
        }
    }
    for (uint32_t i = 0; i < set->num_ids; i++) {
        words[set->ids[i] / 32] |= 1u << set->ids[i] % 32;
    }
    uint32_t tag = 0;
    di_config to = DI_CONFIG_DEAD;
    for (uint32_t p = 0; p < set->num_points; p++) {
        if (p == 0 || set->points[p].tag != tag) {
            tag = set->points[p].tag;
            to = di_machine_return(m, item.stack, tag);
        }
        if (to != DI_CONFIG_DEAD) {
            walk_configs(m, to, &set->points[p], words);
        }
    }
    return m->terms.fault.code == DI_OK;
}

bool di_machine_mask(di_machine *m, di_config c, uint32_t *words) {
    size_t bytes = (size_t)m->vocab->num_words * sizeof *words;
    if (m->configs[c].mask) {
        memcpy(words, m->configs[c].mask, bytes);
        return true;
    }
    if (m->mask_bytes > DI_MACHINE_MASK_BYTES) {
        di_machine_drop_masks(m);
    }
    memset(words, 0, bytes);
    for (uint32_t i = 0; i < m->configs[c].count; i++) {
        if (!add_item(m, m->items[m->configs[c].first + i], words)) {
            return false;
        }
    }
    if (m->configs[c].accepts) {
        for (int s = 0; s < m->vocab->num_stop; s++) {
            words[m->vocab->stop_ids[s] / 32] |= 1u << m->vocab->stop_ids[s] % 32;
        }
    }
    m->configs[c].mask = di_alloc(bytes);
    if (m->configs[c].mask) {
        memcpy(m->configs[c].mask, words, bytes);
        m->mask_bytes += bytes;
    }
    return true;
}
