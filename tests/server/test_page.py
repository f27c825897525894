"""The chat page in a headless Chromium: asking, streaming, stopping, a schema, history, keys,
errors, keyboard, phones, colours. Against a mock server, whose answers are to order, and then what
matters most against the program itself. Pictures go to $BUILD/page/."""

import json
import os
import sys
import time
from pathlib import Path

sys.path[:0] = ["tests/support", "tests/server"]
from cli import Skip, deepinfer, main, succeeds, test
import chromium
from mock_api import Mock
from parse_metrics import check
from serving import demo

PICTURES = Path(os.environ.get("BUILD", "build/release")) / "page"
SCHEMA = '{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}'
IDLE = "!document.querySelector('.composer.busy')"

_browser = None


def browser():
    global _browser
    if not chromium.executable():
        raise Skip("Chromium is not installed")
    if _browser is None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        _browser = chromium.Chromium()
    return _browser


def ask(page, text):
    page.click("#input")
    page.type(text)
    page.press("Enter")
    page.wait("document.querySelector('.message.assistant')")


def finish(page):
    page.wait(IDLE)
    return page.text(".message.assistant:last-child .answer")


def quiet(page, *allowed):
    """No script error, nothing the policy has stopped."""
    left = [e for e in page.errors if not any(a in e for a in allowed)]
    assert not left, left


# ---- the mock ---------------------------------------------------------------------------------


@test
def test_an_answer_streams_in_behind_folded_thinking(_):
    mock = Mock()
    page = browser().page(mock.url)
    page.wait("document.querySelector('#model').textContent === 'mock-model'")
    page.screenshot(PICTURES / "welcome.png")
    mock.thought.clear()
    mock.answered.clear()
    ask(page, "hello there")
    page.wait("document.querySelector('.thinking summary').textContent.includes('Thinking')")
    mock.thought.set()
    early = page.wait("document.querySelector('.answer').textContent")
    assert not page.eval(IDLE), "it came in one piece"
    mock.answered.set()
    assert finish(page) == "You said: hello there" and len(early) <= len("You said: hello there")
    assert page.text(".thinking summary").startswith("Thought for"), page.text(".thinking summary")
    assert not page.eval("document.querySelector('.thinking').open")
    assert not page.shown(".thoughts")
    page.click(".thinking summary")
    assert page.shown(".thoughts") and page.text(".thoughts").strip() == "Let me think about that ."
    assert "10 tokens" in page.text(".facts"), page.text(".facts")
    assert page.text("#status") == "You said: hello there"
    assert page.text("#title") == "hello there"
    asked = mock.asked[-1]
    assert asked["stream"] and asked["reasoning_effort"] == "high", asked
    assert asked["messages"] == [{"role": "user", "content": "hello there"}], asked
    assert "temperature" not in asked and "max_tokens" not in asked, asked
    ask(page, "and again")
    page.wait("document.querySelectorAll('.message.assistant').length === 2")
    finish(page)
    assert [m["role"] for m in mock.asked[-1]["messages"]] == ["user", "assistant", "user"]
    assert all(url.startswith(mock.url) for url in page.requests), page.requests
    quiet(page)
    page.close()


@test
def test_stop_ends_the_answer_and_the_connection(_):
    mock = Mock()
    page = browser().page(mock.url)
    for way in ("click", "escape"):
        ask(page, "slow please")
        page.wait("document.querySelector('.message:last-child .answer').textContent.includes('word20')")
        assert page.eval("document.querySelector('#send').getAttribute('aria-label')") == "Stop"
        if way == "click":
            page.click("#send")
        else:
            page.press("Escape")
        page.wait(IDLE)
        said = page.text(".message:last-child .answer")
        assert "word20" in said
        assert page.text(".message:last-child .notice") == "Stopped."
        time.sleep(0.3)
        assert page.text(".message:last-child .answer") == said, "it went on"
    end = time.monotonic() + 10
    while mock.left < 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert mock.left == 2, "the server never saw the client leave"
    page.click(".message:last-child [data-action=again]")
    page.wait("document.querySelector('.message:last-child .answer').textContent.includes('word5')")
    page.click("#send")
    page.wait(IDLE)
    quiet(page)
    page.close()


