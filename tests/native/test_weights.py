"""``--weights``: the rounded model is the target, and models that are not read from their files are refused."""

import pytest
import torch

import draftwood
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.runners.factory import make_runners
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.native.stored import StoredModel
from draftwood.runners.support import score_tree
from draftwood.sampling.settings import Sampling
from tests.differences import difference
from tests.helpers import decoder, tiny_hidden
from tests.loading.gguf_files import source
from tests.runners.zoo import tiny

TEXT = "the fox ran to the red hill"


@pytest.fixture
def folder(tmp_path):
    model, tokenizer = source(num_attention_heads=1)
    model.save_pretrained(tmp_path / "fox")
    tokenizer.save_pretrained(tmp_path / "fox")
    return tmp_path / "fox"


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("backend", ["native", "auto"])
def test_the_rounded_model_is_the_target(folder, weights, backend, monkeypatch):
    monkeypatch.delenv("DRAFTWOOD_BACKEND")  # PyTorch, in tests
    pair = draftwood.load(folder, folder, options={"backend": backend, "weights": weights, "activations": 16})
    assert pair.target.engine.startswith(f"native {weights} ")
    integers = draftwood.load(folder, options={"backend": backend, "weights": weights})
    assert integers.target.engine.startswith(f"native {weights} 8-bit activations ")
    assert isinstance(pair.draft_model, StoredModel)
    assert pair.draft_model.rounded == weights
    assert pair.model.dtype == torch.bfloat16
    own = draftwood.load(folder, options={"backend": "native", "dtype": "bfloat16"})
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(pair.model.module.get_parameter(name), own.model.module.get_parameter(name))
    ids = pair.encode(TEXT)
    runners = pair.target, NativeRunner(pair.model.module)
    found, wanted = (score_tree(runner, ids[-1:], [[0]], prefix=ids[:-1]) for runner in runners)
    assert torch.equal(found, wanted)
    rounded = score_tree(integers.target, ids[-1:], [[0]], prefix=ids[:-1])
    assert 0 < difference(rounded, wanted) < 0.1 * float(wanted.std())
    found = pair.generate(TEXT, max_new_tokens=20, temperature=0, method="ar").token_ids
    assert pair.generate(TEXT, max_new_tokens=20, temperature=0, method="rsd-s").token_ids == found


def test_a_drafter_of_hidden_states_is_rounded_where_its_target_multiplies_integers(folder):
    scores = []
    for bits in (8, 16):
        pair = draftwood.load(folder, options={"backend": "native", "weights": "int8", "activations": bits})
        target, draft = make_runners(pair.model, tiny_hidden(pair.model, block=4), backend="native")[:2]
        assert draft.engine.startswith("native int8 8-bit activations ") == (bits == 8)
        draft.network.register_forward_hook(lambda _, __, found: scores.append(found[0].clone()))
        request = Request(prompt=pair.encode(TEXT), limits=Limits(max_new_tokens=20))
        first = len(scores)
        methods = decoder(target, None, "ar"), decoder(target, draft, "chain", "4")
        texts = [dict(one.results([request], Sampling(temperature=0.0)))[0].token_ids for one in methods]
        assert texts[0] == texts[1]
    rounded, exact = scores[0], scores[first]
    assert 0 < difference(rounded, exact) < 0.5 * float(exact.std())


def test_what_cannot_be_rounded_is_refused(folder, tmp_path):
    tokenizer = draftwood.load(folder, options={"backend": "torch"}).tokenizer
    tiny("gpt2", dtype=torch.float32, vocab_size=len(tokenizer)).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match=r"weights 'int8' are for models that .*'gpt2'.*leave --weights"):
        draftwood.load(tmp_path / "other", options={"backend": "native", "weights": "int8"})
    with pytest.raises(ConfigError, match="dtype float32 is impossible with weights 'int4'"):
        draftwood.load(folder, options={"backend": "native", "weights": "int4", "dtype": "float32"})
    with pytest.raises(ConfigError, match="weights 'int4' need the native engine"):
        draftwood.load(folder, options={"backend": "torch", "weights": "int4"})
