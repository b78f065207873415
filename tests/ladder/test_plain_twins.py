"""The batched verifiers equal their plain twins, verdict for verdict, on the same noise."""

import pytest
import torch

from draftwood.core.draws import Draw
from draftwood.draft.adaptive.expand import GumbelExpander, SampledExpander
from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import ConstantBranching, IndependentChains, StochasticBeam
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Coupled, Greedy
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.helpers import begin, best_first, sampler_of
from tests.reference import match, plain_tree, recursive, traversal
from tests.tables import TableRunner

ROWS, VOCAB = 64, 7
DRAWN = ["chain", "rsd-c", "rsd-s", "iid", "dynamic"]


def drafters(runner):
    return {
        "chain": LevelDrafter(runner, ConstantBranching((1, 1, 1))),
        "rsd-c": LevelDrafter(runner, ConstantBranching((3, 2, 1))),
        "rsd-s": LevelDrafter(runner, StochasticBeam(4, 3)),
        "iid": LevelDrafter(runner, IndependentChains(3, 3)),
        "shared": LevelDrafter(runner, ConstantBranching((2, 2), Draw.SHARED_NOISE)),
        "best-first": best_first(runner, GumbelExpander(6), nodes=9, width=3, depth=4),
        "dynamic": best_first(runner, SampledExpander(2), nodes=9, width=3, depth=4),
    }


def drafted(name, *, seed, temperature=1.0, top_p=1.0):
    """Trees of one round and the target's distributions at their nodes."""
    torch.manual_seed(seed)
    table = 1.5 * torch.randn(VOCAB, VOCAB, VOCAB, dtype=torch.float64)
    target, draft = TableRunner(table), TableRunner(table + 0.7 * torch.randn_like(table))
    sampling = Sampling(temperature=temperature, top_p=top_p)
    texts = [[r % VOCAB, (r * 3) % VOCAB, (r * 5) % VOCAB] for r in range(ROWS)]
    sampler = sampler_of(sampling, texts, VOCAB)
    rng = CounterRng(range(ROWS), greedy=sampling.greedy).at([2 + r for r in range(ROWS)])
    drafter = drafters(draft)[name]
    for part in (draft, target):
        begin(part, [t[:-1] for t in texts])
    tree = drafter.draft([t[-1] for t in texts], sampler, rng, [5] * (ROWS - 1) + [1])
    logp = sampler.target(target.extend(tree.tokens, tree.depths, tree.ancestors).logits, tree.prefixes).settled.dense()
    return tree, logp, rng


def verdicts(verdict):
    return list(zip(verdict.paths, verdict.next_tokens, strict=True))


def die_of(rng, row):
    """The token that a row's noise draws."""
    return lambda distribution: int(rng.token(torch.tensor([distribution] * ROWS, dtype=torch.float64))[row])


@pytest.mark.parametrize("verifier", [Recursive(), Traversal()])
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 0.7)])
def test_verifiers_of_drawn_trees_equal_their_twins(verifier, name, temperature, top_p):
    seen = set()
    for seed in range(4):
        tree, logp, rng = drafted(name, seed=seed, temperature=temperature, top_p=top_p)
        ours = verdicts(verifier.verify(tree, logp, rng))
        for row in range(ROWS):

            def coin(node, p, q, row=row, rng=rng):
                every = [node.index if r == row else 0 for r in range(ROWS)]
                return rng.accept([float(p)] * ROWS, [float(q)] * ROWS, every)[row]

            def pick(stops, row=row, rng=rng):
                return int(rng.path(torch.tensor([stops] * ROWS, dtype=torch.float64))[row])

            twin, choose = (recursive, coin) if isinstance(verifier, Recursive) else (traversal, pick)
            theirs = twin(plain_tree(tree, logp, row), tree.draw, choose, die_of(rng, row))
            assert ours[row] == theirs
            seen.add(len(theirs[0]))
    assert len(seen) >= 3  # rejected at once, half way, and through


@pytest.mark.parametrize("name", [*DRAWN, "shared", "best-first"])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_matching_equals_its_twin(name, temperature):
    seen = set()
    for seed in range(4):
        tree, logp, rng = drafted(name, seed=seed, temperature=temperature)
        ours = verdicts((Coupled() if temperature else Greedy()).verify(tree, logp, rng))
        noise = rng.shared(0, tree.max_depth + 1, VOCAB)
        for row in range(ROWS):

            def choose(node, row=row, noise=noise):
                gumbel = noise[row, node.depth].tolist() if noise is not None else [0.0] * VOCAB
                score = [torch.tensor(p).log().item() + g for p, g in zip(node.target, gumbel, strict=True)]
                return max(range(VOCAB), key=score.__getitem__)

            theirs = match(plain_tree(tree, logp, row), choose)
            assert ours[row] == theirs
            seen.add(len(theirs[0]))
    assert len(seen) >= 3


def test_control_a_twin_on_other_noise_differs():
    tree, logp, rng = drafted("rsd-c", seed=0)
    other = CounterRng(range(1, ROWS + 1)).at([2] * ROWS)
    for verifier in (Recursive(), Traversal()):
        assert verdicts(verifier.verify(tree, logp, rng)) != verdicts(verifier.verify(tree, logp, other))
