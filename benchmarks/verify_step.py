"""What verifying costs at real vocabularies: from the target's scores of a whole tree to the next token, without any model.

The scores are made up: they fall with the logarithm of the rank (Zipf), in an order that is each node's own; the target's
are the draft's with normal noise. The baseline is recursive rejection in PyTorch, as in the paper: the
warpers of ``transformers`` on every node, and for every rejected child the residual over the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from benchmarks.config import VerifyConfig
from benchmarks.record import surroundings
from benchmarks.report import table
from draftwood.core.methods import MethodName
from draftwood.core.scores import Scores
from draftwood.core.settings import Method
from draftwood.core.tree import DraftTree
from draftwood.core.verifiers import VerifierName
from draftwood.engine.methods import build
from draftwood.hardware.machine import load_average
from draftwood.runners.protocols import ReadsAtOnce
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.rows import Row
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from draftwood.verify.sparse import verify

SAMPLINGS: Final = {"all tokens": Sampling(), "top-k 50": Sampling(top_k=50), "top-p 0.95": Sampling(top_p=0.95)}
OURS: Final = {"recursive": "rsd-s", "traversal": "rsd-s", "coupled": "shared-noise"}
PLAIN: Final = "plain PyTorch"
_NOISE: Final = 0.7  # standard deviation of the target's scores around the draft's
_ZIPF: Final = 1.5


@final
class MadeUpDraft(ReadsAtOnce):
    """A runner of one row without a network, which remembers what it said in a round."""

    max_length: int | None = None
    reads_source = False
    pads = True
    forward_seconds = 0.0

    def __init__(self, vocab: int, seed: int) -> None:
        self.vocab_size, self.device = vocab, torch.device("cpu")
        self._random = torch.Generator().manual_seed(seed)
        self._falling = torch.arange(1, vocab + 1).float().log_().mul_(-_ZIPF)
        self._said: list[Float[Tensor, "row n vocab"]] = []

    def clear(self) -> None:
        self._said = []

    def set_rows(self, rows: Sequence[Row]) -> None:
        """There is one row only."""

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Scores:
        orders = [torch.randperm(self.vocab_size, generator=self._random) for _ in range(tokens.shape[1])]
        self._said.append(torch.stack([self._falling[order] for order in orders]).unsqueeze(0))
        return Scores(self._said[-1])

    def target_scores(self, tree: DraftTree) -> Float[Tensor, "row node vocab"]:
        """What a target that nearly agrees says at every node."""
        scored = sum(said.shape[1] for said in self._said)
        if scored < tree.size:
            self.extend(tree.tokens[:, scored:], tree.depths[:, scored:], tree.ancestors)
        said = torch.cat(self._said, dim=1)
        return said + _NOISE * torch.randn(said.shape, generator=self._random)

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Float[Tensor, "_token width"]] | None = None) -> None:
        self._said = []


def measure(config: VerifyConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """Every case, interleaved; ``on_step`` is called after each round. Returns a document of plain values."""
    load_before = load_average()
    taken: dict[tuple[int, str, str], list[float]] = {}
    for repeat in range(config.repeats + 1):
        for vocab in config.vocab:
            for sampling, name, seconds in _round(config.shape, vocab, config.seed + repeat):
                taken.setdefault((vocab, sampling, name), []).append(1e3 * seconds)
            on_step()
    results = [
        {"vocab": vocab, "laws": sampling, "verifier": name, "median": median(ms), "least": min(ms), "most": max(ms)}
        for (vocab, sampling, name), (_warming_up, *ms) in sorted(taken.items())
    ]
    return {
        "config": {"vocab": list(config.vocab), "shape": config.shape, "repeats": config.repeats, "seed": config.seed},
        **surroundings(torch.device("cpu"), load_before),
        "milliseconds": results,
    }


def _round(shape: str, vocab: int, seed: int) -> Iterator[tuple[str, str, float]]:
    for label, sampling in SAMPLINGS.items():
        for name, method in OURS.items():
            draft = MadeUpDraft(vocab, seed)
            chosen = Method(method=cast(MethodName, method), verifier=cast(VerifierName, name), shape=shape)
            drafter, verifier = build(chosen, draft, greedy=False)
            sampler, rng = Sampler([Row(tokens=[0], sampling=sampling)], vocab), CounterRng([seed]).at([1])
            tree = drafter.draft(torch.tensor([0]), sampler, rng, [tree_depth(shape)])
            scores = draft.target_scores(tree)
            start = perf_counter()
            verify(verifier, tree, sampler.target(scores, tree.prefixes), rng)
            yield label, name, perf_counter() - start
            if name == "recursive":
                start = perf_counter()
                straightforward(tree, scores, sampling)
                yield label, PLAIN, perf_counter() - start


def tree_depth(shape: str) -> int:
    """Levels of a beam's shape."""
    return int(shape.partition("x")[2] or 1)


def straightforward(tree: DraftTree, scores: Float[Tensor, "row node vocab"], sampling: Sampling) -> tuple[list[int], int]:
    """Recursive rejection sampling of one row as RSD's paper states it (arXiv 2402.14160, algorithm 2), in plain PyTorch."""
    warpers = LogitsProcessorList()
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    target = warpers(tree.tokens, scores[0]).softmax(dim=-1)
    draft = cast(Tensor, tree.draft_logp)[0].exp()
    node, path = 0, list[int]()
    while True:
        p, accepted = target[node].clone(), 0
        q = draft[node].clone() if node < len(draft) else None
        for child in tree.children[0][node]:
            distribution = cast(Tensor, q)
            token = int(tree.tokens[0, child])
            if float(torch.rand(())) * float(distribution[token]) < float(p[token]):
                accepted = child
                break
            left = (p - distribution).clamp(min=0)
            p = left / left.sum() if float(left.sum()) > 0 else p
            distribution[token] = 0
            q = distribution / distribution.sum()
        if not accepted:
            return path, int(torch.multinomial(p, 1))
        path.append(accepted)
        node = accepted


def markdown(document: dict[str, Any]) -> str:
    """Tables of milliseconds per round, a function of the document alone."""
    config, here, results = document["config"], document["machine"], document["milliseconds"]
    names = [*OURS, PLAIN]
    width, length = config["shape"].split("x")
    versions = document["versions"]
    blocks = [
        "# Verifying one round",
        f"Milliseconds from the target's scores at a tree of {width} x {length} nodes to the next token, batch 1, float32: "
        f"median of {config['repeats']} interleaved rounds and, in brackets, the extremes. The scores are made up; no model "
        f"runs. {here['cpu']}, cores: {here['cores']}, threads: {here['torch_threads']}; torch {versions['torch']}, "
        f"transformers {versions['transformers']}.",
    ]
    for distributions in SAMPLINGS:
        rows = []
        for vocab in config["vocab"]:
            found = {r["verifier"]: r for r in results if r["vocab"] == vocab and r["laws"] == distributions}
            cells = (f"{r['median']:.2f} ({r['least']:.2f} to {r['most']:.2f})" for r in map(found.__getitem__, names))
            rows.append([f"{vocab:,}", *cells])
        blocks += [f"## {distributions.capitalize()}", table(["vocabulary", *names], rows)]
    blocks.append(
        f"*{PLAIN}* is recursive rejection written down from the paper: the warpers of transformers at every node, and for "
        "every rejected child the residual over the whole vocabulary. *coupled* verifies a shared-noise tree, the others a "
        "stochastic beam."
    )
    return "\n\n".join(blocks) + "\n"
