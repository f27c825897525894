/* Filling a di_error: formatting into its fixed buffer, nothing else. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Messages quote names from hostile files: no escape sequence may reach a terminal. */
static void replace_controls(char *text) {
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7f) {
            *p = '?';
        }
    }
}

__attribute__((format(printf, 3, 0))) static void set_message(di_error *err, di_error_code code,
                                                              const char *format, va_list args) {
    err->code = code;
    vsnprintf(err->message, sizeof err->message, format, args);
    replace_controls(err->message);
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
    }
    return false;
}
