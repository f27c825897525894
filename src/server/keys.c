/* The current set of API keys, and admission: see keys.h. */
#include "server/keys.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "server/key_file.h"

struct di_keys {
    char *path;           /* NULL: without keys */
    pthread_mutex_t lock; /* of `set`, for as long as it takes to read it and count a reference */
    pthread_mutex_t reloading;
    di_key_set *set;
};

/* ---- reading ----------------------------------------------------------------------------------*/

/* A key file that others may change, or all may read, has lost its point. Groups may read it:
 * service managers pass secrets on so. */
static bool check_mode(const char *path, di_error *err) {
    struct stat s;
    if (stat(path, &s) != 0) {
        return di_fail_errno(err, "%s", path);
    }
    if (S_ISREG(s.st_mode) && (s.st_mode & 027) != 0) {
        return di_fail(err, DI_ERR_IO,
                       "%s has mode %04o, allowed: 0600 or 0640, so that no others read or change "
                       "it (chmod 600)",
                       path, (unsigned)(s.st_mode & 07777));
    }
    return true;
}

/* An empty file is a set of no keys, of which nobody has one. */
bool di_key_file_read(const char *path, char **text, size_t *size, di_error *err) {
    struct stat s;
    if (!check_mode(path, err)) {
        return false;
    }
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode) && s.st_size == 0) {
        *text = di_calloc(1, 1);
        *size = 0;
        return *text || di_fail(err, DI_ERR_NO_MEMORY, "%s: no memory", path);
    }
    return di_file_read(path, DI_KEY_FILE_BYTES, text, size, err);
}

static di_key_set *read_set(const char *path, di_error *err) {
    if (!path) {
        return di_key_set_anonymous(err);
    }
    char *text;
    size_t size;
    if (!di_key_file_read(path, &text, &size, err)) {
        return NULL;
    }
    di_key_set *set = di_key_set_parse(text, size, di_key_file_name(path), err);
    di_free(text);
    return set;
}

di_keys *di_keys_open(const char *path, di_error *err) {
    if (!di_key_crypto_start(err)) {
        return NULL;
    }
    di_keys *keys = di_calloc(1, sizeof *keys);
    if (!keys || (path && !(keys->path = di_strdup(path)))) {
        di_free(keys);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the keys");
        return NULL;
    }
    keys->set = read_set(path, err);
    if (!keys->set) {
        di_free(keys->path);
        di_free(keys);
        return NULL;
    }
    pthread_mutex_init(&keys->lock, NULL);
    pthread_mutex_init(&keys->reloading, NULL);
    return keys;
}

void di_keys_close(di_keys *keys) {
    if (keys) {
        di_key_set_release(keys->set);
        pthread_mutex_destroy(&keys->lock);
        pthread_mutex_destroy(&keys->reloading);
        di_free(keys->path);
        di_free(keys);
    }
}

/* One reference to the set as it is now. */
static di_key_set *hold_set(di_keys *keys) {
    pthread_mutex_lock(&keys->lock);
    di_key_set *set = keys->set;
    atomic_fetch_add_explicit(&set->references, 1, memory_order_relaxed);
    pthread_mutex_unlock(&keys->lock);
    return set;
}

bool di_keys_reload(di_keys *keys, size_t *count, di_error *err) {
    pthread_mutex_lock(&keys->reloading);
    di_key_set *fresh = read_set(keys->path, err);
    if (fresh) {
        if (count) {
            *count = fresh->count;
        }
        pthread_mutex_lock(&keys->lock);
        di_key_set *old = keys->set;
        keys->set = fresh;
        pthread_mutex_unlock(&keys->lock);
        di_key_set_release(old);
    }
    pthread_mutex_unlock(&keys->reloading);
    return fresh != NULL;
}

bool di_keys_required(const di_keys *keys) {
    return keys->path != NULL;
}

size_t di_keys_count(di_keys *keys) {
    di_key_set *set = hold_set(keys);
    size_t count = set->count;
    di_key_set_release(set);
    return count;
}

const di_key *di_keys_at(di_keys *keys, size_t i) {
    di_key_set *set = hold_set(keys);
    if (i < set->count) {
        return &set->records[i].key; /* with the reference */
    }
    di_key_set_release(set);
    return NULL;
}

bool di_keys_parse_check(const char *text, size_t size, di_error *err) {
    di_key_set *set = di_key_crypto_start(err) ? di_key_set_parse(text, size, "keys", err) : NULL;
    di_key_set_release(set);
    return set != NULL;
}

/* ---- admission --------------------------------------------------------------------------------*/

