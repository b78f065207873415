"""Configurations of published drafters, translated to those of :mod:`draftwood.runners.hidden`.

Every flag of a configuration is honoured, known to be neutral, or refused by name.

Sources: github.com/SafeAILab/EAGLE, github.com/sgl-project/SpecForge, github.com/z-lab/dflash,
github.com/deepseek-ai/DeepSpec, and speculators 0.9.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from draftwood.core.draft_kind import DFLASH, EAGLE3, DraftKind
from draftwood.core.errors import ModelError
from draftwood.runners.hidden.dflash import DFlashConfig
from draftwood.runners.hidden.eagle import Eagle3Config
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.layers import head_size
from draftwood.runners.native.refusals import why_not_sizes
from draftwood.runners.native.rotary import rotary_frequencies
from draftwood.runners.plain_config import PlainConfig

Published: TypeAlias = DFlashConfig | Eagle3Config

_LAYERS: Final = {"llama": "LlamaConfig", "qwen3": "Qwen3Config"}
_ROTARY: Final = ("default", "linear", "llama3", "yarn")
_SETTINGS_OF_LAYERS: Final = frozenset({
    "rope_theta", "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "use_sliding_window",
    "max_window_layers", "auto_map", "torch_dtype", "num_target_layers",
})  # fmt: skip
_PARTS: Final = ("eagle_config", "dflash_config", "transformer_layer_config")
_NORMS: Final = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_CONFIDENCE: Final = ("enable_confidence_head", "confidence_head_with_markov", "confidence_head_alpha")  # not used here
_OF_MARKOV: Final = ("markov_rank", "markov_head_type", *_CONFIDENCE)
_SHAPE: Final = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "rms_norm_eps",
)  # fmt: skip


class _Format(NamedTuple):
    """How checkpoints say what a drafter is.

    Attributes:
        kind: what they are.
        layers: the part of the configuration with the settings of layers; empty if they are among the others.
        part: the part with the numbers of the target's layers, and of DFlash the mask token and the Markov head.
        numbers: the flag of the target's layers.
        embedding: the number of the embedding there; layers follow.
        by_depth: the depth of the target says its layers where no flag does.
        more: further flags of the drafter.
        only: flags that may have these values only.
        idle: flags that change no score.
        slots: tokens of a block that no flag says; 0 if one must.
        from_root: the root's own slot scores, if no flag says it.
    """

    kind: DraftKind
    numbers: str
    layers: str = ""
    part: str = ""
    embedding: int = -1
    by_depth: bool = False
    more: tuple[str, ...] = ()
    only: Mapping[str, tuple[Any, ...]] = {}
    idle: tuple[str, ...] = ()
    slots: int = 0
    from_root: bool = False


_EAGLE: Final = _Format(  # of SafeAILab and SpecForge; trainers and servers disagree on what norm_output means
    EAGLE3, "eagle_aux_hidden_state_layer_ids", part="eagle_config.", by_depth=True,
    more=("target_hidden_size", "draft_vocab_size", *_NORMS),
    only={"eagle_config.use_aux_hidden_state": (True,), "norm_output": ()},
)  # fmt: skip
_DFLASH: Final = _Format(  # of z-lab and SpecForge
    DFLASH, "target_layer_ids", part="dflash_config.", more=("block_size",), idle=("dflash_config.attention_mode",),
    only={"dflash_config.projector_type": ("dflash", "dspark")},
)  # fmt: skip
_DEEPSPEC: Final = _Format(  # a rank of 0 is its DFlash, where the root's own slot scores too
    DFLASH, "target_layer_ids", more=("target_layer_ids", "mask_token_id", "block_size", *_OF_MARKOV), idle=("num_anchors",),
    from_root=True,
)  # fmt: skip
_SPECULATORS_EAGLE: Final = _Format(
    EAGLE3, "eagle_aux_hidden_state_layer_ids", "transformer_layer_config.", embedding=0, by_depth=True, idle=(
        "speculators_model_type", "speculators_version", "speculators_config", "auto_map", "dtype", "torch_dtype",
        "transformers_version", "model_type", "_name_or_path", "embed_requires_grad", "sliding_window_non_causal",
    ),  # there are no sliding layers
)  # fmt: skip
_SPECULATORS_DFLASH: Final = _SPECULATORS_EAGLE._replace(kind=DFLASH, numbers="aux_hidden_state_layer_ids", slots=8)
_SPECULATORS: Final = {
    "eagle3": _SPECULATORS_EAGLE, "dflash": _SPECULATORS_DFLASH, "dspark": _SPECULATORS_DFLASH._replace(from_root=True),
}  # fmt: skip
_ARCHITECTURES: Final = {
    "LlamaForCausalLMEagle3": _EAGLE, "DFlashDraftModel": _DFLASH, "DSparkDraftModel": _DFLASH,
    "Qwen3DSparkModel": _DEEPSPEC,
}  # fmt: skip


def published_format(raw: Mapping[str, Any]) -> _Format | None:
    """How a published drafter's ``config.json`` says what it is; None for other models.

    Raises:
        ModelError: a kind that is not supported.
    """
    architecture = str((raw.get("architectures") or [""])[0])
    if kind := raw.get("speculators_model_type"):
        if kind in _SPECULATORS:
            return _SPECULATORS[kind]
        raise _refused(f"speculators_model_type is {kind!r}, and only {', '.join(_SPECULATORS)} can be run")
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture]
    if "Eagle3" in architecture or "DSpark" in architecture or "DFlash" in architecture:
        raise _refused(f"its architecture is {architecture!r}, and only {', '.join(_ARCHITECTURES)} can be run")
    return _EAGLE if "draft_vocab_size" in raw and architecture == "LlamaForCausalLM" else None


def published_config(raw: Mapping[str, Any], target_depth: int) -> Published:
    """The configuration of a published drafter.

    Args:
        raw: ``config.json``.
        target_depth: layers of the target, for formats that choose their layers by it.

    Raises:
        ModelError: a kind or a flag that is not supported, or a missing one; names it.
    """
    form: Any = published_format(raw)
    flags = {name: value for name, value in _flat(raw).items() if name not in form.idle}
    for name, allowed in form.only.items():
        _check(flags, name, *allowed)
    part = form.layers
    own = {name for name in flags if (not name.startswith(part) if part else name in form.more or "." in name)}
    layers = _layers({name.removeprefix(part): flags[name] for name in flags.keys() - own}, part)
    left = {name: flags[name] for name in own if flags[name] is not None}
    if part:
        _check(left, "target_hidden_size", layers["hidden_size"])
    numbers = left.pop(form.part + form.numbers, None)
    if numbers is None and not form.by_depth:
        raise _refused(f"it lacks {form.part}{form.numbers}")
    by_depth = [2, target_depth // 2, target_depth - 3]
    layers |= {
        "target_layers": by_depth if numbers is None else [number - form.embedding for number in numbers],
        "target_size": left.pop("target_hidden_size", layers["hidden_size"]),
        "draft_vocab_size": left.pop("draft_vocab_size", layers["vocab_size"]),
    }
    found = _eagle(left, form, layers) if form.kind is EAGLE3 else _dflash(left, form, layers)
    _refuse_unknown(left)
    return found


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The flags; those of parts begin with the name of the part."""
    found: dict[str, Any] = {}
    for name, value in raw.items():
        if name in _PARTS and isinstance(value, Mapping):
            found |= {f"{name}.{one}": flag for one, flag in value.items()}
        elif name not in ("architectures", "tie_word_embeddings"):
            found[name] = value
    return found


