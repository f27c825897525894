/* Identifiers and references of a schema: $id, $anchor, $ref. Only what lies in the schema's own
 * text can be referred to. Called by schema.c and schema_shapes.c. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "grammar/schema_internal.h"

/* A resource: a schema with a URI of its own. Number 0 is the whole text. */
struct schema_base {
    char *uri; /* without fragment */
    uint32_t node;
};

struct schema_anchor {
    uint32_t base, node;
    const char *name;
    uint32_t size;
    bool dynamic;
};

/* ---- URIs ---- */

/* The length of "scheme:" at the beginning, 0 if there is none. */
static size_t scheme_length(const char *uri, size_t size) {
    size_t i = 0;
    while (i < size &&
           ((uri[i] | 32) >= 'a' ? (uri[i] | 32) <= 'z'
                                 : i > 0 && (strchr("0123456789+-.", uri[i]) && uri[i]))) {
        i++;
    }
    return i > 0 && i < size && uri[i] == ':' ? i + 1 : 0;
}

/* Where the path begins, behind scheme and authority. */
static size_t path_start(const char *uri, size_t size) {
    size_t at = scheme_length(uri, size);
    if (size - at >= 2 && uri[at] == '/' && uri[at + 1] == '/') {
        at += 2;
        while (at < size && uri[at] != '/') {
            at++;
        }
    }
    return at;
}

/* Takes . and .. out of the path, in place. */
static void remove_dots(char *uri) {
    size_t start = path_start(uri, strlen(uri));
    char *out = uri + start;
    const char *in = out;
    while (*in) {
        const char *end = strchr(in + 1, '/');
        size_t length = end ? (size_t)(end - in) : strlen(in);
        if (length == 2 && memcmp(in, "/.", 2) == 0) {
            if (!end) {
                *out++ = '/';
            }
        } else if (length == 3 && memcmp(in, "/..", 3) == 0) {
            while (out > uri + start && *--out != '/') {
            }
            if (!end) {
                *out++ = '/';
            }
        } else {
            memmove(out, in, length);
            out += length;
        }
        in += length;
    }
    *out = 0;
}

/* `ref` (its fragment cut off) against a base, in fresh memory. */
static char *resolve_uri(const char *base, const char *ref, size_t size) {
    size_t base_size = strlen(base), kept;
    const char *fragment = memchr(ref, '#', size);
    size = fragment ? (size_t)(fragment - ref) : size;
    if (size == 0) {
        kept = base_size;
    } else if (scheme_length(ref, size) > 0) {
        kept = 0;
    } else if (ref[0] == '/') {
        kept = size > 1 && ref[1] == '/' ? scheme_length(base, base_size)
                                         : path_start(base, base_size);
    } else {
        kept = base_size;
        while (kept > path_start(base, base_size) && base[kept - 1] != '/') {
            kept--;
        }
    }
    char *uri = di_alloc(kept + size + 1);
    if (uri) {
        memcpy(uri, base, kept);
        memcpy(uri + kept, ref, size);
        uri[kept + size] = 0;
        if (size > 0) {
            remove_dots(uri);
        }
    }
    return uri;
}

/* ---- reading ---- */

static bool add_base(di_schema *s, uint32_t parent, const char *id, size_t size, uint32_t node,
                     uint32_t *out) {
    struct schema_base *bases = di_grow(s->bases, s->num_bases, &s->cap_bases, sizeof *bases);
    if (!bases) {
        return schema_no_memory(s);
    }
    s->bases = bases;
    char *uri = resolve_uri(s->num_bases ? bases[parent].uri : "", id, size);
    if (!uri) {
        return schema_no_memory(s);
    }
    *out = s->num_bases;
    bases[s->num_bases++] = (struct schema_base){uri, node};
    return true;
}

static bool add_anchor(di_schema *s, uint32_t base, uint32_t node, uint32_t value, bool dynamic) {
    struct schema_anchor *anchors =
        di_grow(s->anchors, s->num_anchors, &s->cap_anchors, sizeof *anchors);
    if (!anchors) {
        return schema_no_memory(s);
    }
    s->anchors = anchors;
    const di_doc_node *v = &s->doc.nodes[value];
    uint32_t skip = v->size > 0 && v->text[0] == '#';
    anchors[s->num_anchors++] =
        (struct schema_anchor){base, node, v->text + skip, v->size - skip, dynamic};
    return true;
}

static uint32_t string_member(const di_schema *s, uint32_t node, const char *key) {
    uint32_t value = di_doc_member(&s->doc, node, key);
    return value != DI_DOC_NONE && s->doc.nodes[value].type == DI_DOC_STRING ? value : DI_DOC_NONE;
}

