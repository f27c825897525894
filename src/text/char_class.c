/* Building the table of character classes, see char_class.h. */
#include "text/char_class.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "text/regex.h"

enum { PAGES = 0x110000 >> 8, MOST_PAGES = 256 };

/* A text of all code points to look through; all that have a class lie in these two ranges (planes
 * 4 to 13 are unassigned, the rest of 14 are unassigned or format characters, 15 and 16 are for
 * private use). */
static const uint32_t ranges[][2] = {{0, 0x40000}, {0xE0000, 0xE1000}};

static size_t write_all(char *text) {
    size_t size = 0;
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        for (uint32_t c = ranges[r][0]; c < ranges[r][1]; c++) {
            if (c < 0xD800 || c > 0xDFFF) {
                size += (size_t)di_utf8_encode(c, text + size);
            }
        }
    }
    return size;
}

/* Sets flag for every character of text that a pattern (a run of one class) matches. */
static bool mark(uint8_t *flags, const char *pattern, uint8_t flag, const char *text, size_t size,
                 di_regex_run *run, di_error *err) {
    di_regex *regex = di_regex_compile(pattern, err);
    size_t from = 0, begin, end;
    int found = regex ? 1 : -1;
    while (found > 0) {
        found = di_regex_find(regex, run, text, size, from, &begin, &end, err);
        for (size_t i = begin; found > 0 && i < end;) {
            uint32_t c;
            i += (size_t)di_utf8_next(text + i, end - i, &c);
            flags[c] |= flag;
        }
        from = end;
    }
    di_regex_free(regex);
    return found == 0;
}

static bool mark_all(uint8_t *flags, di_error *err) {
    static const struct {
        const char *pattern;
        uint8_t flag;
    } classes[] = {
        {"\\p{L}+", DI_CHAR_LETTER},      {"\\p{M}+", DI_CHAR_MARK},   {"\\p{N}+", DI_CHAR_NUMBER},
        {"\\p{P}+", DI_CHAR_PUNCTUATION}, {"\\p{S}+", DI_CHAR_SYMBOL}, {"\\s+", DI_CHAR_SPACE},
    };
    char *text = di_alloc(4 * 0x41000);
    di_regex_run *run = text ? di_regex_run_create(err) : NULL;
    bool ok = run || (!text && di_fail(err, DI_ERR_NO_MEMORY, "no memory for character classes"));
    size_t size = ok ? write_all(text) : 0;
    for (size_t i = 0; ok && i < sizeof classes / sizeof *classes; i++) {
        ok = mark(flags, classes[i].pattern, classes[i].flag, text, size, run, err);
    }
    for (uint32_t c = 0x3040; c <= 0x30FF; c++) {
        flags[c] |= DI_CHAR_KANA_HAN;
    }
    for (uint32_t c = 0x4E00; c <= 0x9FA5; c++) {
        flags[c] |= DI_CHAR_KANA_HAN;
    }
    flags['\r'] |= DI_CHAR_NEWLINE;
    flags['\n'] |= DI_CHAR_NEWLINE;
    di_regex_run_free(run);
    di_free(text);
    return ok;
}

/* Stores each distinct page of 256 flags once. */
static bool fold(di_char_classes *k, const uint8_t *flags, di_error *err) {
    int count = 0;
    for (int p = 0; p < PAGES; p++) {
        const uint8_t *page = flags + p * 256;
        int i = count - 1;
        while (i >= 0 && memcmp(k->pages[i], page, 256) != 0) {
            i--;
        }
        if (i < 0) {
            if (count == MOST_PAGES) {
                return di_fail(err, DI_ERR_INTERNAL, "more than %d kinds of character pages",
                               MOST_PAGES);
            }
            i = count++;
            memcpy(k->pages[i], page, 256);
        }
        k->page[p] = (uint8_t)i;
    }
    memcpy(k->ascii, flags, sizeof k->ascii);
    return true;
}

bool di_char_classes_create(di_char_classes *k, di_error *err) {
    *k = (di_char_classes){.pages = di_calloc(MOST_PAGES, sizeof *k->pages)};
    uint8_t *flags = di_calloc(0x110000, 1);
    bool ok = false;
    if (k->pages && flags) {
        ok = mark_all(flags, err) && fold(k, flags, err);
    } else {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for character classes");
    }
    di_free(flags);
    if (!ok) {
        di_char_classes_destroy(k);
    }
    return ok;
}

void di_char_classes_destroy(di_char_classes *k) {
    di_free(k->pages);
    k->pages = NULL;
}
