/* Signals of the program. The three variables here are global because a handler has no other way to
 * know; nothing but the handlers and the functions of cli.h touches them. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static volatile sig_atomic_t interrupted;
static const char *volatile guarded;

static void remove_guarded(void) {
    const char *path = guarded;
    if (path) {
        unlink(path);
    }
}

static void on_interrupt(int signal_number) {
    if (interrupted) { /* nobody took the first one: the program is stuck or loading */
        remove_guarded();
        _exit(128 + signal_number);
    }
    interrupted = 1;
}

static void on_terminate(int signal_number) {
    remove_guarded();
    _exit(128 + signal_number);
}

static void on_bus_error(int signal_number) {
    static const char message[] =
        "deepinfer: error: a model file became shorter, or its disk failed, while it was in use\n";
    (void)signal_number;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0) {
        /* nothing is left to tell it to */
    }
    remove_guarded();
    _exit(DI_EXIT_FAILED);
}

static void handle(int signal_number, void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

/* A terminal that is closed ends the program, unless it was started by nohup. */
static void handle_hangup(void) {
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
        handle(SIGHUP, on_terminate);
    }
}

void di_signals_install(void) {
    handle_hangup();
    handle(SIGPIPE, SIG_IGN);
    handle(SIGXFSZ, SIG_IGN);
    handle(SIGBUS, on_bus_error);
    handle(SIGTERM, on_terminate);
    handle(SIGINT, on_terminate);
}

void di_signals_catch_interrupt(void) {
    handle(SIGINT, on_interrupt);
}

bool di_signals_interrupted(void) {
    return interrupted != 0;
}

bool di_signals_take_interrupt(void) {
    bool was = interrupted != 0;
    interrupted = 0;
    return was;
}

void di_signals_guard(const char *path) {
    guarded = path;
}
