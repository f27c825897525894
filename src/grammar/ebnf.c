/* Reading EBNF; see ebnf.h. The result goes through ebnf_rules.c. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "grammar/charset.h"
#include "grammar/ebnf_internal.h"
#include "grammar/pattern.h"

enum { MAX_NESTING = 200, MAX_REPEAT = 1000000000, MAX_RULES = 1 << 20, NAME_BUCKETS = 4096 };

typedef struct parser {
    ebnf g;
    const char *text;
    size_t size, at;
    long line, column;
    int nesting;
    bool gbnf;                    /* llama.cpp's reading */
    uint32_t names[NAME_BUCKETS]; /* chains of rules by hash of the name */
    uint32_t *next_name;
    size_t cap_next;
} parser;

static bool fail_at(parser *p, long line, long column, di_error_code code, const char *what) {
    return di_fail(p->g.err, code, "line %ld, column %ld: %s", line, column, what);
}

static bool fail(parser *p, const char *what) {
    return fail_at(p, p->line, p->column, DI_ERR_ARGUMENT, what);
}

static bool no_memory(parser *p) {
    return di_fail(p->g.err, DI_ERR_NO_MEMORY, "no memory for a grammar");
}

/* ---- characters ---- */

static int peek(const parser *p) {
    return p->at < p->size ? (uint8_t)p->text[p->at] : -1;
}

static uint32_t next(parser *p) {
    uint32_t c;
    p->at += (size_t)di_utf8_next(p->text + p->at, p->size - p->at, &c);
    p->column++;
    if (c == '\n') {
        p->line++;
        p->column = 1;
    }
    return c;
}

static void skip_space(parser *p) {
    for (;;) {
        int c = peek(p);
        if (c == '#') {
            while (peek(p) >= 0 && peek(p) != '\n') {
                next(p);
            }
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            next(p);
        } else {
            return;
        }
    }
}

static bool take(parser *p, char c) {
    if (peek(p) != c) {
        return false;
    }
    next(p);
    return true;
}

static bool looking_at(const parser *p, const char *text) {
    size_t length = strlen(text);
    return p->size - p->at >= length && memcmp(p->text + p->at, text, length) == 0;
}

