"""The Python package as a new user meets it: LLM, SamplingParams, what comes back, what is refused.

Standard library only, on the demo model.
"""

import copy
import ctypes
import gc
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, "tests/support")
from cli import DEMO, MODE, PATIENCE, Skip, deepinfer, environment, main, objects, succeeds, test

PACKAGE = Path("python").resolve()
LIBRARY = Path(os.environ.get("BUILD", "build/" + MODE)).resolve() / "libdeepinfer.so"
os.environ["DEEPINFER_LIBRARY"] = str(LIBRARY)
sys.dont_write_bytecode = True
sys.path.insert(0, str(PACKAGE))

if MODE != "release":  # Python would have to run under the sanitizer as well
    print("1..0 # SKIP the library of this build cannot be loaded into Python")
    sys.exit(77)

from deepinfer import (BusyError, CompletionOutput, DeepInferError, InvalidRequestError,
                       RequestOutput, TokenOutput, _library)
from deepinfer import LLM as ExportedLLM
from deepinfer.entrypoints.llm import LLM
from deepinfer.sampling_params import SamplingParams

QUESTION = [{"role": "user", "content": "Who wrote Dracula?"}]
ANSWER = "Dracula was written by Bram Stoker."
GREEDY = SamplingParams(temperature=0, max_tokens=30)
_shared = []


def llm():
    """One model for all tests that need nothing special of it."""
    if not _shared:
        _shared.append(LLM(model=str(DEMO)))
    return _shared[0]


def greedy(**more):
    return SamplingParams(temperature=0, **{"max_tokens": 8, **more})


def refuses(error, *parts, call):
    try:
        call()
    except error as found:
        for part in parts:
            assert str(part) in str(found), f"wanted {part!r} in: {found}"
        return found
    raise AssertionError(f"was not refused: {parts}")


def run_python(code, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=PATIENCE, env=environment(PYTHONPATH=str(PACKAGE), **more))


# ---- answers ----------------------------------------------------------------------------------


@test
def test_both_ways_to_import_are_one(_):
    assert ExportedLLM is LLM


