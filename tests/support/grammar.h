/* A small vocabulary and short forms for the tests of grammars. */
#ifndef TESTS_SUPPORT_GRAMMAR_H
#define TESTS_SUPPORT_GRAMMAR_H

#include "grammar/grammar.h"

enum { TEST_STOP = 0, TEST_CONTROL = 1, TEST_FIRST_BYTE = 2 };

/* Token 0 stops, 1 is a control token (no bytes), 2 + b is the byte b; then pieces of JSON, words,
 * numbers, parts of characters. Ids from num_tokens up to the mask's width are holes. */
di_vocab *test_vocab(void);

/* The same and thousands of random tokens, short and long, so that many begin alike. */
di_vocab *test_dense_vocab(void);

/* Fails the test with the error if `options` (NULL = the defaults) do not compile it. */
di_grammar *test_compile(const di_vocab *v, di_grammar_type type, const char *text,
                         const di_grammar_options *options);

/* The error of what must not compile. */
di_error test_refused(const di_vocab *v, di_grammar_type type, const char *text);

/* Whether the whole text, byte by byte, is in the language; every byte is looked up in the mask. */
bool test_accepts(di_grammar *g, const di_vocab *v, const char *text, size_t size);

#endif
