"""Keys of a GGUF file: the model is the one that they describe, or the file is refused by the key."""

import pytest
import torch

import draftwood
from tests.loading.gguf_files import F32, Q8_0, logits, source, write_gguf
from tests.loading.test_gguf_refused import refusal

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


@pytest.mark.parametrize(("said", "words"), [
    ({"rope.dimension_count": 8}, ["llama.rope.dimension_count 8", "16 is computed"]),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, ["llama.rope.scaling.type 'yarn'"]),
    ({"rope.scaling.factor": float("nan")}, ["llama.rope.scaling.factor nan"]),
    ({"rope.scaling.attn_factor": 0.5}, ["llama.rope.scaling.attn_factor 0.5"]),
    ({"rope.dimension_sections": [4, 2, 2, 0]}, ["llama.rope.dimension_sections [4, 2, 2, 0]"]),
    ({"attention.head_count_kv": [1, 2]}, ["llama.attention.head_count_kv [1, 2]"]),
    ({"attention.value_length": 8}, ["llama.attention.value_length 8", "16 is computed"]),
    ({"attention.scale": 0.5}, ["llama.attention.scale 0.5"]),
    ({"attention.causal": False}, ["llama.attention.causal False"]),
    ({"attention.sliding_window": 16}, ["llama.attention.sliding_window 16"]),
    ({"logit_scale": 0.5}, ["llama.logit_scale 0.5"]),
    ({"residual_scale": 0.0}, ["llama.residual_scale 0.0"]),
    ({"expert_count": 8}, ["does not say llama.expert_used_count"]),
    ({"expert_used_count": 2}, ["llama.expert_used_count 2"]),
    ({"a_key_of_tomorrow": "x"}, ["llama.a_key_of_tomorrow 'x'"]),
])  # fmt: skip
def test_a_key_that_is_not_read_is_refused(tmp_path, said, words):
    metadata = {f"llama.{name}": value for name, value in said.items()}
    message = refusal(write_gguf(tmp_path / "fox.gguf", *source(), Q8_0, metadata=metadata))
    assert all(word in message for word in [*words, "give the model's safetensors folder"])
