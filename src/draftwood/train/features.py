"""What a drafter of hidden states learns from: hidden states and next-token distributions of the target on its chats, and
batches of these with anchors, tokens after which the drafter predicts a block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood.core.files import replacing
from draftwood.train.chat_files import Chat, check_tokens, read_part
from draftwood.train.config import DrafterConfig

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


Batch = dict[str, Tensor]
HIDDEN_TYPE = torch.bfloat16  # of stored hidden states


def batch_of(examples: Sequence[Example], anchors: Sequence[Tensor], block: int, index: Tensor) -> Batch:
    """Pad examples to one batch, and look up what the target says about their blocks.

    A block at anchor ``t`` sees the hidden states of the tokens before ``t``, and token ``t`` is its root. Its slot ``k``
    predicts token ``t + k + 1``.

    Args:
        anchors: int64 [anchor] per example, the same number each.
        index: int64 [vocab], the number of each token in the draft's vocabulary, -1 where it has none.

    Returns:
        ``hidden`` [row, token, taps_width] and ``anchors`` [row, anchor]. By [row, anchor, slot]: ``parents``, the token
        before each prediction; ``real``, whether the target wrote the predicted token. By [row, anchor, slot, kept]:
        ``tops`` and ``log_probs``, the target's likeliest tokens, numbered as in the draft's vocabulary, -inf where the
        draft cannot propose them.
    """
    longest = max(len(example.tokens) for example in examples)
    hidden = torch.zeros(len(examples), longest, examples[0].hidden.shape[1], dtype=HIDDEN_TYPE)
    rows: list[tuple[Tensor, ...]] = []
    for row, (example, at) in enumerate(zip(examples, anchors, strict=True)):
        hidden[row, : len(example.tokens)] = example.hidden
        last = len(example.tokens) - 1
        slots = at[:, None] + torch.arange(block)
        parents, following = slots.clamp(max=last), (slots + 1).clamp(max=last)
        tops = index[example.tops[parents].long()]
        log_probs = example.log_probs[parents].float().masked_fill(tops < 0, -torch.inf)
        real = example.answered[following] & (slots < last)
        rows.append((example.tokens[parents], tops.clamp(min=0), log_probs, real))
    names = ("parents", "tops", "log_probs", "real")
    stacked = {name: torch.stack(parts) for name, parts in zip(names, zip(*rows, strict=True), strict=True)}
    return {"hidden": hidden, "anchors": torch.stack(list(anchors)), **stacked}


class AnchorBatches(torch.utils.data.Dataset[Batch]):
    """Training batches; a batch depends on its number and the seed only.

    An epoch holds every example once. Examples of nearly equal lengths share a batch.
    """

    def __init__(
        self, features: Features, examples: Sequence[int], config: DrafterConfig, *, steps: int, block: int, index: Tensor
    ) -> None:
        self.features, self.examples, self.steps, self.block, self.index = features, list(examples), steps, block, index
        self.batch, self.anchors, self.seed = config.batch, config.anchors, config.seed
        self.steps_per_epoch = max(1, len(self.examples) // self.batch)
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def __len__(self) -> int:
        return self.steps

    def tokens_until(self, steps: int) -> int:
        """Anchors in ``steps`` steps."""
        return steps * self.batch * self.anchors

    def __getitem__(self, step: int) -> Batch:
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = epoch, self._order(epoch)
        examples = [self.features[i] for i in self._epoch[1][at]]
        rng = np.random.default_rng((self.seed, 1, step))
        anchors = [chosen_anchors(example, self.anchors, rng) for example in examples]
        return batch_of(examples, anchors, self.block, self.index)

    def _order(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng((self.seed, 0, epoch))
        shuffled = [self.examples[i] for i in rng.permutation(len(self.examples))]
        batches = near_batches(shuffled, self.features.lengths, self.batch)
        if not batches:  # fewer examples than a batch
            return [[shuffled[i % len(shuffled)] for i in range(self.batch)]]
        return [batches[i] for i in rng.permutation(len(batches))]


def near_batches(shuffled: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Batches of examples of nearly equal lengths; what fills none is left out."""
    windows = (sorted(shuffled[i : i + 16 * size], key=lengths.__getitem__) for i in range(0, len(shuffled), 16 * size))
    return [near[i : i + size] for near in windows for i in range(0, len(near) - size + 1, size)]


def possible_anchors(example: Example) -> Tensor:
    """Tokens whose next token the target wrote; the first token of a text has nothing before it to read."""
    found = torch.arange(len(example.tokens) - 1)[example.answered[1:]]
    return found[found > 0]


def chosen_anchors(example: Example, count: int, rng: np.random.Generator) -> Tensor:
    """``count`` anchors at random, without repetition if there are enough."""
    possible = possible_anchors(example)
    if not len(possible):
        return torch.ones(count, dtype=torch.long)
    picked: Tensor = possible[torch.from_numpy(np.sort(rng.choice(len(possible), count, replace=len(possible) < count)))]
    return picked
