/* The state machine over what the model writes: see parser.h. In each stage some patterns are
 * looked for at once; bytes that are part of none are the stage's text. */
#include "text/recipe/parser.h"

#include <stdio.h>

#include "base/alloc.h"
#include "text/recipe/json_write.h"

typedef enum stage {
    REASONING,
    CONTENT,
    BEFORE_JSON,
    JSON,
    BEHIND_JSON,
    CALLS,     /* inside the block, before a call */
    NAME,      /* of the tool */
    ARGUMENTS, /* before a parameter */
    PARAMETER, /* its name */
    TYPE,      /* of its value */
    VALUE,
    DONE,
    NUM_STAGES,
} stage;

/* Patterns by number; stop texts follow. */
enum {
    THINK_END,       /* with the newlines before it */
    STRAY_THINK_END, /* without */
    BLOCK,           /* the opening tag of calls, with the newlines before it */
    LEADING_NEWLINE,
    FENCE_JSON,
    FENCE,
    BRACE,
    BRACKET,
    FENCE_END,
    INVOKE,
    BLOCK_END_V4,
    BLOCK_END_V41,
    NAME_END,
    NEXT_PARAMETER,
    ANY_CLOSING,
    PARAMETER_NAME_END,
    TYPE_TEXT,
    TYPE_RAW,
    /* in repair mode */
    PARAMETER_NAME_END_WHOLE,
    PARAMETER_END_V4,
    PARAMETER_END_V41,
    NUM_FIXED,
    MOST_ACTIVE = 24,
};

#define DSML "｜DSML｜"

static const struct {
    const char *text;
    bool newlines; /* newlines before it are part of it */
} fixed[NUM_FIXED] = {
    [THINK_END] = {"</think>", true},
    [STRAY_THINK_END] = {"</think>", false},
    [BLOCK] = {"<" DSML, true},
    [LEADING_NEWLINE] = {"\n", false},
    [FENCE_JSON] = {"```json\n", false},
    [FENCE] = {"```\n", false},
    [BRACE] = {"{", false},
    [BRACKET] = {"[", false},
    [FENCE_END] = {"\n```", false},
    [INVOKE] = {"invoke name=\"", false},
    [BLOCK_END_V4] = {"</" DSML "tool_calls>", false},
    [BLOCK_END_V41] = {"</" DSML " calls>", false},
    [NAME_END] = {"\"", false},
    [NEXT_PARAMETER] = {"parameter name=", false},
    [ANY_CLOSING] = {"</" DSML, false},
    [PARAMETER_NAME_END] = {" ", false},
    [TYPE_TEXT] = {"true\">", false},
    [TYPE_RAW] = {"false\">", false},
    [PARAMETER_NAME_END_WHOLE] = {"\" string=\"", false},
    [PARAMETER_END_V4] = {"</" DSML "parameter>", false},
    [PARAMETER_END_V41] = {"</" DSML " parameter>", false},
};

/* A pattern on its way: Knuth, Morris and Pratt's automaton, with newlines counted in front. */
typedef struct matcher {
    di_str text;
    size_t control, control_end; /* bytes that a control token spells */
    size_t *fall; /* [text.size]: the longest proper start that is an end of text[0..i] */
    bool newlines;
    size_t matched, newline_count;
} matcher;

/* Where a text that was pushed ends, in `held`. */
typedef struct border {
    size_t end, in_text;
} border;

struct di_parser {
    const di_parsing *how;
    di_piece_fn take;
    void *context;
    matcher *matchers; /* [NUM_FIXED + stops] */
    size_t *falls;     /* of all of them */
    int num_matchers;
    int active[MOST_ACTIVE], num_active;
    stage stage;
    bool leading; /* nothing but newlines yet: they are dropped */

    di_buffer held; /* bytes from `begin` on wait for what they are */
    size_t begin, scanned;
    border *borders;
    size_t num_borders, border_capacity, first_border;

    di_buffer name; /* of a tool or, in repair mode, of a parameter */
    bool first;     /* parameter of a call */
    bool value_is_text;
    bool in_call;
    int stop;

    unsigned repairs; /* mended places */

    int owed; /* a pattern that was found and whose piece is not given out yet; -1: none */
    stage owed_stage;
    size_t owed_text;

