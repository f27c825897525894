/* `deepinfer help`, --help, bash completion and docs/options.md: see help.h. */
#include "cli/help.h"

#include <ctype.h>
#include <string.h>

enum { WIDTH = 80, HELP_INDENT = 6, NAME_WIDTH = 14 };

/* Prints words at `indent`, breaking lines before WIDTH; '\n' begins a paragraph. A line that
 * begins with a blank is printed as it is, to be copied, and the next one such follows at once. */
static void print_wrapped(FILE *out, const char *text, int indent) {
    while (*text) {
        int column = indent;
        if (*text == ' ') {
            size_t size = strcspn(text, "\n");
            fprintf(out, "%.*s\n", (int)size, text);
            text += size + (text[size] == '\n');
            if (*text && *text != ' ') {
                fputc('\n', out);
            }
            continue;
        }
        fprintf(out, "%*s", indent, "");
        while (*text && *text != '\n') {
            int length = (int)strcspn(text, " \n");
            if (column > indent && column + 1 + length > WIDTH) {
                fprintf(out, "\n%*s", indent, "");
                column = indent;
            } else if (column > indent) {
                fputc(' ', out);
                column++;
            }
            fwrite(text, 1, (size_t)length, out);
            column += length;
            text += length;
            text += *text == ' ';
        }
        fputc('\n', out);
        if (*text == '\n') {
            fputc('\n', out);
            text++;
        }
    }
}

/* "-m DIR, --model DIR" or "--think, --no-think". */
static void print_forms(FILE *out, const di_option *o) {
    const char *gap = o->type == DI_OPTION_FLAG ? "" : " ";
    if (o->letter) {
        fprintf(out, "-%c%s%s, ", o->letter, gap, o->metavar);
    }
    fprintf(out, "--%s%s%s", o->name, gap, o->metavar);
    if (o->type == DI_OPTION_FLAG) {
        fprintf(out, ", --no-%s", o->name);
    }
}

static void print_option(FILE *out, const di_option *o) {
    char range[80], name[64], notes[384];
    di_option_range(o, range);
    di_option_env_name(o, name);
    fprintf(out, "  ");
    print_forms(out, o);
    fputc('\n', out);
    print_wrapped(out, o->help, HELP_INDENT);
    snprintf(notes, sizeof notes, "%s%s%s%s%s%s%s%s%s", *o->preset ? "[default: " : "", o->preset,
             *o->preset ? "] " : "", *range ? "[allowed: " : "", range, *range ? "] " : "",
             o->env ? "[env: " : "", o->env ? name : "", o->env ? "]" : "");
    if (*notes) {
        print_wrapped(out, notes, HELP_INDENT);
    }
}

static bool is_required(const di_command *command, int id) {
    for (int i = 0; i < command->num_required; i++) {
        if ((int)command->required[i] == id) {
            return true;
        }
    }
    return false;
}

static bool has_options(const di_command *command) {
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        if (di_option_table[id].commands & command->bit) {
            return true;
        }
    }
    return false;
}

/* A long list of choices stands with the option, not in the line that shows its use. */
static const char *short_metavar(const di_option *o) {
    enum { LONGEST = 40 };
    return strlen(o->metavar) <= LONGEST ? o->metavar : "CHOICE";
}

/* "deepinfer logits -m DIR --ids N,N,... [options]" */
static void print_synopsis(FILE *out, const di_command *command) {
    fprintf(out, "deepinfer %s", command->name);
    for (int i = 0; i < command->num_required; i++) {
        const di_option *o = &di_option_table[command->required[i]];
        if (o->letter) {
            fprintf(out, " -%c %s", o->letter, short_metavar(o));
        } else {
            fprintf(out, " --%s %s", o->name, short_metavar(o));
        }
    }
    fprintf(out, "%s%s%s", *command->arguments ? " " : "", command->arguments,
            has_options(command) ? " [options]" : "");
}

void di_help_overview(FILE *out) {
    fprintf(out, "DeepInfer runs DeepSeek-V4.1-Flash models.\n\nusage: deepinfer COMMAND "
                 "[options]\n\n");
    for (int i = 0; i < di_num_commands; i++) {
        fprintf(out, "  %-*s%s\n", NAME_WIDTH, di_command_table[i].name,
                di_command_table[i].summary);
    }
    fprintf(out, "\n`deepinfer help COMMAND` explains one. Try:\n\n  %s\n",
            di_command_table[0].example);
}

void di_help_command(FILE *out, const di_command *command) {
    fprintf(out, "usage: ");
    print_synopsis(out, command);
    fprintf(out, "\n\n%c%s.\n", toupper((unsigned char)command->summary[0]), command->summary + 1);
    if (*command->details) {
        fputc('\n', out);
        print_wrapped(out, command->details, 0);
    }
    fprintf(out, "\noptions:\n");
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        if (di_option_table[id].commands & command->bit) {
            print_option(out, &di_option_table[id]);
        }
    }
    fprintf(out, "  -h, --help\n      Print this.\n\nexample:\n  %s\n", command->example);
}

/* ---- bash ---- */

static void print_bash_words(FILE *out, const di_command *command) {
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        const di_option *o = &di_option_table[id];
        if (o->commands & command->bit) {
            const char *other = di_option_other_name(o);
            fprintf(out, "--%s ", o->name);
            if (other) {
                fprintf(out, "--%s ", other);
            }
            if (o->type == DI_OPTION_FLAG) {
                fprintf(out, "--no-%s ", o->name);
            }
        }
    }
    fprintf(out, "--help");
}

