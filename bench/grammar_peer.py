"""llguidance and XGrammar on what bench/grammar.c has just measured: the same schemas, instances and
vocabulary, one thread, best of three passes; and the ratios, each over the schemas that both compiled.
"compile" is up to the point at which a mask can be asked for. Calls from Python cost a peer a few
microseconds. What takes a peer more than $BENCH_LIMIT seconds of processor time (20) is given up and
told. $BENCH_KEEP names a file for the verdicts, which tools/grammar-verdicts.py reads."""
# needs: tokenizers numpy llguidance xgrammar

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
import grammar_peers

PASSES = 3
LIMIT = float(os.environ.get("BENCH_LIMIT", "20"))
SHARES = {"p50": .5, "p90": .9, "p99": .99, "p99.9": .999, "max": 1}

with open(os.environ["BENCH_OUTPUT"], encoding="utf-8") as f:
    printed = f.read()
path = re.search(r"^tokenizer: (.*)$", printed, re.M).group(1)
schemas = re.search(r"^schemas: +(.*)$", printed, re.M).group(1)
with open(os.environ["BENCH_RAW"], encoding="utf-8") as f:
    ours = [[float(us) for us in line.split()] for line in f]

tokenizer = grammar_peers.open_tokenizer(path)
items = grammar_peers.read_items(schemas, tokenizer)


def percentiles(us):
    us = sorted(us)
    return {k: us[min(len(us) - 1, int(share * len(us)))] for k, share in SHARES.items()}


def row(name, what, us):
    print(f"{name:12} {what:8} n {len(us):8}  mean {sum(us) / len(us):9.2f}" +
          "".join(f"  {k} {v:9.2f}" for k, v in percentiles(us).items()) + " us", flush=True)


def run(peer, keep):
    refused, stopped, wrong, let_in, both = 0, [], 0, 0, []
    for item, times in zip(items, ours):
        found = grammar_peers.run_apart(peer, item, PASSES, True, LIMIT)
        if keep:
            grammar_peers.keep(keep, peer, item, found)
        if "compile" not in found:
            refused += "refused" in found
            stopped += [item["name"]] if "stopped" in found else []
            continue
        for test, accepted in zip(item["tests"], found["results"]):
            wrong += test["valid"] and not accepted
            let_in += accepted and not test["valid"]
        if times:
            both.append((times, found))
    print(f"{peer.name:12} {len(items)} schemas: {refused} refused, {len(stopped)} given up after "
          f"{LIMIT:.0f} s, {wrong} valid instances refused, {let_in} invalid accepted")
    if stopped:
        print(f"{peer.name:12} given up: {' '.join(stopped)}")
    for what, mine, its in (
            ("compile", [t[0] for t, _ in both], [f["compile"] * 1e6 for _, f in both]),
            ("mask", [us for t, _ in both for us in t[1:]],
             [s * 1e6 for _, f in both for s in f["masks"]])):
        row(peer.name, what, its)
        row("deepinfer", what, mine)
        a, b = percentiles(its), percentiles(mine)
        print(f"{peer.name:12} {what:8} over ours:" + " " * 22 + "".join(
            f"  {k} {a[k] / max(b[k], .01):8.1f}x" for k in SHARES), flush=True)


print(" ".join(f"{name} {version}" for name, version in grammar_peers.versions()))
with open(os.environ.get("BENCH_KEEP", os.devnull), "a", encoding="utf-8") as verdicts:
    for Peer in grammar_peers.PEERS:
        run(Peer(tokenizer), verdicts if "BENCH_KEEP" in os.environ else None)
