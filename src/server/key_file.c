/* Reading key files: see key_file.h and, for the format, keys.h. */
#include "server/key_file.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/suggest.h"

static const char token_prefix[] = "sk-di-";
static const char hash_prefix[] = "blake2b:";

enum { MOST_TOKENS = 1000000000, MODEL_NAME_BYTES = 256 };

/* ---- secrets ----------------------------------------------------------------------------------*/

bool di_key_crypto_start(di_error *err) {
    if (sodium_init() < 0) {
        return di_fail(err, DI_ERR_INTERNAL, "libsodium does not start: no source of random bytes");
    }
    return true;
}

void di_key_hash(const uint8_t salt[DI_KEY_SALT_BYTES], di_str secret,
                 uint8_t hash[DI_KEY_HASH_BYTES]) {
    crypto_generichash(hash, DI_KEY_HASH_BYTES, (const unsigned char *)secret.data, secret.size,
                       salt, DI_KEY_SALT_BYTES);
}

static bool is_id_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool id_ok(di_str id) {
    if (id.size == 0 || id.size > DI_KEY_ID_BYTES || !is_id_start(id.data[0])) {
        return false;
    }
    for (size_t i = 0; i < id.size; i++) {
        char c = id.data[i];
        if (!is_id_start(c) && c != '_' && c != '.' && c != '-') {
            return false;
        }
    }
    return true;
}

bool di_key_id_check(const char *id, di_error *err) {
    if (!id_ok(di_str_of(id))) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "the key's id is '%.64s', allowed: 1 to %d of a-z 0-9 _ . - , the first a "
                       "letter or digit",
                       id, DI_KEY_ID_BYTES);
    }
    return true;
}

/* The secret has a fixed length, so ids may hold dashes themselves. */
bool di_key_token_split(di_str token, di_str *id, di_str *secret) {
    size_t before = sizeof token_prefix - 1, behind = DI_KEY_SECRET_BYTES + 1;
    if (token.size <= before + behind || !di_str_starts(token, token_prefix)) {
        return false;
    }
    *id = (di_str){token.data + before, token.size - before - behind};
    *secret = (di_str){token.data + token.size - DI_KEY_SECRET_BYTES, DI_KEY_SECRET_BYTES};
    return token.data[token.size - behind] == '-' && id_ok(*id);
}

