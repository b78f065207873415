"""Drafts from earlier texts change no text, only how many rounds it takes, and not for texts of other owners."""

import pytest
import torch

from draftwood.core.history import History
from draftwood.core.limits import Limits
from draftwood.draft.ngram_index import NgramIndex
from draftwood.engine.requests import Request
from draftwood.runners.factory import make_runners
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder
from tests.runners.zoo import NATIVE, tiny

VOCAB = 400
"""So many tokens that a sampled text seldom repeats itself."""


def engine_of(method, shape=None, verifier="coupled"):
    models = (tiny("llama", seed, dtype=torch.float32, vocab_size=VOCAB, **NATIVE["llama"]) for seed in (1, 2))
    target, draft, _ = make_runners(*models, backend="native")
    made = decoder(target, draft if method == "adaptive" else None, method, shape, verifier)
    made.prefixes.history = History(1 << 12)
    return made


def written(engine, temperature=1.0, *, reuse=True, seed=3, **more):
    """The tokens of two texts that are written together, and the rounds of each."""
    limits = Limits(max_new_tokens=40)
    requests = [Request(prompt=[i, *range(40, 60)], seed=seed + i, limits=limits, **more) for i in range(2)]
    found = engine.generate(requests, Sampling(temperature=temperature), reuse=reuse)
    return [one.token_ids for one in found], [one.stats.rounds for one in found]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("method", "shape"), [("ngram", "6"), ("lookup", None), ("adaptive", None)])
def test_a_text_that_comes_again_takes_fewer_rounds_and_is_the_same(method, shape, temperature):
    engine, [plain, _] = engine_of(method, shape), written(engine_of("ar"), temperature)
    for _ in range(3):
        texts, _ = written(engine, temperature)
        assert texts == plain
        other, rounds = written(engine, temperature, seed=9)
        assert other == written(engine_of("ar"), temperature, seed=9)[0]
    if method == "ngram":  # the others draft as far as it pays here and now
        assert max(rounds) < 12
        assert min(written(engine_of(method, shape), temperature)[1]) > 12 or temperature == 0.0, "control: the first time"


def test_only_verifiers_under_which_a_draft_cannot_change_a_text_take_drafts_from_others():
    """Else the third text of a seed would follow what its own draws have written."""
    for verifier in ("recursive", "traversal"):
        engine = engine_of("ngram", "6", verifier)
        first = written(engine)
        assert first == written(engine) == written(engine)
        assert engine.prefixes.history is not None
        assert engine.prefixes.history.find([0, *range(40, 60)], "") == (0, 0)


def test_a_decoder_measures_the_same_again_unless_it_reuses():
    engine = engine_of("ngram", "6")
    first = written(engine, reuse=False)
    assert first == written(engine, reuse=False) == written(engine)
    assert written(engine)[1] < first[1], "control"


def test_rounds_tell_nobody_what_another_has_written():
    engine = engine_of("ngram", "6")
    alone = written(engine, owner="a", cache_salt="b")
    for more in ({"owner": "b"}, {"cache_salt": "c"}, {"owner": ""}):
        assert written(engine, **more) == alone
        assert written(engine, **more)[1] < alone[1], "control: their own"


def test_a_source_is_part_of_an_earlier_text():
    """A decoder's text begins alike whatever its encoder reads."""
    history = History()
    for source in ([5, 6, 7, 8, 9], [5, 6, 7, 8, 4]):
        history.add([*source, 0, 10 * source[-1], 11], "")
    assert NgramIndex([5, 6, 7, 8, 9], history=history).propose([0], 4) == [90, 11]
    assert NgramIndex([5, 6, 7, 8, 4], history=history).propose([0], 4) == [40, 11]
