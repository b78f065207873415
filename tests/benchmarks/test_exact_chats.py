"""Chats against transformers: what the checks see, and that their controls fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import draftwood
from benchmarks.exact_chats import greedy
from benchmarks.exact_chats.chats import Answer, Writer, read_chats
from benchmarks.exact_chats.checks import checks
from benchmarks.exact_chats.report import markdown
from draftwood import LoadOptions, Method, Pair
from draftwood.engine import prefixes
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


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    options = LoadOptions(dtype="float32", device="cpu", backend="torch", profile="none")
    return draftwood.load(folder / "target", folder / "draft", options=options)


@pytest.fixture(scope="module")
def answers(folder: Path, pair: Pair) -> list[Answer]:
    """The greedy answers of all chats."""
    writer = Writer(pair=pair, method=Method(method="rsd-s"), temperature=0.0, max_new_tokens=LIMIT)
    chats = read_chats(folder / "chats.jsonl", 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "SHARED", 1)  # the chats are short
        return [answer for number, chat in enumerate(chats) for answer in writer.answers(number, chat, 0)]


def exact_chats(folder: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """The document of the command, which ends with this code."""
    base = ["exact-chats", "--backend", "torch", "--method", "rsd-s", "--chats", "3", "--max-new-tokens", str(LIMIT)]
    paths = {"--prompts": "chats.jsonl", "--target": "target", "--draft": "draft", "--output": "out"}
    done = call(*base, *(text for name, path in paths.items() for text in (name, folder / path)), *options, code=code)
    found = json.loads((folder / "out" / "exact-chats.json").read_text())
    assert (folder / "out" / "exact-chats.md").read_text() == markdown(found)
    assert code == 130 or markdown(found) in done.stdout
    return found


def test_the_command_tests_both_parts_and_its_controls_fail(folder: Path) -> None:
    found = exact_chats(folder, *SOME, "--generated", "2")
    assert [check["holds"] for check in found["checks"]] == [True] * 6, found["checks"]
    assert not found["partial"]
    assert len(found["greedy"]["answers"]) == 6
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


def test_an_interrupted_run_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = *SOME, "--generated", "0", "--seed", "1"
    real, calls = Writer.answers, list[int]()

    def answers(self: Writer, number: int, chat: Any, seed: int) -> Iterator[Answer]:
        calls.append(number)
        if len(calls) in {3, 8}:
            raise KeyboardInterrupt
        return real(self, number, chat, seed)

    monkeypatch.setattr(Writer, "answers", answers)
    for stopped in (3, 8):
        exact_chats(folder, *options, code=130)
        assert len(calls) == stopped
    found = exact_chats(folder, *options)
    assert len(calls) > 8
    (folder / "out" / "exact-chats.json").unlink()
    whole = exact_chats(folder, *options)
    for part in ("greedy", "sampled", "control"):
        tokens = [[answer["tokens"] for answer in one[part]["answers"]] for one in (found, whole)]
        assert tokens[0] == tokens[1]


def test_messages_follow_the_models_own_answers_and_only_new_tokens_are_read(pair: Pair, answers: list[Answer]) -> None:
    assert [(a.chat, a.turn, a.source) for a in answers] == [
        (0, 0, "fox"), (0, 1, "fox"), (1, 0, "dog"), (2, 0, "fox"), (2, 1, "fox"), (2, 2, "fox"),
    ]  # fmt: skip
    for before, answer in pairwise(answers):
        if answer.turn:
            words = pair.tokenizer.decode(before.tokens, skip_special_tokens=True)
            assert words in pair.tokenizer.decode(answer.prompt)
            assert answer.shared >= len(before.prompt) - 1
            assert answer.read == len(answer.prompt) - answer.shared + 1  # the last common token is read again


def test_greedy_answers_are_those_of_generate_and_a_replaced_token_is_found_with_its_gap(
    pair: Pair, answers: list[Answer]
) -> None:
    for answer in answers:
        assert greedy.check(pair.target.model, answer, LIMIT).equal
        assert greedy.generated(pair, answer, LIMIT) is None
    answer = next(a for a in answers if len(a.tokens) > 8)
    tokens = list(answer.tokens)
    tokens[5] = (tokens[5] + 1) % 100 + 2
    changed = replace(answer, tokens=tokens)
    found = greedy.check(pair.target.model, changed, LIMIT)
    at, gap = found.differing[0]
    assert (at, found.equal, found.holds(1e-3)) == (5, False, False)
    assert gap > 1e-3
    assert found.holds(1e6) is (found.end is None)
    assert greedy.generated(pair, changed, LIMIT) == 5


@pytest.mark.parametrize(("tokens", "fault"), [
    ([5, 6, 0], None), ([5, 6, 7, 8], None), ([5, 6, 7, 0], None), ([5, 6, 7], "it ends after 3"), ([5, 0, 7, 8], "goes on"),
])  # fmt: skip
def test_an_answer_ends_with_the_token_that_ends_a_turn_or_with_the_limit(answers: list[Answer], tokens, fault) -> None:
    found = greedy.end_fault(replace(answers[0], tokens=tokens, ends=(0,)), 4)
    assert found is None if fault is None else fault in str(found)
