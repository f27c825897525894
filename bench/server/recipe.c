/* What the recipe costs beyond tokenising: a chat of about 100,000 tokens in 2,000 messages, from
 * the body of a request to ids; and the same text given to the tokenizer alone, in one piece. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "text/chat.h"
#include "text/recipe/render.h"
#include "text/recipe/request.h"

enum { MESSAGES = 2000, ROUNDS = 7 };

static const char words[] =
    "The sea was calm that morning, and nobody in the harbour could remember "
    "when the last ship had come in; 1847 perhaps, or the year before. ";

static void require(bool ok, const di_error *err) {
    if (!ok) {
        fprintf(stderr, "recipe: %s\n", err->message);
        exit(1);
    }
}

static void make_body(di_buffer *body) {
    di_error err = {0};
    bool ok =
        di_buffer_append_text(body, "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[", &err);
    for (int i = 0; ok && i < MESSAGES; i++) {
        char head[64];
        snprintf(head, sizeof head, "%s{\"role\":\"%s\",\"content\":\"", i ? "," : "",
                 i % 2 ? "assistant" : "user");
        ok = di_buffer_append_text(body, head, &err) && di_buffer_append_text(body, words, &err) &&
             di_buffer_append_text(body, words + i % 60, &err) &&
             di_buffer_append_text(body, "\"}", &err);
    }
    require(ok && di_buffer_append_text(body, "]}", &err), &err);
}

static double quicker(double a, double b) {
    return b == 0 || a < b ? a : b;
}

int main(void) {
    di_error err = {0};
    di_tokenizer *tok = di_tokenizer_open("build/testdata/tokenizer-v41/tokenizer.json", &err);
    di_chat_tokens t;
    di_recipe_options o;
    di_buffer body = {0};
    require(tok && di_chat_tokens_find(&t, tok, &err), &err);
    make_body(&body);
    di_recipe_options_init(&o);
    o.server = true;
    double parse = 0, render = 0, encode = 0, alone = 0;
    size_t tokens = 0;
    for (int i = 0; i < ROUNDS; i++) {
        di_request r;
        di_chat_prompt prompt = {0};
        di_ids ids = {0}, plain = {0};
        double t0 = di_now();
        require(di_request_parse(&r, DI_PROTOCOL_CHAT, body.data, body.size, &o, &err), &err);
        double t1 = di_now();
        require(di_recipe_render(&t, &r.conversation, &prompt, &err), &err);
        double t2 = di_now();
        require(di_chat_encode(&t, &prompt, &ids, &err), &err);
        double t3 = di_now();
        require(di_tokenizer_encode(tok, prompt.text.data, prompt.text.size, DI_ENCODE_ADDED,
                                    &plain, &err),
                &err);
        double t4 = di_now();
        parse = quicker(t1 - t0, parse);
        render = quicker(t2 - t1, render);
        encode = quicker(t3 - t2, encode);
        alone = quicker(t4 - t3, alone);
        tokens = ids.count;
        di_ids_free(&ids);
        di_ids_free(&plain);
        di_chat_prompt_free(&prompt);
        di_request_free(&r);
    }
    printf("a chat of %zu tokens, %d messages, %.2f MB (best of %d)\n", tokens, MESSAGES,
           (double)body.size / 1e6, ROUNDS);
    printf("  read and check the body   %7.2f ms\n", parse * 1e3);
    printf("  lay out the prompt        %7.2f ms\n", render * 1e3);
    printf("  encode it                 %7.2f ms\n", encode * 1e3);
    printf("  the tokenizer alone       %7.2f ms\n", alone * 1e3);
    printf("  beyond tokenising         %7.2f ms (the first two), %.2f of the tokenizer's time\n",
           (parse + render) * 1e3, (parse + render) / alone);
    di_buffer_free(&body);
    di_tokenizer_close(tok);
    return 0;
}
