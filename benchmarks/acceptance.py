"""Block efficiency without the noise of the verifiers' random choices, on the same texts for every method.

The target writes its texts once; at every few tokens of them each method drafts a tree. Of a drawn tree, and of prompt
lookup's chain, the number of tokens that the verifier accepts on average, given the tree, is computed exactly
(:mod:`benchmarks.expected`). A shared-noise tree and its verdict come from the same noise, and given
both nothing is left to chance; there the mean is taken over several draws of the noise, and its error holds that of the
draws. At temperature 0 nothing is drawn by anyone. All methods see the same contexts, so their differences have smaller
errors than runs of their own would give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final, final

import torch

from benchmarks import expected
from benchmarks.prompts import Prompt
from benchmarks.report import table
from benchmarks.run import seed_of
from benchmarks.settings import BUDGETS, Setting
from draftwood.api import Pair
from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.rounds import Round
from draftwood.core.settings import Method
from draftwood.draft import Drafter
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.rows import Row
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from draftwood.verify import Verifier
from draftwood.verify.sparse import verify

STEP: Final = 4  # tokens from one context to the next
DRAWS: Final = 4  # of the noise of a context, where the mean is not known
LEFT_OUT: Final = {
    **dict.fromkeys(("ar", "generate"), "nothing is drafted, so the figure is 1"),
    **dict.fromkeys(("assisted", "prompt-lookup"), "a method of transformers, whose drafts give no distributions"),
}
_ROWS: Final = 16  # contexts in one batch


@final
@dataclass(frozen=True, kw_only=True)
class Written:
    """A text that the target wrote, and the seed of its noise."""

    prompt: list[int]
    ids: list[int]
    seed: int


def check_methods(names: Sequence[str] | None) -> None:
    """Refuse given methods that have no expected acceptance.

    Raises:
        ConfigError: names them and the reason.
    """
    if refused := [name for name in names or () if name in LEFT_OUT]:
        raise ConfigError(f"no expected acceptance can be computed for {_reasons(refused)}: leave it out of --methods")


def _reasons(names: Iterable[str]) -> str:
    """Methods that are left out and why, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for name in names:
        by_reason.setdefault(LEFT_OUT[name], []).append(name)
    return "; ".join(f"{', '.join(group)} ({why})" for why, group in by_reason.items())


def write(pair: Pair, prompts: Sequence[Prompt], sampling: Sampling, max_new_tokens: int, seed: int) -> list[Written]:
    """One text for each prompt, by plain decoding."""
    limits = Limits(max_new_tokens=max_new_tokens)
    requests = [Request(prompt=list(p.tokens), seed=seed + i, limits=limits) for i, p in enumerate(prompts)]
    plain = Decoder(pair.target, *build(Method(method="ar"), None, greedy=sampling.greedy), eos=pair.eos)
    found = plain.generate(requests, sampling)
    return [Written(prompt=list(r.prompt), ids=w.token_ids, seed=r.seed) for r, w in zip(requests, found, strict=True)]


def sampled(setting: Setting, sampling: Sampling) -> bool:
    """Whether the mean is taken over draws of the noise."""
    return setting.method == "shared-noise" and not sampling.greedy


def measure(pair: Pair, texts: Sequence[Written], setting: Setting, sampling: Sampling) -> list[float]:
    """Tokens per target forward, per text, on average over its contexts. Drafters keep what they learn."""
    drafter, verifier = build(setting.to_method(), pair.draft, greedy=sampling.greedy)
    means = []
    for text in texts:
        start, stop = len(text.prompt), len(text.prompt) + len(text.ids)
        draws = DRAWS if sampled(setting, sampling) else 1
        contexts = range(start, max(start + 1, stop - STEP), STEP)
        rows = [(at, seed_of(text.seed, draw, 0)) for at in contexts for draw in range(draws)]
        parts = [rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS)]
        means.append(1 + fmean(n for part in parts for n in _accepted(pair, drafter, verifier, text, part, sampling)))
    return means


