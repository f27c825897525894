#!/usr/bin/env python3
"""Golden vectors of the sampler's coupled draws, by an implementation of its own.

  tools/sampling-golden.py | clang-format > tests/sample/coupled_golden.h

Written from the rules in docs/sampling.md, not from the C code: NumPy float32 for the
two polynomials, Python integers for sums and comparisons, a sort for the filters. Before it prints
anything it checks itself: the logarithm against float64, the uncoupled draw's published vectors,
and that the winner of each race is the one that exact rationals of float64 logarithms give, unless
two racers are closer than the logarithm's error.
"""
import math
import sys
from fractions import Fraction

import numpy as np

F = np.float32
EXP2 = [float.fromhex(h) for h in ("0x1.c946d2p-14", "-0x1.4e2aeap-10", "0x1.39e3fcp-7",
                                   "-0x1.c6948ep-5", "0x1.ebfacp-3", "-0x1.62e42cp-1", "1")]
LOG = [float.fromhex(h) for h in ("0x1.66456ep-4", "-0x1.2562c2p-3", "0x1.3198b6p-3",
                                  "-0x1.535278p-3", "0x1.98d016p-3", "-0x1.0004c4p-2",
                                  "0x1.5556fcp-2", "-0x1.fffffap-2", "1")]
LN2 = F(math.log(2))
MASK = (1 << 32) - 1


def philox(key, counter):
    """counter: four integers or arrays of uint64 below 2^32."""
    x = [np.asarray(c, dtype=np.uint64) for c in counter]
    k0, k1 = key & MASK, key >> 32
    low = np.uint64(MASK)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        x = [(b >> np.uint64(32)) ^ x[1] ^ np.uint64(k0), b & low,
             (a >> np.uint64(32)) ^ x[3] ^ np.uint64(k1), a & low]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return x


def horner(coefficients, f):
    g = np.full(f.shape, F(coefficients[0]), dtype=F)
    for c in coefficients[1:]:
        g = (g * f).astype(F)
        g = (g + F(c)).astype(F)
    return g


def weights(x, temperature):
    c = F(1 / math.log(2) / float(F(temperature)))
    with np.errstate(over="ignore", invalid="ignore"):
        y = ((F(x.max()) - x).astype(F) * c).astype(F)
    alive = y < F(46)
    y = np.where(alive, y, F(0)).astype(F)
    n = np.floor(y).astype(np.int64)
    g = horner(EXP2, (y - n.astype(F)).astype(F))
    w = (g.astype(np.float64) * 2.0**46).astype(np.int64) >> n
    return np.where(alive, w, 0)


def noise(words):
    """-ln((2 word + 1) / 2^33) as integers of 2^-56."""
    t = 2 * np.asarray(words, dtype=np.int64) + 1
    k = np.zeros(t.shape, dtype=np.int64)
    z = t.copy()
    for _ in range(33):
        small = z < (1 << 32)
        z, k = np.where(small, z * 2, z), k + small
    small = z < 6074001000
    z, k = np.where(small, z * 2, z), k + small
    f = ((z - (1 << 33)).astype(F) * F(2.0**-33)).astype(F)
    q = horner(LOG, f)
    e = ((k.astype(F) * LN2).astype(F) - (f * q).astype(F)).astype(F)
    return (e.astype(np.float64) * 2.0**56).astype(np.int64)


def exact_noise(words):
    t = 2 * np.asarray(words, dtype=np.int64) + 1
    return np.where(t > 1 << 32, -np.log1p(-((1 << 33) - t) / 2.0**33), -np.log(t / 2.0**33))


def kept(x, w, k, top_p, min_p):
    """Ids that the filters leave, by sorting."""
    order = np.lexsort((np.arange(len(x)), -(x + F(0)).astype(np.float64)))
    total = int(w.sum())
    mass = math.floor(Fraction(top_p) * total) + 1
    least = max(math.floor(Fraction(min_p) * 2**46), 1)
    before, ids = 0, []
    for i in order:
        if ids and (0 < k <= len(ids) or before >= mass or w[i] < least):
            break
        ids.append(int(i))
        before += int(w[i])
    return np.array(sorted(ids))


def draw(x, w, ids, seed, position):
    words = philox(seed, (position & MASK, position >> 32, 0, 0))
    u = int(words[0]) << 32 | int(words[1])
    sums = np.cumsum(w[ids])
    return int(ids[np.searchsorted(sums, u * int(sums[-1]) >> 64, side="right")])


