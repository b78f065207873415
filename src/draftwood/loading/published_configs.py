"""Configurations of published drafters, translated to those of :mod:`draftwood.runners.hidden`.

Every flag of a configuration is honoured, known to be neutral, or refused by name.

Sources: github.com/SafeAILab/EAGLE, github.com/sgl-project/SpecForge, github.com/z-lab/dflash,
github.com/deepseek-ai/DeepSpec, and speculators 0.9.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias, final

from draftwood.core.draft_kind import DFLASH, EAGLE3, DraftKind
from draftwood.core.errors import ModelError
from draftwood.runners.hidden.dflash import DFlashConfig
from draftwood.runners.hidden.eagle import Eagle3Config
from draftwood.runners.native.layers import head_size
from draftwood.runners.native.rotary import rotary_frequencies

Published: TypeAlias = DFlashConfig | Eagle3Config

_LAYERS: Final = {"llama": "LlamaConfig", "qwen3": "Qwen3Config"}
_ROTARY: Final = ("default", "linear", "llama3", "yarn")
_SETTINGS_OF_LAYERS: Final = frozenset({
    "rope_theta", "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "use_sliding_window",
    "max_window_layers",
})  # fmt: skip
_NEUTRAL: Final = frozenset({"auto_map", "torch_dtype", "num_target_layers"})
_NORMS: Final = ("norm_before_residual", "norm_before_fc", "fc_norm")
_SHAPE: Final = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "rms_norm_eps",
)  # fmt: skip


@final
class _Flags:
    """The flags of a configuration, or of a part of it, which are taken one by one."""

    def __init__(self, values: Mapping[str, Any], part: str = "") -> None:
        self._left, self._part = dict(values), part

    def take(self, name: str, default: Any = None) -> Any:
        """The value of a flag; the default if it is missing or null."""
        found = self._left.pop(name, None)
        return default if found is None else found

    def need(self, name: str) -> Any:
        """The value of a flag that must be there."""
        if (found := self.take(name)) is None:
            raise _refused(f"it lacks {self._part}{name}")
        return found

    def only(self, name: str, *allowed: Any) -> None:
        """Take a flag that may be missing, or have one of these values."""
        if (found := self.take(name)) is not None and found not in allowed:
            wanted = ", ".join(map(repr, allowed)) or "no value"
            raise _refused(f"{self._part}{name} is {found!r}, and only {wanted} can be run")

    def skip(self, *names: str) -> None:
        """Take flags that change no score."""
        for name in names:
            self.take(name)

    def part(self, name: str) -> _Flags:
        """The flags of a part, which may be missing."""
        return _Flags(self.take(name, {}), f"{self._part}{name}.")

    def rest(self) -> dict[str, Any]:
        """Take all that is left."""
        left, self._left = self._left, {}
        return left

    def end(self) -> None:
        """Refuse flags that were not taken."""
        if names := sorted(name for name, value in self._left.items() if value is not None):
            raise _refused(f"it has flags that are not known: {', '.join(self._part + name for name in names)}")


def _refused(why: str) -> ModelError:
    return ModelError(f"this drafter's config.json cannot be honoured: {why}. Give a checkpoint of another kind")


_Maker: TypeAlias = Callable[[_Flags, int], Published]


def published_config(raw: Mapping[str, Any], target_depth: int) -> Published:
    """The configuration of a published drafter.

    Args:
        raw: ``config.json``.
        target_depth: layers of the target, for formats that choose their layers by it.

    Raises:
        ModelError: a kind or a flag that is not supported, or a missing one; names it.
    """
    make: Any = published_format(raw)[1]
    flags = _Flags(raw)
    flags.skip("architectures", "tie_word_embeddings")
    found: Published = make(flags, target_depth)
    flags.end()
    return found


def published_format(raw: Mapping[str, Any]) -> tuple[DraftKind, _Maker] | tuple[None, None]:
    """The kind of a published drafter and the translation of its ``config.json``; None and None for other models.

    Raises:
        ModelError: a kind that is not supported.
    """
    architecture = (raw.get("architectures") or [""])[0]
    if kind := raw.get("speculators_model_type"):
        if kind in _SPECULATORS:
            return _SPECULATORS[kind]
        raise _refused(f"speculators_model_type is {kind!r}, and only {', '.join(_SPECULATORS)} can be run")
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture]
    if "Eagle3" in architecture or "DSpark" in architecture or "DFlash" in architecture:
        raise _refused(f"its architecture is {architecture!r}, and only {', '.join(_ARCHITECTURES)} can be run")
    return (EAGLE3, _eagle) if "draft_vocab_size" in raw and architecture == "LlamaForCausalLM" else (None, None)


def _layers(values: Mapping[str, Any], part: str = "") -> dict[str, Any]:
    """The shape of the layers, from settings of Llama or Qwen3."""
    kind = values.get("model_type", "llama")
    if kind not in _LAYERS:
        raise _refused(f"{part}model_type is {kind!r}, and only {', '.join(_LAYERS)} can be run")
    make = getattr(import_module("transformers"), _LAYERS[kind])  # slow to import
    known = set(make().to_dict()) | _SETTINGS_OF_LAYERS | _NEUTRAL
    flags = _Flags({name: value for name, value in values.items() if name not in known}, part)
    flags.end()
    own = make(**{name: value for name, value in values.items() if name != "model_type"})
    if own.hidden_act != "silu":
        raise _refused(f"{part}hidden_act is {own.hidden_act!r}, and only 'silu' can be run")
    sliding = set(getattr(own, "layer_types", None) or ()) - {"full_attention"}
    if sliding or getattr(own, "use_sliding_window", False):
        raise _refused(f"{part}layer_types or {part}use_sliding_window asks for other attention than full_attention")
    rotary = own.rope_parameters
    if rotary.get("rope_type", rotary.get("type")) not in _ROTARY or rotary.get("partial_rotary_factor", 1) != 1:
        raise _refused(f"{part}rope_parameters are {rotary}, and only {', '.join(_ROTARY)} of whole heads can be run")
    frequencies, scale = rotary_frequencies(own)
    return {
        **{name: getattr(own, name) for name in _SHAPE},
        "head_dim": head_size(own),
        "attention_bias": own.attention_bias,
        "mlp_bias": getattr(own, "mlp_bias", False),
        "qk_norm": kind == "qwen3",
        "rope_frequencies": frequencies.tolist(),
        "rope_scale": scale,
    }


def _eagle_flags(flags: _Flags, layers: Mapping[str, Any], target_layers: list[int], *, norm_output: bool) -> Eagle3Config:
    """EAGLE-3; flags that a format lacks are off."""
    return Eagle3Config(
        **layers,
        target_layers=target_layers,
        target_size=flags.take("target_hidden_size", layers["hidden_size"]),
        draft_vocab_size=flags.take("draft_vocab_size", layers["vocab_size"]),
        **{name: flags.take(name, default=False) for name in _NORMS},
        norm_output=norm_output,
    )


def _default_layers(depth: int) -> list[int]:
    return [2, depth // 2, depth - 3]


def _eagle(flags: _Flags, depth: int) -> Eagle3Config:
    """SafeAILab, SpecForge. Their layers are numbered from 0 without the embedding."""
    part = flags.part("eagle_config")
    numbers = part.take("eagle_aux_hidden_state_layer_ids")
    part.only("use_aux_hidden_state", True)
    part.end()
    flags.only("norm_output")  # trainers and servers disagree on what it means
    target_layers = _default_layers(depth) if numbers is None else [number + 1 for number in numbers]
    own = {name: flags.take(name) for name in ("target_hidden_size", "draft_vocab_size", *_NORMS)}
    layers = _layers(flags.rest())
    if layers["num_hidden_layers"] != 1:
        raise _refused(f"num_hidden_layers is {layers['num_hidden_layers']}, and only 1 can be run")
    return _eagle_flags(_Flags(own), {**layers, "qk_norm": False}, target_layers, norm_output=False)


def _dflash_of(
    layers: Mapping[str, Any],
    target_layers: list[int],
    *,
    slots: int,
    from_root: bool,
    mask: int,
    rank: int,
    draft_vocab: int | None = None,
) -> DFlashConfig:
    if layers["mlp_bias"]:
        raise _refused("mlp_bias is True, and only False can be run")
    return DFlashConfig(
        **layers,
        target_layers=target_layers,
        target_size=layers["hidden_size"],
        draft_vocab_size=layers["vocab_size"] if draft_vocab is None else draft_vocab,
        slots=slots,
        block=slots if from_root else slots - 1,
        mask_token=mask,
        markov_rank=rank,
    )


def _markov_rank(flags: _Flags) -> int:
    """The rank of the Markov head; the confidence head is left aside with its tensors."""
    flags.skip("enable_confidence_head", "confidence_head_with_markov", "confidence_head_alpha")
    rank = int(flags.take("markov_rank", 0))
    if rank:
        flags.only("markov_head_type", "vanilla")
    else:
        flags.skip("markov_head_type")
    return rank


def _dflash(flags: _Flags, _: int) -> DFlashConfig:
    """z-lab and SpecForge: DFlash, where the root's own slot scores nothing, and DSpark, where it does."""
    part = flags.part("dflash_config")
    kind = part.take("projector_type", "dflash")
    if kind not in ("dflash", "dspark"):
        raise _refused(f"dflash_config.projector_type is {kind!r}, and only 'dflash' and 'dspark' can be run")
    numbers, mask, rank = part.need("target_layer_ids"), part.need("mask_token_id"), _markov_rank(part)
    part.skip("attention_mode")
    slots = flags.take("block_size") or part.need("block_size")
    part.skip("block_size")
    part.end()
    layers = _layers(flags.rest())
    target_layers = [number + 1 for number in numbers]
    return _dflash_of(layers, target_layers, slots=slots, from_root=kind == "dspark", mask=mask, rank=rank)


