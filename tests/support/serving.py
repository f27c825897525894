"""Servers for tests/server/test_*.py: the scripted one (tests/server/scripted_server.c, answers as
told by the prompt) and `deepinfer serve` on the demo model; raw sockets; and the official client
packages, where they can be imported."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cli import DEMO, PROGRAM, PATIENCE, Skip, environment

SCRIPTED = PROGRAM.parent / "tests/server/scripted_server"
MODEL = "DeepSeek-V4.1-Flash"
# Where scripts/install-clients.sh puts them.
CLIENTS = Path("build/clients").resolve()


class Server:
    """A running server; `with` ends it and looks at how it ended."""

    def __init__(self, words, **more):
        self.process = subprocess.Popen([str(w) for w in words], stderr=subprocess.PIPE, text=True,
                                        env=environment(), **{"stdout": subprocess.PIPE, **more})
        self.address = None

    def wait_for(self, stream, mark):
        """The address in the first line of that stream with the mark in it."""
        lines = []
        for line in stream:
            lines.append(line)
            if mark in line:
                self.address = line.strip().split("//")[-1]
                self.host, port = self.address.rsplit(":", 1)
                self.port = int(port)
                self.url = "http://" + self.address
                return self
        raise AssertionError(f"no address: {lines} {self.process.wait()}")

    def stats(self):
        """Of the scripted engine."""
        self.process.send_signal(signal.SIGUSR1)
        return json.loads(self.process.stdout.readline())

    def settled(self, **wanted):
        """Waits until the counters are so."""
        deadline = time.monotonic() + PATIENCE
        while True:
            stats = self.stats()
            if all(stats[k] == v for k, v in wanted.items()):
                return stats
            assert time.monotonic() < deadline, (stats, wanted)
            time.sleep(0.005)

    def memory(self):
        """Resident bytes."""
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def connect(self, timeout=PATIENCE):
        return socket.create_connection((self.host, self.port), timeout)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) on a connection of its own. A dict is sent as JSON."""
        c = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            sent = {"Content-Type": "application/json"} if body is not None else {}
            sent.update(headers or {})
            c.request(method, path, body, sent)
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def post(self, path, body, headers=None):
        status, _, text = self.request("POST", path, body, headers)
        return status, json.loads(text)

    def get(self, path, headers=None):
        status, _, text = self.request("GET", path, None, headers)
        return status, json.loads(text)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.out, self.err = self.process.communicate(timeout=5 if kind else PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.out, self.err = self.process.communicate()
                if kind is None:
                    raise AssertionError("the server did not end: " + self.err) from None
        if kind is None:
            assert self.process.returncode == 0, (self.process.returncode, self.err)


def scripted(**options):
    return Server([SCRIPTED, DEMO] + [f"{k}={v}" for k, v in options.items()]).wait_for_stdout()


def demo(*options, **more):
    """`deepinfer serve` on the demo model; its log goes nowhere unless asked for."""
    words = [PROGRAM, "serve", "-m", DEMO, "--port", "0", "-q", "--kv-memory", "200M"]
    if "--access-log" not in options:
        words += ["--access-log", "none"]
    return Server(words + list(options), **more).wait_for_stderr()


Server.wait_for_stdout = lambda self: self.wait_for(self.process.stdout, ":")
Server.wait_for_stderr = lambda self: self.wait_for(self.process.stderr, "serving ")


def chat(text, **more):
    """The body of a chat completion in chat mode."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}],
            "thinking": {"type": "disabled"}, **more}


def raw_post(path, body, headers=""):
    """The bytes of a request."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"{headers}Content-Length: {len(body)}\r\n\r\n").encode() + body


def read_response(stream):
    """(status, headers, body) of the next response on a file of a socket; (0, {}, b"") at its end."""
    line = stream.readline()
    while line.startswith(b"HTTP/1.1 10"):  # interim
        while stream.readline() not in (b"\r\n", b""):
            pass
        line = stream.readline()
    if not line:
        return 0, {}, b""
    status, headers = int(line.split()[1]), {}
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, value = line.decode("latin1").split(":", 1)
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while (size := int(stream.readline() or b"0", 16)) > 0:
            body += stream.read(size)
            stream.readline()
        stream.readline()
        return status, headers, body
    return status, headers, stream.read(int(headers.get("content-length", 0)))


def events(body):
    """[(event, data)] of a stream; data is parsed but for [DONE]; comments are left out."""
    out = []
    for block in body.decode().split("\n\n"):
        name, data = None, None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
        if data is not None:
            out.append((name, data if data == "[DONE]" else json.loads(data)))
    return out


def stream_text(body):
    return "".join(d["choices"][0]["delta"].get("content") or ""
                   for _, d in events(body) if d != "[DONE]" and d["choices"])


def import_client(name):
    """openai or anthropic; skips the test where there is none."""
    if CLIENTS.is_dir() and str(CLIENTS) not in sys.path:
        sys.path.append(str(CLIENTS))
    try:
        return __import__(name)
    except ImportError as why:
        raise Skip(f"no {name} package ({why}); scripts/install-clients.sh brings it") from None


@contextlib.contextmanager
def temporary_text(path, text, mode=0o600):
    path.write_text(text)
    os.chmod(path, mode)
    yield path
