"""gpt-oss: sinks, and experts with biases whose weights are numbers or codes in MXFP4."""

import json

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssForCausalLM, Mxfp4Config

import draftwood
from draftwood.loading.causal import stored_folder
from draftwood.runners.native.stored import StoredModel
from tests.differences import difference
from tests.faults.folders import tiny_tokenizer
from tests.native.test_codes import compare
from tests.native.test_families import TEXT, model_of, native, plain
from tests.native.test_stored import check_read, saved

KIND, SIZES = "gpt_oss", {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
MXFP4 = gguf.GGMLQuantizationType.MXFP4


def write_in_codes(model, folder):
    """Write a folder as the model is published: two codes of an expert's matrix in each byte, and scales apart."""
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        rows = weights.pop(name).float().transpose(1, 2).contiguous().numpy()
        blocks = torch.from_numpy(gguf.quantize(rows, MXFP4)).unflatten(-1, (-1, 17))
        codes = torch.cat((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), -1)
        weights[f"{name}_scales"] = blocks[..., 0].contiguous()
        weights[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_folder_of_numbers_is_read_as_transformers_reads_it(tmp_path, dtype):
    model = saved(model_of(KIND, dtype, **SIZES), tmp_path)
    assert torch.equal(check_read(tmp_path, model)(TEXT).logits, model(TEXT).logits)


def test_a_folder_of_codes_is_the_model_that_transformers_makes_of_it(tmp_path):
    write_in_codes(model_of(KIND, torch.float32, **SIZES), tmp_path)
    numbers = Mxfp4Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, quantization_config=numbers).eval()
    assert isinstance(model, GptOssForCausalLM)
    wanted, _ = plain(model)
    found = stored_folder(tmp_path)
    assert found is not None
    mine, _ = native(found)
    assert difference(mine, wanted) < 1e-4 * wanted.abs().max()
    assert difference(found(TEXT).logits[0], wanted) < 1e-5 * wanted.abs().max()


def test_its_codes_have_the_bits_of_their_numbers_and_draft(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    write_in_codes(model_of(KIND, torch.bfloat16, **SIZES, vocab_size=len(tokenizer)), tmp_path)
    pair = draftwood.load(tmp_path, tmp_path, options={"backend": "native", "activations": 16})
    assert isinstance(pair.model, StoredModel)
    assert (pair.model.coded, pair.model.dtype) == (True, torch.bfloat16)
    ids, settings = TEXT[0, :9].tolist(), {"max_new_tokens": 20, "temperature": 1.0, "seed": 3}
    texts = {tuple(pair.generate(ids, method=method, **settings).token_ids) for method in ("ar", "ngram", "shared-noise")}
    assert len(texts) == 1
    compare(pair.model)
