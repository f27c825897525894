"""What is said when a card cannot be used, by the CUDA part itself above a runtime that fails as told
(tests/badcard): which drivers, cards and memories are refused in which words, that 'auto' computes
on the processor then, and how answers end when a kernel has failed."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, "tests/support")
from cli import (DEMO, MODE, PATIENCE, PROGRAM, Skip, complains, deepinfer, environment, main,
                 objects, succeeds, test)

BUILD = Path(os.environ.get("BUILD", "build/" + MODE))
CARD = BUILD / "tests/badcard/libbadcard.so"
BUSY, FULL, FAULT = 46, 2, 719


def env(wrong, **more):
    if not CARD.exists():
        raise Skip("no CUDA headers")
    return {"DI_CUDA_LIBRARY": str(CARD.resolve()), "BADCARD": wrong, **more}


def run(wrong, *args, device="cuda", **more):
    return deepinfer("run", "-m", DEMO, "-p", "Hello", "--max-tokens", 2, "--temperature", 0,
                     "--device", device, *args, env=env(wrong, **more))


def refused(wrong, *words, device="cuda", args=()):
    """With 'cuda' an error of one line, with 'auto' the same as a warning, and the CPU's answer."""
    complains(run(wrong, *args, device=device), 1, *words)
    result = succeeds(run(wrong, *args, device="auto"))
    warnings = [l for l in result.err.splitlines() if l.startswith("deepinfer: warning: ")]
    assert len(warnings) == 1 and "using the CPU: " in warnings[0], result
    for word in words:
        assert str(word).lower() in warnings[0].lower(), (word, result)
    on_cpu = succeeds(run("", *args, device="cpu"))
    assert result.out == on_cpu.out, (result, on_cpu)


def version(wrong):
    told = succeeds(deepinfer("version", env=env(wrong))).out
    return next(line for line in told.splitlines() if line.startswith("CUDA "))


@test
def test_no_driver(folder):
    refused("driver=0", "no NVIDIA driver on this machine")
    assert "no NVIDIA driver" in version("driver=0")


@test
def test_an_old_driver_is_told_with_both_versions(folder):
    refused("driver=12040", "driver is too old", "CUDA 12.4", "needs 1")
    assert "CUDA 12.4" in version("driver=12040")


@test
def test_no_card(folder):
    refused("cards=0", "no NVIDIA card", "no CUDA-capable device")
    assert "no NVIDIA card" in version("cards=0")


@test
def test_a_card_that_is_not_there_is_told_with_how_many_are(folder):
    complains(run("cards=1", device="cuda:1"), 1, "cuda:1: there is 1 card here, from cuda:0 on")
    complains(run("cards=4", device="cuda:99"), 1, "cuda:99: there are 4 cards here")


@test
def test_cards_of_other_generations_are_told_with_what_is_allowed(folder):
    for capability, name in [(80, "8.0"), (89, "8.9"), (103, "10.3"), (120, "12.0")]:
        refused(f"capability={capability}", "cuda:0", f"capability {name}", "9.0 (Hopper)",
                "10.0 (Blackwell)")
        assert "Bad Card 0" in version(f"capability={capability}")
        assert "no kernels" in version(f"capability={capability}")
    for capability in (90, 100):
        assert "no kernels" not in version(f"capability={capability}")


@test
def test_a_busy_card(folder):
    refused(f"cudaSetDevice={BUSY}", "cuda:0 cannot be used", "busy")
    refused(f"cudaStreamCreateWithFlags={BUSY}", "cuda:0 cannot be used", "busy")


@test
def test_a_card_that_is_full(folder):
    refused(f"cudaSetDevice={FULL}", "cuda:0", "its memory is full")
    refused(f"cudaMalloc={FULL}", "cuda:0", "no memory on the card")
    refused(f"cudaHostAlloc={FULL}", "cuda:0", "page-locked memory", "out of memory")


PLAN = ("weights", "n-gram tables", "work (max_num_batched_tokens 512)", "(max_num_seqs)", "spare")


@test
def test_a_card_too_small_for_the_model_is_told_with_the_plan(folder):
    refused("memory=300", "the card's memory is too small", *PLAN, "0.29 that are free")
    refused("memory=4096", "the card's memory is too small", *PLAN, "allowed are 0.29 (gpu_memory)",
            "of 4.00 that are free", args=["--gpu-memory", "300M"])
    refused("memory=4096", "too small", "allowed are 0.40 (gpu_memory)", args=["--gpu-memory", "10%"])


@test
def test_memory_that_goes_while_the_model_is_opened_is_told_with_the_plan(folder):
    for number in range(2, 40):
        result = run(f"cudaMalloc@{number}={FULL}")
        if result.status == 0:
            continue
        complains(result, 1, *PLAN, "that are free")


@test
def test_words_for_devices_and_memory(folder):
    for word in ["", "CUDA", "gpu", "nvidia", "cuda:", "cuda:-1", "cuda:x", "cuda:0x", "cuda:1000",
                 "cuda:0 ", "auto:0", "cpu:0"]:
        for option in ("--device", "--backend"):
            complains(deepinfer("run", "-m", DEMO, "-p", "x", option, word, env=env("")), 2,
                      f"{option} is '{word}'", "cpu or cuda[:N] or auto or ref")
    for word in ["0", "", "-1", "lots", "0%", "101%", "10X", "0.2", "nan", "1e30", "0x10"]:
        complains(run("", "--gpu-memory", word), 2, f"--gpu-memory is '{word}'", "bytes above 0",
                  "1% to 100%")


def generate(folder, wrong, *args, **more):
    """Three requests; the result, and their answers as objects."""
    lines = [{"prompt_token_ids": [5, 6, 7 + i], "max_tokens": 4} for i in range(3)]
    result = deepinfer("generate", "-m", DEMO, "--device", "cuda", "-q", *args,
                       stdin="".join(json.dumps(line) + "\n" for line in lines),
                       env=env(wrong, **more))
    return result, objects(result.out)


@test
def test_a_kernel_fault_names_its_op_and_fails_the_answers(folder):
    for op in ["embed", "linear", "attention", "moe", "mhc_mix", "index_topk"]:
        result, answers = generate(folder, "", "--spec-mode", "off", DI_CUDA_TRAP=op,
                                   DI_CUDA_SYNC="1")
        assert result.status == 1, result
        assert len(answers) == 3, result
        said = [json.dumps(answer) for answer in answers]
        assert f"cuda:0: {op}: unspecified launch failure" in said[0], result
        assert all("cuda:0: " in a and "unspecified launch failure" in a for a in said), result


@test
def test_a_fault_while_steps_are_priced_ends_the_opening(folder):
    complains(run("", DI_CUDA_TRAP="moe", DI_CUDA_SYNC="1"), 1,
              "cuda:0: moe: unspecified launch failure")


@test
def test_a_fault_on_the_way_fails_what_runs_and_ends_with_1(folder):
    for where in ["cudaGraphLaunch@2", "cudaEventSynchronize@2", "cudaEventElapsedTime@3"]:
        for more in [(), ("--sync",)]:
            result, answers = generate(folder, f"{where}={FAULT}", "--spec-mode", "off", *more)
            assert result.status == 1, (where, more, result)
            assert len(answers) == 3, (where, more, result)
            failed = [json.dumps(a) for a in answers if "error" in a]
            assert failed, (where, more, result)
            for answer in failed:
                assert "cuda:0: " in answer and "unspecified launch failure" in answer, result


def completion(address):
    """Status and body of one completion."""
    body = {"model": "DeepSeek-V4.1-Flash", "prompt": "Hello", "max_tokens": 4}
    request = urllib.request.Request(address + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@test
def test_a_server_whose_card_is_lost_ends_with_1(folder):
    """So that who started it can start another: nothing else brings the card back."""
    words = [PROGRAM, "serve", "-m", DEMO, "--device", "cuda", "--port", "0", "--spec-mode", "off",
             "--access-log", "/dev/null"]
    server = subprocess.Popen(list(map(str, words)), stderr=subprocess.PIPE, text=True,
                              env=environment(**env(f"cudaGraphLaunch@6={FAULT}")))
    try:
        address = re.search(r"http://\S+", server.stderr.readline())[0]
        assert completion(address)[0] == 200
        status, body = completion(address)
        assert status == 500 and "cuda:0: recorded step: unspecified launch failure" in body, body
        said = server.communicate(timeout=PATIENCE)[1]
        assert server.returncode == 1, said
        assert "deepinfer: error: cuda:0: recorded step: unspecified launch failure" in said, said
    finally:
        server.kill()
        server.wait()


@test
def test_a_whole_card_is_opened_and_answers(folder):
    """So that what is refused above is refused for its fault."""
    succeeds(run(""))
    result, answers = generate(folder, "")
    assert result.status == 0 and len(answers) == 3, result
    assert all("error" not in a for a in answers), result


main()
