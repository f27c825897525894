"""The official openai and anthropic packages against the server: on the scripted engine, where every
answer is known, and on the demo model."""

import json
import re
import sys
import threading
import time

sys.path[:0] = ["tests/support"]
from cli import PATIENCE, deepinfer, main, succeeds, test  # noqa: E402
from serving import MODEL, demo, import_client, scripted  # noqa: E402

OFF = {"thinking": {"type": "disabled"}}
CALL = ('@say \n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="weather">\n<｜DSML｜ parameter name="city" '
        'string="true">Pa"ris</｜DSML｜ parameter>\n<｜DSML｜ parameter name="days" '
        'string="false">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name="clock">\n\n'
        '</｜DSML｜ invoke>\n</｜DSML｜ calls>')
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"},
                                               "days": {"type": "integer"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "clock"}}]
THOUGHT = "@say Let me see.</think>It is four."


def openai_client(s, **more):
    openai = import_client("openai")
    return openai.OpenAI(base_url=s.url + "/v1", api_key="none", timeout=PATIENCE, **more)


def anthropic_client(s, **more):
    anthropic = import_client("anthropic")
    return anthropic.Anthropic(base_url=s.url, api_key="none", timeout=PATIENCE, **more)


def user(text):
    return [{"role": "user", "content": text}]


# ---- openai: chat -----------------------------------------------------------------------------


@test
def test_chat_whole(folder):
    import_client("openai")
    with scripted() as s:
        c = openai_client(s)
        answer = c.chat.completions.create(model=MODEL, messages=user("@say Hello, you."),
                                           extra_body=OFF, n=3, user="me", seed=7)
        assert [x.message.content for x in answer.choices] == ["Hello, you."] * 3
        assert [x.index for x in answer.choices] == [0, 1, 2]
        assert {x.finish_reason for x in answer.choices} == {"stop"}
        assert answer.usage.completion_tokens % 3 == 0 and answer.usage.prompt_tokens > 4
        answer = c.chat.completions.create(model=MODEL, messages=user("@count=50"), max_tokens=5,
                                           extra_body=OFF)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 5
        raw = c.chat.completions.with_raw_response.create(
            model=MODEL, messages=user("@say x"), extra_headers={"X-Request-Id": "mine-1"})
        assert raw.headers["x-request-id"] == "mine-1"


@test
def test_chat_streamed_with_usage_and_choices(folder):
    import_client("openai")
    with scripted() as s:
        chunks = list(openai_client(s).chat.completions.create(
            model=MODEL, messages=user("@say Hello, you two."), stream=True, n=2, extra_body=OFF,
            stream_options={"include_usage": True}))
        texts, finishes = ["", ""], [None, None]
        for chunk in chunks[:-1]:
            assert chunk.usage is None
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                finishes[choice.index] = choice.finish_reason or finishes[choice.index]
        assert texts == ["Hello, you two."] * 2 and finishes == ["stop", "stop"]
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 4


@test
def test_chat_thinks_first(folder):
    import_client("openai")
    with scripted() as s:
        c = openai_client(s)
        m = c.chat.completions.create(model=MODEL, messages=user(THOUGHT)).choices[0].message
        assert (m.reasoning_content, m.content) == ("Let me see.", "It is four.")
        reasoning = content = ""
        for chunk in c.chat.completions.create(model=MODEL, messages=user(THOUGHT), stream=True):
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
        assert (reasoning, content) == ("Let me see.", "It is four.")
        answer = c.chat.completions.create(model=MODEL, messages=user("@say plain"),
                                           reasoning_effort="none")
        assert answer.choices[0].message.content == "plain"


