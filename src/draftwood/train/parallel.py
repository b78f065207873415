"""Training of a causal drafter to draft a block in one forward: after a text it reads one mask per unknown token.

Source: PARD, An et al. 2025, arXiv 2504.18583. PARD trains on all cuts of a text and drops masks at random. Here some cuts
of a text are drawn, and their blocks are complete.

One forward reads the text and, after it, the masks of every cut. A mask has the position of the token that it stands for. It
attends to the text up to its cut, and to the earlier masks of the same cut. So each mask has the same inputs as in decoding.
A mask learns the target's distribution at its position given the true text. On average over texts, that is the distribution
of the token when the tokens before it are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.runners.windows import Window, mask_argument, sliding_window
from draftwood.train import loop
from draftwood.train.config import DraftConfig
from draftwood.train.losses import acceptance


class Masked(NamedTuple):
    """Texts and the masks of their cuts as inputs of one forward, and the positions whose predictions are trained.

    Attributes:
        tokens, positions: int64 [row, text + mask].
        visible: bool [row, 1, text + mask, text + mask], what each token attends to.
        trained: indices into the forward of the tokens whose predictions are trained; int64 [row, trained].
        at: the text positions of these tokens; int64 [row, trained]. Each predicts the text's next token.
    """

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    trained: Tensor
    at: Tensor

    def inputs(self, window: Window | None) -> dict[str, Any]:
        """The keyword arguments of a model with this sliding attention."""
        masks = [self.visible]
        if window is not None:
            distance = self.positions.unsqueeze(2) - self.positions.unsqueeze(1)
            near = self.visible & (distance < window.size).unsqueeze(1)
            masks = [near] if window.everywhere else [*masks, near]
        return {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            "attention_mask": mask_argument(*masks),
            "use_cache": False,
        }

    def aligned(self, draft_logits: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Scores float [row, trained, vocab] of drafter and target at the same text positions.

        ``target_logits`` come from a forward over the text alone.
        """
        vocab = target_logits.shape[-1]
        ours = draft_logits.take_along_dim(self.trained.unsqueeze(-1), dim=1)[..., :vocab]
        return ours, target_logits.take_along_dim(self.at.unsqueeze(-1), dim=1)

    def labels(self) -> Tensor:
        """The tokens to predict, int64 [row, trained]."""
        return self.tokens.gather(1, self.at + 1)


