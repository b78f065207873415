"""One prompt: text as it comes, or one JSON object."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import click

from draftwood.cli.group import Interrupted
from draftwood.cli.results import results, summary
from draftwood.cli.settings import Settings
from draftwood.cli.show import Painter, Screen
from draftwood.decode import Decoder, Piece, Request, Result
from draftwood.methods import Method
from draftwood.output import Limits

_WARM_UP = Limits(max_new_tokens=8, ignore_eos=True)


def run_single(settings: Settings, prompt: str) -> None:
    """Continue one prompt and print the text."""
    pair, decoder, sampling = settings.open()
    settings = replace(settings, sampling=sampling)
    [request] = pair.requests([prompt], settings.limits, [settings.drawn_seed])
    plain = pair.decoder(Method(method="ar"), temperature=sampling.temperature) if settings.looks.compare else None
    if plain is not None:
        _warm_up([decoder, plain], request, settings)
    if settings.looks.json:
        result = _decode(decoder, request, settings)
        extra = {} if plain is None else {"compare": _comparison(result, _decode(plain, request, settings))}
        method = asdict(pair.method(settings.method, temperature=sampling.temperature))
        click.echo(json.dumps({"prompt": prompt, **result.to_json(), "method": method, **extra}, ensure_ascii=False))
        return
    screen = Screen()
    painter = Painter(screen, pair.tokenizer) if settings.looks.show else None
    screen.prompt(prompt)
    result = _decode(decoder, request, settings, screen, painter)
    screen.remark(f"{summary(result.stats, decoder)}, seed {request.seed}, {_ending(result)}")
    if painter is not None:
        screen.remark(painter.legend)
    if plain is not None:
        screen.remark(_verdict(result, _decode(plain, request, settings), decoder, str(pair.target.model.dtype)))


def _warm_up(decoders: list[Decoder], request: Request, settings: Settings) -> None:
    """A few tokens in turn, so that no decoder pays alone for what only the first run costs."""
    short = replace(request, limits=_WARM_UP)
    for decoder in decoders * 2:
        list(results(decoder, [short], settings.sampling))


def _decode(
    decoder: Decoder, request: Request, settings: Settings, screen: Screen | None = None, painter: Painter | None = None
) -> Result:
    count = 0

    def watch(piece: Piece) -> None:
        nonlocal count
        count += len(piece.tokens)
        if painter is not None:
            painter.take(piece)
        elif screen is not None:
            screen.write(piece.text)

    try:
        [(_, result)] = results(decoder, [request], settings.sampling, watch)
    except KeyboardInterrupt:
        if screen is not None and not screen.terminal:
            screen.write("\n")
        raise Interrupted(f"{count} tokens were generated; seed {request.seed}") from None
    if screen is not None:
        screen.write("\n")
    return result


def _ending(result: Result) -> str:
    return "ended by itself" if result.finish_reason == "stop" else "ended at the length limit"


def _comparison(result: Result, plain: Result) -> dict[str, Any]:
    before, after = plain.stats.tokens_per_second, result.stats.tokens_per_second
    return {
        "tokens_per_second": round(before, 2),
        "speed_up": round(after / before, 3) if before else None,
        "identical": plain.token_ids == result.token_ids,
    }


def _verdict(result: Result, plain: Result, decoder: Decoder, dtype: str) -> str:
    found = _comparison(result, plain)
    text = (
        f"Plain decoding: {plain.stats.new_tokens} tokens in {plain.stats.total_seconds:.2f} s: "
        f"{found['tokens_per_second']:.1f} tokens/s. Speed-up {found['speed_up']:.2f} (one run of each; 'draftwood bench' "
        "takes more). "
    )
    if found["identical"]:
        return text + "The two texts are identical."
    if decoder.verifier.name in ("coupled", "greedy"):
        pairs = enumerate(zip(result.token_ids, plain.token_ids, strict=False))
        at = next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(result.token_ids), len(plain.token_ids)))
        return text + (
            f"The two texts differ from token {at} on: there two tokens were so close that rounding in "
            f"{dtype.removeprefix('torch.')} decided; --dtype float64 makes this rarer."
        )
    return (
        text + f"The two texts differ, as verifier {decoder.verifier.name} uses other random numbers; their law is the same."
    )
