/* Any bytes as the body of a request to any endpoint: a reply in JSON with a status of 200 or 4xx,
 * or a generation, whose answer is then JSON or well-formed events too. The first byte picks the
 * endpoint.
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "server/exchange.h"
#include "server/internal.h"
#include "support/scripted.h"
#include "text/recipe/value.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const paths[] = {
    "/v1/chat/completions",      "/v1/completions", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens", "/tokenize",       "/detokenize"};
enum { NUM_PATHS = sizeof paths / sizeof *paths };

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static di_server *start(void) {
    static const char *const models[] = {"DeepSeek-V4.1-Flash"};
    static di_answerer answerer;
    di_scripted_options script = {0};
    di_server_options o;
    di_error err = {0};
    di_server_options_init(&o);
    o.port = 0;
    o.models = models;
    o.num_models = 1;
    o.max_connections = 16;
    o.access_log = NULL;
    di_scripted *engine = di_scripted_open("models/demo", &script, &err);
    require(engine != NULL);
    answerer = di_scripted_answerer(engine);
    di_server *s = di_server_start(&o, &answerer, &err);
    require(s != NULL);
    return s;
}

static const char *header(void *context, const char *name) {
    (void)context;
    return strcmp(name, "Content-Type") == 0 ? "application/json" : NULL;
}

static void check_json(const char *text, size_t size) {
    di_pool pool = {0};
    di_value value;
    require(di_value_parse(&pool, text, size, DI_VALUE_MAX_DEPTH + 16, &value, NULL));
    di_pool_free(&pool);
}

/* Each event is a line of JSON, or [DONE]. */
static void check_events(char *text, size_t size) {
    require(di_utf8_valid(text, size, NULL));
    for (char *at = text, *end; (end = memmem(at, size - (size_t)(at - text), "\n\n", 2));
         at = end + 2) {
        char *data = memmem(at, (size_t)(end - at), "data: ", 6);
        require(data != NULL || *at == ':');
        if (data && strncmp(data, "data: [DONE]", 12) != 0) {
            require(!memchr(data, '\n', (size_t)(end - data)));
            check_json(data + 6, (size_t)(end - data) - 6);
        }
    }
}

/* Waits for the answer to end, as a connection would. */
static void finish(di_exchange *x) {
    di_generation *g = x->generation;
    for (bool over = false; !over;) {
        pthread_mutex_lock(&g->lock);
        over = g->over || g->gone;
        pthread_mutex_unlock(&g->lock);
    }
    if (g->stream && !g->failed) {
        check_events(g->bytes.bytes.data, g->bytes.bytes.size);
    } else {
        di_exchange_finish(x);
    }
}

/* Orders that take their time would only slow it down. */
static bool waits(const uint8_t *data, size_t size) {
    return memmem(data, size, "@hold", 5) || memmem(data, size, "@delay", 6) ||
           memmem(data, size, "\\u", 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static di_server *s;
    di_exchange x = {.header = header};
    s = s ? s : start();
    if (size == 0 || waits(data, size)) {
        return 0;
    }
    require(di_exchange_begin(&x, s, "POST", paths[data[0] % NUM_PATHS]));
    if (di_exchange_body(&x, (const char *)data + 1, size - 1)) {
        di_exchange_run(&x);
    }
    if (x.generation) {
        finish(&x);
    }
    if (x.reply.status) {
        check_json(x.reply.body.data, x.reply.body.size);
        require(x.reply.status == 200 || x.reply.status / 100 == 4 ||
                memmem(x.reply.body.data, x.reply.body.size, "the script says", 15));
    } else {
        require(x.generation != NULL);
    }
    di_exchange_free(&x);
    return 0;
}
