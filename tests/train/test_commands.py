"""The commands: options come from the settings, errors come out as one line."""

import dataclasses

import click
import pytest
from click.testing import CliRunner

from draftwood.cli import main
from draftwood.cli import train as commands
from draftwood.loading.names import bundled_pairs
from draftwood.train.config import ChatsConfig, DrafterConfig
from tests.helpers import hide_package


@pytest.mark.parametrize(("name", "config"), [("drafter", DrafterConfig), ("chats", ChatsConfig)])
def test_every_setting_is_an_option_with_its_default_and_help(name, config):
    options = {p.name: p for p in commands.group.commands[name].params}
    assert set(options) == {f.name for f in dataclasses.fields(config)}
    for f in dataclasses.fields(config):
        option = options[f.name]
        assert isinstance(option, click.Option)
        assert option.help
        assert option.required == (f.default is dataclasses.MISSING)
        if not option.required:
            assert option.default == f.default


def test_a_missing_accelerate_names_the_extra(tmp_path, monkeypatch):
    hide_package(monkeypatch, "accelerate")
    target = str(bundled_pairs()["language"]["target"])
    run = CliRunner().invoke(main, ["train", "drafter", "--target", target, "--out", str(tmp_path / "out")])
    assert run.exit_code == 2
    assert not (tmp_path / "out").exists()
    assert 'pip install ".[train]"' in run.output
