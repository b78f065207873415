"""Hidden states of a tree's nodes, and of what is read before them, are those of plain forwards of the texts."""

from itertools import product

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from tests.differences import difference
from tests.helpers import at_roots, begin, decoder, tiny_gpt
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import cached, runner_of, tiny

LAYERS = (0, 2, 1)


def plain_hidden(model, text, layers=LAYERS):
    """Of every token of a text, by the model's own forward."""
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
        return torch.cat([states[layer] for layer in layers], dim=-1)[0]


class HiddenWalk(Walk):
    """Compares hidden states in place of logits, of the nodes and of what is read before them."""

    worst = 0.0

    def _logits(self, tokens, depths, ancestors):
        begins = not depths.min()  # with the root; the second call of a round reads nothing else
        waiting = [begins * (len(text) - held) for text, held in zip(self.texts, cached(self.runner), strict=True)]
        scores = self.runner.extend(tokens, depths, ancestors)
        assert list(map(len, scores.read)) == waiting
        for text, read, count in zip(self.texts, scores.read, waiting, strict=True):
            if count:
                self.worst = max(self.worst, difference(read, plain_hidden(self.runner.model, text)[-count:]))
        return scores.hidden

    def _score(self, trees, nodes, check):
        return max(super()._score(trees, nodes, check), self.worst)


def hidden_walk(kind, lengths, engine="torch", **settings):
    model = tiny(kind, dtype=torch.float64 if engine == "torch" else torch.float32, **settings)
    return HiddenWalk(runner_of(engine, model, hidden_layers=LAYERS), lambda text: plain_hidden(model, text)[-1], lengths)


@pytest.mark.parametrize(("kind", "engine"), [*product(("llama", "gpt2", "opt"), ("torch",)), ("llama", "native")])
def test_they_are_those_of_each_path_after_ragged_commits_and_as_rows_come_and_go(kind, engine):
    assert hidden_walk(kind, [5, 1, 9], engine).come_and_go() < (1e-9 if engine == "torch" else 1e-4)


def test_they_are_collected_over_the_chunks_of_a_long_prompt():
    rows = hidden_walk("llama", [3, 1100], max_position_embeddings=1200)
    assert rows.round(nodes=3) < 1e-9


def test_there_are_none_unless_they_are_wanted():
    runner = TorchRunner(tiny("llama"))
    begin(runner, [[1, 2]])
    scores = at_roots(runner, [3])
    assert (scores.hidden, scores.read) == (None, None)


def test_layers_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match=r"hidden_layers \(1, 7\), but the model has \d layers: give 0 to"):
        TorchRunner(tiny("llama"), hidden_layers=(1, 7))


@pytest.mark.parametrize("method", ["ar", "rsd-s"])
def test_rounds_bring_those_of_the_whole_text_but_its_last_token(method):
    model = tiny_gpt(7, 1)
    engine = decoder(
        TorchRunner(model, hidden_layers=LAYERS),
        None if method == "ar" else TorchRunner(tiny_gpt(7, 2, layers=1), drafts=True), method, None,
    )  # fmt: skip
    requests = [Request(prompt=p, seed=i, limits=Limits(max_new_tokens=12)) for i, p in enumerate(([1], [3, 2, 5, 4]))]
    texts = [list(request.prompt) for request in requests]
    parts = [[], []]
    for pieces in engine.stream(requests, Sampling()):
        for piece in pieces:
            assert piece.round.hidden is not None
            parts[piece.row].append(piece.round.hidden[piece.round_row])
            texts[piece.row] += piece.tokens
    for text, part in zip(texts, parts, strict=True):
        found, wanted = torch.cat(part), plain_hidden(model, text)
        assert len(found) >= len(text) - 1  # a limit may cut the last round's tokens
        assert torch.allclose(found[: len(text) - 1], wanted[:-1], atol=1e-9)
    assert min(map(len, parts)) > 1


def test_control_hidden_states_of_the_wrong_layers():
    rows = hidden_walk("llama", [5, 2])
    rows.runner.hidden_layers = (0, 1, 2)
    assert rows.round() > 1e-2


def test_control_padding_that_is_taken_for_text():
    rows = hidden_walk("llama", [5, 2])
    inner = rows.runner._rows.scores

    def scores(tokens, depths, ancestors, forward):
        outputs = []
        out = inner(tokens, depths, ancestors, lambda batch: outputs.append(forward(batch)) or outputs[-1])
        hidden = torch.cat([output.hidden for output in outputs], dim=1)
        return type(out)(out.logits, out.hidden, [row[: len(part)] for row, part in zip(hidden, out.read, strict=True)])

    rows.runner._rows.scores = scores
    assert rows.round() > 1e-2