@test
def test_chat_calls_tools(folder):
    import_client("openai")
    with scripted() as s:
        c = openai_client(s)
        answer = c.chat.completions.create(model=MODEL, messages=user(CALL), tools=TOOLS,
                                           extra_body=OFF)
        calls = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        assert [x.function.name for x in calls] == ["weather", "clock"]
        assert json.loads(calls[0].function.arguments) == {"city": 'Pa"ris', "days": 3}
        assert calls[0].id != calls[1].id
        one = c.chat.completions.create(model=MODEL, messages=user(CALL), tools=TOOLS,
                                        parallel_tool_calls=False, extra_body=OFF)
        assert len(one.choices[0].message.tool_calls) == 1
        arguments, names = {}, {}
        for chunk in c.chat.completions.create(model=MODEL, messages=user(CALL), tools=TOOLS,
                                               stream=True, extra_body=OFF):
            for x in chunk.choices[0].delta.tool_calls or []:
                names[x.index] = x.function.name or names.get(x.index)
                arguments[x.index] = arguments.get(x.index, "") + (x.function.arguments or "")
        assert names == {0: "weather", 1: "clock"}
        assert json.loads(arguments[0]) == {"city": 'Pa"ris', "days": 3}
        # the conversation goes on with the results
        messages = user(CALL) + [answer.choices[0].message.model_dump(exclude_none=True)] + [
            {"role": "tool", "tool_call_id": x.id, "content": "fine"} for x in calls]
        c.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, extra_body=OFF)


@test
def test_chat_logprobs(folder):
    import_client("openai")
    with scripted() as s:
        answer = openai_client(s).chat.completions.create(
            model=MODEL, messages=user("@say ab"), logprobs=True, top_logprobs=3, extra_body=OFF)
        entries = answer.choices[0].logprobs.content
        assert "".join(x.token for x in entries) == "ab"
        assert all(x.logprob == -0.25 and len(x.top_logprobs) == 3 for x in entries)


@test
def test_stop_text_ends_the_answer_and_the_engine(folder):
    import_client("openai")
    with scripted() as s:
        answer = openai_client(s).chat.completions.create(
            model=MODEL, messages=user("@delay=1 @say one two STOP " + "x" * 500), stop=["STOP"],
            extra_body=OFF)
        assert answer.choices[0].message.content == "one two "
        assert answer.choices[0].finish_reason == "stop"
        s.settled(cancelled=1, running=0)


# ---- openai: errors ---------------------------------------------------------------------------


@test
def test_errors_are_the_clients_own_exceptions(folder):
    openai = import_client("openai")
    with scripted(max_queue=2) as s:
        c = openai_client(s, max_retries=0)
        for error, kind, kwargs in [
                (openai.NotFoundError, "model_not_found", {"model": "gpt-4"}),
                (openai.BadRequestError, None, {"temperature": 3}),
                (openai.BadRequestError, None, {"extra_body": {"temprature": 1}}),
                (openai.BadRequestError, "context_length_exceeded", {"max_tokens": 100000}),
                (openai.BadRequestError, None, {"extra_body": {"prompt_logprobs": 1}})]:
            try:
                c.chat.completions.create(**{"model": MODEL, "messages": user("x"), **kwargs})
                raise AssertionError(kwargs)
            except error as e:
                assert e.request_id and e.body["message"], e
                assert kind is None or e.code == kind, e
        # more than the engine takes: 503, which the client tries again
        held = [threading.Thread(target=lambda: openai_client(s, max_retries=0).chat.completions
                                 .create(model=MODEL, messages=user("@delay=200 @count=5")))
                for _ in range(2)]
        for t in held:
            t.start()
        s.settled(running=2)
        try:
            c.chat.completions.create(model=MODEL, messages=user("x"))
            raise AssertionError("no 503")
        except openai.InternalServerError as e:
            assert e.status_code == 503 and e.response.headers["retry-after"]
        for t in held:
            t.join()
        answer = openai_client(s, max_retries=5).chat.completions.create(
            model=MODEL, messages=user("@say again"), extra_body=OFF)
        assert answer.choices[0].message.content == "again"


@test
def test_engine_that_fails_is_a_500_or_an_error_in_the_stream(folder):
    openai = import_client("openai")
    with scripted() as s:
        c = openai_client(s, max_retries=0)
        for stream in (False, True):
            try:
                c.chat.completions.create(model=MODEL, messages=user("@fail @count=9"),
                                          stream=stream)
                raise AssertionError("no error")
            except openai.InternalServerError as e:
                assert e.status_code == 500 and e.request_id, e
        got = 0
        try:
            for _ in c.chat.completions.create(model=MODEL, messages=user("@fail=4 @count=9"),
                                               stream=True):
                got += 1
            raise AssertionError("no error")
        except openai.APIError as e:
            assert "script" in e.message, e
        assert got >= 3


