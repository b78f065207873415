"""A draft model with another tokenizer: it drafts by the tokens that both vocabularies have.

Its distribution is restricted to these tokens and renormalised. They are drawn from just that, so every tree and every
verifier is exact. It reads the text in tokens of its own: those of a tree's nodes are mapped one by one, and what the target
has written is tokenized anew, as its last tokens may become others with the text that follows.

Source: token-level intersection (TLI), Timor et al. 2025, arXiv 2502.05202.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol, final

import numpy as np
import torch
from jaxtyping import Int

from draftwood.core.scores import Scores, dense
from draftwood.runners.protocols import Hidden, KeepsTexts, PerNode, Prefix, Seen
from draftwood.runners.rows import common_length
from draftwood.runners.shared_tokens import CopiedText, SharedTokens
from draftwood.runners.support import score_tree
from draftwood.sampling.rows import Row

LEAST: Final = 0.5
"""Of the draft's probability, the least that tokens of both vocabularies have: a draft that says less of what it means
proposes what it does not mean."""
SAMPLE: Final = (
    'The harbour was quiet when the ferry came in, and only three people stood on the quay. "You\'re late," said the old '
    "man; he had waited since 6:45. Das Wetter war schön, und die Straßen füllten sich wieder.\n\n"
    "1. Read the file.\n2. Count the words:\n\n    def count(text: str) -> int:\n        return len(text.split())\n"
)
"""What that is measured on."""
_LOG = logging.getLogger(__name__)


class _Cuts(KeepsTexts, Protocol):
    """A runner whose rows can lose their last tokens."""

    def cut(self, row: Row, length: int) -> None: ...


@final
class IntersectionRunner:
    """The runner of a draft model with another tokenizer, as a :class:`draftwood.runners.protocols.KeepsTexts`.

    Its rows and nodes are the target's, and its scores are -inf but for shared tokens. The runner of the model has copies
    of the rows, which lose their last tokens where a text goes on so that these become others.

    Args:
        runner: the runner of the model.
        shared: the tokens of both.
        vocab: number of tokens that the target scores.

    Raises:
        PairingError: shared tokens have less than :data:`LEAST` of the draft's probability on a sample.
    """

    def __init__(self, runner: Any, shared: SharedTokens, vocab: int) -> None:
        self._runner: _Cuts = runner
        self.kind, self.pads, self.engine, self.vocab_size = shared.kind, runner.pads, runner.engine, vocab
        self.max_length = runner.max_length  # as the target counts: no token is possible behind more of the draft's
        known = [pair for pair in shared.map.items() if pair[0] < vocab and pair[1] < runner.vocab_size]
        self._tokens, self._own = torch.tensor(known, dtype=torch.long, device=runner.device).reshape(-1, 2).unbind(1)
        self._shared = shared
        self._check()
        self.clear()

    @property
    def device(self) -> torch.device:
        return self._runner.device

    def _check(self) -> None:
        """Measure the shared tokens' part of the draft's probability, and refuse too little."""
        shared, runner = self._shared, self._runner
        text = shared.whole([*shared.begin, *shared.encode(SAMPLE, first=True)])[: self.max_length]
        scores = score_tree(runner, text, [list(range(i + 1)) for i in range(len(text))], prefix=[])  # type: ignore[arg-type]
        runner.forward_seconds = 0.0
        mass = float(scores.softmax(-1).index_select(-1, self._own).sum(-1).mean())
        if not mass >= LEAST:
            raise shared.refused(
                f"the {len(self._own):,} tokens of both have {mass:.0%} of its probability on a sample, where {LEAST:.0%} "
                "are needed"
            )
        _LOG.info(
            "the draft has another tokenizer: it proposes the %s tokens of both, with %s of its probability on a sample",
            f"{len(self._own):,}",
            f"{mass:.0%}",
        )

    def _copy(self, row: Row) -> CopiedText:
        return row.state(self, lambda: CopiedText(self._shared))

    def _up_to_date(self, row: Row) -> Row:
        """The copy of a row that is not in a round."""
        copy = self._copy(row)
        copy.row.tokens = copy.read(row.tokens)
        return copy.row

    def clear(self) -> None:
        self._rows: list[Row] = []
        self._nodes: list[Int[np.ndarray, "row node"]] = []
        self._runner.clear()
        self.forward_seconds = self._runner.forward_seconds

    def set_rows(self, rows: Sequence[Row]) -> None:
        self._rows, self._nodes = list(rows), []
        self._runner.set_rows([self._up_to_date(row) for row in rows])

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> None:
        """The model reads the same share of its own tokens."""
        own, copied = self._up_to_date(row), None
        last, all_read = len(own.tokens) - 1, len(row.tokens) - 1
        if prefix is not None and prefix.row.has_state(self):
            other = self._copy(prefix.row).row
            copied = Prefix(other, min(last, common_length(own.tokens, other.tokens)))
        self._runner.prefill(own, last if end >= all_read else last * end // all_read, prefix=copied)
        self.forward_seconds = self._runner.forward_seconds

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        own = np.array([[self._shared.number(token) for token in row] for row in tokens.tolist()])
        texts = [self._copy(row).row.tokens for row in self._rows]
        if not self._nodes:
            own[:, 0] = [text[-1] for text in texts]
        self._nodes.append(own)
        logits = self._runner.extend(own, depths, ancestors).logits.index_select(-1, self._own)
        self.forward_seconds = self._runner.forward_seconds
        if self.max_length is not None and max(map(len, texts)) + int(depths.max()) > self.max_length:
            ends = np.array([[len(text)] for text in texts]) + np.asarray(depths)
            beyond = torch.as_tensor(ends > self.max_length, device=self.device)
            logits = logits.masked_fill(beyond.unsqueeze(-1), -torch.inf)
        return Scores(dense(logits, self._tokens, self.vocab_size))  # choices by token: the same in any company

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        """Nodes stay as far as their tokens are those of the text; so does the text before them."""
        kept, lengths = [], []
        read = np.concatenate(self._nodes, axis=1).tolist() if self._nodes else [[]] * len(self._rows)
        for row, own, chosen in zip(self._rows, read, nodes, strict=True):
            copy = self._copy(row)
            before, new = copy.row.tokens[:-1], copy.read(row.tokens)
            same = common_length(new[:-1], [*before, *(own[node] for node in chosen)])
            kept.append(chosen[: max(0, same - len(before))])
            lengths.append(same)
            copy.row.tokens = new
        self._runner.commit(kept)
        for row, length in zip(self._rows, lengths, strict=True):
            self._runner.cut(self._copy(row).row, length)
        self._nodes = []

    @property
    def token_bytes(self) -> int:
        return self._runner.token_bytes

    @property
    def row_bytes(self) -> int:
        return self._runner.row_bytes

    @property
    def memory_bytes(self) -> int:
        return self._runner.memory_bytes

    def keep(self, row: Row, text: Row) -> None:
        own, kept = self._copy(row).row, self._copy(text).row
        kept.tokens = own.tokens[: self._runner.held(own)]
        self._runner.keep(own, kept)

    def held(self, row: Row) -> int:
        return self._runner.held(self._copy(row).row) if row.has_state(self) else 0

    def reach(self, row: Row, length: int) -> int:
        return min(length, self.held(row))

    def mark(self, row: Row, *, regular: bool) -> None:
        self._runner.mark(self._copy(row).row, regular=regular)

    def thin_marks(self) -> bool:
        return self._runner.thin_marks()
