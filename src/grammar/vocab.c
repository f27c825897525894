/* Sorting a vocabulary into tries; see vocab.h. Called once a tokenizer. */
#include "grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/utf8.h"
#include "grammar/string_set.h"

typedef struct entry {
    const char *bytes;
    uint32_t size;
    int32_t id;
} entry;

static int compare(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    uint32_t n = a->size < b->size ? a->size : b->size;
    int c = memcmp(a->bytes, b->bytes, n);
    if (c == 0 && a->size != b->size) {
        c = a->size < b->size ? -1 : 1;
    }
    return c ? c : (a->id > b->id) - (a->id < b->id);
}

/* The number of characters of a plain token, 0 if it is none. */
static int plain_characters(const char *bytes, size_t size) {
    int count = 0;
    for (size_t at = 0; at < size; count++) {
        uint32_t c;
        int length = di_utf8_next(bytes + at, size - at, &c);
        if (length == 0 || c == DI_UTF8_MALFORMED || c < 0x20 || c == '"' || c == '\\') {
            return 0;
        }
        at += (size_t)length;
    }
    return count;
}

static uint32_t shared_prefix(const entry *a, const entry *b) {
    uint32_t n = a->size < b->size ? a->size : b->size, i = 0;
    while (i < n && a->bytes[i] == b->bytes[i]) {
        i++;
    }
    return i;
}

/* ---- classes of characters ---- */

int di_character_class(uint8_t first) {
    static const uint8_t leads[] = {0xC2, 0xC3, 0xC4, 0xE0, 0xE1, 0xE2, 0xE3, 0xE4,
                                    0xEA, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5};
    if (first < 0x20 || first == 0x7F) {
        return first == '\t' ? 0 : first == '\n' ? 1 : first == '\r' ? 2 : 3;
    }
    if (first < 0x80) {
        return first >= '0' && first <= '9'   ? 4
               : first >= 'A' && first <= 'F' ? 56
               : first >= 'A' && first <= 'Z' ? 5
               : first >= 'a' && first <= 'f' ? 57
               : first >= 'a' && first <= 'z' ? 6
               : first < '0'                  ? 7 + (first - ' ')
               : first < 'A'                  ? 23 + (first - ':')
               : first < 'a'                  ? 30 + (first - '[')
                                              : 36 + (first - '{');
    }
    int group = -1;
    while (group + 1 < (int)sizeof leads && first >= leads[group + 1]) {
        group++;
    }
    return group < 0 || first >= 0xF5 ? DI_CLASS_NONE : 40 + group;
}

static uint64_t classes_between(int low, int high) {
    return ((2ull << (high - low)) - 1) << low;
}

static void list_class_sets(uint64_t *sets) {
    enum { NUM_LARGE = DI_NUM_CLASS_SETS - 64 };
    const uint64_t control = classes_between(0, 3), marks = classes_between(7, 39);
    const uint64_t others = classes_between(40, 55) | classes_between(58, 63);
    const uint64_t large[NUM_LARGE] = {
        control | marks | others,
        control | others,
        marks,
        others,
        classes_between(40, 47),
        classes_between(48, 55),
        classes_between(7, 14),
        classes_between(15, 22),
        classes_between(23, 29),
        classes_between(30, 35),
        classes_between(36, 39),
        control,
    };
    for (int i = 0; i < DI_NUM_CLASS_SETS; i++) {
        sets[i] = i < NUM_LARGE ? large[i] : 1ull << (i - NUM_LARGE);
    }
}

const uint16_t di_characters_apart[DI_NUM_APART] = {
    0x0085, 0x00A0, 0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006,
    0x2007, 0x2008, 0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF,
};

bool di_character_apart(uint32_t code, int more) {
    for (int i = 0; i < DI_NUM_APART; i++) {
        if ((uint32_t)di_characters_apart[i] >> 6 * more == code) {
            return true;
        }
    }
    return false;
}

uint32_t di_character_payload(uint8_t first) {
    return first & (first < 0xE0 ? 0x1Fu : first < 0xF0 ? 0x0Fu : 0x07u);
}

di_character_form di_character_form_of(uint8_t first) {
    int more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return (di_character_form){more, low, high};
}

