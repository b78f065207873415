"""First turns of chats that are made from training text."""

import lzma

from recipes.turns import text_turns


def test_turns_are_tasks_questions_and_sentences_of_texts(tmp_path):
    (tmp_path / "a.train.txt").write_text("One day. A fox ran.\n<|endoftext|>\nQuestion: 1 + 1?\nAnswer: 2\n")
    (tmp_path / "b.train.de.xz").write_bytes(lzma.compress(b"Guten Morgen.\n"))
    turns = text_turns(tmp_path, 40, 0)
    assert "1 + 1?" in turns
    assert "Translate German to English: Guten Morgen." in turns
    assert any("A fox ran." in turn and len(turn) > 30 for turn in turns)


def test_passages_have_all_lengths(tmp_path):
    (tmp_path / "a.train.txt").write_text("The fox ran to the hill, and it sang. " * 400)
    words = [turn.count("fox") * 9 for turn in text_turns(tmp_path, 400, 0)]
    assert min(words) < 50 < 200 < max(words) <= 460