    /* repair mode */
    di_buffer value, scratch; /* a raw value; a piece in the making */
    di_buffer seen;           /* names of this call's parameters, NUL-terminated */
    bool left_out;            /* the parameter was there before */
    bool spaced;              /* the last piece was JSON mode's space */
};

/* ---- patterns ---- */

static void make_fall(matcher *m) {
    size_t k = 0;
    m->fall[0] = 0;
    for (size_t i = 1; i < m->text.size; i++) {
        while (k > 0 && m->text.data[i] != m->text.data[k]) {
            k = m->fall[k - 1];
        }
        k += m->text.data[i] == m->text.data[k];
        m->fall[i] = k;
    }
}

static bool fits(const matcher *m, char c, di_text_source source) {
    bool control = m->matched >= m->control && m->matched < m->control_end;
    return c == m->text.data[m->matched] &&
           source != (control ? DI_SOURCE_PLAIN : DI_SOURCE_CONTROL);
}

/* Takes a byte; true if the pattern is complete. */
static bool advance(matcher *m, char c, di_text_source source) {
    bool began = m->matched > 0;
    while (m->matched > 0 && !fits(m, c, source)) {
        m->matched = m->fall[m->matched - 1];
    }
    if (fits(m, c, source)) {
        if (began && m->matched == 0) {
            m->newline_count = 0; /* they were in front of what failed */
        }
        m->matched++;
        return m->matched == m->text.size;
    }
    m->newline_count = m->newlines && c == '\n' && !began ? m->newline_count + 1 : 0;
    return false;
}

static size_t pending(const matcher *m) {
    return m->matched + m->newline_count;
}

static void activate(di_parser *p, int pattern) {
    if (p->num_active < MOST_ACTIVE) {
        p->active[p->num_active++] = pattern;
    }
}

static void activate_stops(di_parser *p) {
    for (int i = NUM_FIXED; i < p->num_matchers; i++) {
        activate(p, i);
    }
}

static void activate_value_ends(di_parser *p) {
    if (p->how->repair) {
        activate(p, PARAMETER_END_V41);
        activate(p, PARAMETER_END_V4);
    } else {
        activate(p, ANY_CLOSING);
    }
}

/* Patterns that end at one byte: the first counts. */
static void activate_all(di_parser *p) {
    bool calls = p->how->tool_calls;
    switch (p->stage) {
    case REASONING:
        activate(p, THINK_END);
        break;
    case CONTENT:
        activate_stops(p);
        activate(p, STRAY_THINK_END);
        break;
    case BEFORE_JSON:
        activate(p, FENCE_JSON);
        activate(p, FENCE);
        activate(p, BRACE);
        activate(p, BRACKET);
        activate(p, STRAY_THINK_END);
        break;
    case JSON:
        activate_stops(p);
        activate(p, FENCE_END);
        break;
    case CALLS:
        activate(p, INVOKE);
        activate(p, BLOCK_END_V41);
        activate(p, BLOCK_END_V4);
        break;
    case NAME:
        activate(p, NAME_END);
        break;
    case ARGUMENTS:
        activate(p, NEXT_PARAMETER);
        activate(p, ANY_CLOSING);
        break;
    case PARAMETER:
        activate(p, p->how->repair ? PARAMETER_NAME_END_WHOLE : PARAMETER_NAME_END);
        break;
    case TYPE:
        activate(p, TYPE_TEXT);
        activate(p, TYPE_RAW);
        break;
    case VALUE:
        activate_value_ends(p);
        break;
    case BEHIND_JSON:
    case DONE:
    case NUM_STAGES:
        break;
    }
    if (calls && (p->stage <= BEFORE_JSON || p->stage == BEHIND_JSON)) {
        activate(p, BLOCK);
    }
    if (p->leading) {
        activate(p, LEADING_NEWLINE);
    }
}

static void enter(di_parser *p, stage to, bool leading) {
    p->stage = to;
    p->leading = leading;
    p->num_active = 0;
    activate_all(p);
    for (int i = 0; i < p->num_active; i++) {
        p->matchers[p->active[i]].matched = p->matchers[p->active[i]].newline_count = 0;
    }
}

/* ---- pieces out ---- */

static bool emit(di_parser *p, di_piece_kind kind, di_str text, di_str raw, size_t in_text,
                 di_error *err) {
    const di_piece piece = {kind, text, raw, in_text};
    p->spaced = false;
    return p->take(p->context, &piece, err);
}

