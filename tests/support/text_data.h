/* Tokenizers and golden rows from the test data folder, for tests of src/text. */
#ifndef TESTS_SUPPORT_TEXT_DATA_H
#define TESTS_SUPPORT_TEXT_DATA_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

/* Opens $TESTDATA/NAME (a folder with tokenizer.json in it); fails the test on any error. */
di_tokenizer *open_test_tokenizer(const char *name);

/* All of $TESTDATA/NAME, NUL-terminated; freed with di_free. */
char *read_test_file(const char *name, size_t *size);

/* All rows of a JSON-lines file as an array. NUL characters are allowed. */
json_t *read_test_rows(const char *name);

/* Fails, showing the text, unless ids are the JSON array `expected`. */
void assert_ids(const di_ids *ids, const json_t *expected, const char *text);

/* Hexadecimal SHA-256. */
void sha256_hex(const void *data, size_t size, char out[65]);

#endif
