"""Responses that are asked for by their id: input items, background, cancel. By the official client
where it is there, by HTTP where it would hide what is told."""

import json
import signal
import sys
import threading
import time

sys.path[:0] = ["tests/support"]
from cli import MODE, PATIENCE, deepinfer, main, succeeds, test  # noqa: E402
from serving import MODEL, demo, import_client, raw_post, read_response, scripted  # noqa: E402

OFF = {"effort": "none"}
PATH = "/v1/responses"


def client(server, key="none"):
    return import_client("openai").OpenAI(base_url=server.url + "/v1", api_key=key, timeout=PATIENCE,
                                          max_retries=0)


def make_keys(folder, *limits):
    file = folder / "keys"
    return file, [succeeds(deepinfer("key", "new", name, "--api-key-file", file, *limits, *more)).out.strip()
                  for name, more in (("alice", []), ("bob", []), ("root", ["--admin"]))]


def refused(function, status, *words):
    """The call fails so; what the server said."""
    openai = import_client("openai")
    try:
        function()
    except openai.APIStatusError as e:
        assert e.status_code == status and all(w in e.message for w in words), (e.status_code, e.message)
        return e
    raise AssertionError("no error")


def until(c, r, *states):
    """Asks for the response until it is so."""
    deadline = time.monotonic() + PATIENCE
    while (now := c.responses.retrieve(r.id)).status not in states:
        assert now.status in ("queued", "in_progress") and time.monotonic() < deadline, now
        assert now.output == [] and now.background
        time.sleep(0.002)
    return now


def begin(c, text, **more):
    return c.responses.create(**{"model": MODEL, "input": text, "reasoning": OFF, "background": True, **more})


def gauge(server, name, key="none"):
    text = server.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})[2].decode()
    return float(next(x for x in text.splitlines() if x.startswith(name)).split()[-1])


def in_background(server, most, key="none"):
    """Waits until no more are under way: a step of the engine after a cancel. Their keys' places are
    free then, too."""
    deadline = time.monotonic() + PATIENCE
    while (now := gauge(server, "deepinfer:background_responses", key)) > most:
        assert time.monotonic() < deadline, now
        time.sleep(0.002)


# ---- input items --------------------------------------------------------------------------------


@test
def test_input_items_are_told_in_pages(folder):
    with scripted(store=1 << 20) as s:
        c = client(s)
        items = [{"role": "user", "content": f"@say {i}"} for i in range(45)]
        r = c.responses.create(model=MODEL, input=items, reasoning=OFF)
        page = c.responses.input_items.list(r.id)
        assert len(page.data) == 20 and page.has_more and page.data[0].content[0].text == "@say 44"
        for order, texts in [("asc", list(range(45))), ("desc", list(range(44, -1, -1)))]:
            for limit in (1, 7, 45, 100):
                got = [(x.id, x.content[0].text) for x in c.responses.input_items.list(r.id, limit=limit, order=order)]
                assert [t for _, t in got] == [f"@say {i}" for i in texts], (order, limit, got)
                assert len({i for i, _ in got}) == 45
        last = c.responses.input_items.list(r.id, order="asc", after=got[0][0])  # the newest item
        assert last.data == [] and not last.has_more
        one = c.responses.input_items.list(r.id, order="asc", after=got[-1][0], limit=1)
        assert one.data[0].content[0].text == "@say 1" and one.has_more
        # what does not fit
        for query, told in [("limit=0", "limit is 0"), ("limit=101", "limit is 101"), ("limit=-1", "limit is -1"),
                            ("limit=x", "limit is x"), ("limit=99999999999999999999", "limit is"),
                            ("order=up", "order is up"), ("after=item_none", "after is item_none")]:
            status, body = s.get(f"{PATH}/{r.id}/input_items?{query}")
            assert status == 400 and told in body["error"]["message"], (query, body)
        for path in ("resp_none/input_items", f"{r.id}x/input_items"):
            assert s.get(f"{PATH}/{path}")[0] == 404
        status, h, _ = s.request("POST", f"{PATH}/{r.id}/input_items", {})
        assert status == 405 and h["Allow"] == "GET", (status, h)
        status, h, _ = s.request("GET", f"{PATH}/{r.id}/cancel")
        assert status == 405 and h["Allow"] == "POST", (status, h)
        assert s.get(f"{PATH}/{r.id}/other")[0] == 404 and s.get(f"{PATH}/{r.id}/")[0] == 404