def _deepspec(flags: _Flags, _: int) -> DFlashConfig:
    """DeepSpec's DSpark; a rank of 0 is its DFlash, where the root's own slot scores too."""
    numbers, slots, mask = (flags.need(name) for name in ("target_layer_ids", "block_size", "mask_token_id"))
    rank = _markov_rank(flags)
    flags.skip("num_anchors")
    layers = _layers(flags.rest())
    target_layers = [number + 1 for number in numbers]  # -1 is the embedding
    return _dflash_of(layers, target_layers, slots=slots, from_root=True, mask=mask, rank=rank)


def _speculators(flags: _Flags) -> dict[str, Any]:
    """The layers of a checkpoint of speculators; takes what all of its kinds have in common."""
    flags.skip("speculators_model_type", "speculators_version", "speculators_config", "auto_map", "dtype", "torch_dtype")
    flags.skip("transformers_version", "model_type", "_name_or_path")
    return _layers(flags.part("transformer_layer_config").rest(), "transformer_layer_config.")


def _speculators_eagle(flags: _Flags, depth: int) -> Eagle3Config:
    layers = _speculators(flags)
    flags.skip("embed_requires_grad")
    numbers = flags.take("eagle_aux_hidden_state_layer_ids", _default_layers(depth))
    flags.only("target_hidden_size", layers["hidden_size"])
    return _eagle_flags(flags, layers, numbers, norm_output=flags.take("norm_output", default=False))


