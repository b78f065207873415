"""``draftwood pull``. PyTorch is not imported."""

from __future__ import annotations

import click

_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "tokenizer*")


@click.command(name="pull")
@click.argument("name")
def command(name: str) -> None:
    """Download a model to the cache of the hub, and print where it is.

    NAME is one of the hub, such as HuggingFaceTB/SmolLM2-135M-Instruct, or owner/name-GGUF with :Q8_0 for one of its
    quantisations (Q4_K_M, where there is one, by default). What was interrupted goes on where it ended.
    """
    from draftwood.loading.checkpoint import hub_errors
    from draftwood.loading.gguf_names import download
    from draftwood.loading.names import SHORT_NAMES, check_model, resolve

    check_model(name)
    found = download(name) or resolve(name)
    if str(found) in (name, *(model.hub for model in SHORT_NAMES.values())):
        with hub_errors(name):
            from huggingface_hub import snapshot_download

            found = snapshot_download(str(found), allow_patterns=list(_FILES))
    click.echo(str(found))
