/* Any bytes as a request: the first chooses protocol and mode, the rest is the body. What is taken
 * is rendered and encoded, and has as many control tokens in it as its prompt has stretches of
 * them; what is refused has a reason that is the client's. */
#include <stdio.h>
#include <stdlib.h>

#include "text/recipe/render.h"
#include "text/recipe/request.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static di_tokenizer *tok;
static di_chat_tokens tokens;

static void must(bool ok) {
    if (!ok) {
        abort();
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    di_error err = {0};
    tok = di_tokenizer_open("models/demo", &err);
    if (!tok || !di_chat_tokens_find(&tokens, tok, &err)) {
        fprintf(stderr, "%s (run this from the repository's root)\n", err.message);
        exit(1);
    }
    return 0;
}

static void check_prompt(const di_request *r) {
    di_chat_prompt prompt = {0};
    di_ids ids = {0};
    di_error err = {0};
    if (!di_recipe_render(&tokens, &r->conversation, &prompt, &err)) {
        must(err.code == DI_ERR_UNSUPPORTED); /* a control token that the demo's file has not */
        return;
    }
    must(di_chat_encode(&tokens, &prompt, &ids, &err));
    size_t wanted = 0, found = 0, at = 0;
    for (size_t i = 0; i < prompt.count; i++) {
        must(prompt.segments[i].begin == at);
        at += prompt.segments[i].size;
        wanted += prompt.segments[i].control >= 0;
    }
    must(at == prompt.text.size);
    for (size_t i = 0; i < ids.count; i++) {
        found += di_tokenizer_is_added(tok, ids.data[i]);
    }
    must(found == wanted);
    di_ids_free(&ids);
    di_chat_prompt_free(&prompt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) {
        return 0;
    }
    di_request r;
    di_error err = {0};
    di_recipe_options options;
    di_recipe_options_init(&options);
    options.server = data[0] & 8;
    options.messages_web_search_drops = data[0] & 16;
    if (di_request_parse(&r, (di_protocol)(data[0] % 3), (const char *)data + 1, size - 1, &options,
                         &err)) {
        check_prompt(&r);
    } else {
        must((err.code == DI_ERR_FORMAT || err.code == DI_ERR_ARGUMENT) && err.message[0]);
    }
    di_request_free(&r);
    return 0;
}
