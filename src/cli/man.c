/* The manual page deepinfer(1), in troff's man macros, from the tables. See help.h. */
#include <ctype.h>
#include <string.h>

#include "base/version.h"
#include "cli/help.h"

/* Text and what ends it, with what troff would take for itself escaped. */
static void print_text(FILE *out, const char *text, const char *end) {
    bool line_start = true;
    for (const char *c = text; *c; c++) {
        if (line_start && (*c == '.' || *c == '\'')) {
            fputs("\\&", out);
        }
        line_start = *c == '\n';
        if (*c == '\\') {
            fputs("\\e", out);
        } else if (*c == '-') {
            fputs("\\-", out);
        } else if (*c == '\n') {
            fputs(c[1] == ' ' ? "\n" : "\n.PP\n", out); /* a line with a blank is not filled */
        } else {
            fputc(*c, out);
        }
    }
    fprintf(out, "%s\n", end);
}

static void print_forms(FILE *out, const di_option *o) {
    char name[64];
    if (o->letter) {
        fprintf(out, "\\fB\\-%c\\fR", o->letter);
        if (o->type != DI_OPTION_FLAG) {
            fprintf(out, " \\fI%s\\fR", o->metavar);
        }
        fputs(", ", out);
    }
    snprintf(name, sizeof name, "%s", o->name);
    fputs("\\fB\\-\\-", out);
    for (const char *c = name; *c; c++) {
        fputs(*c == '-' ? "\\-" : (char[]){*c, 0}, out);
    }
    fputs("\\fR", out);
    if (o->type == DI_OPTION_FLAG) {
        fprintf(out, ", \\fB\\-\\-no\\-%s\\fR\n", o->name);
    } else {
        fprintf(out, " \\fI%s\\fR\n", o->metavar);
    }
}

static void print_option(FILE *out, const di_option *o) {
    char range[80];
    di_option_range(o, range);
    fputs(".TP\n", out);
    print_forms(out, o);
    print_text(out, o->help, "");
    if (*range) {
        fputs("Allowed: ", out);
        fputs(range[0] == '-' ? "\\" : "", out);
        fprintf(out, "%s.\n", range);
    }
    if (*o->preset) {
        fprintf(out, "Default: ");
        fprintf(out, "%s%s.\n", o->preset[0] == '-' ? "\\" : "", o->preset);
    }
    fputs("Commands:", out);
    for (int i = 0; i < di_num_commands; i++) {
        if (di_command_table[i].bit & o->commands) {
            fprintf(out, " %s", di_command_table[i].name);
        }
    }
    fputs(".\n", out);
}

static void print_commands(FILE *out) {
    fputs(".SH COMMANDS\n", out);
    for (int i = 0; i < di_num_commands; i++) {
        const di_command *command = &di_command_table[i];
        fprintf(out, ".SS %s", command->name);
        for (int r = 0; r < command->num_required; r++) {
            fprintf(out, " \\-\\-%s %s", di_option_table[command->required[r]].name,
                    di_option_table[command->required[r]].metavar);
        }
        fprintf(out, " %s\n%c", command->arguments, toupper((unsigned char)command->summary[0]));
        print_text(out, command->summary + 1, ".");
        if (*command->details) {
            fputs(".PP\n", out);
            print_text(out, command->details, "");
        }
    }
}

static void print_environment(FILE *out) {
    fputs(".SH ENVIRONMENT\nEach variable sets the option of its name where the command line does "
          "not; an empty one counts as absent.\n",
          out);
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        if (di_option_table[id].env) {
            char name[64];
            di_option_env_name(&di_option_table[id], name);
            fprintf(out, ".TP\n.B %s\n", name);
            fputs("\\-\\-", out);
            print_text(out, di_option_table[id].name, "");
        }
    }
    fputs(".TP\n.B NO_COLOR\nIf set, nothing is coloured.\n", out);
}

void di_help_man(FILE *out) {
    fprintf(
        out,
        ".TH DEEPINFER 1 \"\" \"DeepInfer %s\" \"User Commands\"\n"
        ".SH NAME\ndeepinfer \\- run DeepSeek\\-V4.1\\-Flash models\n"
        ".SH SYNOPSIS\n.B deepinfer\n.I COMMAND\n.RI [ options ]\n"
        ".SH DESCRIPTION\nRuns models of DeepSeek\\-V4.1\\-Flash's architecture from folders in "
        "the released file format.\n",
        di_version_string());
    print_commands(out);
    fputs(".SH OPTIONS\nAn option and its value may be two words or joined by '='. A flag's "
          "\\fB\\-\\-no\\-\\fR form takes it back. Of a repeated option the last counts.\n",
          out);
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        print_option(out, &di_option_table[id]);
    }
    fputs(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nExplain the command.\n", out);
    print_environment(out);
    fputs(
        ".SH \"EXIT STATUS\"\n.TP\n.B 0\nAll is well.\n.TP\n.B 1\nThe work failed, or nobody reads "
        "standard output any more (then quietly).\n.TP\n.B 2\nThe command line or an environment "
        "variable is wrong.\n.TP\n.B 130\nStopped by Ctrl\\-C.\n.TP\n.B 143\nStopped by "
        "SIGTERM.\n.SH EXAMPLES\n",
        out);
    for (int i = 0; i < di_num_commands; i++) {
        fputs(".PP\n.nf\n", out);
        print_text(out, di_command_table[i].example, "");
        fputs(".fi\n", out);
    }
}
