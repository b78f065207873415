"""Pairs of a target and a published drafter, from folders."""

import json

import pytest
from safetensors.torch import save_file

import draftwood
from tests.faults.folders import tiny_llama
from tests.helpers import tiny_published
from tests.tiny_chat import chat_tokenizer, save_chat

RSD_S = {"method": "rsd-s", "shape": "3x3"}
KINDS = ["eagle3", "dflash", "dspark"]


def drafter_folder(folder, kind):
    """A checkpoint as its authors publish it, for the target of :func:`target_folder`."""
    model = tiny_llama(len(chat_tokenizer()), layers=4, max_position_embeddings=512)
    drafter = tiny_published(model, kind)
    own = drafter.config
    flat = {
        name: getattr(own, name)
        for name in (
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
            "intermediate_size", "rms_norm_eps",
        )
    }  # fmt: skip
    numbers = [layer - 1 for layer in own.target_layers]
    if kind == "eagle3":
        more = {"draft_vocab_size": own.draft_vocab_size, "eagle_config": {"eagle_aux_hidden_state_layer_ids": numbers}}
        config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "rope_theta": 100.0, **flat, **more}
    else:
        more = {"projector_type": kind, "target_layer_ids": numbers, "mask_token_id": own.mask_token}
        more["markov_rank"] = own.markov_rank
        config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "rope_theta": 100.0, **flat}
        config |= {"block_size": own.slots, "dflash_config": more}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: value for name, value in drafter.state_dict().items() if name != "draft_tokens"}
    save_file({name.replace("layers.0.", "midlayer.") if kind == "eagle3" else name: v for name, v in tensors.items()},
              folder / "model.safetensors")  # fmt: skip
    return folder


@pytest.fixture(scope="module", params=KINDS)
def folders(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return save_chat(folder / "target", layers=4), drafter_folder(folder / "draft", request.param)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_load_decodes_with_it(folders, backend):
    target, draft = folders
    pair = draftwood.load(target, draft, options={"backend": backend})
    plain = draftwood.load(target, options={"backend": backend})
    assert (pair.target.engine.split()[0], "Drafter" in repr(pair)) == (backend, True)
    for method in ("adaptive", RSD_S, {"method": "chain", "shape": "3"}):
        found = pair.generate("the fox", method=method, max_new_tokens=30, temperature=0.0)
        assert found.token_ids == plain.generate("the fox", method="ar", max_new_tokens=30, temperature=0.0).token_ids
        assert method == "adaptive" or found.stats.drafted > 0