static bool emit_json(di_parser *p, const char *json, size_t in_text, di_error *err) {
    return emit(p, DI_PIECE_ARGUMENTS, di_str_of(json), DI_STR(""), in_text, err);
}

static bool emit_quote(di_parser *p, size_t in_text, di_error *err) {
    return emit(p, DI_PIECE_QUOTE, DI_STR("\""), DI_STR(""), in_text, err);
}

static bool emit_characters(di_parser *p, di_str raw, size_t in_text, di_error *err) {
    p->scratch.size = 0;
    return di_json_escape(&p->scratch, raw.data, raw.size, err) &&
           emit(p, DI_PIECE_VALUE, (di_str){p->scratch.data, p->scratch.size}, raw, in_text, err);
}

/* JSON mode makes a space of what it drops. */
static bool emit_space(di_parser *p, size_t in_text, di_error *err) {
    if (p->how->repair && p->spaced) {
        return true;
    }
    bool ok = emit(p, DI_PIECE_CONTENT, DI_STR(" "), DI_STR(""), in_text, err);
    p->repairs++;
    p->spaced = true;
    return ok;
}

/* A piece of the stage's text. */
static bool emit_text(di_parser *p, di_str text, size_t in_text, di_error *err) {
    bool repair = p->how->repair;
    switch (p->stage) {
    case REASONING:
        return emit(p, DI_PIECE_REASONING, text, DI_STR(""), in_text, err);
    case CONTENT:
    case JSON:
        return emit(p, DI_PIECE_CONTENT, text, DI_STR(""), in_text, err);
    case BEFORE_JSON:
    case BEHIND_JSON:
        return emit_space(p, in_text, err);
    case NAME:
        return di_buffer_append(&p->name, text.data, text.size, err);
    case PARAMETER:
        return repair ? di_buffer_append(&p->name, text.data, text.size, err)
                      : emit(p, DI_PIECE_ARGUMENTS, text, DI_STR(""), in_text, err);
    case VALUE:
        if (p->left_out) {
            return true;
        }
        if (p->value_is_text) {
            return emit_characters(p, text, in_text, err);
        }
        return repair ? di_buffer_append(&p->value, text.data, text.size, err)
                      : emit(p, DI_PIECE_ARGUMENTS, text, DI_STR(""), in_text, err);
    case CALLS:
    case ARGUMENTS:
    case TYPE:
    case DONE:
    case NUM_STAGES:
        break;
    }
    return true;
}

/* The text that held bytes up to `end` belong to, the last one if they end with it. */
static size_t text_of(const di_parser *p, size_t end) {
    size_t i = p->first_border;
    while (i + 1 < p->num_borders && p->borders[i].end < end) {
        i++;
    }
    return i < p->num_borders ? p->borders[i].in_text : 0;
}

static bool settle(di_parser *p, di_error *err);

/* Gives out held bytes up to `end` as the stage's text, cut at the borders. */
static bool flush(di_parser *p, size_t end, di_error *err) {
    if (p->begin < end && !settle(p, err)) {
        return false;
    }
    while (p->begin < end) {
        while (p->borders[p->first_border].end <= p->begin) {
            p->first_border++;
        }
        const border *b = &p->borders[p->first_border];
        size_t to = b->end < end ? b->end : end;
        di_str text = {p->held.data + p->begin, to - p->begin};
        p->begin = to;
        p->leading = false;
        if (!emit_text(p, text, b->in_text, err)) {
            return false;
        }
    }
    return true;
}

/* ---- calls ---- */

static bool begin_call(di_parser *p, size_t in_text, di_error *err) {
    di_str name = {p->name.data ? p->name.data : "", p->name.size};
    p->first = true;
    p->in_call = true;
    p->seen.size = 0;
    bool ok = emit(p, DI_PIECE_CALL, name, DI_STR(""), in_text, err);
    p->name.size = 0;
    return ok;
}

static bool end_call(di_parser *p, size_t in_text, di_error *err) {
    p->in_call = false;
    return emit_json(p, p->first ? "{}" : "}", in_text, err);
}

static bool begin_parameter(di_parser *p, size_t in_text, di_error *err) {
    p->left_out = false;
    p->value.size = p->name.size = 0;
    if (p->how->repair) {
        return true; /* its name must be known first */
    }
    bool ok = emit_json(p, p->first ? "{" : ", ", in_text, err);
    p->first = false;
    return ok;
}