static bool is_name_start(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_name(int c) {
    return is_name_start(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
}

/* The length of the name here, 0 if there is none. */
static size_t name_length(const parser *p) {
    size_t end = p->at;
    while (end < p->size && is_name((uint8_t)p->text[end])) {
        end++;
    }
    bool begins = is_name_start(peek(p)) || (p->gbnf && is_name(peek(p)) && peek(p) != '.');
    return begins ? end - p->at : 0;
}

/* Whether a rule's definition begins here. */
static bool at_definition(const parser *p) {
    parser ahead = {.text = p->text, .size = p->size, .at = p->at, .gbnf = p->gbnf};
    size_t length = name_length(p);
    ahead.at += length;
    skip_space(&ahead);
    return length > 0 && looking_at(&ahead, "::=");
}

/* ---- escapes, literals, classes ---- */

static int hex_digit(int c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* `digits` hexadecimal digits, or for 0 as many as there are. */
static bool hex_escape(parser *p, int digits, uint32_t *c) {
    *c = 0;
    int count = 0;
    while ((digits == 0 || count < digits) && hex_digit(peek(p)) >= 0 && *c <= DI_CHARSET_LAST) {
        *c = *c << 4 | (uint32_t)hex_digit((int)next(p));
        count++;
    }
    if (count == 0 || count < digits || *c > DI_CHARSET_LAST || (*c >= 0xD800 && *c <= 0xDFFF)) {
        return fail(p, "an escape is no character");
    }
    return true;
}

static bool escape(parser *p, const char *extra, uint32_t *c) {
    static const char names[] = "nrtbfav0e", values[] = "\n\r\t\b\f\a\v\0\x1b";
    int e = peek(p) >= 0 ? (int)next(p) : -1;
    const char *name = e > 0 && e < 0x80 ? strchr(names, e) : NULL;
    if (name) {
        *c = (uint8_t)values[name - names];
        return true;
    }
    if (e == 'x') {
        return hex_escape(p, p->gbnf ? 2 : 0, c);
    }
    if (e == 'u' || e == 'U') {
        return hex_escape(p, e == 'u' ? 4 : 8, c);
    }
    if (e > 0 && e < 0x80 && (strchr("\"\\/'?", e) || strchr(extra, e))) {
        *c = (uint32_t)e;
        return true;
    }
    return fail(p, "an unknown escape");
}

/* Behind the opening quote: the text into *out (freed by the caller). */
static bool quoted(parser *p, char **out, size_t *size) {
    long line = p->line, column = p->column - 1;
    size_t capacity = p->size - p->at + 4, n = 0;
    char *to = di_alloc(capacity); /* an escape is never shorter than its character */
    if (!to) {
        return no_memory(p);
    }
    *out = to;
    while (!take(p, '"')) {
        if (peek(p) < 0 || peek(p) == '\n') {
            return fail_at(p, line, column, DI_ERR_ARGUMENT, "a literal is not closed");
        }
        uint32_t c = next(p);
        if (c == '\\' && !escape(p, "", &c)) {
            return false;
        }
        n += (size_t)di_utf8_encode(c, to + n);
    }
    *size = n;
    return true;
}

static bool literal(parser *p, ebnf_node *out) {
    char *text = NULL;
    size_t size = 0;
    bool ok = quoted(p, &text, &size);
    if (ok) {
        di_term x = size ? di_term_literal(&p->g.m->terms, text, size) : DI_TERM_EMPTY;
        *out = di_ebnf_add(&p->g, EBNF_TERM, x, 0);
    }
    di_free(text);
    return ok && *out != UINT32_MAX;
}

static bool class_end(parser *p, long line, long column) {
    int c = peek(p);
    return (c >= 0 && c != '\n') ||
           fail_at(p, line, column, DI_ERR_ARGUMENT, "a character class is not closed");
}

static bool class_character(parser *p, uint32_t *c) {
    *c = next(p);
    return *c != '\\' || escape(p, "^$.*+()[]{}|-", c);
}

static bool class_items(parser *p, di_charset *set) {
    long line = p->line, column = p->column - 1;
    while (!take(p, ']')) {
        uint32_t low, high;
        if (!class_end(p, line, column) || !class_character(p, &low)) {
            return false;
        }
        high = low;
        if (looking_at(p, "-") && !looking_at(p, "-]")) {
            next(p);
            if (!class_end(p, line, column) || !class_character(p, &high)) {
                return false;
            }
        }
        if (low > high) {
            return fail(p, "a range in a character class is reversed");
        }
        if (!di_charset_add(set, low, high)) {
            return no_memory(p);
        }
    }
    return true;
}

static bool class(parser *p, ebnf_node *out) {
    di_charset set = {0};
    bool negated = take(p, '^');
    bool ok = class_items(p, &set) && (!negated || di_charset_complement(&set) || no_memory(p));
    if (ok) {
        *out = di_ebnf_add(&p->g, EBNF_TERM, di_charset_term(&p->g.m->terms, &set), 0);
    }
    di_charset_free(&set);
    return ok && *out != UINT32_MAX;
}

/* ---- rules and what they are made of ---- */

/* The rule of the name here, made if it is new. */
static bool rule_named(parser *p, uint32_t *out) {
    size_t length = name_length(p);
    const char *name = p->text + p->at;
    uint32_t hash = 5381;
    for (size_t i = 0; i < length; i++) {
        hash = hash * 33 ^ (uint8_t)name[i];
    }
    hash %= NAME_BUCKETS;
    long line = p->line, column = p->column;
    p->at += length;
    p->column += (long)length;
    for (uint32_t r = p->names[hash]; r != UINT32_MAX; r = p->next_name[r]) {
        assert(r < p->g.num_rules && p->g.rules); /* chains hold rules that are made */
        const char *have = p->g.rules[r].name;
        if (strlen(have) == length && memcmp(have, name, length) == 0) {
            *out = r;
            return true;
        }
    }
    if (p->g.num_rules >= MAX_RULES) {
        return fail(p, "more than 1048576 rules");
    }
    uint32_t *chain = di_grow(p->next_name, p->g.num_rules, &p->cap_next, sizeof *chain);
    if (!chain) {
        return no_memory(p);
    }
    p->next_name = chain;
    uint32_t r = di_ebnf_add_rule(&p->g);
    if (r == UINT32_MAX || !(p->g.rules[r].name = di_strndup(name, length))) {
        return no_memory(p);
    }
    p->g.rules[r].line = line;
    p->g.rules[r].column = column;
    p->next_name[r] = p->names[hash];
    p->names[hash] = r;
    *out = r;
    return true;
}

static bool alternation(parser *p, ebnf_node *out);

static bool group(parser *p, ebnf_node *out) {
    skip_space(p);
    if (take(p, ')')) {
        *out = di_ebnf_add(&p->g, EBNF_TERM, DI_TERM_EMPTY, 0);
        return *out != UINT32_MAX;
    }
    if (peek(p) == '=') {
        return fail_at(p, p->line, p->column, DI_ERR_UNSUPPORTED,
                       "look-ahead, (= ...), is not supported");
    }
    if (++p->nesting > MAX_NESTING) {
        return fail(p, "parentheses are nested deeper than 200");
    }
    if (!alternation(p, out)) {
        return false;
    }
    p->nesting--;
    skip_space(p);
    return take(p, ')') || fail(p, "a parenthesis is not closed");
}

/* Regex("..."), with the name already seen. */
static bool regex_macro(parser *p, ebnf_node *out) {
    p->at += strlen("Regex(");
    p->column += (long)strlen("Regex(");
    skip_space(p);
    char *text = NULL;
    size_t size = 0;
    if (!take(p, '"')) {
        return fail(p, "Regex needs a pattern in quotes");
    }
    di_term x = DI_TERM_NONE;
    bool ok = quoted(p, &text, &size) &&
              (di_pattern_compile(&p->g.m->terms, text, size, DI_PATTERN_WHOLE, &x, p->g.err) ||
               di_fail_prefix(p->g.err, "line %ld, column %ld", p->line, p->column));
    di_free(text);
    skip_space(p);
    if (!ok || (!take(p, ')') && !fail(p, "Regex takes a pattern alone; its options are not "
                                          "supported"))) {
        return false;
    }
    *out = di_ebnf_add(&p->g, EBNF_TERM, x, 0);
    return *out != UINT32_MAX;
}

static bool reference(parser *p, ebnf_node *out) {
    static const char *const macros[] = {"TagDispatch(", "TokenTagDispatch(", "Token(",
                                         "ExcludeToken(", "Substring("};
    if (looking_at(p, "Regex(")) {
        return regex_macro(p, out);
    }
    for (size_t i = 0; i < sizeof macros / sizeof *macros; i++) {
        if (looking_at(p, macros[i])) {
            char what[64];
            snprintf(what, sizeof what, "%s...) is not supported", macros[i]);
            return fail_at(p, p->line, p->column, DI_ERR_UNSUPPORTED, what);
        }
    }
    uint32_t rule;
    if (!rule_named(p, &rule)) {
        return false;
    }
    *out = di_ebnf_add(&p->g, EBNF_RULE, rule, 0);
    return *out != UINT32_MAX;
}

static bool atom(parser *p, ebnf_node *out) {
    if (take(p, '"')) {
        return literal(p, out);
    }
    if (take(p, '[')) {
        return class(p, out);
    }
    if (take(p, '(')) {
        return group(p, out);
    }
    if (take(p, '.')) {
        *out = di_ebnf_add(&p->g, EBNF_TERM, DI_TERM_CHAR, 0);
        return *out != UINT32_MAX;
    }
    if (name_length(p) > 0) {
        return reference(p, out);
    }
    if (p->gbnf && (peek(p) == '<' || peek(p) == '!')) {
        return fail_at(p, p->line, p->column, DI_ERR_UNSUPPORTED,
                       "tokens, <...>, are not supported");
    }
    return fail(p, peek(p) < 0 ? "the grammar ends in the middle of a rule"
                               : "an element is expected: a literal, a class, a name or a group");
}

static bool number(parser *p, uint32_t *value) {
    uint64_t v = 0;
    int digits = 0;
    while (peek(p) >= '0' && peek(p) <= '9') {
        v = v * 10 + (uint64_t)(next(p) - '0');
        digits++;
        if (v > MAX_REPEAT) {
            return fail(p, "a repeat is above 1000000000");
        }
    }
    *value = (uint32_t)v;
    return digits > 0 || fail(p, "a number is expected in braces");
}

/* Behind '{'. */
static bool braces(parser *p, uint32_t *low, uint32_t *high) {
    skip_space(p);
    if (!number(p, low)) {
        return false;
    }
    *high = *low;
    skip_space(p);
    if (take(p, ',')) {
        skip_space(p);
        if (looking_at(p, "-1")) {
            p->at += 2;
            p->column += 2;
            *high = DI_TERM_UNBOUNDED;
        } else if (peek(p) == '}') {
            *high = DI_TERM_UNBOUNDED;
        } else if (!number(p, high)) {
            return false;
        }
        skip_space(p);
    }
    if (*low > *high) {
        return fail(p, "a repeat's bounds are reversed");
    }
    return take(p, '}') || fail(p, "a repeat's brace is not closed");
}

static bool repeated(parser *p, ebnf_node *out) {
    if (!atom(p, out)) {
        return false;
    }
    skip_space(p);
    uint32_t low = 0, high = DI_TERM_UNBOUNDED;
    if (take(p, '*')) {
    } else if (take(p, '+')) {
        low = 1;
    } else if (take(p, '?')) {
        high = 1;
    } else if (!take(p, '{')) {
        return true;
    } else if (!braces(p, &low, &high)) {
        return false;
    }
    skip_space(p);
    int c = peek(p);
    if (c == '*' || c == '+' || c == '?' || c == '{') {
        return fail(p, "a repeat is repeated; put it into parentheses");
    }
    *out = di_ebnf_add(&p->g, EBNF_REPEAT, *out, 0);
    if (*out == UINT32_MAX) {
        return false;
    }
    p->g.nodes[*out].low = low;
    p->g.nodes[*out].high = high;
    return true;
}

/* Lists are kept as chains to the right: their elements come in the order of the text, so they are
 * gathered first. */
typedef struct gathered {
    ebnf_node *of;
    size_t count, capacity;
} gathered;

static bool gather(parser *p, gathered *list, ebnf_node x) {
    ebnf_node *of = di_grow(list->of, list->count, &list->capacity, sizeof *of);
    if (!of) {
        return no_memory(p);
    }
    list->of = of;
    list->of[list->count++] = x;
    return true;
}

static bool chain(parser *p, gathered *list, ebnf_kind kind, ebnf_node *out) {
    *out =
        list->count ? list->of[list->count - 1] : di_ebnf_add(&p->g, EBNF_TERM, DI_TERM_EMPTY, 0);
    for (size_t i = list->count; i > 1 && *out != UINT32_MAX; i--) {
        *out = di_ebnf_add(&p->g, kind, list->of[i - 2], *out);
    }
    di_free(list->of);
    return *out != UINT32_MAX;
}

static bool concatenation(parser *p, ebnf_node *out) {
    gathered list = {0};
    bool ok = true;
    skip_space(p);
    while (ok && peek(p) >= 0 && peek(p) != '|' && peek(p) != ')' && !at_definition(p)) {
        ebnf_node x;
        ok = repeated(p, &x) && gather(p, &list, x);
        skip_space(p);
    }
    if (ok && list.count == 0 && !p->gbnf) {
        ok = fail(p, "an alternative is empty; write \"\" or ()");
    }
    if (!ok) {
        di_free(list.of);
        return false;
    }
    return chain(p, &list, EBNF_CAT, out);
}

static bool alternation(parser *p, ebnf_node *out) {
    gathered list = {0};
    bool ok;
    do {
        ebnf_node x;
        ok = concatenation(p, &x) && gather(p, &list, x);
        skip_space(p);
    } while (ok && take(p, '|'));
    if (!ok) {
        di_free(list.of);
        return false;
    }
    return chain(p, &list, EBNF_ALT, out);
}

static bool definition(parser *p) {
    long line = p->line, column = p->column;
    if (!at_definition(p)) {
        size_t length = name_length(p);
        p->at += length;
        p->column += (long)length;
        return length && peek(p) == '[' ? fail_at(p, p->line, p->column, DI_ERR_UNSUPPORTED,
                                                  "options of rules, [...], are not supported")
                                        : fail(p, "a rule is expected: name ::= ...");
    }
    uint32_t rule = 0;
    if (!rule_named(p, &rule)) {
        return false;
    }
    if (p->g.rules[rule].defined) {
        return fail_at(p, line, column, DI_ERR_ARGUMENT, "a rule is defined twice");
    }
    p->g.rules[rule].defined = true;
    skip_space(p);
    p->at += 3;
    p->column += 3;
    ebnf_node body;
    if (!alternation(p, &body)) {
        return false;
    }
    p->g.rules[rule].body = body;
    skip_space(p);
    return peek(p) != ')' || fail(p, "a closing parenthesis has no opening one");
}

static bool parse(parser *p, const char *root, uint32_t *start) {
    size_t bad;
    if (!di_utf8_valid(p->text, p->size, &bad)) {
        return di_fail(p->g.err, DI_ERR_ARGUMENT, "byte %zu of the grammar is not UTF-8", bad);
    }
    skip_space(p);
    while (peek(p) >= 0) {
        if (!definition(p)) {
            return false;
        }
        skip_space(p);
    }
    *start = UINT32_MAX;
    for (uint32_t r = 0; r < p->g.num_rules; r++) {
        const ebnf_rule *rule = &p->g.rules[r];
        if (!rule->defined) {
            char what[128];
            snprintf(what, sizeof what, "the rule \"%.80s\" is not defined", rule->name);
            return fail_at(p, rule->line, rule->column, DI_ERR_ARGUMENT, what);
        }
        if (strcmp(rule->name, root) == 0) {
            *start = r;
        }
    }
    return *start != UINT32_MAX ||
           di_fail(p->g.err, DI_ERR_ARGUMENT, "the start rule \"%s\" is not defined", root);
}

ebnf_node di_ebnf_add(ebnf *g, ebnf_kind kind, uint32_t a, uint32_t b) {
    ebnf_expr *nodes = di_grow(g->nodes, g->num_nodes, &g->cap_nodes, sizeof *nodes);
    if (!nodes || a == UINT32_MAX || b == UINT32_MAX) {
        if (nodes) {
            g->nodes = nodes;
        }
        g->failed = true;
        di_fail(g->err, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return UINT32_MAX;
    }
    g->nodes = nodes;
    g->nodes[g->num_nodes] = (ebnf_expr){.kind = kind, .a = a, .b = b};
    return (ebnf_node)g->num_nodes++;
}

uint32_t di_ebnf_add_rule(ebnf *g) {
    ebnf_rule *rules = di_grow(g->rules, g->num_rules, &g->cap_rules, sizeof *rules);
    if (!rules) {
        g->failed = true;
        di_fail(g->err, DI_ERR_NO_MEMORY, "no memory for a grammar");
        return UINT32_MAX;
    }
    g->rules = rules;
    g->rules[g->num_rules] = (ebnf_rule){.component = -1};
    return (uint32_t)g->num_rules++;
}

bool di_ebnf_compile(di_machine *m, const char *text, size_t size, const char *root, bool gbnf,
                     di_error *err) {
    parser *p = di_calloc(1, sizeof *p);
    if (!p) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a grammar");
    }
    *p = (parser){.g = {.m = m, .err = err},
                  .text = text,
                  .size = size,
                  .line = 1,
                  .column = 1,
                  .gbnf = gbnf};
    memset(p->names, 0xFF, sizeof p->names);
    uint32_t start = UINT32_MAX;
    bool ok = parse(p, root, &start) && di_ebnf_finish(&p->g, start);
    if (ok && m->terms.fault.code != DI_OK) {
        ok = di_fail(err, m->terms.fault.code, "%s", m->terms.fault.message);
    }
    for (size_t r = 0; r < p->g.num_rules; r++) {
        di_free(p->g.rules[r].name);
    }
    di_free(p->g.rules);
    di_free(p->g.nodes);
    di_free(p->next_name);
    di_free(p);
    return ok;
}
