"""Which parts of a text were drafted, where characters span tokens and rounds."""

from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import Grammar, LoadOptions, load
from draftwood.cli import main
from draftwood.core.detokenizer import Marks
from draftwood.core.limits import Limits
from draftwood.trace.figures import draw_round
from draftwood.trace.labels import token_text
from draftwood.trace.page.pieces import round_data
from draftwood.trace.text import describe_round
from tests.engine.test_output import WITH_SPACES, Bytes
from tests.helpers import output_of
from tests.trace.runs import run

calm = settings(deadline=None, derandomize=True)
EARTH = "🌍".encode()


def marked(blocks, tokenizer=None, prompt=(97,), **limits):
    """The text of blocks, each with its number of drafted tokens, and the marked parts of every block."""
    tokenizer = tokenizer or Bytes()
    most = sum(len(block) for block, _ in blocks)
    output = output_of(prompt, Limits(max_new_tokens=most, **limits), tokenizer=tokenizer)
    marks, found, whole = Marks(tokenizer, prompt), [], ""
    for block, drafted in blocks:
        count, text = output.take(block)
        whole += text
        found.append(marks.take(block[:count], min(drafted, count), text, last=output.finish_reason is not None))
        assert "".join(part for part, _ in found[-1]) == text
        if output.finish_reason is not None:
            break
    return whole, found


@calm
@given(
    st.text("a🌍é ", min_size=1, max_size=8),
    st.lists(st.integers(1, 5), max_size=12),
    st.sampled_from([(), ("a a",), ("é",)]),
)
def test_a_character_has_the_mark_of_the_token_that_completes_it(text, sizes, stop):
    data, blocks, flags = list(text.encode()), [], []
    for size in [*sizes, len(data)]:
        block, data = data[:size], data[size:]
        if block:
            blocks.append((block, len(block) - 1))
            flags += [True] * (len(block) - 1) + [False]
    whole, found = marked(blocks, stop=stop)
    ends = [len(text[: i + 1].encode()) - 1 for i in range(len(whole))]
    assert [part for parts in found for part in parts] == [(text[i], flags[end]) for i, end in enumerate(ends)]


def test_a_character_that_stays_broken_has_the_mark_of_the_last_token():
    assert marked([([98, *EARTH[:2]], 3)]) == ("b\ufffd", [[("b", True), ("\ufffd", True)]])
    assert marked([([98, EARTH[0]], 2), ([EARTH[1]], 0)]) == ("b\ufffd", [[("b", True)], [("\ufffd", False)]])


def test_the_first_word_joins_the_prompt_as_it_does_in_the_text():
    assert marked([([0, 1], 1)], WITH_SPACES, [3]) == (" once upon", [[(" once", True), (" upon", False)]])


# With a model -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(folders):
    return load(*folders, options=LoadOptions(dtype="float32", device="cpu", backend="torch"))


@pytest.mark.parametrize(
    "method", [{"method": "ar"}, {"method": "shared-noise", "shape": "1-1"}, {"method": "shared-noise", "shape": "1-1-1-1"}]
)
def test_a_trace_marks_every_character_once_and_shows_the_bytes_of_its_tokens(pair, method):
    text = "a 🌍 b🐶🐶"
    result = pair.generate(
        "the fox", grammar=Grammar.regex(text), method=method, seed=1, max_new_tokens=40, temperature=1.0, trace=True
    )
    trace = result.trace
    assert trace is not None
    assert "".join(part.text for made in trace.rounds for part in made.parts) == trace.text == result.text == text
    flags = [place < len(made.path) for made in trace.rounds for place in range(len(made.tokens))]
    ends = [len(text[: i + 1].encode()) - 1 for i in range(len(text))]  # every byte is a token here
    marks = [(part.text, part.drafted) for made in trace.rounds for part in made.parts]
    assert marks == [(char, flags[end]) for char, end in zip(text, ends, strict=True)]
    assert [token_text(trace, token) for token in trace.tokens[2:7]] == ["<F0>", "<9F>", "<8C>", "<8D>", "␣"]
    inside = next(made for made in trace.rounds if trace.tokens[3] in [node.token for node in made.nodes])
    assert "<9F>" in describe_round(trace, inside.number)
    assert "<9F>" in draw_round(trace, inside.number).replace("&lt;", "<").replace("&gt;", ">")
    assert "<9F>" in [node["text"] for node in round_data(trace, inside)["nodes"]]


def test_blanks_of_a_token_are_seen_and_those_between_bytes_stay():
    trace = replace(run("ar", length=1)[0], texts={5: " <F0 9F>", 6: "a <b>"})
    assert [token_text(trace, token) for token in (5, 6)] == ["␣<F0 9F>", "a␣<b>"]


def test_the_terminal_marks_whole_characters(folders):
    arguments = ["--target", folders[0], "--draft", folders[1], "--backend", "torch", "--dtype", "float32"]
    options = ["--regex", "a 🌍 b", "--method", "shared-noise", "--shape", "1-1-1", "--show", "--seed", "1", "the fox"]
    shown = CliRunner().invoke(main, ["generate", *map(str, arguments), *options])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[0].replace("⟦", "").replace("⟧", "") == "a 🌍 b"
