/* The option table as data, and reading a command line and the environment by it.
 *
 * `--name value`, `--name=value`, `-x value` and `-xvalue` are the same; a flag has a `--no-name`
 * too; the last of repeated options counts; `--` ends them. The command line beats the environment.
 * What is unknown or out of range is refused with the nearest right name or the allowed range. */
#ifndef DI_CLI_OPTIONS_H
#define DI_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Commands as bits: where an option belongs. */
enum {
    IN_RUN = 1 << 0,
    IN_GENERATE = 1 << 1,
    IN_LOGITS = 1 << 2,
    IN_TOKENIZE = 1 << 3,
    IN_DETOKENIZE = 1 << 4,
    IN_INSPECT = 1 << 5,
    IN_VERSION = 1 << 6,
    IN_HELP = 1 << 7,
    IN_REPLAY_CHECK = 1 << 8,
    IN_RECIPE = 1 << 9,
    IN_SERVE = 1 << 10,
    IN_KEY = 1 << 11,
    IN_CALIBRATE = 1 << 12,
    IN_GRAMMAR = 1 << 15,

    IN_ANSWER = IN_RUN | IN_GENERATE,
    IN_DRAW = IN_ANSWER | IN_CALIBRATE, /* tokens are drawn */
    IN_STEPS = IN_ANSWER | IN_SERVE,    /* an engine that plans steps */
    IN_MANY = IN_GENERATE | IN_SERVE,   /* with many requests at once */
    IN_ENGINE = IN_STEPS | IN_CALIBRATE | IN_LOGITS | IN_REPLAY_CHECK,
    IN_MODEL = IN_ENGINE | IN_TOKENIZE | IN_DETOKENIZE | IN_RECIPE | IN_GRAMMAR,
};

typedef enum di_option_type {
    DI_OPTION_FLAG,
    DI_OPTION_TEXT,
    DI_OPTION_PATH,
    DI_OPTION_CHOICE,  /* one of metavar's words, separated by '|'; a[:N]: a number may follow */
    DI_OPTION_INTEGER, /* low to high */
    DI_OPTION_COUNT,   /* -1, or low to high */
    DI_OPTION_SEED,    /* 0 to 2^64 - 1 */
    DI_OPTION_BYTES,   /* "4G", "512M", or "50%" of the memory that is free */
    DI_OPTION_REAL,    /* low to high */
    DI_OPTION_SHARE,   /* above low, up to high */
} di_option_type;

typedef enum di_option_id {
#define OPTION(id, ...) DI_OPT_##id,
#include "cli/options_table.h"
#undef OPTION
    DI_NUM_OPTIONS
} di_option_id;

typedef struct di_option {
    const char *name;
    char letter; /* 0 = none */
    di_option_type type;
    double low, high;
    const char *preset, *metavar;
    bool env;
    unsigned commands;
    const char *help;
} di_option;

extern const di_option di_option_table[DI_NUM_OPTIONS];

/* By type: flag; text (also PATH, CHOICE); integer (also COUNT, BYTES); seed; real (also SHARE, and
 * of BYTES given in per cent: that share). */
typedef struct di_option_value {
    bool given;
    bool flag;
    const char *text; /* borrowed from argv or the environment */
    int64_t integer;
    uint64_t seed;
    double real;
} di_option_value;

enum { DI_MAX_ARGUMENTS = 4 };

typedef struct di_options {
    bool help; /* --help or -h stood there; nothing else was checked */
    di_option_value values[DI_NUM_OPTIONS];
    const char *arguments[DI_MAX_ARGUMENTS]; /* what is no option, in order */
    int num_arguments;
} di_options;

/* Reads DEEPINFER_NAME for every option of `command` (one IN_ bit) that has one and was not given;
 * an empty variable counts as absent. Fails with DI_ERR_ARGUMENT, naming the variable. */
bool di_options_read_environment(di_options *o, unsigned command, char *const *environment,
                                 di_error *err);

/* Calls warn(message) for each DEEPINFER_ variable that no option has. */
void di_options_warn_unknown(char *const *environment, void (*warn)(const char *message));

/* Reads the words behind the command's name. Fails with DI_ERR_ARGUMENT. */
bool di_options_parse(di_options *o, unsigned command, int argc, char *const *argv, di_error *err);

/* A second spelling of an option's name, or NULL. */
const char *di_option_other_name(const di_option *option);

/* "DEEPINFER_TOP_P" of an option, NUL-terminated. */
void di_option_env_name(const di_option *option, char out[64]);

/* What its values may be, for messages and documentation: "0 to 100", "cpu or ref"; "" if free. */
void di_option_range(const di_option *option, char out[80]);

/* The value given, or the one that stands behind it. */
static inline int64_t di_options_integer(const di_options *o, di_option_id id, int64_t absent) {
    return o->values[id].given ? o->values[id].integer : absent;
}

static inline const char *di_options_text(const di_options *o, di_option_id id,
                                          const char *absent) {
    return o->values[id].given ? o->values[id].text : absent;
}

#endif
