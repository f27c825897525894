/* Grammars and matchers; see grammar.h. Everything that grows lies in the grammar and is guarded by
 * its lock; a matcher is the list of configurations behind each of its tokens. */
#include "grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/ebnf.h"
#include "grammar/machine.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"

/* The machine grows with use. When it has grown to half its bound, what can be made again is
 * dropped; when it has grown beyond it all the same, or met a text that it cannot follow, it is
 * made anew from the source, and every matcher follows its tokens again when it is used next: so
 * what one text does to a grammar does not last. */
struct di_grammar {
    di_machine machine;
    di_schema *schema; /* of JSON_SCHEMA, TOOLS and TOOLS_OR_CONTENT */
    pthread_mutex_t lock;
    atomic_int references;
    uint64_t generation; /* of the machine */
    size_t trim_at;      /* bytes */
    const di_vocab *vocab;
    di_grammar_type type;
    di_grammar_options options;
    char *root; /* options.root */
    size_t size;
    char text[];
};

struct di_matcher {
    di_grammar *grammar;
    uint64_t generation; /* of the machine that `path` belongs to */
    di_config *path;     /* path[i]: behind i tokens; path[0] the start */
    int32_t *tokens;     /* tokens[i]: between path[i] and path[i + 1] */
    size_t length, capacity, token_capacity;
    size_t ended; /* 0, or the number of tokens with the stop token that ended the text */
};

/* Derivatives that compiling may take: about a second. */
enum { MAX_COMPILE_WORK = 3000000 };
/* A machine that fails with less than this share of its memory fails for the text's own sake, and
 * not for what others did. */
enum { FRESH_SHARE = 16 };

bool di_grammar_type_parse(const char *name, di_grammar_type *type) {
    static const char *const names[] = {"json_schema", "regex", "ebnf",
                                        "tools",       "gbnf",  "tools_or_content"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            *type = (di_grammar_type)i;
            return true;
        }
    }
    return false;
}

void di_grammar_options_default(di_grammar_options *o) {
    *o = (di_grammar_options){
        .max_whitespace = 32, .root = "root", .max_text = 16u << 20, .max_bytes = 192u << 20};
}

static bool compile(di_grammar *g, di_error *err) {
    di_machine *m = &g->machine;
    const di_grammar_options *o = &g->options;
    m->terms.max_work = MAX_COMPILE_WORK;
    switch (g->type) {
    case DI_GRAMMAR_REGEX:
        if (!di_pattern_compile(&m->terms, g->text, g->size, DI_PATTERN_WHOLE, &m->root, err)) {
            return false;
        }
        break;
    case DI_GRAMMAR_EBNF:
    case DI_GRAMMAR_GBNF:
        if (!di_ebnf_compile(m, g->text, g->size, o->root, g->type == DI_GRAMMAR_GBNF, err)) {
            return false;
        }
        break;
    default: {
        di_schema_options so = {.any_order = o->any_order,
                                .strict = o->strict,
                                .lenient = o->lenient,
                                .max_whitespace = o->max_whitespace};
        g->schema =
            g->type == DI_GRAMMAR_JSON_SCHEMA
                ? di_schema_compile(m, g->text, g->size, &so, err)
                : di_tools_compile(m, g->text, g->size, g->type == DI_GRAMMAR_TOOLS_OR_CONTENT,
                                   (di_calls_from)o->tools_from, &so, err);
        if (!g->schema) {
            return false;
        }
    }
    }
    if (!di_machine_start(m, err)) {
        return false;
    }
    m->terms.max_work = UINT64_MAX;
    return true;
}

