/* The server's front end without a model: an engine that answers 64 tokens to everything, and a
 * load maker of its own on the other end. bench/server/http_peer.py has the same load on FastAPI
 * and uvicorn.
 *
 *     http                     starts the scripted server and measures it
 *     http --against ADDRESS   measures what listens there, streamed, once
 *
 * Requests are chat completions on connections that stay open. Full load: each connection sends its
 * next request when the last answer has come. Half load, right behind it: requests begin at fixed
 * times, half as many as were answered then; what they take is what the front end adds, since the
 * engine takes nothing. The client's view counts from the time at which a request was to begin; how
 * late the load maker itself was with it stands beside, and so does the server's own part, from its
 * histograms: reading (end of the body to acceptance), and waiting (something to tell to taken by
 * the connection). Both hold what the machine added; how long the server's threads, ready to run,
 * waited for a core, and how long they ran, is the kernel's own count of them. Behind each half
 * load comes the same from a server that does nothing but write the same bytes
 * (bench/server/bare.c): what takes longer than there, the front end has added. On a machine that
 * others use each round is one look; the medians judge. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { CLIENTS = 64, MOST_TIMES = 1 << 20, TAIL = 8, ROUNDS = 9 };

typedef struct client {
    int fd;
    double began, first;  /* of the request under way; 0: none is */
    double late;          /* how long after `began` it was sent */
    char tail[TAIL];      /* the last bytes that came */
    size_t bytes, length; /* of a whole answer: of its body, as far as known */
    bool in_body;
    char head[1024];
    size_t head_size;
} client;

typedef struct load {
    struct sockaddr_in address;
    struct sockaddr_in bare; /* of the server that does nothing */
    pid_t server;            /* 0: one that we did not start */
    bool stream;
    double seconds, rate; /* rate 0: as fast as answers come */
    char request[1024];
    size_t request_size;
    int epoll;
    client clients[CLIENTS];
    long requests, events;
    double *whole, *first, *late; /* seconds of each */
    long num_times;
} load;

enum { BOUNDS = 24 };

/* A histogram of the server's: how many up to each bound. */
typedef struct histogram {
    double bounds[BOUNDS], counts[BOUNDS];
    int n;
} histogram;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void write_request(load *l) {
    char body[512];
    int size = snprintf(body, sizeof body,
                        "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\","
                        "\"content\":\"Tell me about the weather of tomorrow.\"}],\"thinking\":"
                        "{\"type\":\"disabled\"},\"max_tokens\":100,\"stream\":%s}",
                        l->stream ? "true" : "false");
    l->request_size = (size_t)snprintf(l->request, sizeof l->request,
                                       "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                                       "Content-Type: application/json\r\nContent-Length: %d\r\n"
                                       "\r\n%s",
                                       size, body);
}

static void open_clients(load *l) {
    for (int i = 0; i < CLIENTS; i++) {
        client *c = &l->clients[i];
        int on = 1;
        *c = (client){.fd = socket(AF_INET, SOCK_STREAM, 0)};
        if (connect(c->fd, (struct sockaddr *)&l->address, sizeof l->address) != 0) {
            die("connect");
        }
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &e);
    }
}

static void send_request(load *l, client *c) {
    c->began = di_now();
    c->late = 0;
    c->first = 0;
    c->in_body = false;
    c->head_size = c->bytes = c->length = 0;
    memset(c->tail, 0, TAIL);
    if (write(c->fd, l->request, l->request_size) != (ssize_t)l->request_size) {
        die("write");
    }
}

/* "data: " in what has come, also across two reads. */
static long count_events(const client *c, const char *data, size_t size) {
    char joined[2 * TAIL];
    size_t head = size < TAIL ? size : TAIL;
    long n = 0;
    memcpy(joined, c->tail, TAIL);
    memcpy(joined + TAIL, data, head);
    for (size_t i = TAIL - 5; i < TAIL && i + 6 <= TAIL + head; i++) {
        n += memcmp(joined + i, "data: ", 6) == 0;
    }
    for (const char *at = data; (at = memmem(at, size - (size_t)(at - data), "data: ", 6));) {
        n++;
        at += 6;
    }
    return n;
}

