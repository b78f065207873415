"""Figures 1 and 2 as plain text, for terminals; nothing depends on colours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from draftwood.core.errors import ConfigError
from draftwood.trace.figures.race import example_of
from draftwood.trace.figures.round import round_of
from draftwood.trace.figures.scene import children_of
from draftwood.trace.labels import cut, number, run_of, title_of, token_text, visible
from draftwood.trace.records import Distribution, Trace, TracedRound, Trial

_WIDTH: Final = 100
_SIGNS: Final = {"accepted": "✓", "rejected": "✗", "not tried": "·", "root": " "}


def describe_round(trace: Trace, place: int, *, width: int = _WIDTH) -> str:
    """Figure 1 as text.

    Args:
        trace: the recorded text.
        place: the round's place in ``trace.rounds``.
        width: columns of the terminal, 40 or more.

    Raises:
        ConfigError: there is no such round, or the width is too small.
    """
    made = round_of(trace, place)
    lines = [
        f"round {made.number + 1}: {title_of(trace)}, temperature {trace.temperature:g}",
        "",
        "tree (✓ accepted, ✗ rejected, · not tried)",
        *_tree(trace, made),
        "",
        trace.verifier,
        *(_trial(trace, made, trial, at) for at, trial in enumerate(made.trials)),
        *_choices(trace, made),
    ]
    source = "the residual" if made.next_is_residual else f"q{made.path[-1] if made.path else 0}"
    if not made.choices:
        lines.append(
            f"  token {len(made.nodes)} {token_text(trace, made.next_token)} drawn from {source}: "
            + _best(trace, made.next_from)
        )
    out = [*(made.nodes[node].token for node in made.path), made.next_token]
    lines += ["", "output: " + " ".join(token_text(trace, token) for token in out)]
    if made.seconds:
        lines.append("ms: " + ", ".join(f"{stage} {seconds * 1000:.1f}" for stage, seconds in made.seconds.items()))
    if made.stop:
        lines.append(f"tree ended: {visible(made.stop, spaces=False)}")
    return _fitted(lines, width)


def _fitted(lines: list[str], width: int) -> str:
    if width < 40:
        raise ConfigError(f"a figure needs 40 columns, not {width}: widen the terminal")
    return "\n".join(cut(line, width) for line in lines)


def _tree(trace: Trace, made: TracedRound) -> Iterator[str]:
    below = children_of(made)

    def walk(node: int, indent: str) -> Iterator[str]:
        for child in below[node]:
            last, item = child == below[node][-1], made.nodes[child]
            numbers = [
                f"{name} {number(v)}" for name, v in (("p", item.draft_prob), ("q", item.target_prob)) if v is not None
            ]
            branch = f"{indent}{'└─' if last else '├─'}{_SIGNS[item.verdict]} {child} {token_text(trace, item.token)}"
            yield f"{branch:<44} {'  '.join(numbers)}"
            yield from walk(child, indent + ("   " if last else "│  "))

    yield f"  0 {token_text(trace, made.nodes[0].token)}"
    yield from walk(0, "  ")


def _best(trace: Trace, given: Distribution) -> str:
    pairs = zip(given.tokens, given.probs, strict=True)
    return ", ".join(f"{token_text(trace, token)} {number(prob)}" for token, prob in list(pairs)[:4])


def _trial(trace: Trace, made: TracedRound, trial: Trial, at: int) -> str:
    parent = made.nodes[trial.node].parent or 0
    primes = sum(1 for other in made.trials[:at] if made.nodes[other.node].parent == made.nodes[trial.node].parent)
    prime = "'" * primes
    outcome = "✓ accepted" if trial.accepted else "✗ rejected"
    words = f"  node {trial.node} {token_text(trace, made.nodes[trial.node].token)}: "
    words += f"q{parent}{prime} {number(trial.target_prob)}, p{parent}{prime} {number(trial.draft_prob)}"
    if trial.uniform is not None:
        name = "weight" if trace.verifier == "traversal" else "chance"
        words += f", {name} {number(trial.chance)}, u {number(trial.uniform)}"
    return f"{words}  {outcome}"


def _choices(trace: Trace, made: TracedRound) -> Iterator[str]:
    for choice in made.choices:
        noise = "" if choice.noise is None else f", noise {choice.noise:.2f}"
        matched = [n for n in made.path if made.nodes[n].parent == choice.node]
        outcome = f"✓ node {matched[0]}" if matched else "the target's own"
        yield f"  after node {choice.node} the target chooses {token_text(trace, choice.token)}{noise}: {outcome}"


def describe_race(plain: Trace, speculative: Trace, *, width: int = _WIDTH) -> str:
    """Figure 2 as text: both runs on one time axis, a block for each forward of the target.

    Args:
        plain: a run without drafting.
        speculative: a run with drafting, on the same prompt.
        width: columns of the terminal, 40 or more.

    Raises:
        ConfigError: a trace without rounds, different prompts, or the width is too small.
    """
    if not plain.rounds or not speculative.rounds or plain.prompt != speculative.prompt:
        raise ConfigError("the race needs two recorded runs of one prompt: record both with the same prompt")
    end, lines = max(plain.rounds[-1].end, speculative.rounds[-1].end), []
    for name, trace in (("plain", plain), (speculative.method, speculative)):
        lines.append(" ".join(run_of(name, trace)))
        lane, start = "", 0
        for made in trace.rounds:
            stop = round(made.end / end * (width - 2))
            label = str(len(made.tokens))
            lane += ("|" + label[: stop - start - 1]).ljust(stop - start, "─") if stop > start else ""
            start = max(start, stop)
        lines.append(lane + "|")
    lines.append("0 ms" + f"{end * 1000:.0f} ms".rjust(width - 4))
    made = example_of(speculative)
    drafted = [f"{token_text(trace, made.nodes[node].token)} ✓" for node in made.path]
    lines.append(
        f"round {made.number + 1}: {' '.join(drafted)} {token_text(speculative, made.next_token)} (the target's own)"
    )
    return _fitted(lines, width)
