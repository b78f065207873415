"""What was learnt about a pair stays for the next process."""

import gc

import pytest

import draftwood
from draftwood import LoadOptions
from draftwood.core.settings import Method
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.engine.knowledge import Known, default_path, known_of, read, save

KEY = {
    "target": {"name": "one", "fingerprint": "1"}, "draft": None, "dtype": "float32", "device": "cpu", "engine": "torch",
    "machine": {"cpu": "some", "threads": 2, "accelerator": None},
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    return tmp_path


def loaded(profile="auto"):
    return draftwood.load(options=LoadOptions(backend="torch", profile=profile))


def test_a_pair_writes_what_it_has_learnt_once_it_is_gone_and_the_next_one_begins_there(cache):
    pair = loaded()
    text = pair.generate("Once upon a time", seed=1, max_new_tokens=24, temperature=1.0).token_ids
    assert not list(cache.glob("known/*"))
    learnt = pair._decoders.learnt
    assert learnt["adaptive, sampling"].by_rows[1].costs.base > 0
    del pair
    gc.collect()
    [file] = cache.glob("known/*")
    assert file.stat().st_size < 10_000
    pair = loaded()
    assert pair._decoders.learnt == learnt
    before = file.stat().st_mtime_ns
    assert pair.generate("Once upon a time", seed=1, max_new_tokens=24, temperature=1.0).token_ids == text
    del pair
    gc.collect()
    assert file.stat().st_mtime_ns > before


def test_without_a_profile_nothing_is_read_or_written(cache):
    pair = loaded("none")
    pair.generate("Once upon a time", seed=1, max_new_tokens=8)
    del pair
    gc.collect()
    assert not list(cache.glob("known/*"))
    assert known_of("none", KEY).path is None
    assert known_of("auto", None).path is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 3, "learnt": {}}', '{"format": 5, "learnt": {"a": {}}}'])
def test_a_damaged_file_and_one_of_another_version_are_replaced_and_only_the_damaged_one_gives_a_warning(content, recwarn):
    path = default_path(KEY)
    path.parent.mkdir()
    path.write_text(content)
    known = known_of("auto", KEY)
    warned = [one for one in recwarn if "is not a file that this version writes" in str(one.message)]
    assert len(warned) == ("format" not in content)
    assert not known.learnt
    known.keep({"adaptive, sampling": Controllers().knowledge})
    assert list(known_of("auto", KEY).learnt) == ["adaptive, sampling"]
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_what_tune_chooses_and_what_texts_teach_stay_when_the_other_is_written():
    path, learnt = default_path(KEY), {"adaptive, sampling": Controllers().knowledge}
    Known(profile_key=KEY, path=path).keep(learnt)
    save(path, KEY, choices={1.0: Method(method="ar")}, seconds=2.0)
    assert read(path).learnt == learnt
    Known(profile_key=KEY, path=path).keep({})  # nothing was learnt
    Known(profile_key=KEY, path=path).keep({"lookup, sampling": Controllers().knowledge})
    assert read(path).choose(0.3) == Method(method="ar")
    assert list(read(path).learnt) == ["lookup, sampling"]


def test_a_cache_that_cannot_be_written_is_no_error(cache):
    (cache / "known").write_text("a file where the folder should be")
    Known(profile_key=KEY, path=default_path(KEY)).keep({"adaptive, sampling": Controllers().knowledge})


def test_the_costs_of_a_draft_are_measured_when_a_pair_is_loaded_and_then_known(cache, monkeypatch):
    def timed(pair):
        return {name: knowledge.by_rows[1].timed for name, knowledge in pair.learnt.items()}

    assert timed(loaded("none")) == {"adaptive, temperature 0": True, "adaptive, sampling": True}
    pair = loaded()
    assert timed(pair) == {"adaptive, temperature 0": True, "adaptive, sampling": True}
    del pair
    gc.collect()
    monkeypatch.setattr(Controllers, "trial", lambda self: pytest.fail("costs that are known are measured again"))
    assert timed(loaded())
    target = draftwood.load("src/draftwood/pairs/language/target", options=LoadOptions(backend="torch"))
    assert not target.learnt  # nothing to measure
