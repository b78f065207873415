"""One prompt: streamed text, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from draftwood.cli.comparison import NOTHING, by_turns, speed_of_transformers
from draftwood.cli.console import write_line
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
from draftwood.sampling.settings import Sampling


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
    if session.draft is not None and session.draft.kind.shared is not None:
        head |= {"draft_shares": session.draft.kind.shared}
    write_one(opened, request, settings.display, shown_before=text if prompt else "", head=head)


def write_one(
    opened: Opened[Any], request: Request, display: DisplayOptions, *, shown_before: str = "",
    head: Mapping[str, Any] | None = None, quiet: bool = False,
) -> Result:  # fmt: skip
    """Decode and print one text, with the comparison and the remarks of its display.

    Args:
        shown_before: the text that a terminal shows first.
        head: the first fields of the JSON object.
        quiet: no remarks follow the text.
    """
    session, decoder, sampling, method = opened
    write, compared = partial(_decode, request=request, sampling=sampling), None
    if display.compare and method.method != "ar":
        plain = session.decoder(Method(method="ar"), temperature=sampling.temperature)
        generate = partial(speed_of_transformers, session, request, sampling.temperature)
        compared = partial(by_turns, ours=partial(write, decoder), theirs=partial(write, plain), generate=generate)
    if display.json:
        result = write(decoder)
        found = {**(head or {}), **result.to_json(TokenTexts(decoder.pipeline.tokenizer)), "method": asdict(method)}
        if sampling.greedy:  # nothing is drawn
            del found["seed"]
        if display.compare:
            found["compare"] = None if compared is None else compared(result).to_json()
        write_line(json.dumps(found, ensure_ascii=False))
        return result
    screen = Screen()
    painter = Painter(screen, decoder.pipeline.tokenizer, request.prompt, marks=display.show)
    screen.prompt(shown_before)
    meter = CoreMeter()
    result = write(decoder, painter)
    if quiet:
        return result
    ending = "ended by itself" if result.finish_reason == "stop" else "ended at the length limit"
    screen.remark(", ".join(part for part in (summary(result.stats, decoder), _seed(request, sampling), ending) if part))
    if note := slowed(result.stats, meter):
        screen.remark(note[0].upper() + note[1:])
    if painter.legend:
        screen.remark(painter.legend)
    if compared is not None:
        screen.remark(compared(result).sentences(decoder.pipeline.verifier, str(session.model.dtype)))
    elif display.compare:
        screen.remark(NOTHING)
    return result


def _seed(request: Request, sampling: Sampling) -> str:
    """The seed as a note; empty where nothing is drawn."""
    return "" if sampling.greedy else f"seed {request.seed}"


def _decode(decoder: Decoder, painter: Painter | None = None, *, request: Request, sampling: Sampling) -> Result:
    count = 0

    def watch(piece: Piece) -> None:
        nonlocal count
        count += len(piece.tokens)
        if painter is not None:
            painter.take(piece)

    try:
        [result] = decoder.generate([request], sampling, watch=watch)
    except KeyboardInterrupt:
        if painter is not None and not painter.screen.terminal:
            painter.screen.write("\n")
        parts = f"{count} tokens were generated", _seed(request, sampling)
        raise Interrupted("; ".join(filter(None, parts))) from None
    if painter is not None:
        painter.screen.write("\n")
    return result
