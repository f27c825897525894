/* UTF-8: checking, taking apart and writing, one code point at a time.
 *
 * Well-formed means Unicode's table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF.
 * NUL is a character like any other; every length is explicit. */
#ifndef DI_BASE_UTF8_H
#define DI_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DI_UTF8_REPLACEMENT 0xFFFDu
#define DI_UTF8_MALFORMED   0xFFFFFFFFu

/* True if all of text[0..size) is well-formed; else *bad_offset (may be NULL) is where the first
 * malformed or cut-off character begins. */
bool di_utf8_valid(const char *text, size_t size, size_t *bad_offset);

/* Looks at the character that begins at text[0]; size >= 1. Returns
 *   1..4  its length, *code_point its value;
 *   1..3  with *code_point = DI_UTF8_MALFORMED: that many bytes can never be part of a character
 *         (the longest start of one that breaks off, which decoders replace by one U+FFFD);
 *   0     all of text[0..size) is the start of a character whose rest is missing. */
int di_utf8_next(const char *text, size_t size, uint32_t *code_point);

/* Writes a code point (no surrogate, at most U+10FFFF) and returns its length, 1..4. */
int di_utf8_encode(uint32_t code_point, char out[4]);

#endif
