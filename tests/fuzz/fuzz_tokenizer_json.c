/* Any bytes as tokenizer.json: refused with a message, or a tokenizer whose ids give the text back.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok) {
    if (!ok) {
        abort();
    }
}

static void check(const di_tokenizer *tok, const char *text) {
    di_ids ids = {0};
    di_error err = {0};
    size_t size = strlen(text), at = 0;
    must(di_tokenizer_encode(tok, text, size, DI_ENCODE_PLAIN, &ids, &err));
    for (size_t i = 0; i < ids.count; i++) {
        size_t n;
        const char *bytes = di_tokenizer_token_bytes(tok, ids.data[i], &n);
        must(n > 0 && n <= size - at && memcmp(bytes, text + at, n) == 0);
        at += n;
    }
    must(at == size);
    must(di_tokenizer_encode(tok, text, size, DI_ENCODE_ADDED, &ids, &err));
    di_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    di_error err = {0};
    di_tokenizer *tok = di_tokenizer_parse((const char *)data, size, "fuzz.json", &err);
    must(tok || (err.code != DI_OK && err.code != DI_ERR_INTERNAL && err.message[0]));
    if (tok) {
        check(tok, "the <both> word <n> 12345 and the rest wholey\n\n漢字\tthethethe");
        check(tok, "\xC2\x85\r\n \xE2\x80\x8D!!abc");
        di_tokenizer_close(tok);
    }
    return 0;
}
