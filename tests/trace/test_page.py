"""The page in Chromium, from a file: it plays, its figures are the trace's, the keyboard is enough, nothing is fetched."""

import json
import re
import time
from dataclasses import replace
from functools import cache

import pytest

from draftwood.core.errors import ConfigError
from draftwood.trace.figures import draw_round
from draftwood.trace.page.pieces import shown
from draftwood.trace.page.write import page, write_page
from tests.browser import serious
from tests.serve.conftest import press
from tests.trace.runs import story
from tests.trace.test_figures import HOSTILE, TOLERANT, overlapping

PLAIN = story(30, "ar", most=1)
TEXT = story(14, "rsd-s", "recursive", shape="3x3", noise=0.4)
OTHER = story(5, "rsd-c", "recursive", shape="3-1")
GERMAN = story(6, "block", "tolerance", shape="6", block=6, most=7, **TOLERANT)
READY = "document.querySelector('dw-page')?.dataset.ready && document.querySelector('[data-round] svg')"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(path, [PLAIN, TEXT, OTHER, GERMAN])
    return path


@pytest.fixture
def opened(browser, file):
    browser.size(1400)
    browser.open(file)
    browser.wait(READY)
    return browser


def shown_rounds(browser):
    return browser.js("return document.querySelectorAll('dw-text .round:not([hidden])').length")


def assert_drawn(browser, made):
    browser.wait(
        f"document.querySelector('div[data-round] svg')?.getAttribute('aria-labelledby').startsWith('dw{made.number}-')"
    )
    browser.shows_nodes(made.nodes)
    trials = browser.js("return [...document.querySelectorAll('[data-round] .trial')].map((n) => n.dataset.uniform)")
    assert [float(uniform) for uniform in trials] == pytest.approx([trial.uniform for trial in made.trials], rel=1e-5)


def test_a_click_on_a_round_opens_its_figure_in_any_text(opened):
    for index in (0, 5, 13):
        opened.driver.find_elements("css selector", "dw-text .round")[index].click()
        assert_drawn(opened, TEXT.rounds[index])
        assert f"round {index + 1}:" in opened.js("return document.querySelector('pre').textContent")
    opened.js("const p = document.querySelector('dw-page'); p.chooser.value = 2; p.chooser.onchange()")
    assert shown_rounds(opened) == len(OTHER.rounds)
    opened.driver.find_elements("css selector", "dw-text .round")[1].click()
    assert_drawn(opened, OTHER.rounds[1])


def test_text_tree_and_histogram_are_the_traces(opened):
    assert opened.js("return document.querySelector('dw-text .text').textContent") == shown(TEXT.prompt_text + TEXT.text)
    parts = opened.js(
        "return [...document.querySelectorAll('dw-text .round')].map((r) => [...r.children].map((p) => p.className))"
    )
    assert parts == [["drafted"] * len(made.path) + ["own"] for made in TEXT.rounds]
    opened.driver.find_elements("css selector", "dw-text .round")[3].click()
    classes = opened.js("return [...document.querySelectorAll('dw-tree g')].map((g) => g.getAttribute('class'))")
    for fate, verdict in (("accepted", "accepted"), ("rejected", "rejected"), ("untried", "not tried")):
        assert classes.count(fate) == sum(node.verdict == verdict for node in TEXT.rounds[3].nodes)
    rows = opened.js(
        "return [...document.querySelectorAll('dw-histogram tbody tr')]"
        ".map((r) => [...r.children].slice(0, 2).map((c) => +c.textContent))"
    )
    lengths = [len(made.path) for made in TEXT.rounds]
    assert rows == [[k, lengths.count(k)] for k in range(max(lengths) + 1)]


