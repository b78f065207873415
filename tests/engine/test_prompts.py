"""Long prompts are read in chunks alongside rows that write, and common beginnings once; no text changes by it."""

from contextlib import contextmanager
from itertools import count

import pytest

from draftwood.core.limits import Limits
from draftwood.engine import prefixes, prompts
from draftwood.engine.requests import Request
from draftwood.runners.cache import TreeCache
from draftwood.sampling.settings import Sampling
from tests.engine.test_batch import CAUSAL, OF_HIDDEN_STATES, causal, compare, of_hidden_states, requests_of
from tests.helpers import chunks, decoder, rest_of

CHUNK = 5


@pytest.fixture(autouse=True)
def short_beginnings_are_copied(monkeypatch):
    monkeypatch.setattr(prefixes, "SHARED", 4)


def check(engine, given):
    with chunks(CHUNK):
        compare(engine, given, 0)


@CAUSAL
def test_a_text_is_the_same_if_its_prompt_is_read_in_chunks(backend, method):
    check(decoder(*causal(backend), *method), requests_of(0, 6, long=True))


def rounds(engine, given, later):
    """Per row and round: the tokens, how many were drafted, and the tree. The last requests come ``later`` rounds."""
    found = [[] for _ in given]
    with chunks(CHUNK), engine.batch() as batch:
        for number, request in enumerate(given):
            batch.add(request, Sampling())
            for _ in range(later if number == 0 else 0):
                note(found, batch.step())
        while len(batch):
            note(found, batch.step())
    return found


def note(found, pieces):
    for piece in pieces:
        tree, at = piece.round.tree, piece.round_row
        found[piece.row].append((piece.tokens, piece.drafted, tree.tokens[at][tree.valid[at]].tolist()))


@OF_HIDDEN_STATES
def test_drafters_of_hidden_states_draft_the_same_trees_after_chunks_and_copies(kind, backend):
    engine = decoder(*of_hidden_states(kind, backend), "rsd-s", "2x2", "recursive")
    prompt = [2 + (7 * i * i) % 9 for i in range(23)]
    limits = Limits(max_new_tokens=14)
    given = [
        Request(prompt=[*prompt[:cut], *end], seed=seed, limits=limits)
        for seed, (cut, end) in enumerate([(9, [3]), (23, []), (17, [4, 5, 4, 6, 8, 3, 2, 4]), (23, [])])
    ]
    company = rounds(engine, given, later=3)
    assert [rounds(engine, [request], later=0)[0] for request in given] == company
    assert max(drafted for row in company for _, drafted, _ in row) > 0


# ---- what is read ----


def request(prompt, length=30, **settings):
    return Request(prompt=prompt, limits=Limits(max_new_tokens=length), **settings)


def prompt_of(length, step=1):
    return [2 + step * i * i % 9 for i in range(length)]


@contextmanager
def forwards(runner):
    """The shapes of the tokens of all forwards, appended as they are made."""
    shapes = []

    def note_shape(_module, _args, given):
        shapes.append(tuple(given["input_ids"].shape))

    hook = runner.network.register_forward_pre_hook(note_shape, with_kwargs=True)
    yield shapes
    hook.remove()


@pytest.fixture
def plain():
    return decoder(causal("torch")[0], None, "ar")


