/* UTF-8, see utf8.h. The one place where the rules of well-formed sequences are written down. */
#include "base/utf8.h"

#include <string.h>

/* Length that a lead byte announces (0: not a lead byte), and what may follow it directly: the
 * narrowed second bytes shut out overlong forms, surrogates and values above U+10FFFF. */
static int lead(unsigned char c, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xBF;
    if (c < 0x80) {
        return 1;
    }
    if (c < 0xC2 || c > 0xF4) {
        return 0;
    }
    if (c < 0xE0) {
        return 2;
    }
    if (c < 0xF0) {
        *low = c == 0xE0 ? 0xA0 : 0x80;
        *high = c == 0xED ? 0x9F : 0xBF;
        return 3;
    }
    *low = c == 0xF0 ? 0x90 : 0x80;
    *high = c == 0xF4 ? 0x8F : 0xBF;
    return 4;
}

int di_utf8_next(const char *text, size_t size, uint32_t *code_point) {
    const unsigned char *p = (const unsigned char *)text;
    unsigned char low, high;
    int length = lead(p[0], &low, &high);
    if (length <= 1) {
        *code_point = length ? p[0] : DI_UTF8_MALFORMED;
        return 1;
    }
    uint32_t value = p[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((size_t)i == size) {
            return 0;
        }
        if (p[i] < low || p[i] > high) {
            *code_point = DI_UTF8_MALFORMED;
            return i;
        }
        value = value << 6 | (p[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *code_point = value;
    return length;
}

bool di_utf8_valid(const char *text, size_t size, size_t *bad_offset) {
    size_t i = 0;
    while (i < size) {
        uint64_t eight;
        while (size - i >= 8) {
            memcpy(&eight, text + i, 8);
            if (eight & 0x8080808080808080u) {
                break;
            }
            i += 8;
        }
        if (i == size) {
            break;
        }
        uint32_t code_point;
        int length = di_utf8_next(text + i, size - i, &code_point);
        if (length == 0 || code_point == DI_UTF8_MALFORMED) {
            if (bad_offset) {
                *bad_offset = i;
            }
            return false;
        }
        i += (size_t)length;
    }
    return true;
}

int di_utf8_encode(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}
