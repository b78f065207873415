"""What an earlier run has left: records of the same lines, made with the same settings, which are kept as plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, TypeAlias

from draftwood.cli.job.lines import Line
from draftwood.cli.settings import Opened, Settings
from draftwood.engine.session import Session
from draftwood.grammar.grammar import Grammar
from draftwood.loading.checkpoint import folder_of
from draftwood.sampling.settings import ONLY_PYTHON

Facts: TypeAlias = Mapping[str, Any]
"""Settings that the texts depend on, by name, as values that JSON keeps unchanged."""
_FILES: Final = {
    "tokenizer": ("tokenizer*.json", "vocab.*", "merges.txt", "*.spm", "*.model"),
    "generation_config": ("generation_config.json",),
}
"""Files of the target that texts depend on, next to its weights; the generation config may ask for processors."""
_DIGITS = 16  # of a digest
_LONG = 80  # characters of a grammar


def is_record(found: Any, *, whole: bool) -> bool:
    """Whether the value in a line can be a record; ``whole`` as for :class:`draftwood.cli.job.output.Output`."""
    if not isinstance(found, dict) or not isinstance(settings := found.get("settings"), dict):
        return False
    texts = ("source", "error") if "error" in found else (text_key(whole=whole),)
    known = type(found.get("index")) is int and all(isinstance(found.get(name), str) for name in texts)
    return known and (whole or type(settings.get("seed")) is int)


def text_key(*, whole: bool) -> str:
    """The field of a record with the text of its line."""
    return "source" if whole else "prompt"


def unlike(found: Mapping[str, Any], line: Line | None, advice: str, *, whole: bool) -> str | None:
    """Why a record is not that of the input's line now; None if it is."""
    number = found["index"] + 1
    if line is not None and "error" in found and line.source != found["source"]:
        return f"this is the error of another text than line {number} of the input now holds; remove it to repeat the line"
    if line is None or found.get(text_key(whole=whole), line.text) != line.text:
        return f"this belongs to another text than line {number} of the input has; {advice}"
    if "seed" in found:
        seed = line.seed_after(found["settings"]["seed"])
        if found["seed"] != seed:
            return f"this was made with seed {found['seed']}, but the line's seed is now {seed}; {advice}"
    return None


def facts_of(settings: Settings, opened: Opened[Session], seed: int | None) -> dict[str, Any]:
    """All settings that the texts depend on; without a seed where nothing is drawn. Models have a digest of their files."""
    session, sampling = opened.session, opened.sampling
    models = session.known.profile_key or {"target": None, "draft": None}
    digests = {name: models[name] and models[name]["fingerprint"][:_DIGITS] for name in ("target", "draft")}
    digests |= {name: models["target"] and _files_digest(models["target"]["name"], own) for name, own in _FILES.items()}
    named = dict.fromkeys(digests, settings.models.target) | {"draft": settings.models.draft}
    found = {name: digest and {"name": named[name] or "bundled", "fingerprint": digest} for name, digest in digests.items()}
    drawn = {f.name: getattr(sampling, f.name) for f in fields(sampling) if f.name not in ONLY_PYTHON}
    drawn["logit_bias"] = [f"{token}={value}" for token, value in sorted((sampling.logit_bias or {}).items())]
    if sampling.grammar is None:
        del drawn["grammar"]
    limits = settings.limits_from(session.limits)
    return {
        **found,
        "dtype": str(session.model.dtype).removeprefix("torch."),
        "engine": session.target.engine,
        **({} if seed is None else {"seed": seed}),
        "eos": sorted(session.eos),
        "final_token": session.final_token,
        **json.loads(json.dumps(asdict(opened.method) | drawn | asdict(limits), default=_named)),
        **({"logprobs": asdict(logprobs)} if (logprobs := settings.logprobs.wanted) else {}),
    }


def difference(before: Facts, now: Facts) -> str | None:
    """All settings that differ, such as ``max_new_tokens 48, which is now 64``; None where they agree."""
    found = [f"{name} {_shown(before[name], now.get(name))}" for name in before if _unlike(before[name], now.get(name))]
    if unnamed := [name for name in now if name not in before]:
        found.append(f"settings that it does not hold ({', '.join(unnamed)})")
    return "; ".join(found) or None


def _files_digest(model: str, patterns: Sequence[str]) -> str | None:
    """A digest of a model's files of these names; None where there are none."""
    folder = folder_of(model)
    files = sorted({path for pattern in patterns for path in folder.glob(pattern)}) if folder is not None else []
    if not files:
        return None
    digest = hashlib.sha256()
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:_DIGITS]


def _named(value: Any) -> str:
    """A setting that JSON does not have."""
    if not isinstance(value, Grammar):
        return str(value)
    short = len(value.text) <= _LONG
    return f"{value.kind} {value.text if short else hashlib.sha256(value.text.encode()).hexdigest()[:_DIGITS]}"


def _unlike(before: Any, now: Any) -> bool:
    """Whether two values differ. Models are compared by their digests, not by their names."""
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.get("fingerprint") and now.get("fingerprint"):
        return bool(before["fingerprint"] != now["fingerprint"])
    return bool(before != now)


def _shown(before: Any, now: Any) -> str:
    old, new = (value.get("name") if isinstance(value, Mapping) else value for value in (before, now))
    return f"{old!r}, whose files have changed since" if old == new else f"{old!r}, which is now {new!r}"
