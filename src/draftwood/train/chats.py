"""Chats written by a chat model itself, user turns and answers, as training data for its drafter.

The model receives the beginning of its own chat template. It samples the user turn, then the answer at temperature 1
(self-synthesis; Xu et al. 2024, "Magpie", arXiv 2406.08464). A model without a chat template writes plain texts: each is
one answer after the beginning-of-text token.

Every answer is sampled at a temperature of its own. A drafter that is to be fast at low temperatures needs such texts: they
repeat themselves more.

Each turn is a request of the engine, drawn by plain decoding. The next turn continues the memory of the text before it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, final

from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions
from draftwood.engine.decode import Decoder
from draftwood.engine.prefixes import PrefixCache
from draftwood.engine.requests import Request
from draftwood.loading.models import choose_device, eos_of, load_model, load_tokenizer
from draftwood.loading.names import locate
from draftwood.runners.context import context
from draftwood.runners.factory import make_runners
from draftwood.runners.protocols import Runner
from draftwood.sampling.settings import Sampling
from draftwood.train import loop
from draftwood.train.chat_files import Chat, read_chats, save_part
from draftwood.train.config import ChatsConfig, DrafterConfig
from draftwood.train.number_format import number_format
from draftwood.verify.recursive import Recursive

_MARKS = ("\x01", "\x02", "\x03")


@final
@dataclass(frozen=True)
class Template:
    """The fixed parts of a model's chats or texts, as token ids.

    Attributes:
        head: before the first user turn; before a plain text.
        to_answer: between a user turn and the answer.
        to_user: between an answer and the next user turn; empty if there are no turns.
        ends: tokens that end a turn, or a text.
    """

    head: list[int]
    to_answer: list[int]
    to_user: list[int]
    ends: frozenset[int]

    @property
    def has_turns(self) -> bool:
        """Whether the model writes chats; plain texts otherwise."""
        return bool(self.to_user)

    @staticmethod
    def of(tokenizer: Any, eos: Sequence[int]) -> Template:
        """The template of a tokenizer: of chats if it has a chat template, else of plain texts.

        Raises:
            ConfigError: a chat template that does not hold each message exactly once and unchanged, or plain texts that no
                token begins.
        """
        return _of_chats(tokenizer, eos) if getattr(tokenizer, "chat_template", None) else _of_texts(tokenizer, eos)


def _of_chats(tokenizer: Any, eos: Sequence[int]) -> Template:
    """Split from a chat with two user turns."""
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    parts = re.split("|".join(_MARKS), text)
    if len(parts) != 4:
        raise ConfigError("the target's chat template does not hold every message once, so chats cannot be sampled")
    head, to_answer, to_user, again = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts)
    if not to_user or to_user[0] not in eos or to_answer != again:
        raise ConfigError("the target's chat template does not end an answer with the end-of-text token of its config")
    return Template(head, to_answer, to_user, frozenset(eos) | {to_answer[0]})


def _of_texts(tokenizer: Any, eos: Sequence[int]) -> Template:
    """What the tokenizer puts before a text, else its beginning-of-text token, else the end of the text before."""
    begin = tokenizer("")["input_ids"]
    if not begin:
        bos = tokenizer.bos_token_id
        begin = [bos] if bos is not None else list(eos[:1])
    if not begin:
        raise ConfigError(
            "the target has no chat template, and no beginning-of-text or end-of-text token that could begin its texts: "
            "name bos_token in its tokenizer_config.json"
        )
    return Template(begin, [], [], frozenset(eos))


_MIN_P = 0.05  # user turns leave out tokens below this share of the likeliest token's probability
_USER_TEMPERATURE = 0.9
LONGEST_TURN = 64  # most tokens of a sampled user turn
_PART = 64  # chats in one file
_ANOTHER_TURN = 0.3  # probability of another user turn after an answer


@final
@dataclass(kw_only=True)
class OpenChat:
    """A chat in progress: its tokens so far, which of them are answers, and whose turn it is."""

    tokens: list[int]
    answered: list[bool]
    temperature: float  # of answers
    answering: bool

    def add(self, tokens: Sequence[int], *, written: bool) -> None:
        """Append tokens of the template, or tokens that are written in this turn."""
        self.tokens += tokens
        self.answered += [written and self.answering] * len(tokens)

    @property
    def sampling(self) -> Sampling:
        """Of its present turn."""
        if self.answering:
            return Sampling(temperature=self.temperature)
        return Sampling(temperature=_USER_TEMPERATURE, min_p=_MIN_P)


@final
@dataclass(frozen=True, kw_only=True)
class Turns:
    """How chats begin, how long their turns are, and when they end.

    Attributes:
        template: of the target.
        first: given first user turns, as token ids.
        longest: tokens of a chat, at most.
        temperatures: of answers, equally likely; a chat has one.
        rng: draws all that is random.
        from_text: share of chats whose first turn is one of ``first``.
        answer: tokens of an answer, at most; None for no limit of its own.
    """

    template: Template
    longest: int
    temperatures: Sequence[float]
    rng: random.Random
    first: Sequence[Sequence[int]] = ()
    from_text: float = 0.5
    answer: int | None = None

    def begin(self) -> OpenChat:
        """The beginning of a chat."""
        head, to_answer = self.template.head, self.template.to_answer
        temperature = self.rng.choice(self.temperatures)
        if not self.template.has_turns:
            given, answering = list(head), True
        elif self.first and self.rng.random() < self.from_text:
            given, answering = [*head, *self.rng.choice(self.first), *to_answer], True
        else:
            given, answering = list(head), False
        return OpenChat(tokens=given, answered=[False] * len(given), temperature=temperature, answering=answering)

    def limit(self, chat: OpenChat) -> int:
        """The most tokens of a chat's present turn."""
        room, most = self.longest - len(chat.tokens), self.answer if chat.answering else LONGEST_TURN
        return room if most is None else min(most, room)

    def goes_on(self, chat: OpenChat) -> bool:
        """Append the template's tokens after a turn; returns whether the chat has room for another one."""
        template, ended = self.template, chat.tokens[-1] in self.template.ends
        if not chat.answering:
            given = template.to_answer[1 if ended else 0 :]
        else:
            full = len(chat.tokens) + len(template.to_user) + LONGEST_TURN > self.longest
            if not ended or not template.has_turns or full or self.rng.random() > _ANOTHER_TURN:
                return False
            given = template.to_user[1:]
        chat.add(given, written=False)
        chat.answering = not chat.answering
        return len(chat.tokens) < self.longest

    def end(self, chat: OpenChat) -> Chat:
        """A chat that does not go on."""
        return Chat(chat.tokens[: self.longest], chat.answered[: self.longest])


