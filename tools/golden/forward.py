#!/usr/bin/env python3
"""Executable specification of DeepSeek-V4.1-Flash's text model and of its DSpark draft, in NumPy.

One function per formula; numbers in brackets are sections of model.md (docs/contributing.md says
what that is). Made to be read and to judge an engine by, not to be fast: sequences are not batched
and nothing is thrown away (an engine keeps a ring of W window rows, this keeps them all).

Float arrays are float32. "BF16" in a comment means float32 holding BF16 values.

    forward.py CHECKPOINT --tokens 5,9,27 --steps 8 [--draft]
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import formats as fm
from formats import F32, bf16
from make_tiny import Config


@dataclass
class Options:
    """Where a sum's order is free."""

    wide_sums: bool = False  # accumulate matrix products and means in float64
    engine_slots: bool = False  # the engine's key list: `window` slots always, empty ones last


# ---- small pieces [0.3, 2.1-2.3] --------------------------------------------------------------


@dataclass
class Quantised:
    """A stored FP8 or FP4 matrix: codes as values [n, k], one scale per row and 32 columns."""

    codes: np.ndarray
    scale: np.ndarray

    def values(self):
        return self.codes * np.repeat(self.scale, 32, axis=1)


def matmul(o, a, b):
    """a [.., k] times b [n, k] transposed -> float32."""
    if o.wide_sums:
        return (a.astype(np.float64) @ b.T.astype(np.float64)).astype(F32)
    return a @ b.T


def mean_square(o, x):
    return np.mean(np.square(x, dtype=np.float64 if o.wide_sums else F32), axis=-1).astype(F32)


def lin_quantised(o, x, w):
    """lin8 and lin4 [0.3]: Q8 of the input, products of codes, scales once per block of 32."""
    codes, scale = fm.quant_q8(x)
    acc = np.zeros((*x.shape[:-1], w.codes.shape[0]), np.float64 if o.wide_sums else F32)
    for b in range(scale.shape[-1]):
        dot = matmul(o, codes[..., b, :], w.codes[:, 32 * b : 32 * b + 32])
        acc += dot * (scale[..., b, None] * w.scale[:, b])
    return bf16(acc)


def lin_bf16(o, x, w):
    return bf16(matmul(o, x, w))


def lin_f32(o, x, w):
    return matmul(o, x, w)


def rmsnorm(o, x, w, eps):
    rho = F32(1) / np.sqrt(mean_square(o, x) + F32(eps))
    return bf16(w * (x * rho[..., None]))


