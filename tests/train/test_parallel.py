"""A tiny causal drafter that learns to draft whole blocks in one forward."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import draftwood
from draftwood.core.errors import ConfigError
from draftwood.runners.blocks.causal_block import CausalBlockRunner
from draftwood.runners.torch_runner import TorchRunner
from draftwood.runners.windows import Window, sliding_window
from draftwood.train import draft as module
from draftwood.train.config import DraftConfig
from draftwood.train.draft import train_draft
from draftwood.train.parallel import Cutting, add_mask_token, block_agreement
from tests.helpers import begin, tiny_gpt
from tests.runners.zoo import windowed

Make = Callable[..., DraftConfig]
BLOCK, VOCAB, TEXT = 4, 11, 20


@pytest.fixture(scope="module")
def drafted(draft_config: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("parallel")
    return out, train_draft(draft_config(out, parallel=BLOCK, layers=2, hidden=32, steps=60))


def blocks_of_text() -> torch.Tensor:
    return torch.randint(VOCAB, (2, TEXT), generator=torch.Generator().manual_seed(0))


CUTTING = Cutting(block=BLOCK, cuts=3, mask_token=VOCAB, context=TEXT)


@torch.no_grad()
def worst_difference(model: Any, cut: Any, cuts: torch.Tensor) -> float:
    """Between the scores in the one forward of training and those that a runner gives when it drafts behind each cut."""
    scores, worst = model(**cut.inputs(sliding_window(model.config))).logits, 0.0
    runner = CausalBlockRunner(TorchRunner(model, drafts=True), VOCAB, BLOCK)
    for row, places in enumerate(cuts.tolist()):
        for number, place in enumerate(places):
            text = cut.tokens[row, : place + 1].tolist()
            begin(runner, [text[:-1]])
            used = runner.score_block(torch.tensor(text[-1:]), BLOCK)[0, :, :VOCAB]
            behind = TEXT + number * (BLOCK - 1)
            trained = torch.cat([scores[row, [place]], scores[row, behind : behind + BLOCK - 1]])[:, :VOCAB]
            worst = max(worst, float((trained - used).abs().max()))
    return worst


def test_a_mask_sees_in_training_what_it_sees_when_it_drafts() -> None:
    model, cuts = tiny_gpt(VOCAB + 1, 3), torch.tensor([[0, 7, 15], [15, 3, 4]])
    cut = CUTTING.masked(blocks_of_text(), cuts)
    assert worst_difference(model, cut, cuts) < 1e-9
    shown = cut._replace(visible=cut.visible.clone())
    shown.visible[:, :, TEXT:, :TEXT] = True  # a control: masks that see what they are to predict
    assert worst_difference(model, shown, cuts) > 1e-3
    moved = cut._replace(positions=cut.positions.clone())
    moved.positions[:, TEXT:] += 1
    assert worst_difference(model, moved, cuts) > 1e-3


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_windows_are_the_same_in_training_and_drafting(kind: str) -> None:
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # none is forbidden
    model, cuts = windowed(kind, window=5, vocab_size=VOCAB + 1, **special), torch.tensor([[0, 7, 15], [15, 3, 4]])
    cut = CUTTING.masked(blocks_of_text(), cuts)
    assert worst_difference(model, cut, cuts) < 1e-4
    wrong = cut.inputs(Window(6, everywhere=kind == "mistral"))
    with torch.no_grad():
        assert not torch.allclose(model(**wrong).logits, model(**cut.inputs(sliding_window(model.config))).logits, atol=1e-2)


def test_what_is_learnt_is_the_targets_distribution_at_the_place_of_each_mask() -> None:
    text, vocabulary = blocks_of_text(), torch.arange(VOCAB)
    cut = CUTTING.masked(text, torch.tensor([[0, 7, 15], [15, 3, 4]]))
    assert cut.at.shape == (2, TEXT - 1 + 3 * (BLOCK - 1))
    assert cut.at[0, TEXT - 1 :].tolist() == [1, 2, 3, 8, 9, 10, 16, 17, 18]
    assert torch.equal(cut.labels(), text.gather(1, cut.at + 1))
    target_logits = (100 * torch.arange(TEXT)[:, None] + vocabulary).expand(2, -1, -1).double()
    size = cut.tokens.shape[1]
    draft_logits = (100 * torch.arange(size)[:, None] + torch.arange(VOCAB + 1)).expand(2, -1, -1).double()
    ours, theirs = cut.aligned(draft_logits, target_logits)
    assert torch.equal(theirs, 100 * cut.at[..., None] + vocabulary)
    assert torch.equal(ours[0, :, 0], 100.0 * torch.tensor([*range(TEXT - 1), *range(TEXT, size)]))
    assert ours.shape == theirs.shape  # the mask's own score is left out


def test_cuts_are_drawn_anew_in_every_step_and_each_place_is_as_likely() -> None:
    counts = torch.zeros(TEXT)
    for step in range(400):
        cut = CUTTING.random(blocks_of_text(), torch.Generator().manual_seed(step))
        places = cut.positions[:, TEXT :: BLOCK - 1] - 1
        assert all(len(set(row)) == 3 for row in places.tolist())
        counts += torch.bincount(places.flatten(), minlength=TEXT)
    assert counts[CUTTING.positions :].sum() == 0
    mean = 400 * 2 * 3 / CUTTING.positions
    assert (counts[: CUTTING.positions] - mean).abs().max() < 5 * mean**0.5


def test_a_model_that_is_its_own_target_agrees_at_the_first_place_only() -> None:
    model = tiny_gpt(VOCAB + 1, 3)
    target = lambda input_ids, use_cache: type("Out", (), {"logits": model(input_ids).logits[..., :VOCAB]})  # noqa: E731
    target.device = model.device
    with torch.no_grad():
        figures = block_agreement(model, target, {"text": blocks_of_text()}, 1, CUTTING)["text"]
    assert figures["places"][0] == figures["places_greedy"][0] == 1
    assert all(a < 0.95 for a in figures["places"][1:])
    assert len(figures["places"]) == BLOCK
    assert 2 < figures["tokens_per_round"] < 1 + BLOCK


def test_the_acceptance_of_every_place_rises(drafted: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = drafted
    start, end = metrics["history"][0]["report"]["woods"], metrics["held_out"]["woods"]
    assert len(end["places"]) == BLOCK
    for before, after in zip(start["places"], end["places"], strict=True):
        assert after > before + 0.1
    assert end["places"][0] > end["places"][-1]
    assert end["tokens_per_round"] > start["tokens_per_round"] + 0.2
    assert json.loads((out / "metrics.json").read_text(encoding="utf-8")) == metrics


def test_masks_that_are_not_learnt_stay_bad(
    draft_config: Make, drafted: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control: the same training with cuts, but only the text's own tokens in the loss."""
    random = Cutting.random

    def only_text(self: Cutting, tokens: torch.Tensor, generator: torch.Generator) -> Any:
        cut = random(self, tokens, generator)
        behind = tokens.shape[1] - 1
        return cut._replace(trained=cut.trained[:, :behind], at=cut.at[:, :behind])

    monkeypatch.setattr(Cutting, "random", only_text)
    config = draft_config(tmp_path, parallel=BLOCK, layers=2, hidden=32, steps=60)
    found, right = train_draft(config)["held_out"]["woods"], drafted[1]["held_out"]["woods"]
    assert found["places"][0] > right["places"][0] - 0.1
    assert all(bad < good - 0.1 for bad, good in zip(found["places"][1:], right["places"][1:], strict=True))