@test
def test_an_answer_is_its_text_and_more(_):
    (answer,) = llm().chat(QUESTION, GREEDY)
    assert answer == ANSWER and isinstance(answer, str) and isinstance(answer, RequestOutput)
    (output,) = answer.outputs
    assert output.text == ANSWER and output.finish_reason == "stop" and output.index == 0
    assert output.stop_reason is None and output.logprobs is None and answer.finished
    assert answer.usage.completion_tokens == len(output.token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(output.token_ids)
    assert answer.metrics.prompt_seconds > 0


@test
def test_python_and_the_program_give_the_same(_):
    requests = [{"prompt": f"Chapter {i}. The", "temperature": 0.9, "top_k": 40, "seed": i,
                 "max_tokens": 12, "repetition_penalty": 1.2, "stop": ["."]} for i in range(8)]
    told = objects(succeeds(deepinfer("generate", "-m", DEMO,
                                      stdin="\n".join(map(json.dumps, requests)) + "\n")).out)
    params = [SamplingParams(**{k: v for k, v in r.items() if k != "prompt"}) for r in requests]
    found = llm().generate([r["prompt"] for r in requests], params, use_tqdm=False)
    assert [a.outputs[0].token_ids for a in found] == [t["token_ids"] for t in told]
    assert [str(a) for a in found] == [t["text"] for t in told]


@test
def test_prompts_may_be_texts_ids_and_dicts(_):
    text, ids = llm().generate(["The ghost", [0, 5, 9, 27]], greedy())
    assert text.prompt == "The ghost" and ids.prompt_token_ids == [0, 5, 9, 27]
    assert llm().generate("The ghost", greedy()) == [text]
    assert llm().generate([0, 5, 9, 27], greedy()) == [ids]
    assert llm().generate(prompt_token_ids=[[0, 5, 9, 27]], sampling_params=greedy()) == [ids]
    dicts = [{"prompt": "The ghost"}, {"prompt_token_ids": [0, 5, 9, 27]}, {"messages": QUESTION}]
    assert llm().generate(dicts, greedy(max_tokens=30)) == [
        *llm().generate(["The ghost", [0, 5, 9, 27]], greedy(max_tokens=30)), ANSWER]
    assert llm().generate([], greedy()) == []


@test
def test_order_is_kept_with_more_prompts_than_fit(_):
    prompts = [f"Chapter {i}. The" for i in range(40)]
    params = [greedy(max_tokens=1 + 5 * i % 9) for i in range(40)]
    with LLM(DEMO, max_num_seqs=3) as small:
        found = small.generate(prompts, params, use_tqdm=False)
    assert [len(a.outputs[0].token_ids) for a in found] == [p.max_tokens for p in params]
    assert found == llm().generate(prompts, params)
    assert [int(a.request_id) for a in found] == list(range(40))


@test
def test_a_conversation_and_several(_):
    assert llm().chat([QUESTION, QUESTION], GREEDY) == [ANSWER, ANSWER]
    (thought,) = llm().chat(QUESTION, greedy(max_tokens=200), thinking=True)
    assert "</think>" in thought and ANSWER not in llm().chat(QUESTION, GREEDY, thinking=True)


@test
def test_seeds_repeat_and_are_told(_):
    drawn = SamplingParams(temperature=1.0, max_tokens=10)
    a, b = (llm().generate("The", drawn)[0].outputs[0] for _ in range(2))
    assert a.token_ids != b.token_ids and a.seed != b.seed
    with LLM(DEMO, num_drafts=0) as model:  # with drafts only a given seed repeats
        a = model.generate("The", drawn)[0].outputs[0]
    given = SamplingParams(temperature=1.0, max_tokens=10, seq_seed=a.seed)
    assert llm().generate("The", given)[0].outputs[0].token_ids == a.token_ids
    two = llm().generate(["The", "The"], drawn)  # one default for both, yet two seeds
    assert two[0].outputs[0].seed != two[1].outputs[0].seed
    seeded = []
    for _ in range(2):
        with LLM(DEMO, seed=7, spec_mode="fixed") as model:
            seeded.append([o.outputs[0].token_ids for o in model.generate(["The"] * 3, drawn)])
    assert seeded[0] == seeded[1] and len(set(map(tuple, seeded[0]))) == 3


@test
def test_several_answers_differ(_):
    (answer,) = llm().generate("The", SamplingParams(n=4, seed=1, max_tokens=8))
    assert [o.index for o in answer.outputs] == [0, 1, 2, 3]
    assert len({tuple(o.token_ids) for o in answer.outputs}) == 4
    assert answer == answer.outputs[0].text and answer.usage.completion_tokens == 32


@test
def test_logprobs_and_their_ranks(_):
    (answer,) = llm().generate("The ghost of", greedy(logprobs=3, prompt_logprobs=True))
    output = answer.outputs[0]
    for token, place in zip(output.token_ids, output.logprobs):
        assert next(iter(place)) == token and place[token].rank == 1 and len(place) == 3
        assert [l.rank for l in place.values()] == [1, 2, 3]
        assert sum(math.exp(l.logprob) for l in place.values()) <= 1.000001
    assert math.isclose(output.cumulative_logprob,
                        sum(place[t].logprob for t, place in zip(output.token_ids, output.logprobs)))
    assert "".join(place[t].decoded_token for t, place in zip(output.token_ids, output.logprobs)) \
        == output.text
    assert all(isinstance(l.decoded_token, str) for place in output.logprobs for l in place.values())
    # half of a character (the byte c3), and a special token
    (odd,) = llm().generate({"prompt_token_ids": [0, 130, 1]}, greedy(max_tokens=1, prompt_logprobs=True))
    assert odd.prompt_logprobs[1][130].decoded_token == "\ufffd"
    assert odd.prompt_logprobs[2][1].decoded_token == "<｜end▁of▁sentence｜>"
    assert answer.prompt_logprobs[0] is None
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens
    assert llm().generate("a", greedy(top_logprobs=2))[0].outputs[0].logprobs is not None


@test
def test_stops_end_the_answer(_):
    (answer,) = llm().chat(QUESTION, greedy(max_tokens=30, stop=[" by", "zzz"]))
    assert answer == "Dracula was written" and answer.outputs[0].stop_reason == " by"
    token = llm().chat(QUESTION, GREEDY)[0].outputs[0].token_ids[3]
    (answer,) = llm().chat(QUESTION, greedy(stop_token_ids=[token]))
    assert answer.outputs[0].stop_reason == token and len(answer.outputs[0].token_ids) == 4


@test
def test_golden_tokens_are_scored(_):
    golden = [306, 71, 769]
    (answer,) = llm().generate("The", greedy(golden_token_ids=golden, logprobs=True, max_tokens=3))
    assert answer.outputs[0].token_ids == golden


@test
def test_the_token_by_token_form(_):
    with LLM(DEMO, decode_sequence=False) as model:
        (tokens,) = model.generate("The ghost", greedy(max_tokens=4, top_logprobs=2))
    assert all(isinstance(t, TokenOutput) for t in tokens) and len(tokens) == 4
    assert [t.num_output_tokens for t in tokens] == [1, 2, 3, 4]
    assert [t.finished for t in tokens] == [False] * 3 + [True]
    assert [t.finish_reason for t in tokens] == ["", "", "", "length"]
    assert tokens[0].top_token_ids[0] == tokens[0].token_id
    assert tokens[0].top_logprobs[0] == tokens[0].token_logprobs > tokens[0].top_logprobs[1]


@test
def test_outputs_survive_pickle_and_copy(_):
    (answer,) = llm().generate("The", greedy(logprobs=1))
    for other in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer)):
        assert other == answer and other.outputs == answer.outputs and other.usage == answer.usage
    params = SamplingParams(stop="x", n=2)
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params == params.clone()


