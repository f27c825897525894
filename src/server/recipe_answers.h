/* The recipe's answers of a generation: see voice_recipe.c. */
#ifndef DI_SERVER_RECIPE_ANSWERS_H
#define DI_SERVER_RECIPE_ANSWERS_H

#include "server/generation.h"

/* One for each choice; g->recipe, id, model and stream are set. */
bool di_recipe_answers_create(di_generation *g, di_error *err);

#endif
