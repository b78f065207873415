"""The page in Chromium: turns, keys, settings, rounds as those of the trace, races, and what may go wrong."""

import json

import pytest

from draftwood import Method
from draftwood.trace.files import read_traces
from draftwood.trace.labels import token_text
from draftwood.trace.page.pieces import shown
from tests.browser import serious
from tests.faults.folders import save_tiny
from tests.serve.conftest import (
    CODES,
    ENDED,
    METHOD,
    PAGE,
    choose,
    live_server,
    loaded,
    make_service,
    press,
    trace_of,
    until,
    visit,
    write,
)  # fmt: skip
from tests.tiny_chat import save_chat

KEYS = ("secret",)
TURNS = f"{PAGE}.conversation.turns"
BUBBLES = """return [...document.querySelectorAll('dw-bubble')].map((b) =>
  [b.className, b.querySelector('h3').textContent, b.said.textContent])"""


def focus(browser, element):
    """Go to an element by the tabulator."""
    for _ in range(80):
        if browser.js(f"return document.activeElement === {element}"):
            return
        press(browser, "Tab")
    raise AssertionError(f"the keyboard does not reach {element}")


def messages(browser):
    """Those of the last request."""
    return list(browser.js(f"return {PAGE}.run.body.messages"))


def said(browser):
    """What was answered so far."""
    return list(browser.js(f"return {TURNS}.map((turn) => turn.run.text)"))


def test_a_conversation_of_three_turns_by_the_keyboard_alone(opened, live):
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
    count = len(trace.tokens)  # the page draws a seed, and a text may end before it is cut
    end = "cut at the most tokens" if count == 12 else "ended by the model"
    assert facts.startswith(f"{end} · {count} tokens · {count / len(trace.rounds):.2f} per pass")
    allowed = {"origin": live.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    opened.driver.execute_cdp_cmd("Browser.grantPermissions", allowed)
    opened.driver.find_element("css selector", "dw-bubble.assistant:last-child footer button").click()
    opened.wait("[...document.querySelectorAll('footer button')].some((button) => button.textContent === 'Copied')")
    assert opened.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == answers[-1]
    focus(opened, f"{PAGE}.race")
    press(opened, "Enter")
    opened.wait("document.querySelector('dw-page')?.race?.querySelector('svg')")
    opened.wait("document.querySelector('dw-page').equal.textContent === 'Both texts are equal.'")
    focus(opened, f"{PAGE}.fresh")
    press(opened, "Enter")
    assert opened.js(f"return [{TURNS}.length, document.querySelectorAll('dw-bubble, dw-page').length]") == [0, 0]
    assert not opened.problems()


@pytest.mark.usefixtures("slow")
def test_a_stopped_answer_stays_and_another_one_takes_its_turn(opened):
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


def test_what_the_server_refuses_goes_back_where_it_was_written(opened):
    too_long = "the fox ran " * 200
    choose(opened, chat=True)
    opened.js(f"{PAGE}.prompt.value = arguments[0]", too_long)
    opened.js(f"return {PAGE}.write").click()
    opened.wait(f"{PAGE}.note.textContent.includes('tokens')")
    assert opened.js(f"return [{PAGE}.prompt.value, {TURNS}.length]") == [too_long, 0]
    opened.js(f"{PAGE}.prompt.value = 'the fox ran'")
    choose(opened, temperature=-1)
    press(opened, "Enter")
    opened.js(f"return {PAGE}.write").click()
    assert opened.js(f"return document.activeElement === {PAGE}.settings.drawn.temperature")  # and nothing was sent
    assert not opened.js(f"return {TURNS}.length")
    choose(opened, temperature=1)
    write(opened, "the fox ran", tokens=4, chat=True)
    opened.wait(ENDED)
    assert not opened.js(f"return {PAGE}.note.textContent")


def test_the_settings_are_the_models_own_until_they_are_changed(browser, tmp_path):
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


CHUNKS = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "A look "}, {"reasoning_content": "outside."},
    {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "<b>'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": 'Rome"}'}}]},
]  # fmt: skip


def test_calls_and_reasoning_are_bubbles_and_stay_in_the_conversation(opened):
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


