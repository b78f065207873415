"""``draftwood adapt``: the drafter of a model trained further on its user's own texts, and kept if it drafts better there.

Any drafter is exact, so only the speed depends on it. The target reads the texts; the loss compares its distributions with
the drafter's, as in :mod:`draftwood.train.hidden`. Sources: Liu et al. 2023, "Online Speculative Decoding" (2310.07177).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.core.lock import locked
from draftwood.core.settings import LoadOptions
from draftwood.loading.drafts import load_hidden_drafter
from draftwood.loading.models import load_model, load_tokenizer
from draftwood.loading.names import adapted_drafter, bundled_drafter, locate
from draftwood.runners.hidden.model import HiddenBlockDrafter, vocabulary_digest
from draftwood.train import loop
from draftwood.train.chat_files import Chat, held_out_of, read_chats, save_part
from draftwood.train.config import LEAST_TOKENS, AdaptConfig, DrafterConfig
from draftwood.train.drafter import Lookups, fit_drafter, lookups_of
from draftwood.train.features import Features, write_features
from draftwood.train.hidden import figures
from draftwood.train.number_format import number_format
from draftwood.train.own_texts import Text, examples, read_texts, state_file, state_of

_BETTER: Final = 1.02  # ratio of tokens of a pass on held-out texts from which a drafter is kept
_LOSS: Final = 0.03  # tokens of a pass that it may lose on chats of the target
_RATE: Final = 5e-4  # a quarter of a new drafter's learning rate
_WARMUP: Final = 20  # steps
_SHARES: Final = (1.0, 0.7, 0.5, 0.3, 0.2)  # of the way from the first weights to the trained ones
_EPOCHS: Final = 1_000.0  # the minutes end the training
_NEVER: Final = 1 << 30  # steps
_PART: Final = 64  # examples of a file


@final
class Adapted(NamedTuple):
    """Tokens of a pass with a chain on held-out texts and on held-out chats of the target, before and after.

    Attributes:
        folder: where the drafter is; None if it was not kept.
    """

    texts: tuple[float, float]
    chats: tuple[float, float]
    folder: Path | None


def shipped_drafter(target: str) -> Path:
    """The drafter of a target in this package.

    Raises:
        ConfigError: there is none.
        ModelError: as :func:`draftwood.loading.names.bundled_drafter`.
    """
    found = bundled_drafter(target, adapted=False)
    if found is None:
        raise ConfigError(
            f"this package holds no drafter for {target!r}: train one with 'draftwood train drafter --target {target}', and "
            "train it further with --start"
        )
    return found


def remove(target: str) -> bool:
    """Remove what :func:`adapt` has kept for a target; False if there is nothing. Raises as :func:`shipped_drafter`."""
    folder = adapted_drafter(shipped_drafter(target))
    state_file(folder).unlink(missing_ok=True)
    if not folder.exists():
        return False
    with locked(folder):
        shutil.rmtree(folder)
    return True


def adapt(config: AdaptConfig) -> Adapted:
    """Train the drafter of a target further, from the last one that was kept, and keep it if it is better.

    All but the kept drafter is in a temporary folder, which goes at the end. A stopped run leaves nothing.

    Raises:
        ConfigError: no usable text, fewer than 2,000 tokens of them, no drafter for the target, or another run for it.
        ModelError: the target cannot be loaded.
    """
    loop.require_accelerate()
    shipped, state, texts = shipped_drafter(config.target), state_of(config.texts), read_texts(config.texts)
    kept, start = adapted_drafter(shipped), bundled_drafter(config.target) or shipped
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(kept), TemporaryDirectory(prefix="draftwood-adapt-") as folder:
        work = Path(folder)
        device, name, chats = loop.device(), locate(config.target), work / "chats"
        tokenizer = load_tokenizer(name, LoadOptions())
        groups = _write_examples(_examples(texts, tokenizer, config), shipped / "chats", chats, len(tokenizer))
        target = load_model(name, LoadOptions(), device, number_format(device.type)).requires_grad_(False)
        drafter = load_hidden_drafter(start, device, torch.float32)
        drafter.check_target(target, vocabulary_digest(tokenizer))
        write_features(target, drafter.config.target_layers, chats, work / "features")
        features, lookups = Features(chats, work / "features"), lookups_of(drafter, target)
        training = _mixed(groups["texts"].training, groups["chats"].training)
        run = DrafterConfig(
            target=Path(config.target), out=work / "run", minutes=config.minutes, epochs=_EPOCHS, seed=config.seed,
            learning_rate=_RATE, warmup=_WARMUP, report_every=_NEVER, save_every=_NEVER,
        )  # fmt: skip
        report = partial(_report, lookups=lookups, features=features, groups=groups)
        first = {name: value.clone() for name, value in drafter.state_dict().items()}
        before = fit_drafter(run, drafter, features, training, report, lookups)["history"][0]["report"]
        found = _best_between(drafter, first, partial(loop.measured, report=report), before)
        if is_better(*found):
            _keep(drafter, start, kept, {"texts": found[0], "chats": found[1], "tokens": config.tokens})
        replace_file(state_file(kept), state)
    return Adapted(*found, kept if is_better(*found) else None)


def _best_between(
    drafter: HiddenBlockDrafter,
    first: Mapping[str, Tensor],
    measure: Callable[[Any], dict[str, Any]],
    before: dict[str, Any],
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Go back from the trained weights towards the first ones as far as chats need it; the figures there.

    What is learnt on one kind of text costs others less on the way than at its end (Wortsman et al. 2022, arXiv 2109.01903).
    """
    last = {name: value.clone() for name, value in drafter.state_dict().items()}
    for share in _SHARES:
        drafter.load_state_dict(
            {name: one.lerp(last[name], share) if one.is_floating_point() else one for name, one in first.items()}
        )
        after = measure(drafter)
        texts, chats = ((before[name]["chain"], after[name]["chain"]) for name in ("texts", "chats"))
        if is_better(texts, chats):
            break
    return texts, chats


