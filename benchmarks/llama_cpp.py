"""llama.cpp (https://github.com/ggml-org/llama.cpp) through ``llama-cpp-python`` on the same weights: Llama models only.

The weights go through a GGUF file without a tokenizer, as token ids come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import torch

from benchmarks.llama_buffers import keep_llama_cpp_from_crashing
from benchmarks.measure import Maker, Texts
from benchmarks.settings import Setting
from draftwood.api import Pair
from draftwood.core.errors import ConfigError

NGRAM: Final = 2  # tokens that prompt lookup matches at most, the default of llama-cpp-python
_TYPES: Final = {torch.float32: "F32", torch.bfloat16: "BF16"}


@final
class LlamaCpp:
    """Plain decoding, or prompt lookup of so many tokens; every text starts with an empty memory.

    Args:
        pair: its target's weights are taken; on the CPU, in float32 or bfloat16.
        method: ``llama.cpp`` or ``llama.cpp-lookup``.
        folder: for the GGUF file.

    Raises:
        ConfigError: another kind of model, device or number format.
        ImportError: a package is missing.
    """

    def __init__(self, pair: Pair, method: str, folder: Path) -> None:
        import llama_cpp

        keep_llama_cpp_from_crashing()
        model = pair.model
        path = folder / "target.gguf"
        write_gguf(model, path)
        self._eos = pair.eos
        self._lookup = llama_cpp.llama_speculative.LlamaPromptLookupDecoding if method == "llama.cpp-lookup" else None
        self._llama = llama_cpp.Llama(str(path), logits_all=method == "llama.cpp-lookup", **options(model, kind(model)))

    def maker(self, setting: Setting, temperature: float, max_new_tokens: int) -> Maker:
        """A function that continues prompts with the target's own distribution at this temperature."""
        llama = self._llama
        drafting = self._lookup(max_ngram_size=NGRAM, num_pred_tokens=setting.nodes) if self._lookup is not None else None
        distribution = {"temp": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}

        def make(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> Texts:
            [prompt], [seed] = prompts, seeds
            llama.reset()  # or the beginning that this text shares with the last one would be free
            llama.draft_model = drafting
            llama.set_seed(seed % 2**32)
            counted = _Counted(llama)
            new: list[int] = []
            for token in counted.generate(prompt, distribution):
                new.append(int(token))
                if token in self._eos or len(new) == max_new_tokens:
                    break
            count = counted.forwards
            return Texts(tokens=[new], forwards=count, row_forwards=count, drafted=0, seen=False)

        return make


@final
class _Counted:
    """Generates with a ``llama_cpp.Llama`` and counts its forwards."""

    def __init__(self, llama: Any) -> None:
        self._llama, self.forwards = llama, 0

    def generate(self, prompt: Sequence[int], distribution: dict[str, Any]) -> Any:
        evaluate = self._llama.eval

        def counting(tokens: Sequence[int]) -> None:
            self.forwards += 1
            evaluate(tokens)

        self._llama.eval = counting
        try:
            yield from self._llama.generate(list(prompt), **distribution)
        finally:
            del self._llama.eval  # the class's own again


def check(model: Any) -> None:
    """Refuse what :func:`write_gguf` does not write.

    Raises:
        ConfigError: says what came.
    """
    config = model.config
    if config.model_type != "llama" or config.attention_bias or config.mlp_bias:
        raise ConfigError(f"only Llama models without biases are written as GGUF, and this is {config.model_type!r}")
    if config.rope_parameters["rope_type"] != "default":
        raise ConfigError(f"rotary positions of kind {config.rope_parameters['rope_type']!r} are not written as GGUF")
    if model.device.type != "cpu" or model.dtype not in _TYPES:
        raise ConfigError(f"it is measured on the CPU in float32 or bfloat16, not on {model.device} in {model.dtype}")


def kind(model: Any) -> int:
    """The number of a model's number format in GGUF; llama_cpp itself has no name for bfloat16."""
    import gguf

    return int(getattr(gguf.GGMLQuantizationType, _TYPES[model.dtype]))


def options(model: Any, cache: int) -> dict[str, Any]:
    """Settings of ``llama_cpp.Llama``; ``cache`` is the number format of keys and values."""
    threads = torch.get_num_threads()
    return {
        "n_ctx": model.config.max_position_embeddings,
        "n_threads": threads,
        "n_threads_batch": threads,
        "type_k": cache,
        "type_v": cache,
        "verbose": False,
    }


def write_gguf(model: Any, path: Path) -> None:
    """A ``LlamaForCausalLM`` as a GGUF file with its vocabulary's size and no tokenizer; norms are float32.

    Raises:
        ConfigError: a model that cannot be written, as :func:`check` says.
        ImportError: ``gguf`` is missing.
    """
    import gguf

    check(model)
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    add_sizes(writer, config)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_tokenizer_model("none")
    own = gguf.GGMLQuantizationType(kind(model))
    for name, weight in named(model):
        stored = gguf.GGMLQuantizationType.F32 if weight.dim() == 1 else own
        writer.add_tensor(name, gguf.quants.quantize(weight.detach().float().numpy(), stored), raw_dtype=stored)
    finish(writer)


def add_sizes(writer: Any, config: Any) -> None:
    """Add what a GGUF file says about the shape of a Llama model."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def finish(writer: Any) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named(model: Any, arch: str = "llama") -> Any:
    """Weights as llama.cpp's converter names and changes them; queries and keys are in the order in which it turns them."""
    import gguf

    known = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(known.get(arch, gguf.MODEL_ARCH.LLAMA), model.config.num_hidden_layers)
    for name, weight in model.named_parameters():
        part, _, kind = name.rpartition(".")
        if part.endswith(("q_proj", "k_proj")) and arch in (
            "llama",
            "smollm3",
            "granite",
            "granitemoe",
            "granitehybrid",
            "mistral3",
        ):
            halves = weight.view(-1, 2, model.config.head_dim // 2, *weight.shape[1:])
            weight = halves.transpose(1, 2).reshape(weight.shape)
        yield (
            names.get_name(name) or f"{names.get_name(part) or part}.{kind}",
            weight + 1 if "norm" in part and arch in ("gemma2", "gemma3") else weight,
        )
