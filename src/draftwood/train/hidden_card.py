"""The model card of a drafter of hidden states: what it is, the command that made it, and its held-out figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from draftwood.runners.hidden.model import HiddenBlockConfig
from draftwood.train.config import DrafterConfig
from draftwood.train.hidden_report import TREE


def card(config: DrafterConfig, drafter: HiddenBlockConfig, metrics: Mapping[str, Any]) -> str:
    """The text of ``README.md``; ``metrics`` are the contents of ``metrics.json``."""
    found, own = metrics["held_out"], drafter
    facts = "\n".join([
        f"* {metrics['parameters']:,} parameters in bfloat16: {own.num_hidden_layers} layer(s) of width {own.hidden_size}, "
        f"a Markov head of rank {own.markov_rank}",
        f"* reads the hidden states {', '.join(map(str, own.target_layers))} of {own.target_depth} of its target, "
        "and shares its embeddings and output weights",
        f"* proposes {own.draft_vocab_size:,} of {own.vocab_size:,} tokens",
    ])  # fmt: skip
    training = (
        f"{metrics['steps']:,} steps of {config.batch} chats with {config.anchors} blocks each "
        f"({metrics['tokens_seen']:,} blocks) in {metrics['seconds'] / 60:.0f} minutes."
    )
    rows = [(f"step {entry['step']:,}", entry["report"]) for entry in metrics["history"] if "report" in entry]
    return f"""# A drafter for {config.target.name}

It drafts a tree of up to {own.block} levels in one pass over the hidden states of its target, for `draftwood`.

{facts}

## Training

{training}

```
{_command(config)}
```

## Figures

On held-out chats of the target ({metrics["held_out_tokens"]["chats"]:,} tokens), at temperature 1. `chain` is the
expected number of tokens of a pass with a chain. `tree` is one more than the number of tokens of the chat in the
best-first tree of {TREE} nodes. Rejection rates are by slot. A token that the drafter cannot propose counts as rejected.

| | rejection by slot | chain | tree |
|---|---|---:|---:|
{_table([*rows, ("end", found)])}
"""


def _table(rows: list[tuple[str, Mapping[str, Any]]]) -> str:
    return "\n".join(
        f"| {name} | {_shown(found['rejection'])} | {found['chain']:.3f} | {found['tree']:.3f} |" for name, found in rows
    )


def _shown(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def _command(config: DrafterConfig) -> str:
    """The command with every setting that is not the default; paths are cut to their last part."""
    parts = ["draftwood train drafter"]
    for field in fields(config):
        value = getattr(config, field.name)
        if field.default is not MISSING and value == field.default:
            continue
        shown = getattr(value, "name", value)
        parts.append(f"--{field.name.replace('_', '-')} {shown}")
    return " \\\n  ".join(parts)
