"""What a trace says about speed: what depths and ranks brought, what a round cost, what more drafting would bring.

The expectations and their derivations are in :mod:`draftwood.trace.chances`. A gain of ``g`` tokens a round pays if it costs
less than ``g`` times the seconds of a token (``docs/adaptive.md`` derives this rule).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from draftwood.core.counter_rng import CounterRng
from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.rounds import STAGES
from draftwood.trace.chances import Interval, first_child, next_sibling
from draftwood.trace.records import Trace, TracedRound, largest_token


@final
@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What more drafting would bring, in tokens a round.

    Attributes:
        agreement: the mean chance that a first child is accepted, at the nodes of the paths with children; None without
            stored distributions of the draft.
        nodes: their number.
        perfect: accepted tokens of a draft equal to the target, with trees as deep as these: at most their mean depth.
        sibling: of one more child at the end of every path, where there were children; None where it is not known.
        leaf: share of rounds that ended at a leaf below the root and not with the text, so another level might go on.
        inner: share of nodes with children on the paths at which one was accepted.
    """

    agreement: Interval | None
    nodes: int
    perfect: float
    sibling: Interval | None
    leaf: float
    inner: float

    @property
    def level(self) -> float:
        """One more level below leaves, if it is accepted as often as the levels above: an estimate."""
        return self.leaf * self.inner


def expect(trace: Trace) -> Expectation:
    """The expectations of a trace.

    Raises:
        ConfigError: a trace without rounds.
    """
    rounds = _rounds(trace)
    shared = trace.temperature > 0 and any(one.draw == Draw.SHARED_NOISE for one in rounds)
    noise = CounterRng([trace.seed]) if shared else None
    vocab = 1 + largest_token(rounds)
    firsts, siblings, visited, passed, leaves = list[Interval](), list[Interval](), 0, 0, 0
    for one in rounds:
        parents = {node.parent for node in one.nodes}
        for node in (0, *one.path):
            if node in parents:
                visited += 1
                if (chance := first_child(trace, one, node)) is not None:
                    firsts.append(chance)
        passed += len(one.path)
        leaves += bool(one.path) and one.path[-1] not in parents and len(one.tokens) > len(one.path)
        if (chance := next_sibling(trace, one, noise, vocab)) is not None:
            siblings.append(chance)
    return Expectation(
        agreement=_mean(firsts, len(firsts)),
        nodes=len(firsts),
        perfect=sum(max(node.depth for node in one.nodes) for one in rounds) / len(rounds),
        sibling=_mean(siblings, len(rounds)),
        leaf=leaves / len(rounds),
        inner=passed / visited if visited else 0.0,
    )


def explain(trace: Trace) -> list[str]:
    """The explanation of one text, line by line.

    Raises:
        ConfigError: a trace without rounds.
    """
    rounds = _rounds(trace)
    return [*_brought(trace, rounds), *_cost(rounds), *_more(trace, rounds)]


def _rounds(trace: Trace) -> Sequence[TracedRound]:
    if not trace.rounds:
        raise ConfigError("the trace has no rounds, so there is nothing to explain: record a longer text")
    return trace.rounds


def _mean(found: Sequence[Interval], count: int) -> Interval | None:
    if not found:
        return None
    return Interval(sum(one.low for one in found) / count, sum(one.high for one in found) / count)


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
        f"A round took {1e3 * total / len(timed):.1f} ms: {', '.join(parts)}; a token took {1e3 * _token(timed):.1f} ms.",
    ]


def _token(rounds: Sequence[TracedRound]) -> float:
    """Seconds of a token."""
    return sum(sum(one.seconds.values()) for one in rounds) / max(1, _tokens(rounds))


def _more(trace: Trace, rounds: Sequence[TracedRound]) -> list[str]:
    """What a better draft, a wider and a deeper tree would bring."""
    found, timed = expect(trace), rounds[1:] or rounds
    if found.perfect == 0:
        return []
    token, lines = _token(timed), []
    if found.agreement is not None:
        lines.append(f"A first child is accepted with {_range(found.agreement)} on average ({found.nodes} nodes).")
    per_round = sum(sum(one.seconds.values()) for one in timed) / len(timed)
    bound = f"A draft equal to the target would bring at most {found.perfect + 1:.2f} tokens a round with trees this deep"
    lines.append(bound + (f", {(found.perfect + 1) / per_round:.1f} tokens/s at this cost." if per_round > 0 else "."))
    if found.sibling is not None:
        pays = f"; it cannot pay if it takes more than {1e3 * found.sibling.high * token:.2f} ms" if token > 0 else ""
        lines.append(f"Another sibling at the end of every path would bring {_range(found.sibling)} tokens a round{pays}.")
    pays = f"; it pays if it takes less than {1e3 * found.level * token:.2f} ms" if token > 0 else ""
    lines.append(
        f"Another level would bring about {found.level:.2f} tokens a round: {100 * found.leaf:.0f} % of rounds ended at a "
        f"leaf, and levels go on with {found.inner:.2f}{pays}."
    )
    return lines


def _range(found: Interval) -> str:
    low, high = f"{found.low:.3f}", f"{found.high:.3f}"
    return low if low == high else f"{low} to {high}"