bool di_key_make(const char *id, char token[DI_KEY_TOKEN_BYTES], char hash[DI_KEY_TOKEN_BYTES * 2],
                 di_error *err) {
    static const char alphabet[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if (!di_key_id_check(id, err) || !di_key_crypto_start(err)) {
        return false;
    }
    char secret[DI_KEY_SECRET_BYTES + 1] = "";
    for (int i = 0; i < DI_KEY_SECRET_BYTES; i++) {
        secret[i] = alphabet[randombytes_uniform(sizeof alphabet - 1)];
    }
    uint8_t salt[DI_KEY_SALT_BYTES], digest[DI_KEY_HASH_BYTES];
    char salt_hex[2 * DI_KEY_SALT_BYTES + 1], digest_hex[2 * DI_KEY_HASH_BYTES + 1];
    randombytes_buf(salt, sizeof salt);
    di_key_hash(salt, (di_str){secret, DI_KEY_SECRET_BYTES}, digest);
    sodium_bin2hex(salt_hex, sizeof salt_hex, salt, sizeof salt);
    sodium_bin2hex(digest_hex, sizeof digest_hex, digest, sizeof digest);
    snprintf(token, DI_KEY_TOKEN_BYTES, "%s%s-%s", token_prefix, id, secret);
    snprintf(hash, (size_t)DI_KEY_TOKEN_BYTES * 2, "%s%s:%s", hash_prefix, salt_hex, digest_hex);
    sodium_memzero(secret, sizeof secret);
    return true;
}

static bool read_hex(const char *text, size_t size, uint8_t *out, size_t bytes) {
    size_t written = 0;
    return size == 2 * bytes && sodium_hex2bin(out, bytes, text, size, NULL, &written, NULL) == 0 &&
           written == bytes;
}

static bool read_hash(const char *text, di_key_secret *secret) {
    size_t prefix = sizeof hash_prefix - 1, size = strlen(text);
    size_t salt = 2 * (size_t)DI_KEY_SALT_BYTES, digest = 2 * (size_t)DI_KEY_HASH_BYTES;
    return size == prefix + salt + 1 + digest && memcmp(text, hash_prefix, prefix) == 0 &&
           text[prefix + salt] == ':' &&
           read_hex(text + prefix, salt, secret->salt, DI_KEY_SALT_BYTES) &&
           read_hex(text + prefix + salt + 1, digest, secret->hash, DI_KEY_HASH_BYTES);
}

/* ---- one record -------------------------------------------------------------------------------*/

static const char *const members[] = {
    "id",
    "hash",
    "priority",
    "models",
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "requests_per_day",
    "tokens_per_day",
    "concurrency",
    "cache",
    "admin",
    "disabled",
    "expires",
    "created",
    "note",
};
enum { NUM_MEMBERS = sizeof members / sizeof *members };

static bool check_members(const json_t *object, const char *where, di_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        int i = 0;
        while (i < NUM_MEMBERS && strcmp(members[i], name) != 0) {
            i++;
        }
        if (i == NUM_MEMBERS) {
            const char *near = di_suggest(name, members, NUM_MEMBERS);
            return di_fail(err, DI_ERR_FORMAT, "%s: unknown member \"%.64s\"%s%s%s", where, name,
                           near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
        }
    }
    return true;
}

static bool read_secrets(const json_t *object, const char *where, di_key *key, di_error *err) {
    const json_t *value = json_object_get(object, "hash");
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count < 1 || count > DI_KEY_HASHES) {
        return di_fail(err, DI_ERR_FORMAT, "%s: \"hash\" has %zu entries, allowed: 1 to %d", where,
                       count, DI_KEY_HASHES);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(one) || !read_hash(json_string_value(one), &key->secrets[i])) {
            return di_fail(err, DI_ERR_FORMAT,
                           "%s: \"hash\" is %s, allowed: \"blake2b:SALT:HASH\" with %d and %d "
                           "hexadecimal digits, as `deepinfer key new` writes it",
                           where, json_is_string(one) ? "another text" : di_json_type_name(one),
                           2 * DI_KEY_SALT_BYTES, 2 * DI_KEY_HASH_BYTES);
        }
    }
    key->num_secrets = (int)count;
    return true;
}

static bool read_models(const json_t *object, const char *where, di_key *key, di_error *err) {
    const json_t *value = json_object_get(object, "models");
    if (!value || json_is_null(value)) {
        return true;
    }
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count < 1 || count > DI_KEY_MODELS) {
        return di_fail(err, DI_ERR_FORMAT,
                       "%s: \"models\" is %s of %zu, allowed: an array of 1 to %d names (leave it "
                       "out to allow all)",
                       where, di_json_type_name(value), count, DI_KEY_MODELS);
    }
    key->models = di_calloc(count, sizeof *key->models);
    if (!key->models) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for the names of models", where);
    }
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(value, i));
        if (!name || !*name || strlen(name) > MODEL_NAME_BYTES) {
            return di_fail(err, DI_ERR_FORMAT,
                           "%s: \"models\" entry %zu is no name of 1 to %d bytes", where, i + 1,
                           MODEL_NAME_BYTES);
        }
        key->models[i] = di_strdup(name);
        if (!key->models[i]) {
            return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for the names of models", where);
        }
        key->num_models = (int)i + 1;
    }
    return true;
}

static bool read_limits(const json_t *object, const char *where, di_key_limits *limits,
                        di_error *err) {
    const struct {
        const char *name;
        int64_t most, *to;
    } rows[] = {
        {"requests_per_minute", MOST_TOKENS, &limits->requests_per_minute},
        {"input_tokens_per_minute", MOST_TOKENS, &limits->input_tokens_per_minute},
        {"output_tokens_per_minute", MOST_TOKENS, &limits->output_tokens_per_minute},
        {"requests_per_day", (int64_t)1 << 53, &limits->requests_per_day},
        {"tokens_per_day", (int64_t)1 << 53, &limits->tokens_per_day},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!di_json_int_or(object, where, rows[i].name, 1, rows[i].most, 0, rows[i].to, err)) {
            return false;
        }
    }
    int64_t concurrency;
    if (!di_json_int_or(object, where, "concurrency", 1, 1000000, 0, &concurrency, err)) {
        return false;
    }
    limits->concurrency = (int)concurrency;
    return true;
}