static void keep_tail(client *c, const char *data, size_t size) {
    size_t n = size < TAIL ? size : TAIL;
    memmove(c->tail, c->tail + n, TAIL - n);
    memcpy(c->tail + TAIL - n, data + size - n, n);
}

/* The head of a whole answer, to know its length. */
static size_t take_head(client *c, const char *data, size_t size) {
    size_t i = 0;
    while (i < size && !c->in_body && c->head_size + 1 < sizeof c->head) {
        c->head[c->head_size++] = data[i++];
        c->head[c->head_size] = 0;
        if (c->head_size > 4 && memcmp(c->head + c->head_size - 4, "\r\n\r\n", 4) == 0) {
            const char *length = strcasestr(c->head, "content-length:");
            c->in_body = true;
            c->length = length ? (size_t)atol(length + 15) : 0;
            if (strncmp(c->head, "HTTP/1.1 200", 12) != 0) {
                fprintf(stderr, "http: %s\n", c->head);
                exit(1);
            }
        }
    }
    return i;
}

/* True when the answer under way is whole. */
static bool take(load *l, client *c) {
    char data[65536];
    ssize_t got = read(c->fd, data, sizeof data);
    if (got <= 0) {
        die("read");
    }
    size_t size = (size_t)got, head = take_head(c, data, size);
    if (!l->stream) {
        c->bytes += size - head;
        l->events += c->in_body && c->bytes == c->length;
        return c->in_body && c->bytes == c->length;
    }
    long n = count_events(c, data, size);
    l->events += n;
    c->first = c->first == 0 && n > 0 ? di_now() : c->first;
    keep_tail(c, data, size);
    return memcmp(c->tail + TAIL - 7, "\r\n0\r\n\r\n", 7) == 0;
}

static void note(load *l, const client *c) {
    double now = di_now();
    if (l->num_times < MOST_TIMES) {
        l->late[l->num_times] = c->late;
        l->whole[l->num_times] = now - c->began;
        l->first[l->num_times++] = (c->first > 0 ? c->first : now) - c->began;
    }
    l->requests++;
}

static client *idle_client(load *l) {
    for (int i = 0; i < CLIENTS; i++) {
        if (l->clients[i].began == 0) {
            return &l->clients[i];
        }
    }
    return NULL;
}

/* Begins those whose time has come; the time from then counts, however late it is. */
static void begin_due(load *l, double start, long *begun) {
    for (client *c; l->rate > 0 && (double)*begun < (di_now() - start) * l->rate &&
                    (c = idle_client(l)) != NULL;) {
        double due = start + (double)*begun / l->rate;
        send_request(l, c);
        c->late = c->began - due;
        c->began = due;
        ++*begun;
    }
}

/* Waits for answers, but no longer than until the next request is due. */
static int wait_events(const load *l, struct epoll_event *events, double start, long begun) {
    double due = l->rate > 0 ? start + (double)begun / l->rate - di_now() : 1e-3;
    due = due < 0 ? 0 : due > 1e-3 ? 1e-3 : due;
    struct timespec patience = {0, (long)(due * 1e9)};
    return epoll_pwait2(l->epoll, events, CLIENTS, &patience, NULL);
}

