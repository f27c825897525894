"""generate: a file of requests in, a file of answers out."""

import json
import math
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from cli import (DEMO, PATIENCE, complains, deepinfer, floats, integers, main, objects,
                 read_safetensors, start, succeeds, test)

FLAGS = ("-m", DEMO, "--temperature", "0")
QUESTION = {"messages": [{"role": "user", "content": "Who wrote Dracula?"}]}


def lines(*requests):
    return "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests)


def generate(*requests, flags=()):
    return succeeds(deepinfer("generate", *FLAGS, *flags, stdin=lines(*requests)))


def answers(*requests, flags=()):
    return objects(generate(*requests, flags=flags).out)


def drop_draft_tensors(shard):
    """Leaves the draft model's tensors out of a safetensors file."""
    shard.chmod(0o644)
    data = shard.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body, kept, rest = json.loads(data[8 : 8 + size]), data[8 + size :], {}, b""
    for name, tensor in header.items():
        if name != "__metadata__" and not name.startswith("mtp."):
            begin, end = tensor["data_offsets"]
            kept[name] = dict(tensor, data_offsets=[len(rest), len(rest) + end - begin])
            rest += body[begin:end]
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    shard.write_bytes(struct.pack("<Q", len(text)) + text + rest)


@test
def test_a_model_without_a_draft_model_says_so_once(folder):
    model = folder / "model"
    shutil.copytree(DEMO, model)
    model.chmod(0o755)
    for shard in model.glob("model-*.safetensors"):
        drop_draft_tensors(shard)
    index = model / "model.safetensors.index.json"
    index.chmod(0o644)
    files = json.loads(index.read_text())["weight_map"]
    kept = {name: file for name, file in files.items() if not name.startswith("mtp.")}
    index.write_text(json.dumps({"weight_map": kept}))
    done = succeeds(deepinfer("generate", "-m", str(model), "--temperature", "0", "-q",
                              stdin=lines(QUESTION)))
    assert objects(done.out)[0]["text"] == "Dracula was written by Bram Stoker.", done.out
    assert done.err.count("\n") == 1 and "no drafts" in done.err, done.err
    assert "has no draft model (mtp.* tensors)" in done.err, done.err


@test
def test_messages_are_answered(_):
    (answer,) = answers(QUESTION)
    assert set(answer) == {"index", "token_ids", "text", "finish_reason", "usage"}, answer
    assert answer["text"] == "Dracula was written by Bram Stoker.", answer
    assert answer["index"] == 0 and answer["finish_reason"] == "stop", answer
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(answer["token_ids"]), answer
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], answer


@test
def test_token_ids_go_in_and_come_out(_):
    first, = answers({"prompt_token_ids": [0, 5, 9, 27], "max_tokens": 3, "ignore_eos": True})
    assert len(first["token_ids"]) == 3 and first["finish_reason"] == "length", first
    assert first["usage"]["prompt_tokens"] == 4, first
    second, = answers({"prompt_token_ids": [0, 5, 9, 27] + first["token_ids"][:2],
                       "max_tokens": 1, "ignore_eos": True})
    assert second["token_ids"] == first["token_ids"][2:], (first, second)


@test
def test_recorded_continuations_are_followed_while_the_choice_is_clear(_):
    """models/demo/README.md: below a margin of about 1 two correct programs may part."""
    golden = read_safetensors(DEMO / "golden.safetensors")
    numbers = sorted({int(name.split(".")[1]) for name in golden})
    value = lambda i, name, read: read(golden[f"prompt.{i}.{name}"][2])
    found = answers(*({"prompt_token_ids": value(i, "ids", integers), "max_tokens": 32,
                       "ignore_eos": True} for i in numbers))
    compared = 0
    for i, answer in zip(numbers, found):
        wanted, margin = value(i, "greedy", integers), value(i, "margin", floats)
        clear = next((k for k, m in enumerate(margin) if m < 1.0), len(margin))
        assert answer["token_ids"][:clear] == wanted[:clear], (i, clear, answer, wanted)
        compared += clear
    assert compared >= 10, f"only {compared} tokens of all prompts were clear"


@test
def test_requests_are_answered_in_their_order_with_their_own_parameters(_):
    found = answers({**QUESTION, "max_tokens": 2}, {"prompt": "The old house", "max_tokens": 5},
                    QUESTION)
    assert [a["index"] for a in found] == [0, 1, 2], found
    assert len(found[0]["token_ids"]) == 2 and len(found[1]["token_ids"]) <= 5, found
    assert found[2]["token_ids"][:2] == found[0]["token_ids"], found


