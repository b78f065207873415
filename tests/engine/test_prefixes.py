"""The prefix cache changes no text: bits are equal on the native engine, whatever was kept, shared, cut or forgotten."""

import copy
import random
from itertools import pairwise

import pytest
import torch

import draftwood
from draftwood import Grammar, LoadOptions
from draftwood.core.errors import CacheError
from draftwood.core.limits import Limits
from draftwood.engine import prefixes, prompts
from draftwood.engine.prefixes import PrefixCache
from draftwood.engine.prompts import AGAIN
from draftwood.engine.requests import Request
from draftwood.runners.factory import make_runners
from draftwood.runners.native.memory import MARKS, RowMemory
from draftwood.runners.native.network import MemoryTable
from draftwood.sampling.settings import Sampling
from tests.engine import test_batch
from tests.engine.test_batch import alone, together
from tests.helpers import chunks, decoder, hidden_pair, published_pair, rest_of, rows_of
from tests.other_tokens import ninety, runners_of
from tests.runners.zoo import NATIVE, WINDOWED, tiny

SAMPLINGS = copy.deepcopy(test_batch.SAMPLINGS)  # a processor remembers the size of its vocabulary

VOCAB, END = 90, 1
METHODS = {
    "small": ("chain", "3", "recursive"), "windowed": ("rsd-s", "2x2", "recursive"), "plain": ("ar", None, "auto"),
    "hidden": ("rsd-s", "2x2", "recursive"), "eagle3": ("rsd-s", "2x2", "recursive"), "dflash": ("chain", "2", "recursive"),
    "states": ("rsd-s", "2x2", "recursive"), "other": ("rsd-s", "2x2", "recursive"),
    "dspark": ("rsd-s", "2x2", "recursive"), "mtp": ("rsd-s", "2x2", "recursive"), "adaptive": ("adaptive", None, "coupled"),
}  # fmt: skip


def engine_of(kind, dtype=torch.float32, backend="native", eos=()):
    base = {"windowed": "mistral", "mtp": "qwen3_5_text", "states": "granitemoehybrid"}.get(kind, "llama")
    more = {"sliding_window": 50, **WINDOWED[base]} if kind == "windowed" else NATIVE[base]
    model = tiny(base, 1, dtype=dtype, vocab_size=VOCAB, max_position_embeddings=1024, **more)
    if kind == "hidden":
        target, draft = hidden_pair(model, backend)
    elif kind in ("eagle3", "mtp", "dflash", "dspark"):
        target, draft = published_pair(model, kind, backend)
    elif kind == "other":
        small = tiny("llama", 2, dtype=dtype, vocab_size=1400, max_position_embeddings=1024, num_hidden_layers=1)
        target, draft, _ = runners_of(model, small, ninety(), backend=backend)
    else:
        small = tiny("llama", 2, dtype=dtype, vocab_size=VOCAB, max_position_embeddings=1024, num_hidden_layers=1)
        target, draft, _ = make_runners(model, small, backend=backend)
    return decoder(target, draft, *METHODS[kind], eos=eos)


def request(prompt, new=12, **more):
    return Request(prompt=prompt, limits=Limits(max_new_tokens=new, ignore_eos=True), **more)


def some(count, seed):
    rng = random.Random(seed)
    return [rng.randrange(2, VOCAB) for _ in range(count)]


def check_waves(engine, seed, waves=4):
    """Write texts that begin as earlier ones did, with the cache and without; returns how often a kept text served."""
    rng, texts, hits = random.Random(seed), [some(70, seed), some(33, seed + 1)], 0
    use = engine.prefixes.use

    def counted(text):
        nonlocal hits
        hits += text in engine.prefixes._texts
        use(text)

    engine.prefixes.use = counted
    for _ in range(waves):
        given = []
        for _ in range(4):
            text = rng.choice(texts)
            prompt = [
                *text[: rng.choice([len(text), rng.randrange(20, len(text))])],
                *some(rng.randrange(1, 40), rng.random()),
            ]
            own = "ar" if rng.random() < 0.15 and engine.pipeline.drafter.runner is not None else None
            given.append((request(prompt, rng.randrange(2, 20), seed=rng.randrange(99)), rng.choice(SAMPLINGS), own))
        whole = [alone(engine, *one) for one in given]
        with chunks(rng.choice([7, 30, 256])), engine.batch(reuse=True) as batch:
            found, dropped = together(batch, list(given), rng.randrange(99))
        for row, written in found.items():
            assert written == (whole[row][: len(written)] if row in dropped else whole[row]), (row, given[row])
        texts += [[*one.prompt, *written] for (one, _, _), written in zip(given, whole, strict=True)]
    return hits