static double run(load *l) {
    struct epoll_event events[CLIENTS];
    long begun = 0;
    write_request(l);
    l->epoll = epoll_create1(0);
    l->requests = l->events = l->num_times = 0;
    open_clients(l);
    double start = di_now(), end = start + l->seconds, now = start;
    for (int i = 0; i < CLIENTS && l->rate == 0; i++) {
        send_request(l, &l->clients[i]);
    }
    while (now < end) {
        begin_due(l, start, &begun);
        int n = wait_events(l, events, start, begun);
        for (int i = 0; i < n; i++) {
            client *c = events[i].data.ptr;
            if (take(l, c)) {
                note(l, c);
                c->began = 0;
                if (l->rate == 0) {
                    send_request(l, c);
                }
            }
        }
        now = di_now();
    }
    for (int i = 0; i < CLIENTS; i++) {
        close(l->clients[i].fd);
    }
    close(l->epoll);
    return now - start;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double share(double *times, long n, double p) {
    qsort(times, (size_t)n, sizeof *times, by_size);
    return n > 0 ? times[(long)((double)(n - 1) * p)] * 1e3 : 0;
}

/* ---- the server's own view --------------------------------------------------------------------*/

/* All of what GET /metrics says. */
static char *read_metrics(const load *l) {
    static const char request[] =
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    static char text[1 << 20];
    size_t size = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (const struct sockaddr *)&l->address, sizeof l->address) != 0 ||
        write(fd, request, sizeof request - 1) != (ssize_t)sizeof request - 1) {
        die("metrics");
    }
    for (ssize_t got;
         size + 1 < sizeof text && (got = read(fd, text + size, sizeof text - 1 - size)) > 0;) {
        size += (size_t)got;
    }
    close(fd);
    text[size] = 0;
    return text;
}

/* Adds `sign` times the histogram of that name, so that two readings make what lies between. */
static void add_histogram(histogram *h, const char *metrics, const char *name, double sign) {
    char mark[96];
    int size = snprintf(mark, sizeof mark, "\n%s_bucket{", name);
    h->n = 0;
    for (const char *at = metrics; h->n < BOUNDS && (at = strstr(at, mark)) != NULL;) {
        const char *bound = strstr(at += size, "le=\""), *count = bound ? strchr(bound, ' ') : NULL;
        if (!count) {
            break;
        }
        h->bounds[h->n] = strtod(bound + 4, NULL); /* "+Inf" too */
        h->counts[h->n++] += sign * strtod(count, NULL);
    }
}

/* Milliseconds; inside a bucket as if all lay evenly in it. */
static double share_of(const histogram *h, double p) {
    double wanted = h->n > 0 ? h->counts[h->n - 1] * p : 0, below = 0, from = 0;
    for (int i = 0; i < h->n; i++) {
        if (h->counts[i] >= wanted && h->counts[i] > below) {
            double part = (wanted - below) / (h->counts[i] - below);
            double to = i + 1 < h->n ? h->bounds[i] : from;
            return (from + part * (to - from)) * 1e3;
        }
        below = h->counts[i];
        from = h->bounds[i];
    }
    return 0;
}

/* Seconds that all threads of the server have run, and been ready without a core. */
typedef struct core_times {
    double ran, waited;
} core_times;

static core_times read_core_times(pid_t pid) {
    char path[512];
    core_times t = {0, 0};
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = pid ? opendir(path) : NULL;
    for (struct dirent *d; tasks && (d = readdir(tasks)) != NULL;) {
        double ran, waited;
        snprintf(path, sizeof path, "/proc/%d/task/%.32s/schedstat", (int)pid, d->d_name);
        FILE *f = d->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (f && fscanf(f, "%lf %lf", &ran, &waited) == 2) {
            t.ran += ran * 1e-9;
            t.waited += waited * 1e-9;
        }
        if (f) {
            fclose(f);
        }
    }
    if (tasks) {
        closedir(tasks);
    }
    return t;
}

static void print_core_times(core_times before, core_times after, double seconds, long requests) {
    double ran = after.ran - before.ran, waited = after.waited - before.waited;
    printf(
        "    server: its threads ran %.3f and waited for a core %.3f ms a request, %.0f and %.0f "
        "%% of the time\n",
        ran / (double)requests * 1e3, waited / (double)requests * 1e3, ran / seconds * 100,
        waited / seconds * 100);
}