def test_play_pause_and_speed(opened):
    opened.js("const p = document.querySelector('dw-page'); p.speed.value = '0.1'; p.speed.onchange(); p.seek(0)")
    assert shown_rounds(opened) == 0
    button = opened.driver.find_element("css selector", ".controls button")
    button.click()
    assert button.text == "Pause"
    opened.wait("document.querySelectorAll('dw-text .round:not([hidden])').length >= 2")
    button.click()
    paused, before = shown_rounds(opened), opened.js("return document.querySelector('dw-page').clock.time")
    assert button.text == "Play"
    assert 2 <= paused < len(TEXT.rounds)
    time.sleep(0.2)
    assert opened.js("return document.querySelector('dw-page').clock.time") == before
    assert [made.end <= before + 1e-9 for made in TEXT.rounds].index(False) == paused
    opened.js("const p = document.querySelector('dw-page'); p.speed.value = '4'; p.speed.onchange()")
    button.click()
    opened.wait("document.querySelector('dw-page').clock.playing === false")
    assert shown_rounds(opened) == len(TEXT.rounds)


def test_the_race_runs_on_one_clock(opened):
    time_of = TEXT.rounds[4].end
    opened.js("document.querySelector('dw-page').clock.set(arguments[0])", time_of)
    plain = sum(made.end <= time_of + 1e-9 for made in PLAIN.rounds)
    counts = opened.js(
        "const p = document.querySelector('dw-page'); return [p.plainCount.textContent, p.fastCount.textContent]"
    )
    assert f"{plain} forwards, {plain} tokens" in counts[0]
    assert f"5 forwards, {sum(len(made.tokens) for made in TEXT.rounds[:5])} tokens" in counts[1]
    assert opened.js("return document.querySelectorAll('.forward').length") == len(PLAIN.rounds) + len(TEXT.rounds)


def test_a_german_sentence_is_shown_round_by_round(opened):
    assert GERMAN.source_text in opened.js("return document.querySelector('[lang=de]').textContent")
    for index in (0, 4):
        opened.js(
            "const p = document.querySelector('dw-page'); p.germanRound.value = arguments[0]; p.germanRound.onchange()",
            index,
        )
        opened.wait(f"document.querySelector('[aria-labelledby^=\"dw-spec{index}-\"]')")
        words = opened.js(
            "return [...document.querySelectorAll('[aria-labelledby^=dw-spec] .verified')].map((v) => v.dataset.output)"
        )
        made = GERMAN.rounds[index]
        assert [w for w in words if w is not None] == [str(token) for token in made.tokens]


def test_the_keyboard_is_enough(opened):
    from selenium.webdriver.common.keys import Keys

    press(opened, Keys.TAB)
    assert opened.js("return document.activeElement.textContent") == "Play"
    opened.js("document.querySelector('dw-page').seek(0)")
    press(opened, Keys.SPACE)
    assert opened.js("return document.activeElement.textContent") == "Pause"
    press(opened, Keys.SPACE)
    press(opened, "-", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    reached = shown_rounds(opened)
    assert reached >= 2
    assert opened.js("return document.querySelector('dw-page').speed.value") == "0.5"
    for _ in range(8):
        press(opened, Keys.TAB)
        if opened.js("return document.activeElement.className") == "round":
            break
    press(opened, Keys.HOME)
    press(opened, Keys.ENTER)
    assert_drawn(opened, TEXT.rounds[0])
    press(opened, Keys.ARROW_RIGHT)
    press(opened, Keys.ENTER)
    assert_drawn(opened, TEXT.rounds[1])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [380, 800, 1400])
def test_at_every_width_nothing_overlaps_and_axe_finds_nothing_serious(browser, file, width, dark):
    browser.size(width, dark=dark)
    browser.open(file)
    browser.wait(READY)
    browser.wait("document.querySelectorAll('svg.dw-figure').length === 3")
    assert browser.js("return document.documentElement.scrollWidth") <= width
    for number in range(browser.js("return document.querySelectorAll('svg').length")):
        found = browser.js(
            "return [...document.querySelectorAll('svg')[arguments[0]].querySelectorAll('text')].map((t) => {"
            " const b = t.getBoundingClientRect(); const m = b.height / 8;"
            " return [b.left, b.top + m, b.right, b.bottom - m, t.textContent]; })", number
        )  # fmt: skip
        assert not overlapping(found)
    sizes = browser.js(
        "return [...document.querySelectorAll('svg.dw-figure')]"
        ".map((s) => s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
    )
    assert min(sizes) >= 0.88  # the smallest text has 10 pixels
    assert not serious(browser)