def coupled_words(ids, seed, position):
    words = np.stack(philox(seed, (position & MASK, position >> 32, 4, ids // 4)))
    return words[ids % 4, np.arange(len(ids))]


def race(w, ids, seed, position):
    """The winner, and how far ahead it is, relatively."""
    words = coupled_words(ids, seed, position)
    e = noise(words)
    near = e / w[ids]
    close = np.flatnonzero(near <= near.min() * (1 + 1e-9))
    best = min(close, key=lambda i: (Fraction(int(e[i]), int(w[ids[i]])), ids[i]))
    exact = exact_noise(words) / w[ids]
    lead = np.sort(exact)[:2]
    if len(lead) > 1 and lead[1] > lead[0] * (1 + 2**-19):
        assert ids[np.argmin(exact)] == ids[best], "the portable logarithm changed a winner"
    return int(ids[best]), int(e[best]), int(w[ids[best]])


def wide_row():
    i = np.arange(129280, dtype=np.uint64)
    x = ((i * np.uint64(2654435761) & np.uint64(MASK)) >> np.uint64(20)).astype(F) / F(256) - F(8)
    return np.where(i % np.uint64(97) == 5, F(-np.inf), x.astype(F))


def narrow_row():
    """1001 tokens, the last block not full, many equal values."""
    i = np.arange(1001, dtype=np.uint64)
    return (((i * np.uint64(2654435761) & np.uint64(MASK)) >> np.uint64(27)).astype(F) * F(0.37)
            - F(4)).astype(F)


def check_self():
    rng = np.random.default_rng(1)
    for words in (rng.integers(0, 1 << 32, 1 << 20), np.arange(1 << 20),
                  MASK - np.arange(1 << 20), (2 ** rng.uniform(0, 32, 1 << 20)).astype(np.int64),
                  MASK - (2 ** rng.uniform(0, 32, 1 << 20)).astype(np.int64)):
        words = np.clip(words, 0, MASK)
        error = np.abs(noise(words) / 2.0**56 / exact_noise(words) - 1).max()
        assert error < 2**-22, error
    x = wide_row()
    for t, k, p, m, seed, position, token in ((1, -1, 1, 0, 42, 10, 67823),
                                              (0.25, 50, 0.01, 0, 42, 10, 46368),
                                              (2, -1, 1, 0.05, 42, 10, 67831),
                                              (0.05, -1, 0.5, 0, 2**64 - 1, 2**33, 48952)):
        w = weights(x, t)
        assert draw(x, w, kept(x, w, k, p, m), seed, position) == token


def main():
    check_self()
    print("/* Made by tools/sampling-golden.py; do not edit. */")
    print("static const struct {\n    uint32_t word;\n    uint64_t noise;\n} golden_noise[] = {")
    for word in (0, 1, 2, 1000, 0x3fffffff, 0x40000000, 0x5a827999, 0x5a82799a, 0x7fffffff,
                 0x80000000, 0xb504f332, 0xb504f333, 0xb504f334, 0xc0000000, 0xffff0000,
                 0xfffffff0, 0xfffffffe, MASK):
        print(f"    {{0x{word:08x}, {int(noise(np.array([word]))[0])}}},")
    print("};\n")
    print("static const struct {\n    int row; /* 0: 129280 tokens, 1: 1001 */\n"
          "    double temperature;\n    int64_t top_k;\n    double top_p, min_p;\n"
          "    uint64_t seed, position;\n    int32_t token;\n    uint64_t noise, weight;\n"
          "} golden_races[] = {")
    rows = (wide_row(), narrow_row())
    shapes = ((1, -1, 1, 0), (0.25, -1, 1, 0), (0.25, -1, 0.9, 0), (0.25, 50, 1, 0),
              (0.7, 50, 0.95, 0), (2, -1, 1, 0.05), (100, -1, 1, 0), (0.05, -1, 0.5, 0))
    for r, x in enumerate(rows):
        for t, k, p, m in shapes:
            w = weights(x, t)
            ids = kept(x, w, k, p, m)
            for seed, position in ((42, 10), (42, 11), (43, 10), (2**64 - 1, 2**33 + 5)):
                token, e, weight = race(w, ids, seed, position)
                print(f"    {{{r}, {t}, {k}, {p}, {m}, {seed}u, {position}u, {token}, "
                      f"{e}, {weight}}},")
    print("};")


if __name__ == "__main__":
    sys.exit(main())
