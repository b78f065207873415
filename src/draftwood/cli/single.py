"""One prompt: streamed text, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

import click

from draftwood.cli.comparison import NOTHING, Comparison, by_turns, speed_of_transformers
from draftwood.cli.console import standard_output
from draftwood.cli.group import Interrupted
from draftwood.cli.results import slowed, summary
from draftwood.cli.settings import DisplayOptions, Opened, Settings
from draftwood.cli.show import Painter, Screen
from draftwood.core.rounds import Piece
from draftwood.core.seeds import seed_or_random
from draftwood.core.settings import Method
from draftwood.core.token_texts import TokenTexts
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request, Result
from draftwood.engine.session import Session
from draftwood.hardware.cores import CoreMeter


def run_single(settings: Settings, text: str) -> None:
    """Continue or translate one text and print what is written."""
    opened: Opened[Session] = settings.open()
    session, prompt = opened.session, settings.kind == "language"
    limits, seed = settings.limits_from(session.limits), seed_or_random(settings.seed)
    [request] = session.requests([text], limits, [seed], settings.logprobs.wanted, settings.drafts.text)
    head: dict[str, Any] = {
        "prompt" if prompt else "source": text,
        "engine": session.target.engine,
        "fallback": session.engine.fallback,
    }
    shown_before = text if prompt else ""
    if session.draft is not None and session.draft.kind.shared is not None:
        head |= {"draft_shares": session.draft.kind.shared}
    write_one(OneText(opened=opened, request=request, display=settings.display, shown_before=shown_before, head=head))


@final
@dataclass(frozen=True, kw_only=True)
class OneText:
    """One text and how it is decoded and shown.

    Attributes:
        shown_before: the text that a terminal shows first.
        head: the first fields of the JSON object.
        quiet: no remarks follow the text.
    """

    opened: Opened[Any]
    request: Request
    display: DisplayOptions
    shown_before: str = ""
    head: Mapping[str, Any] = field(default_factory=dict)
    quiet: bool = False

    @property
    def seed(self) -> str:
        """The seed as a note; empty where nothing is drawn."""
        return "" if self.opened.sampling.greedy else f"seed {self.request.seed}"


def write_one(one: OneText) -> Result:
    """Decode and print one text, with the comparison and the remarks of its display."""
    _, decoder, sampling, method = one.opened
    plain = None
    if one.display.compare and method.method != "ar":
        plain = one.opened.session.decoder(Method(method="ar"), temperature=sampling.temperature)
    if one.display.json:
        result = _decode(decoder, one)
        found = {**one.head, **result.to_json(TokenTexts(decoder.pipeline.tokenizer)), "method": asdict(method)}
        if sampling.greedy:  # nothing is drawn
            del found["seed"]
        if one.display.compare:
            found["compare"] = None if plain is None else _compared(result, one, plain).to_json()
        with standard_output():
            click.echo(json.dumps(found, ensure_ascii=False))
        return result
    screen = Screen()
    painter = Painter(screen, decoder.pipeline.tokenizer, one.request.prompt) if one.display.show else None
    screen.prompt(one.shown_before)
    meter = CoreMeter()
    result = _decode(decoder, one, screen, painter)
    if one.quiet:
        return result
    ending = "ended by itself" if result.finish_reason == "stop" else "ended at the length limit"
    screen.remark(", ".join(part for part in (summary(result.stats, decoder), one.seed, ending) if part))
    if note := slowed(result.stats, meter):
        screen.remark(note[0].upper() + note[1:])
    if painter is not None:
        screen.remark(painter.legend)
    if plain is not None:
        dtype = str(one.opened.session.model.dtype)
        screen.remark(_compared(result, one, plain).sentences(decoder.pipeline.verifier, dtype))
    elif one.display.compare:
        screen.remark(NOTHING)
    return result


def _compared(result: Result, one: OneText, plain: Decoder) -> Comparison:
    opened = one.opened
    return by_turns(
        result,
        lambda: _decode(opened.decoder, one),
        lambda: _decode(plain, one),
        lambda: speed_of_transformers(opened.session, one.request, opened.sampling.temperature),
    )


def _decode(decoder: Decoder, one: OneText, screen: Screen | None = None, painter: Painter | None = None) -> Result:
    count = 0

    def watch(piece: Piece) -> None:
        nonlocal count
        count += len(piece.tokens)
        if painter is not None:
            painter.take(piece)
        elif screen is not None:
            screen.write(piece.text)

    try:
        [result] = decoder.generate([one.request], one.opened.sampling, watch=watch)
    except KeyboardInterrupt:
        if screen is not None and not screen.terminal:
            screen.write("\n")
        raise Interrupted("; ".join(part for part in (f"{count} tokens were generated", one.seed) if part)) from None
    if screen is not None:
        screen.write("\n")
    return result
