/* Grammars in EBNF, as llama.cpp (GBNF) and XGrammar write them, made into terms and rules.
 *
 *   name ::= "literal" | [class] | [^class] | . | ( ... ) | name | x? x* x+ x{n} x{n,} x{n,m}
 *   # comments; bodies may span lines; any recursion, left recursion too; Regex("...")
 *
 * docs/grammar.md has the dialect in full and what is refused by name. */
#ifndef DI_GRAMMAR_EBNF_H
#define DI_GRAMMAR_EBNF_H

#include "grammar/machine.h"

/* Sets m->root and m->rules; `root` names the start rule. Fails with line and column. gbnf: as
 * llama.cpp reads it where the two differ: \\x has two digits, alternatives and bodies may be
 * empty, names may begin with a digit. */
bool di_ebnf_compile(di_machine *m, const char *text, size_t size, const char *root, bool gbnf,
                     di_error *err);

#endif