@pytest.mark.parametrize(("kind", "dtype"), [
    *((kind, torch.float32) for kind in METHODS),
    *((kind, torch.bfloat16) for kind in ("small", "windowed", "mtp", "states")),
], ids=str)  # fmt: skip
def test_texts_have_the_same_bits_with_and_without_the_cache(kind, dtype, often):
    assert check_waves(engine_of(kind, dtype), 5) > 3


@pytest.mark.parametrize("kind", ["small", "windowed", "eagle3", "other"])
def test_texts_are_the_same_in_pytorch(kind):
    assert check_waves(engine_of(kind, torch.float32, "torch"), 5) > 3


def test_only_what_is_new_is_read_and_counted():
    engine, first = engine_of("small"), some(100, 1)
    read = []
    network = engine.pipeline.target.network
    network.register_forward_pre_hook(lambda _, args, given: read.append(len(given["pending"][0])), with_kwargs=True)
    [one] = engine.generate([request(first)], Sampling(), reuse=True)
    second = [*first, *one.token_ids, 7, 8, 9]
    del read[:]
    [two] = engine.generate([request(second)], Sampling(), reuse=True)
    assert two.token_ids == engine.generate([request(second)], Sampling())[0].token_ids
    assert read[0] == len(second) - 1 - two.stats.cached_tokens < 8
    assert one.stats.cached_tokens == 0
    assert len(engine.prefixes) == 1, "a text that goes on takes the place of its beginning"
    engine.generate([request(first)], Sampling(), reuse=True)
    assert len(engine.prefixes) == 1, "the same text again"


def hybrid(kind):
    """A decoder whose target has running states, and how many tokens its target has read in each forward."""
    engine, read = engine_of(kind, eos=(END,)), []
    network = engine.pipeline.target.network
    network.register_forward_pre_hook(lambda _, args, given: read.append(len(given["pending"][0])), with_kwargs=True)
    return engine, read


@pytest.fixture
def often(monkeypatch):
    """Copies of running states at distances of short prompts."""
    monkeypatch.setattr(prompts, "DISTANCE", 64)
    return 64


@pytest.mark.parametrize("kind", ["mtp", "states"])
def test_a_text_with_running_states_reads_few_of_the_tokens_again_that_it_shares(kind, often):
    engine, read = hybrid(kind)
    system, chat = [*some(196, 1), END, 2, 3, 4], [*some(60, 2), END, *some(89, 3)]

    def write(prompt, known, most=AGAIN):
        """Write a text, of which ``known`` tokens may be known; returns its tokens."""
        wanted = alone(engine, request(prompt, 40), Sampling(), None)
        del read[:]
        [found] = engine.generate([request(prompt, 40)], Sampling(), reuse=True)
        assert found.token_ids == wanted
        again = known - found.stats.cached_tokens
        assert found.stats.cached_tokens == len(prompt) - 1 - sum(read[: read.index(0)]), "as many as were not read"
        assert 0 <= again <= (most if known else 0), (len(prompt), known, again)
        return [*prompt, *found.token_ids]

    first = write([*system, *chat], 0)
    write([*first, 5, 6, 7], len(first) - 1)  # it goes on
    write([*first, 9, 9, *some(40, 3)], len(first), 2)  # its last message was changed
    write([*system, *chat[:-4], *some(60, 3)], len(system) + len(chat) - 4)  # it leaves out what was thought
    write([*system, *some(80, 4)], len(system), often)  # no text has left here before
    for seed in range(5, 8):
        write([*system, *some(20 * seed, seed)], len(system))
    document = [*system, *some(300, 8)]
    write([*document, *some(60, 9)], len(system))
    write([*document, *some(60, 10)], len(document), often)
    for seed in range(11, 14):
        write([*document, *some(60, seed)], len(document))
    memory = engine.pipeline.target.memory_bytes
    engine.prefixes.clear()
    assert engine.pipeline.target.memory_bytes == 0 < memory


@pytest.mark.parametrize(("owner", "name", "value", "match"), [
    (RowMemory, "mark", lambda self, regular: None, "<= 32"), (prompts, "DISTANCE", 10**6, "<= 64"),
])  # fmt: skip
def test_control_without_marks_such_texts_read_more_again(owner, name, value, match, often, monkeypatch):
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(AssertionError, match=match):
        test_a_text_with_running_states_reads_few_of_the_tokens_again_that_it_shares("states", often)


