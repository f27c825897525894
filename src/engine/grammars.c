/* The cache of grammars; see grammars.h. One lock for all of it: nothing is done under it but
 * looking up and linking. */
#include "engine/grammars.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"
#include "engine/vocabulary.h"

enum { NUM_THREADS = 2 };

struct di_compiled {
    di_grammars *owner;
    uint64_t hash;
    di_grammar_type type;
    di_grammar_options options;
    size_t size;

    /* under the owner's lock */
    int holders;
    bool done;
    di_grammar *grammar; /* NULL when done: it failed */
    di_error error;
    size_t bytes;               /* as they were last counted */
    di_compiled *newer, *older; /* by last use */
    di_compiled *next;          /* to be compiled */

    char text[];
};

struct di_grammars {
    di_grammars_options o;
    pthread_mutex_t lock;
    pthread_cond_t asked, done;
    pthread_t threads[NUM_THREADS];
    int num_threads;
    bool closing, sorting;
    di_vocab *vocab;
    di_error vocab_error;
    di_compiled *newest, *oldest;
    di_compiled *first, **end; /* to be compiled */
    di_grammars_stats stats;
};

/* ---- the list by last use ---------------------------------------------------------------------*/

static void unlink_entry(di_grammars *g, di_compiled *c) {
    *(c->newer ? &c->newer->older : &g->newest) = c->older;
    *(c->older ? &c->older->newer : &g->oldest) = c->newer;
    c->newer = c->older = NULL;
}

static void link_newest(di_grammars *g, di_compiled *c) {
    c->older = g->newest;
    c->newer = NULL;
    *(g->newest ? &g->newest->newer : &g->oldest) = c;
    g->newest = c;
}

/* Grammars grow with use, so they are counted anew when somebody has let go of them. */
static void count_bytes(di_grammars *g, di_compiled *c) {
    size_t bytes = sizeof *c + c->size;
    if (c->grammar) {
        bytes += di_grammar_measure(c->grammar).bytes;
    }
    g->stats.bytes += bytes - c->bytes;
    c->bytes = bytes;
}

/* Takes out what nobody holds until the rest is within the bound; the caller frees the list. */
static di_compiled *evict(di_grammars *g) {
    di_compiled *out = NULL;
    for (di_compiled *c = g->oldest; c && g->stats.bytes > g->o.max_bytes;) {
        di_compiled *newer = c->newer;
        if (c->holders == 0) {
            unlink_entry(g, c);
            g->stats.bytes -= c->bytes;
            g->stats.count--;
            c->next = out;
            out = c;
        }
        c = newer;
    }
    return out;
}

static void free_entries(di_compiled *list) {
    while (list) {
        di_compiled *next = list->next;
        di_grammar_release(list->grammar);
        di_free(list);
        list = next;
    }
}

/* ---- compiling --------------------------------------------------------------------------------*/

/* With the lock held, which it lets go: sorting the tokens takes a good part of a second. */
static void make_vocab(di_grammars *g) {
    while (g->sorting) {
        pthread_cond_wait(&g->done, &g->lock);
    }
    if (g->vocab || g->vocab_error.code != DI_OK) {
        return;
    }
    g->sorting = true;
    pthread_mutex_unlock(&g->lock);
    di_error err = {0};
    di_vocab *v = di_vocabulary_create(g->o.tokenizer, g->o.num_bits, g->o.stop, &err);
    pthread_mutex_lock(&g->lock);
    g->vocab = v;
    g->vocab_error = err;
    g->sorting = false;
    pthread_cond_broadcast(&g->done);
}

static void compile(di_grammars *g, di_compiled *c) {
    make_vocab(g);
    const di_vocab *vocab = g->vocab;
    di_error err = g->vocab_error;
    pthread_mutex_unlock(&g->lock);
    double begin = di_now();
    di_grammar *grammar =
        vocab ? di_grammar_compile(vocab, c->type, c->text, c->size, &c->options, &err) : NULL;
    double seconds = di_now() - begin;
    pthread_mutex_lock(&g->lock);
    c->grammar = grammar;
    c->error = err;
    c->done = true;
    count_bytes(g, c);
    g->stats.compiled += grammar != NULL;
    g->stats.failed += grammar == NULL;
    g->stats.compile_seconds += seconds;
}