/* The classes of a token's characters, of which the last may lack bytes, and their number. */
static uint64_t classes_of(const char *bytes, size_t size, int *count) {
    uint64_t classes = size > 0 ? 0 : 1ull << DI_CLASS_NONE;
    *count = 0;
    for (size_t at = 0; at < size;) {
        di_character_form f = di_character_form_of((uint8_t)bytes[at]);
        int class = di_character_class((uint8_t)bytes[at]), k = 0;
        uint32_t code = di_character_payload((uint8_t)bytes[at++]);
        ++*count;
        for (; k < f.more && at < size; k++, at++) {
            uint8_t byte = (uint8_t)bytes[at];
            if (byte < (k ? 0x80 : f.low) || byte > (k ? 0xBF : f.high)) {
                return 1ull << DI_CLASS_NONE;
            }
            code = code << 6 | (byte & 0x3Fu);
        }
        bool apart =
            class != DI_CLASS_NONE && f.more > 0 && k == f.more && di_character_apart(code, 0);
        classes |= 1ull << (apart ? DI_CLASS_APART : class);
    }
    return classes;
}

/* Whether the byte goes on with the character that the node is in the middle of. */
static bool continues(const di_trie_node *in, uint8_t byte) {
    di_character_form f = di_character_form_of(in->byte);
    bool second = in->byte >= 0xC0;
    return in->lacks > 0 && byte >= (second ? f.low : 0x80) && byte <= (second ? f.high : 0xBF);
}

/* ---- tries ---- */

/* Whether a character of DI_CLASS_APART ends with this byte of a token. */
static bool ends_apart(const entry *e, uint32_t depth) {
    uint32_t first = depth;
    while (first > 0 && depth - first < 3 && ((uint8_t)e->bytes[first] & 0xC0) == 0x80) {
        first--;
    }
    int count;
    return first < depth &&
           classes_of(e->bytes + first, depth - first + 1, &count) == 1ull << DI_CLASS_APART;
}

/* From sorted entries: a first pass counts the nodes, a second writes them; `open` holds the node
 * at each depth of the current path, whose end is set when it is left. */
static bool build_trie(di_vocab *v, di_trie *trie, const entry *entries, size_t count,
                       di_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += entries[i].size - (i ? shared_prefix(&entries[i - 1], &entries[i]) : 0);
    }
    trie->nodes =
        total < UINT32_MAX ? di_realloc_array(NULL, total + 1, sizeof *trie->nodes) : NULL;
    if (!trie->nodes) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a trie of %zu nodes", total);
    }
    uint32_t open[DI_VOCAB_MAX_TOKEN_BYTES] = {0}, depth = 0, n = 0;
    for (size_t i = 0; i < count; i++) {
        const entry *e = &entries[i];
        uint32_t kept = i ? shared_prefix(&entries[i - 1], e) : 0;
        while (depth > kept) {
            trie->nodes[open[--depth]].end = n;
        }
        for (; depth < e->size; depth++, n++) {
            open[depth] = n;
            uint8_t byte = (uint8_t)e->bytes[depth];
            const di_trie_node *parent = depth > 0 ? &trie->nodes[open[depth - 1]] : NULL;
            int lacks = parent && continues(parent, byte) ? parent->lacks - 1
                        : di_character_class(byte) != DI_CLASS_NONE
                            ? di_character_form_of(byte).more
                            : 0;
            trie->nodes[n] = (di_trie_node){.token = -1,
                                            .byte = byte,
                                            .depth = (uint8_t)depth,
                                            .lacks = (uint8_t)lacks,
                                            .apart = lacks == 0 && ends_apart(e, depth)};
        }
        di_trie_node *last = &trie->nodes[open[e->size - 1]];
        last->twice = last->token >= 0;
        v->same[e->id] = last->token;
        last->token = e->id;
    }
    while (depth > 0) {
        trie->nodes[open[--depth]].end = n;
    }
    trie->num_nodes = n;
    return true;
}

/* The children of the nodes that have many: counted, and written if there is room. */
static uint32_t fan_out(di_trie *t, uint32_t *num_fans, bool write) {
    uint32_t kids = 0;
    *num_fans = 0;
    for (int64_t i = -1; i < t->num_nodes && *num_fans < UINT16_MAX; i++) {
        uint32_t first = (uint32_t)(i + 1), end = i < 0 ? t->num_nodes : t->nodes[i].end, count = 0;
        for (uint32_t c = first; c < end; c = t->nodes[c].end) {
            count++;
        }
        if (i >= 0 && count < DI_TRIE_FAN) {
            continue;
        }
        if (write) {
            di_trie_fan *f = &t->fans[*num_fans];
            *f = (di_trie_fan){.kids = kids};
            uint32_t k = kids;
            for (uint32_t c = first; c < end; c = t->nodes[c].end) {
                uint8_t byte = t->nodes[c].byte;
                f->bytes[byte / 64] |= 1ull << byte % 64;
                for (int w = byte / 64 + 1; w < 4; w++) {
                    f->before[w]++;
                }
                t->kids[k++] = c;
            }
            if (i >= 0) {
                t->steps[i].fan = (uint16_t)*num_fans;
            }
        }
        ++*num_fans;
        kids += count;
    }
    return kids;
}

