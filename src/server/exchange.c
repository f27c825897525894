/* Exchanges: see exchange.h. The table of routes is here; who may use them is decided before the
 * body is read. */
#include "server/exchange.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "base/clock.h"
#include "server/fields.h"
#include "server/internal.h"
#include "server/readers.h"

enum {
    ENGINE = DI_ROUTE_KEY | DI_ROUTE_QUOTA | DI_ROUTE_ENGINE,
    RETRY_SECONDS = 5, /* what a client is told when the server drains or is full */
};

static const di_route routes[] = {
    {"POST", "/v1/chat/completions", DI_ENDPOINT_CHAT_COMPLETIONS, DI_SHAPE_OPENAI, ENGINE,
     di_serve_chat},
    {"POST", "/chat/completions", DI_ENDPOINT_CHAT_COMPLETIONS, DI_SHAPE_OPENAI, ENGINE,
     di_serve_chat},
    {"POST", "/v1/completions", DI_ENDPOINT_COMPLETIONS, DI_SHAPE_OPENAI, ENGINE,
     di_serve_completions},
    {"POST", "/v1/responses", DI_ENDPOINT_RESPONSES, DI_SHAPE_OPENAI, ENGINE, di_serve_responses},
    {"GET", "/v1/responses/*", DI_ENDPOINT_RESPONSES, DI_SHAPE_OPENAI, DI_ROUTE_KEY,
     di_serve_stored},
    {"DELETE", "/v1/responses/*", DI_ENDPOINT_RESPONSES, DI_SHAPE_OPENAI, DI_ROUTE_KEY,
     di_serve_stored_drop},
    {"GET", "/v1/responses/*/input_items", DI_ENDPOINT_RESPONSES, DI_SHAPE_OPENAI,
     DI_ROUTE_KEY | DI_ROUTE_LONG, di_serve_stored_items},
    {"POST", "/v1/responses/*/cancel", DI_ENDPOINT_RESPONSES, DI_SHAPE_OPENAI,
     DI_ROUTE_KEY | DI_ROUTE_BARE, di_serve_stored_cancel},
    {"POST", "/v1/messages", DI_ENDPOINT_MESSAGES, DI_SHAPE_ANTHROPIC, ENGINE, di_serve_messages},
    {"POST", "/v1/messages/count_tokens", DI_ENDPOINT_COUNT_TOKENS, DI_SHAPE_ANTHROPIC,
     DI_ROUTE_KEY | DI_ROUTE_QUOTA, di_serve_count_tokens},
    {"GET", "/v1/models", DI_ENDPOINT_MODELS, DI_SHAPE_OPENAI, DI_ROUTE_KEY, di_serve_models},
    {"GET", "/v1/models/**", DI_ENDPOINT_MODELS, DI_SHAPE_OPENAI, DI_ROUTE_KEY, di_serve_model},
    {"POST", "/tokenize", DI_ENDPOINT_TOKENIZE, DI_SHAPE_OPENAI, DI_ROUTE_KEY | DI_ROUTE_QUOTA,
     di_serve_tokenize},
    {"POST", "/detokenize", DI_ENDPOINT_DETOKENIZE, DI_SHAPE_OPENAI, DI_ROUTE_KEY | DI_ROUTE_QUOTA,
     di_serve_detokenize},
    {"GET", "/health", DI_ENDPOINT_HEALTH, DI_SHAPE_OPENAI, 0, di_serve_health},
    {"GET", "/health/live", DI_ENDPOINT_HEALTH, DI_SHAPE_OPENAI, 0, di_serve_health},
    {"GET", "/health/ready", DI_ENDPOINT_HEALTH, DI_SHAPE_OPENAI, 0, di_serve_ready},
    {"GET", "/ready", DI_ENDPOINT_HEALTH, DI_SHAPE_OPENAI, 0, di_serve_ready},
    {"GET", "/ping", DI_ENDPOINT_HEALTH, DI_SHAPE_OPENAI, 0, di_serve_ready},
    {"GET", "/version", DI_ENDPOINT_OTHER, DI_SHAPE_OPENAI, 0, di_serve_version},
    {"GET", "/metrics", DI_ENDPOINT_METRICS, DI_SHAPE_OPENAI, DI_ROUTE_KEY | DI_ROUTE_ADMIN,
     di_serve_metrics},
    {"GET", "/", DI_ENDPOINT_PAGE, DI_SHAPE_OPENAI, 0, di_serve_page},
    {"GET", "/web/**", DI_ENDPOINT_PAGE, DI_SHAPE_OPENAI, 0, di_serve_page},
};

