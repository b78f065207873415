"""A drafter that fills a block of masked positions in one pass, for encoder-decoder models.

Source: Spec-Drafter of "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation", Xia
et al. 2023, arXiv 2203.16487, section 3.1; the layers are Marian's (arXiv 1804.00344).
"""

from __future__ import annotations

import copy
import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AutoConfig, MarianConfig
from transformers.models.marian.modeling_marian import (
    MarianAttention,
    MarianDecoderLayer,
    MarianEncoder,
    MarianPreTrainedModel,
    MarianSinusoidalPositionalEmbedding,
)

from draftwood.core.draft_kind import MASKED_BLOCK
from draftwood.core.errors import ConfigError, PairingError
from draftwood.core.scores import Scores, at_depths
from draftwood.runners.protocols import Hidden, PerNode, ReadsAtOnce, Seen
from draftwood.runners.rows import Sources, sources_of
from draftwood.runners.seq2seq.bart_decoder import (
    Layer,
    attention_of,
    by_layer,
    layer_of,
    padding_bias,
    product,
    source_memory,
    transposed,
)
from draftwood.runners.seq2seq.source import read_sources
from draftwood.sampling.rows import Row


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
    one another. :class:`draftwood.runners.blocks.masked_block.MaskedBlockPasses` computes with them.

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


class ScoresByDepth(ReadsAtOnce):
    """For runners that score blocks: a node gets the block's scores at its depth, whatever its ancestors are.

    Beyond the block the scores are -inf, so nothing is drafted there.
    """

    def clear(self) -> None:
        self._scores: Float[Tensor, "row depth vocab"] | None = None  # of the round

    @abstractmethod
    def score_block(self) -> Float[Tensor, "row block vocab"]: ...

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        if self._scores is None:
            self._scores = self.score_block()
        return Scores(at_depths(self._scores, depths))

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._scores = None


@final
class MaskedBlockRunner(ScoresByDepth):
    """A :class:`draftwood.runners.protocols.BlockRunner` of a masked-block drafter.

    Every round reads the whole text again, because every position sees every other. Sources are read once. The scores
    depend on the number of masked positions.

    Args:
        model: a drafter in evaluation mode.

    Raises:
        ConfigError: the block of its configuration is not positive or exceeds its positions.
    """

    engine = "torch"
    kind = MASKED_BLOCK
    pads = True

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model = model
        self._limit(int(config.block))
        self.device, self.vocab_size = model.device, config.vocab_size
        self.forward_seconds = 0.0
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        never = {config.mask_token_id, config.pad_token_id, config.decoder_start_token_id} - {None, *ends}
        self._forbidden = torch.tensor(sorted(never), device=self.device)  # no text contains them
        self._passes = MaskedBlockPasses(model)
        self.clear()

    def _limit(self, block: int) -> None:
        room = int(self.model.positions.num_embeddings)
        if not 1 <= block < room:
            raise ConfigError(f"the block has {block} masked positions, but the model takes 1 to {room - 1}")
        self.block = block
        self.max_length: int | None = room - block

    def clear(self) -> None:
        self._rows: list[Row] = []
        self._sources: Sources | None = None
        super().clear()

    def set_rows(self, rows: Sequence[Row]) -> None:
        start = perf_counter()
        self._sources, _ = sources_of(self._sources, self._rows, rows, self._read)
        self._rows = list(rows)
        self.forward_seconds += perf_counter() - start

    def _read(self, rows: Sequence[Row]) -> Sources:
        sources, longest = [row.source for row in rows], self.model.config.max_position_embeddings
        return self._passes.read(*read_sources(self.model, sources, longest, drafts=False))

    def longer(self, block: int) -> MaskedBlockRunner:
        """As :meth:`draftwood.runners.protocols.BlockRunner.longer`, also beyond the block of training."""
        found = copy.copy(self)
        found._limit(block)
        found.clear()
        return found

    def score_block(self) -> Float[Tensor, "row block vocab"]:
        start = perf_counter()
        # Nothing is drafted for a row whose text leaves no room for a block, so its scores are not used.
        texts = [row.tokens[: self.max_length] for row in self._rows]
        with torch.inference_mode():
            scores = self._filled(texts, self.block)
            scores[..., self._forbidden] = -torch.inf
        self.forward_seconds += perf_counter() - start
        return scores

    def _filled(self, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        """Scores of the ``count`` tokens after each text."""
        width, config = max(map(len, texts)), self.model.config
        block, padding = [int(config.mask_token_id)] * count, int(config.pad_token_id)
        tokens = [[*text, *[padding] * (width - len(text)), *block] for text in texts]
        positions = [[*(min(i, len(t) - 1) for i in range(width)), *range(len(t), len(t) + count)] for t in texts]
        seen = [[*(i < len(text) for i in range(width)), *[True] * count] for text in texts]
        given, at, real = (torch.tensor(part, device=self.device) for part in (tokens, positions, seen))
        assert self._sources is not None
        return self._passes.fill(self._sources, given, at, real, count)


@final
class MaskedBlockPasses:
    """One function reads sources, once, and the other fills blocks after texts. Weights of small models are copied."""

    def __init__(self, model: Any) -> None:
        self._encoder, self._layers = model.encoder, [layer_of(part) for part in model.layers]
        self._question, self._positions = attention_of(model.question), model.positions.weight
        self._words, self._head = model.encoder.embed_tokens.weight, (transposed(model.encoder.embed_tokens.weight), None)

    def _embedded(self, tokens: Tensor, positions: Tensor) -> Float[Tensor, "row token width"]:
        return embedding(tokens, self._words) * float(self._encoder.embed_scale) + positions

    def read(self, tokens: Int[Tensor, "row source"], mask: Bool[Tensor, "row source"]) -> Sources:
        """Encode padded sources; the last keys and values are those for the question of the masked positions."""
        states = self._encoder(input_ids=tokens, attention_mask=mask.long())[0]
        of_source = self._question.memory(self._embedded(tokens, self._encoder.embed_positions(tokens.shape)))
        return Sources(mask, memory=torch.cat([source_memory(self._layers, states), torch.stack(of_source, dim=1)], dim=1))

    def fill(
        self,
        sources: Sources,
        tokens: Int[Tensor, "row token"],
        positions: Int[Tensor, "row token"],
        seen: Bool[Tensor, "row token"],
        count: int,
    ) -> Float[Tensor, "row count vocab"]:
        """Scores of the last ``count`` tokens, which are masked; ``seen`` is False at padding."""
        assert sources.memory is not None
        (*memories, of_source), at = by_layer(sources.memory), embedding(positions, self._positions)
        mask, source_mask = (padding_bias(part, at.dtype) for part in (seen, sources.mask))
        x = self._embedded(tokens, at)
        x[:, -count:] += self._question.attend(self._question.query(at[:, -count:]), *of_source, source_mask)
        for layer, memory in zip(self._layers, memories, strict=True):
            x = layer.read(x, partial(_attend_within, layer, mask), memory, source_mask, norm_first=False)
        return product(x[:, -count:], self._head)


def _attend_within(layer: Layer, mask: Tensor | None, x: Tensor) -> Float[Tensor, "row token width"]:
    """Self-attention among the tokens of ``x`` alone."""
    query, keys, values = layer.own.project(x)
    return layer.own.attend(query, keys, values, mask)
