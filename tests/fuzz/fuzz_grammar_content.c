/* Any bytes as tools with a response format beside them: refused with a message, or a grammar of
 * calls or content whose masks and pushes agree along a walk that the bytes choose. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_grammar(DI_GRAMMAR_TOOLS_OR_CONTENT, data, size);
    return 0;
}
