"""What has to hold, as a function of the document alone."""

from __future__ import annotations

from typing import Any

from benchmarks.serving.outcome import Check
from benchmarks.surprise import LARGEST


def checks(found: dict[str, Any]) -> list[Check]:
    """What has to hold for the parts of a document, with its controls."""
    out = _greedy(found["greedy"], found["allowed"]) if "greedy" in found else []
    for name in ("sampled", "control"):
        if name in found:
            out.append(_sampled(found[name], control=name == "control"))
    return out


def _sampled(part: dict[str, Any], *, control: bool) -> Check:
    score = part["excess"] / part["excess_error"]
    fits = part["fit"]["exact"] and abs(score) < LARGEST
    what = "sampled answers follow the target's distribution at temperature 1"
    if control:
        what = f"control: answers at temperature {part['temperature']:g} do not"
    words = f"p = {part['fit']['p_value']:.2g}, mean -log p {score:+.1f} standard errors from the entropy"
    return Check(what=what, found=words, holds=fits != control)


def _greedy(part: dict[str, Any], allowed: float) -> list[Check]:
    answers = part["answers"]
    equal = {(a["chat"], a["turn"]): not a["differing"] and a["end"] is None for a in answers}
    wrong = [a for a in answers if a["end"] is not None or any(not gap < allowed for _, gap in a["differing"])]
    words = f"{sum(equal.values())} of {len(answers)} equal, {len(wrong)} differ beyond near ties (gap {allowed:g})"
    out = [Check(what="greedy answers are those of generate", found=words, holds=not wrong)]
    if entries := part.get("generate"):
        agree = [(entry["at"] is None) == equal[entry["chat"], entry["turn"]] for entry in entries]
        words = f"{sum(agree)} of {len(agree)}"
        out.append(Check(what="generate itself agrees with the check", found=words, holds=all(agree)))
    for name, passes in part["controls"].items():
        words = "passes" if passes else "fails"
        out.append(Check(what=f"control: an answer with {name} does not pass", found=words, holds=not passes))
    return out
