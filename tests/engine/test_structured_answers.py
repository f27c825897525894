"""What the engine writes under a schema, judged by another validator: the answers of
test_structured_events' walk are parsed by Python and validated by the jsonschema package."""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, "tests/support")
from cli import MODE, PATIENCE, Skip, main, test

WALK = Path(os.environ.get("BUILD", "build/" + MODE)) / "tests/engine/test_structured_events"


def once(pairs):
    """An object none of whose names comes twice."""
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), names
    return dict(pairs)


@test
def test_whole_answers_are_valid(folder):
    try:
        import jsonschema
    except ImportError:
        raise Skip("Python's jsonschema is not installed")
    file = folder / "answers.jsonl"
    run = subprocess.run([WALK.resolve()], capture_output=True, text=True, timeout=10 * PATIENCE,
                         env={**os.environ, "ANSWERS": str(file), "SEED": "7", "REQUESTS": "120"})
    assert run.returncode == 0, run.stdout + run.stderr
    seen = set()
    for line in file.read_text().splitlines():
        item = json.loads(line)
        value = json.loads(item["text"], object_pairs_hook=once)
        validator = jsonschema.Draft202012Validator(
            json.loads(item["schema"]), format_checker=jsonschema.FormatChecker())
        errors = [error.message for error in validator.iter_errors(value)]
        assert not errors, (item, errors)
        seen.add((item["schema"], item["text"]))
    assert len(seen) > 8 and len({schema for schema, _ in seen}) > 3, seen


if __name__ == "__main__":
    main()
