"""Loading a pair of models and generating text with it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeAlias, final, overload

import torch

from draftwood.checks import several, whole
from draftwood.decode import Decoder, Piece, Request, Result
from draftwood.errors import ConfigError, ModelError, PairingError
from draftwood.methods import Method, build
from draftwood.models.torch_runner import TorchRunner
from draftwood.output import Limits
from draftwood.sampling import Sampling

DTypeName: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "float64"]
_DTYPES = {n: getattr(torch, n) for n in ("float32", "bfloat16", "float16", "float64")}


@final
@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Where and how models are loaded."""

    dtype: DTypeName = field(default="auto", metadata={"help": "number format of weights and arithmetic"})
    device: str = field(default="auto", metadata={"help": "cpu, cuda or cuda:1; auto takes CUDA if there is one"})
    trust_remote_code: bool = field(default=False, metadata={"help": "run code that comes with a model"})


def bundled_pairs() -> dict[str, dict[str, Path]]:
    """The pairs that ship with the package: name -> {"target": folder, "draft": folder}."""
    root = Path(str(files("draftwood"))) / "pairs"
    pairs = {}
    for folder in sorted(root.glob("*")):
        parts = {part: folder / part for part in ("target", "draft")}
        if all((path / "model.safetensors").is_file() for path in parts.values()):
            pairs[folder.name] = parts
    return pairs


def load(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    options: LoadOptions | None = None,
) -> Pair:
    """Load a target and, optionally, a draft model: hub names or local folders, safetensors only.

    Without a target the bundled language pair is loaded.

    Raises:
        ConfigError: an unknown device or dtype, a draft without a target.
        ModelError: a model or tokenizer that cannot be loaded or cannot score a tree.
        PairingError: two models that do not speak the same tokens.
    """
    options = options or LoadOptions()
    if target is None:
        if draft is not None:
            raise ConfigError(f"draft {str(draft)!r} was given without a target: name the target too")
        pair = bundled_pairs().get("language")
        if pair is None:
            raise ModelError("this installation holds no bundled pair: name a target model (and a draft model)")
        target, draft = pair["target"], pair["draft"]
    for name in (target, draft):
        if name is not None:
            _check_path(name)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    tokenizer = _load_tokenizer(target, options)
    model = load_model(target, options, device, dtype)
    draft_model = None
    if draft is not None:
        draft_model = load_model(draft, options, device, dtype)
        check_tokenizers(tokenizer, _load_tokenizer(draft, options), str(target), str(draft))
    return Pair(model, draft_model, tokenizer)


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] == "mps":
        raise ConfigError("device 'mps' has no float64, which the noise needs: use --device cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here ({first}): use --device auto or cpu") from error
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16 on accelerators and float32 on the CPU."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ConfigError(f"dtype is {name!r}: choose one of auto, {', '.join(_DTYPES)}")
    dtype: torch.dtype = _DTYPES[name]
    return dtype


def load_model(name: str | Path, options: LoadOptions, device: torch.device, dtype: torch.dtype) -> Any:
    """A causal language model in evaluation mode.

    Raises:
        ModelError: it cannot be loaded; says from where and why.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(name), dtype=dtype, use_safetensors=True, trust_remote_code=options.trust_remote_code
        )
    except Exception as error:
        raise ModelError(_cannot_load("model", name, error)) from error
    return model.eval().to(device)


def _load_tokenizer(name: str | Path, options: LoadOptions) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(name), trust_remote_code=options.trust_remote_code)
    except Exception as error:
        raise ModelError(_cannot_load("tokenizer", name, error)) from error


def _check_path(name: str | Path) -> None:
    """A path that does not exist would be taken for a hub name."""
    text = str(name)
    if text.startswith("~"):
        raise ModelError(f"{text!r} begins with ~, which only a shell expands: write the whole path")
    if (isinstance(name, Path) or text.startswith((".", "/")) or text.count("/") > 1) and not Path(text).is_dir():
        raise ModelError(f"there is no folder {text!r}: give a folder made by save_pretrained, or the name of a hub model")


def quiet_loading() -> None:
    """For command lines: no loading bars and no advice from transformers; downloads still show their progress."""
    from huggingface_hub.utils.tqdm import enable_progress_bars
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    enable_progress_bars()


def _cannot_load(what: str, name: str | Path, error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"the {what} of {str(name)!r} cannot be loaded: {lines[0]} Give a folder made by save_pretrained (config.json, "
        "model.safetensors, tokenizer.json) or the name of a hub model with safetensors weights"
    )


def check_tokenizers(target: Any, draft: Any, target_name: str, draft_name: str) -> None:
    """Both models must mean the same by every token id.

    Raises:
        PairingError: names the first difference.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    for token, index in sorted(theirs.items(), key=lambda item: item[1]):
        if ours.get(token, index) != index or (token not in ours and index < len(ours)):
            raise PairingError(
                f"{draft_name!r} cannot draft for {target_name!r}: token {token!r} is number {index} for the draft and "
                f"{ours.get(token, 'unknown')} for the target. Take two models with the same tokenizer"
            )


