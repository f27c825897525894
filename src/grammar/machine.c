/* Stacks, configurations and the step from one to the next; see machine.h. */
#include "grammar/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static void *grow(di_machine *m, void *array, size_t count, size_t *capacity, size_t size) {
    size_t before = *capacity;
    void *moved = di_grow(array, count, capacity, size);
    if (!moved) {
        di_terms_fail(&m->terms, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return NULL;
    }
    di_terms_charge(&m->terms, (*capacity - before) * size);
    return moved;
}

static uint32_t mix(uint32_t a, uint32_t b) {
    uint64_t h = (a * 0x9E3779B97F4A7C15ull) ^ (b * 0xC2B2AE3D27D4EB4Full);
    return (uint32_t)(h >> 32 ^ h);
}

bool di_machine_create(di_machine *m, const di_vocab *vocab, size_t max_bytes, di_error *err) {
    memset(m, 0, sizeof *m);
    if (!di_terms_create(&m->terms, max_bytes, err)) {
        return false;
    }
    m->vocab = vocab;
    memset(m->set_buckets, 0xFF, sizeof m->set_buckets);
    m->scratch = di_calloc((size_t)vocab->num_words, sizeof *m->scratch);
    m->seen = di_calloc(2 * DI_MACHINE_MAX_WORK, sizeof *m->seen);
    m->frames = grow(m, NULL, 0, &m->cap_frames, sizeof *m->frames);
    m->configs = grow(m, NULL, 0, &m->cap_configs, sizeof *m->configs);
    if (!m->scratch || !m->seen || !m->frames || !m->configs) {
        di_machine_destroy(m);
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a grammar");
    }
    di_terms_charge(&m->terms, sizeof *m + 2 * DI_MACHINE_MAX_WORK * sizeof *m->seen);
    m->frames[m->num_frames++] = (di_frame){.hash_next = UINT32_MAX};
    m->configs[m->num_configs++] = (di_config_node){.hash_next = UINT32_MAX};
    return true;
}

void di_machine_destroy(di_machine *m) {
    for (size_t i = 0; i < m->num_configs; i++) {
        di_free(m->configs[i].few);
        di_free(m->configs[i].row);
        di_free(m->configs[i].mask);
    }
    for (size_t i = 0; i < m->num_sets; i++) {
        di_token_set_clear(&m->sets[i]);
    }
    di_free(m->sets);
    di_free(m->scratch);
    di_free(m->memory);
    di_free(m->configs);
    di_free(m->config_buckets);
    di_free(m->frames);
    di_free(m->frame_buckets);
    di_free(m->items);
    di_free(m->work);
    di_free(m->found);
    di_free(m->seen);
    di_free(m->rules);
    di_terms_destroy(&m->terms);
    memset(m, 0, sizeof *m);
}

static void drop_few(di_machine *m, di_config_node *n) {
    m->terms.bytes -= n->few ? sizeof *n->few : 0;
    di_free(n->few);
    n->few = NULL;
}

void di_machine_trim(di_machine *m) {
    di_machine_drop_masks(m);
    for (size_t i = 0; i < m->num_configs; i++) {
        drop_few(m, &m->configs[i]);
        if (m->configs[i].row) {
            m->terms.bytes -= 256 * sizeof *m->configs[i].row;
            di_free(m->configs[i].row);
            m->configs[i].row = NULL;
        }
    }
    di_terms_drop_rows(&m->terms);
}

/* ---- stacks ---- */

