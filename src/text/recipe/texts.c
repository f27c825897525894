/* The fixed texts of DeepSeek's prompt formats: see texts.h. Data, byte for byte; NOTICE beside
 * this file must go with copies of it. */
#include "text/recipe/texts.h"

#define DI_TEXT(literal)                                                                           \
    { literal, sizeof(literal) - 1 }

/* clang-format off */

const di_str di_text_tools_v41 = DI_TEXT(
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke "
    "tools by writing a \"<｜DSML｜ calls>\" block like the following:\n"
    "\n"
    "<｜DSML｜ calls>\n"
    "<｜DSML｜ invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜ parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜ "
    "parameter>\n"
    "...\n"
    "</｜DSML｜ invoke>\n"
    "<｜DSML｜ invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜ invoke>\n"
    "</｜DSML｜ calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other "
    "types (numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete "
    "reasoning inside <think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n");

const di_str di_text_tools_v4 = DI_TEXT(
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke "
    "tools by writing a \"<｜DSML｜tool_calls>\" block like the following:\n"
    "\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other "
    "types (numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete "
    "reasoning inside <think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n");

const di_str di_text_tools_end = DI_TEXT(
    "\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n");

const di_str di_text_effort_v4_high = DI_TEXT(
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate "
    "step, considered alternative, and rejected hypothesis to ensure absolutely no assumption "
    "is left unchecked.\n"
    "\n");

const di_str di_text_effort_v4_max = DI_TEXT(
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every "
    "causal chain to its root, and resolve the underlying cause rather than any surface "
    "symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple "
    "angles and are certain that no assumption remains unchecked and no error remains "
    "undiscovered.\n"
    "\n");

/* Of the two formats. EMPTY_LINE: "\n", or "" in the older one, which lacks it. */
#define APPLY_PATCH(EMPTY_LINE) \
    "Use the `apply_patch` tool to edit files.\n" \
    "Your patch language is a stripped‑down, file‑oriented diff format designed to be easy to " \
    "parse and safe to apply. You can think of it as a high‑level envelope:\n" \
    EMPTY_LINE \
    "*** Begin Patch\n" \
    "[ one or more file sections ]\n" \
    "*** End Patch\n" \
    "\n" \
    "Within that envelope, you get a sequence of file operations.\n" \
    "You MUST include a header to specify the action you are taking.\n" \
    "Each operation starts with one of three headers:\n" \
    "\n" \
    "*** Add File: <path> - create a new file. Every following line is a + line (the initial " \
    "contents).\n" \
    "*** Delete File: <path> - remove an existing file. Nothing follows.\n" \
    "*** Update File: <path> - patch an existing file in place (optionally with a rename).\n" \
    "\n" \
    "May be immediately followed by *** Move to: <new path> if you want to rename the file.\n" \
    "Then one or more “hunks”, each introduced by @@ (optionally followed by a hunk header).\n" \
    "Within a hunk each line starts with:\n" \
    "\n" \
    "For instructions on [context_before] and [context_after]:\n" \
    "- By default, show 3 lines of code immediately above and 3 lines immediately below each " \
    "change. If a change is within 3 lines of a previous change, do NOT duplicate the first " \
    "change’s [context_after] lines in the second change’s [context_before] lines.\n" \
    "- If 3 lines of context is insufficient to uniquely identify the snippet of code within " \
    "the file, use the @@ operator to indicate the class or function to which the snippet " \
    "belongs. For instance, we might have:\n" \
    "@@ class BaseClass\n" \
    "[3 lines of pre-context]\n" \
    "- [old_code]\n" \
    "+ [new_code]\n" \
    "[3 lines of post-context]\n" \
    "\n" \
    "- If a code block is repeated so many times in a class or function such that even a " \
    "single `@@` statement and 3 lines of context cannot uniquely identify the snippet of " \
    "code, you can use multiple `@@` statements to jump to the right context. For instance:\n" \
    "\n" \
    "@@ class BaseClass\n" \
    "@@ \t def method():\n" \
    "[3 lines of pre-context]\n" \
    "- [old_code]\n" \
    "+ [new_code]\n" \
    "[3 lines of post-context]\n" \
    "\n" \
    "The full grammar definition is below:\n" \
    "Patch := Begin { FileOp } End\n" \
    "Begin := \"*** Begin Patch\" NEWLINE\n" \
    "End := \"*** End Patch\" NEWLINE\n" \
    "FileOp := AddFile | DeleteFile | UpdateFile\n" \
    "AddFile := \"*** Add File: \" path NEWLINE { \"+\" line NEWLINE }\n" \
    "DeleteFile := \"*** Delete File: \" path NEWLINE\n" \
    "UpdateFile := \"*** Update File: \" path NEWLINE [ MoveTo ] { Hunk }\n" \
    "MoveTo := \"*** Move to: \" newPath NEWLINE\n" \
    "Hunk := \"@@\" [ header ] NEWLINE { HunkLine } [ \"*** End of File\" NEWLINE ]\n" \
    "HunkLine := (\" \" | \"-\" | \"+\") text NEWLINE\n" \
    "\n" \
    "A full patch can combine several operations:\n" \
    "\n" \
    "*** Begin Patch\n" \
    "*** Add File: hello.txt\n" \
    "+Hello world\n" \
    "*** Update File: src/app.py\n" \
    "*** Move to: src/main.py\n" \
    "@@ def greet():\n" \
    "-print(\"Hi\")\n" \
    "+print(\"Hello, world!\")\n" \
    "*** Delete File: obsolete.txt\n" \
    "*** End Patch\n" \
    "\n" \
    "It is important to remember:\n" \
    "\n" \
    "- You must include a header with your intended action (Add/Delete/Update)\n" \
    "- You must prefix new lines with `+` even when creating a new file\n" \
    "- File references can only be relative, NEVER ABSOLUTE.\n"

const di_str di_apply_patch_description = DI_TEXT(APPLY_PATCH("\n"));
const di_str di_apply_patch_description_v4 = DI_TEXT(APPLY_PATCH(""));

const di_str di_apply_patch_parameters = DI_TEXT(
    "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"input\":{\"type\":\"string\",\"description\":\"The "
    "entire contents of the apply_patch command (the *** Begin Patch ... *** End Patch "
    "envelope).\"}},\"required\":[\"input\"]}");
/* clang-format on */
