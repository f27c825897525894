/* API keys: who may ask, for what, and how much.
 *
 * A key as a client sends it is "sk-di-ID-SECRET": ID names the record, SECRET is 43 letters and
 * digits drawn at random (256 bits). The file holds salted hashes alone: BLAKE2b of the secret,
 * keyed with 16 random bytes of its own (libsodium). A slow password hash would buy nothing, since
 * nobody can try 2^256 secrets, and would let strangers load the processor; a fast one is right for
 * secrets that a machine drew.
 *
 * The file has one JSON object a line; blank lines and lines that begin with # are passed over:
 *
 *     {"id": "alice", "hash": "blake2b:SALT:HASH", "concurrency": 8, "tokens_per_day": 1000000}
 *
 * docs/serving-operations.md lists the members. Unknown members, and whatever else is wrong, are
 * refused with the line. A file that others than its owner may read is refused too.
 *
 * Reloading swaps the whole set at once: a request keeps the record it was let in with until it
 * releases it. All functions may be called from any thread. */
#ifndef DI_SERVER_KEYS_H
#define DI_SERVER_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

enum {
    DI_KEY_ID_BYTES = 32,     /* longest id: a-z 0-9 _ . - , first a letter or digit */
    DI_KEY_SECRET_BYTES = 43, /* letters and digits */
    DI_KEY_TOKEN_BYTES = 96,  /* enough for a whole key and a NUL */
    DI_KEY_HASHES = 4,        /* secrets of one record, so that they can be changed in peace */
    DI_KEY_MODELS = 64,       /* names in "models" */
    DI_KEY_FILE_BYTES = 16 << 20,
    DI_KEYS_MOST = 65536,   /* records in a file */
    DI_KEY_SALT_BYTES = 16, /* of a hash */
    DI_KEY_HASH_BYTES = 32,
    DI_KEY_CACHE_SALT_BYTES = 128 /* of di_key_cache_salt, with the NUL */
};

/* What one key may use; 0 = no limit. Tokens in are all of the prompt, cached ones too; tokens out
 * are those that were generated, reasoning and all n answers included. */
typedef struct di_key_limits {
    int64_t requests_per_minute, input_tokens_per_minute, output_tokens_per_minute;
    int64_t requests_per_day, tokens_per_day; /* days of UTC; tokens in and out together */
    int concurrency;                          /* requests under way */
} di_key_limits;

typedef struct di_key_secret {
    uint8_t salt[DI_KEY_SALT_BYTES], hash[DI_KEY_HASH_BYTES];
} di_key_secret;

/* A record, read-only. It lives until di_key_release. */
typedef struct di_key {
    char id[DI_KEY_ID_BYTES + 1];
    int line;     /* in the file */
    int priority; /* of its requests: lower goes first (di_request_params.priority); default 0 */
    /* A client's "priority" may make its requests less urgent than that, not more. */
    di_key_limits limits;
    bool admin;        /* may see /metrics and the like; default false */
    bool shared_cache; /* its prompts' prefixes are shared with all others whose keys say so */
    bool disabled;     /* known, but refused */
    int64_t expires;   /* seconds since 1970 from which on it is refused; 0 = never */
    int num_models;    /* 0 = all */
    char **models;
    int num_secrets;
    di_key_secret secrets[DI_KEY_HASHES];
} di_key;

typedef struct di_keys di_keys;

/* Reads a key file. path == NULL: no keys; every request is let in as the key "anonymous", which
 * has no limits and shares its cache. NULL with DI_ERR_IO, _FORMAT ("keys.jsonl, line 3: ...") or
 * _NO_MEMORY. */
di_keys *di_keys_open(const char *path, di_error *err);
void di_keys_close(di_keys *keys); /* when every record has been released; NULL is allowed */

/* Reads the file again. With an error the old set stays. *count (may be NULL): its records. */
bool di_keys_reload(di_keys *keys, size_t *count, di_error *err);

/* False: opened without a file, everybody is let in. */
bool di_keys_required(const di_keys *keys);
size_t di_keys_count(di_keys *keys);

typedef enum di_key_verdict {
    DI_KEY_FINE,
    DI_KEY_MISSING,  /* no key came with the request: 401 */
    DI_KEY_UNKNOWN,  /* malformed, no such id, or another secret: 401, one answer for all three */
    DI_KEY_DISABLED, /* right, but disabled: 401 */
    DI_KEY_EXPIRED,  /* right, but no more: 401 */
} di_key_verdict;

/* What the API may tell the client; says nothing that helps guessing. */
const char *di_key_verdict_message(di_key_verdict verdict);

/* Looks at a key as it came (the value behind "Bearer ", or x-api-key; size 0 = there was none).
 * With DI_KEY_FINE *key is the record, to be released; else *key is NULL. The time taken depends on
 * the length of the token alone, not on where it first differs or whether its id exists. */
di_key_verdict di_keys_admit(di_keys *keys, di_str token, const di_key **key);
void di_key_release(di_keys *keys, const di_key *key);

/* One more reference to a record that the caller holds. */
void di_key_keep(di_keys *keys, const di_key *key);

/* Whether its requests may name this model. */
bool di_key_allows_model(const di_key *key, di_str model);

/* The engine's cache_salt for a request of this key, NUL-terminated in `out`; NULL for the common
 * cache. Requests share prefixes only when the result is equal: never across keys, unless both
 * records say "cache": "shared"; and a salt that the client named parts the cache further. A client
 * salt longer than 64 bytes or with NULs goes in as its hash. */
const char *di_key_cache_salt(const di_key *key, di_str client_salt,
                              char out[DI_KEY_CACHE_SALT_BYTES]);

/* ---- for the command `deepinfer key` ----------------------------------------------------------*/

/* Draws a secret: the whole key to hand out, and what the file keeps of it as "blake2b:...:...". */
bool di_key_make(const char *id, char token[DI_KEY_TOKEN_BYTES], char hash[DI_KEY_TOKEN_BYTES * 2],
                 di_error *err);

/* False with DI_ERR_ARGUMENT that says what ids may look like. */
bool di_key_id_check(const char *id, di_error *err);

/* Appends a record (one line of JSON without the newline) to the file, which is made with mode 0600
 * if it is not there. The whole file with the line is checked first, and replaced in one step. */
bool di_keys_append(const char *path, const char *line, di_error *err);

/* Puts one more hash into the record of that id, so that its old secrets and the new one open it;
 * at most `keep` of the newest old ones stay (0: the new one alone). The file is replaced in one
 * step, mode and owner stay. DI_ERR_ARGUMENT: there is no such id. */
bool di_keys_add_hash(const char *path, const char *id, const char *hash, int keep, di_error *err);

/* The i-th record of the set as it is now, in the file's order, to be released; NULL behind the
 * last. For listing. */
const di_key *di_keys_at(di_keys *keys, size_t i);

/* For fuzzers: parses a file's text. */
bool di_keys_parse_check(const char *text, size_t size, di_error *err);

#endif
