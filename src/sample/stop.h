/* Stop strings on a stream of text: releases what can no longer be part of one, holds back the
 * rest, cuts at the first that completes. Called by the engine with an answer's text as it grows;
 * must give the same text however it was cut into pieces.
 *
 * The first stop string to complete wins; of several that complete at the same byte, the longest.
 */
#ifndef DI_SAMPLE_STOP_H
#define DI_SAMPLE_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

enum { DI_MAX_STOP_STRINGS = 64, DI_MAX_STOP_BYTES = 4096 };

/* The strings of a request, never changed; shared by all its sequences. */
typedef struct di_stop_set di_stop_set;

/* `sizes` may be NULL: strings end at their NUL. Refused, with index: more than 64 strings, an
 * empty one, one longer than 4096 bytes, broken UTF-8. The texts are copied. count == 0 is allowed.
 */
di_stop_set *di_stop_set_create(const char *const *strings, const size_t *sizes, size_t count,
                                di_error *err);
void di_stop_set_destroy(di_stop_set *set); /* NULL is allowed */

/* String number `index`, NUL-terminated; the set's. */
const char *di_stop_set_text(const di_stop_set *set, int index);

/* One sequence's place in the matching. Needs no destruction. */
typedef struct di_stop_stream {
    const di_stop_set *set;
    bool include; /* a match itself belongs to the text */
    int match;    /* index of the string that ended the text; -1 = none */
    uint16_t
        matched[DI_MAX_STOP_STRINGS]; /* longest start of each string that the text ends with */
} di_stop_stream;

void di_stop_start(di_stop_stream *s, const di_stop_set *set, bool include);

/* Takes further text (whole characters, or any bytes) and appends to `out` what is safe to show.
 * After a match s->match is set, and text is dropped. Fails only for want of memory, with nothing
 * changed. */
bool di_stop_push(di_stop_stream *s, const char *text, size_t size, di_buffer *out, di_error *err);

/* Appends text in which no stop string counts (before min_tokens), with what was held back. */
bool di_stop_pass(di_stop_stream *s, const char *text, size_t size, di_buffer *out, di_error *err);

/* The text has ended otherwise: appends what was held back. */
bool di_stop_flush(di_stop_stream *s, di_buffer *out, di_error *err);

/* Bytes held back at present. */
size_t di_stop_held(const di_stop_stream *s);

#endif
