"""Greedy answers of the demo model on two backends, token by token.

  greedy.py prompts                write 50 requests
  greedy.py compare WANT GOT       hold answers (with logprobs) against others

Two right programs part where two tokens are nearly as likely: there the answer may differ, nowhere
else. Called by scripts/device-check.sh."""

import json
import sys

# Difference of log-probabilities below which the choice is open. A sum formed in another order moves
# a value across a step of FP8, and that moves the demo model's logits: `--backend ref`, whose sums
# are in float64, parts from the CPU in 20 of these 50 answers, at differences of up to 0.83.
NEAR = 1.0

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
    same, near, wrong, widest = 0, 0, 0, 0.0
    for w, g in zip(want, got):
        a, b = w["token_ids"], g["token_ids"]
        if a == b:
            same += 1
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        lead = margin(w, at) if at < len(a) else float("inf")
        near += lead < NEAR
        widest = max(widest, lead if lead < NEAR else 0)
        wrong += lead >= NEAR
        if lead >= NEAR:
            print(f"  answer {w['index']} parts at token {at}, where the choice is clear "
                  f"({lead:.2f}): {w['text']!r} / {g['text']!r}")
    print(f"{same} of {len(want)} answers are the same, {near} part at a near tie "
          f"({widest:.2f} at most), {wrong} elsewhere")
    return wrong == 0


if __name__ == "__main__":
    if sys.argv[1:] == ["prompts"]:
        prompts()
    elif len(sys.argv) == 4 and sys.argv[1] == "compare":
        sys.exit(not compare(sys.argv[2], sys.argv[3]))
    else:
        sys.exit(__doc__)
