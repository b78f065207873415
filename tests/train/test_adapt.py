"""A drafter learns from its user's own texts, and is kept only if it drafts better."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
from click.testing import CliRunner

import draftwood
from draftwood.cli import main
from draftwood.cli.adapt import in_background, is_new
from draftwood.core.errors import ConfigError
from draftwood.core.lock import locked
from draftwood.loading import names
from draftwood.loading.names import ShortName, adapted_drafter, bundled_drafter, named_or_bundled
from draftwood.train import adapt as room
from draftwood.train.adapt import adapt, is_better, remove
from draftwood.train.chat_files import check_tokens, read_chats
from draftwood.train.config import AdaptConfig, DrafterConfig
from draftwood.train.drafter import train_drafter
from draftwood.train.own_texts import examples, read_texts, state_file, state_of
from tests.serve.conftest import until
from tests.tiny_chat import chat_tokenizer, save_chat
from tests.train.test_drafter import TINY, stop_at


def tale(rng):
    """One document of a few sentences."""
    who = rng.choice(["The fox", "A hen", "The old owl", "My dog"])
    acts = ["saw a red ball", "ran to the hill", "ate 12 plums", "sang a song", "slept in the sun"]
    return "\n".join(f"{who} {rng.choice(acts)}. Then it was {rng.choice(['glad', 'sad'])}." for _ in range(4))


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder in the place of the package, with a target ``fox`` and a drafter of it."""
    root = tmp_path_factory.mktemp("package")
    target = save_chat(root / "fox", max_position_embeddings=256)
    train_drafter(DrafterConfig(target=target, out=root / "drafters" / "fox", tokens=1_000, **{**TINY, "steps": 1}))
    return root


@pytest.fixture
def fox(package, tmp_path, monkeypatch):
    """The shipped drafter of the target ``fox``."""
    short = ShortName(module="llm_fox", file="fox.gguf", install="pip install llm-fox", hub=str(package / "fox"))
    monkeypatch.setattr(names, "SHORT_NAMES", {"fox": short})
    monkeypatch.setattr(names, "files", lambda _: package)
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(room, "_EPOCHS", 5.0)
    monkeypatch.setattr(room, "_RATE", 2e-2)
    return package / "drafters" / "fox"


@pytest.fixture
def texts(tmp_path):
    folder, rng = tmp_path / "texts", random.Random(1)
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text("\n".join(tale(rng) for _ in range(2)), encoding="utf-8")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff")
    return folder


def config(*texts):
    return AdaptConfig(target="fox", texts=texts, tokens=2_500)


def test_a_better_drafter_is_kept_found_and_removed(fox, texts, monkeypatch):
    monkeypatch.setattr(room, "_LOSS", 3.0)  # a random target says nothing of what such a drafter forgets
    assert bundled_drafter("fox") == fox
    found = adapt(config(texts))
    assert found.folder == adapted_drafter(fox)
    assert found.texts[1] > 1.02 * found.texts[0]
    assert {file.stat().st_mode & 0o777 for file in found.folder.iterdir()} == {0o600}
    assert named_or_bundled("language", "fox", None) == ("fox", found.folder)
    assert bundled_drafter("fox", adapted=False) == fox
    monkeypatch.setattr(room, "_EPOCHS", 0.5)
    assert adapt(config(texts)).texts[0] == pytest.approx(found.texts[1], abs=0.01)  # it goes on from there, as bfloat16
    assert not is_new("fox", None, texts, [].append)
    assert remove("fox")
    assert bundled_drafter("fox") == fox
    assert not remove("fox")
    assert is_new("fox", None, texts, [].append)


def test_one_that_is_not_better_changes_nothing(fox, texts, monkeypatch):
    later = texts / "later.txt"
    monkeypatch.setattr(room, "_EPOCHS", 0.2)
    monkeypatch.setattr(room, "is_better", lambda *_: later.write_text("A text that comes during the run.") == 0)
    assert adapt(config(texts)).folder is None
    assert is_new("fox", None, texts, [].append)
    later.unlink()
    assert (is_new("fox", None, texts, [].append), bundled_drafter("fox")) == (False, fox)


@pytest.mark.parametrize(
    ("texts", "chats", "better"),
    [
        ((2.0, 2.05), (1.8, 1.78), True),
        ((2.0, 2.03), (1.8, 1.9), False),
        ((2.0, 2.4), (1.8, 1.76), False),
        ((0.0, 0.0), (1.8, 1.8), False),
    ],
)
def test_a_better_one_gains_on_texts_and_loses_little_on_chats(texts, chats, better):
    assert is_better(texts, chats) is better


def test_a_stopped_run_leaves_nothing(fox, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("draftwood.train.loop.Reporter.on_step_end", stop_at(3))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        adapt(config(texts))
    assert bundled_drafter("fox") == fox
    assert not list(tmp_path.glob("draftwood-adapt-*"))


def test_chats_of_a_read_only_package_are_copied_without_their_modes(fox, tmp_path):
    known = tmp_path / "known"
    shutil.copytree(fox / "chats", known)
    for path in (*known.iterdir(), known):
        path.chmod(0o500)
    room._write_examples(read_chats(known)[:2], known, tmp_path / "chats", 1_000)
    known.chmod(0o700)
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "chats", *(tmp_path / "chats").iterdir()))


