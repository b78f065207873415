"""Loading a pair of models and generating text with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
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
    tokenized,
)
from draftwood.core.checks import settings
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.limits import Limits
from draftwood.core.machine import set_threads
from draftwood.core.settings import LoadOptions, Method, Sampling
from draftwood.engine.decode import Decoder, Piece, Request, Result
from draftwood.engine.decoders import Decoders, drawn, seeds_for
from draftwood.loading.checkpoint import check_path
from draftwood.loading.generation import final_token, own_sampling, remarks
from draftwood.loading.models import (
    check_tokenizers,
    choose_device,
    choose_dtype,
    eos_of,
    is_encoder_decoder,
    load_model,
    load_tokenizer,
    named_or_bundled,
    openvino_place,
)
from draftwood.loading.profile import Profile, ProfileKey, find, profile_key_of
from draftwood.runners.factory import Runners, make_runners
from draftwood.runners.protocols import ModelRunner
from draftwood.runners.support import check_window

_LOG = logging.getLogger(__name__)


def load(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    options: LoadOptions | Mapping[str, Any] | None = None,
) -> Pair:
    """Load a target and, optionally, a draft model: hub names or local folders, safetensors only.

    Without a target the bundled language pair is loaded. What ``draftwood tune`` found out about the pair on this machine is
    used, unless ``options.profile`` says otherwise. Models that OpenVINO runs
    (:func:`draftwood.runners.factory.make_runners` says when) are compiled copies: whoever trains ``pair.target.model`` on
    wants ``options.backend`` ``torch``.

    Raises:
        ConfigError: an unknown option, device or dtype, a draft without a target, a profile that was named and does not fit.
        ModelError: a model or tokenizer that cannot be loaded or cannot score a tree.
        PairingError: two models that do not speak the same tokens.
    """
    options = LoadOptions() if options is None else settings("options", options, LoadOptions)
    target, draft = named_or_bundled("language", target, draft)
    for name in (target, draft):
        if name is not None:
            check_path(name)
    if options.threads is not None:
        set_threads(options.threads)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    tokenizer = load_tokenizer(target, options)
    if is_encoder_decoder(target, options):
        raise ModelError(f"{str(target)!r} is an encoder-decoder model: use draftwood translate, or load_translator")
    model = load_model(target, options, device, dtype)
    draft_model = None
    if draft is not None:
        draft_model = load_model(draft, options, device, dtype)
        check_tokenizers(tokenizer, load_tokenizer(draft, options), str(target), str(draft))
    place = openvino_place(options.device)
    runners = make_runners(model, draft_model, backend=options.backend, weights=options.weights, place=place)
    profile_key = profile_key_of(target, draft, dtype, device, runners.target.engine)
    pair = Pair(
        model, draft_model, tokenizer, profile_key=profile_key, profile=find(options.profile, profile_key), runners=runners
    )
    for remark in pair.remarks:
        _LOG.warning("%s", remark)
    return pair


@final
class Pair:
    """A target model, its draft model and their tokenizer, ready to generate.

    Without a ``sampling`` of its own a call uses ``self.sampling``: its distribution is that of ``model.generate`` under the
    target's generation config, so the most likely text unless that says ``do_sample``. How long texts become and which stop
    strings end them is left to the limits.

    Args:
        model: the target, a ``transformers`` causal language model.
        draft_model: the draft model, or None.
        tokenizer: the tokenizer of both.
        profile_key: what a profile has to be measured for, where the models' files are known.
        profile: what was found to be fastest; method ``auto`` takes it.
        runners: runners of both models; without them PyTorch runs the models, which may be trained on meanwhile.

    Attributes:
        target, draft: their runners.
        fallback: why backend ``auto`` is PyTorch for this pair; None where it is OpenVINO, or a backend was named.
        final_token: what a text ends with where the limits end it (``forced_eos_token_id``), None if any may.
        remarks: what the target's generation config asks and no sampling can say (such as stop strings), in sentences.

    Raises:
        ModelError: a model that cannot score a tree.
    """

    def __init__(
        self,
        model: Any,
        draft_model: Any,
        tokenizer: Any,
        *,
        profile_key: ProfileKey | None = None,
        profile: Profile | None = None,
        runners: Runners | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.profile_key = profile_key
        self.profile = profile
        self.target, self.draft, self.fallback = runners or make_runners(model, draft_model, backend="torch")
        self.eos = eos_of(model, tokenizer, self.target.vocab_size)
        self._decoders = Decoders(self.target, self.draft, tokenizer=tokenizer, eos=self.eos)
        self.remarks = remarks(model)
        self.final_token = final_token(model)

    @cached_property
    def sampling(self) -> Sampling:
        """What the target's generation config asks for; raises what :meth:`own_sampling` raises."""
        return own_sampling(self.target.model, self.eos)

    def own_sampling(self, given: Mapping[str, Any] | None = None) -> Sampling:
        """What the target's generation config asks for, where settings of a :class:`Sampling` are not given by name.

        Raises:
            ConfigError: a setting of the config that cannot be honoured, such as beam search without a given temperature; or
                a given truncation without effect.
        """
        return own_sampling(self.target.model, self.eos, given) if given else self.sampling

    def __repr__(self) -> str:
        def told(runner: ModelRunner | None) -> str:
            if runner is None:
                return "None"
            size = sum(p.numel() for p in runner.model.parameters()) / 1e6
            kind, dtype = type(runner.model).__name__, str(runner.model.dtype)[6:]
            return f"<{kind}, {size:.1f} M, {dtype} on {runner.device} by {runner.engine}>"

        return f"Pair(target={told(self.target)}, draft={told(self.draft)})"

    def method(self, method: MethodLike | None = None, *, temperature: float | None = None) -> Method:
        """What is drafted and how it is verified at a temperature (without one, that of :attr:`sampling`), every ``auto``
        replaced.

        Where nothing at all is asked for, the profile decides, if there is one, for the whole text.
        """
        wanted = method_of(method)
        temperature = self.sampling.temperature if temperature is None else temperature
        if wanted == Method() and self.profile is not None:
            wanted = self.profile.choose(temperature)
        return self._decoders.resolve(wanted, greedy=temperature == 0)

    def decoder(self, method: MethodLike | None = None, *, temperature: float | None = None) -> Decoder:
        """A decoder for token ids, for texts of this temperature (as :meth:`method`); the models serve one stream at a time.

        Decoders of the same method share what their drafter has learnt about the pair and the machine.
        """
        temperature = self.sampling.temperature if temperature is None else temperature
        return self._decoders.of(self.method(method, temperature=temperature), greedy=temperature == 0)

    def encode(self, prompt: Prompt | Array) -> list[int]:
        """Token ids of a prompt, those of token ids as they are; an empty prompt becomes the beginning-of-text token.

        A text that begins with that token already, as chat templates write it, does not get another one.

        Raises:
            ConfigError: an empty prompt for a tokenizer without a beginning-of-text token, or neither text nor token ids.
        """
        given = prompt_of("prompt", prompt)
        ids = tokenized(self.tokenizer, given) if isinstance(given, str) else given
        if not ids and self.tokenizer.bos_token_id is not None:
            ids = [int(self.tokenizer.bos_token_id)]
        if not ids:
            raise ConfigError("the prompt is empty and the tokenizer has no beginning-of-text token: give some text")
        return ids

    def requests(
        self, prompts: Sequence[Prompt | Array], limits: LimitsLike | None, seeds: Sequence[int | None]
    ) -> list[Request]:
        """Encoded requests; a seed that is None is drawn.

        Raises:
            ConfigError: an empty prompt.
            CacheError: prompt and ``max_new_tokens`` do not fit the target's sliding window.
        """
        wanted = Singles().limits(limits, Limits())
        encoded = [self.encode(prompt) for prompt in prompts]
        for prompt in encoded:
            check_window(self.target.model, len(prompt) + wanted.max_new_tokens)
        return [
            Request(prompt=prompt, seed=drawn(seed), limits=wanted, final=self.final_token)
            for prompt, seed in zip(encoded, seeds, strict=True)
        ]

    def stream(
        self, prompt: Prompt | Array, *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> Iterator[Piece]:  # fmt: skip
        """One prompt, round by round; arguments as for :meth:`generate`.

        Raises:
            ConfigError: what :meth:`generate` refuses; the errors of :meth:`Decoder.stream` come with the first piece.
        """
        singles = Singles(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, stop=stop,
        )  # fmt: skip
        sampling, limits = singles.sampling(sampling, self.own_sampling), singles.limits(limits, Limits())
        requests = self.requests([prompt], limits, [seed])
        rounds = self.decoder(method, temperature=sampling.temperature).stream(requests, sampling)
        return (piece for pieces in rounds for piece in pieces)

    @overload
    def generate(  # type: ignore[overload-overlap]  # to the type checker a str is a sequence of str
        self, prompt: str | Sequence[int], *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> Result: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Sequence[str] | Sequence[Sequence[int]], *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | Sequence[int] | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> list[Result]: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Array, *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | Sequence[int] | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> Result | list[Result]: ...  # fmt: skip

    def generate(
        self, prompt: Prompt | Sequence[str] | Sequence[Sequence[int]] | Array, *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | Sequence[int] | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> Result | list[Result]:  # fmt: skip
        """One prompt, or several at once.

        Args:
            prompt: a text or its token ids, or a list of these; an array or tensor of one dimension is one prompt, of two
                several. Token ids are taken as they are, without padding.
            method: what is drafted and how it is verified, or the name of a method; ``auto`` without it.
            sampling: how tokens are drawn, as a whole.
            limits: when a text ends, as a whole.
            seed: the same seed gives the same text; with several prompts, one seed counts up from row to row. Drawn without
                it.
            max_new_tokens, stop: replace these fields of the default limits; ``stop`` may be one text.
            temperature, top_k, top_p, min_p, repetition_penalty: replace these fields of ``self.sampling``.

        Raises:
            ConfigError: values that are refused, a setting given both singly and as a part of a whole, as many seeds as
                prompts are wanted; else what :meth:`Decoder.stream` raises.
        """
        singles = Singles(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, stop=stop,
        )  # fmt: skip
        sampling, limits = singles.sampling(sampling, self.own_sampling), singles.limits(limits, Limits())
        prompts, alone = prompts_of("prompt", prompt)
        requests = self.requests(prompts, limits, seeds_for(len(prompts), seed, "prompts"))
        results = self.decoder(method, temperature=sampling.temperature).generate(requests, sampling)
        return results[0] if alone else results
