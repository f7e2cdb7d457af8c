"""The page of `draftproof serve`, used in a browser as a person uses it, against a server with a small model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.serving import tiny

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOOPS = "Why is the sky blue?"  # at temperature 0 the small model repeats itself, for as long as it may
MIXED = "Count to one hundred."  # with this seed its text has tokens of every kind
SEED = "3"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a running server."""
    if not find_spec("draftproof.server.app"):
        pytest.skip("this draftproof has no server")
    command = [sys.executable, "-m", "draftproof", "serve", "--target", "tiny", "--port", "0", "--rows", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)))
            wait_until_ready(found[0])
            yield found[0]
        finally:
            process.kill()


def wait_until_ready(address: str) -> None:
    """Wait until the model is loaded."""
    until = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{address}/health").close()
            return
        except OSError:  # it does not listen yet, or answers 503
            assert time.monotonic() < until, f"the server at {address} is not ready"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: install one to test the page")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright to test the page")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, server) -> Iterator[Callable[..., Any]]:
    """Open the page; at the end nothing may have gone wrong in its scripts, or have been asked from elsewhere."""
    contexts, problems = [], []

    def opens(width: int = 1400, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if "Content Security" in said.text else None)
        page.on("request", lambda asked: None if asked.url.startswith(server) else problems.append(asked.url))
        page.goto(server)
        page.locator("#engine", has_text="tiny").wait_for()
        page.locator("select[name=model] option").wait_for(state="attached")
        return page

    yield opens
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def page(visit) -> Any:
    return visit()


