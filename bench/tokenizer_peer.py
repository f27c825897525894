"""The `tokenizers` library on what bench/tokenizer.c has just encoded, and the ratio of the two."""
# needs: tokenizers

import os
import re
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers

RUNS = 5

with open(os.environ["BENCH_OUTPUT"], encoding="utf-8") as f:
    ours = f.read()
path = re.search(r"^tokenizer: (.*)$", ours, re.M).group(1)
text_path = re.search(r"^text: +(.*)$", ours, re.M).group(1)
speed = float(re.search(r"^encode  .* ([0-9.]+) MiB/s$", ours, re.M).group(1))
count = int(re.search(r"^encode  .* ([0-9]+) ids", ours, re.M).group(1))

tok = tokenizers.Tokenizer.from_file(os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path)
with open(text_path, encoding="utf-8", newline="") as f:
    text = f.read()
size = len(text.encode())
best = float("inf")
for _ in range(RUNS):
    start = time.perf_counter()
    ids = tok.encode_batch_fast([text], add_special_tokens=False)[0].ids
    best = min(best, time.perf_counter() - start)
theirs = size / best / 1048576
name = f"tokenizers {tokenizers.__version__}"
print(f"{name:28} {size:9} bytes {len(ids):8} ids     {1e3 * best:9.3f} ms {theirs:8.1f} MiB/s")
print(f"ratio: {speed / theirs:.1f} times as fast, {'the same' if len(ids) == count else 'ANOTHER'} number of ids")
