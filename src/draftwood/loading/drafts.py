"""Draft models from folders and hub names: drafters of hidden states, of this package or published, and causal models."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from draftwood.core import draft_kind
from draftwood.core.draft_kind import CAUSAL, DFLASH, EAGLE3, HIDDEN_BLOCK
from draftwood.core.errors import ModelError
from draftwood.core.settings import LoadOptions
from draftwood.core.shapes import MAX_NODES
from draftwood.loading.causal import load_causal
from draftwood.loading.checkpoint import folder_of, gaps, loading_errors, refuse_gaps
from draftwood.loading.models import class_of, load_model, raw_config
from draftwood.loading.plan import Plan
from draftwood.loading.published_configs import Published, published_config
from draftwood.runners.context import FULL, layer_count
from draftwood.runners.hidden.dflash import DFlashDrafter
from draftwood.runners.hidden.eagle import Eagle3Drafter
from draftwood.runners.hidden.model import HiddenBlockConfig, HiddenBlockDrafter, vocabulary_digest
from draftwood.runners.hidden.module import DrafterModule, PublishedDrafter
from draftwood.runners.hidden.mtp import MIXTURE, SHAPE, MtpConfig, MtpDrafter
from draftwood.runners.native.experts import from_folder
from draftwood.runners.native.facts import facts_of, layer_shapes
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.family import MTP
from draftwood.runners.native.layers import kinds_of
from draftwood.runners.native.layouts import parts_of
from draftwood.runners.native.refusals import why_not_sizes
from draftwood.runners.native.rotary import rotary_frequencies
from draftwood.runners.native.stored import is_stored
from draftwood.runners.plain_config import PlainConfig

Config = TypeVar("Config", bound=PlainConfig)
Drafter = TypeVar("Drafter", bound=DrafterModule)
_LOG = logging.getLogger(__name__)
_UNUSED: Final = "confidence_head."
_OTHERWISE: Final = {
    "midlayer.": "layers.0.", "markov_head.markov_w1.": "markov_in.", "markov_head.markov_w2.": "markov_out.",
}  # fmt: skip
"""Beginnings of names in checkpoints, and what is here in their place."""
_DAMAGED: Final = "the MTP head of {!r} is damaged: {}. Download the model again"
_NETWORKS: Final[Mapping[str, Callable[[Any], PublishedDrafter]]] = {EAGLE3.name: Eagle3Drafter, DFLASH.name: DFlashDrafter}


def load_draft(plan: Plan, model: Any, tokenizer: Any) -> Any:
    """The draft model of a plan, for its loaded target; raises a PairingError for a drafter of another one."""
    name, kind, options = str(plan.draft), plan.draft_kind or CAUSAL, plan.options
    if kind is draft_kind.MTP:
        return load_head(name, model)
    if kind is HIDDEN_BLOCK:
        drafter = load_hidden_drafter(name, model.device, model.dtype)
        drafter.check_target(model, vocabulary_digest(tokenizer))
        return drafter
    if kind.reads_hidden:
        return load_published(name, raw_config(name, options), model)
    if plan.kind.reads_source:
        return load_model(name, options, model.device, model.dtype, class_of(kind))
    return load_causal(name, replace(plan, device=model.device, dtype=model.dtype))


def load_head(name: str | Path, target: Any) -> MtpDrafter:
    """The MTP head in a target's own files, in evaluation mode.

    Raises:
        ModelError: the target was not read from its files; the head has other tensors than its target's layers of full
            attention, or more than one layer.
    """
    if not is_stored(target):
        raise ModelError(f"the MTP head of {str(name)!r} is read by the native engine alone, which does not read its target")
    layers = {tensor.split(".")[1] for tensor in target.mtp if tensor.startswith("layers.")}
    count = max(len(layers), int(getattr(target.config, "mtp_num_hidden_layers", None) or 1))
    if count > 1:
        raise ModelError(f"the MTP head of {str(name)!r} has {count} layers, and only heads with one layer can draft")
    weights, config, vocab = _head_weights(name, target), target.config, target.vocabulary[1]
    (frequencies, scale), facts = rotary_frequencies(config), facts_of(config)
    return MtpDrafter(
        MtpConfig(
            target_layers=[config.num_hidden_layers], target_size=config.hidden_size, vocab_size=vocab,
            draft_vocab_size=vocab, own_embedding="embed_tokens.weight" in weights, own_head="lm_head.weight" in weights,
            rope_frequencies=frequencies.tolist(), rope_scale=scale, intermediate_size=facts.inner,
            mixture={name: getattr(facts, name) for name in MIXTURE} if facts.experts else {},
            **{name: getattr(config, name) for name in SHAPE},
        ),
        weights,
    ).eval()  # fmt: skip


def _head_weights(name: str | Path, target: Any) -> dict[str, Any]:
    """The weights of an MTP head by name, those of experts as files have them: what joins the inputs, and a layer of full
    attention like the target's."""
    config, width = target.config, target.config.hidden_size
    try:
        found = from_folder(FAMILIES[config.model_type], target.mtp)
    except ValueError as error:
        raise ModelError(_DAMAGED.format(str(name), f"{error}")) from error
    norms = ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight")
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (width, 2 * width), **dict.fromkeys(norms, (width,))}
    for module, shape in layer_shapes(config, kinds_of(config).index(FULL), facts_of(config)):
        part = f"layers.0.{module}"
        shapes |= {part: shape} if part in found else parts_of(config, part, shape)
    lent = {"embed_tokens.weight", "lm_head.weight"} & found.keys()
    shapes |= dict.fromkeys(lent, (target.vocabulary[1], width))
    if troubles := gaps(_found(shapes, found, MTP)):
        raise ModelError(_DAMAGED.format(str(name), f"its files {troubles}"))
    return {part: one if len(one.shape) > 2 else one.tensor(target.dtype) for part, one in found.items()}


