/* The commands of the program, once: what they take, what they do, and their entry points. */
#ifndef DI_CLI_COMMANDS_H
#define DI_CLI_COMMANDS_H

#include "cli/options.h"

typedef struct di_command {
    unsigned bit; /* its IN_ bit in options.h */
    const char *name;
    const char *arguments; /* "DIR", "[COMMAND]" or "" */
    int min_arguments, max_arguments;
    const char *summary; /* a line */
    const char *details; /* paragraphs, separated by '\n' */
    const char *example;
    di_option_id required[2]; /* options that must be given */
    int num_required;
    int (*run)(const di_options *o); /* returns the exit status */
} di_command;

extern const di_command di_command_table[];
extern const int di_num_commands;

/* NULL if there is none of that name. */
const di_command *di_command_find(const char *name);

/* The nearest command's name, NULL if none is near. */
const char *di_command_suggest(const char *name);

int di_command_run(const di_options *o);
int di_command_generate(const di_options *o);
int di_command_serve(const di_options *o);
int di_command_logits(const di_options *o);
int di_command_replay_check(const di_options *o);
int di_command_calibrate(const di_options *o);
int di_command_tokenize(const di_options *o);
int di_command_detokenize(const di_options *o);
int di_command_recipe(const di_options *o);
int di_command_inspect(const di_options *o);
int di_command_grammar(const di_options *o);
int di_command_key(const di_options *o);
int di_command_version(const di_options *o);
int di_command_help(const di_options *o);

#endif
