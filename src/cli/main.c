/* The program: finds the command, reads its options, runs it. Everything else is in the commands.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/help.h"

static void warn(const char *message) {
    di_log(DI_LOG_WARN, "%s", message);
}

static int usage_error(const di_command *command, const char *message) {
    fprintf(stderr, "deepinfer: error: %s: %s\n", command->name, message);
    fprintf(stderr, "deepinfer: `deepinfer help %s` lists its options\n", command->name);
    return DI_EXIT_USAGE;
}

static int unknown_command(const char *name) {
    const char *near = di_command_suggest(name);
    fprintf(stderr, "deepinfer: error: unknown command '%s'%s%s%s\n", name,
            near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    fprintf(stderr, "deepinfer: `deepinfer help` lists the commands\n");
    return DI_EXIT_USAGE;
}

/* Arguments too few, too many, or a needed option missing. */
static bool complete(const di_command *command, const di_options *o, di_error *err) {
    if (o->num_arguments > command->max_arguments) {
        return di_fail(err, DI_ERR_ARGUMENT, "unexpected argument '%s'",
                       o->arguments[command->max_arguments]);
    }
    if (o->num_arguments < command->min_arguments) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s is missing", command->arguments);
    }
    for (int i = 0; i < o->num_arguments; i++) {
        if (!o->arguments[i][0]) {
            return di_fail(err, DI_ERR_ARGUMENT, "an argument is empty, needed: %s",
                           command->arguments);
        }
    }
    for (int i = 0; i < command->num_required; i++) {
        const di_option *option = &di_option_table[command->required[i]];
        if (!o->values[command->required[i]].given) {
            return di_fail(err, DI_ERR_ARGUMENT, "--%s %s is missing", option->name,
                           option->metavar);
        }
    }
    return true;
}

static int run(const di_command *command, int argc, char **argv) {
    static di_options options; /* zero; borrowed by the command for as long as the program lives */
    di_error err = {0};
    di_options_warn_unknown(environ, warn);
    if (!di_options_parse(&options, command->bit, argc, argv, &err)) {
        return usage_error(command, err.message);
    }
    if (options.help) {
        di_help_command(stdout, command);
        return di_cli_finish(DI_EXIT_WELL);
    }
    if (!di_options_read_environment(&options, command->bit, environ, &err) ||
        !complete(command, &options, &err)) {
        return usage_error(command, err.message);
    }
    return di_cli_finish(di_signals_status(command->run(&options)));
}

/* The next file that is opened takes the lowest number that is free. Where the caller has closed
 * standard input, output or error, messages would go into it; so the number is taken, by something
 * that refuses to be read (0) or written (1, 2) as before. */
static void hold_standard_descriptors(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

int main(int argc, char **argv) {
    hold_standard_descriptors();
    di_signals_install();
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        di_help_overview(stderr);
        return DI_EXIT_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    const di_command *command = di_command_find(name);
    return command ? run(command, argc - 2, argv + 2) : unknown_command(name);
}
