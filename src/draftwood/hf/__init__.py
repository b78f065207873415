"""``model.generate(..., custom_generate=draftwood.hf.recipe(draft_model))``: the same texts as ``generate``, faster.

>>> from draftwood.hf import recipe
>>> made = recipe(draft_model, tokenizer=tokenizer, streamer=TextStreamer(tokenizer))  # doctest: +SKIP
>>> ids = model.generate(**inputs, max_new_tokens=100, stop_strings=["###"], custom_generate=made)  # doctest: +SKIP

``generate`` does not pass ``assistant_model=``, ``streamer=`` and ``tokenizer=`` on to a ``custom_generate``, which cannot
notice them. So give the draft, the streamer and the tokenizer to :func:`recipe`, and stop strings to ``generate``.
``generate`` itself fails on stop strings of a generation config: clear them there and pass them by name.

Logits processors and stopping criteria see the same texts as in plain ``generate``, including padding. Both are called for
one row at a time, processors for drafts too. So they must be functions of their input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import EosTokenCriteria, MaxLengthCriteria, StopStringCriteria
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation import PrefixConstrainedLogitsProcessor as Constrained
from transformers.generation import RepetitionPenaltyLogitsProcessor as Repetition

from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.rounds import Stats
from draftwood.core.seeds import seeds_for
from draftwood.core.settings import Method
from draftwood.core.unknown import known_arguments
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.engine.arguments import MethodLike, method_of
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.hf.refusals import padding_of, refuse_embeddings, refuse_inputs, refuse_settings
from draftwood.runners.context import context, own_context
from draftwood.runners.support import check_fits
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.processors import ByRow
from draftwood.sampling.settings import Sampling

_SEEDS = 1 << 62
_LEARNT: WeakKeyDictionary[Any, WeakKeyDictionary[Any, dict[tuple[Method, bool], Controllers]]] = WeakKeyDictionary()
"""By target and draft, what methods know and learn: runners last only one call."""


@final
class Recipe:
    """A ``custom_generate`` for ``transformers``, for any number of calls and models. Also named ``recipe``.

    The estimates of a drafter are kept for the next ``generate`` with the same models, under any recipe.

    Args:
        draft: the draft model; the default is prompt lookup (method ``lookup``). An ``assistant_model`` of ``generate`` does
            not get here, and would be ignored.
        method: a method and its verifier, or the name of a method.
        tokenizer: the model's tokenizer, for the ``stop_strings`` of ``generate``.
        streamer: as for ``generate``, whose own ``streamer`` would get the prompt only: this one receives the prompt, then
            every token, then ``end()``. It takes one text at a time.
        seed: row ``i`` is sampled with ``seed + i``, or with the i-th of several seeds. The default is drawn from torch's
            global generator, so ``torch.manual_seed`` makes ``generate`` reproducible.

    Attributes:
        stats: one :class:`draftwood.Stats` per row of the last call.

    Raises:
        ConfigError: the draft is not a model, or the method is unknown.
    """

    @known_arguments
    def __init__(
        self, draft: Any = None, *, method: MethodLike | None = None, tokenizer: Any = None, streamer: Any = None,
        seed: int | Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        if draft is not None and not isinstance(draft, nn.Module):
            raise ConfigError(f"the draft of a recipe is {short_repr(draft)}: give a model of transformers, or leave it out")
        if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
            raise ConfigError(
                f"the streamer is {short_repr(streamer)}: give an object with put and end, as TextStreamer, or leave it out"
            )
        self.draft, self.method, self.seed = draft, method_of(method), seed
        self.tokenizer, self.streamer = tokenizer, streamer
        self.stats: list[Stats] = []
        self._proven: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()

    def __call__(
        self,
        model: Any,
        input_ids: Int[Tensor, "row length"],
        logits_processor: Sequence[Any] | None = None,
        stopping_criteria: Sequence[Any] | None = None,
        generation_config: Any = None,
        stop_strings: str | Sequence[str] | None = None,
        token_healing: bool | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Called by ``generate``; returns ``LongTensor[row, length]`` or a ``GenerateDecoderOnlyOutput`` of it.

        ``generate`` passes every option that this signature names. ``stop_strings`` and ``token_healing`` are named so that
        ``generate`` does not handle them itself, which fails without its tokenizer.

        Raises:
            ConfigError: names an option, a processor or an input that cannot be honoured exactly.
            ModelError: a model that cannot score a tree.
            PairingError: a method that lacks a draft model.
            CacheError: more tokens than a model's context.
        """
        config = generation_config or model.generation_config
        target = self._runner(model)
        refuse_settings({**vars(config), "token_healing": token_healing})
        refuse_embeddings(model_kwargs)
        padding = padding_of(input_ids, model_kwargs.pop("attention_mask", None))
        refuse_inputs(model_kwargs, input_ids.shape[1], padding)
        ends = _Ends(self._criteria(stopping_criteria or (), stop_strings), input_ids)
        draft = None if self.draft is None else self._runner(self.draft, drafts=True)
        longest = ends.longest - min(padding)
        check_fits(model, longest, context(model.config))
        if self.draft is not None:  # the draft is not run where it is not exact
            check_fits(self.draft, longest, own_context(self.draft.config))
        # Temperature, top-k, penalties and so on are processors.
        processors = [_by_row(processor, len(padding)) for processor in logits_processor or ()]
        sampling = Sampling(temperature=1.0 if config.do_sample else 0.0, processors=processors)
        with self._controllers(model, greedy=sampling.greedy) as controllers:
            built = build(self.method, draft, greedy=sampling.greedy, controllers=controllers)
            texts = self._decode(Decoder(target, *built), input_ids, ends, sampling, padding)
        sequences = ends.rectangle(texts, config)
        return GenerateDecoderOnlyOutput(sequences=sequences) if config.return_dict_in_generate else sequences

    def _runner(self, model: Any, *, drafts: bool = False) -> TorchRunner:
        # Only the check that a model scores trees is remembered; a runner would keep the model and its memory alive.
        state = (model.dtype, model.training, getattr(model.config, "_attn_implementation", None))
        runner = TorchRunner(model, check=self._proven.get(model) != state, drafts=drafts)
        self._proven[model] = state
        return runner

    @contextmanager
    def _controllers(self, model: Any, *, greedy: bool) -> Iterator[Controllers | None]:
        """What the method has learnt with these models; a concurrent call begins anew."""
        if self.draft is None:
            yield None
            return
        kept = _LEARNT.setdefault(model, WeakKeyDictionary()).setdefault(self.draft, {})
        found = kept.pop((self.method, greedy), None) or Controllers()
        yield found
        kept[self.method, greedy] = found  # not after an error, which leaves it in an unknown state

    def _criteria(self, criteria: Sequence[Any], stop_strings: str | Sequence[str] | None) -> Sequence[Any]:
        """The criteria, with one for the stop strings. A given StopStringCriteria takes precedence, as in ``generate``."""
        if stop_strings is None or any(type(criterion) is StopStringCriteria for criterion in criteria):
            return criteria
        if self.tokenizer is None:
            raise ConfigError(
                f"stop_strings={stop_strings!r} need a tokenizer, which generate does not pass on: give it to "
                "recipe(..., tokenizer=tokenizer)"
            )
        strings = stop_strings if isinstance(stop_strings, str) else list(stop_strings)
        return [*criteria, StopStringCriteria(tokenizer=self.tokenizer, stop_strings=strings)]

    def _decode(
        self, decoder: Decoder, input_ids: Tensor, ends: _Ends, sampling: Sampling, padding: Sequence[int]
    ) -> list[list[int]]:
        prompts: list[list[int]] = input_ids.tolist()
        if self.streamer is not None and len(prompts) > 1:
            raise ConfigError(f"a streamer takes one text, but {len(prompts)} rows came: leave it out, or give one row")
        put, end = (_silent, _silent) if self.streamer is None else (self.streamer.put, self.streamer.end)
        put(input_ids.cpu())
        seeds = self._seeds(len(prompts), sampling)
        criteria, limits = map(ends.criterion, range(len(prompts))), ends.limits
        requests = [
            Request(prompt=prompt[hidden:], padding=prompt[:hidden], seed=seed, limits=limits, criterion=criterion)
            for prompt, hidden, seed, criterion in zip(prompts, padding, seeds, criteria, strict=True)
        ]
        for pieces in decoder.stream(requests, sampling):
            for piece in pieces:
                prompts[piece.row] += piece.tokens
                for token in piece.tokens:
                    put(torch.tensor([token]))
        end()
        self.stats = decoder.stats
        return prompts

    def _seeds(self, rows: int, sampling: Sampling) -> list[int]:
        if self.seed is None:
            # Greedy decoding draws nothing, so it leaves the generator alone, as generate does.
            return [0] * rows if sampling.greedy else torch.randint(_SEEDS, (rows,)).tolist()
        return seeds_for(rows, self.seed, "rows")


