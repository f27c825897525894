/* Log lines on standard error. The level is one of the two globals the project allows. */
#ifndef DI_BASE_LOG_H
#define DI_BASE_LOG_H

typedef enum di_log_level { DI_LOG_ERROR, DI_LOG_WARN, DI_LOG_INFO, DI_LOG_DEBUG } di_log_level;

void di_log_set_level(di_log_level level); /* default DI_LOG_WARN; thread-safe */
void di_log(di_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
