"""The quick reader gives what the package's own reader gives, reads each tensor once, and no bars of a library appear."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import draftwood
from draftwood.loading.bars import shown_by
from draftwood.loading.gguf_header import read_header
from draftwood.loading.gguf_reading import QuickReader, quick_reading
from draftwood.loading.gguf_store import converted
from tests.loading.gguf_files import BF16, F16, F32, Q4_1, Q8_0, source, write_gguf

METADATA = {"general.name": "Füchse", "llama.vocab_size": 12}


@pytest.mark.parametrize("kind", [F32, F16, BF16, Q8_0, Q4_1])
def test_it_gives_what_the_own_reader_gives(tmp_path: Path, kind: Any) -> None:
    header = read_header(path := write_gguf(tmp_path / "fox.gguf", *source(), kind, metadata=METADATA))
    quick, slow = QuickReader(header), gguf.GGUFReader(path)
    assert [(one.name, one.tensor_type) for one in quick.tensors] == [(one.name, one.tensor_type) for one in slow.tensors]
    for one, other in zip(quick.tensors, slow.tensors, strict=True):
        assert one.data.dtype == other.data.dtype
        assert np.array_equal(one.data, other.data)
    for key in header.metadata:
        [found], [wanted] = ([one.parts[i] for i in one.data] for one in (quick.fields[key], slow.fields[key]))
        assert found.tolist() == pytest.approx(wanted.tolist()), key
    tokens = "tokenizer.ggml.tokens"
    assert len(quick.fields[tokens].data) == len(slow.fields[tokens].data) == len(source()[1])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("llama.heads", [0, 8, 0, 4])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    heads = QuickReader(read_header(path)).fields["llama.heads"]
    assert [int(heads.parts[i][0]) for i in heads.data] == [0, 8, 0, 4]


def test_other_files_are_read_as_ever_meanwhile(file: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", *source())
    fields, own = len(gguf.GGUFReader(other).fields), gguf.GGUFReader
    with quick_reading(read_header(file), lambda: None):
        assert isinstance(gguf.GGUFReader(file), QuickReader)
        assert len(gguf.GGUFReader(other).fields) == fields
        assert not isinstance(gguf.GGUFReader(other), QuickReader)
    assert gguf.GGUFReader is own


def test_matrices_are_dequantised_one_at_a_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    alive: list[weakref.ref[Any]] = []
    most, inner = [0], gguf.dequantize

    def dequantize(*args: Any) -> Any:
        found = inner(*args).copy()  # an array of its own
        most[0] = max(most[0], sum(one() is not None for one in alive))
        alive.append(weakref.ref(found))
        return found

    monkeypatch.setattr(gguf, "dequantize", dequantize)
    converted(file)
    assert len(alive) > len(read_header(file).tensors)
    assert most[0] <= 2  # the one before, and its copy as a tensor


def test_every_tensor_is_a_step_that_is_shown(file: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def show(what: str, total: int) -> Any:
        seen.append(f"{what} {total}")
        yield lambda: seen.append("step")

    with shown_by(show):
        converted(file)
    count = len(read_header(file).tensors)
    assert seen == [f"Converting fox.gguf {count}", *["step"] * count]


def test_a_log_gets_no_bar_of_a_library(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    draftwood.load(file, options={"backend": "torch"})
    assert "it/s" not in (said := capfd.readouterr().err)
    assert "%" not in said
