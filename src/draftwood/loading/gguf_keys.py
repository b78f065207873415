"""The keys of a GGUF file that describe its model, each read where a setting is made of it.

A key that is not read is refused unless it leaves texts as they are: it could make another model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, final

import numpy as np

from draftwood.core.checks import short_repr
from draftwood.core.errors import ModelError
from draftwood.loading.gguf_header import OTHER_FILES, Header, TensorInfo
from draftwood.runners.native.families import COUNTS, PATTERN, ROTATES, SHARED_INNER, WINDOW

INNER, SHARED, TURNED_SIZE = "feed_forward_length", "attention.head_count_kv", "rope.dimension_count"
ORIGINAL: Final = "rope.scaling.original_context_length"
_WIDTHS: Final = {INNER: "ffn_down", COUNTS[2]: "ffn_down_exps", SHARED_INNER: "ffn_down_shexp"}
_TYPE, _FACTOR, _OLD_FACTOR = "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"
_UNUSED: Final = {  # the tensors show these sizes, or texts do not depend on them
    *_WIDTHS, "block_count", "context_length", "embedding_length", "pooling_type", ROTATES, "vocab_size",
}  # fmt: skip
_NEUTRAL: Final[Mapping[str, Any]] = {  # values with which a key does nothing
    "attention.causal": True, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0, "attention.scale": 0,
    WINDOW: 0, PATTERN: False, "embedding_scale": 1, "expert_count": 0, "expert_shared_count": 0,
    "expert_gating_func": 1, "expert_used_count": 0, "expert_weights_scale": 1, "leading_dense_block_count": 0,
    "logit_scale": 1, "nextn_predict_layers": 0,
    "residual_scale": 1, "rope.scaling.attn_factor": 1, "rope.scaling.yarn_attn_factor": 1,
    "rope.scaling.yarn_ext_factor": 1, "tensor_data_layout": "Meta AI original pth",
    "use_parallel_residual": False,
}  # fmt: skip


@final
class Keys:
    """What a file says under the name of its architecture, without that name; a list of equal values is that value. Widths
    of networks that it leaves out are those of its tensors.

    Args:
        header: of the file.

    Attributes:
        header: as given.
    """

    def __init__(self, header: Header) -> None:
        self.header, self._read, own = header, set[str](), f"{header.architecture}."
        widths = {name: f".{stem}.weight" for name, stem in _WIDTHS.items()}
        self._values: dict[str, Any] = {
            name: tensor.sizes[0] for tensor in reversed(header.tensors) for name, end in widths.items()
            if tensor.name.endswith(end)
        }  # fmt: skip
        for key in header.metadata:
            if key.startswith(own):
                value: Any = header.value(key)
                equal = isinstance(value, list) and value and value.count(value[0]) == len(value)
                self._values[key.removeprefix(own)] = value[0] if equal else value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None, *, several: bool = False) -> Any:
        """The value of a key, or if there may be ``several``, one for each layer.

        Raises:
            ModelError: another list, a text unless the default is one, or a number that is not finite.
        """
        self._read.add(name)
        found = self._values.get(name, default)
        if isinstance(found, list) and not several:
            raise self.refused(name)
        for one in found if isinstance(found, list) else [found]:
            is_text, is_finite = isinstance(one, str), not isinstance(one, float) or math.isfinite(one)
            if not is_finite or (is_text and not isinstance(default, str)):
                raise self.refused(name)
        return found

    def need(self, name: str, *, several: bool = False) -> Any:
        """The same of a key that must be there."""
        if name not in self:
            raise ModelError(f"{self.header} does not say {self.header.architecture}.{name}: {OTHER_FILES}")
        return self.get(name, several=several)

    def count(self, name: str, default: int | None = None, *, minimum: int = 0) -> int:
        """A whole number of ``minimum`` to 2 ** 31 - 1, of a key that must be there without a default."""
        found = self.need(name) if default is None else self.get(name, default)
        if not isinstance(found, int) or not minimum <= found < 1 << 31:
            raise self.refused(name)
        return found

    def same(self, name: str, computed: Any) -> None:
        """Raise a ModelError if a key says something else than what is computed."""
        if not _equal(self.get(name, computed), computed):
            raise self.refused(name, computed)

    @property
    def scaling(self) -> tuple[str, float]:
        """The type and the factor of the rotary scaling, as llama.cpp reads them: linear where the file names no type, and a
        factor of 0 is none."""
        kind, old = self.get(_TYPE, "linear"), self.get(_OLD_FACTOR, 0)
        factor = self.get(_FACTOR, old) or 1.0
        return ("default", 1.0) if kind == "none" or (kind == "linear" and factor == 1) else (kind, factor)

    def check_scaling(self, parts: Collection[Mapping[str, Any]]) -> None:
        """Raise a ModelError if no part of the rotary settings has the scaling that the file names."""
        said = next((name for name in (_TYPE, _FACTOR, _OLD_FACTOR) if name in self), None)
        kind, factor = self.scaling
        same = (part.get("rope_type", "default") == kind and _equal(factor, part.get("factor", 1.0)) for part in parts)
        if said is not None and not any(same):
            raise self.refused(said)

    def leave(self, prefix: str) -> None:
        """Take keys that begin so as read: they describe what the model does not have."""
        self._read |= {name for name in self._values if name.startswith(prefix)}

    def end(self, computed: Mapping[str, Any]) -> None:
        """Raise a ModelError for a key that was not read, unless it does nothing, or says what is computed."""
        for name, said in self._values.items():
            idle = [known[name] for known in (computed, _NEUTRAL) if name in known]
            if name not in self._read | _UNUSED and not any(_equal(said, value) for value in idle):
                raise self.refused(name, computed.get(name))

    def refused(self, name: str, computed: Any = None) -> ModelError:
        """The error for a key; ``computed`` is the value that would be, if there is one."""
        which = "which is not read" if computed is None else f"but {short_repr(computed)} is computed"
        own = self.header.architecture
        return ModelError(
            f"{self.header} says {own}.{name} {short_repr(self._values[name])}, {which} for architecture {own!r}, and its "
            f"texts would be another model's: {OTHER_FILES}"
        )


def _equal(said: Any, computed: Any) -> bool:
    if isinstance(said, float) and isinstance(computed, int | float):
        return math.isclose(said, computed, rel_tol=1e-5)
    return bool(said == computed)


def numbers_of(header: Header, tensor: TensorInfo) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor of float32 numbers."""
    path, begin, _ = header.place_of(tensor, 1, 4)
    return np.fromfile(path, np.float32, tensor.elements, offset=begin)
