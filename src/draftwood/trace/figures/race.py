"""Figure 2: autoregressive decoding and Draft & Verify, side by side, and both runs on one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from draftwood.core.errors import ConfigError
from draftwood.trace.figures.canvas import SMALL, Canvas
from draftwood.trace.figures.scene import Scene, drafted_chain
from draftwood.trace.labels import mono_width, run_of, shorten, token_text, visible
from draftwood.trace.records import Trace, TracedRound

_MARGIN: Final = 16.0
_STEP: Final = 84.0  # from token to token
_PILL: Final = 76.0
_SHOWN: Final = 5  # drafted tokens in the schema, and tokens of plain decoding
_LANE: Final = 30.0
LEAST: Final = 348


def is_plain(trace: Trace) -> bool:
    """Whether nothing was drafted in any round."""
    return all(len(made.nodes) == 1 for made in trace.rounds)


def is_translation(trace: Trace) -> bool:
    """Whether the text translates a source sentence."""
    return bool(trace.source)


def race_of(traces: Sequence[Trace]) -> tuple[Trace, Trace] | None:
    """A run without drafting and the first other one of the same prompt; None where there are no two."""
    plain = next((t for t in traces if t.rounds and is_plain(t) and not is_translation(t)), None)
    if plain is None:
        return None
    others = [t for t in traces if t.rounds and not is_plain(t) and t.prompt == plain.prompt and t.source == plain.source]
    return (plain, others[0]) if others else None


def draw_race(plain: Trace, speculative: Trace, *, width: int = 1180) -> str:
    """Two runs on the same prompt: the first tokens as a schema, then every forward of the target on a time axis.

    Args:
        plain: a run without drafting.
        speculative: a run with drafting.
        width: in pixels, 348 or more. From 900 on, both halves of the schema stand side by side.

    Raises:
        ConfigError: the prompts differ, or a trace has no rounds.
    """
    if plain.prompt != speculative.prompt or plain.source != speculative.source:
        raise ConfigError("the two traces are of different prompts: record both with the same prompt")
    if not plain.rounds or not speculative.rounds:
        raise ConfigError("a trace without rounds cannot be drawn: record at least one token")
    words = f"{len(plain.rounds)} forwards of plain decoding, {len(speculative.rounds)} of {speculative.method}."
    wide, width = width >= 900, max(width, LEAST)
    canvas = Canvas("Autoregressive decoding and Draft & Verify", words, f"dw-race-{width}")
    canvas.text(_MARGIN, 26, "Autoregressive decoding and Draft & Verify", "head-line", size=13)
    half = (width - 3 * _MARGIN) / 2 if wide else width - 2 * _MARGIN
    shown = min(_SHOWN, int((half - 6) // _STEP) - 1)  # behind the drafted tokens there is room for one more
    _plain_schema(canvas, plain, _MARGIN, 48, half, min(4, shown + 1))
    left, top = (2 * _MARGIN + half, 48.0) if wide else (_MARGIN, 228.0)
    bottom = _draft_schema(canvas, speculative, left, top, half, shown)
    end = max(plain.rounds[-1].end, speculative.rounds[-1].end)
    y = bottom + 44
    for name, trace in (("plain", plain), (speculative.method, speculative)):
        y = _lane(canvas, name, trace, y, width, end)
    _axis(canvas, y, width, end)
    same = (
        "both texts are equal" if plain.tokens == speculative.tokens else "the texts differ: two draws of one distribution"
    )
    if plain.tokens != speculative.tokens and speculative.verifier == "tolerance":
        same = "the texts differ: the tolerance verifier changes the text"
    canvas.text(_MARGIN, y + 50, same, "note")
    return canvas.finish(width, y + 66)


def _token(
    canvas: Canvas, x: float, y: float, name: str, words: str, kind: str, title: str, data: Mapping[str, object]
) -> None:
    """A token with its name in front, such as ``y3``; one that was not tried has no kind."""
    group = canvas.group("node " + ("untried" if kind == "" else ""), title, data=data)
    canvas.pill(x, y, _PILL, name, words, kind or "plain", within=group, size=SMALL)


def _plain_schema(canvas: Canvas, trace: Trace, x: float, y: float, width: float, count: int) -> None:
    """One token in, one token out, again and again."""
    made = trace.rounds[:count]
    texts = [token_text(trace, token) for token in (made[0].nodes[0].token, *(item.next_token for item in made))]
    frame = canvas.group("model")
    canvas.rect(x, y + 50, width, 44, "target", within=frame, radius=8)
    canvas.text(x + width / 2, y + 76, "autoregressive decoding", "head-line", within=frame, anchor="middle")
    for place, item in enumerate(made):
        left = x + 10 + place * _STEP
        for number, row in ((place, y + 128), (place + 1, y + 16)):
            name, words = f"y{number + 1}", texts[number]
            _token(canvas, left, row, name, words, "plain", f"{name}: {words}", {})
        canvas.line([(left + _PILL / 2, y + 116), (left + _PILL / 2, y + 96)], arrow=True)
        canvas.line([(left + _PILL / 2, y + 50), (left + _PILL / 2, y + 29)], arrow=True)
        canvas.text(left + _PILL / 2 + 6, y + 44, f"{item.end * 1000:.0f} ms", "quiet", size=10.5)


def example_of(trace: Trace) -> TracedRound:
    """The round that shows most: it accepts many tokens, and rejects one below the last of them."""

    def shows(made: TracedRound) -> tuple[bool, int]:
        crossed = any(node.parent == made.path[-1] and node.verdict == "rejected" for node in made.nodes if made.path)
        return crossed, len(made.path)

    return max(trace.rounds, key=shows)


def _draft_schema(canvas: Canvas, trace: Trace, x: float, y: float, width: float, count: int) -> float:
    """The draft below, the verification above, the outcome of every drafted token on top; returns the lower edge."""
    made = example_of(trace)
    scene, chain = Scene(trace, made, canvas), drafted_chain(made)
    first = max(0, min(len(made.path) - 1, len(chain) - count)) if len(made.path) >= count else 0
    chain, accepted = chain[first : first + count], len(made.path) - first
    frame = canvas.group("model", f"round {made.number + 1}", data={"round": made.number})
    canvas.rect(x, y + 50, width, 30, "target", within=frame, radius=8)
    canvas.text(x + width / 2, y + 69, "verify, executed in parallel", "head-line", within=frame, anchor="middle")
    canvas.rect(x, y + 142, width, 30, "plain", within=frame, radius=8)
    canvas.text(x + width / 2, y + 161, "draft", "head-line", within=frame, anchor="middle")
    above = (made.nodes[chain[0]].parent or 0) if chain else 0
    root = scene.text(made.nodes[above].token)
    _token(canvas, x + 10, y + 206, "y1", root, "plain", f"y1: {root}", {"node": above})
    canvas.line([(x + 10 + _PILL / 2, y + 194), (x + 10 + _PILL / 2, y + 174)], arrow=True)
    for place, node in enumerate(chain):
        left, words = x + 10 + place * _STEP, scene.text(made.nodes[node].token)
        kept, after = place < accepted, place > accepted
        kind = "" if after else "c3" if kept else "c2"
        _token(canvas, left, y + 110, f"y{place + 2}", words, kind, scene.title(node), {"node": node})
        middle = left + _PILL / 2
        canvas.line([(middle, y + 142), (middle, y + 123)], arrow=True)
        canvas.line([(middle, y + 99), (middle, y + 82)], arrow=True)
        sign, look = ("✓", "yes") if kept else ("-", "never") if after else ("✗", "no")
        canvas.text(middle, y + 44, sign, look, anchor="middle", size=15)
        if kept:
            _token(canvas, left, y + 16, f"y{place + 2}", words, "c3", scene.title(node), {"node": node})
    if accepted <= len(chain):
        words = scene.text(made.next_token)
        _token(canvas, x + 10 + accepted * _STEP, y + 16, f"y{accepted + 2}", words, "own",
               f"y{accepted + 2}: {words}\nthe target's own token", {"token": made.next_token})  # fmt: skip
    return y + 218


def _lane(canvas: Canvas, name: str, trace: Trace, y: float, width: float, end: float) -> float:
    """A row of boxes, one for each forward of the target, from its start to its end in time."""
    scale, start, words = (width - 2 * _MARGIN) / end, 0.0, run_of(name, trace)
    if mono_width(" ".join(words), SMALL) <= width - 2 * _MARGIN:
        words = [" ".join(words)]
    for line in words:
        canvas.text(_MARGIN, y, shorten(line, width - 2 * _MARGIN, SMALL), "code", size=SMALL)
        y += 15 if line != words[-1] else 0
    for made in trace.rounds:
        count = len(made.path)
        text = visible(made.text)
        title = f"round {made.number + 1}: {len(made.tokens)} tokens until {made.end * 1000:.1f} ms\n{text}"
        group = canvas.group("forward", title, data={"round": made.number, "end": made.end, "tokens": len(made.tokens)})
        wide = max(0.5, (made.end - start) * scale)
        canvas.rect(
            _MARGIN + start * scale, y + 8, wide, _LANE - 6, "c3" if count else "own", within=group, radius=min(3, wide / 3)
        )
        label = str(len(made.tokens))
        if wide > mono_width(label, SMALL) + 4:
            canvas.text(_MARGIN + start * scale + wide / 2, y + 24, label, within=group, anchor="middle", size=SMALL)
        start = made.end
    return y + _LANE + 26


def _axis(canvas: Canvas, y: float, width: float, end: float) -> None:
    """Milliseconds, at round numbers."""
    room, total = width - 2 * _MARGIN, end * 1000
    step = next(s for s in (a * 10.0**e for e in range(-3, 9) for a in (1, 2, 5)) if total / s <= max(2, room / 110))
    canvas.line([(_MARGIN, y), (width - _MARGIN, y)])
    ticks = int(total / step) + 1
    for tick in range(ticks):
        x = _MARGIN + tick * step / total * room
        canvas.line([(x, y - 4), (x, y + 4)])
        words = f"{tick * step:g}" + (" ms" if tick == ticks - 1 else "")
        anchor = "start" if tick == 0 else "end" if x + 24 > width - _MARGIN else "middle"
        canvas.text(x, y + 18, words, "quiet", anchor=anchor, size=10.5)
    canvas.text(_MARGIN, y + 34, "a box: one forward; the number: its new tokens", "note", size=10.5)
