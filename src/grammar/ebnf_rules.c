/* From the rules of an EBNF grammar to terms: what derives nothing is left out, rules without
 * recursion become automata, and left recursion becomes repetition.
 *
 * Left recursion. Among rules A1..An that can begin with each other, split every body into
 * alternatives that begin with one of them and the rest:  Ai = Bi | Aj Rij | ...  What a text of Ai
 * begins with is some Bk; then, having an Ak, any rule Aj with an alternative Ak Rjk may be
 * completed by Rjk, and so on until an Ai is had. With T(k,i) = what turns an Ak into an Ai:
 *   Ai = B1 T(1,i) | ... | Bn T(n,i)      T(k,i) = (empty if k = i) | Rjk T(j,i) | ... */
#include <string.h>

#include "base/alloc.h"
#include "grammar/ebnf_internal.h"

enum { MAX_COMPONENT = 64 };

/* ---- what derives something, what derives the empty text ---- */

/* Whether x derives anything, or the empty text: of rules what has been found so far. */
static bool derives(const ebnf *g, ebnf_node x, bool empty) {
    for (;;) {
        const ebnf_expr *e = &g->nodes[x];
        switch (e->kind) {
        case EBNF_TERM:
            return empty ? di_term_nullable(&g->m->terms, e->a) : e->a != DI_TERM_NONE;
        case EBNF_RULE:
            return empty ? g->rules[e->a].nullable : g->rules[e->a].productive;
        case EBNF_REPEAT:
            return e->low == 0 || derives(g, e->a, empty);
        case EBNF_CAT:
            if (!derives(g, e->a, empty)) {
                return false;
            }
            break;
        default:
            if (derives(g, e->a, empty)) {
                return true;
            }
        }
        x = e->b;
    }
}

static bool productive(const ebnf *g, ebnf_node x) {
    return derives(g, x, false);
}

static bool nullable(const ebnf *g, ebnf_node x) {
    return derives(g, x, true);
}

/* Both are least fixed points. Passes alternate their direction, so that grammars written top down
 * or bottom up are settled in two. */
static void mark_rules(ebnf *g) {
    bool changed = true;
    for (int pass = 0; changed; pass++) {
        changed = false;
        for (size_t i = 0; i < g->num_rules; i++) {
            ebnf_rule *rule = &g->rules[pass & 1 ? i : g->num_rules - 1 - i];
            if (!rule->productive && productive(g, rule->body)) {
                rule->productive = changed = true;
            }
            if (!rule->nullable && nullable(g, rule->body)) {
                rule->nullable = changed = true;
            }
        }
    }
}

/* ---- terms ---- */

static di_term term_of(ebnf *g, ebnf_node x);

/* A chain of CAT or ALT, without recursion along it. */
static di_term term_of_chain(ebnf *g, ebnf_node x, ebnf_kind kind) {
    di_terms *t = &g->m->terms;
    size_t mark = t->num_scratch;
    for (; g->nodes[x].kind == kind; x = g->nodes[x].b) {
        di_terms_push(t, term_of(g, g->nodes[x].a));
    }
    di_terms_push(t, term_of(g, x));
    if (t->fault.code != DI_OK) {
        t->num_scratch = mark;
        return DI_TERM_NONE;
    }
    if (kind == EBNF_ALT) {
        return di_terms_take_alt(t, mark);
    }
    di_term result = DI_TERM_EMPTY;
    while (t->num_scratch > mark) {
        di_term part = t->scratch[--t->num_scratch];
        result = di_term_cat(t, part, result);
    }
    return result;
}

static di_term term_of(ebnf *g, ebnf_node x) {
    const ebnf_expr *e = &g->nodes[x];
    switch (e->kind) {
    case EBNF_TERM:
        return e->a;
    case EBNF_RULE:
        return g->rules[e->a].productive ? g->rules[e->a].term : DI_TERM_NONE;
    case EBNF_REPEAT:
        return di_term_repeat(&g->m->terms, term_of(g, e->a), e->low, e->high);
    default:
        return term_of_chain(g, x, e->kind);
    }
}

