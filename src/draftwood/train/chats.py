"""Chats written by a chat model itself, user turns and answers, as training data for its drafter.

The model receives the beginning of its own chat template. It samples the user turn, then the answer at temperature 1
(self-synthesis; Xu et al. 2024, "Magpie", arXiv 2406.08464). A share of the user turns is made from training text instead.
A model without a chat template writes plain texts: each is one answer after the beginning-of-text token, or after the
beginning of a training text.

The rows of a batch hold different chats at different positions. A finished chat is replaced by a new one at once. Every step
reads one token of every row, sampled or from the template.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache

from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions
from draftwood.loading.models import choose_device, choose_dtype, eos_of, load_model, load_tokenizer
from draftwood.loading.names import locate
from draftwood.runners.cache import cache_argument
from draftwood.runners.context import context
from draftwood.runners.window_check import used_window
from draftwood.runners.windows import mask_argument
from draftwood.train import loop
from draftwood.train.chat_files import Chat, read_chats, save_part
from draftwood.train.chat_template import Template
from draftwood.train.chat_turns import text_starts, text_turns
from draftwood.train.config import ChatsConfig
from draftwood.train.number_format import number_format
from draftwood.train.sample import drawn

_MIN_P = 0.05  # user turns leave out tokens below this share of the likeliest token's probability
_USER_TEMPERATURE = 0.9
_LONGEST_TURN = 64  # most tokens of a sampled user turn
_PART = 64  # chats in one file
_FROM_TEXT = 0.3  # share of chats whose first turn is made from training text
_ANOTHER_TURN = 0.3  # probability of another user turn after an answer


@final
class RowCache(Cache):  # type: ignore[misc]
    """Keys and values ``[layer, row, head, slot, dim]`` of rows at different positions.

    Attributes:
        at: int64 [row], the slot of each row's next token.
    """

    def __init__(self, layers: int, rows: int, slots: int) -> None:
        super().__init__(layers=[])
        self._shape = (layers, rows, slots)
        self._rows = torch.arange(rows)
        self._buffers: list[Tensor] = []
        self.at: Int[Tensor, "row"] = torch.zeros(rows, dtype=torch.long)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        layers, rows, slots = self._shape
        if not self._buffers:
            self._buffers = [
                states.new_zeros(layers, rows, states.shape[1], slots, states.shape[-1])
                for states in (key_states, value_states)
            ]
        seen = int(self.at.max()) + 1
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[layer_idx, self._rows, :, self.at] = states[:, :, 0]
        return self._buffers[0][layer_idx, :, :, :seen], self._buffers[1][layer_idx, :, :, :seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.at.max())

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return int(self.at.max()) + 1, 0


@final
class _Row:
    """A chat in progress: its tokens so far, the template's next tokens, and whether the model is answering."""

    def __init__(self, given: Sequence[int], *, answering: bool) -> None:
        self.tokens: list[int] = []
        self.answered: list[bool] = []
        self.given = list(given)
        self.answering = answering
        self.turn = 0  # tokens sampled in this turn


@final
class Writer:
    """Samples chats, one token of every row per step.

    Args:
        model: a causal language model.
        template: its chat template.
        turns: first user turns made from text, or beginnings of plain texts, as token ids; may be empty.
        rows: number of chats written at the same time.
        longest: the largest number of tokens of a chat.
        seed: of all random choices.
    """

    def __init__(
        self, model: Any, template: Template, turns: Sequence[Sequence[int]], *, rows: int, longest: int, seed: int
    ) -> None:
        self._model, self._template, self._turns, self._longest = model, template, turns, longest
        self._rng = random.Random(seed)
        self._generator = torch.Generator(model.device).manual_seed(seed)
        self._window = used_window(model)
        self._cache = RowCache(model.config.num_hidden_layers, rows, longest)
        self._rows = [self._new_chat() for _ in range(rows)]

    def _new_chat(self) -> _Row:
        head, to_answer = self._template.head, self._template.to_answer
        if not self._template.has_turns:
            return _Row([*head, *(self._rng.choice(self._turns) if self._turns else ())], answering=True)
        if self._turns and self._rng.random() < _FROM_TEXT:
            return _Row([*head, *self._rng.choice(self._turns), *to_answer], answering=True)
        return _Row(head, answering=False)

    def chats(self) -> Iterator[Chat]:
        """Finished chats; an endless iterator."""
        following = [row.given.pop(0) for row in self._rows]
        while True:
            for at, (row, token) in enumerate(zip(self._rows, following, strict=True)):
                row.tokens.append(token)
                row.answered.append(row.answering and row.turn > 0)
                if self._over(row):
                    yield Chat(row.tokens, row.answered)
                    self._rows[at] = self._new_chat()
                    self._rows[at].tokens.append(self._rows[at].given.pop(0))
                    self._rows[at].answered.append(False)
            following = self._next(self._scores([row.tokens[-1] for row in self._rows]))

    def _over(self, row: _Row) -> bool:
        """Whether a row is finished; at the end of a turn, start the next one."""
        if len(row.tokens) == self._longest:
            return True
        ended = row.turn > 0 and not row.given and row.tokens[-1] in self._template.ends
        if row.answering and ended:
            full = len(row.tokens) + len(self._template.to_user) + _LONGEST_TURN > self._longest
            if not self._template.has_turns or full or self._rng.random() > _ANOTHER_TURN:
                return True
            row.given, row.answering, row.turn = self._template.to_user[1:], False, 0
        elif not row.answering and (ended or row.turn == _LONGEST_TURN):
            row.given = self._template.to_answer[1 if ended else 0 :]
            row.answering, row.turn = True, 0
        return False

    @torch.inference_mode()
    def _scores(self, tokens: Sequence[int]) -> Float[Tensor, "row vocab"]:
        """Scores after the last token of every row."""
        self._cache.at = at = torch.tensor([len(row.tokens) - 1 for row in self._rows])
        slots = torch.arange(int(at.max()) + 1)
        hidden = [slots > at[:, None]]
        if self._window is not None:
            near = hidden[0] | (slots <= at[:, None] - self._window.size)
            hidden = [near] if self._window.everywhere else [*hidden, near]
        dtype = self._model.dtype
        masks = [torch.zeros(part.shape, dtype=dtype).masked_fill_(part, torch.finfo(dtype).min) for part in hidden]
        out = self._model(
            input_ids=torch.tensor(tokens)[:, None],
            position_ids=at[:, None],
            attention_mask=mask_argument(*(mask[:, None, None] for mask in masks)),
            use_cache=True,
            **cache_argument(self._model, self._cache),
        )
        scores: Tensor = out.logits[:, -1].float()
        return scores

    @torch.inference_mode()
    def _next(self, scores: Float[Tensor, "row vocab"]) -> list[int]:
        """The next token of every row: the template's, or a sampled one."""
        for at, row in enumerate(self._rows):
            if not row.answering:
                likeliest = scores[at].max() + _USER_TEMPERATURE * math.log(_MIN_P)
                scores[at] = scores[at].masked_fill(scores[at] < likeliest, -torch.inf) / _USER_TEMPERATURE
        out = []
        for row, token in zip(self._rows, drawn(scores.softmax(-1), self._generator).tolist(), strict=True):
            row.turn += not row.given
            out.append(row.given.pop(0) if row.given else token)
        return out


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
    writer = Writer(model, template, turns, rows=config.rows, longest=longest, seed=config.seed * 1_000_003 + number)
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