# ---- streams ----------------------------------------------------------------------------------


@test
def test_a_stream_adds_up_to_the_answer(_):
    pieces = list(llm().stream(QUESTION, GREEDY))
    assert all(isinstance(p, CompletionOutput) for p in pieces) and len(pieces) > 3
    assert "".join(p.text for p in pieces) == ANSWER
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "stop"
    tokens = [t for p in pieces for t in p.token_ids]
    assert tokens == llm().chat(QUESTION, GREEDY)[0].outputs[0].token_ids


@test
def test_leaving_a_stream_cancels_it(_):
    before = llm().stats()["cancelled"]
    for piece in llm().stream("The", greedy(max_tokens=3000, ignore_eos=True)):
        break
    gc.collect()
    assert llm().stats()["cancelled"] == before + 1
    assert llm().chat(QUESTION, GREEDY) == [ANSWER]


@test
def test_a_stream_left_open_does_not_hurt_the_end_of_the_program(_):
    done = run_python(f"""
from deepinfer import LLM, SamplingParams
model = LLM({str(DEMO)!r})
stream = model.stream("The", SamplingParams(max_tokens=3000, ignore_eos=True))
print(repr(next(stream).text)[:0] + "begun")
""", DEEPINFER_LIBRARY=str(LIBRARY))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "begun", ""), done


# ---- many callers -----------------------------------------------------------------------------


@test
def test_threads_share_one_model(_):
    alone = [llm().generate(f"Chapter {i}.", greedy())[0] for i in range(6)]
    found = [None] * 6

    def work(i):
        found[i] = llm().generate(f"Chapter {i}.", greedy(), use_tqdm=False)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == alone


@test
def test_a_full_queue_is_said(_):
    with LLM(DEMO, max_queue=1) as model:
        stream = model.stream("The", greedy(max_tokens=2000, ignore_eos=True))
        next(stream)
        refuses(BusyError, "max_queue", call=lambda: model.generate("a", greedy()))
        stream.close()
        assert model.chat(QUESTION, GREEDY) == [ANSWER]