/* Visits the rules that an expression names. */
typedef bool (*visit_fn)(ebnf *g, uint32_t rule, void *context);

static bool visit(ebnf *g, ebnf_node x, visit_fn f, void *context) {
    for (;;) {
        ebnf_expr e = g->nodes[x];
        switch (e.kind) {
        case EBNF_TERM:
            return true;
        case EBNF_RULE:
            return f(g, e.a, context);
        case EBNF_REPEAT:
            x = e.a;
            break;
        default:
            if (!visit(g, e.a, f, context)) {
                return false;
            }
            x = e.b;
        }
    }
}

/* Rules that name only regular rules are regular: a least fixed point again. */
static bool is_regular(ebnf *g, uint32_t rule, void *context) {
    (void)context;
    return g->rules[rule].regular || !g->rules[rule].productive;
}

static void mark_regular(ebnf *g) {
    bool changed = true;
    for (int pass = 0; changed && g->m->terms.fault.code == DI_OK; pass++) {
        changed = false;
        for (size_t i = 0; i < g->num_rules; i++) {
            ebnf_rule *rule = &g->rules[pass & 1 ? i : g->num_rules - 1 - i];
            if (!rule->regular && rule->productive && visit(g, rule->body, is_regular, NULL)) {
                rule->term = term_of(g, rule->body);
                rule->regular = changed = true;
            }
        }
    }
}

/* ---- left recursion ---- */

/* Tarjan's components over left corners, with a stack of its own. */
typedef struct corner_search {
    uint32_t *index, *low, *stack;
    uint32_t count, num_stack;
    int components;
} corner_search;

/* The rules that x may begin with. */
static bool visit_corners(ebnf *g, ebnf_node x, visit_fn f, void *context) {
    for (;;) {
        ebnf_expr e = g->nodes[x];
        switch (e.kind) {
        case EBNF_TERM:
            return true;
        case EBNF_RULE:
            return g->rules[e.a].regular || !g->rules[e.a].productive || f(g, e.a, context);
        case EBNF_REPEAT:
            x = e.a;
            break;
        case EBNF_ALT:
            if (!visit_corners(g, e.a, f, context)) {
                return false;
            }
            x = e.b;
            break;
        default:
            if (!visit_corners(g, e.a, f, context)) {
                return false;
            }
            if (!nullable(g, e.a)) {
                return true;
            }
            x = e.b;
        }
    }
}

static bool begins_with_itself(ebnf *g, uint32_t rule, void *context) {
    (void)g;
    return rule != *(uint32_t *)context;
}

typedef struct corner_visit {
    corner_search *s;
    uint32_t from;
    int depth;
} corner_visit;

enum { MAX_CORNER_DEPTH = 5000 };

static bool strong_connect(ebnf *g, corner_search *s, uint32_t rule, int depth);

static bool corner_edge(ebnf *g, uint32_t rule, void *context) {
    corner_visit *v = context;
    corner_search *s = v->s;
    if (s->index[rule] == 0) {
        if (!strong_connect(g, s, rule, v->depth + 1)) {
            return false;
        }
        if (s->low[rule] < s->low[v->from]) {
            s->low[v->from] = s->low[rule];
        }
    } else if (s->low[rule] != UINT32_MAX && s->index[rule] < s->low[v->from]) {
        s->low[v->from] = s->index[rule];
    }
    return true;
}

