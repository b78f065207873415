"""Other systems on the same weights: greedy ``generate`` of ``transformers``, and CTranslate2."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, final

import torch

from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.systems import Output, System, closed
from draftwood.core.errors import ConfigError, needs
from draftwood.tune.compare import configured


def require_packages(config: TranslateConfig) -> None:
    """Raise a ConfigError that names what has to be installed for this run."""
    if not config.exact and importlib.util.find_spec("sacrebleu") is None:
        raise ConfigError(needs("BLEU", "sacrebleu", "bench"))
    if "ctranslate2" in config.peer_names() and importlib.util.find_spec("ctranslate2") is None:
        raise ConfigError(f"{needs('--peers ctranslate2', 'ctranslate2', 'bench')}; or give --peers generate")


@final
class Generate:
    """Greedy ``model.generate`` under what the model's own generation config asks for.

    Args:
        model: the target.
        eos: its end-of-sentence token ids.
        max_new_tokens: the longest translation.
    """

    def __init__(self, model: Any, eos: Sequence[int], max_new_tokens: int) -> None:
        self._model, self._eos = model, eos
        self._config = copy.deepcopy(model.generation_config)
        self._config.update(do_sample=False, num_beams=1, max_new_tokens=max_new_tokens, max_length=None)

    def __call__(self, sources: Sequence[Sequence[int]]) -> Output:
        width, device = max(map(len, sources)), self._model.device
        padding = self._model.config.pad_token_id
        tokens = torch.tensor([[*s, *[padding] * (width - len(s))] for s in sources], device=device)
        mask = torch.tensor([[1] * len(s) + [0] * (width - len(s)) for s in sources], device=device)
        with configured(self._model, self._config):
            out = self._model.generate(tokens, attention_mask=mask, generation_config=self._config)
        # The first token is the one to start from.
        return Output(tokens=[closed(row[1:], self._eos) for row in out.tolist()])


def peer_systems(
    config: TranslateConfig, model: Any, tokenizer: Any, eos: Sequence[int], max_new_tokens: int
) -> Iterator[System]:
    """The chosen ones."""
    names = config.peer_names()
    if "generate" in names:
        yield System(name="generate", translate=Generate(model, eos, max_new_tokens), ours=False, greedy=True)
    if "ctranslate2" in names:
        from benchmarks.translate.ct2 import CT2

        ct2 = CT2(model, tokenizer, eos, torch.get_num_threads())
        translate = partial(ct2.translate, max_new_tokens=max_new_tokens)
        yield System(name="CTranslate2", translate=translate, ours=False, greedy=True)
