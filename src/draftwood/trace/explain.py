"""What a trace says about speed: what depths and ranks brought, what a round cost, what a better draft would bring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from draftwood.core.errors import ConfigError
from draftwood.core.rounds import STAGES
from draftwood.trace.records import Trace, TracedRound


def explain(trace: Trace) -> list[str]:
    """The explanation of one text, line by line.

    Raises:
        ConfigError: a trace without rounds.
    """
    if not (rounds := trace.rounds):
        raise ConfigError("the trace has no rounds, so there is nothing to explain: record a longer text")
    return [*_brought(trace, rounds), *_cost(rounds), *_more(rounds)]


def _tokens(rounds: Sequence[TracedRound]) -> int:
    return sum(len(one.tokens) for one in rounds)


def _brought(trace: Trace, rounds: Sequence[TracedRound]) -> list[str]:
    """What was drafted, and what depths and ranks brought."""
    drafted = [node for one in rounds for node in one.nodes[1:]]
    accepted = [one.nodes[node] for one in rounds for node in one.path]
    verdicts = Counter(node.verdict for node in drafted)
    count, tokens = len(rounds), _tokens(rounds)
    lines = [
        f"{tokens} tokens in {count} rounds, {tokens / count:.2f} a round: method {trace.method}"
        + (f" {trace.shape}" if trace.shape else "")
        + f" with verifier {trace.verifier}, temperature {trace.temperature:g}."
        + (f" {trace.dropped} later rounds were not kept." if trace.dropped else "")
    ]
    if not drafted:
        return [*lines, "Nothing was drafted: every token is the target's own."]
    lines.append(
        f"Drafted {len(drafted) / count:.1f} nodes a round: {_share(verdicts['accepted'], len(drafted))} accepted, "
        f"{_share(verdicts['rejected'], len(drafted))} rejected, {_share(verdicts['not tried'], len(drafted))} never tried."
    )
    for name, key in (("depth", "depth"), ("sibling", "rank")):
        brought, of = Counter(getattr(n, key) for n in accepted), Counter(getattr(n, key) for n in drafted)
        first = 0 if key == "depth" else 1
        parts = [f"{value + first}: {brought[value]} of {of[value]}" for value in sorted(of)]
        lines.append(f"Accepted by {name}: " + ", ".join(parts) + ".")
    after = sum(one.next_is_residual for one in rounds)
    lines.append(f"The target's own: {count} tokens" + (f", {after} of them after a rejection." if after else "."))
    if reasons := Counter(one.stop for one in rounds if one.stop):
        lines.append("Trees ended: " + ", ".join(f"{reason} ({n})" for reason, n in reasons.most_common()) + ".")
    return lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def _cost(rounds: Sequence[TracedRound]) -> list[str]:
    """What a round cost. The first one also reads the prompt, so it counts for itself."""
    timed = rounds[1:] or rounds
    seconds = {stage: sum(one.seconds[stage] for one in timed) for stage in STAGES}
    total = sum(seconds.values())
    if total <= 0:
        return []
    parts = [f"{stage} {1e3 * spent / len(timed):.1f} ms ({100 * spent / total:.0f} %)" for stage, spent in seconds.items()]
    return [
        f"A round took {1e3 * total / len(timed):.1f} ms: {', '.join(parts)}; a token took "
        f"{1e3 * total / max(1, _tokens(timed)):.1f} ms.",
    ]


def _more(rounds: Sequence[TracedRound]) -> list[str]:
    """What a better draft would bring."""
    timed = rounds[1:] or rounds
    perfect = sum(max(node.depth for node in one.nodes) for one in rounds) / len(rounds)
    if perfect == 0:
        return []
    per_round = sum(sum(one.seconds.values()) for one in timed) / len(timed)
    speed = f", {(perfect + 1) / per_round:.1f} tokens/s at this cost" if per_round > 0 else ""
    return [f"A draft equal to the target would bring at most {perfect + 1:.2f} tokens a round with trees this deep{speed}."]
