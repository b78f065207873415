"""A text that repeats another one with changes is followed through them, and drafts of it change no text."""

import random

import pytest

import draftwood
from draftwood import ConfigError, LoadOptions
from draftwood.draft.alignment import MAX_AGREED, Alignment
from draftwood.draft.ngram_index import NgramIndex

OLD = list(range(100, 160))


def after(text, old=OLD, count=3):
    """What comes after a text that was written token by token."""
    alignment = Alignment(old, 0, 0)
    for end in range(len(text)):
        alignment.follow(text[:end], count)
    return alignment.follow(text, count)[0]


@pytest.mark.parametrize(("text", "found"), [
    ([], [100, 101, 102]),
    (OLD[:5], [105, 106, 107]),
    ([*OLD[:5], 1], [106, 107, 108]),  # as many tokens as were replaced
    ([*OLD[:5], 1, 2, 3, 106], [107, 108, 109]),  # a replacement of another length
    ([*OLD[:5], *OLD[12:14]], [114, 115, 116]),  # an omission
    ([*OLD[:5], 1, 2, 3, 4, *OLD[5:7]], [107, 108, 109]),  # an insertion
    ([*OLD[:5], *[1] * 500, *OLD[5:8]], [108, 109, 110]),  # a long one
    (OLD, []),
])  # fmt: skip
def test_the_place_is_found_again_behind_a_change(text, found):
    assert after(text) == found


def test_a_replacement_is_expected_again_until_the_old_tokens_stay():
    old = [*OLD[:5], 1, 2, *OLD[5:10], 1, 2, *OLD[10:15], 1, 2, *OLD[15:]]
    changed = [*OLD[:5], 7, 8, 9, *OLD[5:10]]
    assert after(changed, old, 4) == [7, 8, 9, OLD[10]]
    assert after([*changed, 1, 2, *OLD[10:15]], old, 4) == [1, 2, *OLD[15:17]]


def test_a_search_takes_as_long_in_a_long_text_as_in_a_short_one():
    class Counted(list[int]):
        looked = 0

        def __getitem__(self, at):
            self.looked += 1
            return super().__getitem__(at)

    old = Counted(range(5000))
    alignment = Alignment(old, 0, 0)
    for length in (5, 400, 4000):
        old.looked = 0
        alignment.follow([-1] * length, 0)
        assert 0 < old.looked < 300


def test_what_was_repeated_is_counted():
    alignment = Alignment(OLD, 0, 0)
    text = [*OLD[:20], 1, 2, 3, *OLD[22:60]]
    for end in range(len(text) + 1):
        agreed = alignment.follow(text[:end], 0)[1]
    assert (alignment.kept, agreed) == (58, MAX_AGREED)


def passes(index, prompt, new):
    """Forwards of a target that writes ``new``, where guesses of sixteen tokens are verified."""
    text, count = list(prompt), 0
    while len(text) < len(prompt) + len(new):
        left = new[len(text) - len(prompt) :]
        guess = index.propose(text, 16)
        right = next((i for i, (a, b) in enumerate(zip(guess, left, strict=False)) if a != b), min(len(guess), len(left)))
        text += left[: right + 1]
        count += 1
    return count


def test_an_edited_text_takes_few_passes_wherever_the_old_one_stands():
    rng = random.Random(3)
    lines = [[rng.randrange(40) for _ in range(12)] for _ in range(40)]
    old = [token for line in lines for token in [*line, 50, 51]]
    new = [token for i, line in enumerate(lines) for token in [*line, *((60, 61, 62) if i % 4 == 0 else (50, 51))]]
    given, read = passes(NgramIndex((), old), [99], new), passes(NgramIndex(), [*old, 99], new)
    assert max(given, read) < len(new) / 8
    assert passes(NgramIndex(), [99], new) > len(new) / 3  # control: without the old text


@pytest.fixture(scope="module")
def pair():
    return draftwood.load(options=LoadOptions(backend="native", profile="none"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_text_changes_speed_and_no_text(pair, temperature):
    settings = {"seed": 5, "temperature": temperature, "max_new_tokens": 60}
    plain = pair.generate("Once upon a time", method="ar", **settings)
    for draft in (plain.text, plain.token_ids, "another text altogether", "", [0] * 5000):
        for method in ("adaptive", "ngram"):
            found = pair.generate("Once upon a time", method=method, draft_text=draft, **settings)
            assert found.token_ids == plain.token_ids
    known = pair.generate("Once upon a time", method="ngram", draft_text=plain.token_ids, **settings)
    assert known.stats.rounds < 60 / 2


@pytest.mark.parametrize(("draft", "method", "said"), [
    ([10**6], None, "draft_text 0 holds token 1000000"),
    *((none, None, f"draft_text is {none}") for none in (3.5, 0, False)),
    ("text", "chain", "draft_text is a source of drafts for adaptive, ngram, lookup, not for chain"),
    ("text", "ar", "not for ar"),
])  # fmt: skip
def test_what_is_no_draft_text_is_refused(pair, draft, method, said):
    with pytest.raises(ConfigError, match=said):
        pair.generate("Once", draft_text=draft, method=method, max_new_tokens=4)