/* A name that stood in this call before is left out, and its value. */
static bool note_name(di_parser *p, di_str name, di_error *err) {
    for (size_t i = 0; i < p->seen.size; i += strlen(p->seen.data + i) + 1) {
        p->left_out |= di_str_is(name, p->seen.data + i);
    }
    return p->left_out || (di_buffer_append(&p->seen, name.data, name.size, err) &&
                           di_buffer_append(&p->seen, "", 1, err));
}

static bool end_parameter_name(di_parser *p, size_t in_text, di_error *err) {
    if (!p->how->repair) {
        return emit_json(p, ": ", in_text, err);
    }
    di_str name = {p->name.data ? p->name.data : "", p->name.size};
    if (name.size > 0 && name.data[0] == '"') { /* the attribute's opening quote */
        name.data++;
        name.size--;
    }
    if (!note_name(p, name, err)) {
        return false;
    }
    if (p->left_out) {
        p->repairs++;
        return true;
    }
    di_buffer key = {0};
    bool ok =
        emit_json(p, p->first ? "{" : ", ", in_text, err) && di_buffer_append(&key, "\"", 1, err) &&
        di_json_escape(&key, name.data, name.size, err) && di_buffer_append(&key, "\"", 1, err) &&
        emit_json(p, key.data, in_text, err) && emit_json(p, ": ", in_text, err);
    p->repairs += key.size != name.size + 2; /* escaped */
    di_buffer_free(&key);
    p->first = false;
    return ok;
}

static bool begin_value(di_parser *p, bool is_text, size_t in_text, di_error *err) {
    p->value_is_text = is_text;
    return !is_text || p->left_out || emit_quote(p, in_text, err);
}

/* A raw value that is no JSON becomes a text. */
static bool emit_raw_value(di_parser *p, size_t in_text, di_error *err) {
    di_pool pool = {0};
    di_value parsed;
    di_error why = {0};
    di_str raw = {p->value.data ? p->value.data : "", p->value.size};
    bool valid = di_value_parse(&pool, raw.data, raw.size, DI_VALUE_MAX_DEPTH - 1, &parsed, &why);
    di_pool_free(&pool);
    if (!valid && why.code == DI_ERR_NO_MEMORY) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for an argument");
    }
    if (valid) {
        return emit(p, DI_PIECE_ARGUMENTS, raw, DI_STR(""), in_text, err);
    }
    p->repairs++;
    return emit_quote(p, in_text, err) && emit_characters(p, raw, in_text, err) &&
           emit_quote(p, in_text, err);
}

static bool end_value(di_parser *p, size_t in_text, di_error *err) {
    if (p->left_out) {
        return true;
    }
    if (p->value_is_text) {
        return emit_quote(p, in_text, err);
    }
    return !p->how->repair || emit_raw_value(p, in_text, err);
}

/* ---- transitions ---- */

static stage after_reasoning(const di_parser *p) {
    return p->how->json ? BEFORE_JSON : CONTENT;
}

/* Gives out what the last pattern that was found says. That waits until it is known what follows,
 * so that it goes with the text that it is from. */
static bool settle(di_parser *p, di_error *err) {
    int pattern = p->owed;
    p->owed = -1;
    switch (pattern) {
    case BRACE:
    case BRACKET:
        return emit(p, DI_PIECE_CONTENT, pattern == BRACE ? DI_STR("{") : DI_STR("["), DI_STR(""),
                    p->owed_text, err);
    case NAME_END:
        return begin_call(p, p->owed_text, err);
    case NEXT_PARAMETER:
        return begin_parameter(p, p->owed_text, err);
    case PARAMETER_NAME_END:
    case PARAMETER_NAME_END_WHOLE:
        return end_parameter_name(p, p->owed_text, err);
    case TYPE_TEXT:
    case TYPE_RAW:
        return begin_value(p, pattern == TYPE_TEXT, p->owed_text, err);
    case ANY_CLOSING:
    case PARAMETER_END_V4:
    case PARAMETER_END_V41:
        return p->owed_stage == VALUE ? end_value(p, p->owed_text, err)
                                      : end_call(p, p->owed_text, err);
    default:
        return true;
    }
}