def test_of_many_marks_those_stay_that_lie_evenly():
    engine, _ = hybrid("states")
    target, [row] = engine.pipeline.target, rows_of([some(1000, 1)])
    for length in range(20, 1000, 20):
        target.prefill(row, length)
        target.mark(row, regular=length != 300)
    memory = target.memory_of(row)
    ends = [0, *map(len, memory.marks)]
    assert len(memory.marks) == MARKS
    assert 300 in ends, "where a text has left another one"
    assert max(b - a for a, b in pairwise(ends)) <= 2 * 1000 / MARKS
    while target.thin_marks():
        assert not memory.marks or len(memory.marks[-1]) == 980
    assert not memory.marks


def test_a_text_goes_on_where_there_is_no_memory_for_its_marks(monkeypatch):
    engine, _ = hybrid("states")
    wanted = alone(engine, request(some(150, 2), 20), Sampling(), None)

    def full(self, regular):
        raise CacheError("the native engine: there is not enough memory")

    monkeypatch.setattr(RowMemory, "mark", full)
    assert engine.generate([request(some(150, 2), 20)], Sampling(), reuse=True)[0].token_ids == wanted


def test_marks_go_where_rows_need_the_memory():
    engine, _ = hybrid("states")
    target, found = engine.pipeline.target, []
    for memory in (1 << 30, 1):
        engine.prefixes.memory, engine.prefixes.least = memory, 0
        with engine.batch(reuse=True) as batch:
            for seed in range(3):
                batch.add(request(some(100, seed), 30), Sampling())
            batch.step()
            found.append((target.memory_bytes, [bool(one.marks) for one in target._rows.parts]))
    (marked, with_marks), (bare, without) = found
    assert (with_marks, without) == ([True] * 3, [False] * 3)
    assert bare < marked
    assert bare <= 3 * (128 * target.token_bytes + target.row_bytes)


def test_texts_of_another_salt_share_nothing():
    engine, prompt = engine_of("small"), some(50, 2)
    engine.generate([request(prompt, cache_salt="a")], Sampling(), reuse=True)
    for salt, cached in (("b", False), ("", False), ("a", True)):
        [found] = engine.generate([request(prompt, cache_salt=salt)], Sampling(), reuse=True)
        assert (found.stats.cached_tokens > 0) == cached
    both = engine.generate([request(prompt, cache_salt=salt) for salt in "cdc"], Sampling(), reuse=True)
    assert [found.stats.cached_tokens > 0 for found in both] == [False, False, True], "rows of one batch"


