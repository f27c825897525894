/* Added tokens, see added.h. Semantics are those of Hugging Face's `tokenizers`, down to this: a
 * match that its flags reject still uses up the text that it matched. */
#include "text/added.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "text/unicode.h"

bool di_added_create(di_added *a, di_error *err) {
    *a = (di_added){0};
    a->nodes = di_grow(NULL, 0, &a->capacity, sizeof *a->nodes);
    if (!a->nodes) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for added tokens");
    }
    a->nodes[a->count++] = (di_added_node){.child = -1, .sibling = -1, .id = -1};
    return true;
}

void di_added_destroy(di_added *a) {
    di_free(a->nodes);
    *a = (di_added){0};
}

static int32_t child_of(const di_added *a, int32_t node, uint8_t byte) {
    int32_t i = a->nodes[node].child;
    while (i >= 0 && a->nodes[i].byte != byte) {
        i = a->nodes[i].sibling;
    }
    return i;
}

bool di_added_insert(di_added *a, const char *text, size_t size, int32_t id, uint8_t flags,
                     di_error *err) {
    int32_t node = 0;
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = (uint8_t)text[i];
        int32_t next = child_of(a, node, byte);
        if (next < 0) {
            di_added_node *moved = a->count < INT32_MAX
                                       ? di_grow(a->nodes, a->count, &a->capacity, sizeof *moved)
                                       : NULL;
            if (!moved) {
                return di_fail(err, DI_ERR_NO_MEMORY, "no memory for added tokens");
            }
            a->nodes = moved;
            next = (int32_t)a->count++;
            a->nodes[next] = (di_added_node){
                .child = -1, .sibling = a->nodes[node].child, .id = -1, .byte = byte};
            a->nodes[node].child = next;
        }
        node = next;
    }
    if (a->nodes[node].id >= 0) {
        return di_fail(err, DI_ERR_FORMAT, "added tokens %d and %d have the same text \"%.64s\"",
                       (int)a->nodes[node].id, (int)id, text);
    }
    a->nodes[node].id = id;
    a->nodes[node].flags = flags;
    a->begins[(uint8_t)text[0]] = true;
    return true;
}

int32_t di_added_find(const di_added *a, const char *text, size_t size) {
    int32_t node = 0;
    for (size_t i = 0; i < size && node >= 0; i++) {
        node = child_of(a, node, (uint8_t)text[i]);
    }
    return node < 0 ? -1 : a->nodes[node].id;
}

/* The character that ends before text[end]; end >= 1. */
static size_t before(const char *text, size_t end, uint32_t *c) {
    size_t i = end - 1;
    while (i > 0 && ((unsigned char)text[i] & 0xC0) == 0x80) {
        i--;
    }
    di_utf8_next(text + i, end - i, c);
    return i;
}

static bool touches_word(const char *text, size_t size, size_t begin, size_t end) {
    uint32_t c;
    if (begin > 0 && (before(text, begin, &c), di_is_word(c))) {
        return true;
    }
    return end < size && (di_utf8_next(text + end, size - end, &c), di_is_word(c));
}

/* Length of the longest token that begins at p, 0 if none; *node is its end in the trie. */
static size_t longest(const di_added *a, const char *p, size_t size, int32_t *node) {
    size_t length = 0;
    int32_t at = 0;
    for (size_t i = 0; i < size; i++) {
        at = child_of(a, at, (uint8_t)p[i]);
        if (at < 0) {
            break;
        }
        if (a->nodes[at].id >= 0) {
            length = i + 1;
            *node = at;
        }
    }
    return length;
}

/* Sets begin and end to what a token found at text[first..last) covers. */
static void cover(di_added_search *s, size_t first, size_t last, uint8_t flags) {
    uint32_t c;
    while (flags & DI_ADDED_LSTRIP && first > s->end) {
        size_t previous = before(s->text, first, &c);
        if (!di_is_white_space(c)) {
            break;
        }
        first = previous;
    }
    while (flags & DI_ADDED_RSTRIP && last < s->size) {
        int length = di_utf8_next(s->text + last, s->size - last, &c);
        if (!di_is_white_space(c)) {
            break;
        }
        last += (size_t)length;
    }
    s->begin = first;
    s->end = last;
}

int32_t di_added_next(const di_added *a, di_added_search *s) {
    while (s->from < s->size) {
        size_t first = s->from;
        int32_t node = 0;
        size_t length = a->begins[(uint8_t)s->text[first]]
                            ? longest(a, s->text + first, s->size - first, &node)
                            : 0;
        if (length == 0) {
            s->from++;
            continue;
        }
        s->from = first + length;
        uint8_t flags = a->nodes[node].flags;
        if (!(flags & DI_ADDED_SINGLE_WORD) || !touches_word(s->text, s->size, first, s->from)) {
            cover(s, first, s->from, flags);
            return a->nodes[node].id;
        }
    }
    return -1;
}
