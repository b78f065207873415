"""The page is a chat: turns, keys, settings, and what may go wrong, in Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwood import Pair
from tests.browser import Browser, serious
from tests.faults.folders import save_tiny
from tests.serve.conftest import Live, live_server, loaded, make_service
from tests.serve.live_page import ENDED, PAGE, choose, press, trace_of, visit, write
from tests.tiny_chat import save_chat

TURNS = f"{PAGE}.conversation.turns"
BUBBLES = """return [...document.querySelectorAll('dw-bubble')].map((b) =>
  [b.className, b.querySelector('h3').textContent, b.said.textContent])"""


@pytest.fixture(scope="module")
def live(served: Pair) -> Iterator[Live]:
    with live_server(make_service(served), keys=("secret",)) as found:
        yield found


def focus(browser: Browser, element: str) -> None:
    """Go to an element by the tabulator."""
    for _ in range(80):
        if browser.js(f"return document.activeElement === {element}"):
            return
        press(browser, "Tab")
    raise AssertionError(f"the keyboard does not reach {element}")


def messages(browser: Browser) -> list[dict[str, Any]]:
    """Those of the last request."""
    return list(browser.js(f"return {PAGE}.run.body.messages"))


def said(browser: Browser) -> list[str]:
    """What was answered so far."""
    return list(browser.js(f"return {TURNS}.map((turn) => turn.run.text)"))


def test_a_conversation_of_three_turns_by_the_keyboard_alone(opened: Browser, live: Live) -> None:
    assert opened.js(f"return document.activeElement === {PAGE}.prompt")
    focus(opened, "document.querySelector('dw-settings summary')")
    press(opened, "Enter")
    focus(opened, f"{PAGE}.settings.system")
    press(opened, "be a fox")
    focus(opened, f"{PAGE}.settings.length")
    press(opened, "12")
    for number, words in enumerate(("the fox ran", "a dog", "the hen")):
        focus(opened, f"{PAGE}.prompt")
        opened.driver.switch_to.active_element.send_keys(words, "\ue008\ue007\ue000", "and")  # Shift and Enter: a new line
        press(opened, "Enter")
        opened.wait(f"{TURNS}.length === {number + 1} && {ENDED}")
        assert opened.js(f"return {PAGE}.prompt.value") == ""
    answers = said(opened)
    asked = [f"{words}\nand" for words in ("the fox ran", "a dog", "the hen")]
    wanted, bubbles = [{"role": "system", "content": "be a fox"}], []
    for question, text in zip(asked, answers, strict=True):
        wanted += [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
        bubbles += [["user", "You", question], ["assistant", "tiny", text]]
    assert opened.js(BUBBLES) == bubbles
    assert messages(opened) == wanted[:-1]
    trace = trace_of(opened, live)
    assert trace.text == answers[-1]
    assert trace.prompt_text.count("assistant\n") == 3
    assert "assistant" not in opened.js("return document.querySelector('dw-text .text').textContent")  # the answer alone
    facts = opened.js("return [...document.querySelectorAll('dw-bubble footer p')].at(-1).textContent")
    assert facts.startswith(f"cut at the most tokens · 12 tokens · {12 / len(trace.rounds):.2f} per pass")
    allowed = {"origin": live.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    opened.driver.execute_cdp_cmd("Browser.grantPermissions", allowed)
    opened.driver.find_element("css selector", "dw-bubble.assistant:last-child footer button").click()
    opened.wait("[...document.querySelectorAll('footer button')].some((button) => button.textContent === 'Copied')")
    assert opened.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == answers[-1]
    focus(opened, f"{PAGE}.race")
    press(opened, "Enter")
    opened.wait("document.querySelector('dw-page')?.race?.querySelector('svg')")
    assert opened.js("return document.querySelector('dw-page').equal.textContent") == "Both texts are equal."
    focus(opened, f"{PAGE}.fresh")
    press(opened, "Enter")
    assert opened.js(f"return [{TURNS}.length, document.querySelectorAll('dw-bubble, dw-page').length]") == [0, 0]
    assert not opened.problems()


@pytest.mark.usefixtures("slow")
def test_a_stopped_answer_stays_and_another_one_takes_its_turn(opened: Browser) -> None:
    write(opened, "the fox ran", tokens=300, chat=True)
    opened.wait(f"{PAGE}.run.text.length > 4")
    press(opened, "Escape")
    opened.wait(ENDED)
    assert "stopped by you" in opened.js("return document.querySelector('dw-bubble footer').textContent")
    [stopped] = said(opened)
    write(opened, "a dog", tokens=4, chat=True)
    opened.wait(f"{TURNS}.length === 2 && {ENDED}")
    assert messages(opened)[1] == {"role": "assistant", "content": stopped}
    choose(opened, seed=5)
    opened.driver.find_element("css selector", "[data-last]").click()
    opened.wait(f"{TURNS}.length === 2 && {PAGE}.run.body.seed === 5 && {ENDED}")
    assert messages(opened)[2:] == [{"role": "user", "content": "a dog"}]


def test_what_the_server_refuses_goes_back_where_it_was_written(opened: Browser) -> None:
    write(opened, "the fox ran", tokens=9999, chat=True)
    opened.wait(f"{PAGE}.note.textContent.includes('max_tokens')")
    assert opened.js(f"return [{PAGE}.prompt.value, {TURNS}.length]") == ["the fox ran", 0]
    choose(opened, temperature=-1)
    press(opened, "Enter")
    opened.js(f"return {PAGE}.write").click()
    assert opened.js(f"return document.activeElement === {PAGE}.settings.drawn.temperature")  # and nothing was sent
    assert not opened.js(f"return {TURNS}.length")
    choose(opened, temperature=1)
    write(opened, "the fox ran", tokens=4, chat=True)
    opened.wait(ENDED)
    assert not opened.js(f"return {PAGE}.note.textContent")


def test_the_settings_are_the_models_own_until_they_are_changed(browser: Browser, tmp_path: Path) -> None:
    own = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 5}
    folders = save_chat(tmp_path / "target", generation=own), save_chat(tmp_path / "draft", layers=1, seed=1)
    with live_server(make_service(loaded(folders)), keys=("secret",)) as live:
        visit(browser, live)
        fields = f"return Object.values({PAGE}.settings.drawn).map((input) => Number(input.value))"
        assert browser.js(fields) == [0.7, 0.9, 5, 0, 1]
        write(browser, "the fox", tokens=4, chat=True)
        browser.wait(ENDED)
        assert not browser.js(f"return {PAGE}.run.body").keys() & own.keys()
        choose(browser, temperature=0.2, system="be short")
        write(browser, "the hen", tokens=4, chat=True)
        browser.wait(f"{TURNS}.length === 2 && {ENDED}")
        body = browser.js(f"return {PAGE}.run.body")
        assert {name: body[name] for name in own.keys() & body.keys()} == {"temperature": 0.2}
        assert body["messages"][0] == {"role": "system", "content": "be short"}
        browser.js(f"return {PAGE}.settings.reset").click()
        assert browser.js(fields) == [0.7, 0.9, 5, 0, 1]
        browser.problems()


CHUNKS = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "A look "}, {"reasoning_content": "outside."},
    {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "<b>'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": 'Rome"}'}}]},
]  # fmt: skip


def test_calls_and_reasoning_are_bubbles_and_stay_in_the_conversation(opened: Browser) -> None:
    ends = [(delta, None) for delta in CHUNKS] + [({}, "tool_calls")]
    events = [{"id": "german", "choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in ends]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    opened.js(
        f"""const server = {PAGE}.server, ask = server.ask.bind(server), body = arguments[0];
        server.ask = async (path, options) => path.startsWith("v1/chat") ? new Response(body) : ask(path, options);""",
        body,
    )
    write(opened, "the weather", tokens=8, chat=True)
    opened.wait(ENDED)
    assert opened.js(BUBBLES)[2] == ["call", "Calls a function", 'weather{\n  "city": "<b>Rome"\n}']
    assert opened.js("return document.querySelector('dw-bubble details').textContent") == "ReasoningA look outside."
    assert "ended with a call" in opened.js("return document.querySelector('dw-bubble footer').textContent")
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "<b>Rome"}'}}
    write(opened, "a dog", chat=True)
    opened.wait(f"{TURNS}.length === 2 && {ENDED}")
    assert messages(opened)[1] == {"role": "assistant", "content": None, "tool_calls": [call]}


def test_code_and_bold_are_elements_and_markup_is_text(opened: Browser) -> None:
    text = "**So** `x < 1`:\n```py\nif x:\n    <img src=x onerror=alert(1)>\n```\nend"
    html = opened.js(f"{PAGE}.append({PAGE}.made = make('div', {{}}, ...formatted(arguments[0]))); return {PAGE}.made", text)
    found = html.get_attribute("innerHTML")
    assert found == (
        "<strong>So</strong> <code>x &lt; 1</code>:\n"
        '<pre tabindex="0"><code>if x:\n    &lt;img src=x onerror=alert(1)&gt;</code></pre>end'
    )


def test_a_model_without_a_template_continues_texts(browser: Browser, tmp_path: Path) -> None:
    folders = save_tiny(tmp_path / "target"), save_tiny(tmp_path / "draft", layers=1, seed=1)
    with live_server(make_service(loaded(folders)), keys=("secret",)) as live:
        visit(browser, live)
        assert "no chat template" in browser.js("return document.querySelector('.empty').textContent")
        choose(browser, length=4)
        for number, words in enumerate(("the fox", "a dog")):
            browser.js(f"return {PAGE}.prompt").send_keys(words, "\n")
            browser.wait(f"{TURNS}.length === {number + 1} && {ENDED}")
        assert browser.js(f"return [{PAGE}.run.path, {PAGE}.run.body.prompt]") == ["v1/completions", "a dog"]
        assert not browser.js(f"return {PAGE}.settings.system").is_displayed()
        browser.problems()


@pytest.mark.parametrize("dark", [False, True])
def test_at_every_width_and_in_both_schemes_axe_finds_nothing_serious(opened: Browser, dark: bool) -> None:
    assert not serious(opened)  # before the first turn
    for number, words in enumerate(("the fox", "a dog " * 30 + "x" * 300)):
        write(opened, words, tokens=6, chat=True)
        opened.wait(f"{TURNS}.length === {number + 1} && {ENDED} && document.querySelector('[data-round] svg')")
    for width in (380, 700, 1099, 1100, 1400):
        opened.size(width, 800, dark=dark)
        assert opened.js("return document.documentElement.scrollWidth") <= width
        assert opened.js(
            f"""const seen = [{PAGE}.prompt, {PAGE}.write, {PAGE}.fresh].map((part) => part.getBoundingClientRect());
            return seen.every((box) => box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth)"""
        )  # what one writes with is on the first screen
        assert not serious(opened)
