"""Names of the hub are read from its cache, without a network: a target and a drafter."""

from hashlib import sha256
from pathlib import Path

import pytest
import torch

import draftwood
from draftwood.core.errors import ModelError
from draftwood.core.settings import LoadOptions
from draftwood.runners.hidden.model import vocabulary_digest
from tests.helpers import tiny_hidden
from tests.tiny_chat import chat_tokenizer, save_chat

COMMIT = "0" * 40
HELLO = [{"role": "user", "content": "Hello"}]


def keep(cache, name, folder):
    """A model in the layout of the hub's cache: files by digest, and links to them in a snapshot."""
    kept = cache / f"models--{name.replace('/', '--')}"
    for part in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (kept / part).mkdir(parents=True)
    (kept / "refs" / "main").write_text(COMMIT)
    for file in folder.iterdir():
        blob = kept / "blobs" / sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (kept / "snapshots" / COMMIT / file.name).symlink_to(Path("../../blobs") / blob.name)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with the chat model ``someone/fox`` and its drafter ``someone/fox-drafter``."""
    tokenizer, folder = chat_tokenizer(), tmp_path / "hub"
    torch.manual_seed(0)
    keep(folder, "someone/fox", save_chat(tmp_path / "fox", tokenizer=tokenizer))
    target = draftwood.load(tmp_path / "fox", options=LoadOptions(backend="torch", profile="none")).target.model
    drafter = tiny_hidden(target)
    drafter.config.vocabulary = vocabulary_digest(tokenizer)
    drafter.save_pretrained(tmp_path / "drafter")
    keep(folder, "someone/fox-drafter", tmp_path / "drafter")
    for name in ("huggingface_hub.constants.HF_HUB_CACHE", "huggingface_hub.file_download.constants.HF_HUB_CACHE"):
        monkeypatch.setattr(name, str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path / "hub")  # where no folder has these names
    return folder


def answer(target, draft=None):
    pair = draftwood.load(target, draft, options=LoadOptions(backend="torch", profile="none"))
    assert (pair.draft is None) == (draft is None)
    return pair.chat(HELLO, max_new_tokens=12, temperature=0, method="ar" if draft is None else "rsd-s").text


def test_models_by_the_names_of_the_hub_answer_as_those_of_folders(cache, tmp_path):
    expected = answer(tmp_path / "fox")
    assert answer("someone/fox") == expected
    assert answer("someone/fox", "someone/fox-drafter") == expected


def test_a_model_that_is_not_in_the_cache_is_named(cache):
    with pytest.raises(ModelError, match=r"'someone/hen'.*HF_HUB_OFFLINE forbids"):
        answer("someone/hen")
    with pytest.raises(ModelError, match=r"'someone/hen'.*HF_HUB_OFFLINE forbids"):
        answer("someone/fox", "someone/hen")