def test_control_axe_sees_a_button_without_a_name(opened):
    opened.js("document.querySelector('.controls button').textContent = ''")
    assert "button-name" in [name for name, _ in serious(opened)]


def test_nothing_is_requested_and_nothing_is_refused(browser, file):
    browser.driver.get_log("performance")
    browser.size(1400)
    browser.open(file)
    browser.wait(READY)
    browser.driver.find_elements("css selector", "dw-text .round")[2].click()
    events = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert {url for url in urls if not url.startswith(("data:", "blob:"))} == {file.as_uri()}
    assert not browser.problems()


def test_control_the_policy_refuses_requests(opened):
    failed = opened.driver.execute_async_script(
        "const done = arguments[0]; fetch('http://127.0.0.1:9/x').then(() => done(false), () => done(true))"
    )
    assert failed
    assert any("Content Security Policy" in problem for problem in opened.problems())


def test_markup_and_controls_of_tokens_are_shown_and_never_run(browser, tmp_path):
    trace = replace(story(8, "rsd-s", shape="3x3", words=HOSTILE), prompt_text="".join(HOSTILE))
    path = tmp_path / "hostile.html"
    write_page(path, [trace])
    assert "<script>alert" not in path.read_text(encoding="utf-8")
    browser.open(path)
    browser.wait(READY)
    text = browser.js("return document.querySelector('dw-text').textContent")
    assert "<script>alert(1)</script>" in text
    assert "⟨U+202E⟩evil" in text
    assert not re.findall("[\u202a-\u202e\u2066-\u2069]", browser.js("return document.documentElement.innerHTML"))
    assert browser.js("return document.querySelectorAll('script:not([type]), img, [onerror]').length") == 1
    assert not browser.problems()


def test_less_motion_is_honoured(browser, file):
    for still in (False, True):
        browser.size(1400, still=still)
        browser.open(file)
        browser.wait(READY)
        name = browser.js("return getComputedStyle(document.querySelector('dw-tree g')).animationName")
        assert name == ("none" if still else "appear")


def test_500_rounds_open_quickly(browser, tmp_path, monkeypatch):
    """Measured: 0.4 s. Other processes may hold one opening up; a page that draws too much holds up all. Only 14 of the
    figures are made, and used again and again, to save time here and none there."""
    monkeypatch.setattr("draftwood.trace.page.write.draw_round", lambda trace, place, *, width: drawn(place % 14, width))
    rounds = [replace(TEXT.rounds[number % 14], number=number, end=0.02 * (number + 1)) for number in range(500)]
    trace, path = replace(TEXT, rounds=rounds), tmp_path / "long.html"
    drawn = cache(lambda place, width: draw_round(trace, place, width=width))
    write_page(path, [trace])
    browser.size(1400)

    def seconds():
        start = time.perf_counter()
        browser.open(path)
        browser.wait(READY)
        return time.perf_counter() - start

    assert any(seconds() < 5 for _ in range(4))
    assert shown_rounds(browser) == 500


def test_a_page_depends_on_the_traces_alone_and_needs_something_to_show(tmp_path):
    assert page([OTHER]) == page([OTHER])
    for traces, message in (
        ([], "no recorded rounds"), ([replace(TEXT, rounds=[])], "no recorded rounds"),
        ([PLAIN, PLAIN], "at most one text without drafting"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            page(traces)
    with pytest.raises(OSError, match="page"):
        write_page(tmp_path / "none" / "page.html", [TEXT])
