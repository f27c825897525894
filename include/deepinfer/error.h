/* Errors of the public interface and, through it, of every room.
 *
 * A function that can fail returns bool or a pointer and takes `di_error *err` last. On failure it
 * fills *err (never allocates) and returns false or NULL; on success *err is left alone. Passing
 * NULL for err is allowed everywhere. Messages name the thing, what was found, what was allowed. */
#ifndef DEEPINFER_ERROR_H
#define DEEPINFER_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum di_error_code {
    DI_OK = 0,
    DI_ERR_ARGUMENT,    /* a parameter or request is outside what is allowed */
    DI_ERR_IO,          /* the system refused to open, read, map or write */
    DI_ERR_FORMAT,      /* a file's content breaks its format */
    DI_ERR_UNSUPPORTED, /* well-formed, but not a model or feature this engine has */
    DI_ERR_NO_MEMORY,
    DI_ERR_CANCELLED,
    DI_ERR_BUSY,     /* too much under way; try again later */
    DI_ERR_INTERNAL, /* our own fault */
    DI_ERR_DEVICE,   /* what computes has failed, and this process cannot use it again */
} di_error_code;

#define DI_ERROR_MESSAGE_BYTES 512

typedef struct di_error {
    di_error_code code;
    char message[DI_ERROR_MESSAGE_BYTES]; /* one line, UTF-8, no trailing newline */
} di_error;

#ifdef __cplusplus
}
#endif

#endif
