"""The runner of a drafter of hidden states: its scores are those of the training, however the text came to it."""

import pytest
import torch

from draftwood.core.errors import PairingError
from draftwood.core.scores import dense
from draftwood.train.features import Example, batch_of
from draftwood.train.hidden import block_log_probs
from tests.differences import difference
from tests.helpers import at_roots, hidden_pair, hidden_runner, rows_of, tiny_gpt, tiny_hidden, tiny_model
from tests.runners.test_eagle import scored
from tests.runners.test_hidden_states import plain_hidden

VOCAB, BLOCK = 11, 3


def as_trained(model, drafter, text, path):
    """Log-probabilities after each token of a path that begins at the last token of a text, by the training's forward."""
    layers = tuple(drafter.config.target_layers)
    tokens = [*text, *path]
    example = Example(
        torch.tensor(tokens), torch.ones(len(tokens), dtype=torch.bool), plain_hidden(model, tokens, layers),
        torch.zeros(len(tokens), 1, dtype=torch.int32), torch.zeros(len(tokens), 1),
    )  # fmt: skip
    batch = batch_of([example], [torch.tensor([len(text) - 1])], BLOCK, torch.arange(VOCAB))
    head = model.get_output_embeddings().weight[drafter.draft_tokens.long()]
    with torch.no_grad():
        return block_log_probs(drafter, model.get_input_embeddings(), head, batch)[0, 0, : 1 + len(path)]


def exact_hidden(monkeypatch):
    """Hidden states are stored as bfloat16 for training; tests compare more exactly."""
    monkeypatch.setattr("draftwood.train.features.HIDDEN_TYPE", torch.float32)


def scores_after(runner, root, path):
    """Log-probabilities of the only row after a root and each token of a path."""
    return scored(runner, [root], path)[0].log_softmax(-1)


def given(runner, hidden):
    """End a round whose tokens have these hidden states, of which the row's prompt is pending at first."""
    for text, new in zip(runner._texts, hidden, strict=True):
        text.row.tokens = [0] * (text.known + len(new) + 1)
    runner.commit([[] for _ in hidden], hidden)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_scores_are_those_of_the_training_after_any_portions_of_text(backend, monkeypatch):
    exact_hidden(monkeypatch)
    model = tiny_gpt(VOCAB, 1, dtype=torch.float32, context=256) if backend != "native" else tiny_model(backend, VOCAB, 1)
    _, runner = hidden_pair(model, backend, block=BLOCK)
    text, path = torch.randint(VOCAB, (150,), generator=torch.Generator().manual_seed(1)).tolist(), [4, 7]
    hidden = plain_hidden(model, text, tuple(runner.model.config.target_layers))
    expected = as_trained(model, runner.model, text, path)
    for portions in ([149], [1, 148], [3, 1, 1, 100, 44], [60, 89]):
        runner.clear()
        runner.set_rows(rows_of([text[:1]]))
        start = 0
        for i, count in enumerate(portions):
            given(runner, [hidden[start : start + count]])
            start += count
            if i % 2 == 0 and start < 149:
                scores_after(runner, text[start], [2])
                given(runner, [hidden[:0]])
        assert difference(scores_after(runner, text[-1], path), expected) < 2e-5


def test_control_a_hidden_state_too_many_is_seen(monkeypatch):
    exact_hidden(monkeypatch)
    model = tiny_gpt(VOCAB, 1, dtype=torch.float32)
    _, runner = hidden_pair(model, block=BLOCK)
    text = [1, 5, 3, 8, 2]
    hidden = plain_hidden(model, text, tuple(runner.model.config.target_layers))
    runner.set_rows(rows_of([text]))
    given(runner, [hidden])  # the root's own state, which the target has not computed yet
    assert difference(scores_after(runner, text[-1], [4]), as_trained(model, runner.model, text, [4])) > 1e-2


def test_a_pass_is_made_once_a_round_and_only_where_something_is_drafted():
    model = tiny_gpt(VOCAB, 1)
    _, runner = hidden_pair(model, block=BLOCK)
    passes = []
    runner.network.register_forward_pre_hook(
        lambda _, args, given: passes.append(given["inputs"].shape[1]), with_kwargs=True
    )
    hidden = plain_hidden(model, [1, 5, 3, 8], tuple(runner.model.config.target_layers))
    runner.set_rows(rows_of([[1, 5, 3, 8]]))
    assert torch.isinf(scores_after(runner, 2, [])).all() or torch.isnan(scores_after(runner, 2, [])).all()
    given(runner, [hidden[:2]])
    given(runner, [hidden[2:]])
    scores_after(runner, 2, [3, 4, 5, 6])
    assert passes == [4]


def test_a_prompt_is_read_ahead_only_while_rows_are_drafted():
    model, text = tiny_gpt(VOCAB, 1), [1, 5, 3, 8] * 5
    _, runner = hidden_pair(model, block=BLOCK)
    passes = []
    runner.network.register_forward_pre_hook(lambda _, args, given: passes.append(1), with_kwargs=True)
    hidden = plain_hidden(model, text, tuple(runner.model.config.target_layers))
    rows = rows_of([text, text, [3, *text]])
    runner.set_rows(rows[:1])
    given(runner, [hidden])
    runner.prefill(rows[1], len(text), hidden=hidden)  # the first row waits for its 20 tokens to be read
    runner.set_rows(rows[:2])
    given(runner, [hidden[:0], hidden[:0]])
    assert passes == []
    one, other = at_roots(runner, [2, 2]).logits
    assert torch.allclose(one, other)
    given(runner, [hidden[:0], hidden[:0]])
    assert len(passes) == 1
    longer = plain_hidden(model, [3, *text], tuple(runner.model.config.target_layers))
    runner.prefill(rows[2], len(longer), hidden=longer)
    assert len(passes) == 2


def test_nothing_can_be_drafted_below_the_block_nor_outside_the_drafts_tokens():
    model = tiny_gpt(VOCAB, 1)
    _, runner = hidden_pair(model, block=BLOCK, proposes=6)
    runner.set_rows(rows_of([[1, 5]]))
    given(runner, [plain_hidden(model, [1, 5], tuple(runner.model.config.target_layers))])
    tokens, depths = torch.tensor([[2, 3, 4]]), torch.tensor([[0, BLOCK - 1, BLOCK]])
    scores = runner.extend(tokens, depths, torch.eye(3, dtype=torch.bool)[None])
    logits = dense(scores.logits, scores.tokens, VOCAB)[0]
    assert torch.isfinite(logits[:2, :6]).all()
    assert torch.isinf(logits[:2, 6:]).all()
    assert torch.isinf(logits[2]).all()


def test_a_target_that_returns_no_hidden_states_is_refused():
    model = tiny_gpt(VOCAB, 1)
    runner = hidden_runner(tiny_hidden(model), model)
    runner.set_rows(rows_of([[1]]))
    with pytest.raises(PairingError, match=r"hidden_layers=\(1, 2\)"):
        runner.commit([[0]], None)


def test_a_drafter_of_another_target_is_refused():
    drafter = tiny_hidden(tiny_gpt(VOCAB, 1))
    with pytest.raises(PairingError, match="trained for width, layers, vocabulary"):
        drafter.check_target(tiny_gpt(VOCAB, 1, layers=3), "")
    with pytest.raises(PairingError, match="abc"):
        drafter.check_target(tiny_gpt(VOCAB, 1), "abc")
    drafter.check_target(tiny_gpt(VOCAB, 2), "")
