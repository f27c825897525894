"""A stand-in for the server that behaves to order: the page's files with their headers, models, and
chat completions that stream what the question asks for. For tests of the page.

What the last message says decides: "slow" streams words until the client leaves, "markup" answers
with Markdown and with what must not become markup, "refuse 429" and "refuse 500" are errors,
"break" ends in the middle, "fault" sends an error event; anything else is echoed after some
thinking. With a schema the answer is JSON.
"""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WEB = Path("src/server/web")
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

MARKUP = """# Heading <b>one</b>

A *slanted* and a **bold** word, `code <i>` and a [link](https://example.com/a?b=c).
<img src=x onerror="document.title='broken'"> <script>document.title = 'broken'</script>

[bad](javascript:document.title='broken') [worse](data:text/html,x)

- first
- second
  1. inner
  2. inner two

```html
<script>document.title = "broken"</script>
```

| name | value |
|------|-------|
| a    | `1`   |
| b    | <b>2</b> |

> quoted

---
The end."""


def page_header():
    """The Content-Security-Policy that src/server/page.h tells."""
    text = (WEB.parent / "page.h").read_text()
    policy = re.search(r"#define DI_PAGE_CSP\s*\\\n((?:.*\\\n)*.*\n)", text).group(1)
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', policy))


class Mock(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, key=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.key, self.asked, self.left = key, [], 0
        # Cleared, they hold back what comes behind the thinking, and the end of the answer.
        self.thought, self.answered = threading.Event(), threading.Event()
        self.thought.set()
        self.answered.set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # clients leave; that is part of the test


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, type="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def refused(self):
        if self.server.key and self.headers.get("Authorization") != "Bearer " + self.server.key:
            self.reply(401, {"error": {"message": "the API key is not valid"}})
            return True
        return False

    def do_GET(self):
        path = self.path.split("?")[0]
        file = WEB / ("index.html" if path == "/" else path.removeprefix("/web/"))
        if path == "/v1/models":
            if not self.refused():
                self.reply(200, {"object": "list", "data": [{"id": "mock-model", "object": "model"}]})
        elif file.parent == WEB and file.is_file():
            self.reply(200, file.read_bytes(), TYPES[file.suffix],
                       Content_Security_Policy=page_header())
        else:
            self.reply(404, {"error": {"message": "not found"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or self.refused():
            return
        self.server.asked.append(body)
        said = body["messages"][-1]["content"]
        refusal = re.match(r"refuse (\d+)", said)
        if refusal:
            self.reply(int(refusal[1]), {"error": {"message": "this key may make 6 requests a minute"}},
                       Retry_After="10")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.stream(body, said)
        except OSError:
            self.server.left += 1

    def send(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, delta, finish=None, **more):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.send("data: " + json.dumps({"choices": [choice], **more}) + "\n\n")

    def stream(self, body, said):
        self.send(": keep-alive\n\n")
        self.event({"role": "assistant", "content": ""})
        count = 0
        if body.get("thinking", {}).get("type") == "enabled":
            for word in "Let me think about that .".split():
                self.event({"reasoning_content": word + " "})
                count += 1
                time.sleep(0.05)
            self.server.thought.wait()
        if said.startswith("slow"):
            for i in range(100000):
                self.event({"content": f"word{i} "})
                time.sleep(0.01)
        if said.startswith("fault"):
            self.event({"content": "Half of it"})
            self.send('data: {"error": {"message": "the engine has failed (request abc)"}}\n\n')
            return self.send("")
        text = f"You said: {said}"
        if "response_format" in body:
            text = json.dumps({"answer": said})
        elif said.startswith("markup"):
            text = MARKUP
        for piece in re.findall(r"\S+\s*|\s+", text):
            self.event({"content": piece})
            count += 1
            time.sleep(0.01)
        if said.startswith("break"):
            self.close_connection = True
            return self.send("")
        self.server.answered.wait()
        self.event({}, "stop")
        usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
        # Cut in the middle of an event, as networks do.
        tail = "data: " + json.dumps({"choices": [], "usage": usage}) + "\n\ndata: [DONE]\n\n"
        self.send(tail[:20])
        self.send(tail[20:])
        return self.send("")


if __name__ == "__main__":
    import sys

    mock = Mock(*sys.argv[1:])
    print(mock.url, flush=True)
    threading.Event().wait()