@test
def test_client_that_closes_its_stream_or_times_out_frees_the_engine(folder):
    openai = import_client("openai")
    with scripted() as s:
        c = openai_client(s, max_retries=0)
        stream = c.chat.completions.create(model=MODEL, messages=user("@delay=5 @count=3000"),
                                           stream=True)
        next(iter(stream))
        stream.close()
        s.settled(cancelled=1, running=0)
        try:
            c.with_options(timeout=0.3).chat.completions.create(model=MODEL, messages=user("@hold"))
            raise AssertionError("no timeout")
        except openai.APITimeoutError:
            pass
        s.settled(cancelled=2, running=0)


# ---- openai: completions, models, responses ---------------------------------------------------


@test
def test_completions(folder):
    import_client("openai")
    with demo() as s:
        c = openai_client(s)
        answer = c.completions.create(model=MODEL, prompt=["The sun is", [0, 300, 301]], n=2,
                                      max_tokens=4, temperature=1, seed=3, logprobs=2)
        assert [x.index for x in answer.choices] == [0, 1, 2, 3]
        assert len(answer.choices[0].logprobs.tokens) == 4
        assert "".join(answer.choices[0].logprobs.tokens) == answer.choices[0].text
        same = c.completions.create(model=MODEL, prompt=["The sun is", [0, 300, 301]], n=2,
                                    max_tokens=4, temperature=1, seed=3, stream=True)
        texts = [""] * 4
        for chunk in same:
            for x in chunk.choices:
                texts[x.index] += x.text
        assert texts == [x.text for x in answer.choices]
        echo = c.completions.create(model=MODEL, prompt="The sun is", echo=True, logprobs=1,
                                    max_tokens=1)
        assert echo.choices[0].text.endswith("The sun is" + echo.choices[0].logprobs.tokens[-1]), echo
        assert echo.choices[0].logprobs.token_logprobs[0] is None
        assert len(echo.choices[0].logprobs.tokens) == echo.usage.total_tokens
        middle = c.completions.create(model=MODEL, prompt="def f(", suffix="return x", max_tokens=3)
        assert middle.usage.prompt_tokens >= 6


@test
def test_models(folder):
    openai = import_client("openai")
    with scripted() as s:
        c = openai_client(s)
        assert [m.id for m in c.models.list()] == [MODEL, "other"]
        assert c.models.retrieve("other").id == "other"
        try:
            c.models.retrieve("none")
            raise AssertionError("found")
        except openai.NotFoundError:
            pass


@test
def test_responses(folder):
    openai = import_client("openai")
    with scripted() as s:
        c = openai_client(s)
        r = c.responses.create(model=MODEL, input=THOUGHT, reasoning={"effort": "high"})
        assert r.output_text == "It is four." and r.status == "completed", r
        assert [x.type for x in r.output] == ["reasoning", "message"]
        tools = [{"type": "function", "name": "weather", "parameters": PARAMETERS},
                 {"type": "function", "name": "clock", "parameters": {"type": "object"}}]
        r = c.responses.create(model=MODEL, input=CALL, tools=tools, reasoning={"effort": "none"})
        assert [x.name for x in r.output if x.type == "function_call"] == ["weather", "clock"]
        kinds, text, numbers = [], "", []
        for event in c.responses.create(model=MODEL, input=THOUGHT, stream=True):
            kinds.append(event.type)
            numbers.append(event.sequence_number)
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == "It is four." and numbers == list(range(len(numbers)))
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        for refused in ({"previous_response_id": "resp_1"}, {"background": True},
                        {"background": 1}, {"conversation": "c"}):
            try:
                c.responses.create(model=MODEL, input="x", **refused)
                raise AssertionError(refused)
            except openai.BadRequestError as e:
                assert list(refused)[0] in e.message, e


