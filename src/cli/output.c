/* Messages and standard output: see cli.h. */
#include <poll.h>
#include <stdio.h>
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

static bool failed(di_error *err) {
    return di_fail_errno(err, "standard output: cannot write");
}

bool di_cli_write(const void *data, size_t bytes, di_error *err) {
    return fwrite(data, 1, bytes, stdout) == bytes || failed(err);
}

bool di_cli_flush(di_error *err) {
    return fflush(stdout) == 0 || failed(err);
}

int di_cli_finish(int status) {
    di_error err = {0};
    bool broken = ferror(stdout) != 0;
    if (status != DI_EXIT_WELL || (di_cli_flush(&err) && !broken)) {
        return status;
    }
    if (err.code == DI_OK) {
        failed(&err); /* errno is still that of the write: nothing but printing came between */
    }
    return di_cli_fail(&err);
}
