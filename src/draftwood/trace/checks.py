"""Checks of records that come from outside: what holds for every trace that a run can make."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.rounds import STAGES
from draftwood.trace.records import Distribution, Node, Trace, TracedRound

_ROUNDING = 1e-4


def check(trace: Trace, where: str) -> None:
    """Refuse a trace that no run can have made.

    Raises:
        ConfigError: names the place and what is wrong there.
    """
    for problem in _problems(trace):
        raise ConfigError(f"{where}{problem}")


def _problems(trace: Trace) -> Iterator[str]:
    position, end = len(trace.prompt) - 1, 0.0
    if not trace.prompt:
        yield ".prompt is empty"
    if trace.dropped < 0:
        yield f".dropped is {trace.dropped}"
    so_far: list[int] = []
    for number, one in enumerate(trace.rounds):
        at = f".rounds[{number}]"
        if one.number != number or one.position != position + len(so_far):
            yield f"{at} is not the round that follows the one before"
        if one.end < end:
            yield f"{at}.end is before the round begins"
        root = so_far[-1] if so_far else trace.prompt[-1]
        if not one.nodes or one.nodes[0].token != root:
            yield f"{at}.nodes does not begin with the last token of the text"
        yield from (at + problem for problem in _in_round(one))
        so_far, end = so_far + one.tokens, one.end
    whole = trace.dropped == 0
    if so_far != (trace.tokens if whole else trace.tokens[: len(so_far)]):
        yield ".tokens are not those of its rounds"
    if trace.texts and (missing := {*trace.prompt, *trace.source, *trace.tokens} - trace.texts.keys()):
        yield f".texts has no text for token {min(missing)}"


def _in_round(one: TracedRound) -> Iterator[str]:
    if one.draw not in list(Draw):
        yield f".draw is {one.draw!r}, which this version does not know"
    if set(one.seconds) != set(STAGES) or min(one.seconds.values()) < 0.0:
        yield f".seconds does not have the stages {', '.join(STAGES)}"
    count = len(one.nodes)
    yield from _in_tree(one.nodes)
    if any(not 0 < node < count for node in one.path) or any(
        one.nodes[child].parent != parent for parent, child in pairwise([0, *one.path])
    ):
        yield ".path is no path of the tree"
        return
    verdicts = [i for i, node in enumerate(one.nodes) if node.verdict == "accepted"]
    if verdicts != sorted(one.path):
        yield ".path is not that of the accepted nodes"
    made = [*(one.nodes[node].token for node in one.path), one.next_token]
    if not 0 < len(one.tokens) <= len(made) or one.tokens[:-1] != made[: len(one.tokens) - 1]:
        yield ".tokens are not those of the path"
    if "".join(part.text for part in one.parts) != one.text:
        yield ".parts are not those of its text"
    for i, trial in enumerate(one.trials):
        if not 0 < trial.node < count:
            yield f".trials[{i}].node is no drafted node"
        numbers = {"target_prob": trial.target_prob, "draft_prob": trial.draft_prob}
        yield from _probabilities(f".trials[{i}]", {**numbers, "chance": trial.chance, "uniform": trial.uniform})
        for name, found in (("residual", trial.residual), ("proposal", trial.proposal)):
            yield from _in_distribution(f".trials[{i}].{name}", found)
    if any(not 0 <= choice.node < count for choice in one.choices):
        yield ".choices names a node that is not there"
    yield from _in_distribution(".next_from", one.next_from)
    yield from _probabilities("", {"uniform": one.uniform, "path_uniform": one.path_uniform})


def _in_tree(nodes: list[Node]) -> Iterator[str]:
    children = [0] * len(nodes)
    for i, node in enumerate(nodes):
        at = f".nodes[{i}]"
        if i == 0:
            if (node.parent, node.depth, node.rank, node.verdict) != (None, 0, 0, "root"):
                yield f"{at} is no root"
        elif node.parent is None or not 0 <= node.parent < i:
            yield f"{at}.parent is {node.parent}, but parents come before their children"
        else:
            if node.depth != nodes[node.parent].depth + 1 or node.rank != children[node.parent]:
                yield f"{at} has the wrong depth or rank"
            if node.verdict == "root":
                yield f"{at} is a second root"
            children[node.parent] += 1
        yield from _probabilities(at, {"target_prob": node.target_prob, "draft_prob": node.draft_prob})
        for name, found in (("target", node.target), ("draft", node.draft)):
            yield from _in_distribution(f"{at}.{name}", found)


def _probabilities(at: str, numbers: dict[str, float | None]) -> Iterator[str]:
    for name, number in numbers.items():
        if number is not None and not 0.0 <= number <= 1.0:
            yield f"{at}.{name} is {number}, but a probability is from 0 to 1"


def _in_distribution(at: str, found: Distribution | None) -> Iterator[str]:
    if found is None:
        return
    if len(found.tokens) != len(found.probs) or len(set(found.tokens)) != len(found.tokens):
        yield f"{at} does not have one probability for each token"
    yield from _probabilities(at, {"rest": found.rest, **{f"probs[{i}]": prob for i, prob in enumerate(found.probs)}})
    if found.probs != sorted(found.probs, reverse=True):
        yield f"{at} is not in falling order"
    if found.probs and abs(sum(found.probs) + found.rest - 1.0) > _ROUNDING:
        yield f"{at} does not sum to 1"
