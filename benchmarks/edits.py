"""How fast a file is written again with a renamed symbol, as agents edit: plain, by default, with the old file given, and
when the same is asked again.

A model that cannot edit is led: the score of the token that the new file has next is raised after every forward, so that
forwards, drafts and verification are those of a model that edits. Every method must write the new file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from benchmarks.config import EditsConfig
from benchmarks.record import head_of, machine_lines
from benchmarks.report import table
from draftwood.api import Pair
from draftwood.core.history import History
from draftwood.core.scores import Peaks, Scores
from draftwood.core.settings import Method
from draftwood.hardware.machine import load_average
from draftwood.runners.factory import Runners
from draftwood.runners.protocols import PerNode, Seen
from draftwood.sampling.rows import Row

_CERTAIN: Final = 1e4
_PLAIN: Final = "plain decoding"
_AGAIN: Final = "default, asked again"
_SYSTEMS: Final[Mapping[str, tuple[Any, bool]]] = {
    _PLAIN: ("ar", False),
    "default": (None, False),
    _AGAIN: (None, False),
    "default, old file given": (None, True),
    "lookup of 16": (Method(method="ngram", shape="16"), False),
    "lookup of 16, old file given": (Method(method="ngram", shape="16"), True),
}
"""Name -> the method, and whether it is given the old file beside the prompt."""


class Led:
    """A target that writes a given text; everything else is the runner's own.

    Args:
        runner: the target.

    Attributes:
        text: the tokens that it writes after the prompt of one row.
    """

    def __init__(self, runner: Any) -> None:
        self._runner, self._rows = runner, list[Row]()
        self.text: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def set_rows(self, rows: Sequence[Row]) -> None:
        """As the runner's."""
        self._rows = list(rows)
        self._runner.set_rows(rows)

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        """As the runner's, with the token of the text as the best at every node."""
        found: Scores = self._runner.extend(tokens, depths, ancestors)
        logits, [row] = found.logits, self._rows
        done = len(row.tokens) - row.prompt_length
        for node, depth in enumerate(depths[0].tolist()):
            logits[0, node, self.text[min(done + depth, len(self.text) - 1)]] += _CERTAIN
        best = logits.max(dim=-1)
        return replace(found, peaks=Peaks(best.values, best.indices))


def edits(folder: Path, count: int) -> list[tuple[str, str]]:
    """Old and new texts of so many files of 60 to 200 lines, in which the most frequent long name is another one."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        names = Counter(re.findall(r"\b[a-z]+_[a-z_]+\b", text))
        if 60 <= text.count("\n") <= 200 and names:
            name = max(names, key=lambda one: (names[one], one))
            found.append((text, re.sub(rf"\b{name}\b", f"{name[:3]}_renamed", text)))
    return found[:count]


def measure(config: EditsConfig, pair: Pair, advance: Callable[[], object]) -> dict[str, Any]:
    """Let every way write every new file, by turns. The prompt, which holds the old one, is read before."""
    led: Any = Led(pair.target)
    pair = Pair(pair.model, pair.draft_model, pair.tokenizer, runners=Runners(led, pair.draft, pair.engine))
    load_before, runs = load_average(), dict[str, list[dict[str, float]]]()
    for old, new in edits(config.folder, config.files):
        led.text = list(pair.tokenizer(new, add_special_tokens=False)["input_ids"])[: config.tokens]
        prompt = list(pair.chat_request([{"role": "user", "content": f"Rename a symbol.\n```\n{old}```"}]).prompt)
        pair.generate(prompt, temperature=0.0, max_new_tokens=1)  # the drafter reads it too
        for name, (method, given) in _SYSTEMS.items():
            if name != _AGAIN:
                pair.prefixes.history = History()
            began = perf_counter()
            result = pair.generate(
                prompt, method=method, draft_text=old if given else None, temperature=0.0, max_new_tokens=len(led.text)
            )
            if result.token_ids != led.text:
                raise AssertionError(f"{name} wrote another text")
            text = {"tokens": len(led.text), "passes": result.stats.rounds, "seconds": perf_counter() - began}
            runs.setdefault(name, []).append(text)
            advance()
    return head_of("edits", config, pair, load_before) | {"systems": runs}


def markdown(document: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    runs = document["systems"]
    rows = []
    for name, texts in runs.items():
        ratios = [base["seconds"] / text["seconds"] for base, text in zip(runs[_PLAIN], texts, strict=True)]
        tokens, passes, seconds = (sum(text[part] for text in texts) for part in ("tokens", "passes", "seconds"))
        rows.append([name, f"{tokens / seconds:.1f}", f"{tokens / passes:.2f}", f"{median(ratios):.2f}"])
    size = f"{document['model']['parameters'] / 1e6:.3g} M parameters, {document['model']['engine']}"
    blocks = [
        f"# {len(runs[_PLAIN])} files with a renamed symbol",
        "\n".join([f"* {size}", *machine_lines(document)]),
        table(["", "tokens/s", "tokens a pass", "times plain decoding, median of files"], rows),
    ]
    return "\n\n".join(blocks) + "\n"