/* What compiles within a second. */
static size_t most_text(di_grammar_type type, const di_grammar_options *options) {
    static const size_t most[] = {
        [DI_GRAMMAR_JSON_SCHEMA] = 16u << 20, [DI_GRAMMAR_REGEX] = 1u << 20,
        [DI_GRAMMAR_EBNF] = 4u << 20,         [DI_GRAMMAR_GBNF] = 4u << 20,
        [DI_GRAMMAR_TOOLS] = 16u << 20,       [DI_GRAMMAR_TOOLS_OR_CONTENT] = 16u << 20};
    return most[type] < options->max_text ? most[type] : options->max_text;
}

static void drop_machine(di_grammar *g) {
    di_machine_destroy(&g->machine);
    di_schema_destroy(g->schema);
    g->schema = NULL;
}

static bool make_machine(di_grammar *g, di_error *err) {
    g->generation++;
    g->trim_at = g->options.max_bytes / 2;
    if (!di_machine_create(&g->machine, g->vocab, g->options.max_bytes, err)) {
        return false;
    }
    if (!compile(g, err)) {
        drop_machine(g);
        return false;
    }
    return true;
}

di_grammar *di_grammar_compile(const di_vocab *vocab, di_grammar_type type, const char *text,
                               size_t size, const di_grammar_options *options, di_error *err) {
    size_t most = most_text(type, options);
    if (size > most) {
        di_fail(err, DI_ERR_ARGUMENT, "the grammar has %zu bytes, allowed are %zu", size, most);
        return NULL;
    }
    di_grammar *g = di_calloc(1, sizeof *g + size + 1);
    size_t root_size = strlen(options->root) + 1;
    char *root = g ? di_alloc(root_size) : NULL;
    if (!root) {
        di_free(g);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return NULL;
    }
    memcpy(root, options->root, root_size);
    memcpy(g->text, text, size);
    g->size = size;
    g->vocab = vocab;
    g->type = type;
    g->options = *options;
    g->options.root = g->root = root;
    pthread_mutex_init(&g->lock, NULL);
    atomic_init(&g->references, 1);
    if (!make_machine(g, err)) {
        di_grammar_release(g);
        return NULL;
    }
    return g;
}

di_grammar *di_grammar_retain(di_grammar *g) {
    atomic_fetch_add(&g->references, 1);
    return g;
}

void di_grammar_release(di_grammar *g) {
    if (g && atomic_fetch_sub(&g->references, 1) == 1) {
        drop_machine(g);
        pthread_mutex_destroy(&g->lock);
        di_free(g->root);
        di_free(g);
    }
}

const char *di_grammar_ignored(const di_grammar *g) {
    return g->schema ? di_schema_ignored(g->schema) : "";
}

di_grammar_size di_grammar_measure(di_grammar *g) {
    pthread_mutex_lock(&g->lock);
    di_grammar_size size = {.bytes = g->machine.terms.bytes + g->machine.mask_bytes +
                                     g->machine.set_bytes,
                            .states = g->machine.num_configs,
                            .terms = g->machine.terms.num_nodes};
    pthread_mutex_unlock(&g->lock);
    return size;
}

/* ---- matchers ---- */

static bool append(di_matcher *m, int32_t token, di_config c, di_error *err) {
    di_config *path = di_grow(m->path, m->length + 1, &m->capacity, sizeof *path);
    m->path = path ? path : m->path;
    int32_t *tokens =
        path ? di_grow(m->tokens, m->length, &m->token_capacity, sizeof *tokens) : NULL;
    if (!tokens) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a matcher");
    }
    m->tokens = tokens;
    m->tokens[m->length] = token;
    m->path[++m->length] = c;
    return true;
}

di_matcher *di_matcher_create(di_grammar *g, di_error *err) {
    di_matcher *m = di_calloc(1, sizeof *m);
    if (m) {
        m->path = di_grow(NULL, 0, &m->capacity, sizeof *m->path);
    }
    if (!m || !m->path) {
        di_free(m);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a matcher");
        return NULL;
    }
    m->grammar = di_grammar_retain(g); /* of generation 0: it finds its start when it is used */
    return m;
}

