"""``transformers`` on the same weights: ``generate``, greedy or with beams."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, final

import torch

from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.systems import Output, System, closed
from draftwood.core.errors import ConfigError
from draftwood.tune.compare import configured

EXTRA = 'pip install "draftwood[bench]"'


def require_packages(config: TranslateConfig) -> None:
    """Raise a ConfigError that names what has to be installed for this run."""
    if not config.exact and importlib.util.find_spec("sacrebleu") is None:
        raise ConfigError(f"BLEU and chrF need the package sacrebleu; install it with: {EXTRA}")
    wanted = [name for name in config.peer_names() if name.startswith("ctranslate2")]
    if wanted and importlib.util.find_spec("ctranslate2") is None:
        raise ConfigError(
            f"{' and '.join(wanted)} need the package ctranslate2; install it with: {EXTRA}, or leave them out with --peers "
            "generate,beam"
        )


@final
class Generate:
    """``model.generate`` under what the model's own generation config asks for.

    Args:
        model: the target.
        eos: its end-of-sentence token ids.
        max_new_tokens: the longest translation.
        beams: 1 for greedy decoding.
    """

    def __init__(self, model: Any, eos: Sequence[int], max_new_tokens: int, *, beams: int = 1) -> None:
        self._model, self._eos = model, eos
        self._config = copy.deepcopy(model.generation_config)
        self._config.update(do_sample=False, num_beams=beams, max_new_tokens=max_new_tokens, max_length=None)

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
    if "beam" in names:
        beam = Generate(model, eos, max_new_tokens, beams=config.beams)
        yield System(name=f"generate, {config.beams} beams", translate=beam, ours=False, greedy=False)
    wanted = [name for name in ("ctranslate2", "ctranslate2-beam") if name in names]
    if wanted:
        from benchmarks.translate.ct2 import CT2

        ct2 = CT2(model, tokenizer, eos, torch.get_num_threads())
        for name in wanted:
            beams = 1 if name == "ctranslate2" else config.beams
            translate = partial(ct2.translate, beams=beams, max_new_tokens=max_new_tokens, length_penalty=_penalty(model))
            label = "CTranslate2" if beams == 1 else f"CTranslate2, {beams} beams"
            yield System(name=label, translate=translate, ours=False, greedy=beams == 1)


def _penalty(model: Any) -> float:
    found = model.generation_config.length_penalty
    return 1.0 if found is None else float(found)
