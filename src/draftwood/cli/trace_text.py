"""The rounds of a trace as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from draftwood.trace.records import Trace, TracedRound

_MARKS = {"root": " ", "accepted": "+", "rejected": "x", "not tried": "."}


def trace_text(trace: Trace) -> str:
    """The text and all of its rounds."""
    lines = [
        f"{trace.source_text or trace.prompt_text} -> {trace.text}",
        f"{trace.method} + {trace.verifier}, temperature {trace.temperature:g}, seed {trace.seed}, target {trace.target}, "
        f"draft {trace.draft or '-'}",
        *(draw_round(trace, one) for one in trace.rounds),
    ]
    if trace.dropped:
        lines.append(f"{trace.dropped} more rounds were not kept (--rounds).")
    return "\n".join(map(printable, lines))


def draw_round(trace: Trace, one: TracedRound) -> str:
    """One round: a line of facts, the tree, and the token after the path."""
    stages = ", ".join(f"{stage} {1e3 * seconds:.1f}" for stage, seconds in one.seconds.items())
    why = "" if one.stop is None else f"; {one.stop}"
    lines = [f"\nround {one.number}: {len(one.nodes) - 1} nodes, {len(one.path)} accepted ({stages} ms{why})"]
    lines += _tree(trace, one)
    source = "of what rejections left" if one.next_is_residual else "the target's own"
    lines.append(f"  next: {_text(trace, one.next_token)} ({source})")
    return "\n".join(lines)


def _tree(trace: Trace, one: TracedRound) -> Iterator[str]:
    chances = {trial.node: trial for trial in one.trials}
    for i in _depth_first(one):
        node = one.nodes[i]
        parts = [f"  {_MARKS[node.verdict]} {'   ' * node.depth}{_text(trace, node.token)}"]
        if node.draft_prob is not None:
            parts.append(f"p {node.draft_prob:.3f}")
        if node.target_prob is not None:
            parts.append(f"q {node.target_prob:.3f}")
        trial = chances.get(i)
        if trial is not None and trial.chance is not None and trial.uniform is not None:
            sign = "<" if trial.accepted else ">="
            parts.append(f"{trial.uniform:.3f} {sign} {trial.chance:.3f}")
        yield "  ".join(parts)


def _depth_first(one: TracedRound) -> list[int]:
    """Nodes in the order of a drawn tree."""
    children: list[list[int]] = [[] for _ in one.nodes]
    for i, node in enumerate(one.nodes):
        if node.parent is not None:
            children[node.parent].append(i)
    order, todo = [], [0]
    while todo:
        order.append(todo.pop())
        todo += reversed(children[order[-1]])
    return order


def _text(trace: Trace, token: int) -> str:
    return repr(trace.texts[token]) if token in trace.texts else str(token)


def printable(text: str) -> str:
    """Text without control characters, in which no token can steer a terminal or turn the direction of a line."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