/* A case pattern of all options of one type, long and short. */
static void print_bash_pattern(FILE *out, di_option_type type) {
    const char *separator = "        ";
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        const di_option *o = &di_option_table[id];
        if (o->type == type && type != DI_OPTION_CHOICE) {
            fprintf(out, "%s--%s", separator, o->name);
            separator = "|";
            if (o->letter) {
                fprintf(out, "|-%c", o->letter);
            }
        }
    }
    fprintf(out, ")\n");
}

void di_help_bash(FILE *out) {
    fprintf(out, "# bash completion for deepinfer; made by `deepinfer help --bash`\n"
                 "_deepinfer() {\n"
                 "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
                 "    local commands='");
    for (int i = 0; i < di_num_commands; i++) {
        fprintf(out, "%s%s", i ? " " : "", di_command_table[i].name);
    }
    fprintf(out, "'\n    COMPREPLY=()\n    if [ \"$COMP_CWORD\" -eq 1 ] || [ \"$before\" = help ]; "
                 "then\n        COMPREPLY=($(compgen -W \"$commands\" -- \"$word\"))\n        "
                 "return\n    fi\n    case $before in\n");
    print_bash_pattern(out, DI_OPTION_PATH);
    fprintf(out, "            COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n");
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        const di_option *o = &di_option_table[id];
        if (o->type == DI_OPTION_CHOICE) {
            const char *other = di_option_other_name(o);
            fprintf(out, "        --%s%s%s)\n            COMPREPLY=($(compgen -W '", o->name,
                    other ? "|--" : "", other ? other : "");
            for (const char *c = o->metavar; *c; c++) { /* "a|b[:N]" -> "a b" */
                c += *c == '[' ? strcspn(c, "|") : 0;
                if (!*c) {
                    break;
                }
                fputc(*c == '|' ? ' ' : *c, out);
            }
            fprintf(out, "' -- \"$word\")); return ;;\n");
        }
    }
    fprintf(out, "    esac\n    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < di_num_commands; i++) {
        const di_command *command = &di_command_table[i];
        fprintf(out, "        %s)\n            COMPREPLY=($(compgen -W '", command->name);
        print_bash_words(out, command);
        fprintf(out, "' -- \"$word\"))\n%s            ;;\n",
                command->bit == IN_INSPECT
                    ? "            [[ $word == -* ]] || COMPREPLY=($(compgen "
                      "-d -- \"$word\"))\n"
                    : "");
    }
    fprintf(out, "    esac\n}\ncomplete -o filenames -F _deepinfer deepinfer\n");
}

/* ---- docs/options.md ---- */

static void print_markdown_row(FILE *out, int id, const di_command *command) {
    const di_option *o = &di_option_table[id];
    char range[80], name[64];
    di_option_range(o, range);
    di_option_env_name(o, name);
    fprintf(out, "| ");
    if (o->letter) {
        fprintf(out, "`-%c`, ", o->letter);
    }
    fprintf(out, "`--%s", o->name);
    if (o->type == DI_OPTION_CHOICE) {
        fprintf(out, "`");
    } else {
        fprintf(out, "%s%s`", *o->metavar ? " " : "", o->metavar);
    }
    if (o->type == DI_OPTION_FLAG) {
        fprintf(out, ", `--no-%s`", o->name);
    }
    fprintf(out, " | %s | %s | %s%s%s | %s |\n", range,
            is_required(command, id) ? "(must be given)" : o->preset, o->env ? "`" : "",
            o->env ? name : "", o->env ? "`" : "", o->help);
}

void di_help_markdown(FILE *out) {
    fprintf(out,
            "# Commands and options\n\n"
            "Made from the tables in `src/cli/` by `deepinfer help --markdown`; a test compares.\n"
            "\n`--name value` and `--name=value` are the same. The command line beats the "
            "environment, the environment beats the defaults. Exit status: 0 all is well, 1 the "
            "work failed (also when the reader of standard output has gone), 2 the command line or "
            "an environment variable is wrong, 130 stopped by Ctrl-C, 143 by SIGTERM.\n");
    for (int i = 0; i < di_num_commands; i++) {
        const di_command *command = &di_command_table[i];
        fprintf(out, "\n## deepinfer %s\n\n    ", command->name);
        print_synopsis(out, command);
        fprintf(out, "\n\n%c%s.\n", toupper((unsigned char)command->summary[0]),
                command->summary + 1);
        for (const char *p = command->details, *before = ""; *p;) {
            int length = (int)strcspn(p, "\n");
            fprintf(out, "%s%.*s\n", *p == ' ' && *before == ' ' ? "" : "\n", length, p);
            before = p;
            p += length + (p[length] == '\n');
        }
        fprintf(out, "\nExample: `%s`\n", command->example);
        if (has_options(command)) {
            fprintf(out,
                    "\n| option | allowed | default | environment | |\n|---|---|---|---|---|\n");
            for (int id = 0; id < DI_NUM_OPTIONS; id++) {
                if (di_option_table[id].commands & command->bit) {
                    print_markdown_row(out, id, command);
                }
            }
        }
    }
}