static bool read_schema_ids(di_schema *s, uint32_t node, uint32_t *base) {
    uint32_t id = string_member(s, node, "$id");
    if (id == DI_DOC_NONE) {
        id = string_member(s, node, "id"); /* draft 4 */
    }
    if (s->old_refs && string_member(s, node, "$ref") != DI_DOC_NONE) {
        id = DI_DOC_NONE;
    }
    if (id != DI_DOC_NONE) {
        const di_doc_node *v = &s->doc.nodes[id];
        if (v->size > 0 && v->text[0] == '#') {
            if (!add_anchor(s, *base, node, id, false)) {
                return false;
            }
        } else if (node != 0 && !add_base(s, *base, v->text, v->size, node, base)) {
            return false;
        }
    }
    uint32_t anchor = string_member(s, node, "$anchor");
    uint32_t dynamic = string_member(s, node, "$dynamicAnchor");
    return (anchor == DI_DOC_NONE || add_anchor(s, *base, node, anchor, false)) &&
           (dynamic == DI_DOC_NONE || add_anchor(s, *base, node, dynamic, true));
}

/* What the members of a value are. */
typedef enum place { PLACE_SCHEMA, PLACE_MAP, PLACE_LIST, PLACE_OTHER } place;

static place place_of(const di_schema *s, place parent, uint32_t child) {
    static const char *const schemas[] = {"additionalProperties",
                                          "additionalItems",
                                          "items",
                                          "contains",
                                          "not",
                                          "if",
                                          "then",
                                          "else",
                                          "propertyNames",
                                          "unevaluatedItems",
                                          "unevaluatedProperties"};
    static const char *const lists[] = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
    static const char *const maps[] = {"properties", "patternProperties", "definitions",
                                       "$defs",      "dependentSchemas",  "dependencies"};
    const di_doc_node *n = &s->doc.nodes[child];
    if (parent == PLACE_MAP || parent == PLACE_LIST) {
        return PLACE_SCHEMA;
    }
    if (parent == PLACE_OTHER) {
        return PLACE_OTHER;
    }
#define IS_IN(names)                                                                               \
    for (size_t i = 0; i < sizeof(names) / sizeof *(names); i++)                                   \
        if (strlen((names)[i]) == n->key_size && memcmp((names)[i], n->key, n->key_size) == 0)
    if (n->type == DI_DOC_ARRAY) {
        IS_IN(lists) {
            return PLACE_LIST;
        }
    } else {
        IS_IN(schemas) {
            return PLACE_SCHEMA;
        }
        IS_IN(maps) {
            return PLACE_MAP;
        }
    }
#undef IS_IN
    return PLACE_OTHER;
}

static bool read_ids(di_schema *s, uint32_t node, uint32_t base, place at) {
    const di_doc_node *n = &s->doc.nodes[node];
    if (at == PLACE_SCHEMA && n->type == DI_DOC_OBJECT && !read_schema_ids(s, node, &base)) {
        return false;
    }
    s->base_of[node] = base;
    for (uint32_t i = n->first; i != DI_DOC_NONE; i = s->doc.nodes[i].next) {
        if (!read_ids(s, i, base, place_of(s, at, i))) {
            return false;
        }
    }
    return true;
}

bool schema_read_ids(di_schema *s) {
    s->base_of = di_calloc(s->doc.count, sizeof *s->base_of);
    if (!s->base_of) {
        return schema_no_memory(s);
    }
    uint32_t id = string_member(s, 0, "$id");
    if (id == DI_DOC_NONE) {
        id = string_member(s, 0, "id");
    }
    const di_doc_node *v = id == DI_DOC_NONE ? NULL : &s->doc.nodes[id];
    uint32_t base;
    return add_base(s, 0, v ? v->text : "", v ? v->size : 0, 0, &base) &&
           read_ids(s, 0, 0, PLACE_SCHEMA);
}

bool schema_open_ids(di_schema *s) {
    s->base_of = di_calloc(s->doc.count, sizeof *s->base_of);
    return s->base_of || schema_no_memory(s);
}

bool schema_read_ids_at(di_schema *s, uint32_t node) {
    char uri[32];
    uint32_t base = 0;
    int size = snprintf(uri, sizeof uri, "schema:%u", node);
    return add_base(s, 0, uri, (size_t)size, node, &base) && read_ids(s, node, base, PLACE_SCHEMA);
}

void schema_free_ids(di_schema *s) {
    for (uint32_t i = 0; i < s->num_bases; i++) {
        di_free(s->bases[i].uri);
    }
    di_free(s->bases);
    di_free(s->base_of);
    di_free(s->anchors);
}

/* ---- resolving ---- */

