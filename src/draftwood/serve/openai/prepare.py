"""From the fields of a request to what the engine writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, final

from draftwood.api import Pair
from draftwood.core.checks import short_repr
from draftwood.core.limits import Limits
from draftwood.core.methods import METHODS
from draftwood.core.seeds import seeds_for
from draftwood.core.settings import MAX_SEED, Method
from draftwood.core.token_logprobs import LogprobSettings
from draftwood.engine.arguments import draft_ids
from draftwood.grammar.constraint import Grammars
from draftwood.loading.generation import max_new_tokens_of
from draftwood.loading.infill import Infill
from draftwood.sampling.settings import Sampling
from draftwood.serve.decoding.jobs import Job, TextDelta
from draftwood.serve.http.errors import ApiError, bad
from draftwood.serve.http.fields import NO_LIMIT, unsupported
from draftwood.serve.http.settings import ServeOptions
from draftwood.serve.openai.answers import Answer
from draftwood.serve.openai.bodies import ignored
from draftwood.serve.openai.chats import Chats
from draftwood.serve.openai.sampling import drafting_of, grammar_of, sampling_of
from draftwood.serve.openai.schemas import ChatBody, ChatMessage, CompletionBody, Settings, TemplateFields, TokenizeBody

COMPLETION_TOKENS = 16
"""Default of ``max_tokens`` for completions, as in OpenAI's interface."""
_CHARACTERS = 12  # per token; three times as many as a token of English has
_STEPS: Final = 16  # in which a conversation is shortened, at most
_NAME = 32  # characters: longer names, roles and types count as text