/* Where a pattern leads to; *leading: newlines that follow are dropped. */
static stage next_stage(const di_parser *p, int pattern, bool *leading) {
    *leading = pattern == THINK_END || pattern == LEADING_NEWLINE;
    switch (pattern) {
    case THINK_END:
        return after_reasoning(p);
    case BLOCK:
        return CALLS;
    case FENCE_JSON:
    case FENCE:
    case BRACE:
    case BRACKET:
        return JSON;
    case FENCE_END:
        return BEHIND_JSON;
    case INVOKE:
        return NAME;
    case NAME_END:
        return ARGUMENTS;
    case NEXT_PARAMETER:
        return PARAMETER;
    case PARAMETER_NAME_END:
    case PARAMETER_NAME_END_WHOLE:
        return TYPE;
    case TYPE_TEXT:
    case TYPE_RAW:
        return VALUE;
    case ANY_CLOSING:
    case PARAMETER_END_V4:
    case PARAMETER_END_V41:
        return p->stage == VALUE ? ARGUMENTS : p->how->single_call ? DONE : CALLS;
    case STRAY_THINK_END:
    case LEADING_NEWLINE:
        return p->stage;
    default:
        return DONE; /* the block's end, a stop text */
    }
}

/* A pattern is complete: what stands before it was given out already. */
static bool found(di_parser *p, int pattern, size_t in_text, di_error *err) {
    bool leading;
    if (!settle(p, err)) {
        return false;
    }
    if (pattern >= NUM_FIXED) {
        p->stop = pattern - NUM_FIXED;
    }
    if (pattern == INVOKE) {
        p->name.size = 0;
    }
    p->repairs += pattern == STRAY_THINK_END || (pattern == BLOCK && p->stage == REASONING);
    p->owed = pattern;
    p->owed_stage = p->stage;
    p->owed_text = in_text;
    stage next = next_stage(p, pattern, &leading);
    enter(p, next, leading);
    return true;
}

/* Takes the byte at `scanned`. Bytes that may belong to a pattern end the time of leading newlines
 * too. */
static bool scan(di_parser *p, di_text_source source, di_error *err) {
    char c = p->held.data[p->scanned++];
    int complete = -1;
    for (int i = 0; i < p->num_active; i++) {
        if (advance(&p->matchers[p->active[i]], c, source) && complete < 0) {
            complete = p->active[i];
        }
    }
    if (complete >= 0) {
        size_t in_text = text_of(p, p->scanned);
        if (!flush(p, p->scanned - pending(&p->matchers[complete]), err)) {
            return false;
        }
        p->begin = p->scanned;
        return found(p, complete, in_text, err);
    }
    if (p->leading) { /* newlines are dropped only while nothing else has stood here */
        p->leading = false;
        for (int i = 0; i < p->num_active; i++) {
            if (p->active[i] == LEADING_NEWLINE) {
                p->active[i] = p->active[--p->num_active];
            }
        }
    }
    return true;
}

/* Bytes that no pattern can claim any more, cut back to a border: a piece is given out only when it
 * is known how far it goes. */
static bool flush_decided(di_parser *p, di_error *err) {
    size_t most = 0, end = p->begin;
    for (int i = 0; i < p->num_active; i++) {
        size_t n = pending(&p->matchers[p->active[i]]);
        most = n > most ? n : most;
    }
    size_t decided = p->scanned - most;
    if ((most == 0 || decided > p->begin) && !settle(p, err)) {
        return false;
    }
    for (size_t i = p->first_border; i < p->num_borders && p->borders[i].end <= decided; i++) {
        end = p->borders[i].end;
    }
    return flush(p, end > p->begin ? end : p->begin, err);
}

/* Forgets what was given out, once that is more than what waits. */
static void compact(di_parser *p) {
    size_t done = p->begin;
    if (done < p->held.size - done) {
        return;
    }
    memmove(p->held.data, p->held.data + done, p->held.size - done);
    p->held.size -= done;
    p->scanned -= done;
    p->begin = 0;
    size_t kept = 0;
    for (size_t i = p->first_border; i < p->num_borders; i++) {
        if (p->borders[i].end > done) {
            p->borders[kept++] = (border){p->borders[i].end - done, p->borders[i].in_text};
        }
    }
    p->num_borders = kept;
    p->first_border = 0;
}

