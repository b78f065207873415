"""Loading a pair of models and generating text with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, final, overload

from draftwood.core.checks import flag, settings
from draftwood.core.draft_kind import MTP
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.limits import Limits
from draftwood.core.rounds import Piece
from draftwood.core.seeds import seed_or_random
from draftwood.core.settings import LoadOptions
from draftwood.core.token_logprobs import LogprobSettings, TokenLogprob, logprob_settings
from draftwood.core.unknown import known_arguments
from draftwood.engine import arguments
from draftwood.engine.arguments import Array, CallSettings, LimitsLike, Prompt, limits_of, sampling_of
from draftwood.engine.chat import MAX_NEW_TOKENS, ChatTemplate
from draftwood.engine.knowledge import known_of
from draftwood.engine.logprobs import of_prompt
from draftwood.engine.messages import Message
from draftwood.engine.requests import Request, Result
from draftwood.engine.session import Session
from draftwood.hardware.threads import loading_threads
from draftwood.loading.causal import load_target
from draftwood.loading.drafts import load_draft
from draftwood.loading.generation import max_new_tokens_of, own_sampling, remarks
from draftwood.loading.models import load_tokenizer
from draftwood.loading.names import located, recommended
from draftwood.loading.plan import plan_for
from draftwood.loading.profile import profile_key_of
from draftwood.runners.factory import Runners, runners_by
from draftwood.runners.native.stored import weight_sizes
from draftwood.runners.protocols import TargetRunner
from draftwood.runners.support import check_exact
from draftwood.sampling.settings import Sampling
from draftwood.trace.settings import TraceLike, trace_settings

_LOG = logging.getLogger(__name__)
S = TypeVar("S", bound=Session)
_NOT = {
    "language": "is an encoder-decoder model: use draftwood translate, or load_translator",
    "translation": "is no encoder-decoder model: use draftwood generate, or load",
}
"""Kind of a session -> what is said of a model that is not of this kind."""


@known_arguments
def load(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    options: LoadOptions | Mapping[str, Any] | None = None,
) -> Pair:
    """Load a target and, optionally, a draft model: folders or hub names with safetensors, GGUF files, or short names.

    A folder with just one GGUF file stands for it. Short names, such as ``smollm2``, are in
    :data:`draftwood.loading.names.SHORT_NAMES`. A draft may be an EAGLE-3, DFlash or DSpark checkpoint.
    Without one the MTP head in the target's files drafts, if they hold one: ``mtp`` names it, and ``none`` leaves it out.

    Without a target the bundled language pair is loaded. The profile that ``draftwood tune`` measured for the pair on this
    machine is used, unless ``options.profile`` says otherwise. The costs of drafting are measured. They and what adaptive
    methods learn are kept for the next process, unless it is ``none``. The native engine runs copies of models
    (:mod:`draftwood.runners.factory`): take backend ``torch`` to train ``pair.model`` further.

    With ``device_map``, accelerate spreads the target over devices.

    Raises:
        ConfigError: an unknown option, device or dtype, a draft without a target, a named profile that does not match.
        ModelError: a model or tokenizer that cannot be loaded, or a model that cannot score a tree.
        PairingError: two models with too few tokens of the same text.
    """
    pair = load_session(Pair, target, draft, LoadOptions() if options is None else settings("options", options, LoadOptions))
    pair.measure_costs()
    for remark in pair.remarks:
        _LOG.warning("%s", remark)
    return pair


def load_session(cls: type[S], target: str | Path | None, draft: str | Path | None, options: LoadOptions) -> S:
    """A session with the named models, or with the bundled ones of its kind; raises what :func:`load` raises."""
    place, drafter = located(cls.kind, target, draft)
    with loading_threads(options.threads):
        found = _load(cls, place, drafter, options, named=draft is not None)
    for name, value in recommended(target or place).items():
        setattr(found.model.generation_config, name, value)
    return found


def _load(cls: type[S], target: str | Path, draft: str | Path | None, options: LoadOptions, *, named: bool) -> S:
    """A session. A head of the target's that was not named is left out, with a note, where it cannot be used."""
    plan = plan_for(target, draft, options)
    if plan.kind.reads_source != (cls.kind == "translation"):
        raise ModelError(f"{str(target)!r} {_NOT[cls.kind]}")
    tokenizer = load_tokenizer(target, options)
    plan = plan.for_tokens(tokenizer)
    model = load_target(plan)

    def with_draft(draft: str | Path | None) -> tuple[Any, Runners]:
        draft_model = None if draft is None else load_draft(plan, model, tokenizer)
        return draft_model, runners_by(plan.engine, model, draft_model, plan.shared)

    try:
        draft_model, runners = with_draft(draft)
        broken = ""
    except ModelError as error:
        if named or plan.draft_kind is not MTP:
            raise
        broken = str(error)
    if broken:  # here the error, and what it holds, is gone
        vars(model).pop("module", None)  # which PyTorch may have built
        draft_model, runners = with_draft(draft := None)
        _LOG.warning("texts are drafted without the target's MTP head (draft none does so without this note): %s", broken)
    known = known_of(options.profile, profile_key_of(target, draft, plan.dtype, plan.device, runners.target.engine), draft)
    model = getattr(runners.target, "model", model)  # PyTorch has built that of a stored one
    return cls(model, draft_model, tokenizer, known=known, runners=runners)


