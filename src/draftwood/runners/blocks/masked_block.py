"""A drafter that fills a block of masked positions in one pass, for encoder-decoder models.

Source: Spec-Drafter of "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation", Xia
et al. 2023, arXiv 2203.16487, section 3.1; the layers are Marian's (arXiv 1804.00344).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, MarianConfig
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.marian.modeling_marian import (
    MarianAttention,
    MarianDecoderLayer,
    MarianEncoder,
    MarianPreTrainedModel,
    MarianSinusoidalPositionalEmbedding,
)

from draftwood.core.draft_kind import MASKED_BLOCK
from draftwood.core.errors import CacheError, ConfigError, PairingError
from draftwood.runners.pairing import digest_of


class Source(NamedTuple):
    """A batch of encoded source sentences.

    Attributes:
        embedded, states: the sentences before and after the encoder.
        mask: False at padding; None without padding.
    """

    embedded: Float[Tensor, "row source width"]
    states: Float[Tensor, "row source width"]
    mask: Bool[Tensor, "row source"] | None


class MaskedBlockConfig(MarianConfig):  # type: ignore[misc]
    """A Marian configuration with three more settings.

    Attributes:
        mask_token_id: the token at positions to fill.
        block: number of masked positions in training, and the default of drafting.
        target: digest of the model to draft for (:func:`draftwood.runners.pairing.digest_of`).
    """

    model_type = MASKED_BLOCK.name
    __no_type_check__ = True  # transformers generates an __init__ that accepts any keyword


AutoConfig.register(MaskedBlockConfig.model_type, MaskedBlockConfig, exist_ok=True)  # the tokenizer's loader needs it


class MaskedBlockDrafter(MarianPreTrainedModel):  # type: ignore[misc]
    """An encoder, and a shallow decoder in which the committed tokens and ``k`` masked positions all see one another.

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
        layers = [MarianDecoderLayer(config, layer_idx=i) for i in range(config.decoder_layers)]
        for layer in layers:
            layer.self_attn.is_causal = False  # else attention without a mask would be causal
        self.layers = nn.ModuleList(layers)
        self.post_init()

    def check_target(self, target: Any) -> None:
        """Raise a PairingError, with both digests, if the drafter was trained for another target."""
        wanted, found = self.config.target, digest_of(target)
        if wanted != found:
            raise PairingError(
                f"the drafter was trained for the target with digest {wanted}, this target has {found}; "
                "give the target of the drafter's training, or train a drafter for this one"
            )

    def encode(self, tokens: Int[Tensor, "row source"], mask: Int[Tensor, "row source"] | None = None) -> Source:
        """Encode sources, once for all blocks; ``mask`` is 1 at tokens, 0 at padding, None without padding."""
        embedded = self._embed(tokens) + self.encoder.embed_positions(tokens.shape)
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        return Source(embedded, states, None if mask is None else mask.bool())

    def forward(
        self,
        source: Source,
        prefix: Int[Tensor, "row prefix"],
        prefix_mask: Int[Tensor, "row prefix"] | None = None,
        k: int | None = None,
    ) -> Float[Tensor, "row k vocab"]:
        """Scores of the ``k`` tokens after each prefix, in one pass.

        Args:
            source: the encoded sources of the rows.
            prefix: the committed tokens, the start token first, padded on the right.
            prefix_mask: 1 at tokens, 0 at padding; None without padding.
            k: number of masked positions; ``config.block`` if None.

        Raises:
            ConfigError: ``k`` is not positive, or a prefix is empty.
            CacheError: prefix and block exceed the positions of the drafter.
        """
        k = self.config.block if k is None else k
        positions = self._positions(torch.ones_like(prefix) if prefix_mask is None else prefix_mask, k)
        block = prefix.new_full((len(prefix), k), self.config.mask_token_id)
        hidden = self._embed(torch.cat([prefix, block], dim=1)) + self.positions(positions.shape, position_ids=positions)
        hidden = torch.cat([hidden[:, :-k], hidden[:, -k:] + self._attend_source(source, positions[:, -k:])], dim=1)
        seen = None if prefix_mask is None else torch.cat([prefix_mask.bool(), torch.ones_like(block, dtype=torch.bool)], 1)
        text_mask, source_mask = self._mask(seen, hidden, hidden), self._mask(source.mask, hidden, source.states)
        for layer in self.layers:
            hidden = layer(hidden, text_mask, source.states, encoder_attention_mask=source_mask)
        return nn.functional.linear(hidden[:, -k:], self.encoder.embed_tokens.weight)

    def _embed(self, tokens: Int[Tensor, "row token"]) -> Float[Tensor, "row token width"]:
        return self.encoder.embed_tokens(tokens) * self.encoder.embed_scale

    def _positions(self, mask: Int[Tensor, "row prefix"], k: int) -> Int[Tensor, "row token"]:
        """Positions of prefix and block; the block follows the prefix of its row, without the padding between them."""
        lengths, room = mask.sum(1, keepdim=True), self.positions.num_embeddings
        if k < 1 or int(lengths.min()) < 1:
            raise ConfigError(f"{k} positions after a prefix of {int(lengths.min())} tokens; give 1 or more of each")
        if int(lengths.max()) + k > room or mask.shape[1] > room:
            raise CacheError(
                f"a prefix of {int(lengths.max())} tokens and a block of {k} exceed the {room} positions of the drafter"
            )
        start = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        return torch.cat([start, lengths + torch.arange(k, device=mask.device)], dim=1)

    def _attend_source(self, source: Source, positions: Int[Tensor, "row k"]) -> Float[Tensor, "row k width"]:
        """The attention of masked positions to the source."""
        query = self.positions(positions.shape, position_ids=positions)
        mask = self._mask(source.mask, query, source.states)
        found, _ = self.question(query, key_value_states=source.embedded, attention_mask=mask)
        return found

    def _mask(self, seen: Bool[Tensor, "row key"] | None, queries: Tensor, keys: Tensor) -> Tensor | None:
        """The attention mask that hides padding; None without padding."""
        if seen is None:
            return None
        mask: Tensor | None = create_bidirectional_mask(
            config=self.config, inputs_embeds=queries, attention_mask=seen, encoder_hidden_states=keys
        )
        return mask
