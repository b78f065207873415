"""Settings that make no sense are refused with a sentence before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.config import BenchConfig, CostConfig, InflateConfig, VerifyConfig
from benchmarks.exact_chats.config import ExactChatsConfig
from benchmarks.never_slower.config import NeverSlowerConfig
from benchmarks.tracing.config import TraceConfig
from draftwood.core.errors import ConfigError
from tests.benchmarks.tiny import call

HERE = Path("here")
BAD: list[tuple[type, dict[str, Any], str]] = [
    (BenchConfig, {"repeats": 0}, "repeats is 0"),
    (BenchConfig, {"temperatures": "0,warm"}, "'warm'"),
    (BenchConfig, {"temperatures": ","}, "comma-separated"),
    (BenchConfig, {"temperatures": "-1"}, "'-1'"),
    (BenchConfig, {"budgets": "14,15"}, "'15': choose from 6, 10, 14, 21, 30"),
    (BenchConfig, {"methods": "chain,beam"}, "'beam': choose from ar, chain"),
    (BenchConfig, {"data": "x", "prompts": "y"}, "both given"),
    (BenchConfig, {"chat": True, "data": HERE}, "chat puts prompts into a chat template"),
    (BenchConfig, {"contexts": "64"}, "give --data"),
    (BenchConfig, {"contexts": "0", "data": HERE}, "contexts"),
    (BenchConfig, {"contexts": "32", "prompt_tokens": 5, "data": HERE}, "contexts and prompt_tokens both"),
    (BenchConfig, {"skip_prompts": 1}, "skip_prompts"),
    (BenchConfig, {"skip_prompts": -1, "data": HERE}, "skip_prompts"),
    (BenchConfig, {"skip_prompts": 1, "data": HERE, "contexts": "4"}, "skip_prompts"),
    (CostConfig, {"context": (5, 5)}, "context is 5, 5"),
    (CostConfig, {"weights": ("same",)}, "give int8, int4 or both"),
    (CostConfig, {"weights": ("int8", "int8")}, "give int8, int4 or both"),
    *((InflateConfig, {"parameters": text}, "parameters is") for text in ("", "0", "110 M", "-1M", "1e9", "10T")),
    (VerifyConfig, {"repeats": 0}, "repeats"),
    (VerifyConfig, {"vocab": (5,)}, "vocab"),
    (VerifyConfig, {"vocab": ()}, "vocab"),
    (VerifyConfig, {"shape": "3-2"}, "shape"),
    (TraceConfig, {"repeats": 0}, "repeats"),
    (TraceConfig, {"max_new_tokens": 0}, "max_new_tokens"),
    (TraceConfig, {"shape": "24"}, "shape"),
    (ExactChatsConfig, {"prompts": HERE, "parts": "x"}, "parts holds 'x'"),
    (ExactChatsConfig, {"prompts": HERE, "chats": 0}, "chats is 0"),
    (ExactChatsConfig, {"prompts": HERE, "tokens": 20}, "tokens is 20: give 640 or more"),
    (ExactChatsConfig, {"prompts": HERE, "control": 1.0}, "control is 1.0"),
    (NeverSlowerConfig, {"drafts": "own,other"}, "other"),
    (NeverSlowerConfig, {"states": "old"}, "old"),
    (NeverSlowerConfig, {"batch": "0"}, "batch"),
    (NeverSlowerConfig, {"temperatures": "warm"}, "temperatures is 'warm': give numbers from 0 on"),
    (NeverSlowerConfig, {"repeats": 0}, "repeats is 0: give 1 or more"),
    (NeverSlowerConfig, {"json_schema": HERE}, "json_schema is 'here' .* give a file with a JSON schema"),
]


@pytest.mark.parametrize(("config", "settings", "message"), BAD)
def test_settings_that_make_no_sense_are_refused(config: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)


@pytest.mark.parametrize(("command", "message"), [
    ("serve-load --systems x", "systems holds 'x'"),
    ("serve-load --rates 0", "rates is '0'"),
    ("serve-soak --requests 9", "requests is 9"),
    ("serve-fuzz --clients 0", "clients is 0"),
    ("serve-distribution --control 1", "control is 1.0"),
    ("serve-same-text --company 0", "company is 0"),
    ("serve-prefix --tokens 9", "tokens is 9"),
    ("serve-tools --calls 0", "calls is 0"),
    ("start --systems x", "systems holds 'x'"),
    ("start --repeats 0", "repeats is 0"),
    ("start --prompt-words 0", "prompt_words is 0"),
])  # fmt: skip
def test_commands_refuse_what_they_cannot_do(command: str, message: str) -> None:
    assert message in call(*command.split(), code=2).output


@pytest.mark.parametrize(("batch", "message"), [
    ("3", "batches of 3"), ("0", "batch holds '0'"), ("x", "batch holds 'x'")
])  # fmt: skip
def test_batches_that_cannot_be_filled_are_refused(prompt_file: Path, tmp_path: Path, batch: str, message: str) -> None:
    options = "--methods", "ar", "--prompts", prompt_file, "--output", tmp_path, "--batch", batch
    assert message in call("generate", *options, code=2).output