@final
class Preparation:
    """Makes requests of a pair.

    Args:
        method: the server's drafting method, without ``auto``.
        grammars: of the server's decoder; they are compiled here, since other texts would wait in the decoding thread.
        most: the most texts of a request.
        longest: tokens of the longest text that fits in memory; None is no bound.
    """

    def __init__(
        self, pair: Pair, options: ServeOptions, method: Method, grammars: Grammars, *, most: int, longest: int | None
    ) -> None:
        self._pair, self._options, self._method, self._grammars, self._most = pair, options, method, grammars, most
        self._chats = Chats(pair, options)
        bounds = options.max_length, longest, pair.target.max_length
        self.max_length = min((bound for bound in bounds if bound is not None), default=None)

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""
        return bool(getattr(self._pair.tokenizer, "chat_template", None))

    def chat(self, body: ChatBody, key: str, *, whole_calls: bool = False, truncates: bool = False) -> Answer:
        """The answers that a chat wants.

        Args:
            key: whose texts the prefix cache serves it with.
            whole_calls: calls come when they have ended.
            truncates: a conversation that does not fit loses its oldest messages.

        Raises:
            ApiError, DraftwoodError: what cannot be honoured.
        """
        self._check_count(body, 1)
        prompt, fitted, left_out = self._fitting(body, truncates=truncates)
        limits, sampling, remarks = self._settings(body, self._pair.template.ends, [fitted])
        reading = self._chats.reading(body, prompt, held=sampling.grammar is not None, whole=whole_calls)
        remarks += self._unread(body)
        if (budget := body.thinking_token_budget) not in (None, NO_LIMIT) and reading.thinks is not None:
            sampling, more = self._chats.budgeted(budget, len(prompt), sampling, reading)
            remarks += more
        jobs = self._jobs(body, [prompt], [fitted], limits, sampling, key, reading.shown)
        return Answer(jobs=jobs, choices=len(jobs), warnings=[*remarks, *left_out], reading=reading)

    def _prompt_and_room(self, body: ChatBody, messages: Sequence[ChatMessage]) -> tuple[list[int], int]:
        """The prompt of a chat, and the most tokens of an answer."""
        prompt, own = self.chat_prompt(messages, body), max_new_tokens_of(self._pair.model)
        return prompt, self._fitted(len(prompt), body.longest, NO_LIMIT if own is None else own, "messages")

    def _fitting(self, body: ChatBody, *, truncates: bool) -> tuple[list[int], int, list[str]]:
        """The same; if it ``truncates``, without as much of the conversation's beginning as does not fit, and a remark on
        it. System texts stay, and the last turn."""
        left, step = 0, max(1, len(body.messages) // _STEPS)
        users = [place for place, message in enumerate(body.messages) if message.role == "user"]
        while True:
            kept = [one for at, one in enumerate(body.messages) if at >= left or one.role in ("system", "developer")]
            try:
                found = self._prompt_and_room(body, kept)
            except ApiError as error:
                if not truncates or error.code != "context_length_exceeded" or not users or left >= users[-1]:
                    raise
                left = next((place for place in users if place >= left + step), users[-1])
            else:
                gone = len(body.messages) - len(kept)
                says = f"the {gone} oldest messages were left out, since they did not fit (truncation auto)"
                return (*found, [says] if gone else [])

    def completion(self, body: CompletionBody, key: str) -> Answer:
        """The texts that prompts want. ``key`` and errors are as for :meth:`chat`."""
        given = body.prompts
        self._check_count(body, len(given))
        for prompt in given:
            self._check_length(prompt, "prompt")
        prompts = [self._around_gap(prompt, body) if body.suffix else self._encoded(prompt, body) for prompt in given]
        fitted = [self._fitted(len(prompt), body.longest, COMPLETION_TOKENS, "prompt") for prompt in prompts]
        limits, sampling, remarks = self._settings(body, self._infill.ends if body.suffix and self._infill else (), fitted)
        jobs, choices = self._jobs(body, prompts, fitted, limits, sampling, key), body.n or 1
        shown = [self._shown(*one) for one in zip(given, prompts, strict=True)] if body.echo else []
        for number, job in enumerate(jobs):
            job.only_scored = body.max_tokens == 0
            if shown:
                job.echo = TextDelta(tokens=(), text=shown[number // choices], finish_reason=None)
        return Answer(jobs=jobs, choices=choices, warnings=remarks)

    def _encoded(self, prompt: str | list[int], body: CompletionBody) -> list[int]:
        if isinstance(prompt, str) and body.add_special_tokens is False:
            prompt = list(self._pair.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        return self._pair.encode(prompt)

    @cached_property
    def _infill(self) -> Infill | None:
        return Infill.of(self._pair.tokenizer)

    def _around_gap(self, prompt: str | list[int], body: CompletionBody) -> list[int]:
        """Token ids of a prompt before a gap, which may be empty, and of the suffix after it."""
        assert body.suffix is not None
        if self._infill is None:
            raise unsupported("suffix", body.suffix, "the model's tokenizer has no tokens for a gap in a text")
        self._check_length(body.suffix, "suffix")
        return self._infill.prompt(self._pair.tokenizer, prompt, body.suffix, begins=body.add_special_tokens is not False)

    def chat_prompt(self, messages: Sequence[ChatMessage], body: TemplateFields) -> list[int]:
        """Token ids of a chat; raises as :meth:`tokens`."""
        shown = body.model_dump(include={"chat_template_kwargs", "tools"})
        self._check_length("\n".join(_texts_in([[message.to_template() for message in messages], shown])), "messages")
        return self._chats.prompt(messages, body)

    def _unread(self, body: TemplateFields) -> list[str]:
        """Remarks about values that the chat template does not read; an effort may be refused for that."""
        effort = {} if body.reasoning_effort in (None, "none") else {"reasoning_effort": body.reasoning_effort}
        names = [name for name in {**(body.chat_template_kwargs or {}), **effort} if not self._pair.template.reads(name)]
        if "reasoning_effort" in names and self._options.unknown_fields == "refuse":
            raise unsupported("reasoning_effort", body.reasoning_effort, "the model's chat template has no such setting")
        return ignored([f"the model's chat template does not read {short_repr(name)}" for name in names])

    def _shown(self, given: str | list[int], ids: Sequence[int]) -> str:
        """A prompt as it comes back."""
        if isinstance(given, str):
            return given
        return str(self._pair.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def tokens(self, body: TokenizeBody) -> list[int]:
        """Token ids of a prompt or of a chat; raises a DraftwoodError or an ApiError for what cannot be honoured."""
        if (body.prompt is None) == (body.messages is None):
            raise bad("a prompt or messages are wanted: send one of them", param="prompt")
        if body.messages is not None:
            return self.chat_prompt(body.messages, body)
        if body.add_special_tokens:
            return self._pair.encode(body.prompt or "")
        return list(self._pair.tokenizer(body.prompt, add_special_tokens=False)["input_ids"])

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special tokens included; raises an ApiError for unknown ones."""
        vocab = self._pair.target.vocab_size
        if unknown := [token for token in tokens if token >= vocab]:
            raise bad(f"tokens holds {unknown[0]}, but the model knows 0 to {vocab - 1}: leave it out", param="tokens")
        return str(self._pair.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def _check_count(self, body: Settings, prompts: int) -> None:
        """Refuse more texts than the server ever takes, before work is done."""
        if (count := prompts * (body.n or 1)) > self._most:
            why = f"the request wants {count} texts, but this server holds at most {self._most}: ask for fewer"
            raise bad(why, param="n" if prompts <= self._most else "prompt")

    def _check_length(self, text: str | Sequence[object], param: str) -> None:
        """Refuse a text by its beginning if that is far too long: a whole one of megabytes takes seconds to encode."""
        if self.max_length is None or not isinstance(text, str) or len(text) <= (enough := _CHARACTERS * self.max_length):
            return
        if (count := len(self._pair.encode(text[:enough]))) > 2 * self.max_length:
            raise self._too_long(count, param, f", in its first {enough} characters")

    def _too_long(self, count: int, param: str, where: str = "") -> ApiError:
        """The error of a prompt. Clients look for its words, in this interface and in others, to shorten a conversation."""
        assert self.max_length is not None
        return bad(
            f"prompt is too long: {count} tokens > {self.max_length - 1} maximum{where}. This model's maximum context "
            f"length is {self.max_length} tokens here, for prompt and text: shorten the prompt",
            param=param,
            code="context_length_exceeded",
        )

    def _fitted(self, prompt: int, wanted: int | None, default: int, param: str) -> int:
        """The most tokens of a text after a prompt: as many of the wanted ones, or of the default, as there is room for."""
        most = default if wanted is None else wanted
        if self.max_length is None:
            return self._pair.chat_limits.max_new_tokens if most == NO_LIMIT else most
        room = self.max_length - prompt
        if room < (most != 0):
            raise self._too_long(prompt, param)
        return room if most == NO_LIMIT else min(most, room)

    def _settings(
        self, body: ChatBody | CompletionBody, ends: Sequence[int], fitted: Sequence[int]
    ) -> tuple[Limits, Sampling, list[str]]:
        """The limits of the longest text, how tokens are drawn, and remarks on what is not honoured.

        ``ends`` are tokens that end a text too.
        """
        ids = (*(body.stop_token_ids or ()), *(() if body.ignore_eos else ends))
        limits = Limits(
            max_new_tokens=max(1, *fitted), stop=body.stops, stop_token_ids=ids, ignore_eos=bool(body.ignore_eos)
        )  # one at least, which is not written where prompts are only scored
        left: list[str] = []
        grammar = grammar_of(body, left, self._chats.grammar(body, left) if isinstance(body, ChatBody) else None)
        if left and self._options.unknown_fields == "refuse":
            where = left[0].partition(":")[0]  # a field, or a function's parameters
            name = "tools" if " " in where else where
            raise bad(f"{left[0]}: change it, or leave it out", param=name, code="unsupported_parameter")
        remarks = [*self._remarks(body, fitted), *ignored(left)]
        return limits, sampling_of(self._pair, body, limits, grammar), remarks

    @property
    def _repeats(self) -> bool:
        """Whether drafts are taken from a prediction."""
        return METHODS[self._method.method].repeats

    def _jobs(
        self, body: ChatBody | CompletionBody, prompts: Sequence[Sequence[int]], fitted: Sequence[int], limits: Limits,
        sampling: Sampling, key: str, shown: frozenset[int] = frozenset(),
    ) -> list[Job]:  # fmt: skip
        """The texts of prompts, of this many tokens each."""
        count, options = body.n or 1, self._options
        seeds = seeds_for(count * len(prompts), body.seed, "texts")
        if seeds[-1] > MAX_SEED:
            raise bad(f"seed is {body.seed}, and the choices count up from it: send a smaller one", param="seed")
        method, nodes = drafting_of(self._method, body.speculative)
        if sampling.grammar is not None:
            self._grammars.compile(sampling.grammar)
        text = body.prediction.text if body.prediction and self._repeats else None
        own: dict[str, Any] = {
            "logprobs": None if body.top is None else LogprobSettings(top=body.top), "nodes": nodes, "shown": shown,
            "draft_text": draft_ids(self._pair.tokenizer, text, limits),
            "cache_salt": "" if options.share_prefixes else key, "owner": "" if options.history == "all" else key,
        }  # fmt: skip
        jobs = []
        for number, seed in enumerate(seeds):
            prompt, most = prompts[number // count], max(1, fitted[number // count])
            request = replace(self._pair.request(prompt, replace(limits, max_new_tokens=most), seed), **own)
            jobs.append(Job(request=request, sampling=sampling, method=method))
        return jobs

    def _remarks(self, body: Settings, fitted: Sequence[int]) -> list[str]:
        """What of a text's length and of its prediction is not honoured."""
        wanted, most, method = body.longest or 0, min(fitted), self._method.method
        cut = f"max_tokens is {wanted}, but only {most} fit after the prompt, so the text has at most these"
        unused = f"the server's method {method!r} takes no drafts from a prediction, so it was ignored"
        return [*([cut] if most < wanted else []), *([unused] if body.prediction and not self._repeats else [])]


def _texts_in(value: Any) -> Iterator[str]:
    """All texts in a value of JSON but short names, roles and types, of which a chat template has its own."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if len(name) > _NAME:
                yield name
            if name not in ("role", "type") or not isinstance(inner, str) or len(inner) > _NAME:
                yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
