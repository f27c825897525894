"""What strangers do to sockets: garbage, pipelines, slow and gone readers, half-closed ends. After
each the server still answers others."""

import io
import json
import random
import re
import select
import signal
import socket
import struct
import sys
import threading
import time

sys.path[:0] = ["tests/support"]
from cli import MODE, PATIENCE, main, test  # noqa: E402
from serving import (MODEL, chat, events, raw_post, read_response, scripted,  # noqa: E402
                     stream_text)

PATH = "/v1/chat/completions"


def alive(s):
    status, answer = s.post(PATH, chat("@say still here"))
    assert status == 200 and answer["choices"][0]["message"]["content"] == "still here", answer


def say(s, data, timeout=PATIENCE):
    """All that comes back for these bytes until the server closes or goes quiet."""
    with s.connect(timeout) as c:
        c.sendall(data)
        out = b""
        try:
            while block := c.recv(65536):
                out += block
        except (TimeoutError, ConnectionResetError):
            pass
        return out


def reset(c):
    """Closes with a reset."""
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()


@test
def test_garbage_is_refused_and_harms_nobody(folder):
    random.seed(1)
    with scripted(header=2, body=2, idle=2) as s:
        garbage = [b"\x00" * 100, b"GET\r\n\r\n", b"\r\n" * 50, b"\x16\x03\x01\x02\x00" * 20,
                   b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\nX\n\n", b"A" * 40000,
                   b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\n: no name\r\n\r\n",
                   b"GET /" + b"%00" * 30 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"]
        garbage += [bytes(random.randrange(256) for _ in range(random.randrange(1, 300)))
                    for _ in range(40)]
        for data in garbage:
            out = say(s, data, 0.2)
            assert not out or out.startswith(b"HTTP/1.1 4") or out.startswith(b"HTTP/1.0 4") or \
                out.startswith(b"HTTP/1.1 5"), (data, out)
        alive(s)


@test
def test_smuggled_lengths_are_refused(folder):
    body = json.dumps(chat("@say x")).encode()
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with scripted(idle=2) as s:
        for lengths in [b"Content-Length: 5\r\nContent-Length: %d\r\n" % len(body),
                        b"Content-Length: -1\r\n", b"Content-Length: 0x10\r\n",
                        b"Content-Length: 99999999999999999999999\r\n",
                        b"Content-Length: 1 1\r\n",
                        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
                        b"Transfer-Encoding: xchunked\r\n"]:
            out = say(s, head + lengths + b"\r\n" + body + hidden, 0.5)
            assert b'{"status":"ok"}' not in out, (lengths, out)
            assert not out or out.split(b" ")[1][:1] in b"45", (lengths, out)
        alive(s)


@test
def test_headers_that_can_be_read_in_two_ways_are_refused_in_our_words(folder):
    body = json.dumps(chat("@say x")).encode()
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    length = b"Content-Length: %d" % len(body)
    cases = [(b"Host: other", "header Host: it comes twice"), (b"hOST: localhost", "header hOST: it comes twice"),
             (b"X y: 1", "no token"), (b"Content-Length : 1", "no token"), (b"X\x80: 1", "no token"),
             (b"X(1): 1", "no token"), (b"X: a\x01b", "control character"), (b"X: a\x7fb", "control character"),
             (length, "header Content-Length: it comes twice"),
             (b"Transfer-Encoding: chunked", "exclude each other"),
             (b"Transfer-Encoding: gzip, chunked", "only chunked is known"),
             (b"Transfer-Encoding: identity", "only chunked is known")]
    with scripted(idle=2) as s:
        for path in (PATH, "/v1/messages"):
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
            for line, told in cases:
                out = say(s, head + length + b"\r\n" + line + b"\r\n\r\n" + body + hidden, 0.3)
                status, headers, text = read_response(io.BytesIO(out))
                answer = json.loads(text)
                assert status == 400 and told in answer["error"]["message"], (line, out)
                assert ("type" in answer) == (path != PATH) and headers["connection"] == "close"
                assert headers["x-request-id"] and b'"status"' not in out, out
            out = say(s, head.replace(b"Host: localhost\r\n", b"") + length + b"\r\n\r\n" + body, 0.3)
            assert out.startswith(b"HTTP/1.1 400") and b"header Host: it is missing" in out, out
        assert say(s, b"GET /health HTTP/1.0\r\n\r\n", 0.3)[8:12] == b" 200", "1.0 needs no Host"
        alive(s)


@test
def test_what_the_library_answers_itself_is_what_the_page_says(folder):
    """docs/serving.md, "Requests that are no HTTP": status, nothing that looks like ours, a closed
    connection; and they are counted."""
    start, post = b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    json_type = b"Content-Type: application/json\r\n"
    cases = [(None, b"hello\r\n\r\n"), (None, b"GET\r\n\r\n"), (None, b"\x16\x03\x01\x02\r\n\r\n"),
             (400, b"GET /health\r\n\r\n"), (400, b"GET /health HTTP/1.1x\r\n\r\n"),
             (400, start + b"no colon\r\n\r\n"), (400, post + b"Content-Length: abc\r\n\r\n"),
             (400, post + json_type + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
             (413, post + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n"),
             (413, post + json_type + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n"),
             (414, b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             (431, start + b"X: " + b"a" * 40000 + b"\r\n\r\n"),
             (505, b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n")]
    with scripted() as s:
        count = 0
        for status, data in cases:
            with s.connect() as c:
                c.sendall(data)
                out = b""
                try:
                    while block := c.recv(65536):
                        out += block
                except ConnectionResetError:
                    pass
            assert out[9:12] == (str(status).encode() if status else b""), (data[:60], out)
            assert b"X-Request-Id" not in out and b'"error"' not in out, out
            text = s.request("GET", "/metrics")[2].decode()
            now = int(re.search(r'event="bad_request"} (\d+)', text)[1])
            assert (now > count) == (status is not None), (data[:60], count, now)
            count = now
        alive(s)


@test
def test_paths_are_matched_as_they_are(folder):
    with scripted() as s:
        for path in ["/v1/../v1/models", "/v1//models", "/v1/models/..", "//health", "/v1/models/",
                     "/v1/chat/completions/", "/V1/models", "/etc/passwd", "/v1/models/%2e%2e/x", "/%00", "/health%00x",
                     "/%2fhealth", "/web/../health", "/web/%2e%2e/app.js"]:
            status, answer = s.get(path)
            assert status == 404, (path, status, answer)
        assert s.get("/v1/models/" + MODEL)[0] == 200
        assert b"200 OK" in say(s, b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n"
                                b"Connection: close\r\n\r\n")
        assert s.get("/health?x=1")[0] == 200


@test
def test_requests_in_a_pipeline_are_answered_in_order(folder):
    with scripted() as s, s.connect() as c:
        data = b"".join(raw_post(PATH, chat(f"@say number {i}", stream=i % 2 == 1))
                        for i in range(40))
        threading.Thread(target=c.sendall, args=(data,)).start()
        f = c.makefile("rb")
        for i in range(40):
            status, _, body = read_response(f)
            assert status == 200
            text = stream_text(body) if i % 2 else json.loads(body)["choices"][0]["message"]["content"]
            assert text == f"number {i}", (i, text)


@test
def test_chunked_bodies_and_single_bytes(folder):
    body = json.dumps(chat("@say in pieces")).encode()
    with scripted() as s:
        with s.connect() as c:
            c.sendall(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
                      b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 7):
                piece = body[i:i + 7]
                c.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            c.sendall(b"0\r\n\r\n")
            status, _, answer = read_response(c.makefile("rb"))
            assert status == 200 and b"in pieces" in answer
        with s.connect() as c:
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in raw_post(PATH, body):
                c.send(bytes([byte]))
            status, _, answer = read_response(c.makefile("rb"))
            assert status == 200 and b"in pieces" in answer


@test
def test_bodies_above_the_limit(folder):
    with scripted(max_body=10000) as s:
        big = b'{"x": "' + b"a" * 20000 + b'"}'
        out = say(s, raw_post(PATH, big))
        assert out.startswith(b"HTTP/1.1 413") and b"at most 10000" in out, out
        with s.connect() as c:
            c.sendall(b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
                      b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(20):
                c.sendall(b"3e8\r\n" + b"a" * 1000 + b"\r\n")
            c.sendall(b"0\r\n\r\n")
            status, _, answer = read_response(c.makefile("rb"))
            assert status == 413, (status, answer)
        out = say(s, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"h" * 60000 + b"\r\n\r\n", 2)
        assert out.split(b" ")[1] in (b"431", b"413", b"400"), out[:100]
        alive(s)


@test
def test_bodies_together_are_bounded(folder):
    half = json.dumps(chat("x" * 60000)).encode()
    with scripted(max_bodies=100000) as s, s.connect() as c, s.connect() as d:
        c.sendall(raw_post(PATH, half)[:-10])
        time.sleep(0.3)
        d.sendall(raw_post(PATH, half))
        status, h, answer = read_response(d.makefile("rb"))
        assert status == 503 and h["retry-after"], (status, answer)
        c.sendall(half[-10:])
        assert read_response(c.makefile("rb"))[0] in (200, 400)
        alive(s)
    with scripted() as s:
        many = b'{"model": "x", "metadata": [' + b"0," * 1100000 + b"0]}"
        status, _, answer = s.request("POST", PATH, many)
        assert status == 400 and b"more than 1048576 values" in answer, answer
        alive(s)


def long_requests(s):
    text = s.request("GET", "/metrics")[2].decode()
    return int(re.search(r"^deepinfer:long_requests_total\S* (\d+)$", text, re.M)[1])


@test
def test_long_prompts_are_read_beside_short_ones(folder):
    """By order alone: a long request is whole at the server before a short one is sent. On the thread
    that has the sockets it would be answered first, and no stream would go on meanwhile."""
    text = "".join(chr(0x4e00 + i * 7919 % 20000) for i in range(2 << 20))
    long = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    short = {"model": MODEL, "messages": [{"role": "user", "content": "short"}]}
    for threads in (1, 2):
        with scripted(model_len=1 << 24, reader_threads=threads) as s, s.connect() as c, s.connect() as d:
            stream = open_stream(s, "@count=100000 @delay=2", max_tokens=100000).makefile("rb")
            for count, path in enumerate((PATH, "/v1/messages", "/v1/messages/count_tokens"), 1):
                sent = {k: v for k, v in long.items() if k != "max_tokens" or "count" not in path}
                c.sendall(raw_post(path, sent))
                while long_requests(s) < count:
                    pass
                d.sendall(raw_post("/v1/messages/count_tokens", short))
                assert select.select([c, d], [], [], PATIENCE)[0] == [d], path
                assert read_response(d.makefile("rb"))[0] == 200
                events_between = 0
                while not select.select([c], [], [], 0)[0]:
                    stream.readline()
                    events_between += 1
                assert events_between > 10, (path, events_between)
                assert read_response(c.makefile("rb"))[0] == 200
            assert s.post("/tokenize", {"prompt": "x" * 8000})[0] == 200 and long_requests(s) == count
            assert s.post("/tokenize", {"prompt": "x" * 9000})[0] == 200 and long_requests(s) == count + 1
            stream.close()
            # who leaves while his request is being read, frees what it began
            for how in (socket.socket.close, reset):
                gone = s.connect()
                gone.sendall(raw_post(PATH, long))
                count = long_requests(s)
                how(gone)
            s.settled(running=0)
            alive(s)


@test
def test_a_server_that_ends_answers_what_it_is_reading(folder):
    text = "".join(chr(0x4e00 + i * 7919 % 20000) for i in range(2 << 20))
    with scripted(model_len=1 << 24, reader_threads=1) as s:
        held = [s.connect() for _ in range(4)]
        for c in held:
            c.sendall(raw_post("/tokenize", {"prompt": text}))
        while long_requests(s) < len(held):
            pass
        for _ in range(2):
            s.process.send_signal(signal.SIGTERM)
        # an answer is larger than what a socket holds, so the last is still being sent
        answers = [read_response(c.makefile("rb")) for c in held]
        assert [a[0] for a in answers] == [200] * len(held), [a[0] for a in answers]
        assert all(len(json.loads(a[2])["tokens"]) > 1 << 20 for a in answers)
        assert s.process.wait(PATIENCE) == 0


@test
def test_slow_headers_and_bodies_are_cut_off(folder):
    with scripted(header=0.6, body=0.6, idle=30) as s:
        start = time.monotonic()
        drips = [s.connect() for _ in range(20)]
        for c in drips:
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        bodies = [s.connect() for _ in range(20)]
        for c in bodies:
            c.sendall(raw_post(PATH, chat("x" * 100))[:-90])
        open_ones = drips + bodies
        while open_ones and time.monotonic() - start < 20:
            for c in list(open_ones):
                try:
                    c.send(b"X" if c in bodies else b"a")
                    c.setblocking(False)
                    if c.recv(1000) == b"":
                        raise ConnectionResetError
                    c.setblocking(True)
                except BlockingIOError:
                    c.setblocking(True)
                except OSError:
                    open_ones.remove(c)
            time.sleep(0.1)
        assert not open_ones, len(open_ones)
        alive(s)


def open_stream(s, text, **more):
    c = s.connect()
    c.sendall(raw_post(PATH, chat(text, stream=True, **more)))
    return c


@test
def test_client_that_leaves_is_cancelled_at_once(folder):
    with scripted() as s:
        s.stats()
        for how in ("close", "reset"):
            # in mid-stream
            c = open_stream(s, "@count=100000 @delay=5", max_tokens=3000)
            c.recv(3000)
            before = s.stats()["cancelled"]
            start = time.monotonic()
            reset(c) if how == "reset" else c.close()
            s.settled(cancelled=before + 1, running=0)
            assert time.monotonic() - start < 5, how
            # before anything has been answered, streamed and whole
            for stream in (True, False):
                c = s.connect()
                c.sendall(raw_post(PATH, chat("@hold", stream=stream)))
                s.settled(running=1)
                before = s.stats()["cancelled"]
                start = time.monotonic()
                reset(c) if how == "reset" else c.close()
                s.settled(cancelled=before + 1, running=0)
                assert time.monotonic() - start < 5, (how, stream)
        alive(s)


@test
def test_half_closed_client_still_gets_its_answer(folder):
    with scripted() as s:
        for stream in (True, False):
            c = s.connect()
            c.sendall(raw_post(PATH, chat("@delay=30 @say one two three four five", stream=stream)))
            s.settled(running=1)
            c.shutdown(socket.SHUT_WR)
            status, _, body = read_response(c.makefile("rb"))
            assert status == 200
            text = stream_text(body) if stream else json.loads(body)["choices"][0]["message"]["content"]
            assert text == "one two three four five", body
            c.close()
        assert s.stats()["cancelled"] == 0


@test
def test_reader_that_does_not_read_is_bounded_and_holds_nobody_up(folder):
    with scripted(max_stream=100000, idle=30, model_len=200000) as s:
        alive(s)
        before = s.memory()
        sleepers = []
        for _ in range(6): # more than the system's own buffers hold
            c = s.connect()
            c.sendall(raw_post(PATH, chat("@count=50000", stream=True, max_tokens=50000)))
            sleepers.append(c)
        start = time.monotonic()
        alive(s)
        assert time.monotonic() - start < 2
        s.settled(running=0)
        stats = s.stats()
        if MODE == "release":  # sanitizers keep what was freed
            assert s.memory() - before < 40 << 20, (before, s.memory())
        # some of them were cut off; they find an error behind what they had not read
        ends = []
        for c in sleepers:
            status, _, body = read_response(c.makefile("rb"))
            ends.append(events(body)[-1][1])
            c.close()
        cut = [e for e in ends if e != "[DONE]"]
        assert all("too slowly" in e["error"]["message"] for e in cut), cut
        assert len(cut) == stats["cancelled"] > 0, (len(cut), stats)
        text = s.request("GET", "/metrics")[2].decode()
        told = {e: int(re.search(r'event="%s"} (\d+)' % e, text)[1])
                for e in ("slow_reader", "slow_reader_gone")}
        assert told["slow_reader_gone"] == len(cut) <= told["slow_reader"] <= len(sleepers), told
        alive(s)


@test
def test_stream_survives_a_reader_that_reads_a_little_at_a_time(folder):
    with scripted() as s:
        c = open_stream(s, "@count=500", max_tokens=500)
        f = c.makefile("rb", buffering=0)
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += f.read(37)
            if len(data) % 370 == 0:
                time.sleep(0.001)
        _, _, body = read_response(io.BytesIO(data))
        assert body.count(b'"delta":{"content"') == 501 and events(body)[-1][1] == "[DONE]"
        c.close()


@test
def test_keepalive_comments_come_while_the_engine_is_silent(folder):
    with scripted(keepalive=0.3) as s:
        c = open_stream(s, "@hold")
        data = b""
        while data.count(b": keep-alive") < 2:
            data += c.recv(1000)
        assert data.startswith(b"HTTP/1.1 200")
        c.close()
        s.settled(running=0)


@test
def test_thousands_of_idle_connections_leave_room_for_work(folder):
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10000, hard - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
    with scripted(max_connections=count + 50, header=300, idle=300) as s:
        before = s.memory()
        idle = [s.connect() for _ in range(count)]
        alive(s)
        for c in random.sample(idle, 50):
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in c.recv(1000)
        grown = (s.memory() - before) / count
        # what a sanitizer remembers of each byte counts as well
        assert grown < (20000 if MODE == "release" else 200000), grown
        print(f"# {count} connections, {grown:.0f} bytes each")
        for c in idle:
            c.close()
        alive(s)


if __name__ == "__main__":
    main()
