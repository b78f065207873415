"""The configuration of a GGUF file's model, as ``config.json`` would have it: of its keys, by the row of its model type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from draftwood.core.errors import ModelError
from draftwood.loading.gguf_header import AGAIN, OTHER_FILES, Header
from draftwood.loading.gguf_keys import INNER, ORIGINAL, SHARED, TURNED_SIZE, Keys, numbers_of
from draftwood.runners.context import FULL, SLIDING, rotary_settings
from draftwood.runners.native.families import COUNTS, FAMILIES, PATTERN, ROTATES, SHARED_INNER, WINDOW
from draftwood.runners.native.family import Family, Gguf
from draftwood.runners.native.refusals import why_not_config
from draftwood.runners.native.weights import BLOCKS
from draftwood.runners.plain_config import PlainConfig

TABLE, OUTPUT = "token_embd.weight", "output.weight"
ROPE: Final = "rope_freqs.weight"  # divisors of the rotary frequencies, as Llama 3.1 and its successors have them
LONG: Final = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}  # of Phi-3
_STILL: Final = 1e20  # radians are divided by at least that: such a number of a head does not turn
_INTERVAL, _RECURRENT = "full_attention_interval", "attention.recurrent_layers"
_SECTIONS, _LOGARITHM = "rope.dimension_sections", "rope.scaling.yarn_log_multiplier"
_BETAS: Final = {"beta_slow": 1.0, "beta_fast": 32.0}
_RULE: Final = {"state_size": "key_size", "group_count": "key_heads", "time_step_rank": "value_heads"}
_TOKENS: Final = {"bos": "bos", "eos": "eos", "pad": "padding"}


def stored_config(header: Header) -> dict[str, Any]:
    """The configuration of a file's model.

    Raises:
        ModelError: an architecture or a type of tensors that is not read, or a model that the native engine has no code for;
            the file lacks a number, or has a key that is not read.
    """
    arch, sizes = header.architecture, {tensor.name: tensor.sizes for tensor in header.tensors}
    sparse, shared = (bool(header.value(f"{arch}.{name}")) for name in (COUNTS[0], SHARED_INNER))
    if (kind := _model_type(arch, sparse=sparse, shared=shared)) is None:
        raise ModelError(f"{header} has architecture {arch!r}, which is not read from GGUF files: {OTHER_FILES}")
    if (tensor := next((one for one in header.tensors if one.kind not in BLOCKS), None)) is not None:
        raise ModelError(f"{header} holds tensor {tensor.name!r} in type {tensor.kind}, which is not read: {OTHER_FILES}")
    if TABLE not in sizes:
        raise ModelError(f"{header} lacks tensor {TABLE!r}: {AGAIN}")
    found = _config(header, kind, sizes)
    if (reason := why_not_config(PlainConfig(**found))) is not None:
        raise ModelError(f"the native engine does not read {header}: {reason}; {OTHER_FILES}")
    return found


def _model_type(arch: str, *, sparse: bool, shared: bool) -> str | None:
    """The model type of an architecture, of mixtures of experts or others; None if it is not read.

    Of two types of mixtures, one has an expert of all tokens.
    """
    found = [
        kind for kind, own in FAMILIES.items() if (gguf := own.gguf) is not None
        and (arch == gguf.hybrid or (arch, sparse) == (gguf.architecture or kind, bool(own.experts)))
    ]  # fmt: skip
    return min(found, key=lambda kind: bool(FAMILIES[kind].shared) != shared, default=None)


def _config(header: Header, kind: str, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    own, keys = FAMILIES[kind], Keys(header)
    gguf = own.gguf or Gguf()
    by_layer = own.varied or (bool(own.states) and not gguf.interval)
    width, heads = keys.count("embedding_length", minimum=1), keys.count("attention.head_count", minimum=1)
    shared, epsilon = keys.get(SHARED, heads, several=by_layer), float(keys.need("attention.layer_norm_rms_epsilon"))
    size, length = keys.count("attention.key_length", width // heads, minimum=1), keys.count("context_length", 2048)
    ahead = keys.count("nextn_predict_layers", 0) if gguf.interval else 0
    scaling, base = keys.scaling, float(keys.get("rope.freq_base", 10000.0))
    linear = {"factor": float(scaling[1])} if scaling[0] == "linear" else {}
    found = {
        "model_type": kind,
        "architectures": [own.name],
        "vocab_size": sizes[TABLE][-1],
        "hidden_size": width,
        "num_hidden_layers": keys.count("block_count") - ahead,
        "num_attention_heads": heads,
        "num_key_value_heads": max(shared) if isinstance(shared, list) else int(shared),
        "head_dim": size,
        own.epsilon: epsilon,
        "max_position_embeddings": length,
        "rope_parameters": {"rope_type": "linear" if linear else "default", "rope_theta": base, **linear},
        own.activation or "hidden_act": "silu",
        "tie_word_embeddings": OUTPUT not in sizes,
        **{f"{name}_token_id": header.single(f"tokenizer.ggml.{key}_token_id") for name, key in _TOKENS.items()},
    }
    sparse = gguf.settings.keys() & {"intermediate_size", "moe_intermediate_size"}  # perhaps without another network
    inner = keys.get(INNER, 0, several=own.varied) if sparse else keys.need(INNER, several=own.varied)
    found["intermediate_size"] = int(min(inner) if isinstance(inner, list) else inner)
    names = own.in_gguf()
    for part, setting in own.biases.items():
        if setting:
            held = next(stem for module, stem in names.items() if module.startswith(part))
            found[setting] = any(f"blk.0.{one}.bias" in sizes for one in (held, held.replace("attn_q", "attn_qkv")))
    for settings in (_said, _windows, _rotary, _states, *((_varied,) if own.varied else ())):
        found |= settings(keys, own, gguf, found)
    keys.check_scaling(rotary_settings(PlainConfig(**found)))
    if scaling[0] in ("default", "linear"):
        keys.get(ORIGINAL)
    if found.get("sliding_window") is None and 0 < keys.get(WINDOW, 0) < length:
        raise keys.refused(WINDOW)
    keys.end({
        "attention.value_length": size, "attention.layer_norm_epsilon": epsilon, "rope.freq_base_swa": base,
        TURNED_SIZE: size, "expert_weights_norm": found.get("norm_topk_prob"),
    })  # fmt: skip
    return found


def _said(keys: Keys, own: Family, gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    """What keys say each by itself, and what none says."""
    for name in gguf.needs:
        keys.need(name, several=True)
    for name, value in gguf.same.items():
        keys.same(name, value)
    dense, found = keys.header.architecture == gguf.hybrid and not keys.get(COUNTS[0], 0), dict(gguf.fixed)
    for setting, said in gguf.settings.items():
        key = said if isinstance(said, str) else said[0]
        if dense and key.startswith("expert"):
            found[setting] = keys.need(INNER) if setting == own.shared else keys.get(key, 0)
        else:
            found[setting] = keys.need(said) if isinstance(said, str) else keys.get(*said)
    if gguf.wide:
        wide, heads = config["num_hidden_layers"] == gguf.wide, config["num_attention_heads"]
        found[own.scale[0]] = config["hidden_size"] // heads if wide else config["head_dim"]
    elif own.scale[0] in found:
        found[own.scale[0]] = found[own.scale[0]] or config["head_dim"] ** -0.5
    if gguf.unrotated:
        found["no_rope_layers"] = [int(n % gguf.unrotated != 0) for n in range(1, config["num_hidden_layers"] + 1)]
    if own.rotary:
        found[own.rotary] = "rope" if keys.get(ROTATES, True) else None
    return found


def _windows(keys: Keys, own: Family, gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sliding attention: all but the last of each period slide, all where it is 0, unless the file says which."""
    if gguf.period is None:
        return {}
    layers, window = config["num_hidden_layers"], keys.get(WINDOW, gguf.window) or None
    if "layer_types" not in own.windows:
        return {"sliding_window": window}
    said = keys.get(PATTERN, gguf.period, several=True) if window else []
    if not isinstance(said, list):
        said = [said if isinstance(said, bool) else said == 0 or number % said != 0 for number in range(1, layers + 1)]
    if len(said) != (layers if window else 0):
        raise keys.refused(PATTERN)
    if window is None and gguf.apart:
        window = config["max_position_embeddings"]  # which masks of Gemma 3 need in any case
    return {"sliding_window": window, "layer_types": [SLIDING if slides else FULL for slides in said] or [FULL] * layers}


