/* Opening tokenizer.json: every field is either understood or refused by name. The file is hostile:
 * ids, texts and merges are checked against each other before anything is built from them. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_parts.h"

#define MOST_FILE_BYTES ((size_t)256 << 20)
#define MOST_TOKENS     (1 << 22)

/* While loading: each id's spelling in the file, owned by the JSON. */
typedef struct loading {
    di_tokenizer *tok;
    const json_t *root, *model, *vocab, *merges;
    const char **spelling; /* [vocab.count], NULL where an id has no token */
    int32_t byte_id[256];
} loading;

/* Refuses keys that are not in the NULL-terminated list. */
static bool only_keys(const json_t *object, const char *where, const char *const *allowed,
                      di_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        int i = 0;
        while (allowed[i] && strcmp(allowed[i], key) != 0) {
            i++;
        }
        if (!allowed[i]) {
            return di_fail(err, DI_ERR_UNSUPPORTED, "%s: field \"%.64s\" is not known", where, key);
        }
    }
    return true;
}

/* Absent, null, and what amounts to it: "", false, 0. */
static bool is_off(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_number(v) && json_number_value(v) == 0);
}

static bool must_be_off(const json_t *object, const char *where, const char *const *keys,
                        di_error *err) {
    for (int i = 0; keys[i]; i++) {
        if (!is_off(object, keys[i])) {
            return di_fail(err, DI_ERR_UNSUPPORTED, "%s: %s is set, which is not supported", where,
                           keys[i]);
        }
    }
    return true;
}

static bool type_is(const json_t *object, const char *where, const char *wanted, di_error *err) {
    const char *type;
    if (!di_json_string(object, where, "type", &type, err)) {
        return false;
    }
    return strcmp(type, wanted) == 0 ||
           di_fail(err, DI_ERR_UNSUPPORTED, "%s: type \"%.64s\" is not supported (\"%s\" is)",
                   where, type, wanted);
}

/* A normalizer that changes nothing: null, or an empty sequence. */
static bool check_normalizer(const json_t *root, di_error *err) {
    const json_t *n = json_object_get(root, "normalizer");
    if (!n || json_is_null(n)) {
        return true;
    }
    const char *type;
    if (!di_json_string(n, "normalizer", "type", &type, err)) {
        return false;
    }
    const json_t *steps = json_object_get(n, "normalizers");
    return (strcmp(type, "Sequence") == 0 && json_is_array(steps) && json_array_size(steps) == 0) ||
           di_fail(err, DI_ERR_UNSUPPORTED,
                   "normalizer: type \"%.64s\" is not supported (only an empty one is)", type);
}

static bool check_frame(const json_t *root, di_error *err) {
    static const char *const known[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    static const char *const off[] = {"truncation", "padding", NULL};
    if (!only_keys(root, "the file", known, err) || !must_be_off(root, "the file", off, err) ||
        !check_normalizer(root, err)) {
        return false;
    }
    const json_t *decoder = di_json_object(root, "the file", "decoder", err);
    if (!decoder || !type_is(decoder, "decoder", "ByteLevel", err)) {
        return false;
    }
    /* A ByteLevel post-processor moves offsets only, which nobody asks for here. */
    const json_t *post = json_object_get(root, "post_processor");
    return !post || json_is_null(post) || type_is(post, "post_processor", "ByteLevel", err);
}

static bool check_model(loading *l, di_error *err) {
    static const char *const known[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges",
                                        NULL};
    static const char *const off[] = {"dropout",
                                      "unk_token",
                                      "continuing_subword_prefix",
                                      "end_of_word_suffix",
                                      "byte_fallback",
                                      "ignore_merges",
                                      NULL};
    l->model = di_json_object(l->root, "the file", "model", err);
    return l->model && type_is(l->model, "model", "BPE", err) &&
           only_keys(l->model, "model", known, err) && must_be_off(l->model, "model", off, err) &&
           (l->vocab = di_json_object(l->model, "model", "vocab", err)) &&
           (l->merges = di_json_array(l->model, "model", "merges", err));
}

/* One Split step; gives its pattern. */
static bool read_split(const json_t *step, const char *where, const char **pattern, di_error *err) {
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const off[] = {"invert", NULL};
    static const char *const regex[] = {"Regex", NULL};
    const char *behavior;
    if (!type_is(step, where, "Split", err) || !only_keys(step, where, known, err) ||
        !must_be_off(step, where, off, err) ||
        !di_json_string(step, where, "behavior", &behavior, err)) {
        return false;
    }
    if (strcmp(behavior, "Isolated") != 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "%s: behavior \"%.64s\" is not supported (\"Isolated\" is)", where,
                       behavior);
    }
    const json_t *p = di_json_object(step, where, "pattern", err);
    return p && only_keys(p, where, regex, err) && di_json_string(p, where, "Regex", pattern, err);
}

static bool check_byte_level(const json_t *step, const char *where, di_error *err) {
    static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    /* A missing use_regex means true to the `tokenizers` library. */
    bool use_regex, prefix;
    if (!type_is(step, where, "ByteLevel", err) || !only_keys(step, where, known, err) ||
        !di_json_bool_or(step, where, "use_regex", true, &use_regex, err) ||
        !di_json_bool_or(step, where, "add_prefix_space", true, &prefix, err)) {
        return false;
    }
    return (!use_regex && !prefix) ||
           di_fail(err, DI_ERR_UNSUPPORTED, "%s: %s is set, which is not supported", where,
                   use_regex ? "use_regex" : "add_prefix_space");
}

/* Any number of Split steps, then ByteLevel. */
static bool load_splitter(loading *l, di_error *err) {
    const json_t *pre = di_json_object(l->root, "the file", "pre_tokenizer", err);
    if (!pre || !type_is(pre, "pre_tokenizer", "Sequence", err)) {
        return false;
    }
    const json_t *steps = di_json_array(pre, "pre_tokenizer", "pretokenizers", err);
    size_t count = json_array_size(steps);
    if (!steps || count < 1 || count > DI_SPLIT_MOST_PATTERNS + 1) {
        return steps &&
               di_fail(err, DI_ERR_UNSUPPORTED, "pre_tokenizer: %zu steps (1 to %d are supported)",
                       count, DI_SPLIT_MOST_PATTERNS + 1);
    }
    const char *patterns[DI_SPLIT_MOST_PATTERNS];
    for (size_t i = 0; i < count; i++) {
        char where[64];
        snprintf(where, sizeof where, "pre_tokenizer: step %zu", i);
        const json_t *step = json_array_get(steps, i);
        if (!json_is_object(step)) {
            return di_fail(err, DI_ERR_FORMAT, "%s is %s, an object expected", where,
                           di_json_type_name(step));
        }
        if (!(i + 1 < count ? read_split(step, where, &patterns[i], err)
                            : check_byte_level(step, where, err))) {
            return false;
        }
    }
    return di_splitter_create(&l->tok->splitter, patterns, (int)count - 1, err) ||
           di_fail_prefix(err, "pre_tokenizer");
}

/* Vocabulary size: highest id of either list + 1. */
static bool find_count(const loading *l, const json_t *added, int32_t *count, di_error *err) {
    const char *key;
    json_t *value;
    size_t i;
    int64_t id, highest = -1;
    json_object_foreach((json_t *)l->vocab, key, value) {
        id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= MOST_TOKENS) {
            return di_fail(err, DI_ERR_FORMAT,
                           "model: vocab: id of \"%.64s\" must be an integer from 0 to %d", key,
                           MOST_TOKENS - 1);
        }
        highest = id > highest ? id : highest;
    }
    json_array_foreach((json_t *)added, i, value) {
        if (!json_is_object(value)) {
            return di_fail(err, DI_ERR_FORMAT, "added_tokens: entry %zu is no object", i);
        }
        if (!di_json_int(value, "added_tokens", "id", 0, MOST_TOKENS - 1, &id, err)) {
            return false;
        }
        highest = id > highest ? id : highest;
    }
    *count = (int32_t)highest + 1;
    return true;
}

static bool place_vocab(loading *l, di_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)l->vocab, key, value) {
        int32_t id = (int32_t)json_integer_value(value);
        if (l->spelling[id]) {
            return di_fail(err, DI_ERR_FORMAT,
                           "model: vocab: \"%.64s\" and \"%.64s\" have the same id %d",
                           l->spelling[id], key, (int)id);
        }
        l->spelling[id] = key;
        l->tok->vocab.flags[id] = DI_TOKEN_PRESENT;
    }
    return true;
}

static bool is_ascii(const char *text) {
    while (*text && (unsigned char)*text < 0x80) {
        text++;
    }
    return !*text;
}

/* An added token may repeat one of the vocabulary, but only under the same id, and only where the
 * alphabet of bytes and plain UTF-8 spell it alike (else one id would stand for two texts). */
static bool check_added_id(const loading *l, int32_t id, const char *content, di_error *err) {
    const json_t *same = json_object_get(l->vocab, content);
    const char *there = l->spelling[id];
    if (same && json_integer_value(same) != id) {
        return di_fail(err, DI_ERR_FORMAT,
                       "added_tokens: \"%.64s\" has id %d here and %lld in model.vocab", content,
                       (int)id, (long long)json_integer_value(same));
    }
    if (there && strcmp(there, content) != 0) {
        return di_fail(err, DI_ERR_FORMAT, "added_tokens: \"%.64s\" has the id %d of \"%.64s\"",
                       content, (int)id, there);
    }
    if (l->tok->vocab.flags[id] & DI_TOKEN_ADDED) {
        return di_fail(err, DI_ERR_FORMAT, "added_tokens: id %d is there twice", (int)id);
    }
    return true;
}

static bool place_added(loading *l, const json_t *entry, di_error *err) {
    static const char *const known[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    const char *content, *where = "added_tokens";
    int64_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    if (!only_keys(entry, where, known, err) ||
        !di_json_int(entry, where, "id", 0, MOST_TOKENS - 1, &id, err) ||
        !di_json_string(entry, where, "content", &content, err) ||
        !di_json_bool_or(entry, where, "single_word", false, &single_word, err) ||
        !di_json_bool_or(entry, where, "lstrip", false, &lstrip, err) ||
        !di_json_bool_or(entry, where, "rstrip", false, &rstrip, err) ||
        !di_json_bool_or(entry, where, "special", false, &special, err) ||
        !di_json_bool_or(entry, where, "normalized", !special, &normalized, err)) {
        return false;
    }
    if (!*content) {
        return di_fail(err, DI_ERR_FORMAT, "added_tokens: token %d is empty", (int)id);
    }
    if (!check_added_id(l, (int32_t)id, content, err)) {
        return false;
    }
    l->spelling[id] = content;
    l->tok->vocab.flags[id] |= DI_TOKEN_PRESENT | DI_TOKEN_ADDED | (special ? DI_TOKEN_SPECIAL : 0);
    uint8_t flags = (uint8_t)((single_word ? DI_ADDED_SINGLE_WORD : 0) |
                              (lstrip ? DI_ADDED_LSTRIP : 0) | (rstrip ? DI_ADDED_RSTRIP : 0));
    return di_added_insert(normalized ? &l->tok->added_then : &l->tok->added_first, content,
                           strlen(content), (int32_t)id, flags, err) ||
           di_fail_prefix(err, "added_tokens");
}

/* Writes a token's bytes to out (room for size) and returns how many; *raw is set if
 * the spelling is no text in the alphabet of bytes. */
static size_t spell(const char *spelling, size_t size, char *out, bool *raw) {
    size_t n = 0;
    for (size_t i = 0; i < size;) {
        uint32_t c;
        i += (size_t)di_utf8_next(spelling + i, size - i, &c);
        int byte = di_char_to_byte(c);
        if (byte < 0) {
            memcpy(out, spelling, size);
            *raw = true;
            return size;
        }
        out[n++] = (char)byte;
    }
    *raw = false;
    return n;
}

static bool fill_bytes(loading *l, di_error *err) {
    di_vocab *v = &l->tok->vocab;
    size_t total = 0;
    for (int32_t id = 0; id < v->count; id++) {
        total += l->spelling[id] ? strlen(l->spelling[id]) : 0; /* the file's size bounds it */
    }
    v->bytes = di_alloc(total);
    if (!v->bytes) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for %zu bytes of tokens", total);
    }
    size_t used = 0;
    for (int32_t id = 0; id < v->count; id++) {
        v->start[id] = (uint32_t)used;
        if (!l->spelling[id]) {
            continue;
        }
        bool raw;
        size_t length = strlen(l->spelling[id]);
        size_t size = spell(l->spelling[id], length, v->bytes + used, &raw);
        if (!raw && v->flags[id] & DI_TOKEN_ADDED && !is_ascii(l->spelling[id])) {
            if (json_object_get(l->vocab, l->spelling[id])) {
                return di_fail(err, DI_ERR_UNSUPPORTED,
                               "added_tokens: \"%.64s\" is also a token of bytes in model.vocab",
                               l->spelling[id]);
            }
            size = length;
            memcpy(v->bytes + used, l->spelling[id], size);
            raw = true;
        }
        v->flags[id] |= raw ? DI_TOKEN_RAW : 0;
        used += size;
    }
    v->start[v->count] = (uint32_t)used;
    return true;
}

static bool load_vocab(loading *l, di_error *err) {
    di_vocab *v = &l->tok->vocab;
    json_t *none = NULL, *added = json_object_get(l->root, "added_tokens");
    if (!added || json_is_null(added)) {
        added = none = json_array();
    } else if (!di_json_array(l->root, "the file", "added_tokens", err)) {
        return false;
    }
    bool ok = find_count(l, added, &v->count, err);
    if (ok) {
        v->start = di_calloc((size_t)v->count + 1, sizeof *v->start);
        v->flags = di_calloc((size_t)v->count + 1, sizeof *v->flags);
        l->spelling = di_calloc((size_t)v->count + 1, sizeof *l->spelling);
        ok = (v->start && v->flags && l->spelling) ||
             di_fail(err, DI_ERR_NO_MEMORY, "no memory for %d tokens", (int)v->count);
    }
    ok = ok && place_vocab(l, err) && di_added_create(&l->tok->added_first, err) &&
         di_added_create(&l->tok->added_then, err);
    size_t i;
    json_t *entry;
    json_array_foreach(added, i, entry) {
        ok = ok && place_added(l, entry, err);
    }
    json_decref(none);
    return ok && fill_bytes(l, err);
}

static bool find_bytes(loading *l, di_error *err) {
    for (int b = 0; b < 256; b++) {
        char spelling[5] = {0};
        di_utf8_encode(di_byte_to_char((unsigned char)b), spelling);
        const json_t *id = json_object_get(l->vocab, spelling);
        if (!id) {
            return di_fail(err, DI_ERR_FORMAT, "model: vocab: no token for byte 0x%02x (\"%s\")",
                           (unsigned)b, spelling);
        }
        l->byte_id[b] = (int32_t)json_integer_value(id);
    }
    return true;
}

/* A merge is written "left right" or ["left", "right"]. Puts both halves into scratch, each with
 * its NUL, and returns the second; NULL with an error if this is no merge. */
static const char *read_merge(const json_t *entry, size_t rank, di_buffer *scratch, di_error *err) {
    const char *left = json_string_value(json_array_get(entry, 0));
    const char *right = json_string_value(json_array_get(entry, 1));
    size_t left_size = left ? strlen(left) : 0;
    bool good = json_array_size(entry) == 2 && left && right && *left && *right;
    if (json_is_string(entry)) {
        left = json_string_value(entry);
        left_size = strcspn(left, " ");
        right = left + left_size + (left[left_size] == ' ');
        good = left_size > 0 && *right && !strchr(right, ' ');
    }
    if (!good) {
        di_fail(err, DI_ERR_FORMAT,
                "model: merges: entry %zu is neither \"left right\" nor [\"left\", \"right\"]",
                rank);
        return NULL;
    }
    scratch->size = 0;
    if (!di_buffer_append(scratch, left, left_size, err) ||
        !di_buffer_append(scratch, "", 1, err) || !di_buffer_append_text(scratch, right, err)) {
        return NULL;
    }
    return scratch->data + left_size + 1;
}

/* Id of a spelling that a merge needs, -1 with an error if it is not there. */
static int32_t token_id(const loading *l, const char *spelling, size_t rank, di_error *err) {
    const json_t *value = json_object_get(l->vocab, spelling);
    if (!value) {
        di_fail(err, DI_ERR_FORMAT,
                "model: merges: entry %zu needs \"%.64s\", which model.vocab lacks", rank,
                spelling);
        return -1;
    }
    return (int32_t)json_integer_value(value);
}

static bool load_merge(loading *l, const json_t *entry, size_t rank, di_buffer *scratch,
                       di_error *err) {
    const char *right = read_merge(entry, rank, scratch, err);
    if (!right) {
        return false;
    }
    int32_t left_id = token_id(l, scratch->data, rank, err);
    int32_t right_id = left_id < 0 ? -1 : token_id(l, right, rank, err);
    if (right_id < 0) {
        return false;
    }
    memmove(scratch->data + strlen(scratch->data), right, strlen(right) + 1);
    int32_t id = token_id(l, scratch->data, rank, err);
    if (id < 0) {
        return false;
    }
    return di_bpe_add_merge(&l->tok->bpe, left_id, right_id, (uint32_t)rank, id) ||
           di_fail(err, DI_ERR_FORMAT, "model: merges: entry %zu (making \"%.64s\") is there twice",
                   rank, scratch->data);
}

static bool load_merges(loading *l, di_error *err) {
    size_t count = json_array_size(l->merges), rank;
    if (count > MOST_TOKENS) {
        return di_fail(err, DI_ERR_FORMAT, "model: merges: %zu entries, at most %d are allowed",
                       count, MOST_TOKENS);
    }
    if (!find_bytes(l, err) ||
        !di_bpe_create(&l->tok->bpe, &l->tok->vocab, l->byte_id, count, err)) {
        return false;
    }
    di_buffer scratch = {0};
    json_t *entry;
    bool ok = true;
    json_array_foreach((json_t *)l->merges, rank, entry) {
        ok = ok && load_merge(l, entry, rank, &scratch, err);
    }
    di_buffer_free(&scratch);
    return ok && di_bpe_index_words(&l->tok->bpe, err);
}

static di_tokenizer *load(const json_t *root, di_error *err) {
    loading l = {.root = root, .tok = di_calloc(1, sizeof *l.tok)};
    if (!l.tok) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a tokenizer");
        return NULL;
    }
    bool ok = json_is_object(root) ||
              di_fail(err, DI_ERR_FORMAT, "is %s, an object expected", di_json_type_name(root));
    ok = ok && check_frame(root, err) && check_model(&l, err) && load_splitter(&l, err) &&
         load_vocab(&l, err) && load_merges(&l, err);
    di_free(l.spelling);
    if (!ok) {
        di_tokenizer_close(l.tok);
        return NULL;
    }
    return l.tok;
}

di_tokenizer *di_tokenizer_parse(const char *json, size_t size, const char *name, di_error *err) {
    if (size > MOST_FILE_BYTES) { /* offsets of token bytes are 32-bit numbers */
        di_fail(err, DI_ERR_UNSUPPORTED, "%s: %zu bytes, at most %zu are supported", name, size,
                MOST_FILE_BYTES);
        return NULL;
    }
    json_t *root = di_json_parse(json, size, DI_JSON_MAX_DEPTH, name, err);
    if (!root) {
        return NULL;
    }
    di_tokenizer *tok = load(root, err);
    if (!tok) {
        di_fail_prefix(err, "%s", name);
    }
    json_decref(root);
    return tok;
}

di_tokenizer *di_tokenizer_open(const char *folder_or_file, di_error *err) {
    struct stat st;
    bool folder = stat(folder_or_file, &st) == 0 && S_ISDIR(st.st_mode);
    char *path =
        folder ? di_path_join(folder_or_file, "tokenizer.json") : di_strdup(folder_or_file);
    if (!path) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a path");
        return NULL;
    }
    char *text = NULL;
    size_t size;
    di_tokenizer *tok = NULL;
    if (di_file_read(path, MOST_FILE_BYTES, &text, &size, err)) {
        tok = di_tokenizer_parse(text, size, path, err);
    }
    di_free(text);
    di_free(path);
    return tok;
}
