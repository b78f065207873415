"""``draftwood chat --url`` talks with a server as it does with a model in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from draftwood import Pair
from draftwood.cli import main
from tests.serve.conftest import Live, live_server, loaded, make_service


@pytest.fixture(scope="module")
def live(folders: tuple[Path, Path]) -> Iterator[Live]:
    with live_server(make_service(loaded(folders))) as found:
        yield found


def talk(*arguments: Any, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["chat", *map(str, arguments)], input=stdin)


def test_a_chat_through_a_server_is_the_one_in_process(live: Live, folders: tuple[Path, Path]) -> None:
    options = ["--seed", 5, "--temperature", 1, "--max-new-tokens", 8, "--logit-bias", "260=1.5", "--quiet"]
    lines = "the fox ran\n\na dog\n/reset\n/system the hen\na dog\n"
    own = talk("--target", folders[0], "--method", "ar", "--backend", "torch", *options, stdin=lines)
    for url in (live.url, f"{live.url}/v1/"):
        shown = talk("--url", url, *options, stdin=lines)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout == own.stdout
        assert not shown.stderr
    assert len(own.stdout.split("\n")) >= 4


def test_one_message_is_answered_with_its_speed_and_seed(live: Live, pair: Pair) -> None:
    shown = talk("a dog", "--url", live.url, "--temperature", 1, "--max-new-tokens", 6, "--seed", 3, "--ignore-eos")
    assert shown.stderr.startswith("6 tokens, ")
    assert shown.stderr.rstrip().endswith("ended at the length limit, seed 3")
    wanted = pair.chat(
        [{"role": "user", "content": "a dog"}], temperature=1, seed=3, limits={"max_new_tokens": 6, "ignore_eos": True}
    )
    assert shown.stdout == f"{wanted.text}\n"


def test_what_the_server_refuses_is_an_error_in_its_words(live: Live) -> None:
    shown = talk("a dog", "--url", live.url, "--max-new-tokens", 5000)
    assert shown.exit_code == 2
    assert "the server answers 400: the prompt has" in shown.stderr


def test_values_for_the_chat_template_are_sent(live: Live) -> None:
    assert talk("a dog", "--url", live.url, "--max-new-tokens", 2, "--chat-template-kwargs", "{}").exit_code == 0
    shown = talk("a dog", "--url", live.url, "--chat-template-kwargs", '{"tools": []}')
    assert "the server answers 400: chat_template_kwargs holds 'tools'" in shown.stderr


@pytest.mark.parametrize(
    "option",
    [
        ("--target", "a"),
        ("--method", "ar"),
        ("--backend", "torch"),
        ("--show",),
        ("--compare",),
        ("--special-tokens-in-content",),
    ],
)
def test_options_of_a_model_in_process_are_refused(live: Live, option: tuple[str, ...]) -> None:
    shown = talk("a dog", "--url", live.url, *option)
    assert shown.exit_code == 2
    assert f"{option[0]} is for a model in this process" in shown.stderr


def test_an_address_without_a_server_is_refused(live: Live) -> None:
    for url, wanted in (("http://127.0.0.1:9", "check --url"), ("ftp://a", "give an address"), (f"{live.url}/x", "404")):
        shown = talk("a dog", "--url", url)
        assert shown.exit_code == 2
        assert wanted in shown.stderr
    assert "give its --url" in talk("a dog", "--api-key-file", "keys").stderr


def test_a_key_is_sent_from_its_file(folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("good-key\n")
    with live_server(make_service(loaded(folders)), ("good-key",)) as locked:
        assert talk("a", "--url", locked.url, "--max-new-tokens", 2, "--api-key-file", path).exit_code == 0
        refused = talk("a", "--url", locked.url)
    assert refused.exit_code == 2
    assert "401" in refused.stderr
