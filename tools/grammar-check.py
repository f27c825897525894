#!/usr/bin/env python3
"""Runs collections of JSON Schemas with valid and invalid instances through `deepinfer grammar`
and prints what agrees, what was refused and why.

    tools/grammar-check.py [--deepinfer PROGRAM] [--tokenizer FILE] [-v] FILE[.xz] ... [-- OPTIONS]

A line of a file is {"name", "schema", "tests": [{"data", "valid"}, ...]}. Names that begin with
"draft7/" are read as that draft. OPTIONS go to the command (--any-order, --lenient, ...).
"""
import argparse
import collections
import json
import lzma
import re
import subprocess
import sys


def lines(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as f:
        yield from f


def with_draft(line):
    """Adds $schema where only the name tells the draft."""
    item = json.loads(line)
    schema = item["schema"]
    if item["name"].startswith("draft7/") and isinstance(schema, dict) and "$schema" not in schema:
        item["schema"] = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        return json.dumps(item, ensure_ascii=False) + "\n"
    return line


def check(args, path, options):
    source = [with_draft(line) for line in lines(path)]
    command = [args.deepinfer, "grammar", "--type", "json_schema", "--bench",
               "--tokenizer", args.tokenizer, *options]
    run = subprocess.run(command, input="".join(source), capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{path}: {run.stderr.strip()} (exit status {run.returncode})")
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    totals, reasons, wrong = collections.Counter(), collections.Counter(), []
    for text, answer in zip(source, answers):
        item = json.loads(text)
        totals[answer["status"]] += 1
        if answer["status"] != "ok":
            reasons[re.sub(r"^#[^:]*/([^/:]*): ", r"\1: ", answer["reason"])[:90]] += 1
            if args.verbose:
                print(f"{answer['status']}: {item['name']}: {answer['reason']}")
            continue
        for number, (test, accepted) in enumerate(zip(item["tests"], answer["results"])):
            kind = ("valid" if test["valid"] else "invalid", "accepted" if accepted else "refused")
            totals[" ".join(kind)] += 1
            if test["valid"] != accepted:
                wrong.append((" ".join(kind), item["name"], number, test))
    print(f"{path}: {len(source)} schemas, {totals['ok']} compile "
          f"({100 * totals['ok'] / len(source):.2f} %), {totals['unsupported']} unsupported, "
          f"{totals['error']} errors")
    for kind in ("valid accepted", "valid refused", "invalid refused", "invalid accepted"):
        print(f"  {kind:18} {totals[kind]}")
    print("  " + json.dumps(answers[-1]))
    for reason, count in reasons.most_common(1000 if args.verbose else 20):
        print(f"  {count:5}  {reason}")
    for kind, name, number, test in sorted(wrong, key=lambda w: w[0]):
        if args.verbose or kind.startswith("invalid"):
            print(f"  {kind}: {name} [{number}] {test.get('description', '')} "
                  f"{json.dumps(test['data'], ensure_ascii=False)[:200]}")
    return totals["invalid accepted"]


def main():
    argv = sys.argv[1:]
    options = argv[argv.index("--") + 1:] if "--" in argv else []
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepinfer", default="build/release/deepinfer")
    parser.add_argument("--tokenizer", default="build/testdata/tokenizer-v4/tokenizer.json")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args(argv[:argv.index("--")] if "--" in argv else argv)
    sys.exit(1 if sum(check(args, path, options) for path in args.files) else 0)


if __name__ == "__main__":
    main()
