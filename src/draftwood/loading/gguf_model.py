"""The model of a GGUF file: its configuration as ``config.json`` would have it, and its weights as they lie in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, Final

import numpy as np
import torch

from draftwood.core.errors import ModelError
from draftwood.loading.checkpoint import has_head, size_text
from draftwood.loading.gguf_config import LONG, OUTPUT, ROPE, TABLE, stored_config
from draftwood.loading.gguf_header import AGAIN, OTHER_FILES, Header, TensorInfo
from draftwood.loading.gguf_keys import Keys, numbers_of
from draftwood.native.library import why_missing
from draftwood.runners.native.experts import together
from draftwood.runners.native.facts import is_sparse
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.family import EMBEDDING, HEAD, Gguf
from draftwood.runners.native.layers import LAYER_NORM, LAYER_PROJECTION, LAYER_TABLE, idle_weights
from draftwood.runners.native.layouts import MTP_STEMS, shapes_among
from draftwood.runners.native.rotary import rotary_frequencies
from draftwood.runners.native.stored import StoredModel
from draftwood.runners.native.weights import BLOCKS, Weight
from draftwood.runners.plain_config import PlainConfig, PlainGeneration

_WHOLE: Final = {
    EMBEDDING: TABLE, HEAD: OUTPUT, LAYER_TABLE: "per_layer_token_embd.weight",
    LAYER_PROJECTION: "per_layer_model_proj.weight", LAYER_NORM: "per_layer_proj_norm.weight",
}  # fmt: skip
"""Names of weights of the whole model, in ``transformers`` and in files."""
_LLAMA3: Final = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_QKV: Final = ("attn_q", "attn_k", "attn_v")
_TURNED: Final = _QKV[:2]


def _scale_rotary(header: Header, config: Any, tensor: TensorInfo) -> None:
    """Set the rotary scaling of Llama 3.1 and its successors, which a file holds only as a tensor of divisors; raises a
    ModelError for another scaling. That of Gemma 4 is in the configuration."""
    if FAMILIES[config.model_type].varied:
        return
    divisors = torch.from_numpy(numbers_of(header, tensor))
    if torch.allclose(divisors, torch.ones(())):
        return
    plain, _ = rotary_frequencies(config)
    config.rope_parameters = {**config.rope_parameters, **_LLAMA3, "factor": float(divisors.max())}
    scaled, _ = rotary_frequencies(config)
    if not torch.allclose(plain / divisors, scaled, rtol=1e-3):
        raise ModelError(f"{header} scales its rotary embedding in a way that is not known: {OTHER_FILES}")


def stored_file(header: Header, dtype: torch.dtype) -> StoredModel:
    """The model of a file.

    Args:
        header: of the file.
        dtype: as for :class:`StoredModel`.

    Raises:
        ModelError: as :func:`stored_config`; the native library is missing; the file is a part of a model, lacks a tensor or
            has too many or one of another shape, ends before its tensors do, or scales its rotary embedding in an unknown
            way.
    """
    _check_whole(header)
    values = stored_config(header)
    config = PlainConfig(**values)
    generation = PlainGeneration(**{name: value for name, value in values.items() if name.endswith("_token_id")})
    tensors, weights = {tensor.name: tensor for tensor in header.tensors if tensor.name not in LONG.values()}, {}
    divisors, own = tensors.pop(ROPE, None), FAMILIES[config.model_type]
    names, gguf = own.in_gguf(), own.gguf or Gguf()
    for idle in map(partial(_name, names=names), idle_weights(config)):
        tensors.pop(idle, None)
    if own.ungated and not is_sparse(config, 0):  # the network of all tokens is the only one
        names = {module: stem.removesuffix("_shexp") for module, stem in names.items()}
    whole = (lambda name: False) if own.alternating else (lambda name: _name(name, names) in tensors)
    shapes = {name: (_name(name, names), shape) for name, shape in shapes_among(config, whole).items()}
    _split_fused(tensors, dict(shapes.values()))
    for name, (held, shape) in shapes.items():
        if name == HEAD and held not in tensors:
            continue
        turned = gguf.turned and names.get(_split(name)[1]) in _TURNED
        weight = _taken(header, tensors, held, shape, config.head_dim if turned else 0)
        weights[name] = _as_in_transformers(name, weight, config)
    blocks = range(config.num_hidden_layers, Keys(header).count("block_count"))
    ahead = {name: tensors.pop(name) for name in list(tensors) if name.startswith(tuple(f"blk.{n}." for n in blocks))}
    if tensors:
        first, *more = tensors
        rest = f" and {len(more)} more" if more else ""
        raise ModelError(
            f"{header} holds tensor {first!r}{rest}, which architecture {header.architecture!r} does not have: "
            + OTHER_FILES
        )
    if divisors is not None:
        _scale_rotary(header, config, divisors)
    _add_ends(header, generation, gguf.ends)
    found = StoredModel(config, generation, weights, dtype)
    found.name_or_path, found.mtp = str(header.path), _head(header, config, ahead) if has_head(header.path) else {}
    if found.mtp:
        found.mtp.setdefault("norm.weight", weights[FAMILIES[config.model_type].last_norm()])
    return found


def _check_whole(header: Header) -> None:
    """Raise a ModelError without the native library, and for a part of a split model without the others."""
    if (reason := why_missing()) is not None:
        raise ModelError(f"{header} is read by the native library, which is missing ({reason}): build it, or {OTHER_FILES}")
    if (parts := header.single("split.count", 1)) != len(header.parts) + 1 and parts:
        raise ModelError(
            f"{header} is one of {parts} parts of a model: join them with 'llama-gguf-split --merge', and give the result"
        )


def _split_fused(tensors: dict[str, TensorInfo], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Split tensors of queries, keys and values together, as ``--fuse-qkv`` of llama.cpp's converter writes them."""
    for name in [name for name in tensors if ".attn_qkv." in name and name not in shapes]:
        parts, tensor = [name.replace("attn_qkv", part) for part in _QKV], tensors[name]
        rows, (block, size) = [shapes.get(part, (0,))[0] for part in parts], BLOCKS[tensor.kind]
        if sum(rows) == tensor.sizes[-1]:
            del tensors[name]
            each = tensor.elements // sum(rows) * size // block
            for part, first, count in zip(parts, accumulate([0, *rows]), rows, strict=False):
                sizes, offset = (*tensor.sizes[:-1], count), tensor.offset + first * each
                tensors[part] = tensor._replace(name=part, sizes=sizes, offset=offset)


