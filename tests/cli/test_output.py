"""Where results go: full disks, closed pipes, interruptions. Nothing is ever left half-written."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time

sys.path.insert(0, "tests/support")
from cli import (DEMO, MODE, PATIENCE, PROGRAM, Skip, complains, deepinfer, environment, main,
                 read_safetensors, start, succeeds, test)

LOGITS = ("logits", "-m", DEMO, "--ids", "0,17,42")
REQUESTS = "".join(json.dumps({"prompt": f"The {i}", "max_tokens": 4}) + "\n" for i in range(3))
GENERATE = ("generate", "-m", DEMO, "--temperature", "0")


def small_files(most_bytes):
    """For a child: files may not grow past this, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


def many_requests(count, tokens):
    return "".join(json.dumps({"prompt": f"Chapter {i}. The", "max_tokens": tokens,
                               "ignore_eos": True}) + "\n" for i in range(count))


@test
def test_a_full_device_is_reported_and_fails(_):
    with open("/dev/full", "wb") as full:
        text = deepinfer("tokenize", "-m", DEMO, stdin='"a"\n', stdout=full)
        complains(text, 1, "standard output", "no space left")
        complains(deepinfer("detokenize", "-m", DEMO, stdin="[5]\n", stdout=full), 1, "no space left")
        complains(deepinfer("run", "-m", DEMO, "-p", "Hello!", "-q", "-n", 3, stdout=full), 1,
                  "no space left")
        complains(deepinfer(*GENERATE, stdin=REQUESTS, stdout=full), 1, "no space left")
        complains(deepinfer("help", stdout=full), 1, "no space left")
        complains(deepinfer("version", stdout=full), 1, "no space left")
        complains(deepinfer("inspect", DEMO, stdout=full), 1, "no space left")


def closing(*descriptors):
    """For a child: these of 0, 1 and 2 are closed, as by `<&- >&- 2>&-`."""
    return lambda: [os.close(fd) for fd in descriptors]


@test
def test_what_was_for_a_closed_descriptor_goes_into_no_file(folder):
    lines = '{"prompt": "The", "max_tokens": 4, "seed": 1}\n{}\n'
    (folder / "in.jsonl").write_text(lines)
    out, trace = folder / "out.jsonl", folder / "trace.json"
    told = ("generate", "-m", DEMO, "-i", folder / "in.jsonl", "-o", out, "--stats", "--trace", trace)
    assert deepinfer(*told).status == 1
    wanted = out.read_text()
    for fds in [(2,), (1, 2), (0, 2), (0, 1, 2)]:
        assert deepinfer(*told, preexec_fn=closing(*fds)).status == 1
        assert out.read_text() == wanted, (fds, out.read_text())
        assert len(json.loads(trace.read_text())["traceEvents"]) > 3, fds
    run = ("run", "-m", DEMO, "-p", "Hello!", "-n", 3, "--trace", trace)
    for fds in [(1,), (0, 1)]:
        complains(deepinfer(*run, preexec_fn=closing(*fds)), 1, "standard output", "bad file")
        json.loads(trace.read_text())


@test
def test_a_seed_that_was_drawn_can_be_given_again(folder):
    generate = ("generate", "-m", DEMO, "-q", "--num-drafts", 0)
    request = '{"prompt": "The", "max_tokens": 12, "temperature": 1.5}\n'
    drawn = [json.loads(line) for line in succeeds(deepinfer(*generate, stdin=request * 16)).out.splitlines()]
    assert len({answer["seed"] for answer in drawn}) == 16
    for first in drawn[:4] + sorted(drawn, key=lambda answer: answer["seed"])[:2]:
        again = succeeds(deepinfer(*generate, "--seed", first["seed"], stdin=request))
        assert json.loads(again.out)["token_ids"] == first["token_ids"]


@test
def test_a_file_that_may_not_grow_is_reported_and_not_left_behind(folder):
    out = folder / "out.safetensors"
    result = deepinfer(*LOGITS, "-o", out, preexec_fn=small_files(4096))
    complains(result, 1, "out.safetensors")
    assert not os.listdir(folder), os.listdir(folder)


