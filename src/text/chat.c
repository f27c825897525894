/* The V4.1 prompt format, see chat.h:
 *
 *   <bos> [<System> [effort line] [system text]] (<User> text | <Assistant> ... <eos>)* <Assistant>
 *
 * then <think> or, in chat mode, </think>. Nothing stands between turns but the tokens shown. */
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANK_LINE "\n\n"

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
        {&t->image, "<｜deepseek_image｜>", false},
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

bool di_role_parse(const char *name, di_role *role, di_error *err) {
    static const struct {
        const char *name;
        di_role role;
    } roles[] = {{"system", DI_ROLE_SYSTEM},
                 {"user", DI_ROLE_USER},
                 {"assistant", DI_ROLE_ASSISTANT},
                 {"latest_reminder", DI_ROLE_REMINDER}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(name, roles[i].name) == 0) {
            *role = roles[i].role;
            return true;
        }
    }
    if (strcmp(name, "tool") == 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "role \"tool\": tool calls are not supported");
    }
    return di_fail(err, DI_ERR_ARGUMENT,
                   "role \"%.64s\" is not known (system, user, assistant, latest_reminder are)",
                   name);
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

/* Plain text goes on in the stretch that is open, so that joins across it are found. */
static bool add_text(di_chat_prompt *p, const char *text, size_t size, di_error *err) {
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

static bool add_control(const di_chat_tokens *t, di_chat_prompt *p, int32_t id, di_error *err) {
    size_t size;
    const char *text = di_tokenizer_token_bytes(t->tok, id, &size);
    return add_segment(p, (di_chat_segment){id, p->text.size, size}, err) &&
           di_buffer_append(&p->text, text, size, err);
}

static bool add_parts(const di_chat_tokens *t, di_chat_prompt *p, const di_chat_message *m,
                      di_error *err) {
    for (size_t i = 0; i < m->part_count; i++) {
        const di_chat_part *part = &m->parts[i];
        if (part->image && (m->role == DI_ROLE_ASSISTANT || t->image < 0)) {
            return di_fail(err, m->role == DI_ROLE_ASSISTANT ? DI_ERR_ARGUMENT : DI_ERR_UNSUPPORTED,
                           m->role == DI_ROLE_ASSISTANT
                               ? "an assistant's message has an image in it"
                               : "the tokenizer has no token for images");
        }
        if ((i > 0 && !add_text(p, BLANK_LINE, 2, err)) ||
            !(part->image ? add_control(t, p, t->image, err)
                          : add_text(p, part->text, part->size, err))) {
            return false;
        }
    }
    return true;
}

static bool is_empty(const di_chat_message *m) {
    for (size_t i = 0; i < m->part_count; i++) {
        if (m->parts[i].image || m->parts[i].size > 0) {
            return false;
        }
    }
    return m->part_count <= 1; /* blank lines between empty parts are text */
}

/* The head of an assistant's turn, up to where reasoning (thinking) or the answer begins. */
static bool add_assistant_head(const di_chat_tokens *t, di_chat_prompt *p, bool thinking,
                               di_error *err) {
    return add_control(t, p, t->assistant, err) &&
           add_control(t, p, thinking ? t->think : t->think_end, err);
}

/* The last message, left open for the model to go on with. */
static bool add_prefix(const di_chat_tokens *t, di_chat_prompt *p, const di_chat_message *m,
                       bool thinking, di_error *err) {
    p->continued = true;
    p->in_reasoning = thinking && is_empty(m);
    if (!add_assistant_head(t, p, thinking, err)) {
        return false;
    }
    if (thinking && !add_text(p, m->reasoning, m->reasoning_size, err)) {
        return false;
    }
    return p->in_reasoning ||
           ((!thinking || add_control(t, p, t->think_end, err)) && add_parts(t, p, m, err));
}

static bool add_message(const di_chat_tokens *t, di_chat_prompt *p, const di_chat_message *m,
                        const di_chat_message *previous, di_error *err) {
    switch (m->role) {
    case DI_ROLE_SYSTEM:
        return add_control(t, p, t->system, err) && add_parts(t, p, m, err);
    case DI_ROLE_USER: { /* messages of a user that follow each other are one turn */
        bool same_turn = previous && previous->role == DI_ROLE_USER;
        return (same_turn ? add_text(p, BLANK_LINE, 2, err) : add_control(t, p, t->user, err)) &&
               add_parts(t, p, m, err);
    }
    case DI_ROLE_REMINDER:
        if (t->reminder < 0) {
            return di_fail(err, DI_ERR_UNSUPPORTED, "the tokenizer has no token for reminders");
        }
        return add_control(t, p, t->reminder, err) && add_parts(t, p, m, err);
    case DI_ROLE_ASSISTANT:
        return add_assistant_head(t, p, false, err) && add_parts(t, p, m, err) &&
               add_control(t, p, t->eos, err);
    }
    return di_fail(err, DI_ERR_ARGUMENT, "a message has no valid role");
}

/* <System> at the very beginning, with the line that sets the effort. A first system message goes
 * on behind it. */
static bool add_effort(const di_chat_tokens *t, di_chat_prompt *p, int effort, di_error *err) {
    char line[128];
    int size = snprintf(line, sizeof line,
                        "Reasoning Effort: %d (range 1-100, the higher the value, the more "
                        "thorough the reasoning)" BLANK_LINE,
                        effort);
    return add_control(t, p, t->system, err) && add_text(p, line, (size_t)size, err);
}

static bool check(const di_chat_message *messages, size_t count, int effort, di_error *err) {
    if (count == 0) {
        return di_fail(err, DI_ERR_ARGUMENT, "there are no messages");
    }
    if (effort < 0 || effort > 100) {
        return di_fail(err, DI_ERR_ARGUMENT, "reasoning effort %d is outside 0 to 100", effort);
    }
    for (size_t i = 0; i < count; i++) {
        if (messages[i].prefix && (i + 1 < count || messages[i].role != DI_ROLE_ASSISTANT)) {
            return di_fail(err, DI_ERR_ARGUMENT,
                           "message %zu: only a last message of the assistant can be continued", i);
        }
    }
    return true;
}

static bool render(const di_chat_tokens *t, const di_chat_message *messages, size_t count,
                   int effort, di_chat_prompt *p, di_error *err) {
    bool thinking = effort != DI_EFFORT_OFF;
    if (!add_control(t, p, t->bos, err) || (thinking && !add_effort(t, p, effort, err))) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const di_chat_message *m = &messages[i];
        if (m->prefix) {
            return add_prefix(t, p, m, thinking, err);
        }
        bool ok;
        if (i == 0 && m->role == DI_ROLE_SYSTEM && (thinking || is_empty(m))) {
            ok = add_parts(t, p, m, err);
        } else {
            ok = add_message(t, p, m, i > 0 ? &messages[i - 1] : NULL, err);
        }
        if (!ok) {
            return false;
        }
    }
    p->in_reasoning = thinking;
    return add_assistant_head(t, p, thinking, err);
}

bool di_chat_render(const di_chat_tokens *t, const di_chat_message *messages, size_t count,
                    int effort, di_chat_prompt *out, di_error *err) {
    *out = (di_chat_prompt){0};
    if (check(messages, count, effort, err) && render(t, messages, count, effort, out, err)) {
        return true;
    }
    di_chat_prompt_free(out);
    return false;
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
