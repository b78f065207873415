"""Tiny GGUF files, written as llama.cpp's converter writes them."""

import json
import re
from types import SimpleNamespace

import gguf
import numpy as np
import torch

from benchmarks.llama_cpp import add_sizes, finish, named
from tests.faults.folders import tiny_llama, tiny_tokenizer

F32, F16, BF16, Q8_0, Q4_1 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q8_0", "Q4_1"))


def source(**settings):
    """A random Llama whose matrices fit blocks of 32, and its tokenizer."""
    tokenizer = tiny_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 1, "max_position_embeddings": 96}
    return tiny_llama(len(tokenizer), **{**sizes, **settings}).eval(), tokenizer


def tensors(model, arch="llama"):
    """The model's tensors under their GGUF names; tied ones once."""
    as_converted = SimpleNamespace(config=model.config, named_parameters=lambda: converted(model, arch))
    found = {name: weight.detach().float().numpy() for name, weight in named(as_converted, arch)}
    for name in [name for name in found if "_exps." in name and getattr(model.config, "written_apart", False)]:
        found |= {name.replace("_exps", f".{number}"): one for number, one in enumerate(found.pop(name))}
    if getattr(model.config, "written_fused", False):
        for name in [name for name in found if ".attn_q." in name]:
            parts = [found.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
            found[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return found


def converted(model, arch):
    """The model's weights as llama.cpp's converter changes them before it names them."""
    config = model.config
    ends = {"expert_bias": "bias", "layer_scalar": "weight"}
    buffers = {f"{name}.{ends[end]}": one for name, one in model.named_buffers() if (end := name.rpartition(".")[2]) in ends}
    for name, weight in (*model.named_parameters(), *buffers.items()):
        if arch == "gpt-oss" and ("experts" in name or "sinks" in name):
            yield from apart(name, weight)
            continue
        if name.endswith("in_proj_qkvz.weight"):
            size, group = config.linear_key_head_dim, config.linear_num_value_heads // config.linear_num_key_heads
            values = group * config.linear_value_head_dim
            heads = weight.view(config.linear_num_key_heads, -1, weight.shape[1])
            query, key, value, gate = (one.flatten(0, 1) for one in heads.split([size, size, values, values], 1))
            yield name.replace("qkvz", "qkv"), torch.cat((query, key, value))
            yield name.replace("qkvz", "z"), gate
            continue
        if arch.startswith(("qwen35", "qwen3next")):
            if "norm" in name and "linear_attn" not in name:
                weight = weight + 1
            if ".linear_attn." in name and ".norm." not in name and arch != "qwen3next":
                weight = tiled(config, name, weight.squeeze())
            if name.endswith("A_log"):
                weight = -weight.exp()
        name = name.replace("dt_bias", "dt_proj.bias")
        shared = "mlp.shared_expert" if getattr(config, "num_local_experts", 1) else "mlp"
        if name.endswith("shared_mlp.input_linear.weight"):
            for part, half in zip(("gate", "up"), weight.chunk(2), strict=True):
                yield name.replace("shared_mlp.input_linear", f"{shared}.{part}_proj"), half
            continue
        if ".mamba." in name and name.endswith(("A_log", ".D")):
            weight = (-weight.exp() if name.endswith("A_log") else weight).unsqueeze(1)
        if name.endswith("mamba.norm.weight"):
            weight = weight.view(config.mamba_n_groups, -1)
        name = name.replace("shared_mlp.output_linear", f"{shared}.down_proj")
        name = name.replace("block_sparse_moe.router", "mlp.gate").replace("block_sparse_moe", "mlp")
        if name.endswith("experts.gate_up_proj") and not getattr(config, "written_joined", False):
            for part, half in zip(("gate", "up"), weight.chunk(2, 1), strict=True):
                yield name.replace("gate_up_proj", f"{part}_proj.weight"), half
            continue
        if name.endswith(("router.scale", "per_expert_scale")):  # which the converter names by itself
            stem = "ffn_gate_inp" if name.endswith("router.scale") else "ffn_down_exps"
            yield f"blk.{name.split('.')[2]}.{stem}.scale", weight
            continue
        name = f"{name}.weight" if ".experts." in name else name
        yield name, weight.squeeze(1) if name.endswith(("conv.conv.weight", "conv1d.weight")) else weight


def apart(name, weight):
    """A weight of gpt-oss: gates and ups apart, and outputs before inputs."""
    whole, bias = name.removesuffix("_bias"), name.endswith("_bias")
    kind, weight = "bias" if bias else "weight", weight if bias or weight.ndim == 1 else weight.transpose(1, 2)
    if "gate_up" not in name:
        yield f"{whole}.{kind}", weight
        return
    for first, part in enumerate(("gate", "up")):
        yield f"{whole.replace('gate_up', part)}.{kind}", weight[:, first::2].contiguous()


def tiled(config, name, weight):
    """A weight of a gated delta rule whose value heads take turns with the key heads that they belong to."""
    keys, heads, size = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    axis = int("out_proj" in name)
    order = torch.arange(heads).view(keys, -1).T.flatten()
    if "in_proj_a" not in name and "in_proj_b" not in name and weight.ndim > 1:
        order = (order[:, None] * size + torch.arange(size)).flatten()
    first = weight.shape[axis] - len(order)
    return weight.index_select(axis, torch.cat((torch.arange(first), first + order)))


def write_gguf(
    path,
    model,
    tokenizer,
    kind=F16,
    *,
    arch="llama",
    pre="gpt-2",
    leave_out="",
    extra=None,
    metadata=None,
    parts=0,
    plain=("gate_inp",),
    template="{% for m in messages %}<end>{{ m['content'] }}{% endfor %}",
):
    """Write a model; matrices as ``kind``, vectors as float32.

    Args:
        pre: how a byte-level tokenizer splits text.
        leave_out: a tensor that is not written.
        extra: further tensors.
        metadata: further values; None for one that is left out.
        plain: parts of names of matrices that are written as float32.
        parts: tensors of each part of a split model, whose first file is returned; 0 for one file.
        template: the chat template, or several with their names.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer, config = gguf.GGUFWriter(path, arch, split_max_tensors=parts), model.config
    add_sizes(writer, config)
    _add_tokenizer(writer, tokenizer, pre)
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (metadata or {}).items():
        if value is None:
            writer.kv_data[0].pop(key, None)
            continue
        add = {
            str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
            list: writer.add_array,
        }[type(value)]  # fmt: skip
        add(key, value)
    for name, array in {**tensors(model, arch), **(extra or {})}.items():
        if name != leave_out:
            own = kind if array.ndim > 1 and array.shape[-1] % 32 == 0 and not any(part in name for part in plain) else F32
            writer.add_tensor(name, gguf.quantize(array, own), raw_dtype=own)
    finish(writer)
    return next(iter(sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))), path) if parts else path


def blocks(rng, kind, rows, columns):
    """Random blocks of a type of codes, whose numbers are small."""
    size, count = gguf.GGML_QUANT_SIZES[kind]
    found = rng.integers(0, 256, (rows, columns // size, count), np.uint8)
    halves = rng.uniform(0.002, 0.02, (rows, columns // size, 2)).astype(np.float16)
    if size == 256:
        halves /= 40
    if kind.name == "MXFP4":
        found[..., 0] = rng.integers(118, 122, found.shape[:2])
    elif kind.name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"):
        at = 80 if kind.name == "Q2_K" else 0
        halves[..., 1] *= 8 if size == 256 else -8
        found[..., at : at + 4] = halves.view(np.uint8)
    else:
        at = -2 if kind.name in ("Q3_K", "Q6_K") else 0
        halves[..., 0] /= {"Q8_0": 16, "IQ4_NL": 16, "IQ4_XS": 16}.get(kind.name, 1)
        found[..., at : at + 2 or None] = halves[..., :1].view(np.uint8)
    return found.reshape(rows, -1)


def _add_tokenizer(writer, tokenizer, pre):
    written = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab, model, kinds = tokenizer.get_vocab(), written["model"], gguf.TokenType
    added = {
        token["content"]: kinds.CONTROL if token["special"] else kinds.USER_DEFINED for token in written["added_tokens"]
    }
    tokens = sorted(vocab, key=lambda token: vocab[token])
    scores = {"".join(merge): -float(rank) for rank, merge in enumerate(model["merges"])}
    if model["byte_fallback"]:
        added |= {token: kinds.BYTE for token in tokens if re.fullmatch("<0x[0-9A-F]{2}>", token)}
        writer.add_token_scores([scores.get(token, -1e6 - at) for at, token in enumerate(tokens)])
    else:
        writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_tokenizer_model("llama" if model["byte_fallback"] else "gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([added.get(token, kinds.NORMAL) for token in tokens])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)


def rounded(model, kind, dtype):
    """The model with matrices as the file holds them, in the number format that is kept."""
    state = {}
    for name, weight in model.state_dict().items():
        if weight.ndim > 1:
            held = gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind)
            weight = torch.from_numpy(np.array(held, np.float32))
        state[name] = weight.to(dtype).float()
    model.load_state_dict(state)
    return model


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits
