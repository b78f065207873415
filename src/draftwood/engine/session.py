"""The common base of pairs and translators: a target, its drafter and their tokenizer, ready to generate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NoReturn, Unpack, overload
from weakref import finalize

from draftwood.core.checks import short_repr
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.fit import check_draft_text
from draftwood.core.limits import Limits
from draftwood.core.methods import METHODS
from draftwood.core.rounds import Piece
from draftwood.core.seeds import seed_or_random, seeds_for
from draftwood.core.settings import Method
from draftwood.core.token_logprobs import LogprobsLike, logprob_settings
from draftwood.core.unknown import known_arguments
from draftwood.draft.adaptive.learnt import Knowledge
from draftwood.engine import arguments
from draftwood.engine.arguments import Array, CallSettings, LimitsLike, MethodLike, Prompt, limits_of, sampling_of
from draftwood.engine.decode import Decoder, recorder_of
from draftwood.engine.decoders import Decoders
from draftwood.engine.in_use import in_worker
from draftwood.engine.knowledge import Known
from draftwood.engine.prefixes import PrefixCache
from draftwood.engine.requests import Request, Result
from draftwood.loading.generation import final_token
from draftwood.loading.models import check_parts, eos_of
from draftwood.runners.factory import Runners, make_runners
from draftwood.runners.protocols import Runner, SourceRunner, TargetRunner
from draftwood.sampling.settings import Sampling
from draftwood.trace.record import Recorder
from draftwood.trace.records import Trace
from draftwood.trace.settings import TraceLike, trace_settings


class Session(ABC):
    """A target model, its draft model and their tokenizer. Subclasses encode inputs and set the defaults.

    Args:
        model, draft_model: the target, a model of ``transformers``, and the draft model, or None.
        tokenizer: the tokenizer of both.
        known: the methods that were measured as fastest, which method ``auto`` uses, and what adaptive methods know.
        runners: runners of both models; by default PyTorch runs the models, which may be trained further between calls.

    Attributes:
        model, draft_model, tokenizer: as given.
        target, draft: the runners of the models.
        engine: the library that runs them, and why (:class:`draftwood.runners.backends.EngineChoice`).
        eos: end-of-text token ids.
        final_token: the last token of a text that the limits end (``forced_eos_token_id``), or None.
        limits: the default limits of a call.
        remarks: settings of the target's generation config that are not honoured, in sentences.

    Raises:
        ConfigError: a model, a tokenizer or knowledge of another type.
        ModelError: a model that cannot score a tree.
        PairingError: a drafter that was trained for another target.
    """

    kind: ClassVar[Literal["language", "translation"]]
    _argument: ClassVar[str]  # names of an input in errors
    _item: ClassVar[str]
    target: TargetRunner | SourceRunner
    draft: Runner | None
    limits: Limits
    remarks: tuple[str, ...]

    def __init__(
        self,
        model: Any,
        draft_model: Any,
        tokenizer: Any,
        *,
        known: Known | None = None,
        runners: Runners | None = None,
    ) -> None:
        check_parts(model, draft_model, tokenizer)
        self.model, self.draft_model, self.tokenizer = model, draft_model, tokenizer
        self.target, self.draft, self.engine = runners or make_runners(model, draft_model, backend="torch")
        if known is not None and not isinstance(known, Known):
            raise ConfigError(f"known is {short_repr(known)}: give what draftwood.engine.knowledge.known_of returns")
        self.known = known or Known()
        self.eos = eos_of(model, tokenizer, self.target.vocab_size)
        self.final_token = final_token(model)
        self._decoders = Decoders(self.target, self.draft, tokenizer=tokenizer, eos=self.eos, known=self.known.learnt)
        self._reuse = getattr(self.target, "same_bits", False)  # no text changes, and the engine's weights are its own
        if self.known.path is not None:  # written once, when the process ends or the session is gone
            finalize(self, lambda known, decoders: known.keep(decoders.learnt), self.known, self._decoders)
        self._set_defaults()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied, pickled or sent to another process, as its models are in this one's "
            "memory: load one in each process, or share it between threads"
        )

    @abstractmethod
    def _set_defaults(self) -> None:
        """Set ``limits`` and ``remarks``."""

    @abstractmethod
    def encode(self, prompt: Prompt | Array, /) -> list[int]:
        """Token ids of one input."""

    @abstractmethod
    def request(self, ids: Sequence[int], limits: LimitsLike | None = None, seed: int | None = None) -> Request:
        """A request for an encoded input; a seed of None is drawn."""

    @abstractmethod
    def _sampling_with(self, given: Mapping[str, Any]) -> Sampling:
        """The target's own sampling, with the given settings replaced."""

    @cached_property
    def sampling(self) -> Sampling:
        """The default sampling of a call; raises what :meth:`own_sampling` raises."""
        return self._sampling_with({})

    def own_sampling(self, given: Mapping[str, Any] | None = None) -> Sampling:
        """The sampling of the target's generation config, with the given settings replaced.

        Raises:
            ConfigError: a setting that cannot be honoured, such as beam search without a given temperature; or a given
                truncation without effect.
        """
        return self._sampling_with(given) if given else self.sampling

    def method(
        self, method: MethodLike | None = None, *, temperature: float | None = None, draft_text: object = None
    ) -> Method:
        """The method with every ``auto`` replaced, for a temperature or that of :attr:`sampling`, and a draft text if any.

        A method without any setting is the one that ``tune`` has chosen, if it has, and if that takes drafts from the text.
        Raises a ConfigError if the named one takes none.
        """
        wanted, temperature = arguments.method_of(method), self.sampling.temperature if temperature is None else temperature
        if wanted == Method():
            chosen = self._decoders.resolve(self.known.choose(temperature), greedy=temperature == 0)
            if draft_text is None or METHODS[chosen.method].repeats:
                return chosen
        resolved = self._decoders.resolve(wanted, greedy=temperature == 0)
        check_draft_text(resolved, draft_text)
        return resolved

    def decoder(self, method: MethodLike | None = None, *, temperature: float | None = None) -> Decoder:
        """A decoder for token ids at a temperature, as :meth:`method`; other threads wait while one uses the models.

        Decoders of the same method share its estimates.
        """
        temperature = self.sampling.temperature if temperature is None else temperature
        return self._decoders.of(self.method(method, temperature=temperature), greedy=temperature == 0)

    def measure_costs(self) -> None:
        """Measure what drafting costs where method ``auto`` needs it, by a text of 33 rounds that is thrown away."""
        for temperature in (1.0, 0.0):
            self._decoders.measure_costs(self.method(temperature=temperature), temperature)

    @property
    def learnt(self) -> dict[str, Knowledge]:
        """Method and temperature -> what it has learnt, or knew from the start."""
        return self._decoders.learnt

    def recorder(
        self, requests: Sequence[Request], sampling: Sampling, method: MethodLike | None = None, *, trace: TraceLike = True
    ) -> Recorder:
        """Records the pieces of a decoder's stream with the same arguments, as ``trace`` of :meth:`generate` does.

        Raises:
            ConfigError: settings that are refused, or no trace is wanted.
        """
        decoder, resolved = self._with_method({"method": method}, sampling)
        if (kept := trace_settings(trace)) is None:
            raise ConfigError("trace is False, but a recorder makes a trace: give True or settings, or leave it out")
        return recorder_of(decoder, requests, sampling, method=resolved, draft=self.draft, kept=kept)

    def traced(
        self, requests: Sequence[Request], sampling: Sampling, method: MethodLike | None = None, *, trace: TraceLike = True
    ) -> list[Trace]:
        """The traces of requests; arguments as for :meth:`recorder`."""
        results = self._results(requests, sampling, {"method": method}, trace)
        return [result.trace for result in results if result.trace is not None]

    def _results(
        self, requests: Sequence[Request], sampling: Sampling, given: CallSettings, trace: TraceLike, *, reuse: bool = False
    ) -> list[Result]:
        """The texts of requests, each with its trace if one is wanted."""
        decoder, resolved = self._with_method(given, sampling)
        if (kept := trace_settings(trace)) is None:
            return decoder.generate(requests, sampling, reuse=reuse)
        made = recorder_of(decoder, requests, sampling, method=resolved, draft=self.draft, kept=kept)
        results = decoder.generate(requests, sampling, reuse=reuse, watch=made.take)
        return [replace(result, trace=found) for result, found in zip(results, made.traces(), strict=True)]

    def _with_method(self, given: CallSettings, sampling: Sampling) -> tuple[Decoder, Method]:
        resolved = self.method(given.get("method"), temperature=sampling.temperature, draft_text=given.get("draft_text"))
        return self._decoders.of(resolved, greedy=sampling.greedy), resolved

    def requests(
        self, prompts: Sequence[Prompt | Array], limits: LimitsLike | None, seeds: Sequence[int | None],
        logprobs: LogprobsLike = None, draft_text: Prompt | None = None,
    ) -> list[Request]:  # fmt: skip
        """Requests for inputs; a seed of None is drawn.

        Raises:
            ConfigError, CacheError: as :meth:`encode` and :meth:`request`, with the input's number if there are several.
        """
        for name, given in ((f"{self._argument}s", prompts), ("seeds", seeds)):
            if not isinstance(given, list | tuple):
                raise ConfigError(f"{name} is {short_repr(given)}: give a list")
        if len(seeds) != len(prompts):
            raise ConfigError(f"{len(seeds)} seeds came for {len(prompts)} {self._argument}s: give one each, or None")
        wanted, found = limits_of({"limits": limits}, self.limits), logprob_settings(logprobs)
        texts, drafts = enumerate(map(seed_or_random, seeds)), arguments.draft_ids(self.tokenizer, draft_text, wanted)
        return [replace(self._numbered(prompts, i, wanted, seed), logprobs=found, draft_text=drafts) for i, seed in texts]

    def _numbered(self, prompts: Sequence[Prompt | Array], index: int, limits: Limits, seed: int) -> Request:
        try:
            return self.request(self.encode(prompts[index]), limits, seed)
        except (ConfigError, CacheError) as error:
            if len(prompts) == 1:
                raise
            raise type(error)(f"{self._item} {index}: {error}") from error

    @known_arguments
    def stream(self, prompt: Prompt | Array, *, seed: int | None = None, **given: Unpack[CallSettings]) -> Generator[Piece]:
        """One text, round by round; arguments as for :meth:`generate`.

        Raises:
            ConfigError, CacheError: as :meth:`generate`; errors of :meth:`Decoder.stream` come with the first piece.
        """
        own, limits = sampling_of(given, self.own_sampling), limits_of(given, self.limits)
        requests = self.requests([prompt], limits, [seed], given.get("logprobs"), given.get("draft_text"))
        rounds = self._with_method(given, own)[0].stream(requests, own, reuse=self._reuse)
        return (piece for pieces in rounds for piece in pieces)

    @known_arguments
    def astream(
        self, prompt: Prompt | Array, *, seed: int | None = None, **given: Unpack[CallSettings]
    ) -> AsyncGenerator[Piece]:
        """:meth:`stream` for ``async for``: the rounds run in a thread of their own."""
        return in_worker(self.stream(prompt, seed=seed, **given), self._decoders.in_use)

    @property
    def prefixes(self) -> PrefixCache:
        """Texts that have ended, which serve later calls with their keys and values, and as drafts."""
        return self._decoders.prefixes

    @overload
    def generate(  # type: ignore[overload-overlap]  # to the type checker a str is a sequence of str
        self, prompt: str | Sequence[int], *, trace: TraceLike = False,
        seed: int | None = None, **given: Unpack[CallSettings],
    ) -> Result: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Sequence[str] | Sequence[Sequence[int]], *, trace: TraceLike = False,
        seed: int | Sequence[int] | None = None, **given: Unpack[CallSettings],
    ) -> list[Result]: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Array, *, trace: TraceLike = False,
        seed: int | Sequence[int] | None = None, **given: Unpack[CallSettings],
    ) -> Result | list[Result]: ...  # fmt: skip

    @known_arguments
    def generate(
        self, prompt: Prompt | Sequence[str] | Sequence[Sequence[int]] | Array, *, trace: TraceLike = False,
        seed: int | Sequence[int] | None = None, **given: Unpack[CallSettings],
    ) -> Result | list[Result]:  # fmt: skip
        """One text, or several at once.

        Args:
            prompt: a text or its token ids, or a list of these. An array or tensor of one dimension is one input, of two
                several. Token ids are used as given, without padding. A translator takes the text to translate.
            method: a method and its verifier, or the name of a method; the default is ``auto``.
            sampling: replaces ``self.sampling``.
            limits: replaces ``self.limits``.
            seed: the same seed gives the same text. For several texts, a single seed counts up from row to row. The default
                is drawn.
            max_new_tokens, stop: replace these fields of ``self.limits``; ``stop`` may be one text.
            temperature, top_k, top_p, min_p, repetition_penalty, grammar: replace these fields of ``self.sampling``.
            logprobs: report log-probabilities, and so many of the likeliest tokens, 0 to 20; or a :class:`LogprobSettings`.
            draft_text: a text or ids that the output may repeat, such as a file that it edits, for methods with lookup.
            trace: record every round (:attr:`Result.trace`); a :class:`TraceSettings` sets the bounds.

        Raises:
            ConfigError: refused values, a setting given twice, or what :meth:`requests` and :meth:`Decoder.stream` raise.
        """
        own, wanted = sampling_of(given, self.own_sampling), limits_of(given, self.limits)
        prompts, alone = arguments.prompts_of(self._argument, prompt)
        seeds = seeds_for(len(prompts), seed, f"{self._argument}s")
        requests = self.requests(prompts, wanted, seeds, given.get("logprobs"), given.get("draft_text"))
        results = self._results(requests, own, given, trace, reuse=self._reuse)
        return results[0] if alone else results
