"""Drives build/MODE/deepinfer as a person would, for tests/cli/test_*.py.

A test file decorates functions with @test and ends with main(); every function is one TAP case,
named by what must hold. Standard library only.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

MODE = os.environ.get("MODE", "release")
PROGRAM = Path(os.environ.get("BUILD", "build/" + MODE)).resolve() / "deepinfer"
DEMO = Path("models/demo").resolve()
# Sanitized builds are slower by a factor of ten and more, and the machine may be busy.
PATIENCE = 120 if MODE == "release" else 900

_tests = []


def test(function):
    _tests.append(function)
    return function


def main():
    """Runs the file's tests; names on the command line choose some."""
    if not PROGRAM.exists():
        sys.exit(f"{PROGRAM} is not built")
    chosen = [t for t in _tests if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    failed = 0
    print(f"1..{len(chosen)}")
    for number, function in enumerate(chosen, 1):
        try:
            with tempfile.TemporaryDirectory() as folder:
                function(Path(folder))
            print(f"ok {number} - {function.__name__}", flush=True)
        except Skip as why:
            print(f"ok {number} - {function.__name__} # SKIP {why}", flush=True)
        except BaseException as error:
            failed += 1
            print(f"not ok {number} - {function.__name__}", flush=True)
            for line in traceback.format_exc().splitlines():
                print("# " + line, flush=True)
            if isinstance(error, KeyboardInterrupt):
                break
    sys.exit(failed > 0)


class Skip(Exception):
    """Raised by a test that cannot be made here."""


# ---- running it -------------------------------------------------------------------------------


def environment(**more):
    """The caller's environment without DEEPINFER_..., which the test runner takes away too."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    env.update(more)
    return env


class Result:
    def __init__(self, status, out, err):
        self.status, self.raw, self.err = status, out, err.decode()
        self.out = out.decode(errors="replace")

    def __repr__(self):
        return f"status {self.status}\nstdout: {self.out[:2000]!r}\nstderr: {self.err[:4000]!r}"


def deepinfer(*args, stdin=b"", env=None, **more):
    """Runs the program to its end; args may be str, bytes, numbers or paths."""
    words = [a if isinstance(a, bytes) else str(a) for a in args]
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run([str(PROGRAM), *words], input=data, timeout=PATIENCE,
                          stdout=more.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                          env=environment(**(env or {})), **more)
    return Result(done.returncode, done.stdout or b"", done.stderr)


def start(*args, **more):
    """Starts the program and leaves it running."""
    return subprocess.Popen([str(PROGRAM), *map(str, args)], env=environment(), **more)


# ---- what is demanded of it -------------------------------------------------------------------


def succeeds(result):
    assert result.status == 0, result
    return result


def complains(result, status, *parts):
    """Status, and one line on standard error that has all parts; returns that line."""
    lines = [l for l in result.err.splitlines() if l.startswith("deepinfer: error: ")]
    assert result.status == status, f"wanted status {status}\n{result}"
    assert len(lines) == 1, f"wanted one line of error\n{result}"
    for part in parts:
        assert str(part).lower() in lines[0].lower(), f"wanted {part!r} in the message\n{result}"
    return lines[0]


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


# ---- model folders ----------------------------------------------------------------------------


def copy_of_demo(folder, without=()):
    """A folder like models/demo whose files may be replaced: links to the real ones."""
    copy = Path(folder) / "model"
    copy.mkdir()
    for file in DEMO.iterdir():
        if file.name not in without:
            (copy / file.name).symlink_to(file)
    return copy


def replace(file, data):
    """Puts data where a link to the original was."""
    file.unlink(missing_ok=True)
    file.write_bytes(data.encode() if isinstance(data, str) else data)


def edit_config(model, change):
    """Applies change(config) to the folder's config.json."""
    config = json.loads((model / "config.json").read_text())
    change(config)
    replace(model / "config.json", json.dumps(config))


def shard(model, number=1):
    return sorted(model.glob("model-*.safetensors"))[number - 1]


# ---- safetensors ------------------------------------------------------------------------------


def read_safetensors(path):
    """-> {name: (dtype, shape, bytes)}"""
    raw = path if isinstance(path, bytes) else Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = (8 + length + o for o in entry["data_offsets"])
        out[name] = (entry["dtype"], entry["shape"], raw[begin:end])
    return out


def floats(data):
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def integers(data):
    return list(struct.unpack(f"<{len(data) // 4}i", data))