def test_two_thousand_beginnings_take_no_more_memory_than_is_given():
    runner, cache, most = engine_of("small").pipeline.drafter.runner, PrefixCache(), 0
    runner.set_rows(rows_of([[1] * 40]))
    runner.prefill(*rows_of([[1] * 40]), 39)
    page = runner.memory_bytes
    runner.clear()
    assert page > 0 == runner.memory_bytes
    cache.memory, cache.least = 40 * page, 0
    for i in range(2_000):
        [row] = rows_of([[2 + i % 80, 2 + i // 80, *some(31, i % 7)]])
        runner.prefill(row, len(row.tokens) - 1)
        runner.set_rows([row])
        cache.keep(row, "", runner, None)
        runner.clear()
        cache.trim([runner])
        assert runner.memory_bytes <= cache.memory
        most = max(most, len(cache))
    assert most == 40
    cache.clear()
    assert runner.memory_bytes == 0


def test_the_least_recently_used_text_goes_first_and_a_few_may_be_kept(monkeypatch):
    monkeypatch.setattr(prefixes, "MOST", 3)
    engine, texts = engine_of("small"), [some(40, seed) for seed in range(5)]
    for i in (0, 1, 2, 0, 3):
        engine.generate([request(texts[i])], Sampling(), reuse=True)
    kept = [text.tokens[:40] for text in engine.prefixes._texts]
    assert kept == [texts[2], texts[0], texts[3]]
    engine.prefixes.memory = 1
    engine.generate([request(texts[4])], Sampling(), reuse=True)
    assert [text.tokens[:40] for text in engine.prefixes._texts] == [texts[4]], "the last one stays at any size"


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_kept_texts_have_a_limit_of_their_own_and_the_last_one_stays(backend):
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": 1024, "head_dim": 32}
    models = (tiny("llama", seed, dtype=torch.float32, num_hidden_layers=3 - seed, **sizes) for seed in (1, 2))
    target, draft, _ = make_runners(*models, backend=backend)
    engine, texts = decoder(target, draft, *METHODS["small"]), [some(150, seed) for seed in range(9)]
    kept = engine.prefixes

    def used():
        return target.memory_bytes + draft.memory_bytes

    engine.generate([request(texts[0])], Sampling(), reuse=True)
    kept.kept = int(5.5 * used())
    with engine.batch(reuse=True) as batch:
        batch.add(request(some(700, 20), 300), Sampling())
        for text in texts[1:]:
            batch.add(request(text, 2), Sampling())
            while len(batch) > 1:
                batch.step()
        assert used() > kept.kept, "a long text is being written"
        assert 4 <= len(kept) <= 5, "and takes nothing of the limit"
        while len(batch):
            batch.step()
    assert used() <= kept.kept
    kept.kept = 1
    engine.generate([request(texts[0])], Sampling(), reuse=True)
    assert [text.tokens[:150] for text in kept._texts] == [texts[0]], "the last one stays at any size"


def test_a_beginning_in_use_outlives_its_text():
    engine, prompt = engine_of("small"), some(150, 4)
    target, draft = engine.pipeline.target, engine.pipeline.drafter.runner
    whole = alone(engine, request(second := [*prompt, 5, 6, 7], 30), Sampling(), None)
    engine.generate([request(prompt, 1)], Sampling(), reuse=True)
    with engine.batch(reuse=True) as batch:
        number = batch.add(request(second, 30), Sampling())
        stats, found = batch.stats(number), []
        for piece in batch.step():
            found += piece.tokens
        assert stats.cached_tokens > 140
        engine.prefixes.memory, engine.prefixes.least = 1, 0
        before = target.memory_bytes
        for piece in batch.step():
            found += piece.tokens
        assert len(engine.prefixes) == 0, "the running text needs the memory"
        assert target.memory_bytes < before
        found += rest_of(batch)[number]
    assert found == whole
    assert target.memory_bytes == draft.memory_bytes == 0


def test_what_is_left_after_an_error_is_not_kept(monkeypatch):
    engine = engine_of("small")

    def fails(*_):
        raise RuntimeError("of the test")

    with engine.batch(reuse=True) as batch, monkeypatch.context() as patch:
        batch.add(request(some(50, 1)), Sampling())
        batch.step()
        patch.setattr(type(engine.pipeline.target), "extend", fails)
        with pytest.raises(RuntimeError, match="of the test"):
            batch.step()
    assert len(engine.prefixes) == 0
    stream = engine.stream([request(some(50, 1))], Sampling(), reuse=True)
    next(stream)
    stream.close()
    assert len(engine.prefixes) == 1, "a stream that is closed early"


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_calls_of_a_pair_share_beginnings_where_texts_stay_the_same(folders, backend):
    pair = draftwood.load(*folders, options=LoadOptions(dtype="float32", device="cpu", backend=backend, profile="none"))
    grammar = Grammar.regex("[a-z ]{5,30}")
    prompt = "the fox ran over the hill and the dog ran after the fox " * 3
    for given in ({"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 1.0, "grammar": grammar}):
        first = pair.generate(prompt, seed=1, max_new_tokens=20, **given)
        second = pair.generate(f"{prompt} again", seed=2, max_new_tokens=20, **given)
        assert (second.stats.cached_tokens > 40) == (backend == "native")
        again = list(pair.stream(f"{prompt} again", seed=2, max_new_tokens=20, **given))
        assert [token for piece in again for token in piece.tokens] == second.token_ids
        pair.prefixes.clear()
        assert pair.generate(f"{prompt} again", seed=2, max_new_tokens=20, **given).text == second.text
        assert pair.generate(prompt, seed=1, max_new_tokens=20, **given).text == first.text
        pair.prefixes.clear()


# ---- negative controls ----


@pytest.mark.parametrize(
    ("kind", "backend"), [("small", "native"), ("small", "torch"), ("hidden", "native"), ("eagle3", "native")]
)
def test_control_a_beginning_that_is_too_long_is_seen(kind, backend, monkeypatch):
    inner = prefixes.common_length
    monkeypatch.setattr(prefixes, "common_length", lambda one, other: min(inner(one, other) + 3, len(one), len(other)))
    with pytest.raises(AssertionError):
        check_waves(engine_of(kind, torch.float32, backend), 5)


def test_control_the_memory_of_another_text_is_seen(monkeypatch):
    kept = MemoryTable.keep
    monkeypatch.setattr(MemoryTable, "keep", lambda self, row, text: kept(self, self.rows[0], text))
    with pytest.raises((AssertionError, ValueError, draftwood.CacheError)):
        check_waves(engine_of("small"), 5)
