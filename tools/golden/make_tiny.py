#!/usr/bin/env python3
"""Make a tiny random DeepSeek-V4.1 checkpoint in the released on-disk format.

    make_tiny.py --config tools/golden/configs/tiny.json --seed 1 --out DIR [--without-draft]

Names, dtypes and shapes are those of the release; magnitudes follow the real weights, so that the
stack behaves like the trained one and not like noise. Every tensor is a pure function of (seed, its
name): adding a layer leaves the others alone. Only integer arithmetic and exact or correctly
rounded float operations are used, so the files are the same bytes on every platform. Prints
`sha256  name` for every file: what tests/data/golden/*/checkpoint.sha256 was made from.
"""

import argparse
import hashlib
import json
import math
from pathlib import Path

import numpy as np

import formats as fm
from formats import F32


class Config:
    """config.json with the nesting undone; fields keep their released names."""

    def __init__(self, path):
        self.raw = json.loads(Path(path).read_text())
        self.__dict__.update(self.raw["text_config"])
        self.num_stages = self.num_nextn_predict_layers
        self.hc_mixes = (2 + self.hc_mult) * self.hc_mult
        self.engram_columns = (self.engram_max_ngram_size - 1) * self.engram_n_heads
        self.dspark_experts = self.dspark_n_routed_experts or self.n_routed_experts


# The real gain is 1.9. Attention over a few keys averages little away, and its sum would drown the
# experts: a mistake in them would then hardly show in the logits.
WO_B_GAIN = 0.4


# ---- the list of tensors --------------------------------------------------------------------
# One entry: (name, kind, shape, mean, std). Kinds: fp8, fp4, table (FP8 rows), bf16, f32.
# A linear layer's std is `gain` / sqrt(fan_in).


def linear(name, kind, n, k, gain):
    return (name, kind, (n, k), 0.0, gain / math.sqrt(k))


def norm(name, n, mean):
    return (name, "bf16", (n,), mean, 0.2 * mean)


def block(c, p, num_experts):
    """What a layer and a draft stage have in common; p is the prefix with its dot."""
    d, hd, inter = c.hidden_size, c.head_dim, c.moe_intermediate_size
    group_in = c.num_attention_heads * hd // c.o_groups
    yield norm(p + "attn_norm.weight", d, 0.025)
    yield norm(p + "ffn_norm.weight", d, 0.2)
    yield linear(p + "attn.wq_a", "fp8", c.q_lora_rank, d, 1.6)
    yield norm(p + "attn.q_norm.weight", c.q_lora_rank, 0.97)
    yield linear(p + "attn.wq_b", "fp8", c.num_attention_heads * hd, c.q_lora_rank, 0.95)
    yield linear(p + "attn.wkv", "fp8", hd, d, 1.8)
    yield norm(p + "attn.kv_norm.weight", hd, 0.4)
    yield linear(p + "attn.wo_a", "fp8", c.o_groups * c.o_lora_rank, group_in, 1.6)
    yield linear(p + "attn.wo_b", "fp8", d, c.o_groups * c.o_lora_rank, WO_B_GAIN)
    yield (p + "attn.attn_sink", "f32", (c.num_attention_heads,), 0.0, 1.0)
    for part in ("attn", "ffn"):
        yield linear(f"{p}hc_{part}_fn", "f32", c.hc_mixes, c.hc_mult * d, 1.0)
        yield (f"{p}hc_{part}_base", "f32", (c.hc_mixes,), 0.0, 0.7)
        yield (f"{p}hc_{part}_scale", "f32", (3,), 0.7, 0.15)
    yield linear(p + "ffn.gate.weight", "bf16", num_experts, d, 2.9)
    yield (p + "ffn.gate.bias", "f32", (num_experts,), 0.0, 0.05)
    yield (p + "ffn.gate.bias_vl", "f32", (num_experts,), 0.0, 0.05)
    experts = [(f"experts.{e}", "fp4") for e in range(num_experts)] + [("shared_experts", "fp8")]
    for expert, kind in experts:
        yield linear(f"{p}ffn.{expert}.w1", kind, inter, d, 1.5)
        yield linear(f"{p}ffn.{expert}.w3", kind, inter, d, 1.5)
        yield linear(f"{p}ffn.{expert}.w2", kind, d, inter, 1.05)


def layer_extras(c, l):
    """Compressor, indexer and engram: on some layers only."""
    p, d, hd, ihd = f"layers.{l}.", c.hidden_size, c.head_dim, c.index_head_dim
    if l in c.kv_source_layer_ids:
        yield linear(p + "attn.compressor.wkv.weight", "bf16", hd, d, 1.8)
        if c.compress_ratios[l] > 1:
            yield linear(p + "attn.compressor.wgate.weight", "bf16", hd, d, 30.0)
        yield norm(p + "attn.compressor.norm.weight", hd, 0.6)
        yield linear(p + "attn.indexer.wk.weight", "bf16", ihd, hd, 1.6)
        yield norm(p + "attn.indexer.k_norm.weight", ihd, 0.5)
    if l in c.index_source_layer_ids:
        yield linear(p + "attn.indexer.wq_b", "fp8", c.index_n_heads * ihd, c.q_lora_rank, 1.0)
        yield linear(p + "attn.indexer.weights_proj.weight", "bf16", c.index_n_heads, d, 30.0)
    if l in c.engram_layer_ids:
        rows = c.engram_num_embeddings[c.engram_layer_ids.index(l)]
        width = c.engram_columns * c.engram_head_dim
        yield (p + "engram.embed", "table", (rows, c.engram_head_dim), 0.0, 0.1)
        yield linear(p + "engram.wkv", "fp8", (c.hc_mult + 1) * d, width, 1.0)
        for which in "qk":
            yield (f"{p}engram.{which}_weight", "bf16", (c.hc_mult, d), 1.0, 0.4)


