"""Who has read the end of an answer finds its place free: in the engine's queue (max_queue) and in
its key's concurrency. Each answer is followed at once by the next request, on another connection."""

import json
import sys

sys.path[:0] = ["tests/support"]
from cli import deepinfer, main, test  # noqa: E402
from serving import MODEL, chat, demo, raw_post, read_response, scripted  # noqa: E402

TIMES = 100


def body_of(path, text, **more):
    if path == "/v1/responses":
        return {"model": MODEL, "input": text, "reasoning": {"effort": "none"}, **more}
    if path == "/v1/messages":
        return {**chat(text), "max_tokens": 100, **more}
    if path == "/v1/completions":
        return {"model": MODEL, "prompt": text, "max_tokens": 100, **more}
    return chat(text, **more)


def is_last(path, line):
    """Of the events of a stream: does it say that the answer has ended?"""
    if path == "/v1/responses":
        return line in (b"event: response.completed\n", b"event: error\n")
    if path == "/v1/messages":
        return line in (b"event: message_stop\n", b"event: error\n")
    return b'"finish_reason":"' in line or line.startswith(b'data: {"error"')


def ask_in_a_row(server, path, body, headers="", times=TIMES, status=200):
    """Asks on two connections in turn, the next as soon as the last event or the whole answer of the
    one before has been read."""
    with server.connect() as a, server.connect() as b:
        lines = [(c, c.makefile("rb")) for c in (a, b)]
        for i in range(times):
            c, stream = lines[i % 2]
            c.sendall(raw_post(path, body, headers))
            if not body.get("stream"):
                got, _, text = read_response(stream)
                assert got == status, (i, got, text)
                continue
            first = stream.readline()
            assert first == b"HTTP/1.1 200 OK\r\n", (i, first, stream.read(1000))
            while not is_last(path, line := stream.readline()):
                assert line, f"no end in stream {i}"
            # what is left of the stream is read when it is this connection's turn again
            other, rest = lines[(i + 1) % 2]
            other.sendall(raw_post(path, {**body, "stream": False}, headers))
            got, _, text = read_response(rest)
            assert got == status, (i, got, text)
            while stream.readline() != b"0\r\n":
                pass
            stream.readline()


PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"]
STOPS = {"/v1/chat/completions": "stop", "/v1/messages": "stop_sequences", "/v1/completions": "stop"}


@test
def test_an_answer_that_was_read_has_left_the_queue(folder):
    with scripted(max_queue=1) as s:
        for path in PATHS:
            for stream in (False, True):
                ask_in_a_row(s, path, body_of(path, "@say one two", stream=stream))


@test
def test_an_answer_that_a_stop_text_ended_has_left_the_queue(folder):
    """The engine goes on until it hears of the stop."""
    with scripted(max_queue=1) as s:
        for path, name in STOPS.items():
            for stream in (False, True):
                ask_in_a_row(s, path, body_of(path, "@delay=2 @say one two three four five six",
                                              stream=stream, **{name: ["two"]}))
        s.settled(running=0)


@test
def test_one_of_several_answers_that_fails_has_left_the_queue(folder):
    with scripted(max_queue=1) as s:
        for stream in (False, True):
            ask_in_a_row(s, PATHS[0], chat("@fail=2 @say one two three four", stream=stream, n=3),
                         status=500, times=20)


@test
def test_on_the_demo_model_too(folder):
    with demo("--max-queue", "1", "--max-num-seqs", "1") as s:
        for stream in (False, True):
            ask_in_a_row(s, PATHS[0], chat("Who wrote Dracula?", stream=stream, max_tokens=2))
            ask_in_a_row(s, PATHS[0], chat("Who wrote Dracula?", stream=stream, temperature=0,
                                           stop=["was"]), times=30)


@test
def test_a_key_has_its_concurrency_back(folder):
    keys = folder / "keys"
    r = deepinfer("key", "new", "one", "--api-key-file", keys, "--concurrency", 1)
    header = "X-Api-Key: " + next(w for w in r.out.split() if w.startswith("sk-di-")) + "\r\n"
    with scripted(keys=keys) as s:
        for path in PATHS:
            for stream in (False, True):
                ask_in_a_row(s, path, body_of(path, "@say one two", stream=stream), header)
        for path, name in STOPS.items():
            ask_in_a_row(s, path, body_of(path, "@delay=2 @say one two three four five six",
                                          stream=True, **{name: ["two"]}), header)
        # requests that the engine has nothing to do with, and refused ones
        ask_in_a_row(s, "/tokenize", {"prompt": "one two"}, header)
        ask_in_a_row(s, PATHS[0], chat("x", temprature=1), header, status=400)
        ask_in_a_row(s, PATHS[0], chat("x", model="none"), header, status=404)
        status, body = s.post(PATHS[0], chat("@say x"), {"X-Api-Key": header.split()[1]})
        assert status == 200, json.dumps(body)


main()
