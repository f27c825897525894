/* Filling a di_error. The conventions stand in include/deepinfer/error.h. */
#ifndef DI_BASE_ERROR_H
#define DI_BASE_ERROR_H

#include <stdbool.h>

#include "deepinfer/error.h"

/* Sets *err (if not NULL) to code and the formatted message, control characters (C0, DEL, C1) and
 * what is no UTF-8 replaced by '?'. Always returns false, so that `return di_fail(err, ...)` ends a
 * bool function. */
bool di_fail(di_error *err, di_error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As di_fail with DI_ERR_IO (DI_ERR_NO_MEMORY for ENOMEM), and ": strerror(errno)" appended. */
bool di_fail_errno(di_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "prefix: " in front of the message that *err already holds. Always returns false. */
bool di_fail_prefix(di_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
