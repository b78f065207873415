"""From the fields of a request to what the engine writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from transformers import MinNewTokensLengthLogitsProcessor

from draftwood.api import Pair
from draftwood.core.checks import shown
from draftwood.core.constraint import Grammars
from draftwood.core.grammar import Grammar
from draftwood.core.limits import Limits
from draftwood.core.methods import METHODS
from draftwood.core.processors import ByPrompt
from draftwood.core.seeds import seeds_for
from draftwood.core.settings import MAX_SEED, Method, Sampling
from draftwood.core.token_logprobs import LogprobSettings
from draftwood.engine.parts import PLAIN
from draftwood.engine.requests import Request
from draftwood.serve.echoes import Echo
from draftwood.serve.errors import ApiError, bad, refused
from draftwood.serve.schemas import ChatBody, ChatMessage, CompletionBody, Settings, Speculative, TokenizeBody

COMPLETION_TOKENS = 16
"""Default of ``max_tokens`` for completions, as in OpenAI's interface."""
_CHARACTERS = 12  # per token; three times as many as a token of English has
_DRAWN = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@final
@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a request wants.

    Attributes:
        requests: the texts, one per choice.
        sampling, method: of all of them.
        prompt_tokens: tokens of all prompts, each counted once.
        echoes: the prompts that come back before their texts, by request; empty if none does.
    """

    requests: Sequence[Request]
    sampling: Sampling
    method: str | None
    prompt_tokens: int
    echoes: Sequence[Echo] = ()


@final
class Preparation:
    """Makes requests of a pair.

    Args:
        pair: the models.
        method: the server's drafting method, without ``auto``.
        grammars: of the server's decoder; they are compiled here, since other texts would wait in the decoding thread.
        most: the most texts of a request.
        max_length: the most tokens of prompt and text; None for the context of the target.
    """

    def __init__(self, pair: Pair, method: Method, grammars: Grammars, *, most: int, max_length: int | None = None) -> None:
        self._pair = pair
        self._method = method
        self._grammars = grammars
        self._most = most
        bounds = [bound for bound in (max_length, pair.target.max_length) if bound is not None]
        self.max_length = min(bounds) if bounds else None

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""
        return bool(getattr(self._pair.tokenizer, "chat_template", None))

    @property
    def methods(self) -> list[str]:
        """What ``speculative.method`` may be: the server's own, and plain decoding."""
        return list(dict.fromkeys([self._method.method, PLAIN]))

    @property
    def nodes(self) -> int | None:
        """The most nodes of a tree, of which a request may choose fewer; None without a draft."""
        spec, shape = METHODS[self._method.method], self._method.shape
        return self._method.nodes or (spec.nodes if shape is None else spec.parse(shape).nodes)

    def chat(self, body: ChatBody) -> Prepared:
        """The answers that a chat wants; raises an ApiError for what cannot be honoured."""
        try:
            self._check_length("\n".join(message.text for message in body.messages))
            wanted = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
            start = self._pair.chat_request(_plain(body.messages), self._limits(body, 1), 0)
            longest = self._pair.chat_limits.max_new_tokens
            limits = self._fitted(start.limits, len(start.prompt), wanted, longest)
            return self._prepared(body, body.top, [start.prompt], limits)
        except Exception as error:
            raise refused(error) from error

    def completion(self, body: CompletionBody) -> Prepared:
        """The texts that prompts want; raises an ApiError for what cannot be honoured."""
        try:
            given = _prompts(body.prompt)
            if (count := len(given) * (body.n or 1)) > self._most:
                raise bad(f"prompt and n make {count} texts, but this server holds at most {self._most}: ask for fewer")
            for prompt in given:
                self._check_length(prompt)
            prompts = [self._pair.encode(prompt) for prompt in given]
            longest = max(map(len, prompts))
            limits = self._fitted(self._limits(body, 1), longest, body.max_tokens, COMPLETION_TOKENS)
            prepared = self._prepared(body, body.top, prompts, limits)
            if not body.echo:
                return prepared
            texts = [self._shown(one, ids) for one, ids in zip(given, prompts, strict=True) for _ in range(body.n or 1)]
            echoes = [Echo(text=text, request=made) for text, made in zip(texts, prepared.requests, strict=True)]
            return replace(prepared, echoes=echoes)
        except Exception as error:
            raise refused(error) from error

    def _shown(self, given: str | list[int], ids: Sequence[int]) -> str:
        """A prompt as it comes back."""
        if isinstance(given, str):
            return given
        return str(self._pair.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def tokens(self, body: TokenizeBody) -> list[int]:
        """Token ids of a prompt or of a chat; raises an ApiError for what cannot be honoured."""
        if (body.prompt is None) == (body.messages is None):
            raise bad("a prompt or messages are wanted: send one of them", param="prompt")
        try:
            if body.messages is not None:
                self._check_length("\n".join(message.text for message in body.messages))
                return list(self._pair.chat_request(_plain(body.messages), Limits(max_new_tokens=1), 0).prompt)
            if body.add_special_tokens:
                return self._pair.encode(body.prompt or "")
            return list(self._pair.tokenizer(body.prompt, add_special_tokens=False)["input_ids"])
        except Exception as error:
            raise refused(error) from error

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special tokens included; raises an ApiError for unknown ones."""
        vocab = self._pair.target.vocab_size
        if unknown := [token for token in tokens if token >= vocab]:
            raise bad(f"tokens holds {unknown[0]}, but the model knows 0 to {vocab - 1}: leave it out", param="tokens")
        return str(self._pair.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def _check_length(self, text: str | Sequence[object]) -> None:
        """Refuse a text by its beginning if that is far too long: a whole one of megabytes takes seconds to encode."""
        if self.max_length is None or not isinstance(text, str) or len(text) <= (enough := _CHARACTERS * self.max_length):
            return
        if len(self._pair.encode(text[:enough])) > 2 * self.max_length:
            raise ApiError(
                400,
                f"the prompt has more than {2 * self.max_length} tokens, but prompt and text together may have "
                f"{self.max_length}: shorten it",
                code="context_length_exceeded",
            )

    def _limits(self, body: Settings, most: int) -> Limits:
        ends = tuple(body.stop_token_ids or ())
        return Limits(max_new_tokens=most, stop=body.stops, stop_token_ids=ends, ignore_eos=bool(body.ignore_eos))

    def _fitted(self, limits: Limits, prompt: int, wanted: int | None, default: int) -> Limits:
        """The limits with the wanted number of tokens, or with as many of the default as the context has room for."""
        room = None if self.max_length is None else self.max_length - prompt
        if room is not None and room < (wanted or 1):
            raise ApiError(
                400,
                f"the prompt has {prompt} tokens and the text needs {wanted or 1} more, but both together may have "
                f"{self.max_length}: shorten the prompt, or lower max_tokens",
                param="max_tokens",
                code="context_length_exceeded",
            )
        most = wanted if wanted is not None else default if room is None else min(default, room)
        return replace(limits, max_new_tokens=most)

    def _prepared(self, body: Settings, top: int | None, prompts: Sequence[Sequence[int]], limits: Limits) -> Prepared:
        count = body.n or 1
        seeds = seeds_for(count * len(prompts), body.seed, "texts")
        if seeds[-1] > MAX_SEED:
            raise bad(f"seed is {body.seed}, and the choices count up from it: send a smaller one", param="seed")
        texts = [prompt for prompt in prompts for _ in range(count)]
        logprobs = None if top is None else LogprobSettings(top=top)
        method, nodes = self._drafting(body.speculative)
        requests = [self._pair.request(text, limits, seed) for text, seed in zip(texts, seeds, strict=True)]
        return Prepared(
            requests=[replace(request, logprobs=logprobs, nodes=nodes) for request in requests],
            sampling=self._sampling(body, limits),
            method=method,
            prompt_tokens=sum(map(len, prompts)),
        )

    def _sampling(self, body: Settings, limits: Limits) -> Sampling:
        """The target's own sampling with the given fields. Without a temperature anywhere it is 1, as OpenAI's is."""
        given: dict[str, Any] = {name: value for name in _DRAWN if (value := getattr(body, name)) is not None}
        if body.top_k is not None:
            given["top_k"] = max(0, body.top_k)  # -1 keeps all, as 0 does
        if "temperature" not in given and self._pair.sampling.greedy:
            given["temperature"] = 1.0
        if (grammar := _grammar_of(body)) is not None:
            self._grammars.compile(grammar)
            given["grammar"] = grammar
        if body.logit_bias:
            given["logit_bias"] = self._bias(body.logit_bias)
        if body.min_tokens and (ends := self._ends(limits)):
            least, device = body.min_tokens, str(self._pair.target.device)
            given["processors"] = [
                ByPrompt(lambda length: MinNewTokensLengthLogitsProcessor(length, least, ends, device=device))
            ]
        return self._pair.own_sampling(given)

    def _ends(self, limits: Limits) -> list[int]:
        return sorted({*limits.stop_token_ids, *(() if limits.ignore_eos else self._pair.eos)})

    def _bias(self, given: dict[str, float]) -> dict[int, float]:
        vocab, found = self._pair.target.vocab_size, {}
        for token, value in given.items():
            if not (token.isascii() and token.isdecimal() and len(token) < 12 and int(token) < vocab):
                raise bad(
                    f"logit_bias holds {shown(token)}, but the model knows tokens 0 to {vocab - 1}: leave it out",
                    param="logit_bias",
                )
            found[int(token)] = value
        return found

    def _drafting(self, given: bool | Speculative | None) -> tuple[str | None, int | None]:
        """The method of the texts and the most nodes of their trees: None is the server's own."""
        if given is False:
            return PLAIN, None
        if not isinstance(given, Speculative):
            return None, None
        if given.nodes is not None and PLAIN in (given.method, self._method.method):
            why = f"method {PLAIN!r} drafts nothing: leave it out"
            raise bad(f"speculative.nodes is {given.nodes}, but {why}", param="speculative.nodes")
        if given.method == PLAIN:
            return PLAIN, None
        self._check_own(given)
        return None, given.nodes

    def _check_own(self, given: Speculative) -> None:
        """Refuse what all texts share, and is another one here."""
        own = asdict(self._method)
        for name, value in given.model_dump(exclude_none=True, exclude={"nodes"}).items():
            if value not in (own[name], "auto"):
                raise bad(
                    f"speculative.{name} is {shown(value)}, but all texts of this server share {shown(own[name])}: "
                    "leave it out, send false for plain decoding, or start another server",
                    param=f"speculative.{name}",
                )


def _grammar_of(body: Settings) -> Grammar | None:
    form = body.response_format
    if body.regex is not None:
        return Grammar.regex(body.regex)
    if body.grammar is not None:
        return Grammar.lark(body.grammar)
    if form is None or form.type == "text":
        return None
    return Grammar.json_object() if form.json_schema is None else Grammar.json_schema(json.dumps(form.json_schema.given))


def _plain(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [message.model_dump(include={"role", "content"}) for message in messages]


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if not given:
        raise bad("prompt is an empty list: send a text, or token ids", param="prompt")
    if all(isinstance(one, int) for one in given):
        return [given]  # type: ignore[list-item]
    return list(given)  # type: ignore[arg-type]