def test_a_stopped_run_goes_on_to_the_same_drafter(
    draft_config: Make, drafted: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = module.block_agreement, []

    def stop_at_the_second_report(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(*args)

    config = draft_config(tmp_path, parallel=BLOCK, layers=2, hidden=32, steps=60)
    monkeypatch.setattr(module, "block_agreement", stop_at_the_second_report)
    with pytest.raises(KeyboardInterrupt):
        train_draft(config)
    assert (tmp_path / "checkpoints" / "checkpoint-25").is_dir()
    monkeypatch.setattr(module, "block_agreement", whole)
    metrics = train_draft(config)
    assert metrics["steps"] == drafted[1]["steps"]
    for name, figures in metrics["held_out"].items():
        assert figures["places"] == pytest.approx(drafted[1]["held_out"][name]["places"], abs=0.02)
    with pytest.raises(ConfigError, match="parallel=4 there, 5 here"):
        train_draft(draft_config(tmp_path, parallel=5, layers=2, hidden=32, steps=60))


def test_what_is_saved_drafts_blocks_wherever_it_is_loaded(
    draft_config: Make, drafted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    target = draft_config(tmp_path).target
    saved = json.loads((drafted[0] / "config.json").read_text(encoding="utf-8"))
    pair = draftwood.load(target, drafted[0])
    assert isinstance(pair.draft, CausalBlockRunner)
    assert (pair.draft.block, pair.draft.mask_token) == (BLOCK, pair.target.vocab_size)
    assert (saved["draft_block"], saved["mask_token_id"]) == (BLOCK, pair.target.vocab_size)
    assert "TorchRunner" not in repr(pair)
    limits = draftwood.Limits(max_new_tokens=24)
    zero = draftwood.Sampling(temperature=0.0)
    plain = pair.generate("The fox", method=draftwood.Method(method="ar"), sampling=zero, limits=limits)
    for method in (None, draftwood.Method(method="block", shape="2"), draftwood.Method(method="rsd-s", shape="2x3")):
        result = pair.generate("The fox", method=method, sampling=zero, limits=limits)
        assert result.token_ids == plain.token_ids
        assert result.stats.block_efficiency > 1.3
    assert pair.method(temperature=0.0).method == "block"
    several = pair.generate(["The fox", "A hen", "My dog ran"], seed=5, limits=limits, sampling=draftwood.Sampling())
    assert all(len(r.token_ids) and r.stats.drafted for r in several)


def test_a_mask_begins_as_the_mean_of_all_tokens_and_a_drafter_may_go_on_from_an_ordinary_one(
    draft_config: Make, tmp_path: Path
) -> None:
    train_draft(draft_config(tmp_path / "ordinary", steps=5))
    ordinary = AutoModelForCausalLM.from_pretrained(tmp_path / "ordinary", dtype=torch.float32)
    old = ordinary.get_input_embeddings().weight.detach().clone()
    assert add_mask_token(ordinary, 3) == len(old)
    new = ordinary.get_input_embeddings().weight
    assert torch.equal(new[:-1], old)
    assert torch.allclose(new[-1], old.mean(0))
    assert ordinary.lm_head.weight is new
    config = draft_config(tmp_path / "blocks", steps=1, parallel=3, start=tmp_path / "ordinary")
    started = train_draft(config)["history"][0]["report"]["woods"]
    alone = draft_config(tmp_path / "alone", steps=1, parallel=3)
    assert started["acceptance"] > train_draft(alone)["history"][0]["report"]["woods"]["acceptance"]


@pytest.mark.parametrize(("given", "message"), [
    ({"parallel": 1}, "parallel is 1: a block has 2 tokens or more"),
    ({"parallel": 64}, "fewer than the context of 64"),
    ({"parallel": 4, "cuts": 61}, "cuts is 61: blocks of 4 tokens can begin at 60 positions .* give 1 to 60"),
    ({"parallel": 4, "cuts": 0}, "cuts is 0"),
    ({"cuts": 3}, "cuts is 3, but nothing is cut without parallel"),
])  # fmt: skip
def test_blocks_that_do_not_fit_are_refused(draft_config: Make, tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_draft(draft_config(tmp_path / "out", **given))
    assert not (tmp_path / "out").exists()
