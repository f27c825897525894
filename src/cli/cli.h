/* What the commands share: exit statuses, messages, standard output, signals. */
#ifndef DI_CLI_CLI_H
#define DI_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "cli/options.h"

enum {
    DI_EXIT_WELL = 0,
    DI_EXIT_FAILED = 1,       /* the work failed; also, quietly, a closed pipe */
    DI_EXIT_USAGE = 2,        /* the command line or the environment is wrong */
    DI_EXIT_INTERRUPTED = 130 /* Ctrl-C; of another signal main() makes 128 + its number */
};

/* One line "deepinfer: error: ..." on standard error; nothing if standard output has lost its
 * reader, for then that is the error. Returns DI_EXIT_FAILED, or DI_EXIT_INTERRUPTED for
 * DI_ERR_CANCELLED. */
int di_cli_fail(const di_error *err);

/* To standard output. */
bool di_cli_write(const void *data, size_t bytes, di_error *err);
bool di_cli_flush(di_error *err);

/* Flushes standard output; `status`, or after all DI_EXIT_FAILED and a message if that was 0 and
 * something could not be written. */
int di_cli_finish(int status);

/* ---- signals (signals.c) ---- */

/* From now on: SIGPIPE and SIGXFSZ are errors of write(); SIGBUS (a mapped file shrank) is a
 * message and exit status 1, SIGTERM, SIGINT and (unless it was ignored, as under nohup) SIGHUP end
 * the program; all remove writers' temporary files (base/file.h) first, and the one named by
 * di_signals_guard. */
void di_signals_install(void);

/* SIGTERM, Ctrl-C and SIGHUP are only noted from now on, so that a command ends by itself and its
 * files are whole; a second one, unless the first was taken, ends the program. */
void di_signals_catch(void);

/* Whether one of them came. Only Ctrl-C can be taken back: true if it was that. */
bool di_signals_interrupted(void);
bool di_signals_take_interrupt(void);
/* Whether SIGTERM or SIGHUP came. */
bool di_signals_ended(void);
/* What came, for messages. */
const char *di_signals_name(void);
/* The exit status of a command that says `status`. */
int di_signals_status(int status);

/* Another temporary file to remove when a signal ends the program; NULL for none. Borrowed. */
void di_signals_guard(const char *path);

#endif
