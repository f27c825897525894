#!/usr/bin/env python3
"""Record what forward.py computes on a checkpoint: a prompt, greedy steps, drafts, every layer.

    record.py CHECKPOINT --length 70 --steps 12 --prompt-seed 3 --out FILE.safetensors.xz

For configurations that have no vectors from DeepSeek's own code; the names, shapes and dtypes are
those of tests/data/golden/README.md. `spread` is the distance between float32 and float64 sums.
"""

import argparse
import lzma
import tempfile
from pathlib import Path

import numpy as np

import formats as fm
from formats import F32
from forward import Model, Options, State

# Notes of forward.py by the name they get in the file; the rest of its notes is not kept.
PER_LAYER = {"ffn.experts": "experts", "ffn.weights": "weights", "topk": "topk", "h": "h",
             "pre": "pre", "engram_rows": "engram_rows", "engram_out": "engram_out",
             "candidates": "candidates"}
ONLY_IN_PREFILL = {"engram_out", "candidates"}
BF16 = {"h", "engram_out", "window", "entries", "keys", "main_hidden"}


class Notes:
    """What one call of the model noted, under the names of the file."""

    def __init__(self, model):
        self.found = {}
        model.note = self.found.__setitem__

    def take(self):
        """-> {name in the file: array or list of lists}, and begins anew."""
        out = {}
        for name, value in self.found.items():
            head, layer, rest = name.split(".", 2)
            if rest in PER_LAYER:
                out[f"{head}.{layer}.{PER_LAYER[rest]}"] = value
        self.found.clear()
        return out