recipe = Recipe
"""The name of :class:`Recipe` in ``custom_generate=recipe(draft_model)``."""


def _silent(*_: Any) -> None:
    """Does nothing, instead of a streamer."""


@final
class _Ends:
    """Finds the ends of rows, by calling stopping criteria for every prefix of every row.

    A finished row is padded if there is an end-of-text criterion. Else ``generate`` continues it until all rows are done.
    """

    def __init__(self, criteria: Sequence[Any], input_ids: Int[Tensor, "row length"]) -> None:
        rows, self._width = input_ids.shape
        self._like = input_ids
        self._criteria = [c for c in criteria if type(c) not in (MaxLengthCriteria, EosTokenCriteria)]
        eos = [int(t) for c in criteria if type(c) is EosTokenCriteria for t in c.eos_token_id.reshape(-1)]
        lengths = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
        if not lengths:
            raise ConfigError("the length of the text has no limit: give max_new_tokens")
        self.longest = max(min(lengths), self._width + 1)
        self.limits = Limits(max_new_tokens=self.longest - self._width, stop_token_ids=tuple(eos))
        self._pads = any(getattr(c, "eos_token_id", None) is not None for c in criteria)
        self._ends: list[int | None] = [None] * rows

    def criterion(self, row: int) -> Callable[[list[int]], bool] | None:
        """A function that returns whether a row with these tokens is finished; None without criteria."""
        if not self._criteria:
            return None

        def over(tokens: list[int]) -> bool:
            if self._ends[row] is None and self._met(tokens):
                self._ends[row] = len(tokens)
            if self._pads:
                return self._ends[row] is not None
            last = self._last()
            return last is not None and len(tokens) >= last

        return over

    def _met(self, tokens: list[int]) -> bool:
        ids = torch.tensor([tokens], dtype=self._like.dtype, device=self._like.device)
        return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in self._criteria)

    def _last(self) -> int | None:
        """The length at which the last row met its criteria; None until all rows have."""
        known = [end for end in self._ends if end is not None]
        return max(known) if len(known) == len(self._ends) else None

    def rectangle(self, texts: list[list[int]], config: Any) -> Int[Tensor, "row length"]:
        """All rows at one length: padded on the right, or cut where ``generate`` would have stopped."""
        length = (None if self._pads else self._last()) or max(map(len, texts))
        pad = config.pad_token_id if config.pad_token_id is not None else (self.limits.stop_token_ids or (None,))[0]
        if pad is None and min(map(len, texts)) < length:
            raise ConfigError("rows end at different lengths, but there is no padding token: give pad_token_id")
        rows = [text[:length] + [pad] * (length - len(text)) for text in texts]
        return torch.tensor(rows, dtype=self._like.dtype, device=self._like.device)


def _by_row(processor: Any, rows: int) -> Any:
    """Replace processors of ``transformers`` that are bound to rows of the batch by one processor per row."""
    if type(processor) is Repetition and isinstance(processor.prompt_ignore_length, Tensor):
        return ByRow([Repetition(processor.penalty, int(n)) for n in processor.prompt_ignore_length])
    if type(processor) is Constrained:
        allowed = processor._prefix_allowed_tokens_fn
        return ByRow([Constrained(lambda _, ids, i=i: allowed(i, ids), 1) for i in range(rows)])
    return processor
