/* The JSON of safetensors headers: see header_reader.h. A reader of its own, because a header may
 * be 100 MB long: a tree of it would cost some ten times that, these slices cost nothing. */
#include "weights/header_reader.h"

#include <string.h>

bool di_header_problem(di_header_reader *r, const char *problem) {
    if (!r->problem) {
        r->problem = problem;
    }
    return false;
}

static void skip_space(di_header_reader *r) {
    while (r->at < r->end &&
           (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) {
        r->at++;
    }
}

bool di_header_take(di_header_reader *r, char c) {
    skip_space(r);
    if (r->at == r->end || *r->at != c) {
        return false;
    }
    r->at++;
    return true;
}

bool di_header_ended(di_header_reader *r) {
    skip_space(r);
    return r->at == r->end;
}

bool di_header_expect(di_header_reader *r, char c, const char *problem) {
    return di_header_take(r, c) || di_header_problem(r, problem);
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* r->at stands behind a backslash. */
static bool skip_escape(di_header_reader *r) {
    if (r->at == r->end) {
        return di_header_problem(r, "a string does not end");
    }
    char c = *r->at++;
    if (c != 'u') {
        return (c && strchr("\"\\/bfnrt", c)) || di_header_problem(r, "unknown escape in a string");
    }
    for (int i = 0; i < 4; i++, r->at++) {
        if (r->at == r->end || !is_hex(*r->at)) {
            return di_header_problem(r, "\\u wants four hexadecimal digits");
        }
    }
    return true;
}

bool di_header_string(di_header_reader *r, const char **text, size_t *length, bool *escaped) {
    if (!di_header_expect(r, '"', "a string was expected")) {
        return false;
    }
    *text = r->at;
    *escaped = false;
    while (r->at < r->end && *r->at != '"') {
        unsigned char c = (unsigned char)*r->at++;
        if (c < 0x20) {
            r->at--;
            return di_header_problem(r, "a control character in a string");
        }
        if (c == '\\') {
            *escaped = true;
            if (!skip_escape(r)) {
                return false;
            }
        }
    }
    if (r->at == r->end) {
        return di_header_problem(r, "a string does not end");
    }
    *length = (size_t)(r->at - *text);
    r->at++;
    return true;
}

bool di_header_plain_string(di_header_reader *r, const char **text, size_t *length) {
    bool escaped;
    if (!di_header_string(r, text, length, &escaped)) {
        return false;
    }
    for (size_t i = 0; i < *length; i++) {
        unsigned char c = (unsigned char)(*text)[i];
        if (escaped || c > 0x7e) {
            r->at = *text;
            return di_header_problem(r, "names and dtypes must be printable ASCII without escapes");
        }
    }
    return true;
}

bool di_header_unsigned(di_header_reader *r, uint64_t *value) {
    static const char problem[] = "an integer from 0 to 2^64 - 1 was expected";
    skip_space(r);
    const char *first = r->at;
    *value = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
        uint64_t digit = (uint64_t)(*r->at - '0');
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, digit, value)) {
            r->at = first;
            return di_header_problem(r, problem);
        }
        r->at++;
    }
    bool leading_zero = r->at - first > 1 && *first == '0';
    bool goes_on = r->at < r->end && (*r->at == '.' || *r->at == 'e' || *r->at == 'E');
    if (r->at == first || leading_zero || goes_on) {
        r->at = first;
        return di_header_problem(r, problem);
    }
    return true;
}