di_matcher *di_matcher_fork(const di_matcher *from, di_error *err) {
    di_matcher *m = di_matcher_create(from->grammar, err);
    for (size_t i = 0; m && i < from->length; i++) {
        if (!append(m, from->tokens[i], from->path[i + 1], err)) {
            di_matcher_destroy(m);
            return NULL;
        }
    }
    if (m) {
        m->path[0] = from->path[0];
        m->generation = from->generation;
        m->ended = from->ended;
    }
    return m;
}

void di_matcher_destroy(di_matcher *m) {
    if (m) {
        di_grammar_release(m->grammar);
        di_free(m->path);
        di_free(m->tokens);
        di_free(m);
    }
}

size_t di_matcher_length(const di_matcher *m) {
    return m->length;
}

bool di_matcher_ended(const di_matcher *m) {
    return m->ended > 0;
}

static di_config current(const di_matcher *m) {
    return m->path[m->length];
}

/* ---- following tokens, with the grammar's lock held ---- */

static bool machine_fault(const di_machine *m, di_error *err) {
    return di_fail(err, m->terms.fault.code, "%s", m->terms.fault.message);
}

static di_config step_token(di_machine *machine, di_config c, int32_t token) {
    const di_vocab_token *t = &machine->vocab->tokens[token];
    machine->crowd_work = 0;
    c = t->size == 0 ? DI_CONFIG_DEAD : c;
    for (size_t i = 0; i < t->size && c != DI_CONFIG_DEAD; i++) {
        c = di_machine_step(machine, c, (uint8_t)t->bytes[i]);
    }
    return c;
}

/* Makes the machine anew if it has failed, and follows the matcher's tokens in a machine that it
 * has not met yet. */
static bool catch_up(di_matcher *m, di_error *err) {
    di_grammar *g = m->grammar;
    if (g->machine.terms.fault.code != DI_OK || !g->machine.configs) {
        drop_machine(g);
        if (!make_machine(g, err)) {
            return false;
        }
    }
    if (g->machine.terms.bytes > g->trim_at) {
        di_machine_trim(&g->machine);
        g->trim_at = (g->machine.terms.bytes + g->options.max_bytes) / 2;
    }
    if (m->generation == g->generation) {
        return true;
    }
    m->path[0] = g->machine.start;
    for (size_t i = 0; i < m->length; i++) {
        bool stop = m->ended && i + 1 >= m->ended;
        m->path[i + 1] = stop ? m->path[i] : step_token(&g->machine, m->path[i], m->tokens[i]);
        if (g->machine.terms.fault.code != DI_OK) {
            return machine_fault(&g->machine, err);
        }
    }
    m->generation = g->generation;
    return true;
}

/* What is done to a matcher at its place; in and out by `data`. False after a fault. */
typedef bool (*action)(di_matcher *m, void *data, di_error *err);

/* Does it; once more in a fresh machine if this one has become too large. */
static bool act(di_matcher *m, action f, void *data, di_error *err) {
    di_grammar *g = m->grammar;
    pthread_mutex_lock(&g->lock);
    bool grown = g->machine.configs && g->machine.terms.bytes > g->options.max_bytes / FRESH_SHARE;
    bool ok = catch_up(m, err) && f(m, data, err);
    if (!ok && grown && g->machine.terms.fault.code != DI_OK) {
        ok = catch_up(m, err) && f(m, data, err);
    }
    pthread_mutex_unlock(&g->lock);
    return ok;
}

static bool look_at_end(di_matcher *m, void *data, di_error *err) {
    (void)err;
    *(bool *)data = m->grammar->machine.configs[current(m)].accepts;
    return true;
}

bool di_matcher_may_end(di_matcher *m) {
    bool accepts = false;
    return act(m, look_at_end, &accepts, NULL) && accepts;
}

