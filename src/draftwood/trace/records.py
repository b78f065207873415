"""What a trace holds. All values are plain Python: nothing refers to the models' tensors.

Probabilities are those that the verifier used, after temperature, penalties and truncation. A node's number is its index in
the draft tree: node 0 is the root, and parents come before their children.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

Verdict: TypeAlias = Literal["root", "accepted", "rejected", "not tried"]


@final
@dataclass(frozen=True, kw_only=True)
class Distribution:
    """The likeliest tokens of a distribution.

    Attributes:
        tokens: token ids, likeliest first.
        probs: their probabilities.
        rest: the sum of all others.
    """

    tokens: list[int]
    probs: list[float]
    rest: float


@final
@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the draft tree.

    Attributes:
        token: its token id.
        parent: its parent's number; None for the root.
        depth: distance from the root.
        rank: place among its siblings in draw order, from 0.
        target_prob, draft_prob: the probability of its token at its parent, by the target and by the draft; None for the
            root, and ``draft_prob`` also where the draft gives no distribution (a guess, a certain token).
        verdict: what became of it; "not tried" if the verifier never looked at it.
        target: the target's distribution after it; None where it was not computed or not kept.
        draft: the draft's distribution after it, from which its children come; None at leaves and for drafts without.
        noise: with shared noise, the Gumbel noise of its token at its position; else None.
        certain: it was chosen, not drawn, so its ``Q`` is one token. In a point-mass tree every drafted node is.
    """

    token: int
    parent: int | None
    depth: int
    rank: int
    target_prob: float | None
    draft_prob: float | None
    verdict: Verdict
    target: Distribution | None
    draft: Distribution | None
    noise: float | None = None
    certain: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One test of a drafted node, in the verifier's order.

    Attributes:
        node: the node.
        target_prob: the probability of its token in ``residual``.
        draft_prob: the probability of its token in ``proposal``.
        chance: the probability to accept. Under traversal verification: the node's weight, which is the probability that the
            path ends at it, given that it ended at no node before.
        uniform: the uniform number that was compared with it; None where nothing is drawn. Under traversal verification one
            number decides all tests of a round; here is what is left of it, spread over [0, 1) again.
        accepted: the outcome. Under traversal verification only the last test can be positive: the path ends at its node.
        residual: what was left of the target's distribution before this test.
        proposal: the distribution that the node was drawn from, given its earlier siblings; None for a certain one.
    """

    node: int
    target_prob: float
    draft_prob: float
    chance: float
    uniform: float | None = None
    accepted: bool = False
    residual: Distribution
    proposal: Distribution | None


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """The target's own token at a node, for verifiers that match tokens.

    Attributes:
        node: the node on the path.
        token: the target's choice after it, with shared noise or the likeliest.
        noise: the Gumbel noise of that token; None at temperature 0.
        kept: the tokens that would have been accepted here, best first (tolerance verifier); only ``token`` for the others.
    """

    node: int
    token: int
    noise: float | None
    kept: list[int]


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a round's text.

    Attributes:
        text: what a token adds to the text: one or more characters.
        drafted: whether the token was drafted; else it is the target's own.
    """

    text: str
    drafted: bool


@final
@dataclass(frozen=True, kw_only=True)
class TracedRound:
    """One round of one text.

    Attributes:
        number: 0 for the first round of the text.
        position: index of the root in prompt and text together.
        draw: how siblings were chosen (:class:`draftwood.core.draws.Draw`).
        nodes: the tree; the root first.
        trials: tests of drafted nodes; empty for verifiers that match tokens, and without a tree.
        choices: the target's tokens along the path; empty for verifiers that test nodes.
        path: accepted nodes, the root excluded.
        next_token: the token after the last accepted node, of the target's own.
        next_from: the distribution it was drawn from: the target's, or what rejections left of it.
        next_is_residual: whether a rejection changed ``next_from``.
        tokens: the tokens that joined the text; a stop may cut the last ones of the round.
        text: their text, as it was streamed. It may lag behind the tokens: a character comes with the token that completes
            it, and what may begin a stop text waits.
        parts: the text by tokens, joined they are the text; a character belongs to the token that completes it, one that
            stays broken to the last token. Without a tokenizer there are none.
        seconds: wall time by stage: draft, target, verify, other.
        end: when the round ended, in seconds from the start of the text.
        stop: why the tree was not larger, in a few words; None for trees of fixed shape.
        uniform: the uniform number that chose ``next_token`` by inversion over rising token ids; None where nothing is drawn
            or shared noise decides.
        path_uniform: traversal verification only: the uniform number that chose the end of the path.
    """

    number: int
    position: int
    draw: str
    nodes: list[Node]
    trials: list[Trial]
    choices: list[Choice]
    path: list[int]
    next_token: int
    next_from: Distribution
    next_is_residual: bool
    tokens: list[int]
    text: str
    parts: list[Part]
    seconds: dict[str, float]
    end: float
    stop: str | None = None
    uniform: float | None = None
    path_uniform: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Trace:
    """The rounds of one text.

    Attributes:
        target, draft: names of the models; ``draft`` is None without one.
        method, verifier, shape: as they ran, without ``auto``.
        temperature: of the sampling.
        seed: the request's.
        prompt: the prompt's token ids.
        source: the source sentence's token ids, for a translation; else empty.
        tokens: the text's token ids.
        prompt_text, source_text, text: the same as text.
        texts: the text of every token id that occurs in the trace, decoded alone; the bytes of a part of a character are
            shown as ``<F0 9F>``.
        rounds: the rounds that were kept, the first ones.
        dropped: how many rounds came after them.
        finish_reason: why the text ended.
        mask: the draft's ``[MASK]`` token id, for drafters that fill blocks; else None.
        remarks: what a reader should know of the run, in sentences.
        beta, tau: settings of verifier ``tolerance``; else None.
    """

    target: str
    draft: str | None
    method: str
    verifier: str
    shape: str | None
    temperature: float
    seed: int
    prompt: list[int]
    source: list[int]
    tokens: list[int] = field(default_factory=list)
    prompt_text: str = ""
    source_text: str = ""
    text: str = ""
    texts: dict[int, str] = field(default_factory=dict)
    rounds: list[TracedRound] = field(default_factory=list)
    dropped: int = 0
    finish_reason: str = "length"
    mask: int | None = None
    remarks: list[str] = field(default_factory=list)
    beta: int | None = None
    tau: float | None = None