@test
def test_ctrl_c_cancels_the_call_and_the_model_goes_on(_):
    done = run_python(f"""
import os, signal, threading
from deepinfer import LLM, SamplingParams
model = LLM({str(DEMO)!r})
threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    model.generate(["The"] * 200, SamplingParams(max_tokens=3000, ignore_eos=True), use_tqdm=False)
except KeyboardInterrupt:
    print(model.chat({QUESTION!r}, SamplingParams(temperature=0, max_tokens=30))[0])
""", DEEPINFER_LIBRARY=str(LIBRARY))
    assert done.stdout.strip() == ANSWER and done.returncode == 0, done


# ---- what is refused --------------------------------------------------------------------------


@test
def test_defaults_are_deepinfers(_):
    p = SamplingParams()
    assert (p.temperature, p.top_p, p.top_k, p.max_tokens) == (1.0, 1.0, -1, 16)
    assert (p.ignore_eos, p.logprobs, p.top_logprobs, p.seq_seed) == (False, False, 0, None)
    assert repr(p) == "SamplingParams()" and repr(SamplingParams(n=2)) == "SamplingParams(n=2)"
    assert SamplingParams(0.5, 0.9, 7, True, 3).top_k == 7  # in the release's order


@test
def test_values_out_of_range_are_named_with_what_is_allowed(_):
    for name, value, error, allowed in [
        ("temperature", -1, ValueError, "0 to 100"), ("temperature", math.nan, ValueError, "0 to 100"),
        ("temperature", math.inf, ValueError, "0 to 100"), ("temperature", "hot", TypeError, "number"),
        ("top_p", 0, ValueError, "above 0"), ("top_p", 1.01, ValueError, "to 1"),
        ("top_k", -2, ValueError, "-1, or"), ("top_k", 2.5, TypeError, "integer"),
        ("max_tokens", 0, ValueError, "1 to"), ("max_tokens", 2**31, ValueError, "1 to"),
        ("min_p", 1.5, ValueError, "0 to 1"), ("n", 0, ValueError, "1 to 128"),
        ("n", True, TypeError, "integer"), ("presence_penalty", 3, ValueError, "-2 to 2"),
        ("repetition_penalty", 0, ValueError, "1e-06 to 100"), ("logprobs", 1001, ValueError, "1000"),
        ("stop", ["a", ""], ValueError, "stop[1]"), ("stop", 7, TypeError, "string"),
        ("stop_token_ids", [1, "x"], TypeError, "stop_token_ids[1]"),
        ("logit_bias", {5: 101}, ValueError, "-100 to 100"), ("ignore_eos", 1, TypeError, "True"),
        ("seq_seed", 1.5, TypeError, "integer"), ("logprobs_mode", "cooked", ValueError, "raw"),
        ("timeout", 0, ValueError, "above 0"), ("golden_token_ids", 5, TypeError, "list"),
    ]:
        refuses(error, name, allowed, call=lambda: SamplingParams(**{name: value}))
        params = SamplingParams()
        refuses(error, name, allowed, call=lambda: setattr(params, name, value))
        assert params == SamplingParams(), name


@test
def test_structured_output_is_checked(_):
    def takes(**so):
        return SamplingParams(so_args=so).so_args

    assert takes(schema_type="json", schema={"type": "object"})["schema"] == '{"type": "object"}'
    assert takes(schema_type="json", schema="{}")["schema"] == "{}"
    assert takes(schema_type="json")["schema"] is None
    for error, told, so in (
        (ValueError, "schema_type", {"schema_type": "xml", "schema": "a"}),
        (ValueError, "schema_type", {"schema": "a"}),
        (TypeError, "schema", {"schema_type": "regex"}),
        (TypeError, "schema", {"schema_type": "json", "schema": 7}),
        (TypeError, "schema_type", {"schema_typ": "json"}),
        (ValueError, "bound_token_id", {"schema_type": "regex", "schema": "a",
                                        "bound_token_id": 7}),
        (NotImplementedError, "serialized", {"schema_type": "json", "serialized": b""}),
    ):
        refuses(error, told, call=lambda: SamplingParams(so_args=so))