@test
def test_a_schema_is_sent_and_its_answer_shown_as_json(_):
    mock = Mock()
    page = browser().page(mock.url)
    page.click("#open-settings")
    page.fill("#schema", "{nonsense")
    assert page.eval("document.querySelector('#schema').getAttribute('aria-invalid')") == "true"
    page.click("#save-settings")
    assert page.eval("document.querySelector('#settings').open"), "closed on a broken schema"
    page.fill("#schema", SCHEMA)
    page.fill("#temperature", "0.5")
    page.fill("#max-tokens", "77")
    page.fill("#system", "Be brief.")
    page.screenshot(PICTURES / "settings.png")
    page.click("#save-settings")
    assert not page.eval("document.querySelector('#settings').open")
    assert page.shown("#schema-chip")
    page.eval("document.querySelector('#effort').value = 'none'")
    page.eval("document.querySelector('#effort').dispatchEvent(new Event('change'))")
    ask(page, "what is it")
    finish(page)
    assert json.loads(page.text(".answer code")) == {"answer": "what is it"}
    asked = mock.asked[-1]
    assert asked["response_format"]["json_schema"]["schema"] == json.loads(SCHEMA), asked
    assert asked["temperature"] == 0.5 and asked["max_tokens"] == 77, asked
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}, asked
    assert asked["thinking"] == {"type": "disabled"} and "reasoning_effort" not in asked, asked
    assert not page.shown(".thinking")
    page.screenshot(PICTURES / "schema.png")
    quiet(page)
    page.close()


@test
def test_history_outlives_a_reload(_):
    mock = Mock()
    page = browser().page(mock.url)
    ask(page, "first question")
    finish(page)
    page.click("#new-chat")
    ask(page, "second question")
    finish(page)
    page.click(".message:last-child .thinking summary")
    before = page.eval("document.querySelector('#log').innerText")
    page.reload()
    page.wait("document.querySelectorAll('.chats .chat').length === 2")
    page.click(".message:last-child .thinking summary")
    assert page.eval("document.querySelector('#log').innerText") == before
    assert page.text(".chats .current .open") == "second question"
    page.eval("[...document.querySelectorAll('.chats .open')]"
              ".find(b => b.textContent === 'first question').click()")
    page.wait("document.querySelector('.answer').textContent === 'You said: first question'")
    # Cut off by a reload: what was there is there, and it is not taken for whole.
    ask(page, "slow one")
    page.wait("document.querySelector('.message:last-child .answer').textContent.includes('word9')")
    page.reload()
    page.wait("document.querySelector('.message:last-child .answer')")
    assert "word9" in page.text(".message:last-child .answer")
    assert page.text(".message:last-child .notice") == "Stopped.", page.text(".message:last-child .notice")
    page.eval("document.querySelector('.chats .current .delete').click()")
    page.wait("document.querySelectorAll('.chats .chat').length === 1")
    page.reload()
    page.wait("document.querySelectorAll('.chats .chat').length === 1")
    quiet(page)
    page.close()


@test
def test_a_message_can_be_changed_and_asked_again(_):
    mock = Mock()
    page = browser().page(mock.url)
    for text in ("one", "two"):
        ask(page, text)
        finish(page)
    page.eval("document.querySelector('.message.user [data-action=edit]').click()")
    page.wait("document.querySelector('.edit textarea')")
    page.fill(".edit textarea", "changed")
    page.press("Enter")
    page.wait("document.querySelectorAll('.message').length === 2")
    assert finish(page) == "You said: changed"
    assert mock.asked[-1]["messages"] == [{"role": "user", "content": "changed"}]
    page.close()