def test_two_runs_at_once_are_refused(fox, texts):
    kept = adapted_drafter(fox)
    kept.parent.mkdir(parents=True)
    with locked(kept), pytest.raises(ConfigError, match="being written by another run"):
        adapt(config(texts))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"One short text.", "the texts have"),
        ("a.txt", b"  \n", "no text in"),
        ("a.bin", b"\xff\xfe\x00", "no text in UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"prompt": "y"}', "line 2 of .* neither messages nor a text"),
        ("a.jsonl", b"{", "line 1 of .* not JSON"),
        ("a.json", b'{"messages": ["Hello"]}', "neither messages"),
        ("a.jsonl", b'{"text": "\\ud83d"}', "line 1 of .* not JSON"),
        (".git/a.txt", b"Some text.", "no text in"),
    ],
)
def test_texts_that_cannot_be_used_are_refused(fox, tmp_path, name, content, message):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        adapt(config(tmp_path if name[0] == "." else tmp_path / name))


def test_the_command_refuses_in_one_line(fox, tmp_path):
    def run(*options):
        return CliRunner().invoke(main, ["adapt", *options]).output

    assert "no text in" in run("--target", "fox", "--texts", str(tmp_path))
    gone = str(tmp_path / "no")
    assert f"Error: texts {gone} does not exist: give files" in run("--target", "fox", "--texts", gone)
    assert "There was nothing to remove." in run("--target", "fox", "--remove")
    assert "no drafter for" in run("--target", f"{fox.parent.parent / 'fox'}/", "--remove")
    assert "give 2000 or more" in run("--target", "fox", "--tokens", "1")


@pytest.fixture
def child(fox, tmp_path, monkeypatch):
    """A program in the place of ``draftwood adapt``: it names its threads, its priority and its group, and waits or ends
    with an error."""
    lines = (
        f"#!{sys.executable}",
        "import os, sys",
        "print(os.environ['OMP_NUM_THREADS'], os.getpriority(os.PRIO_PROCESS, 0), os.getpgrp(), flush=True)",
        f"open({str(tmp_path / 'called')!r}, 'w').write(' '.join(sys.argv[1:]))",
        f"os.path.exists({str(tmp_path / 'slow')!r}) and sys.exit(sys.stdin.read() or 130)",
        "sys.exit(2)",
    )
    program = tmp_path / "program"
    program.write_text("\n".join(lines), encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setattr("draftwood.cli.adapt.sys.executable", str(program))
    return tmp_path / "called"


def test_alongside_a_server_a_process_of_low_priority_learns(child, texts):
    said = []
    with in_background("fox", texts, said.append):
        until(lambda: len(said) == 2)
    assert child.read_text() == f"-m draftwood adapt --target fox --texts {texts} --with-input"
    assert said[1] == f"--adapt: 1 19 {os.getpgrp()}", "a terminal that closes ends both"


def test_the_process_ends_with_the_server(child, texts):
    said = []
    (child.parent / "slow").touch()
    began = monotonic()
    with in_background("fox", texts, said.append):
        until(lambda: child.exists())
    assert monotonic() - began < 30
    assert len(said) == 1, "a stopped process says nothing"


def test_a_run_ends_in_order_with_its_input():
    code = "import draftwood.cli.adapt as room, time\nwith room._ended_in_order(True):\n while True: time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(1)
        assert "KeyboardInterrupt" in run.communicate(timeout=200)[1]


def test_nothing_is_learnt_twice(child, texts, fox):
    said = []
    state = state_file(adapted_drafter(fox))
    state.parent.mkdir(parents=True)
    state.write_text(state_of([texts]))
    (texts / ".hidden").touch()
    assert not is_new("fox", None, texts, said.append)
    assert "so nothing is learnt" in said.pop()
    (texts / "1.txt").write_text("Other text.")
    assert is_new("fox", None, texts, said.append)
    assert not said


def test_a_server_without_texts_or_a_drafter_to_train_is_refused_before_its_model_is_loaded(
    fox, texts, tmp_path, monkeypatch
):
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("draftwood.cli.serve.load_session", None)
    for more, folder, message in (
        (["--target", "fox"], tmp_path / "empty", "no text in"),
        (["--target", "fox"], tmp_path / "no", "does not exist: give files"),
        (["--target", "fox", "--draft", str(fox)], texts, "and the drafter of 'fox' is"),
        (["--target", str(fox)], texts, "leave --adapt out"),
    ):
        assert message in CliRunner().invoke(main, ["serve", *more, "--adapt", str(folder)]).output


def test_one_example_of_four_is_a_chat_and_chats_come_with_the_package():
    folder = Path(draftwood.__file__).parent / "drafters" / "smollm2"
    chats, vocab = read_chats(folder / "chats"), json.loads((folder / "config.json").read_text())["vocab_size"]
    assert (len(chats), all(any(chat.answered) for chat in chats)) == (128, True)
    check_tokens(chats, folder, vocab)
    known = range(1000, 1116)
    for texts, share in ((9, 0.25), (60, 0.25), (600, 0.16)):
        mixed = room._mixed(range(texts), known)
        assert {*mixed} == {*range(texts), *known}
        assert sum(number in known for number in mixed) / len(mixed) == pytest.approx(share, abs=0.01)


def test_of_a_chat_the_answers_are_learnt(tmp_path):
    tokenizer, file = chat_tokenizer(), tmp_path / "chats.jsonl"
    turns = [("user", "the cat"), ("assistant", "sat"), ("user", "on"), ("assistant", "a mat")]
    messages = [{"role": role, "content": content} for role, content in turns]
    lines = json.dumps({"messages": messages}), "", json.dumps({"text": "the cat\u2028"}, ensure_ascii=False)
    file.write_text("\n".join(lines), encoding="utf-8-sig")
    chat, text = read_texts([file])
    answers = [[i for i, own in zip(*one, strict=True) if own] for one in examples(chat, tokenizer)]
    assert [tokenizer.decode(ids, skip_special_tokens=True).split() for ids in answers] == [["sat"], ["a", "mat"]]
    assert [all(one.answered) for one in examples(text, tokenizer)] == [True]