@test
def test_fields_of_a_line_beat_the_flags(_):
    (short,), (long,) = (answers({**QUESTION, **more}, flags=("--max-tokens", 2))
                         for more in ({}, {"max_tokens": 4}))
    assert (len(short["token_ids"]), len(long["token_ids"])) == (2, 4), (short, long)


@test
def test_a_seed_in_a_line_makes_its_answer_repeatable(_):
    request = {"prompt": "The ghost", "temperature": 1.0, "seed": 11, "max_tokens": 12}
    first, second, other = answers(request, request, {**request, "seed": 12})
    assert first["token_ids"] == second["token_ids"] != other["token_ids"], (first, second, other)


@test
def test_a_bad_line_gets_an_error_and_the_others_their_answers(_):
    bad = ["{", "[]", "17", '{"prompt": 5}', "{}", '{"prompt": "a", "messages": []}',
           '{"prompt": "a", "temperature": -1}', '{"prompt": "a", "temprature": 1}',
           '{"prompt_token_ids": [0, 4160]}', '{"prompt_token_ids": [0, -1]}',
           '{"prompt_token_ids": [0, 1.5]}', '{"prompt_token_ids": []}', '{"prompt": ""}',
           '{"messages": []}', '{"messages": [{"role": "wizard", "content": "x"}]}',
           '{"prompt": "a", "max_tokens": 0}', '{"prompt": "a", "prompt": "b"}',
           json.dumps({"prompt_token_ids": [0] + [5] * 4096})]
    for line in bad:
        result = deepinfer("generate", *FLAGS, stdin=lines(QUESTION, line, QUESTION))
        assert result.status == 1, (line, result)
        found = objects(result.out)
        assert [a["index"] for a in found] == [0, 1, 2], (line, found)
        assert set(found[1]) == {"index", "error"} and found[1]["error"], (line, found[1])
        assert found[0]["text"] == found[2]["text"] == "Dracula was written by Bram Stoker."


@test
def test_errors_say_what_was_found_and_what_is_allowed(_):
    for line, *parts in [('{"prompt": "a", "temprature": 1}', "temprature", "temperature"),
                         ('{"prompt_token_ids": [0, 4160]}', "4160", "4159"),
                         (json.dumps({"prompt_token_ids": [0] + [5] * 4096}), "4097", "4096"),
                         ('{"prompt": "a", "top_p": 2}', "top_p", "2")]:
        (found,) = objects(deepinfer("generate", *FLAGS, stdin=line + "\n").out)
        for part in parts:
            assert part in json.dumps(found["error"]), (line, found)


@test
def test_invalid_utf8_is_an_error_of_its_line(_):
    data = lines(QUESTION).encode() + b'{"prompt": "\xff"}\n' + lines(QUESTION).encode()
    result = deepinfer("generate", *FLAGS, stdin=data)
    assert result.status == 1 and [("error" in a) for a in objects(result.out)] == [0, 1, 0], result


@test
def test_text_is_utf8_and_every_line_is_json(_):
    request = {"prompt": "🙂 “x”", "max_tokens": 8, "temperature": 1.5, "seed": 3}
    result = generate(*[{**request, "seed": seed} for seed in range(4)])
    result.raw.decode()
    assert len(objects(result.out)) == 4


@test
def test_files_go_in_and_out(folder):
    (folder / "in.jsonl").write_text(lines(QUESTION, QUESTION))
    result = succeeds(deepinfer("generate", *FLAGS, "-i", folder / "in.jsonl", "-o",
                                folder / "out.jsonl"))
    assert result.out == "" and len(objects((folder / "out.jsonl").read_text())) == 2, result
    assert sorted(p.name for p in folder.iterdir()) == ["in.jsonl", "out.jsonl"]


@test
def test_answers_with_errors_are_kept_too(folder):
    (folder / "in.jsonl").write_text(lines(QUESTION, "{"))
    result = deepinfer("generate", *FLAGS, "-i", folder / "in.jsonl", "-o", folder / "out.jsonl")
    assert result.status == 1 and len(objects((folder / "out.jsonl").read_text())) == 2, result


@test
def test_a_missing_input_file_is_named(folder):
    complains(deepinfer("generate", *FLAGS, "-i", folder / "none.jsonl"), 1, "none.jsonl",
              "No such file")


@test
def test_an_empty_input_gives_an_empty_output(folder):
    succeeds(deepinfer("generate", *FLAGS, "-o", folder / "out.jsonl"))
    assert (folder / "out.jsonl").read_bytes() == b""


@test
def test_answers_do_not_depend_on_the_other_requests(_):
    requests = [{"prompt": f"The {word}", "max_tokens": 6}
                for word in ("ghost", "captain", "old house by the sea", "king")]
    together = answers(*requests)
    alone = [answers(r)[0] for r in requests]
    assert [a["token_ids"] for a in together] == [a["token_ids"] for a in alone]


