"""The library that runs a pair is chosen by files, options and machine, before weights are read."""

import json

import pytest

from draftwood import LoadOptions
from draftwood.core.errors import ConfigError
from draftwood.loading.plan import plan_for
from draftwood.runners.backends import VARIABLE

TYPE = "it has no code for model type 'gpt2'"
FORMAT = "it computes in float32 or bfloat16, and the model is in float16"
BOTH = ("native", "torch")


@pytest.fixture(autouse=True)
def _auto(monkeypatch):
    monkeypatch.setenv(VARIABLE, "auto")


def config(folder, model_type):
    """A folder without weights."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


@pytest.mark.parametrize(("model_type", "options", "names", "why", "named"), [
    ("llama", {}, BOTH, None, ""),
    ("qwen3_5", {}, BOTH, None, ""),
    ("gpt2", {}, ("torch",), TYPE, ""),
    ("llama", {"dtype": "float16"}, ("torch",), FORMAT, ""),
    ("llama", {"dtype": "bfloat16"}, BOTH, None, ""),
    ("llama", {"backend": "torch"}, ("torch",), None, "backend 'torch' was given"),
    ("llama", {"weights": "int8"}, ("native",), None, "weights are 'int8'"),
    ("llama", {"device_map": "auto"}, ("torch",), None, "the target is divided"),
    ("marian", {}, ("torch",), None, ""),
])  # fmt: skip
def test_the_library_and_its_reasons_are_known_without_weights(model_type, options, names, why, named, tmp_path):
    engine = plan_for(config(tmp_path, model_type), None, LoadOptions(device="auto", **options)).engine
    reasons = () if why is None else (("native", why),)
    assert (engine.names, engine.passed, engine.named) == (names, reasons, named)
    assert engine.fallback == (None if why is None else f"the native engine does not run the models ({why})")
    assert engine.reads_files == (names[0] == "native")


def test_one_that_was_named_reads_no_files_where_its_runner_will_refuse(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "native")
    for model_type, dtype in (("gpt2", "auto"), ("llama", "float64"), ("llama", "auto")):
        engine = plan_for(config(tmp_path, model_type), None, LoadOptions(dtype=dtype)).engine
        assert (engine.names, engine.named) == (("native",), f"{VARIABLE} is set")
        assert engine.reads_files == ((model_type, dtype) == ("llama", "auto"))
    monkeypatch.setenv(VARIABLE, "torch")
    with pytest.raises(ConfigError, match="weights 'int4' need the native engine"):
        plan_for(tmp_path, None, LoadOptions(weights="int4"))
