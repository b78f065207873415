"""The page of a server in Chromium: type, stream, click, compare with the trace; closing the tab frees the row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwood import Method, Pair, Trace
from draftwood.trace.files import from_json, read_traces
from draftwood.trace.labels import token_text
from draftwood.trace.page.pieces import shown
from tests.browser import Browser, serious
from tests.serve.conftest import METHOD, Live, live_server, loaded, make_service, until
from tests.serve.live_page import ENDED, KEYS, PAGE, choose, get, trace_of, visit, write

TEXT = "return document.querySelector('dw-text .text').textContent"
ROUNDS = "document.querySelectorAll('dw-text .round').length"


@pytest.fixture(scope="module")
def live(served: Pair) -> Iterator[Live]:
    with live_server(make_service(served), keys=("secret",)) as found:
        yield found


def test_a_key_is_wanted_and_never_kept(browser: Browser, live: Live) -> None:
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


def test_a_text_is_streamed_and_any_round_is_that_of_the_trace(opened: Browser, live: Live) -> None:
    opened.js(
        "window.counts = new Set(); new MutationObserver(() => {"
        f" if ({PAGE}.run && !{PAGE}.run.facts?.end) window.counts.add({ROUNDS});"
        "}).observe(document.body, {childList: true, subtree: true})"
    )
    write(opened, "the fox ran", tokens=40)
    opened.wait(ENDED)
    trace = trace_of(opened, live)
    assert trace.prompt_text == "the fox ran"
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


def test_the_slider_sets_the_most_nodes_of_a_tree(browser: Browser, folders: tuple[Path, Path]) -> None:
    service = make_service(loaded(folders), method=Method(method="shared-noise", nodes=6))
    with live_server(service, keys=("secret",)) as live:
        visit(browser, live)
        most = []
        for presses in (0, 4):
            choose(browser)
            browser.js(f"return {PAGE}.settings.nodes").send_keys(KEYS["ArrowLeft"] * presses)
            write(browser, "the fox ran", tokens=30)
            browser.wait(ENDED)
            most.append(max(len(made.nodes) - 1 for made in trace_of(browser, live).rounds))
        assert browser.js(f"return {PAGE}.settings.shownNodes.value") == "2"
        assert most == [6, 2]
        browser.problems()


def test_a_server_without_drafts_has_no_slider_for_nodes(browser: Browser, folders: tuple[Path, Path]) -> None:
    with live_server(make_service(loaded(folders), method=Method(method="ar")), keys=("secret",)) as live:
        visit(browser, live)
        choose(browser)
        assert browser.js(f"return {PAGE}.settings.method").is_displayed()
        assert not browser.js(f"return {PAGE}.settings.nodesField").is_displayed()
        browser.problems()


def assert_drawn(browser: Browser, trace: Trace, index: int) -> None:
    """The figure and the tree are those of the round."""
    made = trace.rounds[index]
    browser.wait(f"document.querySelector('[data-round] svg')?.getAttribute('aria-labelledby').startsWith('dw{index}-')")
    found = browser.js("return [...document.querySelectorAll('[data-round] .node[data-node]')].map((n) => ({...n.dataset}))")
    nodes = {int(node["node"]): node for node in found}
    assert set(nodes) == set(range(len(made.nodes)))
    for number, node in nodes.items():
        assert (node["verdict"], int(node["token"])) == (made.nodes[number].verdict, made.nodes[number].token)
        for key, value in (("targetProb", made.nodes[number].target_prob), ("draftProb", made.nodes[number].draft_prob)):
            assert value is None or float(node[key]) == pytest.approx(value, rel=1e-5)
    titles = browser.js("return [...document.querySelectorAll('dw-tree g title')].map((t) => t.textContent)")
    assert titles[: len(made.nodes)] == [token_text(trace, node.token) for node in made.nodes]


def test_plain_decoding_races_and_the_traces_are_saved(opened: Browser, live: Live, tmp_path: Path) -> None:
    opened.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    write(opened, "a dog", tokens=16, chat=True)
    opened.wait(ENDED)
    opened.js(f"return {PAGE}.race").click()
    opened.wait("document.querySelector('dw-page')?.race?.querySelector('svg')")
    fast, plain = trace_of(opened, live), trace_of(opened, live, 1)
    assert "user\na dog" in fast.prompt_text
    assert plain.method == "ar"
    assert fast.tokens == plain.tokens
    assert opened.js("return document.querySelector('dw-page').equal.textContent") == "Both texts are equal."
    assert opened.js("return document.querySelectorAll('.forward').length") == len(plain.rounds) + len(fast.rounds)
    opened.js(f"return {PAGE}.save").click()
    until(lambda: any(path.suffix == ".json" for path in tmp_path.iterdir()))
    [path] = tmp_path.iterdir()
    assert read_traces(path) == [fast, plain]
    assert not opened.problems()


def test_the_method_can_be_chosen_as_far_as_rows_have_their_own(opened: Browser, live: Live) -> None:
    assert opened.js(f"return [...{PAGE}.settings.method.options].map((o) => o.value)") == [METHOD.method, "ar"]
    for name in ("ar", METHOD.method):
        opened.js(f"{PAGE}.settings.method.value = arguments[0]", name)
        write(opened, "a dog", tokens=4)
        opened.wait(ENDED)
        trace = trace_of(opened, live)
        assert trace.method == name
        assert any(len(made.nodes) > 1 for made in trace.rounds) == (name != "ar")
    assert not opened.problems()


def test_a_german_sentence_is_shown_round_by_round(opened: Browser, live: Live) -> None:
    opened.js(f"return {PAGE}.german").click()
    page = "document.querySelector('dw-page')"
    opened.wait(f"{page}?.germanFigure?.querySelector('.verified')")
    [trace] = from_json(json.loads(get(live, "/v1/traces/german")))
    assert trace.source_text in opened.js("return document.querySelector('[lang=de]').textContent")
    for index, made in enumerate(trace.rounds):
        opened.js(f"{page}.germanRound.value = {index}; {page}.germanRound.onchange()")
        opened.wait(f"{page}.germanFigure.querySelector('[aria-labelledby^=\"dw-spec{index}-\"]')")
        words = opened.js(f"return [...{page}.germanFigure.querySelectorAll('.verified')].map((v) => v.dataset.output)")
        assert [word for word in words if word is not None] == [str(token) for token in made.tokens]
    opened.driver.find_elements("css selector", "dw-text .round")[1].click()
    opened.wait(f"{page}.germanFigure.querySelector('[aria-labelledby^=\"dw-spec1-\"]') && {page}.described.textContent")
    assert not serious(opened)
    write(opened, "a dog", tokens=4)
    opened.wait(ENDED)
    assert opened.js(TEXT).startswith("a dog")
    assert not opened.problems()


def test_a_figure_that_comes_late_does_not_replace_the_chosen_rounds(opened: Browser) -> None:
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


def test_markup_of_a_prompt_is_shown_and_never_run(opened: Browser) -> None:
    write(opened, "<script>alert(1)</script><img src=x onerror=alert(2)>")
    opened.wait(ENDED)
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in opened.js(TEXT)
    assert opened.js("return document.querySelectorAll('script, img, [onerror]').length") == 1
    assert not opened.problems()


def test_nothing_but_the_server_is_reached(opened: Browser, live: Live) -> None:
    opened.driver.get_log("performance")
    write(opened, "the fox", tokens=4)
    opened.wait(ENDED)
    events = [json.loads(entry["message"])["message"] for entry in opened.driver.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert urls
    assert all(url.startswith((live.url, "data:", "blob:")) for url in urls)


@pytest.mark.usefixtures("slow")
def test_stopping_a_text_or_closing_the_tab_frees_the_row(opened: Browser, live: Live) -> None:
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
