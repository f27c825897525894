/* Any bytes as a list of tools: refused with a message, or a grammar of their calls whose masks and
 * pushes agree along a walk that the bytes choose. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_grammar(DI_GRAMMAR_TOOLS, data, size);
    return 0;
}
