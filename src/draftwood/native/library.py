"""The native library, as Python calls it."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_long, c_size_t, c_void_p
from functools import cache
from typing import Any, Final

from draftwood.core.errors import ConfigError
from draftwood.native import build
from draftwood.native.build import LIBRARY

ISA_VARIABLE: Final = "DRAFTWOOD_ISA"


class Facts(Structure):
    """``draftwood::Facts``."""

    _fields_ = [
        *((name, c_int) for name in ("layers", "width", "heads", "kv_heads", "head_dim", "inner", "vocab", "tokens")),
        *((name, c_int) for name in ("rotary_dim", "taps", "bfloat16", "activations")),
        *((name, c_float) for name in ("epsilon", "scale")),
        *((name, c_int) for name in ("gelu", "joint_norms", "norm_values", "layer_inputs")),
        *((name, c_float) for name in ("embedding_scale", "residual_scale", "logit_divisor", "attention_cap", "logit_cap")),
        *((name, c_float) for name in ("swiglu_limit", "swiglu_alpha")),
        *(
            (name, c_int)
            for name in ("experts", "experts_per_token", "expert_inner", "normalise_experts", "sigmoid_routing", "gated")
        ),
        *((name, c_int) for name in ("taps_of_convolution", "key_heads", "value_heads", "key_size", "value_size", "tiled")),
    ]


class Matrix(Structure):
    """``draftwood::Matrix``; a ``kind`` of -1 is the model's own format."""

    INTERLEAVED, CODED, ALTERNATING = 1, 2, 4
    _fields_ = [("data", c_void_p), ("kind", c_int), ("flags", c_int), ("mapped", c_size_t)]