def test_code_and_bold_are_elements_and_markup_is_text(opened):
    text = "**So** `x < 1`:\n```py\nif x:\n    <img src=x onerror=alert(1)>\n```\nend"
    html = opened.js(f"{PAGE}.append({PAGE}.made = make('div', {{}}, ...formatted(arguments[0]))); return {PAGE}.made", text)
    found = html.get_attribute("innerHTML")
    assert found == (
        "<strong>So</strong> <code>x &lt; 1</code>:\n"
        '<pre tabindex="0"><code>if x:\n    &lt;img src=x onerror=alert(1)&gt;</code></pre>end'
    )


def test_a_model_without_a_template_continues_texts(browser, tmp_path):
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


@pytest.mark.parametrize("dark", [False, True])
def test_at_every_width_and_in_both_schemes_axe_finds_nothing_serious(opened, dark):
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


# ---- rounds ----

TEXT = "return document.querySelector('dw-text .text').textContent"
ROUNDS = "document.querySelectorAll('dw-text .round').length"


def test_a_key_is_wanted_and_never_kept(browser, live):
    browser.driver.get(live.url)
    browser.wait(f"{PAGE}?.dataset.ready")
    field = browser.driver.find_element("css selector", "[type=password]")
    assert "wants a key" in browser.js(f"return {PAGE}.note.textContent")
    field.send_keys("other\n")
    browser.wait(f"{PAGE}.note.textContent.includes('does not know this key')")
    field.clear()
    field.send_keys("secret\n")
    browser.wait(f"{PAGE}.model")
    assert not field.is_displayed()
    assert browser.js("return [localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def test_a_text_is_streamed_as_text_and_any_round_is_that_of_the_trace(opened, live):
    opened.js(
        "window.counts = new Set(); new MutationObserver(() => {"
        f" if ({PAGE}.run && !{PAGE}.run.facts?.end) window.counts.add({ROUNDS});"
        "}).observe(document.body, {childList: true, subtree: true})"
    )
    markup = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    write(opened, markup, tokens=40)
    opened.wait(ENDED)
    trace = trace_of(opened, live)
    assert trace.prompt_text == markup
    assert opened.js("return document.querySelectorAll('script, img, [onerror]').length") == 1
    assert len(trace.tokens) <= 40
    assert opened.js("return window.counts.size") > 3  # round by round
    words = shown(trace.prompt_text) + "".join(shown(part.text) for made in trace.rounds for part in made.parts)
    assert opened.js(TEXT) == words
    lengths = [len(made.path) for made in trace.rounds]
    assert opened.js(
        "return [...document.querySelectorAll('dw-histogram tbody tr')].map((r) => +r.children[1].textContent)"
    ) == [lengths.count(length) for length in range(max(lengths) + 1)]
    status = opened.js("return document.querySelector('dw-page').status.textContent")
    assert f"{len(trace.tokens)} tokens" in status
    assert f"{len(trace.tokens) / len(trace.rounds):.2f} tokens per pass" in status
    for index in (0, 7):
        opened.driver.find_elements("css selector", "dw-text .round")[index].click()
        assert_drawn(opened, trace, index)
    assert not opened.problems()


def test_the_slider_sets_the_most_nodes_of_a_tree(browser, folders):
    service = make_service(loaded(folders), method=Method(method="shared-noise", nodes=6))
    with live_server(service, keys=("secret",)) as live:
        visit(browser, live)
        most = []
        for presses in (0, 4):
            choose(browser)
            browser.js(f"return {PAGE}.settings.nodes").send_keys(CODES["ArrowLeft"] * presses)
            write(browser, "the fox ran", tokens=30)
            browser.wait(ENDED)
            most.append(max(len(made.nodes) - 1 for made in trace_of(browser, live).rounds))
        assert browser.js(f"return {PAGE}.settings.shownNodes.value") == "2"
        assert most == [6, 2]


def test_a_server_without_drafts_has_no_slider_for_nodes(browser, folders):
    with live_server(make_service(loaded(folders), method=Method(method="ar")), keys=("secret",)) as live:
        visit(browser, live)
        choose(browser)
        assert browser.js(f"return {PAGE}.settings.method").is_displayed()
        assert not browser.js(f"return {PAGE}.settings.nodesField").is_displayed()


def assert_drawn(browser, trace, index):
    """The figure and the tree are those of the round."""
    made = trace.rounds[index]
    browser.wait(f"document.querySelector('[data-round] svg')?.getAttribute('aria-labelledby').startsWith('dw{index}-')")
    browser.shows_nodes(made.nodes)
    titles = browser.js("return [...document.querySelectorAll('dw-tree g title')].map((t) => t.textContent)")
    assert titles[: len(made.nodes)] == [token_text(trace, node.token) for node in made.nodes]


def test_plain_decoding_races_and_the_traces_are_saved(opened, live, tmp_path):
    opened.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    write(opened, "a dog", tokens=16, chat=True)
    opened.wait(ENDED)
    opened.js(f"return {PAGE}.race").click()
    opened.wait("document.querySelector('dw-page')?.race?.querySelector('svg')")
    fast, plain = trace_of(opened, live), trace_of(opened, live, 1)
    assert "user\na dog" in fast.prompt_text
    assert plain.method == "ar"
    assert fast.tokens == plain.tokens
    opened.wait("document.querySelector('dw-page').equal.textContent === 'Both texts are equal.'")
    assert opened.js("return document.querySelectorAll('.forward').length") == len(plain.rounds) + len(fast.rounds)
    opened.js(f"return {PAGE}.save").click()
    until(lambda: any(path.suffix == ".json" for path in tmp_path.iterdir()))
    [path] = tmp_path.iterdir()
    assert read_traces(path) == [fast, plain]
    assert not opened.problems()


def test_the_method_can_be_chosen_as_far_as_rows_have_their_own(opened, live):
    assert opened.js(f"return [...{PAGE}.settings.method.options].map((o) => o.value)") == [METHOD.method, "ar"]
    for name in ("ar", METHOD.method):
        opened.js(f"{PAGE}.settings.method.value = arguments[0]", name)
        write(opened, "a dog", tokens=4)
        opened.wait(ENDED)
        trace = trace_of(opened, live)
        assert trace.method == name
        assert any(len(made.nodes) > 1 for made in trace.rounds) == (name != "ar")
    assert not opened.problems()


def test_a_figure_that_comes_late_does_not_replace_the_chosen_rounds(opened):
    opened.js(f"return {PAGE}.german").click()
    page = "document.querySelector('dw-page')"
    opened.wait(f"{page}?.germanFigure?.querySelector('.verified')")
    opened.js(
        f"""const page = {page}, figure = page.source.figure.bind(page.source);
        const answers = [];
        page.source.figure = (text, round, width) => {{
          const wait = answers.length ? 0 : 400;
          answers.push(new Promise((done) => setTimeout(done, wait)).then(() => figure(text, round, width)));
          return answers.at(-1);
        }};
        for (const round of ["0", "1"]) {{ page.germanRound.value = round; page.germanRound.onchange(); }}
        Promise.all(answers).then(() => setTimeout(() => page.dataset.answered = "yes"));"""
    )
    opened.wait(f"{page}.dataset.answered")
    assert opened.js(f"return Boolean({page}.germanFigure.querySelector('[aria-labelledby^=\"dw-spec1-\"]'))")


@pytest.mark.usefixtures("slow")
def test_stopping_a_text_or_closing_the_tab_frees_the_row(opened, live):
    before = live.metric("request_cancelled_total")
    write(opened, "the fox ran", tokens=400)
    opened.wait(f"{ROUNDS} >= 2")
    opened.driver.find_element("css selector", "dw-text .round").click()  # a figure while the text goes on
    opened.wait("document.querySelector('[data-round] svg')?.getAttribute('aria-labelledby').startsWith('dw0-')")
    opened.wait(f"{ROUNDS} > {opened.js(f'return {ROUNDS}')}")
    assert opened.js("return document.querySelector('dw-page').growing.textContent") == "The tree of round 1"
    opened.js(f"return {PAGE}.stop").click()
    opened.wait(ENDED)
    until(lambda: live.service.scheduler.texts == 0)  # after the round that ran
    assert live.metric("request_cancelled_total") == before + 1
    assert trace_of(opened, live).remarks

    first = opened.driver.current_window_handle
    opened.driver.switch_to.new_window("tab")
    visit(opened, live)
    write(opened, "the fox ran", tokens=400, seed=2)
    opened.wait(f"{ROUNDS} >= 2")
    assert live.service.scheduler.texts == 1
    opened.driver.close()
    opened.driver.switch_to.window(first)
    until(lambda: live.service.scheduler.texts == 0)
    assert live.metric("request_cancelled_total") == before + 2
