"""Tests of encoder-decoder models alone: controls of their source, ``generate``, and prompt lookup in the source.
``test_rung3_tape.py`` and ``test_rung5_metamorphic.py`` test them too."""

import torch

from draftwood.core import draft_kind
from draftwood.core.limits import Limits
from draftwood.core.scores import Scores
from draftwood.engine.requests import Request
from draftwood.exactness.tape import total_variation
from draftwood.runners.protocols import ReadsAtOnce
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder
from tests.ladder.pairs import START, VOCAB, pair, requests_of, self_drafting
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


def test_prompt_lookup_finds_what_the_source_holds():
    """A target that copies its source, as translation copies names and numbers."""

    class Copies(ReadsAtOnce):
        kind, pads, max_length, forward_seconds = draft_kind.SEQ2SEQ, True, None, 0.0
        vocab_size, device = VOCAB, torch.device("cpu")

        def clear(self):
            self.rows = []

        def set_rows(self, rows):
            self.rows = rows

        def extend(self, tokens, depths, ancestors):
            scores = torch.full((*tokens.shape, VOCAB), -30.0)
            for number, row in enumerate(self.rows):
                for node, depth in enumerate(depths[number].tolist()):
                    scores[number, node, row.source[(len(row.tokens) - 1 + depth) % len(row.source)]] = 0.0
            return Scores(scores)

        def commit(self, nodes, hidden=None):
            pass

    source = [5, 6, 7, 8, 9, 10, 11]
    request = Request(prompt=(START,), source=source, limits=Limits(max_new_tokens=7))
    result = decoder(Copies(), None, "ngram", "6", greedy=True).generate([request], Sampling(temperature=0.0))[0]
    assert result.token_ids == source
    assert result.stats.histogram[5] == 1  # after the first token, all others at once
