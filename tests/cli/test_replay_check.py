"""replay-check: bounded replay by leaving rows out is bounded replay by masking, bit for bit."""

import json
import re
import sys

sys.path.insert(0, "tests/support")
from cli import DEMO, complains, deepinfer, main, succeeds, test

LINE = re.compile(r"(.*) line (\d+): (\d+) tokens, (\d+) kept, (\d+) generated: (.*); "
                  r"from exact: (\S+), (same|another) token")


def prompt(length):
    return json.dumps({"prompt_token_ids": [0] + [5 + i * 37 % 4000 for i in range(length - 1)]})


def check(*lines, flags=()):
    result = succeeds(deepinfer("replay-check", "-m", DEMO, *flags, stdin="\n".join(lines) + "\n"))
    return [LINE.fullmatch(line).groups() for line in result.out.splitlines()], result.err


@test
def test_both_modes_give_the_same_rows(_):
    lengths = (1, 140, 141, 300, 600)
    found, err = check(*map(prompt, lengths), flags=("--replay-keep-tokens", 140, "--chunk", 64))
    for length, (_, _, tokens, kept, generated, verdict, distance, _) in zip(lengths, found):
        assert int(tokens) == length and int(kept) == min(length, 140) and generated == "16", found
        assert verdict == "equal", found
        assert (float(distance) == 0) == (length <= 140), found  # exact up to there, and not beyond
    assert "5 prompts, 3 of them longer than 140 tokens, 0 different" in err, err


@test
def test_conversations_are_read_too(_):
    question = json.dumps({"messages": [{"role": "user", "content": "Who wrote Dracula? " * 40}]})
    ((_, _, tokens, _, _, verdict, _, _),), _ = check(question, flags=("-n", 3))
    assert int(tokens) > 200 and verdict == "equal"


@test
def test_too_few_kept_tokens_are_refused_with_the_least(_):
    complains(deepinfer("replay-check", "-m", DEMO, "--replay-keep-tokens", 133), 1, "133", "134")


@test
def test_a_bad_line_is_named(_):
    complains(deepinfer("replay-check", "-m", DEMO, stdin="{}\n"), 1, "standard input line 1")


main()
