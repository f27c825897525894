"""logits: a safetensors file with a row for every position."""

import math
import os
import pty
import sys

sys.path.insert(0, "tests/support")
from cli import (DEMO, complains, deepinfer, floats, integers, main, read_safetensors, succeeds, test)

VOCAB = 4160
IDS = [0, 17, 42, 300, 1024, 4000, 5, 5, 5, 77, 901]


def logits(folder, *flags, ids=IDS):
    out = folder / "logits.safetensors"
    succeeds(deepinfer("logits", "-m", DEMO, "--ids", ",".join(map(str, ids)), "-o", out, *flags))
    tensors = read_safetensors(out)
    assert list(tensors) == ["logits"], list(tensors)
    dtype, shape, data = tensors["logits"]
    assert dtype == "F32" and shape == [len(ids), VOCAB], (dtype, shape)
    return data


def rows(data):
    values = floats(data)
    return [values[i : i + VOCAB] for i in range(0, len(values), VOCAB)]


def distance(a, b):
    """Norm of the difference over the norm."""
    gap = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))
    return gap / math.sqrt(sum(y * y for y in b))


@test
def test_every_position_has_finite_logits(folder):
    values = floats(logits(folder))
    assert all(map(math.isfinite, values)) and len(set(values[:VOCAB])) > VOCAB // 2


@test
def test_chunks_do_not_change_a_bit(folder):
    whole = logits(folder)
    for chunk in (1, 2, 3, 7, 10, 11, 512):
        assert logits(folder, "--chunk", chunk) == whole, f"--chunk {chunk}"


@test
def test_threads_do_not_change_a_bit(folder):
    whole = logits(folder)
    for threads in (1, 2, 5):
        assert logits(folder, "--threads", threads) == whole, f"--threads {threads}"


@test
def test_a_prefix_has_the_same_logits(folder):
    whole = logits(folder)
    assert logits(folder, ids=IDS[:4]) == whole[: 4 * VOCAB * 4]


@test
def test_the_oracle_backend_agrees(folder):
    """One rounding that falls the other way spreads (models/demo/README.md): so median, not max."""
    cpu, ref = rows(logits(folder)), rows(logits(folder, "--backend", "ref"))
    gaps = sorted(distance(a, b) for a, b in zip(cpu, ref))
    assert gaps[len(gaps) // 2] <= 0.06, gaps
    same = sum(a.index(max(a)) == b.index(max(b)) for a, b in zip(cpu, ref))
    assert same >= len(IDS) - 1, same


@test
def test_recorded_logits_are_met(folder):
    golden = read_safetensors(DEMO / "golden.safetensors")
    ids, wanted = integers(golden["prompt.0.ids"][2]), floats(golden["prompt.0.logits"][2])
    found = rows(logits(folder, ids=ids))[-1]
    assert distance(found, wanted) < 0.1, distance(found, wanted)
    assert found.index(max(found)) == wanted.index(max(wanted))


@test
def test_standard_output_takes_the_file_too(folder):
    result = succeeds(deepinfer("logits", "-m", DEMO, "--ids", "0,17,42", "-o", "-"))
    assert read_safetensors(result.raw)["logits"][1] == [3, VOCAB]


@test
def test_nothing_is_written_where_ids_are_refused(_):
    result = deepinfer("logits", "-m", DEMO, "--ids", "0,4160")
    complains(result, 1, "4160")
    assert result.raw == b"", result


@test
def test_a_terminal_is_not_filled_with_bytes(_):
    child, terminal = pty.openpty()
    try:
        complains(deepinfer("logits", "-m", DEMO, "--ids", "1", stdout=terminal), 2, "--output")
    finally:
        os.close(child)
        os.close(terminal)


@test
def test_bad_ids_are_refused_by_value(folder):
    out = folder / "x.safetensors"
    for ids, status, *parts in [("0,4160", 1, "4160", "4159"), ("-1", 1, "-1"), ("0,,1", 2),
                                ("", 2, "--ids"), ("1,2,x", 2, "x"), ("1,2,", 2), ("1.5", 2, "1.5"),
                                ("99999999999999999999", 2)]:
        complains(deepinfer("logits", "-m", DEMO, "--ids", ids, "-o", out), status, *parts)
    assert not os.listdir(folder)


@test
def test_more_ids_than_the_context_has_are_refused_with_both_lengths(folder):
    ids = ",".join(["5"] * 9)
    result = deepinfer("logits", "-m", DEMO, "--ids", ids, "--max-model-len", 8, "-o",
                       folder / "x.safetensors")
    complains(result, 1, "9", "8")
    assert not os.listdir(folder)


main()
