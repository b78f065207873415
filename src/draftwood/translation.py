"""Loading of encoder-decoder models with optional drafters, and translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, final

from draftwood.core.checks import settings
from draftwood.core.errors import CacheError, ConfigError, ModelError
from draftwood.core.seeds import seed_or_random
from draftwood.core.settings import LoadOptions
from draftwood.core.unknown import known_arguments
from draftwood.engine.arguments import Array, LimitsLike, Prompt, SamplingKwargs, prompt_of
from draftwood.engine.memory import Memory, memory_of
from draftwood.engine.requests import Request
from draftwood.engine.session import Session
from draftwood.hardware.threads import loading_threads
from draftwood.loading.generation import defaults_of, refuse_idle
from draftwood.loading.models import (
    check_parts,
    check_tokenizers,
    choose_device,
    choose_dtype,
    is_encoder_decoder,
    load_model,
    load_tokenizer,
    model_type,
    openvino_place,
)
from draftwood.loading.names import locate, named_or_bundled
from draftwood.loading.profile import ProfileKey, profile_key_of
from draftwood.runners.blocks.masked_block import MaskedBlockConfig, MaskedBlockDrafter
from draftwood.runners.factory import TranslationRunners, make_translation_runners
from draftwood.runners.openvino.store import loading
from draftwood.sampling.settings import Sampling

_CAUSAL_ONLY = {"profile": ("auto", "none"), "weights": ("same",)}  # option -> permitted values


@known_arguments
def load_translator(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    options: LoadOptions | Mapping[str, Any] | None = None,
) -> Translator:
    """Load an encoder-decoder model and, optionally, a drafter: hub names or local folders, safetensors only.

    Without a target the bundled translation pair is loaded. OpenVINO runs compiled copies (:func:`draftwood.load`).

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
    _check_options(options)
    target, draft = named_or_bundled("translation", target, draft)
    with loading_threads(options.threads):
        return _load(locate(target), None if draft is None else locate(draft), options)


def _load(target: str | Path, draft: str | Path | None, options: LoadOptions) -> Translator:
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    with loading(f"{target} {draft} {options}"):
        tokenizer = load_tokenizer(target, options)
        if not is_encoder_decoder(target, options):
            raise ModelError(f"{str(target)!r} is no encoder-decoder model: use draftwood generate, or load")
        model = load_model(target, options, device, dtype, _seq2seq())
        draft_model = None
        if draft is not None:
            draft_model = load_model(draft, options, device, dtype, _class_of(draft, options))
            check_tokenizers(tokenizer, load_tokenizer(draft, options), str(target), str(draft))
        runners = make_translation_runners(model, draft_model, backend=options.backend)
    profile_key = profile_key_of(target, draft, dtype, device, runners.target.engine)
    memory = memory_of(options.profile, profile_key)
    return Translator(model, draft_model, tokenizer, profile_key=profile_key, memory=memory, runners=runners)


def _check_options(options: LoadOptions) -> None:
    for option, permitted in _CAUSAL_ONLY.items():
        if (given := getattr(options, option)) not in permitted:
            raise ConfigError(f"{option} {given!r} was given, but it is for causal language models only: leave it out")
    if openvino_place(options.device) is not None:
        raise ConfigError(
            f"device {options.device!r} was given, but OpenVINO runs translation models on its CPU only: leave --device out"
        )


def _seq2seq() -> type[Any]:
    from transformers import AutoModelForSeq2SeqLM

    found: type[Any] = AutoModelForSeq2SeqLM
    return found


def _class_of(draft: str | Path, options: LoadOptions) -> type[Any] | None:
    """The class that loads a draft; None for a causal model."""
    if model_type(draft, options) == MaskedBlockConfig.model_type:
        return MaskedBlockDrafter
    return _seq2seq() if is_encoder_decoder(draft, options) else None


@final
class Translator(Session):
    """An encoder-decoder model, its drafter and their tokenizer, ready to translate.

    A call uses ``self.sampling`` by default: greedy decoding under the model's generation config. The result equals
    ``model.generate(num_beams=1, do_sample=False)``, token for token. A text is translated as a whole; single sentences work
    best.

    Args:
        model: the target, a ``transformers`` text-to-text model.
        draft_model: a :class:`MaskedBlockDrafter`, a text-to-text or a causal model, or None.
        tokenizer: the tokenizer of both.
        profile_key: identifies the models' files, where they are known.
        memory: keeps what adaptive methods learn, from process to process.
        runners: runners of both models; by default PyTorch runs the models.

    Attributes:
        target, draft: their runners.
        fallback: why backend ``auto`` is PyTorch for these models; None if it is another library or a backend was named.
        prompt: the start of the decoder's text: the start token, and a forced first token if there is one.
        max_source: the longest sentence in tokens, None if unlimited.
        remarks: settings of the model's generation config that are not honoured, such as beams, in sentences.

    Raises:
        ConfigError: a model or tokenizer of another type.
        ModelError: a model that cannot score a tree.
        PairingError: a drafter that was trained for another target.
    """

    _argument, _item = "text", "sentence"

    def __init__(
        self,
        model: Any,
        draft_model: Any,
        tokenizer: Any,
        *,
        profile_key: ProfileKey | None = None,
        memory: Memory | None = None,
        runners: TranslationRunners | None = None,
    ) -> None:
        check_parts(model, draft_model, tokenizer)
        self.model = model
        self.target, self.draft, self.fallback = runners or make_translation_runners(model, draft_model, backend="torch")
        super().__init__(model, self.target, self.draft, tokenizer, profile_key=profile_key, memory=memory)
        own = defaults_of(model, self.eos, self.target.max_length)
        self.prompt, self.limits, self.remarks, self._greedy = own.prompt, own.limits, own.remarks, own.sampling
        self.max_source: int | None = self.target.max_source

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.model.parameters()) / 1e6
        draft = "None" if self.draft is None else f"<{type(self.draft).__name__}>"
        where = f"{str(self.model.dtype)[6:]} on {self.model.device} by {self.target.engine}"
        return f"Translator(target=<{type(self.model).__name__}, {size:.1f} M, {where}>, draft={draft})"

    translate = Session.generate

    def prompt_logprobs(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a translator's prompt is a source, to which its target gives no probabilities.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "prompt_logprobs is not supported for translators: the target reads the source with its encoder and gives it no "
            "probabilities. Give logprobs to translate for those of the translation"
        )

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
        limits = SamplingKwargs().limits(limits, self.limits)
        forced = len(self.prompt) - 1
        if limits.max_new_tokens <= forced:
            raise ConfigError(
                f"max_new_tokens is {limits.max_new_tokens}, but the target begins every text with token {self.prompt[-1]}: "
                f"give {forced + 1} or more"
            )
        return Request(
            prompt=self.prompt,
            source=ids,
            seed=seed_or_random(seed),
            limits=replace(limits, max_new_tokens=limits.max_new_tokens - forced),
            final=self.final_token,
        )
