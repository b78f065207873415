"""A burst is chosen and scored as by the model itself, round after round, wherever it begins."""

from __future__ import annotations

import logging
import random
import re

import pytest
import torch

from benchmarks.measure import Meters, measure, our_maker
from benchmarks.settings import Setting
from draftwood.api import Pair
from draftwood.core.limits import Limits
from draftwood.core.settings import Method, Sampling
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.runners.protocols import BurstRunner, ModelRunner
from draftwood.runners.torch_runner import TorchRunner
from tests.helpers import begin, decoder
from tests.runners.zoo import plain_scores, tiny, windowed

pytest.importorskip("openvino")
from draftwood.runners.factory import make_runners
from draftwood.runners.openvino import burst_runner
from draftwood.runners.openvino.burst import BURST, READ, BurstMemory, BurstNetwork, slots_for
from draftwood.runners.openvino.burst_runner import OpenVinoBurstRunner, with_bursts
from draftwood.runners.openvino.graph import core
from draftwood.runners.openvino.runner import OpenVinoRunner

CLOSE = 1e-4  # float32, scores of up to 10
WRONG = 1e-2  # a negative control must be at least this far off
HAS_BF16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def small(kind: str, seed: int = 1, **settings):
    return tiny(kind, seed=seed, dtype=torch.float32, **settings)


def bursts_of(model) -> OpenVinoBurstRunner:
    found = with_bursts(OpenVinoRunner(model, drafts=True))
    assert isinstance(found, OpenVinoBurstRunner)
    assert isinstance(found, BurstRunner)
    assert isinstance(found, ModelRunner)
    return found


class Rounds:
    """Rounds of bursts below random nodes, of which a random path is kept, beside the text that should come of it."""

    def __init__(self, model, length: int = 5) -> None:
        self.model, self.runner, self.rng = model, bursts_of(model), random.Random(3)
        self.text = self._tokens(length)  # without the root
        begin(self.runner, [self.text])

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(self.runner.vocab_size) for _ in range(count)]

    def round(self, calls: int = 3, *, pending: int = 1, scale: float = 1.0) -> float:
        """The largest difference of any score to the model's; the text grows by kept nodes and ``pending`` other tokens."""
        tokens, paths, worst = [], [], 0.0
        for call in range(calls):
            path = [] if not call else paths[self.rng.randrange(len(tokens))]
            noise = torch.randn(BURST, self.runner.vocab_size)
            token = self._tokens(1)[0]
            chosen, scores = self.runner.draft_burst(token, path, noise, scale)
            for step, here in enumerate([token, *chosen[:-1]]):
                path = [*path, len(tokens)]
                tokens.append(here)
                paths.append(path)
                wanted = plain_scores(self.model, self.text + [tokens[node] for node in path])
                worst = max(worst, float((scores[step] - wanted).abs().max()))
                assert chosen[step] == int((scores[step] * scale + noise[step]).argmax())
        kept, rest = self.rng.choice([[], *paths]) if calls else [], self._tokens(pending)
        self.runner.commit([kept], [rest])
        self.text += [tokens[node] for node in kept] + rest
        return worst


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "gemma"])
def test_bursts_are_scored_and_chosen_as_the_model_would(kind):
    rounds = Rounds(small(kind))
    found = [rounds.round(pending=pending, scale=scale) for pending, scale in ((1, 1.0), (0, 0.5), (3, 1.5), (5, 1.0))]
    rounds.round(calls=0, pending=2)  # nothing is drafted
    found.append(rounds.round(pending=2 * READ + 1))
    found.append(rounds.round())
    assert max(found) < CLOSE


def test_a_text_that_is_read_in_one_forward_and_outgrows_its_memory():
    rounds = Rounds(small("llama"), length=100)
    assert max(rounds.round(pending=2) for _ in range(20)) < CLOSE
    assert rounds.runner._network.memory.slots[0].shape[2] > slots_for(100)


def test_nothing_stands_before_the_root():
    rounds = Rounds(small("llama"), length=0)
    assert max(rounds.round(), rounds.round()) < CLOSE


