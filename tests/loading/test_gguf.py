"""Models from GGUF files: the same weights and tokens."""

import numpy as np
import pytest
import torch

import draftwood
from draftwood.core.errors import ModelError
from draftwood.engine.knowledge import default_path, known_of, read, save
from draftwood.loading.profile import why_not
from draftwood.native.library import instruction_sets
from tests.faults.folders import tiny_tokenizer
from tests.loading.gguf_files import BF16, F16, F32, Q4_1, Q8_0, logits, rounded, source, write_gguf

TEXT = "the fox ran to the red hill"
OPTIONS = {"backend": "torch"}
ENDS = {
    f"tokenizer.ggml.{key}": value for key, value in (("eot_token_id", 7), ("eom_token_id", 8), ("eos_token_ids", [0, 5]))
}
"""Tokens that end a text too: those of a turn and of a message, and further ones."""


@pytest.mark.parametrize(("kind", "more"), [
    (F32, {}), (F16, {}), (BF16, {}), (Q8_0, {}), (Q4_1, {}), (F32, {"tie_word_embeddings": False}),
])  # fmt: skip
def test_logits_and_tokens_are_those_of_the_model_that_the_file_holds(tmp_path, kind, more):
    model, tokenizer = source(**more)
    path = write_gguf(tmp_path / "fox.gguf", model, tokenizer, kind, metadata=ENDS)
    pair = draftwood.load(path, options=OPTIONS)
    ids = tokenizer(TEXT)["input_ids"]
    assert pair.encode(TEXT) == ids
    assert pair.tokenizer.decode(ids) == tokenizer.decode(ids)
    assert torch.equal(logits(pair.model, ids), logits(rounded(model, kind, torch.float32), ids))
    assert set(pair.eos) == {0, 5, 7, 8}


def test_target_and_draft_may_both_be_gguf_files(tmp_path):
    target = write_gguf(tmp_path / "target.gguf", *source())
    draft = write_gguf(tmp_path / "draft.gguf", *source(layers=1), Q8_0)
    pair = draftwood.load(str(target), str(draft), options=OPTIONS)
    drafted, plain = (pair.generate(TEXT, max_new_tokens=12, temperature=0, method=name) for name in ("rsd-s", "ar"))
    assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("pre", "said", "begins"),
    [("gpt-2", True, 1), ("gpt-2", False, 0), ("gpt-2", None, 0), ("llama-bpe", True, 1), ("llama-bpe", False, 0),
     ("llama-bpe", None, 1), ("tekken", None, 1), ("falcon-h1", None, 1)],
)  # fmt: skip
def test_a_text_begins_as_the_file_says_and_as_in_llama_cpp_where_it_says_nothing(tmp_path, pre, said, begins):
    """ggml-org/llama.cpp#15086, abetlen/llama-cpp-python#1501: no beginning of text, two of them, or another token."""
    model, tokenizer = source()
    metadata = {} if said is None else {"tokenizer.ggml.add_bos_token": said}
    file = write_gguf(tmp_path / "fox.gguf", model, tokenizer, F32, pre=pre, metadata=metadata)
    pair = draftwood.load(file, options=OPTIONS)
    begin, words = pair.tokenizer.bos_token_id, tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert pair.encode(TEXT) == [begin] * begins + words
    chat = [{"role": "user", "content": TEXT}]
    found = list(pair.chat_request(chat).prompt)
    assert found == pair.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert found.count(begin) == 1, "which the template writes"
    assert pair.encode(pair.tokenizer.apply_chat_template(chat, tokenize=False)) == found


def test_the_tokenizer_of_another_model_in_the_same_folder_is_not_read(file):
    tiny_tokenizer(["zebras quiz vexed jocks of my big sphinx"]).save_pretrained(file.parent)
    assert draftwood.load(file, options=OPTIONS).encode(TEXT) == source()[1](TEXT)["input_ids"]


def test_every_arithmetic_of_a_gguf_target_has_its_own_profile_and_memory(file, monkeypatch):
    path, keys = write_gguf(file.with_name("codes.gguf"), *source(), Q8_0), []
    for isa in instruction_sets():
        monkeypatch.setattr("draftwood.runners.native.runner.instruction_set", lambda isa=isa: isa)
        keys += [
            draftwood.load(path, options={"backend": "native", "activations": bits}).known.profile_key for bits in (8, 16)
        ]
    assert len({known_of("auto", key).path for key in keys}) == len(keys) > 1
    for key, shape in zip(keys[-2:], "57", strict=True):
        save(default_path(key), key, choices={1.0: draftwood.Method(method="ngram", shape=shape)})
        assert why_not(read(default_path(key)).profile_key) is None
    assert draftwood.load(path, options={"backend": "native"}).method(temperature=1.0).shape == "5"
    default_path(keys[-2]).unlink()
    with pytest.warns(UserWarning, match="there engine is 'native .*, or --backend or --activations"):
        draftwood.load(path, options={"backend": "native"})


BASE = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {**BASE, "rope_type": "linear", "factor": 4.0}
POSITIONS = [10, 4000]


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(("said", "rotary"), [
    ({"rope.scale_linear": 4.0}, LINEAR),
    ({"rope.scaling.factor": 4.0}, LINEAR),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}, LINEAR),
    ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, BASE),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, BASE),
    ({"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0, "rope.scaling.finetuned": False}, BASE),
    ({"attention.head_count_kv": [2, 2], "feed_forward_length": [64, 64]}, BASE),
    ({"rope.freq_base": 500000}, {**BASE, "rope_theta": 500000.0}),
    ({"attention.sliding_window": 4096, "attention.causal": True, "expert_count": 0}, BASE),
])  # fmt: skip
def test_a_file_is_computed_as_its_keys_say(tmp_path, said, rotary, backend):
    sizes = {"max_position_embeddings": 4096, "num_key_value_heads": 2}
    model, tokenizer = source(rope_parameters=rotary, **sizes)
    metadata = {f"llama.{name}": value for name, value in said.items()}
    path = write_gguf(tmp_path / "fox.gguf", model, tokenizer, F32, metadata=metadata)
    pair = draftwood.load(path, options={"backend": backend, "dtype": "float32"})
    ids = torch.randint(0, len(tokenizer), (4001,), generator=torch.Generator().manual_seed(0)).tolist()
    found = pair.prompt_logprobs(ids)
    for other in (model, source(rope_parameters=LINEAR if rotary is not LINEAR else BASE, **sizes)[0]):
        want = logits(other, ids)[0].log_softmax(-1)
        same = [found[at].logprob == pytest.approx(want[at - 1, ids[at]].item(), abs=1e-4) for at in POSITIONS]
        assert all(same) if other is model else not all(same)


def test_rotary_scaling_of_llama_3_is_set(tmp_path):
    scaling = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model, tokenizer = source(rope_parameters=scaling, max_position_embeddings=131072, head_dim=64)
    plain, _ = source(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, head_dim=64)
    divisors = (plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    assert divisors.max() == pytest.approx(32)
    path = write_gguf(tmp_path / "fox.gguf", model, tokenizer, F32, extra={"rope_freqs.weight": divisors})
    loaded = draftwood.load(path, options=OPTIONS).target.model
    ids = tokenizer(TEXT)["input_ids"] * 5
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert not torch.equal(logits(loaded, ids), logits(plain, ids))
    odd = write_gguf(tmp_path / "odd.gguf", model, tokenizer, F32, extra={"rope_freqs.weight": divisors[::-1].copy()})
    with pytest.raises(ModelError, match="rotary embedding in a way"):
        draftwood.load(odd, options=OPTIONS)
