#!/usr/bin/env python3
"""Times of `deepinfer grammar` beside XGrammar and llguidance, where those can be imported: the same
schemas, the same valid instances, the V4 tokenizer, one core.

    bench/grammar_peer.py SCHEMAS.jsonl[.xz] [--every N] [--deepinfer PROGRAM] [--tokenizer FILE]
"""
import argparse
import json
import lzma
import subprocess
import time


def percentiles(name, what, us):
    us = sorted(us)
    at = lambda share: us[min(len(us) - 1, int(share * len(us)))] if us else 0
    print(f"{name:12} {what:8} n {len(us):7}  p50 {at(.5):9.1f}  p99 {at(.99):10.1f}  "
          f"p99.9 {at(.999):11.1f}  max {at(1):11.1f} us")


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def run(name, items, tokenizer, compile_, start, mask, push):
    compiles, masks, failed = [], [], 0
    for item in items:
        begin = time.perf_counter()
        try:
            grammar = compile_(json.dumps(item["schema"]))
        except Exception:
            failed += 1
            continue
        compiles.append((time.perf_counter() - begin) * 1e6)
        for test in item["tests"]:
            if not test["valid"]:
                continue
            matcher = start(grammar)
            for token in tokenizer.encode(compact(test["data"]), add_special_tokens=False).ids:
                begin = time.perf_counter()
                mask(matcher)
                masks.append((time.perf_counter() - begin) * 1e6)
                if not push(matcher, token):
                    break
    percentiles(name, "compile", compiles)
    percentiles(name, "mask", masks)
    print(f"{name:12} {failed} schemas refused")


def xgrammar(items, tokenizer, size, stop):
    import xgrammar as xgr
    vocab = [tokenizer.id_to_token(i) or "" for i in range(size)]
    info = xgr.TokenizerInfo(vocab, xgr.VocabType.BYTE_LEVEL, vocab_size=size, stop_token_ids=[stop])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bitmask = xgr.allocate_token_bitmask(1, size)
    run("xgrammar", items, tokenizer,
        lambda s: compiler.compile_json_schema(s, strict_mode=False), xgr.GrammarMatcher,
        lambda m: m.fill_next_token_bitmask(bitmask), lambda m, t: m.accept_token(t))


def llguidance(items, tokenizer, size, stop):
    import llguidance
    import numpy as np
    tok = llguidance.LLTokenizer(tokenizer.to_str(), eos_token=stop)
    bitmask = np.zeros((1, (size + 31) // 32), dtype=np.int32)

    def compile_(schema):
        return llguidance.LLMatcher.grammar_from_json_schema(schema)

    def start(grammar):
        return llguidance.LLMatcher(tok, grammar)

    def checked(schema):
        grammar = compile_(schema)
        if start(grammar).is_error():
            raise ValueError
        return grammar

    import llguidance.numpy as lln
    run("llguidance", items, tokenizer, checked, start,
        lambda m: lln.fill_next_token_bitmask(m, bitmask), lambda m, t: m.consume_token(t))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schemas")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--deepinfer", default="build/release/deepinfer")
    parser.add_argument("--tokenizer", default="build/testdata/tokenizer-v4/tokenizer.json")
    args = parser.parse_args()
    opener = lzma.open if args.schemas.endswith(".xz") else open
    with opener(args.schemas, "rt", encoding="utf-8") as f:
        items = [json.loads(line) for line in list(f)[::args.every]]
    lines = "".join(json.dumps({**i, "tests": [t for t in i["tests"] if t["valid"]]}) + "\n"
                    for i in items)
    ours = subprocess.run([args.deepinfer, "grammar", "--type", "json_schema", "--bench",
                           "--tokenizer", args.tokenizer], input=lines, capture_output=True,
                          text=True, check=True)
    print("deepinfer   ", ours.stdout.splitlines()[-1])
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("tokenizers cannot be imported: no peers")
        return
    tokenizer = Tokenizer.from_file(args.tokenizer)
    size, stop = tokenizer.get_vocab_size(), tokenizer.token_to_id("<｜end▁of▁sentence｜>")
    for peer in (llguidance, xgrammar):
        try:
            peer(items, tokenizer, size, stop)
        except ImportError as error:
            print(f"{peer.__name__}: {error}")


if __name__ == "__main__":
    main()
