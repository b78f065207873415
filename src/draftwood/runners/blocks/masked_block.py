"""A drafter that fills a whole block of masked positions in one pass, for encoder-decoder models.

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

from draftwood.core.errors import CacheError, ConfigError
from draftwood.runners.pairing import check_target, digest_of
from draftwood.runners.rows import padded_rows

_SHARED = (
    *("vocab_size", "d_model", "encoder_layers", "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim"),
    *("max_position_embeddings", "activation_function", "scale_embedding", "decoder_start_token_id", "pad_token_id"),
    "eos_token_id",
)


class MaskedBlockConfig(MarianConfig):  # type: ignore[misc]
    """A Marian configuration with three more settings.

    Attributes:
        mask_token_id: the token that stands for a position to fill.
        block: number of masked positions in training, and the one to draft with where nobody says otherwise.
        target: digest of the model to draft for (:func:`draftwood.runners.pairing.digest_of`).
    """

    model_type = "masked_block"
    __no_type_check__ = True  # transformers makes the __init__, which takes any keyword


class Source(NamedTuple):
    """A batch of encoded source sentences.

    Attributes:
        embedded, states: the sentences before and after the encoder.
        mask: False at padding; None where no row is padded.
        answers: what masked positions 0, 1, ... found in the source; all of it depends on the source only.
    """

    embedded: Float[Tensor, "row source width"]
    states: Float[Tensor, "row source width"]
    mask: Bool[Tensor, "row source"] | None
    answers: Float[Tensor, "row position width"] | None = None

    def picked(self, rows: Int[Tensor, "kept"]) -> Source:
        """Some of the sentences."""
        mask, answers = (None if part is None else part[rows] for part in (self.mask, self.answers))
        return Source(self.embedded[rows], self.states[rows], mask, answers)

    def joined(self, other: Source) -> Source:
        """These sentences and then the others, all padded to one length; answers to the positions that both have."""
        mask, answers = None, None
        if self.mask is not None or other.mask is not None or self.states.shape[1] != other.states.shape[1]:
            mine, theirs = (
                torch.ones_like(one.states[..., 0], dtype=torch.bool) if one.mask is None else one.mask
                for one in (self, other)
            )
            mask = padded_rows(mine, theirs, 1)
        if self.answers is not None and other.answers is not None:
            known = min(self.answers.shape[1], other.answers.shape[1])
            answers = torch.cat([self.answers[:, :known], other.answers[:, :known]])
        embedded, states = padded_rows(self.embedded, other.embedded, 1), padded_rows(self.states, other.states, 1)
        return Source(embedded, states, mask, answers)


AutoConfig.register(MaskedBlockConfig.model_type, MaskedBlockConfig, exist_ok=True)  # as its tokenizer's loader asks


class MaskedBlockDrafter(MarianPreTrainedModel):  # type: ignore[misc]
    """An encoder, and a shallow decoder in which the committed tokens and ``k`` masked positions all see one another.

    A masked position enters as the embedding of the mask token plus an attention over the embedded source whose query is
    made from the position alone, so that every position asks the source a question of its own. The output embedding is the
    input embedding.
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

    @classmethod
    def for_target(
        cls, target: Any, mask_token_id: int, *, decoder_layers: int, decoder_ffn_dim: int, block: int, dropout: float
    ) -> MaskedBlockDrafter:
        """A new drafter for a Marian model: its encoder and embeddings are copies of the target's, the rest is random.

        Raises:
            ConfigError: ``block`` is not positive.
        """
        if block < 1:
            raise ConfigError(f"a block of {block} masked positions was asked for; give 1 or more")
        config = MaskedBlockConfig(
            **{name: getattr(target.config, name) for name in _SHARED},
            decoder_layers=decoder_layers,
            decoder_ffn_dim=decoder_ffn_dim,
            dropout=dropout,
            mask_token_id=mask_token_id,
            block=block,
            target=digest_of(target),
        )
        drafter = cls(config)
        drafter.encoder.load_state_dict(target.get_encoder().state_dict())
        return drafter

    def check_target(self, target: Any) -> None:
        """Raise a PairingError where ``target`` is not the model that this drafter was trained for."""
        check_target(self, target)

    def encode(self, tokens: Int[Tensor, "row source"], mask: Int[Tensor, "row source"] | None = None) -> Source:
        """Read source sentences, once for all their blocks; ``mask`` is 1 at tokens, 0 at padding; None without padding."""
        embedded = self._embed(tokens) + self.encoder.embed_positions(tokens.shape)
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        return Source(embedded, states, None if mask is None else mask.bool())

    def answered(self, source: Source, positions: int) -> Source:
        """The same sentences with the answers of the first ``positions`` masked positions, for block after block."""
        known, answers = 0 if source.answers is None else source.answers.shape[1], source.answers
        if known < positions:
            asking = torch.arange(known, positions, device=source.states.device).expand(len(source.states), -1)
            found = self._ask(source, asking)
            answers = found if answers is None else torch.cat([answers, found], dim=1)
        return source._replace(answers=answers)

    def forward(
        self,
        source: Source,
        prefix: Int[Tensor, "row prefix"],
        prefix_mask: Int[Tensor, "row prefix"] | None = None,
        k: int | None = None,
        known: Int[Tensor, "row k"] | None = None,
    ) -> Float[Tensor, "row k vocab"]:
        """Scores of the ``k`` tokens after each prefix, all from one pass; arguments and errors as for ``states``."""
        return self.scores(self.states(source, prefix, prefix_mask, k, known))

    def scores(self, states: Float[Tensor, "*position width"]) -> Float[Tensor, "*position vocab"]:
        """Scores of the tokens from the states of masked positions."""
        return nn.functional.linear(states, self.encoder.embed_tokens.weight)

    def states(
        self,
        source: Source,
        prefix: Int[Tensor, "row prefix"],
        prefix_mask: Int[Tensor, "row prefix"] | None = None,
        k: int | None = None,
        known: Int[Tensor, "row k"] | None = None,
    ) -> Float[Tensor, "row k width"]:
        """Last hidden states of the ``k`` positions after each prefix.

        Args:
            source: what ``encode`` made of the rows' source sentences.
            prefix: the committed tokens, the start token first, filled up on the right.
            prefix_mask: 1 at tokens, 0 at padding; None where no row is padded.
            k: number of masked positions; ``config.block`` if None.
            known: the block as far as it is known, the mask token elsewhere; None masks all of it.

        Raises:
            ConfigError: ``k`` is not positive, or a prefix is empty.
            CacheError: prefix and block are longer than the drafter has positions for.
        """
        hidden, seen = self.entered(source, prefix, prefix_mask, k, known)
        hidden = nn.functional.dropout(hidden, p=self.config.dropout, training=self.training)
        here, there = self._mask(seen, hidden, hidden), self._mask(source.mask, hidden, source.states)
        for layer in self.layers:
            hidden = layer(hidden, here, source.states, encoder_attention_mask=there)
        return hidden[:, -(self.config.block if k is None else k) :]

    def entered(
        self,
        source: Source,
        prefix: Int[Tensor, "row prefix"],
        prefix_mask: Int[Tensor, "row prefix"] | None,
        k: int | None,
        known: Int[Tensor, "row k"] | None = None,
    ) -> tuple[Float[Tensor, "row token width"], Bool[Tensor, "row token"] | None]:
        """What the layers get: prefix and block, embedded, and False at padding (None without it); as for ``states``."""
        k = self.config.block if k is None else k
        positions = self._positions(torch.ones_like(prefix) if prefix_mask is None else prefix_mask, k)
        block = known if known is not None else prefix.new_full((len(prefix), k), self.config.mask_token_id)
        hidden = self._embed(torch.cat([prefix, block], dim=1)) + self.positions(positions.shape, position_ids=positions)
        asked = self._answers(source, positions[:, -k:]) * (block == self.config.mask_token_id)[..., None]
        hidden = torch.cat([hidden[:, :-k], hidden[:, -k:] + asked], dim=1)
        seen = None if prefix_mask is None else torch.cat([prefix_mask.bool(), torch.ones_like(block, dtype=torch.bool)], 1)
        return hidden, seen

    def _embed(self, tokens: Int[Tensor, "row token"]) -> Float[Tensor, "row token width"]:
        return self.encoder.embed_tokens(tokens) * self.encoder.embed_scale

    def _positions(self, mask: Int[Tensor, "row prefix"], k: int) -> Int[Tensor, "row token"]:
        """Positions of prefix and block; a block follows its own row's prefix, whatever the padding between them."""
        lengths, room = mask.sum(1, keepdim=True), self.positions.num_embeddings
        if k < 1 or int(lengths.min()) < 1:
            raise ConfigError(f"{k} positions after a prefix of {int(lengths.min())} tokens; give 1 or more of each")
        if int(lengths.max()) + k > room or mask.shape[1] > room:
            raise CacheError(
                f"a prefix of {int(lengths.max())} tokens and a block of {k} exceed the {room} positions of the drafter"
            )
        start = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        return torch.cat([start, lengths + torch.arange(k, device=mask.device)], dim=1)

    def _answers(self, source: Source, positions: Int[Tensor, "row k"]) -> Float[Tensor, "row k width"]:
        """What masked positions find in the source, remembered or asked now."""
        if source.answers is None:
            return self._ask(source, positions)
        return source.answers[torch.arange(len(positions), device=positions.device).unsqueeze(1), positions]

    def _ask(self, source: Source, positions: Int[Tensor, "row k"]) -> Float[Tensor, "row k width"]:
        """What each masked position finds in the source, its query made from the position."""
        query = self.positions(positions.shape, position_ids=positions)
        mask = self._mask(source.mask, query, source.states)
        found, _ = self.question(query, key_value_states=source.embedded, attention_mask=mask)
        return found

    def _mask(self, seen: Bool[Tensor, "row key"] | None, queries: Tensor, keys: Tensor) -> Tensor | None:
        """What the attention takes so that padding is not seen; None where there is none."""
        if seen is None:
            return None
        mask: Tensor | None = create_bidirectional_mask(
            config=self.config, inputs_embeds=queries, attention_mask=seen, encoder_hidden_states=keys
        )
        return mask
