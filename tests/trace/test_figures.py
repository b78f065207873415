"""The figures: every number is the trace's, no text overlaps another, and texts of tokens are never interpreted."""

import itertools
import re
import unicodedata
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from draftwood.core.errors import ConfigError
from draftwood.core.methods import METHODS
from draftwood.trace.figures import draw_race, draw_round, draw_specdec
from draftwood.trace.labels import is_plain, mono_width, number, sans_width, shorten, visible
from draftwood.trace.text import describe_race, describe_round
from tests.trace.runs import run, story

SVG = "{http://www.w3.org/2000/svg}"
WIDTHS = (348, 760, 1360)
HOSTILE = [
    "<script>alert(1)</script>", "\u202eevil\u2066", "</text></svg><img src=x onerror=alert(1)>", "a&b", '"q"',
    "\x00\x1b[31m", "\ud800", "日本語のとても長いことば", "שלום", "👩\u200d👧", "a" + "\u0301" * 40, "]]>", "", " " * 30,
    "\r\n", "{{x}}",
]  # fmt: skip


SOURCE = "Millionen von Autofahrern werden sich Sorgen um ihre Sicherheit machen."
TOLERANT = {"temperature": 0.0, "beta": 3, "noise": 0.3, "source": SOURCE}
ROUND, STOPPED = story(12, "rsd-s", "recursive", shape="3x3"), story(3, "rsd-s", shape="3x3", first=7)
STOPPED.rounds[:] = [replace(made, stop="another level does not pay, given what it costs") for made in STOPPED.rounds]
CASES = {
    "rsd-s": ROUND,
    "rsd-c": story(6, "rsd-c", "recursive", shape="3" + 7 * "-1", most=9, noise=0.2),
    "wide": story(4, "iid", "recursive", shape="12x3"),
    "chain": story(5, "chain", "recursive", shape="10", most=11, noise=0.2),
    "coupled": story(8, "shared-noise", "coupled", most=9, nodes=9),
    "stopped": STOPPED,
    "nothing": story(4, "ar", most=1),
    "tolerance": story(5, "block", "tolerance", shape="9", block=9, most=10, **TOLERANT),
    "hostile": story(8, "rsd-s", "recursive", shape="3x3", words=HOSTILE),
}
PLAIN = CASES["nothing"]


def parsed(svg):
    return ET.fromstring(svg)


def texts(svg):
    return list(parsed(svg).iter(f"{SVG}text"))


def boxes(svg):
    """Left, top, right, bottom of every text, from the widths that any common font stays below."""
    out = []
    for text in texts(svg):
        size = float(text.get("font-size", 12))
        mono = text.get("class") in ("code", "quiet", "strike")
        width = (mono_width if mono else sans_width)(text.text or "", size)
        x, y = float(text.get("x")), float(text.get("y"))
        left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
        out.append((left, y - 0.78 * size, left + width, y + 0.2 * size, text.text))
    return out


def overlapping(found):
    """Pairs of texts whose boxes share more than rounding."""
    pairs = itertools.combinations(found, 2)
    return [
        (a[4], b[4]) for a, b in pairs if min(a[2], b[2]) - max(a[0], b[0]) > 0.6 and min(a[3], b[3]) - max(a[1], b[1]) > 0.6
    ]


