"""recipe: every recorded answer of deepseek-recipe, and lines that are no cases."""

import json
import os
import sys

sys.path.insert(0, "tests/support")
from cli import complains, deepinfer, main, succeeds, test

DATA = os.environ.get("TESTDATA", "build/testdata")
TOKENIZER = DATA + "/tokenizer-v41/tokenizer.json"


def golden():
    with open(DATA + "/recipe/golden.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def run(cases, *flags):
    """Each case's line; the input is all that the command is shown."""
    lines = "".join(json.dumps({k: c[k] for k in ("name", "kind", "input")}) + "\n" for c in cases)
    out = succeeds(deepinfer("recipe", "--tokenizer", TOKENIZER, *flags, stdin=lines)).out
    return [json.loads(line) for line in out.split("\n")[:-1]]  # texts may hold U+2028


def spelled(value):
    """Text that differs where kinds of numbers or the order of members differ."""
    return json.dumps(value, ensure_ascii=False)


def check_kind(kind):
    cases = [c for c in golden() if c["kind"] == kind]
    assert cases, kind
    for case, answer in zip(cases, run(cases), strict=True):
        assert answer["name"] == case["name"], answer
        if "output" in case:
            assert spelled(answer.get("output")) == spelled(case["output"]), answer
        else:
            assert answer["error"]["kind"] == case["error"]["kind"], answer
            assert answer["error"].get("status") == case["error"].get("status"), answer


@test
def test_prompts_ids_and_settings_equal_the_recorded(_):
    check_kind("render")


@test
def test_events_and_responses_equal_the_recorded(_):
    check_kind("parse")


@test
def test_responses_do_not_depend_on_the_cuts(_):
    check_kind("splits")


@test
def test_answers_sent_back_equal_the_recorded(_):
    check_kind("roundtrip")


@test
def test_limits_and_image_sizes_equal_the_recorded(_):
    for kind in ("max_tokens", "image_tokens", "image_size"):
        check_kind(kind)


@test
def test_messages_of_refusals_are_the_recipes_own(_):
    cases = [c for c in golden() if c.get("error", {}).get("kind") == "request"]
    other = [a["name"] for c, a in zip(cases, run(cases), strict=True)
             if a["error"]["message"] != c["error"]["message"]]
    # What a reference to another document is refused with is ours: nothing is fetched.
    assert other == ["chat/tool_schema_remote_ref"], other


@test
def test_cases_that_are_none_end_the_command(_):
    for line, said in ((b"[]", "an object expected"),
                       (b'{"name": "x"}', "kind is missing"),
                       (b'{"name": "x", "kind": "sing", "input": {}}', 'kind is "sing"'),
                       (b'{"name": "x", "kind": "render"', "not valid JSON"),
                       (b'{"name": "\xff", "kind": "render", "input": {}}', "invalid UTF-8"),
                       (b'{"name": "x", "kind": "render", "input": ' + b"[" * 200, "line 1")):
        complains(deepinfer("recipe", "--tokenizer", TOKENIZER, stdin=line + b"\n"), 1, said)


@test
def test_one_tokenizer_is_needed(_):
    complains(deepinfer("recipe"), 2, "exactly one of --model and --tokenizer")


main()