@test
def test_a_failed_write_keeps_the_file_that_was_there(folder):
    out = folder / "out.safetensors"
    out.write_text("what was there")
    complains(deepinfer(*LOGITS, "-o", out, preexec_fn=small_files(4096)), 1, "out.safetensors")
    assert os.listdir(folder) == [out.name] and out.read_text() == "what was there"


@test
def test_generate_on_a_full_disk_leaves_nothing(folder):
    out = folder / "out.jsonl"
    result = deepinfer(*GENERATE, "-o", out, stdin=REQUESTS, preexec_fn=small_files(64))
    complains(result, 1, "out.jsonl")
    assert not os.listdir(folder), os.listdir(folder)


@test
def test_an_output_folder_that_is_missing_is_named_before_any_work(folder):
    out = folder / "none" / "out.safetensors"
    complains(deepinfer(*LOGITS, "-o", out), 1, "none/out.safetensors", "no such file")


@test
def test_a_folder_in_place_of_the_output_is_refused(folder):
    complains(deepinfer(*LOGITS, "-o", folder), 1, folder)
    assert not os.listdir(folder)


@test
def test_an_existing_output_is_replaced_at_once(folder):
    out = folder / "out.safetensors"
    out.write_text("old")
    succeeds(deepinfer(*LOGITS, "-o", out))
    assert read_safetensors(out)["logits"][1] == [3, 4160]
    assert os.listdir(folder) == [out.name]


@test
def test_the_output_gets_the_rights_that_umask_gives(folder):
    out = folder / "out.safetensors"
    succeeds(deepinfer(*LOGITS, "-o", out, preexec_fn=lambda: os.umask(0o027)))
    assert stat.S_IMODE(out.stat().st_mode) == 0o640, oct(out.stat().st_mode)


@test
def test_a_link_as_output_stays_a_link(folder):
    (folder / "real").write_text("old")
    (folder / "link").symlink_to("real")
    succeeds(deepinfer(*LOGITS, "-o", folder / "link"))
    assert (folder / "link").is_symlink()
    assert read_safetensors(folder / "real")["logits"][1] == [3, 4160]


@test
def test_a_pipe_with_a_name_is_written_through(folder):
    pipe, got = folder / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    succeeds(deepinfer(*LOGITS, "-o", pipe))
    reader.join(PATIENCE)
    assert read_safetensors(got[0])["logits"][1] == [3, 4160]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@test
def test_a_device_as_output_stays_a_device(_):
    before = os.stat("/dev/null").st_rdev
    succeeds(deepinfer(*LOGITS, "-o", "/dev/null"))
    assert os.stat("/dev/null").st_rdev == before and not os.path.isfile("/dev/null")


@test
def test_a_reader_that_goes_away_ends_every_command_quietly(_):
    for args, data in [(("help",), b""), (("inspect", DEMO), b""),
                       (("tokenize", "-m", DEMO), b'"a b c d e f g h"\n' * 20_000),
                       (GENERATE, REQUESTS.encode() * 3)]:
        read_end, write_end = os.pipe()
        os.close(read_end)
        try:
            result = deepinfer(*args, stdin=data, stdout=write_end)
        finally:
            os.close(write_end)
        assert result.status == 1 and result.err == "", (args, result)


@test
def test_head_gets_its_byte_and_the_program_ends(_):
    command = f"'{PROGRAM}' help | head -c1; echo \" ${{PIPESTATUS[0]}}\""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True,
                          env=environment(), timeout=PATIENCE)
    assert done.stderr == "" and done.stdout[-2] in "01", done


def interrupted(folder, number, *args, data):
    """Sends the signal once the temporary output is there; -> (status, standard error)."""
    child = start(*args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                  preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    feeder = threading.Thread(target=lambda: (child.stdin.write(data), child.stdin.close()),
                              daemon=True)
    feeder.start()
    limit = time.monotonic() + PATIENCE
    while not os.listdir(folder) and child.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.2)
    assert child.poll() is None, "it was done before the signal: give it more work"
    child.send_signal(number)
    child.wait(timeout=PATIENCE)
    return child.returncode, child.stderr.read().decode()


@test
def test_an_interrupted_generate_leaves_no_file_and_says_130(folder):
    out = folder / "out.jsonl"
    data = many_requests(500, 400).encode()
    status, err = interrupted(folder, signal.SIGINT, *GENERATE, "-o", out, data=data)
    assert status == 130, (status, err)
    assert not os.listdir(folder), os.listdir(folder)


@test
def test_a_terminated_generate_leaves_no_file(folder):
    """Nor one whose terminal is closed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        out = folder / "out.jsonl"
        data = many_requests(500, 400).encode()
        status, err = interrupted(folder, number, *GENERATE, "-o", out, data=data)
        assert status == 128 + number, (status, err)
        assert not os.listdir(folder), os.listdir(folder)


def tracing(folder):
    """A generate --trace that has answered two requests (what it has of one alone may still be
    thrown away by a signal) and has many more to do."""
    (folder / "in.jsonl").write_text(many_requests(500, 400))
    child = start(*GENERATE, "--max-num-seqs", 2, "-i", folder / "in.jsonl", "-o", folder / "out",
                  "--trace", folder / "trace.json", stderr=subprocess.PIPE,
                  preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    partial = folder / "out.partial"
    limit = time.monotonic() + PATIENCE
    while (not partial.exists() or partial.read_bytes().count(b"\n") < 2) and \
            time.monotonic() < limit:
        time.sleep(0.01)
    assert child.poll() is None and len(os.listdir(folder)) == 3, os.listdir(folder)
    return child


@test
def test_a_stopped_generate_keeps_its_trace_so_far(folder):
    for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"),
                         (signal.SIGHUP, "SIGHUP")):
        child = tracing(folder)
        child.send_signal(number)
        _, err = child.communicate(timeout=PATIENCE)
        assert child.returncode == 128 + number, (child.returncode, err)
        assert f"stopped by {name}; " in err.decode() and "--resume" in err.decode(), err
        assert sorted(os.listdir(folder)) == ["in.jsonl", "out.partial", "trace.json"]
        assert len(json.loads((folder / "trace.json").read_text())["traceEvents"]) > 3
        os.unlink(folder / "trace.json")
        os.unlink(folder / "out.partial")


@test
def test_a_second_signal_ends_at_once_and_leaves_no_trace(folder):
    child = tracing(folder)
    child.send_signal(signal.SIGSTOP)  # so that both are there before anybody looks
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGCONT)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode in (130, 143), (child.returncode, err)
    assert b"stopped by" not in err, err
    assert sorted(os.listdir(folder)) == ["in.jsonl", "out.partial"], os.listdir(folder)


@test
def test_an_interrupted_logits_leaves_no_file_and_says_130(folder):
    ids = ",".join(str(3 + i % 4000) for i in range(4000))
    child = start("logits", "-m", DEMO, "--ids", ids, "--chunk", 1, "-o", folder / "out",
                  stderr=subprocess.PIPE)
    time.sleep(1.0)
    assert child.poll() is None, "it was done before the signal: give it more work"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130, (child.returncode, err)
    assert not os.listdir(folder), os.listdir(folder)


@test
def test_a_line_without_an_end_is_an_error_and_not_read_for_ever(_):
    endless = bytes(72 << 20)
    for command in ("generate", "tokenize", "recipe"):
        complains(deepinfer(command, "-m", DEMO, stdin=endless), 1, "line 1 is longer than 64 MiB")


@test
def test_memory_that_is_refused_is_an_error_and_no_crash(folder):
    if MODE != "release":
        raise Skip("sanitizers reserve terabytes of address space")
    for mebibytes in (60, 90, 120, 160):
        limit = mebibytes << 20
        result = deepinfer(*LOGITS, "-o", folder / "out", "--threads", 1,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        if result.status == 0:
            os.unlink(folder / "out")
        else:
            complains(result, 1, "memory")
        assert not os.listdir(folder), os.listdir(folder)


main()
