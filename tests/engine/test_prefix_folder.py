"""The prefix cache on disk: texts after a restart have the bits that they have without it, and no file can change that."""

import errno
import os
import stat

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.engine import prefix_files, prompts
from draftwood.engine.prefix_folder import PrefixFolder
from draftwood.engine.prompts import AGAIN
from draftwood.runners.native.memory import PAGE
from draftwood.sampling.settings import Sampling
from tests.engine.test_batch import alone
from tests.engine.test_prefixes import engine_of, request, some

TEXT = some(300, 1)


def started(path, kind="small", dtype=torch.float32, *, size=1 << 30, key="a"):
    """An engine with a folder and an empty memory, as after a restart."""
    engine = engine_of(kind, dtype)
    engine.prefixes.folder = PrefixFolder(path, size, engine.pipeline.target, {"target": key, "draft": key})
    return engine


def ended(engine):
    """Write what is kept, as a server that ends."""
    while engine.prefixes.save():
        pass


def write(engine, prompt, new=12, salt=""):
    """The tokens of a text, and how many of its prompt were known."""
    [found] = engine.generate([request(prompt, new, cache_salt=salt)], Sampling(), reuse=True)
    return found.token_ids, found.stats.cached_tokens


def known_of(engine, prompt):
    """How many tokens of a prompt an engine knows from its folder alone; the text is that of an engine without one."""
    engine.prefixes.clear()
    wanted = alone(engine, request(prompt, 20), Sampling(), None)
    found, known = write(engine, prompt, 20)
    engine.prefixes.clear()
    assert found == wanted
    return known


AGAIN_BY_KIND = {"small": 2, "mtp": AGAIN + 2, "states": AGAIN + 2}
"""Tokens that are read again, at most; drafters of hidden states read those of a text's last round."""


@pytest.mark.parametrize("kind", ["small", "eagle3", "dflash", "mtp", "states"])
def test_texts_have_the_same_bits_after_a_restart(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(prompts, "DISTANCE", PAGE)
    dtype = torch.bfloat16 if kind in ("small", "states") else torch.float32
    first, again = started(tmp_path, kind, dtype), AGAIN_BY_KIND.get(kind, 6)
    more, _ = write(first, TEXT, 40)
    ended(first)
    second, whole = started(tmp_path, kind, dtype), [*TEXT, *more]
    for prompt, shared in (
        ([*whole, 5, 6, 7], len(whole)),  # the next turn
        ([*TEXT, *some(80, 2)], len(TEXT)),  # another answer
        ([*TEXT[:200], *some(80, 3)], 200),  # its middle was compacted
        ([*TEXT[: 2 * PAGE], *some(80, 4)], 2 * PAGE),  # at the end of a page
        (some(150, 5), 0),
    ):
        apart = PAGE if kind in ("mtp", "states") and shared < len(TEXT) else 0  # of running states
        assert shared - again - apart <= known_of(second, prompt) <= shared
    assert second.prefixes.folder is not None
    assert second.prefixes.folder.tokens > 300


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "mtp"])
def test_a_text_without_drafts_is_found_after_a_restart(tmp_path, kind):
    first = started(tmp_path, kind, torch.float32)
    write(first, TEXT, 1)
    ended(first)
    assert len(TEXT) - AGAIN_BY_KIND.get(kind, 6) <= known_of(started(tmp_path, kind, torch.float32), [*TEXT, 5, 6])


# ---- files that cannot be used ----


def files(path):
    return sorted(path.iterdir())


def saved(path, kind="small", **given):
    """The files of a text."""
    engine = started(path, kind, **given)
    write(engine, TEXT, 5)
    ended(engine)
    return files(path)