READ = {
    # The chunk, options of the batch, whether the target pads rows; for each step lengths of new prompts, and forwards.
    "a long prompt makes no round longer than a chunk": (5, {}, True, [
        ([2, 2], [(2, 2)]), ([20], [(1, 5), (2, 1)]), ([], [(1, 5), (2, 1)]), ([], [(1, 5), (2, 1)]),
        ([], [(1, 4), (3, 1)]),  # 19 tokens: the last one is the first root
    ]),
    "a short prompt is read with the round if the padding is within a chunk": (6, {}, True, [
        ([2], [(1, 2)]),
        ([4], [(2, 4)]),  # three columns for two rows
        ([4], [(1, 3), (3, 1)]),  # three rows: nine tokens
    ]),
    "prompts are read at once where no row writes": (2, {}, True, [([9, 12], [(2, 12)])]),
    "a long one in parts where others may come": (2, {"tolerant": True}, True, [
        ([20], [(1, 8)]), ([], [(1, 8)]), ([], [(1, 3), (1, 1)]),
    ]),
    "a prompt that needs much padding is read alone": (256, {}, True, [
        ([9, 27], [(1, 26), (2, 9)]),  # 18 tokens of padding
        ([9], [(3, 9)]),  # 16, in the two rows that write
        ([8], [(1, 7), (4, 1)]),  # 21
    ]),
    "a target that pads no rows reads prompts of any length with the round": (30, {}, False, [
        ([9, 27], [(2, 27)]),
        ([28, 28], [(1, 3), (3, 28)]),  # 27 tokens and the root each; the chunk ends in the second
        ([], [(1, 24), (4, 1)]),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("chunk", "options", "pads", "steps"), READ.values(), ids=READ)
def test_which_forwards_read_prompts(plain, chunk, options, pads, steps, monkeypatch):
    monkeypatch.setattr(plain.pipeline.target, "pads", pads)
    monkeypatch.setattr(prompts, "ALONE", 8)
    step = count(2)  # no two prompts begin alike
    with chunks(chunk), forwards(plain.pipeline.target) as shapes, plain.batch(**options) as batch:
        for lengths, wanted in steps:
            for length in lengths:
                batch.add(request(prompt_of(length, next(step))), Sampling())
            shapes.clear()
            batch.step()
            assert shapes == wanted


def test_a_prompt_is_read_to_its_end_at_once_when_nothing_writes_any_more(plain):
    given = request(prompt_of(20), 5)
    whole = plain.generate([given], Sampling())[0].token_ids
    with chunks(CHUNK), forwards(plain.pipeline.target) as shapes, plain.batch() as batch:
        first = batch.add(request([1, 2], 2), Sampling())
        batch.step()
        batch.add(given, Sampling())
        assert [piece.row for piece in batch.step()] == [first]
        shapes.clear()
        text = [token for _ in range(5) for piece in batch.step() for token in piece.tokens]
    assert shapes == [(1, 14), *[(1, 1)] * 5]
    assert text == whole


def test_a_prompt_that_is_dropped_while_it_is_read_leaves_others_their_texts_and_no_memory(plain):
    given, target = [request([1, 2], 9), request(prompt_of(20), 5), request(prompt_of(22, 4), 5)], plain.pipeline.target
    whole = [plain.generate([one], Sampling())[0].token_ids for one in given]
    with chunks(CHUNK), plain.batch() as batch:
        begun = []
        for one in given:
            batch.add(one, Sampling())
            begun += [token for piece in batch.step() for token in piece.tokens]
        assert batch.waiting == 2
        batch.drop(1)
        rest = rest_of(batch)
        assert (target._rows.rows, target._cache.buffers) == ([], {})
    assert ([*begun, *rest[0]], rest[2]) == (whole[0], whole[2])


def test_common_beginnings_are_read_once(plain):
    alike = [request(prompt_of(20), 5, seed=seed) for seed in range(3)]
    longer = request([*prompt_of(15), 3, 4, 5], 5)
    whole = [plain.generate([one], Sampling())[0].token_ids for one in (*alike, longer)]
    with forwards(plain.pipeline.target) as shapes:
        assert [found.token_ids for found in plain.generate([*alike, longer], Sampling())] == whole
    # The prompt, then with the first round the last common token of each other row and what follows it.
    assert shapes[:3] == [(1, 19), (4, 4), (4, 1)]


# ---- negative controls ----


def test_control_a_beginning_that_is_copied_too_far_is_seen(monkeypatch):
    shared = prefixes.common_length
    monkeypatch.setattr(prefixes, "common_length", lambda one, other: shared(one, other) + 2)
    with pytest.raises(AssertionError):
        check(decoder(*causal("torch"), "chain", "2", "recursive"), requests_of(0, 6, long=True))


def test_control_a_cache_that_copies_another_row_is_seen(monkeypatch):
    runners, copy = causal("torch"), TreeCache.copy_row
    monkeypatch.setattr(TreeCache, "copy_row", lambda self, other, row, length: copy(self, other, 0, min(length, 4)))
    with pytest.raises((AssertionError, ValueError, RuntimeError)):
        check(decoder(*runners, "chain", "2", "recursive"), requests_of(0, 6, long=True))