@test
def test_input_items_have_what_was_left_out(folder):
    with scripted(store=1 << 20) as s:
        c = client(s)
        first = c.responses.create(model=MODEL, input="@say a \"b\" \u00e9", reasoning=OFF)
        call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": "done"}
        r = c.responses.create(model=MODEL, previous_response_id=first.id, reasoning=OFF, input=[
            {"role": "assistant", "content": "text"}, call, output,
            {"id": "msg_mine", "type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "@say x"}]}])
        got = list(c.responses.input_items.list(r.id, order="asc"))
        assert [x.type for x in got] == ["message", "message", "message", "function_call",
                                         "function_call_output", "message"]
        # all that was said before is part of it, an earlier answer by the id that it had
        assert got[0].content[0].text == "@say a \"b\" \u00e9" and got[0].role == "user"
        assert got[1].id == first.output[0].id and got[1].content[0].text == "a \"b\" \u00e9"
        assert got[2].content[0].type == "output_text" and got[2].content[0].text == "text"
        assert (got[3].call_id, got[3].name, got[4].output, got[5].id) == ("c1", "f", "done", "msg_mine")
        assert all(x.status == "completed" for x in got)
        only = list(c.responses.input_items.list(first.id))
        assert len(only) == 1 and only[0].id == got[0].id.replace(r.id, first.id)


@test
def test_settings_are_told_back_as_they_are_in_force(folder):
    with scripted() as s:
        c = client(s)
        r = c.responses.create(model=MODEL, input="@say x", reasoning=OFF, truncation="auto", temperature=0.3,
                               extra_body={"presence_penalty": 0.3, "frequency_penalty": -1})
        assert r.truncation == "disabled" and r.temperature == 0.3
        assert (r.presence_penalty, r.frequency_penalty) == (0.3, -1)
        for metadata in ({}, {"ticket": "4711", "\u00e9 \"": ""}):
            r = c.responses.create(model=MODEL, input="@say x", reasoning=OFF, metadata=metadata)
            assert r.metadata == metadata, r.metadata
        for metadata in ({"a": 1}, {str(i): "" for i in range(17)}, "text"):
            refused(lambda: c.responses.create(model=MODEL, input="x", metadata=metadata), 400, "metadata")
        refused(lambda: c.responses.create(model=MODEL, input="x", truncation="some"), 400, "truncation")


# ---- background ---------------------------------------------------------------------------------


@test
def test_a_response_in_the_background_is_asked_for_until_it_is_there(folder):
    with scripted(store=1 << 20) as s:
        c = client(s)
        held = begin(c, "@hold", metadata={"a": "b"})
        assert held.metadata == c.responses.retrieve(held.id).metadata == {"a": "b"}
        assert held.status == "queued" and held.background and held.output == [] and held.usage is None
        assert c.responses.retrieve(held.id).status == "queued"
        slow = begin(c, "@delay=20 @count=300", max_output_tokens=300)
        until(c, slow, "in_progress")
        refused(lambda: begin(c, "x", previous_response_id=slow.id), 400, "not complete yet")
        assert [x.content[0].text for x in c.responses.input_items.list(held.id)] == ["@hold"]
        assert gauge(s, "deepinfer:background_responses") == 2
        r = begin(c, "@say the answer")
        done = until(c, r, "completed")
        assert done.output_text == "the answer" and done.usage.output_tokens > 0 and done.background
        assert done.id == r.id and done.created_at == r.created_at and done.completed_at >= done.created_at
        plain = c.responses.create(model=MODEL, input="@say the answer", reasoning=OFF)
        assert plain.usage == done.usage and not plain.background
        on = begin(c, "@say on", previous_response_id=r.id)
        assert until(c, on, "completed").output_text == "on"
        cut = begin(c, "@count=50", max_output_tokens=3)
        assert until(c, cut, "incomplete").incomplete_details.reason == "max_output_tokens"
        # what fails is kept as such
        failed = until(c, begin(c, "@fail=2 @count=9"), "failed")
        assert failed.error.code == "server_error" and failed.error.message and failed.output == [], failed
        c.responses.cancel(held.id)
        c.responses.cancel(slow.id)
        in_background(s, 0)


@test
def test_what_a_background_response_needs(folder):
    with scripted(store=1 << 20, max_background=2) as s:
        c = client(s)
        refused(lambda: begin(c, "x", store=False), 400, "background", "store")
        refused(lambda: begin(c, "x", stream=True), 400, "background", "stream")
        refused(lambda: begin(c, "x", background="yes"), 400, "background")
        a, b = begin(c, "@hold"), begin(c, "@hold")
        e = refused(lambda: begin(c, "@hold"), 503, "--max-background", "2")
        assert e.response.headers["retry-after"]
        c.responses.create(model=MODEL, input="@say x", reasoning=OFF)  # others are let in
        c.responses.cancel(a.id)
        in_background(s, 1)
        # whoever sees the end finds the place free
        for i in range(100):
            until(c, begin(c, f"@say {i}"), "completed")
        c.responses.cancel(b.id)
    with scripted(store=4000) as s:  # an answer that does not fit is told as failed
        c = client(s)
        r = begin(c, "@say x " + "y " * 1500)
        assert "--response-store" in until(c, r, "failed").error.message
    with scripted() as s:
        refused(lambda: begin(client(s), "x"), 400, "background", "--response-store")
        status, body = s.post(PATH + "/resp_1/cancel", {})
        assert status == 404 and "--response-store" in body["error"]["message"]
        for path in ("/v1/chat/completions", "/v1/completions"):
            assert "background" in s.post(path, {"model": MODEL, "background": True})[1]["error"]["message"]


@test
def test_cancel_stops_the_engine_and_stays(folder):
    with scripted(store=1 << 20) as s:
        c = client(s)
        for text in ("@hold", "@delay=10 @count=3000"):
            r = begin(c, text, max_output_tokens=3000)
            cancelled = c.responses.cancel(r.id)
            assert cancelled.status == "cancelled" and cancelled.output == [], cancelled
            s.settled(running=0)
            assert c.responses.cancel(r.id).model_dump() == c.responses.retrieve(r.id).model_dump()
            assert c.responses.retrieve(r.id).status == "cancelled"
        r = begin(c, "@say done")
        until(c, r, "completed")
        assert c.responses.cancel(r.id).output_text == "done"  # it has ended: it stays as it is
        plain = c.responses.create(model=MODEL, input="@say x", reasoning=OFF)
        refused(lambda: c.responses.cancel(plain.id), 400, "background")
        refused(lambda: c.responses.cancel("resp_none"), 404, "resp_none")
        # a bare POST will do
        status, _, body = s.request("POST", f"{PATH}/{r.id}/cancel")
        assert status == 200 and json.loads(body)["status"] == "completed"
        # deleting one that runs stops it too, and nothing is left
        r = begin(c, "@hold")
        assert s.request("DELETE", f"{PATH}/{r.id}")[0] == 200
        s.settled(running=0)
        refused(lambda: c.responses.retrieve(r.id), 404, r.id)


@test
def test_background_responses_are_their_keys_own_and_count(folder):
    keys, (alice, bob, root) = make_keys(folder, "--concurrency", 1, "--tokens-per-day", 2000)
    with scripted(store=1 << 20, keys=keys, journal=folder / "journal") as s:
        mine, other = client(s, alice), client(s, bob)
        r = begin(mine, "@hold", max_output_tokens=100)
        refused(lambda: mine.responses.create(model=MODEL, input="@say x", reasoning=OFF), 429, "under way")
        refused(lambda: begin(mine, "@say x"), 429)
        for function in (other.responses.retrieve, other.responses.cancel, other.responses.delete,
                         other.responses.input_items.list):
            refused(lambda: function(r.id), 404, r.id)
        assert mine.responses.retrieve(r.id).status == "queued"
        mine.responses.cancel(r.id)
        in_background(s, 0, root)
        for i in range(30):
            until(mine, begin(mine, f"@say {i}", max_output_tokens=20), "completed")
        used = 0
        for i in range(1000):  # the quota of the day ends them
            try:
                x = begin(mine, "@count=60", max_output_tokens=60)
            except import_client("openai").RateLimitError as e:
                assert "day" in e.message, e
                break
            used += until(mine, x, "completed", "incomplete").usage.total_tokens
        assert 0 < used < 2000, used


@test
def test_a_drain_ends_background_responses_at_once(folder):
    with scripted(store=1 << 20) as s:
        c = client(s)
        r = begin(c, "@hold")
        with s.connect() as held:  # keeps the server up while it drains
            held.sendall(raw_post("/v1/chat/completions",
                                  {"model": MODEL, "messages": [{"role": "user", "content": "@delay=50 @count=60"}],
                                   "max_tokens": 60, "thinking": {"type": "disabled"}}))
            s.settled(running=2)
            s.process.send_signal(signal.SIGTERM)
            failed = until(c, r, "failed")
            assert "ending" in failed.error.message, failed
            refused(lambda: begin(c, "@say x"), 503, "ending")
            assert read_response(held.makefile("rb"))[0] == 200
        s.process.wait(PATIENCE)
    # one that nobody else keeps up ends with its background responses
    with demo("--response-store", "1M", "--drain-timeout", "600") as s:
        begin(client(s), "Tell me a long story.", max_output_tokens=3000, temperature=1)
        began = time.monotonic()
        s.process.send_signal(signal.SIGTERM)
        s.process.wait(PATIENCE)
        assert time.monotonic() - began < (10 if MODE == "release" else 200)


@test
def test_background_responses_leave_nothing_behind(folder):
    """Many at once, half of them cancelled or deleted while they run, by several threads."""
    import_client("openai")
    rounds = 40 if MODE == "release" else 10
    with scripted(store=1 << 18, store_per_key=50) as s:
        failures = []

        def work(number):
            try:
                c = client(s)
                for i in range(rounds):
                    r = begin(c, "@delay=1 @say " + "word " * (i % 20))
                    if i % 4 == 0:
                        assert c.responses.cancel(r.id).status in ("cancelled", "completed")
                    elif i % 4 == 1:
                        c.responses.delete(r.id)
                        refused(lambda: until(c, r, "cancelled"), 404)
                    elif i % 4 == 2:
                        assert until(c, r, "completed").status == "completed"
            except BaseException as e:  # told by the main thread
                failures.append((number, repr(e)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures, failures[:3]
        in_background(s, 0)
        assert gauge(s, "deepinfer:stored_responses") <= 50


@test
def test_on_the_demo_model(folder):
    with demo("--response-store", "4M") as s:
        c = client(s)
        whole = c.responses.create(model=MODEL, input="Who wrote Dracula?", temperature=0)
        r = until(c, begin(c, "Who wrote Dracula?", temperature=0, reasoning=None), "completed")
        assert r.output_text == whole.output_text == "Dracula was written by Bram Stoker."
        assert r.usage.output_tokens == whole.usage.output_tokens
        r = begin(c, "Tell me a story.", temperature=1, max_output_tokens=3000, extra_body={"deadline": 0.01})
        assert "time" in until(c, r, "failed").error.message


main()
