/* Everything that explains the program, made from the tables of options and commands. The functions
 * only print; the caller checks the stream. */
#ifndef DI_CLI_HELP_H
#define DI_CLI_HELP_H

#include <stdio.h>

#include "cli/commands.h"

void di_help_overview(FILE *out);
void di_help_command(FILE *out, const di_command *command);
void di_help_man(FILE *out);      /* deepinfer.1 in troff */
void di_help_bash(FILE *out);     /* completion */
void di_help_markdown(FILE *out); /* docs/options.md */

#endif