/* "2027-01-31" or "2027-01-31T12:00:00Z". */
static bool read_time(const char *text, int64_t *seconds) {
    struct tm t = {0};
    const char *end = strptime(text, "%Y-%m-%d", &t);
    size_t date = strlen("2027-01-31");
    if (!end || (size_t)(end - text) != date) {
        return false;
    }
    if (*end) {
        end = strptime(end, "T%H:%M:%SZ", &t);
        if (!end || *end || strlen(text) != strlen("2027-01-31T12:00:00Z")) {
            return false;
        }
    }
    *seconds = (int64_t)timegm(&t);
    return *seconds > 0;
}

static bool read_choices(const json_t *object, const char *where, di_key *key, di_error *err) {
    const json_t *cache = json_object_get(object, "cache");
    const char *word = json_string_value(cache);
    if (cache && !json_is_null(cache)) {
        if (!word || (strcmp(word, "own") != 0 && strcmp(word, "shared") != 0)) {
            return di_fail(
                err, DI_ERR_FORMAT, "%s: \"cache\" is %s%.32s%s, allowed: \"own\" or \"shared\"",
                where, word ? "\"" : "", word ? word : di_json_type_name(cache), word ? "\"" : "");
        }
        key->shared_cache = strcmp(word, "shared") == 0;
    }
    const json_t *expires = json_object_get(object, "expires");
    const char *when = json_string_value(expires);
    if (expires && !json_is_null(expires) && (!when || !read_time(when, &key->expires))) {
        return di_fail(err, DI_ERR_FORMAT,
                       "%s: \"expires\" is %.40s, allowed: \"2027-01-31\" or "
                       "\"2027-01-31T12:00:00Z\" (UTC)",
                       where, when ? when : di_json_type_name(expires));
    }
    for (int i = 0; i < 2; i++) {
        const json_t *text = json_object_get(object, i ? "note" : "created");
        if (text && !json_is_string(text) && !json_is_null(text)) {
            return di_fail(err, DI_ERR_FORMAT, "%s: \"%s\" is %s, allowed: a string", where,
                           i ? "note" : "created", di_json_type_name(text));
        }
    }
    return true;
}

static bool read_record(const json_t *object, const char *where, di_key *key, di_error *err) {
    const char *id;
    int64_t priority;
    if (!json_is_object(object)) {
        return di_fail(err, DI_ERR_FORMAT, "%s: this is %s, a line holds a JSON object", where,
                       di_json_type_name(object));
    }
    if (!check_members(object, where, err) || !di_json_string(object, where, "id", &id, err)) {
        return false;
    }
    di_error why;
    if (!di_key_id_check(id, &why)) {
        return di_fail(err, DI_ERR_FORMAT, "%s: %s", where, why.message);
    }
    snprintf(key->id, sizeof key->id, "%s", id);
    if (!di_json_int_or(object, where, "priority", -1000000, 1000000, 0, &priority, err)) {
        return false;
    }
    key->priority = (int)priority;
    return read_secrets(object, where, key, err) && read_models(object, where, key, err) &&
           read_limits(object, where, &key->limits, err) && read_choices(object, where, key, err) &&
           di_json_bool_or(object, where, "admin", false, &key->admin, err) &&
           di_json_bool_or(object, where, "disabled", false, &key->disabled, err);
}

/* ---- sets -------------------------------------------------------------------------------------*/

static void free_set(di_key_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        di_key *key = &set->records[i].key;
        for (int j = 0; j < key->num_models; j++) {
            di_free(key->models[j]);
        }
        di_free(key->models);
        sodium_memzero(key->secrets, sizeof key->secrets);
    }
    di_free(set->records);
    di_free((void *)set->by_id);
    di_free(set);
}