@test
def test_what_the_model_writes_never_becomes_markup(_):
    mock = Mock()
    page = browser().page(mock.url)
    ask(page, "markup")
    finish(page)
    inside = ".message.assistant .answer "
    for tag, count in {"script": 0, "img": 0, "b": 0, "h2": 1, "em": 1, "strong": 1, "a": 1,
                       "ul > li": 2, "ol > li": 2, "table td": 4, "blockquote": 1, "hr": 1}.items():
        assert page.count(inside + tag) == count, (tag, page.count(inside + tag))
    assert page.eval(f"document.querySelector('{inside}a').href") == "https://example.com/a?b=c"
    assert "noopener" in page.eval(f"document.querySelector('{inside}a').rel")
    assert page.text(inside + "pre code") == '<script>document.title = "broken"</script>'
    assert "<img src=x" in page.text(inside) and "[bad](javascript:" in page.text(inside)
    assert page.text("#title") == "markup" and "broken" not in page.eval("document.title")
    page.screenshot(PICTURES / "markup.png")
    quiet(page)
    page.close()


RANDOM_MARKDOWN = """(async () => {
    const {update} = await import("/web/markdown.js");
    const parts = ["# ", "## h #", "- ", "1. ", "  - ", "> ", "```", "```js\\n", "~~~", "*", "**", "_", "`", "``",
        "[a](", "[b](https://x.y)", "](", ")", "|", "|-|-|", "---", "***", "\\n", "\\n", "\\n\\n", " ", "    ",
        "word", "snake_case", "<b>", "&amp;", "\\\\", "~~", "\\t", "ü", "\\u{1F600}"];
    let seed = SEED;
    const next = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
    for (let round = 0; round < 400; round++) {
        const grown = document.createElement("div"), fresh = document.createElement("div");
        let text = "";
        for (let i = next(40); i >= 0; i--) {
            text += parts[next(parts.length)];
            update(grown, text);
        }
        update(fresh, text);
        if (grown.innerHTML !== fresh.innerHTML) return [text, grown.innerHTML, fresh.innerHTML];
    }
    return "same";
})()"""


@test
def test_markdown_that_grows_is_shown_as_if_it_had_come_at_once(_):
    page = browser().page(Mock().url)
    seed = int(time.time())
    found = page.eval(RANDOM_MARKDOWN.replace("SEED", str(seed)))
    assert found == "same", (seed, found)
    page.close()


@test
def test_texts_made_to_be_slow_are_not(_):
    page = browser().page(Mock().url)
    for piece in ("*a ", "**", "_a", "`a ``b ", "[a](", "[", "> ", "- ", "# # ", " |", "|-", "\\n- a", "\\n> > > > ",
                  "\\n" + "  " * 5 + "- a", " ", "~~", "(" , "\\n| a | b |\\n|-|-|"):
        took = page.eval("""(async () => {
            const {update} = await import("/web/markdown.js"), box = document.createElement("div");
            const begin = performance.now();
            update(box, "x" + "%s".repeat(20000));
            update(box, "%s".repeat(20000) + "x");
            return performance.now() - begin;
        })()""" % (piece, piece))
        assert took < 5000, (piece, took)
    page.close()


