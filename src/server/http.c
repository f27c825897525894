/* HTTP: see http.h.
 *
 * A request goes through on_request several times: once with the header, then with each piece of
 * the body, then without one, when it is answered. If the engine has to work for it, the connection
 * is suspended, which takes it out of the library's epoll set; the pump resumes it (wake) when
 * there is something to tell, and on_request or read_stream goes on. Nothing here waits for
 * anything. */
#include "server/http.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/exchange.h"
#include "server/internal.h"
#include "server/peers.h"
#include "server/readers.h"
#include "server/tls.h"

enum { BACKLOG = 1024, STREAM_BLOCK = 16384 };

struct di_http {
    struct di_server *server;
    struct MHD_Daemon *daemon;
    di_tls *tls;   /* NULL: without */
    int listening; /* taken back from the daemon by quiesce; -1: not */
    bool check_host;
};

/* An exchange and its connection. */
typedef struct visit {
    di_exchange x; /* first */
    di_http *http;
    struct MHD_Connection *connection;
    di_peer *peer;
    di_reading_job reading; /* of a long body, once it has been handed over */
    bool whole;             /* the body has come */
    bool watched;           /* the peer is, for the generation's sake */
    bool streaming;         /* its answer is read by read_stream */
    bool answered;          /* a response is queued */
    bool owed;              /* counted in the server's answers_owed */
    size_t sent;
} visit;

static const char *get_header(void *context, const char *name) {
    return MHD_lookup_connection_value(context, MHD_HEADER_KIND, name);
}

static const char *get_argument(void *context, const char *name) {
    return MHD_lookup_connection_value(context, MHD_GET_ARGUMENT_KIND, name);
}

/* ---- replies ----------------------------------------------------------------------------------*/

static void add_common(const visit *v, struct MHD_Response *response) {
    MHD_add_response_header(response, "X-Request-Id", v->x.request_id);
    if (v->x.traceparent[0]) {
        MHD_add_response_header(response, "traceparent", v->x.traceparent);
    }
    if (v->x.tracestate[0]) {
        MHD_add_response_header(response, "tracestate", v->x.tracestate);
    }
}

static void add_headers(const di_reply *r, struct MHD_Response *response) {
    for (int i = 0; i < r->num_headers; i++) {
        MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
    }
}

/* Who has sent a whole request, or is told why the rest of it is not wanted, has an answer to come.
 */
static void owe(visit *v) {
    if (!v->owed) {
        v->owed = true;
        atomic_fetch_add(&v->http->server->answers_owed, 1);
    }
}

static enum MHD_Result queue(visit *v, unsigned status, struct MHD_Response *response) {
    if (!response) {
        return MHD_NO;
    }
    owe(v);
    add_common(v, response);
    enum MHD_Result done = MHD_queue_response(v->connection, status, response);
    MHD_destroy_response(response);
    v->answered = done == MHD_YES;
    return done;
}

static void free_body(void *body) {
    di_free(body);
}

static struct MHD_Response *response_of(di_reply *r, size_t *size) {
    struct MHD_Response *response;
    if (r->fixed.data) {
        *size = r->fixed.size;
        response = MHD_create_response_from_buffer(r->fixed.size, (void *)r->fixed.data,
                                                   MHD_RESPMEM_PERSISTENT);
    } else {
        *size = r->body.size;
        response = MHD_create_response_from_buffer_with_free_callback(r->body.size, r->body.data,
                                                                      free_body);
        if (response) {
            r->body = (di_buffer){0};
        }
    }
    return response;
}

static enum MHD_Result send_reply(visit *v) {
    di_reply *r = &v->x.reply;
    struct MHD_Response *response = response_of(r, &v->sent);
    if (response) {
        MHD_add_response_header(response, "Content-Type", r->type ? r->type : "text/plain");
        add_headers(r, response);
        if (r->close) {
            MHD_add_response_header(response, "Connection", "close");
        }
    }
    return queue(v, (unsigned)r->status, response);
}

/* ---- streams ----------------------------------------------------------------------------------*/

