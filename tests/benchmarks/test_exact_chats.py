"""Chats against transformers: what the checks see, and that their controls fail."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.exact_chats import greedy
from benchmarks.exact_chats.chats import Answer
from benchmarks.exact_chats.checks import checks
from benchmarks.exact_chats.report import markdown
from tests.benchmarks.tiny import call
from tests.tiny_chat import save_chat

LIMIT = 24
SOME = "--tokens", "700", "--control-tokens", "700", "--control", "0.5"
TALKS = [
    {"category": "fox", "turns": ["the fox ran", "and the red hen"]},
    {"category": "dog", "turns": ["a dog sat"]},
    {"category": "fox", "turns": ["once", "a hen", "the hill"]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, its draft model and the chats."""
    path = tmp_path_factory.mktemp("chats")
    save_chat(path / "target")
    save_chat(path / "draft", layers=1)
    (path / "chats.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    return path


def exact_chats(folder: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """The document of the command, which ends with this code."""
    base = ["exact-chats", "--backend", "torch", "--method", "rsd-s", "--chats", "3", "--max-new-tokens", str(LIMIT)]
    paths = {"--prompts": "chats.jsonl", "--target": "target", "--draft": "draft", "--output": "out"}
    done = call(*base, *(text for name, path in paths.items() for text in (name, folder / path)), *options, code=code)
    found = json.loads((folder / "out" / "exact-chats.json").read_text())
    assert (folder / "out" / "exact-chats.md").read_text() == markdown(found)
    assert markdown(found) in done.stdout
    return found


def test_the_command_tests_both_parts_and_its_controls_fail(folder: Path) -> None:
    found = exact_chats(folder, *SOME, "--generated", "2")
    assert [check["holds"] for check in found["checks"]] == [True] * 6, found["checks"]
    assert not found["partial"]
    assert len(found["greedy"]["answers"]) == 6
    for before, answer in pairwise(found["greedy"]["answers"]):
        if answer["turn"]:  # its message follows the model's own answer, and the beginning is not read again
            assert len(answer["prompt"]) > len(before["prompt"]) + len(before["tokens"])
            assert answer["shared"] >= len(before["prompt"]) - 1
    assert [g["at"] for g in found["greedy"]["generate"]] == [None, None]
    assert found["greedy"]["controls"] == {"one token replaced": False, "the last token taken away": False}
    assert found["sampled"]["fit"]["exact"]
    assert not found["control"]["fit"]["exact"]
    for name in ("sampled", "control"):
        texts = found[name]["answers"]
        assert sum(len(text["tokens"]) for text in texts) >= 700
        assert sum(text["drafted"] for text in texts) > sum(text["accepted"] for text in texts) > 0
        assert len({text["seed"] for text in texts}) == len(texts)
    wrong = found | {"sampled": found["control"], "control": found["sampled"]}
    assert [check.holds for check in checks(wrong)[-2:]] == [False, False]


def test_a_part_can_be_left_out_and_a_difference_ends_with_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = greedy.check
    monkeypatch.setattr(greedy, "check", lambda *given: replace(real(*given), differing=[(0, 0.5)]))
    found = exact_chats(folder, "--parts", "greedy", "--generated", "0", code=1)
    assert "sampled" not in found
    assert [check["holds"] for check in found["checks"]] == [False, True, True]


@pytest.mark.parametrize(("tokens", "fault"), [
    ([5, 6, 0], None), ([5, 6, 7, 8], None), ([5, 6, 7, 0], None), ([5, 6, 7], "it ends after 3"), ([5, 0, 7, 8], "goes on"),
])  # fmt: skip
def test_an_answer_ends_with_the_token_that_ends_a_turn_or_with_the_limit(tokens: list[int], fault: str | None) -> None:
    nothing = dict.fromkeys(("chat", "turn", "seed", "rounds", "drafted", "accepted", "shared", "read"), 0)
    found = greedy.end_fault(Answer(source="", prompt=[], tokens=tokens, ends=(0,), reason="", **nothing), 4)
    assert found is None if fault is None else fault in str(found)
