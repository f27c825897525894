/* What a tokenizer is made of; shared by tokenizer.c, which uses it, and tokenizer_load.c, which
 * fills it from a file. Nothing else includes this. */
#ifndef DI_TEXT_TOKENIZER_PARTS_H
#define DI_TEXT_TOKENIZER_PARTS_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct di_tokenizer {
    di_vocab vocab;
    di_bpe bpe;
    di_splitter splitter;
    /* Tokens that the file marks "normalized": false are looked for first, in the whole text; the
     * others then in what is left. */
    di_added added_first, added_then;
};

#endif