def _check(flags: Mapping[str, Any], name: str, *allowed: Any) -> None:
    """Refuse another value of a flag that may be missing, or have one of these."""
    if flags.get(name) is not None and flags[name] not in allowed:
        wanted = ", ".join(map(repr, allowed)) or "no value"
        raise _refused(f"{name} is {flags[name]!r}, and only {wanted} can be run")


def _refuse_unknown(names: Iterable[str]) -> None:
    if found := sorted(names):
        raise _refused(f"it has flags that are not known: {', '.join(found)}")


def _refused(why: str) -> ModelError:
    return ModelError(f"this drafter's config.json cannot be honoured: {why}. Give a checkpoint of another kind")


def _layers(values: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The shape of the layers, from settings of Llama or Qwen3, which are in a part of the configuration."""
    kind = values.get("model_type", "llama")
    if kind not in _LAYERS:
        raise _refused(f"{part}model_type is {kind!r}, and only {', '.join(_LAYERS)} can be run")
    make = getattr(import_module("transformers"), _LAYERS[kind])  # slow to import
    known = set(make().to_dict()) | _SETTINGS_OF_LAYERS
    _refuse_unknown(part + name for name in values.keys() - known if values[name] is not None)
    if (reason := why_not_sizes(PlainConfig(**values), FAMILIES[kind])) is not None:
        raise _refused(reason)
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


def _eagle(left: dict[str, Any], form: _Format, layers: Mapping[str, Any]) -> Eagle3Config:
    """EAGLE-3; flags that a format lacks are off."""
    left.pop("eagle_config.use_aux_hidden_state", None)
    if not form.layers:
        _check(layers, "num_hidden_layers", 1)
    norms = {name: left.pop(name, False) for name in _NORMS}
    return Eagle3Config(**{**layers, **norms, "qk_norm": bool(form.layers) and layers["qk_norm"]})


def _dflash(left: dict[str, Any], form: _Format, layers: Mapping[str, Any]) -> DFlashConfig:
    """DFlash, where the root's own slot scores nothing, and DSpark, where it does."""
    if layers["mlp_bias"]:
        raise _refused("mlp_bias is True, and only False can be run")
    kind, part = left.pop("dflash_config.projector_type", ""), form.part
    inner, rank = left.pop(f"{part}block_size", form.slots), int(left.pop(f"{part}markov_rank", 0))
    slots, head = left.pop("block_size", inner), f"{part}markov_head_type"
    if not slots or f"{part}mask_token_id" not in left:
        raise _refused(f"it lacks {part}{'mask_token_id' if slots else 'block_size'}")
    if rank:
        _check(left, head, "vanilla")
    for name in (head, *(part + name for name in _CONFIDENCE)):
        left.pop(name, None)
    from_root = left.pop("sample_from_anchor", form.from_root or kind == "dspark")
    block, mask = slots if from_root else slots - 1, left.pop(f"{part}mask_token_id")
    return DFlashConfig(**layers, slots=slots, block=block, mask_token=mask, markov_rank=rank)