static bool make_fans(di_trie *t, di_error *err) {
    uint32_t num_fans, kids = fan_out(t, &num_fans, false);
    t->fans = di_calloc(num_fans, sizeof *t->fans);
    t->kids = di_calloc(kids + 1u, sizeof *t->kids);
    if (!t->fans || !t->kids) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to index %u nodes", t->num_nodes);
    }
    fan_out(t, &num_fans, true);
    return true;
}

static bool index_trie(const di_vocab *v, di_trie *t, size_t num_tokens, di_error *err) {
    t->order = di_calloc(num_tokens + 1, sizeof *t->order);
    t->steps = di_calloc(t->num_nodes + 1u, sizeof *t->steps);
    if (!t->order || !t->steps) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to index %u nodes", t->num_nodes);
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->num_nodes; i++) {
        const di_trie_node *n = &t->nodes[i];
        t->steps[i] = (di_trie_step){.end = n->end, .byte = n->byte, .depth = n->depth};
        t->nodes[i].before = count;
        for (int32_t token = t->nodes[i].token; token >= 0; token = v->same[token]) {
            t->order[count++] = token;
        }
    }
    t->nodes[t->num_nodes] = (di_trie_node){.before = count};
    for (uint32_t i = 0, byte = 0; byte <= 256; byte++) {
        while (i < t->num_nodes && t->nodes[i].byte < byte) {
            i = t->nodes[i].end;
        }
        t->first[byte] = i;
    }
    for (uint32_t i = t->num_nodes; i-- > 0;) {
        for (uint32_t c = i + 1; c < t->nodes[i].end; c = t->nodes[c].end) {
            uint8_t byte = t->nodes[c].byte;
            int class = t->nodes[i].lacks > 0 ? -1 : di_character_class(byte);
            bool well = class >= 0 ? class != DI_CLASS_NONE : continues(&t->nodes[i], byte);
            int height = t->nodes[c].height + (class >= 0);
            t->nodes[i].height =
                (uint8_t)(height > t->nodes[i].height ? height : t->nodes[i].height);
            uint64_t own = class < 0 ? 0 : 1ull << class;
            own |= class >= 0 && t->nodes[c].apart ? 1ull << DI_CLASS_APART : 0;
            t->nodes[i].below |= well ? t->nodes[c].below | own : 1ull << DI_CLASS_NONE;
            t->nodes[i].apart |= class < 0 && well && t->nodes[c].apart;
        }
    }
    return make_fans(t, err);
}

static bool mark_plain(di_vocab *v, di_error *err) {
    size_t words = (size_t)v->num_words;
    v->plain[0] = di_calloc(words * (DI_VOCAB_PLAIN_CHARS + 1), sizeof(uint32_t));
    if (!v->plain[0]) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the masks of plain tokens");
    }
    for (int k = 1; k <= DI_VOCAB_PLAIN_CHARS; k++) {
        v->plain[k] = v->plain[0] + (size_t)k * words;
    }
    for (int32_t id = 0; id < v->num_bits; id++) {
        int chars = plain_characters(v->tokens[id].bytes, v->tokens[id].size);
        if (chars > 0 && chars <= DI_VOCAB_PLAIN_CHARS) {
            v->plain[chars][id / 32] |= 1u << id % 32;
        }
    }
    for (int k = 1; k <= DI_VOCAB_PLAIN_CHARS; k++) {
        for (size_t w = 0; w < words; w++) {
            v->plain[k][w] |= v->plain[k - 1][w];
        }
    }
    return true;
}

/* A mask of all words, in a list; made when it is first needed. */
static uint32_t *mask_at(const di_vocab *v, uint32_t **list) {
    *list = *list ? *list : di_calloc((size_t)v->num_words, sizeof **list);
    return *list;
}

