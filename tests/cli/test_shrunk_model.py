"""A model's files may change while they are mapped: a message, not a crash."""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, "tests/support")
from cli import DEMO, PATIENCE, PROGRAM, Skip, environment, main, test, MODE


@test
def test_a_shard_that_shrinks_in_use_is_an_error_that_leaves_nothing(folder):
    if MODE != "release":
        raise Skip("sanitizers keep SIGBUS for themselves")
    model, out = folder / "model", folder / "out.jsonl"
    shutil.copytree(DEMO, model)
    model.chmod(0o755)
    request = b'{"prompt": "Hello", "max_tokens": 2}\n'
    child = subprocess.Popen([str(PROGRAM), "generate", "-m", str(model), "-o", str(out)],
                             stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    while len(os.listdir(f"/proc/{child.pid}/task")) == 1:  # the model is open when threads run
        assert child.poll() is None
    for shard in model.glob("*.safetensors"):
        shard.chmod(0o644)
        os.truncate(shard, 4096)
    _, err = child.communicate(request, timeout=PATIENCE)
    assert child.returncode == 1, (child.returncode, err)
    assert err.count(b"\n") == 1 and b"became shorter" in err, err
    assert os.listdir(folder) == ["model"], os.listdir(folder)


main()
