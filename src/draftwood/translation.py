"""Loading an encoder-decoder model, with or without a drafter, and translating with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final, overload

from draftwood.core.arguments import (
    Array,
    LimitsLike,
    MethodLike,
    Prompt,
    SamplingLike,
    Singles,
    method_of,
    prompt_of,
    prompts_of,
)
from draftwood.core.checks import settings
from draftwood.core.errors import CacheError, ConfigError, ModelError
from draftwood.core.machine import set_threads
from draftwood.core.settings import LoadOptions, Method
from draftwood.engine.decode import Decoder, Piece, Request, Result
from draftwood.engine.decoders import Decoders, drawn, seeds_for
from draftwood.loading.checkpoint import check_path
from draftwood.loading.generation import asked, refuse_idle
from draftwood.loading.models import (
    check_tokenizers,
    choose_device,
    choose_dtype,
    eos_of,
    is_encoder_decoder,
    load_model,
    load_tokenizer,
    model_type,
    named_or_bundled,
    openvino_place,
)
from draftwood.loading.profile import ProfileKey, profile_key_of
from draftwood.runners.blocks.heads import HeadsDrafter
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter
from draftwood.runners.factory import TranslationRunners, make_translation_runners
from draftwood.runners.seq2seq.layer_skip import with_layers

_OWN = "target:"  # begins a draft that is made of layers of the target
_CAUSAL_ONLY = {"profile": ("auto", "none"), "weights": ("same",)}  # options, and what is fine


def load_translator(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    options: LoadOptions | Mapping[str, Any] | None = None,
) -> Translator:
    """Load an encoder-decoder model and, optionally, a drafter: hub names or local folders, safetensors only.

    Without a target the bundled translation pair is loaded. Models that OpenVINO runs are compiled copies
    (:func:`draftwood.load`).

    Args:
        target: the model that translates.
        draft: a masked-block drafter or heads trained for the target, another encoder-decoder or a causal model with the
            target's tokenizer, or ``target:0,2``: the target itself with its decoder layers 0 and 2 only.
        options: number format, device, what runs the models, and trust.

    Raises:
        ConfigError: an unknown device or dtype, a draft without a target, an option that is for causal models only, a
            backend that is not installed or does not do what is asked.
        ModelError: a model or tokenizer that cannot be loaded or cannot score a tree.
        PairingError: a drafter that was trained for another target, or has another tokenizer.
    """
    options = LoadOptions() if options is None else settings("options", options, LoadOptions)
    _check_options(options)
    target, draft = named_or_bundled("translation", target, draft)
    own = draft is not None and str(draft).startswith(_OWN)
    for name in (target, None if own else draft):
        if name is not None:
            check_path(name)
    if options.threads is not None:
        set_threads(options.threads)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    tokenizer = load_tokenizer(target, options)
    if not is_encoder_decoder(target, options):
        raise ModelError(f"{str(target)!r} is no encoder-decoder model: use draftwood generate, or load")
    model = load_model(target, options, device, dtype, _seq2seq())
    draft_model = None
    if draft is not None and own:
        draft_model = with_layers(model, _layers(str(draft)))
    elif draft is not None:
        draft_model = load_model(draft, options, device, dtype, _class_of(draft, options))
        check_tokenizers(tokenizer, load_tokenizer(draft, options), str(target), str(draft))
    runners = make_translation_runners(model, draft_model, backend=options.backend)
    profile_key = profile_key_of(target, None if own else draft, dtype, device, runners.target.engine)
    return Translator(model, draft_model, tokenizer, profile_key=profile_key, runners=runners)


def _check_options(options: LoadOptions) -> None:
    for option, fine in _CAUSAL_ONLY.items():
        if (given := getattr(options, option)) not in fine:
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
    """What loads a draft; None for a causal model."""
    own: dict[str, type[Any]] = {cls.config_class.model_type: cls for cls in (MaskedBlockDrafter, HeadsDrafter)}
    if found := own.get(model_type(draft, options)):
        return found
    return _seq2seq() if is_encoder_decoder(draft, options) else None


def _layers(draft: str) -> list[int]:
    numbers = draft.removeprefix(_OWN).split(",")
    if not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"draft {draft!r} names no layers: write the target's decoder layers as in {_OWN}0,2")
    return [int(number) for number in numbers]


@final
class Translator:
    """An encoder-decoder model, its drafter and their tokenizer, ready to translate.

    Without a ``sampling`` of its own a call uses ``self.sampling``: greedy decoding, under everything that the model's
    generation config asks for. Then a text is that of ``model.generate(num_beams=1, do_sample=False)``, token for token.

    Args:
        model: the target, a ``transformers`` text-to-text model.
        draft_model: a :class:`MaskedBlockDrafter`, a :class:`HeadsDrafter`, a text-to-text or a causal model, or None.
        tokenizer: the tokenizer of both.
        profile_key: which files the models are, where that is known.
        runners: runners of both models; without them PyTorch runs the models, and nothing is converted.

    Attributes:
        target, draft: their runners.
        fallback: why backend ``auto`` is PyTorch for these models; None where it is OpenVINO, or a backend was named.
        prompt, final_token: what the decoder begins with (start token, forced first token), and ends with at its limits.
        sampling, limits: what a call without its own uses.
        max_source: the longest sentence in tokens, None if unlimited.
        remarks: what the model's generation config asks and is not honoured (such as beams), in sentences.

    Raises:
        ModelError: a model that cannot score a tree.
        PairingError: a drafter that was trained for another target.
    """

    def __init__(
        self,
        model: Any,
        draft_model: Any,
        tokenizer: Any,
        *,
        profile_key: ProfileKey | None = None,
        runners: TranslationRunners | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.profile_key = profile_key
        self.target, self.draft, self.fallback = runners or make_translation_runners(model, draft_model, backend="torch")
        self.eos = eos_of(model, tokenizer, self.target.vocab_size)
        wanted = asked(model, self.eos, self.target.max_length)
        self.prompt, self.sampling, self.limits = wanted.prompt, wanted.sampling, wanted.limits
        self.remarks = wanted.remarks
        self.max_source: int | None = self.target.max_source
        self.final_token = wanted.final
        self._decoders = Decoders(self.target, self.draft, tokenizer=tokenizer, eos=self.eos)

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.model.parameters()) / 1e6
        draft = "None" if self.draft is None else f"<{type(self.draft).__name__}>"
        where = f"{str(self.model.dtype)[6:]} on {self.model.device} by {self.target.engine}"
        return f"Translator(target=<{type(self.model).__name__}, {size:.1f} M, {where}>, draft={draft})"

    def _own(self, given: Mapping[str, Any]) -> Sampling:
        refuse_idle(given if self.sampling.greedy else {}, "translations are greedy unless a temperature is given")
        return replace(self.sampling, **given)

    def method(self, method: MethodLike | None = None, *, temperature: float = 0.0) -> Method:
        """What is drafted and how it is verified at a temperature, every ``auto`` replaced."""
        return self._decoders.resolve(method_of(method), greedy=temperature == 0)

    def decoder(self, method: MethodLike | None = None, *, temperature: float = 0.0) -> Decoder:
        """A decoder for token ids, for texts of this temperature; the models serve one stream at a time.

        Decoders of the same method share what their drafter has learnt about the pair and the machine.
        """
        return self._decoders.of(self.method(method, temperature=temperature), greedy=temperature == 0)

    def encode(self, sentence: Prompt | Array) -> list[int]:
        """Token ids of a sentence, as the encoder reads them; token ids stay as they are.

        Raises:
            ConfigError: text that is no Unicode, or of which the tokenizer makes nothing; token ids that the encoder does
                not know; neither text nor token ids.
            CacheError: a sentence longer than the encoder reads.
        """
        given = prompt_of("sentence", sentence)
        ids = list(self.tokenizer(given)["input_ids"]) if isinstance(given, str) else given
        known = int(self.model.get_input_embeddings().weight.shape[0])
        if bad := [token for token in ids if not 0 <= token < known]:
            raise ConfigError(f"the sentence holds token {bad[0]}, but the target's encoder knows 0 to {known - 1}")
        if not ids:
            raise ConfigError("the sentence is empty, and the tokenizer adds nothing to it: give some text")
        if self.max_source is not None and len(ids) > self.max_source:
            raise CacheError(
                f"the sentence has {len(ids)} tokens, but the target's encoder reads {self.max_source}: split it"
            )
        return ids

    def requests(
        self, sentences: Sequence[Prompt | Array], limits: LimitsLike | None, seeds: Sequence[int | None]
    ) -> list[Request]:
        """Encoded requests; a seed that is None is drawn.

        Raises:
            ConfigError, CacheError: a sentence that cannot be read, by its number where there are several.
        """
        return [
            self.request(self._encode(sentences, i), limits, seed)
            for i, seed in zip(range(len(sentences)), seeds, strict=True)
        ]

    def request(self, source: Sequence[int], limits: LimitsLike | None = None, seed: int | None = None) -> Request:
        """A request for a sentence that is encoded already; a seed that is None is drawn.

        Raises:
            ConfigError: limits that end a text before the target has a say.
        """
        limits = Singles().limits(limits, self.limits)
        forced = len(self.prompt) - 1
        if limits.max_new_tokens <= forced:
            raise ConfigError(
                f"max_new_tokens is {limits.max_new_tokens}, but the target begins every text with token {self.prompt[-1]}: "
                f"give {forced + 1} or more"
            )
        return Request(
            prompt=self.prompt,
            source=source,
            seed=drawn(seed),
            limits=replace(limits, max_new_tokens=limits.max_new_tokens - forced),
            final=self.final_token,
        )

    def _encode(self, sentences: Sequence[Prompt | Array], index: int) -> list[int]:
        try:
            return self.encode(sentences[index])
        except (ConfigError, CacheError) as error:
            if len(sentences) == 1:
                raise
            raise type(error)(f"sentence {index}: {error}") from error

    def stream(
        self, text: Prompt | Array, *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> Iterator[Piece]:  # fmt: skip
        """One text, round by round; arguments as for :meth:`translate`.

        Raises:
            ConfigError, CacheError: what :meth:`translate` refuses; others come with the first piece.
        """
        singles = Singles(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, stop=stop,
        )  # fmt: skip
        sampling, limits = singles.sampling(sampling, self._own), singles.limits(limits, self.limits)
        requests = self.requests([text], limits, [seed])
        rounds = self.decoder(method, temperature=sampling.temperature).stream(requests, sampling)
        return (piece for pieces in rounds for piece in pieces)

    @overload
    def translate(  # type: ignore[overload-overlap]  # to the type checker a str is a sequence of str
        self, text: str | Sequence[int], *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> Result: ...  # fmt: skip

    @overload
    def translate(
        self, text: Sequence[str] | Sequence[Sequence[int]], *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | Sequence[int] | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> list[Result]: ...  # fmt: skip

    def translate(
        self, text: Prompt | Sequence[str] | Sequence[Sequence[int]] | Array, *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | Sequence[int] | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> Result | list[Result]:  # fmt: skip
        """One text, or several at once; each is translated in one piece, and sentences work best.

        Args:
            text: a text or the token ids that the encoder reads, or a list of these.
            method, sampling, limits, seed: as for :meth:`draftwood.Pair.generate`.
            max_new_tokens, stop, temperature, top_k, top_p, min_p, repetition_penalty: replace these fields of
                ``self.limits`` and ``self.sampling``; ``stop`` may be one text.

        Raises:
            ConfigError: values that are refused, a setting given both singly and as a part of a whole, as many seeds as
                texts are wanted; else what :meth:`requests` and :meth:`Decoder.stream` raise.
        """
        singles = Singles(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, stop=stop,
        )  # fmt: skip
        sampling, limits = singles.sampling(sampling, self._own), singles.limits(limits, self.limits)
        texts, alone = prompts_of("text", text)
        requests = self.requests(texts, limits, seeds_for(len(texts), seed, "texts"))
        results = self.decoder(method, temperature=sampling.temperature).generate(requests, sampling)
        return results[0] if alone else results
