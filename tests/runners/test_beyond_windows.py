"""Drafts go on beyond a sliding window. A text that is too long to be exact is refused with the same words everywhere."""

import pytest
import torch

from draftwood.api import Pair
from draftwood.core.errors import CacheError
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.hf import recipe
from draftwood.runners.factory import make_runners
from draftwood.sampling.settings import Sampling
from tests.helpers import Numbers
from tests.runners.zoo import WINDOW, tiny, windowed

pytestmark = pytest.mark.usefixtures("always_drafts")

PROMPT = [5, 6, 7, 8, 9, 10]
TEXT = "5 6 7 8 9 10"
LONG = " ".join(str(4 + 7 * i % 90) for i in range(30))
NEW, SWITCH = 40, 16
GREEDY, LIMITS = Sampling(temperature=0.0), Limits(max_new_tokens=NEW, ignore_eos=True)


@pytest.mark.parametrize(
    ("kind", "window", "right"), [("mistral", WINDOW, 1), ("gemma3_text", WINDOW, 1), ("mistral", 200, 0)]
)
def test_a_draft_that_is_right_is_accepted_beyond_both_windows_and_control_one_without_is_not(kind, window, right):
    """A draft that attends to other tokens than the target is wrong more often."""
    target, draft = windowed(kind), windowed(kind, window=window)
    ours = Pair(target, draft, Numbers(), runners=make_runners(target, draft, backend="torch"))
    [result] = ours.generate([LONG], method=Method(method="chain", shape="3"), limits=LIMITS, sampling=GREEDY)
    assert result.stats.block_efficiency > 3.6 if right else result.stats.block_efficiency < 3


def changing(seed=0):
    """A model whose rotary embedding changes at a length."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
            "original_max_position_embeddings": SWITCH}  # fmt: skip
    return tiny("phi3", seed, dtype=torch.float32, rope_parameters=rope, original_max_position_embeddings=SWITCH)


def refused(call):
    with pytest.raises(CacheError) as caught:
        call()
    return str(caught.value)


def test_the_pair_and_hf_refuse_longer_texts_than_are_exact_with_the_same_sentence():
    ours, new = Pair(changing(), None, Numbers()), SWITCH - len(PROMPT) + 1
    limits = Limits(max_new_tokens=new)
    said = refused(lambda: ours.generate([TEXT], limits=limits))
    assert f"rotary embedding changes after {SWITCH} tokens" in said
    assert f"make {SWITCH + 1} tokens" in said
    assert refused(lambda: list(ours.stream(TEXT, limits=limits))) == said
    ids = torch.tensor([PROMPT])
    assert refused(lambda: ours.target.model.generate(ids, max_new_tokens=new, custom_generate=recipe())) == said


def test_a_text_that_just_fits_is_written():
    limits = Limits(max_new_tokens=SWITCH - len(PROMPT), ignore_eos=True)
    [result] = Pair(changing(), None, Numbers()).generate([TEXT], limits=limits, sampling=GREEDY)
    assert len(result.token_ids) == SWITCH - len(PROMPT)


def test_what_a_draft_takes_only_ends_the_drafting():
    draft, target = changing(1), tiny("llama", dtype=torch.float32)
    [result] = Pair(target, draft, Numbers()).generate([TEXT], limits=LIMITS, sampling=GREEDY)
    ids = torch.tensor([PROMPT])
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = target.generate(ids, **settings)
    assert [*PROMPT, *result.token_ids] == wanted[0].tolist()
    assert torch.equal(target.generate(ids, **settings, custom_generate=recipe(draft)), wanted)