@pytest.fixture(scope="module")
def scripts(browser, server) -> Iterator[Any]:
    """A page whose modules are imported and called by themselves."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(server)
        yield page


def ask(page: Any, prompt: str, **settings: str) -> None:
    """Write a message with these settings and press Enter."""
    if not page.locator("#controls").is_visible():
        page.click("#settings summary")
    for name, value in settings.items():
        page.fill(f"[name={name}]", value)
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")


def answered(page: Any, number: int = 1) -> Any:
    """The answer with this number, once it is finished."""
    answer = page.locator(".answer").nth(number - 1)
    page.locator(f".turn:nth-of-type({number}) .answer[aria-busy=false]").last.wait_for()
    return answer


def posted(page: Any) -> list[dict[str, Any]]:
    """The bodies of all requests for text from now on."""
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda asked: bodies.append(asked.post_data_json) if asked.method == "POST" else None)
    return bodies


def completed(server: str, body: dict[str, Any]) -> str:
    """The same text from the server, without the page."""
    body = {name: value for name, value in body.items() if not name.startswith("stream")}
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{server}/v1/chat/completions", json.dumps(body).encode(), headers)
    ) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def test_the_text_is_the_servers_and_its_tokens_show_their_kind(page, server):
    bodies = posted(page)
    ask(page, MIXED, seed=SEED, max_tokens="60")
    answer = answered(page)
    shown = answer.locator(".tokens").text_content()
    assert shown == completed(server, bodies[0])
    kinds = {kind: answer.locator(f".token.{kind}").count() for kind in ("accepted", "corrected", "plain")}
    assert all(kinds.values())
    assert "60 tokens" in answer.locator(".clock").text_content()
    styles = {
        page.locator(f".legend .{kind}").evaluate("one => getComputedStyle(one).textDecorationStyle") for kind in kinds
    }
    assert len(styles) == 3  # told apart without colour


def test_pointing_at_a_token_tells_how_it_was_drawn(page):
    ask(page, MIXED, seed=SEED, max_tokens="40")
    token = answered(page).locator(".token.accepted").first
    token.hover()
    panel = page.locator("#inspector")
    panel.wait_for()
    told = panel.inner_text()
    assert token.text_content().strip() in told
    assert re.search(r"Accepted: .*p, model\s+[<>\d].*q, drafter\s+[<>\d]", told, re.DOTALL)
    assert panel.locator("tr").count() >= 5
    assert panel.locator("tr.drawn").count() == 1
    widths = panel.locator("tr .bar").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    assert widths[:5] == sorted(widths[:5], reverse=True)
    page.keyboard.press("Escape")
    assert panel.is_hidden()


def test_by_keyboard_alone(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the message box"
    page.keyboard.press("Enter")
    page.keyboard.type(MIXED)
    page.keyboard.press("Enter")
    answer = answered(page)
    page.keyboard.press("Shift+Tab")
    focused = "document.activeElement === document.querySelector('.tokens .token:nth-of-type({})')"
    assert page.evaluate(focused.format(1))
    panel = page.locator("#inspector")
    first = panel.inner_text()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused.format(2))
    assert panel.inner_text() != first
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.nextElementSibling") is None
    page.keyboard.press("Home")
    assert answer.locator("[tabindex='0']").count() == 1
    assert panel.inner_text() == first


def test_a_conversation_goes_on(page):
    bodies = posted(page)
    ask(page, MIXED, system="Be brief.", max_tokens="8", seed=SEED)
    first = answered(page).locator(".tokens").text_content()
    ask(page, "And now?")
    answered(page, 2)
    system = {"role": "system", "content": "Be brief."}
    before = [{"role": "user", "content": MIXED}, {"role": "assistant", "content": first}]
    assert bodies[1]["messages"] == [system, *before, {"role": "user", "content": "And now?"}]
    page.click("#clear")
    assert page.locator(".turn").count() == 0
    ask(page, "Anew")
    answered(page)
    assert bodies[2]["messages"] == [system, {"role": "user", "content": "Anew"}]


def test_controls_reach_the_server(page):
    bodies = posted(page)
    numbers = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "max_tokens": 7, "seed": 5}
    names = {"draft": "ngram", "verify": "token", "tree": "chain:2"}
    ask(page, MIXED, **{name: str(value) for name, value in (numbers | names).items()})
    answered(page)
    assert {name: bodies[0][name] for name in numbers} == numbers
    assert bodies[0]["draftproof"] == {"details": True, "speculate": True, **names}
    page.uncheck("[name=speculate]")
    ask(page, MIXED)
    assert answered(page, 2).locator(".token:not(.plain)").count() == 0
    assert bodies[1]["draftproof"] == {"details": True, "speculate": False}


def test_the_key_stays_in_the_tab(page):
    headers: list[str | None] = []
    page.on(
        "request", lambda asked: headers.append(asked.headers.get("authorization")) if asked.method == "POST" else None
    )
    ask(page, MIXED, key="secret", max_tokens="3", seed=SEED)
    answered(page)
    assert headers == ["Bearer secret"]
    assert "secret" in page.evaluate("JSON.stringify(sessionStorage)")
    assert "secret" not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    page.reload()
    assert page.input_value("[name=key]") == "secret"
    other = page.context.new_page()
    other.goto(page.url)
    assert other.input_value("[name=key]") == ""


def test_a_race(page):
    bodies = posted(page)
    page.fill("[name=seed]", SEED)
    page.fill("[name=max_tokens]", "60")
    page.fill("#prompt", MIXED)
    page.click("#race")
    page.locator(".verdict", has_text="times the tokens per second").wait_for()
    assert [body["draftproof"]["speculate"] for body in bodies] == [True, False]
    assert bodies[0]["messages"] == bodies[1]["messages"]
    lanes = page.locator(".lane")
    assert lanes.nth(0).locator(".token.accepted").count() > 0
    assert lanes.nth(1).locator(".token:not(.plain)").count() == 0
    texts = lanes.locator(".tokens").all_text_contents()
    assert [len(text) > 20 for text in texts] == [True, True]
    clocks = lanes.locator(".clock").all_text_contents()
    assert all(re.match(r"\d+\.\d s", clock) for clock in clocks)
    assert page.locator("#speed path.line").count() == 2
    page.click(".race button")
    page.locator(".race button:not([disabled])").wait_for()
    assert lanes.locator(".tokens").all_text_contents() == texts  # the replay shows the same
    assert lanes.locator(".clock").all_text_contents() == clocks


def test_stop(page, server):
    ask(page, LOOPS, temperature="0", max_tokens="1800")
    page.locator(".tokens .token").nth(5).wait_for()
    page.click("#stop")
    page.locator("#prompt:focus").wait_for()  # a button that is disabled would lose the focus to nowhere
    assert answered(page).locator(".clock").text_content().endswith("· stopped")
    page.locator("#load", has_text="0/4 rows").wait_for()  # the server has given its row back
    assert page.locator("#send").is_enabled()
    assert page.locator("#stop").is_disabled()


@pytest.mark.parametrize("setting", [{"tree": "chain:x"}, {"temperature": "-3"}, {"draft": "no/such/model"}])
def test_an_error_is_one_line_and_the_question_comes_back(page, setting):
    ask(page, MIXED, **setting)
    page.locator("#error").wait_for()
    told = page.locator("#error").inner_text()
    assert told
    assert "\n" not in told
    assert page.input_value("#prompt") == MIXED
    assert page.locator(".turn").count() == 0
    ask(page, MIXED, **dict.fromkeys(setting, ""), max_tokens="3", seed=SEED)
    answered(page)
    assert page.locator("#error").is_hidden()


def test_a_server_that_is_gone(page):
    page.context.set_offline(True)
    ask(page, MIXED)
    page.locator("#error", has_text="does not answer").wait_for()
    assert page.input_value("#prompt") == MIXED


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("", "The connection was lost before the text ended."),
        ('data: {"error": {"message": "the model\\nfailed"}}\n\n', "the model failed"),
    ],
)
def test_a_stream_that_breaks_off(page, end, told):
    begun = 'data: {"choices": [{"index": 0, "delta": {"content": "Once"}}]}\n\n'
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=begun + end)
    )
    ask(page, MIXED)
    page.locator("#error", has_text=told).wait_for()
    answer = answered(page)
    assert answer.locator(".tokens").text_content() == "Once"
    assert "failed" in answer.locator(".clock").text_content()


def test_a_key_that_is_missing(page):
    refusal = {"error": {"message": "the API key is missing or wrong"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=401, json=refusal))
    ask(page, MIXED)
    page.locator("#error", has_text="needs an API key").wait_for()
    assert page.evaluate("document.activeElement.name") == "key"


def test_curves(page):
    assert page.locator("#calls path").count() == 0
    ask(page, MIXED, seed=SEED, max_tokens="80")
    answered(page)
    calls = page.locator("#calls")
    steps = int(re.match(r"(\d+) steps, [\d.]+ tokens per call", calls.get_attribute("aria-label"))[1])
    assert calls.locator("circle").count() == steps
    assert calls.locator("path.line").count() == 2
    positions = page.locator("#acceptance").get_attribute("aria-label").split("; ")
    assert (
        page.locator("#acceptance rect.bar").count() == page.locator("#acceptance .diamond").count() == len(positions)
    )
    assert page.locator("#acceptance .limit").count() == len(positions)
    assert all(re.search(r"limit \d+%", position) for position in positions)


def test_the_drafter_and_the_rule_are_shown(page):
    assert page.locator("#engine").text_content() == "tiny · drafter ngram · rule block"
    assert page.get_attribute("[name=verify]", "placeholder") == "block"


def test_rows_are_shown(page):
    assert page.locator("#rows span").count() == 4
    assert page.locator("#rows .used").count() == 0
    ask(page, LOOPS, temperature="0", max_tokens="1800")
    page.locator("#rows .used").wait_for()
    page.click("#stop")
    answered(page)


def test_an_answer_may_be_empty(page):
    """A model may end its text at once; the conversation then goes on after an empty answer."""
    end = tiny().end_tokens[0]

    def ended(route):
        body = {**route.request.post_data_json, "logit_bias": {end: 100}}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", ended)
    ask(page, MIXED, seed=SEED)
    assert answered(page).locator(".tokens").text_content() == "an empty answer"
    assert "finished" in page.locator(".clock").text_content()
    page.unroute("**/v1/chat/completions")
    bodies = posted(page)
    ask(page, "And now?", max_tokens="8")
    answered(page, 2)
    assert [message["content"] for message in bodies[0]["messages"]] == [MIXED, "", "And now?"]


def test_what_people_and_models_write_is_never_html(page):
    code = "<img src=/stats onerror=alert(1)><b>bold</b>"
    ask(page, code, max_tokens="3", seed=SEED)
    assert page.locator(".said").text_content() == code
    answered(page)
    script = """async (text) => {
        const { TokenText } = await import("/tokens.js");
        const made = new TokenText("test");
        made.add(text, [{ text, kind: "accepted", logprob: -1, top: [[text, -1]] }]);
        document.querySelector("#turns").append(made.element);
        return made.element.querySelectorAll(".token *").length;
    }"""
    assert page.evaluate(script, code) == 0
    page.locator(".tokens .token").last.hover()
    page.locator("#inspector code").first.wait_for()
    assert page.locator("main img, main .token b, #inspector img, #inspector code b").count() == 0


CASES = [  # chunks of (text, texts of tokens), and what is shown as tokens
    ([("The sky", ["The", " sky"])], ["The", " sky"]),
    ([("", ["\ufffd"]), ("é!", ["\ufffd", "!"])], ["é", "!"]),  # half a character waits for the rest
    ([("a", ["a", " EN"]), (" END", ["D"])], ["a", " EN", "D"]),  # held back: it might have been a stop string
    ([("text alone", [])], ["text alone"]),
    ([("ab", ["abc"])], ["ab"]),  # cut by a stop string
    ([("one\n\n", ["one", "\n\n"])], ["one", "\n\n"]),
]


@pytest.mark.parametrize(("chunks", "shown"), CASES)
def test_tokens_are_placed_in_the_text(scripts, chunks, shown):
    script = """async (chunks) => {
        const { TokenText } = await import("/tokens.js");
        const made = new TokenText("test");
        for (const [text, tokens] of chunks) made.add(text, tokens.map((text) => ({ text, kind: "accepted" })));
        return [made.element.textContent, [...made.element.children].map((one) => one.textContent)];
    }"""
    text, tokens = scripts.evaluate(script, [[text, list(tokens)] for text, tokens in chunks])
    assert text == "".join(text for text, _ in chunks)
    assert tokens == [one.lstrip() or one for one in shown]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_are_read_whatever_their_pieces(scripts, size):
    told = 'data: {"é": 1}\r\n\r\ndata:2\r\n\r\n: a comment\n\ndata: two\ndata: lines\n\ndata: [DONE]\n\n'
    script = """async ([bytes, size]) => {
        const { events } = await import("/api.js");
        const stream = new ReadableStream({ start(out) {
            for (let i = 0; i < bytes.length; i += size) out.enqueue(new Uint8Array(bytes.slice(i, i + size)));
            out.close();
        } });
        const found = [];
        for await (const data of events(stream)) found.push(data);
        return found;
    }"""
    assert scripts.evaluate(script, [list(told.encode()), size]) == ['{"é": 1}', "2", "two\nlines", "[DONE]"]


def test_light_and_dark(visit):
    def ground(page: Any) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = visit(color_scheme="light"), visit(color_scheme="dark")
    both = ground(light), ground(dark)
    assert both[0] != both[1]
    dark.click("#theme")
    assert ground(dark) == both[0]
    dark.reload()
    assert ground(dark) == both[0]  # it is remembered
    dark.click("#theme")
    dark.click("#theme")
    assert ground(dark) == both[1]
    assert dark.evaluate("localStorage.length") == 0


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_fits_the_screen(visit, width):
    page = visit(width, reduced_motion="reduce")
    ask(page, MIXED, max_tokens="40", seed=SEED)
    answer = answered(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    answer.locator(".token").nth(3).hover()
    panel = page.locator("#inspector").bounding_box()
    assert panel["x"] >= 0
    assert panel["x"] + panel["width"] <= width
