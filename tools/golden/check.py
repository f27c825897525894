#!/usr/bin/env python3
"""Compare forward.py with the golden vectors, end to end and layer by layer.

    check.py tests/data/golden/tiny --config tools/golden/configs/tiny.json [--wide-sums]

Makes the checkpoint again from its configuration and seed, then takes every case in the folder.
"End to end" starts from the tokens. "Layer by layer" gives every layer the recorded streams of the
layer below, in the prefill and in each decode step: a rounding that falls the other way then
cannot spread, so what remains is either nothing or a mistake. The engine is tested alike.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import formats as fm
import make_tiny
from forward import Model, Options, State


def read_case(path):
    """-> {name: array}; BF16 becomes float32."""
    case = {}
    for name, (dtype, data) in fm.read_safetensors(path).items():
        case[name] = fm.bf16_values(data) if dtype == "BF16" else data
    return case


class Tally:
    """Largest difference and share of unequal elements, per kind of array."""

    def __init__(self):
        self.rows = {}

    def add(self, kind, found, wanted):
        found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
        assert found.shape == wanted.shape, (kind, found.shape, wanted.shape)
        gap = np.abs(found - wanted)
        worst, unequal, count = self.rows.get(kind, (0.0, 0, 0))
        worst = max(worst, gap.max(initial=0.0))
        self.rows[kind] = (worst, unequal + np.count_nonzero(gap), count + gap.size)

    def show(self, title):
        for kind, (worst, unequal, count) in self.rows.items():
            print(f"  {title:15} {kind:12} max {worst:9.3g}   unequal {unequal} of {count}")


def padded(lists, like):
    """Lists of entries as rows filled up with -1, the way the files keep them."""
    out = np.full(like.shape, -1)
    for row, entries in zip(out, lists):
        row[: len(entries)] = entries
    return out


def steps(case):
    """The calls that the case is made of: (prefix, index or None, tokens)."""
    yield "prefill.", None, case["tokens"].tolist()
    for i in range(len(case.get("decode.logits", ()))):
        yield "decode.", i, [int(case["decode.tokens"][i])]


def recorded(case, prefix, i, name):
    rows = case[prefix + name]
    return rows if i is None else rows[i : i + 1]


def end_to_end(model, case, tally):
    """From tokens to logits and drafts, decode steps fed with the recorded tokens."""
    state, drafts = State(), case.get("draft.after", np.zeros(0)).tolist()
    keep = int(case["keep"][0]) if "keep" in case else None
    for prefix, i, tokens in steps(case):
        logits = model.forward(tokens, state, keep=keep if i is None else None)
        if i is None:
            logits = logits[case["prefill.positions"] - len(tokens)]
        tally.add(prefix + "logits", logits, recorded(case, prefix, i, "logits"))
        if len(state.tokens) in drafts:
            row = drafts.index(len(state.tokens))
            chosen, logits, confidence = model.draft(int(case["draft.anchor"][row]), state)
            compare_draft(case, row, chosen, logits, confidence, tally)


def compare_draft(case, row, chosen, logits, confidence, tally):
    wanted = 1 / (1 + np.exp(-case["draft.confidence_logits"][row].astype(np.float64)))
    tally.add("draft.tokens", chosen, case["draft.tokens"][row])
    tally.add("draft.logits", logits, case["draft.logits"][row])
    tally.add("draft.conf", confidence, wanted)


def layer_by_layer(model, case, tally):
    """Needs a case with `h` and `pre` of every layer."""
    state, notes, layers = State(), {}, model.c.num_hidden_layers
    model.note = notes.__setitem__
    for prefix, i, tokens in steps(case):
        positions = np.arange(len(state.tokens), len(state.tokens) + len(tokens))
        state.tokens += tokens
        (h, pre), step = model.embed(tokens), {"taps": []}
        for l in range(layers):
            found_h, found_pre = model.layer(l, h, pre, positions, state, step)
            h, pre = (recorded(case, prefix, i, f"layers.{l}.{name}") for name in ("h", "pre"))
            tally.add("h", found_h, h)
            tally.add("pre", found_pre, pre)
            compare_layer(case, prefix, i, l, notes, tally)
        logits = model.head(h, pre, model.w["norm.weight"])
        if i is None:
            logits = logits[case["prefill.positions"]]
            compare_state(model, case, state, tally)
        tally.add("logits", logits, recorded(case, prefix, i, "logits"))
    model.note = lambda name, value: None


def compare_layer(case, prefix, i, l, notes, tally):
    p = f"layers.{l}."
    pairs = {"experts": "ffn.experts", "weights": "ffn.weights", "topk": "topk",
             "attn_out": "attn_out", "ffn_out": "ffn_out",
             "engram_rows": "engram_rows", "engram_out": "engram_out"}
    for name, note in pairs.items():
        if prefix + p + name in case:
            wanted, found = recorded(case, prefix, i, p + name), notes[p + note]
            tally.add(name, padded(found, wanted) if name == "topk" else found, wanted)


def compare_state(model, case, state, tally):
    for l in range(model.c.num_hidden_layers):
        for name in ("window", "entries", "keys", "partial"):
            wanted = case.get(f"prefill.layers.{l}.{name}")
            if wanted is not None:
                tally.add(name, getattr(state, name)[l][-len(wanted) :], wanted)


def draft_stages(model, case, tally):
    """Stage by stage, from the recorded taps of the target."""
    window, state = model.c.sliding_window, State()
    taps = np.concatenate([case["prefill.main_hidden"],
                           case.get("decode.main_hidden", case["prefill.main_hidden"][:0])])
    missing = len(case["tokens"]) - len(case["prefill.main_hidden"])
    for row, (after, anchor) in enumerate(zip(case["draft.after"], case["draft.anchor"])):
        state.tokens, state.taps = [0] * after, taps[: after - missing]
        main_x, first = model.draft_context(state)
        h, pre = model.draft_slots(int(anchor))
        for s in range(model.c.num_stages):
            found_h, found_pre = model.draft_stage(s, h, pre, main_x, first)
            h, pre = case[f"draft.mtp.{s}.h"][row], case[f"draft.mtp.{s}.pre"][row]
            tally.add("draft h", found_h, h)
            tally.add("draft pre", found_pre, pre)
        compare_draft(case, row, *model.draft_tokens(int(anchor), h, pre), tally)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("golden", type=Path)
    parser.add_argument("--config", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wide-sums", action="store_true", help="accumulate in float64")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_tiny.make(args.config, args.seed, folder)
        model = Model(folder, Options(args.wide_sums))
    for path in sorted(args.golden.glob("*.safetensors.xz")):
        case = read_case(path)
        print(path.name)
        whole = Tally()
        end_to_end(model, case, whole)
        whole.show("end to end")
        layers = Tally()
        if "prefill.layers.0.h" in case:
            layer_by_layer(model, case, layers)
        if "draft.mtp.0.h" in case:
            draft_stages(model, case, layers)
        layers.show("layer by layer")


if __name__ == "__main__":
    main()
