"""Graphs with weights of eight or four bits (Kozlov et al. 2020, arXiv 2002.08679), made with NNCF and without data.

Eight bits have a scale per output channel. Four bits have a scale per group of 64 inputs, or fewer where 64 does not divide
their number; the embedding and the output head keep eight bits.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any, Final

from draftwood.core.settings import Weights
from draftwood.runners.openvino.graph import silent_import

_GROUP: Final = 64  # inputs with one scale
SCHEMES: Final[Mapping[Weights, str]] = {"same": "same", "int8": "int8_sym", "int4": f"int4_sym groups of {_GROUP}"}
"""How each kind of weights is made; part of the name of a stored graph."""


def quantized(graph: Any, weights: Weights) -> Any:
    """The graph with weights of this kind.

    Raises:
        ConfigError: ``nncf`` is not installed, and the weights are not to stay the same.
    """
    return _MAKERS[weights](graph)


def _in_eight_bits(graph: Any) -> Any:
    nncf = _nncf()
    with redirect_stdout(io.StringIO()):  # its progress bars
        return nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)


def _in_four_bits(graph: Any) -> Any:
    nncf = _nncf()
    smaller = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
    with redirect_stdout(io.StringIO()):
        return nncf.compress_weights(
            graph,
            mode=nncf.CompressWeightsMode.INT4_SYM,
            group_size=_GROUP,
            backup_mode=nncf.BackupMode.INT8_SYM,
            advanced_parameters=smaller,
        )


def _same(graph: Any) -> Any:
    return graph


_MAKERS: Final[Mapping[Weights, Callable[[Any], Any]]] = {"same": _same, "int8": _in_eight_bits, "int4": _in_four_bits}


def _nncf() -> Any:
    """The ``nncf`` package, without telemetry and messages."""
    nncf = silent_import("nncf", "int8")
    nncf.set_log_level(40)  # errors only
    return nncf
