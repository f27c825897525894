/* deepinfer key: makes, lists and checks the keys of a server (server/keys.h). */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "server/keys.h"
#include "server/quota.h"

/* ---- new --------------------------------------------------------------------------------------*/

static void set_count(json_t *record, const char *name, const di_options *o, di_option_id id) {
    if (o->values[id].given) {
        json_object_set_new(record, name, json_integer(o->values[id].integer));
    }
}

static void set_text(json_t *record, const char *name, const di_options *o, di_option_id id) {
    if (o->values[id].given) {
        json_object_set_new(record, name, json_string(o->values[id].text));
    }
}

static void set_models(json_t *record, const char *names) {
    json_t *models = json_array();
    for (const char *at = names; at;) {
        const char *comma = strchr(at, ',');
        size_t size = comma ? (size_t)(comma - at) : strlen(at);
        json_array_append_new(models, json_stringn(at, size));
        at = comma ? comma + 1 : NULL;
    }
    json_object_set_new(record, "models", models);
}

/* "2026-11-30T09:00:00Z": later times are greater texts. */
static void write_time(time_t when, char out[32]) {
    struct tm utc;
    gmtime_r(&when, &utc);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

/* The record as a line; NULL: a text that is no UTF-8, or no memory. free() it. */
static char *record_line(const di_options *o, const char *id, const char *hash) {
    char created[32];
    write_time(time(NULL), created);
    json_t *record = json_object();
    json_object_set_new(record, "id", json_string(id));
    json_object_set_new(record, "hash", json_string(hash));
    set_count(record, "priority", o, DI_OPT_PRIORITY);
    set_count(record, "requests_per_minute", o, DI_OPT_REQUESTS_PER_MINUTE);
    set_count(record, "input_tokens_per_minute", o, DI_OPT_INPUT_TOKENS_PER_MINUTE);
    set_count(record, "output_tokens_per_minute", o, DI_OPT_OUTPUT_TOKENS_PER_MINUTE);
    set_count(record, "requests_per_day", o, DI_OPT_REQUESTS_PER_DAY);
    set_count(record, "tokens_per_day", o, DI_OPT_TOKENS_PER_DAY);
    set_count(record, "concurrency", o, DI_OPT_CONCURRENCY);
    if (o->values[DI_OPT_MODELS].given) {
        set_models(record, o->values[DI_OPT_MODELS].text);
    }
    set_text(record, "cache", o, DI_OPT_CACHE);
    if (o->values[DI_OPT_ADMIN].flag) {
        json_object_set_new(record, "admin", json_true());
    }
    set_text(record, "expires", o, DI_OPT_EXPIRES);
    json_object_set_new(record, "created", json_string(created));
    set_text(record, "note", o, DI_OPT_NOTE);
    char *line = json_dumps(record, JSON_COMPACT);
    json_decref(record);
    return line;
}

static bool add_record(const di_options *o, const char *path, const char *id, const char *hash,
                       di_error *err) {
    char *line = record_line(o, id, hash);
    if (!line) {
        return di_fail(err, DI_ERR_ARGUMENT, "a text given for the key is not valid UTF-8");
    }
    bool ok = di_keys_append(path, line, err);
    free(line);
    if (ok && o->values[DI_OPT_EXPIRES].given) { /* a day or a time, checked by now */
        char now[32];
        write_time(time(NULL), now);
        if (strcmp(o->values[DI_OPT_EXPIRES].text, now) <= 0) {
            di_log(DI_LOG_WARN, "key '%s' has expired already: it is %s", id, now);
        }
    }
    return ok;
}

/* A new record, or a new secret of one that is there. */
static bool make_key(const di_options *o, const char *path, bool renew, di_error *err) {
    char token[DI_KEY_TOKEN_BYTES], hash[DI_KEY_TOKEN_BYTES * 2];
    if (o->num_arguments < 2) {
        return di_fail(err, DI_ERR_ARGUMENT, "key %s needs an id: deepinfer key %s ID",
                       o->arguments[0], o->arguments[0]);
    }
    const char *id = o->arguments[1];
    int keep = o->values[DI_OPT_DROP_OLD].flag ? 0 : DI_KEY_HASHES - 1;
    bool ok =
        di_key_make(id, token, hash, err) &&
        (renew ? di_keys_add_hash(path, id, hash, keep, err) : add_record(o, path, id, hash, err));
    if (ok) {
        fprintf(stderr, "deepinfer: %s has a new key for '%s'. It is shown only now:\n", path, id);
        ok = di_cli_write(token, strlen(token), err) && di_cli_write("\n", 1, err);
    }
    explicit_bzero(token, sizeof token);
    return ok;
}

/* ---- list -------------------------------------------------------------------------------------*/

static void show_count(const char *what, int64_t count) {
    if (count > 0) {
        printf("  %s %lld", what, (long long)count);
    }
}

/* quota: what the key has used today, or NULL. */
static void show_key(const di_key *key, di_quota *quota) {
    bool expired = key->expires && (int64_t)time(NULL) >= key->expires;
    const char *status = key->disabled ? "disabled" : expired ? "expired" : "active";
    printf("%-*s  %-8s  priority %d", 16, key->id, status, key->priority);
    show_count("concurrency", key->limits.concurrency);
    show_count("requests/min", key->limits.requests_per_minute);
    show_count("in/min", key->limits.input_tokens_per_minute);
    show_count("out/min", key->limits.output_tokens_per_minute);
    show_count("requests/day", key->limits.requests_per_day);
    show_count("tokens/day", key->limits.tokens_per_day);
    printf("  cache %s", key->shared_cache ? "shared" : "own");
    for (int i = 0; i < key->num_models; i++) {
        printf("%s%s", i ? "," : "  models ", key->models[i]);
    }
    if (key->admin) {
        printf("  admin");
    }
    if (key->expires) {
        char date[32];
        write_time((time_t)key->expires, date);
        printf("  expires %s", date);
    }
    if (quota) {
        di_quota_status s;
        di_quota_get_status(quota, key, &s);
        printf("  today %lld requests, %lld tokens in, %lld out", (long long)s.day_requests,
               (long long)s.day_input_tokens, (long long)s.day_output_tokens);
    }
    putchar('\n');
}

static bool list_keys(const di_options *o, const char *path, di_error *err) {
    di_quota_options options = {.journal = di_options_text(o, DI_OPT_QUOTA_JOURNAL, NULL),
                                .read_only = true};
    di_quota *quota = options.journal ? di_quota_open(&options, err) : NULL;
    di_keys *keys = quota || !options.journal ? di_keys_open(path, err) : NULL;
    const di_key *key;
    for (size_t i = 0; keys && (key = di_keys_at(keys, i)); i++) {
        show_key(key, quota);
        di_key_release(keys, key);
    }
    bool ok = keys != NULL;
    di_keys_close(keys);
    di_quota_close(quota);
    return ok;
}

/* ---- check ------------------------------------------------------------------------------------*/

/* The first line of standard input without its end. */
static bool read_token(char *token, size_t bytes, di_error *err) {
    if (!fgets(token, (int)bytes, stdin)) {
        return di_fail(err, DI_ERR_ARGUMENT, "there is no key on standard input");
    }
    token[strcspn(token, "\r\n")] = 0;
    return true;
}

static bool check_key(di_keys *keys, di_error *err) {
    char token[4 * DI_KEY_TOKEN_BYTES];
    if (!read_token(token, sizeof token, err)) {
        return false;
    }
    const di_key *key;
    di_key_verdict verdict = di_keys_admit(keys, di_str_of(token), &key);
    explicit_bzero(token, sizeof token);
    if (!key) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s",
                       verdict == DI_KEY_MISSING ? "there is no key on standard input"
                                                 : di_key_verdict_message(verdict));
    }
    show_key(key, NULL);
    di_key_release(keys, key);
    return true;
}

