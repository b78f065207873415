"""From a model's scores to the law that is sampled: penalties, bias, processors, temperature, top-k, top-p, min-p.

Every step is applied at every tree node on that node's own prefix (prompt, committed text, root-to-node path), in the
order of ``transformers.generate``: penalties, bias and processors first, then temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.errors import ConfigError, NumericsError

Prefixes: TypeAlias = Callable[[], list[list[list[int]]]]
"""Tokens after the root up to each node, ``[row][node]``; called only by laws that depend on the text so far."""


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@final
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn from the model's scores.

    ``presence_penalty`` and ``frequency_penalty`` count the generated text only (as OpenAI and vLLM do);
    ``repetition_penalty`` counts the prompt too (as ``transformers`` does, arXiv 1909.05858). ``processors`` is any
    ``transformers.LogitsProcessorList``; a processor that keeps state between calls or mixes rows is refused by name,
    because it would be asked about tree nodes that never become text.

    Raises:
        ConfigError: a value out of range.
    """

    temperature: float = _setting(1.0, "0 for the most likely text, 1 for the model's own law")
    top_k: int = _setting(0, "keep the k most likely tokens; 0 keeps all")
    top_p: float = _setting(1.0, "keep the most likely tokens that together reach this probability; 1 keeps all")
    min_p: float = _setting(0.0, "drop tokens less likely than this share of the most likely one")
    repetition_penalty: float = _setting(1.0, "divide the scores of tokens already in prompt or text; 1 is off")
    presence_penalty: float = _setting(0.0, "subtract from the scores of tokens already generated")
    frequency_penalty: float = _setting(0.0, "subtract from a token's score for every time it was generated")
    logit_bias: Mapping[int, float] | None = None
    processors: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        checks = [
            ("temperature", self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
        ]
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, float) and not abs(value) < float("inf"):
                raise ConfigError(f"{f.name} is {value}: give a finite number")
        for name, good, wanted in checks:
            if not good:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number {wanted}")
        for processor in self.processors or ():
            for one in processor.rows if isinstance(processor, ByRow) else [processor]:
                refuse_stateful(one)

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.temperature == 0

    @property
    def looks_back(self) -> bool:
        """True when the law depends on more than the scores: then every node's prefix is needed."""
        neutral = self.repetition_penalty == 1 and self.presence_penalty == 0 and self.frequency_penalty == 0
        return not neutral or bool(self.processors)


@final
@dataclass(frozen=True)
class ByRow:
    """A logits processor that differs from request to request: ``rows[i]`` answers for request ``i``."""

    rows: Sequence[Any]


_KEEPS_STATE = "keeps state between calls; a draft tree asks about texts that are never written, so its state would go wrong"
_ROW_BOUND = "is bound to the rows of one batch, but here every row of its input is a node of a draft tree"
_KNOWN = {
    "SynthIDTextWatermarkLogitsProcessor": _KEEPS_STATE,
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": _KEEPS_STATE,
    "EncoderRepetitionPenaltyLogitsProcessor": _ROW_BOUND,
    "EncoderNoRepeatNGramLogitsProcessor": _ROW_BOUND,
}


def refuse_stateful(processor: Any, vocab: int = 64) -> None:
    """Refuse a logits processor that is not a function of each row's ``input_ids`` and ``scores`` alone.

    Raises:
        ConfigError: the processor keeps state between calls, or its answer hangs on the rows beside; its class is named.
    """
    name = type(processor).__name__
    trouble = _KNOWN.get(name) or _trouble(processor, vocab)
    if trouble:
        raise ConfigError(
            f"logits processor {name} {trouble}. Remove it, or rewrite it as a function of one row's input_ids and scores"
        )


