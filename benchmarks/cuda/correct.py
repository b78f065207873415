"""Exactness on this device: logits of trees, greedy texts against ``generate``, sampled texts against the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import torch

from benchmarks.batches import batched
from benchmarks.cuda.models import bundled
from benchmarks.cuda.plan import Deadline, Plan, TimeIsUp
from benchmarks.greedy import compare
from benchmarks.prompts import Prompt
from benchmarks.run import Bench, Log, by_prompt
from benchmarks.settings import OURS, PEERS, plan
from draftwood.api import Pair
from draftwood.exactness.goodness import BINS, goodness_of_fit, pit_values, target_distribution
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from draftwood.tune.prompts import built_in

PARENTS: Final = (-1, 0, 0, 1, 1, 2, 3, 5)
ALLOWED: Final = 1e-3  # of logits in float32, and of the two best logits where greedy texts part
ENOUGH: Final = 20 * BINS  # tokens; fewer allow no conclusion
_LEFT_OUT: Final = {"assisted", "prompt-lookup"}


def run(wanted: Plan, deadline: Deadline) -> dict[str, Any]:
    """``correct`` says whether all held; the rest says what was compared."""
    pair = bundled(wanted.device, "float32")
    logits = tree_logits(pair)
    prompts = prompts_for(pair, wanted.batches[-1])
    log, complete = _texts(pair, prompts, wanted, deadline)
    greedy = compare(pair.model, prompts, log)
    sampled = goodness(pair, prompts, log)
    gaps = [found["gap"] for one in greedy for found in one["differing"]]
    exact = [one["exact"] for one in sampled if one["exact"] is not None]
    return {
        "correct": logits <= ALLOWED and all(gap <= ALLOWED for gap in gaps) and all(exact),
        "complete": complete,
        "tree_logits_difference": logits,
        "greedy_texts": sum(one["compared"] for one in greedy),
        "greedy_differing": len(gaps),
        "largest_gap_where_they_part": max(gaps, default=0.0),
        "sampled_settings_tested": len(exact),
        "greedy": greedy,
        "sampled": sampled,
    }


def goodness(pair: Pair, prompts: Sequence[Prompt], log: Log) -> list[dict[str, Any]]:
    """Goodness of fit of the sampled texts to the target's distribution, by setting and temperature, as in ``draftwood
    check``; without figures where there were too few tokens."""
    found: list[dict[str, Any]] = []
    generator = torch.Generator().manual_seed(0)
    for (setting, temperature), repeats in zip(log.cases, log.samples, strict=True):
        batches, sampling = batched(prompts, setting.batch), Sampling(temperature=temperature)
        texts = [(list(prompts[p].tokens), new) for one in repeats for p, new in by_prompt(one, batches).items() if new]
        if temperature == 0 or not texts:
            continue
        values = []
        for read, tokens in texts:
            logp = target_distribution(pair, read, tokens, sampling)
            values.append(pit_values(logp, pair, read, tokens, sampling, generator))
        pit = torch.cat(values)
        report = asdict(goodness_of_fit(pit)) if len(pit) >= ENOUGH else {"tokens": len(pit), "exact": None}
        found.append({"setting": setting.name, "batch": setting.batch, "temperature": temperature, **report})
    return found


def prompts_for(pair: Pair, count: int) -> list[Prompt]:
    """So many prompts of one source, so that batches of any size are filled."""
    return [Prompt(source="built in", tokens=tuple(pair.encode(text))) for text in built_in(count)]


def tree_logits(pair: Pair) -> float:
    """The largest difference between the logits of a tree's nodes and those of their paths, each read alone by the model.

    Two rows with prompts of different lengths hold the same tree with different tokens.
    """
    runner, model = pair.target, pair.model
    prompts, size = [[1, 2, 3, 4, 5], [6, 7, 8]], len(PARENTS)
    tokens = torch.randint(runner.vocab_size, (2, size), generator=torch.Generator().manual_seed(0)).to(runner.device)
    paths = [_path(node) for node in range(size)]
    sees = torch.tensor([[other in path for other in range(size)] for path in paths], device=runner.device)
    depths = torch.tensor([len(path) - 1 for path in paths], device=runner.device).expand(2, size)
    gaps = []
    with torch.inference_mode():
        runner.clear()
        runner.set_rows([Row(tokens=[*prompt, int(tokens[row, 0])]) for row, prompt in enumerate(prompts)])
        scores = runner.extend(tokens, depths, sees.expand(2, size, size)).logits
        for row, prompt in enumerate(prompts):
            for node, path in enumerate(paths):
                ids = torch.tensor([[*prompt, *(int(tokens[row, at]) for at in path)]], device=runner.device)
                alone = model(input_ids=ids).logits[0, -1]
                gaps.append(scores[row, node].float() - alone.float())
        runner.clear()
    return float(torch.stack(gaps).abs().max())  # NaN if one of them is


def _path(node: int) -> list[int]:
    return [] if node < 0 else [*_path(PARENTS[node]), node]


def _texts(pair: Pair, prompts: list[Prompt], wanted: Plan, deadline: Deadline) -> tuple[Log, bool]:
    """Texts of one setting of every method at temperature 0 and 1, in batches of every size, as far as the time lasts."""
    known = {s.method: s for s in plan(OURS + PEERS, has_draft=True) if s.method not in _LEFT_OUT}
    chosen = [known[name] for name in wanted.methods or known]
    cases = [(replace(s, batch=size), t) for t in (0.0, 1.0) for size in wanted.batches for s in chosen]
    log = Log(cases=cases)
    bench = Bench(
        pair=pair, cases=cases, prompts=prompts, repeats=1, max_new_tokens=wanted.max_new_tokens, seed=0, hooks="none"
    )
    try:
        bench.run(log, deadline.check, lambda: None)
    except TimeIsUp:
        return log, False
    return log, True
