/* Available memory, from /proc/meminfo and the address space limit. */
#include "base/memory.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static size_t from_meminfo(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    return (size_t)kib * 1024;
}

size_t di_memory_available(void) {
    size_t bytes = from_meminfo();
    if (bytes == 0) {
        bytes = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        bytes = limit.rlim_cur;
    }
    const size_t least = (size_t)64 << 20;
    return bytes > least ? bytes : least;
}