static bool mark_classes(di_vocab *v, di_error *err) {
    bool ok = true;
    list_class_sets(v->class_sets);
    for (unsigned b = 0; b < 256; b++) {
        int class = di_character_class((uint8_t)b);
        v->class_of[b] = (uint8_t) class;
        v->class_bytes[class][b / 64] |= 1ull << b % 64;
        v->class_starts[b / 64] |= (uint64_t)(b == 0 || class != v->class_of[b - 1]) << b % 64;
    }
    for (int32_t id = 0; id < 32 * v->num_words && ok; id++) {
        di_vocab_token none = {0}, token = id < v->num_bits ? v->tokens[id] : none;
        int count;
        uint64_t classes = classes_of(token.bytes, token.size, &count);
        uint32_t bit = 1u << id % 32;
        for (int i = 0; i < DI_NUM_CLASS_SETS && ok; i++) {
            uint32_t *has = classes & v->class_sets[i] ? mask_at(v, &v->has[i]) : NULL;
            ok = has || !(classes & v->class_sets[i]);
            if (has) {
                has[id / 32] |= bit;
            }
        }
        for (int k = 0; k <= DI_VOCAB_PLAIN_CHARS && k < count && ok; k++) {
            uint32_t *longer = mask_at(v, &v->longer[k]);
            ok = longer != NULL;
            if (ok) {
                longer[id / 32] |= bit;
            }
        }
    }
    return ok ||
           di_fail(err, DI_ERR_NO_MEMORY, "no memory for the classes of %d tokens", v->num_bits);
}

static bool copy_tokens(di_vocab *v, const di_vocab_token *tokens, int32_t num_tokens,
                        di_error *err) {
    size_t total = 1;
    for (int32_t id = 0; id < num_tokens; id++) {
        if (!di_add_size(total, tokens[id].size, &total)) {
            return di_fail(err, DI_ERR_ARGUMENT, "the tokens' sizes overflow");
        }
    }
    v->text = di_alloc(total);
    v->tokens = di_calloc((size_t)v->num_bits, sizeof *v->tokens);
    v->same = di_realloc_array(NULL, (size_t)v->num_bits, sizeof *v->same);
    if (!v->text || !v->tokens || !v->same) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d tokens", num_tokens);
    }
    char *to = v->text;
    for (int32_t id = 0; id < v->num_bits; id++) {
        v->same[id] = -1;
        if (id >= num_tokens || tokens[id].size == 0 ||
            tokens[id].size > DI_VOCAB_MAX_TOKEN_BYTES || di_vocab_is_stop(v, id)) {
            continue;
        }
        memcpy(to, tokens[id].bytes, tokens[id].size);
        v->tokens[id] = (di_vocab_token){to, tokens[id].size};
        to += tokens[id].size;
        v->max_bytes = (int)tokens[id].size > v->max_bytes ? (int)tokens[id].size : v->max_bytes;
    }
    return true;
}

static int longest_first(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    return a->size != b->size ? (a->size < b->size ? 1 : -1) : (a->id > b->id) - (a->id < b->id);
}

/* Of all entries, which it sorts anew. */
static bool list_long_tokens(di_vocab *v, entry *entries, size_t count, di_error *err) {
    qsort(entries, count, sizeof *entries, longest_first);
    while ((size_t)v->num_long < count && entries[v->num_long].size > DI_VOCAB_LONG) {
        v->num_long++;
    }
    v->long_ids = di_realloc_array(NULL, (size_t)v->num_long + 1, sizeof *v->long_ids);
    if (!v->long_ids) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to list %d tokens", v->num_long);
    }
    for (int32_t i = 0; i < v->num_long; i++) {
        v->long_ids[i] = entries[i].id;
    }
    return true;
}

/* Of all entries, longest first. */
static bool list_spaces(di_vocab *v, const entry *entries, size_t count, di_error *err) {
    for (size_t i = 0; i < count; i++) {
        uint32_t spaces = di_leading_spaces(entries[i].bytes, entries[i].size);
        if (spaces < entries[i].size && spaces > v->mixed_spaces) {
            v->mixed_spaces = spaces;
        }
    }
    size_t capacity = 0;
    for (size_t i = 0; i < count && entries[i].size > v->mixed_spaces; i++) {
        const entry *e = &entries[i];
        if (di_leading_spaces(e->bytes, e->size) < e->size) {
            continue;
        }
        void *spaces = di_grow(v->spaces, (size_t)v->num_spaces, &capacity, sizeof *v->spaces);
        if (!spaces) {
            return di_fail(err, DI_ERR_NO_MEMORY, "no memory to list %zu tokens", count);
        }
        v->spaces = spaces;
        struct di_vocab_space *one = &v->spaces[v->num_spaces++];
        *one = (struct di_vocab_space){.token = e->id, .count = e->size};
        for (uint32_t k = 0; k < e->size; k++) {
            one->bytes |= 1ull << e->bytes[k];
        }
    }
    return true;
}