@test
def test_stored_responses(folder):
    openai = import_client("openai")
    with scripted(store=1 << 20, store_per_key=4) as s:
        c = openai_client(s, max_retries=0)
        off = {"effort": "none"}
        first = c.responses.create(model=MODEL, input="@say first answer", reasoning=off,
                                   instructions="Be brief.")
        assert first.store and first.previous_response_id is None
        assert c.responses.retrieve(first.id).model_dump() == first.model_dump()
        second = c.responses.create(model=MODEL, input="@say second", previous_response_id=first.id, reasoning=off)
        assert second.previous_response_id == first.id and second.output_text == "second"
        # the same prompt as one whose client sends all of it again; instructions are not kept
        items = user("@say first answer") + [x.model_dump(exclude_none=True) for x in first.output]
        whole = c.responses.create(model=MODEL, input=items + user("@say second"), reasoning=off, store=False)
        assert whole.usage.input_tokens == second.usage.input_tokens > first.usage.input_tokens - 5
        assert not whole.store
        # streamed, with reasoning, and with calls of tools: it is there when the last event is
        last = None
        for event in c.responses.create(model=MODEL, input=[{"role": "user", "content": THOUGHT}], stream=True,
                                        previous_response_id=second.id):
            last = event
        third = last.response
        assert third.store and c.responses.retrieve(third.id).output_text == "It is four."
        tools = [{"type": "function", "name": "weather", "parameters": PARAMETERS},
                 {"type": "function", "name": "clock", "parameters": {"type": "object"}}]
        asked = c.responses.create(model=MODEL, input=CALL, tools=tools, reasoning=off, previous_response_id=third.id)
        results = [{"type": "function_call_output", "call_id": x.call_id, "output": "fine"}
                   for x in asked.output if x.type == "function_call"]
        assert len(results) == 2
        done = c.responses.create(model=MODEL, input=results, tools=tools, reasoning=off,
                                  previous_response_id=asked.id)
        assert done.usage.input_tokens > asked.usage.input_tokens
        # the key keeps four, the oldest went; the newer ones do not need it
        for gone in (first.id, whole.id, "resp_none", "../keys"):
            try:
                c.responses.retrieve(gone)
                raise AssertionError(gone)
            except openai.NotFoundError as e:
                assert e.code in ("response_not_found", "not_found"), e
        c.responses.delete(asked.id)
        for function, error in ((lambda: c.responses.delete(asked.id), openai.NotFoundError),
                                (lambda: c.responses.create(model=MODEL, input="x", previous_response_id=asked.id),
                                 openai.BadRequestError),
                                (lambda: c.responses.create(model=MODEL, input="x", previous_response_id=5),
                                 openai.BadRequestError),
                                (lambda: c.responses.create(model=MODEL, input="x", store="yes"),
                                 openai.BadRequestError)):
            try:
                function()
                raise AssertionError("no error")
            except error as e:
                assert e.status_code == 404 or e.body["param"] in ("previous_response_id", "store"), e
        assert c.responses.create(model=MODEL, input="@say on", previous_response_id=done.id, reasoning=off).output_text == "on"
        # what is cut off or fails is told from what is whole
        cut = c.responses.create(model=MODEL, input="@count=50", max_output_tokens=3, reasoning=off)
        assert c.responses.retrieve(cut.id).status == "incomplete"
        before = s.request("GET", "/metrics")[2].decode()
        try:
            c.responses.create(model=MODEL, input="@fail=2 @count=9", reasoning=off)
            raise AssertionError("no error")
        except openai.InternalServerError:
            pass
        after = s.request("GET", "/metrics")[2].decode()
        counts = [float(re.search(r"^deepinfer:stored_responses\S* (\S+)", t, re.M)[1]) for t in (before, after)]
        assert counts == [4, 4], counts
    with scripted() as s:
        c = openai_client(s, max_retries=0)
        r = c.responses.create(model=MODEL, input="@say x", store=True, reasoning={"effort": "none"})
        assert not r.store
        try:
            c.responses.retrieve(r.id)
            raise AssertionError("found")
        except openai.NotFoundError as e:
            assert "--response-store" in e.message, e