def inventory(c, with_draft=True):
    """Every tensor of the checkpoint, grouped the way the shards are."""
    d, vocab = c.hidden_size, c.vocab_size
    body = [("embed.weight", "bf16", (vocab, d), 0.0, 0.12)]
    tables = []
    for l in range(c.num_hidden_layers):
        body += block(c, f"layers.{l}.", c.n_routed_experts)
        for entry in layer_extras(c, l):
            (tables if entry[1] == "table" else body).append(entry)
    body += [norm("norm.weight", d, 1.0), linear("head.weight", "bf16", vocab, d, 2.5)]

    draft, last = [], c.num_stages - 1
    for s in range(c.num_stages if with_draft else 0):
        p, rank = f"mtp.{s}.", c.dspark_markov_rank
        draft += block(c, p, c.dspark_experts)
        if s == 0:
            draft.append(linear(p + "main_proj", "fp8", d, len(c.dspark_target_layer_ids) * d, 1.0))
            draft.append(norm(p + "main_norm.weight", d, 0.025))
        if s == last:
            draft.append(norm(p + "norm.weight", d, 1.0))
            draft.append((p + "markov_head.embed.weight", "bf16", (vocab, rank), 0.0, 1.0))
            draft.append(linear(p + "markov_head.head.weight", "bf16", vocab, rank, 1.5))
            draft.append(linear(p + "confidence_head.proj.weight", "bf16", 1, d + rank, 3.0))
    return body, draft, tables


# ---- random numbers -------------------------------------------------------------------------


def bell(seed, name, shape):
    """Zero mean, unit variance, near normal, |x| < 3.5: sums of four 16-bit integers."""
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16]
    words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(int(np.prod(shape)))
    total = sum((words >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4))
    centred = total.astype(np.float64) - 2 * 65535
    return (centred * (math.sqrt(3) / 65536)).reshape(shape)


# ---- storage formats ------------------------------------------------------------------------


def store_fp8(name, w, block_size):
    """E4M3 with one E8M0 scale a [32, 32] tile."""
    n, k = w.shape
    rows, cols = -(-n // block_size), k // block_size
    padded = np.zeros((rows * block_size, k), F32)
    padded[:n] = w
    tiles = padded.reshape(rows, block_size, cols, block_size)
    scale = fm.pow2_ceil(np.maximum(np.abs(tiles).max((1, 3)), F32(1e-4)) * fm.INV448)
    codes = fm.cast_e4m3(tiles / scale[:, None, :, None]).reshape(padded.shape)[:n]
    yield f"{name}.weight", ("F8_E4M3", (n, k), fm.encode_e4m3(codes))
    yield f"{name}.scale", ("F8_E8M0", scale.shape, fm.encode_e8m0(scale))


def store_table(name, w):
    """Engram rows: E4M3 with one E8M0 scale per 32 columns of a row."""
    codes, scale = fm.quant_q8(w)
    yield f"{name}.weight", ("F8_E4M3", w.shape, fm.encode_e4m3(codes.reshape(w.shape)))
    yield f"{name}.scale", ("F8_E8M0", scale.shape, fm.encode_e8m0(scale))


def store_fp4(name, w):
    """MXFP4: two E2M1 codes a byte, one E8M0 scale per 32 columns of a row."""
    codes, scale = fm.quant_q4i(w)
    packed = fm.pack_nibbles(fm.encode_e2m1(codes.reshape(w.shape)))
    yield f"{name}.weight", ("I8", packed.shape, packed)
    yield f"{name}.scale", ("F8_E8M0", scale.shape, fm.encode_e8m0(scale))


def store(c, seed, name, kind, shape, mean, std):
    w = (mean + std * bell(seed, name, shape)).astype(F32)
    if kind == "fp8":
        return store_fp8(name, w, c.raw["quantization_config"]["weight_block_size"][0])
    if kind == "table":
        return store_table(name, w)
    if kind == "fp4":
        return store_fp4(name, w)
    if kind == "bf16":
        return [(name, ("BF16", shape, fm.bf16_bits(fm.bf16(w))))]
    return [(name, ("F32", shape, w))]


def make(config_path, seed, out_dir, with_draft=True):
    """Write config.json, the shards and their index; return the names of the files."""
    c, out = Config(config_path), Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    groups = [g for g in inventory(c, with_draft) if g]
    weight_map, total, files = {}, 0, []
    for i, group in enumerate(groups, 1):
        shard = f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        tensors = {}
        for entry in group:
            tensors.update(store(c, seed, *entry))
        fm.write_safetensors(out / shard, tensors)
        weight_map.update({name: shard for name in tensors})
        total += sum(data.nbytes for _, _, data in tensors.values())
        files.append(shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (out / "config.json").write_text(json.dumps(c.raw, indent=2) + "\n")
    return [*files, "model.safetensors.index.json", "config.json"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default=Path(__file__).parent / "configs" / "tiny.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True)
    parser.add_argument("--without-draft", action="store_true")
    args = parser.parse_args()
    for name in make(args.config, args.seed, args.out, not args.without_draft):
        digest = hashlib.sha256((Path(args.out) / name).read_bytes()).hexdigest()
        print(digest, name)


if __name__ == "__main__":
    main()
