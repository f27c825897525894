/* Stop strings by Knuth, Morris and Pratt, one automaton a string. See stop.h.
 *
 * The longest start of a string that the text ends with is exactly what that string forbids to show
 * yet. So what is held back needs no buffer: it is the start of the string that has matched most.
 */
#include "sample/stop.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

typedef struct stop_string {
    const char *text;
    size_t size;
    const uint16_t *fallback; /* [size]: length of the longest border of text[0 .. i] */
} stop_string;

struct di_stop_set {
    size_t count;
    stop_string strings[]; /* their texts and fallbacks behind them, in the same block */
};

/* ---- the set ----------------------------------------------------------------------------------*/

static bool check_string(const char *text, size_t size, size_t index, di_error *err) {
    size_t bad;
    if (size < 1 || size > DI_MAX_STOP_BYTES) {
        return di_fail(err, DI_ERR_ARGUMENT, "stop[%zu] has %zu bytes, allowed are 1 to %d", index,
                       size, DI_MAX_STOP_BYTES);
    }
    if (!di_utf8_valid(text, size, &bad)) {
        return di_fail(err, DI_ERR_ARGUMENT, "stop[%zu] is not UTF-8 at byte %zu", index, bad);
    }
    return true;
}

static void find_borders(const char *text, size_t size, uint16_t *border) {
    border[0] = 0;
    for (size_t i = 1, k = 0; i < size; i++) {
        while (k > 0 && text[i] != text[k]) {
            k = border[k - 1];
        }
        k += text[i] == text[k];
        border[i] = (uint16_t)k;
    }
}

static size_t size_of(const char *const *strings, const size_t *sizes, size_t i) {
    return sizes ? sizes[i] : strlen(strings[i]);
}

di_stop_set *di_stop_set_create(const char *const *strings, const size_t *sizes, size_t count,
                                di_error *err) {
    size_t bytes = 0;
    if (count > DI_MAX_STOP_STRINGS) {
        di_fail(err, DI_ERR_ARGUMENT, "stop has %zu strings, allowed are up to %d", count,
                DI_MAX_STOP_STRINGS);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        size_t size = size_of(strings, sizes, i);
        if (!check_string(strings[i], size, i, err)) {
            return NULL;
        }
        bytes += size;
    }
    di_stop_set *set = di_alloc(sizeof *set + count * sizeof *set->strings + 3 * bytes + count);
    if (!set) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the stop strings");
        return NULL;
    }
    set->count = count;
    uint16_t *border = (uint16_t *)(set->strings + count);
    char *text = (char *)(border + bytes);
    for (size_t i = 0; i < count; i++) {
        size_t size = size_of(strings, sizes, i);
        memcpy(text, strings[i], size);
        text[size] = 0;
        find_borders(text, size, border);
        set->strings[i] = (stop_string){text, size, border};
        text += size + 1;
        border += size;
    }
    return set;
}

void di_stop_set_destroy(di_stop_set *set) {
    di_free(set);
}

const char *di_stop_set_text(const di_stop_set *set, int index) {
    return set->strings[index].text;
}

/* ---- the stream -------------------------------------------------------------------------------*/

void di_stop_start(di_stop_stream *s, const di_stop_set *set, bool include) {
    *s = (di_stop_stream){.set = set, .include = include, .match = -1};
}

/* The string whose start is held back: the one that has matched most. NULL if nothing is. */
static const stop_string *held_string(const di_stop_stream *s, size_t *held) {
    const stop_string *longest = NULL;
    *held = 0;
    for (size_t i = 0; i < s->set->count; i++) {
        if (s->matched[i] > *held) {
            *held = s->matched[i];
            longest = &s->set->strings[i];
        }
    }
    return longest;
}

size_t di_stop_held(const di_stop_stream *s) {
    size_t held;
    held_string(s, &held);
    return held;
}

/* Takes one byte; true if it completes a string, the longest of which is then s->match. */
static bool step(di_stop_stream *s, char byte) {
    for (size_t i = 0; i < s->set->count; i++) {
        const stop_string *string = &s->set->strings[i];
        size_t k = s->matched[i];
        while (k > 0 && string->text[k] != byte) {
            k = string->fallback[k - 1];
        }
        k += string->text[k] == byte;
        if (k == string->size) {
            if (s->match < 0 || string->size > s->set->strings[s->match].size) {
                s->match = (int)i;
            }
            k = 0;
        }
        s->matched[i] = (uint16_t)k;
    }
    return s->match >= 0;
}

/* Appends the first `count` bytes of held + text. */
static bool release(const stop_string *string, size_t held, const char *text, size_t count,
                    di_buffer *out, di_error *err) {
    size_t old = count < held ? count : held, before = out->size;
    if (old > 0 && !di_buffer_append(out, string->text, old, err)) {
        return false;
    }
    if (count > old && !di_buffer_append(out, text, count - old, err)) {
        out->size = before;
        if (out->data) {
            out->data[before] = 0;
        }
        return false;
    }
    return true;
}

bool di_stop_push(di_stop_stream *s, const char *text, size_t size, di_buffer *out, di_error *err) {
    if (s->match >= 0 || size == 0) {
        return true;
    }
    size_t held, used = 0, keep;
    const stop_string *string = held_string(s, &held);
    di_stop_stream after = *s;
    while (used < size && !step(&after, text[used++])) {
    }
    if (after.match >= 0) {
        keep = after.include ? 0 : s->set->strings[after.match].size;
        memset(after.matched, 0, sizeof after.matched);
    } else {
        keep = di_stop_held(&after);
    }
    if (!release(string, held, text, held + used - keep, out, err)) {
        return false;
    }
    *s = after;
    return true;
}

bool di_stop_pass(di_stop_stream *s, const char *text, size_t size, di_buffer *out, di_error *err) {
    size_t held;
    const stop_string *string = held_string(s, &held);
    if (s->match >= 0) {
        return true;
    }
    if (!release(string, held, text, held + size, out, err)) {
        return false;
    }
    memset(s->matched, 0, sizeof s->matched);
    return true;
}

bool di_stop_flush(di_stop_stream *s, di_buffer *out, di_error *err) {
    return di_stop_pass(s, "", 0, out, err);
}
