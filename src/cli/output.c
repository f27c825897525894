/* Messages and standard output: see cli.h. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* Writing failed because nobody reads any more. Asked of the system, since errno is long gone. */
static bool reader_is_gone(void) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return ferror(stdout) && poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP));
}

int di_cli_fail(const di_error *err) {
    if (!reader_is_gone()) {
        fprintf(stderr, "deepinfer: error: %s\n", err->message);
    }
    return err->code == DI_ERR_CANCELLED ? DI_EXIT_INTERRUPTED : DI_EXIT_FAILED;
}

static bool report(void) {
    if (!reader_is_gone()) {
        fprintf(stderr, "deepinfer: error: standard output: cannot write: %s\n", strerror(errno));
    }
    return false;
}

bool di_cli_write(const void *data, size_t bytes) {
    bool broken = ferror(stdout) != 0;
    return fwrite(data, 1, bytes, stdout) == bytes || (!broken && report());
}

int di_cli_finish(int status) {
    bool broken = ferror(stdout) != 0; /* was reported when it happened */
    if (!broken && fflush(stdout) == 0) {
        return status;
    }
    if (!broken) {
        report();
    }
    return status == DI_EXIT_WELL ? DI_EXIT_FAILED : status;
}