@test
def test_answers_keep_to_a_schema(_):
    llm = LLM(DEMO)
    schema = {"type": "object", "properties": {"author": {"type": "string", "maxLength": 20},
                                               "year": {"type": "integer", "minimum": 1000}},
              "required": ["author", "year"]}
    params = SamplingParams(temperature=0, max_tokens=80,
                            so_args={"schema_type": "json", "schema": schema})
    value = json.loads(llm.chat(QUESTION, params)[0])
    assert set(value) == {"author", "year"} and value["year"] >= 1000, value
    params = SamplingParams(seq_seed=3, max_tokens=80,
                            so_args={"schema_type": "regex", "schema": "(yes|no), \\d{3}"})
    text = str(llm.generate("Is it so?", params)[0])
    assert text[:text.index(",")] in ("yes", "no") and len(text.split(", ")[1]) == 3, text
    refuses(InvalidRequestError, "schema", "no value at all", call=lambda: llm.chat(
        QUESTION, SamplingParams(so_args={"schema_type": "json", "schema": {"enum": []}})))


@test
def test_unknown_names_are_refused_with_the_nearest(_):
    refuses(TypeError, "temprature", "temperature", call=lambda: SamplingParams(temprature=1))
    refuses(TypeError, "max_num_seq", "max_num_seqs", call=lambda: LLM(DEMO, max_num_seq=1))
    refuses(AttributeError, "top_kk", "top_k", call=lambda: setattr(SamplingParams(), "top_kk", 1))
    refuses(TypeError, "structured output", "so_args", call=lambda: SamplingParams(regex="a*"))
    refuses(NotImplementedError, "revision", call=lambda: LLM(DEMO, revision="main"))


@test
def test_aliases_are_the_same_thing(_):
    p = SamplingParams(seed=-1, max_new_tokens=5, no_stop_trim=True, deadline=3)
    assert (p.seq_seed, p.max_tokens, p.include_stop_str_in_output, p.timeout) == \
        (2**64 - 1, 5, True, 3.0)
    assert p.seed == p.seq_seed
    p.seed = 4
    assert p.seq_seed == 4
    refuses(TypeError, "same", call=lambda: SamplingParams(seed=1, seq_seed=2))
    refuses(TypeError, "same", call=lambda: SamplingParams(seed=1, sampling_seed=1))


@test
def test_parameters_that_contradict_each_other_are_refused(_):
    refuses(ValueError, "min_tokens is 9", call=lambda: SamplingParams(min_tokens=9, max_tokens=8))
    refuses(ValueError, "golden", call=lambda: SamplingParams(n=2, golden_token_ids=[1]))
    refuses(ValueError, "one number", call=lambda: SamplingParams(logprobs=2, prompt_logprobs=3))
    params = SamplingParams(max_tokens=8)
    params.min_tokens = 9  # one at a time: seen when a request is made
    refuses(ValueError, "min_tokens is 9", call=lambda: llm().generate("a", params))


@test
def test_bad_prompts_are_refused_by_number(_):
    for prompt, error, part in [("", ValueError, "empty"), ([0, 99999], ValueError, "4159"),
                                ([0, "x"], TypeError, "'x'"), (5, TypeError, "5"),
                                ({"promt": "a"}, ValueError, "promt"), ({}, ValueError, "exactly"),
                                ([], ValueError, "empty"), ([0] * 5000, ValueError, "4096"),
                                ({"messages": [{"role": "king", "content": ""}]}, ValueError, "king")]:
        refuses(error, "prompts[1]", part, call=lambda: llm().generate(["a", prompt], greedy()))
    refuses(ValueError, "2 sampling_params for 3 prompts",
            call=lambda: llm().generate(["a"] * 3, [greedy()] * 2))
    refuses(TypeError, "exactly one", call=lambda: llm().generate())
    refuses(TypeError, "SamplingParams", call=lambda: llm().generate("a", {"n": 1}))
    refuses(NotImplementedError, "images", call=lambda: llm().generate("a", multi_modal_data=[1]))
    refuses(InvalidRequestError, "max_tokens is 4096", call=lambda: llm().generate(
        "a", greedy(max_tokens=4096)))
    refuses(ValueError, "eos_id is 5", call=lambda: llm().generate("a", greedy(eos_id=5)))
    assert llm().chat(QUESTION, GREEDY) == [ANSWER]  # none of it did any harm


