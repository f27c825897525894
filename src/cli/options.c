/* Reading command line and environment by the option table: see options.h. */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/suggest.h"

const di_option di_option_table[DI_NUM_OPTIONS] = {
#define OPTION(id, name, letter, type, low, high, preset, metavar, env, commands, help)            \
    {name, letter, DI_OPTION_##type, low, high, preset, metavar, env, commands, help},
#include "cli/options_table.h"
#undef OPTION
};

static const struct {
    const char *name;
    di_option_id id;
} other_names[] = {
#define OPTION(id, ...)
#define OTHER_NAME(name, id) {name, DI_OPT_##id},
#include "cli/options_table.h"
#undef OPTION
};

static const struct {
    const char *name;
    di_option_id id;
} env_names[] = {
#define OPTION(id, ...)
#define ENV_NAME(name, id) {name, DI_OPT_##id},
#include "cli/options_table.h"
#undef OPTION
};

static const char env_prefix[] = "DEEPINFER_";

const char *di_option_other_name(const di_option *option) {
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++) {
        if (option == &di_option_table[other_names[i].id]) {
            return other_names[i].name;
        }
    }
    return NULL;
}

void di_option_env_name(const di_option *option, char out[64]) {
    for (size_t i = 0; i < sizeof env_names / sizeof *env_names; i++) {
        if (option == &di_option_table[env_names[i].id]) {
            snprintf(out, 64, "%s", env_names[i].name);
            return;
        }
    }
    int used = snprintf(out, 64, "%s", env_prefix);
    for (const char *c = option->name; *c && used < 63; c++) {
        out[used++] = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
    }
    out[used] = 0;
}

void di_option_range(const di_option *option, char out[80]) {
    out[0] = 0;
    switch (option->type) {
    case DI_OPTION_INTEGER:
    case DI_OPTION_REAL:
        snprintf(out, 80, "%.10g to %.10g", option->low, option->high);
        break;
    case DI_OPTION_COUNT:
        snprintf(out, 80, "-1, or %.10g to %.10g", option->low, option->high);
        break;
    case DI_OPTION_SHARE:
        snprintf(out, 80, "above %.10g, up to %.10g", option->low, option->high);
        break;
    case DI_OPTION_BYTES:
        snprintf(out, 80, "bytes%s, with K, M, G or T behind the number, or 1%% to 100%%",
                 option->low > 0 ? " above 0" : "");
        break;
    case DI_OPTION_SEED:
        snprintf(out, 80, "0 to 18446744073709551615");
        break;
    case DI_OPTION_CHOICE: { /* "a|b|c" -> "a or b or c" */
        size_t used = 0;
        for (const char *c = option->metavar; *c && used < 70; c++) {
            used += (size_t)snprintf(out + used, 80 - used, *c == '|' ? " or " : "%c", *c);
        }
        break;
    }
    default:
        break;
    }
}

/* ---- one value --------------------------------------------------------------------------------*/

static bool refuse(const di_option *option, const char *label, const char *text, di_error *err) {
    char range[80];
    di_option_range(option, range);
    return di_fail(err, DI_ERR_ARGUMENT, "%s is '%s', allowed: %s", label, text, range);
}

/* Does word match a choice of so many characters? One that ends in "[:N]" may have a number. */
static bool matches(const char *choice, size_t length, const char *word) {
    static const char number[] = "[:N]";
    size_t tail = sizeof number - 1;
    bool numbered = length > tail && strncmp(choice + length - tail, number, tail) == 0;
    length -= numbered ? tail : 0;
    if (strncmp(choice, word, length) != 0) {
        return false;
    }
    const char *rest = word + length;
    size_t digits = *rest == ':' ? strspn(rest + 1, "0123456789") : 0;
    return *rest == 0 || (numbered && digits > 0 && digits < 4 && rest[1 + digits] == 0);
}

static bool is_choice(const char *choices, const char *word) {
    for (const char *c = choices; *word && *c;) {
        size_t length = strcspn(c, "|");
        if (matches(c, length, word)) {
            return true;
        }
        c += length + (c[length] == '|');
    }
    return false;
}

/* "1.5G", "512M", "4096"; or "50%" of what is free now. share: what stands before '%', as a part of
 * 1; else 0. */
static bool read_bytes(const char *text, int64_t *bytes, double *share) {
    static const char units[] = "KMGT";
    char *end;
    double value = strtod(text, &end);
    if (!isdigit((unsigned char)text[0]) || !isfinite(value)) {
        return false;
    }
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (*end == '%') {
        if (!(value >= 1 && value <= 100)) {
            return false;
        }
        *share = value / 100;
        value = *share * (double)di_memory_available();
        end++;
    } else if (unit) {
        value = ldexp(value, 10 * (int)(unit - units + 1));
        end++;
    }
    *bytes = value < 9e18 ? (int64_t)value : 0;
    return *end == 0 && value < 9e18;
}

