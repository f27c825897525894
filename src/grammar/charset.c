/* Sets of code points; see charset.h. Called by the front ends. */
#include "grammar/charset.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"

bool di_charset_add(di_charset *s, uint32_t low, uint32_t high) {
    void *ranges = di_grow(s->ranges, s->count, &s->capacity, sizeof *s->ranges);
    if (!ranges) {
        return false;
    }
    s->ranges = ranges;
    s->ranges[s->count][0] = low;
    s->ranges[s->count++][1] = high;
    return true;
}

bool di_charset_add_set(di_charset *s, const di_charset *other) {
    for (size_t i = 0; i < other->count; i++) {
        if (!di_charset_add(s, other->ranges[i][0], other->ranges[i][1])) {
            return false;
        }
    }
    return true;
}

static int compare(const void *pa, const void *pb) {
    const uint32_t *a = pa, *b = pb;
    return (a[0] > b[0]) - (a[0] < b[0]);
}

void di_charset_sort(di_charset *s) {
    if (s->count == 0) {
        return;
    }
    qsort(s->ranges, s->count, sizeof *s->ranges, compare);
    size_t kept = 0;
    for (size_t i = 1; i < s->count; i++) {
        if (s->ranges[i][0] <= s->ranges[kept][1] + 1) {
            if (s->ranges[i][1] > s->ranges[kept][1]) {
                s->ranges[kept][1] = s->ranges[i][1];
            }
        } else {
            kept++;
            memmove(s->ranges[kept], s->ranges[i], sizeof *s->ranges);
        }
    }
    s->count = kept + 1;
}

bool di_charset_complement(di_charset *s) {
    di_charset_sort(s);
    di_charset rest = {0};
    uint32_t next = 0;
    bool ok = true;
    for (size_t i = 0; ok && i < s->count; i++) {
        if (s->ranges[i][0] > next) {
            ok = di_charset_add(&rest, next, s->ranges[i][0] - 1);
        }
        next = s->ranges[i][1] + 1;
    }
    if (ok && next <= DI_CHARSET_LAST) {
        ok = di_charset_add(&rest, next, DI_CHARSET_LAST);
    }
    di_charset_free(s);
    *s = rest;
    return ok;
}

void di_charset_free(di_charset *s) {
    di_free(s->ranges);
    *s = (di_charset){0};
}

bool di_charset_add_class(di_charset *s, char letter) {
    if (letter == 'd') {
        return di_charset_add(s, '0', '9');
    }
    if (letter == 'w') {
        return di_charset_add(s, '0', '9') && di_charset_add(s, 'A', 'Z') &&
               di_charset_add(s, '_', '_') && di_charset_add(s, 'a', 'z');
    }
    static const uint32_t spaces[][2] = {
        {0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        if (!di_charset_add(s, spaces[i][0], spaces[i][1])) {
            return false;
        }
    }
    return true;
}

/* Bits of utf8proc's categories. */
#define BIT(name) (1u << UTF8PROC_CATEGORY_##name)

static const struct {
    const char *brief, *name;
    uint32_t categories;
} properties[] = {
    {"L", "Letter", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO)},
    {"LC", "Cased_Letter", BIT(LU) | BIT(LL) | BIT(LT)},
    {"Lu", "Uppercase_Letter", BIT(LU)},
    {"Ll", "Lowercase_Letter", BIT(LL)},
    {"Lt", "Titlecase_Letter", BIT(LT)},
    {"Lm", "Modifier_Letter", BIT(LM)},
    {"Lo", "Other_Letter", BIT(LO)},
    {"M", "Mark", BIT(MN) | BIT(MC) | BIT(ME)},
    {"Mn", "Nonspacing_Mark", BIT(MN)},
    {"Mc", "Spacing_Mark", BIT(MC)},
    {"Me", "Enclosing_Mark", BIT(ME)},
    {"N", "Number", BIT(ND) | BIT(NL) | BIT(NO)},
    {"Nd", "Decimal_Number", BIT(ND)},
    {"Nl", "Letter_Number", BIT(NL)},
    {"No", "Other_Number", BIT(NO)},
    {"P", "Punctuation", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
    {"Pc", "Connector_Punctuation", BIT(PC)},
    {"Pd", "Dash_Punctuation", BIT(PD)},
    {"Ps", "Open_Punctuation", BIT(PS)},
    {"Pe", "Close_Punctuation", BIT(PE)},
    {"Pi", "Initial_Punctuation", BIT(PI)},
    {"Pf", "Final_Punctuation", BIT(PF)},
    {"Po", "Other_Punctuation", BIT(PO)},
    {"S", "Symbol", BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO)},
    {"Sm", "Math_Symbol", BIT(SM)},
    {"Sc", "Currency_Symbol", BIT(SC)},
    {"Sk", "Modifier_Symbol", BIT(SK)},
    {"So", "Other_Symbol", BIT(SO)},
    {"Z", "Separator", BIT(ZS) | BIT(ZL) | BIT(ZP)},
    {"Zs", "Space_Separator", BIT(ZS)},
    {"Zl", "Line_Separator", BIT(ZL)},
    {"Zp", "Paragraph_Separator", BIT(ZP)},
    {"C", "Other", BIT(CC) | BIT(CF) | BIT(CS) | BIT(CO) | BIT(CN)},
    {"Cc", "Control", BIT(CC)},
    {"Cf", "Format", BIT(CF)},
    {"Co", "Private_Use", BIT(CO)},
    {"Cn", "Unassigned", BIT(CN)},
};

static bool same(const char *name, const char *text, size_t size) {
    return strlen(name) == size && memcmp(name, text, size) == 0;
}

bool di_charset_add_property(di_charset *s, const char *name, size_t size, bool *known) {
    static const char *const prefixes[] = {"General_Category=", "gc="};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(prefixes[i]);
        if (size > length && memcmp(name, prefixes[i], length) == 0) {
            name += length;
            size -= length;
        }
    }
    *known = true;
    if (same("Any", name, size) || same("ASCII", name, size)) {
        return di_charset_add(s, 0, size == 3 ? DI_CHARSET_LAST : 0x7F);
    }
    uint32_t wanted = 0;
    if (same("digit", name, size)) {
        wanted = BIT(ND);
    }
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
        if (same(properties[i].brief, name, size) || same(properties[i].name, name, size)) {
            wanted = properties[i].categories;
        }
    }
    *known = wanted != 0;
    for (uint32_t c = 0, from = 0; wanted && c <= DI_CHARSET_LAST + 1; c++) {
        bool in = c <= DI_CHARSET_LAST && wanted >> utf8proc_category((utf8proc_int32_t)c) & 1;
        if (!in) {
            if (from < c && !di_charset_add(s, from, c - 1)) {
                return false;
            }
            from = c + 1;
        }
    }
    return true;
}

di_term di_charset_term(di_terms *t, di_charset *s) {
    di_charset_sort(s);
    return di_term_characters(t, (const uint32_t *)s->ranges, s->count);
}
