/* The fixed texts of DeepSeek's prompt formats. A model must be prompted with exactly what it was
 * trained on, so these are data, taken byte for byte from deepseek-recipe 0.2.0 (MIT, see NOTICE).
 */
#ifndef DI_TEXT_RECIPE_TEXTS_H
#define DI_TEXT_RECIPE_TEXTS_H

#include "base/str.h"

/* Stands before the schemas of tools, and behind them. The control tokens shown in it are tokens.
 */
extern const di_str di_text_tools_v41, di_text_tools_v4, di_text_tools_end;

/* V4 has no number for the effort; "low" has no text. */
extern const di_str di_text_effort_v4_high, di_text_effort_v4_max;

/* The one custom tool that there is: what it says to the model, and the schema of its argument. */
extern const di_str di_apply_patch_description, di_apply_patch_description_v4,
    di_apply_patch_parameters;

#endif
