"""What the page is given of a text and of its rounds: which parts were drafted, the trees, and figures."""

from __future__ import annotations

from typing import Any

from draftwood.trace.figures.race import example_of, is_plain, is_translation
from draftwood.trace.labels import title_of, token_text, visible
from draftwood.trace.records import Trace, TracedRound


def shown(text: str) -> str:
    """A text in which line breaks stay, and controls and bidi controls are visible."""
    lines = [visible(line, spaces=False) for line in text.replace("\r\n", "\n").split("\n")]
    return "↵\n".join(lines)


def text_data(trace: Trace) -> dict[str, Any]:
    """A text with all of its rounds."""
    return {
        **head_data(trace, plain=is_plain(trace)), "text": shown(trace.text), "first": first_of(trace),
        "dropped": trace.dropped, "rounds": [round_data(trace, made) for made in trace.rounds],
    }  # fmt: skip


def head_data(trace: Trace, *, plain: bool) -> dict[str, Any]:
    """What is known of a text before its rounds; ``plain`` without a draft."""
    return {
        "title": "plain decoding" if plain else title_of(trace), "plain": plain, "translation": is_translation(trace),
        "prompt": shown(trace.prompt_text), "source": shown(trace.source_text),
    }  # fmt: skip


def first_of(trace: Trace) -> int:
    """The round that is opened first."""
    return trace.rounds.index(example_of(trace)) if trace.rounds else 0


def round_data(trace: Trace, made: TracedRound) -> dict[str, Any]:
    """A round: its tree and its part of the text."""
    nodes = [
        {"parent": node.parent, "depth": node.depth, "verdict": node.verdict, "text": token_text(trace, node.token)}
        for node in made.nodes
    ]
    return {
        "number": made.number, "end": made.end, "tokens": len(made.tokens), "accepted": made.path, "nodes": nodes,
        "pieces": [(shown(part.text), part.drafted) for part in made.parts],
        "own": token_text(trace, made.next_token), "stop": made.stop and visible(made.stop, spaces=False),
    }  # fmt: skip


def unstyled(svg: str) -> str:
    """A figure without its style sheet, which the page has once."""
    before, rest = svg.split("<style>", 1)
    return before + rest.split("</style>", 1)[1]
