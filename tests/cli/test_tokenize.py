"""tokenize and detokenize: JSON strings to ids and back, a line each."""

import json
import select
import subprocess
import sys

sys.path.insert(0, "tests/support")
from cli import (DEMO, PATIENCE, complains, deepinfer, main, objects, start, succeeds, test)

TEXTS = ["Who wrote Dracula?", "", " ", "a\nb\r\n\tc", "naïve café — “quoted”", "日本語テキスト",
         "🙂👩‍👩‍👧‍👦", "\u0000\u0001\u007f", "e\u0301", "x" * 5000, "1234567890 3.14159", "   \n\n  z"]


def tokenize(texts, *flags):
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    return objects(succeeds(deepinfer("tokenize", "-m", DEMO, *flags, stdin=lines)).out)


def detokenize(rows):
    lines = "".join(json.dumps(ids) + "\n" for ids in rows)
    return objects(succeeds(deepinfer("detokenize", "-m", DEMO, stdin=lines)).out)


@test
def test_text_comes_back_unchanged(_):
    rows = tokenize(TEXTS)
    assert len(rows) == len(TEXTS), rows
    assert rows[1] == [], rows[1]
    assert detokenize(rows) == TEXTS


@test
def test_special_tokens_are_one_id_and_plain_mode_spells_them_out(_):
    text = "<｜User｜>Hi<｜Assistant｜>"
    (special,), (plain,) = tokenize([text]), tokenize([text], "--plain")
    assert len(special) < len(plain), (special, plain)
    assert not set(plain) & {special[0], special[-1]}, (special, plain)
    assert detokenize([special, plain]) == [text, text]


@test
def test_nothing_is_added_in_front_or_behind(_):
    (ids,) = tokenize(["Hello"])
    assert 0 not in ids and 1 not in ids, ids


@test
def test_the_last_line_needs_no_newline(_):
    one = succeeds(deepinfer("tokenize", "-m", DEMO, stdin='"Hello"'))
    assert one.out == deepinfer("tokenize", "-m", DEMO, stdin='"Hello"\n').out


@test
def test_no_input_gives_no_output(_):
    assert succeeds(deepinfer("tokenize", "-m", DEMO)).out == ""
    assert succeeds(deepinfer("detokenize", "-m", DEMO)).out == ""


@test
def test_an_escaped_surrogate_pair_is_one_character(_):
    result = succeeds(deepinfer("tokenize", "-m", DEMO, stdin='"\\ud83d\\ude42"\n'))
    assert detokenize(objects(result.out)) == ["🙂"]


@test
def test_bytes_that_are_no_utf8_become_replacement_characters(_):
    (ids,) = tokenize(["🙂"])
    assert len(ids) > 1, "the smiley is one token here: choose another character"
    (text,) = detokenize([ids[:-1]])
    assert text and set(text) == {"\ufffd"}, text


@test
def test_lines_that_are_no_json_string_are_refused_by_number(_):
    for bad in ("Hello", '"open', "[1]", "17", "null", '"a" "b"', '"\\ud83d"'):
        result = deepinfer("tokenize", "-m", DEMO, stdin='"good"\n' + bad + "\n")
        complains(result, 1, "line 2")


@test
def test_invalid_utf8_in_the_input_is_refused_by_number(_):
    complains(deepinfer("tokenize", "-m", DEMO, stdin=b'"a"\n"\xff\xfe"\n'), 1, "line 2")


@test
def test_lines_that_are_no_array_of_ids_are_refused_by_number(_):
    for bad in ("17", '"text"', "[1.5]", "[-1]", "[4160]", "[99999999999999999999]", '["1"]', "[1"):
        result = deepinfer("detokenize", "-m", DEMO, stdin="[5]\n" + bad + "\n")
        complains(result, 1, "line 2")


@test
def test_an_id_outside_the_vocabulary_is_named_with_the_allowed_range(_):
    complains(deepinfer("detokenize", "-m", DEMO, stdin="[4160]\n"), 1, "4160", "4159")


@test
def test_hundreds_of_lines_keep_their_order(_):
    texts = [f"line {i} of many" for i in range(700)]
    assert detokenize(tokenize(texts)) == texts


@test
def test_an_answer_comes_before_the_next_line_is_there(_):
    """Also of the other commands that read lines: whoever writes may wait for it."""
    recipe = '{"name": "a", "kind": "image_size", "input": {"width": 9, "height": 9}}'
    for words, line in [(("tokenize", "-m", DEMO), '"a b"'), (("detokenize", "-m", DEMO), "[67]"),
                        (("recipe", "-m", DEMO), recipe),
                        (("grammar", "--type", "regex", "-m", DEMO), '{"schema": "a*"}')]:
        child = start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2):
            child.stdin.write(line.encode() + b"\n")
            child.stdin.flush()
            ready, _, _ = select.select([child.stdout], [], [], PATIENCE)
            assert ready, f"{words[0]} keeps its answer"
            assert json.loads(child.stdout.readline())
        child.stdin.close()
        assert child.wait(PATIENCE) == 0


main()
