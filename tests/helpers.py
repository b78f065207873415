"""Tiny models and decoders for tests."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from draftwood.core.settings import Method
from draftwood.draft.adaptive.drafter import BestFirstDrafter
from draftwood.draft.adaptive.expand import Expander
from draftwood.draft.adaptive.growers import LevelGrower, TreeShape
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.runners.protocols import Runner
from draftwood.runners.torch_runner import TorchRunner


def tiny_gpt(
    vocab: int,
    seed: int,
    *,
    layers: int = 2,
    hidden: int = 16,
    context: int = 64,
    dtype: torch.dtype = torch.float64,
    spread: float = 0.5,
) -> GPT2LMHeadModel:
    """A random transformer whose distributions differ from node to node; GPT-2, because it computes in float64
    throughout."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab, n_embd=hidden, n_layer=layers, n_head=2, n_positions=context, initializer_range=spread,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(dtype).eval()


def tiny_runner(vocab: int, seed: int, **settings) -> TorchRunner:
    return TorchRunner(tiny_gpt(vocab, seed, **settings))


def decoder(
    target: Runner, draft: Runner | None, method: str, shape: str | None = None, verifier: str = "auto", *,
    greedy: bool = False, nodes: int | None = None, eos=(),
) -> Decoder:  # fmt: skip
    drafter, chosen = build(Method(method=method, shape=shape, verifier=verifier, nodes=nodes), draft, greedy=greedy)
    return Decoder(target, drafter, chosen, eos=eos)


def best_first(draft: Runner, expander: Expander, nodes: int, width: int, depth: int, **more) -> BestFirstDrafter:
    """A best-first tree that is grown level by level."""
    return BestFirstDrafter(LevelGrower(draft, expander, TreeShape(nodes, width, depth)), **more)


class Generous:
    """A :class:`draftwood.draft.adaptive.budget.Budget` that allows everything, for tests to change."""

    learns = True

    def begin_round(self) -> bool:
        return False

    def shows_guess(self, chains) -> bool:
        return any(chains)

    def another_level(self, depth, above, nodes) -> bool:
        return True

    def min_frontier_value(self, depth) -> float:
        return 0.0

    def min_node_value(self) -> float:
        return 0.0

    def end_level(self, depth, above, gain, nodes, seconds) -> None:
        pass

    def tree_size(self, values) -> int:
        return len(values)

    def end_round(self, nodes, expected, tokens, drafting, seconds) -> None:
        pass


def begin(part, texts, sources=()):
    """A new batch of texts for a runner or drafter."""
    part.clear()
    part.add(texts, sources)


def ancestors_of(parents, depth):
    """The ancestor matrix of trees no deeper than ``depth``, by repeated squaring."""
    size = parents.shape[1]
    reach = torch.eye(size, device=parents.device).expand(parents.shape[0], -1, -1).contiguous()
    reach.scatter_(2, parents.unsqueeze(-1), 1.0)
    for _ in range(max(0, depth - 1).bit_length()):
        reach = (reach @ reach).clamp_(max=1.0)
    return reach > 0


class Bursts:
    """A :class:`draftwood.runners.protocols.BurstRunner` that makes a call of another runner for every token."""

    reads_source = False
    burst = 3

    def __init__(self, runner: Runner) -> None:
        self.runner, self.calls, self.seen = runner, 0, 0
        self.vocab_size, self.max_length, self.device = runner.vocab_size, runner.max_length, runner.device

    @property
    def forward_seconds(self):
        return self.runner.forward_seconds

    def clear(self):
        self.runner.clear()

    def add(self, texts, sources=()):
        assert len(texts) == 1
        self.runner.add(texts, sources)

    def drop(self, rows):
        self.runner.drop(rows)

    def extend(self, tokens, depths, ancestors):
        return self.runner.extend(tokens, depths, ancestors)

    def draft_burst(self, token, path, noise, scale):
        path, chosen, scores = list(path), [], []
        self.calls += 1
        for step in range(self.burst):
            sees = torch.zeros(1, 1, self.seen + 1, dtype=torch.bool)
            sees[0, 0, [*path, self.seen]] = True
            scores.append(self.runner.extend(torch.tensor([[token]]), torch.tensor([[len(path)]]), sees).logits[0, 0])
            path.append(self.seen)
            self.seen += 1
            token = int((scores[-1] * scale + (0.0 if noise is None else noise[step])).argmax())
            chosen.append(token)
        return chosen, torch.stack(scores)

    def commit(self, nodes, pending, hidden=None):
        self.seen = 0
        self.runner.commit(nodes, pending)
