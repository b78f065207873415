"""What a drafter of hidden states learns from: hidden states and next-token distributions of the target, on its chats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood.core.files import replacing
from draftwood.train.chat_files import Chat, check_tokens, read_part

KEPT = 256  # likeliest tokens of a distribution that are stored; of SmolLM2's they hold 96 % (1,178 tokens of its chats)
_ROWS = 16  # chats in one forward
_NAMES = ("hidden", "tops", "log_probs")  # of an example's tensors in a file


class Example(NamedTuple):
    """One chat.

    Attributes:
        tokens: its token ids.
        answered: which of them the target wrote.
        hidden: bfloat16, the target's hidden states of ``target_layers`` at each token, concatenated.
        tops, log_probs: the likeliest next tokens after each token and their log-probabilities; arbitrary where the target
            did not write the next token.
    """

    tokens: Int[Tensor, "token"]
    answered: Bool[Tensor, "token"]
    hidden: Float[Tensor, "token taps_width"]
    tops: Int[Tensor, "token kept"]
    log_probs: Float[Tensor, "token kept"]


@final
class Features:
    """The examples of a folder of chats, read from files that :func:`write_features` wrote.

    Attributes:
        lengths: number of tokens of each example.
    """

    def __init__(self, chats: Path, folder: Path) -> None:
        parts = {folder / (path.stem + ".safetensors"): read_part(path) for path in sorted(chats.glob("[0-9]*.npz"))}
        self._chats = [(chat, path, at) for path, part in parts.items() for at, chat in enumerate(part)]
        self.lengths = [len(chat.tokens) for chat, _, _ in self._chats]

    def __len__(self) -> int:
        return len(self._chats)

    def __getitem__(self, index: int) -> Example:
        chat, path, at = self._chats[index]
        with safe_open(path, framework="pt") as file:
            found = [file.get_tensor(f"{name}.{at}") for name in _NAMES]
        return Example(torch.tensor(chat.tokens), torch.tensor(chat.answered), *found)

    def frequent_tokens(self, examples: Sequence[int], vocab: int, count: int) -> Int[Tensor, "token"]:
        """The tokens that the target wrote most in these examples, by the sums of its probabilities, sorted by id."""
        mass = torch.zeros(vocab, dtype=torch.float64)
        for example in (self[index] for index in examples):
            wrote = example.answered[1:]
            tops, probs = example.tops[:-1][wrote], example.log_probs[:-1][wrote].double().exp()
            mass.index_add_(0, tops.flatten().long(), probs.flatten())
        found: Tensor = mass.topk(min(count, vocab)).indices.sort().values
        return found


def write_features(target: Any, layers: Sequence[int], chats: Path, folder: Path) -> None:
    """Read chats with the target, a file at a time. Files that were made of the same chats and layers are kept.

    Args:
        target: a causal language model in evaluation mode.
        layers: numbers as in ``output_hidden_states``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(chats.glob("[0-9]*.npz")):
        out = folder / (path.stem + ".safetensors")
        made_of = _made_of(path, layers)
        if out.is_file() and _metadata(out) == made_of:
            continue
        part, began = read_part(path), perf_counter()
        check_tokens(part, chats, int(target.get_output_embeddings().weight.shape[0]))
        found = _read(target, layers, part)
        with replacing(out) as written:
            save_file(found, written, metadata=made_of)
        tokens = sum(len(chat.tokens) for chat in part)
        print(f"read {out.stem}: {tokens} tokens, {tokens / (perf_counter() - began):.0f} a second", flush=True)


def examples_of(target: Any, layers: Sequence[int], chats: Sequence[Chat]) -> list[Example]:
    """The examples of chats, read with the target and kept in memory; arguments as for :func:`write_features`."""
    parts = (chats[at : at + _ROWS] for at in range(0, len(chats), _ROWS))
    found = (tensors for part in parts for tensors in _forward(target, layers, part))
    return [
        Example(torch.tensor(chat.tokens), torch.tensor(chat.answered), *tensors)
        for chat, tensors in zip(chats, found, strict=True)
    ]


def _made_of(chats: Path, layers: Sequence[int]) -> dict[str, str]:
    """What the features of a file of chats depend on, apart from the target."""
    digest = hashlib.sha256(chats.read_bytes()).hexdigest()
    return {"chats": digest, "layers": " ".join(map(str, layers)), "tops": str(KEPT), "scores": "capped and scaled"}


def _metadata(features: Path) -> dict[str, str] | None:
    with safe_open(features, framework="pt") as file:
        found: dict[str, str] | None = file.metadata()
        return found


def _read(target: Any, layers: Sequence[int], chats: Sequence[Chat]) -> dict[str, Tensor]:
    """The tensors of a file, by name and number of the chat. Chats of nearly equal lengths are read together."""
    found, order = dict[str, Tensor](), sorted(range(len(chats)), key=lambda i: len(chats[i].tokens))
    for begin in range(0, len(order), _ROWS):
        rows = order[begin : begin + _ROWS]
        for row, tensors in zip(rows, _forward(target, layers, [chats[row] for row in rows]), strict=True):
            found |= {f"{name}.{row}": tensor for name, tensor in zip(_NAMES, tensors, strict=True)}
    return found


def _scores(target: Any, states: Float[Tensor, "token width"]) -> Float[Tensor, "token vocab"]:
    """The scores of a model, which may scale or cap what its head gives."""
    config = target.config.get_text_config()
    scores: Tensor = target.get_output_embeddings()(states).float()
    scores = scores * (getattr(config, "logit_scale", None) or 1) / (getattr(config, "logits_scaling", None) or 1)
    cap = getattr(config, "final_logit_softcapping", None)
    return cap * (scores / cap).tanh() if cap else scores


@torch.inference_mode()
def _forward(target: Any, layers: Sequence[int], chats: Sequence[Chat]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    tokens = pad_sequence([torch.tensor(chat.tokens) for chat in chats], batch_first=True).to(target.device)
    out = target.base_model(tokens, output_hidden_states=True, use_cache=False)  # padding on the right is never seen
    hidden = torch.cat([out.hidden_states[layer] for layer in layers], dim=-1).to("cpu", torch.bfloat16)
    for row, chat in enumerate(chats):
        wrote = torch.tensor([*chat.answered[1:], False])
        tops = torch.zeros(len(chat.tokens), KEPT, dtype=torch.int32)
        log_probs = torch.zeros(len(chat.tokens), KEPT, dtype=torch.float16)
        scores = _scores(target, out.last_hidden_state[row, : len(wrote)][wrote.to(target.device)]).log_softmax(-1)
        best = scores.topk(min(KEPT, scores.shape[-1]), dim=-1)
        kept = best.values.shape[-1]
        tops[wrote, :kept], log_probs[wrote, :kept] = best.indices.int().cpu(), best.values.half().cpu()
        log_probs[wrote, kept:] = -torch.inf
        yield hidden[row, : len(wrote)].clone(), tops, log_probs
