"""Greedy answers of the demo model on two backends, token by token.

  greedy.py prompts                write 50 requests
  greedy.py compare WANT GOT       hold answers (with logprobs) against others

Two right programs part where two tokens are nearly as likely (models/demo/README.md): there the
answer may differ, nowhere else. Called by scripts/device-check.sh."""

import json
import sys

NEAR = 1.0  # difference of log-probabilities below which the choice is open

TITLES = ["Dracula", "Frankenstein", "The Time Machine", "Emma", "Moby Dick", "Jane Eyre",
          "The War of the Worlds", "Pride and Prejudice", "Treasure Island", "Kidnapped"]
FORMS = ["Who wrote {}?", "When was {} published?", "Tell me about {}.",
         "Who is the author of {}, and what else is there to read by the same hand?",
         "Name a book that is like {}."]


def prompts():
    for title in TITLES:
        for form in FORMS:
            content = form.format(title)
            print(json.dumps({"messages": [{"role": "user", "content": content}],
                              "max_tokens": 48, "logprobs": True, "top_logprobs": 2}))


def margin(answer, at):
    top = answer["logprobs"][at]["top"]
    return top[0]["logprob"] - top[1]["logprob"]


def compare(want_path, got_path):
    want = [json.loads(line) for line in open(want_path)]
    got = [json.loads(line) for line in open(got_path)]
    assert len(want) == len(got) == len(TITLES) * len(FORMS), (len(want), len(got))
    same, near, wrong = 0, 0, 0
    for w, g in zip(want, got):
        a, b = w["token_ids"], g["token_ids"]
        if a == b:
            same += 1
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        lead = margin(w, at) if at < len(a) else float("inf")
        near += lead < NEAR
        wrong += lead >= NEAR
        if lead >= NEAR:
            print(f"  answer {w['index']} parts at token {at}, where the choice is clear "
                  f"({lead:.2f}): {w['text']!r} / {g['text']!r}")
    print(f"{same} of {len(want)} answers are the same, {near} part at a near tie, {wrong} elsewhere")
    return wrong == 0


if __name__ == "__main__":
    if sys.argv[1:] == ["prompts"]:
        prompts()
    elif len(sys.argv) == 4 and sys.argv[1] == "compare":
        sys.exit(not compare(sys.argv[2], sys.argv[3]))
    else:
        sys.exit(__doc__)
