"""Block efficiency of drawn trees without the noise of their verdicts, on the same texts for every method.

The target writes a text; at every few tokens of it each method drafts a tree, and the number of drafted tokens that its
verifier accepts in the mean, given the tree, is computed exactly (:mod:`draftwood.verify.expected`). All methods see the
same contexts, so their differences have smaller errors than runs of their own would give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Final

import torch

from draftwood.api import Pair
from draftwood.bench.prompts import Prompt
from draftwood.bench.report import table
from draftwood.bench.settings import BUDGETS, Setting
from draftwood.decode import Decoder, Request
from draftwood.methods import Method, build
from draftwood.models import Runner
from draftwood.noise import Noise
from draftwood.output import Limits
from draftwood.sampling import Law, Sampling
from draftwood.verify.expected import expected

DRAWN: Final = ("chain", "iid", "rsd-c", "rsd-s", "hybrid", "dynamic")
STEP: Final = 4  # tokens from one context to the next
DEPTH: Final = 64  # no tree is cut by the end of its text


def measure(
    pair: Pair, prompts: Sequence[Prompt], setting: Setting, sampling: Sampling, max_new_tokens: int, seed: int
) -> list[float]:
    """Tokens per target forward, per prompt, in the mean over the contexts of its text."""
    requests = [
        Request(prompt=list(p.tokens), seed=seed + i, limits=Limits(max_new_tokens=max_new_tokens))
        for i, p in enumerate(prompts)
    ]
    plain = Decoder(pair.target, *build(Method(method="ar"), None, greedy=False), eos=pair.eos)
    means = []
    for request, written in zip(requests, plain.generate(requests, sampling), strict=True):
        prompt = list(request.prompt)
        means.append(1 + fmean(_accepted(pair, setting, prompt, written.token_ids, sampling, request.seed)))
    return means


def _accepted(pair: Pair, setting: Setting, prompt: list[int], ids: list[int], sampling: Sampling, seed: int) -> list[float]:
    drafter, verifier = build(setting.to_method(), pair.draft, greedy=False)
    text, found = prompt + ids, []
    runners: list[Runner] = [pair.target, *([pair.draft] if pair.draft else [])]
    drafter.start([prompt[:-1]])
    pair.target.start([prompt[:-1]])
    for at in range(len(prompt), max(len(prompt) + 1, len(text) - STEP), STEP):
        law, choices = Law(sampling, [text[:at]], [len(prompt)], pair.target.vocab_size), Noise([seed]).at([at - 1])
        with torch.inference_mode():
            tree = drafter.draft(torch.tensor([text[at - 1]], device=pair.target.device), law, choices, [DEPTH])
            scores = pair.target.extend(tree.tokens, tree.depths, tree.ancestors)
            means = expected(tree, law.target(scores, tree.prefixes).dense())[0]
        nodes = set(range(tree.size))
        found.append(means.recursive(nodes) if verifier.name == "recursive" else means.traversal(nodes))
        for runner in runners:
            runner.commit([[0]], [text[at : at + STEP - 1]])
    return found


def drawn(settings: Sequence[Setting]) -> list[Setting]:
    """The settings whose expected acceptance is known: drawn trees under a verifier that accepts by chance."""
    return [setting for setting in settings if setting.method.partition("+")[0] in DRAWN]


def compare(
    pair: Pair,
    settings: Sequence[Setting],
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    max_new_tokens: int,
    seed: int,
    on_step: Callable[[], object],
) -> str:
    """A Markdown report: per temperature and budget every setting, beside the best RSD-S under recursive rejection."""
    blocks = ["# Expected block efficiency of drawn trees"]
    for temperature in temperatures:
        found: dict[str, list[float]] = {}
        for setting in settings:
            found[setting.name] = measure(pair, prompts, setting, Sampling(temperature=temperature), max_new_tokens, seed)
            on_step()
        for budget in BUDGETS:
            here = {s.name: found[s.name] for s in settings if ("budget", budget) in s.places}
            bases = [name for name in here if name.startswith("rsd-s ")]
            if not bases:
                continue
            base = max(bases, key=lambda name: fmean(here[name]))
            rows = [[name, f"{fmean(v):.3f} ± {_error(v):.3f}", _above(v, here[base])] for name, v in here.items()]
            blocks += [
                f"## Temperature {temperature:g}, {budget} nodes",
                table(["setting", "tokens per target forward", f"against {base}"], rows),
            ]
    blocks.append(
        f"{len(prompts)} texts of {max_new_tokens} tokens written by the target, a tree at every {STEP}th token; ± is the "
        "standard error over texts, of differences the error of the difference on the same texts."
    )
    return "\n\n".join(blocks) + "\n"


def _error(values: Sequence[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def _above(values: Sequence[float], base: Sequence[float]) -> str:
    gains = [a - b for a, b in zip(values, base, strict=True)]
    return f"{100 * fmean(gains) / fmean(base):+.1f} % ± {100 * _error(gains) / fmean(base):.1f}"