def _trouble(processor: Any, vocab: int) -> str | None:
    """Ask a copy the same question before and after others, alone and in company: answers and attributes must not change."""
    first, second, both = (torch.tensor(ids) for ids in ([[1, 2, 3]], [[3, 2, 1, 3, 2]], [[1, 2, 3], [2, 1, 3]]))
    scores = torch.linspace(-2.0, 2.0, vocab).unsqueeze(0)
    try:
        probe = copy.deepcopy(processor)
        before, state = probe(first, scores.clone()), _snapshot(probe)
        probe(second, scores.clone())
        moved = state != _snapshot(probe)
        after = probe(first, scores.clone())
    except Exception:
        return None  # it wants other scores or another device: it cannot be asked, and a wrong use fails at the first call
    if moved or not torch.equal(before, after) or state != _snapshot(probe):
        return _KEEPS_STATE
    try:
        alone = torch.cat([probe(both[:1], scores.clone()), probe(both[1:], scores.clone())])
        together = probe(both, scores.repeat(2, 1))
    except Exception:
        return _ROW_BOUND
    return None if alone.shape == together.shape and torch.allclose(alone, together, equal_nan=True) else _ROW_BOUND


def _snapshot(thing: Any, depth: int = 4) -> Any:
    """What can be seen of an object's state, in comparable form."""
    if isinstance(thing, Tensor):
        return hash(thing.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    if depth == 0:
        return repr(thing)
    if isinstance(thing, Mapping):
        return {repr(key): _snapshot(value, depth - 1) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_snapshot(value, depth - 1) for value in thing]
    if hasattr(thing, "__dict__") and not isinstance(thing, type | torch.nn.Module):
        return _snapshot(vars(thing), depth - 1)
    return repr(thing)


@final
class Law:
    """A :class:`Sampling` bound to the texts of a batch.

    Args:
        sampling: the settings.
        texts: per row, all tokens so far, the root last; grown in place by the decode loop.
        prompt_lengths: per row, how many of them are the prompt.
        vocab: the target's vocabulary; a draft with a padded or cut embedding is fitted to it.
        requests: per row, the number of its request; rows in order without it.
    """

    def __init__(
        self,
        sampling: Sampling,
        texts: Sequence[list[int]],
        prompt_lengths: Sequence[int],
        vocab: int,
        requests: Sequence[int] | None = None,
    ) -> None:
        self.sampling = sampling
        self.texts = list(texts)
        self.prompt_lengths = list(prompt_lengths)
        self.vocab = vocab
        self.requests = list(range(len(texts)) if requests is None else requests)

    def select(self, rows: Sequence[int]) -> Law:
        """The law of some of the rows."""
        return Law(
            self.sampling,
            [self.texts[r] for r in rows],
            [self.prompt_lengths[r] for r in rows],
            self.vocab,
            [self.requests[r] for r in rows],
        )

    def draft(self, logits: Float[Tensor, "row node scored"], prefixes: Prefixes) -> Float[Tensor, "row node vocab"]:
        """Log-law of a draft model, warped as the target's; at temperature 0 the unwarped law, as a ranking."""
        missing = self.vocab - logits.shape[-1]
        if missing > 0:
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return _log_law(self._warp(logits[..., : self.vocab], prefixes), who="draft")

    def target(self, logits: Float[Tensor, "row node vocab"], prefixes: Prefixes) -> Float[Tensor, "row node vocab"]:
        """Log-law of the target at every node; a point mass on the best token at temperature 0.

        Raises:
            NumericsError: scores that are NaN, or a law without any possible token.
        """
        scores = self._warp(logits, prefixes)
        logp = _log_law(scores, who="target")
        if not self.sampling.greedy:
            return logp
        best = scores.argmax(dim=-1, keepdim=True)  # not of the law, in which close scores may round to a tie
        return torch.full_like(logp, -torch.inf).scatter_(-1, best, 0.0)

    def _warp(self, logits: Tensor, prefixes: Prefixes) -> Tensor:
        s = self.sampling
        scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if s.looks_back:
            scores = self._look_back(scores, prefixes())
        if s.logit_bias:
            scores = scores + self._bias(scores)
        return scores if s.greedy else truncate(scores / s.temperature if s.temperature != 1 else scores, s)

    def _bias(self, scores: Tensor) -> Tensor:
        bias = scores.new_zeros(scores.shape[-1])
        for token, value in (self.sampling.logit_bias or {}).items():
            if not 0 <= token < self.vocab:
                raise ConfigError(f"logit_bias names token {token}: give tokens from 0 to {self.vocab - 1}")
            bias[token] = value
        return bias

    def _look_back(self, scores: Tensor, prefixes: list[list[list[int]]]) -> Tensor:
        s = self.sampling
        if s.repetition_penalty != 1:
            seen = self._counts(scores, prefixes, generated_only=False) > 0
            penalised = torch.where(scores < 0, scores * s.repetition_penalty, scores / s.repetition_penalty)
            scores = torch.where(seen, penalised, scores)
        if s.presence_penalty or s.frequency_penalty:
            counts = self._counts(scores, prefixes, generated_only=True)
            scores = scores - s.frequency_penalty * counts - s.presence_penalty * (counts > 0).to(scores.dtype)
        return self._process(scores, prefixes) if s.processors else scores

    def _counts(
        self, scores: Tensor, prefixes: list[list[list[int]]], *, generated_only: bool
    ) -> Float[Tensor, "row node vocab"]:
        counts = torch.zeros_like(scores)
        for row, (text, start) in enumerate(zip(self.texts, self.prompt_lengths, strict=True)):
            history = torch.tensor(text[start if generated_only else 0 :], dtype=torch.long, device=scores.device)
            counts[row] += torch.bincount(history, minlength=scores.shape[-1])[: scores.shape[-1]]
            for node, path in enumerate(prefixes[row]):
                for token in path:
                    counts[row, node, token] += 1
        return counts

    def _process(self, scores: Tensor, prefixes: list[list[list[int]]]) -> Tensor:
        out = scores.clone()
        for row, (text, request) in enumerate(zip(self.texts, self.requests, strict=True)):
            by_length: dict[int, list[int]] = {}
            for node, path in enumerate(prefixes[row]):
                by_length.setdefault(len(path), []).append(node)
            for nodes in by_length.values():
                ids: Int[Tensor, "n length"] = torch.tensor(
                    [text + prefixes[row][n] for n in nodes], dtype=torch.long, device=scores.device
                )
                part = scores[row, nodes]
                for processor in self.sampling.processors or ():
                    part = (processor.rows[request] if isinstance(processor, ByRow) else processor)(ids, part)
                out[row, nodes] = part.to(out.dtype)
        return out


def _log_law(scores: Tensor, *, who: str) -> Tensor:
    logp = scores.log_softmax(dim=-1)
    # One column is enough: a NaN or an infinite score anywhere makes the whole row NaN. Host sync on an accelerator.
    if bool(logp[..., 0].isnan().any()):
        raise NumericsError(
            f"the {who} model's scores hold NaN or infinity, or no token is left possible. Try --dtype float32, and "
            "check logit_bias and logits processors"
        )
    return logp


def truncate(scores: Float[Tensor, "*batch vocab"], s: Sampling) -> Float[Tensor, "*batch vocab"]:
    """Top-k, then top-p, then min-p, each on the law that the one before it leaves; the best token always stays."""
    if 0 < s.top_k < scores.shape[-1]:
        kth = scores.topk(s.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if s.top_p < 1:
        ordered, index = scores.sort(dim=-1, descending=False)
        drop = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - s.top_p
        drop[..., -1] = False
        scores = scores.masked_fill(torch.zeros_like(drop).scatter_(-1, index, drop), -torch.inf)
    if s.min_p > 0:
        law = scores.softmax(dim=-1)
        drop = law < s.min_p * law.amax(dim=-1, keepdim=True)
        scores = scores.masked_fill(drop, -torch.inf)
    return scores