static void wake(void *connection) {
    MHD_resume_connection(connection);
}

/* Under the generation's lock. */
static void sleep_until_news(visit *v) {
    di_generation *g = v->x.generation;
    g->wake = wake;
    g->wake_context = v->connection;
    MHD_suspend_connection(v->connection);
}

static ssize_t read_stream(void *context, uint64_t position, char *out, size_t most) {
    visit *v = context;
    di_generation *g = v->x.generation;
    ssize_t result;
    (void)position;
    pthread_mutex_lock(&g->lock);
    size_t size = g->gone ? 0 : di_stream_take(&g->bytes, out, most);
    if (size > 0) {
        result = (ssize_t)size;
        di_generation_taken(g);
    } else if (g->gone) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (g->over) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        sleep_until_news(v);
        result = 0;
    }
    pthread_mutex_unlock(&g->lock);
    v->sent += size;
    return result;
}

static enum MHD_Result send_stream(visit *v) {
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, v, NULL);
    if (response) {
        MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
        MHD_add_response_header(response, "Cache-Control", "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
        add_headers(&v->x.reply, response);
    }
    v->streaming = response != NULL;
    return queue(v, MHD_HTTP_OK, response);
}

/* What a generation has for its client by now. */
static enum MHD_Result serve(visit *v) {
    di_generation *g = v->x.generation;
    pthread_mutex_lock(&g->lock);
    bool gone = g->gone, ready = g->opened;
    bool streams = g->stream && !(g->failed && di_stream_waiting(&g->bytes) == 0);
    if (!gone && !ready) {
        sleep_until_news(v);
    }
    pthread_mutex_unlock(&g->lock);
    if (gone) {
        return MHD_NO; /* closes the connection */
    }
    if (!ready) {
        return MHD_YES;
    }
    if (streams) {
        return send_stream(v);
    }
    di_exchange_finish(&v->x);
    return send_reply(v);
}

/* An escaped NUL would end the path for whoever compares it: it stays escaped, and is found
 * nowhere.
 */
static size_t unescape(void *self, struct MHD_Connection *connection, char *text) {
    (void)self;
    (void)connection;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

/* ---- requests ---------------------------------------------------------------------------------*/

static di_peer *peer_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* A page from elsewhere whose name has been bound to this machine's loopback must not be able to
 * use a server that asks for no key: names other than localhost are not ours. */
static bool is_local_name(const char *host) {
    char name[256];
    struct in6_addr address;
    if (!host || strlen(host) >= sizeof name) {
        return false;
    }
    bool bracket = host[0] == '[';
    size_t length = bracket ? strcspn(host + 1, "]") : strcspn(host, ":");
    memcpy(name, host + bracket, length);
    name[length] = 0;
    return strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, &address) == 1 ||
           inet_pton(AF_INET6, name, &address) == 1;
}

/* What two readers of a header could understand in two ways, a proxy and we, is refused: where a
 * request ends and which host it is for must not depend on who reads. */
typedef struct header_check {
    const char *wrong; /* what is; NULL: nothing */
    const char *name;
    int hosts, lengths, encodings;
} header_check;

static bool is_token(const char *name, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (!isalnum((unsigned char)name[i]) && (!name[i] || !strchr("!#$%&'*+-.^_`|~", name[i]))) {
            return false;
        }
    }
    return size > 0;
}

static bool has_control(const char *value, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (((unsigned char)value[i] < 0x20 && value[i] != '\t') || value[i] == 0x7f) {
            return true;
        }
    }
    return false;
}

