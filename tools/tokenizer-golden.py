#!/usr/bin/env python3
"""Makes the golden files of tests/text/: random and adversarial texts with the ids that the
`tokenizers` library (pip install tokenizers) gives.

    tools/tokenizer-golden.py build/testdata/tokenizer-v4/tokenizer.json tests/data

writes tests/data/tokenizer-v4/adversarial.jsonl.xz for that tokenizer, and for a tiny one of its own
making, whose added tokens have every flag, tests/data/tokenizer-flags/{tokenizer.json,golden.jsonl}.xz.
A row is {"text", "ids"}, and "plain" where encoding without added tokens differs. Same seed, same
rows; only characters of Unicode 3.2 and fixed later blocks are drawn, which all versions agree on.
"""

import json
import lzma
import random
import sys
import unicodedata
from pathlib import Path

from tokenizers import Tokenizer

ROWS = 2000
OLD = unicodedata.ucd_3_2_0
ASSIGNED = [chr(c) for c in range(0x20000) if OLD.category(chr(c)) not in ("Cn", "Cs")]
SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x6FF),
           (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2100, 0x218F),
           (0x3040, 0x30FF), (0x3100, 0x318F), (0x4E00, 0x9FA5), (0x9FA0, 0x9FB5), (0xAC00, 0xD7A3),
           (0xFF00, 0xFFEF), (0x10330, 0x1034A), (0x1D400, 0x1D7FF)]
SPACES = list("\t\n\v\f\r \x85\xa0\u1680\u180e\u2000\u2007\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff")
MARKS = [c for c in ASSIGNED if OLD.category(c)[0] == "M"]
NUMBERS = [c for c in ASSIGNED if OLD.category(c)[0] == "N"]
SIGNS = [c for c in ASSIGNED if OLD.category(c)[0] in "PS"]
EMOJI = [chr(c) for c in range(0x1F300, 0x1F650)] + ["\u200d", "\ufe0f", "\u20e3"]
CONTROLS = [chr(c) for c in list(range(32)) + list(range(127, 160))] + ["\ue000", "\U000f0000", "\ufffd", "\uffff"]
CODE = ["rfid501.go", "don't", "it's", "$abc", "http://a.b/c?d=e&f=1", "x+=1;", "__init__", "\\n", "<b>",
        "</think", "foo(bar)", "#include <x>", "'s", " 's", "!!!wow", "->x", "3.14", "1e-7", "0xFF"]


def run(r, alphabet, most):
    return "".join(r.choice(alphabet) for _ in range(r.randint(1, most)))


def script(r, most=12):
    low, high = r.choice(SCRIPTS)
    letters = [chr(c) for c in range(low, high + 1) if OLD.category(chr(c)) != "Cn"]
    return run(r, letters or "x", most)


def cut(r, text):
    """A literal with a piece missing, doubled or overlapping itself."""
    i, j = sorted((r.randint(0, len(text)), r.randint(0, len(text))))
    return r.choice([text[i:], text[:j], text[:j] + text, text + text[i:], text[:i] + text[j:]])


