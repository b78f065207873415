"""A drafter that fills a block of masked positions in one pass, for encoder-decoder models.

Source: Spec-Drafter of "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation", Xia
et al. 2023, arXiv 2203.16487, section 3.1; the layers are Marian's (arXiv 1804.00344).
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, MarianConfig
from transformers.models.marian.modeling_marian import (
    MarianAttention,
    MarianDecoderLayer,
    MarianEncoder,
    MarianPreTrainedModel,
    MarianSinusoidalPositionalEmbedding,
)

from draftwood.core.draft_kind import MASKED_BLOCK
from draftwood.core.errors import PairingError


def digest_of(model: Any) -> str:
    """Digest (16 hexadecimal digits) of the names and bfloat16 values of all weights.

    Weights saved as bfloat16 give the same digest if loaded as float32 or as bfloat16.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        if "embed_positions" not in name:  # fixed sinusoids are not saved
            digest.update(name.encode())
            digest.update(weight.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


class MaskedBlockConfig(MarianConfig):  # type: ignore[misc]
    """A Marian configuration with three more settings.

    Attributes:
        mask_token_id: the token at positions to fill.
        block: number of masked positions in training, and the default of drafting.
        target: digest of the model to draft for (:func:`digest_of`).
    """

    model_type = MASKED_BLOCK.name
    __no_type_check__ = True  # transformers generates an __init__ that accepts any keyword


AutoConfig.register(MaskedBlockConfig.model_type, MaskedBlockConfig, exist_ok=True)  # the tokenizer's loader needs it


class MaskedBlockDrafter(MarianPreTrainedModel):  # type: ignore[misc]
    """The weights of an encoder, and of a shallow decoder in which the committed tokens and ``k`` masked positions all see
    one another. :class:`draftwood.runners.blocks.masked_block_runner.MaskedBlockPasses` computes with them.

    The input at a masked position is the embedding of the mask token plus an attention to the embedded source. The query of
    this attention depends on the position alone. The output embedding is the input embedding.
    """

    config_class = MaskedBlockConfig
    _keys_to_ignore_on_save = ("encoder.embed_positions.weight", "positions.weight")
    _keys_to_ignore_on_load_missing = ("encoder.embed_positions.weight", "positions.weight")

    def __init__(self, config: MaskedBlockConfig) -> None:
        super().__init__(config)
        width, heads = config.d_model, config.decoder_attention_heads
        self.encoder = MarianEncoder(config)
        self.positions = MarianSinusoidalPositionalEmbedding(2 * config.max_position_embeddings, width)
        self.question = MarianAttention(width, heads, dropout=config.attention_dropout, config=config)
        self.layers = nn.ModuleList(MarianDecoderLayer(config, layer_idx=i) for i in range(config.decoder_layers))
        self.post_init()

    def check_target(self, target: Any) -> None:
        """Raise a PairingError, with both digests, if the drafter was trained for another target."""
        wanted, found = self.config.target, digest_of(target)
        if wanted != found:
            raise PairingError(
                f"the drafter was trained for the target with digest {wanted}, this target has {found}; "
                "give the target of the drafter's training"
            )
