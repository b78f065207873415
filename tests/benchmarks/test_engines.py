"""Other programs with the same weights: what is left out is said, and their greedy texts are compared."""

import json
import sys

import pytest
import torch

from benchmarks.engines import engines
from benchmarks.measure import Texts, our_maker
from benchmarks.settings import ENGINES, Setting
from draftwood.api import Pair
from draftwood.core.settings import LoadOptions
from draftwood.loading.models import load_tokenizer
from draftwood.loading.names import bundled_pairs
from draftwood.native.library import instruction_set
from tests.benchmarks.test_report import section
from tests.benchmarks.tiny import call, tiny_llama

PROMPT = (1, 2, 3, 4, 1, 2)


@pytest.fixture(scope="module")
def letters(pair):
    """The tiny pair with a tokenizer that can be converted, and an end-of-text token."""
    tokenizer = load_tokenizer(bundled_pairs()["language"]["draft"], LoadOptions())
    return Pair(pair.target.model, pair.draft.model, tokenizer)


def test_llama_cpp_has_the_weights_in_bfloat16_too(tmp_path):
    gguf = pytest.importorskip("gguf")
    from benchmarks.llama_cpp import named, write_gguf

    model = tiny_llama(0.4).to(torch.bfloat16)
    write_gguf(model, tmp_path / "x.gguf")
    read = {t.name: t for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    assert read.keys() == {name for name, _ in named(model)}
    for name, weight in named(model):
        found = torch.tensor(gguf.quants.dequantize(read[name].data, read[name].tensor_type)).reshape(weight.shape)
        assert torch.equal(found, weight.float())


def test_a_program_that_is_not_installed_is_left_out_with_the_reason(monkeypatch, letters):
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with engines([Setting(method="genai")], letters, (0.0,), PROMPT) as found:
        assert not found.opened
        assert 'pip install ".[peers]"' in found.skipped["genai"]


class Constant:
    """A program that writes the target's greedy text, whatever the distribution."""

    def __init__(self, pair, method, folder):
        self.pair, self.method = pair, method
        (folder / "file").write_text(method)

    def maker(self, setting, temperature, max_new_tokens):
        greedy = our_maker(Setting(method="ar"), self.pair, 0.0, max_new_tokens)

        def make(prompts, seeds):
            tokens = greedy(prompts, seeds).tokens
            steps, rows = max(map(len, tokens)), sum(map(len, tokens))
            return Texts(tokens=tokens, forwards=steps, row_forwards=rows, drafted=0, seen=False)

        return make


def broken(pair, method, folder):
    raise RuntimeError("it takes\nno such model")


def absent(pair, method, folder):
    raise ImportError("No module named 'openvino_genai'")


def test_a_run_reports_what_is_left_out(prompt_file, monkeypatch, tmp_path):
    openers = dict.fromkeys(ENGINES, broken) | {"genai": Constant, "genai-lookup": absent}
    monkeypatch.setattr("benchmarks.engines._openers", lambda: openers)
    call(
        "generate", "--repeats", "2", "--max-new-tokens", "12", "--prompts", prompt_file,
        "--methods", "ar,generate,genai,genai-lookup,llama.cpp", "--output", tmp_path,
    )  # fmt: skip
    report, document = (tmp_path / "bench.md").read_text(), json.loads((tmp_path / "bench.json").read_text())
    assert {one["method"] for one in document["skipped"]} == {"genai-lookup", "llama.cpp"}
    assert "* **left out**: llama.cpp, RuntimeError: it takes no such model" in report
    assert "* **left out**: genai-lookup, not installed (No module named 'openvino_genai')" in report
    header, *rows = section(report, "1", "All settings")
    line = next(dict(zip(header, row, strict=True)) for row in rows if row[0] == "genai")
    assert (line["drafted/round"], line["target %"], line["outside ms/round"]) == ("", "", "")
    assert line["block efficiency"].split()[0] == "1.000"
    assert next(check for check in document["greedy"] if check["setting"] == "genai")["differing"] == []


def test_both_backends_in_one_run(prompt_file, tmp_path):
    call(
        "generate", "--backend", "both", "--repeats", "1", "--max-new-tokens", "8", "--temperatures", "0",
        "--methods", "ar,chain,generate", "--prompts", prompt_file, "--output", tmp_path,
    )  # fmt: skip
    document = json.loads((tmp_path / "bench.json").read_text())
    names = [r["setting"] for r in document["results"]]
    assert names == [
        "ar (native)",
        "ar (torch)",
        *(f"chain ({name}) {n}" for name in ("native", "torch") for n in (2, 3, 4, 5)),
        "generate",
    ]
    assert all(sum(r["repeats"][0]["forwards"]) > 0 for r in document["results"])
    assert all(0 < sum(r["repeats"][0]["target_seconds"]) < sum(r["repeats"][0]["seconds"]) for r in document["results"])
    assert all(check["differing"] == [] for check in document["greedy"])
    assert document["models"]["target"]["engine"] == f"torch and native {instruction_set()}"