static enum MHD_Result check_header(void *context, enum MHD_ValueKind kind, const char *name,
                                    size_t name_size, const char *value, size_t size) {
    header_check *c = context;
    (void)kind;
    value = value ? value : "";
    bool length = strcasecmp(name, "Content-Length") == 0;
    bool encoding = strcasecmp(name, "Transfer-Encoding") == 0;
    c->hosts += strcasecmp(name, "Host") == 0;
    c->lengths += length;
    c->encodings += encoding;
    c->name = name;
    c->wrong =
        !is_token(name, name_size) ? "its name is no token"
        : has_control(value, size) ? "a control character is in it"
        : length && (size == 0 || strspn(value, "0123456789") != size) ? "a number is expected"
        : encoding && strcasecmp(value, "chunked") != 0                ? "only chunked is known"
        : c->hosts > 1 || c->lengths > 1 || c->encodings > 1           ? "it comes twice"
        : c->lengths + c->encodings > 1 ? "Content-Length and Transfer-Encoding exclude each other"
                                        : NULL;
    return c->wrong ? MHD_NO : MHD_YES;
}

/* False with a reply. */
static bool check_headers(visit *v, const char *version) {
    header_check c = {0};
    MHD_get_connection_values_n(v->connection, MHD_HEADER_KIND, check_header, &c);
    if (!c.wrong && c.hosts == 0 && strcmp(version, MHD_HTTP_VERSION_1_1) == 0) {
        c.name = "Host";
        c.wrong = "it is missing";
    }
    if (c.wrong) {
        di_exchange_error(&v->x, 400, NULL, "header %.64s: %s", c.name, c.wrong);
        v->x.reply.close = true;
        di_metrics_event(v->http->server->metrics, DI_EVENT_BAD_REQUEST);
    }
    return !c.wrong;
}

static enum MHD_Result begin(di_http *h, struct MHD_Connection *connection, const char *path,
                             const char *method, const char *version, void **context) {
    visit *v = di_calloc(1, sizeof *v);
    if (!v) {
        return MHD_NO;
    }
    di_server *s = h->server;
    *context = v;
    v->http = h;
    v->connection = connection;
    v->peer = peer_of(connection);
    v->x.header = get_header;
    v->x.argument = get_argument;
    v->x.context = connection;
    di_peers_expect(s->peers, v->peer, s->options.body_seconds);
    di_metrics_in_flight(s->metrics, 1);
    bool fine = di_exchange_begin(&v->x, s, method, path) && check_headers(v, version);
    const char *host = get_header(connection, "Host");
    if (fine && h->check_host && host && !is_local_name(host)) {
        di_exchange_error(&v->x, 421, NULL,
                          "Host is %.100s; without keys only localhost and addresses are served",
                          host);
        fine = false;
    }
    return fine ? MHD_YES : send_reply(v);
}

static void read_long(void *context) {
    visit *v = context;
    di_exchange_run(&v->x);
    MHD_resume_connection(v->connection); /* from here on it may be gone */
}

/* The body is whole. False: it is being read elsewhere. */
static bool read_body(visit *v) {
    di_server *s = v->http->server;
    owe(v);
    v->whole = true;
    v->x.whole = di_now();
    di_peers_expect(s->peers, v->peer, 0);
    if (!di_exchange_is_long(&v->x) || v->reading.run || s->options.reader_threads == 0) {
        di_exchange_run(&v->x);
        return true;
    }
    v->reading = (di_reading_job){.run = read_long, .context = v};
    MHD_suspend_connection(v->connection);
    if (di_readers_give(s->readers, &v->reading)) {
        di_metrics_long_request(s->metrics);
    } else { /* the server ends; on_request comes here again once it has been resumed */
        v->whole = false;
        MHD_resume_connection(v->connection);
    }
    return false;
}

