"""Engines that are broken on purpose, as thin wrappers of sound ones."""

import math
from dataclasses import replace

import numpy as np
import torch

from draftwood.core.log_probs import Distributions
from draftwood.engine.decode import Decoder
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.counter_rng import CounterRng, CounterRoundRng
from draftwood.verify.coupled import Coupled, follow_table

EASE = 1.15


class Sourced:
    """A decoder with another source of noise."""

    def __init__(self, engine, source):
        self.engine, self.source, self.pipeline = engine, source, engine.pipeline

    @property
    def stats(self):
        return self.engine.stats

    def stream(self, requests, sampling):
        return self.engine.stream(requests, sampling, noise=self.source([request.seed for request in requests]))


class Source:
    """A source of noise whose choices are changed before use."""

    def __init__(self, seeds, change):
        self.inner, self.change = CounterRng(seeds), change

    def select(self, rows):
        return Source([self.inner.seeds[r] for r in rows], self.change)

    def at(self, positions):
        return self.change(self.inner, positions)


def folded(fold):
    """The noise of text position ``fold(t)`` at position ``t``."""

    def change(inner, positions):
        rng = CounterRoundRng(inner, [fold(p) for p in positions])

        def shared(offset, count, vocab, tokens=None):
            ahead = range(1 + offset, 1 + offset + count)
            others = [CounterRoundRng(inner, [fold(p + a) - 1 for p in positions]) for a in ahead]
            return torch.cat([other.shared(0, 1, vocab, tokens) for other in others], dim=1)

        rng.shared = shared
        return rng

    return change


def easier(factor):
    """Every drafted child is accepted ``factor`` times as often as it should be, where that is possible."""

    def change(inner, positions):
        rng = CounterRoundRng(inner, positions)
        accept, path = rng.accept, rng.path

        def eager_path(stops):
            going = (1 - stops.cumsum(1)).roll(1, dims=1).index_fill(1, torch.tensor([0]), 1.0).clamp(min=1e-12)
            own = (stops / going * factor).clamp(max=1.0)
            own = torch.where(stops / going > 1 - 1e-9, stops / going, own)
            return path(own * (1 - own).cumprod(1).roll(1, dims=1).index_fill(1, torch.tensor([0]), 1.0))

        rng.accept = lambda target, draft, node: accept([p * factor for p in target], draft, node)
        rng.path = eager_path
        return rng

    return change


class EasyCoupled(Coupled, name="coupled"):
    """A drafted child is kept if its perturbed probability comes within ``factor`` of the best."""

    def __init__(self, factor):
        self.factor = factor

    def verify(self, tree, target_logp, rng):
        noise = rng.shared(0, tree.max_depth + 1, target_logp.shape[-1])
        scores = target_logp.log_softmax(-1) + noise[torch.arange(tree.rows).unsqueeze(1), tree.depths]

        choices = scores.argmax(-1)
        for row, children in enumerate(tree.children):
            for node, below in enumerate(children):
                least = scores[row, node].max() - math.log(self.factor)
                near = [token for child in below if scores[row, node, token := tree.host.tokens[row][child]] > least]
                choices[row, node] = near[0] if near else choices[row, node]
        return follow_table(tree, choices)


def sorted_siblings(tree):
    """The same tree with siblings in the order of their numbers; their distributions stay as recorded."""
    if tree.size == 1:
        return tree
    order = np.array([_order(tree, row) for row in range(tree.rows)])
    place, row = order.argsort(1), np.arange(tree.rows)[:, None]
    draft = tree.draft_log_probs
    if draft is not None:
        logp = draft.dense()
        at = torch.from_numpy(order).clamp(max=logp.shape[1] - 1).unsqueeze(-1)
        draft = Distributions(logp=logp.gather(1, at.expand(-1, -1, draft.vocab)), vocab=draft.vocab)
    return replace(
        tree,
        tokens=tree.tokens[row, order],
        parents=place[row, tree.parents[row, order]],
        depths=tree.depths[row, order],
        valid=tree.valid[row, order],
        ancestors=tree.ancestors[row[..., None], order[:, :, None], order[:, None]],
        ranking=lambda: draft,
    )


def _order(tree, row):
    """Old numbers of nodes, level by level, siblings by token; places without a node stand at the end of a level."""
    tokens, parents, valid = (part[row] for part in tree.host)
    depths, new = tree.depths[row].tolist(), {0: 0}
    order = [0]
    for depth in range(1, max(depths) + 1):
        level = [i for i in range(1, tree.size) if depths[i] == depth]
        level.sort(key=lambda i: (not valid[i], new.get(parents[i], tree.size), tokens[i]))
        for i in level:
            new[i] = len(order)
            order.append(i)
    return order + sorted(set(range(tree.size)) - set(order))


class Sorted:
    """A drafter whose siblings are sorted."""

    def __init__(self, drafter):
        self.drafter, self.name, self.draw, self.runner = drafter, drafter.name, drafter.draw, drafter.runner

    def draft(self, root, sampler, rng, limits):
        self.tree = self.drafter.draft(root, sampler, rng, limits)
        return sorted_siblings(self.tree)

    def commit(self, this_round):
        """In the numbers that the drafter knows: of the same tokens along the same path."""
        paths = []
        for row, path in enumerate(this_round.paths):
            node, out = 0, []
            for wanted in (this_round.tree.host.tokens[row][i] for i in path):
                node = next(c for c in self.tree.children[row][node] if self.tree.host.tokens[row][c] == wanted)
                out.append(node)
            paths.append(out)
        verdict = replace(this_round.verdict, paths=paths)
        self.drafter.commit(replace(this_round, tree=self.tree, verdict=verdict))


def with_sorted_siblings(engine):
    parts = engine.pipeline
    return Decoder(parts.target, Sorted(parts.drafter), parts.verifier)


def easy(engine, factor):
    if engine.pipeline.verifier.name == "coupled":
        return Decoder(engine.pipeline.target, engine.pipeline.drafter, EasyCoupled(factor))
    return Sourced(engine, lambda seeds: Source(seeds, easier(factor)))


def refolded(fold):
    return lambda engine: Sourced(engine, lambda seeds: Source(seeds, folded(fold)))


def tree_scores(change):
    """The target's scores of trees, not those of single tokens, are changed."""

    def broken(engine):
        parts, target = engine.pipeline, TorchRunner(engine.pipeline.target.model)
        extend = target.extend

        def changed(tokens, depths, ancestors):
            scores = extend(tokens, depths, ancestors)
            return replace(scores, logits=change(scores.logits)) if tokens.shape[1] > 1 else scores

        target.extend = changed
        return Decoder(target, parts.drafter, parts.verifier)

    return broken


BREAKS = {
    "the same noise at every position": refolded(lambda position: 0),
    "noise reused over four positions": refolded(lambda position: position // 4),
    "siblings sorted by number": with_sorted_siblings,
    "acceptance 15 % too easy": lambda engine: easy(engine, EASE),
    "every draft accepted": lambda engine: easy(engine, 1e9),
    "tree scores times 0.9": tree_scores(lambda logits: logits * 0.9),
    "one token + 0.5 in trees": tree_scores(lambda logits: logits + 0.5 * (torch.arange(logits.shape[-1]) == 13)),
}
