/* The interactive chat of `deepinfer run`. */
#ifndef DI_CLI_CHAT_H
#define DI_CLI_CHAT_H

#include "cli/answer.h"

/* Until the user leaves; returns the exit status. `system` (or NULL) is what /clear goes back to.
 */
int di_chat(di_conversation *c, const char *system);

#endif