static enum MHD_Result on_request(void *self, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context) {
    di_http *h = self;
    visit *v = *context;
    if (!v) {
        return begin(h, connection, path, method, version, context);
    }
    if (*size > 0) {
        di_exchange_body(&v->x, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!v->whole && !read_body(v)) {
        return MHD_YES;
    }
    if (v->x.generation && !v->watched) {
        /* an interim response is written past the library, which TLS does not allow */
        bool interim = strcmp(version, MHD_HTTP_VERSION_1_1) == 0 && !h->tls;
        v->watched = true;
        di_peers_begin(h->server->peers, v->peer, v->x.generation, interim);
    }
    return v->x.generation ? serve(v) : send_reply(v);
}

/* ---- the end of a request ---------------------------------------------------------------------*/

static void log_visit(const visit *v, int status) {
    const di_exchange *x = &v->x;
    di_generation *g = x->generation;
    di_access_entry e = {
        .request_id = x->request_id,
        .client = v->peer ? v->peer->address : "",
        .key_id = x->key_id,
        .method = x->method,
        .path = x->path,
        .model = x->model_text,
        .traceparent = x->traceparent,
        .tracestate = x->tracestate,
        .status = status,
        .bytes = v->sent,
        .seconds = di_now() - x->arrived,
        .ttft_seconds = -1,
        .prompt_tokens = -1,
        .cached_tokens = -1,
        .completion_tokens = -1,
    };
    if (g) {
        pthread_mutex_lock(&g->lock);
        e.stream = g->stream;
        e.prompt_tokens = g->prompt_tokens;
        e.cached_tokens = g->cached_tokens;
        e.completion_tokens = g->completion_tokens;
        e.ttft_seconds = g->ttft;
        e.finish = g->finish;
        pthread_mutex_unlock(&g->lock);
    }
    di_access_log_write(x->server->log, &e);
}

static void on_completed(void *self, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode why) {
    di_http *h = self;
    visit *v = *context;
    (void)connection;
    if (!v) {
        return;
    }
    di_server *s = h->server;
    di_generation *g = v->x.generation;
    bool left = why != MHD_REQUEST_TERMINATED_COMPLETED_OK;
    if (g) {
        di_peers_end(s->peers, v->peer);
        if (left) {
            di_generation_abandon(g);
        }
    }
    int status = left ? 499 : v->streaming ? 200 : v->x.reply.status;
    di_endpoint endpoint = v->x.route ? v->x.route->endpoint : DI_ENDPOINT_OTHER;
    di_metrics_http(s->metrics, endpoint, status, di_now() - v->x.arrived);
    di_metrics_in_flight(s->metrics, -1);
    log_visit(v, status);
    double idle = s->options.idle_seconds, header = s->options.header_seconds;
    di_peers_expect(s->peers, v->peer, idle > 0 && header > 0 ? idle + header : 0);
    if (v->owed) {
        atomic_fetch_sub(&s->answers_owed, 1);
    }
    di_exchange_free(&v->x);
    di_free(v);
    *context = NULL;
}

/* ---- connections ------------------------------------------------------------------------------*/

static void describe_address(const struct sockaddr *address, char *out, size_t size) {
    char host[INET6_ADDRSTRLEN] = "?";
    if (address && address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        snprintf(out, size, "[%s]:%d", host, ntohs(in6->sin6_port));
    } else if (address && address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(out, size, "%s:%d", host, ntohs(in->sin_port));
    } else {
        snprintf(out, size, "%s", host);
    }
}

/* A client whose machine has vanished says nothing: its system is asked every so often, and what it
 * does not acknowledge for a minute ends the connection. */
static void mind_silence(int fd) {
    static const struct {
        int level, name, value;
    } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},          {IPPROTO_TCP, TCP_KEEPIDLE, 30},
        {IPPROTO_TCP, TCP_KEEPINTVL, 10},       {IPPROTO_TCP, TCP_KEEPCNT, 3},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 60000},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                   sizeof options[i].value);
    }
}

/* The certificate that is in force now, instead of the one that the library began with. */
static void dress(di_http *h, struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *session =
        h->tls ? MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION) : NULL;
    if (session && session->tls_session) {
        di_tls_dress(h->tls, session->tls_session);
    }
}

static void on_connection(void *self, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what) {
    di_http *h = self;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        di_peers_close(h->server->peers, *context);
        *context = NULL;
        return;
    }
    char text[64];
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int socket_fd = fd ? fd->connect_fd : -1;
    mind_silence(socket_fd);
    dress(h, connection);
    const union MHD_ConnectionInfo *address =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    describe_address(address ? address->client_addr : NULL, text, sizeof text);
    *context = di_peers_open(h->server->peers, socket_fd, text);
}