@test
def test_a_key_is_asked_for_and_kept_only_if_told(_):
    mock = Mock(key="sk-di-me-secret")
    page = browser().page(mock.url)
    page.wait("document.querySelector('#welcome-note').textContent.includes('API key')")
    ask(page, "hello")
    page.wait("document.querySelector('#settings').open")
    assert page.eval("document.activeElement.id") == "api-key"
    assert "not valid" in page.text("#settings-note")
    page.fill("#api-key", "sk-di-me-secret")
    page.click("#save-settings")
    page.wait("document.querySelector('#model').textContent === 'mock-model'")
    page.click(".message:last-child [data-action=again]")
    page.wait(IDLE + " && document.querySelector('.answer').textContent.includes('You said')")
    assert "secret" not in page.eval("JSON.stringify({...localStorage})")
    page.reload()
    page.wait("document.querySelector('#model').textContent === 'mock-model'")
    page.click("#open-settings")
    page.click("#keep-key")
    assert "secret" in page.eval("JSON.stringify({...localStorage})")
    page.fill("#api-key", "")
    page.click("#save-settings")
    assert "secret" not in page.eval("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    quiet(page, "401")
    page.close()


@test
def test_errors_are_told_and_can_be_tried_again(_):
    mock = Mock()
    page = browser().page(mock.url)
    for question, told in {"refuse 429": "This key may make 6 requests a minute. Try again in 10 s.",
                           "refuse 500": "6 requests a minute",
                           "fault": "The engine has failed (request abc).",
                           "break": "The connection ended before the answer did."}.items():
        ask(page, question)
        page.wait("document.querySelector('.message:last-child .notice:not([hidden])')")
        assert told in page.text(".message:last-child .notice"), page.text(".message:last-child .notice")
        assert page.text("#status") == page.text(".message:last-child .notice")
        assert page.shown(".message:last-child [data-action=again]")
    assert page.text(".message:nth-child(6) .answer") == "Half of it"
    page.screenshot(PICTURES / "errors.png")
    assert mock.asked[-1]["messages"] == [  # of those without an answer nothing is sent again
        {"role": "user", "content": "fault"}, {"role": "assistant", "content": "Half of it"},
        {"role": "user", "content": "break"}], mock.asked[-1]
    page.ask("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1,
             uploadThroughput=-1)
    ask(page, "anybody there")
    page.wait("document.querySelector('.message:last-child .notice:not([hidden])')")
    assert "cannot be reached" in page.text(".message:last-child .notice")
    quiet(page, "429", "500", "ERR_INTERNET_DISCONNECTED")
    page.close()


@test
def test_everything_can_be_done_from_the_keyboard(_):
    mock = Mock()
    page = browser().page(mock.url)
    assert page.eval("document.activeElement.id") == "input"
    page.type("by hand")
    page.press("Enter")
    page.wait("document.querySelector('.message.assistant')")
    finish(page)
    assert page.eval("document.activeElement.id") == "input"
    seen = set()
    for _ in range(60):
        page.press("Tab")
        name = page.eval("""(e => e === document.body ? null : e.id || e.dataset.action ||
            e.tagName.toLowerCase())(document.activeElement)""")
        if name:
            seen.add(name)
            page.wait("(e => e.checkVisibility({opacityProperty: true, visibilityProperty: true}))"
                      "(document.activeElement)")
    wanted = {"input", "effort", "new-chat", "open-settings", "toggle-theme", "open", "delete",
              "summary", "copy", "again", "edit"}
    assert wanted <= seen, wanted - seen
    page.eval("document.querySelector('#open-settings').focus()")
    page.press("Enter")
    page.wait("document.querySelector('#settings').open")
    for _ in range(20):  # the focus stays within
        page.press("Tab")
        assert page.eval("""document.activeElement === document.body ||
            document.querySelector('#settings').contains(document.activeElement)""")
    page.press("Escape")
    page.wait("!document.querySelector('#settings').open")
    assert page.eval("document.activeElement.id") == "open-settings"
    page.press("o", modifiers=2 | 8)  # Control, Shift
    page.wait("document.querySelector('#title').textContent === 'New chat'")
    quiet(page)
    page.close()


@test
def test_screen_readers_find_a_name_on_everything(_):
    mock = Mock()
    page = browser().page(mock.url)
    ask(page, "markup")
    finish(page)
    for opened in (False, True):
        if opened:
            page.click("#open-settings")
        tree = page.accessible()
        controls = [(role, name) for role, name in tree
                    if role in ("button", "textbox", "combobox", "slider", "spinbutton", "checkbox",
                                "radio", "link", "image", "dialog", "MenuListPopup")]
        nameless = [c for c in controls if not c[1] and c[0] != "MenuListPopup"]
        assert len(controls) > 5 and not nameless, nameless
        roles = {role for role, _ in tree}
        assert ("dialog" in roles) == opened
        assert opened or {"main", "complementary", "navigation", "heading", "status"} <= roles, roles
    page.close()


CONTRAST = """(() => {
    const of = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
    const lum = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
    const ground = (e) => {
        for (; e; e = e.parentElement) {
            const c = of(getComputedStyle(e).backgroundColor);
            if (c.length === 3 || c[3] === 1) return c;
        }
        return [255, 255, 255];
    };
    const bad = [];
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility({visibilityProperty: true}) || e.closest('.unseen, .skip, option, dialog:not([open])')) continue;
        const a = lum(of(getComputedStyle(e).color)), b = lum(ground(e));
        const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (ratio < 4.5) bad.push([e.tagName, e.className, e.textContent.slice(0, 30), ratio.toFixed(2)]);
    }
    return bad;
})()"""


@test
def test_light_and_dark_are_readable_and_the_choice_is_kept(_):
    mock = Mock()
    for dark in (False, True):
        page = browser().page(mock.url, dark=dark)
        name = "dark" if dark else "light"
        ask(page, "markup")
        finish(page)
        assert page.eval(CONTRAST) == [], page.eval(CONTRAST)
        page.click(".thinking summary")
        time.sleep(0.3)  # it turns
        page.screenshot(PICTURES / f"{name}.png")
        page.click("#open-settings")
        assert page.eval(CONTRAST) == [], page.eval(CONTRAST)
        page.screenshot(PICTURES / f"{name}-settings.png")
        page.press("Escape")
        page.wait("!document.querySelector('#settings').open")
        before = page.eval("getComputedStyle(document.body).backgroundColor")
        page.click("#toggle-theme")
        after = page.eval("getComputedStyle(document.body).backgroundColor")
        assert before != after
        page.reload()
        assert page.eval("getComputedStyle(document.body).backgroundColor") == after
        page.close()


@test
def test_a_phone_shows_all_of_it_without_sideways_scrolling(_):
    mock = Mock()
    wide = "[...document.querySelectorAll('body *')].filter(e => e.checkVisibility({visibilityProperty: true}) &&" \
           " !e.closest('.unseen, .skip, pre, .tablewrap, .sidebar') && e.getBoundingClientRect().right >" \
           " innerWidth + 1).map(e => e.tagName + '.' + e.className)"
    for width in (360, 320):
        page = browser().page(mock.url, width=width, height=740, phone=True, dark=width == 360)
        page.wait("document.querySelector('#model').textContent")
        page.screenshot(PICTURES / f"phone-{width}-welcome.png")
        page.click("#input")
        page.type("markup " + "longwordwithoutanyblank" * 4)
        page.click("#send")
        page.wait("document.querySelector('.message.assistant')")
        finish(page)
        assert page.eval("document.documentElement.scrollWidth <= innerWidth")
        assert page.eval(wide) == [], page.eval(wide)
        page.screenshot(PICTURES / f"phone-{width}.png")
        assert not page.shown("#sidebar")
        page.click("#open-menu")
        page.wait("document.querySelector('#sidebar').getBoundingClientRect().x === 0")
        page.screenshot(PICTURES / f"phone-{width}-menu.png")
        page.press("Escape")
        page.wait("getComputedStyle(document.querySelector('#sidebar')).visibility === 'hidden'")
        page.click("#open-menu")
        page.wait("document.querySelector('#sidebar').getBoundingClientRect().x === 0")
        page.click("#open-settings")
        page.wait("document.querySelector('#settings').open")
        assert page.eval(wide) == [], page.eval(wide)
        page.screenshot(PICTURES / f"phone-{width}-settings.png")
        small = page.eval("""[...document.querySelectorAll('button')].filter(b => b.checkVisibility() &&
            !b.closest('#settings') && b.getBoundingClientRect().height < 30).map(b => b.id || b.className)""")
        assert small == [], small
        quiet(page)
        page.close()


@test
def test_a_long_answer_stays_in_sight_unless_one_scrolls_up(_):
    mock = Mock()
    page = browser().page(mock.url, height=500)
    bottom = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.querySelector('#scroller'))"
    ask(page, "slow")
    page.wait("document.querySelector('.answer').textContent.length > 3000")
    assert page.eval(bottom) < 60, page.eval(bottom)
    page.eval("document.querySelector('#scroller').scrollTop = 0")
    page.wait("!document.querySelector('#to-end').hidden")
    time.sleep(0.3)
    assert page.eval("document.querySelector('#scroller').scrollTop") == 0
    page.screenshot(PICTURES / "streaming.png")
    page.click("#to-end")
    time.sleep(0.3)
    assert page.eval(bottom) < 60, page.eval(bottom)
    page.click("#send")
    page.wait(IDLE)
    page.close()


