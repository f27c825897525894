/* The alphabet in which byte-level BPE files write bytes: every byte has a printable character.
 * Printable Latin-1 stands for itself; the other 68 bytes are U+0100, U+0101, ... in order. */
#ifndef DI_TEXT_BYTE_ALPHABET_H
#define DI_TEXT_BYTE_ALPHABET_H

#include <stdint.h>

/* The character of a byte. */
uint32_t di_byte_to_char(unsigned char byte);

/* The byte of a character, -1 if the character stands for none. */
int di_char_to_byte(uint32_t code_point);

#endif