static bool build_tries(di_vocab *v, di_error *err) {
    entry *entries = di_realloc_array(NULL, (size_t)v->num_bits, sizeof *entries);
    if (!entries) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory to sort %d tokens", v->num_bits);
    }
    bool ok = true;
    for (int t = DI_NUM_TRIES - 1; ok && t >= 0; t--) {
        size_t count = 0;
        for (int32_t id = 0; id < v->num_bits; id++) {
            bool plain = v->plain[DI_VOCAB_PLAIN_CHARS][id / 32] >> id % 32 & 1;
            if (v->tokens[id].size > 0 && (t == DI_TRIE_ALL || !plain)) {
                entries[count++] = (entry){v->tokens[id].bytes, (uint32_t)v->tokens[id].size, id};
            }
        }
        qsort(entries, count, sizeof *entries, compare);
        ok = build_trie(v, &v->tries[t], entries, count, err) &&
             index_trie(v, &v->tries[t], count, err) &&
             (t != DI_TRIE_ALL ||
              (list_long_tokens(v, entries, count, err) && list_spaces(v, entries, count, err)));
    }
    di_free(entries);
    return ok;
}

di_vocab *di_vocab_create(const di_vocab_token *tokens, int32_t num_tokens, int32_t num_bits,
                          const int32_t *stop_ids, int num_stop, di_error *err) {
    if (num_tokens < 1 || num_bits < num_tokens || num_stop < 0) {
        di_fail(err, DI_ERR_ARGUMENT, "a vocabulary of %d tokens cannot have masks of %d bits",
                num_tokens, num_bits);
        return NULL;
    }
    for (int i = 0; i < num_stop; i++) {
        if (stop_ids[i] < 0 || stop_ids[i] >= num_bits) {
            di_fail(err, DI_ERR_ARGUMENT, "stop token %d is outside 0 to %d", stop_ids[i],
                    num_bits - 1);
            return NULL;
        }
    }
    di_vocab *v = di_calloc(1, sizeof *v);
    int32_t *stops = di_realloc_array(NULL, (size_t)num_stop + 1, sizeof *stops);
    if (!v || !stops) {
        di_free(v);
        di_free(stops);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a vocabulary");
        return NULL;
    }
    if (num_stop > 0) {
        memcpy(stops, stop_ids, (size_t)num_stop * sizeof *stops);
    }
    v->stop_ids = stops;
    v->num_stop = num_stop;
    v->num_bits = num_bits;
    v->num_words = num_bits / 32 + (num_bits % 32 != 0);
    if (!copy_tokens(v, tokens, num_tokens, err) || !mark_plain(v, err) || !mark_classes(v, err) ||
        !build_tries(v, err) || !(v->strings = di_token_set_of_strings(v, err)) ||
        !di_string_marks_make(v, err)) {
        di_vocab_destroy(v);
        return NULL;
    }
    v->like = v->strings->tokens->num_patches < 0 ? v->strings->tokens->data : NULL;
    return v;
}

void di_vocab_destroy(di_vocab *v) {
    if (!v) {
        return;
    }
    for (int t = 0; t < DI_NUM_TRIES; t++) {
        di_free(v->tries[t].nodes);
        di_free(v->tries[t].order);
        di_free(v->tries[t].steps);
        di_free(v->tries[t].fans);
        di_free(v->tries[t].kids);
    }
    di_string_marks_destroy(v->marks);
    if (v->strings) {
        di_token_set_clear(v->strings);
        di_free(v->strings);
    }
    di_free(v->long_ids);
    di_free(v->spaces);
    di_free(v->plain[0]);
    for (size_t i = 0; i < sizeof v->has / sizeof *v->has; i++) {
        di_free(v->has[i]);
    }
    for (int k = 0; k <= DI_VOCAB_PLAIN_CHARS; k++) {
        di_free(v->longer[k]);
    }
    di_free(v->same);
    di_free(v->stop_ids);
    di_free(v->tokens);
    di_free(v->text);
    di_free(v);
}

bool di_vocab_is_stop(const di_vocab *v, int32_t id) {
    for (int i = 0; i < v->num_stop; i++) {
        if (v->stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}
