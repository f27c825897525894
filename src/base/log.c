/* Log lines: "deepinfer: warning: ..." on standard error, one write a line. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_int current = DI_LOG_WARN;

void di_log_set_level(di_log_level level) {
    atomic_store(&current, level);
}

void di_log(di_log_level level, const char *format, ...) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if ((int)level > atomic_load(&current)) {
        return;
    }
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "deepinfer: %s: %s\n", names[level], line);
}
