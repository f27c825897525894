/* A server that does nothing: to every so many bytes it writes the same answer, at once, on one
 * thread. What bench/server/http.c measures of it is what the machine, the connections and the load
 * maker take; what the real server takes beyond that, it adds.
 *
 *     bare SIZE < ANSWER       SIZE: bytes of a request; prints its address, serves until killed */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, MOST_FDS = 1024 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int listen_somewhere(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, size) != 0 || listen(fd, EVENTS) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &size) != 0) {
        die("bare");
    }
    printf("127.0.0.1:%d\n", ntohs(a.sin_port));
    fflush(stdout);
    return fd;
}

static void add(int epoll, int fd) {
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    if (fd < 0 || fd >= MOST_FDS || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) != 0) {
        die("bare: a connection");
    }
}

int main(int argc, char **argv) {
    static char answer[1 << 20], request[1 << 16];
    static size_t came[MOST_FDS];
    size_t wanted = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;
    size_t size = fread(answer, 1, sizeof answer, stdin);
    if (wanted == 0 || size == 0) {
        fputs("usage: bare SIZE < ANSWER\n", stderr);
        return 2;
    }
    int door = listen_somewhere(), epoll = epoll_create1(0), on = 1;
    add(epoll, door);
    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == door) {
                fd = accept(door, NULL, NULL);
                add(epoll, fd);
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                came[fd] = 0;
                continue;
            }
            ssize_t got = read(fd, request, sizeof request);
            if (got <= 0) {
                close(fd);
                continue;
            }
            for (came[fd] += (size_t)got; came[fd] >= wanted; came[fd] -= wanted) {
                if (write(fd, answer, size) != (ssize_t)size) {
                    die("bare: an answer");
                }
            }
        }
    }
}
