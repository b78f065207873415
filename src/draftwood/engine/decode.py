"""Texts for requests: all at once, or round by round."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, final

from draftwood.core.draft_kind import MASKED_BLOCK
from draftwood.core.rng import Rng
from draftwood.core.rounds import Piece, Stats
from draftwood.core.settings import Method
from draftwood.core.token_logprobs import TokenLogprob
from draftwood.draft import Drafter
from draftwood.draft.none import NoDraft
from draftwood.engine.batch import Batch
from draftwood.engine.in_use import InUse
from draftwood.engine.pipeline import Pipeline
from draftwood.engine.prefixes import PrefixCache
from draftwood.engine.requests import Request, Result
from draftwood.grammar.constraint import Grammars
from draftwood.runners.protocols import Runner
from draftwood.sampling.settings import Sampling
from draftwood.trace.record import Recorder
from draftwood.trace.records import Trace
from draftwood.trace.settings import TraceSettings
from draftwood.verify import Verifier


@final
class Decoder:
    """A target with a matching drafter and verifier.

    Args:
        target: the model whose distribution the output follows.
        drafter: grows the trees; None for plain decoding.
        verifier: accepts one path of each tree.
        tokenizer: for text and stop strings; None for token ids only.
        eos: end-of-text token ids.
        in_use: a lock shared by all decoders of the same models, whose memory holds one batch at a time.
        grammars: compiled grammars, shared by all decoders of the same target.
        prefixes: the prefix cache, shared by all decoders of the same models.

    Attributes:
        prefixes: the prefix cache; by default one of its own.
        pipeline: all these.
        stats: of the last requests.

    Raises:
        PairingError: the verifier is not exact for the drafter's way of choosing siblings.
    """

    def __init__(
        self,
        target: Runner,
        drafter: Drafter | None,
        verifier: Verifier,
        *,
        tokenizer: Any = None,
        eos: Sequence[int] = (),
        in_use: InUse | None = None,
        grammars: Grammars | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self.pipeline = Pipeline(
            target=target,
            drafter=NoDraft() if drafter is None else drafter,
            verifier=verifier,
            tokenizer=tokenizer,
            eos=frozenset(eos),
            grammars=grammars or Grammars(tokenizer, target.vocab_size, frozenset(eos)),
        )
        self.stats: list[Stats] = []
        self._in_use = in_use or InUse()
        self.prefixes = PrefixCache() if prefixes is None else prefixes

    @contextmanager
    def batch(
        self,
        *,
        rows: int | None = None,
        noise: Rng | None = None,
        reuse: bool = False,
        tolerant: bool = False,
    ) -> Iterator[Batch]:
        """An empty :class:`Batch`, to which requests are added at any time; the models are its own until the block ends.

        Another thread that uses the same models is waited for.

        Args:
            rows: the most texts that are written at the same time; further ones wait. None for no limit.
            noise: random choices by row, in place of the requests' seeds.
            reuse: as for :meth:`stream`.
            tolerant: an error of one row ends this row only (:attr:`Batch.failed`), and an error of the drafter only costs
                its drafts (:attr:`Batch.draft_errors`).

        Raises:
            ConfigError: this thread uses the models already.
        """
        self._in_use.acquire()
        try:
            prefixes = self.prefixes if reuse else None
            made = Batch(self.pipeline, most=rows, noise=noise, prefixes=prefixes, tolerant=tolerant)
            with closing(made):
                yield made
        finally:
            self._in_use.release()

    def stream(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        rows: int | None = None,
        noise: Rng | None = None,
        reuse: bool = False,
    ) -> Generator[list[Piece]]:
        """Yield one list of pieces per round, with a piece for every unfinished row; close the iterator to cancel.

        ``self.stats`` holds one :class:`Stats` per request and is updated after every round. With ``reuse`` texts that end
        stay in the prefix cache: a prompt is only read from where it differs from them, and drafts are taken from them. With
        ``rows`` so many texts are written at a time, and the next request takes the place of a text that ends.

        Raises:
            ConfigError: an empty prompt, unknown tokens, models that this thread uses already, a logits processor that
                depends on other rows.
            CacheError: a prompt that fills the models' context.
            NumericsError: scores that are NaN.
        """
        self.pipeline.check(sampling)
        with self.batch(rows=rows, noise=noise, reuse=reuse) as batch:
            self.stats = [batch.stats(batch.add(request, sampling)) for request in requests]
            while len(batch):
                yield batch.step()

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        noise: Rng | None = None,
        reuse: bool = False,
        watch: Callable[[Piece], object] = lambda piece: None,
    ) -> list[Result]:
        """All finished texts, in the order of the requests; arguments and errors as for :meth:`results`."""
        found = dict(self.results(requests, sampling, noise=noise, reuse=reuse, watch=watch))
        return [found[row] for row in range(len(requests))]

    def results(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        rows: int | None = None,
        noise: Rng | None = None,
        reuse: bool = False,
        watch: Callable[[Piece], object] = lambda piece: None,
    ) -> Iterator[tuple[int, Result]]:
        """Yield row and result of each request when it is finished; arguments and errors as for :meth:`stream`.

        ``watch`` is called with every piece.
        """
        texts = [""] * len(requests)
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[TokenLogprob]] = [[] for _ in requests]
        with closing(self.stream(requests, sampling, rows=rows, noise=noise, reuse=reuse)) as stream:
            for piece in (piece for pieces in stream for piece in pieces):
                row = piece.row
                texts[row] += piece.text
                tokens[row] += piece.tokens
                logprobs[row] += piece.logprobs or []
                watch(piece)
                if piece.finish_reason is not None:
                    yield (
                        row,
                        Result(
                            text=texts[row],
                            token_ids=tokens[row],
                            finish_reason=piece.finish_reason,
                            seed=requests[row].seed,
                            lossless=self.pipeline.verifier.lossless,
                            stats=self.stats[row],
                            logprobs=None if requests[row].logprobs is None else logprobs[row],
                        ),
                    )


def recorder_of(
    decoder: Decoder,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    method: Method,
    draft: Runner | None,
    kept: TraceSettings,
) -> Recorder:
    """A recorder for the pieces of ``decoder.stream(requests, sampling)``.

    Args:
        method: of the decoder, without ``auto``.
        draft: the draft model, or None.
        kept: what a trace holds.
    """
    verifier = decoder.pipeline.verifier
    mask = int(cast(Any, draft).model.config.mask_token_id) if draft is not None and draft.kind is MASKED_BLOCK else None
    head = Trace(
        target=_name_of(decoder.pipeline.target),
        draft=None if draft is None else _name_of(draft),
        method=method.method,
        verifier=verifier.name,
        shape=method.shape if method.nodes is None else f"{method.nodes} nodes",
        temperature=float(sampling.temperature),
        seed=0,
        prompt=[],
        source=[],
        mask=mask,
        beta=None if verifier.lossless else method.beta,
        tau=None if verifier.lossless else method.tau,
    )
    heads = [replace(head, seed=one.seed, prompt=list(one.prompt), source=list(one.source)) for one in requests]
    shown = frozenset[int]().union(*(one.shown for one in requests))
    return Recorder(heads, kept, tokenizer=decoder.pipeline.tokenizer, shown=shown)


def _name_of(runner: Runner) -> str:
    """A model's name: that of the hub, the last two parts of a folder's path, or the class of a model without a name."""
    model: Any = getattr(runner, "model", None)
    name = str(getattr(model, "name_or_path", "") or getattr(getattr(model, "config", None), "_name_or_path", ""))
    if not name:
        return type(runner if model is None else model).__name__
    return "/".join(Path(name).parts[-2:]) if Path(name).is_absolute() else name