@test
def test_stored_responses_are_their_keys_own(folder):
    openai = import_client("openai")
    keys = folder / "keys"
    alice, bob = [succeeds(deepinfer("key", "new", name, "--api-key-file", keys)).out.strip()
                  for name in ("alice", "bob")]
    with scripted(store=1 << 20, keys=keys) as s:
        mine, other = [openai.OpenAI(base_url=s.url + "/v1", api_key=k, timeout=PATIENCE, max_retries=0)
                       for k in (alice, bob)]
        r = mine.responses.create(model=MODEL, input="@say secret", reasoning={"effort": "none"})
        messages = set()
        for function in (lambda: other.responses.retrieve(r.id), lambda: other.responses.delete(r.id),
                         lambda: other.responses.create(model=MODEL, input="x", previous_response_id=r.id)):
            try:
                function()
                raise AssertionError("another key found it")
            except (openai.NotFoundError, openai.BadRequestError) as e:
                messages.add(e.message.replace(r.id, "ID"))
        try:
            other.responses.retrieve("resp_" + "0" * 32)
        except openai.NotFoundError as e:
            assert e.message.replace("resp_" + "0" * 32, "ID") in messages, (e, messages)
        assert mine.responses.retrieve(r.id).output_text == "secret"
        try:
            openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0).responses.retrieve(r.id)
            raise AssertionError("no key is needed")
        except openai.AuthenticationError:
            pass


@test
def test_openai_client_on_the_model(folder):
    import_client("openai")
    with demo() as s:
        c = openai_client(s)
        answer = c.chat.completions.create(model=MODEL, messages=user("Who wrote Dracula?"),
                                           temperature=0, extra_body=OFF)
        assert "Stoker" in answer.choices[0].message.content
        schema = {"type": "object", "properties": {"author": {"type": "string", "maxLength": 30},
                                                   "year": {"type": "integer", "minimum": 1000,
                                                            "maximum": 2000}},
                  "required": ["author", "year"], "additionalProperties": False}
        for effort in ("none", "high"):
            answer = c.chat.completions.create(
                model=MODEL, messages=user("Who wrote Dracula? Answer in JSON."), temperature=0,
                reasoning_effort=effort, max_tokens=400,
                response_format={"type": "json_schema",
                                 "json_schema": {"name": "a", "strict": True, "schema": schema}})
            found = json.loads(answer.choices[0].message.content)
            assert set(found) == {"author", "year"} and 1000 <= found["year"] <= 2000, found
        short = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}},
                 "required": ["city"]}
        tools = [{"type": "function", "function": {"name": "weather", "parameters": short}}]
        answer = c.chat.completions.create(
            model=MODEL, messages=user("How is the weather in Paris?"), temperature=0, tools=tools,
            tool_choice={"type": "function", "function": {"name": "weather"}}, extra_body=OFF,
            max_tokens=200)
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "weather"
        thought = c.chat.completions.create(
            model=MODEL, messages=user("How is the weather in Paris?"), temperature=0, tools=tools,
            tool_choice="required", parallel_tool_calls=False, max_tokens=400)
        message = thought.choices[0].message
        assert message.reasoning_content and message.tool_calls[0].function.name == "weather"
        assert isinstance(json.loads(call.function.arguments)["city"], str)


def is_book(text):
    found = json.loads(text)
    return set(found) == {"author", "year"} and isinstance(found["author"], str) \
        and isinstance(found["year"], int)


BOOK = {"type": "object", "properties": {"author": {"type": "string", "maxLength": 20},
                                         "year": {"type": "integer", "minimum": 0, "maximum": 3000}},
        "required": ["author", "year"], "additionalProperties": False}
SHORT = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
         "additionalProperties": False}