def _accepted(
    pair: Pair, drafter: Drafter, verifier: Verifier, text: Written, rows: Sequence[tuple[int, int]], sampling: Sampling
) -> list[float]:
    """Accepted tokens on average in some contexts, each given by its length and the seed of its noise."""
    made = [Row(tokens=list(text.prompt), sampling=sampling, stops=frozenset(pair.eos)) for _ in rows]
    for row, (at, _) in zip(made, rows, strict=True):
        row.tokens += text.ids[: at - len(text.prompt)]
    sampler = Sampler(made, pair.target.vocab_size)
    noise = CounterRng([seed for _, seed in rows], pair.target.device, greedy=sampling.greedy)
    rng = noise.at([at - 1 for at, _ in rows])
    for runner in filter(None, (pair.target, drafter.runner)):
        runner.clear()
        runner.set_rows(made)
    root = [row.tokens[-1] for row in made]
    with torch.inference_mode():
        tree = drafter.draft(root, sampler, rng, [max(BUDGETS)] * len(rows))
        if tree.error is not None:
            raise tree.error
        scores = pair.target.extend(tree.tokens, tree.depths, tree.ancestors)
        distributions = sampler.target(scores.logits, tree.prefixes)
        distributions.require_all()
        if not sampling.greedy and tree.draw is not Draw.SHARED_NOISE:
            # A certain chain is matched by the coupled verifier as often as it is accepted by chance.
            mean = expected.traversal if verifier.name == "traversal" else expected.recursive
            return mean(tree, distributions.dense())
        verdict = verify(verifier, tree, distributions, rng)
        this_round = Round(tree=tree, scores=scores, target_log_probs=distributions, verdict=verdict)
        for row, new in zip(made, this_round.tokens, strict=True):
            row.tokens += new
        drafter.commit(this_round)
        return [float(len(path)) for path in this_round.paths]


def compare(
    pair: Pair,
    settings: Sequence[Setting],
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    max_new_tokens: int,
    seed: int,
    on_step: Callable[[], object],
) -> str:
    """A Markdown report: per temperature and budget every setting against the best RSD-S under recursive rejection.

    Raises:
        ConfigError: a text and a tree below its end do not fit the models' context, or the draft reads hidden states.
    """
    if pair.draft is not None and not pair.draft_model.can_generate():
        raise ConfigError(
            "the draft reads the target's hidden states, which it gets from the rounds of a real text: measure it with "
            "python -m benchmarks generate"
        )
    _check_room(pair, settings, prompts, max_new_tokens)
    blocks = ["# Expected block efficiency"]
    for temperature in temperatures:
        sampling = Sampling(temperature=temperature)
        texts, found = write(pair, prompts, sampling, max_new_tokens, seed), dict[str, list[float]]()
        for setting in settings:
            found[setting.name] = measure(pair, texts, setting, sampling)
            on_step()
        for budget in BUDGETS:
            if here := [setting for setting in settings if ("budget", budget) in setting.comparisons]:
                blocks += [f"## Temperature {temperature:g}, {budget} nodes", _table(here, found, sampling)]
    return "\n\n".join([*blocks, _notes(settings, temperatures, len(prompts), max_new_tokens)]) + "\n"


def _check_room(pair: Pair, settings: Sequence[Setting], prompts: Sequence[Prompt], new: int) -> None:
    lengths = (runner.max_length for runner in (pair.target, pair.draft) if runner is not None)
    longest = min((length for length in lengths if length is not None), default=None)
    prompt, nodes = max(len(p.tokens) for p in prompts), max(setting.nodes for setting in settings)
    if longest is not None and prompt + new + nodes > longest:
        raise ConfigError(
            f"a prompt of {prompt} tokens, {new} new ones and a tree of {nodes} do not fit the models' context of "
            f"{longest}: lower --max-new-tokens or --prompt-tokens, or leave out large --budgets"
        )


def _table(settings: Sequence[Setting], found: dict[str, list[float]], sampling: Sampling) -> str:
    bases = [found[setting.name] for setting in settings if setting.method == "rsd-s"]
    base = max(bases, key=fmean, default=None)
    names = [setting.name for setting in settings if found[setting.name] is base]
    rows = []
    for setting in settings:
        values = found[setting.name]
        row = [setting.name, f"{fmean(values):.3f} ± {_error(values):.3f}"]
        row.append(f"sampled, {DRAWS} draws" if sampled(setting, sampling) else "exact")
        rows.append(row if base is None else [*row, _above(values, base)])
    header = ["setting", "tokens per target forward", "mean", *(f"against {name}" for name in names)]
    return table(header, rows)


def _notes(settings: Sequence[Setting], temperatures: Sequence[float], texts: int, new: int) -> str:
    notes = [
        f"{texts} texts of up to {new} tokens written by the target at each temperature, a tree at every {STEP}th token; ± "
        "is the standard error over texts, of differences the error of the difference on the same texts."
    ]
    if any(sampled(setting, Sampling(temperature=t)) for setting in settings for t in temperatures):
        notes.append(
            f"*sampled*: a shared-noise tree and its verdict come from one noise, so there is no mean given the tree; "
            f"{DRAWS} draws of the noise stand for it in each context, and ± holds their error too."
        )
    fixed = "trees of fixed length (for them: `python -m benchmarks generate --preset paper`)"
    notes.append(f"Left out: {_reasons(LEFT_OUT)}; {fixed}.")
    return "\n\n".join(notes)


def _error(values: Sequence[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def _above(values: Sequence[float], base: Sequence[float]) -> str:
    gains = [a - b for a, b in zip(values, base, strict=True)]
    return f"{100 * fmean(gains) / fmean(base):+.1f} % ± {100 * _error(gains) / fmean(base):.1f}"
