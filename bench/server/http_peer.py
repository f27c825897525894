#!/usr/bin/env python3
"""The load of bench/server/http.c on FastAPI and uvicorn, which stream the same 64 events, and the ratio
to what our server did in the same run ($BENCH_OUTPUT).

The peer does no more than it must: it reads the body's JSON and yields ready-made events. uvicorn has
its compiled parts (uvloop, httptools) and one process, as our server has one thread for sockets."""
# needs: fastapi uvicorn uvloop httptools
import json
import os
import re
import socket
import subprocess
import sys
import time

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


def rates(text):
    found = [(float(r), float(e)) for r, e in
             re.findall(r"streamed, full load\s+(\d+) requests/s\s+(\d+) events/s", text)]
    return max(found) if found else (0, 0)


def main():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
    try:
        for _ in range(200):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        program = os.environ.get("BUILD", "build/release") + "/bench/server/http"
        out = subprocess.run([program, "--against", f"127.0.0.1:{port}"], capture_output=True,
                             text=True, check=True).stdout
    finally:
        server.terminate()
        server.wait()
    print("FastAPI and uvicorn:")
    print(out, end="")
    ours = rates(open(os.environ["BENCH_OUTPUT"]).read()) if "BENCH_OUTPUT" in os.environ else (0, 0)
    peer = rates(out)
    if ours[0]:
        print(f"ratio to the peer: {ours[0] / peer[0]:.1f} in requests/s, "
              f"{ours[1] / peer[1]:.1f} in events/s (best of three each)")


if __name__ == "__main__":
    serve(int(sys.argv[2])) if sys.argv[1:2] == ["--serve"] else main()
