/* The text of a key file, line by line, and the hashing of secrets: what keys.c stands on. */
#ifndef DI_SERVER_KEY_FILE_H
#define DI_SERVER_KEY_FILE_H

#include <stdatomic.h>

#include "server/keys.h"

typedef struct di_key_set di_key_set;

/* A record as a set holds it; `key` first, so that a di_key * leads back to its set. */
typedef struct di_key_record {
    di_key key;
    di_key_set *set;
} di_key_record;

/* All records of one reading of the file, in its order, and sorted by id. Freed with the last
 * reference: one for being the current set, one for each record in use. */
struct di_key_set {
    atomic_long references;
    size_t count;
    di_key_record *records;
    const di_key_record **by_id;
};

/* Reads a file's text; `name` stands in messages. NULL with DI_ERR_FORMAT or _NO_MEMORY. One
 * reference. */
di_key_set *di_key_set_parse(const char *text, size_t size, const char *name, di_error *err);

/* The set of one key "anonymous" without limits. */
di_key_set *di_key_set_anonymous(di_error *err);

void di_key_set_release(di_key_set *set); /* NULL is allowed */

/* NULL: there is no such id. */
const di_key_record *di_key_set_find(const di_key_set *set, di_str id);

/* Brings libsodium up; once is enough, and any number of times is fine. */
bool di_key_crypto_start(di_error *err);

void di_key_hash(const uint8_t salt[DI_KEY_SALT_BYTES], di_str secret,
                 uint8_t hash[DI_KEY_HASH_BYTES]);

/* Whether a whole key is of the form "sk-di-ID-SECRET"; where its parts lie. */
bool di_key_token_split(di_str token, di_str *id, di_str *secret);

/* A file's text, freed with di_free, "" if it is empty; refused if others may read or change it. */
bool di_key_file_read(const char *path, char **text, size_t *size, di_error *err);

/* The name of a file in messages: what is behind its last slash. */
const char *di_key_file_name(const char *path);

#endif
