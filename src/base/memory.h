/* How much memory the machine could still give. */
#ifndef DI_BASE_MEMORY_H
#define DI_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that could be taken without swapping (Linux' MemAvailable) within the limits of the process
 * and of the control groups that it runs in, as in a container; an estimate, at least 64 MiB. */
size_t di_memory_available(void);

/* What the control groups' limits leave; SIZE_MAX: there is none. own: /proc/self/cgroup; mount:
 * /sys/fs/cgroup, of either version. Apart for tests. */
size_t di_memory_group_left(const char *own, const char *mount);

#endif