@final
class Pair(Session):
    """A target model, its draft model and their tokenizer, ready to generate.

    A call uses ``self.sampling`` by default. Its distribution is that of ``model.generate`` under the target's generation
    config: greedy decoding without ``do_sample``. The length and stop strings of texts are set by the limits. Arguments and
    other attributes are those of :class:`draftwood.engine.session.Session`.

    Attributes:
        special_tokens_in_content: names of special tokens, such as ``<|im_end|>``, in messages of chats become these tokens;
            by default they are text.
        remarks: settings of the target's generation config that are not part of a sampling, such as stop strings.
    """

    kind = "language"
    _argument = _item = "prompt"
    target: TargetRunner
    special_tokens_in_content = False

    def _set_defaults(self) -> None:
        self.limits, self.remarks = Limits(), remarks(self.model)

    def __repr__(self) -> str:
        def described(model: Any, runner: Any) -> str:
            if runner is None:
                return "None"
            size = sum(count for count, _ in weight_sizes(model)) / 1e6
            return f"<{type(model).__name__}, {size:.1f} M, {str(model.dtype)[6:]} on {runner.device} by {runner.engine}>"

        return f"Pair(target={described(self.model, self.target)}, draft={described(self.draft_model, self.draft)})"

    def encode(self, prompt: Prompt | Array) -> list[int]:
        """Token ids of a text; given token ids are unchanged. An empty prompt becomes the beginning-of-text token.

        A text that already begins with this token, as chat templates write it, does not get another one.

        Raises:
            ConfigError: an empty prompt without a beginning-of-text token, or neither text nor token ids.
        """
        given = arguments.prompt_of("prompt", prompt)
        ids = arguments.tokenized(self.tokenizer, given) if isinstance(given, str) else given
        if not ids and self.tokenizer.bos_token_id is not None:
            ids = [int(self.tokenizer.bos_token_id)]
        if not ids:
            raise ConfigError("the prompt is empty and the tokenizer has no beginning-of-text token: give some text")
        return ids

    def request(self, ids: Sequence[int], limits: LimitsLike | None = None, seed: int | None = None) -> Request:
        """A request for an encoded prompt; a seed of None is drawn.

        Raises:
            CacheError: prompt and ``max_new_tokens`` exceed the length up to which the target's trees are exact.
        """
        wanted = limits_of({"limits": limits}, self.limits)
        check_exact(self.model, len(ids) + wanted.max_new_tokens)
        return Request(prompt=ids, seed=seed_or_random(seed), limits=wanted, final=self.final_token)

    def prompt_logprobs(self, prompt: Prompt | Array, *, top: int = 0) -> list[TokenLogprob | None]:
        """The target's log-probability of every token of a prompt, without generating; None for the first token.

        They are the model's own, as for ``of="model"``. The prompt is read into a memory of its own, so a call may come
        between the rounds of a stream. ``top`` is as in :class:`LogprobSettings`.

        Raises:
            ConfigError: as :meth:`encode`, or ``top`` out of range.
            CacheError: the prompt exceeds the target's context.
            NumericsError: scores that are NaN.
        """
        ids, wanted = self.encode(prompt), LogprobSettings(top=top)
        check_exact(self.model, len(ids))
        return [None, *chain.from_iterable(of_prompt(self.target.another(), ids, wanted.top))]

    @cached_property
    def chat_limits(self) -> Limits:
        """The default limits of an answer: ``max_new_tokens`` of the target's generation config, or 1,024 tokens."""
        own = max_new_tokens_of(self.model)
        return Limits(max_new_tokens=MAX_NEW_TOKENS if own is None else own)

    @cached_property
    def template(self) -> ChatTemplate:
        """What writes chats as token ids."""
        return ChatTemplate(self.tokenizer, self.target.vocab_size)

    def chat_request(
        self, messages: Sequence[Message], limits: LimitsLike | None = None, seed: int | None = None, *,
        chat_template_kwargs: Mapping[str, Any] | None = None, continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Request:  # fmt: skip
        """A request for the next answer; a seed of None is drawn. The chat template gets the tools. The other arguments are
        those of :meth:`chat`.

        Raises:
            ConfigError: messages that are not valid, no chat template, or one that refuses these messages.
            CacheError: as :meth:`request`.
        """
        wanted = limits_of({"limits": limits}, self.chat_limits)
        ids = self.template.encode(
            messages,
            chat_template_kwargs,
            tools=tools,
            continues=flag("continue_final_message", continue_final_message),
            special_tokens=self.special_tokens_in_content,
        )
        if not wanted.ignore_eos:
            wanted = replace(wanted, stop_token_ids=(*wanted.stop_token_ids, *self.template.ends))
        return self.request(ids, wanted, seed)

    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, trace: TraceLike = False,
        seed: int | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False, **given: Unpack[CallSettings],
    ) -> Result: ...  # fmt: skip

    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[True],
        seed: int | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False, **given: Unpack[CallSettings],
    ) -> Iterator[Piece]: ...  # fmt: skip

    @known_arguments
    def chat(
        self, messages: Sequence[Message], *, stream: bool = False, trace: TraceLike = False,
        seed: int | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False, **given: Unpack[CallSettings],
    ) -> Result | Iterator[Piece]:  # fmt: skip
        """The model's answer to a chat, written in the target's own chat template.

        Keys and values stay in memory. If the next call continues the chat, only its new tokens are read. The answer ends
        with an end-of-text token or with the token that ends a turn in the template. After a change of a model's weights,
        call :meth:`~draftwood.runners.protocols.Runner.clear` of its runner.

        Args:
            messages: mappings with a ``role`` (system, developer, user, assistant or tool) and a ``content``: a text, or a
                list of parts of type ``text``. The template gets other fields unchanged. A developer is the system where the
                template knows none. ``tool`` and ``tool_calls`` need a template that writes them.
            stream: return the answer piece by piece, as :meth:`stream` does.
            limits: replaces ``self.chat_limits``.
            chat_template_kwargs: further values that the template reads, such as ``{"enable_thinking": False}``.
            continue_final_message: the last message is the assistant's, and the answer continues it.
            method, sampling, seed, max_new_tokens, temperature, top_k, top_p, min_p, logprobs, grammar, repetition_penalty,
                stop, draft_text, trace: as for :meth:`generate`; a stream has no trace.

        Raises:
            ConfigError: as :meth:`generate`; messages that are not valid, no chat template, or one that refuses them.
            CacheError: as :meth:`generate`.
        """
        own, wanted = sampling_of(given, self.own_sampling), limits_of(given, self.chat_limits)
        request = self.chat_request(
            messages, wanted, seed, chat_template_kwargs=chat_template_kwargs, continue_final_message=continue_final_message
        )
        drafts = arguments.draft_ids(self.tokenizer, given.get("draft_text"), wanted)
        request = replace(request, logprobs=logprob_settings(given.get("logprobs")), draft_text=drafts)
        if not flag("stream", stream):
            return self._results([request], own, given, trace, reuse=True)[0]
        if trace_settings(trace) is not None:
            raise ConfigError("trace is for whole answers, and stream gives pieces: record them with pair.recorder")
        rounds = self._with_method(given, own)[0].stream([request], own, reuse=True)
        return (piece for pieces in rounds for piece in pieces)

    def _sampling_with(self, given: Mapping[str, Any]) -> Sampling:
        return own_sampling(self.model, self.eos, given)
