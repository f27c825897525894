#!/usr/bin/env python3
"""Compares verdicts on JSON Schemas and their instances: deepinfer's and those of llguidance or
XGrammar, and says who is right by the file's own "valid", which jsonschema from PyPI checks.

    tools/grammar-verdicts.py [--deepinfer PROGRAM] [--tokenizer FILE] [--peer NAME] [--limit SECONDS]
                              [--kept FILE] [-v] FILE[.xz]

A line of FILE is {"name", "schema", "tests": [{"data", "valid"}, ...]}; a name that begins with
"draft7/" is read as that draft. jsonschema names the keyword that an invalid instance breaks; it asserts
formats as far as the packages for them are installed. --kept: verdicts of a peer that an earlier run or
bench/grammar_peer.py has written there; schemas without one are left out for XGrammar, and tried for
llguidance. -v lists every difference.
"""
import argparse
import collections
import importlib.metadata
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grammar_peers
import jsonschema




warnings.simplefilter("ignore")  # jsonschema's, about old drafts


def with_draft(item):
    """$schema where only the name tells the draft."""
    if (item["name"].startswith("draft7/") and isinstance(item["schema"], dict)
            and "$schema" not in item["schema"]):
        item["schema"] = {"$schema": "http://json-schema.org/draft-07/schema#", **item["schema"]}
    return item


def run_ours(args, items, options):
    command = [args.deepinfer, "grammar", "--type", "json_schema", "--tokenizer", args.tokenizer,
               *options]
    text = "".join(json.dumps({k: v for k, v in item.items() if k != "ids"}, ensure_ascii=False) +
                   "\n" for item in items)
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


class Judge:
    """Whether jsonschema takes an instance, and the keyword that it breaks."""

    def __init__(self, schema):
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        self.validator = kind(schema, format_checker=kind.FORMAT_CHECKER)

    def __call__(self, data):
        for error in self.validator.iter_errors(data):
            while error.context:
                error = error.context[0]
            return False, error.validator
        return True, None


def judge(item):
    verdicts = []
    for test in item["tests"]:
        try:
            verdicts.append(Judge(item["schema"])(test["data"]))
        except Exception:  # references that lead out of the schema, patterns that Python cannot read
            verdicts.append((None, "unknown"))
    return verdicts


def peer_verdicts(args, items):
    """By name: {"refused"}, {"stopped"} or {"results"}."""
    found = {}
    if args.kept and os.path.exists(args.kept):
        with open(args.kept, encoding="utf-8") as f:
            for line in f:
                kept = json.loads(line)
                if kept["peer"] == args.peer:
                    found[kept["name"]] = kept
    missing = [item for item in items if item["name"] not in found]
    if missing and (args.peer == "llguidance" or not args.kept or args.rest):
        tokenizer = grammar_peers.open_tokenizer(args.tokenizer)
        peer = next(P for P in grammar_peers.PEERS if P.name == args.peer)(tokenizer)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
            f.write("".join(json.dumps(item) + "\n" for item in missing))
            f.flush()
            with_ids = grammar_peers.read_items(f.name, tokenizer)
        with open(args.kept or os.devnull, "a", encoding="utf-8") as out:
            for item in with_ids:
                verdict = (grammar_peers.try_item(peer, item, 1, False) if peer.bounded else
                           grammar_peers.run_apart(peer, item, 1, False, args.limit))
                grammar_peers.keep(out, peer, item, verdict)
                found[item["name"]] = verdict
    return found


def why(reason):
    """A refusal's reason without the place."""
    reason = re.sub(r"^[^:]*?#[^:]*: ", "", reason)
    return re.sub(r'".*?"|\d+', "…", reason)[:70]


def compare(args, items):
    ours = run_ours(args, items, [])
    any_order = run_ours(args, items, ["--any-order"])
    peers = peer_verdicts(args, items)
    totals, classes = collections.Counter(), collections.Counter()
    for item, mine, free in zip(items, ours, any_order):
        its = peers.get(item["name"])
        if its is None:
            continue
        totals["schemas"] += 1
        compiled = mine["status"] == "ok"
        if not compiled or "results" not in its:
            other = "refused" if "refused" in its else "given up" if "stopped" in its else "taken"
            kind = f"deepinfer {'takes' if compiled else 'refuses'}, {args.peer}: {other}"
            totals[kind] += 1
            if not compiled and other == "taken":
                wrong = sum(a != t["valid"] for a, t in zip(its["results"], item["tests"]))
                totals[f"{kind}; and is wrong about an instance"] += wrong > 0
                classes["schema refused", why(mine["reason"])] += 1
                say(args, item, kind, mine["reason"])
            continue
        totals["both take it"] += 1
        for number, (test, a, b, (second, keyword)) in enumerate(
                zip(item["tests"], mine["results"], its["results"], judge(item))):
            valid = test["valid"]
            totals["instances"] += 1
            totals["instances on which jsonschema says what the file says"] += second == valid
            totals["same verdict"] += a == b
            if a == b != valid:
                totals["same verdict, against the file"] += 1
                say(args, item, f"instance {number}: both against the file", keyword)
            if a == b:
                continue
            right = "deepinfer" if a == valid else args.peer
            loser = args.peer if a == valid else "deepinfer"
            reason = ("against " + (keyword or "what jsonschema does not check") if not valid
                      else "only for the order of properties" if a != valid and free["results"][number]
                      else "")
            reason = f"{loser} {'refuses a valid' if valid else 'accepts an invalid'} one {reason}"
            classes[f"{right} is right", reason.strip()] += 1
            say(args, item, f"instance {number}: {right} is right", reason)
    for name, count in totals.items():
        print(f"{count:7}  {name}")
    for (kind, reason), count in sorted(classes.items(), key=lambda x: (x[0][0], -x[1])):
        print(f"{count:7}  {kind}: {reason}")


def say(args, item, kind, reason):
    if args.verbose:
        print(f"         {item['name']}: {kind}: {reason}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deepinfer", default="build/release/deepinfer")
    parser.add_argument("--tokenizer", default="build/testdata/tokenizer-v4/tokenizer.json")
    parser.add_argument("--peer", choices=("llguidance", "xgrammar"), default="llguidance")
    parser.add_argument("--limit", type=float, default=20, help="seconds of processor time a schema")
    parser.add_argument("--kept")
    parser.add_argument("--rest", action="store_true", help="try what --kept has no verdict of")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("file")
    args = parser.parse_args()
    opened = lzma.open if args.file.endswith(".xz") else open
    with opened(args.file, "rt", encoding="utf-8") as f:
        items = [with_draft(json.loads(line)) for line in f]
    print(f"{args.file}: deepinfer and " +
          " ".join(next(v for v in grammar_peers.versions() if v[0] == args.peer)) +
          f", jsonschema {importlib.metadata.version('jsonschema')}")
    compare(args, items)


if __name__ == "__main__":
    main()
