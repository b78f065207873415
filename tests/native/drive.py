"""Uses every function of a native library with random weights, without PyTorch: for sanitizers, which watch one process.

Arguments: the library, and an instruction set of it. It prints a digest of all that was computed, and one of what models
computed that have the further facts of :data:`FACTS`, or of :data:`MIXTURE`, or codes.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from ctypes import addressof, byref
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.native import library as native
from draftwood.native.library import BlockShape, DrafterSource, Facts, LayerSource, Matrix, NewHidden, NewTokens

HEADS, KV_HEADS, VOCAB, TAPS, RANK, BLOCK = 6, 2, 45, 2, 6, 3
PARENTS = [0, 0, 0, 1, 2, 4]
FACTS = {"gelu": 1, "joint_norms": 1, "embedding_scale": 2.5, "residual_scale": 0.5, "logit_divisor": 0.7}
FACTS |= {"attention_cap": 2.0, "logit_cap": 3.0}
MIXTURE = {"experts": 7, "chosen": 3, "expert_inner": 20, "whole_shares": 1}


class Model:
    """A model of two layers, with its weights in codes or not, or a drafter of one: of blocks, or of features."""

    def __init__(
        self, lib: Any, bfloat16: bool, window: int = 0, drafts: str = "", further: bool = False, coded: bool = False
    ) -> None:
        self.width, self.dim, self.inner = (64, 32, 96) if coded else (40, 12, 50)
        self.lib, self._rng, self._kept, self.bfloat16 = lib, np.random.default_rng(1), [], bfloat16
        self.joins, self._coded = drafts == "features", coded
        layers = [self._layer(window, further) for _ in range(1 if drafts else 2)]
        facts = Facts(
            layers=len(layers), width=self.width, heads=HEADS, kv_heads=KV_HEADS, head_dim=self.dim, inner=self.inner,
            vocab=VOCAB, rotary_dim=self.dim, taps=0 if drafts == "blocks" else TAPS, bfloat16=bfloat16, epsilon=1e-6,
            scale=self.dim**-0.5, **(MIXTURE if further and window else FACTS if further else {}),
        )  # fmt: skip
        taps = (ctypes.c_int * TAPS)(1, 2)
        embedding, head = (self._matrix(VOCAB, self.width) for _ in range(2))
        parts = byref(embedding), byref(head), self._numbers(self.width)
        self.handle = lib.model(byref(facts), taps, *parts, (LayerSource * len(layers))(*layers), 2)
        angles = np.arange(300, dtype=np.float32)[:, None] * 50.0 ** -np.linspace(0, 1, self.dim // 2, dtype=np.float32)
        tables = [np.ascontiguousarray(part.astype(np.float32)) for part in (np.cos(angles), np.sin(angles))]
        assert lib.rotate(self.handle, *(table.ctypes.data for table in tables), 1, 300) == 0
        if drafts:
            source = DrafterSource(
                sources=TAPS, source_width=self.width, norm_sources=1, norm_residual=self.joins, rank=RANK,
                source_epsilon=1e-6, features=self._weights(self.width, TAPS * self.width),
                source_norm=self._numbers(TAPS * self.width), feature_norm=self._numbers(self.width),
                markov_in=self._weights(VOCAB, RANK), markov_out=self._weights(VOCAB, RANK),
            )  # fmt: skip
            assert lib.drafter(self.handle, byref(source)) == 0

    def _keep(self, values: np.ndarray) -> int:
        self._kept.append(np.ascontiguousarray(values))
        return int(self._kept[-1].ctypes.data)

    def _numbers(self, *shape: int) -> int:
        return self._keep(self._rng.normal(size=shape).astype(np.float32))

    def _weights(self, *shape: int) -> int:
        values = (0.3 * self._rng.normal(size=shape)).astype(np.float32)
        return self._keep((values.view(np.uint32) >> 16).astype(np.uint16) if self.bfloat16 else values)

    def _matrix(self, rows: int, columns: int) -> Matrix:
        if not self._coded:
            return Matrix(self._weights(rows, columns), -1, 0)
        blocks = self._rng.integers(0, 256, (rows, columns // 32, 20), np.uint8)
        blocks[..., :4].view(np.float16)[:] = (0.05, -0.4)  # scale and least number
        return Matrix(self._keep(blocks), 3, Matrix.INTERLEAVED + Matrix.CODED)  # Q4_1

    def _layer(self, window: int, further: bool) -> LayerSource:
        width, inner, queries, keys = self.width, self.inner, HEADS * self.dim, KV_HEADS * self.dim
        read = 2 * width if self.joins else width
        shapes = dict(query=(queries, read), key=(keys, read), value=(keys, read), out=(width, queries))
        shapes |= dict(gate=(inner, width), up=(inner, width), down=(width, inner))
        numbers = dict(query_bias=queries, key_bias=keys, value_bias=keys, out_bias=width, norm=width, ffn_norm=width)
        numbers |= dict(gate_bias=inner, up_bias=inner, down_bias=width)
        numbers |= dict(query_norm=self.dim, key_norm=self.dim, **({"hidden_norm": width} if self.joins else {}))
        mixed = {}
        if further and window:
            experts, _, inner, _ = MIXTURE.values()
            numbers = {name: size for name, size in numbers.items() if name.split("_")[0] not in ("gate", "up", "down")}
            shapes = {name: shape for name, shape in shapes.items() if name not in ("gate", "up", "down")}
            mixed = dict(
                router=(experts, width), experts_up=(experts, 2, inner, width), experts_down=(experts, width, inner)
            )
        elif further:
            numbers |= dict(query_norm=queries, key_norm=keys, out_norm=width, down_norm=width)
            del numbers["ffn_norm"]
        weights = {name: self._matrix(*shape) for name, shape in shapes.items()}
        weights |= {name: self._weights(*shape) for name, shape in mixed.items()}
        norms = {name: self._numbers(size) for name, size in numbers.items()}
        return LayerSource(**weights, **norms, window=window, rotary=-1 if further and window else 0)

    def read(self, rows: list[int], texts: list[list[int]], nodes: list[int], parents: list[int], threads: int) -> bytes:
        """Read what is pending and a tree in all rows."""
        count, size = len(rows), len(nodes)
        seen = np.zeros((count, size, size), np.uint8)
        for node in range(size):
            seen[:, node] = seen[:, parents[node]]
            seen[:, node, node] = 1
        tokens, depths = np.tile(np.array(nodes, np.int64), (count, 1)), seen.sum(-1).astype(np.int64) - 1
        given, pending = (NewTokens * count)(), [(ctypes.c_int * len(text))(*text) for text in texts]
        made = not any(texts)  # the features: drafted nodes, of which nothing else is known
        inputs = [
            self._numbers(len(text) + size, self.width if made else TAPS * self.width) if self.joins else None
            for text in texts
        ]
        for row, text in enumerate(pending):
            given[row] = NewTokens(
                rows[row], len(text), size, size, addressof(text), tokens[row].ctypes.data, depths[row].ctypes.data,
                seen[row].ctypes.data, *((None, inputs[row]) if made else (inputs[row], None)),
            )  # fmt: skip
        logits = np.empty((count, size, VOCAB), np.float32)
        hidden = np.empty((count * size + sum(map(len, texts)), TAPS, self.width), np.float32)
        peaks = np.empty((count, size, 2), np.int32)
        places = (part.ctypes.data for part in (logits, hidden, peaks))
        assert self.lib.read_tokens(given, count, *places, threads) == 0, self.lib.error()
        assert np.isfinite(logits).all()
        assert (peaks[..., 1] == logits.argmax(-1)).all()
        return logits.tobytes() + (hidden[: count * size] if self.joins else hidden).tobytes()

    def draft(self, rows: list[int], hidden: np.ndarray, threads: int) -> bytes:
        """Read hidden states, score a block, and nodes of it."""
        given = (NewHidden * len(rows))()
        for row, handle in enumerate(rows):
            given[row] = NewHidden(handle, row, len(hidden), 3 + row, hidden.ctypes.data)
        shape = BlockShape(slots=BLOCK, scored=BLOCK, causal=1, mask=self._numbers(self.width))
        scores = np.empty((len(rows), BLOCK, VOCAB), np.float32)
        assert self.lib.draft_block(given, len(rows), byref(shape), scores.ctypes.data, threads) == 0
        tokens, depths = np.array([[1, 2]] * len(rows), np.int64), np.array([[0, BLOCK]] * len(rows), np.int64)
        below = np.empty((len(rows), 2, VOCAB), np.float32)
        places = tokens.ctypes.data, depths.ctypes.data, len(rows), 2, scores.ctypes.data, BLOCK, below.ctypes.data
        assert self.lib.add_markov(self.handle, *places, threads) == 0
        assert np.isinf(below[:, 1]).all()
        return scores.tobytes() + below[:, 0].tobytes()


def texts(lib: Any, bfloat16: bool, threads: int, further: bool = False) -> bytes:
    """Rows that come, are forked, cut and dropped; prompts, trees and drafts."""
    found, tokens = b"", [7 * i % VOCAB for i in range(150)]
    for window, coded in ((0, False), (9, False), *([(0, True)] if bfloat16 and further else [])):
        model = Model(lib, bfloat16, window, further=further, coded=coded)
        first, second = lib.row(model.handle), lib.row(model.handle)
        found += model.read([first, second], [tokens, tokens[:3]], [5, 1, 2, 3, 4, 6], PARENTS, threads)
        for row in (first, second):
            assert lib.commit(row, (ctypes.c_int * 3)(0, 2, 4), 3) == 0
        third = lib.fork(first, 70)
        assert lib.cut(first, 65) == 0
        assert lib.commit(third, (ctypes.c_int * 1)(9), 1) < 0  # no such node
        found += model.read([third, first, second], [[1], [2, 3], []], [9], [0], threads)
        assert lib.page_bytes(model.handle) > 0
        for row in (first, second, third):
            lib.free_row(row)
        assert lib.page_bytes(model.handle) == 0
        lib.read(model.handle, threads)
        lib.free_model(model.handle)
    if further:
        return found
    features = Model(lib, bfloat16, drafts="features")
    rows = [lib.row(features.handle), lib.row(features.handle)]
    for pending in ([tokens, tokens[:3]], [[], []], [[1, 2], []]):
        found += features.read(rows, pending, [5, 1, 2, 3, 4, 6], PARENTS, threads)
        for row in rows:
            assert lib.commit(row, (ctypes.c_int * 1)(0), 1) == 0
    for row in rows:
        lib.free_row(row)
    lib.free_model(features.handle)
    drafter = Model(lib, bfloat16, drafts="blocks")
    hidden = np.linspace(-1, 1, 70 * TAPS * drafter.width, dtype=np.float32).reshape(70, -1)
    rows = [lib.row(drafter.handle), lib.row(drafter.handle)]
    for _ in range(2):
        found += drafter.draft(rows, hidden, threads)
    for row in rows:
        lib.free_row(row)
    lib.free_model(drafter.handle)
    return found


def main() -> None:
    native.LIBRARY = Path(sys.argv[1])
    lib = native.library()
    assert lib.use(sys.argv[2].encode()) == 0
    alone = [texts(lib, bfloat16, 1) for bfloat16 in (False, True)]
    with ThreadPoolExecutor(3) as callers:  # whose forwards wait for one another
        for _ in range(3):
            again = list(callers.map(lambda bfloat16: texts(lib, bfloat16, 3), (False, True, False)))
            assert again == [*alone, alone[0]], "other bits on other threads"
    print(hashlib.sha256(b"".join(alone)).hexdigest())
    once, again = ([texts(lib, bfloat16, threads, further=True) for bfloat16 in (False, True)] for threads in (1, 3))
    assert once == again, "other bits on other threads"
    print(hashlib.sha256(b"".join(once)).hexdigest())


if __name__ == "__main__":
    main()
