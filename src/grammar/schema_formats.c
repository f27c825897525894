/* The values of `format` that are enforced, each as a pattern; see schema_internal.h. By the
 * standard other formats are remarks. */
#include <string.h>

#include "grammar/pattern.h"
#include "grammar/schema_internal.h"

#define HOUR      "([01]\\d|2[0-3])"
#define MINUTE    "[0-5]\\d"
#define FULL_TIME HOUR ":" MINUTE ":([0-5]\\d)(\\.\\d+)?([zZ]|[+-]" HOUR ":" MINUTE ")"
#define LEAP_YEAR "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
#define FULL_DATE                                                                                  \
    "(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|"            \
    "02-(0[1-9]|1\\d|2[0-8]))|" LEAP_YEAR "-02-29)"
/* No label with hyphens in its third and fourth place: those are encoded, and what they decode to
 * has rules of its own. */
#define ALNUM "[A-Za-z0-9]"
#define LABEL                                                                                      \
    "(" ALNUM "|" ALNUM "[A-Za-z0-9-]?" ALNUM "|" ALNUM "[A-Za-z0-9-](" ALNUM                      \
    "[A-Za-z0-9-]|-" ALNUM ")([A-Za-z0-9-]{0,58}" ALNUM ")?|" ALNUM "[A-Za-z0-9-]-" ALNUM ")"
#define HOSTNAME LABEL "(\\." LABEL ")*"
#define OCTET    "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4     OCTET "(\\." OCTET "){3}"
#define HEX4     "[0-9A-Fa-f]{1,4}"
#define LAST32   "(" HEX4 ":" HEX4 "|" IPV4 ")"
#define IPV6                                                                                       \
    "((" HEX4 ":){6}" LAST32 "|::(" HEX4 ":){5}" LAST32 "|(" HEX4 ")?::(" HEX4 ":){4}" LAST32      \
    "|((" HEX4 ":){0,1}" HEX4 ")?::(" HEX4 ":){3}" LAST32 "|((" HEX4 ":){0,2}" HEX4 ")?::(" HEX4   \
    ":){2}" LAST32 "|((" HEX4 ":){0,3}" HEX4 ")?::" HEX4 ":" LAST32 "|((" HEX4 ":){0,4}" HEX4      \
    ")?::" LAST32 "|((" HEX4 ":){0,5}" HEX4 ")?::" HEX4 "|((" HEX4 ":){0,6}" HEX4 ")?::)"
#define ATOM       "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define LOCAL_PART "(" ATOM "(\\." ATOM ")*|\"([ !#-\\[\\]-~]|\\\\[ -~])+\")"
#define DOMAIN     "(" HOSTNAME "|\\[(" IPV4 "|IPv6:" IPV6 ")\\])"
#define PERCENT    "%[0-9A-Fa-f]{2}"
#define URI_CHARS  "A-Za-z0-9._~!$&'()*+,;=\\-"
#define PCHAR      "([" URI_CHARS ":@]|" PERCENT ")"
#define AUTHORITY                                                                                  \
    "((([" URI_CHARS ":]|" PERCENT ")*)@)?(\\[(" IPV6 "|[vV][0-9A-Fa-f]+\\.[" URI_CHARS            \
    ":]+)\\]|([" URI_CHARS "]|" PERCENT ")*)(:\\d*)?"
#define PATH_ABEMPTY "(/" PCHAR "*)*"
#define TAIL         "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define SCHEME       "[A-Za-z][A-Za-z0-9+.-]*:"
#define URI                                                                                        \
    SCHEME "(//" AUTHORITY PATH_ABEMPTY "|/(" PCHAR "+" PATH_ABEMPTY ")?|" PCHAR "+" PATH_ABEMPTY  \
           "|)" TAIL
#define RELATIVE                                                                                   \
    "(//" AUTHORITY PATH_ABEMPTY "|/(" PCHAR "+" PATH_ABEMPTY ")?|([" URI_CHARS "@]|" PERCENT      \
    ")+" PATH_ABEMPTY "|)" TAIL
