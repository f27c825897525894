/* Streams: see stream.h. */
#include "server/stream.h"

#include <string.h>

/* What has been taken makes room once it is most of the buffer, so that moving costs no more than
 * what was written. */
static void close_gap(di_stream *s) {
    if (s->taken > 0 && s->taken >= s->bytes.size / 2) {
        memmove(s->bytes.data, s->bytes.data + s->taken, s->bytes.size - s->taken);
        s->bytes.size -= s->taken;
        s->taken = 0;
    }
}

static bool append(di_stream *s, const char *text, size_t size, di_error *err) {
    bool ok = di_buffer_append(&s->bytes, text, size, err);
    s->held += ok && s->holding ? size : 0;
    return ok;
}

bool di_stream_event(di_stream *s, const char *name, const char *json, size_t size, di_error *err) {
    close_gap(s);
    return (!name || (append(s, "event: ", 7, err) && append(s, name, strlen(name), err) &&
                      append(s, "\n", 1, err))) &&
           append(s, "data: ", 6, err) && append(s, json, size, err) && append(s, "\n\n", 2, err);
}

bool di_stream_text(di_stream *s, const char *text, di_error *err) {
    close_gap(s);
    return append(s, text, strlen(text), err);
}

size_t di_stream_take(di_stream *s, char *out, size_t most) {
    size_t size = di_stream_waiting(s);
    size = size < most ? size : most;
    if (size > 0) {
        memcpy(out, s->bytes.data + s->taken, size);
        s->taken += size;
    }
    if (s->taken == s->bytes.size) {
        s->taken = s->bytes.size = 0;
    }
    return size;
}

void di_stream_hold(di_stream *s, size_t size) {
    s->holding = true;
    s->held += size;
}

void di_stream_let_go(di_stream *s) {
    s->holding = false;
    s->held = 0;
}

void di_stream_free(di_stream *s) {
    di_buffer_free(&s->bytes);
}