def load_hidden_drafter(name: str | Path, device: torch.device, dtype: torch.dtype) -> HiddenBlockDrafter:
    """A drafter of hidden states in evaluation mode; raises a ModelError as :func:`load_model`, and for other models."""
    raw = raw_config(name, LoadOptions())
    if (kind := raw.get("model_type")) != HIDDEN_BLOCK.name:
        raise ModelError(f"{str(name)!r} has model type {kind!r}: give the folder of a drafter of 'draftwood train drafter'")
    return _made(name, lambda: HiddenBlockDrafter(_with_sizes(HiddenBlockConfig(**raw))), _tensors_of(name), device, dtype)


def _made(
    name: str | Path, make: Callable[[], Drafter], tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> Drafter:
    """A drafter with all of these tensors; raises a ModelError, as :func:`refuse_gaps`, unless they are exactly its own."""
    with loading_errors("drafter", name), torch.device("meta"):
        drafter = make()
    refuse_gaps(name, _found({part: tuple(own.shape) for part, own in drafter.state_dict().items()}, tensors))
    drafter.load_state_dict(tensors, assign=True)
    return drafter.eval().to(device=device, dtype=dtype)


def _with_sizes(config: Config) -> Config:
    """The same configuration; raises a ValueError if its sizes or layers are out of range."""
    block, layers, tokens = getattr(config, "block", 1), config.target_layers, config.draft_vocab_size
    if (reason := why_not_sizes(config, FAMILIES["llama"])) is not None:
        raise ValueError(reason)
    if not all(math.isfinite(number) for number in config.rope_frequencies):
        raise ValueError("its rotary frequencies are not finite")
    fit = 1 <= block <= MAX_NODES and 1 <= tokens <= config.vocab_size
    if not fit or not all(isinstance(layer, int) and layer >= 0 for layer in layers):
        raise ValueError(f"its block is {block}, its draft_vocab_size {tokens}, and its target_layers are {layers}")
    return config


def load_published(name: str | Path, raw: Mapping[str, Any], target: Any) -> PublishedDrafter:
    """An EAGLE-3, DFlash or DSpark drafter in evaluation mode, on the target's device and in its number format.

    Its tokens cannot be compared with the target's: checkpoints hold no tokenizer. ``make_runners`` checks the rest.

    Args:
        name: a folder, or the name of a hub model.
        raw: its ``config.json``, which :func:`published_format` knows.
        target: the target, a causal language model of ``transformers``.

    Raises:
        ModelError: a flag or a tensor that is not known, or one that is missing; names it.
    """
    with loading_errors("drafter", name):
        config = _with_sizes(published_config(raw, layer_count(target.config)))
    tensors = _tensors_of(name)
    if unused := [tensor for tensor in tensors if tensor.startswith(_UNUSED)]:
        _LOG.warning("the confidence head of %r is not used: trees are sized in other ways", str(name))
        tensors = {tensor: value for tensor, value in tensors.items() if tensor not in unused}
    draft_tokens = _draft_tokens(name, config, tensors.pop("d2t", None), tensors.pop("t2d", None))
    config.own_embedding = "embed_tokens.weight" in tensors
    config.own_head = config.model_type == EAGLE3.name or "lm_head.weight" in tensors
    tensors = {**tensors, "draft_tokens": draft_tokens}
    return _made(name, lambda: _NETWORKS[config.model_type](config), tensors, target.device, target.dtype)


def _draft_tokens(name: str | Path, config: Published, d2t: Tensor | None, t2d: Tensor | None) -> Tensor:
    """The target's numbers of the drafter's tokens, from their offsets ``d2t``; ``t2d`` marks them."""
    count, vocab = config.draft_vocab_size, config.vocab_size
    if d2t is None and count == vocab:
        return torch.arange(vocab)
    refuse_gaps(name, _found({"d2t": (count,)}, {} if d2t is None else {"d2t": d2t}))
    assert d2t is not None
    tokens = torch.arange(count) + d2t.long()
    marked = torch.zeros(vocab, dtype=torch.bool)
    marked[tokens[(tokens >= 0) & (tokens < vocab)]] = True
    if int(marked.sum()) != count or (t2d is not None and not torch.equal(t2d.bool(), marked)):
        raise ModelError(
            f"tensors d2t and t2d of {str(name)!r} do not describe {count} of {vocab} tokens: download the checkpoint again"
        )
    return tokens


def _tensors_of(name: str | Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint by their names here."""
    from safetensors.torch import load_file

    with loading_errors("drafter", name):
        if not Path(name).is_dir():
            from huggingface_hub import snapshot_download

            snapshot_download(str(name), allow_patterns=["config.json", "*.safetensors"])
        folder = folder_of(name)
        files = sorted(folder.glob("*.safetensors")) if folder is not None else []
        found = {tensor: value for file in files for tensor, value in load_file(file).items()}
    if not found:
        raise ModelError(f"the drafter {str(name)!r} has no file *.safetensors: save its weights with safetensors first")
    for theirs, ours in _OTHERWISE.items():
        found = {tensor.replace(theirs, ours, 1): value for tensor, value in found.items()}
    return found


def _found(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Any], prefix: str = "") -> dict[str, list[Any]]:
    """What files lack of weights of these shapes, and hold too much, as :func:`refuse_gaps` takes it."""
    both = shapes.keys() & tensors.keys()
    return {
        "missing_keys": [prefix + part for part in shapes.keys() - tensors],
        "unexpected_keys": [prefix + part for part in tensors.keys() - shapes],
        "mismatched_keys": [
            (prefix + part, tensors[part].shape, shapes[part]) for part in both if tuple(tensors[part].shape) != shapes[part]
        ],
    }