/* The same with characters beyond ASCII. */
#define PLANES                                                                                     \
    "\\u{10000}-\\u{1fffd}\\u{20000}-\\u{2fffd}\\u{30000}-\\u{3fffd}\\u{40000}-\\u{4fffd}"         \
    "\\u{50000}-\\u{5fffd}\\u{60000}-\\u{6fffd}\\u{70000}-\\u{7fffd}\\u{80000}-\\u{8fffd}"         \
    "\\u{90000}-\\u{9fffd}\\u{a0000}-\\u{afffd}\\u{b0000}-\\u{bfffd}\\u{c0000}-\\u{cfffd}"         \
    "\\u{d0000}-\\u{dfffd}\\u{e1000}-\\u{efffd}"
#define ICHARS  "A-Za-z0-9._~!$&'()*+,;=\\-\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef" PLANES
#define PRIVATE "\\ue000-\\uf8ff\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}"
#define IPCHAR  "([" ICHARS ":@]|" PERCENT ")"
#define IAUTHORITY                                                                                 \
    "((([" ICHARS ":]|" PERCENT ")*)@)?(\\[(" IPV6 "|[vV][0-9A-Fa-f]+\\.[" URI_CHARS               \
    ":]+)\\]|([" ICHARS "]|" PERCENT ")*)(:\\d*)?"
#define IPATH "(/" IPCHAR "*)*"
#define ITAIL "(\\?(" IPCHAR "|[/?" PRIVATE "])*)?(#(" IPCHAR "|[/?])*)?"
#define IRI   SCHEME "(//" IAUTHORITY IPATH "|/(" IPCHAR "+" IPATH ")?|" IPCHAR "+" IPATH "|)" ITAIL
#define IRELATIVE                                                                                  \
    "(//" IAUTHORITY IPATH "|/(" IPCHAR "+" IPATH ")?|([" ICHARS "@]|" PERCENT ")+" IPATH "|"      \
    ")" ITAIL
#define POINTER       "(/([^~/]|~[01])*)*"
#define VARIABLE      "([A-Za-z0-9_]|" PERCENT ")(\\.?([A-Za-z0-9_]|" PERCENT "))*"
#define VARSPEC       VARIABLE "(:[1-9]\\d{0,3}|\\*)?"
#define DURATION_TIME "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)"
#define DURATION                                                                                   \
    "P((\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(" DURATION_TIME ")?|" DURATION_TIME "|\\d+W)"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date-time", FULL_DATE "[tT]" FULL_TIME},
    {"date", FULL_DATE},
    {"time", FULL_TIME},
    {"duration", DURATION},
    {"email", LOCAL_PART "@" DOMAIN},
    {"hostname", HOSTNAME},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"uri", URI},
    {"uri-reference", "(" URI "|" RELATIVE ")"},
    {"iri", IRI},
    {"iri-reference", "(" IRI "|" IRELATIVE ")"},
    {"uri-template", "([^\\u0000-\\u0020\\u007f\"%<>\\\\^`{|}]|" PERCENT
                     "|\\{[+#./;?&=,!@|]?" VARSPEC "(," VARSPEC ")*\\})*"},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(0|[1-9]\\d*)(#|" POINTER ")"},
};

/* Formats of the standard that no automaton here can check. */
static const char *const beyond[] = {"idn-email", "idn-hostname", "regex"};

static bool is(const di_doc_node *n, const char *name) {
    return strlen(name) == n->size && memcmp(name, n->text, n->size) == 0;
}

bool schema_format(di_schema *s, uint32_t node, bool *known, di_term *out) {
    const di_doc_node *n = &s->doc.nodes[node];
    *known = false;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (is(n, formats[i].name)) {
            *known = true;
            bool ok = di_pattern_compile(s->t, formats[i].pattern, strlen(formats[i].pattern),
                                         DI_PATTERN_WHOLE, out, s->err);
            if (ok && strcmp(formats[i].name, "hostname") == 0) {
                *out = di_term_and2(s->t, *out, di_term_repeat(s->t, DI_TERM_CHAR, 0, 253));
            }
            return ok;
        }
    }
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        if (is(n, beyond[i])) {
            return schema_unsupported(s, node, "this format cannot be enforced");
        }
    }
    return true;
}
