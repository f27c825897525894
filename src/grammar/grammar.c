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

struct di_grammar {
    di_machine machine;
    di_schema *schema; /* of JSON_SCHEMA */
    pthread_mutex_t lock;
    atomic_int references;
};

struct di_matcher {
    di_grammar *grammar;
    di_config *path; /* path[i]: behind i tokens; path[0] the start */
    size_t length, capacity;
    size_t ended; /* 0, or the number of tokens with the stop token that ended the text */
};

/* Derivatives that compiling may take: about a second. */
enum { MAX_COMPILE_WORK = 3000000 };

bool di_grammar_type_parse(const char *name, di_grammar_type *type) {
    static const char *const names[] = {"json_schema", "regex", "ebnf", "tools"};
    for (int i = 0; i < 4; i++) {
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

static bool compile(di_grammar *g, di_grammar_type type, const char *text, size_t size,
                    const di_grammar_options *o, di_error *err) {
    di_machine *m = &g->machine;
    m->terms.max_work = MAX_COMPILE_WORK;
    switch (type) {
    case DI_GRAMMAR_REGEX:
        if (!di_pattern_compile(&m->terms, text, size, DI_PATTERN_WHOLE, &m->root, err)) {
            return false;
        }
        break;
    case DI_GRAMMAR_EBNF:
        if (!di_ebnf_compile(m, text, size, o->root, err)) {
            return false;
        }
        break;
    default: {
        di_schema_options so = {.any_order = o->any_order,
                                .strict = o->strict,
                                .lenient = o->lenient,
                                .max_whitespace = o->max_whitespace};
        g->schema = type == DI_GRAMMAR_TOOLS
                        ? di_tools_compile(m, text, size, (di_calls_from)o->tools_from, &so, err)
                        : di_schema_compile(m, text, size, &so, err);
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

di_grammar *di_grammar_compile(const di_vocab *vocab, di_grammar_type type, const char *text,
                               size_t size, const di_grammar_options *options, di_error *err) {
    if (size > options->max_text) {
        di_fail(err, DI_ERR_ARGUMENT, "the grammar has %zu bytes, allowed are %zu", size,
                options->max_text);
        return NULL;
    }
    di_grammar *g = di_calloc(1, sizeof *g);
    if (!g || !di_machine_create(&g->machine, vocab, options->max_bytes, err)) {
        if (!g) {
            di_fail(err, DI_ERR_NO_MEMORY, "no memory for a grammar");
        }
        di_free(g);
        return NULL;
    }
    pthread_mutex_init(&g->lock, NULL);
    atomic_init(&g->references, 1);
    if (!compile(g, type, text, size, options, err)) {
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
        di_machine_destroy(&g->machine);
        di_schema_destroy(g->schema);
        pthread_mutex_destroy(&g->lock);
        di_free(g);
    }
}

const char *di_grammar_ignored(const di_grammar *g) {
    return g->schema ? di_schema_ignored(g->schema) : "";
}

di_grammar_size di_grammar_measure(di_grammar *g) {
    pthread_mutex_lock(&g->lock);
    di_grammar_size size = {.bytes = g->machine.terms.bytes + g->machine.mask_bytes,
                            .states = g->machine.num_configs,
                            .terms = g->machine.terms.num_nodes};
    pthread_mutex_unlock(&g->lock);
    return size;
}

/* ---- matchers ---- */

static bool append(di_matcher *m, di_config c, di_error *err) {
    di_config *path = di_grow(m->path, m->length + 1, &m->capacity, sizeof *path);
    if (!path) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a matcher");
    }
    m->path = path;
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
    m->path[0] = g->machine.start;
    m->grammar = di_grammar_retain(g);
    return m;
}

di_matcher *di_matcher_fork(const di_matcher *from, di_error *err) {
    di_matcher *m = di_matcher_create(from->grammar, err);
    for (size_t i = 0; m && i < from->length; i++) {
        if (!append(m, from->path[i + 1], err)) {
            di_matcher_destroy(m);
            return NULL;
        }
    }
    if (m) {
        m->ended = from->ended;
    }
    return m;
}

void di_matcher_destroy(di_matcher *m) {
    if (m) {
        di_grammar_release(m->grammar);
        di_free(m->path);
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

bool di_matcher_may_end(const di_matcher *m) {
    pthread_mutex_lock(&m->grammar->lock);
    bool accepts = m->grammar->machine.configs[current(m)].accepts;
    pthread_mutex_unlock(&m->grammar->lock);
    return accepts;
}

static bool machine_fault(const di_machine *m, di_error *err) {
    return di_fail(err, m->terms.fault.code, "%s", m->terms.fault.message);
}

static bool push_stop(di_matcher *m, di_error *err) {
    if (!m->ended && !di_matcher_may_end(m)) {
        return di_fail(err, DI_ERR_ARGUMENT, "the text may not end here");
    }
    if (!append(m, current(m), err)) {
        return false;
    }
    m->ended = m->ended ? m->ended : m->length;
    return true;
}

bool di_matcher_push(di_matcher *m, int32_t token, di_error *err) {
    di_machine *machine = &m->grammar->machine;
    const di_vocab *v = machine->vocab;
    if (token < 0 || token >= v->num_bits) {
        return di_fail(err, DI_ERR_ARGUMENT, "token %d is outside 0 to %d", token, v->num_bits - 1);
    }
    if (di_vocab_is_stop(v, token)) {
        return push_stop(m, err);
    }
    const di_vocab_token *t = &v->tokens[token];
    pthread_mutex_lock(&m->grammar->lock);
    di_config c = m->ended || t->size == 0 ? DI_CONFIG_DEAD : current(m);
    for (size_t i = 0; i < t->size && c != DI_CONFIG_DEAD; i++) {
        c = di_machine_step(machine, c, (uint8_t)t->bytes[i]);
    }
    bool ok = machine->terms.fault.code == DI_OK || machine_fault(machine, err);
    pthread_mutex_unlock(&m->grammar->lock);
    if (ok && c == DI_CONFIG_DEAD) {
        return di_fail(err, DI_ERR_ARGUMENT, "the grammar does not allow token %d here", token);
    }
    return ok && append(m, c, err);
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

bool di_matcher_mask(di_matcher *m, uint32_t *words, di_error *err) {
    di_machine *machine = &m->grammar->machine;
    const di_vocab *v = machine->vocab;
    if (m->ended) {
        memset(words, 0, (size_t)v->num_words * sizeof *words);
        for (int i = 0; i < v->num_stop; i++) {
            words[v->stop_ids[i] / 32] |= 1u << v->stop_ids[i] % 32;
        }
        return true;
    }
    pthread_mutex_lock(&m->grammar->lock);
    bool ok = di_machine_mask(machine, current(m), words) || machine_fault(machine, err);
    pthread_mutex_unlock(&m->grammar->lock);
    uint32_t any = 0;
    for (int32_t w = 0; ok && w < v->num_words && !any; w++) {
        any |= words[w];
    }
    return ok && (any || di_fail(err, DI_ERR_UNSUPPORTED,
                                 "no token of the vocabulary continues this text"));
}

bool di_matcher_forced(di_matcher *m, size_t limit, di_buffer *out, di_error *err) {
    di_machine *machine = &m->grammar->machine;
    bool ok = true;
    pthread_mutex_lock(&m->grammar->lock);
    di_config c = m->ended ? DI_CONFIG_DEAD : current(m);
    while (ok && limit-- > 0 && c != DI_CONFIG_DEAD && !machine->configs[c].accepts) {
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
            ok = machine_fault(machine, err);
        } else if (ways != 1) {
            break;
        } else {
            ok = di_buffer_append(out, &byte, 1, err);
            c = to;
        }
    }
    pthread_mutex_unlock(&m->grammar->lock);
    return ok;
}
