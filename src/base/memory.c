/* Available memory: /proc/meminfo, control groups, the address space limit. See memory.h. */
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- the machine ------------------------------------------------------------------------------*/

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

/* ---- control groups ---------------------------------------------------------------------------*/

enum { PATH_BYTES = 4096 };

/* Where a version of control groups keeps its numbers. */
typedef struct group_version {
    const char *folder; /* below the mount */
    const char *most, *used, *active_file, *inactive_file;
} group_version;

static const group_version version_1 = {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                        "total_active_file ", "total_inactive_file "};
static const group_version version_2 = {"", "memory.max", "memory.current", "active_file ",
                                        "inactive_file "};

/* The number that a group's file holds, or of its line "KEY N"; false if there is none ("max"). */
static bool group_number(const char *group, const char *file, const char *key, size_t *out) {
    char path[3 * PATH_BYTES], line[256];
    snprintf(path, sizeof path, "%s/%s", group, file);
    FILE *f = fopen(path, "re");
    bool found = false;
    size_t length = strlen(key);
    while (f && !found && fgets(line, sizeof line, f)) {
        char *end = line;
        unsigned long long value =
            strncmp(line, key, length) == 0 ? strtoull(line + length, &end, 10) : 0;
        found = end > line + length && (*end == '\n' || *end == 0);
        if (found) {
            *out = (size_t)value;
        }
    }
    if (f) {
        fclose(f);
    }
    return found;
}

/* What a group's limit leaves. Pages of files count as used there, but make way. */
static size_t group_left(const group_version *v, const char *group) {
    size_t most, used, active = 0, inactive = 0;
    if (!group_number(group, v->most, "", &most) || !group_number(group, v->used, "", &used)) {
        return SIZE_MAX;
    }
    group_number(group, "memory.stat", v->active_file, &active);
    group_number(group, "memory.stat", v->inactive_file, &inactive);
    size_t files = active + inactive < used ? active + inactive : used;
    return most > used - files ? most - (used - files) : 0;
}

/* The smallest of what a group and those it lies in leave. path is eaten up. A container may see
 * other paths than the machine's; its own group is the mount's root there. */
static size_t groups_left(const group_version *v, const char *mount, char *path) {
    char group[2 * PATH_BYTES];
    size_t least = SIZE_MAX;
    for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
        *end = 0;
        snprintf(group, sizeof group, "%s%s%s", mount, v->folder, path);
        size_t left = group_left(v, group);
        least = left < least ? left : least;
    }
    return least;
}

/* The path in a line "0::/PATH" (version 2) or "N:...,memory,...:/PATH" (version 1); else NULL. */
static char *memory_path(char *line, const group_version **v) {
    char *controllers = strchr(line, ':'),
         *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path || path[1] != '/' || strstr(path, "/..")) {
        return NULL;
    }
    *path++ = 0;
    path[strcspn(path, "\n")] = 0;
    *v = controllers[1] ? &version_1 : &version_2;
    bool ours = !controllers[1];
    char *rest;
    for (char *name = strtok_r(controllers + 1, ",", &rest); name && !ours;
         name = strtok_r(NULL, ",", &rest)) {
        ours = strcmp(name, "memory") == 0;
    }
    return ours ? path : NULL;
}

size_t di_memory_group_left(const char *own, const char *mount) {
    FILE *f = fopen(own, "re");
    char line[PATH_BYTES];
    size_t least = SIZE_MAX;
    while (f && fgets(line, sizeof line, f)) {
        const group_version *v;
        char *path = memory_path(line, &v);
        size_t left = path ? groups_left(v, mount, path) : SIZE_MAX;
        least = left < least ? left : least;
    }
    if (f) {
        fclose(f);
    }
    return least;
}

/* ---- all of it --------------------------------------------------------------------------------*/

size_t di_memory_available(void) {
    size_t bytes = from_meminfo();
    if (bytes == 0) {
        bytes = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    }
    size_t left = di_memory_group_left("/proc/self/cgroup", "/sys/fs/cgroup");
    bytes = left < bytes ? left : bytes;
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        bytes = limit.rlim_cur;
    }
    const size_t least = (size_t)64 << 20;
    return bytes > least ? bytes : least;
}
