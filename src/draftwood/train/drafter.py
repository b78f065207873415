"""``draftwood train drafter``: chats or texts of the target, what it says about them, training and figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions
from draftwood.loading.drafts import load_hidden_drafter
from draftwood.loading.models import load_model, load_tokenizer
from draftwood.loading.names import locate
from draftwood.runners.hidden.model import HiddenBlockDrafter, vocabulary_digest
from draftwood.train import loop
from draftwood.train.chat_files import held_out_of
from draftwood.train.chats import chats_for
from draftwood.train.config import DrafterConfig
from draftwood.train.features import AnchorBatches, Batch, Features, write_features
from draftwood.train.hidden import block_loss, figures, new_drafter, taps
from draftwood.train.number_format import autocast, number_format


def train_drafter(config: DrafterConfig) -> dict[str, Any]:
    """Train a drafter into ``config.out``; returns the contents of ``metrics.json``.

    Every part of a stopped run is resumed: the chats, the reading of them, and the training.

    Raises:
        ConfigError: invalid settings, a target without a usable chat template, too few chats, or chats of another model.
        ModelError: the target or the drafter to start from cannot be loaded.
    """
    name = locate(config.target)
    device, options = loop.device(), LoadOptions()
    started = None if config.start is None else load_hidden_drafter(config.start, device, torch.float32)
    loop.claim(config)
    chats = chats_for(config)
    tokenizer = load_tokenizer(name, options)
    target = load_model(name, options, device, number_format(device.type)).requires_grad_(False)
    layers = taps(target.config.num_hidden_layers, config.layers) if started is None else started.config.target_layers
    write_features(target, layers, chats, config.out / "features")
    features = Features(chats, config.out / "features")
    training, held_out = held_out_of(len(features))
    if not len(training):
        raise ConfigError(f"{chats} holds {len(features)} chats: write more, with train chats --tokens")
    torch.manual_seed(config.seed)
    if started is None:
        vocab = int(target.get_output_embeddings().weight.shape[0])
        tokens = features.frequent_tokens(training, vocab, config.draft_vocab)
        drafter = new_drafter(config, target, tokenizer, tokens)
    else:
        started.check_target(target, vocabulary_digest(tokenizer))
        drafter = started
    lookups = lookups_of(drafter, target)
    found = fit_drafter(
        config, drafter, features, training, partial(figures, **lookups, features=features, held_out=held_out), lookups
    )
    loop.save_weights(drafter, config.out)
    metrics = loop.record(config, drafter, {"chats": sum(features.lengths[i] for i in held_out)}, found)
    print(f"The drafter is in {config.out}, with its figures in metrics.json.", flush=True)
    return metrics


class Lookups(TypedDict):
    """What a drafter takes from its target.

    Attributes:
        embed: the embeddings.
        head: the output weights of the tokens that the drafter proposes.
        index: int64 [vocab], the number of each token in the drafter's vocabulary, -1 where it has none.
    """

    embed: nn.Module
    head: Tensor
    index: Tensor


def lookups_of(drafter: HiddenBlockDrafter, target: Any) -> Lookups:
    tokens = drafter.draft_tokens.long()
    index = torch.full((drafter.config.vocab_size,), -1)
    index[tokens.cpu()] = torch.arange(len(tokens))
    head = target.get_output_embeddings().weight[tokens].clone()
    return Lookups(embed=target.get_input_embeddings(), head=head, index=index)


def fit_drafter(
    config: DrafterConfig,
    drafter: HiddenBlockDrafter,
    features: Features,
    training: Sequence[int],
    report: loop.Report,
    lookups: Lookups,
) -> dict[str, Any]:
    """Train on these examples; returns what :func:`draftwood.train.loop.fit` does, and the last report as ``held_out``."""
    steps = round(config.epochs * len(training) / config.batch) if config.steps is None else config.steps
    block, index = drafter.config.block, lookups["index"]
    dataset = AnchorBatches(features, training, config, steps=max(1, steps), block=block, index=index)

    def loss(model: Any, inputs: Batch, state: object) -> Tensor:
        with autocast(model.device):
            return block_loss(model, lookups["embed"], lookups["head"], inputs)

    what = f"{len(training):,} chats, {len(dataset):,} steps"
    result = loop.fit(config, drafter, dataset, report, loss=loss, what=what)
    found = loop.measured(drafter, report)
    loop.show("end", found)
    return {"held_out": found, **result}
