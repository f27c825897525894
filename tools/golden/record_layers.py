#!/usr/bin/env python3
"""Record what forward.py makes of each layer of a model when given recorded inputs.

    record_layers.py models/demo --prompt 1 --out FILE.safetensors.xz

Takes `prompt.N.layer.L.{h,pre}` of the folder's golden.safetensors as the input of layer L + 1 and
writes `layer.L.{h,pre}`: the outputs, with the engine's own list of keys (a prompt shorter than the
window then has other softmax blocks than in the folder's vectors). Needs the `tokenizers` library.
"""

import argparse
import lzma
import sys
import tempfile
from pathlib import Path

import numpy as np

import formats as fm
from forward import Model, Options, State

sys.path.append(str(Path(__file__).parents[1] / "demo-model"))
from tokenizer import compressed_map  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    model, state = Model(args.folder, Options(engine_slots=True)), State()
    model.map = np.array(compressed_map(args.folder / "tokenizer.json"))
    case = fm.read_safetensors(args.folder / "golden.safetensors")
    p = f"prompt.{args.prompt}."
    tokens = case[p + "ids"][1].tolist()
    state.tokens = list(tokens)
    (h, pre), step, out = model.embed(tokens), {"taps": []}, {}
    for l in range(model.c.num_hidden_layers):
        found_h, found_pre = model.layer(l, h, pre, np.arange(len(tokens)), state, step)
        out[f"layer.{l}.h"] = ("BF16", found_h.shape, fm.bf16_bits(found_h))
        out[f"layer.{l}.pre"] = ("F32", found_pre.shape, found_pre.astype(np.float32))
        h = fm.bf16_values(case[f"{p}layer.{l}.h"][1])
        pre = case[f"{p}layer.{l}.pre"][1]
    with tempfile.TemporaryDirectory() as folder:
        fm.write_safetensors(Path(folder) / "case", out, {"oracle": "forward.py"})
        packed = lzma.compress((Path(folder) / "case").read_bytes(), preset=9)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(packed)
    print(args.out.name, len(packed), "bytes")


if __name__ == "__main__":
    main()