def test_memories_have_few_sizes():
    sizes = [slots_for(length) for length in range(1, 3000)]
    assert all(size >= length for length, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 12


def test_control_nodes_that_are_not_hidden(monkeypatch):
    inner = BurstNetwork.forward
    monkeypatch.setattr(
        BurstNetwork, "forward", lambda self, ids, first, _hidden, noise, scale: inner(self, ids, first, (), noise, scale)
    )
    monkeypatch.setattr(burst_runner, "_check", lambda _: None)
    rounds = Rounds(small("llama"))
    assert max(rounds.round() for _ in range(3)) > WRONG


def test_control_a_path_that_is_not_moved(monkeypatch):
    def keep(self, slots, end):
        self.used = end + len(slots)

    monkeypatch.setattr(BurstMemory, "keep", keep)
    rounds = Rounds(small("llama"))
    assert max(rounds.round() for _ in range(6)) > WRONG


def test_a_text_goes_over_to_the_runner_with_the_first_extend():
    model = small("llama")
    rounds = Rounds(model)
    assert rounds.round() < CLOSE
    runner, text = rounds.runner, rounds.text
    found = runner.extend(torch.tensor([[7]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)).logits
    assert float((found[0, 0] - plain_scores(model, [*text, 7])).abs().max()) < CLOSE
    runner.commit([[0]], [[4]])
    assert runner.burst == 0
    found = runner.extend(torch.tensor([[2]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)).logits
    assert float((found[0, 0] - plain_scores(model, [*text, 7, 4, 2])).abs().max()) < CLOSE
    begin(runner, [text])
    assert runner.burst == BURST
    assert runner.forward_seconds > 0


def test_bursts_are_for_one_text_that_is_not_too_long(monkeypatch):
    runner = bursts_of(small("llama"))
    begin(runner, [[1, 2], [3]])
    assert runner.burst == 0
    runner.extend(torch.tensor([[7], [8]]), torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1, 1, dtype=torch.bool))
    runner.commit([[0], [0]], [[1], [2]])
    runner.drop([0])
    assert runner.burst == 0
    begin(runner, [[1] * 20])
    assert runner.burst == BURST
    monkeypatch.setattr(burst_runner, "_MOST_BYTES", 19 * runner._network.memory.slot_bytes)
    assert runner.burst == 0


def test_which_runners_get_no_bursts(monkeypatch, caplog):
    model = small("llama")
    short, slides = small("llama", max_position_embeddings=8), windowed("mistral")
    for runner in (TorchRunner(model), *(OpenVinoRunner(one, drafts=True) for one in (short, slides))):
        assert with_bursts(runner) is runner
    plain = OpenVinoRunner(model, drafts=True)
    with monkeypatch.context() as patch:
        patch.setattr(burst_runner, "_MOST_WEIGHTS", 10)
        assert with_bursts(plain) is plain
    inner = BurstNetwork.forward

    def forward(self, *args):
        chosen, scores = inner(self, *args)
        return chosen, scores + 1.0

    monkeypatch.setattr(BurstNetwork, "forward", forward)
    with caplog.at_level(logging.INFO, "draftwood"):
        assert with_bursts(plain) is plain
    assert "bursts give other scores" in caplog.text


def pair(kind: str, **settings):
    """A target, and a draft that is nearly the target."""
    target, draft = small(kind, **settings), small(kind, **settings)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(0.02 * weight.std().nan_to_num(0.0) * torch.randn(weight.shape))
    return target, draft


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.usefixtures("always_drafts")
def test_texts_are_those_of_plain_decoding(kind, temperature):
    target, draft, _ = make_runners(*pair(kind), backend="openvino")
    assert isinstance(draft, OpenVinoBurstRunner)
    sampling, greedy = Sampling(temperature=temperature), temperature == 0
    engines = [decoder(target, None, "ar", greedy=greedy), decoder(target, draft, "adaptive", greedy=greedy)]
    for seed, prompt in enumerate(([1, 2, 3], [5], list(range(20)))):
        request = Request(prompt=prompt, seed=seed, limits=Limits(max_new_tokens=60))
        plain, [drafted] = (engine.generate([request], sampling) for engine in engines)
        assert drafted.token_ids == plain[0].token_ids
    assert engines[1].stats[0].block_efficiency > 1.3


def test_distributions_that_look_back_and_batches_are_drafted_for_by_levels():
    target, draft, _ = make_runners(*pair("llama"), backend="openvino")
    engine, plain = decoder(target, draft, "adaptive"), decoder(target, None, "ar")
    requests = [Request(prompt=[1, 2, 3], seed=1, limits=Limits(max_new_tokens=20)) for _ in range(2)]
    for sampling, rows in ((Sampling(repetition_penalty=1.3), 1), (Sampling(top_k=5), 1), (Sampling(), 2)):
        found, wanted = (one.generate(requests[:rows], sampling) for one in (engine, plain))
        assert [one.token_ids for one in found] == [one.token_ids for one in wanted]


@pytest.mark.parametrize(("mine", "theirs"), [(40, 50), (50, 40)])
def test_vocabularies_of_other_sizes(mine, theirs):
    """A draft that knows more tokens than its target proposes none of those; one that knows fewer proposes its own."""
    target = OpenVinoRunner(small("llama", vocab_size=theirs))
    draft = bursts_of(small("llama", vocab_size=mine))
    request = Request(prompt=[1, 2, 3], seed=1, limits=Limits(max_new_tokens=30))
    for temperature in (0.0, 1.0):
        sampling, greedy = Sampling(temperature=temperature), temperature == 0
        drafter, verifier = build(Method(method="adaptive"), draft, greedy=greedy)
        [found] = Decoder(target, drafter, verifier).generate([request], sampling)
        [wanted] = decoder(target, None, "ar", greedy=greedy).generate([request], sampling)
        assert found.token_ids == wanted.token_ids


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
def test_bfloat16():
    model = small("llama").bfloat16()
    runner = bursts_of(model)
    begin(runner, [[3, 1, 4]])
    chosen, scores = runner.draft_burst(1, [], None, 1.0)
    wanted = plain_scores(small("llama"), [3, 1, 4, 1])
    assert 1e-4 < float((scores[0] - wanted).abs().max() / wanted.abs().max()) < 0.1
    assert len(chosen) == BURST


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
def test_numbers_of_tokens_are_exact_in_bfloat16():
    """Numbers from 256 on would be rounded."""
    runner = bursts_of(small("llama", vocab_size=3000).bfloat16())
    begin(runner, [list(range(20))])
    noise = torch.zeros(BURST, 3000)
    for step, token in enumerate((2999, 1025, 257, 511)):
        noise[step, token] = 100.0
    assert runner.draft_burst(1, [], noise, 1.0)[0] == [2999, 1025, 257, 511]


@pytest.mark.usefixtures("always_drafts")
def test_a_bench_sees_the_forwards_of_bursts():
    models, meters = pair("llama"), Meters()
    both = Pair(*models, None, runners=make_runners(*models, backend="openvino"))
    make = our_maker(Setting(method="adaptive"), both, 0.0, 30)
    with meters.on(both):
        sample = measure(make, [[1, 2, 3]], [0], meters, torch.device("cpu"))
    assert sample.draft_forwards > 3
    assert sample.draft_seconds > 0


def test_a_burst_that_cannot_be_run_or_chooses_badly_is_left_out(monkeypatch, caplog):
    plain, inner = OpenVinoRunner(small("llama"), drafts=True), BurstNetwork.forward

    def fails(self, *args):
        raise RuntimeError("Exception from\n  somewhere")

    def chooses(self, *args):
        _chosen, scores = inner(self, *args)
        return [int(row.argmin()) for row in scores], scores

    for forward, message in ((fails, "Exception from somewhere"), (chooses, "give other scores|do not choose the best")):
        caplog.clear()
        with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "draftwood"):
            patch.setattr(BurstNetwork, "forward", forward)
            assert with_bursts(plain) is plain
        assert re.search(message, caplog.text)


def test_weights_of_eight_bits():
    """The burst is compared with the rounded model, not with the model as it came."""
    pytest.importorskip("nncf")
    model = small("llama", hidden_size=64)
    runner = with_bursts(OpenVinoRunner(model, drafts=True, weights="int8"))
    assert isinstance(runner, OpenVinoBurstRunner)
    begin(runner, [[3, 1, 4, 1]])
    _, scores = runner.draft_burst(5, [], None, 1.0)
    exact = plain_scores(model, [3, 1, 4, 1, 5])
    assert 1e-3 < float((scores[0] - exact).abs().max() / exact.abs().max()) < 0.2
