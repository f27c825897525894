"""The CUDA part: what it is linked with, that it has every kernel for both generations, that it is
opened when a card is asked for and only if it is of the program's own build (structs of every kind
go across)."""

import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, "tests/support")
from cli import DEMO, PROGRAM, Skip, complains, deepinfer, main, succeeds, test

PART_FILE = PROGRAM.parent / "libdeepinfer-cuda.so"

PART = """
#include "base/error.h"
#include "ops/cuda/card/part.h"

static const char *version(void) {
    return "%s";
}

static const char *revision(void) {
    return "%s";
}

static di_backend *create(int device, di_error *err) {
    (void)device;
    err->code = DI_ERR_UNSUPPORTED;
    err->message[0] = '!';
    err->message[1] = 0;
    return 0;
}

const di_cuda_part di_cuda_part_table = {
    .size = sizeof(di_cuda_part) + %d, .version = version, .revision = revision, .create = create};
"""


def answer(folder, version, revision, more=0):
    """What the program says with such a part in place of its own."""
    (folder / "part.c").write_text(PART % (version, revision, more))
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-fPIC", "-shared", "-Isrc", "-Iinclude",
                    folder / "part.c", "-o", folder / "part.so"], check=True)
    return deepinfer("run", "-m", DEMO, "-p", "x", "--backend", "cuda",
                     env={"DI_CUDA_LIBRARY": str(folder / "part.so")})


@test
def test_a_part_of_another_build_is_refused(folder):
    told = succeeds(deepinfer("version")).out
    if "this build has no CUDA" in told:
        raise Skip("this build has no CUDA")
    if not shutil.which(os.environ.get("CC", "cc")):
        raise Skip("no C compiler")
    version, revision = re.match(r"deepinfer (\S+) \((\S+), ", told).groups()
    complains(answer(folder, version, revision), 1, "!")
    for other in [("9.9.9", revision), (version, "other"), (version, revision, 8)]:
        complains(answer(folder, *other), 1, "another version", revision)


def part_file():
    if "this build has no CUDA" in succeeds(deepinfer("version")).out or not PART_FILE.exists():
        raise Skip("this build has no CUDA")
    return PART_FILE


@test
def test_nothing_of_nvidias_is_linked_but_the_runtime_within(folder):
    if not shutil.which("readelf"):
        raise Skip("no readelf")
    allowed = r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so\.\d+|ld-linux-.*"
    for file in [part_file(), PROGRAM]:
        dynamic = subprocess.run(["readelf", "-d", file], check=True, capture_output=True, text=True)
        needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic.stdout)
        assert needed and not [n for n in needed if re.search("cuda|cublas|nccl|nv", n)], needed
        if file == PART_FILE:
            assert all(re.fullmatch(allowed, n) for n in needed), needed


def compiled_for(data):
    """For each file of kernels the generations it was compiled for, as nvcc's containers say: a head
    of 16 bytes with the size of what follows, entries whose heads tell kind (2: machine code),
    their own size, the code's, and the generation."""
    found, at = [], data.find(b"\x50\xed\x55\xba")
    while at >= 0:
        _, _, head, size = struct.unpack_from("<IHHQ", data, at)
        entry, end, generations = at + head, at + head + size, []
        while entry < end:
            kind, _, head, size = struct.unpack_from("<HHIQ", data, entry)
            (generation,) = struct.unpack_from("<I", data, entry + 28)
            assert kind == 2 and head > 0, (kind, head)
            generations.append(generation)
            entry += head + size
        found.append(generations)
        at = data.find(b"\x50\xed\x55\xba", end)
    return found


@test
def test_every_kernel_is_there_for_both_generations(folder):
    found = compiled_for(part_file().read_bytes())
    assert len(found) == len(list(Path("src/ops/cuda/card").glob("*.cu"))), found
    assert all(sorted(generations) == [90, 100] for generations in found), found


@test
def test_it_is_opened_when_a_card_is_asked_for(folder):
    part_file()
    for device, opened in [("cpu", False), ("ref", False), ("cuda", True), ("auto", True)]:
        result = deepinfer("run", "-m", DEMO, "-p", "x", "--max-tokens", 1, "--device", device,
                           env={"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(folder / device)})
        told = "".join(f.read_text() for f in folder.glob(device + ".*"))
        assert "libc.so" in told, result
        assert ("libdeepinfer-cuda" in told) == opened, (device, result)


main()
