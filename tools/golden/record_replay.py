#!/usr/bin/env python3
"""Record bounded replay (model.md 5) with forward.py, the only oracle there is for it.

    record_replay.py CHECKPOINT --tokens 5,9,27,... --keep 20 --steps 8 --out FILE.xz

`spread` is the distance between float32 and float64 sums.
"""

import argparse
import lzma
import tempfile
from pathlib import Path

import numpy as np

import formats as fm
from forward import Model, Options, State


def walk(model, tokens, keep, steps, forced=None):
    """-> (logits of the kept rows, tokens fed afterwards, their logits, notes of the prefill)"""
    state, notes = State(), {}
    model.note = notes.__setitem__
    kept = model.forward(tokens, state, keep=keep)
    model.note = lambda name, value: None
    fed, logits = [int(np.argmax(kept[-1]))], []
    for i in range(steps):
        fed[i] = forced[i] if forced else fed[i]
        logits.append(model.forward(fed[i : i + 1], state)[0])
        fed.append(int(np.argmax(logits[-1])))
    return kept, fed, np.stack(logits), notes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--tokens", required=True, help="prompt, comma-separated ids")
    parser.add_argument("--keep", type=int, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    tokens = [int(t) for t in args.tokens.split(",")]
    model = Model(args.checkpoint)
    kept, fed, logits, notes = walk(model, tokens, args.keep, args.steps)
    wide = Model(args.checkpoint, Options(wide_sums=True))
    wide_kept, _, wide_logits, _ = walk(wide, tokens, args.keep, args.steps, fed)

    arrays = {
        "tokens": np.array(tokens, np.int32),
        "keep": np.array([args.keep], np.int32),
        "prefill.positions": np.arange(len(tokens) - args.keep, len(tokens), dtype=np.int32),
        "prefill.logits": kept,
        "prefill.spread": np.abs(kept - wide_kept).max(1),
        "decode.tokens": np.array(fed, np.int32),
        "decode.logits": logits,
        "decode.spread": np.abs(logits - wide_logits).max(1),
    }
    for l in range(max(model.c.kv_source_layer_ids) - 1, model.c.num_hidden_layers):
        arrays[f"prefill.layers.{l}.pre"] = notes[f"layers.{l}.pre"]
    out = {name: ("I32" if a.dtype == np.int32 else "F32", a.shape, a) for name, a in arrays.items()}
    for l in range(max(model.c.kv_source_layer_ids) - 1, model.c.num_hidden_layers):
        h = notes[f"layers.{l}.h"]
        out[f"prefill.layers.{l}.h"] = ("BF16", h.shape, fm.bf16_bits(h))

    with tempfile.TemporaryDirectory() as folder:
        fm.write_safetensors(Path(folder) / "case", out, {"oracle": "forward.py"})
        packed = lzma.compress((Path(folder) / "case").read_bytes(), preset=9)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(packed)
    print(args.out.name, len(packed), "bytes; rows with spread below 1e-4:",
          int((arrays["prefill.spread"] < 1e-4).sum()), "of", args.keep, "and",
          int((arrays["decode.spread"] < 1e-4).sum()), "of", args.steps)


if __name__ == "__main__":
    main()
