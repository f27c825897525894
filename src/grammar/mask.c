/* Masks: which tokens a configuration allows. Called by matchers once a token.
 *
 * A term's own verdict does not depend on the stack, so it is computed once (token_set.c). A
 * configuration's mask is the union of its terms' sets plus what a walk from the points at which
 * they end on, along configurations, allows. */
#include <string.h>

#include "base/alloc.h"
#include "grammar/machine.h"

enum { MAX_OPERANDS = 64, MAX_WORD_LOOKS = 500 };

/* ---- token sets ---- */

static void drop_config_masks(di_machine *m) {
    for (size_t i = 0; i < m->num_configs; i++) {
        di_free(m->configs[i].mask);
        m->configs[i].mask = NULL;
    }
    m->mask_bytes = 0;
}

static void drop_sets(di_machine *m) {
    for (size_t i = 0; i < m->num_sets; i++) {
        di_token_set_clear(&m->sets[i]);
    }
    memset(m->set_buckets, 0xFF, sizeof m->set_buckets);
    m->num_sets = 0;
    m->set_bytes = 0;
}

void di_machine_drop_masks(di_machine *m) {
    drop_config_masks(m);
    drop_sets(m);
}

/* ---- terms that look alike to every token ---- */

/* At least the length of the longest word below a node, UINT32_MAX if there is too much to look at.
 */
static uint64_t longest_word(const di_terms *t, uint32_t node, int *budget) {
    const di_word_node *n = &t->words[node];
    uint64_t most = 0;
    for (uint32_t e = 0; e < n->count; e++) {
        if (--*budget < 0) {
            return UINT32_MAX;
        }
        uint64_t one = 1 + longest_word(t, t->edges[n->first + e].node, budget);
        most = one > most ? one : most;
    }
    return most;
}

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
    case DI_KIND_NOT: { /* of some words: beyond the longest one a text may end anywhere */
        const di_term_node *of = &t->nodes[n->a];
        int budget = MAX_WORD_LOOKS;
        uint64_t longest =
            of->kind == DI_KIND_WORDS ? longest_word(t, of->a, &budget)
            : of->kind == DI_KIND_EMPTY || of->kind == DI_KIND_BYTES || of->kind == DI_KIND_CAT
                ? longest_way_out(t, n->a)
                : UINT32_MAX;
        return longest < UINT32_MAX ? longest + 1 : UINT32_MAX;
    }
    default:
        return UINT32_MAX;
    }
}

static di_term clamp(di_machine *m, di_term x, uint64_t slack, int depth, bool *retag);

/* A repeat whose bounds lie further away than a token is long: no token can tell. `slack`: what
 * must be left of an upper bound so that something else that holds too can still come to its end.
 */
