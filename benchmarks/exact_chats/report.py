"""The report of ``exact-chats``, a function of the document alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.record import machine_lines
from benchmarks.report import table

Entries = Sequence[dict[str, Any]]


def markdown(found: dict[str, Any]) -> str:
    """The whole report."""
    config = found["config"]
    models = [
        f"{part}: {m['type']}, {m['parameters'] / 1e6:.3g} M parameters, {m['dtype']}, run by {m['engine']}"
        for part, m in found["models"].items()
    ]
    limit = f"{found['chats']} chats, answers of up to {config['max_new_tokens']} tokens, method {config['method']}"
    title = "# Chats against transformers" + (" (partial results)" if found["partial"] else "")
    blocks = [title, "\n".join(machine_lines(found, *models, limit))]
    if found.get("checks"):
        rows = [[c["what"], c["found"], "yes" if c["holds"] else "**NO**"] for c in found["checks"]]
        blocks.append(table(["what has to hold", "found", "holds"], rows))
    if "greedy" in found:
        blocks += _greedy(found["greedy"])
    if parts := [found[name] for name in ("sampled", "control") if "fit" in found.get(name, {})]:
        blocks += _sampled(parts)
    return "\n\n".join(blocks) + "\n"


def _greedy(part: dict[str, Any]) -> list[str]:
    answers = part["answers"]
    if not answers:
        return []
    sources = dict.fromkeys(a["source"] for a in answers)
    rows = [_row(name, [a for a in answers if a["source"] == name]) for name in sources]
    later = [a for a in answers if a["turn"]]
    rows += [_row("second and later turns", later)] if later else []
    rows.append(_row("**all**", answers))
    header = ["source", "answers", "tokens", "end of turn", "equal", "near ties", "drafted", "accepted", "tokens per pass"]
    about = (
        "The target's plain forward over prompt and answer, by PyTorch, must give every token of an answer the best score "
        "at its own prefix. Then the answer is that of greedy `generate`. *End of turn*: answers that end with that token; "
        "the others have the most tokens. *Near ties*: positions where the two best scores differ by less than rounding may."
    )
    return [f"## Temperature 0, {part['method']}", about, table(header, rows), _differences(answers), _memory(answers)]


def _row(name: str, some: Entries) -> list[str]:
    tokens, rounds = sum(len(a["tokens"]) for a in some), sum(a["rounds"] for a in some)
    equal = sum(not a["differing"] and a["end"] is None for a in some)
    counts = (sum(a[field] for a in some) for field in ("near_ties", "drafted", "accepted"))
    ended = sum(a["tokens"][-1] in a["ends"] for a in some)
    return [name, str(len(some)), str(tokens), str(ended), str(equal), *map(str, counts), f"{tokens / rounds:.2f}"]


def _differences(answers: Entries) -> str:
    lines = [
        f"* chat {a['chat']}, turn {a['turn'] + 1} ({a['source']}): token {at + 1} of {len(a['tokens'])}, gap {gap:.1e}"
        for a in answers
        for at, gap in a["differing"]
    ]
    lines += [f"* chat {a['chat']}, turn {a['turn'] + 1} ({a['source']}): {a['end']}" for a in answers if a["end"]]
    if not lines:
        return "No token differs."
    return "\n".join(["Tokens without the best score, and how far below it they are:", "", *lines])


def _memory(answers: Entries) -> str:
    later = [a for a in answers if a["turn"]]
    if not later:
        return ""
    prompts, shared = sum(len(a["prompt"]) for a in later), sum(a["shared"] for a in later)
    read = sum(a["read"] for a in later)
    return (
        f"The prompts of the {len(later)} later turns have {prompts} tokens, of which {shared} begin like the chat's text "
        f"before. The target read {read} tokens of them; the others were kept from the turn before."
    )


def _sampled(parts: Entries) -> list[str]:
    rows = []
    for part in parts:
        answers, fit = part["answers"], part["fit"]
        tokens, rounds = sum(len(a["tokens"]) for a in answers), sum(a["rounds"] for a in answers)
        drafted, accepted = (sum(a[name] for a in answers) for name in ("drafted", "accepted"))
        failing = [test["name"] for test in fit["tests"] if test["p_value"] <= test["level"]]
        rows.append([
            f"{part['temperature']:g}", str(len(answers)), str(tokens), f"{drafted} / {accepted}", f"{tokens / rounds:.2f}",
            f"{part['mean']:.4f} ± {part['error']:.4f}", f"{part['excess']:+.4f} ± {part['excess_error']:.4f}",
            f"{fit['total_variation']:.4f} ({fit['expected']:.4f})", f"{fit['p_value']:.2g}",
            f"{len(failing)} of {len(fit['tests'])}",
        ])  # fmt: skip
    header = ["sampled at", "answers", "tokens", "drafted / accepted", "tokens per pass", "mean -log p", "above entropy"]
    header += ["total variation (by chance)", "p", "tests that fail"]
    about = (
        "Each row is tested as if it were sampled at temperature 1, by the tests of `draftwood check`; the target scores "
        "each answer in one plain forward. Mean -log p in nats per token, and its distance from the target's entropy at "
        "the same prefixes, with standard errors over answers. *p* is that of the uniformity of the PIT values."
    )
    return [f"## Temperature 1, {parts[0]['method']}", about, table(header, rows), *_tests(parts)]


def _tests(parts: Entries) -> list[str]:
    """All tests with their p-values, a column for each temperature."""
    names = dict.fromkeys(test["name"] for part in parts for test in part["fit"]["tests"])
    columns = [{test["name"]: test for test in part["fit"]["tests"]} for part in parts]
    levels = {name: next(c[name]["level"] for c in columns if name in c) for name in names}
    rows = [
        [name, f"{levels[name]:.1e}", *(f"{c[name]['p_value']:.2g}" if name in c else "" for c in columns)] for name in names
    ]
    return [table(["test", "level", *(f"p, sampled at {part['temperature']:g}" for part in parts)], rows)]