/* %41 to A, in fresh memory. */
static char *decode_percent(const char *text, size_t size, size_t *out_size) {
    char *out = di_alloc(size + 1);
    size_t n = 0;
    for (size_t i = 0; out && i < size; i++) {
        unsigned value;
        char pair[3] = {0};
        if (text[i] == '%' && i + 2 < size) {
            memcpy(pair, text + i + 1, 2);
            if (sscanf(pair, "%2x", &value) == 1) {
                out[n++] = (char)value;
                i += 2;
                continue;
            }
        }
        out[n++] = text[i];
    }
    *out_size = n;
    return out;
}

/* One step of a JSON pointer; the token is decoded in place. */
static uint32_t pointer_step(const di_schema *s, uint32_t node, char *token, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (token[i] == '~' && i + 1 < size && (token[i + 1] == '0' || token[i + 1] == '1')) {
            token[n++] = token[++i] == '0' ? '~' : '/';
        } else {
            token[n++] = token[i];
        }
    }
    const di_doc_node *at = &s->doc.nodes[node];
    uint32_t index = 0;
    bool is_index = n > 0 && n < 10;
    for (size_t i = 0; i < n && is_index; i++) {
        is_index = token[i] >= '0' && token[i] <= '9';
        index = index * 10 + (uint32_t)(token[i] - '0');
    }
    for (uint32_t i = at->first; i != DI_DOC_NONE; i = s->doc.nodes[i].next) {
        const di_doc_node *child = &s->doc.nodes[i];
        if (at->type == DI_DOC_ARRAY ? is_index && child->index == index
                                     : child->key_size == n && memcmp(child->key, token, n) == 0) {
            return i;
        }
    }
    return DI_DOC_NONE;
}

static uint32_t follow(const di_schema *s, uint32_t base, char *fragment, size_t size) {
    uint32_t node = s->bases[base].node;
    if (size == 0) {
        return node;
    }
    if (fragment[0] != '/') {
        for (size_t i = 0; i < s->num_anchors; i++) {
            const struct schema_anchor *a = &s->anchors[i];
            if (a->base == base && a->size == size && memcmp(a->name, fragment, size) == 0) {
                return a->node;
            }
        }
        return DI_DOC_NONE;
    }
    for (size_t at = 1; node != DI_DOC_NONE && at <= size;) {
        char *end = memchr(fragment + at, '/', size - at);
        size_t length = end ? (size_t)(end - fragment) - at : size - at;
        node = pointer_step(s, node, fragment + at, length);
        at += length + 1;
    }
    return node;
}

/* A dynamic reference is a plain one where only one anchor of that name exists. */
static bool is_static(di_schema *s, uint32_t ref) {
    const di_doc_node *n = &s->doc.nodes[ref];
    if (n->key_size != strlen("$dynamicRef")) {
        return true;
    }
    const char *hash = memchr(n->text, '#', n->size);
    uint32_t size = hash ? n->size - (uint32_t)(hash + 1 - n->text) : 0;
    int count = 0;
    for (size_t i = 0; hash && i < s->num_anchors; i++) {
        const struct schema_anchor *a = &s->anchors[i];
        count += a->dynamic && a->size == size && memcmp(a->name, hash + 1, size) == 0;
    }
    return count <= 1;
}

bool schema_resolve(di_schema *s, uint32_t ref, uint32_t *target) {
    const di_doc_node *n = &s->doc.nodes[ref];
    if (!is_static(s, ref)) {
        return schema_fail(s, DI_ERR_UNSUPPORTED, ref, "several dynamic anchors have this name");
    }
    char *uri = resolve_uri(s->bases[s->base_of[ref]].uri, n->text, n->size);
    const char *hash = memchr(n->text, '#', n->size);
    size_t size = 0;
    char *fragment = decode_percent(hash ? hash + 1 : "",
                                    hash ? n->size - (size_t)(hash + 1 - n->text) : 0, &size);
    if (!uri || !fragment) {
        di_free(uri);
        di_free(fragment);
        return schema_no_memory(s);
    }
    uint32_t base = 0;
    while (base < s->num_bases && strcmp(s->bases[base].uri, uri) != 0) {
        base++;
    }
    bool known = base < s->num_bases;
    *target = known ? follow(s, base, fragment, size) : DI_DOC_NONE;
    di_free(uri);
    di_free(fragment);
    if (*target == DI_DOC_NONE) {
        char why[200];
        snprintf(why, sizeof why, "\"%.*s\" %s", n->size > 120 ? 120 : (int)n->size, n->text,
                 known ? "is not there" : "lies outside the schema's text");
        return schema_fail(s, known ? DI_ERR_ARGUMENT : DI_ERR_UNSUPPORTED, ref, why);
    }
    return true;
}