def walk(model, tokens, steps, forced=None):
    """One prompt and `steps` greedy tokens (or the forced ones), drafting thrice.

    -> (logits of the prompt, tokens fed, their logits, state, notes of the prompt, notes of each
    step, drafts: [(after, anchor, tokens, logits, confidence, notes)], state after the prompt)
    """
    state, notes, drafts = State(), Notes(model), []
    prompt_logits = model.forward(tokens, state)
    prompt_notes, step_notes = notes.take(), []
    prompt_state = snapshot(model, state, len(tokens))
    fed, logits = [int(np.argmax(prompt_logits[-1]))], []
    for i in range(steps + 1):
        fed[i] = forced[i] if forced else fed[i]
        if i in (0, steps // 2, steps):
            drafts.append((len(state.tokens), fed[i], *model.draft(fed[i], state), draft_notes(notes)))
        if i < steps:
            logits.append(model.forward(fed[i : i + 1], state)[0])
            step_notes.append(notes.take())
            fed.append(int(np.argmax(logits[-1])))
    return prompt_logits, fed, np.stack(logits), state, prompt_notes, step_notes, drafts, prompt_state


def draft_notes(notes):
    """What the stages of one draft noted."""
    return {name: value for name, value in notes.take().items() if name.startswith("mtp.")}


def note_draft_streams(model):
    """Let draft_stage note its streams the way forward() notes a layer's."""
    plain = model.draft_stage

    def noting(s, h, pre, main_x, first):
        h, pre = plain(s, h, pre, main_x, first)
        model.note(f"mtp.{s}.h", h)
        model.note(f"mtp.{s}.pre", pre)
        return h, pre

    model.draft_stage = noting


def snapshot(model, state, count):
    """What the caches hold after the prompt, as the file keeps it."""
    out, window = {}, model.c.sliding_window
    for l in range(model.c.num_hidden_layers):
        out[f"layers.{l}.window"] = state.window[l][-min(count, window) :]
        for name in ("entries", "keys", "partial"):
            rows = getattr(state, name).get(l)
            if rows is not None:
                out[f"layers.{l}.{name}"] = rows
    out["main_hidden"] = state.taps[-min(count, window) :]
    return out


def pad_lists(lists, width):
    """Rows of chosen entries, filled up with -1."""
    out = np.full((len(lists), width), -1, np.int32)
    for row, entries in zip(out, lists):
        row[: len(entries)] = entries
    return out


def as_array(name, parts, num_blocks):
    """The values of one note from one or several calls, as the array that the file holds."""
    kind = name.rsplit(".", 1)[1]
    if kind == "topk":
        lists = [row for part in parts for row in part]
        return pad_lists(lists, max(map(len, lists)))
    if kind == "candidates":
        out = np.zeros((len(parts[0]), num_blocks), np.uint8)
        for row, blocks in zip(out, parts[0]):
            row[blocks] = 1
        return out
    return np.concatenate(parts)


def collect(model, tokens, steps):
    """-> {name: array} of everything the file holds."""
    note_draft_streams(model)
    found = walk(model, tokens, steps)
    logits, fed, step_logits, state, prompt_notes, step_notes, drafts, prompt_state = found
    wide = Model(model.folder, Options(wide_sums=True))
    wide_logits, _, wide_step_logits, _, _, _, wide_drafts, _ = walk(wide, tokens, steps, fed)

    kept = np.arange(len(tokens))[-8:]
    arrays = {
        "tokens": np.array(tokens, np.int32),
        "prefill.positions": kept.astype(np.int32),
        "prefill.logits": logits[kept],
        "prefill.spread": np.abs(logits - wide_logits).max(1)[kept],
        "decode.tokens": np.array(fed, np.int32),
        "decode.logits": step_logits,
        "decode.spread": np.abs(step_logits - wide_step_logits).max(1),
    }
    num_blocks = -(-len(tokens) // model.c.candidate_block_size)
    for name, value in prompt_notes.items():
        arrays["prefill." + name] = as_array(name, [value], num_blocks)
        if name.rsplit(".", 1)[1] not in ONLY_IN_PREFILL:
            parts = [notes[name] for notes in step_notes]
            arrays["decode." + name] = as_array(name, parts, num_blocks)
    arrays.update({"prefill." + name: value for name, value in prompt_state.items()})
    arrays["decode.main_hidden"] = state.taps[len(tokens) :]
    arrays.update(collect_drafts(drafts, wide_drafts))
    return arrays


def collect_drafts(drafts, wide_drafts):
    after, anchors, chosen, logits, confidence, notes = zip(*drafts)
    wide_logits = np.stack([wide[3] for wide in wide_drafts])
    wide_confidence = logit(np.stack([wide[4] for wide in wide_drafts]))
    logits, confidence = np.stack(logits), logit(np.stack(confidence))
    arrays = {
        "draft.after": np.array(after, np.int32),
        "draft.anchor": np.array(anchors, np.int32),
        "draft.tokens": np.array(chosen, np.int32),
        "draft.logits": logits,
        "draft.spread": np.abs(logits - wide_logits).max(2),
        "draft.confidence_logits": confidence,
        "draft.confidence_spread": np.abs(confidence - wide_confidence),
    }
    for name in notes[0]:
        arrays["draft." + name] = np.stack([note[name] for note in notes])
    return arrays


def logit(probability):
    """forward.py gives the confidence after the sigmoid, the files hold what is before it."""
    p = probability.astype(np.float64)
    return np.log(p / (1 - p)).astype(F32)


def stored(name, a):
    """-> (dtype, shape, raw items) the way the file holds the array."""
    if name.rsplit(".", 1)[-1] in BF16:
        return "BF16", a.shape, fm.bf16_bits(a)
    if a.dtype == np.uint8:
        return "U8", a.shape, a
    if np.issubdtype(a.dtype, np.integer):
        return "I32", a.shape, a.astype(np.int32)
    return "F32", a.shape, a.astype(F32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--length", type=int, required=True, help="tokens of the random prompt")
    parser.add_argument("--prompt-seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12, help="greedy tokens after it")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    model = Model(args.checkpoint)
    random = np.random.default_rng(args.prompt_seed)
    tokens = random.integers(3, model.c.vocab_size - 2, args.length).tolist()
    arrays = collect(model, tokens, args.steps)
    # Nothing is kept of what is empty: an open group after an even number of tokens.
    out = {name: stored(name, array) for name, array in sorted(arrays.items()) if array.size}
    with tempfile.TemporaryDirectory() as folder:
        fm.write_safetensors(Path(folder) / "case", out, {"oracle": "forward.py"})
        packed = lzma.compress((Path(folder) / "case").read_bytes(), preset=9)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(packed)
    calm = {part: int((arrays[part + ".spread"] < 1e-4).sum()) for part in ("prefill", "decode")}
    print(args.out.name, len(packed), "bytes; rows with spread below 1e-4:", calm)


if __name__ == "__main__":
    main()