static bool strong_connect(ebnf *g, corner_search *s, uint32_t rule, int depth) {
    if (depth > MAX_CORNER_DEPTH) {
        return di_fail(g->err, DI_ERR_UNSUPPORTED, "rules begin with each other more than %d deep",
                       MAX_CORNER_DEPTH);
    }
    s->index[rule] = s->low[rule] = ++s->count;
    s->stack[s->num_stack++] = rule;
    corner_visit v = {s, rule, depth};
    if (!visit_corners(g, g->rules[rule].body, corner_edge, &v)) {
        return false;
    }
    if (s->low[rule] != s->index[rule]) {
        return true;
    }
    uint32_t top = s->num_stack;
    while (s->stack[top - 1] != rule) {
        top--;
    }
    bool recursive =
        s->num_stack - top > 0 || !visit_corners(g, g->rules[rule].body, begins_with_itself, &rule);
    int component = recursive ? s->components++ : -1;
    while (s->num_stack >= top) {
        uint32_t member = s->stack[--s->num_stack];
        g->rules[member].component = component;
        s->low[member] = UINT32_MAX; /* done */
        if (s->num_stack == top - 1) {
            break;
        }
    }
    return true;
}

/* The parts of a body: what begins with a member of the component, by member, and the rest. */
typedef struct split {
    ebnf_node with[MAX_COMPONENT]; /* UINT32_MAX = none */
    ebnf_node other;
} split;

typedef struct component {
    uint32_t members[MAX_COMPONENT];
    int count, number;
} component;

static int member_of(const component *c, uint32_t rule) {
    for (int i = 0; i < c->count; i++) {
        if (c->members[i] == rule) {
            return i;
        }
    }
    return -1;
}

static bool add_alternative(ebnf *g, ebnf_node *to, ebnf_node x) {
    *to = *to == UINT32_MAX ? x : di_ebnf_add(g, EBNF_ALT, x, *to);
    return *to != UINT32_MAX;
}

static bool split_body(ebnf *g, const component *c, ebnf_node x, ebnf_node rest, split *s);

/* Behind x, when x itself can be empty. */
static bool split_behind_empty(ebnf *g, const component *c, ebnf_node x, ebnf_node rest, split *s) {
    di_terms *t = &g->m->terms;
    di_term term = visit(g, x, is_regular, NULL) ? term_of(g, x) : DI_TERM_NONE;
    if (term == DI_TERM_NONE) {
        return di_fail(g->err, DI_ERR_UNSUPPORTED,
                       "a left-recursive rule begins with something that may be empty");
    }
    di_term filled =
        term == DI_TERM_EMPTY ? DI_TERM_NONE : di_term_and2(t, term, di_term_not(t, DI_TERM_EMPTY));
    ebnf_node head = di_ebnf_add(g, EBNF_TERM, filled, 0);
    return head != UINT32_MAX &&
           (filled == DI_TERM_NONE ||
            add_alternative(g, &s->other, di_ebnf_add(g, EBNF_CAT, head, rest))) &&
           split_body(g, c, rest, UINT32_MAX, s);
}

static bool reaches(ebnf *g, uint32_t rule, void *context) {
    return member_of(context, rule) < 0 &&
           g->rules[rule].component != ((component *)context)->number;
}

/* Adds the alternatives of x followed by rest (UINT32_MAX = nothing). */
static bool split_body(ebnf *g, const component *c, ebnf_node x, ebnf_node rest, split *s) {
    ebnf_expr e = g->nodes[x];
    int member = e.kind == EBNF_RULE ? member_of(c, e.a) : -1;
    if (member >= 0) {
        ebnf_node empty = di_ebnf_add(g, EBNF_TERM, DI_TERM_EMPTY, 0);
        return add_alternative(g, &s->with[member], rest == UINT32_MAX ? empty : rest);
    }
    bool touches = !visit_corners(g, x, reaches, (void *)c);
    if (e.kind == EBNF_ALT && touches) {
        return split_body(g, c, e.a, rest, s) && split_body(g, c, e.b, rest, s);
    }
    if (e.kind == EBNF_CAT) {
        ebnf_node behind = rest == UINT32_MAX ? e.b : di_ebnf_add(g, EBNF_CAT, e.b, rest);
        return behind != UINT32_MAX && split_body(g, c, e.a, behind, s);
    }
    if (e.kind == EBNF_REPEAT && touches) {
        ebnf_node again = di_ebnf_add(g, EBNF_REPEAT, e.a, 0);
        if (again == UINT32_MAX) {
            return false;
        }
        g->nodes[again].low = e.low ? e.low - 1 : 0;
        g->nodes[again].high = e.high == DI_TERM_UNBOUNDED ? e.high : e.high - 1;
        ebnf_node behind = rest == UINT32_MAX ? again : di_ebnf_add(g, EBNF_CAT, again, rest);
        ebnf_node none = rest == UINT32_MAX ? di_ebnf_add(g, EBNF_TERM, DI_TERM_EMPTY, 0) : rest;
        return (e.low > 0 || split_body(g, c, none, UINT32_MAX, s)) &&
               split_body(g, c, e.a, behind, s);
    }
    if (rest != UINT32_MAX && nullable(g, x) && !visit_corners(g, rest, reaches, (void *)c)) {
        return split_behind_empty(g, c, x, rest, s);
    }
    return add_alternative(g, &s->other,
                           rest == UINT32_MAX ? x : di_ebnf_add(g, EBNF_CAT, x, rest));
}

