/* Signals of the program. The two variables here are global because a handler has no other way to
 * know; nothing but the handlers and the functions of cli.h touches them. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/cli.h"

static volatile sig_atomic_t noted; /* the signal's number */
static const char *volatile guarded;

static void remove_temporaries(void) {
    const char *path = guarded;
    if (path) {
        unlink(path);
    }
    di_writers_unlink();
}

static void on_terminate(int signal_number) {
    remove_temporaries();
    _exit(128 + signal_number);
}

static void on_noted(int signal_number) {
    if (noted) { /* nobody took the first one: the program is stuck */
        on_terminate(signal_number);
    }
    noted = signal_number;
}

static void on_bus_error(int signal_number) {
    static const char message[] =
        "deepinfer: error: a model file became shorter, or its disk failed, while it was in use\n";
    (void)signal_number;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0) {
        /* nothing is left to tell it to */
    }
    remove_temporaries();
    _exit(DI_EXIT_FAILED);
}

static void handle(int signal_number, void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

static void handle_ends(void (*handler)(int)) {
    struct sigaction before;
    handle(SIGTERM, handler);
    handle(SIGINT, handler);
    /* A terminal that is closed ends the program, unless it was started by nohup. */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        handle(SIGHUP, handler);
    }
}

void di_signals_install(void) {
    handle(SIGPIPE, SIG_IGN);
    handle(SIGXFSZ, SIG_IGN);
    handle(SIGBUS, on_bus_error);
    handle_ends(on_terminate);
}

void di_signals_catch(void) {
    handle_ends(on_noted);
}

bool di_signals_interrupted(void) {
    return noted != 0;
}

bool di_signals_take_interrupt(void) {
    bool was = noted == SIGINT;
    noted = was ? 0 : noted;
    return was;
}

bool di_signals_ended(void) {
    return noted != 0 && noted != SIGINT;
}

const char *di_signals_name(void) {
    return noted == SIGTERM ? "SIGTERM" : noted == SIGHUP ? "SIGHUP" : "Ctrl-C";
}

int di_signals_status(int status) {
    return status == DI_EXIT_INTERRUPTED && di_signals_ended() ? 128 + noted : status;
}

void di_signals_guard(const char *path) {
    guarded = path;
}
