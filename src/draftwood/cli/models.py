"""``draftwood models``. No model is loaded, and the hub is not contacted."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click


@click.command(name="models", short_help="List bundled pairs, short names and converted GGUF files.")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")
def command(as_json: bool) -> None:
    """List the models that are available by name: bundled pairs, short names, and GGUF files that were converted.

    Names of the hub, folders and GGUF files can be given as --target and --draft without being listed here.
    """
    found = gather()
    click.echo(json.dumps(found, ensure_ascii=False, default=str) if as_json else "\n".join(lines(found)))


def gather() -> dict[str, Any]:
    """Everything that ``models`` shows, as plain values."""
    from draftwood.loading.gguf_store import store_folder, stored
    from draftwood.loading.models import bundled_pairs
    from draftwood.loading.names import SHORT_NAMES

    return {
        "pairs": {name: {part: str(path) for part, path in parts.items()} for name, parts in bundled_pairs().items()},
        "short_names": {name: _short_name(name) for name in SHORT_NAMES},
        "converted": [asdict(one) | {"folder": str(one.folder)} for one in stored()],
        "converted_folder": str(store_folder()),
    }


def _short_name(name: str) -> dict[str, Any]:
    """Where a short name's model would be loaded from: ``package``, ``cache``, ``hub cache``, or None if it is not here."""
    from draftwood.loading.names import SHORT_NAMES, converted_folder, installed_file
    from draftwood.loading.profile import folder_of

    model = SHORT_NAMES[name]
    candidates = {
        "package": installed_file(model),
        "cache": converted_folder(model),
        "hub cache": folder_of(model.hub),
    }
    found = next((source for source, path in candidates.items() if path is not None), None)
    return {
        "found": found,
        "path": None if found is None else str(candidates[found]),
        "hub": model.hub,
        "install": model.install,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The facts as text."""
    shown = ["Bundled pairs"]
    for name, parts in found["pairs"].items():
        shown += [f"  {name}", *(f"    {part:<8}{path}" for part, path in parts.items())]
    if not found["pairs"]:
        shown.append("  none")
    shown += ["", "Short names"]
    for name, model in found["short_names"].items():
        if model["found"] is None:
            shown.append(f"  {name}: not here; it is {model['hub']} on the hub, or install it: {model['install']}")
        else:
            shown.append(f"  {name}: in the {model['found']}, {model['path']}")
    shown += ["", f"Converted GGUF files in {found['converted_folder']}"]
    for one in found["converted"]:
        shown.append(f"  {Path(one['folder']).name}  {one['bytes'] / 1e6:.0f} MB, {one['dtype']}, from {one['source']}")
    if not found["converted"]:
        shown.append("  none")
    return shown
