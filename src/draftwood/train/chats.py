"""Chats written by a chat model itself, user turns and answers, as training data for its drafter.

The model receives the beginning of its own chat template. It samples the user turn, then the answer at temperature 1
(self-synthesis; Xu et al. 2024, "Magpie", arXiv 2406.08464). A share of the user turns is made from training text instead.
A model without a chat template writes plain texts: each is one answer after the beginning-of-text token, or after the
beginning of a training text.

Every answer is sampled at a temperature of its own. A drafter that is to be fast at low temperatures needs such texts: they
repeat themselves more.

The rows of a batch hold different chats at different positions. A new chat replaces a finished one at once; where rows are
padded, its beginning is read in a forward of its own. Then a row reads one token at a time, also the template's, which are
known: several tokens of one row would be padding in all others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions
from draftwood.loading.models import choose_device, choose_dtype, eos_of, load_model, load_tokenizer
from draftwood.loading.names import locate
from draftwood.runners.context import context
from draftwood.runners.factory import make_runners
from draftwood.runners.protocols import Runner
from draftwood.sampling.rows import Row
from draftwood.train import loop
from draftwood.train.chat_files import Chat, read_chats, save_part
from draftwood.train.chat_template import Template, text_starts, text_turns
from draftwood.train.config import ChatsConfig
from draftwood.train.number_format import number_format
from draftwood.train.sample import drawn

MIN_P = 0.05  # user turns leave out tokens below this share of the likeliest token's probability
USER_TEMPERATURE = 0.9
LONGEST_TURN = 64  # most tokens of a sampled user turn
_PART = 64  # chats in one file
_FROM_TEXT = 0.3  # share of chats whose first turn is made from training text
ANOTHER_TURN = 0.3  # probability of another user turn after an answer


@final
class _Row:
    """A chat in progress: its tokens so far, which of them are answers, the template's next tokens, and whose turn it is."""

    def __init__(self, given: Sequence[int], temperature: float, *, answering: bool) -> None:
        self.text = Row(tokens=list(given))
        self.answered = [False] * len(given)
        self.given: list[int] = []
        self.temperature = temperature  # of answers
        self.answering = answering
        self.turn = 0  # tokens sampled in this turn

    @property
    def tokens(self) -> list[int]:
        return self.text.tokens

    def begin_turn(self, given: Sequence[int], *, answering: bool) -> None:
        """Begin the next turn, with these tokens of the template."""
        self.given, self.answering, self.turn = list(given), answering, 0


@final
class Writer:
    """Samples chats, one token of every row per step.

    Args:
        runner: of a causal language model.
        template: its chat template.
        turns: first user turns made from text, or beginnings of plain texts, as token ids; may be empty.
        config: number of rows, the largest number of tokens of a chat, and the temperatures of answers.
        seed: of all random choices.
    """

    def __init__(
        self, runner: Runner, template: Template, turns: Sequence[Sequence[int]], config: ChatsConfig, seed: int
    ) -> None:
        self._runner, self._template, self._turns, self._config = runner, template, turns, config
        self._rng = random.Random(seed)
        self._generator = torch.Generator(runner.device).manual_seed(seed)
        self._rows: list[_Row] = []

    def _new_chat(self) -> _Row:
        head, to_answer = self._template.head, self._template.to_answer
        temperature = self._rng.choice(self._config.temperature)
        if not self._template.has_turns:
            begun = self._rng.choice(self._turns) if self._turns else ()
            return _Row([*head, *begun], temperature, answering=True)
        if self._turns and self._rng.random() < _FROM_TEXT:
            return _Row([*head, *self._rng.choice(self._turns), *to_answer], temperature, answering=True)
        return _Row(head, temperature, answering=False)

    @torch.inference_mode()
    def chats(self) -> Iterator[Chat]:
        """Finished chats; an endless iterator. It clears the runner, and needs it until it is closed."""
        self._runner.clear()
        while True:
            self._fill()
            following = self._next(self._scores())
            over = [at for at, token in enumerate(following) if self._append(self._rows[at], token)]
            self._runner.commit([[0]] * len(self._rows))
            gone = [self._rows[at] for at in over]
            self._rows = [row for row in self._rows if row not in gone]
            for row in reversed(gone):
                yield Chat(row.tokens[: self._config.longest], row.answered[: self._config.longest])

    def _fill(self) -> None:
        """Begin chats until there are enough rows."""
        new = [self._new_chat() for _ in range(self._config.rows - len(self._rows))]
        for row in new:
            self._rows.append(row)
            if self._runner.pads:
                self._runner.prefill(row.text, len(row.tokens) - 1)
                self._runner.set_rows([one.text for one in self._rows])
        if new and not self._runner.pads:
            self._runner.set_rows([one.text for one in self._rows])

    def _append(self, row: _Row, token: int) -> bool:
        """Append the template's next token, or else this sampled one; whether the chat is finished."""
        template, longest = self._template, self._config.longest
        if row.given:
            row.tokens.append(row.given.pop(0))
            row.answered.append(False)
            return len(row.tokens) >= longest
        row.tokens.append(token)
        row.answered.append(row.answering)
        row.turn += 1
        ended = token in template.ends
        if row.answering and ended:
            full = len(row.tokens) + len(template.to_user) + LONGEST_TURN > longest
            if not template.has_turns or full or self._rng.random() > ANOTHER_TURN:
                return True
            row.begin_turn(template.to_user[1:], answering=False)
        elif not row.answering and (ended or row.turn == LONGEST_TURN):
            row.begin_turn(template.to_answer[1 if ended else 0 :], answering=True)
        return len(row.tokens) >= longest

    def _scores(self) -> Float[Tensor, "row vocab"]:
        """Scores after the last token of every row."""
        last = torch.tensor([[row.tokens[-1]] for row in self._rows], device=self._runner.device)
        itself = torch.ones(len(last), 1, 1, dtype=torch.bool, device=last.device)
        return self._runner.extend(last, torch.zeros_like(last), itself).logits[:, 0].float()

    def _next(self, scores: Float[Tensor, "row vocab"]) -> list[int]:
        """A sampled token for every row."""
        for of_row, row in zip(scores, self._rows, strict=True):
            temperature = row.temperature if row.answering else USER_TEMPERATURE
            if not row.answering or not temperature:
                least = of_row.max() + temperature * math.log(MIN_P)
                of_row.masked_fill_(of_row < least, -torch.inf)
            of_row /= temperature or 1.0
        tokens: list[int] = drawn(scores.softmax(-1), self._generator).tolist()
        return tokens


