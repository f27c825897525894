/* How much memory the machine could still give. */
#ifndef DI_BASE_MEMORY_H
#define DI_BASE_MEMORY_H

#include <stddef.h>

/* Bytes that could be taken without swapping (Linux' MemAvailable, within the process's own
 * limits); an estimate, at least 64 MiB. */
size_t di_memory_available(void);

#endif
