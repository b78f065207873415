"""``draftwood models``. No model is loaded, PyTorch is not imported, and the hub is not contacted."""

from __future__ import annotations

import json
from typing import Any

import click

from draftwood.cli.info import outline


@click.command(name="models")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")
def command(as_json: bool) -> None:
    """List the models that are available by name: bundled pairs, short names and their drafters, and the GGUF files in the
    folders of the hub, of LM Studio and of Ollama.

    Names of the hub ('hf cache ls' lists downloaded ones), folders and GGUF files can be given as --target and --draft too.
    """
    found = gather()
    click.echo(json.dumps(found, ensure_ascii=False, default=str) if as_json else "\n".join(outline(found)))


def gather() -> dict[str, Any]:
    """Everything that ``models`` shows, as plain values."""
    from draftwood.loading.gguf_names import files_here
    from draftwood.loading.names import SHORT_NAMES, bundled_pairs

    return {
        "pairs": {name: {part: str(path) for part, path in parts.items()} for name, parts in bundled_pairs().items()},
        "short_names": {name: _short_name(name) for name in SHORT_NAMES},
        "gguf_files": files_here(),
    }


def _short_name(name: str) -> dict[str, Any]:
    """Where a short name's model would be loaded from: ``package``, ``hub cache``, or None if it is not here."""
    from draftwood.loading.checkpoint import folder_of
    from draftwood.loading.names import SHORT_NAMES, bundled_drafter, installed_file

    model = SHORT_NAMES[name]
    candidates = {"package": installed_file(model), "hub cache": folder_of(model.hub)}
    found, path = next(((source, str(path)) for source, path in candidates.items() if path is not None), (None, None))
    drafter = bundled_drafter(name)
    return {
        "found": found,
        "path": path,
        "hub": model.hub,
        "install": model.install,
        "drafter": None if drafter is None else str(drafter),
    }
