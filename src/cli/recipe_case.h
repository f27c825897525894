/* What the files of `deepinfer recipe` share: a case under work. */
#ifndef DI_CLI_RECIPE_CASE_H
#define DI_CLI_RECIPE_CASE_H

#include "base/pool.h"
#include "text/chat.h"
#include "text/recipe/json_write.h"
#include "text/recipe/request.h"
#include "text/recipe/value.h"

typedef struct one_case {
    const di_chat_tokens *tokens;
    bool server;
    di_pool pool;
    const di_value *input;
    di_request request;
    di_writer *w; /* of the output */
    di_error *err;
} one_case;

/* The request of a case into c->request: `body`, or input.body_text, or input.body. It is read from
 * its text, as it would come over the wire. */
bool di_recipe_read_request(one_case *c, const di_value *body);

/* UTF-8 characters in valid text. */
uint64_t di_recipe_characters(const char *text, size_t size);

/* The kinds of cases about answers; false with *c->err. */
bool di_recipe_parse_case(one_case *c);
bool di_recipe_splits_case(one_case *c);
bool di_recipe_roundtrip_case(one_case *c);

#endif