class LayerSource(Structure):
    """``draftwood::LayerSource``."""

    WEIGHTS = ("query", "key", "value", "out", "gate", "up", "down")
    NORMS = ("norm", "ffn_norm", "out_norm", "down_norm", "hidden_norm")
    MIXED = ("mixed", "mixed_gate", "share", "decay")
    STATE = ("convolution", "convolution_bias", "decay_rate", "decay_bias", "state_norm", "skip")
    ATTENTION, DELTA_RULE, SHORT_CONVOLUTION, MAMBA = range(4)
    EXPERTS = ("router", "experts_gate", "experts_up", "experts_down", "shared_gate")
    EXPERT_BIASES = ("router_bias", "experts_gate_bias", "experts_up_bias", "experts_down_bias")
    SIZES = ("kv_heads", "head_dim", "inner")
    INPUTS = ("input_gate", "input_projection")
    PARALLEL = ("dense_norm", "mixture_norm", "experts_norm", "router_norm", "expert_scales")
    _fields_ = [(name, c_int) for name in ("kind", "window", "rotary")]
    _fields_ += [(name, c_void_p) for name in (*NORMS, "sinks", "input_norm", "scalar", *PARALLEL)]
    _fields_ += [*((name, Matrix) for name in WEIGHTS), *((f"{name}_bias", c_void_p) for name in WEIGHTS)]
    _fields_ += [(name, c_void_p) for name in ("query_norm", "key_norm")]
    _fields_ += [*((name, Matrix) for name in EXPERTS), *((name, c_void_p) for name in EXPERT_BIASES)]
    _fields_ += [*((name, c_int) for name in (*SIZES, "lender")), *((name, Matrix) for name in INPUTS)]
    _fields_ += [*((name, Matrix) for name in MIXED), *((name, c_void_p) for name in STATE)]

    @classmethod
    def shapes(cls, facts: Facts, inputs: int) -> dict[str, tuple[int, ...]]:
        """Shapes of all weights of a layer whose attention reads ``inputs`` numbers."""
        width, inner, experts, heads = facts.width, facts.inner, facts.experts, (facts.heads, facts.kv_heads)
        queries, keys = (number * facts.head_dim for number in heads)
        outputs = {
            "query": (queries * (2 if facts.gated else 1), inputs),
            "key": (keys, inputs),
            "value": (keys, inputs),
            "out": (width, queries),
        }
        outputs |= {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
        outputs |= {"input_gate": (facts.layer_inputs, width), "input_projection": (width, facts.layer_inputs)}
        normed = (queries, keys) if facts.joint_norms else (facts.head_dim, facts.head_dim)
        return {
            **outputs,
            **{f"{name}_bias": shape[:1] for name, shape in outputs.items()},
            **{name: (width,) for name in (*cls.NORMS, "input_norm", *cls.PARALLEL)},
            "scalar": (1,),
            "expert_scales": (experts,),
            **{name: (size,) for name, size in zip(("query_norm", "key_norm"), normed, strict=True)},
            "router": (experts, width),
            "shared_gate": (1, width),
            "experts_gate_up": (experts, 2 * facts.expert_inner, width),
            "experts_gate_up_bias": (experts, 2 * facts.expert_inner),
            **dict.fromkeys(("experts_gate", "experts_up"), (experts, facts.expert_inner, width)),
            "experts_down": (experts, width, facts.expert_inner),
            "sinks": (facts.heads,),
            "router_bias": (experts,),
            **dict.fromkeys(("experts_gate_bias", "experts_up_bias"), (experts, facts.expert_inner)),
            "experts_down_bias": (experts, width),
        }


class NewTokens(Structure):
    """``draftwood::NewTokens``."""

    _fields_ = [("row", c_void_p), ("pending", c_int), ("nodes", c_int), ("width", c_int)]
    _fields_ += [(name, c_void_p) for name in ("text", "tokens", "depths", "seen", "sources", "features")]


class DrafterSource(Structure):
    """``draftwood::DrafterSource``."""

    _fields_ = [
        *((name, c_int) for name in ("sources", "source_width", "norm_sources", "norm_residual", "embeds", "rank")),
        ("source_epsilon", c_float),
        *((name, c_void_p) for name in ("features", "source_norm", "feature_norm", "markov_in")),
        ("markov_out", Matrix),
    ]


class NewHidden(Structure):
    """``draftwood::NewHidden``."""

    _fields_ = [("row", c_void_p), ("start", c_int), ("count", c_int), ("root", c_int), ("hidden", c_void_p)]


class BlockShape(Structure):
    """``draftwood::BlockShape``."""

    _fields_ = [("slots", c_int), ("scored", c_int), ("causal", c_int), ("mask", c_void_p)]


class TreeCandidate(Structure):
    """``TreeCandidate`` of api.h."""

    _fields_ = [("token", c_int64), ("parent", c_int64), ("depth", c_int), ("line", c_int)]
    _fields_ += [("log_prob", c_double), ("guess", c_double)]


class TreeLevel(Structure):
    """``TreeLevel`` of api.h."""

    _fields_ = [("above", c_double), ("nodes", c_int64), ("best", c_int64), ("ended", c_double)]


class TreeExpansion(Structure):
    """``TreeExpansion`` of api.h."""

    SIZES = ("vocab", "block", "markov", "threads", "rows", "nodes", "width", "depths", "count", "most", "stops_count")
    GIVEN = ("bases", "keys", "cuts", "temperatures", "limits", "stops", "weights", "gains", "prices")
    FOUND = ("candidates", "counts", "ranked", "levels", "best_values", "tokens", "values", "likeliest", "chances")
    _fields_ = [*((name, c_void_p) for name in ("model", "scores", "columns")), *((name, c_int) for name in SIZES)]
    _fields_ += [("bases_count", c_long), *((name, c_void_p) for name in (*GIVEN, *FOUND))]


class Cuts(Structure):
    """``draftwood::Cuts``."""

    _fields_ = [("top_k", c_int), ("top_p", c_double), ("min_p", c_double)]


_SIGNATURES = {
    **dict.fromkeys(("version", "error", "instruction_sets"), (c_char_p, [])),
    "size_of": (c_size_t, [c_char_p]),
    "use": (c_int, [c_char_p]),
    "model": (c_void_p, [POINTER(Facts), c_void_p, POINTER(Matrix), POINTER(Matrix), c_void_p, c_int]),
    **dict.fromkeys(("layer", "share_head"), (c_int, [c_void_p, c_void_p])),
    "expand": (c_int, [POINTER(Matrix), c_long, c_int, c_int, c_void_p]),
    "free_model": (None, [c_void_p]),
    "rotate": (c_int, [*[c_void_p] * 4, c_int, c_int]),
    "read": (c_long, [c_void_p, c_int]),
    **dict.fromkeys(("memory_bytes", "token_bytes", "row_bytes"), (c_long, [c_void_p])),
    "row": (c_void_p, [c_void_p]),
    "fork": (c_void_p, [c_void_p, c_int]),
    "free_row": (None, [c_void_p]),
    "length": (c_int, [c_void_p]),
    **dict.fromkeys(("cut", "reach", "restore"), (c_int, [c_void_p, c_int])),
    "part": (c_long, [c_void_p, c_int, POINTER(c_void_p)]),
    "commit": (c_int, [c_void_p, c_void_p, c_int]),
    "read_tokens": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_int]),
    "drafter": (c_int, [c_void_p, POINTER(DrafterSource)]),
    "layer_inputs": (c_int, [c_void_p, POINTER(Matrix), POINTER(Matrix), c_void_p, c_float]),
    "draft_block": (c_int, [c_void_p, c_int, POINTER(BlockShape), c_void_p, c_int]),
    "add_markov": (c_int, [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_int, c_void_p, c_int]),
    "exponentials": (None, [c_void_p, c_long, c_void_p, c_long, c_void_p]),
    "best": (c_int, [c_void_p, *[c_long] * 3, POINTER(Cuts), *[c_void_p] * 2, c_long, c_void_p, c_long, *[c_void_p] * 5]),
    "follow": (c_int, [c_void_p, *[c_long] * 3, POINTER(Cuts), c_void_p, c_long, c_void_p, c_long, *[c_void_p] * 5]),
    "grow": (c_int, [POINTER(TreeExpansion)]),
}
STRUCTURES: Final = (
    Facts, Matrix, LayerSource, DrafterSource, NewTokens, NewHidden, BlockShape, Cuts,
    TreeCandidate, TreeLevel, TreeExpansion,
)  # fmt: skip


