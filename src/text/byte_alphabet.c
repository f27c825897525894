/* Bytes as printable characters, see byte_alphabet.h. */
#include "text/byte_alphabet.h"

#include <stdbool.h>

/* The bytes that do not stand for themselves, in order: 0..32, 127..160, 173. */
enum { FIRST_RUN = 33, SECOND_RUN = 34, MOVED = FIRST_RUN + SECOND_RUN + 1 };

static bool moved(unsigned char byte) {
    return byte <= 32 || (byte >= 127 && byte <= 160) || byte == 173;
}

uint32_t di_byte_to_char(unsigned char byte) {
    if (!moved(byte)) {
        return byte;
    }
    if (byte <= 32) {
        return 256u + byte;
    }
    return byte == 173 ? 256u + MOVED - 1 : 256u + FIRST_RUN + (byte - 127u);
}

int di_char_to_byte(uint32_t c) {
    if (c < 256) {
        return moved((unsigned char)c) ? -1 : (int)c;
    }
    int n = c < 256 + MOVED ? (int)c - 256 : -1;
    if (n < 0) {
        return -1;
    }
    return n < FIRST_RUN ? n : n < FIRST_RUN + SECOND_RUN ? n - FIRST_RUN + 127 : 173;
}
