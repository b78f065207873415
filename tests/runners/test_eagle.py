"""The runner of EAGLE-3 drafters: its scores are those of a fresh reading, however the text came to it."""

from itertools import pairwise

import pytest
import torch

from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from tests.differences import difference
from tests.helpers import at_roots, decoder, hidden_runner, interrupted, published_pair, tiny_gpt, tiny_published
from tests.runners.zoo import BY_ENGINE, read_tokens, tiny

VOCAB = 11
FLAGS = [{}, {"norm_output": True, "fc_norm": True}, {"norm_before_fc": True, "norm_before_residual": True, "qk_norm": True}]
PATH = [4, 7, 2]
CLOSE = {"torch": 1e-9, "native": 0.0}  # of a fresh reading: the native engine computes the same bits


def runner_of(engine, **flags):
    return hidden_runner(tiny_published(TARGETS[engine], "eagle3", **flags), TARGETS[engine], engine)


def some(length):
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def scored(runner, roots, path):
    """Scores [row, depth, vocab] after roots and a path, level by level; every level has a sibling that is not followed."""
    rows, found, seen = len(roots), [], [[0]]
    for depth, token in enumerate([None, *path]):
        if token is None:
            tokens, depths = torch.tensor(roots)[:, None], torch.zeros(rows, 1, dtype=torch.long)
            ancestors = torch.ones(rows, 1, 1, dtype=torch.bool)
        else:
            first = 2 * depth - 1
            tokens, depths = torch.tensor([[(token + 1) % VOCAB, token]] * rows), torch.full((rows, 2), depth)
            ancestors = torch.zeros(rows, 2, first + 2, dtype=torch.bool)
            ancestors[:, 0, [*seen[-1], first]] = ancestors[:, 1, [*seen[-1], first + 1]] = True
            seen.append([*seen[-1], first + 1])
        found.append(runner.extend(tokens, depths, ancestors).logits[:, -1])
    return torch.stack(found, dim=1)


def fresh(runner, text, hidden):
    """Scores after a text, its last token and a path, by another runner that reads the text at once."""
    engine = runner.engine.split()[0]
    other = hidden_runner(runner.model, TARGETS[engine], engine)
    other.set_rows([Row(tokens=text)])
    other.commit([[]], [hidden[: len(text) - 1]])
    return scored(other, text[-1:], PATH)[0]


def is_fresh(runner, found, text, hidden):
    return difference(found, fresh(runner, text, hidden)) <= CLOSE[runner.engine.split()[0]]


TARGETS = {
    "torch": tiny_gpt(VOCAB, 1, context=800),
    "native": tiny("llama", 1, dtype=torch.float32, vocab_size=VOCAB, hidden_size=16),
}
HIDDEN = torch.randn(800, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@BY_ENGINE
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("ends", [[699], [1, 699], [5, 9, 10, 640, 699], [600, 601, 605, 699]])
def test_scores_are_those_of_a_fresh_reading_after_any_rounds(ends, flags, engine):
    text, runner = some(700), runner_of(engine, **flags)
    row, kept = Row(tokens=text[: ends[0] + 1]), []
    runner.set_rows([row])
    runner.commit([[]], [HIDDEN[: ends[0]]])
    for i, (known, end) in enumerate(pairwise(ends)):
        if i % 2 == 0:  # otherwise nothing is drafted
            scored(runner, [text[known]], text[known + 1 : known + 2])
            kept = [0, 2][: min(2, end - known)]
        row.tokens = text[: end + 1]
        runner.commit([kept], [HIDDEN[known:end]])
    assert is_fresh(runner, scored(runner, text[-1:], PATH)[0], text, HIDDEN)


@BY_ENGINE
def test_nodes_of_several_depths_in_one_call_are_those_level_by_level(engine):
    text, runner = some(12), runner_of(engine)
    runner.set_rows([Row(tokens=text)])
    runner.commit([[]], [HIDDEN[:11]])
    tokens, depths = torch.tensor([[text[-1], *PATH]]), torch.arange(4)[None]
    together = runner.extend(tokens, depths, torch.ones(4, 4, dtype=torch.bool).tril()[None]).logits[0]
    assert is_fresh(runner, together, text, HIDDEN)


@BY_ENGINE
@pytest.mark.parametrize(("proposes", "tokens"), [(None, None), (4, [0, 1, 2, 3])])
def test_scores_are_of_the_tokens_that_can_be_proposed(proposes, tokens, engine):
    runner = runner_of(engine, proposes=proposes)
    runner.set_rows([Row(tokens=[1, 5, 3])])
    before = at_roots(runner, [3])
    runner.commit([[]], [HIDDEN[:2]])
    after = at_roots(runner, [3])
    for scores in (before, after):
        assert scores.logits.shape == (1, 1, proposes or VOCAB)
        assert scores.tokens is None if tokens is None else scores.tokens.tolist() == tokens
    assert torch.isinf(before.logits).all()
    assert torch.isfinite(after.logits).all()


@BY_ENGINE
def test_a_text_whose_reading_ahead_was_interrupted_is_read_on(engine):
    row, runner = Row(tokens=some(12)), runner_of(engine)
    hook = runner.network.register_forward_hook(interrupted())
    with pytest.raises(KeyboardInterrupt):
        runner.prefill(row, 8, hidden=HIDDEN[:8])
    hook.remove()
    runner.prefill(row, 11, hidden=HIDDEN[8:11])
    runner.set_rows([row])
    runner.commit([[]], [HIDDEN[11:11]])
    assert is_fresh(runner, scored(runner, row.tokens[-1:], PATH)[0], row.tokens, HIDDEN)


@BY_ENGINE
def test_a_prompt_may_be_read_ahead_token_by_token(engine):
    row, runner = Row(tokens=some(4)), runner_of(engine)
    for end in (1, 2, 3):
        runner.prefill(row, end, hidden=HIDDEN[end - 1 : end])
    runner.set_rows([row])
    runner.commit([[]], [HIDDEN[3:3]])
    assert is_fresh(runner, scored(runner, row.tokens[-1:], PATH)[0], row.tokens, HIDDEN)


@BY_ENGINE
def test_control_hidden_states_of_another_token_are_seen(engine):
    text, runner = some(12), runner_of(engine)
    runner.set_rows([Row(tokens=text)])
    runner.commit([[]], [HIDDEN[1:12]])
    assert difference(scored(runner, text[-1:], PATH)[0], fresh(runner, text, HIDDEN)) > 1e-2


def written(engine, prompt, **more):
    [result] = engine.generate([Request(prompt=prompt, limits=Limits(max_new_tokens=9))], Sampling(temperature=0.0), **more)
    return result.token_ids


def passes_of(runner):
    """Lengths of the runner's next passes."""
    passes = []
    runner.network.register_forward_pre_hook(lambda _, args, given: passes.append(read_tokens(given)), with_kwargs=True)
    return passes


@BY_ENGINE
def test_a_later_text_with_the_same_beginning_is_read_from_where_it_differs(engine):
    target, draft = published_pair(TARGETS[engine], "eagle3", engine)
    engine = decoder(target, draft, "rsd-s", "2x2", greedy=True)
    answer = written(engine, first := some(40), reuse=True)
    second = [*first, *answer, 7, 2, 5]
    passes = passes_of(draft)
    assert written(engine, second, reuse=True) == written(decoder(target, None, "ar", greedy=True), second)
    assert max(passes) < 12
