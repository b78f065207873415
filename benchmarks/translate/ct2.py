"""CTranslate2 (https://github.com/OpenNMT/CTranslate2) on the same weights: conversion in memory, tokens as strings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import torch

from benchmarks.translate.ct2_process import CT2Process
from benchmarks.translate.systems import Output, closed
from draftwood.core.errors import ConfigError

_FAMILY = "marian"


@final
class CT2:
    """A Marian model inside CTranslate2, float32, one batch at a time, in a process of its own.

    Args:
        model: the target, a ``MarianMTModel``.
        tokenizer: names the tokens.
        eos: end-of-sentence token ids of the target.
        threads: of one translation.

    Raises:
        ConfigError: another kind of model, or a text that does not begin as the converted model begins it.
    """

    def __init__(self, model: Any, tokenizer: Any, eos: Sequence[int], threads: int) -> None:
        self._names = tokenizer.convert_ids_to_tokens(list(range(model.config.vocab_size)))
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._check(model, eos)
        self._eos = eos[0]
        words = model.generation_config.bad_words_ids or ()
        self._forbidden = [[self._names[token] for token in word] for word in words if word != [self._eos]]
        device = model.device.type
        with TemporaryDirectory() as folder:
            self._convert(model, Path(folder))
            self._translator = CT2Process(folder, device, threads)

    def _check(self, model: Any, eos: Sequence[int]) -> None:
        settings = model.generation_config
        reasons = {
            f"its type is {model.config.model_type!r}, not {_FAMILY!r}": model.config.model_type != _FAMILY,
            f"it has {len(eos)} end tokens, not one": len(eos) != 1,
            "the first token of its texts is forced": settings.forced_bos_token_id is not None,
            "two of its tokens have one name, or one has none": len(self._numbers) != model.config.vocab_size
            or None in self._numbers,
        }
        if found := [reason for reason, holds in reasons.items() if holds]:
            raise ConfigError(
                f"the target cannot be measured in CTranslate2: {'; '.join(found)}. Leave that out with --peers generate"
            )

    def _convert(self, model: Any, folder: Path) -> None:
        from ctranslate2.converters.transformers import BartLoader

        # Marian's own loader takes the padding token for the last one, whose embedding is zero; here it may be any token.
        plain = copy.copy(model)
        plain.config = copy.copy(model.config)
        plain.config.normalize_before = plain.config.normalize_embedding = False
        with torch.no_grad():
            loader = BartLoader()
            spec = loader.get_model_spec(plain)
        for register in (spec.register_source_vocabulary, spec.register_target_vocabulary):
            register(self._names)
        start = self._names[model.generation_config.decoder_start_token_id]
        spec.config.bos_token = spec.config.unk_token = spec.config.decoder_start_token = start
        spec.config.eos_token = self._names[self._eos]
        spec.validate()
        spec.optimize(quantization="float32")
        spec.save(str(folder))

    def translate(self, sources: Sequence[Sequence[int]], max_new_tokens: int) -> Output:
        """Token ids of the greedy translations; the texts' ends as ``transformers`` has them."""
        found = self._translator.translate(
            [[self._names[token] for token in source] for source in sources],
            beam_size=1,
            max_input_length=0,
            max_decoding_length=max_new_tokens,
            min_decoding_length=0,
            return_end_token=True,
            suppress_sequences=self._forbidden or None,
        )
        rows = [[self._numbers[name] for name in row] for row in found.rows]
        return Output(tokens=[closed(row, [self._eos]) for row in rows], elapsed=found.seconds)
