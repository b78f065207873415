"""Checks of logits processors: a tree needs processors that are functions of one row's text and scores alone.

A tree calls processors for texts out of order, and for many texts that are never written. A processor that counts its calls
would silently change the distribution. So classes of ``transformers`` are accepted by their exact type. Other processors
must declare themselves stateless, and are tried on every prompt before the first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch
from torch import Tensor

from draftwood.core.errors import ConfigError

_TRIED = 2  # tokens after a prompt on which a processor is tried
_HOME = "transformers.generation.logits_process"
_STATELESS = frozenset(
    {
        *("AlternatingCodebooksLogitsProcessor", "BarkEosPrioritizerLogitsProcessor", "EpsilonLogitsWarper"),
        *("EtaLogitsWarper", "ExponentialDecayLengthPenalty", "ForcedBOSTokenLogitsProcessor"),
        *("ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor", "LogitNormalization"),
        *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper"),
        *("NoBadWordsLogitsProcessor", "NoRepeatNGramLogitsProcessor", "RepetitionPenaltyLogitsProcessor"),
        *("SequenceBiasLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor"),
        *("TemperatureLogitsWarper", "TopHLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "TypicalLogitsWarper"),
        *("WatermarkLogitsProcessor", "WhisperTimeStampLogitsProcessor"),  # the watermark's generator restarts at every text
    }
)
_CONSTRAINT = "PrefixConstrainedLogitsProcessor"  # as stateless as the user's function in it, so it is tried
_KEEPS_STATE = "keeps state between calls, which goes wrong: a draft tree calls it for texts that are never written"
_ROW_BOUND = "is bound to the rows of one batch, but here every row of its input is a node of a draft tree"
_KNOWN = {
    **dict.fromkeys(
        [
            *("SynthIDTextWatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor"),
            *("WhisperNoSpeechDetection", "DiaEOSDelayPatternLogitsProcessor"),
        ],
        _KEEPS_STATE,
    ),
    **dict.fromkeys(
        [
            *("EncoderRepetitionPenaltyLogitsProcessor", "EncoderNoRepeatNGramLogitsProcessor"),
            *("ClassifierFreeGuidanceLogitsProcessor", "DiaClassifierFreeGuidanceLogitsProcessor"),
            "DiaEOSChannelFilterLogitsProcessor",
        ],
        _ROW_BOUND,
    ),
}


@final
class Stateless:
    """Declares a logits processor stateless: its result depends on each row's ``input_ids`` and ``scores`` alone.

    It decorates functions too. An attribute ``stateless = True`` of a processor or its class has the same meaning. The
    declaration is a promise. Draftwood tries the processor on every prompt before the first token, which finds many broken
    promises, but not all.

    Args:
        processor: called with ``input_ids`` (int64, ``[row, length]``) and ``scores`` (float, ``[row, vocab]``) of the token
            after each row; returns the new scores. Rows are nodes of draft trees, in no order.

    Raises:
        ConfigError: ``processor`` is a class, not an object.
    """

    stateless = True

    def __init__(self, processor: Any) -> None:
        if isinstance(processor, type):
            raise ConfigError(
                f"Stateless was given the class {processor.__name__}: give an object of it, or set stateless = True in it"
            )
        self.processor = processor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        out: Tensor = self.processor(input_ids, scores)
        return out

    def __repr__(self) -> str:
        return f"Stateless({self.processor!r})"


@final
@dataclass(frozen=True)
class ByRow:
    """A logits processor that differs between requests: ``rows[i]`` is the processor of request ``i``."""

    rows: Sequence[Any]


@final
@dataclass(frozen=True)
class ByPrompt:
    """A logits processor that counts from the end of the prompt: ``behind(n)`` is the one for a prompt of ``n`` tokens."""

    behind: Callable[[int], Any]


def for_request(processor: Any, request: int, prompt_length: int) -> Any:
    """The processor for this request, which has a prompt of ``prompt_length`` tokens."""
    if isinstance(processor, ByRow):
        return processor.rows[request]
    return processor.behind(prompt_length) if isinstance(processor, ByPrompt) else processor


def check_processors(processors: Sequence[Any] | None) -> None:
    """Refuse processors that are not known to be functions of each row's ``input_ids`` and ``scores`` alone.

    Raises:
        ConfigError: names a processor that keeps state between calls, depends on other rows, or does not declare itself
            stateless.
    """
    for processor in processors or ():
        for one in processor.rows if isinstance(processor, ByRow) else [for_request(processor, 0, 1)]:
            _check(one)


def _check(processor: Any) -> None:
    kind = type(processor)
    known = kind.__name__ if kind.__module__ == _HOME else ""
    if trouble := _KNOWN.get(known):
        _refuse(processor, trouble)
    if known == _CONSTRAINT and processor._num_beams != 1:
        _refuse(processor, _ROW_BOUND)
    if known == "RepetitionPenaltyLogitsProcessor" and isinstance(processor.prompt_ignore_length, Tensor):
        _refuse(processor, _ROW_BOUND)
    if not (known in _STATELESS or known == _CONSTRAINT or getattr(processor, "stateless", False) is True):
        raise ConfigError(
            f"logits processor {_name(processor)} is not known to be stateless, and a draft tree calls it for texts out of "
            "order, many of which are never written. If its result depends on one row's input_ids and scores alone, give "
            "draftwood.Stateless(processor), or set stateless = True on its class; otherwise remove it"
        )


def try_processors(
    processors: Sequence[Any], text: Sequence[int], stops: frozenset[int], *, vocab: int, new: int, device: torch.device
) -> None:
    """Call processors with the same texts in two orders, one by one and together: the results must be the same.

    All texts continue the prompt with tokens that the processors allow. Processors are not called where all of them are
    known classes without a function of the user's.

    Args:
        processors: of one request, in their order, from :func:`for_request`.
        text: the prompt.
        stops: tokens that end the text; processors are not called after them.
        vocab: number of scores of a row.
        new: number of tokens that may follow the prompt.
        device: where the processors' inputs lie.

    Raises:
        ConfigError: names a processor that keeps state, depends on other rows, or fails.
    """
    if all(type(p).__module__ == _HOME and type(p).__name__ in _STATELESS for p in processors):
        return
    trial = _Trial(processors, vocab, device)
    levels, first = [[list(text)]], [[trial.results([list(text)])]]
    for _ in range(min(_TRIED, new - 1)):
        below = [
            [*one, token]
            for one, results in zip(levels[-1], first[-1], strict=True)
            for token in _allowed(results[-1])
            if token not in stops
        ]
        if not below:
            break
        tried = trial.possible(below)
        levels.append([one for one, _ in tried])
        first.append([results for _, results in tried])
    for level, known in zip(reversed(levels), reversed(first), strict=True):
        for one, results in zip(reversed(level), reversed(known), strict=True):
            trial.compare(trial.results([one]), results, _KEEPS_STATE)
    for level, known in zip(levels, first, strict=True):
        twice = [*level, *level]  # a single text too must get the same result in another row
        alone = [torch.cat(parts).repeat(2, 1) for parts in zip(*known, strict=True)]
        trial.compare(trial.results(twice, together=True), alone, _ROW_BOUND)


def _allowed(scores: Tensor) -> list[int]:
    """The first and the last possible token of the vocabulary."""
    possible: list[int] = (scores[0] > -torch.inf).nonzero().flatten().tolist()
    return sorted({possible[0], possible[-1]}) if possible else []


@final
class _Trial:
    """Applies processors one after the other to made-up scores."""

    def __init__(self, processors: Sequence[Any], vocab: int, device: torch.device) -> None:
        self._processors = processors
        self._scores = torch.linspace(-2.0, 2.0, vocab, device=device, dtype=torch.float32).unsqueeze(0)
        self._device = device

    def results(self, texts: Sequence[Sequence[int]], *, together: bool = False) -> list[Tensor]:
        """The scores after each processor; all texts have the same length."""
        ids = torch.tensor(texts, device=self._device)
        # Every text has scores of its own, so a result that depends on other rows' scores shows.
        out, scores = [], torch.cat([self._scores.roll(sum(text) % self._scores.shape[1], 1) for text in texts])
        for processor in self._processors:
            try:
                scores = processor(ids.clone(), scores.clone())
            except Exception as error:
                if together:
                    _refuse(processor, _ROW_BOUND)
                raise ConfigError(
                    f"logits processor {_name(processor)} cannot be tried: after a prompt of {len(texts[0])} tokens or "
                    f"fewer it raised {type(error).__name__}: {error}. A processor must accept every text that it allows"
                ) from error
            if isinstance(scores, Tensor) and scores.ndim == 2 and len(scores) != len(texts):
                _refuse(processor, _ROW_BOUND)
            if not isinstance(scores, Tensor) or scores.shape != (len(texts), self._scores.shape[1]):
                came = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
                raise ConfigError(
                    f"logits processor {_name(processor)} returned {came}: return a tensor of the shape of its scores, "
                    f"{[len(texts), self._scores.shape[1]]}"
                )
            out.append(scores.clone())
        return out

    def possible(self, texts: Sequence[list[int]]) -> list[tuple[list[int], list[Tensor]]]:
        """The texts that have results, with these; a constraint may have none for some texts, which are never written.

        Raises:
            ConfigError: no text has results.
        """
        tried, refused = [], None
        for text in texts:
            try:
                tried.append((text, self.results([text])))
            except ConfigError as error:
                refused = error
        if not tried and refused is not None:
            raise refused
        return tried

    def compare(self, results: Sequence[Tensor], wanted: Sequence[Tensor], trouble: str) -> None:
        """Raise a ConfigError that names the first processor whose result differs."""
        close = 1e-5 if trouble == _ROW_BOUND else 0.0  # rows in one call may be rounded differently
        for processor, found, known in zip(self._processors, results, wanted, strict=True):
            if found.shape != known.shape or not torch.allclose(found, known, rtol=close, atol=close, equal_nan=True):
                _refuse(processor, trouble)


def _refuse(processor: Any, trouble: str) -> NoReturn:
    raise ConfigError(
        f"logits processor {_name(processor)} {trouble}. Remove it, or rewrite it as a function of one row's input_ids and "
        "scores"
    )


def _name(processor: Any) -> str:
    """The processor's name in its source."""
    if isinstance(processor, Stateless):
        return _name(processor.processor)
    name = getattr(processor, "__name__", None)
    return repr(name) if isinstance(name, str) else type(processor).__name__