bool di_parser_push(di_parser *p, const char *text, size_t size, di_text_source source,
                    size_t in_text, di_error *err) {
    if (size == 0 || p->stage == DONE) {
        return true;
    }
    border *moved = di_grow(p->borders, p->num_borders, &p->border_capacity, sizeof *moved);
    if (!moved) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the borders of an answer");
    }
    p->borders = moved;
    if (!di_buffer_append(&p->held, text, size, err)) {
        return false;
    }
    p->borders[p->num_borders++] = (border){p->held.size, in_text};
    while (p->scanned < p->held.size && p->stage != DONE) {
        if (!scan(p, source, err)) {
            return false;
        }
    }
    if (p->stage == DONE) {
        p->begin = p->scanned = p->held.size;
        if (!settle(p, err)) {
            return false;
        }
    } else if (!flush_decided(p, err)) {
        return false;
    }
    compact(p);
    return true;
}

/* The model stopped inside a call: its arguments are closed so that they can be read. */
static bool close_open_call(di_parser *p, size_t in_text, di_error *err) {
    p->repairs++;
    if (p->stage == VALUE && !end_value(p, in_text, err)) {
        return false;
    }
    if (p->stage == TYPE && !p->left_out && !emit_json(p, "null", in_text, err)) {
        return false;
    }
    return end_call(p, in_text, err);
}

bool di_parser_finish(di_parser *p, bool complete, di_error *err) {
    size_t in_text = text_of(p, p->held.size);
    if (!flush(p, p->held.size, err) || !settle(p, err)) {
        return false;
    }
    if (p->how->repair && complete && p->in_call && !close_open_call(p, in_text, err)) {
        return false;
    }
    p->stage = DONE;
    return true;
}

int di_parser_stop(const di_parser *p) {
    return p->stop;
}

unsigned di_parser_repairs(const di_parser *p) {
    return p->repairs;
}

/* ---- life ---- */

static void find_control(matcher *m) {
    static const char *const tokens[] = {"</think>", DSML};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const char *found = strstr(m->text.data, tokens[i]);
        if (found) {
            m->control = (size_t)(found - m->text.data);
            m->control_end = m->control + strlen(tokens[i]);
        }
    }
}

static bool make_matchers(di_parser *p, di_error *err) {
    size_t total = 0, at = 0;
    p->num_matchers = NUM_FIXED + (int)p->how->stop_count;
    p->matchers = di_calloc((size_t)p->num_matchers, sizeof *p->matchers);
    if (!p->matchers) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the patterns of an answer");
    }
    for (int i = 0; i < p->num_matchers; i++) {
        matcher *m = &p->matchers[i];
        m->text = i < NUM_FIXED ? di_str_of(fixed[i].text) : p->how->stops[i - NUM_FIXED];
        m->newlines = i < NUM_FIXED && fixed[i].newlines;
        total += m->text.size;
        if (i < NUM_FIXED) {
            find_control(m);
        }
    }
    p->falls = di_calloc(total, sizeof *p->falls);
    if (!p->falls) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for the patterns of an answer");
    }
    for (int i = 0; i < p->num_matchers; i++) {
        p->matchers[i].fall = p->falls + at;
        at += p->matchers[i].text.size;
        make_fall(&p->matchers[i]);
    }
    return true;
}

di_parser *di_parser_create(const di_parsing *how, di_piece_fn take, void *context, di_error *err) {
    di_parser *p = di_calloc(1, sizeof *p);
    if (!p) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a parser");
        return NULL;
    }
    p->how = how;
    p->take = take;
    p->context = context;
    p->stop = p->owed = -1;
    if (!make_matchers(p, err)) {
        di_parser_destroy(p);
        return NULL;
    }
    bool reasons =
        how->stage == DI_STAGE_REASONING_START || how->stage == DI_STAGE_REASONING_CONTINUATION;
    bool leads = how->stage == DI_STAGE_CHAT || how->stage == DI_STAGE_REASONING_START;
    enter(p,
          how->starts_in_tool_calls ? CALLS
          : reasons                 ? REASONING
                                    : after_reasoning(p),
          leads && !how->starts_in_tool_calls);
    return p;
}

void di_parser_destroy(di_parser *p) {
    if (!p) {
        return;
    }
    di_buffer_free(&p->held);
    di_buffer_free(&p->name);
    di_buffer_free(&p->value);
    di_buffer_free(&p->scratch);
    di_buffer_free(&p->seen);
    di_free(p->borders);
    di_free(p->matchers);
    di_free(p->falls);
    di_free(p);
}
