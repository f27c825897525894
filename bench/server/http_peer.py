#!/usr/bin/env python3
"""The load of bench/server/http.c on FastAPI and uvicorn, which stream the same 64 events, in turn with
our server, so that both see the same machine.

The peer does no more than it must: it reads the body's JSON and yields ready-made events. uvicorn has
its compiled parts (uvloop, httptools) and one process, as our server has one thread for sockets."""
# needs: fastapi uvicorn uvloop httptools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time

BUILD = os.environ.get("BUILD", "build/release")
CHUNK = {"id": "chatcmpl-" + "0" * 32, "object": "chat.completion.chunk", "created": 1,
         "model": "DeepSeek-V4.1-Flash", "system_fingerprint": "fp_0000000",
         "choices": [{"index": 0, "delta": {"content": " word"}, "logprobs": None,
                      "finish_reason": None}]}


def serve(port):
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import StreamingResponse
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request):
        await request.json()

        async def events():
            for _ in range(65):
                yield "data: " + json.dumps(CHUNK) + "\n\n"
            yield "data: [DONE]\n\n"
        return StreamingResponse(events(), media_type="text/event-stream")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def measure(address):
    """(requests, events) a second of what listens there, over 3 seconds."""
    out = subprocess.run([BUILD + "/bench/server/http", "--against", address], capture_output=True,
                         text=True, check=True).stdout
    r, e = re.search(r"(\d+) requests/s\s+(\d+) events/s", out).groups()
    return float(r), float(e)


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    peer = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    ours = subprocess.Popen([BUILD + "/tests/server/scripted_server", "models/demo",
                             "fixed_tokens=64"], stdout=subprocess.PIPE, text=True)
    try:
        address = ours.stdout.readline().strip()
        for _ in range(200):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        rounds = []
        print("in turn          ours: requests/s, events/s     FastAPI and uvicorn: the same     ratio")
        for _ in range(7):
            a, b = measure(address), measure(f"127.0.0.1:{port}")
            rounds.append(a[1] / b[1])
            print(f"{'':24} {a[0]:9.0f} {a[1]:10.0f} {b[0]:23.0f} {b[1]:9.0f} {rounds[-1]:9.1f}")
    finally:
        for server in (peer, ours):
            server.terminate()
            server.wait()
    print(f"ratio in events/s, median of {len(rounds)}: {statistics.median(rounds):.1f}")


if __name__ == "__main__":
    serve(int(sys.argv[2])) if sys.argv[1:2] == ["--serve"] else main()
