/* Filtering text for terminals: see terminal.h. */
#include "cli/terminal.h"

#include "base/utf8.h"

static bool passes(uint32_t c) {
    return c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7f) || (c >= 0xa0 && c <= 0x10ffff);
}

bool di_terminal_filter(const char *text, size_t size, di_buffer *out, di_error *err) {
    size_t start = 0, at = 0;
    while (at < size) {
        uint32_t c;
        int length = di_utf8_next(text + at, size - at, &c);
        if (length > 0 && passes(c)) {
            at += (size_t)length;
            continue;
        }
        if (!di_buffer_append(out, text + start, at - start, err) ||
            !di_buffer_append(out, "\xef\xbf\xbd", 3, err)) {
            return false;
        }
        at = length > 0 ? at + (size_t)length : size; /* 0: the text ends inside a character */
        start = at;
    }
    return di_buffer_append(out, text + start, at - start, err);
}
