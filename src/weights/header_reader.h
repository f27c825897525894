/* The pieces of JSON that a safetensors header is made of, read in place without allocating. Only
 * safetensors.c calls these. On failure the reader holds the reason and where it stands. */
#ifndef DI_WEIGHTS_HEADER_READER_H
#define DI_WEIGHTS_HEADER_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct di_header_reader {
    const char *start, *at, *end;
    const char *problem; /* NULL while all is well; a constant text */
} di_header_reader;

/* Remembers the problem (the first one) and returns false. */
bool di_header_problem(di_header_reader *r, const char *problem);

/* Skips white space, then takes c. False without a problem noted if something else stands there. */
bool di_header_take(di_header_reader *r, char c);

/* The same, but c must be there. */
bool di_header_expect(di_header_reader *r, char c, const char *problem);

/* Skips white space; true when nothing is left. */
bool di_header_ended(di_header_reader *r);

/* A string, left as it is written: the text between its quotes. Escapes are checked, not undone;
 * *escaped says whether there are any. */
bool di_header_string(di_header_reader *r, const char **text, size_t *length, bool *escaped);

/* A plain string: printable ASCII without escapes. */
bool di_header_plain_string(di_header_reader *r, const char **text, size_t *length);

/* An integer from 0 to 2^64 - 1 in decimal, without sign, fraction, exponent or leading zero. */
bool di_header_unsigned(di_header_reader *r, uint64_t *value);

#endif
