/* Prompts as lists of stretches: see chat.h. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

bool di_chat_tokens_find(di_chat_tokens *t, const di_tokenizer *tok, di_error *err) {
    *t = (di_chat_tokens){.tok = tok};
    const struct {
        int32_t *id;
        const char *text;
        bool needed;
    } wanted[] = {
        {&t->bos, "<｜begin▁of▁sentence｜>", true}, {&t->eos, "<｜end▁of▁sentence｜>", true},
        {&t->system, "<｜System｜>", true},         {&t->user, "<｜User｜>", true},
        {&t->assistant, "<｜Assistant｜>", true},   {&t->think, "<think>", true},
        {&t->think_end, "</think>", true},          {&t->reminder, "<｜latest_reminder｜>", false},
        {&t->image, "<｜deepseek_image｜>", false}, {&t->dsml, "｜DSML｜", false},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].id = di_tokenizer_id(tok, wanted[i].text);
        if (*wanted[i].id < 0 && wanted[i].needed) {
            return di_fail(err, DI_ERR_UNSUPPORTED,
                           "the tokenizer has no token %s, which the chat format needs",
                           wanted[i].text);
        }
    }
    if (t->image < 0) { /* another file of the same model spells it so */
        t->image = di_tokenizer_id(tok, "<｜image｜>");
    }
    return true;
}

bool di_effort_parse(const char *name, int *effort, di_error *err) {
    static const struct {
        const char *name;
        int effort;
    } levels[] = {{"none", DI_EFFORT_OFF},    {"minimal", DI_EFFORT_LOW}, {"low", DI_EFFORT_LOW},
                  {"medium", DI_EFFORT_HIGH}, {"high", DI_EFFORT_HIGH},   {"xhigh", DI_EFFORT_HIGH},
                  {"max", DI_EFFORT_MAX},     {"ultra", DI_EFFORT_MAX}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (strcmp(name, levels[i].name) == 0) {
            *effort = levels[i].effort;
            return true;
        }
    }
    size_t digits = strspn(name, "0123456789");
    int number = digits >= 1 && digits <= 3 && !name[digits] ? atoi(name) : 0;
    if (number < 1 || number > 100) {
        return di_fail(err, DI_ERR_ARGUMENT,
                       "reasoning effort \"%.64s\" is neither none, minimal, low, medium, high, "
                       "xhigh, max, ultra nor a number from 1 to 100",
                       name);
    }
    *effort = number;
    return true;
}

static bool add_segment(di_chat_prompt *p, di_chat_segment s, di_error *err) {
    di_chat_segment *moved = di_grow(p->segments, p->count, &p->capacity, sizeof *moved);
    if (!moved) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a prompt");
    }
    p->segments = moved;
    p->segments[p->count++] = s;
    return true;
}

bool di_chat_add_text(di_chat_prompt *p, const char *text, size_t size, di_error *err) {
    if (size == 0) {
        return true;
    }
    bool open = p->count > 0 && p->segments[p->count - 1].control < 0;
    if (!open && !add_segment(p, (di_chat_segment){-1, p->text.size, 0}, err)) {
        return false;
    }
    p->segments[p->count - 1].size += size;
    return di_buffer_append(&p->text, text, size, err);
}

bool di_chat_add_control(const di_chat_tokens *t, di_chat_prompt *p, int32_t id, const char *what,
                         di_error *err) {
    if (id < 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "the tokenizer has no token for %s", what);
    }
    size_t size;
    const char *text = di_tokenizer_token_bytes(t->tok, id, &size);
    return add_segment(p, (di_chat_segment){id, p->text.size, size}, err) &&
           di_buffer_append(&p->text, text, size, err);
}

/* Where the next of the marks begins in text[from..size); *id and *length are its own. */
static size_t find_mark(const di_chat_tokens *t, const char *text, size_t size, size_t from,
                        int32_t *id, size_t *length) {
    const int32_t marks[] = {t->dsml, t->think, t->think_end};
    size_t first = size;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        size_t bytes;
        const char *mark = di_tokenizer_token_bytes(t->tok, marks[i], &bytes);
        const char *found = bytes ? memmem(text + from, size - from, mark, bytes) : NULL;
        if (found && (size_t)(found - text) < first) {
            first = (size_t)(found - text);
            *id = marks[i];
            *length = bytes;
        }
    }
    return first;
}

bool di_chat_add_marked(const di_chat_tokens *t, di_chat_prompt *p, const char *text, size_t size,
                        di_error *err) {
    if (t->dsml < 0) {
        return di_chat_add_control(t, p, t->dsml, "tools", err);
    }
    for (size_t at = 0; at < size;) {
        int32_t id = -1;
        size_t length = 0, next = find_mark(t, text, size, at, &id, &length);
        if (!di_chat_add_text(p, text + at, next - at, err) ||
            (next < size && !di_chat_add_control(t, p, id, "tools", err))) {
            return false;
        }
        at = next + length;
    }
    return true;
}

bool di_chat_encode(const di_chat_tokens *t, const di_chat_prompt *p, di_ids *out, di_error *err) {
    size_t before = out->count;
    for (size_t i = 0; i < p->count; i++) {
        const di_chat_segment *s = &p->segments[i];
        if (!(s->control >= 0 ? di_ids_push(out, s->control, err)
                              : di_tokenizer_encode(t->tok, p->text.data + s->begin, s->size,
                                                    DI_ENCODE_PLAIN, out, err))) {
            out->count = before;
            return false;
        }
    }
    return true;
}

void di_chat_prompt_free(di_chat_prompt *p) {
    di_buffer_free(&p->text);
    di_free(p->segments);
    *p = (di_chat_prompt){0};
}
