/* The chat: reads questions and /commands from a terminal, and hands them on. The prompt and what
 * the program itself has to say go to standard error, so that a redirected chat holds answers only.
 */
#include "cli/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/suggest.h"
#include "cli/cli.h"
#include "cli/lines.h"
#include "text/chat.h"

typedef struct chat {
    di_conversation *conversation;
    char *system; /* owned, or NULL */
    di_lines lines;
    bool leave;
} chat;

static const char help[] =
    "  /help            this\n"
    "  /clear           forget the conversation, keep the system message\n"
    "  /system TEXT     a new system message, and a new conversation; without TEXT: none\n"
    "  /think           let the model reason before it answers\n"
    "  /no-think        let it answer at once\n"
    "  /quit            leave; so does Ctrl-D\n"
    "A line that ends in \\ goes on in the next one. Lines between \"\"\" and \"\"\" are one "
    "message.\n"
    "Ctrl-C stops an answer; twice at the empty prompt it leaves.\n";

/* ---- /commands ---- */

typedef struct chat_command {
    const char *name;
    bool (*run)(chat *c, const char *rest, di_error *err);
} chat_command;

static bool show_help(chat *c, const char *rest, di_error *err) {
    (void)c;
    (void)rest;
    (void)err;
    fputs(help, stderr);
    return true;
}

static bool clear(chat *c, const char *rest, di_error *err) {
    (void)rest;
    return di_conversation_clear(c->conversation, c->system, err);
}

static bool set_system(chat *c, const char *rest, di_error *err) {
    char *text = *rest ? di_strdup(rest) : NULL;
    if (*rest && !text) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the system message");
    }
    if (!di_conversation_clear(c->conversation, text, err)) {
        di_free(text);
        return false;
    }
    di_free(c->system);
    c->system = text;
    return true;
}

static bool think(chat *c, const char *rest, di_error *err) {
    (void)rest;
    (void)err;
    c->conversation->effort = c->conversation->effort ? c->conversation->effort : DI_EFFORT_HIGH;
    return true;
}

static bool no_think(chat *c, const char *rest, di_error *err) {
    (void)rest;
    (void)err;
    c->conversation->effort = DI_EFFORT_OFF;
    return true;
}

static bool quit(chat *c, const char *rest, di_error *err) {
    (void)rest;
    (void)err;
    c->leave = true;
    return true;
}

static const chat_command commands[] = {
    {"/help", show_help}, {"/clear", clear},       {"/system", set_system}, {"/think", think},
    {"/quit", quit},      {"/no-think", no_think}, {"/exit", quit},
};
enum { NUM_COMMANDS = sizeof commands / sizeof *commands };

static bool run_command(chat *c, char *line, di_error *err) {
    size_t length = strcspn(line, " \t");
    char *rest = line + length + strspn(line + length, " \t");
    line[length] = 0;
    const char *names[NUM_COMMANDS];
    for (int i = 0; i < NUM_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(names[i], line) == 0) {
            return commands[i].run(c, rest, err);
        }
    }
    const char *near = di_suggest(line, names, NUM_COMMANDS);
    return di_fail(err, DI_ERR_ARGUMENT, "%s is no command; %s%s%s", line,
                   near ? "did you mean " : "/help lists them", near ? near : "", near ? "?" : "");
}

/* ---- input ---- */

static const char fence[] = "\"\"\"";

/* Appends what follows an opening fence, up to the closing one, which may stand behind text. */
static bool read_block(chat *c, const char *first, di_buffer *message, di_error *err) {
    const char *line = first;
    for (;;) {
        const char *end = strstr(line, fence);
        if (!di_buffer_append(message, line, end ? (size_t)(end - line) : strlen(line), err)) {
            return false;
        }
        if (end) {
            return true;
        }
        fputs("... ", stderr);
        if (!di_lines_next(&c->lines, err)) {
            return false;
        }
        line = c->lines.text;
        if (message->size > 0 && strcmp(line, fence) != 0 &&
            !di_buffer_append_text(message, "\n", err)) {
            return false;
        }
    }
}

/* A line, and those that its backslash joins to it. */
static bool read_joined(chat *c, di_buffer *message, di_error *err) {
    for (;;) {
        size_t size = c->lines.size;
        bool joined = size > 0 && c->lines.text[size - 1] == '\\';
        if (!di_buffer_append(message, c->lines.text, joined ? size - 1 : size, err)) {
            return false;
        }
        if (!joined) {
            return true;
        }
        if (!di_buffer_append_text(message, "\n", err)) {
            return false;
        }
        fputs("... ", stderr);
        if (!di_lines_next(&c->lines, err)) {
            return false;
        }
    }
}

/* The next message; false at the end of input, after a signal, and with *err. */
static bool read_message(chat *c, di_buffer *message, di_error *err) {
    fputs("> ", stderr);
    if (!di_lines_next(&c->lines, err)) {
        return false;
    }
    if (strncmp(c->lines.text, fence, sizeof fence - 1) == 0) {
        return read_block(c, c->lines.text + sizeof fence - 1, message, err);
    }
    return read_joined(c, message, err);
}

/* ---- the loop ---- */

/* Ctrl-C at the prompt: the first time a hint, the second time the end. */
static bool interrupted_at_prompt(int *times) {
    if (!di_signals_take_interrupt()) {
        return false;
    }
    fputs(++*times == 1 ? "\n(Ctrl-C again, or Ctrl-D, leaves)\n" : "\n", stderr);
    return *times < 2;
}

/* False when the chat cannot go on. A question that fails is no reason for that. */
static bool handle(chat *c, di_buffer *message) {
    di_error err = {0};
    bool ok;
    char *text = message->data;
    if (!text || strspn(text, " \t\n") == message->size) {
        return true;
    }
    if (text[0] == '/') {
        ok = run_command(c, text, &err);
    } else {
        ok = di_conversation_ask(c->conversation, text, message->size, NULL, &err);
        di_signals_take_interrupt();
    }
    if (!ok) {
        di_cli_fail(&err);
    }
    return !ferror(stdout);
}

int di_chat(di_conversation *conversation, const char *system) {
    chat c = {.conversation = conversation, .system = system ? di_strdup(system) : NULL};
    di_error err = {0};
    int interrupts = 0;
    int status = di_lines_open(&c.lines, "-", &err) ? DI_EXIT_WELL : DI_EXIT_FAILED;
    fputs("Type a question; /help lists what else there is.\n", stderr);
    while (!c.leave && status == DI_EXIT_WELL && !di_signals_ended()) {
        di_buffer message = {0};
        if (read_message(&c, &message, &err)) {
            interrupts = 0;
            status = handle(&c, &message) ? DI_EXIT_WELL : DI_EXIT_FAILED;
        } else if (!interrupted_at_prompt(&interrupts)) {
            c.leave = true;
            if (interrupts == 0) {
                fputc('\n', stderr); /* behind the prompt that Ctrl-D was typed at */
            }
        } else {
            err = (di_error){0};
        }
        di_buffer_free(&message);
    }
    if (err.code != DI_OK) {
        status = di_cli_fail(&err);
    } else if (di_signals_ended()) {
        status = DI_EXIT_INTERRUPTED;
    }
    di_lines_close(&c.lines);
    di_free(c.system);
    return status;
}
