/* Any bytes as a grammar (ebnf): refused with a message, or a grammar whose masks and pushes agree
 * along a walk that the bytes choose. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_grammar(DI_GRAMMAR_EBNF, data, size);
    fuzz_grammar(DI_GRAMMAR_GBNF, data, size);
    return 0;
}
