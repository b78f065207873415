"""The product's own enumeration: it calls sound engines exact and sees broken ones."""

import pytest
import torch

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.exactness import tape
from draftwood.exactness.enumeration import NOISES, enumerated
from draftwood.sampling.settings import Sampling
from tests.helpers import Numbers, tiny_gpt
from tests.ladder.test_rung3_tape import EXACT, WRONG, other_temperature, tampered

VOCAB = 4
PROMPTS = ["1 0 1", "3"]


def pair_of(vocab=VOCAB, dtype=torch.float64):
    target, draft = (tiny_gpt(vocab, seed, layers=layers, dtype=dtype) for seed, layers in ((1, 2), (2, 1)))
    return Pair(target, draft, Numbers())


def found(pair, decoder, sampling=None, tokens=2):
    return enumerated(pair, decoder, sampling or Sampling(), PROMPTS, tokens=tokens, seed=0)


@pytest.mark.parametrize("method", [
    Method(method="ar", verifier="recursive"),
    Method(method="chain", shape="2"),
    Method(method="rsd-s", shape="2x2", verifier="traversal"),
    Method(method="dynamic", nodes=3, shape="2x2"),
    Method(method="ngram", shape="2", verifier="recursive"),
    Method(method="shared-noise"),
    Method(method="adaptive"),
    Method(method="lookup"),
    Method(method="rsd-c", shape="2-1", verifier="coupled"),
])  # fmt: skip
def test_sound_methods_are_exact(method):
    pair = pair_of()
    report = found(pair, pair.decoder(method, temperature=1.0), Sampling(temperature=0.8, top_k=3))
    assert report.exact
    assert report.total_variation < EXACT
    assert report.prompts == 2
    assert report.texts > 2
    assert report.branches >= report.texts
    assert f"{report.branches:,} branches" in report.summary()
    coupled = pair.decoder(method, temperature=1.0).pipeline.verifier.name == "coupled"
    assert report.noises == (NOISES if coupled else None)
    assert ("own picks with the same" in report.summary()) == coupled


def test_control_a_draft_that_records_another_distribution_is_seen():
    pair = pair_of()
    honest = pair.decoder(Method(method="rsd-c", shape="2", verifier="recursive"), temperature=1.0)
    assert found(pair, honest).exact
    report = found(pair, tampered(honest, other_temperature))
    assert not report.exact
    assert report.total_variation > WRONG
    assert report.summary().startswith("NOT exact. The joint distribution of the first 2 tokens after 2 prompts")


def test_control_another_target_is_seen_under_the_coupled_verifier():
    pair, other = pair_of(), Pair(tiny_gpt(VOCAB, 5), tiny_gpt(VOCAB, 2, layers=1), Numbers())
    assert not found(pair, other.decoder(Method(method="shared-noise"), temperature=1.0)).exact
    assert found(other, other.decoder(Method(method="shared-noise"), temperature=1.0)).exact


def test_float32_is_allowed_its_rounding_and_no_more():
    pair = pair_of(dtype=torch.float32)
    report = found(pair, pair.decoder(Method(method="chain", shape="2"), temperature=1.0))
    assert report.exact
    assert report.allowed < 1e-3


@pytest.mark.parametrize(("vocab", "sampling", "dtype", "method", "said"), [
    (40, Sampling(), torch.float64, "chain", r"40 tokens are possible .* --top-k 16 or less, .*, so that check samples"),
    (40, Sampling(top_k=20), torch.float64, "chain", "20 tokens are possible"),
    (40, Sampling(), torch.float64, "ngram", "40 tokens are possible"),
    (VOCAB, Sampling(temperature=0.0), torch.float64, "chain", "temperature 0 leaves nothing to enumerate"),
    (VOCAB, Sampling(), torch.bfloat16, "chain", "bfloat16 are too coarse .* so that check samples"),
])  # fmt: skip
def test_what_cannot_be_enumerated_is_refused_by_name(vocab, sampling, dtype, method, said):
    pair = pair_of(vocab, dtype)
    verifier = "recursive" if sampling.temperature else "auto"
    decoder = pair.decoder(Method(method=method, verifier=verifier), temperature=sampling.temperature)
    with pytest.raises(ConfigError, match=said):
        found(pair, decoder, sampling)


def test_a_large_vocabulary_does_not_matter_where_only_the_noise_is_tried():
    pair = pair_of(40)
    assert found(pair, pair.decoder(Method(method="shared-noise", nodes=4), temperature=1.0)).exact


def test_too_many_branches_are_refused():
    def run(tapes):
        return [tuple(tape.fork([0.5, 0.5]) for _ in range(4)) for tape in tapes]

    assert tape.enumerate_distribution(run, most=16)[1] == 16
    with pytest.raises(ConfigError, match="more than 15 branches"):
        tape.enumerate_distribution(run, batch=4, most=15)


def test_choices_that_hang_on_their_neighbours_are_seen():
    """A row that makes more choices in a batch than alone reads its script out of step."""

    def run(tapes):
        return [(tape.fork([0.25, 0.75]), *([tape.fork([0.9, 0.1])] if len(tapes) % 2 else [])) for tape in tapes]

    with pytest.raises(RuntimeError, match="not to one"):
        tape.enumerate_distribution(run, batch=2)


def test_shared_noise_needs_to_know_where_the_text_ends():
    with pytest.raises(ValueError, match="where its text ends"):
        tape.Tape([]).shared(3, 3, 2)
