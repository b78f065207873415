"""The settings of a run as plain values, and their differences from those of another run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeAlias

import torch

from draftwood.cli.settings import Opened, Settings
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.session import Session
from draftwood.grammar.grammar import Grammar
from draftwood.loading.checkpoint import folder_of
from draftwood.loading.names import named_or_bundled, resolve
from draftwood.loading.profile import identity
from draftwood.sampling.processors import for_request
from draftwood.sampling.settings import Sampling

Facts: TypeAlias = Mapping[str, Any]
"""Settings that the texts depend on, by name, as values that JSON keeps unchanged."""
_TOKENIZER = ("tokenizer*.json", "vocab.*", "merges.txt", "*.spm", "*.model")
_DIGITS = 16  # of a digest
_LONG = 80  # characters of a processor's settings


def known_facts(settings: Settings) -> dict[str, Any]:
    """What is known before the models are loaded: their names with a digest of their files, and the given options."""
    models = settings.models
    target, draft = named_or_bundled(settings.kind, models.target, models.draft)
    target, draft = resolve(target), None if draft is None else resolve(draft)
    found: dict[str, Any] = {
        role: None if model is None else {"name": name or "bundled", "fingerprint": _digest_of(model)}
        for role, model, name in (("target", target, models.target), ("draft", draft, models.draft))
    }
    found["tokenizer"] = {"name": models.target or "bundled", "fingerprint": _tokenizer_digest(target)}
    if settings.kind == "language":
        parts = (settings.loading, settings.method, settings.sampling, settings.limits, settings.logprobs)
        values = {f.name: getattr(part, f.name) for part in parts for f in fields(part)} | {"seed": settings.seed}
        found["given"] = plain({name: values[name] for name in sorted(settings.given & values.keys())})
    return found


def facts_of(settings: Settings, opened: Opened[Session], seed: int | None) -> dict[str, Any]:
    """All settings that the texts depend on; without a seed where nothing is drawn."""
    session, sampling = opened.session, opened.sampling
    return {
        **known_facts(settings),
        "dtype": str(session.model.dtype).removeprefix("torch."),
        "engine": session.target.engine,
        **({} if seed is None else {"seed": seed}),
        "eos": sorted(session.eos),
        "final_token": session.final_token,
        **text_facts(opened.method, sampling, settings.limits_from(session.limits)),
        **settings.logprobs.facts,
    }


def text_facts(method: Method, sampling: Sampling, limits: Limits) -> dict[str, Any]:
    """The settings of method, sampling and limits."""
    drawn = {f.name: getattr(sampling, f.name) for f in fields(sampling)}
    drawn["logit_bias"] = [f"{token}={value}" for token, value in sorted((sampling.logit_bias or {}).items())]
    for name in ("processors", "warpers"):
        drawn[name] = [_described(for_request(processor, 0, 1)) for processor in getattr(sampling, name) or ()]
    if sampling.grammar is None:  # as in files from before there were grammars
        del drawn["grammar"]
    return plain({**asdict(method), **drawn, **asdict(limits)})


def plain(facts: Facts) -> dict[str, Any]:
    """The values as JSON reads them back."""
    return {name: _plain(value) for name, value in facts.items()}


def difference(before: Facts, now: Facts) -> str | None:
    """All settings that differ, such as ``max_new_tokens 48, which is now 64``; None where they agree."""
    found = [f"{name} {_shown(before[name], now.get(name))}" for name in before if _unlike(before[name], now.get(name))]
    if unnamed := [name for name in now if name not in before]:
        found.append(f"settings that it does not hold ({', '.join(unnamed)})")
    return "; ".join(found) or None


def _digest_of(model: str | Path) -> str | None:
    found = identity(model)
    return None if found is None else found["fingerprint"][:_DIGITS]


def _tokenizer_digest(model: str | Path) -> str | None:
    """A digest of the tokenizer's files; None where there are none."""
    folder = folder_of(model)
    files = sorted({path for pattern in _TOKENIZER for path in folder.glob(pattern)}) if folder is not None else []
    if not files:
        return None
    digest = hashlib.sha256()
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:_DIGITS]


def _described(processor: Any) -> str:
    """The class and the plain settings of a processor; long ones as a digest."""
    values = getattr(processor, "__dict__", {}).items()
    found = {name: _settled(value) for name, value in values}
    found = {name: value for name, value in found.items() if _is_plain(value)}
    text = ", ".join(f"{name}={value!r}" for name, value in sorted(found.items()))
    return f"{type(processor).__name__}({_short(text)})"


def _short(text: str) -> str:
    """A text, or its digest if it is long."""
    return text if len(text) <= _LONG else hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _settled(value: Any) -> Any:
    """Tensors and mappings as lists."""
    if isinstance(value, Mapping):
        return sorted(([key, _settled(entry)] for key, entry in value.items()), key=repr)
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(entry) for entry in value)
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    if isinstance(value, Grammar):
        return f"{value.kind} {_short(value.text)}"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _unlike(before: Any, now: Any) -> bool:
    """Whether two values differ. Models are compared by their digests, not by their names."""
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.get("fingerprint") and now.get("fingerprint"):
        return bool(before["fingerprint"] != now["fingerprint"])
    return bool(before != now)


def _shown(before: Any, now: Any) -> str:
    old, new = (value.get("name") if isinstance(value, Mapping) else value for value in (before, now))
    return f"{old!r}, whose files have changed since" if old == new else f"{old!r}, which is now {new!r}"
