/* Any text as a key file: refused, or a set in which every record is found by its id and whose
 * limits are what the quotas rely on. And any bytes as a key: never let in by a set without it. */
#include <stdlib.h>
#include <string.h>

#include "server/key_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check(const di_key_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        const di_key *key = &set->records[i].key;
        const di_key_limits *l = &key->limits;
        require(di_key_set_find(set, di_str_of(key->id)) == &set->records[i]);
        require(di_key_id_check(key->id, NULL));
        require(key->num_secrets >= 1 && key->num_secrets <= DI_KEY_HASHES);
        require(l->requests_per_minute >= 0 && l->input_tokens_per_minute >= 0);
        require(l->output_tokens_per_minute >= 0 && l->requests_per_day >= 0);
        require(l->tokens_per_day >= 0 && l->tokens_per_day <= (int64_t)1 << 53);
        require(l->concurrency >= 0 && key->expires >= 0);
        char salt[DI_KEY_CACHE_SALT_BYTES];
        const char *made = di_key_cache_salt(key, (di_str){0}, salt);
        require((made == NULL) == key->shared_cache);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    require(di_key_crypto_start(NULL));
    di_str text = {(const char *)data, size}, id, secret;
    di_error err = {0};
    di_key_set *set = di_key_set_parse(text.data, text.size, "keys", &err);
    if (set) {
        check(set);
    } else {
        require(err.code == DI_ERR_FORMAT && strncmp(err.message, "keys", 4) == 0);
    }
    di_key_set_release(set);
    if (di_key_token_split(text, &id, &secret)) {
        require(id.size >= 1 && id.size <= DI_KEY_ID_BYTES && secret.size == DI_KEY_SECRET_BYTES);
        require(id.data > text.data && secret.data + secret.size == text.data + text.size);
    }
    char salt[DI_KEY_CACHE_SALT_BYTES];
    const di_key key = {.id = "a"}, common = {.id = "b", .shared_cache = true};
    require(di_key_cache_salt(&key, text, salt) && strncmp(salt, "k:a", 3) == 0);
    require(size == 0 || strncmp(di_key_cache_salt(&common, text, salt), "s:", 2) == 0);
    return 0;
}