static di_term clamp_repeat(di_machine *m, di_term x, uint64_t slack, bool alone) {
    di_term_node n = m->terms.nodes[x];
    uint32_t most = m->token_bytes, low = n.b, high = n.c;
    if (di_term_nullable(&m->terms, n.a) || !di_term_regular(&m->terms, n.a)) {
        return x;
    }
    low = alone && low > most ? most + 1 : low;
    uint64_t needed = most + slack + (alone ? 0 : low);
    high = high != DI_TERM_UNBOUNDED && high > needed ? DI_TERM_UNBOUNDED : high;
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

static di_term clamp(di_machine *m, di_term x, uint64_t slack, int depth, bool *retag) {
    di_terms *t = &m->terms;
    di_term_node n = t->nodes[x];
    if (depth == 0 || t->fault.code != DI_OK) {
        return x;
    }
    switch (n.kind) {
    case DI_KIND_REPEAT: {
        di_term y = clamp_repeat(m, x, slack, true);
        if (y != x) {
            return y;
        }
        di_term body = clamp(m, n.a, slack, depth - 1, retag);
        return body == n.a ? x : di_term_repeat(t, body, n.b, n.c);
    }
    case DI_KIND_CAT: {
        di_term a = clamp(m, n.a, slack, depth - 1, retag),
                b = clamp(m, n.b, slack, depth - 1, retag);
        return a == n.a && b == n.b ? x : di_term_cat(t, a, b);
    }
    case DI_KIND_ALT: {
        di_term parts[8];
        for (uint32_t i = 0; i < n.b && n.b <= 8; i++) {
            parts[i] = clamp(m, t->list[n.a + i], slack, depth - 1, retag);
        }
        return n.b <= 8 ? di_term_alt(t, parts, n.b) : x;
    }
    case DI_KIND_AND:
        return clamp_and(m, x);
    case DI_KIND_STRING:
        return n.b == 0 ? di_term_string(t, clamp(m, n.a, slack, depth - 1, retag)) : x;
    case DI_KIND_KEY: {
        di_term text;
        uint32_t tag;
        if (!t->hooks.text(t->hooks.context, n.a, n.b, n.c, &text, &tag)) {
            return x;
        }
        *retag = true;
        return clamp(m, text, slack, depth - 1, retag);
    }
    default:
        return x;
    }
}

/* How many of the lengths below are worth a try: more than the first only in strings, where sets
 * take long to make, but none where they are read off (string_set.h). */
static int worthwhile_lengths(const di_terms *t, di_term x) {
    const di_term_node *text = &t->nodes[t->nodes[x].a];
    return t->nodes[x].kind != DI_KIND_STRING ? 1
           : text->kind != DI_KIND_REPEAT     ? 3
           : text->a == DI_TERM_CHAR          ? 0
                                              : 2;
}

/* A term that begins with at most *was characters of JSON's white space, with `high` in their place
 * (0: none). NONE: it does not begin so. */
static di_term with_spaces(di_terms *t, di_term x, uint32_t high, uint32_t *was) {
    di_term_node n = t->nodes[x];
    if (n.kind == DI_KIND_CAT) {
        return di_term_cat(t, with_spaces(t, n.a, high, was), n.b);
    }
    if (n.kind != DI_KIND_REPEAT || n.b != 0 || t->nodes[n.a].kind != DI_KIND_BYTES) {
        return DI_TERM_NONE;
    }
    const di_byte_set *set = &t->sets[t->nodes[n.a].a];
    if (set->words[0] & ~DI_VOCAB_SPACES || set->words[1] | set->words[2] | set->words[3]) {
        return DI_TERM_NONE;
    }
    *was = n.c;
    return di_term_repeat(t, n.a, 0, high);
}

/* White space before something else: a term that may begin with any amount of it, if tokens that
 * go on behind it begin with no more than this one may. Those of white space alone are told by
 * their length. */
static di_term any_spaces(di_machine *m, di_term x, uint32_t *most) {
    di_terms *t = &m->terms;
    di_byte_set first = {0};
    di_term rest = di_term_regular(t, x) ? with_spaces(t, x, 0, most) : DI_TERM_NONE;
    if (rest == DI_TERM_NONE || *most < 2 || *most < m->vocab->mixed_spaces) {
        return DI_TERM_NONE;
    }
    di_terms_first(t, rest, &first);
    return first.words[0] & DI_VOCAB_SPACES ? DI_TERM_NONE
                                            : with_spaces(t, x, DI_TERM_UNBOUNDED, most);
}

/* A term that allows the same tokens of at most *bytes and ends at the same places in them, the
 * same for many; what was found is kept. It allows longer tokens, too, if x does: there are few, so
 * they are asked for one by one if that gives a term that more are like. *retag: x ends there with
 * tags of its own. */
static struct di_alike representative(di_machine *m, di_term x) {
    static const uint32_t lengths[] = {DI_VOCAB_MAX_TOKEN_BYTES, 24, 16, DI_VOCAB_LONG};
    struct di_alike *known = &m->alike[x % DI_MACHINE_ALIKE];
    if (known->of == x && x != DI_TERM_NONE) {
        return *known;
    }
    *known = (struct di_alike){.of = x, .to = x, .bytes = DI_VOCAB_MAX_TOKEN_BYTES};
    uint32_t spaces;
    di_term spaced = any_spaces(m, x, &spaces);
    if (spaced != DI_TERM_NONE) {
        known->to = spaced;
        known->spaces = spaces;
    }
    di_term from = known->to;
    int tries = di_term_regular(&m->terms, x) ? worthwhile_lengths(&m->terms, from) : 0;
    for (int i = 0; i < tries && known->bytes == DI_VOCAB_MAX_TOKEN_BYTES; i++) {
        bool tagged = false;
        uint32_t longest = (uint32_t)m->vocab->max_bytes;
        m->token_bytes = lengths[i] < longest ? lengths[i] : longest;
        di_term to = clamp(m, from, 0, 12, &tagged);
        if (m->terms.fault.code == DI_OK && to != known->to) {
            known->to = to;
            known->bytes = lengths[i];
            known->retag = tagged;
        }
    }
    return *known;
}

/* The set of a representative, borrowed until the next call. */
static const di_token_set *token_set(di_machine *m, di_term x, bool spaced) {
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
    m->memory = m->memory ? m->memory : di_walk_memory_create();
    if (!m->memory) {
        di_terms_fail(&m->terms, DI_ERR_NO_MEMORY, "no memory for a mask");
        return NULL;
    }
    di_token_set *set = &m->sets[m->num_sets];
    if (!di_token_set_make(&m->terms, m->vocab, m->sets, m->num_sets, x, spaced, m->memory,
                           m->scratch, set, &m->walked)) {
        return NULL;
    }
    set->hash_next = m->set_buckets[bucket];
    m->set_buckets[bucket] = (uint32_t)m->num_sets++;
    m->set_bytes += di_token_set_bytes(set);
    return set;
}

/* ---- masks of configurations ---- */

/* The bytes that may come in a configuration. */
static di_byte_set first_bytes(di_machine *m, di_config c) {
    di_byte_set set = {0};
    for (uint32_t i = 0; i < m->configs[c].count; i++) {
        di_terms_first(&m->terms, m->items[m->configs[c].first + i].term, &set);
    }
    return set;
}

static void walk_below(di_machine *m, di_config c, const di_byte_set *may, const di_trie *trie,
                       uint32_t node, uint32_t *words);

/* Walks the tokens from a node on to whose parent a configuration belongs. */
static void walk_node(di_machine *m, di_config c, const di_trie *trie, uint32_t node,
                      uint32_t *words) {
    const di_trie_step *e = &trie->steps[node];
    di_config to = di_machine_step(m, c, e->byte);
    m->walked++;
    if (to != DI_CONFIG_DEAD) {
        di_trie_allow(m->vocab, &trie->nodes[node], words);
        if (e->end > node + 1) {
            walk_below(m, to, NULL, trie, node, words);
        }
    }
}

/* Walks the tokens below a node along configurations. may: the bytes that may come in the first, or
 * NULL; they are asked for where there are many children. No deeper than a token is long. */
static void walk_below(di_machine *m, di_config c, const di_byte_set *may, const di_trie *trie,
                       uint32_t node, uint32_t *words) {
    const di_trie_step *steps = trie->steps;
    uint16_t fan = steps[node].fan;
    di_byte_set first;
    if (fan && !may) {
        first = first_bytes(m, c);
        may = &first;
    }
    for (int k = 0; fan && k < 4; k++) {
        uint64_t left = trie->fans[fan].bytes[k] & may->words[k];
        for (; left; left &= left - 1) {
            unsigned byte = 64u * (unsigned)k + (unsigned)__builtin_ctzll(left);
            walk_node(m, c, trie, di_trie_child(trie, &trie->fans[fan], byte), words);
        }
    }
    uint32_t end = fan ? 0 : steps[node].end;
    for (uint32_t i = node + 1; i < end; i = steps[i].end) {
        if (!may || di_byte_set_has(may, steps[i].byte)) {
            walk_node(m, c, trie, i, words);
        }
    }
}

/* The terms on the way to the last point whose tag was asked for. */
typedef struct tag_path {
    di_term terms[DI_VOCAB_MAX_TOKEN_BYTES + 1];
    uint8_t bytes[DI_VOCAB_MAX_TOKEN_BYTES];
    unsigned length;
} tag_path;

/* The tag with which a term, terms[0], ends at a point. Points come in the order of their bytes, so
 * that most share a beginning with the one before. */
static uint32_t tag_at(di_machine *m, tag_path *path, const di_token_point *p) {
    const di_trie *trie = &m->vocab->tries[p->trie];
    const di_trie_node *n = &trie->nodes[p->node];
    const char *bytes = m->vocab->tokens[trie->order[n->before]].bytes; /* of one behind it */
    unsigned length = n->depth + 1u, same = 0;
    while (same < path->length && same < length && path->bytes[same] == (uint8_t)bytes[same]) {
        same++;
    }
    for (unsigned i = same; i < length; i++) {
        path->bytes[i] = (uint8_t)bytes[i]; /* it is alive */
        path->terms[i + 1] = di_term_derive(&m->terms, path->terms[i], path->bytes[i]);
    }
    path->length = length;
    return di_term_tag(&m->terms, path->terms[length]);
}

/* Whether one of the bytes leads on from a point. */
static bool goes_on(const di_vocab *v, const di_token_point *p, const di_byte_set *may) {
    const di_trie *trie = &v->tries[p->trie];
    const di_trie_step *steps = trie->steps;
    uint16_t fan = steps[p->node].fan;
    uint64_t any = 0;
    for (int k = 0; fan && k < 4; k++) {
        any |= trie->fans[fan].bytes[k] & may->words[k];
    }
    for (uint32_t i = p->node + 1; !fan && i < steps[p->node].end && !any; i = steps[i].end) {
        any = di_byte_set_has(may, steps[i].byte);
    }
    return any != 0;
}

/* Adds the tokens of white space alone that a term takes which may begin with so much. */
static void allow_spaces(di_machine *m, di_term x, uint32_t most, uint32_t *words) {
    const di_vocab *v = m->vocab;
    const di_terms *t = &m->terms;
    while (t->nodes[x].kind == DI_KIND_CAT) {
        x = t->nodes[x].a;
    }
    uint64_t bytes = t->sets[t->nodes[t->nodes[x].a].a].words[0];
    for (int32_t i = 0; i < v->num_spaces; i++) {
        int32_t id = v->spaces[i].token;
        bool fits = v->spaces[i].count <= most && !(v->spaces[i].bytes & ~bytes);
        words[id / 32] |= (uint32_t)fits << id % 32;
    }
}

/* Allows what a stack does behind the points at which a term has ended. */
static void walk_points(di_machine *m, di_item item, const di_token_set *set,
                        const struct di_alike *as, uint32_t *words) {
    di_terms *t = &m->terms;
    uint32_t tag = 0;
    bool known = false;
    di_config to = DI_CONFIG_DEAD;
    di_byte_set may = {0}, behind = {0};
    di_term next = m->frames[item.stack].next;
    bool filter = as->retag && t->nodes[item.term].kind == DI_KIND_STRING && /* it ends as a key */
                  item.stack != DI_STACK_BOTTOM && t->nodes[next].kind == DI_KIND_RESUME &&
                  t->hooks.behind_key(t->hooks.context, next, &behind);
    tag_path path;
    path.terms[0] = item.term;
    path.length = 0;
    for (uint32_t p = 0; p < set->num_points; p++) {
        const di_token_point *point = &set->points[p];
        if ((filter && !goes_on(m->vocab, point, &behind)) ||
            (as->spaces && point->spaces > as->spaces)) {
            continue;
        }
        uint32_t here = as->retag ? tag_at(m, &path, point) : point->tag;
        if (!known || here != tag) {
            known = true;
            tag = here;
            to = di_machine_return(m, item.stack, tag);
            if (!as->retag) { /* else each point has its own configuration */
                may = first_bytes(m, to);
            }
        }
        if (to != DI_CONFIG_DEAD) {
            walk_below(m, to, as->retag ? NULL : &may, &m->vocab->tries[point->trie], point->node,
                       words);
        }
    }
}

/* first: nothing has been written to words yet. */
static bool add_item(di_machine *m, di_item item, bool first, uint32_t *words, uint32_t *bytes) {
    struct di_alike as = representative(m, item.term);
    const di_token_set *set = token_set(m, as.to, as.spaces > 0);
    if (!set) {
        return false;
    }
    if (first) {
        di_kept_mask_write(set->tokens, words);
    } else {
        di_kept_mask_or(set->tokens, words);
    }
    if (as.spaces) {
        allow_spaces(m, item.term, as.spaces, words);
    }
    *bytes = as.bytes < *bytes ? as.bytes : *bytes;
    walk_points(m, item, set, &as, words);
    return m->terms.fault.code == DI_OK;
}

/* Takes out the tokens longer than so many bytes that the configuration does not allow. */
static void check_long_tokens(di_machine *m, di_config c, uint32_t bytes, uint32_t *words) {
    const di_vocab *v = m->vocab;
    for (int32_t i = 0; i < v->num_long; i++) {
        int32_t id = v->long_ids[i];
        const di_vocab_token *token = &v->tokens[id];
        if (token->size <= bytes) {
            break;
        }
        di_config to = words[id / 32] >> id % 32 & 1 ? c : DI_CONFIG_DEAD;
        for (size_t k = 0; k < token->size && to != DI_CONFIG_DEAD; k++) {
            to = di_machine_step(m, to, (uint8_t)token->bytes[k]);
        }
        if (to == DI_CONFIG_DEAD) {
            words[id / 32] &= ~(1u << id % 32);
        }
    }
}

bool di_machine_mask(di_machine *m, di_config c, uint32_t *words) {
    size_t bytes = (size_t)m->vocab->num_words * sizeof *words;
    if (m->configs[c].mask) {
        di_kept_mask_write(m->configs[c].mask, words);
        return true;
    }
    if (m->mask_bytes > DI_MACHINE_MASK_BYTES) {
        drop_config_masks(m);
    }
    if (m->set_bytes > DI_MACHINE_MASK_BYTES) {
        drop_sets(m);
    }
    if (m->configs[c].count == 0) {
        memset(words, 0, bytes);
    }
    uint32_t alike = UINT32_MAX;
    for (uint32_t i = 0; i < m->configs[c].count; i++) {
        if (!add_item(m, m->items[m->configs[c].first + i], i == 0, words, &alike)) {
            return false;
        }
    }
    if (alike < DI_VOCAB_MAX_TOKEN_BYTES) {
        check_long_tokens(m, c, alike, words);
        if (m->terms.fault.code != DI_OK) {
            return false;
        }
    }
    if (m->configs[c].accepts) {
        for (int s = 0; s < m->vocab->num_stop; s++) {
            words[m->vocab->stop_ids[s] / 32] |= 1u << m->vocab->stop_ids[s] % 32;
        }
    }
    di_kept_mask *kept = di_kept_mask_make(words, m->vocab->num_words, m->vocab->like);
    m->configs[c].mask = kept;
    m->mask_bytes += kept ? di_kept_mask_bytes(kept) : 0;
    return true;
}
