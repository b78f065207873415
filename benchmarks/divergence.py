"""What inputs of 8 bits change: a file's distributions with them and with inputs of 16 bits, on held-out texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.config import DivergenceConfig
from benchmarks.prompts import Prompt
from benchmarks.record import head_of, machine_lines
from benchmarks.report import table
from draftwood.api import Pair
from draftwood.hardware.machine import load_average
from draftwood.hardware.threads import chosen_threads
from draftwood.runners.protocols import Runner
from draftwood.sampling.rows import Row

_AT_ONCE = 32  # tokens of a forward that returns scores


def measure(
    config: DivergenceConfig, fewer: Pair, more: Pair, texts: Sequence[Prompt], on_step: Callable[[], object]
) -> dict[str, Any]:
    """Both on the same tokens; ``on_step`` is called after each piece of a text.

    Args:
        fewer, more: the same target with inputs of 8 and of 16 bits.

    Returns:
        A document of plain values.
    """
    load_before, sources = load_average(), dict[str, Counter[str]]()
    with chosen_threads(fewer.target):
        for text in texts:
            right, other = (log_scores(pair.target, text.tokens) for pair in (more, fewer))
            sources.setdefault(text.source, Counter()).update(compared(right, other, text.tokens))
            on_step()
    return head_of("divergence", config, fewer, load_before) | {
        "against": more.target.engine,
        "sources": [{"source": name, **sums} for name, sums in sources.items()],
    }


def log_scores(runner: Runner, tokens: Sequence[int]) -> Float[Tensor, "token vocab"]:
    """Log-probabilities of the next token behind each of these."""
    row, found = Row(tokens=[tokens[0]]), []
    runner.clear()
    runner.set_rows([row])
    for start in range(0, len(tokens), _AT_ONCE):
        part = torch.tensor([list(tokens[start : start + _AT_ONCE])])
        size = part.shape[1]
        scores = runner.extend(part, torch.arange(size).unsqueeze(0), torch.ones(1, size, size, dtype=torch.bool).tril())
        found.append(scores.logits[0].float().log_softmax(-1))
        row.tokens += tokens[start + 1 : start + size + 1]
        runner.commit([list(range(size))])
    runner.clear()
    return torch.cat(found)


def compared(
    right: Float[Tensor, "token vocab"], other: Float[Tensor, "token vocab"], tokens: Sequence[int]
) -> dict[str, float]:
    """Sums over the tokens: the divergence KL(right || other), equal best tokens, and -log p of what the text says next."""
    following = torch.tensor(tokens[1:]).unsqueeze(1)
    return {
        "tokens": len(tokens),
        "divergence": float(torch.nn.functional.kl_div(other.double(), right.double(), reduction="sum", log_target=True)),
        "same_best": int((right.argmax(-1) == other.argmax(-1)).sum()),
        "following": len(following),
        **{
            name: -float(scores[:-1].double().gather(1, following).sum())
            for name, scores in (("surprise_16", right), ("surprise_8", other))
        },
    }


def markdown(document: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    sources = document["sources"]
    whole = {name: sum(part[name] for part in sources) for name in sources[0] if name != "source"}
    rows = [
        [
            part["source"],
            str(part["tokens"]),
            f"{part['divergence'] / part['tokens']:.2e}",
            f"{part['same_best'] / part['tokens']:.4f}",
            *(f"{part[name] / part['following']:.4f}" for name in ("surprise_16", "surprise_8")),
        ]
        for part in [*sources, {"source": "all", **whole}]
    ]
    header = ["text", "tokens", "divergence", "same best token", "-log p, 16 bits", "-log p, 8 bits"]
    model = document["model"]
    size = f"{model['type']}, {model['parameters'] / 1e6:.3g} M parameters"
    blocks = [
        "# What inputs of 8 bits change",
        "\n".join([f"* {size}, {model['engine']}, against {document['against']}", *machine_lines(document)]),
        table(header, rows),
        "Divergence of the distribution with inputs of 8 bits from that with 16, in nats a token; how often the most likely "
        "token is the same; and the mean -log p of the texts' own tokens under both.",
    ]
    return "\n\n".join(blocks) + "\n"
