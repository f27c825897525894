"""guidellm, which measures servers as its users do, completes a run. It is large (it brings PyTorch), so
it is not installed for tests: GUIDELLM=PATH names the program, or it is on the PATH."""

import json
import os
import shutil
import subprocess
import sys

sys.path[:0] = ["tests/support"]
from cli import DEMO, PATIENCE, Skip, main, test  # noqa: E402
from serving import MODEL, demo  # noqa: E402


@test
def test_guidellm_completes_a_run(folder):
    program = os.environ.get("GUIDELLM") or shutil.which("guidellm")
    if not program:
        raise Skip("no guidellm here (pip install guidellm, 0.8)")
    report = folder / "report.json"
    with demo("--max-num-seqs", "8") as s:
        done = subprocess.run(
            [program, "run", "--backend", f"kind=openai_http,target={s.url},model={MODEL}",
             "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=24",
             "--tokenizer", f"kind=hf_auto,model={DEMO}", "--data",
             "kind=synthetic_text,prompt_tokens=48,output_tokens=16", "--output", f"kind=json,path={report}",
             "--disable-console"], capture_output=True, text=True, timeout=PATIENCE * 4,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(folder)})
        assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
        text = s.request("GET", "/metrics")[2].decode()
    totals = json.loads(report.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    print(f"# {totals}")
    assert totals["successful"] == 24 and not totals["errored"], totals
    served = sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                 if line.startswith("vllm:request_success_total"))
    assert served >= 24, served


if __name__ == "__main__":
    main()
