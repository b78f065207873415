"""What the native engine does with models, memory and processes that are not as they should be."""

import os
import threading

import numpy as np
import pytest
import torch

from draftwood.core.errors import CacheError, ModelError, NumericsError
from draftwood.core.log_probs import Pending
from draftwood.native import library as native
from draftwood.native import sampling
from draftwood.runners.context import token_bytes
from draftwood.runners.factory import make_runners
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.native.weights import Weight
from draftwood.sampling.rows import Row
from draftwood.sampling.truncation import Truncation
from tests.differences import difference
from tests.helpers import at_roots, tiny_gpt, tiny_hidden, tiny_published
from tests.native.test_bits import TEXT, model_of
from tests.runners.zoo import VOCAB, plain_scores, tiny


def llama(dtype=torch.float32, **settings):
    return model_of("llama", dtype, **settings)


@pytest.mark.parametrize("sizes", [
    {"hidden_size": 33, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10, "intermediate_size": 17},
    {"hidden_size": 10, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 2, "intermediate_size": 1},
    {"hidden_size": 64, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 66, "num_hidden_layers": 1},
    {"intermediate_size": 19, "mlp_bias": True, "attention_bias": True},
])  # fmt: skip
def test_odd_sizes_and_biases_are_computed(sizes):
    model = llama(**sizes)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    text = [token % model.config.vocab_size for token in TEXT[:70]]
    assert difference(_logits(NativeRunner(model), text), plain_scores(model, text)) < 1e-4


def _logits(runner, text):
    runner.clear()
    runner.set_rows([Row(tokens=text)])
    return at_roots(runner, text[-1:]).logits[0, 0]


def two_norms():
    model = llama()
    return model, tiny_published(model, "eagle3", fc_norm=True, norm_before_fc=True)


@pytest.mark.parametrize(("make", "reason"), [
    (lambda: (tiny_gpt(VOCAB, 1, dtype=torch.float32), None), "it has no code for model type 'gpt2'"),
    (lambda: (llama(torch.float64), None), "it computes in float32 or bfloat16, and the model is in float64"),
    (lambda: (llama(hidden_act="gelu"), None), "it has no code for hidden_act 'gelu'"),
    (lambda: (llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), None),
     "it has no code for rotary embeddings of type 'dynamic'"),
    (two_norms, "it has no code for two norms of the hidden states"),
])  # fmt: skip
def test_what_it_has_no_code_for_is_refused_and_auto_takes_another(make, reason, monkeypatch):
    with pytest.raises(ModelError, match=f"the native engine does not run this model: {reason}.* Use --backend torch"):
        make_runners(*make(), backend="native")
    monkeypatch.setenv("DRAFTWOOD_BACKEND", "auto")
    runners = make_runners(*make())
    assert {runner.engine for runner in (runners.target, runners.draft) if runner is not None} == {"torch"}
    assert reason in (runners.engine.fallback or "")


@pytest.mark.parametrize(("kind", "heads", "shared"), [
    ("llama", ("num_attention_heads", 6), ("num_key_value_heads", 4)),
    ("qwen3_5_text", ("linear_num_value_heads", 6), ("linear_num_key_heads", 4)),
])  # fmt: skip
def test_heads_that_share_none_evenly_are_refused_with_their_numbers(kind, heads, shared):
    with pytest.raises(ModelError, match="its {} is {}, which is no multiple of its {}, {}".format(*heads, *shared)):
        NativeRunner(model_of(kind, torch.float32, **dict((heads, shared))), check=False)


