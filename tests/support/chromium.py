"""Drives a headless Chromium through its debugging pipe, as a person would: clicks where things
are, types letters, looks at what is shown. Standard library only.

    with Chromium() as browser:
        page = browser.page("http://127.0.0.1:1234/")
        page.click("#send")
"""

import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

PATIENCE = float(os.environ.get("PAGE_PATIENCE", 30))


def executable():
    """Chromium's path, or None."""
    for name in ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


class Chromium:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.back, from_write = os.pipe()

        def place():  # the pipe's ends are to be 3 and 4
            os.dup2(to_read, 30)
            os.dup2(from_write, 31)
            os.dup2(30, 3)
            os.dup2(31, 4)

        self.log = open(os.path.join(self.folder.name, "log"), "wb")
        self.process = subprocess.Popen(
            [executable(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--disable-component-update", "--lang=en",
             "--force-color-profile=srgb", # a mouse, which headless ones have not
             "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
             "--user-data-dir=" + self.folder.name, "about:blank"],
            preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log)
        os.close(to_read)
        os.close(from_write)
        self.number, self.lock = 0, threading.Lock()
        self.answers, self.pages = {}, {}
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.folder.cleanup()

    def _read(self):
        rest = b""
        while True:
            data = os.read(self.back, 1 << 16)
            if not data:
                return
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self.answers.pop(message["id"]).put(message)
                elif message.get("sessionId") in self.pages:
                    self.pages[message["sessionId"]].note(message)

    def ask(self, method, session=None, **params):
        answer = queue.Queue()
        with self.lock:
            self.number += 1
            message = {"id": self.number, "method": method, "params": params}
            if session:
                message["sessionId"] = session
            self.answers[self.number] = answer
            data = json.dumps(message).encode() + b"\0"
            while data:
                data = data[os.write(self.to, data):]
        found = answer.get(timeout=PATIENCE)
        assert "error" not in found, f"{method}: {found['error']}"
        return found["result"]

    def page(self, url, width=1200, height=800, dark=False, phone=False):
        """A page of a profile of its own."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        return Page(self, url, context, width, height, dark, phone)


class Page:
    KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, " ": 32}

    def __init__(self, browser, url, context, width, height, dark, phone):
        self.browser, self.context = browser, context
        self.target = browser.ask("Target.createTarget", url="about:blank",
                                  browserContextId=context)["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=self.target,
                                   flatten=True)["sessionId"]
        self.errors, self.requests = [], []
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            self.ask(domain + ".enable")
        self.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        self.ask("Page.bringToFront")
        self.size(width, height, phone)
        self.colours(dark)
        self.open(url)

    def ask(self, method, **params):
        return self.browser.ask(method, self.session, **params)

    def note(self, message):
        params = message["params"]
        if message["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif message["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def close(self):
        self.browser.ask("Target.disposeBrowserContext", browserContextId=self.context)

    # ---- the window ----

    def size(self, width, height, phone=False):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.ask("Emulation.setTouchEmulationEnabled", enabled=phone)

    def colours(self, dark):
        self.ask("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.eval("window.isOld = true")
        self.ask("Page.navigate", url=url)
        self.wait("!window.isOld && document.readyState === 'complete'")

    def reload(self):
        self.eval("window.isOld = true")
        self.ask("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def screenshot(self, path):
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    # ---- looking ----

    def eval(self, expression):
        found = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True,
                         returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise AssertionError(f"{expression}: {details.get('exception', {}).get('description')}")
        return found["result"].get("value")

    def wait(self, expression, patience=PATIENCE):
        end = time.monotonic() + patience
        while True:
            try:
                value = self.eval(f"(v => v instanceof Node ? true : v)({expression})")
            except AssertionError:  # between two pages nothing is there
                value = None
            if value:
                return value
            assert time.monotonic() < end, f"never came true: {expression}\n{self.errors}"
            time.sleep(0.03)

    def text(self, selector):
        return self.eval(f"document.querySelector({json.dumps(selector)}).textContent")

    def count(self, selector):
        return self.eval(f"document.querySelectorAll({json.dumps(selector)}).length")

    def shown(self, selector):
        return self.eval(f"(e => Boolean(e && e.checkVisibility({{visibilityProperty: true}})))"
                         f"(document.querySelector({json.dumps(selector)}))")

    def accessible(self):
        """The accessibility tree: [(role, name)] of what a screen reader meets."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        return [(n["role"]["value"], n.get("name", {}).get("value", ""))
                for n in nodes if not n.get("ignored") and "role" in n]

    # ---- acting ----

    def click(self, selector):
        """A real click, which must land on the element itself."""
        x, y, hit = self.eval("""(s => {
            const e = document.querySelector(s);
            e.scrollIntoView({block: "nearest"});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
            const hit = document.elementFromPoint(x, y);
            return [x, y, Boolean(hit) && (e.contains(hit) || hit.contains(e))];
        })(%s)""" % json.dumps(selector))
        assert hit, f"{selector} is covered or out of sight"
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def fill(self, selector, text):
        self.click(selector)
        self.eval(f"document.querySelector({json.dumps(selector)}).select()")
        if text:
            self.type(text)
        else:
            self.press("Backspace", 8)

    def press(self, key, code=None, modifiers=0):
        code = code or self.KEYS.get(key, ord(key[0].upper()))
        words = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **words, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **words)