static bool read_number(const di_option *option, const char *text, di_option_value *value) {
    char *end;
    errno = 0;
    /* strto* skip white space, and strtod takes hexadecimal digits, which strtoll leaves. */
    if (!text[0] || (!isdigit((unsigned char)text[0]) && !strchr("-+.", text[0])) ||
        strpbrk(text, "xX")) {
        return false;
    }
    if (option->type == DI_OPTION_BYTES) {
        return read_bytes(text, &value->integer, &value->real) &&
               (double)value->integer >= option->low;
    }
    if (option->type == DI_OPTION_SEED) {
        value->seed = strtoull(text, &end, 10);
        return text[0] != '-' && errno == 0 && *end == 0;
    }
    if (option->type == DI_OPTION_INTEGER || option->type == DI_OPTION_COUNT) {
        value->integer = strtoll(text, &end, 10);
        double v = (double)value->integer;
        return errno == 0 && *end == 0 &&
               ((v >= option->low && v <= option->high) ||
                (option->type == DI_OPTION_COUNT && value->integer == -1));
    }
    value->real = strtod(text, &end);
    bool low_ok =
        option->type == DI_OPTION_SHARE ? value->real > option->low : value->real >= option->low;
    return *end == 0 && end != text && isfinite(value->real) && low_ok &&
           value->real <= option->high;
}

/* Reads `text` as the option's value; `label` names it in messages ("--top-k", "DEEPINFER_..."). */
static bool set_value(di_options *o, di_option_id id, const char *label, const char *text,
                      di_error *err) {
    const di_option *option = &di_option_table[id];
    di_option_value value = {.given = true, .text = text};
    switch (option->type) {
    case DI_OPTION_FLAG: /* from the environment only */
        value.flag =
            strcmp(text, "1") == 0 || strcmp(text, "yes") == 0 || strcmp(text, "true") == 0;
        if (!value.flag && strcmp(text, "0") != 0 && strcmp(text, "no") != 0 &&
            strcmp(text, "false") != 0) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "%s is '%s', allowed: 1 or 0 (yes, no, true, false)", label, text);
        }
        break;
    case DI_OPTION_TEXT:
        break;
    case DI_OPTION_PATH:
        if (!*text) {
            return di_fail(err, DI_ERR_ARGUMENT, "%s is empty, a path is needed", label);
        }
        break;
    case DI_OPTION_CHOICE:
        if (!is_choice(option->metavar, text)) {
            return refuse(option, label, text, err);
        }
        break;
    default:
        if (!read_number(option, text, &value)) {
            return refuse(option, label, text, err);
        }
    }
    o->values[id] = value;
    return true;
}

/* ---- the environment --------------------------------------------------------------------------*/

bool di_options_read_environment(di_options *o, unsigned command, char *const *environment,
                                 di_error *err) {
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        const di_option *option = &di_option_table[id];
        if (!option->env || !(option->commands & command) || o->values[id].given) {
            continue;
        }
        char name[64];
        di_option_env_name(option, name);
        size_t length = strlen(name);
        for (char *const *e = environment; *e; e++) {
            if (strncmp(*e, name, length) == 0 && (*e)[length] == '=' && (*e)[length + 1] &&
                !set_value(o, (di_option_id)id, name, *e + length + 1, err)) {
                return false;
            }
        }
    }
    return true;
}

void di_options_warn_unknown(char *const *environment, void (*warn)(const char *message)) {
    char known[DI_NUM_OPTIONS][64];
    const char *names[DI_NUM_OPTIONS];
    size_t count = 0;
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        if (di_option_table[id].env) {
            di_option_env_name(&di_option_table[id], known[count]);
            names[count] = known[count];
            count++;
        }
    }
    for (char *const *e = environment; *e; e++) {
        const char *equals = strchr(*e, '=');
        if (strncmp(*e, env_prefix, sizeof env_prefix - 1) != 0 || !equals) {
            continue;
        }
        char name[64], message[256];
        snprintf(name, sizeof name, "%.*s", (int)(equals - *e < 63 ? equals - *e : 63), *e);
        bool is_known = false;
        for (size_t i = 0; i < count; i++) {
            is_known |= strcmp(name, names[i]) == 0;
        }
        if (!is_known) {
            const char *near = di_suggest(name, names, count);
            snprintf(message, sizeof message, "environment variable %s is not known%s%s%s", name,
                     near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
            warn(message);
        }
    }
}

/* ---- the command line -------------------------------------------------------------------------*/

/* Names of the command's options without their dashes, "help" and the "no-" forms among them. */
typedef struct name_list {
    char text[2 * DI_NUM_OPTIONS + 1][40];
    const char *names[2 * DI_NUM_OPTIONS + 1];
    size_t count;
} name_list;

static void add_name(name_list *list, const char *prefix, const char *name) {
    snprintf(list->text[list->count], sizeof *list->text, "%s%s", prefix, name);
    list->names[list->count] = list->text[list->count];
    list->count++;
}

