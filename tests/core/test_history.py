"""Earlier texts: what is found is what a search finds, the oldest go first, and texts of other owners are not found."""

import random
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest

from draftwood.core.errors import ConfigError
from draftwood.core.history import SIZES, History


def agreeing(text, end, ending):
    """How many tokens before a place in a text are those of an ending."""
    size = 0
    while size < min(end, len(ending), SIZES[-1]) and text[end - 1 - size] == ending[-1 - size]:
        size += 1
    return size


@pytest.mark.parametrize("seed", range(4))
def test_the_longest_match_is_the_one_that_a_search_finds(seed):
    rng, history = random.Random(seed), History(1 << 16)
    texts = [tuple(rng.randrange(3) for _ in range(rng.randrange(90))) for _ in range(6)]
    for text in texts:
        history.add(text, "")
    lengths = set()
    for _ in range(60):
        text = rng.choice(texts)
        ending = [9, *text[: rng.randrange(1, 80)]][-rng.choice((3, 7, 40)) :]
        place, agreed = history.find(ending, "")
        known = {(text, end): agreeing(text, end, ending) for text in texts for end in range(1, len(text))}
        sizes = [size for size in SIZES if size <= max(known.values())]
        if sizes:  # of a few equally long ends one is found, by its size
            assert sizes[-1] <= agreed <= max(known.values())
            assert history.after(place, 200) in [list(text[end:]) for (text, end), size in known.items() if size == agreed]
        else:
            assert (place, agreed) == (0, 0)
        lengths.add(agreed)
    assert {0, 32} < lengths


def test_the_oldest_texts_go_first_and_a_long_one_keeps_its_end():
    history = History(256)
    texts = [[100 * number + token for token in range(40)] for number in range(20)]
    for text in texts:
        history.add(text, "")
    kept = [history.find(text[:20], "")[1] > 0 for text in texts]
    assert kept[-1]
    assert not kept[0]
    assert sum(before != after for before, after in pairwise(kept)) == 1, "old ones, then kept ones"
    history.add(range(10_000, 11_000), "")
    assert history.find(range(10_700, 10_750), "") == (0, 0)
    assert history.after(history.find(range(10_950, 10_990), "")[0], 99) == [*range(10_990, 11_000)]
    history.clear()
    assert history.find(texts[-1][:20], "") == (0, 0)


def test_a_text_that_goes_on_takes_the_place_of_its_beginning():
    history = History(256)
    for end in range(10, 110, 10):  # turns of a chat: 550 tokens if each were kept
        history.add(range(end), "")
    assert history.after(history.find(range(50), "")[0], 999) == [*range(50, 100)]


@pytest.mark.parametrize("owners", [("a", "b"), ("a", "a")], ids=["others", "control: the same"])
def test_nobody_finds_a_text_of_another(owners):
    """Both write the same words, and one of them goes on with even tokens, the other with odd ones. In so little room the
    hashes of n-grams collide all the time."""
    rng, history, crossed, own = random.Random(5), History(256), 0, 0
    words = [[rng.randrange(100, 110) for _ in range(8)] for _ in range(3)]
    for _ in range(400):
        parity = rng.randrange(2)
        text = [token for _ in range(rng.randrange(1, 5)) for token in (*rng.choice(words), 2 * rng.randrange(9) + parity)]
        history.add(text, owners[parity])
        for word in words:
            place, agreed = history.find([*text, *word], owners[parity])
            found = [token % 2 == parity for token in history.after(place, 99) if token < 100] if agreed else []
            crossed += not all(found)
            own += any(found)
    assert own > 100
    assert (crossed > 0) == (owners[0] == owners[1])


def test_a_guess_takes_as_long_with_millions_of_tokens_as_with_few():
    """Some 25 microseconds, also with ten million; here others may use the core."""
    rng, seconds, hits = random.Random(1), [], 0
    history, texts = History(1 << 22), np.random.default_rng(1).integers(50_000, size=(1000, 4000))
    for text in texts:
        history.add(text, "")
    for _ in range(200):
        text, end = rng.choice(texts).tolist(), rng.randrange(40, 3900)
        began = perf_counter()
        found = history.after(history.find(text[:end], "")[0], 24)
        seconds.append(perf_counter() - began)
        hits += found == text[end : end + 24]
    assert hits > 180, "a few n-grams have lost their places to others"
    assert sorted(seconds)[20] < 100e-6


def test_too_little_room_is_refused():
    with pytest.raises(ConfigError, match="room for 63 tokens: give 64 or more"):
        History(63)
