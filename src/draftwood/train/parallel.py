"""Training a causal drafter to draft a whole block in one forward: behind a text it reads one mask token per unknown place.

Source: PARD, An et al. 2025, arXiv 2504.18583. There a text is seen with all its cuts, and masks are dropped at random; here
some cuts of a text are drawn and their whole blocks kept. One forward reads the text and, behind it, the masks of every cut:
a mask has the position of the token that it stands for, and sees the text up to its cut and the masks of its cut before it.
So each of them gets exactly what it gets when the drafter is used. What it learns is the target's distribution at its place,
given the true text: on average over texts, the distribution of the token there when those before are not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.train import loop
from draftwood.train.config import DraftConfig
from draftwood.train.losses import acceptance


class Masked(NamedTuple):
    """Texts and the masks of their cuts, as one forward reads them, and what is known there.

    Attributes:
        tokens, positions: int64 [row, text + mask].
        visible: bool [row, 1, text + mask, text + mask], what each token attends to.
        asked: which tokens' predictions are learnt, as places of the forward: int64 [row, learnt].
        at: the text positions of these tokens: int64 [row, learnt]; the next token of the text is what they predict.
    """

    tokens: Tensor
    positions: Tensor
    visible: Tensor
    asked: Tensor
    at: Tensor

    def inputs(self) -> dict[str, Any]:
        """What a model is called with."""
        return {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            "attention_mask": self.visible,
            "use_cache": False,
        }

    def aligned(self, draft_logits: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Scores float [row, learnt, vocab] of the drafter here and of the target over the text alone, place by place."""
        vocab = target_logits.shape[-1]
        ours = draft_logits.take_along_dim(self.asked.unsqueeze(-1), dim=1)[..., :vocab]
        return ours, target_logits.take_along_dim(self.at.unsqueeze(-1), dim=1)

    def labels(self) -> Tensor:
        """The tokens that the learnt places predict, int64 [row, learnt]."""
        return self.tokens.gather(1, self.at + 1)


@final
@dataclass(frozen=True, kw_only=True)
class Cutting:
    """How texts are cut.

    Attributes:
        block: tokens drafted from one forward: the first from the token at the cut, the others from a mask each.
        cuts: cuts of a text in training.
        mask_token: the token that stands for one that is not known.

    Raises:
        ConfigError: a block or a number of cuts that texts of ``context`` tokens do not allow.
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
        if not 1 <= self.cuts <= self.places:
            raise ConfigError(
                f"cuts is {self.cuts}: blocks of {self.block} tokens have {self.places} places to begin in a context of "
                f"{self.context}, so give 1 to {self.places}"
            )

    @property
    def places(self) -> int:
        """Tokens of a text that a whole block follows."""
        return self.context - self.block

    @staticmethod
    def of(config: DraftConfig, mask_token: int) -> Cutting | None:
        """As the settings ask; without ``cuts``, about as many masks as the text has tokens. None for an ordinary drafter.

        Raises:
            ConfigError: settings that do not fit together.
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
        """Different cuts of every text int64 [row, context], each place as likely as the others."""
        order = torch.rand(len(tokens), self.places, generator=generator).argsort(-1)
        return self.masked(tokens, order[:, : self.cuts].to(tokens.device))

    def regular(self, tokens: Tensor) -> Masked:
        """A cut every ``block`` tokens."""
        places = torch.arange(0, self.places, self.block, device=tokens.device)
        return self.masked(tokens, places.expand(len(tokens), -1))

    def masked(self, tokens: Tensor, cuts: Tensor) -> Masked:
        """Texts int64 [row, text] and the masks behind the cuts int64 [row, cut], each after the text's token there."""
        rows, length = tokens.shape
        text = torch.arange(length, device=tokens.device)
        place = torch.arange(1, self.block, device=tokens.device)
        of, place = (part.flatten() for part in torch.meshgrid(torch.arange(cuts.shape[1]).to(place), place, indexing="ij"))
        seen = cuts[:, of]
        size = length + len(of)
        visible = torch.zeros(rows, size, size, dtype=torch.bool, device=tokens.device)
        visible[:, :length, :length] = text[:, None] >= text
        visible[:, length:, :length] = seen[..., None] >= text
        visible[:, length:, length:] = (of[:, None] == of) & (place[:, None] >= place)
        positions = torch.cat([text.expand(rows, -1), seen + place], dim=1)
        asked = torch.cat([text[:-1], torch.arange(length, size, device=tokens.device)]).expand(rows, -1)
        return Masked(
            tokens=torch.cat([tokens, tokens.new_full((rows, len(of)), self.mask_token)], dim=1),
            positions=positions,
            visible=visible.unsqueeze(1),
            asked=asked,
            at=positions.gather(1, asked),
        )


def add_mask_token(model: Any, block: int) -> int:
    """Give a causal model one more token, the mask, which begins as the mean of all others; returns its number.

    The configuration then names ``mask_token_id`` and ``draft_block``, by which loading knows such a drafter.
    """
    mask = int(model.get_input_embeddings().weight.shape[0])
    model.resize_token_embeddings(mask + 1, mean_resizing=False)
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight[mask] = weight[:mask].mean(0)
    model.config.mask_token_id, model.config.draft_block = mask, block
    return mask


def place_agreement(
    model: Any, target: Any, held_out: dict[str, Tensor], batch: int, cutting: Cutting
) -> dict[str, dict[str, Any]]:
    """How well whole blocks foresee the target, for each kind of held-out blocks int64 [block, length].

    ``places`` is the acceptance at temperature 1 at each place of a block, given the true text before it, ``places_greedy``
    the share where both prefer the same token, and ``tokens_per_round`` the mean of ``1 + sum_{i<=k} a_1 ... a_i``, with
    ``a_i`` the acceptance at place ``i``: an estimate on given texts, as :func:`draftwood.train.losses.chain_efficiency`.
    """
    figures = {}
    for name, blocks in held_out.items():
        parts = [_places(model, target, tokens, cutting) for tokens in loop.batches(blocks, batch, target.device)]
        accepted, same = (torch.cat(part) for part in zip(*parts, strict=True))
        figures[name] = {
            "places": [round(a, 4) for a in accepted.mean(0).tolist()],
            "places_greedy": [round(a, 4) for a in same.mean(0).tolist()],
            "tokens_per_round": round(1 + accepted.cumprod(-1).sum(-1).mean().item(), 4),
        }
    return figures


def _places(model: Any, target: Any, tokens: Tensor, cutting: Cutting) -> tuple[Tensor, Tensor]:
    """Acceptance and agreement float [cut, place] at regular cuts."""
    cut = cutting.regular(tokens)
    ours, theirs = cut.aligned(model(**cut.inputs()).logits, target(input_ids=tokens, use_cache=False).logits)
    draft_logp, target_logp = ours.float().log_softmax(-1), theirs.float().log_softmax(-1)
    figures = acceptance(target_logp, draft_logp), (target_logp.argmax(-1) == draft_logp.argmax(-1)).float()
    first = torch.arange(0, cutting.places, cutting.block, device=tokens.device)  # the tokens at the cuts
    behind = tokens.shape[1] - 1  # learnt places of the text
    accepted, same = (
        torch.cat([f[:, first, None], f[:, behind:].reshape(len(tokens), len(first), -1)], dim=2) for f in figures
    )
    return accepted.flatten(0, 1).cpu(), same.flatten(0, 1).cpu()
