/* What a terminal may be shown of a text that nobody vouches for. */
#ifndef DI_CLI_TERMINAL_H
#define DI_CLI_TERMINAL_H

#include "base/buffer.h"

/* Appends text[0..size) to *out. Of the control characters (C0, DEL, C1) only newline and tab pass;
 * the others, and bytes that are not UTF-8, become U+FFFD. */
bool di_terminal_filter(const char *text, size_t size, di_buffer *out, di_error *err);

#endif