def _rotary(keys: Keys, own: Family, gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary embedding: scaled by YaRN, by two lists of factors, or by the position of queries; of parts of heads."""
    rotary, (kind, factor), size = dict(config["rope_parameters"]), keys.scaling, config["head_dim"]
    length, tensors = config["max_position_embeddings"], {tensor.name: tensor for tensor in keys.header.tensors}
    if own.partly:
        rotary["partial_rotary_factor"] = keys.count(TURNED_SIZE, size) / size
        if LONG["short_factor"] in tensors:
            rotary |= {name: numbers_of(keys.header, tensors[held]).tolist() for name, held in LONG.items()}
            rotary |= {"rope_type": "longrope", "attention_factor": float(keys.get("rope.scaling.attn_factor", 1.0))}
            rotary["original_max_position_embeddings"] = keys.count(ORIGINAL, length)
    if own.tempered:
        rotary["original_max_position_embeddings"] = length
    if yarn := gguf.yarn and kind == "yarn":
        rotary |= {"rope_type": kind, "factor": float(factor)}
        rotary["original_max_position_embeddings"] = keys.count(ORIGINAL, length)
        rotary |= {name: float(keys.get(f"rope.scaling.yarn_{name}", beta)) for name, beta in _BETAS.items()}
    if own.tempered:
        if yarn:
            keys.need(_LOGARITHM)
        keys.same(_LOGARITHM, 1.0)
        keys.same("attention.temperature_length", rotary["original_max_position_embeddings"])
        rotary["llama_4_scaling_beta"] = float(keys.get("attention.temperature_scale", 0.0))
    rotary |= gguf.rotary
    if not gguf.apart:
        return {"rope_parameters": rotary}
    near = {"rope_type": "default", "rope_theta": float(keys.get("rope.freq_base_swa", 10000.0))}
    return {"rope_parameters": {FULL: rotary, SLIDING: near}}


def _states(keys: Keys, own: Family, gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    """Layers with running states: which they are, and their sizes."""
    if not own.states:
        keys.leave("ssm.")  # which files of Granite 4 without such layers have too
        return {}
    layers, (kind, layer) = config["num_hidden_layers"], [*own.states.items()][-1]
    if gguf.interval:
        recurrent = _recurrent(keys, layers, gguf.interval)
        size = config["head_dim"]
        turned = min(keys.count(TURNED_SIZE, size), size)
        if _SECTIONS in keys and not _all_rotated(keys.get(_SECTIONS, several=True), turned // 2):
            raise keys.refused(_SECTIONS)
    else:
        shared = keys.get(SHARED, config["num_key_value_heads"], several=True)
        each = shared if isinstance(shared, list) else [shared] * layers
        if len(each) != layers or set(each) - {0, config["num_key_value_heads"]}:
            raise keys.refused(SHARED)
        recurrent = [not one for one in each]
    found: dict[str, Any] = {"layer_types": [kind if one else FULL for one in recurrent]}
    if gguf.hybrid and keys.header.architecture == gguf.architecture:  # of models that have none
        keys.leave("ssm.")
        return found
    sizes = {"taps_of_convolution": keys.count(layer.taps)}
    if "value_size" in layer.facts:
        sizes |= _sizes_of_state(keys)
        inner = sizes["value_heads"] * sizes["value_size"]
        if gguf.hybrid:
            found["mamba_expand"] = inner // config["hidden_size"]
            if inner % config["hidden_size"]:
                raise keys.refused("ssm.inner_size")
    return found | {setting: sizes[name] for name, setting in layer.facts.items()}


def _recurrent(keys: Keys, layers: int, period: int) -> list[bool]:
    """Which layers have running states: those that the file names, or all but the last of each period."""
    period, said = keys.count(_INTERVAL, period), keys.get(_RECURRENT, several=True)
    found = said if isinstance(said, list) else [said] * layers
    if said is None:
        found = [number % period != 0 for number in range(1, layers + 1)] if period > 0 else []
    if len(found) < layers:
        raise keys.refused(_INTERVAL if said is None else _RECURRENT)
    return found[:layers]


def _sizes_of_state(keys: Keys) -> dict[str, int]:
    """Sizes of a running state, by the engine's name; raises a ModelError if they do not fit together."""
    found = {fact: keys.count(f"ssm.{name}") for name, fact in _RULE.items()}
    inner, heads, groups = keys.count("ssm.inner_size"), found["value_heads"], found["key_heads"]
    for name, fits in (
        ("inner_size", heads > 0 and inner % heads == 0),
        ("state_size", found["key_size"] > 0),
        ("group_count", groups > 0 and heads % groups == 0),
    ):
        if not fits:
            raise keys.refused(f"ssm.{name}")
    return {**found, "value_size": inner // heads}


def _all_rotated(sections: Any, pairs: int) -> bool:
    """Whether each pair of numbers is in one of three interleaved sections: in a text all three have the same positions."""
    if not isinstance(sections, list) or len(sections) < 3 or min(sections) < 0:
        return isinstance(sections, int) and sections > 0
    return all(one < 3 * sections[one % 3] for one in (pair % sum(sections) for pair in range(pairs)))


def _varied(keys: Keys, own: Family, gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    """Layers that are unlike: heads of layers of sliding attention have sizes of their own."""
    layers, kinds, small = config["num_hidden_layers"], config["layer_types"], config["intermediate_size"]
    wide, near = config["head_dim"], keys.count("attention.key_length_swa")
    for name, size in {"attention.value_length_swa": near, TURNED_SIZE: wide, "rope.dimension_count_swa": near}.items():
        keys.same(name, size)
    if kinds[-1] != FULL:
        raise keys.refused(PATTERN)
    said, inner = keys.get(SHARED, config["num_attention_heads"], several=True), keys.get(INNER, 0, several=True)
    each = said if isinstance(said, list) else [said] * layers
    heads = {kind: int(count) for kind, count in zip(kinds, each, strict=False)}
    if each != [heads[kind] for kind in kinds]:
        raise keys.refused(SHARED)
    lent = keys.count("attention.shared_kv_layers", 0)
    if (twice := isinstance(inner, list)) and inner != [small] * (layers - lent) + [2 * small] * lent:
        raise keys.refused(INNER)
    rotary, held = config["rope_parameters"], {tensor.name for tensor in keys.header.tensors}
    return {
        "head_dim": near, "global_head_dim": wide, "num_global_key_value_heads": heads[FULL],
        "num_key_value_heads": heads.get(SLIDING, heads[FULL]),
        "attention_k_eq_v": f"blk.{kinds.index(FULL)}.attn_v.weight" not in held,
        "num_kv_shared_layers": lent, "use_double_wide_mlp": twice, "enable_moe_block": config["num_experts"] > 0,
        "hidden_size_per_layer_input": keys.count("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": config["vocab_size"],
        "rope_parameters": {**rotary, FULL: {**rotary[FULL], "partial_rotary_factor": _turned_part(keys.header, wide)}},
    }  # fmt: skip


def _turned_part(header: Header, size: int) -> float:
    """The part of a head that is rotated."""
    if (tensor := next((one for one in header.tensors if one.name == ROPE), None)) is None:
        raise ModelError(f"{header} lacks tensor {ROPE!r}: {AGAIN}")
    divisors = numbers_of(header, tensor)
    turned = int((divisors == 1).sum())
    if len(divisors) != size // 2 or (divisors[:turned] != 1).any() or (divisors[turned:] < _STILL).any():
        raise ModelError(f"{header} scales its rotary embedding in a way that is not known: {OTHER_FILES}")
    return 2 * turned / size