static bool push_stop(di_matcher *m, int32_t token, di_error *err) {
    if (!m->ended && !di_matcher_may_end(m)) {
        return di_fail(err, DI_ERR_ARGUMENT, "the text may not end here");
    }
    if (!append(m, token, current(m), err)) {
        return false;
    }
    m->ended = m->ended ? m->ended : m->length;
    return true;
}

typedef struct pushing {
    int32_t token;
    di_config to;
} pushing;

static bool step(di_matcher *m, void *data, di_error *err) {
    pushing *p = data;
    di_machine *machine = &m->grammar->machine;
    p->to = step_token(machine, current(m), p->token);
    return machine->terms.fault.code == DI_OK || machine_fault(machine, err);
}

bool di_matcher_push(di_matcher *m, int32_t token, di_error *err) {
    const di_vocab *v = m->grammar->vocab;
    if (token < 0 || token >= v->num_bits) {
        return di_fail(err, DI_ERR_ARGUMENT, "token %d is outside 0 to %d", token, v->num_bits - 1);
    }
    if (di_vocab_is_stop(v, token)) {
        return push_stop(m, token, err);
    }
    pushing p = {.token = token, .to = DI_CONFIG_DEAD};
    if (!m->ended && !act(m, step, &p, err)) {
        return false;
    }
    if (p.to == DI_CONFIG_DEAD) {
        return di_fail(err, DI_ERR_ARGUMENT, "the grammar does not allow token %d here", token);
    }
    return append(m, token, p.to, err);
}

bool di_matcher_rollback(di_matcher *m, size_t k) {
    if (k > m->length) {
        return false;
    }
    m->length -= k;
    if (m->ended > m->length) {
        m->ended = 0;
    }
    return true;
}

static bool make_mask(di_matcher *m, void *data, di_error *err) {
    di_machine *machine = &m->grammar->machine;
    machine->crowd_work = 0;
    return di_machine_mask(machine, current(m), data) || machine_fault(machine, err);
}

bool di_matcher_mask(di_matcher *m, uint32_t *words, di_error *err) {
    const di_vocab *v = m->grammar->vocab;
    if (m->ended) {
        memset(words, 0, (size_t)v->num_words * sizeof *words);
        for (int i = 0; i < v->num_stop; i++) {
            words[v->stop_ids[i] / 32] |= 1u << v->stop_ids[i] % 32;
        }
        return true;
    }
    if (!act(m, make_mask, words, err)) {
        return false;
    }
    for (int32_t w = 0; w < v->num_words; w++) {
        if (words[w]) {
            return true;
        }
    }
    return di_fail(err, DI_ERR_UNSUPPORTED, "no token of the vocabulary continues this text");
}

typedef struct forcing {
    size_t limit;
    di_buffer *out;
} forcing;

static bool force(di_matcher *m, void *data, di_error *err) {
    const forcing *f = data;
    di_machine *machine = &m->grammar->machine;
    di_config c = m->ended ? DI_CONFIG_DEAD : current(m);
    machine->crowd_work = 0;
    f->out->size = 0; /* it may be the second attempt */
    while (f->out->size < f->limit && c != DI_CONFIG_DEAD && !machine->configs[c].accepts) {
        di_config to = DI_CONFIG_DEAD;
        char byte = 0;
        int ways = 0;
        for (unsigned b = 0; b < 256 && ways < 2; b++) {
            di_config next = di_machine_step(machine, c, (uint8_t)b);
            if (next != DI_CONFIG_DEAD) {
                to = next;
                byte = (char)b;
                ways++;
            }
        }
        if (machine->terms.fault.code != DI_OK) {
            return machine_fault(machine, err);
        }
        if (ways != 1) {
            break;
        }
        if (!di_buffer_append(f->out, &byte, 1, err)) {
            return false;
        }
        c = to;
    }
    return true;
}

bool di_matcher_forced(di_matcher *m, size_t limit, di_buffer *out, di_error *err) {
    forcing f = {limit, out};
    return act(m, force, &f, err);
}