void di_key_set_release(di_key_set *set) {
    if (set && atomic_fetch_sub_explicit(&set->references, 1, memory_order_acq_rel) == 1) {
        free_set(set);
    }
}

static int compare_records(const void *a, const void *b) {
    const di_key_record *const *x = a, *const *y = b;
    int order = strcmp((*x)->key.id, (*y)->key.id);
    return order ? order : ((*x)->key.line > (*y)->key.line) - ((*x)->key.line < (*y)->key.line);
}

const di_key_record *di_key_set_find(const di_key_set *set, di_str id) {
    char text[DI_KEY_ID_BYTES + 1] = "";
    if (id.size > DI_KEY_ID_BYTES) {
        return NULL;
    }
    memcpy(text, id.data, id.size);
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(set->by_id[middle]->key.id, text);
        if (order == 0) {
            return set->by_id[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

/* Sorts by id; two records of one id are a fault. */
static bool sort_set(di_key_set *set, const char *name, di_error *err) {
    set->by_id = di_calloc(set->count + 1, sizeof *set->by_id);
    if (!set->by_id) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for %zu keys", name, set->count);
    }
    for (size_t i = 0; i < set->count; i++) {
        set->records[i].set = set;
        set->by_id[i] = &set->records[i];
    }
    qsort((void *)set->by_id, set->count, sizeof *set->by_id, compare_records);
    for (size_t i = 1; i < set->count; i++) {
        const di_key *a = &set->by_id[i - 1]->key, *b = &set->by_id[i]->key;
        if (strcmp(a->id, b->id) == 0) {
            return di_fail(err, DI_ERR_FORMAT, "%s, line %d: the id \"%s\" stands on line %d too",
                           name, b->line, b->id, a->line);
        }
    }
    return true;
}

static bool is_blank(const char *line, size_t size) {
    size_t i = 0;
    while (i < size && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r')) {
        i++;
    }
    return i == size || line[i] == '#';
}

static bool read_line(di_key_set *set, size_t *capacity, const char *line, size_t size, int number,
                      const char *name, di_error *err) {
    char where[128];
    snprintf(where, sizeof where, "%.96s, line %d", name, number);
    if (set->count == DI_KEYS_MOST) {
        return di_fail(err, DI_ERR_FORMAT, "%s: more than %d keys", where, DI_KEYS_MOST);
    }
    di_key_record *records = di_grow(set->records, set->count, capacity, sizeof *set->records);
    if (!records) {
        return di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for %zu keys", where, set->count + 1);
    }
    set->records = records;
    json_t *object = di_json_parse(line, size, 8, where, err);
    if (!object) {
        return false;
    }
    di_key_record *record = &set->records[set->count++];
    *record = (di_key_record){.key.line = number};
    bool ok = read_record(object, where, &record->key, err);
    json_decref(object);
    return ok;
}

di_key_set *di_key_set_parse(const char *text, size_t size, const char *name, di_error *err) {
    di_key_set *set = di_calloc(1, sizeof *set);
    if (!set) {
        di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory for its keys", name);
        return NULL;
    }
    atomic_init(&set->references, 1);
    size_t capacity = 0, at = 0;
    bool ok = true;
    for (int number = 1; ok && at < size; number++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at;
        if (!is_blank(text + at, length)) {
            ok = read_line(set, &capacity, text + at, length, number, name, err);
        }
        at += length + 1;
    }
    if (!ok || !sort_set(set, name, err)) {
        free_set(set);
        return NULL;
    }
    return set;
}

di_key_set *di_key_set_anonymous(di_error *err) {
    di_key_set *set = di_calloc(1, sizeof *set);
    di_key_record *record = di_calloc(1, sizeof *record);
    if (!set || !record) {
        di_free(set);
        di_free(record);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the keys");
        return NULL;
    }
    atomic_init(&set->references, 1);
    set->records = record;
    set->count = 1;
    snprintf(record->key.id, sizeof record->key.id, "anonymous");
    record->key.shared_cache = true;
    record->key.admin = true;
    if (!sort_set(set, "keys", err)) {
        free_set(set);
        return NULL;
    }
    return set;
}

const char *di_key_file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
