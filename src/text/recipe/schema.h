/* JSON Schemas of tools and answers: whether one is well-formed, and the strict form of one.
 *
 * Nothing is compiled here; what a schema allows is the grammar's matter. */
#ifndef DI_TEXT_RECIPE_SCHEMA_H
#define DI_TEXT_RECIPE_SCHEMA_H

#include "text/recipe/value.h"

/* Whether the schema could be compiled: keywords have the types of draft 2020-12 (or of the draft
 * that "$schema" names), patterns are regular expressions, references point at something inside
 * the schema. `what` begins the message ("Invalid schema for function 'f'"); DI_ERR_ARGUMENT. */
bool di_schema_check(const di_value *schema, const char *what, di_error *err);

/* The strict form, as deepseek-recipe writes it: objects closed and all their properties required;
 * keywords that it does not carry over are dropped. What cannot be written so is refused with
 * DI_ERR_ARGUMENT. `what` as above. The root may be an object without properties only if
 * `allow_empty`. A NULL schema is that of an object without properties. */
bool di_schema_strict(di_pool *pool, const di_value *schema, const char *what, bool allow_empty,
                      const di_value **out, di_error *err);

#endif