def write_chats(config: ChatsConfig) -> None:
    """Write chats of the target into a folder, 64 per file; a stopped run continues after the last file.

    A file ``00000.npz`` holds ``tokens`` (uint16 or int32 [token]), ``lengths`` (int32 [chat]) and ``answered``
    (``numpy.packbits`` of one bool a token): whether the model wrote the token as an answer.

    Raises:
        ConfigError: no usable chat template, a data folder without text, or a ``longest`` that does not fit.
    """
    options, device = LoadOptions(), choose_device("cpu")
    dtype = number_format("cpu") if config.dtype == "auto" else choose_dtype(config.dtype, device)
    target = locate(config.target)
    tokenizer = load_tokenizer(target, options)
    model = load_model(target, options, device, dtype)
    limit = context(model.config)
    longest = config.longest if limit is None else min(config.longest, limit.length)
    template = Template.of(tokenizer, eos_of(model, tokenizer, int(model.get_output_embeddings().weight.shape[0])))
    if longest < (least := len(template.head) + len(template.to_answer) + 2):
        raise ConfigError(f"longest is {longest}, but the chat template alone takes {least - 2} tokens: give more")
    turns = [ids for ids in _first_turns(config, tokenizer, template) if len(ids) < longest // 2]
    loop.claim(config)
    number, found = len(list(config.out.glob("[0-9]*.npz"))), read_chats(config.out)
    count, written = len(found), sum(sum(chat.answered) for chat in found)
    if written >= config.tokens:
        return
    runner = make_runners(model, None).target
    writer = Writer(runner, template, turns, replace(config, longest=longest), seed=config.seed * 1_000_003 + number)
    began, before, waiting = perf_counter(), written, []
    for chat in writer.chats():
        waiting.append(chat)
        if len(waiting) == _PART:
            save_part(config.out / f"{number:05d}.npz", waiting, len(tokenizer))
            number, count = number + 1, count + len(waiting)
            written, waiting = written + sum(sum(c.answered) for c in waiting), []
            speed = (written - before) / (perf_counter() - began)
            what = "chats" if template.has_turns else "texts"
            print(f"{count} {what}, {written} answer tokens of {config.tokens}, {speed:.0f} a second", flush=True)
            if written >= config.tokens:
                return


def _first_turns(config: ChatsConfig, tokenizer: Any, template: Template) -> list[list[int]]:
    """Token ids of first user turns, or of beginnings of plain texts, from the data folder."""
    if config.data is None:
        return []
    if not template.has_turns:
        return text_starts(config.data, tokenizer, config.seed)
    return [tokenizer(turn, add_special_tokens=False)["input_ids"] for turn in text_turns(config.data, 20_000, config.seed)]
