"""Trains drafters of hidden states on a CUDA device, on chats that the target writes there and reads in every step.

``python -m recipes.drafter --target FOLDER --data FOLDER --start FOLDER --variant 2,muon --out FOLDER``

Nothing is stored between the target and its drafters: a step reads a batch of chats with the target, and its hidden states
and distributions train every ``--variant``. ``0,adamw`` is the drafter of ``--start`` trained further, ``2,muon`` a new one
that begins with the target's last two layers. ``draftwood train drafter`` does the same on a processor, from stored states.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "src"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from benchmarks.cuda.stand_ins import install  # noqa: E402

install()

from draftwood.core.settings import LoadOptions  # noqa: E402
from draftwood.loading.drafts import load_hidden_drafter  # noqa: E402
from draftwood.loading.models import eos_of, load_model, load_tokenizer  # noqa: E402
from draftwood.runners.hidden.model import HiddenBlockDrafter, vocabulary_digest  # noqa: E402
from draftwood.train.chat_files import Chat, read_chats  # noqa: E402
from draftwood.train.chats import Template, Turns  # noqa: E402
from draftwood.train.config import DrafterConfig  # noqa: E402
from draftwood.train.drafter import Lookups, lookups_of  # noqa: E402
from draftwood.train.features import (  # noqa: E402
    KEPT,
    examples_of,
    near_batches,
)
from draftwood.train.hidden import block_loss, figures, new_drafter  # noqa: E402
from draftwood.train.number_format import autocast  # noqa: E402
from recipes import answers  # noqa: E402
from recipes.muon import MuonAdamW  # noqa: E402
from recipes.turns import text_turns  # noqa: E402

HELD_OUT = 64  # chats of each kind
TEMPERATURES: Final = (0.0, 0.6, 1.0, 1.0)  # of answers, equally likely
MOST: Final = 384  # tokens of an answer: longer ones repeat themselves at low temperatures


class Read(NamedTuple):
    """What the target says about a batch of chats.

    Attributes:
        tokens, answered: [row, token].
        hidden: of every layer, [row, token, width].
        tops, log_probs: [place, kept] of the tokens whose next one it wrote, as numbers of the draft's vocabulary.
        place: [row, token], the place of a token there.
    """

    tokens: Tensor
    answered: Tensor
    hidden: Sequence[Tensor]
    tops: Tensor
    log_probs: Tensor
    place: Tensor


@torch.inference_mode()
def read(target: Any, chats: Sequence[Chat], ids: Tensor) -> Read:
    """Read chats; padding on the right is never seen."""
    longest, device = max(len(chat.tokens) for chat in chats), target.device
    tokens = np.zeros((len(chats), longest), dtype=np.int64)
    answered = np.zeros((len(chats), longest), dtype=bool)
    for row, chat in enumerate(chats):
        tokens[row, : len(chat.tokens)], answered[row, : len(chat.tokens)] = chat
    on_device, wrote = torch.from_numpy(tokens).to(device), torch.from_numpy(answered).to(device)
    out = target.model(on_device, output_hidden_states=True, use_cache=False)
    following = torch.cat([wrote[:, 1:], torch.zeros_like(wrote[:, :1])], dim=1)
    best = []
    for part in out.last_hidden_state[following].split(4096):
        scores = target.lm_head(part).float()
        found = (scores[:, ids] - scores.logsumexp(-1, keepdim=True)).topk(min(KEPT, len(ids)), dim=-1)
        best.append((found.indices, found.values))
    tops, log_probs = (torch.cat(parts) for parts in zip(*best, strict=True))
    place = (following.flatten().cumsum(0) - 1).clamp(min=0).view_as(on_device)
    return Read(on_device, wrote, out.hidden_states, tops, log_probs, place)


def batch_of(found: Read, anchors: Tensor, layers: Sequence[int], block: int) -> dict[str, Tensor]:
    """The batch of :func:`draftwood.train.features.batch_of`, from tensors on the device."""
    rows, last = torch.arange(len(anchors), device=anchors.device)[:, None, None], found.tokens.shape[1] - 1
    slots = anchors[:, :, None] + torch.arange(block, device=anchors.device)
    parents, following = slots.clamp(max=last), (slots + 1).clamp(max=last)
    # The target wrote all tokens of a block up to the first that it did not.
    real = (found.answered[rows, following] & (slots < last)).cumprod(-1).bool()
    place = found.place[rows, parents]
    hidden = torch.cat([found.hidden[layer] for layer in layers], dim=-1)
    return {
        "hidden": hidden.clone(), "anchors": anchors, "parents": found.tokens[rows, parents], "real": real,
        "tops": found.tops[place], "log_probs": found.log_probs[place],
    }  # fmt: skip


def batches(chats: Sequence[Chat], size: int, rng: np.random.Generator) -> Iterator[list[Chat]]:
    """Endless batches of chats of nearly equal lengths."""
    lengths = [len(chat.tokens) for chat in chats]
    while True:
        found = near_batches(rng.permutation(len(chats)).tolist(), lengths, size)
        for at in rng.permutation(len(found)):
            yield [chats[i] for i in found[at]]


def written(given: argparse.Namespace, target: Any, tokenizer: Any) -> list[Chat]:
    """Chats that the target writes within ``--write-seconds``."""
    template = Template.of(tokenizer, eos_of(target, tokenizer, target.lm_head.weight.shape[0]))
    texts = text_turns(given.data, given.turns, given.seed)
    first = tokenizer(texts, add_special_tokens=False)["input_ids"]
    first = [turn for turn in first if len(turn) < given.longest - MOST]
    print(f"{len(first):,} first turns", flush=True)
    chats = Turns(
        template=template, first=first, longest=given.longest, temperatures=TEMPERATURES, rng=random.Random(given.seed),
        answer=MOST,
    )  # fmt: skip
    found, began, said = [], perf_counter(), perf_counter()
    for chat in answers.write(answers.Rows(target, given.rows, given.longest), chats):
        found.append(chat)
        now = perf_counter()
        if now - said > 10 or now - began > given.write_seconds:
            count, said = sum(sum(one.answered) for one in found), now
            print(f"{len(found):,} chats, {count:,} tokens of answers, {count / (now - began):,.0f} a second", flush=True)
        if now - began > given.write_seconds:
            return found
    raise AssertionError("the iterator is endless")


def train(
    given: argparse.Namespace, target: Any, drafters: dict[str, Any], chats: list[Chat], held_out: dict[str, list[Chat]]
) -> dict[str, Any]:
    """Train all drafters on the same batches until the time is up; the learning rate falls to zero with it.

    Returns:
        The number of steps and of blocks, and the figures on the held-out chats at each report.
    """
    some_drafter = next(iter(drafters.values()))
    ids, lookups = some_drafter.draft_tokens.long(), lookups_of(some_drafter, target)
    shown = {
        name: {kind: examples_of(target, one.config.target_layers, part) for kind, part in held_out.items()}
        for name, one in drafters.items()
    }
    optimizers = {name: optimizer(name, one, given.learning_rate) for name, one in drafters.items()}
    history: list[dict[str, Any]] = []
    began, step, reported = perf_counter(), 0, -1.0
    for some in batches(chats, given.batch, np.random.default_rng(given.seed)):
        done = (perf_counter() - began) / given.train_seconds
        if done >= min(1.0, reported + given.report_every):
            reported = done
            for name, one in drafters.items():
                with torch.no_grad():
                    found = {
                        kind: figures(one, **lookups, features=part, held_out=range(len(part)))
                        for kind, part in shown[name].items()
                    }
                history.append({"step": step, "seconds": round(perf_counter() - began, 1), "drafter": name, **found})
                print(json.dumps(history[-1]), flush=True)
        if done >= 1:
            break
        batch = read(target, some, ids)
        anchors = chosen_anchors(batch, given.anchors)
        rate = given.learning_rate * min(1.0, (step + 1) / given.warmup) * (1 - done)
        for name, one in drafters.items():
            layers, block = one.config.target_layers, one.config.block
            update(one, optimizers[name], rate, lookups, batch_of(batch, anchors, layers, block))
        step += 1
    return {"steps": step, "blocks": step * given.batch * given.anchors, "history": history}


def optimizer(name: str, drafter: Any, rate: float) -> torch.optim.Optimizer:
    """The optimizer that the name of a variant ends in."""
    if name.endswith("muon"):
        return MuonAdamW(drafter, rate, 0.01, (0.9, 0.95))
    return torch.optim.AdamW(drafter.parameters(), rate, (0.9, 0.95), weight_decay=0.01)


def chosen_anchors(found: Read, count: int) -> Tensor:
    """Random anchors [row, anchor] before tokens that the target wrote, with repetition."""
    may = torch.zeros_like(found.answered, dtype=torch.float32)
    may[:, 1:-1] = found.answered[:, 2:]
    may[may.sum(1) == 0, 1] = 1.0  # a chat without an answer: its blocks count nothing
    return torch.multinomial(may, count, replacement=True)


def update(drafter: Any, using: torch.optim.Optimizer, rate: float, lookups: Lookups, batch: dict[str, Tensor]) -> None:
    """One step of a drafter."""
    with autocast(drafter.device):
        loss: Any = block_loss(drafter, lookups["embed"], lookups["head"], batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
    for group in using.param_groups:
        group["lr"] = rate
    using.step()
    using.zero_grad(set_to_none=True)


def main() -> None:
    """Write chats, train, and save every drafter with its figures."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="folder of a Llama-like chat model")
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.train.txt: some first user turns")
    parser.add_argument("--start", type=Path, required=True, help="drafter to train further")
    parser.add_argument("--variant", action="append", required=True, help="LAYERS,adamw or LAYERS,muon; 0 layers: --start")
    parser.add_argument("--held-out", type=Path, help="folder of chats; its first 64 are another held-out set")
    parser.add_argument("--out", type=Path, required=True)
    for name, value in (
        ("turns", 30_000),
        ("rows", 1024),
        ("longest", 1152),
        ("batch", 64),
        ("anchors", 64),
        ("seed", 0),
        ("warmup", 100),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, seconds in (
        ("write-seconds", 120.0),
        ("train-seconds", 280.0),
        ("learning-rate", 2e-3),
        ("report-every", 0.2),
    ):
        parser.add_argument(f"--{name}", type=float, default=seconds)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(given.seed)
    tokenizer = load_tokenizer(given.target, LoadOptions())
    target = load_model(given.target, LoadOptions(), device, torch.bfloat16).requires_grad_(False).eval()
    print("loaded", flush=True)
    chats = written(given, target, tokenizer)
    torch.cuda.empty_cache()
    held = {"new": chats[:HELD_OUT]}
    if given.held_out is not None:
        held["old"] = read_chats(given.held_out)[:HELD_OUT]
    drafters: dict[str, HiddenBlockDrafter] = {}
    for variant in given.variant:
        layers, one = int(variant.split(",")[0]), load_hidden_drafter(given.start, device, torch.float32)
        one.check_target(target, vocabulary_digest(tokenizer))
        if layers:
            config = DrafterConfig(out=given.out, target=given.target, layers=layers)
            one = new_drafter(config, target, tokenizer, one.draft_tokens.cpu())
        drafters[variant.replace(",", "-")] = one.to(device).requires_grad_(True).train()
    metrics = train(given, target, drafters, chats[HELD_OUT:], held)
    metrics["chats"], metrics["tokens"] = len(chats), sum(sum(chat.answered) for chat in chats)
    for name, one in drafters.items():
        one.to(torch.bfloat16).save_pretrained(given.out / name)
    (given.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
