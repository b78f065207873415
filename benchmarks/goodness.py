"""Goodness of fit of a run's sampled texts to the target's distribution, as in ``draftwood check``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, final

import torch
from torch import Tensor

from benchmarks.batches import batched
from benchmarks.prompts import Prompt
from benchmarks.run import Log, by_prompt
from draftwood.api import Pair
from draftwood.exactness.goodness import BINS, goodness_of_fit, pit_values, target_distribution
from draftwood.sampling.settings import Sampling

ENOUGH: Final = 20 * BINS  # tokens; fewer allow no conclusion


@final
@dataclass(frozen=True, kw_only=True)
class Goodness:
    """Tests the texts of a log by plain forwards of the target, each text once.

    Attributes:
        pair: the models, run by PyTorch.
        prompts: of the run.
        seed: seed of the random parts of the PIT values.
    """

    pair: Pair
    prompts: Sequence[Prompt]
    seed: int
    _known: dict[tuple[int, int, int], Tensor] = field(default_factory=dict, init=False)

    def verdicts(self, log: Log) -> list[dict[str, Any]]:
        """One verdict per setting and temperature above 0; without figures if there were too few tokens."""
        found = []
        for case, ((setting, temperature), repeats) in enumerate(zip(log.cases, log.samples, strict=True)):
            batches = batched(self.prompts, setting.batch)
            texts = [(case, r, p, new) for r, repeat in enumerate(repeats) for p, new in by_prompt(repeat, batches).items()]
            if temperature == 0 or not any(tokens for *_, tokens in texts):
                continue
            pit = torch.cat([self._pit(*text, temperature) for text in texts if text[-1]])
            report = asdict(goodness_of_fit(pit)) if len(pit) >= ENOUGH else {"tokens": len(pit), "exact": None}
            found.append({"setting": setting.name, "batch": setting.batch, "temperature": temperature, **report})
        return found

    def _pit(self, case: int, repeat: int, prompt: int, tokens: list[int], temperature: float) -> Tensor:
        key = case, repeat, prompt
        if key not in self._known:
            generator = torch.Generator().manual_seed(hash((self.seed, *key)) % 2**63)
            read, distribution = list(self.prompts[prompt].tokens), Sampling(temperature=temperature)
            logp = target_distribution(self.pair, read, tokens, distribution)
            self._known[key] = pit_values(logp, self.pair, read, tokens, distribution, generator)
        return self._known[key]
