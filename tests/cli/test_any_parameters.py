"""generate: requests with any parameters at once get what each gets alone, with drafts, in company,
in small steps and in too little memory. SEED=n: others; REQUESTS=n: more."""

import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, "tests/support")
from cli import DEMO, deepinfer, main, objects, succeeds, test  # noqa: E402

NOVEL = Path(os.environ.get("TESTDATA", "build/testdata")) / "text" / "english.txt"
GRAMMARS = [{"regex": r"[a-z ]{3,60}\."}, {"regex": "(yes|no|maybe)( and (yes|no))*"},
            {"json_schema": {"type": "object", "required": ["a"], "properties": {
                "a": {"type": "integer"}, "b": {"type": "string", "maxLength": 20}}}},
            {"ebnf": 'root ::= "x" [0-9]+ ("," [0-9]+)* "end"'}]


def prompt(r, novel):
    kind = r.random()
    if kind < 0.4:
        at = r.randrange(len(novel) - 900)
        return {"prompt": novel[at:at + r.choice([5, 60, 300, 800])]}
    if kind < 0.7:  # two texts that many begin with, and part from somewhere
        text, part, length = r.randrange(2), r.choice([0, 100, 128, 300, 384]), r.choice(
            [1, 2, 64, 127, 128, 129, 200, 270, 390, 700])
        tail = r.randrange(300, 900)
        return {"prompt_token_ids": [260 + (i * 37 + (text * 77 if i < part else tail)) % 3800
                                     for i in range(length)]}
    return {"messages": [{"role": "user", "content": r.choice(
        ["Who wrote Dracula?", "Tell me a story about the sea.", "List three colours."])}]}


def parameters(r, replay):
    """Every one of them may be there or not; answers have a seed, so that drafts change nothing."""
    p = {"max_tokens": r.choice([1, 2, 3, 7, 24, 40]), "seed": r.randrange(1000),
         "temperature": r.choice([0, 0, 0.5, 0.8, 1, 1.5])}
    some = {
        "top_p": (0.3, lambda: r.choice([0.5, 0.9, 0.95])),
        "top_k": (0.3, lambda: r.choice([1, 5, 50])),
        "min_p": (0.2, lambda: 0.05),
        "ignore_eos": (0.3, lambda: True),
        "min_tokens": (0.2, lambda: min(p["max_tokens"], r.choice([1, 5, 20]))),
        "stop": (0.2, lambda: r.sample(["the", "ing", "a", " of", ".", "\n", "er"], r.choice([1, 2]))),
        "include_stop": (0.1, lambda: True),
        "bad_words": (0.2, lambda: r.sample(["the", "and", "sea", "Bram", "a"], 2)),
        "stop_token_ids": (0.2, lambda: r.sample(range(4096), 3)),
        "repetition_penalty": (0.2, lambda: r.choice([1.1, 1.5, 0.8])),
        "presence_penalty": (0.2, lambda: r.choice([-1, 0.5, 2])),
        "frequency_penalty": (0.2, lambda: r.choice([-0.5, 0.5, 1])),
        "logit_bias": (0.15, lambda: {str(i): r.choice([-100, 5, 100, -5]) for i in r.sample(range(4096), 3)}),
        "allowed_token_ids": (0.1, lambda: sorted(r.sample(range(300, 4096), 400))),
        "logprobs": (0.4, lambda: True),
        "logprobs_mode": (0.2, lambda: "processed"),
        "echo": (0.1, lambda: True),
        "priority": (0.3, lambda: r.randrange(-2, 3)),
        "cache_salt": (0.2, lambda: r.choice(["u", "v"])),
        "n": (0.15, lambda: r.choice([2, 3])),
    }
    p.update((name, value()) for name, (chance, value) in some.items() if r.random() < chance)
    if not replay and r.random() < 0.15:
        p["prompt_logprobs"] = True
    if "logprobs" in p and r.random() < 0.5:
        p["top_logprobs"] = r.choice([1, 5, 20])
    if "n" not in p and r.random() < 0.15:
        p["golden_token_ids"] = [r.choice([-1, -1, r.randrange(300, 4096)]) for _ in range(r.choice([1, 5, 30]))]
    elif "allowed_token_ids" not in p and r.random() < 0.25:
        p.update(r.choice(GRAMMARS))
    return p


def answers(requests, *flags):
    result = succeeds(deepinfer("generate", "-m", DEMO, "-q", *flags,
                                stdin="".join(json.dumps(x) + "\n" for x in requests)))
    return objects(result.out)


def compare(replay, *common):
    r = random.Random(int(os.environ.get("SEED", "1")) + replay)
    novel = NOVEL.read_text()
    count = int(os.environ.get("REQUESTS", "50"))
    requests = [{**prompt(r, novel), **parameters(r, replay)} for _ in range(count)]
    wanted = answers(requests, *common, "--num-drafts", 0, "--max-num-seqs", 1, "--no-prefix-cache", "--sync")
    assert len(wanted) == count and sum("error" in x for x in wanted) == 0, wanted
    for flags in [("--num-drafts", 5, "--spec-mode", "fixed", "--max-num-seqs", 16),
                  ("--num-drafts", 3, "--spec-mode", "fixed", "--max-num-seqs", 6, "--max-num-batched-tokens", 40,
                   "--max-mixed-prefill-tokens", 9, "--kv-memory", "4M", "--host-memory", "4M")]:
        for request, a, b in zip(requests, wanted, answers(requests, *common, *flags)):
            brief = {k: v if k != "prompt_token_ids" else f"{len(v)} from {v[0]}" for k, v in request.items()}
            assert a == b, (flags, brief, a, b)


@test
def test_any_parameters_in_any_company(_):
    compare(False)


@test
def test_the_same_behind_bounded_replay(_):
    compare(True, "--replay-mode", "compact", "--replay-keep-tokens", 400)


main()
