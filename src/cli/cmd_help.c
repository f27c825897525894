/* deepinfer help: prints what help.h makes. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/help.h"

int di_command_help(const di_options *o) {
    if (o->values[DI_OPT_MAN].flag) {
        di_help_man(stdout);
    } else if (o->values[DI_OPT_BASH].flag) {
        di_help_bash(stdout);
    } else if (o->values[DI_OPT_MARKDOWN].flag) {
        di_help_markdown(stdout);
    } else if (o->num_arguments == 0) {
        di_help_overview(stdout);
    } else {
        const di_command *command = di_command_find(o->arguments[0]);
        if (!command) {
            const char *near = di_command_suggest(o->arguments[0]);
            fprintf(stderr, "deepinfer: error: help: unknown command '%s'%s%s%s\n", o->arguments[0],
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
            return DI_EXIT_USAGE;
        }
        di_help_command(stdout, command);
    }
    return DI_EXIT_WELL;
}