/* Rewrites the members of one component; see above. */
static bool remove_recursion(ebnf *g, const component *c) {
    int n = c->count;
    uint32_t turns[MAX_COMPONENT]; /* rules T(0,i) .. T(n-1,i) are turns[i] + k */
    split *splits = di_realloc_array(NULL, (size_t)n, sizeof *splits);
    if (!splits) {
        return di_fail(g->err, DI_ERR_NO_MEMORY, "no memory for a grammar");
    }
    memset(splits, 0xFF, (size_t)n * sizeof *splits);
    bool ok = true;
    for (int i = 0; ok && i < n; i++) {
        ok = split_body(g, c, g->rules[c->members[i]].body, UINT32_MAX, &splits[i]);
        turns[i] = (uint32_t)g->num_rules;
        for (int k = 0; ok && k < n; k++) {
            ok = di_ebnf_add_rule(g) != UINT32_MAX;
        }
    }
    for (int i = 0; ok && i < n; i++) {
        ebnf_node body = UINT32_MAX;
        for (int k = 0; ok && k < n; k++) {
            ebnf_node turn = UINT32_MAX;
            if (k == i) {
                turn = di_ebnf_add(g, EBNF_TERM, DI_TERM_EMPTY, 0);
            }
            for (int j = 0; ok && j < n; j++) {
                ebnf_node next = di_ebnf_add(g, EBNF_RULE, turns[i] + (uint32_t)j, 0);
                ok = next != UINT32_MAX;
                if (ok && splits[j].with[k] != UINT32_MAX) {
                    ok = add_alternative(g, &turn,
                                         di_ebnf_add(g, EBNF_CAT, splits[j].with[k], next));
                }
            }
            if (turn == UINT32_MAX) {
                turn = di_ebnf_add(g, EBNF_TERM, DI_TERM_NONE, 0);
            }
            g->rules[turns[i] + (uint32_t)k].body = turn;
            ebnf_node to = di_ebnf_add(g, EBNF_RULE, turns[i] + (uint32_t)k, 0);
            if (ok && splits[k].other != UINT32_MAX) {
                ok = add_alternative(g, &body, di_ebnf_add(g, EBNF_CAT, splits[k].other, to));
            }
        }
        g->rules[c->members[i]].body =
            body == UINT32_MAX ? di_ebnf_add(g, EBNF_TERM, DI_TERM_NONE, 0) : body;
    }
    di_free(splits);
    return ok && !g->failed;
}

static bool find_components(ebnf *g, int *count) {
    size_t n = g->num_rules;
    corner_search s = {.index = di_calloc(n, sizeof(uint32_t)),
                       .low = di_calloc(n, sizeof(uint32_t)),
                       .stack = di_calloc(n + 1, sizeof(uint32_t))};
    bool ok = s.index && s.low && s.stack;
    if (!ok) {
        di_fail(g->err, DI_ERR_NO_MEMORY, "no memory for a grammar");
    }
    for (uint32_t r = 0; ok && r < n; r++) {
        if (s.index[r] == 0 && g->rules[r].productive && !g->rules[r].regular) {
            ok = strong_connect(g, &s, r, 0);
        }
    }
    *count = s.components;
    di_free(s.index);
    di_free(s.low);
    di_free(s.stack);
    return ok;
}