@final
@dataclass(frozen=True, kw_only=True)
class Cutting:
    """How texts are cut.

    Attributes:
        block: tokens drafted in one forward: the first from the token at the cut, each of the others from a mask.
        cuts: number of cuts of a text in training.
        mask_token: the token id of the mask.
        context: tokens of a text.

    Raises:
        ConfigError: texts of ``context`` tokens do not allow this block or number of cuts.
    """

    block: int
    cuts: int
    mask_token: int
    context: int

    def __post_init__(self) -> None:
        if not 2 <= self.block < self.context:
            raise ConfigError(
                f"parallel is {self.block}: a block has 2 tokens or more, and fewer than the context of {self.context}"
            )
        if not 1 <= self.cuts <= self.positions:
            raise ConfigError(
                f"cuts is {self.cuts}: blocks of {self.block} tokens can begin at {self.positions} positions in a context "
                f"of {self.context}, so give 1 to {self.positions}"
            )

    @property
    def positions(self) -> int:
        """The number of possible cuts: tokens of a text with a complete block after them."""
        return self.context - self.block

    @staticmethod
    def of(config: DraftConfig, mask_token: int) -> Cutting | None:
        """The cutting of these settings; None for an ordinary drafter.

        Without ``cuts`` there are about as many masks as the text has tokens.

        Raises:
            ConfigError: the settings do not fit together.
        """
        if config.parallel is None:
            if config.cuts is not None:
                raise ConfigError(
                    f"cuts is {config.cuts}, but nothing is cut without parallel: give --parallel, or leave it out"
                )
            return None
        cuts = max(1, config.context // max(1, config.parallel)) if config.cuts is None else config.cuts
        return Cutting(block=config.parallel, cuts=cuts, mask_token=mask_token, context=config.context)

    def random(self, tokens: Tensor, generator: torch.Generator) -> Masked:
        """Different cuts of every text int64 [row, context], each position equally likely."""
        order = torch.rand(len(tokens), self.positions, generator=generator).argsort(-1)
        return self.masked(tokens, order[:, : self.cuts].to(tokens.device))

    def regular(self, tokens: Tensor) -> Masked:
        """A cut every ``block`` tokens."""
        cuts = torch.arange(0, self.positions, self.block, device=tokens.device)
        return self.masked(tokens, cuts.expand(len(tokens), -1))

    def masked(self, tokens: Tensor, cuts: Tensor) -> Masked:
        """Texts int64 [row, text] with masks; each cut int64 [row, cut] is the index of the last token before its masks."""
        rows, length = tokens.shape
        text = torch.arange(length, device=tokens.device)
        offset = torch.arange(1, self.block, device=tokens.device)
        grid = torch.meshgrid(torch.arange(cuts.shape[1]).to(offset), offset, indexing="ij")
        of, offset = (part.flatten() for part in grid)
        last_seen = cuts[:, of]
        size = length + len(of)
        visible = torch.zeros(rows, size, size, dtype=torch.bool, device=tokens.device)
        visible[:, :length, :length] = text[:, None] >= text
        visible[:, length:, :length] = last_seen[..., None] >= text
        visible[:, length:, length:] = (of[:, None] == of) & (offset[:, None] >= offset)
        positions = torch.cat([text.expand(rows, -1), last_seen + offset], dim=1)
        trained = torch.cat([text[:-1], torch.arange(length, size, device=tokens.device)]).expand(rows, -1)
        return Masked(
            tokens=torch.cat([tokens, tokens.new_full((rows, len(of)), self.mask_token)], dim=1),
            positions=positions,
            visible=visible.unsqueeze(1),
            trained=trained,
            at=positions.gather(1, trained),
        )


def add_mask_token(model: Any, block: int) -> int:
    """Add a mask token to a causal model, with the mean of all other embeddings; returns its id.

    The configuration gets ``mask_token_id`` and ``draft_block``, by which loading recognises such a drafter.
    """
    mask = int(model.get_input_embeddings().weight.shape[0])
    model.resize_token_embeddings(mask + 1, mean_resizing=False)
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight[mask] = weight[:mask].mean(0)
    model.config.mask_token_id, model.config.draft_block = mask, block
    return mask


def block_agreement(
    model: Any, target: Any, held_out: dict[str, Tensor], batch: int, cutting: Cutting
) -> dict[str, dict[str, Any]]:
    """How well drafted blocks predict the target, for each kind of held-out blocks int64 [block, length].

    Two lists have a figure for each position of a drafted block, given the true text before it: the acceptance at
    temperature 1, and the share of tokens that both prefer. ``tokens_per_round`` is the mean of
    ``1 + sum_{i<=k} a_1 ... a_i``, where ``a_i`` is the acceptance at position ``i``: an estimate on given texts, as in
    :func:`draftwood.train.losses.chain_efficiency`.
    """
    figures = {}
    for name, blocks in held_out.items():
        parts = [_agreement(model, target, tokens, cutting) for tokens in loop.batches(blocks, batch, target.device)]
        accepted, same = (torch.cat(part) for part in zip(*parts, strict=True))
        figures[name] = {
            "places": [round(a, 4) for a in accepted.mean(0).tolist()],
            "places_greedy": [round(a, 4) for a in same.mean(0).tolist()],
            "tokens_per_round": round(1 + accepted.cumprod(-1).sum(-1).mean().item(), 4),
        }
    return figures


def _agreement(model: Any, target: Any, tokens: Tensor, cutting: Cutting) -> tuple[Tensor, Tensor]:
    """Acceptance and greedy agreement, float [cut, block], at regular cuts."""
    cut = cutting.regular(tokens)
    inputs = cut.inputs(sliding_window(model.config))
    ours, theirs = cut.aligned(model(**inputs).logits, target(input_ids=tokens, use_cache=False).logits)
    draft_logp, target_logp = ours.float().log_softmax(-1), theirs.float().log_softmax(-1)
    figures = acceptance(target_logp, draft_logp), (target_logp.argmax(-1) == draft_logp.argmax(-1)).float()
    first = torch.arange(0, cutting.positions, cutting.block, device=tokens.device)  # the tokens at the cuts
    in_text = tokens.shape[1] - 1  # trained positions of the text; those of masks follow
    accepted, same = (
        torch.cat([f[:, first, None], f[:, in_text:].reshape(len(tokens), len(first), -1)], dim=2) for f in figures
    )
    return accepted.flatten(0, 1).cpu(), same.flatten(0, 1).cpu()