def _taken(header: Header, tensors: dict[str, TensorInfo], held: str, shape: tuple[int, ...], head: int) -> Weight:
    """The weight of a name, which is taken from the tensors; of experts they may have one each, as files once had."""
    apart = [held.replace("_exps.", f".{expert}.") for expert in range(shape[0])] if "_exps." in held else [held]
    if held not in tensors and apart[0] in tensors and len(apart) > 1:
        parts = [_taken(header, tensors, name, shape[1:], 0) for name in apart]
        if len({part.kind for part in parts}) > 1:
            raise ModelError(f"{header} holds tensors {apart[0]!r} and others of another type: {OTHER_FILES}")
        return together(held, parts)
    if (tensor := tensors.pop(held, None)) is None:
        raise ModelError(f"{header} lacks tensor {held!r}: {AGAIN}")
    came, wanted = tuple(reversed(tensor.sizes)), tuple(size for size in shape if size != 1)
    in_line = len(wanted) == 1 and prod(came) == wanted[0]  # numbers of heads are columns, and norms may be by groups
    if came not in (shape, wanted) and not in_line:
        raise ModelError(
            f"{header} holds tensor {held!r} as {size_text(came)}, but its metadata make it {size_text(wanted)}: {AGAIN}"
        )
    return _weight(header, tensor, shape, head)