def make_text(r, kind, literals, vocab):
    pick = {
        "scripts": lambda: script(r) + r.choice([" ", "", "-", ", "]),
        "digits": lambda: r.choice([run(r, "0123456789", 9), run(r, NUMBERS, 5), "٢٠٢٤", "１２３４"]) + r.choice(["", "", " ", ".", "a", "年"]),
        "spaces": lambda: r.choice([run(r, SPACES, 6), " " * r.randint(1, 9), "\n" * r.randint(1, 4), "\r\n", run(r, " \n", 6)]) + r.choice(["", "", "x", "1", "!", "漢"]),
        "marks": lambda: r.choice(["e", "", "漢", "1", " ", "!"]) + run(r, MARKS, 4),
        "emoji": lambda: run(r, EMOJI, 4) + r.choice(["", " ", "x"]),
        "added": lambda: r.choice([r.choice(literals), cut(r, r.choice(literals)), r.choice(literals), " ", "\n", "a", "1"]),
        "signs": lambda: r.choice([run(r, SIGNS, 5), run(r, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", 4)]) + r.choice(["", "abc", "é", "\n", "\r\n\n", " ", "7"]),
        "code": lambda: r.choice(CODE) + r.choice([" ", "\n", "", "\t", "    "]),
        "controls": lambda: run(r, CONTROLS, 3) + r.choice(["", "a", "1", "漢", " ", "!"]),
        "vocab": lambda: r.choice(vocab),
        "any": lambda: run(r, ASSIGNED, 4),
    }[kind]
    return "".join(pick() for _ in range(r.randint(1, 10)))


def make_long(r):
    """Runs that are one piece, so that joining goes by the heap."""
    n = r.randint(60, 700)
    return r.choice([lambda: r.choice("aeAz ") * n, lambda: run(r, "ab", 1) + run(r, "abcdehilnrst", n),
                     lambda: run(r, [chr(c) for c in range(0x4E00, 0x5200)], n // 3), lambda: " " * n + "x",
                     lambda: run(r, "=-", n), lambda: run(r, "のアー漢", n // 2), lambda: "\n" * n,
                     lambda: run(r, "аеиотк", n)])()


def rows(tok, plain, count, seed):
    r = random.Random(seed)
    spec = json.loads(tok.to_str())
    literals = [t["content"] for t in spec["added_tokens"]]
    literals = [t for t in literals if "holder" not in t] + literals[:20]
    vocab = [tok.decode([i]) for i in range(min(tok.get_vocab_size(), 128000))]
    vocab = [t for t in vocab if t and "\ufffd" not in t]
    kinds = ["scripts", "digits", "spaces", "marks", "emoji", "added", "signs", "code", "controls", "vocab", "any"]
    seen = set()
    while len(seen) < count:
        mixed = r.random()
        if mixed < 0.03:
            text = make_long(r)
        elif mixed < 0.35:
            text = "".join(make_text(r, r.choice(kinds), literals, vocab)[:20] for _ in range(r.randint(2, 5)))
        else:
            text = make_text(r, r.choice(kinds), literals, vocab)
        if text in seen:
            continue
        seen.add(text)
        row = {"text": text, "ids": tok.encode(text, add_special_tokens=False).ids}
        bare = plain.encode(text, add_special_tokens=False).ids
        if bare != row["ids"]:
            row["plain"] = bare
        yield row


def without_added(spec):
    return Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))


def byte_alphabet():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in keep]
    return {b: chr(b) for b in keep} | {b: chr(256 + i) for i, b in enumerate(moved)}


def flags_spec():
    """256 bytes, a few merges as pairs, patterns that only PCRE2 runs, added tokens of every kind."""
    vocab = {c: i for i, c in enumerate(byte_alphabet().values())}
    merges = [["t", "h"], ["th", "e"], ["Ġ", "the"], ["a", "n"], ["an", "d"], ["Ġ", "and"], ["Ġ", "Ġ"],
              ["o", "r"], ["w", "or"], ["wor", "d"], ["ã", "ģ"], ["1", "2"], ["12", "3"]]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    flags = [("<both>", "lstrip rstrip"), ("<left>", "lstrip"), ("<right>", "rstrip special"),
             ("whole", "single_word"), ("wholey", "single_word normalized"), ("<n>", "normalized"),
             ("<n><n>", "normalized special"), ("<left><n>", "special"), ("é!", ""), (" s", ""), ("\n\n", "rstrip")]
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    added = [{"id": len(vocab) + i, "content": content, **{n: n in on.split() for n in names}}
             for i, (content, on) in enumerate(flags)]
    split = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    steps = [split(r"\p{N}{1,2}"), split(r" ?\p{L}+|[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
             {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": vocab, "merges": merges}}


def flag_rows(tok, plain, count, seed):
    r = random.Random(seed)
    words = [t["content"] for t in json.loads(tok.to_str())["added_tokens"]]
    around = [" ", "  ", "\n", "\t", "\u3000", "the", " and", "x", "_", "1234", "。", "-", "\u0301", "ⓐ", "\u200d", "字", ""]
    for _ in range(count):
        text = "".join(r.choice(words) if r.random() < 0.45 else r.choice(around) for _ in range(r.randint(1, 9)))
        yield {"text": text, "ids": tok.encode(text, add_special_tokens=False).ids,
               "plain": plain.encode(text, add_special_tokens=False).ids}


def save(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {len(text.encode())} bytes, {path.stat().st_size} compressed")


def save_rows(path, all_rows):
    save(path, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in all_rows))


def main():
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    out = Path(sys.argv[2])
    tok = Tokenizer.from_str(json.dumps(spec))
    save_rows(out / "tokenizer-v4/adversarial.jsonl.xz", rows(tok, without_added(spec), ROWS, 1))
    spec = flags_spec()
    save(out / "tokenizer-flags/tokenizer.json.xz", json.dumps(spec))
    tok = Tokenizer.from_str(json.dumps(spec))
    save_rows(out / "tokenizer-flags/golden.jsonl.xz", flag_rows(tok, without_added(spec), 600, 2))


if __name__ == "__main__":
    main()
