"""A drafter of hidden states is trained from nothing but a chat model: chats, features, training, figures."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerState

import draftwood
from draftwood.core.errors import ConfigError, DraftwoodError, ModelError, PairingError
from draftwood.core.settings import LoadOptions
from draftwood.loading import names
from draftwood.loading.models import load_model
from draftwood.loading.names import ShortName
from draftwood.train import loop
from draftwood.train.chat_files import Chat, read_chats, save_part
from draftwood.train.chats import write_chats
from draftwood.train.config import ChatsConfig, DrafterConfig
from draftwood.train.drafter import train_drafter
from draftwood.train.features import KEPT, Features, near_batches, possible_anchors, write_features
from draftwood.train.hidden import copy_layers, new_drafter, taps
from tests.differences import difference
from tests.faults.folders import tiny_llama, tiny_tokenizer
from tests.runners.test_hidden_states import plain_hidden
from tests.runners.zoo import NATIVE, tiny
from tests.tiny_chat import chat_tokenizer, save_chat

TINY = {"steps": 60, "batch": 4, "anchors": 8, "block": 3, "rank": 4, "draft_vocab": 100}
"""Settings of a tiny drafter."""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_chat(tmp_path_factory.mktemp("target"), max_position_embeddings=256)


@pytest.fixture(scope="module")
def chats(tmp_path_factory, target):
    path = tmp_path_factory.mktemp("chats")
    write_chats(ChatsConfig(target=target, out=path, tokens=1_000, rows=16, longest=60))
    return path


@pytest.fixture(scope="module")
def settings(target, chats):
    """Settings of a tiny drafter for the target, with changes."""
    given = {
        "target": target, "chats": chats, **TINY, "layers": 1, "learning_rate": 2e-2, "warmup": 5, "save_every": 20,
        "report_every": 30,
    }  # fmt: skip
    return lambda out, **more: DrafterConfig(**given | {"out": out} | more)


def model_of(target, dtype=torch.float32):
    return load_model(target, LoadOptions(), torch.device("cpu"), dtype)


@pytest.fixture(scope="module")
def run(tmp_path_factory, settings):
    """The folder of a drafter, and what was printed."""
    out = tmp_path_factory.mktemp("trained")
    with redirect_stdout(StringIO()) as printed:
        train_drafter(settings(out))
    return out, printed.getvalue()


@pytest.fixture(scope="module")
def trained(run):
    return run[0]


def test_what_is_printed_are_sentences(run):
    out, printed = run
    assert not set("{}[]") & set(printed), printed
    figures = r"rejection [\d.]+ [\d.]+ [\d.]+, chain [\d.]+"
    assert re.search(rf"^step 0, on held-out text:\n  {figures}$", printed, re.M)
    assert re.search(r"^step 30 of 60: loss [\d.]+, \d+ s$", printed, re.M)
    end = json.loads((out / "metrics.json").read_text())["held_out"]
    assert f"chain {end['chain']:.4g}\nThe drafter is in {out}" in printed


def test_training_lowers_the_rejection_rate_and_ends_with_figures(trained):
    metrics = json.loads((trained / "metrics.json").read_text())
    first, last = metrics["history"][0]["report"], metrics["held_out"]
    assert last["rejection"][0] < first["rejection"][0] - 0.05  # 0.69 to 0.58; seeds differ by 0.001
    assert last["chain"] > first["chain"]
    assert metrics["steps"] == 60
    assert metrics["config"]["steps"] == 60
    assert metrics["tokens_seen"] == 60 * 4 * 8


def test_a_stopped_run_goes_on_to_the_same_weights(settings, trained, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.train.loop.Reporter.on_step_end", stop_at(25))
        with pytest.raises(KeyboardInterrupt):
            train_drafter(settings(tmp_path))
    train_drafter(settings(tmp_path))
    again = [load_model_of(path) for path in (trained, tmp_path)]
    assert all(torch.equal(a, b) for a, b in zip(*[model.state_dict().values() for model in again], strict=True))


def test_the_target_may_be_a_short_name(target, settings, tmp_path, monkeypatch):
    fox = ShortName(module="llm_fox", file="fox.gguf", install="pip install llm-fox", hub=str(target))
    monkeypatch.setattr(names, "SHORT_NAMES", {"fox": fox})
    metrics = train_drafter(settings(tmp_path, target=Path("fox"), steps=1))
    assert metrics["config"]["target"] == "fox"
    with pytest.raises(ModelError, match="unheard"):
        train_drafter(settings(tmp_path / "other", target=Path("unheard")))
    assert not (tmp_path / "other").exists()


def stop_at(step):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == step:
            raise KeyboardInterrupt

    return on_step_end


def load_model_of(path):
    from draftwood.loading.drafts import load_hidden_drafter

    return load_hidden_drafter(path, torch.device("cpu"), torch.float32)


def test_a_folder_with_another_run_is_refused(settings, tmp_path):
    loop.claim(settings(tmp_path))
    loop.claim(settings(tmp_path, steps=99))
    with pytest.raises(ConfigError, match="rank=4 there, 5 here"):
        loop.claim(settings(tmp_path, rank=5))


def test_a_run_with_a_deadline_ends_in_time_with_a_learning_rate_near_zero(settings, tmp_path, monkeypatch):
    rates, left = [], loop.Deadline.left
    monkeypatch.setattr(loop.Deadline, "left", lambda self: rates.append(left(self)) or rates[-1])
    ticks = count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))  # a second each time
    metrics = train_drafter(settings(tmp_path, steps=100_000, minutes=1.0, save_every=100_000))
    assert 0 < metrics["steps"] < 60
    assert min(filter(None, rates)) < 0.1
    assert rates[-1] == 0
    assert rates == sorted(rates, reverse=True)
    assert (tmp_path / "model.safetensors").is_file()


def test_training_goes_on_from_a_drafter(settings, trained, tmp_path):
    before = json.loads((trained / "metrics.json").read_text())
    began = train_drafter(settings(tmp_path, start=trained, steps=1))["history"][0]["report"]
    assert began["chain"] == pytest.approx(before["held_out"]["chain"], abs=0.02) != before["history"][0]["report"]["chain"]


def test_an_epoch_holds_a_chat_once_and_a_batch_chats_of_nearly_equal_lengths():
    lengths = torch.randint(100, (130,), generator=torch.Generator().manual_seed(0)).tolist()
    batches = near_batches(torch.randperm(130).tolist(), lengths, 4)
    used = [i for batch in batches for i in batch]
    assert len(used) == len(set(used)) == 128
    spread = [max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches]
    assert sum(spread) / len(spread) < 20


def test_what_cannot_be_trained_is_refused(settings, tmp_path):
    for name in ("empty", "foreign"):
        (tmp_path / name).mkdir()
    save_part(tmp_path / "foreign" / "00000.npz", [Chat([999], [True])] * 20, 1000)
    for changes, error, message in (
        ({"layers": 9}, ConfigError, "layers is 9, but the target has"),
        ({"start": settings(tmp_path).target}, DraftwoodError, "has model type 'llama': give the folder of a drafter"),
        ({"chats": tmp_path / "empty"}, DraftwoodError, "chats"),
        ({"chats": tmp_path / "foreign"}, ConfigError, "holds token 999, and the target has .* tokens; give chats"),
    ):
        with pytest.raises(error, match=message):
            train_drafter(settings(tmp_path / f"out {message[:6]}", **changes))


def test_a_drafter_of_another_target_is_refused(settings, trained, tmp_path):
    other = save_chat(tmp_path / "other", layers=5)
    with pytest.raises(PairingError, match="trained for width, layers, vocabulary"):
        train_drafter(settings(tmp_path / "out", target=other, start=trained))


def gpt2(vocab):
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_positions=96, n_embd=32, n_layer=3, n_head=2, **ends)).eval()


@pytest.mark.parametrize("make", [lambda vocab: tiny_llama(vocab, max_position_embeddings=96), gpt2], ids=["llama", "gpt2"])
def test_one_command_serves_a_target_without_a_chat_template(make, tmp_path):
    """The target's context and vocabulary are smaller than the defaults. The command is stopped twice."""
    tokenizer, folder, out = tiny_tokenizer(), tmp_path / "target", tmp_path / "out"
    torch.manual_seed(1)
    make(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = DrafterConfig(target=folder, out=out, tokens=1_500, steps=4, batch=2, anchors=4, save_every=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.train.drafter.write_features", lambda *_: stop_at(0)(None, None, TrainerState(), None))
        with pytest.raises(KeyboardInterrupt):
            train_drafter(config)
    written = {path: path.stat().st_mtime_ns for path in (out / "chats").glob("*.npz")}
    assert written
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.train.loop.Reporter.on_step_end", stop_at(3))
        with pytest.raises(KeyboardInterrupt):
            train_drafter(config)
    metrics = train_drafter(config)
    assert written == {path: path.stat().st_mtime_ns for path in (out / "chats").glob("*.npz")}
    assert metrics["steps"] == 4
    assert max(len(chat.tokens) for chat in read_chats(out / "chats")) <= 96
    pair = draftwood.load(folder, out, options=LoadOptions(backend="torch"))
    plain, drafted = (pair.generate("the fox", method=m, temperature=0, max_new_tokens=20) for m in ("ar", "rsd-s"))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted > 0


def test_features_are_the_targets_own_and_are_kept(target, chats, tmp_path):
    model, layers = model_of(target), [1, 2]
    write_features(model, layers, chats, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    write_features(model, layers, chats, tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    features = Features(chats, tmp_path)
    for index in (0, 7, len(features) - 1):
        chat, example = read_chats(chats)[index], features[index]
        assert example.tokens.tolist() == chat.tokens
        expected = plain_hidden(model, chat.tokens, layers)
        assert difference(example.hidden.float(), expected) < 0.02 * float(expected.abs().max())
        with torch.no_grad():
            logp = model(torch.tensor([chat.tokens])).logits[0].log_softmax(-1)
        for at in possible_anchors(example).tolist():
            best = logp[at].topk(min(KEPT, logp.shape[1]))
            assert example.tops[at, 0] == best.indices[0]
            assert difference(example.log_probs[at, : len(best.values)], best.values) < 0.01


@pytest.mark.parametrize("changed", ["chats", "layers"])
def test_features_of_other_chats_or_layers_are_made_again(target, chats, tmp_path, changed):
    first, *others = read_chats(chats)[:4]
    for name, kept in (("one", [first, others[0]]), ("other", others[:2])):
        (tmp_path / name).mkdir()
        save_part(tmp_path / name / "00000.npz", kept, 100)
    model, before = model_of(target), (tmp_path / "one", [1])
    now = {"chats": (tmp_path / "other", [1]), "layers": (tmp_path / "one", [2])}[changed]
    for folder, layers in (before, now):
        write_features(model, layers, folder, tmp_path / "features")
        example = Features(folder, tmp_path / "features")[1]
        expected = plain_hidden(model, example.tokens.tolist(), layers)
        assert difference(example.hidden.float(), expected) < 0.02 * float(expected.abs().max())


def test_a_drafter_of_a_model_with_unlike_layers_has_heads_as_the_last_one():
    config = DrafterConfig(target=Path("."), out=Path("."), layers=1, block=3, rank=4)
    drafter = new_drafter(config, tiny("gemma4_text", **NATIVE["gemma4_text"]), chat_tokenizer(), torch.arange(20))
    assert (drafter.config.num_key_value_heads, drafter.config.head_dim) == (1, 40)


def test_a_new_drafter_begins_with_what_the_targets_last_layers_read(target):
    model, tokenizer = model_of(target), chat_tokenizer()
    config = DrafterConfig(target=target, out=Path("."), layers=1, block=3, rank=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.train.hidden.copy_layers", lambda *_: None)
        drafter = new_drafter(config, model, tokenizer, torch.arange(20)).eval()
    text = [3, 5, 9, 2, 8]
    hidden = plain_hidden(model, text, taps(model.config.num_hidden_layers, 1))
    own = torch.cat([model(torch.tensor([text]), use_cache=True).past_key_values.layers[-1].values])
    positions = torch.arange(len(text))[None]
    assert difference(drafter.memory(hidden[None], positions)[0, 1], own) > 0.1  # control: random weights
    copy_layers(drafter, model)
    assert difference(drafter.memory(hidden[None], positions)[0, 1], own) < 1e-4