def _head(header: Header, config: Any, tensors: Mapping[str, TensorInfo]) -> dict[str, Weight]:
    """The weights of an MTP head, by their names in it, from the tensors of the blocks behind the layers."""
    names = FAMILIES[config.model_type].in_gguf()
    modules = {stem: module for module, stem in reversed(names.items())}  # whole before fused
    found = {}
    for name, tensor in tensors.items():
        _, block, rest = name.split(".", 2)
        stem, kind = rest.rpartition(".")[::2]
        shape, norm = tuple(reversed(tensor.sizes)), "norm" in stem
        layer = f"layers.{int(block) - config.num_hidden_layers}."
        weight = _weight(header, tensor, shape if norm or len(shape) > 1 else (1, *shape), 0)
        module = MTP_STEMS.get(stem) or layer + modules.get(stem, stem)
        found[layer + modules[rest] if rest in modules else f"{module}.{kind}"] = _less_one(weight) if norm else weight
    return found


def _split(name: str) -> tuple[str, str, str]:
    """The number of the layer, the module and the kind of a weight of ``transformers``."""
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    return layer, module, kind


def _name(name: str, names: Mapping[str, str]) -> str:
    """The name in a GGUF file of a weight of ``transformers``; ``names`` are those of :meth:`Family.in_gguf`."""
    layer, module, kind = _split(name)
    if name in _WHOLE or (whole := name.removesuffix(".weight")) not in names:
        own = names.get(f"{module}.{kind}".removeprefix("."))
        return _WHOLE.get(name) or f"blk.{layer}.{own or f'{names[module]}.{kind}'}"
    return f"{names[whole]}.weight"


def _as_in_transformers(name: str, weight: Weight, config: Any) -> Weight:
    """A weight that files hold otherwise: norms that are added to one as the sum, and decays as what makes them."""
    own = FAMILIES[config.model_type]
    if own.plus_one and (name == own.last_norm() or _split(name)[1] in own.modules()[1].values()):
        return _less_one(weight)
    return _numbers(weight, (-weight.tensor(torch.float32)).log()) if name.endswith(".A_log") else weight


def _less_one(weight: Weight) -> Weight:
    return _numbers(weight, weight.tensor(torch.float32) - 1)


def _numbers(weight: Weight, numbers: torch.Tensor) -> Weight:
    """A weight with these numbers."""
    return replace(weight, data=numbers.numpy().view(np.uint8), kind=0, mapped=False)


def _weight(header: Header, tensor: TensorInfo, shape: tuple[int, ...], head: int) -> Weight:
    block, size = BLOCKS[tensor.kind]
    if shape[-1] % block:
        raise ModelError(f"{header} holds tensor {tensor.name!r} in blocks of {block}, with rows of {shape[-1]}: {AGAIN}")
    path, begin, count = header.place_of(tensor, block, size)
    data = np.memmap(path, np.uint8, mode="c", offset=begin, shape=(count,))
    return Weight(data=data, kind=tensor.kind, shape=shape, head=head, mapped=True)


def _add_ends(header: Header, generation: Any, own: Sequence[str]) -> None:
    """Let the ends of a turn and of a message end a text, as in llama.cpp, or what its family has, and all of a list."""
    keys = ("eos_token_ids",) if own else ("eos_token_ids", "eot_token_id", "eom_token_id")
    found = [generation.eos_token_id, *(header.value(f"tokenizer.ggml.{key}") for key in keys)]
    if own and isinstance(tokens := header.value("tokenizer.ggml.tokens"), list):
        found += [tokens.index(end) for end in own if end in tokens]
    parts = [part if isinstance(part, list) else [part] for part in found if part is not None]
    ends = list(dict.fromkeys(int(one) for part in parts for one in part))
    generation.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)