/* ---- measuring --------------------------------------------------------------------------------*/

static void print_shares(const char *name, double p50, double p99, double p999) {
    printf("    %-44s p50 %8.3f   p99 %8.3f   p99.9 %8.3f ms\n", name, p50, p99, p999);
}

static void print_times(const char *name, double *times, long n) {
    print_shares(name, share(times, n, 0.5), share(times, n, 0.99), share(times, n, 0.999));
}

static void print_histogram(const char *name, const histogram *h) {
    print_shares(name, share_of(h, 0.5), share_of(h, 0.99), share_of(h, 0.999));
}

/* One round; its rate. */
static double measure(load *l, const char *name, bool times) {
    histogram reading = {0}, waiting = {0};
    static const char read_name[] = "deepinfer:request_read_seconds",
                      wait_name[] = "deepinfer:answer_wait_seconds";
    if (times) {
        const char *before = read_metrics(l);
        add_histogram(&reading, before, read_name, -1);
        add_histogram(&waiting, before, wait_name, -1);
    }
    core_times begun = read_core_times(l->server);
    double seconds = run(l), rate = (double)l->requests / seconds;
    printf("%-22s %9.0f requests/s %10.0f events/s\n", name, rate, (double)l->events / seconds);
    core_times ended = read_core_times(l->server);
    if (times) {
        const char *after = read_metrics(l);
        add_histogram(&reading, after, read_name, 1);
        add_histogram(&waiting, after, wait_name, 1);
        print_times("client: to the first event", l->first, l->num_times);
        print_times("client: to the last", l->whole, l->num_times);
        print_times("of it the load maker's own lateness", l->late, l->num_times);
        print_histogram("server: reading a request", &reading);
        print_histogram("server: something to tell, until taken", &waiting);
        if (l->server && ended.ran > begun.ran) {
            print_core_times(begun, ended, seconds, l->requests);
        }
    }
    fflush(stdout);
    return rate;
}

/* Of one round of half load, in ms: at the half and at one in a hundred. */
typedef struct look {
    double p50, p99;
} look;

static look look_at(double *times, long n) {
    return (look){share(times, n, 0.5), share(times, n, 0.99)};
}

/* The load that the real server had just now, on the one that does nothing. */
static look measure_bare(load *l) {
    load bare = *l;
    bare.address = l->bare;
    bare.server = 0;
    run(&bare);
    print_times("a server that does nothing: to the first", bare.first, bare.num_times);
    fflush(stdout);
    return look_at(bare.first, bare.num_times);
}

static double median_of(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_size);
    return values[n / 2];
}

/* Rounds of full load, half load, and half load on the bare server. */
static void measure_stream(load *l, int rounds) {
    double full[ROUNDS], p99[ROUNDS], bare[ROUNDS], added[ROUNDS], added_half[ROUNDS];
    for (int i = 0; i < rounds; i++) {
        l->rate = 0;
        full[i] = measure(l, "streamed, full load", false);
        l->rate = full[i] / 2;
        measure(l, "streamed, half load", true);
        look ours = look_at(l->first, l->num_times), idle = measure_bare(l);
        p99[i] = ours.p99;
        bare[i] = idle.p99;
        added[i] = ours.p99 - idle.p99;
        added_half[i] = ours.p50 - idle.p50;
        printf("    added                                        p50 %8.3f   p99 %8.3f ms\n",
               added_half[i], added[i]);
    }
    printf("medians of %d: %.0f requests/s streamed; first event at half load p99 %.3f ms, of a "
           "server that does nothing %.3f ms; added p50 %.3f, p99 %.3f ms\n",
           rounds, median_of(full, rounds), median_of(p99, rounds), median_of(bare, rounds),
           median_of(added_half, rounds), median_of(added, rounds));
}