def figures(name, width):
    trace = CASES[name]
    for place in range(len(trace.rounds)):
        yield draw_round(trace, place, width=width)
        if name in ("tolerance", "hostile"):
            yield draw_specdec(trace, place, width=width)
    if name not in ("nothing", "tolerance"):
        yield draw_race(PLAIN, CASES[name], width=width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_no_text_overlaps_another_or_leaves_the_figure_which_is_as_wide_as_it_may_be(name, width):
    for svg in figures(name, width):
        found = boxes(svg)
        right, bottom = map(float, parsed(svg).get("viewBox").split()[2:])
        assert not overlapping(found)
        assert not [box for box in found if box[0] < 0 or box[1] < 0 or box[2] > right or box[3] > bottom]
        assert float(parsed(svg).get("width")) <= max(width * 1.03, 360)


def test_control_overlapping_texts_are_found():
    svg = draw_round(ROUND, 0)
    moved = re.sub(r'(<text class="[\w-]+") x="[\d.]+"', r'\1 x="40"', svg)
    assert overlapping(boxes(moved))


def groups(svg, kind):
    return [group for group in parsed(svg).iter(f"{SVG}g") if kind in group.get("class", "").split()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["rsd-s", "rsd-c", "chain", "coupled"])
def test_the_numbers_of_a_round_are_those_of_the_trace(name, width):
    trace = CASES[name]
    for place, made in enumerate(trace.rounds):
        svg = draw_round(trace, place, width=width)
        nodes = groups(svg, "node")
        drawn = {int(group.get("data-node")) for group in nodes if group.get("data-node")}
        assert drawn == set(range(len(made.nodes)))
        for group in nodes:
            if group.get("data-node") is None:
                assert group.get("data-token") == str(made.next_token)
                continue
            node = made.nodes[int(group.get("data-node"))]
            assert (int(group.get("data-token")), group.get("data-verdict")) == (node.token, node.verdict)
            for key, value in (("target-prob", node.target_prob), ("draft-prob", node.draft_prob)):
                shown = group.get(f"data-{key}")
                assert (shown is None) == (value is None)
                assert value is None or float(shown) == pytest.approx(value, rel=1e-5)
            assert node.verdict in group.find(f"{SVG}title").text
        words = [text.text for text in texts(svg)]
        for node in made.nodes[1:]:
            assert f"p {number(node.draft_prob)}" in words
            assert f"q {number(node.target_prob)}" in words


@pytest.mark.parametrize("width", WIDTHS)
def test_the_trials_are_those_of_the_trace_in_order(width):
    for place, made in enumerate(ROUND.rounds):
        found = groups(draw_round(ROUND, place, width=width), "trial")
        assert [int(group.get("data-node")) for group in found] == [trial.node for trial in made.trials]
        for group, trial in zip(found, made.trials, strict=True):
            assert float(group.get("data-chance")) == pytest.approx(trial.chance, rel=1e-5)
            assert float(group.get("data-uniform")) == pytest.approx(trial.uniform, rel=1e-5)
            sign, numbers = (text.text for text in group.iter(f"{SVG}text"))
            assert sign == ("✓" if trial.accepted else "✗")
            assert numbers.startswith(f"u {number(trial.uniform)} ")
            assert f" {number(trial.chance)} = " in numbers


def test_bars_are_as_long_as_their_probabilities():
    made = ROUND.rounds[0]
    for group in groups(draw_round(ROUND, 0), "target-probs"):
        frame, *parts = group.findall(f"{SVG}rect")
        probs = [float(prob) for prob in group.get("data-probs").split()]
        drawn = [float(part.get("width")) / float(frame.get("width")) for part in parts]
        assert drawn == pytest.approx([p for p in probs if p * float(frame.get("width")) >= 0.8], abs=0.01)
    shown = [group.get("data-tokens").split()[0] for group in groups(draw_round(ROUND, 0), "target-probs")]
    assert shown == [str(node.target.tokens[0]) for node in made.nodes]


def test_verifiers_that_match_show_the_targets_choice_and_a_stochastic_beam_its_box():
    for place, made in enumerate(CASES["coupled"].rounds):
        found = groups(draw_round(CASES["coupled"], place), "choice")
        choices = [(c.node, c.token) for c in made.choices]
        assert [(int(g.get("data-node")), int(g.get("data-token"))) for g in found] == choices
    assert [len(groups(draw_round(CASES[name], 0), "beam")) for name in ("rsd-s", "rsd-c")] == [3, 0]


def test_the_race_counts_forwards_and_tokens_of_two_runs_of_one_prompt():
    spec = CASES["chain"]
    svg = draw_race(PLAIN, spec)
    forwards = groups(svg, "forward")
    assert len(forwards) == len(PLAIN.rounds) + len(spec.rounds)
    ends = [made.end for trace in (PLAIN, spec) for made in trace.rounds]
    assert [float(group.get("data-end")) for group in forwards] == pytest.approx(ends, rel=1e-5)
    words = " ".join(text.text for text in texts(svg))
    assert f"chain: {len(spec.rounds)} forwards, {len(spec.tokens)} tokens, {spec.rounds[-1].end * 1000:.0f} ms" in words
    with pytest.raises(ConfigError, match="different prompts"):
        draw_race(PLAIN, CASES["tolerance"])
    with pytest.raises(ConfigError, match="without rounds"):
        draw_race(PLAIN, replace(PLAIN, rounds=[]))


def test_the_translation_shows_what_was_kept_and_what_took_the_place_of_the_rest():
    trace = CASES["tolerance"]
    for place, made in enumerate(trace.rounds):
        svg = draw_specdec(trace, place)
        shown = verified(svg)
        assert shown == [str(token) for token in made.tokens]
        words = [text.text for text in texts(svg)]
        assert words.count("[BLANK]") == 2 * max(0, len(made.nodes) - 1 - len(shown))
        assert words.count("✓") == len(made.path)
        struck = [text.text for text in texts(svg) if text.get("class") == "strike"]
        assert len(struck) == (len(made.path) < len(made.nodes) - 1)
    made = next(made for made in trace.rounds if len(made.tokens) > 1)
    ended = replace(trace, rounds=[replace(made, tokens=made.tokens[:1])])
    assert verified(draw_specdec(ended, 0)) == [str(made.tokens[0])]  # no token after the end of the text


def verified(svg):
    outputs = [group.get("data-output") for group in groups(svg, "verified")]
    return [token for token in outputs if token is not None]


@pytest.mark.parametrize("width", WIDTHS)
def test_markup_and_controls_in_tokens_are_text(width):
    for svg in figures("hostile", width):
        tags = {element.tag.removeprefix(SVG) for element in parsed(svg).iter()}
        assert tags <= {"svg", "title", "desc", "style", "defs", "marker", "path", "g", "rect", "text"}
        assert not re.findall("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800\x00\x1b]", svg)
        assert not [key for element in parsed(svg).iter() for key in element.attrib if key.startswith("on")]
        svg.encode("utf-8")
    joined = "".join(figures("hostile", width))
    assert "⟨U+202E⟩evil" in joined
    assert "&lt;script&gt;" in joined


def test_texts_are_made_visible_and_cut():
    assert visible(" a\n\t") == "␣a↵⇥"
    assert visible("x\u202ey\x07") == "x⟨U+202E⟩y⟨U+0007⟩"
    assert visible("a b", spaces=False) == "a b"
    assert visible("\u0301") == "⟨U+0301⟩"
    assert visible("e" + "\u0301" * 3).count("⟨") == 1
    assert shorten("abcdef", 4 * 0.605, 1) == "abc…"
    assert shorten("abcd", 4 * 0.605, 1) == "abcd"
    assert [number(p) for p in (0, 0.00001, 0.0123, 0.5, 1)] == ["0", "<.001", "0.012", "0.50", "1.00"]
    assert not is_plain("日")


@pytest.mark.parametrize("place", [-1, 12, 99])
def test_a_round_that_does_not_exist_is_refused(place):
    for draw in (draw_round, draw_specdec, describe_round):
        with pytest.raises(ConfigError, match=f"no round {place}: its rounds are 0 to 11"):
            draw(ROUND, place)


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("name", CASES)
def test_the_terminal_shows_the_same_numbers(name, width):
    trace = CASES[name]
    for place, made in enumerate(trace.rounds):
        shown = describe_round(trace, place, width=width)
        for line in shown.split("\n"):  # wide characters need two columns, and marks on others none
            assert sum((unicodedata.east_asian_width(c) in "WF") + (not unicodedata.combining(c)) for c in line) <= width
        assert shown.count("✓ accepted") >= (1 if width == 100 and any(t.accepted for t in made.trials) else 0)
        if width == 100 and name == "rsd-s":
            for node, item in list(enumerate(made.nodes))[1:]:
                row = next(line for line in shown.split("\n") if re.search(rf"[✓✗·] {node} ", line))
                assert row.endswith(f"p {number(item.draft_prob)}  q {number(item.target_prob)}")
                assert {"accepted": "✓", "rejected": "✗", "not tried": "·"}[item.verdict] in row
        assert not re.findall("[\u202a-\u202e\u2066-\u2069\x00\x1b]", shown)


def test_the_race_in_the_terminal():
    spec = CASES["chain"]
    lines = describe_race(PLAIN, spec, width=80).split("\n")
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].count("|") == len(PLAIN.rounds) + 1
    assert lines[3].count("|") == len(spec.rounds) + 1
    with pytest.raises(ConfigError, match="40 columns"):
        describe_round(ROUND, 0, width=39)


@pytest.mark.parametrize(
    ("method", "verifier"), [(name, verifier) for name, spec in METHODS.items() for verifier in spec.verifiers]
)
def test_rounds_of_every_method_and_verifier_are_drawn(method, verifier):
    [trace] = run(method, verifier, temperature=0.0 if verifier == "greedy" else 1.0, length=10)
    for place, made in enumerate(trace.rounds[:4]):
        assert describe_round(trace, place)
        for width in WIDTHS:
            svg = draw_round(trace, place, width=width)
            assert not overlapping(boxes(svg))
            shown = {int(group.get("data-node")) for group in groups(svg, "node") if group.get("data-node")}
            assert shown == set(range(len(made.nodes)))


def test_markup_is_what_a_parser_writes_again():
    """The canvas writes its markup itself, for speed: what is parsed and written by the library is the same."""
    for name in ("rsd-s", "hostile"):
        svg = draw_round(CASES[name], 0)
        again = ET.fromstring(svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1))
        again.attrib = {"xmlns": SVG.strip("{}"), **again.attrib}
        assert ET.tostring(again, encoding="unicode") + "\n" == svg