enum { NUM_ROUTES = sizeof routes / sizeof *routes };

void di_random_id(const char *prefix, int digits, char *out, size_t size) {
    unsigned char random[32] = {0};
    size_t used = (size_t)snprintf(out, size, "%s", prefix);
    if (getrandom(random, sizeof random, 0) < 0) {
        random[0] = 0; /* an id that is not random still names the request */
    }
    for (int i = 0; i < digits && used + 1 < size; i++) {
        out[used++] = "0123456789abcdef"[random[i / 2] >> (i % 2 * 4) & 15];
    }
    out[used] = 0;
}

/* ---- errors -----------------------------------------------------------------------------------*/

static void tell(di_exchange *x, int status, const char *code, const char *text,
                 int64_t retry_after) {
    char param[128], message[DI_ERROR_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", text);
    di_text_repair(message);
    di_api_error error = {
        .status = status,
        .code = code,
        .param =
            status == 400 || status == 404 ? di_fields_param(message, param, sizeof param) : NULL,
        .message = message,
        .retry_after = retry_after,
    };
    x->reply.num_headers = x->kept_headers;
    di_reply_error(&x->reply, x->shape, &error, x->request_id);
}

void di_exchange_fail(di_exchange *x, const di_error *err) {
    int status = x->status ? x->status : di_status_of(err);
    if (status == 503) {
        di_metrics_event(x->server->metrics, DI_EVENT_QUEUE_FULL);
    }
    int64_t wait = x->retry_after ? x->retry_after : RETRY_SECONDS;
    tell(x, status, x->code, err->message, status == 503 || status == 429 ? wait : 0);
}

void di_exchange_error(di_exchange *x, int status, const char *code, const char *format, ...) {
    char message[DI_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tell(x, status, code, message, status == 503 ? RETRY_SECONDS : 0);
}

/* ---- the header -------------------------------------------------------------------------------*/

static const char *header(const di_exchange *x, const char *name) {
    return x->header ? x->header(x->context, name) : NULL;
}

static bool printable(const char *text) {
    for (; *text; text++) {
        if (*text < ' ' || *text > '~') {
            return false;
        }
    }
    return true;
}

/* The trace that the request is part of (W3C Trace Context). What vendors add is worth nothing
 * without the trace itself. */
static void take_trace(di_exchange *x) {
    const char *trace = header(x, "traceparent"), *state = header(x, "tracestate");
    if (!trace || strlen(trace) != 55 || strspn(trace, "0123456789abcdef-") != 55) {
        return;
    }
    memcpy(x->traceparent, trace, 56);
    if (state && strlen(state) < sizeof x->tracestate && printable(state)) {
        memcpy(x->tracestate, state, strlen(state) + 1);
    }
}

/* A client's id is taken if it is short and harmless, for it goes into logs. */
static void name_request(di_exchange *x) {
    const char *given = header(x, "X-Request-Id");
    size_t length = given ? strlen(given) : 0;
    bool fine = length > 0 && length < sizeof x->request_id;
    for (size_t i = 0; fine && i < length; i++) {
        fine = isalnum((unsigned char)given[i]) || strchr("-_.:/+=", given[i]);
    }
    if (fine) {
        memcpy(x->request_id, given, length + 1);
    } else {
        di_random_id("req_", 24, x->request_id, sizeof x->request_id);
    }
    take_trace(x);
}

static bool path_matches(const char *pattern, const char *path, di_str *rest) {
    size_t n = strcspn(pattern, "*");
    if (strncmp(pattern, path, n) != 0) {
        return false;
    }
    if (!pattern[n]) {
        return !path[n];
    }
    bool all = pattern[n + 1] == '*';
    *rest = (di_str){path + n, all ? strlen(path + n) : strcspn(path + n, "/")};
    return rest->size > 0 && strcmp(pattern + n + 1 + all, path + n + rest->size) == 0;
}

/* HEAD asks what GET does; the body is left out when it is sent. */
static bool find_route(di_exchange *x, const char *method, const char *path) {
    char allowed[64] = "";
    if (strcmp(method, "HEAD") == 0) {
        method = "GET";
    }
    for (const di_route *r = routes; r < routes + NUM_ROUTES; r++) {
        if (!path_matches(r->path, path, &x->rest)) {
            continue;
        }
        x->shape = r->shape;
        if (strcmp(r->method, method) == 0) {
            x->route = r;
            return true;
        }
        size_t used = strlen(allowed);
        snprintf(allowed + used, sizeof allowed - used, "%s%s", used ? ", " : "", r->method);
    }
    if (*allowed) {
        di_exchange_error(x, 405, NULL, "%.16s is not allowed on %.128s, allowed is %s", method,
                          path, allowed);
        di_reply_header(&x->reply, "Allow", "%s", allowed);
        return false;
    }
    if (strncmp(path, "/v1/messages", 12) == 0) {
        x->shape = DI_SHAPE_ANTHROPIC;
    }
    di_exchange_error(x, 404, NULL, "there is nothing at %.200s", path);
    return false;
}

/* The key behind "Authorization: Bearer" or in "x-api-key". */
static di_str token_of(const di_exchange *x) {
    const char *bearer = header(x, "Authorization"), *key = header(x, "X-Api-Key");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) {
        bearer += 7;
        return di_str_of(bearer + strspn(bearer, " "));
    }
    return key ? di_str_of(key) : bearer ? di_str_of(bearer) : DI_STR("");
}

static void tell_bucket(di_exchange *x, const char *what, const di_quota_bucket *b) {
    char name[DI_REPLY_NAME_BYTES];
    if (b->limit == 0) {
        return;
    }
    snprintf(name, sizeof name, "x-ratelimit-limit-%s", what);
    di_reply_header(&x->reply, name, "%lld", (long long)b->limit);
    snprintf(name, sizeof name, "x-ratelimit-remaining-%s", what);
    di_reply_header(&x->reply, name, "%lld", (long long)b->remaining);
    snprintf(name, sizeof name, "x-ratelimit-reset-%s", what);
    di_reply_header(&x->reply, name, "%.3fs", b->reset_seconds);
}

/* How the key stands, this request counted but not its tokens. */
static void tell_limits(di_exchange *x) {
    const di_key_limits *l = &x->tenant.key->limits;
    di_quota_status status;
    if (l->requests_per_minute || l->input_tokens_per_minute || l->output_tokens_per_minute) {
        di_quota_get_status(x->server->quota, x->tenant.key, &status);
        tell_bucket(x, "requests", &status.requests);
        tell_bucket(x, "input-tokens", &status.input_tokens);
        tell_bucket(x, "output-tokens", &status.output_tokens);
        x->kept_headers = x->reply.num_headers;
    }
}

static bool let_in(di_exchange *x) {
    di_server *s = x->server;
    const di_key *key = NULL;
    di_key_verdict verdict = di_keys_admit(s->keys, token_of(x), &key);
    if (verdict != DI_KEY_FINE) {
        di_metrics_event(s->metrics, DI_EVENT_UNAUTHORIZED);
        di_exchange_error(x, 401, NULL, "%s", di_key_verdict_message(verdict));
        return false;
    }
    x->tenant = (di_tenant){.server = s, .key = key};
    snprintf(x->key_id, sizeof x->key_id, "%s", key->id);
    if ((x->route->flags & DI_ROUTE_ADMIN) && di_keys_required(s->keys) && !key->admin) {
        di_exchange_error(x, 403, "permission_denied", "key %s may not see %s", key->id,
                          x->route->path);
        return false;
    }
    if (!(x->route->flags & DI_ROUTE_QUOTA)) {
        return true;
    }
    di_quota_refusal no;
    x->tenant.ticket = di_quota_enter(s->quota, key, &no);
    tell_limits(x);
    if (!x->tenant.ticket) {
        di_metrics_refused(s->metrics, key->id, no.reason);
        tell(x, no.status, di_quota_reason_name(no.reason), no.message, no.retry_after);
        return false;
    }
    return true;
}

static bool check_content(di_exchange *x) {
    const char *type = header(x, "Content-Type"), *length = header(x, "Content-Length");
    const char *encoding = header(x, "Content-Encoding");
    size_t most = x->server->options.max_body_bytes;
    if (strcmp(x->route->method, "POST") != 0 || (x->route->flags & DI_ROUTE_BARE)) {
        return true;
    }
    if (!type || strncasecmp(type, "application/json", 16) != 0) {
        di_exchange_error(x, 415, NULL, "Content-Type is %.64s, application/json expected",
                          type ? type : "missing");
        return false;
    }
    if (encoding && strcasecmp(encoding, "identity") != 0) {
        di_exchange_error(x, 415, NULL, "Content-Encoding is %.64s, bodies are taken as they are",
                          encoding);
        return false;
    }
    if (length && (strlen(length) > 18 || strtoull(length, NULL, 10) > most)) {
        di_exchange_error(x, 413, NULL, "the body has %.20s bytes, at most %zu are allowed", length,
                          most);
        return false;
    }
    return true;
}

/* A target may be written in full, as to a proxy: http://HOST/PATH. */
static const char *path_of(const char *target) {
    bool full = strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0;
    const char *path = full ? strchr(strchr(target, ':') + 3, '/') : target;
    return path ? path : "/";
}

/* Whoever reads the reply may send the next request, and finds the key's place free. */
static void make_room(di_exchange *x) {
    if (x->reply.status) {
        di_tenant_leave(&x->tenant, 0, 0);
    }
}

static bool may_come_in(di_exchange *x, const char *method, const char *path) {
    if (!find_route(x, method, path) || ((x->route->flags & DI_ROUTE_KEY) && !let_in(x)) ||
        !check_content(x)) {
        return false;
    }
    if ((x->route->flags & DI_ROUTE_ENGINE) && atomic_load(&x->server->state) != DI_SERVER_LIVE) {
        di_exchange_error(x, 503, "draining", "the server is ending and takes no new requests");
        return false;
    }
    return true;
}

bool di_exchange_begin(di_exchange *x, di_server *s, const char *method, const char *target) {
    const char *path = path_of(target);
    x->server = s;
    x->arrived = di_now();
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", path);
    name_request(x);
    bool may = may_come_in(x, method, path);
    make_room(x);
    return may;
}

/* ---- the rest ---------------------------------------------------------------------------------*/

/* Bodies of all requests together are bounded, until they are answered. */
static bool charge(di_exchange *x, size_t size) {
    di_server *s = x->server;
    x->charged += size;
    return atomic_fetch_add(&s->body_bytes, size) + size <= s->options.max_bodies_bytes;
}

bool di_exchange_body(di_exchange *x, const char *data, size_t size) {
    size_t most = x->server->options.max_body_bytes;
    di_error err = {0};
    if (x->reply.status) {
        return false; /* what follows an error is not looked at */
    }
    if (size > most - x->body.size) {
        di_exchange_error(x, 413, NULL, "the body is longer than %zu bytes", most);
    } else if (!charge(x, size)) {
        di_exchange_error(x, 503, NULL,
                          "the bodies of all requests under way are more than %zu "
                          "bytes",
                          x->server->options.max_bodies_bytes);
    } else if (!di_buffer_append(&x->body, data, size, &err)) {
        di_exchange_fail(x, &err);
    } else {
        return true;
    }
    x->reply.close = true;
    di_buffer_free(&x->body);
    make_room(x);
    return false;
}

/* A short body can stand for a long conversation that is stored. */
bool di_exchange_is_long(const di_exchange *x) {
    static const char previous[] = "previous_response_id";
    return !x->reply.status &&
           (x->body.size >= DI_READERS_LONG || (x->route->flags & DI_ROUTE_LONG) ||
            (x->server->stored && x->route->endpoint == DI_ENDPOINT_RESPONSES && x->body.size > 0 &&
             memmem(x->body.data, x->body.size, previous, sizeof previous - 1)));
}

void di_exchange_run(di_exchange *x) {
    if (!x->reply.status) {
        x->whole = x->whole > 0 ? x->whole : di_now();
        x->route->run(x);
        di_buffer_free(&x->body);
        make_room(x);
    }
}

void di_exchange_finish(di_exchange *x) {
    di_generation *g = x->generation;
    di_error err = {0};
    di_buffer json = {0};
    pthread_mutex_lock(&g->lock);
    if (g->failed) {
        err = g->error;
        x->status = g->error_status;
    } else if (g->gone) {
        di_fail(&err, DI_ERR_CANCELLED, "the client has left");
    } else {
        g->voice->whole(g, &json, &err);
    }
    di_generation_taken(g);
    pthread_mutex_unlock(&g->lock);
    if (err.code != DI_OK) {
        di_exchange_fail(x, &err);
    } else {
        di_reply_json(&x->reply, 200, &json);
    }
    di_buffer_free(&json);
}

void di_exchange_free(di_exchange *x) {
    di_tenant_leave(&x->tenant, 0, 0);
    atomic_fetch_sub(&x->server->body_bytes, x->charged);
    di_buffer_free(&x->body);
    di_reply_free(&x->reply);
    if (x->generation) {
        di_generation_release(x->generation);
    }
}