def sampled_chats(runner: Runner, template: Template, config: ChatsConfig, seed: int) -> Iterator[Chat]:
    """Finished chats of a model, many at a time; an endless iterator, which needs the runner until it is closed."""
    turns = Turns(template=template, longest=config.longest, temperatures=config.temperature, rng=random.Random(seed))
    prefixes = PrefixCache()
    prefixes.least = config.rows  # all rows may end a turn in one step, and their next turns need what they read
    decoder = Decoder(runner, None, Recursive(), eos=sorted(template.ends), prefixes=prefixes)
    writing = dict[int, OpenChat]()
    with decoder.batch(reuse=template.has_turns) as batch:

        def begin_turn(chat: OpenChat) -> None:
            limits, own = Limits(max_new_tokens=turns.limit(chat)), turns.rng.getrandbits(32)
            writing[batch.add(Request(prompt=list(chat.tokens), seed=own, limits=limits), chat.sampling)] = chat

        while True:
            while len(writing) < config.rows:
                begin_turn(turns.begin())
            for piece in batch.step():
                chat = writing[piece.row]
                chat.add(piece.tokens, written=True)
                if piece.finish_reason is None:
                    continue
                del writing[piece.row]
                if turns.goes_on(chat):
                    begin_turn(chat)
                else:
                    yield turns.end(chat)


def chats_for(config: DrafterConfig) -> Path:
    """The folder of chats that a drafter is trained on: the given one, or one in its output folder, written now."""
    if config.chats is not None:
        return config.chats
    chats = ChatsConfig(target=config.target, out=config.out / "chats", tokens=config.tokens, seed=config.seed)
    write_chats(chats)
    return chats.out


def write_chats(config: ChatsConfig) -> None:
    """Write chats of the target into a folder, 64 per file; a stopped run continues after the last file.

    A file ``00000.npz`` holds ``tokens`` (uint16 or int32 [token]), ``lengths`` (int32 [chat]) and ``answered``
    (``numpy.packbits`` of one bool a token): whether the model wrote the token as an answer.

    Raises:
        ConfigError: no usable chat template, or a ``longest`` that does not fit.
    """
    options, device = LoadOptions(), choose_device("cpu")
    target = locate(config.target)
    tokenizer = load_tokenizer(target, options)
    model = load_model(target, options, device, number_format(device.type))
    limit = context(model.config)
    longest = config.longest if limit is None else min(config.longest, limit.length)
    template = Template.of(tokenizer, eos_of(model, tokenizer, int(model.get_output_embeddings().weight.shape[0])))
    if longest < (least := len(template.head) + len(template.to_answer) + 2):
        raise ConfigError(f"longest is {longest}, but the chat template alone takes {least - 2} tokens: give more")
    loop.claim(config)
    number, found = len(list(config.out.glob("[0-9]*.npz"))), read_chats(config.out)
    count, written = len(found), sum(sum(chat.answered) for chat in found)
    runner, seed = make_runners(model, None).target, config.seed * 1_000_003 + number
    chats = sampled_chats(runner, template, replace(config, longest=longest), seed)
    began, before, what = perf_counter(), written, "chats" if template.has_turns else "texts"
    while written < config.tokens:
        part = list(islice(chats, _PART))
        save_part(config.out / f"{number:05d}.npz", part, len(tokenizer))
        number, count, written = number + 1, count + len(part), written + sum(sum(chat.answered) for chat in part)
        speed = (written - before) / (perf_counter() - began)
        print(f"{count} {what}, {written} answer tokens of {config.tokens}, {speed:.0f} a second", flush=True)