const char *di_key_verdict_message(di_key_verdict verdict) {
    switch (verdict) {
    case DI_KEY_FINE:
        return "the API key is valid";
    case DI_KEY_MISSING:
        return "no API key was given; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
    case DI_KEY_DISABLED:
        return "this API key is disabled";
    case DI_KEY_EXPIRED:
        return "this API key has expired";
    default:
        return "the API key is not valid";
    }
}

/* Hashes the secret DI_KEY_HASHES times, whether there is a record or not and however many secrets
 * it has, so that the time tells neither. */
static bool secret_fits(const di_key *key, di_str secret) {
    static const di_key_secret nobody;
    unsigned fits = 0;
    for (int i = 0; i < DI_KEY_HASHES; i++) {
        bool real = key && i < key->num_secrets;
        const di_key_secret *s = real ? &key->secrets[i] : &nobody;
        uint8_t hash[DI_KEY_HASH_BYTES];
        di_key_hash(s->salt, secret, hash);
        fits |= (unsigned)(sodium_memcmp(hash, s->hash, sizeof hash) == 0) & (unsigned)real;
    }
    return fits != 0;
}

static di_key_verdict judge(const di_key_set *set, di_str token, const di_key **key) {
    /* Of what has not a key's form, some bytes are hashed for appearance's sake. */
    di_str id, secret;
    bool formed = di_key_token_split(token, &id, &secret);
    if (!formed) {
        id = DI_STR("-");
        secret = (di_str){token.data,
                          token.size < DI_KEY_SECRET_BYTES ? token.size : DI_KEY_SECRET_BYTES};
    }
    const di_key_record *record = di_key_set_find(set, id);
    if (!secret_fits(record ? &record->key : NULL, secret) || !formed || !record) {
        return DI_KEY_UNKNOWN;
    }
    if (record->key.disabled) {
        return DI_KEY_DISABLED;
    }
    if (record->key.expires && (int64_t)time(NULL) >= record->key.expires) {
        return DI_KEY_EXPIRED;
    }
    *key = &record->key;
    return DI_KEY_FINE;
}

di_key_verdict di_keys_admit(di_keys *keys, di_str token, const di_key **key) {
    *key = NULL;
    if (keys->path && token.size == 0) {
        return DI_KEY_MISSING;
    }
    di_key_set *set = hold_set(keys);
    if (!keys->path) {
        *key = &set->records[0].key;
        return DI_KEY_FINE;
    }
    di_key_verdict verdict = judge(set, token, key);
    if (verdict != DI_KEY_FINE) {
        di_key_set_release(set);
    }
    return verdict;
}

static di_key_set *set_of(const di_key *key) {
    return ((const di_key_record *)key)->set;
}

void di_key_keep(di_keys *keys, const di_key *key) {
    (void)keys;
    atomic_fetch_add_explicit(&set_of(key)->references, 1, memory_order_relaxed);
}

void di_key_release(di_keys *keys, const di_key *key) {
    (void)keys;
    if (key) {
        di_key_set_release(set_of(key));
    }
}

bool di_key_allows_model(const di_key *key, di_str model) {
    for (int i = 0; i < key->num_models; i++) {
        if (di_str_is(model, key->models[i])) {
            return true;
        }
    }
    return key->num_models == 0;
}

/* ---- salts ------------------------------------------------------------------------------------*/

enum { PLAIN_SALT_BYTES = 64 };

/* "k:ID[:SALT]" of a key of its own, "s:SALT" among those that share: neither can spell the other,
 * and an id has no colon. A long salt is "#HASH", which a short one cannot begin with. */
const char *di_key_cache_salt(const di_key *key, di_str client_salt,
                              char out[DI_KEY_CACHE_SALT_BYTES]) {
    char salt[2 * DI_KEY_HASH_BYTES + 2] = "";
    if (client_salt.size > PLAIN_SALT_BYTES ||
        (client_salt.size > 0 &&
         (client_salt.data[0] == '#' || memchr(client_salt.data, 0, client_salt.size)))) {
        static const uint8_t none[DI_KEY_SALT_BYTES];
        uint8_t hash[DI_KEY_HASH_BYTES];
        di_key_hash(none, client_salt, hash);
        salt[0] = '#';
        sodium_bin2hex(salt + 1, sizeof salt - 1, hash, sizeof hash);
    } else if (client_salt.size > 0) {
        memcpy(salt, client_salt.data, client_salt.size);
    }
    if (key->shared_cache && client_salt.size == 0) {
        return NULL;
    }
    if (key->shared_cache) {
        snprintf(out, DI_KEY_CACHE_SALT_BYTES, "s:%s", salt);
    } else {
        snprintf(out, DI_KEY_CACHE_SALT_BYTES, "k:%s%s%s", key->id, client_salt.size > 0 ? ":" : "",
                 salt);
    }
    return out;
}
