"""The commands: options come from the settings, errors come out as one line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from draftwood.cli import main
from draftwood.cli import train as commands
from tests.helpers import hide_package


@pytest.mark.parametrize(("name", "config"), [(name, config) for name, (config, *_) in commands._COMMANDS.items()])
def test_every_setting_is_an_option_with_its_default_and_help(name: str, config: Any) -> None:
    options = {p.name: p for p in commands.group.commands[name].params}
    assert set(options) == {f.name for f in dataclasses.fields(config)}
    for f in dataclasses.fields(config):
        option = options[f.name]
        assert isinstance(option, click.Option)
        assert option.help
        assert option.required == (f.default is dataclasses.MISSING)
        if not option.required:
            assert option.default == f.default


def test_what_is_refused_is_one_line(tmp_path: Path) -> None:
    run = CliRunner().invoke(commands.group, ["draft", "--data", "d", "--target", "t", "--out", "o", "--optimizer", "sgd"])
    assert run.exit_code == 2
    assert "adamw" in run.output
    run = CliRunner().invoke(main, ["train", "lm", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "out")])
    assert run.exit_code == 2
    assert run.stderr.startswith("Error: data folder")


def test_a_missing_accelerate_names_the_extra(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_package(monkeypatch, "accelerate")
    data = ["--data", str(corpus), "--mix", "woods"]
    run = CliRunner().invoke(main, ["train", "lm", *data, "--out", str(tmp_path / "out")])
    assert run.exit_code == 2
    assert not (tmp_path / "out").exists()
    assert 'pip install ".[train]"' in run.output
