/* Bytes on their way from the engine's answers to one client: server-sent events, gathered by the
 * thread that reads the engine, taken by the one that writes to the socket. Bounded: see
 * di_stream_room. Not thread-safe: its generation's lock guards it. */
#ifndef DI_SERVER_STREAM_H
#define DI_SERVER_STREAM_H

#include "base/buffer.h"

typedef struct di_stream {
    di_buffer bytes;
    size_t taken; /* of them, by the reader */
    size_t held;  /* at their end, not to be read yet */
    size_t limit; /* most that may lie here */
    bool holding; /* what is added is held */
} di_stream;

/* Appends an event: "event: NAME" unless name is NULL, and "data: JSON". The JSON has no newline in
 * it. */
bool di_stream_event(di_stream *s, const char *name, const char *json, size_t size, di_error *err);

/* Appends what is ready as it is (a comment, "data: [DONE]"). */
bool di_stream_text(di_stream *s, const char *text, di_error *err);

/* Bytes that wait for the reader. */
static inline size_t di_stream_waiting(const di_stream *s) {
    return s->bytes.size - s->taken - s->held;
}

/* The last `size` bytes, of those that wait, and what comes behind them are held until
 * di_stream_let_go. */
void di_stream_hold(di_stream *s, size_t size);
void di_stream_let_go(di_stream *s);

/* False: the reader is so far behind that its answer has to end. */
static inline bool di_stream_room(const di_stream *s) {
    return di_stream_waiting(s) <= s->limit;
}

/* Moves up to `most` bytes out. */
size_t di_stream_take(di_stream *s, char *out, size_t most);

void di_stream_free(di_stream *s);

#endif