@final
class Pair:
    """A target model, its draft model and their tokenizer, ready to generate.

    Without a ``sampling`` of its own a call uses ``self.sampling``, which the target's generation config asks for.

    Args:
        model: the target, a ``transformers`` causal language model.
        draft_model: the draft model, or None.
        tokenizer: the tokenizer of both.

    Raises:
        ModelError: a model that cannot score a tree.
    """

    def __init__(self, model: Any, draft_model: Any, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.target = TorchRunner(model)
        self.draft = TorchRunner(draft_model, drafts=True) if draft_model is not None else None
        self._in_use = Lock()
        self.eos = eos_of(model, tokenizer)
        self.sampling = sampling_of(model)

    def decoder(self, method: Method | None = None, *, greedy: bool = False) -> Decoder:
        """A decoder for token ids; the pair's models serve one stream at a time."""
        drafter, verifier = build(method or Method(), self.draft, greedy=greedy)
        return Decoder(self.target, drafter, verifier, tokenizer=self.tokenizer, eos=self.eos, in_use=self._in_use)

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a prompt; an empty text becomes the beginning-of-text token if there is one.

        Raises:
            ConfigError: an empty prompt for a tokenizer without a beginning-of-text token.
        """
        ids = list(self.tokenizer(prompt)["input_ids"]) if isinstance(prompt, str) else list(prompt)
        if not ids and self.tokenizer.bos_token_id is not None:
            ids = [int(self.tokenizer.bos_token_id)]
        if not ids:
            raise ConfigError("the prompt is empty and the tokenizer has no beginning-of-text token: give some text")
        return ids

    def requests(
        self, prompts: Sequence[str | Sequence[int]], limits: Limits | None, seeds: Sequence[int | None]
    ) -> list[Request]:
        """Encoded requests; a seed that is None is drawn."""
        return [
            Request(
                prompt=self.encode(prompt),
                seed=secrets.randbits(32) if seed is None else whole("seed", seed),
                limits=limits or Limits(),
            )
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    def stream(
        self,
        prompt: str,
        *,
        method: Method | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
    ) -> Iterator[Piece]:
        """One prompt, round by round; raises what :meth:`Decoder.stream` raises."""
        sampling = sampling or self.sampling
        decoder = self.decoder(method, greedy=sampling.greedy)
        for pieces in decoder.stream(self.requests([prompt], limits, [seed]), sampling):
            yield from pieces

    @overload
    def generate(  # type: ignore[overload-overlap]  # to the type checker a str is a sequence of str
        self,
        prompt: str,
        *,
        method: Method | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str],
        *,
        method: Method | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int | Sequence[int] | None = None,
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        method: Method | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        seed: int | Sequence[int] | None = None,
    ) -> Result | list[Result]:
        """One prompt, or several at once; with several, one seed counts up from row to row.

        Raises:
            ConfigError: as many seeds as prompts are wanted; else what :meth:`Decoder.stream` raises.
        """
        single = isinstance(prompt, str)
        prompts = [prompt] if isinstance(prompt, str) else list(several("prompt", prompt, str, "texts"))
        seeds: list[int | None] = [None] * len(prompts)
        if isinstance(seed, list | tuple):
            seeds = list(seed)
        elif seed is not None:
            seeds = [whole("seed", seed) + i for i in range(len(prompts))]
        if len(seeds) != len(prompts):
            raise ConfigError(f"{len(seeds)} seeds came for {len(prompts)} prompts: give one each, or a single number")
        sampling = sampling or self.sampling
        decoder = self.decoder(method, greedy=sampling.greedy)
        results = decoder.generate(self.requests(prompts, limits, seeds), sampling)
        return results[0] if single else results


def sampling_of(model: Any) -> Sampling:
    """What the target's generation config asks for, as in ``transformers``; the model's own law where it says nothing."""
    asked = model.generation_config.to_diff_dict() if getattr(model, "generation_config", None) is not None else {}
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return Sampling(**{n: asked[n] for n in names if asked.get("do_sample") and asked.get(n) is not None})


def eos_of(model: Any, tokenizer: Any) -> list[int]:
    """End-of-text tokens: the generation config's, else the model's, else the tokenizer's."""
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return [int(found)] if isinstance(found, int) else [int(t) for t in found]
    return []