/* ---- listening --------------------------------------------------------------------------------*/

static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

static int bind_to(const struct addrinfo *a) {
    int on = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) {
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

int di_http_listen(di_server *s, bool *loopback, di_error *err) {
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    snprintf(port, sizeof port, "%d", s->options.port);
    int failed = getaddrinfo(s->options.host, port, &hints, &list);
    if (failed) {
        di_fail(err, DI_ERR_ARGUMENT, "host %s: %s", s->options.host, gai_strerror(failed));
        return -1;
    }
    int fd = bind_to(list);
    *loopback = is_loopback(list->ai_addr);
    if (fd < 0) {
        di_fail_errno(err, "cannot listen at %s, port %d", s->options.host, s->options.port);
    } else {
        struct sockaddr_storage bound = {0};
        socklen_t size = sizeof bound;
        struct sockaddr *address = (struct sockaddr *)&bound;
        if (getsockname(fd, address, &size) == 0) {
            describe_address(address, s->address, sizeof s->address);
            s->port = atoi(strrchr(s->address, ':') + 1);
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* What the library says of connections is about strangers' mistakes; they are counted, not logged.
 */
static void ignore_message(void *self, const char *format, va_list args) {
    di_http *h = self;
    (void)format;
    (void)args;
    di_metrics_event(h->server->metrics, DI_EVENT_BAD_REQUEST);
}

static bool open_tls(di_http *h, const di_server_options *o, di_error *err) {
    if (!o->tls_cert) {
        return true;
    }
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "--tls-cert is given, but this libmicrohttpd was built without TLS");
    }
    h->tls = di_tls_open(o->tls_cert, o->tls_key, err);
    return h->tls != NULL;
}

static void destroy(di_http *h) {
    di_tls_close(h->tls);
    di_free(h);
}

di_http *di_http_start(di_server *s, int listening, bool check_host, di_error *err) {
    di_http *h = di_calloc(1, sizeof *h);
    if (!h) {
        close(listening);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the server");
        return NULL;
    }
    *h = (di_http){.server = s, .listening = -1, .check_host = check_host};
    const di_server_options *o = &s->options;
    if (!open_tls(h, o, err)) {
        close(listening);
        destroy(h);
        return NULL;
    }
    unsigned idle = (unsigned)(o->idle_seconds + 0.5);
    unsigned threads = (unsigned)o->threads;
    struct MHD_OptionItem pool[] = {
        {threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, (intptr_t)threads, NULL},
        {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem tls[] = {
        {h->tls ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0,
         h->tls ? (void *)di_tls_first_cert(h->tls) : NULL},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, h->tls ? (void *)di_tls_first_key(h->tls) : NULL},
        {MHD_OPTION_END, 0, NULL}};
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG |
            (h->tls ? MHD_USE_TLS : 0),
        0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, ignore_message, h,
        MHD_OPTION_LISTEN_SOCKET, listening, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)o->max_connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT, o->max_header_bytes,
        MHD_OPTION_CONNECTION_TIMEOUT, idle, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_STRICT_FOR_CLIENT, 0,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, h, MHD_OPTION_ARRAY, pool, MHD_OPTION_ARRAY, tls,
        MHD_OPTION_END);
    if (!h->daemon) {
        close(listening);
        di_fail(err, DI_ERR_IO, "libmicrohttpd cannot start (%u connections, %u threads%s)",
                (unsigned)o->max_connections, threads, h->tls ? ", TLS" : "");
        destroy(h);
        return NULL;
    }
    return h;
}

bool di_http_reload(di_http *h, di_error *err) {
    return !h->tls || di_tls_reload(h->tls, err);
}

void di_http_quiesce(di_http *h) {
    if (h->listening < 0) {
        h->listening = MHD_quiesce_daemon(h->daemon);
    }
}

void di_http_stop(di_http *h) {
    if (!h) {
        return;
    }
    MHD_stop_daemon(h->daemon);
    if (h->listening >= 0) {
        close(h->listening);
    }
    destroy(h);
}
