"""Many requests at once: 500 streams on the demo model, and a driver of random events over HTTP on the
scripted engine. Every request ends in exactly one final event, what clients got is what was said,
memory stays flat, nothing is left behind. SEED=n starts elsewhere; SOAK_EVENTS=n runs n times as
long; LOAD_REQUESTS=n sends n to the model."""

import json
import os
import random
import selectors
import socket
import struct
import sys
import time

sys.path[:0] = ["tests/support"]
from cli import MODE, PATIENCE, main, test  # noqa: E402
from serving import MODEL, chat, demo, events, raw_post, scripted  # noqa: E402

PATH = "/v1/chat/completions"
SEED = int(os.environ.get("SEED", "1"))
SOAK = int(os.environ.get("SOAK_EVENTS", "1"))


class Client:
    """A socket that reads one streamed answer after the other, without threads."""

    def __init__(self, s, selector):
        self.socket = s.connect()
        self.socket.setblocking(False)
        self.data, self.selector = b"", selector
        selector.register(self.socket, selectors.EVENT_READ, self)

    def send(self, body, path=PATH):
        self.data = b""
        self.socket.setblocking(True)
        self.socket.sendall(raw_post(path, body))
        self.socket.setblocking(False)

    def read(self):
        """True when the answer is whole."""
        try:
            block = self.socket.recv(65536)
        except BlockingIOError:
            return False
        if not block:
            raise ConnectionResetError("the server closed")
        self.data += block
        return self.data.endswith(b"\r\n0\r\n\r\n")

    def events(self):
        """Of the chunked answer."""
        head, rest = self.data.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200"), head
        body = b""
        while True:
            size, rest = rest.split(b"\r\n", 1)
            if int(size, 16) == 0:
                return events(body)
            body += rest[:int(size, 16)]
            rest = rest[int(size, 16) + 2:]

    def close(self):
        self.selector.unregister(self.socket)
        self.socket.close()


def check_one_end(found):
    """A streamed chat answer: one role, one finish, [DONE] last and once."""
    assert found[-1][1] == "[DONE]" and sum(d == "[DONE]" for _, d in found) == 1, found[-3:]
    chunks = [d for _, d in found[:-1]]
    assert sum("role" in d["choices"][0]["delta"] for d in chunks) == 1, chunks[:2]
    finishes = [d["choices"][0]["finish_reason"] for d in chunks]
    assert [f for f in finishes if f] == [finishes[-1]] and finishes[-1], finishes[-3:]


@test
def test_500_streams_on_the_model_each_end_once_and_memory_is_flat(folder):
    total = int(os.environ.get("LOAD_REQUESTS", "1000" if MODE == "release" else "200"))
    width = min(500, total)
    with demo("--max-num-seqs", "64", "--kv-memory", "400M") as s, \
            selectors.DefaultSelector() as selector:
        clients = [Client(s, selector) for _ in range(width)]
        sent = done = 0
        start, quarter, last = time.monotonic(), 0, time.monotonic()
        for c in clients:
            c.send(chat(f"Say something about {sent}.", stream=True, max_tokens=8, ignore_eos=True))
            sent += 1
        while done < total:
            assert time.monotonic() - last < PATIENCE, (done, total)
            for key, _ in selector.select(1):
                c = key.data
                if not c.read():
                    continue
                check_one_end(c.events())
                done += 1
                last = time.monotonic()
                quarter = s.memory() if done == total // 2 else quarter
                if sent < total:
                    c.send(chat(f"Say something about {sent}.", stream=True, max_tokens=8,
                                ignore_eos=True))
                    sent += 1
        seconds, memory = time.monotonic() - start, s.memory()
        text = s.request("GET", "/metrics")[2].decode()
        counted = sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                      if line.startswith("vllm:request_success_total"))
        assert counted == total, (counted, total)
        assert MODE != "release" or memory - quarter < 16 << 20, (quarter, memory)
        print(f"# {total} requests over {width} connections in {seconds:.1f} s; "
              f"{(memory - quarter) / 2**20:+.1f} MiB in the second half")


