"""Loading of encoder-decoder models with optional drafters, and translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from draftwood.api import load_session
from draftwood.core.checks import settings
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.seeds import seed_or_random
from draftwood.core.settings import LoadOptions
from draftwood.core.unknown import known_arguments
from draftwood.engine.arguments import Array, LimitsLike, Prompt, limits_of, prompt_of
from draftwood.engine.requests import Request
from draftwood.engine.session import Session
from draftwood.loading.generation import defaults_of, refuse_idle
from draftwood.runners.protocols import SourceRunner
from draftwood.sampling.settings import Sampling

_CAUSAL_ONLY: Mapping[str, tuple[Any, ...]] = {  # option -> permitted values
    "profile": ("auto", "none"), "weights": ("same",), "device_map": (None,),
}  # fmt: skip


@known_arguments
def load_translator(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    options: LoadOptions | Mapping[str, Any] | None = None,
) -> Translator:
    """Load an encoder-decoder model and, optionally, a drafter: hub names or local folders, safetensors only.

    Without a target the bundled translation pair is loaded.

    Args:
        target: the model that translates.
        draft: a masked-block drafter trained for the target, or another encoder-decoder or a causal model with the
            target's tokenizer.
        options: number format, device, backend and trust.

    Raises:
        ConfigError: an unknown device or dtype, a draft without a target, an option for causal models only, or a backend
            that is not installed or does not support the models.
        ModelError: a model or tokenizer that cannot be loaded, or a model that cannot score a tree.
        PairingError: a drafter that was trained for another target or has another tokenizer.
    """
    options = LoadOptions() if options is None else settings("options", options, LoadOptions)
    for option, permitted in _CAUSAL_ONLY.items():
        if (given := getattr(options, option)) not in permitted:
            raise ConfigError(f"{option} {given!r} was given, but it is for causal language models only: leave it out")
    return load_session(Translator, target, draft, options)


@final
class Translator(Session):
    """An encoder-decoder model, its drafter and their tokenizer, ready to translate.

    A call uses ``self.sampling`` by default: greedy decoding under the model's generation config. The result equals
    ``model.generate(num_beams=1, do_sample=False)``, token for token. A text is translated as a whole; single sentences work
    best. Arguments and other attributes are those of :class:`draftwood.engine.session.Session`.

    Attributes:
        prompt: the start of the decoder's text: the start token, and a forced first token if there is one.
        max_source: the longest sentence in tokens, None if unlimited.
        remarks: settings of the model's generation config that are not honoured, such as beams, in sentences.
    """

    kind = "translation"
    _argument, _item = "text", "sentence"
    target: SourceRunner

    def _set_defaults(self) -> None:
        own = defaults_of(self.model, self.eos, self.target.max_length)
        self.prompt, self.limits, self.remarks, self._greedy = own.prompt, own.limits, own.remarks, own.sampling
        self.max_source: int | None = self.target.max_source

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.model.parameters()) / 1e6
        draft = "None" if self.draft is None else f"<{type(self.draft).__name__}>"
        where = f"{str(self.model.dtype)[6:]} on {self.model.device} by {self.target.engine}"
        return f"Translator(target=<{type(self.model).__name__}, {size:.1f} M, {where}>, draft={draft})"

    translate = Session.generate

    def _sampling_with(self, given: Mapping[str, Any]) -> Sampling:
        refuse_idle(given, "translations are greedy unless a temperature is given")
        return replace(self._greedy, **given)

    def encode(self, sentence: Prompt | Array) -> list[int]:
        """The encoder's token ids of a sentence; given token ids are unchanged.

        Raises:
            ConfigError: a text that is not Unicode or has no tokens, unknown token ids, or neither text nor token ids.
            CacheError: a sentence longer than the encoder's limit.
        """
        given = prompt_of("sentence", sentence)
        ids = list(self.tokenizer(given)["input_ids"]) if isinstance(given, str) else given
        vocab = int(self.model.get_input_embeddings().weight.shape[0])
        if bad := [token for token in ids if not 0 <= token < vocab]:
            raise ConfigError(f"the sentence holds token {bad[0]}, but the target's encoder knows 0 to {vocab - 1}")
        if not ids:
            raise ConfigError("the sentence is empty, and the tokenizer adds nothing to it: give some text")
        if self.max_source is not None and len(ids) > self.max_source:
            raise CacheError(
                f"the sentence has {len(ids)} tokens, but the target's encoder reads {self.max_source}: split it"
            )
        return ids

    def request(self, ids: Sequence[int], limits: LimitsLike | None = None, seed: int | None = None) -> Request:
        """A request for an encoded sentence; a seed of None is drawn.

        Raises:
            ConfigError: limits that leave room for forced tokens only.
        """
        wanted = limits_of({"limits": limits}, self.limits)
        forced = len(self.prompt) - 1
        if wanted.max_new_tokens <= forced:
            raise ConfigError(
                f"max_new_tokens is {wanted.max_new_tokens}, but the target begins every text with token {self.prompt[-1]}: "
                f"give {forced + 1} or more"
            )
        return Request(
            prompt=self.prompt,
            source=ids,
            seed=seed_or_random(seed),
            limits=replace(wanted, max_new_tokens=wanted.max_new_tokens - forced),
            final=self.final_token,
        )