def sigmoid(x):
    return F32(1) / (F32(1) + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def rope_frequencies(c, ratio):
    """[2.3] f32 [rd/2]; layers with compression use the other base and YaRN."""
    rd, theta = c.qk_rope_head_dim, c.compress_rope_theta if ratio else c.rope_theta
    freq = F32(1) / np.power(F32(theta), np.arange(0, rd, 2, dtype=F32) / F32(rd))
    if not ratio:
        return freq
    yarn = c.rope_scaling
    orig, factor = yarn["original_max_position_embeddings"], yarn["factor"]

    def c_of(turns):
        return rd * np.log(orig / (turns * 2 * np.pi)) / (2 * np.log(theta))

    low = max(np.floor(c_of(yarn["beta_fast"])), 0)
    high = min(np.ceil(c_of(yarn["beta_slow"])), rd - 1)
    index = np.arange(rd // 2, dtype=F32)
    smooth = F32(1) - np.clip((index - F32(low)) / F32(max(high - low, 1e-3)), F32(0), F32(1))
    return freq / F32(factor) * (F32(1) - smooth) + freq * smooth


def rotate(x, positions, freq, inverse=False):
    """[2.3] x [tokens, .., hd]: rotate the last rd values, adjacent pairs; BF16 out."""
    angle = np.asarray(positions, F32)[:, None] * freq
    cos, sin = np.cos(angle), np.sin(angle) * F32(-1 if inverse else 1)
    rd = 2 * freq.size
    for _ in range(x.ndim - 2):
        cos, sin = cos[:, None], sin[:, None]
    out = x.copy()
    a, b = x[..., -rd::2], x[..., -rd + 1 :: 2]
    out[..., -rd::2] = bf16(a * cos - b * sin)
    out[..., -rd + 1 :: 2] = bf16(a * sin + b * cos)
    return out


def hc_coefficients(c, o, h, fn, base, scale):
    """[2.1] h [tokens, hc, d] -> pre [tokens, hc], post [tokens, hc], comb [tokens, from, to]."""
    hc, eps = c.hc_mult, F32(c.hc_eps)
    x = h.reshape(len(h), -1)
    rho = F32(1) / np.sqrt(mean_square(o, x) + F32(c.rms_norm_eps))
    mix = lin_f32(o, x, fn) * rho[:, None]
    pre = sigmoid(mix[:, :hc] * scale[0] + base[:hc]) + eps
    post = F32(2) * sigmoid(mix[:, hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    comb = (mix[:, 2 * hc :] * scale[2] + base[2 * hc :]).reshape(-1, hc, hc)
    comb = np.exp(comb - comb.max(2, keepdims=True))
    comb = comb / comb.sum(2, keepdims=True) + eps
    comb = comb / (comb.sum(1, keepdims=True) + eps)
    for _ in range(c.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(2, keepdims=True) + eps)
        comb = comb / (comb.sum(1, keepdims=True) + eps)
    return pre, post, comb


def hc_collapse(h, pre):
    """[2.2]"""
    return bf16((pre[:, :, None] * h).sum(1))


def hc_expand(y, h, post, comb):
    """[2.2] the summed index of comb is the first one."""
    return bf16(post[:, :, None] * y[:, None] + (comb[:, :, :, None] * h[:, :, None]).sum(1))


# ---- engram [2.9] -----------------------------------------------------------------------------


def token_map(c):
    """Synthetic token compression for configurations without a tokenizer."""
    return np.arange(c.vocab_size) * c.engram_compressed_vocab_size // c.vocab_size


def is_prime(n):
    return n > 1 and all(n % f for f in range(2, int(n**0.5) + 1))


def engram_primes(c):
    """-> {layer: [columns] primes}, size-major, each prime used once in the whole model."""
    used, primes = set(), {}
    for l in c.engram_layer_ids:
        primes[l] = []
        for _ in range(2, c.engram_max_ngram_size + 1):
            candidate = c.engram_vocab_size - 1
            for _ in range(c.engram_n_heads):
                candidate += 1
                while candidate in used or not is_prime(candidate):
                    candidate += 1
                used.add(candidate)
                primes[l].append(candidate)
    return primes


def engram_multipliers(c, l):
    bound = max(1, (2**63 - 1) // c.engram_compressed_vocab_size // 2)
    draws = np.random.default_rng(10007 * l).integers(0, bound, c.engram_max_ngram_size)
    return [2 * int(v) + 1 for v in draws]


def engram_rows(c, l, ids, pad, first):
    """Table rows [len(ids) - first, columns] for the compressed ids from `first` on."""
    primes, mult, heads = engram_primes(c)[l], engram_multipliers(c, l), c.engram_n_heads
    offset = np.concatenate([[0], np.cumsum(primes)[:-1]])
    rows = np.empty((len(ids) - first, len(primes)), np.int64)
    for p in range(first, len(ids)):
        r = 0
        for s in range(c.engram_max_ngram_size):
            r ^= (ids[p - s] if p >= s else pad) * mult[s]
            for j in range(heads) if s else ():
                column = (s - 1) * heads + j
                rows[p - first, column] = offset[column] + r % primes[column]
    return rows


def engram(c, o, w, p, h, rows):
    """h [tokens, hc, d] -> h with the gated n-gram values added."""
    table = w[p + "engram.embed"]
    e = bf16(table.codes[rows] * np.repeat(table.scale[rows], 32, axis=-1)).reshape(len(h), -1)
    kv = lin_quantised(o, e, w[p + "engram.wkv"]).reshape(len(h), c.hc_mult + 1, -1)
    key, value = kv[:, :-1], kv[:, -1:]
    eps = F32(c.rms_norm_eps)
    rho = F32(1) / np.sqrt(mean_square(o, h) + eps) * (F32(1) / np.sqrt(mean_square(o, key) + eps))
    qk = w[p + "engram.q_weight"] * w[p + "engram.k_weight"]
    dot = (h * qk * key).sum(-1) * rho * F32(c.hidden_size**-0.5)
    gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(dot), F32(1e-6))), dot))
    return bf16(h + gate[..., None] * value)


# ---- attention [2.4-2.7] ----------------------------------------------------------------------


def window_slots(p, window, first, prefill):
    """[2.7] rows of the layer's window keys (row 0 = position `first`) that the query at p sees,
    and the empty slots that the reference lists with them: they move the 64-slot blocks' borders.
    prefill: number of tokens in a call that starts the sequence, else 0."""
    seen = np.arange(max(first, p - window + 1), p + 1) - first
    if prefill:
        return np.pad(seen, (0, min(prefill, window) - len(seen)), constant_values=-1)
    return np.pad(seen, (window - len(seen), 0), constant_values=-1)


def attend(q, bank, slots, sink, scale):
    """[2.7] q [heads, hd], bank [rows, hd]; slots: row numbers in list order, -1 = empty."""
    peak = np.full(len(q), -1e30, F32)
    total, out = np.zeros(len(q), F32), np.zeros(q.shape, F32)
    for begin in range(0, len(slots), 64):
        part = slots[begin : begin + 64]
        rows = np.where(part[:, None] >= 0, bank[part], F32(0))
        score = np.where(part >= 0, q @ rows.T * scale, F32(-np.inf))
        new_peak = np.maximum(peak, score.max(1))
        fade, prob = np.exp(peak - new_peak), np.exp(score - new_peak[:, None])
        total = total * fade + prob.sum(1)
        out = out * fade[:, None] + bf16(prob) @ rows
        peak = new_peak
    total = total + np.exp(sink - peak)
    return bf16(out / total[:, None])


def index_scores(o, qi, weight, keys):
    """[2.6] qi [heads, dim], weight [heads], keys [n, dim] -> [n]"""
    hit = np.maximum(matmul(o, qi, keys), F32(0))
    score = np.zeros(len(keys), F32)
    for h in range(len(qi)):
        score = score + hit[h] * weight[h]
    return score


def best(scores, k):
    """Indices of the k highest finite scores, lower index first among equals, ascending."""
    order = np.argsort(-scores, kind="stable")[:k]
    return np.sort(order[np.isfinite(scores[order])])


def candidate_blocks(c, scores):
    """[2.6] step 1: the entry blocks that later index sources may choose from."""
    size, n = c.candidate_block_size, len(scores)
    if n == 0:
        return np.zeros(0, int)
    block_score = np.array([scores[b : b + size].max() for b in range(0, n, size)], F32)
    block_score[(n - 1) // size] = np.finfo(F32).max
    return best(block_score, c.candidate_topk_blocks)


def compress(c, o, w, p, x, state, l):
    """[2.5] -> the latents [entries, hd] (BF16, not rotated) that these tokens complete."""
    wkv, r = w[p + "compressor.wkv.weight"], c.compress_ratios[l]
    if r == 1:
        pooled = lin_bf16(o, x, wkv)
    else:
        pair = np.stack([lin_f32(o, x, wkv), lin_f32(o, x, w[p + "compressor.wgate.weight"])], 1)
        pair = np.concatenate([state.partial.get(l, pair[:0]), pair])
        whole = len(pair) // r * r
        state.partial[l] = pair[whole:]
        k, g = np.moveaxis(pair[:whole].reshape(-1, r, 2, c.head_dim), 2, 0)
        weight = np.exp(g - g.max(1, keepdims=True))
        pooled = bf16((k * (weight / weight.sum(1, keepdims=True))).sum(1))
    return rmsnorm(o, pooled, w[p + "compressor.norm.weight"], c.rms_norm_eps)


def extend(table, key, rows):
    table[key] = np.concatenate([table[key], rows]) if key in table else rows


@dataclass
class State:
    """What a sequence keeps between calls [4]; rows are in order of position or entry."""

    tokens: list = field(default_factory=list)
    first: dict = field(default_factory=dict)  # layer -> position of its first window row
    window: dict = field(default_factory=dict)  # layer -> [T - first, hd] BF16 after rt_Q8
    partial: dict = field(default_factory=dict)  # kv source -> [< r, 2, hd] f32 (k, g)
    entries: dict = field(default_factory=dict)  # kv source -> [floor(T/r), hd] BF16 after rt_Q4K
    keys: dict = field(default_factory=dict)  # kv source -> [floor(T/r), index dim] after rt_Q4I
    taps: np.ndarray = None  # [rows, targets * d] BF16, the draft's view of the last tokens


class Model:
    """`note(name, array)` is called with every intermediate worth comparing; replace to record."""

    def __init__(self, folder, options=None):
        folder = Path(folder)
        self.folder = folder
        self.c, self.o = Config(folder / "config.json"), options or Options()
        self.w = load(folder)
        self.note = lambda name, value: None
        self.map = token_map(self.c)
        for rows, primes in zip(self.c.engram_num_embeddings, engram_primes(self.c).values()):
            assert rows == sum(primes), "engram_num_embeddings must be the sums of the primes"
        self.freq = {r: rope_frequencies(self.c, r) for r in set(self.c.compress_ratios)}

    def source(self, ids, l):
        return max((s for s in ids if s <= l), default=-1)

    def project(self, p, x, positions, freq):
        """[2.4] -> qr [n, q_lora], q [n, heads, hd], kv [n, hd] (rounded as cached)."""
        c, o, w = self.c, self.o, self.w
        qr = rmsnorm(o, lin_quantised(o, x, w[p + "wq_a"]), w[p + "q_norm.weight"], c.rms_norm_eps)
        q = lin_quantised(o, qr, w[p + "wq_b"]).reshape(len(x), c.num_attention_heads, c.head_dim)
        kv = rmsnorm(o, lin_quantised(o, x, w[p + "wkv"]), w[p + "kv_norm.weight"], c.rms_norm_eps)
        kv = fm.round_trip(fm.quant_q8, rotate(kv, positions, freq))
        return qr, rotate(q, positions, freq), kv

    def output(self, p, out, positions, freq):
        """[2.7] inverse rotation and the grouped projection of o [n, heads, hd]."""
        c, o, w = self.c, self.o, self.w
        out = rotate(out, positions, freq, inverse=True).reshape(len(out), c.o_groups, -1)
        wo_a = w[p + "wo_a"].values().reshape(c.o_groups, c.o_lora_rank, -1)
        u = [lin_bf16(o, out[:, g], wo_a[g]) for g in range(c.o_groups)]
        return lin_quantised(o, np.concatenate(u, axis=1), w[p + "wo_b"])

    def publish(self, l, p, x, state, freq):
        """[2.5, 2.6] a Full layer's new compressed entries and index keys."""
        c, o, w = self.c, self.o, self.w
        latent = compress(c, o, w, p, x, state, l)
        first = len(state.entries.get(l, ()))
        positions = np.arange(first, first + len(latent)) * c.compress_ratios[l]
        key = lin_bf16(o, latent, w[p + "indexer.wk.weight"])
        key = rmsnorm(o, key, w[p + "indexer.k_norm.weight"], c.rms_norm_eps)
        extend(state.keys, l, fm.round_trip(fm.quant_q4i, rotate(key, positions, freq)))
        extend(state.entries, l, fm.round_trip(fm.quant_q4k, rotate(latent, positions, freq)))

    def publish_all(self, l, h, pre, state, step):
        """[5] the decoder's compressed entries, from the encoder's output alone."""
        w, p = self.w, f"layers.{l}."
        assert l > max(self.c.engram_layer_ids, default=-1), "engram must lie in the encoder"
        x = rmsnorm(self.o, hc_collapse(h, pre), w[p + "attn_norm.weight"], self.c.rms_norm_eps)
        self.publish(l, p + "attn.", x, state, self.freq[self.c.compress_ratios[l]])
        step["published"] = l

    def select(self, l, p, x, qr, positions, state, step):
        """[2.6] -> per query the chosen entries; fills step["blocks"] for later layers."""
        c, o, w = self.c, self.o, self.w
        r, heads, dim = c.compress_ratios[l], c.index_n_heads, c.index_head_dim
        qi = lin_quantised(o, qr, w[p + "indexer.wq_b"]).reshape(len(x), heads, dim)
        qi = fm.round_trip(fm.quant_q4i, rotate(qi, positions, self.freq[r]))
        weight = lin_bf16(o, x, w[p + "indexer.weights_proj.weight"]) * F32(dim**-0.5 * heads**-0.5)
        owner = self.source(c.kv_source_layer_ids, l)
        keys = state.keys.get(owner, np.zeros((0, dim), F32))
        chosen, blocks = [], []
        for t, pos in enumerate(positions):
            n = (pos + 1) // r
            scores = index_scores(o, qi[t], weight[t], keys[:n])
            if l == c.candidate_source_layer_id:
                blocks.append(candidate_blocks(c, scores))
            elif 0 <= c.candidate_source_layer_id < l:
                allowed = np.isin(np.arange(n) // c.candidate_block_size, step["blocks"][t])
                scores = np.where(allowed, scores, F32(-np.inf))
            chosen.append(best(scores, min(c.index_topk, n)))
        if blocks:
            step["blocks"] = blocks
            self.note(f"layers.{l}.candidates", blocks)
        return chosen

    def attention(self, l, x, positions, state, step):
        """[2.3-2.7] one layer's attention; `step` holds what layers share within this call."""
        c, w, p = self.c, self.w, f"layers.{l}.attn."
        r, freq = c.compress_ratios[l], self.freq[c.compress_ratios[l]]
        qr, q, kv = self.project(p, x, positions, freq)
        first = state.first.setdefault(l, positions[0])
        prefill = len(x) if positions[0] == first else 0
        extend(state.window, l, kv)
        bank = state.window[l]
        prefill = c.sliding_window if self.o.engine_slots else prefill
        lists = [window_slots(t, c.sliding_window, first, prefill) for t in positions]
        if r:
            if l in c.kv_source_layer_ids and l != step.get("published"):
                self.publish(l, p, x, state, freq)
            if l in c.index_source_layer_ids:
                step["chosen"] = self.select(l, p, x, qr, positions, state, step)
                self.note(f"layers.{l}.topk", step["chosen"])
            entries = state.entries.get(self.source(c.kv_source_layer_ids, l), kv[:0])
            lists = [np.concatenate([s, len(bank) + e]) for s, e in zip(lists, step["chosen"])]
            bank = np.concatenate([bank, entries])
        sink, scale = w[p + "attn_sink"], F32(c.head_dim**-0.5)
        out = np.stack([attend(q[t], bank, s, sink, scale) for t, s in enumerate(lists)])
        return self.output(p, out, positions, freq)

    def moe(self, p, x, top):
        """[2.8]"""
        c, o, w = self.c, self.o, self.w
        logit = lin_f32(o, x, w[p + "gate.weight"])
        softplus = np.where(logit > 20, logit, np.log1p(np.exp(np.minimum(logit, F32(20)))))
        score = np.sqrt(softplus)
        chosen = np.stack([best(s, top) for s in score + w[p + "gate.bias"]])
        weight = np.take_along_axis(score, chosen, 1)
        if c.norm_topk_prob and top > 1:
            weight = weight / (weight.sum(1, keepdims=True) + F32(1e-20))
        weight = weight * F32(c.routed_scaling_factor)
        self.note(p + "experts", chosen)
        self.note(p + "weights", weight)
        y = np.zeros(x.shape, F32)
        for t in range(len(x)):
            for e, scale in zip(chosen[t], weight[t]):
                y[t] += self.expert(f"{p}experts.{e}.", x[t : t + 1], scale)[0]
        return bf16(y + self.expert(p + "shared_experts.", x, F32(1)))

    def expert(self, p, x, scale):
        c, o, w = self.c, self.o, self.w
        a, b = lin_quantised(o, x, w[p + "w1"]), lin_quantised(o, x, w[p + "w3"])
        if c.swiglu_limit > 0:
            limit = F32(c.swiglu_limit)
            a, b = np.minimum(a, limit), np.clip(b, -limit, limit)
        return lin_quantised(o, bf16(scale * (silu(a) * b)), w[p + "w2"])

    def block(self, p, h, pre, attention, top):
        """[2.0] one layer: two sub-blocks, each collapsed with the mix of the one before."""
        c, o, w = self.c, self.o, self.w
        for part in ("attn", "ffn"):
            hc = [w[f"{p}hc_{part}_{which}"] for which in ("fn", "base", "scale")]
            next_pre, post, comb = hc_coefficients(c, o, h, *hc)
            x = rmsnorm(o, hc_collapse(h, pre), w[f"{p}{part}_norm.weight"], c.rms_norm_eps)
            y = attention(x) if part == "attn" else self.moe(p + "ffn.", x, top)
            self.note(f"{p}{part}_out", y)
            h, pre = hc_expand(y, h, post, comb), next_pre
        return h, pre

    def embed(self, tokens):
        h = np.repeat(self.w["embed.weight"][tokens][:, None], self.c.hc_mult, axis=1)
        return h, np.eye(1, self.c.hc_mult, dtype=F32).repeat(len(tokens), 0)

    def layer(self, l, h, pre, positions, state, step):
        """One layer, engram included; takes and gives (streams, pre mix)."""
        c, p = self.c, f"layers.{l}."
        if l in c.engram_layer_ids:
            ids, pad = self.map[state.tokens].tolist(), int(self.map[c.engram_pad_token_id])
            rows = engram_rows(c, l, ids, pad, positions[0])
            self.note(p + "engram_rows", rows)
            h = engram(c, self.o, self.w, p, h, rows)
            self.note(p + "engram_out", h)
        if l in c.dspark_target_layer_ids:
            step["taps"].append(bf16(h.mean(1)))
        return self.block(p, h, pre, lambda x: self.attention(l, x, positions, state, step),
                          c.num_experts_per_tok)

    def forward(self, tokens, state, keep=None):
        """[2] the next tokens of a sequence (any number) -> logits f32 [tokens, vocab].

        keep: bounded replay [5], from the last kv source on only for the last `keep` tokens; then
        there are `keep` rows of logits.
        """
        c, start = self.c, len(state.tokens)
        positions = np.arange(start, start + len(tokens))
        state.tokens += list(tokens)
        h, pre = self.embed(tokens)
        step = {"taps": []}
        for l in range(c.num_hidden_layers):
            if keep and l == max(c.kv_source_layer_ids):
                self.publish_all(l, h, pre, state, step)
                h, pre, positions = h[-keep:], pre[-keep:], positions[-keep:]
            h, pre = self.layer(l, h, pre, positions, state, step)
            self.note(f"layers.{l}.h", h)
            self.note(f"layers.{l}.pre", pre)
        taps = np.concatenate(step["taps"], axis=1)
        state.taps = taps if state.taps is None else np.concatenate([state.taps, taps])
        return self.head(h, pre, self.w["norm.weight"])

    def head(self, h, pre, norm_weight):
        z = rmsnorm(self.o, hc_collapse(h, pre), norm_weight, self.c.rms_norm_eps)
        return lin_f32(self.o, z, self.w["head.weight"])

    # ---- DSpark (sections of dspark.md) ------------------------------------------------------------

    def draft(self, anchor, state):
        """One greedy round after `state`: -> tokens [g], logits [g, vocab], confidences [g]."""
        main_x, first = self.draft_context(state)
        h, pre = self.draft_slots(anchor)
        for s in range(self.c.num_stages):
            h, pre = self.draft_stage(s, h, pre, main_x, first)
        return self.draft_tokens(anchor, h, pre)

    def draft_context(self, state):
        """3.1: features of the last W tokens that the target has seen, position of the first."""
        count = min(len(state.tokens), self.c.sliding_window)
        main_x = lin_quantised(self.o, state.taps[-count:], self.w["mtp.0.main_proj"])
        norm = self.w["mtp.0.main_norm.weight"]
        return rmsnorm(self.o, main_x, norm, self.c.rms_norm_eps), len(state.tokens) - count

    def draft_slots(self, anchor):
        c = self.c
        return self.embed([anchor] + [c.dspark_noise_token_id] * (c.dspark_block_size - 1))

    def draft_stage(self, s, h, pre, main_x, first):
        p, top = f"mtp.{s}.", self.c.dspark_num_experts_per_tok
        attention = lambda x: self.draft_attention(p + "attn.", x, main_x, first)
        return self.block(p, h, pre, attention, top)

    def draft_attention(self, p, x, main_x, first):
        """3.2, 3.3: every slot sees the same keys: the ring in slot order, then the block."""
        c, w, freq = self.c, self.w, self.freq[0]
        seen = first + np.arange(len(main_x))
        context = self.project(p, main_x, seen, freq)[2]
        context = context[np.argsort(seen % c.sliding_window)]
        positions = seen[-1] + 1 + np.arange(len(x))
        _, q, kv = self.project(p, x, positions, freq)
        bank = np.concatenate([context, kv])
        out = [attend(row, bank, np.arange(len(bank)), w[p + "attn_sink"], F32(c.head_dim**-0.5))
               for row in q]
        return self.output(p, np.stack(out), positions, freq)

    def draft_tokens(self, anchor, h, pre):
        """3.4: the target's head, the sequential correction (greedy), each draft's confidence."""
        c, o, w, p = self.c, self.o, self.w, f"mtp.{self.c.num_stages - 1}."
        g = hc_collapse(h, pre)
        logits = self.head(h, pre, w[p + "norm.weight"])
        previous, tokens, confidence = anchor, [], []
        for j in range(len(g)):
            e = w[p + "markov_head.embed.weight"][previous]
            logits[j] += lin_f32(o, e, w[p + "markov_head.head.weight"])
            feature = np.concatenate([g[j], e])
            confidence.append(sigmoid(lin_f32(o, feature, w[p + "confidence_head.proj.weight"]))[0])
            previous = int(np.argmax(logits[j]))
            tokens.append(previous)
        return tokens, logits, np.array(confidence, F32)


# ---- checkpoint [3] ---------------------------------------------------------------------------


def load(folder):
    """-> {name: array or Quantised}; the name of a quantised matrix is without '.weight'."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    raw = {}
    for shard in sorted(set(index["weight_map"].values())):
        raw.update(fm.read_safetensors(folder / shard))
    weights = {}
    for name, (dtype, data) in raw.items():
        if dtype == "F32":
            weights[name] = data
        elif dtype == "BF16":
            weights[name] = fm.bf16_values(data)
        elif name.endswith(".weight"):
            owner = name.removesuffix(".weight")
            fp4 = dtype == "I8"
            codes = fm.decode_e2m1(fm.unpack_nibbles(data)) if fp4 else fm.E4M3_VALUES[data]
            scale = fm.decode_e8m0(raw[owner + ".scale"][1])
            if len(scale) != len(codes):  # one scale per 32 rows
                scale = np.repeat(scale, 32, axis=0)[: len(codes)]
            weights[owner] = Quantised(codes.astype(F32), scale)
    return weights


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--tokens", required=True, help="prompt, comma-separated ids")
    parser.add_argument("--steps", type=int, default=0, help="greedy tokens to add")
    parser.add_argument("--draft", action="store_true", help="draft after every step")
    args = parser.parse_args()
    model, state = Model(args.checkpoint), State()
    tokens = [int(t) for t in args.tokens.split(",")]
    for step in range(args.steps + 1):
        logits = model.forward(tokens, state)[-1]
        tokens = [int(np.argmax(logits))]
        print(f"position {len(state.tokens)}: token {tokens[0]}, logit {logits[tokens[0]]:.6f}")
        if args.draft:
            drafts, _, confidence = model.draft(tokens[0], state)
            print("  drafts", drafts, "confidences", np.round(confidence, 4).tolist())


if __name__ == "__main__":
    main()
