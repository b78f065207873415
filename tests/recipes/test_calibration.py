"""The calibration of a drafter: what levels bring, and a file that a new process begins with."""

import sys

from draftwood.engine.knowledge import read
from recipes import calibration
from tests.tiny_chat import save_chat


def test_a_level_brings_what_it_adds_to_the_best_tree():
    trees = calibration.WholeTrees()
    for _ in range(2):
        trees.begin_round()
        trees.end_level(0, 1.0, [0.6, 0.2, 0.04], 1, None)  # the third node brings less than it costs
        trees.end_level(1, 0.8, [0.6, 0.5, 0.2, 0.1], 2, None)
    assert [round(gain, 9) for gain in trees.gains] == [2 * 0.75, 2 * 0.5]
    assert trees.above == [2.0, 1.6]


def test_a_calibration_is_knowledge_of_both_kinds_of_sampling(tmp_path, monkeypatch):
    (tmp_path / "a.train.txt").write_text("The cat sat on the mat. The dog ran home.", encoding="utf-8")
    model, out = save_chat(tmp_path / "model"), tmp_path / "calibration.json"
    given = {"--target": model, "--draft": model, "--data": tmp_path, "--out": out, "--turns": 2, "--tokens": 12}
    monkeypatch.setattr(sys, "argv", ["calibration", *(str(part) for pair in given.items() for part in pair)])
    calibration.main()
    found = read(out)
    assert set(found.learnt) == {"adaptive, temperature 0", "adaptive, sampling"}
    for learnt in found.learnt.values():
        levels = learnt.by_rows[1]
        assert levels.gains[0] > 0
        assert not levels.costs.base  # those of no machine
        assert sum(learnt.guesses) > 0  # prompt lookup was compared with the texts
