/* Text to token ids and back to bytes: Hugging Face's tokenizer.json as DeepSeek ships it, a
 * byte-level BPE. Ids equal those of the `tokenizers` library. What a file asks for and this code
 * does not do is refused by name when it is opened, never ignored.
 *
 * An open tokenizer is read-only: any number of threads may use it at once. */
#ifndef DI_TEXT_TOKENIZER_H
#define DI_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "text/ids.h"

typedef struct di_tokenizer di_tokenizer;

/* Opens tokenizer.json, or the one in a folder. NULL with an error naming file and field. */
di_tokenizer *di_tokenizer_open(const char *folder_or_file, di_error *err);

/* The same from memory; `name` stands in messages. */
di_tokenizer *di_tokenizer_parse(const char *json, size_t size, const char *name, di_error *err);

void di_tokenizer_close(di_tokenizer *tok); /* NULL is allowed */

typedef enum di_encode_mode {
    DI_ENCODE_PLAIN, /* all text is plain: for what users write, where "<|User|>" is just letters */
    DI_ENCODE_ADDED, /* added tokens in the text become their ids: for trusted text only */
} di_encode_mode;

/* Appends the ids of text[0..size). Refuses text that is not valid UTF-8, naming the offset of the
 * first bad byte, and text above 1 GiB. On failure *out is as it was before. */
bool di_tokenizer_encode(const di_tokenizer *tok, const char *text, size_t size,
                         di_encode_mode mode, di_ids *out, di_error *err);

/* Highest id + 1. The model's vocabulary may be larger, and ids in between may have no token. */
int32_t di_tokenizer_vocab_size(const di_tokenizer *tok);

/* The bytes that a token stands for (often not whole characters), owned by the tokenizer. Any id
 * may be asked for; one without a token has *size = 0. */
const char *di_tokenizer_token_bytes(const di_tokenizer *tok, int32_t id, size_t *size);

/* Appends the token as the file spells it, in the alphabet of bytes (" a" is "Ġa"). */
bool di_tokenizer_token_string(const di_tokenizer *tok, int32_t id, di_buffer *out, di_error *err);

/* Id of the added token with exactly this text, -1 if there is none. */
int32_t di_tokenizer_id(const di_tokenizer *tok, const char *text);

bool di_tokenizer_is_added(const di_tokenizer *tok, int32_t id);
/* Marked special in the file. Many control tokens (<|User|>, <think>) are not: never decide by it
 * what a token means. */
bool di_tokenizer_is_special(const di_tokenizer *tok, int32_t id);

#endif