static bool check_keys(const di_options *o, const char *path, di_error *err) {
    di_keys *keys = di_keys_open(path, err);
    if (!keys) {
        return false;
    }
    bool ok = true;
    if (o->values[DI_OPT_KEY_STDIN].flag) {
        ok = check_key(keys, err);
    } else {
        printf("%zu keys, no fault\n", di_keys_count(keys));
    }
    di_keys_close(keys);
    return ok;
}

int di_command_key(const di_options *o) {
    const char *path = o->values[DI_OPT_API_KEY_FILE].text, *what = o->arguments[0];
    di_error err = {0};
    bool ok;
    if (strcmp(what, "new") == 0) {
        ok = make_key(o, path, false, &err);
    } else if (strcmp(what, "renew") == 0) {
        ok = make_key(o, path, true, &err);
    } else if (o->num_arguments == 1 && strcmp(what, "list") == 0) {
        ok = list_keys(o, path, &err);
    } else if (o->num_arguments == 1 && strcmp(what, "check") == 0) {
        ok = check_keys(o, path, &err);
    } else {
        di_fail(&err, DI_ERR_ARGUMENT,
                "key: '%s' is not known, allowed: new ID, renew ID, list, check",
                o->arguments[o->num_arguments - 1]);
        (void)di_cli_fail(&err);
        return DI_EXIT_USAGE;
    }
    return ok ? di_cli_finish(DI_EXIT_WELL) : di_cli_fail(&err);
}