/* Empty buckets in place of too few; NULL after a fault. */
static uint32_t *new_buckets(di_machine *m, uint32_t **old, uint32_t *count) {
    uint32_t wanted = *count ? 2 * *count : 256;
    uint32_t *buckets = di_realloc_array(NULL, wanted, sizeof *buckets);
    if (!buckets || !di_terms_charge(&m->terms, (wanted - *count) * sizeof *buckets)) {
        di_free(buckets);
        di_terms_fail(&m->terms, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return NULL;
    }
    memset(buckets, 0xFF, wanted * sizeof *buckets);
    di_free(*old);
    *old = buckets;
    *count = wanted;
    return buckets;
}

static bool widen_frames(di_machine *m) {
    if (m->num_frames < m->num_frame_buckets) {
        return true;
    }
    uint32_t *buckets = new_buckets(m, &m->frame_buckets, &m->num_frame_buckets);
    for (uint32_t i = 1; buckets && i < m->num_frames; i++) {
        uint32_t at = mix(m->frames[i].next, m->frames[i].below) % m->num_frame_buckets;
        m->frames[i].hash_next = buckets[at];
        buckets[at] = i;
    }
    return buckets != NULL;
}

/* Puts a frame on a stack. UINT32_MAX: too deep, or a fault. */
static uint32_t push_frame(di_machine *m, di_term next, uint32_t below) {
    if (next == DI_TERM_EMPTY) {
        return below;
    }
    if (!widen_frames(m)) {
        return UINT32_MAX;
    }
    uint32_t bucket = mix(next, below) % m->num_frame_buckets;
    for (uint32_t i = m->frame_buckets[bucket]; i != UINT32_MAX; i = m->frames[i].hash_next) {
        if (m->frames[i].next == next && m->frames[i].below == below) {
            return i;
        }
    }
    uint32_t depth = m->frames[below].depth + 1;
    if (depth > DI_MACHINE_MAX_DEPTH) {
        return UINT32_MAX;
    }
    di_frame *frames = grow(m, m->frames, m->num_frames, &m->cap_frames, sizeof *frames);
    if (!frames) {
        return UINT32_MAX;
    }
    m->frames = frames;
    uint32_t id = (uint32_t)m->num_frames++;
    m->frames[id] = (di_frame){next, below, depth, m->frame_buckets[bucket]};
    m->frame_buckets[bucket] = id;
    return id;
}

/* ---- closures: from terms of any kind to regular ones ---- */

static void too_ambiguous(di_machine *m) {
    di_terms_fail(&m->terms, DI_ERR_UNSUPPORTED,
                  "too ambiguous: a text can be read in too many ways");
}

static void add_work(di_machine *m, di_term term, uint32_t stack) {
    if (term == DI_TERM_NONE || stack == UINT32_MAX) {
        return;
    }
    uint32_t at = mix(term, stack) % (2 * DI_MACHINE_MAX_WORK);
    while (m->seen[at].epoch == m->epoch) {
        if (m->seen[at].item.term == term && m->seen[at].item.stack == stack) {
            return;
        }
        at = (at + 1) % (2 * DI_MACHINE_MAX_WORK);
    }
    if (m->num_work >= DI_MACHINE_MAX_WORK) {
        too_ambiguous(m);
        return;
    }
    di_item *work = grow(m, m->work, m->num_work, &m->cap_work, sizeof *work);
    if (!work) {
        return;
    }
    m->work = work;
    m->work[m->num_work++] = (di_item){term, stack};
    m->seen[at].epoch = m->epoch;
    m->seen[at].item = (di_item){term, stack};
}

static void add_found(di_machine *m, di_term term, uint32_t stack) {
    di_item *found = grow(m, m->found, m->num_found, &m->cap_found, sizeof *found);
    if (found) {
        m->found = found;
        m->found[m->num_found++] = (di_item){term, stack};
    }
}

static void pop(di_machine *m, uint32_t stack, uint32_t tag) {
    if (stack == DI_STACK_BOTTOM) {
        m->found_accept = true;
        return;
    }
    di_frame frame = m->frames[stack];
    di_term next = frame.next;
    if (m->terms.nodes[next].kind == DI_KIND_RESUME) {
        next = m->terms.hooks.expand(m->terms.hooks.context, &m->terms, next, tag);
    }
    add_work(m, next, frame.below);
}

static void open_regular(di_machine *m, di_term x, uint32_t stack) {
    if (di_term_nullable(&m->terms, x)) {
        pop(m, stack, di_term_tag(&m->terms, x));
    }
    uint8_t kind = m->terms.nodes[x].kind;
    if (kind != DI_KIND_EMPTY && kind != DI_KIND_FINAL) {
        add_found(m, x, stack);
    }
}

static void open_term(di_machine *m, di_term x, uint32_t stack) {
    di_terms *t = &m->terms;
    di_term_node n = t->nodes[x];
    if (n.flags & DI_TERM_REGULAR) {
        if (di_term_alive(t, x)) {
            open_regular(m, x, stack);
        }
        return;
    }
    switch (n.kind) {
    case DI_KIND_CAT:
        add_work(m, n.a, push_frame(m, n.b, stack));
        break;
    case DI_KIND_ALT:
        for (uint32_t i = 0; i < n.b; i++) {
            add_work(m, t->list[n.a + i], stack);
        }
        break;
    case DI_KIND_REPEAT: {
        if (n.b == 0) {
            add_work(m, DI_TERM_EMPTY, stack);
        }
        di_term rest =
            di_term_repeat(t, n.a, n.b ? n.b - 1 : 0, n.c == DI_TERM_UNBOUNDED ? n.c : n.c - 1);
        add_work(m, n.a, push_frame(m, rest, stack));
        break;
    }
    case DI_KIND_CALL:
        add_work(m, m->rules[n.a], stack);
        break;
    case DI_KIND_LAZY:
        add_work(m, t->hooks.expand(t->hooks.context, t, x, DI_NO_TAG), stack);
        break;
    default:
        break;
    }
}

static void begin_closure(di_machine *m) {
    m->epoch++;
    m->num_work = 0;
    m->done_work = 0;
    m->num_found = 0;
    m->found_accept = false;
}

static int by_stack(const void *pa, const void *pb) {
    const di_item *a = pa, *b = pb;
    if (a->stack != b->stack) {
        return a->stack < b->stack ? -1 : 1;
    }
    return (a->term > b->term) - (a->term < b->term);
}

/* Items of one stack become one, by the subset construction. */
static void join_found(di_machine *m) {
    qsort(m->found, m->num_found, sizeof *m->found, by_stack);
    size_t kept = 0;
    for (size_t i = 0; i < m->num_found;) {
        size_t end = i + 1;
        while (end < m->num_found && m->found[end].stack == m->found[i].stack) {
            end++;
        }
        di_item joined = m->found[i];
        if (end > i + 1) {
            size_t mark = m->terms.num_scratch;
            for (size_t k = i; k < end; k++) {
                di_terms_push(&m->terms, m->found[k].term);
            }
            joined.term = di_terms_take_alt(&m->terms, mark);
        }
        m->found[kept++] = joined;
        i = end;
    }
    m->num_found = kept;
}

static uint32_t hash_config(const di_item *items, size_t count, bool accepts) {
    uint32_t hash = accepts;
    for (size_t i = 0; i < count; i++) {
        hash = mix(hash ^ items[i].term, items[i].stack + 0x51ED27u);
    }
    return hash;
}

static bool widen_configs(di_machine *m) {
    if (m->num_configs < m->num_config_buckets) {
        return true;
    }
    uint32_t *buckets = new_buckets(m, &m->config_buckets, &m->num_config_buckets);
    for (uint32_t i = 1; buckets && i < m->num_configs; i++) {
        di_config_node *c = &m->configs[i];
        uint32_t at =
            hash_config(m->items + c->first, c->count, c->accepts) % m->num_config_buckets;
        c->hash_next = buckets[at];
        buckets[at] = i;
    }
    return buckets != NULL;
}

static di_config intern_config(di_machine *m) {
    if (!widen_configs(m)) {
        return DI_CONFIG_DEAD;
    }
    uint32_t bucket = hash_config(m->found, m->num_found, m->found_accept) % m->num_config_buckets;
    for (uint32_t i = m->config_buckets[bucket]; i != UINT32_MAX; i = m->configs[i].hash_next) {
        const di_config_node *c = &m->configs[i];
        if (c->count == m->num_found && c->accepts == m->found_accept &&
            (c->count == 0 ||
             memcmp(m->items + c->first, m->found, c->count * sizeof *m->found) == 0)) {
            return i;
        }
    }
    di_config_node *configs = grow(m, m->configs, m->num_configs, &m->cap_configs, sizeof *configs);
    if (!configs) {
        return DI_CONFIG_DEAD;
    }
    m->configs = configs;
    uint32_t first = (uint32_t)m->num_items;
    for (size_t i = 0; i < m->num_found; i++) {
        di_item *items = grow(m, m->items, m->num_items, &m->cap_items, sizeof *items);
        if (!items) {
            return DI_CONFIG_DEAD;
        }
        m->items = items;
        m->items[m->num_items++] = m->found[i];
    }
    di_config id = (di_config)m->num_configs++;
    m->configs[id] = (di_config_node){.first = first,
                                      .count = (uint32_t)m->num_found,
                                      .accepts = m->found_accept,
                                      .hash_next = m->config_buckets[bucket]};
    m->config_buckets[bucket] = id;
    return id;
}

static di_config end_closure(di_machine *m) {
    for (; m->done_work < m->num_work && m->terms.fault.code == DI_OK; m->done_work++) {
        di_item item = m->work[m->done_work];
        open_term(m, item.term, item.stack);
    }
    if (m->num_found > 1) {
        join_found(m);
        m->crowd_work += m->num_found > DI_MACHINE_CROWD ? (uint32_t)m->num_work : 0;
        if (m->num_found > DI_MACHINE_MAX_ITEMS || m->crowd_work > DI_MACHINE_MAX_CROWD_WORK) {
            too_ambiguous(m);
        }
    }
    if (m->terms.fault.code != DI_OK || (m->num_found == 0 && !m->found_accept)) {
        return DI_CONFIG_DEAD;
    }
    return intern_config(m);
}

bool di_machine_start(di_machine *m, di_error *err) {
    begin_closure(m);
    add_work(m, m->root, DI_STACK_BOTTOM);
    m->start = end_closure(m);
    if (m->terms.fault.code != DI_OK) {
        if (err) {
            *err = m->terms.fault;
        }
        return false;
    }
    return m->start != DI_CONFIG_DEAD ||
           di_fail(err, DI_ERR_ARGUMENT, "the grammar allows no text at all");
}

di_config di_machine_return(di_machine *m, uint32_t stack, uint32_t tag) {
    begin_closure(m);
    pop(m, stack, tag);
    return end_closure(m);
}

static void *alloc_steps(di_machine *m, size_t bytes) {
    void *steps = di_alloc(bytes);
    if (!steps || !di_terms_charge(&m->terms, bytes)) {
        di_free(steps);
        di_terms_fail(&m->terms, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return NULL;
    }
    return steps;
}

/* Remembers a successor. */
static void remember_step(di_machine *m, di_config c, uint8_t byte, di_config to) {
    di_config_node *n = &m->configs[c];
    if (!n->row && !n->few) {
        n->few = alloc_steps(m, sizeof *n->few);
        if (!n->few) {
            return;
        }
        n->few->count = 0;
    }
    if (!n->row && n->few->count < DI_MACHINE_FEW) {
        n->few->bytes[n->few->count] = byte;
        n->few->to[n->few->count++] = to;
        return;
    }
    if (!n->row) {
        uint32_t *row = alloc_steps(m, 256 * sizeof *row);
        if (!row) {
            return;
        }
        memset(row, 0xFF, 256 * sizeof *row);
        for (int i = 0; i < n->few->count; i++) {
            row[n->few->bytes[i]] = n->few->to[i];
        }
        n->row = row;
        drop_few(m, n);
    }
    n->row[byte] = to;
}

di_config di_machine_step_slow(di_machine *m, di_config c, uint8_t byte) {
    if (c == DI_CONFIG_DEAD || m->terms.fault.code != DI_OK) {
        return DI_CONFIG_DEAD;
    }
    begin_closure(m);
    for (uint32_t i = 0; i < m->configs[c].count; i++) {
        di_item item = m->items[m->configs[c].first + i];
        add_work(m, di_term_step(&m->terms, item.term, byte), item.stack);
    }
    di_config to = end_closure(m);
    if (m->terms.fault.code == DI_OK) {
        remember_step(m, c, byte, to);
    }
    return m->terms.fault.code == DI_OK ? to : DI_CONFIG_DEAD;
}
