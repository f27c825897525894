"""Bodies of all endpoints with something wrong in them, at random: each gets an answer or a 4xx in
its API's own shape, never a 5xx, and every stream ends as streams do. SEED and SECONDS are taken
from the environment; the seed is printed."""

import copy
import http.client
import json
import os
import random
import sys
import time

sys.path[:0] = ["tests/support"]
from cli import MODE, PATIENCE, main, test  # noqa: E402
from serving import MODEL, chat, demo  # noqa: E402

SEED = int(os.environ.get("SEED", time.time_ns() % 1000000))
SECONDS = float(os.environ.get("SECONDS", 12 if MODE == "release" else 30))

TOOL = {"name": "f", "description": "d", "parameters": {
    "type": "object", "properties": {"a": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
USER = {"role": "user", "content": "Who wrote Dracula?"}

BODIES = [(path, {"model": MODEL, **body}) for path, body in [
    ("/v1/chat/completions", {
        "messages": [{"role": "system", "content": "s"}, USER], "max_tokens": 5, "temperature": 0.5,
        "top_p": 0.9, "stop": ["x"], "logprobs": True, "top_logprobs": 2, "n": 2, "seed": 1,
        "stream": True, "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": TOOL}], "tool_choice": "auto",
        "response_format": {"type": "text"}, "thinking": {"type": "enabled"},
        "reasoning_effort": "low", "logit_bias": {"5": 1}, "priority": 1, "cache_salt": "q",
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "user": "u", "metadata": {"a": "b"},
        "chat_template_kwargs": {"thinking": True}}),
    ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                     {"role": "assistant", "content": None, "tool_calls": [
                         {"id": "c1", "type": "function",
                          "function": {"name": "f", "arguments": "{}"}}]},
                     {"role": "tool", "tool_call_id": "c1", "content": "r"}],
        "max_completion_tokens": 4, "response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "echo": True, "logprobs": 1,
                         "suffix": "z", "n": 2, "stop": ["q"], "stream": False}),
    ("/v1/completions", {"prompt": [[5, 6, 7], [8]], "max_tokens": 3, "stream": True}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
                       "max_output_tokens": 5, "stream": True, "reasoning": {"effort": "low"},
                       "text": {"format": {"type": "text"}}, "tools": [{"type": "function", **TOOL}]}),
    ("/v1/messages", {"max_tokens": 5, "system": "s", "stream": True, "stop_sequences": ["x"],
                      "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                      "thinking": {"type": "enabled", "budget_tokens": 1024}, "top_k": 5,
                      "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"},
                      "metadata": {"user_id": "u"}}),
    ("/v1/messages/count_tokens", {"messages": [USER]}),
    ("/tokenize", {"prompt": "hello", "add_special_tokens": True}),
    ("/tokenize", {"messages": [USER]}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]]
ODD = [None, True, False, 0, -1, 1, 1e308, -1e308, 2**63, 2**64, -2**63, 0.5, 1e-320, "", "x", "NaN",
       "\0", "\ud83d", "<｜User｜>", "a" * 5000, ["a"] * 2000, [], {}, [[]], [None], [{}], {"": ""},
       {"type": None}, {"type": "function"}]
MORE = ["x", "stream", "n", "prompt", "input", "messages", "stop", "tools", "regex", "ebnf", "store",
        "guided_json", "structured_outputs", "previous_response_id", "include", "echo", "deadline"]
ENDS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete", b'"error"')


def places(value):
    """(container, key) of everything in a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def mutate(rng, body):
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        all_places = list(places(body))
        if not all_places or len(all_places) > 4000:
            break
        holder, key = rng.choice(all_places)
        what = rng.random()
        if what < 0.55:
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif what < 0.7:
            del holder[key]
        elif what < 0.85:
            other, at = rng.choice(all_places)
            holder[key] = copy.deepcopy(other[at])
        elif isinstance(holder, list):
            holder += copy.deepcopy(holder)
        else:
            holder[rng.choice(MORE)] = copy.deepcopy(rng.choice(ODD))
    text = json.dumps(body).encode()
    if rng.random() < 0.15 and text:
        broken = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        text = bytes(broken)
    return text[:rng.randrange(len(text) + 1)] if rng.random() < 0.05 else text


def judge(path, status, kind, text):
    if status >= 400:
        assert status < 500, "a fault of the server"
        error = json.loads(text)
        assert error["error"]["message"] and error["error"]["type"]
        assert ("type" in error) == path.startswith("/v1/messages"), "another API's shape"
    elif "event-stream" in kind:
        assert any(end in text for end in ENDS), "the stream has no end"
    else:
        json.loads(text)


@test
def test_no_body_gets_more_than_its_own_error(_):
    print(f"# SEED={SEED}")
    rng, counts = random.Random(SEED), {}
    with demo("--response-store", "1M") as s:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            path, body = rng.choice(BODIES)
            text = mutate(rng, body)
            c = http.client.HTTPConnection(s.host, s.port, timeout=PATIENCE)
            try:
                c.request("POST", path, text, {"Content-Type": "application/json"})
                r = c.getresponse()
                judge(path, r.status, r.headers.get("Content-Type", ""), answer := r.read())
            except Exception as why:
                raise AssertionError(f"{why!r}\n{path} {text[:2000]!r}\n{locals().get('answer')!r}") from why
            finally:
                c.close()
            counts[r.status] = counts.get(r.status, 0) + 1
        print(f"# {counts}")
        assert counts.get(200, 0) > 10 and counts.get(400, 0) > 10, counts
        assert s.post("/v1/chat/completions", chat("Who wrote Dracula?", max_tokens=3))[0] == 200


main()