def address(tensor: Any, kind: Any, *shape: int) -> int:
    """Where the numbers of a tensor lie, which the library reads or writes as an array of this type and shape.

    Raises:
        ValueError: the tensor has another type, shape, order or device.
    """
    if (tensor.dtype, tuple(tensor.shape), tensor.is_contiguous(), tensor.is_cpu) != (kind, shape, True, True):
        place = f"{'' if tensor.is_contiguous() else 'strided '}{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        raise ValueError(f"the native library takes {kind} {list(shape)} in order on the CPU, and was given {place}")
    return int(tensor.data_ptr())


def array_address(array: Any, kind: Any, *shape: int) -> int:
    """:func:`address` of an array of NumPy."""
    if (array.dtype, array.shape, array.flags.c_contiguous) != (kind, shape, True):
        order = "" if array.flags.c_contiguous else "strided "
        given = f"{order}{array.dtype} {list(array.shape)}"
        raise ValueError(f"the native library takes {kind} {list(shape)} in order, and was given {given}")
    return int(array.__array_interface__["data"][0])


def why_missing() -> str | None:
    """Why there is no native library of these sources; None if there is one."""
    return build.why_missing(LIBRARY)


@cache
def library() -> Any:
    """The library; its functions lack the prefix ``draftwood_``.

    Raises:
        ConfigError: there is none, or ``DRAFTWOOD_ISA`` names an instruction set that this processor lacks.
            Or the library was built elsewhere: its structures have other sizes.
    """
    if (reason := why_missing()) is not None:
        raise ConfigError(f"the native engine is missing: {reason}; or use --backend torch")
    raw = ctypes.CDLL(str(LIBRARY))
    found = type("Library", (), {})()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(raw, f"draftwood_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(found, name, function)
    for structure in STRUCTURES:
        if (size := found.size_of(structure.__name__.encode())) != ctypes.sizeof(structure):
            raise ConfigError(
                f"the native library was built elsewhere: its {structure.__name__} has {size} bytes, "
                f"and {ctypes.sizeof(structure)} here; run '{build.COMMAND}'"
            )
    found.use(instruction_set().encode())
    return found


def instruction_sets() -> list[str]:
    """The instruction sets of this processor that the library has code for, the best one last."""
    raw = ctypes.CDLL(str(LIBRARY))
    raw.draftwood_instruction_sets.restype = c_char_p
    return str(raw.draftwood_instruction_sets().decode()).split()


def instruction_set() -> str:
    """The one in use: the best, or what the variable ``DRAFTWOOD_ISA`` names.

    Raises:
        ConfigError: this processor lacks it.
    """
    has, wanted = instruction_sets(), os.environ.get(ISA_VARIABLE)
    if wanted and wanted not in has:
        raise ConfigError(f"{ISA_VARIABLE} is {wanted!r}: this processor has {', '.join(has)}; set one of them, or unset it")
    return wanted or has[-1]