@test
def test_a_model_that_cannot_be_opened_says_why(folder):
    refuses(DeepInferError, folder, "config.json", call=lambda: LLM(folder))
    refuses(ValueError, "max_num_seqs is 0", call=lambda: LLM(DEMO, max_num_seqs=0))
    refuses(ValueError, "kv_memory", "512M", call=lambda: LLM(DEMO, kv_memory="lots"))
    refuses(ValueError, "replay_mode", "compact", call=lambda: LLM(DEMO, replay_mode="on"))


@test
def test_a_closed_model_says_so(_):
    model = LLM(DEMO, kv_memory="32M")
    model.close()
    model.close()
    refuses(ValueError, "closed", call=lambda: model.generate("a"))


# ---- the library ------------------------------------------------------------------------------


@test
def test_a_library_that_is_not_there_is_told_with_all_places(folder):
    done = run_python("import deepinfer; deepinfer.version()", DEEPINFER_LIBRARY="/none/x.so")
    assert done.returncode == 1 and "DEEPINFER_LIBRARY is '/none/x.so'" in done.stderr, done
    copied = folder / "elsewhere" / "python"
    shutil.copytree(PACKAGE / "deepinfer", copied / "deepinfer")
    code = ("import deepinfer._library as l, pathlib; l.ctypes.util.find_library = lambda n: None; "
            "l.Path.is_file = lambda p: False; l.library()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=environment(PYTHONPATH=str(copied)))
    for part in (copied, "build/release/libdeepinfer.so", "/usr/local/lib", "DEEPINFER_LIBRARY"):
        assert str(part) in done.stderr, done.stderr


@test
def test_every_public_struct_is_described_alike(_):
    """What the package reads must be all there is, but for members it has no use for."""
    count = ctypes.c_size_t()
    members = _library.library().di_layout(count)[: count.value]
    told = {(m.structure.decode(), m.name.decode()) for m in members}
    for structure, ours in _library._STRUCTS.items():
        for name, _ in ours._fields_:
            assert (structure, name) in told, f"abi.c does not tell {structure}.{name}"


@test
def test_pip_installs_a_package_that_carries_the_library(folder):
    made = subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder / "v"],
                          capture_output=True, text=True)
    if made.returncode:
        raise Skip("no venv here: " + made.stdout.strip().splitlines()[0])
    python = folder / "v" / "bin" / "python"
    source = folder / "python"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    shutil.copy("VERSION", source / "VERSION")
    pip = subprocess.run([python, "-m", "pip", "install", "--no-build-isolation", "--no-deps",
                          "--no-index", source], capture_output=True, text=True, timeout=PATIENCE,
                         env=environment(DEEPINFER_LIBRARY=str(LIBRARY)))
    if "No module named 'wheel'" in pip.stderr or "No module named 'setuptools'" in pip.stderr:
        raise Skip("neither wheel nor setuptools here")
    assert pip.returncode == 0, pip.stdout + pip.stderr
    code = (f"import deepinfer as d; print(d.library_path()); print(d.LLM({str(DEMO)!r}).chat("
            f"{QUESTION!r}, d.SamplingParams(temperature=0, max_tokens=30))[0])")
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=folder,
                          timeout=PATIENCE, env=environment())
    path, answer = done.stdout.splitlines()
    assert answer == ANSWER and path.startswith(str(folder / "v")), done


main()