class Driver:
    """Opens, reads, stalls and drops requests at random and knows what each must give."""

    def __init__(self, s, rng):
        self.s, self.rng, self.selector = s, rng, selectors.DefaultSelector()
        self.busy, self.ended, self.dropped = {}, 0, 0

    def begin(self):
        rng = self.rng
        words = " ".join(rng.choice(["sun", "moon", "é", "日本", "{}", "\\n", "x" * 30])
                         for _ in range(rng.randrange(1, 30)))
        orders = rng.choice(["", "@delay=1 ", "@delay=3 ", "@burst ", "@hold ", "@fail=2 "])
        words += " and more of it" if orders == "@fail=2 " else ""
        body = chat(orders + "@say " + words, stream=rng.random() < 0.7)
        c = Client(self.s, self.selector)
        data = raw_post(PATH, body)
        if rng.random() < 0.1:  # gone in mid-request
            c.socket.send(data[:rng.randrange(len(data))])
            self.leave(c)
            return
        c.socket.setblocking(True)
        c.socket.sendall(data)
        c.socket.setblocking(False)
        self.busy[c] = (orders.strip(), words, body["stream"])

    def leave(self, c):
        how = self.rng.choice(["close", "reset", "half"])
        if how == "reset":
            c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == "half":
            try:
                c.socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        self.busy.pop(c, None)
        c.close()
        self.dropped += 1

    def whole(self, c):
        head, _, rest = c.data.partition(b"\r\n\r\n")
        if b"chunked" in head:
            return c.data.endswith(b"\r\n0\r\n\r\n")
        length = [int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")]
        return bool(length) and len(rest) == length[0]

    def check(self, c):
        orders, words, stream = self.busy.pop(c)
        head, _, rest = c.data.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if orders == "@fail=2":
            assert status == 500 if not stream else status in (200, 500), head
            assert b"the script says" in c.data, c.data
        elif stream:
            found = c.events()
            check_one_end(found)
            text = "".join(d["choices"][0]["delta"].get("content") or "" for _, d in found[:-1])
            assert text == words, (text, words)
        else:
            assert json.loads(rest)["choices"][0]["message"]["content"] == words
        c.close()
        self.ended += 1

    def turn(self, patience):
        for key, _ in self.selector.select(patience):
            c = key.data
            try:
                c.read()
            except ConnectionResetError:
                raise AssertionError((self.busy.get(c), c.data)) from None
            if self.whole(c):
                self.check(c)

    def run(self, count):
        for _ in range(count):
            roll = self.rng.random()
            if roll < 0.5 and len(self.busy) < 200:
                self.begin()
            elif roll < 0.6 and self.busy:
                self.leave(self.rng.choice(list(self.busy)))
            else:
                self.turn(0.002)
        for c in [c for c, (orders, _, _) in self.busy.items() if orders == "@hold"]:
            self.leave(c)
        end = time.monotonic() + PATIENCE
        while self.busy:
            assert time.monotonic() < end, list(self.busy.values())[:3]
            self.turn(0.1)


@test
def test_random_clients_on_several_threads(folder):
    with scripted(threads=3) as s:
        driver = Driver(s, random.Random(SEED + 1))
        driver.run(1000 if MODE == "release" else 200)
        stats = s.settled(running=0)
        assert stats["submitted"] == stats["finished"]


@test
def test_random_clients_never_disturb_each_other(folder):
    with scripted(keepalive=0.5) as s:
        driver = Driver(s, random.Random(SEED))
        driver.run(1500 if MODE == "release" else 100)
        before = s.memory()
        driver.run((4000 if MODE == "release" else 400) * SOAK)
        stats = s.settled(running=0)
        assert stats["submitted"] == stats["finished"]
        assert MODE != "release" or s.memory() - before < 12 << 20, (before, s.memory())
        text = s.request("GET", "/metrics")[2].decode()
        print(f"# seed {SEED}: {driver.ended} answered, {driver.dropped} dropped, "
              f"{stats['cancelled']} cancelled")
        assert "deepinfer" in text


if __name__ == "__main__":
    main()
