/* From what a caller gives as prompt to token ids. Called for every request. Must never let special
 * tokens written out in a message become control tokens. */
#include <string.h>

#include "engine/internal.h"
#include "engine/messages.h"
#include "engine/prompt.h"
#include "text/chat.h"

void di_prompt_init(di_prompt *prompt, size_t struct_bytes) {
    memset(prompt, 0, struct_bytes);
    memcpy(prompt, &struct_bytes, sizeof struct_bytes);
}

static bool encode_text(const di_parts *e, const di_prompt *p, di_ids *out, di_error *err) {
    size_t bytes = p->text_bytes ? p->text_bytes : strlen(p->text);
    if (bytes == 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "prompt is empty, at least one character is needed");
    }
    int32_t bos = e->weights->config.bos_token_id;
    if (!di_ids_push(out, bos, err) ||
        !di_tokenizer_encode(e->tokenizer, p->text, bytes, DI_ENCODE_ADDED, out, err)) {
        return di_fail_prefix(err, "prompt");
    }
    if (out->count > 1 && out->data[1] == bos) { /* the caller wrote it */
        out->count--;
        memmove(out->data, out->data + 1, out->count * sizeof *out->data);
    }
    return true;
}

static bool copy_ids(const di_parts *e, const di_prompt *p, di_ids *out, di_error *err) {
    int vocab_size = e->weights->config.vocab_size;
    if (p->num_token_ids == 0) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "prompt_token_ids is empty, at least one id is needed");
    }
    for (size_t i = 0; i < p->num_token_ids; i++) {
        if (p->token_ids[i] < 0 || p->token_ids[i] >= vocab_size) {
            return di_fail(err, DI_ERR_ARGUMENT, "prompt_token_ids[%zu] is %d, allowed are 0 to %d",
                           i, p->token_ids[i], vocab_size - 1);
        }
        if (!di_ids_push(out, p->token_ids[i], err)) {
            return false;
        }
    }
    return true;
}

static bool encode_messages(const di_parts *e, const di_prompt *p, di_ids *out, di_error *err) {
    if (p->effort < 0 || p->effort > DI_EFFORT_MAX) {
        return di_fail(err, DI_ERR_ARGUMENT, "effort is %d, allowed are 0 to %d", p->effort,
                       DI_EFFORT_MAX);
    }
    size_t bytes = p->messages_bytes ? p->messages_bytes : strlen(p->messages);
    return di_messages_encode(&e->chat, p->messages, bytes, p->effort, out, err);
}

bool di_prompt_encode(const di_parts *e, const di_prompt *prompt, di_ids *out, di_error *err) {
    di_prompt p;
    di_prompt_init(&p, sizeof p);
    if (!di_struct_read(&p, sizeof p, prompt, "di_prompt", err)) {
        return false;
    }
    if ((p.text != NULL) + (p.token_ids != NULL) + (p.messages != NULL) != 1) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "exactly one of prompt, prompt_token_ids and messages is needed");
    }
    if (!p.token_ids && !e->tokenizer) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "the model folder has no tokenizer.json; only prompt_token_ids can be "
                       "answered");
    }
    if (p.token_ids ? !copy_ids(e, &p, out, err)
        : p.text    ? !encode_text(e, &p, out, err)
                    : !encode_messages(e, &p, out, err)) {
        return false;
    }
    if ((int64_t)out->count > e->max_model_len) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "the prompt has %zu tokens, the context holds at most %lld", out->count,
                       (long long)e->max_model_len);
    }
    return true;
}
