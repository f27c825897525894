"""calibrate: temperatures of the confidence head are fitted and found again."""

import json
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, "tests/support")
from cli import DEMO, complains, deepinfer, main, succeeds, test

PROMPTS = "\n".join(json.dumps({"prompt": f"Chapter {i}. The", "seed": i, "ignore_eos": True}) for i in range(6)) + "\n"


def copy_of_demo(folder):
    model = folder / "model"
    model.mkdir()
    for file in Path(DEMO).iterdir():
        os.symlink(file.absolute(), model / file.name)
    return model


def calibrate(model, *flags, stdin=PROMPTS):
    return deepinfer("calibrate", "-m", model, "-n", 40, "-q", "--temperature", 1, *flags, stdin=stdin)


@test
def test_temperatures_are_written_where_they_are_read(folder):
    model = copy_of_demo(folder)
    result = succeeds(calibrate(model))
    rows = [line.split() for line in result.out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"], result.out
    tests = [int(row[1]) for row in rows]
    assert tests[0] > 80 and all(a >= b for a, b in zip(tests, tests[1:])), tests
    written = json.loads((model / "draft_calibration.json").read_text())
    assert len(written["temperatures"]) == 5 and written["rounds"] == tests[0]
    for row, temperature in zip(rows, written["temperatures"]):
        assert abs(float(row[5]) - temperature) < 0.001 and 0.125 <= temperature <= 8
    assert "draft_calibration.json" in result.err
    # another run finds them, and damage is told
    (model / "draft_calibration.json").write_text('{"temperatures": [1, 2, 3, 4, 0]}')
    complains(deepinfer("run", "-m", model, "-p", "x", "-n", 2), 1, "draft_calibration.json", "0.01")
    succeeds(deepinfer("run", "-m", model, "-p", "x", "-n", 2, "--confidence-temperature", 2))
    succeeds(calibrate(model))  # does not read what it is to write
    succeeds(deepinfer("run", "-m", model, "-p", "x", "-n", 2))


@test
def test_too_little_is_refused_and_nothing_written(folder):
    model = copy_of_demo(folder)
    complains(calibrate(model, stdin=""), 1, "0 drafts were tested", "50")
    complains(calibrate(model, stdin="{}\n"), 1, "standard input line 1")
    complains(calibrate(model, "--num-drafts", 0), 2, "--num-drafts is 0")
    complains(calibrate(model, "--num-drafts", 0, "-i", folder / "none"), 2, "--num-drafts is 0")
    assert not (model / "draft_calibration.json").exists()


@test
def test_spec_stats_add_up(_):
    result = succeeds(deepinfer("generate", "-m", DEMO, "-o", "/dev/null", "-q", "--spec-stats",
                                "--spec-mode", "fixed", "--num-drafts", 3, "--temperature", 0,
                                "--max-tokens", 40, stdin=PROMPTS))
    rows = [line.split() for line in result.err.splitlines() if line[:5].strip().isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "3"], result.err
    for _, made, verified, accepted, tested, observed, expected in rows:
        assert int(made) >= int(verified) >= int(tested) >= int(accepted)
        assert abs(float(observed[:-1]) - 100 * int(accepted) / max(1, int(tested))) < 0.06
        assert 0 <= float(expected[:-1]) <= 100
    lines = {line.split(":")[0]: line for line in result.err.splitlines() if ":" in line}
    shares = [float(x) for x in re.findall(r"\d+: ([\d.]+)%", lines["lengths"])]
    assert len(shares) == 4 and abs(sum(shares) - 100) < 0.3, lines
    rounds, tokens = re.fullmatch(r"rounds: +(\d+) with drafts, ([\d.]+) tokens each",
                                  lines["rounds"]).groups()
    accepted = sum(int(row[3]) for row in rows)
    assert abs(float(tokens) - 1 - accepted / int(rounds)) < 0.006, lines
    assert "step times" not in lines  # nothing is predicted where all are verified
    # Times are told whether or not drafts have paid.
    priced = succeeds(deepinfer("generate", "-m", DEMO, "-o", "/dev/null", "-q", "--spec-stats",
                                "--temperature", 0, "--max-tokens", 40, stdin=PROMPTS))
    found = re.search(r"step times: (\d+) predicted, ([\d.]+) ms each on average, "
                      r"measured ([\d.]+) ms; mean error ([\d.]+)%", priced.err)
    assert found and all(float(x) > 0 for x in found.groups()), priced.err
    none = succeeds(deepinfer("run", "-m", DEMO, "-p", "x", "-n", 2, "-q", "--spec-stats",
                              "--spec-mode", "off"))
    assert "none were made" in none.err


@test
def test_the_environment_names_are_deepinfers(_):
    run = ("run", "-m", DEMO, "-p", "x", "-n", 8, "-q", "--temperature", 0, "--spec-stats")
    off = succeeds(deepinfer(*run, env={"DEEPINFER_USE_NEXTN_DECODE": "0"}))
    assert "none were made" in off.err, off.err
    complains(deepinfer(*run, env={"DEEPINFER_USE_NEXTN_DECODE": "17"}), 2,
              "DEEPINFER_USE_NEXTN_DECODE", "0 to 16")
    complains(deepinfer(*run, env={"DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE": "1,2"}), 1,
              "confidence_temperatures", "2 numbers")
    complains(deepinfer(*run, "--spec-mode", "often"), 2, "--spec-mode", "off or fixed or priced")


main()