static bool remove_left_recursion(ebnf *g) {
    int count = 0;
    if (!find_components(g, &count)) {
        return false;
    }
    for (int number = 0; number < count; number++) {
        component c = {.number = number};
        for (uint32_t r = 0, n = (uint32_t)g->num_rules; r < n; r++) {
            if (g->rules[r].component != number) {
                continue;
            }
            if (c.count == MAX_COMPONENT) {
                return di_fail(g->err, DI_ERR_UNSUPPORTED,
                               "more than %d rules are left-recursive through each other",
                               MAX_COMPONENT);
            }
            c.members[c.count++] = r;
        }
        if (!remove_recursion(g, &c)) {
            return false;
        }
    }
    return true;
}

/* ---- rules that double themselves ---- */

/* How many times r stands here and nothing else does; 0: it is not so. */
static uint32_t count_selves(const ebnf *g, ebnf_node x, uint32_t r) {
    const ebnf_expr *e = &g->nodes[x];
    uint32_t count = 1;
    for (; e->kind == EBNF_CAT; e = &g->nodes[e->b], count++) {
        const ebnf_expr *part = &g->nodes[e->a];
        if (part->kind != EBNF_RULE || part->a != r) {
            return 0;
        }
    }
    return e->kind == EBNF_RULE && e->a == r ? count : 0;
}

/* r = r r | B is r = B+, which can be read in one way where the other can in very many. Beside r r
 * longer rows of r say nothing new. */
static bool fold_doubling(ebnf *g, uint32_t r) {
    ebnf_node rest = UINT32_MAX, x = g->rules[r].body;
    bool found = false;
    for (bool last = false; !last;) {
        ebnf_expr e = g->nodes[x];
        last = e.kind != EBNF_ALT;
        ebnf_node alternative = last ? x : e.a;
        uint32_t selves = count_selves(g, alternative, r);
        found |= selves == 2;
        if (selves < 2) {
            rest = rest == UINT32_MAX ? alternative : di_ebnf_add(g, EBNF_ALT, alternative, rest);
        }
        x = e.b;
    }
    if (!found || rest == UINT32_MAX || g->failed) {
        return !g->failed;
    }
    ebnf_node repeat = di_ebnf_add(g, EBNF_REPEAT, rest, 0);
    if (repeat != UINT32_MAX) {
        g->nodes[repeat].low = 1;
        g->nodes[repeat].high = DI_TERM_UNBOUNDED;
        g->rules[r].body = repeat;
    }
    return repeat != UINT32_MAX;
}

bool di_ebnf_finish(ebnf *g, uint32_t root) {
    di_machine *m = g->m;
    for (uint32_t r = 0; r < g->num_rules; r++) {
        if (!fold_doubling(g, r)) {
            return false;
        }
    }
    mark_rules(g);
    if (!g->rules[root].productive) {
        return di_fail(g->err, DI_ERR_ARGUMENT, "the rule \"%s\" derives no text at all",
                       g->rules[root].name);
    }
    mark_regular(g);
    if (!remove_left_recursion(g)) {
        return false;
    }
    mark_rules(g);
    m->rules = di_calloc(g->num_rules, sizeof *m->rules);
    if (!m->rules) {
        return di_fail(g->err, DI_ERR_NO_MEMORY, "no memory for a grammar");
    }
    m->num_rules = m->cap_rules = g->num_rules;
    for (uint32_t r = 0; r < g->num_rules; r++) {
        if (!g->rules[r].regular) {
            g->rules[r].term = di_term_special(&m->terms, DI_KIND_CALL, r, 0, 0);
        }
    }
    for (uint32_t r = 0; r < g->num_rules; r++) {
        m->rules[r] = g->rules[r].productive ? term_of(g, g->rules[r].body) : DI_TERM_NONE;
    }
    m->root = g->rules[root].term;
    return true;
}