# ---- many at once ----


def drawn(count, tokens=12):
    return [{"prompt": f"Chapter {i}. The", "max_tokens": tokens, "temperature": 0.9, "seed": i}
            for i in range(count)]


@test
def test_order_and_answers_are_the_same_however_many_run_at_once(_):
    requests = [{**r, "max_tokens": 1 + 7 * i % 20} for i, r in enumerate(drawn(30))]
    one = answers(*requests, flags=("--max-num-seqs", 1))
    assert [a["index"] for a in one] == list(range(30))
    for flags in [("--max-num-seqs", 7), ("--sync",), ("--max-num-batched-tokens", 9,
                  "--max-num-seqs", 9), ("--no-prefix-cache", "--kv-memory", "16M")]:
        assert answers(*requests, flags=flags) == one, flags


@test
def test_an_answer_comes_before_the_next_line_is_there(_):
    """Whoever talks to it line by line through pipes must not wait for ever."""
    child = start("generate", *FLAGS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for index in range(3):
        child.stdin.write(lines(QUESTION).encode())
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["index"] == index
    child.stdin.close()
    assert child.wait(timeout=PATIENCE) == 0


@test
def test_a_line_in_pieces_and_without_an_end_is_one_line(_):
    child = start("generate", *FLAGS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    text = json.dumps(QUESTION).encode()
    for piece in (text[:9], text[9:30], text[30:]):
        child.stdin.write(piece)
        child.stdin.flush()
        time.sleep(0.1)
    child.stdin.close()
    assert "Bram Stoker" in json.loads(child.stdout.readline())["text"]
    assert child.wait(timeout=PATIENCE) == 0


# ---- what answers hold ----


@test
def test_several_answers_have_an_object_each(_):
    (answer,) = answers({"prompt": "The ghost", "n": 3, "seed": 5, "temperature": 1.0,
                         "max_tokens": 6})
    assert set(answer) == {"index", "outputs", "usage"}, answer
    outputs = answer["outputs"]
    assert [o["index"] for o in outputs] == [0, 1, 2]
    assert len({tuple(o["token_ids"]) for o in outputs}) == 3, outputs
    assert answer["usage"]["completion_tokens"] == sum(len(o["token_ids"]) for o in outputs)
    for output in outputs:  # the seed that is told gives the same answer alone
        (alone,) = answers({"prompt": "The ghost", "seed": output["seed"], "temperature": 1.0,
                            "max_tokens": 6})
        assert alone["token_ids"] == output["token_ids"], (alone, output)


@test
def test_logprobs_are_told_and_add_up(_):
    request = {"prompt": "The ghost of", "max_tokens": 4, "logprobs": 5, "prompt_logprobs": 5}
    (answer,) = answers(request)
    assert len(answer["logprobs"]) == len(answer["token_ids"]) == 4
    for told, token in zip(answer["logprobs"], answer["token_ids"]):
        assert told["token_id"] == token and len(told["top"]) == 5
        assert told["top"][0] == {"token_id": token, "logprob": told["logprob"]}  # temperature 0
        values = [t["logprob"] for t in told["top"]]
        assert values == sorted(values, reverse=True) and sum(map(math.exp, values)) <= 1.000001
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    # What the filters leave is one token, and another is forced: minus infinity is no JSON.
    (forced,) = answers({"prompt": "The ghost of", "temperature": 1, "top_k": 1, "logprobs": 3,
                         "logprobs_mode": "processed", "golden_token_ids": [3000], "max_tokens": 1})
    assert forced["logprobs"][0]["logprob"] == -9999.0, forced
    assert [t["logprob"] for t in forced["logprobs"][0]["top"]] == [0.0], forced


@test
def test_a_stop_text_ends_the_answer_and_is_told(_):
    (whole,) = answers(QUESTION)
    (answer,) = answers({**QUESTION, "stop": ["zzz", " by"]})
    assert answer["text"] == whole["text"].split(" by")[0], answer
    assert answer["finish_reason"] == "stop" and answer["stop_reason"] == " by", answer
    (kept,) = answers({**QUESTION, "stop": " by", "include_stop_str_in_output": True})
    assert kept["text"] == whole["text"].split(" by")[0] + " by", kept


@test
def test_a_deadline_ends_an_answer_early(_):
    (answer,) = answers({"prompt": "The", "ignore_eos": True, "deadline": 0.3})
    assert answer["finish_reason"] == "deadline" and len(answer["token_ids"]) < 4000, answer


@test
def test_what_can_never_fit_is_refused_at_once(_):
    fits, answer = objects(deepinfer("generate", *FLAGS, "--max-model-len", 100,
                                     stdin=lines({"prompt": "a", "max_tokens": 99},
                                                 {"prompt": "a", "max_tokens": 100})).out)
    assert "error" not in fits, fits  # two tokens and 99, the last of which needs no place
    assert "max_tokens is 100" in answer["error"]["message"], answer


# ---- resuming ----


@test
def test_an_interrupted_run_is_resumed_to_the_same_file(folder):
    source, whole, out = (folder / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    partial = folder / "out.jsonl.partial"
    source.write_text(lines(*drawn(40), "{", *drawn(3)))
    files = ("-i", source, "--max-num-seqs", 2)
    assert deepinfer("generate", *FLAGS, *files, "-o", whole).status == 1  # for the bad line
    child = start("generate", *FLAGS, *files, "-o", out, stderr=subprocess.PIPE)
    limit = time.monotonic() + PATIENCE
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < limit:
        time.sleep(0.002)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130 and "--resume" in err.decode(), err
    kept = partial.read_bytes()
    assert whole.read_bytes().startswith(kept) and kept.endswith(b"\n") and not out.exists()
    complains(deepinfer("generate", *FLAGS, *files, "-o", out), 1, "out.jsonl.partial", "--resume")
    partial.write_bytes(kept + whole.read_bytes()[len(kept):][:9])  # a torn line behind them
    assert deepinfer("generate", *FLAGS, *files, "-o", out, "--resume").status == 1
    assert out.read_bytes() == whole.read_bytes() and not partial.exists()
    again = succeeds(deepinfer("generate", *FLAGS, *files, "-o", out, "--resume"))
    assert "nothing to resume" in again.err and out.read_bytes() == whole.read_bytes()


@test
def test_a_partial_file_of_something_else_is_not_resumed(folder):
    (folder / "out.partial").write_text('{"index": 1}\n')
    result = deepinfer("generate", *FLAGS, "-o", folder / "out", "--resume", stdin=lines(QUESTION))
    complains(result, 1, "out.partial line 1", "index 0")
    assert (folder / "out.partial").read_text() == '{"index": 1}\n'
    complains(deepinfer("generate", *FLAGS, "--resume"), 1, "--resume needs --output")


@test
def test_a_file_that_another_run_writes_is_refused(folder):
    out = folder / "out"
    first = start("generate", *FLAGS, "-o", out, stdin=subprocess.PIPE)
    limit = time.monotonic() + PATIENCE
    while not (folder / "out.partial").exists() and time.monotonic() < limit:
        time.sleep(0.002)
    time.sleep(0.2)
    complains(deepinfer("generate", *FLAGS, "-o", out, "--resume"), 1, "another process")
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 0 and out.exists()


# ---- watching ----


@test
def test_statistics_count_what_was_done(_):
    result = generate(*drawn(6), flags=("--stats",))
    tokens = sum(a["usage"]["completion_tokens"] for a in objects(result.out))
    assert f"{tokens} of answers" in result.err and "6 finished" in result.err, result
    assert "batch invariance: on" in result.err and "us per step median" in result.err, result
    assert re.search(r"memory: +weights [\d.]+ MiB, work [\d.]+ MiB, state of sequences [\d.]+ [KMG]iB: "
                     r"64 slots and \d+ snapshots of [\d.]+ KiB, \d+ blocks of [\d.]+ KiB for 128 tokens",
                     result.err), result


@test
def test_a_trace_is_whole_json_with_every_step(folder):
    generate(*drawn(3), flags=("--trace", folder / "trace.json"))
    trace = json.loads((folder / "trace.json").read_text())
    events = trace["traceEvents"]
    assert {e["name"] for e in events} >= {"forward", "sample", "host"}, events[:3]
    assert all(e["dur"] >= 0 and e["args"]["sequences"] >= 1 for e in events)


@test
def test_engine_options_are_checked_with_their_range(_):
    for flag, value, allowed in [("--max-num-seqs", "0", "1 to 4096"),
                                 ("--kv-memory", "lots", "K, M, G"), ("--kv-memory", "0x10", "K, M"),
                                 ("--kv-memory", "101%", "100%"), ("--kv-memory", "4Q", "K, M"),
                                 ("--replay-mode", "some", "mask"), ("--max-logprobs", "1001",
                                                                     "0 to 1000")]:
        complains(deepinfer("generate", *FLAGS, flag, value), 2, flag, value, allowed)
    complains(deepinfer("generate", *FLAGS, "--kv-memory", "1K"), 1, "kv_memory is 1024 bytes",
              "at least", "max_num_seqs is 64")
    complains(deepinfer("generate", *FLAGS, "--replay-mode", "compact", "--replay-keep-tokens", 9),
              1, "replay_keep_tokens is 9")


main()
