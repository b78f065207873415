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
from draftwood.cli.options import dataclass_options
from draftwood.core.errors import ConfigError
from draftwood.train.config import AverageConfig, ChatsConfig, DraftConfig, LMConfig, SpecDrafterConfig, TranslatorConfig
from tests.helpers import hide_package

COMMANDS = [("lm", LMConfig), ("draft", DraftConfig), ("average", AverageConfig)]
COMMANDS += [("chats", ChatsConfig), ("translator", TranslatorConfig), ("spec-drafter", SpecDrafterConfig)]


@pytest.mark.parametrize(("name", "config"), COMMANDS)
def test_every_setting_is_an_option_with_its_default_and_help(name: str, config: Any) -> None:
    options = {p.name: p for p in commands.group.commands[name].params}
    fields = dataclasses.fields(config)
    assert set(options) == {f.name for f in fields}
    for f in fields:
        option = options[f.name]
        assert isinstance(option, click.Option)
        assert option.help
        assert option.required == (f.default is dataclasses.MISSING)
        if not option.required:
            assert option.default == f.default


def test_options_cover_the_types_of_settings_and_others_are_refused() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings:
        count: int = 3
        rate: float | None = None
        name: str = "x"
        loud: bool = False
        where: Path | None = None

    @click.command()
    @dataclass_options(Settings)
    def command(**options: Any) -> None:
        click.echo(repr(Settings(**options)))

    run = CliRunner().invoke(command, ["--rate", "0.5", "--loud", "--where", "a/b"])
    assert run.output.strip().endswith(f"Settings(count=3, rate=0.5, name='x', loud=True, where={Path('a/b')!r})")
    with pytest.raises(ConfigError, match="'odd'"):
        dataclass_options(dataclasses.make_dataclass("Settings", [("odd", dict[str, int])]))


def test_what_is_refused_is_one_line(tmp_path: Path) -> None:
    run = CliRunner().invoke(commands.group, ["draft", "--data", "d", "--target", "t", "--out", "o", "--optimizer", "sgd"])
    assert run.exit_code == 2
    assert "adamw" in run.output
    run = CliRunner().invoke(main, ["train", "lm", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "out")])
    assert run.exit_code == 2
    assert run.stderr.startswith("Error: data folder")


def test_a_missing_accelerate_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_package(monkeypatch, "accelerate")
    run = CliRunner().invoke(main, ["train", "lm", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert run.exit_code != 0
    assert 'pip install "draftwood[train]"' in run.output
