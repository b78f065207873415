"""Profiles: what they are for, when they are used, and what a broken one does."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import draftwood
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions, Method
from draftwood.engine import knowledge
from draftwood.loading import profile
from draftwood.sampling.settings import Sampling
from tests.cli.conftest import models  # noqa: F401  # a fixture

CHAIN = Method(method="chain", shape="3", verifier="traversal")
BEAM = Method(method="rsd-s", shape="2x2")
RNGS = {0.0: BEAM, 0.6: CHAIN, 1.0: Method(method="ar")}


@pytest.fixture
def folders(models, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    for part in ("target", "draft"):
        shutil.copytree(models / part, tmp_path / part)
    return {part: tmp_path / part for part in ("target", "draft")}


def profile_key(folders, dtype=torch.float32):
    return profile.profile_key_of(folders["target"], folders["draft"], dtype, torch.device("cpu"))


def write(folders, path=None, **changes):
    found = profile_key(folders)
    path = path or knowledge.default_path(found)
    knowledge.save(path, found, choices=RNGS, seconds=1.0, **changes)
    return path


def load(folders, **options):
    return draftwood.load(folders["target"], folders["draft"], options=LoadOptions(**options))


def test_the_nearest_measured_temperature_counts(folders):
    found = knowledge.read(write(folders))
    nearest = {0.0: BEAM, 0.2: BEAM, 0.31: CHAIN, 0.7: CHAIN, 0.81: RNGS[1.0], 5.0: RNGS[1.0]}
    assert {t: found.choose(t) for t in nearest} == nearest


def test_load_finds_the_profile_by_itself_and_auto_takes_its_choice(folders):
    assert not load(folders).known.choices
    write(folders)
    pair = load(folders)
    assert pair.method(temperature=0.0) == Method(method="rsd-s", shape="2x2", verifier="greedy")
    assert pair.method(temperature=0.1) == Method(method="rsd-s", shape="2x2", verifier="recursive")
    assert pair.method(temperature=0.6) == CHAIN
    assert pair.method(temperature=1.0) == Method(method="ar", verifier="coupled")
    pipeline = pair.decoder(temperature=0.6).pipeline
    assert (pipeline.drafter.name, pipeline.verifier.name) == ("chain", "traversal")
    sampling, limits = Sampling(temperature=0.6), Limits(max_new_tokens=20, ignore_eos=True)
    tuned = pair.generate("the fox", sampling=sampling, seed=3, limits=limits)
    named = pair.generate("the fox", sampling=sampling, seed=3, limits=limits, method=CHAIN)
    assert tuned.token_ids == named.token_ids
    streamed = [t for piece in pair.stream("the fox", sampling=sampling, seed=3, limits=limits) for t in piece.tokens]
    assert streamed == tuned.token_ids


def test_what_is_asked_for_comes_before_the_profile(folders):
    write(folders)
    pair = load(folders)
    for method in (Method(nodes=6), Method(shape="2-2"), Method(method="shared-noise")):
        assert pair.method(method, temperature=0.6).method == "shared-noise"
    assert pair.method(Method(verifier="coupled"), temperature=0.6).method == "adaptive"
    assert load(folders, profile="none").method(temperature=0.6).method == "adaptive"


def retrained(folder):
    """Other weights in a file of the same size and header."""
    size = (folder / "model.safetensors").stat().st_size
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.01)
    model.save_pretrained(folder)
    assert (folder / "model.safetensors").stat().st_size == size


@pytest.mark.parametrize(("change", "message"), [
    (lambda f, m: retrained(f["draft"]), r"draft is .*\(the files have changed\)"),
    (lambda f, m: m.setattr(profile, "cpu_name", lambda: "a faster one"), "cpu is .*, here 'a faster one'"),
    (lambda f, m: m.setattr(torch, "get_num_threads", lambda: 99), "threads is 1, here 99"),
])  # fmt: skip
def test_a_profile_of_something_else_is_not_used(folders, tmp_path, monkeypatch, change, message):
    named = write(folders, tmp_path / "mine.json")
    write(folders)
    change(folders, monkeypatch)
    assert not load(folders).known.choices
    with pytest.raises(ConfigError, match=message):
        load(folders, profile=str(named))
    assert profile.why_not(knowledge.read(named).profile_key) is not None


def test_another_number_format_or_pair_has_no_profile(folders, tmp_path):
    named = write(folders, tmp_path / "mine.json")
    write(folders)
    assert not load(folders, dtype="float64").known.choices
    assert not draftwood.load(folders["target"], folders["target"]).known.choices
    assert not draftwood.load(folders["target"]).known.choices
    with pytest.raises(ConfigError, match="dtype is 'float32', here 'float64'"):
        load(folders, dtype="float64", profile=str(named))
    with pytest.raises(ConfigError, match=r"draft is '.*draft', here None"):
        draftwood.load(folders["target"], options=LoadOptions(profile=str(named)))


def test_a_copied_model_is_the_same_model(folders, tmp_path):
    write(folders)
    shutil.copytree(folders["target"], tmp_path / "copy")
    assert load({**folders, "target": tmp_path / "copy"}).known.choices


SENSELESS = [
    *({"temperature": 0.0, "method": method} for method in ({"method": "magic"}, {"method": "chain", "colour": "red"})),
    *({"temperature": "warm", "method": {}}, {"method": {}}),
]


@pytest.mark.parametrize(("content", "message"), [
    ("", "is not a file that this version writes"),
    ("[1, 2]", "is not a file that this version writes"),
    ('{"format": 2, "choices": [{"temperature": 1}]}', "its format is 2, this version reads 6"),
    ('{"format": 6, "choices": [{"temperature": 1, "method": {"method": "gone"}}]}', "method is 'gone': choose one of auto"),
    ('{"format": 6, "learnt": {"adaptive": {}}}', "Knowledge was read from"),
    *((json.dumps({"format": 6, "choices": [entry]}), r"\.json") for entry in SENSELESS),
])  # fmt: skip
def test_a_broken_profile_is_named(folders, tmp_path, content, message):
    path = write(folders)
    path.write_text(content)
    with pytest.warns(UserWarning, match=message):
        pair = load(folders)
    assert pair.method(temperature=0.6).method == "adaptive"
    with pytest.raises(ConfigError, match=message) as caught:
        load(folders, profile=str(path))
    assert str(path) in str(caught.value)


def test_a_named_file_that_chooses_nothing_is_refused(folders, tmp_path):
    knowledge.save(tmp_path / "mine.json", profile_key(folders))
    with pytest.raises(ConfigError, match=r"mine\.json chooses nothing: run 'draftwood tune' again"):
        load(folders, profile=str(tmp_path / "mine.json"))


def test_a_file_that_is_not_there_is_named(folders, tmp_path):
    with pytest.raises(ConfigError, match=r"profile .*missing\.json cannot be read"):
        load(folders, profile=str(tmp_path / "missing.json"))


def test_where_profiles_lie(monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "own"))
    assert knowledge.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("DRAFTWOOD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert knowledge.cache_folder() == tmp_path / "xdg" / "draftwood"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert knowledge.cache_folder() == Path.home() / ".cache" / "draftwood"


def test_all_parts_of_a_split_file_are_part_of_its_identity(tmp_path):
    parts = [tmp_path / f"fox-{number:05}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF" + bytes(1_000))
    before = profile.identity(parts[0])
    parts[1].write_bytes(b"GGUF" + bytes(999) + b"1")
    assert profile.identity(parts[0]) != before