static void *run(void *arg) {
    di_grammars *g = arg;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        while (!g->first && !g->closing) {
            pthread_cond_wait(&g->asked, &g->lock);
        }
        di_compiled *c = g->first;
        if (!c || g->closing) {
            break;
        }
        g->first = c->next;
        g->end = g->first ? g->end : &g->first;
        compile(g, c);
        c->holders--;
        di_compiled *out = evict(g);
        pthread_cond_broadcast(&g->done);
        pthread_mutex_unlock(&g->lock);
        free_entries(out);
        g->o.ready(g->o.user);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ---- asking -----------------------------------------------------------------------------------*/

static uint64_t hash_of(di_grammar_type type, const char *text, size_t size) {
    uint64_t h = 0xCBF29CE484222325u ^ (uint64_t)type;
    for (size_t i = 0; i < size; i++) {
        h = (h ^ (unsigned char)text[i]) * 0x100000001B3u;
    }
    return h;
}

static bool same_options(const di_grammar_options *a, const di_grammar_options *b) {
    return a->any_order == b->any_order && a->strict == b->strict && a->lenient == b->lenient &&
           a->max_whitespace == b->max_whitespace && a->tools_from == b->tools_from;
}

static di_compiled *find(di_grammars *g, uint64_t hash, di_grammar_type type, const char *text,
                         size_t size, const di_grammar_options *options) {
    for (di_compiled *c = g->newest; c; c = c->older) {
        bool lost = c->done && !c->grammar && c->error.code == DI_ERR_NO_MEMORY; /* try again */
        if (c->hash == hash && c->type == type && c->size == size && !lost &&
            same_options(&c->options, options) && memcmp(c->text, text, size) == 0) {
            return c;
        }
    }
    return NULL;
}

/* Threads start with the first grammars; one is enough to go on with. */
static bool start_threads(di_grammars *g, di_error *err) {
    while (g->num_threads < NUM_THREADS) {
        if (!di_thread_start(&g->threads[g->num_threads], run, g, "a thread that compiles grammars",
                             err)) {
            return g->num_threads > 0;
        }
        g->num_threads++;
    }
    return true;
}

static di_compiled *make_entry(di_grammars *g, uint64_t hash, di_grammar_type type,
                               const char *text, size_t size, const di_grammar_options *options) {
    di_compiled *c = di_alloc(sizeof *c + size);
    if (c) {
        *c = (di_compiled){.owner = g,
                           .hash = hash,
                           .type = type,
                           .options = *options,
                           .size = size,
                           .holders = 1 /* the thread that compiles it */};
        memcpy(c->text, text, size);
        count_bytes(g, c);
        g->stats.count++;
        link_newest(g, c);
        *g->end = c;
        g->end = &c->next;
        pthread_cond_signal(&g->asked);
    }
    return c;
}

di_compiled *di_grammars_get(di_grammars *g, di_grammar_type type, const char *text, size_t size,
                             const di_grammar_options *options, di_error *err) {
    if (size > options->max_text) {
        di_fail(err, DI_ERR_ARGUMENT, "it has %zu bytes, allowed are %zu", size, options->max_text);
        return NULL;
    }
    uint64_t hash = hash_of(type, text, size);
    pthread_mutex_lock(&g->lock);
    di_compiled *c = NULL;
    if (start_threads(g, err)) {
        c = find(g, hash, type, text, size, options);
        if (c) {
            g->stats.hits++;
            unlink_entry(g, c);
            link_newest(g, c);
        } else if (!(c = make_entry(g, hash, type, text, size, options))) {
            di_fail(err, DI_ERR_NO_MEMORY, "no memory for a grammar of %zu bytes", size);
        }
        if (c) {
            c->holders++;
        }
    }
    pthread_mutex_unlock(&g->lock);
    return c;
}

void di_compiled_release(di_compiled *c) {
    if (!c) {
        return;
    }
    di_grammars *g = c->owner;
    pthread_mutex_lock(&g->lock);
    c->holders--;
    if (c->done) {
        count_bytes(g, c);
    }
    di_compiled *out = evict(g);
    pthread_mutex_unlock(&g->lock);
    free_entries(out);
}

bool di_compiled_wait(di_compiled *c, double seconds) {
    di_grammars *g = c->owner;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long nanos = until.tv_nsec + (long)(seconds * 1e9);
    until.tv_sec += nanos / 1000000000;
    until.tv_nsec = nanos % 1000000000;
    pthread_mutex_lock(&g->lock);
    while (!c->done && seconds > 0 &&
           pthread_cond_timedwait(&g->done, &g->lock, &until) != ETIMEDOUT) {
    }
    bool done = c->done;
    pthread_mutex_unlock(&g->lock);
    return done;
}

di_grammar *di_compiled_grammar(const di_compiled *c, di_error *err) {
    if (!c->grammar && err) {
        *err = c->error;
    }
    return c->grammar;
}

/* ---- the whole --------------------------------------------------------------------------------*/

di_grammars *di_grammars_create(const di_grammars_options *o, di_error *err) {
    di_grammars *g = di_calloc(1, sizeof *g);
    if (!g) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a cache of grammars");
        return NULL;
    }
    g->o = *o;
    g->end = &g->first;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->asked, NULL);
    pthread_cond_init(&g->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return g;
}

void di_grammars_destroy(di_grammars *g) {
    if (!g) {
        return;
    }
    pthread_mutex_lock(&g->lock);
    g->closing = true;
    pthread_cond_broadcast(&g->asked);
    pthread_mutex_unlock(&g->lock);
    for (int i = 0; i < g->num_threads; i++) {
        pthread_join(g->threads[i], NULL);
    }
    for (di_compiled *c = g->newest; c; c = c->older) {
        c->next = c->older; /* all of them as the list that free_entries takes */
    }
    free_entries(g->newest);
    di_vocab_destroy(g->vocab);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->asked);
    pthread_cond_destroy(&g->done);
    di_free(g);
}

di_grammars_stats di_grammars_measure(di_grammars *g) {
    pthread_mutex_lock(&g->lock);
    di_grammars_stats s = g->stats;
    pthread_mutex_unlock(&g->lock);
    return s;
}

const di_vocab *di_grammars_vocab(const di_grammars *g) {
    return g->vocab;
}
