"""llguidance and XGrammar on what bench/grammar.c has just measured: the same schemas, instances and
vocabulary, one thread, best of three passes; and the ratios. "compile" is up to the point at which a
mask can be asked for. Calls from Python cost a peer about a microsecond more than they should."""
# needs: tokenizers numpy llguidance xgrammar

import json
import os
import re
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import llguidance
import llguidance.numpy
import numpy as np
import xgrammar as xgr
from tokenizers import Tokenizer

PASSES = 3
SLOW = 0.5  # seconds: what took longer is not compiled again
now = time.thread_time  # what others do on a busy machine is left out, as in bench/grammar.c
SHARES = {"p50": .5, "p90": .9, "p99": .99, "p99.9": .999, "max": 1}

with open(os.environ["BENCH_OUTPUT"], encoding="utf-8") as f:
    printed = f.read()
path = re.search(r"^tokenizer: (.*)$", printed, re.M).group(1)
schemas = re.search(r"^schemas: +(.*)$", printed, re.M).group(1)
ours = {what: dict(re.findall(r"(p50|p90|p99|p99\.9|max) +([0-9.]+)", line)) for what, line in
        re.findall(r"^deepinfer +(compile|mask) (.*) us$", printed, re.M)}

tokenizer = Tokenizer.from_file(os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path)
size = tokenizer.get_vocab_size()
stop = tokenizer.token_to_id("<｜end▁of▁sentence｜>")
with open(schemas, encoding="utf-8") as f:
    items = [json.loads(line) for line in f]
for item in items:
    for valid in (True, False):
        texts = [json.dumps(t["data"], ensure_ascii=False, separators=(",", ":"))
                 for t in item["tests"] if t["valid"] == valid]
        item[valid] = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]


def run(name, compile_, start, mask, push, ended):
    """compile_(text) -> grammar or an exception; start(grammar) -> matcher."""
    compiles, masks, refused, wrong, let_in = [], [], 0, 0, 0
    for item in items:
        text, best, times = json.dumps(item["schema"]), float("inf"), None
        for _ in range(PASSES):
            begin = now()
            try:
                grammar = compile_(text)
            except Exception:
                refused += 1
                break
            best = min(best, now() - begin)
            found, bad = [], 0
            for ids in item[True]:
                matcher = start(grammar)
                for token in ids:
                    begin = now()
                    mask(matcher)
                    found.append(now() - begin)
                    if not push(matcher, token):
                        bad += 1
                        break
            times = found if times is None else list(map(min, times, found))
            if best > SLOW:
                break
        if times is not None:
            compiles.append(best * 1e6)
            masks += [t * 1e6 for t in times]
            wrong += bad
            for ids in item[False]:
                matcher = start(grammar)
                let_in += all(push(matcher, token) for token in ids) and ended(matcher)
    for what, us in (("compile", compiles), ("mask", masks)):
        us.sort()
        at = {k: us[min(len(us) - 1, int(share * len(us)))] for k, share in SHARES.items()}
        print(f"{name:12} {what:8} n {len(us):8}  mean {sum(us) / len(us):9.2f}" +
              "".join(f"  {k} {v:9.2f}" for k, v in at.items()) + " us", flush=True)
        print(f"{name:12} {what:8} over ours:" + " " * 22 + "".join(
            f"  {k} {at[k] / max(float(ours[what][k]), .01):8.1f}x" for k in at), flush=True)
    print(f"{name:12} {refused} schemas refused, {wrong} valid instances refused, "
          f"{let_in} invalid accepted", flush=True)


def with_llguidance():
    tok = llguidance.LLTokenizer(tokenizer.to_str(), eos_token=stop)
    bitmask = np.zeros((1, (size + 31) // 32), dtype=np.int32)

    def start(grammar):
        return llguidance.LLMatcher(tok, grammar)

    def compile_(schema):
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        if start(grammar).is_error():
            raise ValueError
        return grammar

    run("llguidance", compile_, start,
        lambda m: llguidance.numpy.fill_next_token_bitmask(m, bitmask),
        lambda m, t: m.consume_token(t), lambda m: m.is_accepting())


def with_xgrammar():
    vocab = [tokenizer.id_to_token(i) or "" for i in range(size)]
    info = xgr.TokenizerInfo(vocab, xgr.VocabType.BYTE_LEVEL, vocab_size=size, stop_token_ids=[stop])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bitmask = xgr.allocate_token_bitmask(1, size)
    run("xgrammar", lambda s: compiler.compile_json_schema(s, strict_mode=False),
        xgr.GrammarMatcher, lambda m: m.fill_next_token_bitmask(bitmask),
        lambda m, t: m.accept_token(t), lambda m: m.accept_token(stop))


print(f"llguidance {llguidance.__version__ if hasattr(llguidance, '__version__') else ''}, "
      f"xgrammar {getattr(xgr, '__version__', '')}")
with_llguidance()
with_xgrammar()
