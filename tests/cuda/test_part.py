"""The CUDA part is opened only if it is of the program's own build: structs of every kind go across."""

import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, "tests/support")
from cli import DEMO, Skip, complains, deepinfer, main, succeeds, test

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


main()
