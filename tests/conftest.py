"""Shapes in signatures are checked while the tests run, unless DRAFTWOOD_SHAPES is ``off`` (see ``scripts/test``)."""

import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from jaxtyping import install_import_hook

from tests.browser import start

THREADS = torch.get_num_threads()
gc.disable()  # until all tests are collected: what is imported stays
if os.environ.get("DRAFTWOOD_SHAPES") != "off":
    rooms = ["core.rng", "core.tree", "core.rounds", "sampling.rows", "sampling.sampler", "engine.drafting"]
    rooms += ["draft", "verify", "runners", "tune"]
    install_import_hook([f"draftwood.{room}" for room in rooms], "beartype.beartype")


def pytest_runtest_teardown():
    """A command of a test may set another number, and then every later test of the process would wait for its threads."""
    torch.set_num_threads(THREADS)


def pytest_collection_modifyitems(items):
    """The longest file comes first: at the end one process would wait minutes for the other."""
    items.sort(key=lambda item: item.path.name != "test_doc_commands.py")


def pytest_collection_finish():
    """Libraries and tests stay: the garbage of a test is found without walking a million objects of theirs."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_settings(tmp_path_factory):
    """What was tuned on this machine has no say in tests; PyTorch runs the models unless a test wants more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTWOOD_BACKEND", "torch")
        patch.setenv("DRAFTWOOD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny models are faster on one thread, above all on a busy machine; cores are not counted unless a test wants it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of a tiny chat model and of a draft model for it (``tests/tiny_chat.py``); no test changes them."""
    from tests.tiny_chat import save_chat

    folder = tmp_path_factory.mktemp("chat")
    return save_chat(folder / "target"), save_chat(folder / "draft", layers=1, seed=1)


@pytest.fixture(scope="session")
def translation(tmp_path_factory):
    """Folders of a tiny translation model and of drafters for it (``tests/tiny_translation.py``)."""
    from tests.tiny_translation import save_models

    folder = tmp_path_factory.mktemp("translation")
    save_models(folder)
    return folder


@pytest.fixture
def always_drafts(monkeypatch):
    """The adaptive tree drafts in every round; else it drafts where that pays on the machine."""
    from draftwood.draft.adaptive.controller import Controller

    monkeypatch.setattr(Controller, "begin_round", lambda *_: False)
    monkeypatch.setattr(Controller, "drafts", lambda *_: True)
    monkeypatch.setattr(Controller, "price", lambda *_: 0.0)
    monkeypatch.setattr(Controller, "tree_size", lambda _self, values: len(values))


@pytest.fixture(scope="session")
def chromium():
    """One Chromium for all tests of pages."""
    yield from start()


@pytest.fixture
def browser(chromium):
    """Chromium with an empty page, and without the problems of the test before."""
    chromium.driver.get("about:blank")
    chromium.problems()
    return chromium