/* word[0..length) with its dashes. */
static bool unknown_option(unsigned command, const char *word, size_t length, di_error *err) {
    name_list list = {.count = 0};
    char given[64];
    snprintf(given, sizeof given, "%.*s", (int)(length < 63 ? length : 63), word);
    const char *name = given + strspn(given, "-");
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        const di_option *option = &di_option_table[id];
        if (option->commands & command) {
            add_name(&list, "", option->name);
            if (option->type == DI_OPTION_FLAG) {
                add_name(&list, "no-", option->name);
            }
        } else if (strcmp(name, option->name) == 0) {
            return di_fail(err, DI_ERR_ARGUMENT, "option %s does not belong to this command",
                           given);
        }
    }
    add_name(&list, "", "help");
    const char *near = di_suggest(name, list.names, list.count);
    if (near) {
        return di_fail(err, DI_ERR_ARGUMENT, "unknown option %s; did you mean --%s?", given, near);
    }
    return di_fail(err, DI_ERR_ARGUMENT, "unknown option %s", given);
}

/* The option of this command with a name of `length` bytes; DI_NUM_OPTIONS if there is none. */
static di_option_id find_option(unsigned command, const char *name, size_t length) {
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        const di_option *option = &di_option_table[id];
        if ((option->commands & command) && strlen(option->name) == length &&
            strncmp(option->name, name, length) == 0) {
            return (di_option_id)id;
        }
    }
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++) {
        if ((di_option_table[other_names[i].id].commands & command) &&
            strlen(other_names[i].name) == length &&
            strncmp(other_names[i].name, name, length) == 0) {
            return other_names[i].id;
        }
    }
    return DI_NUM_OPTIONS;
}

static di_option_id find_letter(unsigned command, char letter) {
    for (int id = 0; id < DI_NUM_OPTIONS; id++) {
        if ((di_option_table[id].commands & command) && di_option_table[id].letter == letter) {
            return (di_option_id)id;
        }
    }
    return DI_NUM_OPTIONS;
}

/* Where the parser stands in argv. */
typedef struct cursor {
    char *const *argv;
    int argc, at;
} cursor;

static bool set_flag(di_options *o, di_option_id id, const char *label, const char *attached,
                     bool flag, di_error *err) {
    if (attached) {
        return di_fail(err, DI_ERR_ARGUMENT, "option %s takes no value, '%s' was given", label,
                       attached);
    }
    o->values[id] = (di_option_value){.given = true, .flag = flag};
    return true;
}

/* `attached` is the value in the same word, NULL if there is none. */
static bool take(di_options *o, di_option_id id, const char *label, const char *attached, cursor *c,
                 di_error *err) {
    if (di_option_table[id].type == DI_OPTION_FLAG) {
        return set_flag(o, id, label, attached, true, err);
    }
    if (!attached && c->at >= c->argc) {
        return di_fail(err, DI_ERR_ARGUMENT, "option %s needs a value: %s", label,
                       di_option_table[id].metavar);
    }
    return set_value(o, id, label, attached ? attached : c->argv[c->at++], err);
}

static bool take_long(di_options *o, unsigned command, const char *word, cursor *c, di_error *err) {
    const char *name = word + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const char *attached = equals ? equals + 1 : NULL;
    char label[64];
    snprintf(label, sizeof label, "--%.*s", (int)(length < 60 ? length : 60), name);
    if (length == 4 && strncmp(name, "help", 4) == 0 && !attached) {
        o->help = true;
        return true;
    }
    di_option_id id = find_option(command, name, length);
    if (id != DI_NUM_OPTIONS) {
        return take(o, id, label, attached, c, err);
    }
    if (length > 3 && strncmp(name, "no-", 3) == 0) {
        id = find_option(command, name + 3, length - 3);
        if (id != DI_NUM_OPTIONS && di_option_table[id].type == DI_OPTION_FLAG) {
            return set_flag(o, id, label, attached, false, err);
        }
    }
    return unknown_option(command, word, length + 2, err);
}

static bool take_short(di_options *o, unsigned command, const char *word, cursor *c,
                       di_error *err) {
    if (strcmp(word, "-h") == 0) {
        o->help = true;
        return true;
    }
    di_option_id id = find_letter(command, word[1]);
    if (id == DI_NUM_OPTIONS) {
        return unknown_option(command, word, strlen(word), err);
    }
    char label[3] = {'-', word[1], 0};
    return take(o, id, label, word[2] ? word + 2 : NULL, c, err);
}

bool di_options_parse(di_options *o, unsigned command, int argc, char *const *argv, di_error *err) {
    cursor c = {argv, argc, 0};
    bool only_arguments = false;
    while (c.at < c.argc && !o->help) {
        const char *word = c.argv[c.at++];
        bool ok = true;
        if (only_arguments || word[0] != '-' || word[1] == 0) {
            if (o->num_arguments == DI_MAX_ARGUMENTS) {
                return di_fail(err, DI_ERR_ARGUMENT, "unexpected argument '%s'", word);
            }
            o->arguments[o->num_arguments++] = word;
        } else if (strcmp(word, "--") == 0) {
            only_arguments = true;
        } else if (word[1] == '-') {
            ok = take_long(o, command, word, &c, err);
        } else {
            ok = take_short(o, command, word, &c, err);
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}
