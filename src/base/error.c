/* Filling a di_error: formatting into its fixed buffer, nothing else. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* Messages quote names from hostile files: no escape sequence may reach a terminal, and no broken
 * character (of theirs, or one that was cut off by a length limit) a JSON writer. */
static void make_printable(char *text) {
    size_t size = strlen(text);
    for (size_t i = 0; i < size;) {
        uint32_t c;
        int length = di_utf8_next(text + i, size - i, &c);
        if (length == 0 || c < 0x20 || c == 0x7f || c == DI_UTF8_MALFORMED) {
            text[i] = '?';
            length = 1;
        } else if (c >= 0x80 && c < 0xA0) { /* the C1 controls, one of which begins sequences too */
            text[i] = text[i + 1] = '?';
        }
        i += (size_t)length;
    }
}

__attribute__((format(printf, 3, 0))) static void set_message(di_error *err, di_error_code code,
                                                              const char *format, va_list args) {
    err->code = code;
    vsnprintf(err->message, sizeof err->message, format, args);
    make_printable(err->message);
}

bool di_fail(di_error *err, di_error_code code, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        set_message(err, code, format, args);
        va_end(args);
    }
    return false;
}

bool di_fail_errno(di_error *err, const char *format, ...) {
    int saved = errno;
    if (err) {
        va_list args;
        va_start(args, format);
        set_message(err, saved == ENOMEM ? DI_ERR_NO_MEMORY : DI_ERR_IO, format, args);
        va_end(args);
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, ": %s", strerror(saved));
        make_printable(err->message);
    }
    return false;
}

bool di_fail_prefix(di_error *err, const char *format, ...) {
    if (err) {
        char rest[DI_ERROR_MESSAGE_BYTES];
        memcpy(rest, err->message, sizeof rest);
        va_list args;
        va_start(args, format);
        set_message(err, err->code, format, args);
        va_end(args);
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, ": %s", rest);
        make_printable(err->message);
    }
    return false;
}