def broken(path, how):
    """Damage a file."""
    data = bytearray(path.read_bytes())
    if how in ("value", "header"):
        data[-1000 if how == "value" else 20] ^= 0x40
    elif how == "of another version":
        data = data.replace(prefix_files.FORMAT.encode(), b"draftwood prefix 0")
    elif how == "open to others":
        path.chmod(0o640)
    else:
        del data[{"empty": 0, "cut": len(data) // 2}[how] :]
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["value", "header", "of another version", "open to others", "empty", "cut"])
def test_a_file_that_is_not_as_it_was_written_is_deleted_and_changes_no_text(tmp_path, how, caplog):
    for path in saved(tmp_path):
        broken(path, how)
    engine = started(tmp_path)
    assert known_of(engine, [*TEXT, 5, 6]) == 0
    assert all((how if " " in how else "damaged") in line for line in caplog.messages)
    assert 0 < len(caplog.messages) == len(set(caplog.messages)), "a line for each"
    ended(engine)


def test_control_without_its_checksum_a_damaged_value_changes_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(prefix_files, "_checksum", lambda *_: "none")
    for path in saved(tmp_path):
        path.write_bytes(path.read_bytes()[:-30000] + bytes(30000))
    with pytest.raises(AssertionError):
        known_of(started(tmp_path), [*TEXT, 5, 6])


def test_a_file_under_another_name_is_none(tmp_path):
    first, *others = [path for path in saved(tmp_path) if path.stem.endswith(f"-{PAGE}")]
    for path in others:
        path.write_bytes(first.read_bytes())
    assert known_of(started(tmp_path), [*TEXT, 5, 6]) <= PAGE


def test_a_full_disk_is_a_line_in_the_log(tmp_path, monkeypatch, caplog):
    engine = started(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prefix_files.os, "open", full)
    wanted = alone(engine, request(TEXT, 12), Sampling(), None)
    assert write(engine, TEXT)[0] == wanted
    ended(engine)
    assert ["No space left" in line for line in caplog.messages] == [True]
    assert not files(tmp_path)


# ---- what is kept, and for whom ----


def test_files_are_bounded_and_the_least_recently_used_go_first(tmp_path):
    size = sum(path.stat().st_size for path in saved(tmp_path / "one"))
    path = tmp_path / "many"
    engine = started(path, size=int(2.5 * size))
    texts = [some(300, seed) for seed in range(20, 24)]
    for number in (0, 1, 0, 2):
        engine.prefixes.clear()
        write(engine, texts[number], 5)
        ended(engine)
        assert sum(one.stat().st_size for one in files(path)) <= 2.5 * size
    assert [known_of(engine, [*texts[number], 5, 6]) > 290 for number in (0, 1, 2)] == [True, False, True]
    engine = started(tmp_path / "small", size=size // 5)
    write(engine, TEXT, 5)
    ended(engine)
    assert not files(tmp_path / "small"), "one that is larger than all"


def test_a_text_about_as_large_as_the_folder_stays_in_part(tmp_path):
    whole = started(tmp_path / "a")
    write(whole, TEXT)
    ended(whole)
    sizes = sorted(file.stat().st_size for file in (tmp_path / "a").rglob("*.safetensors"))
    total, target = sum(sizes), sum(sizes[-5:])  # the target's five pages are larger than the draft's
    for less in (100, 900, 1_700):  # as many bytes as its pages, and not as many as their headers too
        engine = started(tmp_path / f"b{less}", size=target - less)
        write(engine, TEXT)
        ended(engine)
        assert sum(file.stat().st_size for file in (tmp_path / f"b{less}").rglob("*.safetensors")) <= target - less
    small = started(tmp_path / "a", size=total // 2)  # is bounded at once
    assert sum(file.stat().st_size for file in (tmp_path / "a").rglob("*.safetensors")) <= total // 2
    known_of(small, TEXT)  # and writes the same text


def test_files_are_for_their_owner_only(tmp_path):
    path = tmp_path / "deep" / "folder"
    modes = {stat.S_IMODE(one.stat().st_mode) for one in saved(path)}
    assert (modes, stat.S_IMODE(path.stat().st_mode)) == ({0o600}, 0o700)


def test_texts_of_other_models_and_other_keys_share_nothing(tmp_path):
    engine = started(tmp_path)
    write(engine, TEXT, salt="secret")
    ended(engine)
    assert not any(b"secret" in path.read_bytes() or "secret" in path.name for path in files(tmp_path))
    for salt, known in (("", False), ("other", False), ("secret", True)):
        assert (write(started(tmp_path), TEXT, salt=salt)[1] > 0) == known
    assert write(started(tmp_path, key="b"), TEXT, salt="secret")[1] == 0
    with pytest.raises(ConfigError, match="cannot be used"):
        started(files(tmp_path)[0])


def test_a_text_that_leaves_the_memory_comes_back_from_its_files(tmp_path):
    engine = started(tmp_path)
    engine.prefixes.memory, engine.prefixes.least = 1, 0
    write(engine, TEXT, 5)
    assert len(engine.prefixes) == 0
    assert write(engine, [*TEXT, 5, 6])[1] == 0, "there is no memory for it"
    engine.prefixes.memory = 1 << 30
    assert write(engine, [*TEXT, 5, 6])[1] >= len(TEXT) - 1
