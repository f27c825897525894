/* The few questions about characters that added tokens and the token map ask of utf8proc. (The
 * pre-tokeniser's are in char_class.h.) */
#ifndef DI_TEXT_UNICODE_H
#define DI_TEXT_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

bool di_is_white_space(uint32_t code_point); /* property White_Space */
bool di_is_mark(uint32_t code_point);        /* Mn, Mc, Me */
bool di_is_word(uint32_t code_point);        /* \w: letters, marks, digits, connectors, joiners */

#endif