def is_better(texts: tuple[float, float], chats: tuple[float, float]) -> bool:
    """Whether a drafter is kept, by tokens of a pass before and after; see :class:`Adapted`."""
    measured = min(texts[0], chats[0]) >= 1  # a pass has its root; 0 is that of nothing
    return measured and texts[1] >= _BETTER * texts[0] and chats[1] >= chats[0] - _LOSS


class _Group(NamedTuple):
    """Numbers of the examples of one kind."""

    training: Sequence[int]
    held_out: Sequence[int]


def _examples(texts: Sequence[Text], tokenizer: Any, config: AdaptConfig) -> list[Chat]:
    """Pieces of the texts in random order of the texts, as many as the settings allow; what is held out comes first."""
    random.Random(config.seed).shuffle(order := list(texts))
    found, count = list[Chat](), 0
    for piece in (piece for text in order for piece in examples(text, tokenizer)):
        if count >= config.tokens:
            break
        if any(piece.answered[2:]):  # else nothing is drafted in it: it trains and shows nothing
            found.append(piece)
            count += len(piece.tokens)
    if count < LEAST_TOKENS:
        raise ConfigError(f"the texts have {count} tokens: give texts of {LEAST_TOKENS} tokens or more")
    return found


def _write_examples(own: Sequence[Chat], known: Path, chats: Path, vocab: int) -> dict[str, _Group]:
    """Write known chats of the target and the user's own texts into a folder; their numbers there."""
    chats.mkdir()
    for file in known.iterdir():
        shutil.copyfile(file, chats / file.name)  # not its mode: a package may be read-only
    begin = len(read_chats(chats))
    part = len(list(chats.glob("[0-9]*.npz")))
    for number, at in enumerate(range(0, len(own), _PART), part):
        save_part(chats / f"{number:05d}.npz", own[at : at + _PART], vocab)
    training, held_out = held_out_of(len(own))
    moved = _Group([begin + i for i in training], [begin + i for i in held_out])
    return {"texts": moved, "chats": _Group(*held_out_of(begin))}


def _mixed(texts: Sequence[int], chats: Sequence[int]) -> list[int]:
    """Examples of an epoch: all chats, and the texts so often that three of four are theirs, or one time.

    What is trained on again and again is forgotten less (Robins 1995, rehearsal).
    """
    return [*texts] * max(1, round(3 * len(chats) / len(texts))) + [*chats]


def _report(model: Any, *, lookups: Lookups, features: Features, groups: dict[str, _Group]) -> dict[str, Any]:
    return {name: figures(model, **lookups, features=features, held_out=one.held_out) for name, one in groups.items()}


def _keep(drafter: HiddenBlockDrafter, start: Path, kept: Path, metrics: dict[str, Any]) -> None:
    """Put a drafter in the place of the last one, readable for its user alone. After an error the last one is there."""
    with TemporaryDirectory(prefix=f"{kept.name}.", dir=kept.parent) as folder:
        part, last = Path(folder) / "part", Path(folder) / "last"
        part.mkdir(mode=0o700)
        loop.save_weights(drafter, part)
        loop.write_json(part / "metrics.json", metrics)
        if (calibration := start / "calibration.json").is_file():
            shutil.copy(calibration, part)
        for file in part.iterdir():
            file.chmod(0o600)
        try:
            if kept.exists():
                kept.rename(last)
            part.rename(kept)
        except BaseException:
            if last.exists() and not kept.exists():
                last.rename(kept)
            raise