def _speculators_dflash(flags: _Flags, depth: int, *, from_root: bool = False) -> DFlashConfig:
    layers = _speculators(flags)
    flags.only("target_hidden_size", layers["hidden_size"])
    flags.skip("sliding_window_non_causal")  # there are no such layers
    return _dflash_of(
        layers,
        flags.take("aux_hidden_state_layer_ids", _default_layers(depth)),
        slots=flags.take("block_size", 8),
        from_root=flags.take("sample_from_anchor", from_root),
        mask=flags.need("mask_token_id"),
        rank=_markov_rank(flags),
        draft_vocab=flags.take("draft_vocab_size"),
    )


_SPECULATORS: Final[Mapping[str, tuple[DraftKind, _Maker]]] = {
    "eagle3": (EAGLE3, _speculators_eagle),
    "dflash": (DFLASH, _speculators_dflash),
    "dspark": (DFLASH, partial(_speculators_dflash, from_root=True)),
}
_ARCHITECTURES: Final[Mapping[str, tuple[DraftKind, _Maker]]] = {
    "LlamaForCausalLMEagle3": (EAGLE3, _eagle),
    "DFlashDraftModel": (DFLASH, _dflash),
    "DSparkDraftModel": (DFLASH, _dflash),
    "Qwen3DSparkModel": (DFLASH, _deepspec),
}