@test
def test_a_format_beside_tools_holds_for_whatever_is_no_call(folder):
    """Chosen at random, so that neither what the prompt says nor habit makes it come out right."""
    import_client("openai")
    said = "Who wrote Dracula? Answer in JSON."
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SHORT}}]
    formats = [({"type": "json_schema", "json_schema": {"name": "b", "strict": True, "schema": BOOK}}, is_book),
               ({"type": "json_object"}, lambda text: isinstance(json.loads(text), dict)),
               ({"type": "regex", "regex": "(yes|no){3}"}, lambda text: re.fullmatch("(yes|no){3}", text))]
    with demo() as s:
        c = openai_client(s)
        contents = calls = 0
        for effort in ("none", "low"):
            for kind, fits in formats:
                for seed in range(6):
                    answer = c.chat.completions.create(
                        model=MODEL, messages=user(said), tools=tools, seed=seed, temperature=1.5,
                        response_format=kind, reasoning_effort=effort, max_tokens=400)
                    choice = answer.choices[0]
                    if choice.finish_reason == "length":
                        continue
                    if choice.message.tool_calls:
                        calls += 1
                        assert not choice.message.content, choice
                        for call in choice.message.tool_calls:
                            assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), call
                    else:
                        contents += 1
                        assert fits(choice.message.content), (kind, choice)
        print(f"# {contents} contents, {calls} calls")
        assert contents > 5, (contents, calls)
        # a call that must come comes all the same
        answer = c.chat.completions.create(
            model=MODEL, messages=user(said), tools=tools, tool_choice="required", max_tokens=300,
            parallel_tool_calls=False, response_format=formats[0][0], reasoning_effort="none")
        assert answer.choices[0].message.tool_calls and not answer.choices[0].message.content
        # responses
        flat = [{"type": "function", "name": "weather", "parameters": SHORT}]
        for seed in range(4):
            r = c.responses.create(model=MODEL, input=said, tools=flat, max_output_tokens=400,
                                   temperature=1.5, reasoning={"effort": "none"}, text={"format": {
                                       "type": "json_schema", "name": "b", "strict": True, "schema": BOOK}})
            assert r.status == "incomplete" or not r.output_text or is_book(r.output_text), r


@test
def test_anthropic_output_format(folder):
    anthropic = import_client("anthropic")
    said = user("Who wrote Dracula? Answer in JSON.")
    with demo() as s:
        c = anthropic_client(s, max_retries=0)
        wish = {"format": {"type": "json_schema", "schema": BOOK}}
        for tools in ([], [{"name": "weather", "input_schema": SHORT}]):
            for thinking in ("disabled", "enabled"):
                m = c.messages.create(model=MODEL, max_tokens=400, messages=said, output_config=wish, tools=tools,
                                      thinking={"type": thinking, **({"budget_tokens": 1024}
                                                                    if thinking == "enabled" else {})})
                texts = [b.text for b in m.content if b.type == "text"]
                assert m.stop_reason == "max_tokens" or all(is_book(t) for t in texts), m
                assert texts or tools or m.stop_reason == "max_tokens", m
        for wrong, told in [({"format": {"type": "text"}}, "output_config.format: type"),
                            ({"format": {"type": "json_schema"}}, "output_config.format: schema"),
                            ({"format": {"type": "json_schema", "schema": {"type": "objekt"}}}, "objekt"),
                            ({"fromat": {}}, "output_config.fromat")]:
            try:
                c.messages.create(model=MODEL, max_tokens=9, messages=said, output_config=wrong)
                raise AssertionError(wrong)
            except anthropic.BadRequestError as e:
                assert told in e.body["error"]["message"], e.body


# ---- anthropic --------------------------------------------------------------------------------


@test
def test_messages(folder):
    import_client("anthropic")
    with scripted() as s:
        c = anthropic_client(s)
        m = c.messages.create(model=MODEL, max_tokens=200, messages=user(THOUGHT), system="Be brief.")
        assert [(b.type, getattr(b, "text", None) or b.thinking) for b in m.content] == [
            ("thinking", "Let me see."), ("text", "It is four.")]
        assert m.stop_reason == "end_turn" and m.usage.output_tokens > 4
        m = c.messages.create(model=MODEL, max_tokens=3, messages=user("@count=9"),
                              thinking={"type": "disabled"})
        assert m.stop_reason == "max_tokens" and m.usage.output_tokens == 3
        m = c.messages.create(model=MODEL, max_tokens=300, messages=user("@say one END two"),
                              thinking={"type": "disabled"}, stop_sequences=["END"])
        assert (m.stop_reason, m.stop_sequence, m.content[0].text) == ("stop_sequence", "END", "one ")
        count = c.messages.count_tokens(model=MODEL, messages=user(THOUGHT), system="Be brief.")
        full = c.messages.create(model=MODEL, max_tokens=200, messages=user(THOUGHT), system="Be brief.")
        assert count.input_tokens == full.usage.input_tokens


