/* The work of `deepinfer recipe`: one case in, its output or error out. */
#ifndef DI_CLI_RECIPE_CASES_H
#define DI_CLI_RECIPE_CASES_H

#include "base/buffer.h"
#include "text/chat.h"

/* Reads a case {"name", "kind", "input"} and appends {"name", "output"} or {"name", "error"} as one
 * line. What is wrong with the request in a case is its error; false is for a line that is no case.
 * server: requests are read in our own mode. */
bool di_recipe_case(const di_chat_tokens *tokens, bool server, const char *line, size_t size,
                    di_buffer *out, di_error *err);

#endif
