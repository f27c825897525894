/* Conversations and streamed answers: see answer.h. Called by `run` and its chat. Must never pass a
 * control character of the model's to a terminal. */
#include "cli/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "engine/messages.h"

static const char dim[] = "\033[2m", normal[] = "\033[0m";

/* ---- the history ---- */

static bool add_message(json_t *messages, const char *role, const char *text, size_t size,
                        di_error *err) {
    size_t bad;
    if (!di_utf8_valid(text, size, &bad)) {
        return di_fail(err, DI_ERR_ARGUMENT, "the %s message is not valid UTF-8 at byte %zu", role,
                       bad);
    }
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", text, size);
    if (!message || json_array_append_new(messages, message) != 0) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a %s message", role);
    }
    return true;
}

bool di_conversation_clear(di_conversation *c, const char *system, di_error *err) {
    json_t *fresh = json_array();
    if (!fresh) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a conversation");
    }
    if (system && !add_message(fresh, "system", system, strlen(system), err)) {
        json_decref(fresh);
        return false;
    }
    json_decref(c->messages);
    c->messages = fresh;
    return true;
}

void di_conversation_end(di_conversation *c) {
    json_decref(c->messages);
    c->messages = NULL;
}

/* ---- streaming ---- */

typedef struct stream {
    di_progress progress;
    bool terminal, colour; /* standard output is one; and may be coloured */
    bool reasoning;        /* inside it now */
    char last;             /* byte written */
    di_error error;        /* of writing, DI_OK so far */
} stream;

static void put(stream *s, const char *text, size_t size) {
    if (size > 0 && s->error.code == DI_OK) {
        di_cli_write(text, size, &s->error);
        s->last = text[size - 1];
    }
}

static void flush(stream *s) {
    if (s->error.code == DI_OK) {
        di_cli_flush(&s->error);
    }
}

static void put_safely(stream *s, const char *text, size_t size) {
    if (!s->terminal) {
        put(s, text, size);
        return;
    }
    di_buffer safe = {0};
    if (di_terminal_filter(text, size, &safe, &s->error)) {
        put(s, safe.data, safe.size);
    }
    di_buffer_free(&safe);
}

/* Reasoning is dimmed on a terminal; elsewhere it keeps its marks, so that a reader can split it.
 */
static void begin_reasoning(stream *s) {
    s->reasoning = true;
    if (!s->terminal) {
        put(s, "<think>", 7);
    } else if (s->colour) {
        put(s, dim, sizeof dim - 1);
    }
}

static void end_reasoning(stream *s) {
    s->reasoning = false;
    if (!s->terminal) {
        put(s, "</think>", 8);
        return;
    }
    if (s->colour) {
        put(s, normal, sizeof normal - 1);
    }
    put(s, "\n\n", 2);
}

static bool on_output(void *user, const di_output *out) {
    stream *s = user;
    if (out->completion_tokens == 0) {
        if (out->prompt_tokens > 0) {
            di_progress_show(&s->progress, out->prompt_done, out->prompt_tokens);
        }
        return !di_signals_interrupted();
    }
    di_progress_end(&s->progress);
    const char *text = out->text;
    size_t size = out->text_bytes, reasoning, content;
    if (s->reasoning) {
        di_split_reasoning(text, size, &reasoning, &content);
        put_safely(s, text, reasoning);
        if (reasoning < size) {
            end_reasoning(s);
        }
        text += content;
        size -= content;
    }
    put_safely(s, text, size);
    flush(s);
    return s->error.code == DI_OK && !di_signals_interrupted();
}

static void end_stream(stream *s) {
    di_progress_end(&s->progress);
    if (s->reasoning && s->terminal && s->colour) {
        put(s, normal, sizeof normal - 1);
    }
    if (s->last != '\n') {
        put(s, "\n", 1);
    }
    flush(s);
}

/* ---- one answer ---- */

static double rate(int64_t tokens, double seconds) {
    return seconds > 0 ? (double)tokens / seconds : 0;
}

static void print_statistics(const di_result *r) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    int64_t computed = r->prompt_tokens - r->cached_tokens, decoded = r->completion_tokens - 1;
    fprintf(stderr,
            "[prompt: %lld tokens, %.1f tokens/s; answer: %lld tokens, %.1f tokens/s; peak memory: "
            "%ld MiB]\n",
            (long long)computed, rate(computed, r->prompt_seconds), (long long)r->completion_tokens,
            decoded > 0 ? rate(decoded, r->decode_seconds) : 0, usage.ru_maxrss / 1024);
}

static di_result *stream_answer(di_conversation *c, di_error *err) {
    char *messages = json_dumps(c->messages, JSON_COMPACT);
    if (!messages) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the conversation");
        return NULL;
    }
    di_prompt prompt;
    di_prompt_init(&prompt, sizeof prompt);
    prompt.messages = messages;
    prompt.effort = c->effort;
    stream s = {.terminal = isatty(STDOUT_FILENO), .last = '\n'};
    const char *no_colour = getenv("NO_COLOR");
    s.colour = s.terminal && !(no_colour && *no_colour);
    if (c->effort) {
        begin_reasoning(&s);
    }
    di_progress_begin(&s.progress, "reading", c->quiet);
    c->params.report_prompt = true;
    di_result *r = di_generate(c->engine, &prompt, &c->params, on_output, &s, err);
    end_stream(&s);
    free(messages);
    if (r && s.error.code != DI_OK) {
        di_result_free(r);
        r = NULL;
        *err = s.error;
    }
    return r;
}

bool di_conversation_ask(di_conversation *c, const char *question, size_t size,
                         di_finish_reason *reason, di_error *err) {
    size_t before = json_array_size(c->messages);
    di_result *r = NULL;
    bool ok = add_message(c->messages, "user", question, size, err) &&
              (r = stream_answer(c, err)) != NULL;
    if (ok) {
        size_t unused, content = 0;
        if (c->effort) {
            di_split_reasoning(r->text, r->text_bytes, &unused, &content);
        }
        ok = add_message(c->messages, "assistant", r->text + content, r->text_bytes - content, err);
        if (reason) {
            *reason = r->finish_reason;
        }
        if (!c->quiet) {
            print_statistics(r);
        }
    }
    while (!ok && json_array_size(c->messages) > before) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    di_result_free(r);
    return ok;
}

bool di_conversation_begin(di_conversation *c, di_engine *engine, const di_options *o,
                           const char *system, di_error *err) {
    *c = (di_conversation){.engine = engine, .quiet = o->values[DI_OPT_QUIET].flag};
    return di_conversation_clear(c, system, err);
}