@test
def test_messages_streamed(folder):
    import_client("anthropic")
    with scripted() as s:
        c = anthropic_client(s)
        with c.messages.stream(model=MODEL, max_tokens=200, messages=user(THOUGHT)) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
        assert final.content[0].thinking == "Let me see." and final.content[1].text == "It is four."
        tools = [{"name": "weather", "input_schema": PARAMETERS},
                 {"name": "clock", "input_schema": {"type": "object"}}]
        with c.messages.stream(model=MODEL, max_tokens=300, messages=user(CALL), tools=tools,
                               thinking={"type": "disabled"}) as stream:
            final = stream.get_final_message()
        uses = [b for b in final.content if b.type == "tool_use"]
        assert [(u.name, u.input) for u in uses] == [
            ("weather", {"city": 'Pa"ris', "days": 3}), ("clock", {})]
        assert final.stop_reason == "tool_use"
        results = [{"type": "tool_result", "tool_use_id": u.id, "content": "fine"} for u in uses]
        c.messages.create(model=MODEL, max_tokens=50, tools=tools, thinking={"type": "disabled"},
                          messages=user(CALL) + [{"role": "assistant", "content": final.content},
                                                 {"role": "user", "content": results}])


@test
def test_anthropic_errors(folder):
    anthropic = import_client("anthropic")
    with scripted() as s:
        c = anthropic_client(s, max_retries=0)
        for error, kwargs in [(anthropic.NotFoundError, {"model": "claude"}),
                              (anthropic.BadRequestError, {"extra_body": {"temperature": 5}}),
                              (anthropic.BadRequestError, {"extra_body": {"n": 2}}),
                              (anthropic.BadRequestError, {"messages": []})]:
            try:
                c.messages.create(**{"model": MODEL, "max_tokens": 9, "messages": user("x"), **kwargs})
                raise AssertionError(kwargs)
            except error as e:
                assert e.body["type"] == "error" and e.body["error"]["message"], e.body
                assert e.body["request_id"] == e.request_id or e.body["request_id"], e.body
        try:
            c.messages.create(model=MODEL, max_tokens=9, messages=user("@fail"))
            raise AssertionError("no error")
        except anthropic.InternalServerError as e:
            assert e.body["error"]["type"] == "api_error", e.body
        got = 0
        try:
            for _ in c.messages.create(model=MODEL, max_tokens=9, messages=user("@fail=3 @count=9"),
                                       stream=True):
                got += 1
            raise AssertionError("no error")
        except anthropic.APIStatusError as e:
            assert "script" in str(e), e
        assert got > 2


@test
def test_anthropic_client_on_the_model(folder):
    import_client("anthropic")
    with demo() as s:
        c = anthropic_client(s)
        m = c.messages.create(model=MODEL, max_tokens=200, extra_body={"temperature": 0},
                              messages=user("Who wrote Dracula?"))
        assert "Stoker" in m.content[-1].text and m.content[0].type == "thinking"
        again = c.messages.create(
            model=MODEL, max_tokens=200, extra_body={"temperature": 0},
            messages=user("Who wrote Dracula?") + [{"role": "assistant", "content": m.content}] +
            user("Are you sure?"))
        assert again.usage.input_tokens + again.usage.cache_read_input_tokens > m.usage.input_tokens


@test
def test_many_clients_at_once(folder):
    import_client("openai")
    with scripted() as s:
        wrong = []

        def work(number):
            c = openai_client(s)
            for i in range(10):
                text = f"this is {number} and {i}"
                got = "".join(x.choices[0].delta.content or "" for x in c.chat.completions.create(
                    model=MODEL, messages=user("@delay=1 @say " + text), stream=True, extra_body=OFF))
                if got != text:
                    wrong.append((text, got))
        threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
        start = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong, wrong[:3]
        print(f"# 200 streams in {time.monotonic() - start:.1f} s")
        assert s.stats()["finished"] == 200 and s.stats()["cancelled"] == 0


if __name__ == "__main__":
    main()
