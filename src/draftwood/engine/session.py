"""A target, its drafter and their tokenizer, ready to write texts: what pairs and translators have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, overload

from torch import nn

from draftwood.core.arguments import (
    Array,
    LimitsLike,
    MethodLike,
    Prompt,
    SamplingLike,
    Singles,
    method_of,
    prompts_of,
)
from draftwood.core.checks import shown
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.limits import Limits
from draftwood.core.seeds import drawn, seeds_for
from draftwood.core.settings import Method, Sampling
from draftwood.engine.decode import Decoder
from draftwood.engine.decoders import Decoders
from draftwood.engine.requests import Piece, Request, Result
from draftwood.loading.generation import final_token
from draftwood.loading.models import eos_of
from draftwood.loading.profile import Profile, ProfileKey
from draftwood.runners.protocols import Runner


class Session(ABC):
    """Methods, decoders, requests and the arguments of a call. Subclasses encode inputs and know the defaults.

    Args:
        model: the target, a model of ``transformers``.
        target, draft: runners of both models.
        tokenizer: the tokenizer of both.
        profile_key: what a profile has to be measured for, where the models' files are known.
        profile: what was found to be fastest; method ``auto`` takes it.

    Attributes:
        eos: end-of-text token ids.
        final_token: what a text ends with where the limits end it (``forced_eos_token_id``), None if any may.
        limits: what a call without limits of its own uses.
        remarks: what the target's generation config sets and is not honoured, in sentences.
    """

    _argument: ClassVar[str]  # names of one input and of several in errors
    _item: ClassVar[str]
    remarks: tuple[str, ...]
    limits: Limits

    def __init__(
        self,
        model: Any,
        target: Runner,
        draft: Runner | None,
        tokenizer: Any,
        *,
        profile_key: ProfileKey | None = None,
        profile: Profile | None = None,
    ) -> None:
        _check("profile", profile, Profile, "a profile of draftwood.loading.profile")
        _check("profile_key", profile_key, Mapping, "what profile_key_of returns")
        self.tokenizer = tokenizer
        self.profile_key = profile_key
        self.profile = profile
        self.eos = eos_of(model, tokenizer, target.vocab_size)
        self.final_token = final_token(model)
        self._decoders = Decoders(target, draft, tokenizer=tokenizer, eos=self.eos)

    @abstractmethod
    def encode(self, prompt: Prompt | Array, /) -> list[int]:
        """Token ids of one input."""

    @abstractmethod
    def request(self, ids: Sequence[int], limits: LimitsLike | None = None, seed: int | None = None) -> Request:
        """A request for an input that is encoded already; a seed that is None is drawn."""

    @abstractmethod
    def _sampling_with(self, given: Mapping[str, Any]) -> Sampling:
        """The target's own sampling, where settings are not given by name."""

    @cached_property
    def sampling(self) -> Sampling:
        """What a call without a sampling of its own uses; raises what :meth:`own_sampling` raises."""
        return self._sampling_with({})

    def own_sampling(self, given: Mapping[str, Any] | None = None) -> Sampling:
        """What the target's generation config says, where settings of a :class:`Sampling` are not given by name.

        Raises:
            ConfigError: a setting of the config that cannot be honoured, such as beam search without a given temperature; or
                a given truncation without effect.
        """
        return self._sampling_with(given) if given else self.sampling

    def method(self, method: MethodLike | None = None, *, temperature: float | None = None) -> Method:
        """What is drafted and how it is verified at a temperature (without one, that of :attr:`sampling`), every ``auto``
        replaced.

        Without any setting of its own, the method is that of the profile, if there is one.
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

    def requests(
        self, prompts: Sequence[Prompt | Array], limits: LimitsLike | None, seeds: Sequence[int | None]
    ) -> list[Request]:
        """Encoded requests; a seed that is None is drawn.

        Raises:
            ConfigError, CacheError: an input that cannot be read, by its number where there are several; what
                :meth:`encode` and :meth:`request` raise.
        """
        for name, given in ((f"{self._argument}s", prompts), ("seeds", seeds)):
            if not isinstance(given, list | tuple):
                raise ConfigError(f"{name} is {shown(given)}: give a list")
        if len(seeds) != len(prompts):
            raise ConfigError(f"{len(seeds)} seeds came for {len(prompts)} {self._argument}s: give one each, or None")
        wanted = Singles().limits(limits, self.limits)
        return [self._numbered(prompts, i, wanted, seed) for i, seed in enumerate(map(drawn, seeds))]

    def _numbered(self, prompts: Sequence[Prompt | Array], index: int, limits: Limits, seed: int) -> Request:
        try:
            return self.request(self.encode(prompts[index]), limits, seed)
        except (ConfigError, CacheError) as error:
            if len(prompts) == 1:
                raise
            raise type(error)(f"{self._item} {index}: {error}") from error

    def stream(
        self, prompt: Prompt | Array, *,
        method: MethodLike | None = None, sampling: SamplingLike | None = None, limits: LimitsLike | None = None,
        seed: int | None = None, max_new_tokens: int | None = None, temperature: float | None = None,
        top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, stop: str | Sequence[str] | None = None,
    ) -> Iterator[Piece]:  # fmt: skip
        """One text, round by round; arguments as for :meth:`generate`.

        Raises:
            ConfigError, CacheError: what :meth:`generate` refuses; the errors of :meth:`Decoder.stream` come with the first
                piece.
        """
        singles = Singles(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, stop=stop,
        )  # fmt: skip
        own, wanted = singles.sampling(sampling, self.own_sampling), singles.limits(limits, self.limits)
        requests = self.requests([prompt], wanted, [seed])
        rounds = self.decoder(method, temperature=own.temperature).stream(requests, own)
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
        """One text, or several at once.

        Args:
            prompt: a text or its token ids, or a list of these; an array or tensor of one dimension is one input, of two
                several. Token ids are taken as they are, without padding. A translator reads the text to translate.
            method: what is drafted and how it is verified, or the name of a method; ``auto`` without it.
            sampling: how tokens are drawn, as a whole.
            limits: when a text ends, as a whole.
            seed: the same seed gives the same text; with several texts, one seed counts up from row to row. Drawn without
                it.
            max_new_tokens, stop: replace these fields of ``self.limits``; ``stop`` may be one text.
            temperature, top_k, top_p, min_p, repetition_penalty: replace these fields of ``self.sampling``.

        Raises:
            ConfigError: values that are refused, a setting given both singly and as a part of a whole, a number of seeds
                that is not the number of texts; else what :meth:`requests` and :meth:`Decoder.stream` raise.
        """
        singles = Singles(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, stop=stop,
        )  # fmt: skip
        own, wanted = singles.sampling(sampling, self.own_sampling), singles.limits(limits, self.limits)
        prompts, alone = prompts_of(self._argument, prompt)
        requests = self.requests(prompts, wanted, seeds_for(len(prompts), seed, f"{self._argument}s"))
        results = self.decoder(method, temperature=own.temperature).generate(requests, own)
        return results[0] if alone else results


def check_parts(model: Any, draft_model: Any, tokenizer: Any) -> None:
    """Refuse names and other things in the place of models and their tokenizer.

    Raises:
        ConfigError: names the argument.
    """
    for name, given, needed in (("model", model, True), ("draft_model", draft_model, False)):
        if not isinstance(given, nn.Module) and (needed or given is not None):
            raise ConfigError(f"{name} is {shown(given)}: give a model of transformers; names and folders are for load")
    if isinstance(tokenizer, str | int | float | Mapping | Sequence | nn.Module):
        raise ConfigError(f"tokenizer is {shown(tokenizer)}: give a tokenizer of transformers, or None for token ids only")


def _check(name: str, given: object, kind: Any, wanted: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise ConfigError(f"{name} is {shown(given)}: give {wanted}")