def test_auto_takes_it_where_it_runs_both(monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_BACKEND", "auto")
    assert make_runners(llama(), llama(num_hidden_layers=1)).engine.fallback is None
    for drafter in (tiny_hidden(llama()), tiny_published(llama(), "eagle3")):
        runners = make_runners(llama(), drafter)
        engines = [runner.engine.split()[0] for runner in (runners.target, runners.draft)]
        assert (engines, runners.engine.fallback) == (["native"] * 2, None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "place", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"]
)
def test_weights_that_are_no_numbers_are_an_error(bad, place):
    model = llama()
    with torch.no_grad():
        model.get_parameter(place).view(-1)[0] = bad
    with pytest.raises(NumericsError, match=f"gives NaN scores: its weights {place} hold NaN or infinity"):
        NativeRunner(model)


def test_scores_that_are_minus_infinity_stay_so():
    model = llama()
    with torch.no_grad():
        model.model.norm.weight[0], model.lm_head.weight[7] = 1e4, 0.0
        model.lm_head.weight[7, 0] = -3e38  # one product alone overflows: the order of a sum of several could make it NaN
    found, wanted = _logits(NativeRunner(model, check=False), TEXT[:9]), plain_scores(model, TEXT[:9])
    assert torch.equal(found.isinf(), wanted.isinf())
    assert wanted[7].isinf()


@pytest.mark.parametrize(("name", "said"), [
    ("model.embed_tokens", "embedding"), ("lm_head", "head"), ("model.norm", "norm"), ("model.layers.1.mlp.up_proj", "up"),
    ("model.layers.0.self_attn.k_proj", "key"), ("model.layers.0.post_attention_layernorm", "ffn_norm"),
])  # fmt: skip
def test_a_weight_of_another_size_is_refused(name, said):
    model = llama()
    module = model.get_submodule(name)
    module.weight = torch.nn.Parameter(module.weight.detach()[..., :-1].clone())
    with pytest.raises(ModelError, match=f"the weight '{said}' has shape .*, and by the configuration it has"):
        NativeRunner(model, check=False)
    with pytest.raises(ModelError, match=r"a weight of shape \[4, 8\] takes 128 bytes in order, not 124"):
        Weight(data=np.zeros(124, np.uint8), kind=0, shape=(4, 8))


_SEES = np.tri(2, dtype=np.bool_)[None]
_PLACES = np.array([[0, 1]])


@pytest.mark.parametrize(("change", "said"), [
    ({"depths": _PLACES.astype(np.int32)}, r"takes .*int64.* \[1, 2\] in order, and was given int32"),
    ({"depths": -3 * _PLACES}, "a position before the text"),
    ({"input_ids": np.array([[0, VOCAB]])}, f"token {VOCAB} is none of the model's {VOCAB}"),
    ({"pending": [[-1]]}, "token -1 is none of"),
    ({"seen": _SEES[..., :1].copy()}, "the round has another number of nodes"),
    ({"seen": ~_SEES}, "a node that does not see itself"),
    ({"memories": []}, "1 rows of nodes and 0 memories"),
    ({"memories": "others"}, "a row of another model"),
    ({"features": torch.zeros(1, 2, 48)}, "features are for drafters that read them"),
    ({"features": torch.zeros(1, 2, 47)}, r"takes torch.float32 \[2, 48\]"),
])  # fmt: skip
def test_a_forward_of_other_sizes_is_refused(change, said):
    network, other = (NativeRunner(llama(), check=False).network for _ in range(2))
    given = {"input_ids": _PLACES, "depths": _PLACES, "seen": _SEES, "memories": [network.row()], "pending": [[3]]}
    assert network(**given).logits.isfinite().all()
    given |= {"memories": [network.row()]} | change
    if given["memories"] == "others":
        given["memories"] = [other.row()]
    with pytest.raises((CacheError, ValueError), match=said):
        network(**given)


@pytest.mark.parametrize(("change", "said"), [
    ({"bases": torch.arange(6)}, "more scores than tokens with noise"),
    ({"columns": torch.tensor([0, 1, 2, 3, 4, 5, 7])}, "a score of a token without noise"),
    ({"columns": torch.arange(6)}, r"takes torch.int64 \[7\] in order on the CPU, and was given torch.int64 \[6\]"),
    ({"keys": np.ones(3, dtype=np.int64)}, r"\[2, 1\] in order"),
    ({"bases": torch.arange(7.0)}, r"takes torch.int64 \[7\]"),
    ({"count": 0}, "the best of no scores, or none of them"),
])  # fmt: skip
@pytest.mark.parametrize("cut", [None, Truncation(5)])
def test_scores_and_noise_of_other_sizes_are_refused(cut, change, said):
    given = {"keys": np.array([[5], [6]]), "bases": torch.arange(7), "count": 7, **change}
    pending = Pending(scores=torch.zeros(2, 1, 7), cuts=[cut] * 2, vocab=8)
    object.__setattr__(pending, "tokens", given.pop("columns", None))
    with pytest.raises((RuntimeError, ValueError), match=said):
        sampling.best(pending, **given)


@pytest.mark.parametrize(("layers", "wider"), [(2, False), (30, True)])
def test_bytes_of_a_token_are_those_that_pages_take(layers, wider):
    """A page of 30 such layers is 1.4 MiB, which takes 2."""
    sizes = {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64}
    runner = NativeRunner(tiny("llama", 1, dtype=torch.bfloat16, num_hidden_layers=layers, **sizes), check=False)
    _logits(runner, (TEXT * 4)[:128])
    assert runner.memory_bytes == 128 * runner.token_bytes
    assert (runner.token_bytes > token_bytes(runner.model.config, 2)) == wider


def test_memory_that_runs_out_is_a_sentence(monkeypatch):
    runner = NativeRunner(llama())
    monkeypatch.setattr(native.library(), "read_tokens", lambda *_: -1)
    monkeypatch.setattr(native.library(), "error", lambda: b"there is not enough memory")
    with pytest.raises(CacheError, match="the native engine: there is not enough memory"):
        _logits(runner, TEXT[:5])


def test_texts_in_several_threads_of_the_caller_and_after_a_fork(monkeypatch):
    monkeypatch.setattr("draftwood.hardware.threads.ThreadRule.now", 2)
    runners = [NativeRunner(llama(num_hidden_layers=layers)) for layers in (1, 2, 3)]
    wanted = [_logits(runner, TEXT[:99]) for runner in runners]
    equal = []

    def many(number):
        equal.extend(torch.equal(_logits(runners[number], TEXT[:99]), wanted[number]) for _ in range(10))

    threads = [threading.Thread(target=many, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    child = os.fork()
    if child == 0:  # the threads of the parent are not here
        os._exit(not torch.equal(_logits(runners[0].another(), TEXT[:99]), wanted[0]))
    assert os.waitpid(child, 0)[1] == 0
    for thread in threads:
        thread.join()
    assert equal == [True] * 30