# ---- the program itself -----------------------------------------------------------------------


def counted(server, key):
    """Its metrics: {name: sum over labels}."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        return None
    status, _, text = server.request("GET", "/metrics", None, {"Authorization": "Bearer " + key})
    assert status == 200, text
    sums = {}
    for (name, labels), value in check(text.decode()).items():
        event = dict(labels).get("event")
        name = f"{name}/{event}" if event else name
        sums[name] = sums.get(name, 0) + value
    return sums


@test
def test_the_program_serves_the_page_and_answers_it(folder):
    browser()
    keys = folder / "keys.jsonl"
    key = succeeds(deepinfer("key", "new", "me", "--admin", "--api-key-file", keys)).out.strip()
    with demo("--api-key-file", keys) as server:
        page = browser().page(server.url + "/", height=620)
        page.wait("document.querySelector('#welcome-note').textContent.includes('API key')")
        page.click("#open-settings")
        page.fill("#api-key", key)
        page.fill("#temperature", "0")
        page.click("#save-settings")
        page.wait("document.querySelector('#model').textContent === 'DeepSeek-V4.1-Flash'")
        page.eval("document.querySelector('#effort').value = 'none'")
        page.eval("document.querySelector('#effort').dispatchEvent(new Event('change'))")
        ask(page, "Who wrote Dracula?")
        assert "Stoker" in finish(page), page.text(".answer")
        assert "token" in page.text(".facts")
        page.screenshot(PICTURES / "demo.png")

        page.eval("document.querySelector('#effort').value = 'high'")
        page.eval("document.querySelector('#effort').dispatchEvent(new Event('change'))")
        ask(page, "Who painted the Mona Lisa?")
        page.wait("document.querySelectorAll('.message.assistant').length === 2")
        finish(page)
        assert page.eval("document.querySelector('.message:last-child .notice').hidden ||"
                         " document.querySelector('.message:last-child .notice.calm') !== null"), \
            page.text(".message:last-child .notice")

        page.click("#open-settings")
        page.fill("#schema", SCHEMA)
        page.click("#save-settings")
        page.click("#new-chat")
        ask(page, "What is the capital of France?")
        finish(page)
        answer = page.text(".answer code") if page.count(".answer code") else ""
        if page.text(".message:last-child .notice") != "The answer was cut at its longest.":
            assert isinstance(json.loads(answer)["answer"], str), answer

        before = page.eval("document.querySelector('#log').innerText")
        page.reload()
        page.wait("document.querySelectorAll('.chats .chat').length === 2")
        assert page.eval("document.querySelector('#log').innerText") == before

        # A long answer, stopped: the engine is told.
        page.click("#open-settings")
        page.fill("#schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 3000}')
        page.click("#save-settings")
        was = counted(server, key)
        ask(page, "Count")
        page.wait("document.querySelector('.composer.busy') && "
                  "(e => e && e.textContent.length > 30)(document.querySelector('.message:last-child .answer'))")
        page.click("#send")
        page.wait(IDLE)
        assert page.text(".message:last-child .notice") == "Stopped."
        end = time.monotonic() + 20
        while was is not None and time.monotonic() < end:
            now = counted(server, key)
            if now["deepinfer:requests_cancelled_total"] > was["deepinfer:requests_cancelled_total"]:
                break
            time.sleep(0.05)
        else:
            assert was is None, "the engine was never told"
        if was is not None:
            event = "deepinfer:server_events_total/disconnect"
            assert now[event] == was[event] + 1, (was, now)
        quiet(page, "401")
        page.close()


try:
    main()
finally:
    if _browser:
        _browser.__exit__()
