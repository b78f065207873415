"""``draftwood models`` and ``draftwood pull``. No model is loaded, and PyTorch is not imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from draftwood.cli.console import write_line
from draftwood.cli.info import outline

_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "tokenizer*")


@click.command(name="models")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")
def command(as_json: bool) -> None:
    """List the models that are available by name: bundled pairs, short names and their drafters, and the GGUF files in the
    folders of the hub, of LM Studio and of Ollama.

    Names of the hub ('hf cache ls' lists downloaded ones), folders and GGUF files can be given as --target and --draft too.
    """
    found = gather()
    write_line(json.dumps(found, ensure_ascii=False, default=str) if as_json else "\n".join(outline(found)))


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


@click.command(name="pull")
@click.argument("name")
def pull(name: str) -> None:
    """Download a model to the cache of the hub, and print where it is.

    NAME is one of the hub, such as HuggingFaceTB/SmolLM2-135M-Instruct, or owner/name-GGUF with :Q8_0 for one of its
    quantisations (Q4_K_M, where there is one, by default). What was interrupted goes on where it ended.
    """
    from draftwood.loading.checkpoint import hub_errors
    from draftwood.loading.names import locate

    if not Path(found := locate(name)).exists():
        with hub_errors(name):
            from huggingface_hub import snapshot_download

            found = snapshot_download(str(found), allow_patterns=list(_FILES))
    write_line(str(found))
