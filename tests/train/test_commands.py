"""The commands: options come from the settings, errors come out as one line."""

import dataclasses

import click
import pytest

from draftwood.cli import train as commands
from draftwood.train.config import ChatsConfig, DrafterConfig


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