static void print_memory(pid_t pid, const char *when) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "VmRSS:", 6) == 0) {
            printf("%-22s %9.1f MiB resident, tokenizer and stand-in engine included\n", when,
                   (double)atol(line + 6) / 1024);
        }
    }
    if (f) {
        fclose(f);
    }
}

/* A program of the build, which prints its address first; what it reads comes from `in`. */
static pid_t start(const char *const *argv, int in, char *address, size_t size) {
    const char *build = getenv("BUILD");
    char program[512];
    int ends[2];
    snprintf(program, sizeof program, "%s/%s", build ? build : "build/release", argv[0]);
    if (pipe(ends) != 0) {
        die("pipe");
    }
    pid_t pid = fork();
    if (pid == 0) {
        dup2(in, STDIN_FILENO);
        dup2(ends[1], STDOUT_FILENO);
        execv(program, (char *const *)argv);
        die(program);
    }
    close(ends[1]);
    FILE *out = fdopen(ends[0], "r");
    if (!out || !fgets(address, (int)size, out)) {
        die("the server's address");
    }
    return pid;
}

static struct sockaddr_in to_address(char *text) {
    char *port = strrchr(text, ':');
    if (!port) {
        fprintf(stderr, "http: %s is no ADDRESS:PORT\n", text);
        exit(2);
    }
    *port++ = 0;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    inet_pton(AF_INET, text, &a.sin_addr);
    return a;
}

/* One whole answer of the real server, for the one that does nothing. */
static pid_t start_bare(load *l) {
    static char answer[1 << 16];
    char size[32], address[64];
    size_t got = 0;
    FILE *keep = tmpfile();
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    write_request(l);
    if (!keep || connect(fd, (const struct sockaddr *)&l->address, sizeof l->address) != 0 ||
        write(fd, l->request, l->request_size) != (ssize_t)l->request_size) {
        die("an answer");
    }
    while (got < 7 || memcmp(answer + got - 7, "\r\n0\r\n\r\n", 7) != 0) {
        ssize_t more = read(fd, answer + got, sizeof answer - got);
        if (more <= 0) {
            die("an answer");
        }
        got += (size_t)more;
    }
    close(fd);
    fwrite(answer, 1, got, keep);
    rewind(keep);
    snprintf(size, sizeof size, "%zu", l->request_size);
    const char *const argv[] = {"bench/server/bare", size, NULL};
    pid_t pid = start(argv, fileno(keep), address, sizeof address);
    fclose(keep);
    l->bare = to_address(address);
    return pid;
}

int main(int argc, char **argv) {
    static load l;
    char address[64];
    pid_t server = 0, bare = 0;
    bool against = argc == 3 && strcmp(argv[1], "--against") == 0;
    signal(SIGPIPE, SIG_IGN);
    l.whole = malloc(MOST_TIMES * sizeof *l.whole);
    l.first = malloc(MOST_TIMES * sizeof *l.first);
    l.late = malloc(MOST_TIMES * sizeof *l.late);
    if (against) {
        snprintf(address, sizeof address, "%s", argv[2]);
    } else {
        const char *const argv_server[] = {"tests/server/scripted_server", "models/demo",
                                           "fixed_tokens=64", NULL};
        server = l.server = start(argv_server, STDIN_FILENO, address, sizeof address);
        print_memory(server, "idle");
    }
    l.address = to_address(address);
    l.stream = true;
    if (against) {
        l.seconds = 3;
        measure(&l, "streamed, full load", false);
    } else {
        l.seconds = 2;
        bare = start_bare(&l);
        measure_stream(&l, ROUNDS);
        l.rate = 0;
        l.stream = false;
        for (int i = 0; i < 3; i++) {
            measure(&l, "whole, full load", false);
        }
        print_memory(server, "after");
        kill(server, SIGTERM);
        kill(bare, SIGKILL);
        waitpid(server, NULL, 0);
        waitpid(bare, NULL, 0);
    }
    free(l.whole);
    free(l.first);
    free(l.late);
    return 0;
}
