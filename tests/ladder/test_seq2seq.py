"""Controls of the source of encoder-decoder models, which ``test_rung3_tape.py`` and ``test_rung5_metamorphic.py`` test."""

from draftwood.exactness.tape import total_variation
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder
from tests.ladder.pairs import START, pair, requests_of, self_drafting
from tests.ladder.test_rung3_tape import SOURCE, WRONG, at_temperature, engine_distribution, reference_distribution


def test_control_another_model_or_another_source_is_another_distribution():
    target, draft = pair("marian", 4)
    expected = reference_distribution(target.model, 3, at_temperature(1.0), None, (START,), SOURCE)
    for runner, source in ((draft, SOURCE), (target, (1, 0, 3))):
        found = engine_distribution(decoder(runner, None, "ar"), 3, Sampling(), prompt=(START,), source=source)
        assert total_variation(found, expected) > WRONG


def test_control_a_drafter_that_reads_another_source_is_seen():
    target, draft = self_drafting("marian")
    encoded = draft._encoded
    draft._encoded = lambda rows: encoded([Row(tokens=row.tokens, source=[7, 3]) for row in rows])
    results = decoder(target, draft, "chain", "3").generate(requests_of("marian"), Sampling())
    assert any(r.stats.accepted[0] for r in results)
